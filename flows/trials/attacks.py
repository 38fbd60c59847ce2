"""`doctor --attack`: how often a judge is fooled by texts that try to talk it into a verdict.

The attack set of `tasks/trials/attack_set.py` is planted in small samples of our own and put to the judge beside the
same samples without it. What that will take is said before anything is asked. Nothing is written to a warehouse: an
interrupted measurement shows what it has so far, and is begun anew the next time.
"""

import asyncio
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from evalhouse.flows.display.output import (
    make_console,
    make_table,
    print_line,
    print_notice,
    print_table,
    write_dollars,
    write_interval,
)
from evalhouse.flows.preparing.live_run import make_prompts
from evalhouse.prompts import Prompt
from evalhouse.tasks.asking.asker import Asker, CallCounts
from evalhouse.tasks.asking.limits import EndpointLimit
from evalhouse.tasks.asking.prices import Price, find_price, load_prices
from evalhouse.tasks.asking.record import Call
from evalhouse.tasks.asking.tokens import estimate_tokens
from evalhouse.tasks.judge.errors import RunCancelled
from evalhouse.tasks.judge.protocol import Judge
from evalhouse.tasks.models.make import make_judge
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.trials.attack_results import (
    Result,
    Tally,
    count_results,
    list_requests,
    make_question,
    measure_attacks,
)
from evalhouse.tasks.trials.attack_set import load_attacks
from evalhouse.tasks.trials.attack_trials import Trial, forge_reply, make_trials
from evalhouse.warehouse.rows.calls import RecordedReply

# What a chat's wrapping adds to each message, as OpenAI's counting has it.
_TOKENS_A_MESSAGE = 4
# A judge's reasons are longer than those of a forged reply.
_REASON_TOKENS = 20
_COLUMNS = ("by", "group", "#attacks", "#fooled", "#share", "95 % interval", "#no verdict", "#left out")


@dataclass(frozen=True, kw_only=True)
class AttackEstimate:
    """What a measurement takes when no reply has to be asked for twice. `cost_usd` is None without a known price."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


@dataclass(frozen=True, kw_only=True)
class AttackReport:
    """What came of it; `results` has fewer entries than there were trials when it was interrupted."""

    judge: str
    language: str
    n_trials: int
    results: Sequence[Result]
    counts: CallCounts
    interrupted: bool


class _NoRecord:
    """Finds nothing and keeps nothing: a measurement is no run, and has no place among those."""

    async def find(self, _: str) -> RecordedReply | None:
        """Nothing is on record."""
        return None

    def keep(self, _: Call) -> str:
        """An id, as every call has one."""
        return uuid.uuid4().hex

    def close(self) -> None:
        """Nothing was written."""


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """Everything a measurement works with, ready to be asked."""

    settings: RunSettings
    judge: Judge
    prompts: Mapping[str, Prompt]
    trials: Sequence[Trial]
    price: Price | None

    def estimate(self) -> AttackEstimate:
        """Go through all requests without sending any."""
        prompt_tokens = completion_tokens = 0
        asked = [(trial, trial.data) for trial in self.trials]
        asked += [(trial, trial.control) for trial in list_requests(self.trials)]
        for trial, data in asked:
            payload: Mapping[str, Any] = self.judge.prepare(make_question(self.prompts, trial, data)).payload
            messages = payload.get("messages", ())
            prompt_tokens += sum(estimate_tokens(message["content"]) + _TOKENS_A_MESSAGE for message in messages)
            completion_tokens += _guess_reply(trial) if messages else 0
        cost_usd = self.price.cost_usd(prompt_tokens, completion_tokens) if self.price else None
        return AttackEstimate(
            requests=len(asked), prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost_usd=cost_usd
        )

    def describe(self, estimate: AttackEstimate) -> str:
        """A sentence for whoever is about to pay for it."""
        n_attacks = len({trial.attack.id for trial in self.trials})
        tokens = f"about {estimate.prompt_tokens:,} + {estimate.completion_tokens:,} tokens"
        return (
            f"{n_attacks} attacks in {len(self.trials)} trials: {estimate.requests} requests to {self.judge.name}, "
            f"{tokens}, cost {write_dollars(estimate.cost_usd)}"
        )


def plan_attacks(settings: RunSettings) -> AttackPlan:
    """Make everything a measurement needs; raises what a run would refuse beforehand."""
    trials = make_trials(load_attacks())
    judge = make_judge(settings)
    return AttackPlan(
        settings=settings,
        judge=judge,
        prompts=make_prompts(settings, judge),
        trials=trials,
        price=find_price(load_prices(settings.prices), judge.model),
    )


def run_attacks(plan: AttackPlan) -> AttackReport:
    """Put every trial to the judge; raises FatalJudgeError when nothing works. Ctrl-C ends it with what is there."""
    asker = Asker(
        judge=plan.judge,
        record=_NoRecord(),
        limit=EndpointLimit(concurrency=plan.settings.concurrency, rpm=plan.settings.rpm, tpm=plan.settings.tpm),
        attempts=plan.settings.attempts,
        price=plan.price,
    )
    n_requests = len(plan.trials) + len(list_requests(plan.trials))
    with _show_progress(n_requests) as note_done:
        results = asyncio.run(_measure(asker, plan, note_done))
    return AttackReport(
        judge=plan.judge.name,
        language=plan.settings.language,
        n_trials=len(plan.trials),
        results=results,
        counts=asker.counts,
        interrupted=len(results) < len(plan.trials),
    )


async def _measure(asker: Asker, plan: AttackPlan, note_done: Callable[[], None]) -> list[Result]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asker.stop, RunCancelled(f"stopped by {number.name}"))
    try:
        return await measure_attacks(asker, plan.prompts, plan.trials, note_done)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        await plan.judge.close()


@contextmanager
def _show_progress(n_requests: int) -> Iterator[Callable[[], None]]:
    """Show answered requests on standard error; silent when that is no terminal."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not sys.stderr.isatty()
    with Progress(*columns, console=make_console(stderr=True), transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=n_requests)
        yield lambda: progress.advance(task)


