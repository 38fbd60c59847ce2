"""`doctor --attack`: how often a judge is fooled by texts that try to talk it into a verdict.

The attack set of `tasks/trials/attack_set.py` is planted in small samples of our own and put to the judge beside the
same samples without it. What that will take is said before anything is asked. Nothing is written to a warehouse: an
interrupted measurement shows what it has so far, and starts from the beginning the next time.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from evalhouse.flows.display.output import (
    make_table,
    print_line,
    print_notice,
    print_section,
    print_table,
    write_dollars,
    write_interval,
)
from evalhouse.flows.run.outcome import Watch
from evalhouse.flows.trials.session import Session, open_session, rehearse
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.trials.attack_results import Result, Tally, count_results, list_requests, measure_attacks
from evalhouse.tasks.trials.attack_set import Trial, load_attacks, make_trials
from evalhouse.warehouse.metric_files import Plan

_NO_STEPS = Plan(metrics=(), steps=frozenset())
_COLUMNS = ("by", "group", "#attacks", "#fooled", "#share", "95 % interval", "#no verdict", "#left out")


@dataclass(frozen=True, kw_only=True)
class AttackReport:
    """What came of it; `results` has fewer entries than there were trials when it was interrupted."""

    judge: str
    language: str
    n_trials: int
    results: Sequence[Result]
    usage: Usage

    @property
    def is_interrupted(self) -> bool:
        """Whether trials were left."""
        return len(self.results) < self.n_trials


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """What a measurement puts to the judge of the settings."""

    settings: RunSettings
    trials: Sequence[Trial]

    def estimate(self) -> Usage:
        """What it takes when no reply has to be asked for twice; raises what would be refused. Nothing is sent."""
        return rehearse(self.settings, _NO_STEPS, self._measure).usage

    def run(self, watch: Watch) -> AttackReport:
        """Put all trials to the judge; raises FatalJudgeError when nothing works. Ctrl-C ends it with what is there."""
        with open_session(self.settings, _NO_STEPS) as session:
            return session.carry_out(self._measure, watch)

    async def _measure(self, session: Session) -> AttackReport:
        session.expect(len(self.trials) + len(list_requests(self.trials)), "requests")
        live_run = session.live_run
        results = await measure_attacks(live_run.asker, live_run.prompts, self.trials, session.note_done)
        return AttackReport(
            judge=self.settings.judge,
            language=self.settings.language,
            n_trials=len(self.trials),
            results=results,
            usage=session.usage,
        )

    def describe(self, estimate: Usage) -> str:
        """A sentence for the person who is about to pay for it."""
        n_attacks = len({trial.attack.id for trial in self.trials})
        tokens = f"about {estimate.prompt_tokens:,} + {estimate.completion_tokens:,} tokens"
        return (
            f"{n_attacks} attacks in {len(self.trials)} trials: {estimate.requests} requests to "
            f"{self.settings.judge}, {tokens}, cost {write_dollars(estimate.cost_usd)}"
        )


def plan_attacks(settings: RunSettings) -> AttackPlan:
    """Plant all attacks, asked about without record and budget; raises FatalJudgeError for a broken attack set."""
    own = {"fresh": True, "budget_usd": None, "embeddings": "hashing"}
    return AttackPlan(settings=settings.model_copy(update=own), trials=make_trials(load_attacks()))


def group_results(report: AttackReport) -> dict[str, dict[str, Tally]]:
    """Tallies by kind, by language and by step, in the order of the attack set."""
    keys: dict[str, Callable[[Result], str]] = {
        "kind": lambda result: result.trial.attack.kind,
        "language": lambda result: result.trial.attack.language,
        "step": lambda result: result.trial.step,
    }
    return {
        by: {
            name: count_results([result for result in report.results if key(result) == name])
            for name in dict.fromkeys(map(key, report.results))
        }
        for by, key in keys.items()
    }


def to_document(report: AttackReport) -> dict[str, object]:
    """The report as JSON has it, every trial included."""
    return {
        "judge": report.judge,
        "language": report.language,
        "trials": report.n_trials,
        "interrupted": report.is_interrupted,
        "calls": report.usage.pick("requests", "failed", "prompt_tokens", "completion_tokens", "cost_usd"),
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
    fooled = [
        [result.trial.attack.id, result.trial.field, f"{result.trial.step}, {result.trial.scene.id}", result.said]
        for result in report.results
        if result.outcome == "fooled"
    ]
    print_line()
    if fooled:
        print_table(make_table(["attack", "planted in", "judged in", "said"], fooled, title="Fooled by"))
    elif count_results(report.results).attacks:
        print_line(f"No attack fooled {report.judge}.")
    else:
        print_line("There is nothing to count.")
    _print_uncounted(report)


def _make_row(by: str, name: str, tally: Tally) -> list[object]:
    interval = write_interval(tally.interval.low, tally.interval.high) if tally.interval else None
    return [by, name, tally.attacks, tally.fooled, tally.share, interval, tally.unanswered, tally.left_out]


def _print_uncounted(report: AttackReport) -> None:
    """The trials beside the shares: those without a verdict, and those whose control was wrong."""
    heads = {"unanswered": "Without a usable reply", "left_out": "Left out, for the judge errs without the attack too"}
    for outcome, head in heads.items():
        remarks = dict.fromkeys(
            f"{result.trial.step}, {result.trial.scene.id}: {result.said}"
            for result in report.results
            if result.outcome == outcome
        )
        print_section(head, ["what was said"], [[line] for line in remarks])
    if report.is_interrupted:
        print_notice(
            f"Interrupted: {len(report.results)} of {report.n_trials} trials were judged, and only they are counted."
        )
