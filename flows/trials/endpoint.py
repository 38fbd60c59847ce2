"""`doctor --try`: the abilities of a judge's endpoint, by four small requests, and their consequences for a run.

The requests, and what the server reports about itself, are in `tasks/models/serving.py`; here both are put into words.
The price is printed before anything is asked, and nothing is written to a warehouse.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evalhouse.flows.results.output import print_line, print_notice, print_section, write_count, write_dollars
from evalhouse.prompts import load_prompts
from evalhouse.tasks.asking.usage import find_price, load_prices
from evalhouse.tasks.judge.protocol import Judge, choose_timeout, is_near, list_judges
from evalhouse.tasks.models.make import make_judge, name_judge
from evalhouse.tasks.models.serving import N_REQUESTS, Form, Probe, Serving, Trial, read_serving
from evalhouse.tasks.settings.run import RunSettings

# Instructions, worked examples and a reply take so much of a window beside the data; data are counted by a quick rule.
_BESIDE_DATA = 2_500
_SAFE_SHARE = 0.7
_MIN_DATA = 500
_LOCAL_SLOTS = 2

_FORM_WORDS: dict[Form, str] = {
    "ids": "each request carries a schema that names its ids",
    "schema": "each request carries the schema of its prompt",
    "json_object": "requests ask for JSON of any shape, and their words say which",
    "words": "the form of a reply is asked for in words alone, and its JSON is read out of the text",
}


@dataclass(frozen=True, kw_only=True)
class JudgeTrial:
    """The result of trying one judge, with the settings of the run that would ask it."""

    settings: RunSettings
    endpoint: str
    trial: Trial
    serving: Serving


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """The judges of the settings that ask a model; none where all are built in."""

    settings: RunSettings
    judges: Sequence[tuple[RunSettings, Judge]]

    def estimate(self) -> dict[str, object]:
        """Requests, tokens and dollars; None dollars where a price is not known."""
        prices = load_prices(self.settings.prices)
        counts = [_make_probe(settings, judge).count_tokens() for settings, judge in self.judges]
        known_prices = [find_price(prices, judge.model) for _, judge in self.judges]
        costs = [price.cost_usd(*count) if price else None for price, count in zip(known_prices, counts, strict=True)]
        known = [cost for cost in costs if cost is not None]
        return {
            "requests": N_REQUESTS * len(self.judges),
            "prompt_tokens": sum(prompt for prompt, _ in counts),
            "completion_tokens": sum(completion for _, completion in counts),
            "cost_usd": sum(known) if len(known) == len(costs) else None,
        }

    def describe(self) -> str:
        """Describe the requests and their cost in a sentence."""
        if not self.judges:
            return f"--try: {self.settings.judge} is built in or a classifier, so there is nothing to find out"
        estimate = self.estimate()
        names = ", ".join(settings.judge for settings, _ in self.judges)
        cost = estimate["cost_usd"] if isinstance(estimate["cost_usd"], float) else None
        return (
            f"{estimate['requests']} small requests to {names}, about {estimate['prompt_tokens']:,} + "
            f"{estimate['completion_tokens']:,} tokens, cost {write_dollars(cost)}"
        )

    def run(self) -> list[JudgeTrial]:
        """Ask all judges, one after the other."""

        async def ask_all() -> list[JudgeTrial]:
            tried = []
            for settings, judge in self.judges:
                trial = await _make_probe(settings, judge).run()
                # Afterwards, when the model is loaded: some servers know its window only then.
                is_openai = settings.judge.startswith("openai:")
                serving = (
                    await read_serving(judge, at_start=False) if is_openai and trial.problem is None else Serving()
                )
                tried.append(JudgeTrial(settings=settings, endpoint=judge.endpoint or "", trial=trial, serving=serving))
            return tried

        return asyncio.run(ask_all())


def plan_trials(settings: RunSettings) -> TrialPlan:
    """Make the judges that write what they are asked to; raises FatalJudgeError for one that cannot be made.

    What is built in has no endpoint, and a model that answers yes or no to pairs needs none of what is tried.
    """
    named = [name_judge(settings, name) for name in list_judges(settings.judge)]
    made = [(one, make_judge(one)) for one in named]
    return TrialPlan(
        settings=settings,
        judges=[(one, judge) for one, judge in made if judge.endpoint is not None and judge.tasks is None],
    )


def _make_probe(settings: RunSettings, judge: Judge) -> Probe:
    prompts = load_prompts(settings.language, Path(settings.prompts) if settings.prompts else None)
    return Probe(judge, prompts["rank"], settings.timeout_s)


def to_document(tried: Sequence[JudgeTrial]) -> list[dict[str, object]]:
    """Describe each judge, as in JSON."""
    return [
        {
            "judge": item.settings.judge,
            **asdict(item.trial),
            **asdict(item.serving),
            "therefore": list_consequences(item),
        }
        for item in tried
    ]


def print_report(tried: Sequence[JudgeTrial]) -> None:
    """Print for each judge a table of its abilities, and what a run will do."""
    for item in tried:
        trial = item.trial
        if trial.problem is not None:
            print_notice(f"{item.settings.judge}: {trial.problem}")
            continue
        rows: list[list[object]] = [[seen.ability, seen.status, seen.detail] for seen in trial.seen]
        if item.serving.window is None:
            rows.append(["context window", "unknown", "the server does not say"])
        else:
            rows.append(["context window", f"{item.serving.window:,}", f"tokens, says {item.serving.said_at}"])
        print_section(f"Tried {item.settings.judge}", ["what", "can it", "seen"], rows)
        asked = write_count(trial.n_answered, "request")
        print_line(
            f"{asked} answered and {trial.n_refused} refused in {trial.seconds:.1f} s, "
            f"{trial.prompt_tokens:,} + {trial.completion_tokens:,} tokens"
        )
        print_line()
        print_line("What a run will do", bold=True)
        for line in list_consequences(item):
            print_line(f"- {line}")


def list_consequences(item: JudgeTrial) -> list[str]:
    """Return what a run does with this judge, a sentence each; nothing where the trial failed."""
    trial, settings = item.trial, item.settings
    if trial.problem is not None:
        return []
    words = _FORM_WORDS[trial.form]
    if trial.is_held:
        lines = [f"Form of replies: {words}, and the endpoint holds the model to it."]
    else:
        lines = [f"Form of replies: {words}; what is missing in a reply or wrong is asked for again."]
    if "temperature" in trial.refused:
        lines.append("Temperature: none is sent, for it is refused.")
    elif settings.temperature is None:
        lines.append("Temperature: none is sent, so the model's own counts.")
    else:
        lines.append(f"Temperature: {settings.temperature:g} is sent.")
    cannot = {seen.ability for seen in trial.seen if seen.status == "no"}
    if "seed" in cannot:
        lines.append("Seeds are left out: votes (--votes) still work, and cannot be repeated exactly.")
    if "log-probabilities" in cannot:
        lines.append("Log-probabilities are left out: with --logprobs grades are the ratings as the model says them.")
    return [*lines, _describe_pace(item), _describe_window(item)]


def _describe_pace(item: JudgeTrial) -> str:
    concurrency, slots = item.settings.concurrency, item.serving.slots
    timeout_s = choose_timeout(item.settings.timeout_s, item.endpoint)
    line = f"Pace: up to {concurrency} requests at once (--concurrency), each waited for {timeout_s:g} s (--timeout)"
    if item.trial.side_by_side is False and (slots is None or slots == 1):
        slots = 1
    if slots is None or slots >= concurrency:
        return f"{line}."
    queue = "answers one after the other" if slots == 1 else f"answers {slots} at once"
    return (
        f"{line}. The server {queue}: the others wait in its queue, where their time does not run; "
        f"--concurrency {max(slots, _LOCAL_SLOTS)} is as quick."
    )


def _describe_window(item: JudgeTrial) -> str:
    window, most = item.serving.window, item.settings.request_tokens
    if window is None:
        silent = (
            "; a prompt that the server cuts without a word is noticed by its token count"
            if is_near(item.endpoint)
            else ""
        )
        return f"Length: up to {most:,} tokens of data go into one request; the window is not known{silent}."
    fitting = int((window - _BESIDE_DATA) * _SAFE_SHARE)
    if fitting >= most:
        return f"Length: up to {most:,} tokens of data go into one request, which the window holds."
    if fitting < _MIN_DATA:
        return (
            f"Length: a window of {window:,} tokens is too small for the prompts; serve the model with 8,192 or more."
        )
    if item.settings.context_window is not None and item.settings.context_window <= window:
        return f"Length: what is longer than --context-window {item.settings.context_window} goes out in smaller parts."
    flag = "" if item.serving.is_found_by_runs else f"with --context-window {window} "
    return (
        f"Length: up to {most:,} tokens of data go into one request, more than the window holds: {flag}what is longer "
        "goes out in smaller parts; or serve the model with a larger window."
    )
