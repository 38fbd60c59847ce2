"""`doctor --try`: the abilities of a judge's endpoint, by four small requests, and their consequences for a run.

The price is printed before anything is asked, and nothing is written to a warehouse.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from evalhouse.flows.results.output import print_line, print_notice, print_section, write_count, write_dollars
from evalhouse.prompts import Item, Prompt, load_prompts
from evalhouse.tasks.asking.usage import count_request, find_price, load_prices
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.judge.protocol import (
    FatalJudgeError,
    Judge,
    JudgeError,
    ModelReply,
    ModelRequest,
    Question,
    UnsupportedOption,
    UnusableReply,
    choose_timeout,
    is_near,
    list_judges,
)
from evalhouse.tasks.models.make import make_judge, name_judge
from evalhouse.tasks.models.serving import Serving, read_serving
from evalhouse.tasks.settings.run import RunSettings

N_REQUESTS = 4
Status = Literal["yes", "no", "not sent", "unknown"]
Form = Literal["ids", "schema", "json_object", "words"]
_TIMEOUT_S = 120.0
_MAX_REFUSALS = 8
# In less time than that, the network is measured and not the endpoint.
_MIN_S = 0.05
# The later of two equal requests takes twice as long if they are answered one after the other.
_APART = 1.6
_REPLY_TOKENS = 60
_IDS = ("C1", "C2")
_COPIED = {"verdicts": [{"id": item_id, "reason": "read 100 percent", "label": "maybe"} for item_id in _IDS]}
_WORDS = "Repeat this JSON object, character by character, and write nothing else:\n" + orjson.dumps(_COPIED).decode()
_FORMS: dict[Form, str] = {
    "ids": "schema that names ids",
    "schema": "schema of a prompt",
    "json_object": "JSON mode",
}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One ability of an endpoint; `detail` is what was seen, or the endpoint's own words."""

    ability: str
    status: Status
    detail: str = ""