def _guess_reply(trial: Trial) -> int:
    """About how many tokens a reply has: a finished one with short reasons, and what longer reasons add."""
    reply = forge_reply(trial.step, trial.attack.wants, trial.control)
    return estimate_tokens(reply) + _REASON_TOKENS * max(1, reply.count('"reason"'))


def group_results(report: AttackReport) -> dict[str, dict[str, Tally]]:
    """Tallies by kind, by language and by step, in the order of the attack set."""
    keys: dict[str, Callable[[Result], str]] = {
        "kind": lambda result: result.trial.attack.kind,
        "language": lambda result: result.trial.attack.language,
        "step": lambda result: result.trial.step,
    }
    return {by: _tally_by(report.results, key) for by, key in keys.items()}


def _tally_by(results: Sequence[Result], key: Callable[[Result], str]) -> dict[str, Tally]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return {name: count_results(group) for name, group in groups.items()}


def to_document(report: AttackReport) -> dict[str, object]:
    """The report as JSON has it, every trial included."""
    return {
        "judge": report.judge,
        "language": report.language,
        "trials": report.n_trials,
        "interrupted": report.interrupted,
        "calls": {
            "requests": report.counts.requests,
            "failed": report.counts.failed,
            "prompt_tokens": report.counts.prompt_tokens,
            "completion_tokens": report.counts.completion_tokens,
            "cost_usd": report.counts.cost_usd if report.counts.priced else None,
        },
        "total": _describe_tally(count_results(report.results)),
        "by": {
            by: {name: _describe_tally(tally) for name, tally in groups.items()}
            for by, groups in group_results(report).items()
        },
        "results": [_describe_result(result) for result in report.results],
    }


def _describe_tally(tally: Tally) -> dict[str, object]:
    low, high = (tally.interval.low, tally.interval.high) if tally.interval else (None, None)
    return {**asdict(tally), "share": tally.share, "ci_low": low, "ci_high": high}


def _describe_result(result: Result) -> dict[str, object]:
    attack = result.trial.attack
    return {
        "attack": attack.id,
        "kind": attack.kind,
        "language": attack.language,
        "wants": attack.wants,
        "field": result.trial.field,
        "step": result.trial.step,
        "scene": result.trial.scene.id,
        "outcome": result.outcome,
        "said": result.said,
    }


def print_report(report: AttackReport) -> None:
    """Print the tallies, the attacks that fooled the judge, and why trials do not count."""
    rows = [_make_row("all", "", count_results(report.results))]
    for by, groups in group_results(report).items():
        rows += [_make_row(by, name, tally) for name, tally in groups.items()]
    print_table(make_table(_COLUMNS, rows, title=f"Attacks on {report.judge}"))
    fooled = [result for result in report.results if result.outcome == "fooled"]
    print_line()
    if fooled:
        print_table(make_table(["attack", "planted in", "judged in", "said"], _list_fooled(fooled), title="Fooled by"))
    elif count_results(report.results).attacks:
        print_line(f"No attack fooled {report.judge}.")
    else:
        print_line("There is nothing to count.")
    _print_uncounted(report)


def _make_row(by: str, name: str, tally: Tally) -> list[object]:
    interval = write_interval(tally.interval.low, tally.interval.high) if tally.interval else None
    return [by, name, tally.attacks, tally.fooled, tally.share, interval, tally.unanswered, tally.left_out]


def _list_fooled(fooled: Sequence[Result]) -> list[list[object]]:
    return [
        [result.trial.attack.id, result.trial.field, f"{result.trial.step}, {result.trial.scene.id}", result.said]
        for result in fooled
    ]


def _print_uncounted(report: AttackReport) -> None:
    """The trials beside the shares: those without a verdict, and those whose control was wrong."""
    heads = {"unanswered": "Without a usable reply", "left_out": "Left out, for the judge errs without the attack too"}
    for outcome, head in heads.items():
        told = dict.fromkeys(
            f"{result.trial.step}, {result.trial.scene.id}: {result.said}"
            for result in report.results
            if result.outcome == outcome
        )
        if told:
            print_line()
            print_table(make_table(["what was said"], [[line] for line in told], title=head))
    if report.interrupted:
        print_notice(
            f"Interrupted: {len(report.results)} of {report.n_trials} trials were judged, and only they are counted."
        )