@dataclass(kw_only=True)
class Trial:
    """The result of the probe. `form` is the form of replies that a run asks for, `is_held` whether it binds the model.

    `problem` is why the probe ended early. `side_by_side` is None if the two requests did not show it. `refused` are
    the endpoint's words by the option that it refused.
    """

    seen: list[Seen] = field(default_factory=list)
    form: Form = "words"
    is_held: bool = False
    side_by_side: bool | None = None
    refused: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    n_answered: int = 0
    n_refused: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A reply with the request that was sent for it, and its end on the clock of the process.

    `is_held` if the label that the schema does not allow was kept out of the reply.
    """

    sent: Mapping[str, Any]
    reply: ModelReply
    ended_at: float
    is_readable: bool
    is_held: bool
    quoted: str

    @property
    def reading(self) -> str:
        return "its JSON can be read" if self.is_readable else f"not the object that was asked for: {self.quoted}"


class Probe:
    """Asks one judge, which is used for nothing else. `prompt` gives the form of the replies; it is not sent itself.

    It asks four times for the same JSON object, in which one label is not allowed by the schema: a model that is held
    to the schema cannot repeat it. The first request goes out as a run's would, made simpler with each refusal, which
    costs nothing; the second asks for plain text with a seed and log-probabilities; the last two, in JSON mode and with
    a schema, go out together to show whether they are answered at once or one after the other.
    """

    def __init__(self, judge: Judge, prompt: Prompt, timeout_s: float | None) -> None:
        self._judge = judge
        self._timeout_s = timeout_s or _TIMEOUT_S
        items = [Item(id=item_id, text="read") for item_id in _IDS]
        data = {name: items if name == "contexts" else "read" for name in prompt.variables}
        self._forms: Sequence[str] = tuple(getattr(judge, "forms", ()))
        self._question = Question(step="rank", sample_id="", prompt=prompt, data=data)
        self._trial = Trial()

    def count_tokens(self) -> tuple[int, int]:
        """Return about how many tokens all requests take: of prompts and of replies."""
        return N_REQUESTS * count_request(self._write(self._question).payload), N_REQUESTS * _REPLY_TOKENS

    async def run(self) -> Trial:
        """Ask; any failure ends it, with the results until then and the reason."""
        trial, began = self._trial, time.monotonic()
        try:
            first = await self._ask(self._question)
            trial.form = _find_form(first.sent)
            trial.is_held = first.is_held and trial.form in ("ids", "schema")
            plain = await self._ask(replace(self._question, vote=1, logprobs=True), "words")
            together_at = time.monotonic()
            # A judge that does not know a form is asked in words.
            forms: tuple[Form, Form] = ("json_object", "schema")
            both = await asyncio.gather(
                *(self._ask(self._question, form if form in self._forms else "words") for form in forms)
            )
            earlier_s, later_s = sorted(answer.ended_at - together_at for answer in both)
            refused = trial.refused
            by_form = {_find_form(answer.sent): answer for answer in (*reversed(both), first)}
            for form, ability in _FORMS.items():
                answer = by_form.get(form)
                if form in refused:
                    self._see(ability, "no", refused[form])
                elif answer is None:
                    compiled = form == "ids" and "schema" in self._forms
                    self._see(ability, "not sent", "each new one is compiled there, for seconds" if compiled else "")
                elif form == "json_object":
                    self._see(ability, "yes", answer.reading)
                else:
                    detail = "the model is held to it" if answer.is_held else f"taken, and not kept to: {answer.quoted}"
                    self._see(ability, "yes" if answer.is_held else "no", detail)
            self._see("plain text", "yes" if plain.is_readable else "no", plain.reading)
            for ability, name in (("seed", "seed"), ("log-probabilities", "logprobs")):
                if name == "logprobs" and name in plain.sent and plain.reply.logprobs is None:
                    self._see(ability, "no", "taken, and none came")
                elif name in plain.sent:
                    self._see(ability, "yes", refused.get(name, ""))
                else:
                    self._see(ability, "no" if name in refused else "not sent", refused.get(name, ""))
            for name in sorted(refused.keys() - {"seed", "logprobs", "top_logprobs", *_FORMS}):
                self._see(name, "no", refused[name])
            times = f"{earlier_s:.1f} s and {later_s:.1f} s after they were sent together"
            if earlier_s < _MIN_S:
                self._see("requests at once", "unknown", f"too quick to measure: {times}")
            else:
                trial.side_by_side = later_s < _APART * earlier_s
                self._see("requests at once", "yes" if trial.side_by_side else "no", f"answered {times}")
        except TimeoutError:
            trial.problem = (
                f"no answer within {self._timeout_s:g} s; a model that is still being loaded may need another try, "
                "and EVALHOUSE_TIMEOUT sets more seconds"
            )
        except JudgeError as error:
            trial.problem = str(error)
        finally:
            await self._judge.close()
        trial.seconds = time.monotonic() - began
        return trial

    async def _ask(self, question: Question, form: Form | None = None) -> _Answer:
        """Return the reply to a request in a form, or in that of a run; in words once the form is refused."""
        for _ in range(_MAX_REFUSALS):
            request = self._write(question, form)
            try:
                async with asyncio.timeout(self._timeout_s):
                    reply = await self._judge.reply(request)
            except UnsupportedOption as error:
                self._trial.n_refused += 1
                # The options that the judge leaves out from now on were refused by the endpoint.
                sent, after = request.payload, self._judge.prepare(question).payload
                lost = [name for name in sent if name not in after and name not in ("response_format", "messages")]
                if not lost and "response_format" in sent:
                    lost = [_find_form(sent)]
                    form = None if form is None else "words"
                for name in lost:
                    self._trial.refused.setdefault(name, str(error))
                continue
            self._trial.n_answered += 1
            self._trial.prompt_tokens += reply.prompt_tokens or count_request(request.payload)
            self._trial.completion_tokens += reply.completion_tokens or 0
            ended_at, text = time.monotonic(), " ".join(reply.text.split())
            try:
                is_readable = "verdicts" in parse_object(reply.text, "verdicts")
            except UnusableReply:
                is_readable = False
            return _Answer(
                sent=request.payload,
                reply=reply,
                ended_at=ended_at,
                is_readable=is_readable,
                is_held=is_readable and '"maybe"' not in reply.text,
                quoted=repr(f"{text[:60]}…" if len(text) > 60 else text),
            )
        raise FatalJudgeError(
            f"one request was refused {_MAX_REFUSALS} times; the last: {[*self._trial.refused.values()][-1]}"
        )

    def _write(self, question: Question, form: Form | None = None) -> ModelRequest:
        """Return the judge's current request, with the words of this module in place of the prompt's."""
        request = self._judge.prepare(question)
        payload = {**request.payload, "messages": [{"role": "user", "content": _WORDS}]}
        prompt = self._question.prompt
        if form is not None:
            payload.pop("response_format", None)
        if form == "schema" and prompt is not None:
            described = {"name": prompt.name, "strict": True, "schema": prompt.reply_schema}
            payload["response_format"] = {"type": "json_schema", "json_schema": described}
        elif form == "json_object":
            payload["response_format"] = {"type": "json_object"}
        return replace(request, payload=payload)

    def _see(self, ability: str, status: Status, detail: str) -> None:
        self._trial.seen.append(Seen(ability=ability, status=status, detail=detail))


def _find_form(payload: Mapping[str, Any]) -> Form:
    form = payload.get("response_format") or {}
    if "prefixItems" in str(form):
        return "ids"
    kinds: dict[str, Form] = {"json_schema": "schema", "json_object": "json_object"}
    return kinds.get(form.get("type", ""), "words")


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
