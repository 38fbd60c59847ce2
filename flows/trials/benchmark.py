"""`benchmark`: ask a judge about labelled rows, as a run would, and measure its agreement with the labels.

The same command resumes a benchmark that was stopped, since its replies are stored, and with more rows only these are
paid for. Its calls belong to a run of kind `benchmark`, which has no samples.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, get_args

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import make_prompts
from evalhouse.flows.preparing.request import begin_run
from evalhouse.flows.results.output import (
    make_table,
    print_line,
    print_notice,
    print_table,
    write_dollars,
    write_number,
)
from evalhouse.flows.run.estimate import usage_table
from evalhouse.flows.run.outcome import Watch
from evalhouse.flows.trials.session import Session, open_session, rehearse
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.comparing.intervals import Estimate, average
from evalhouse.tasks.judge.protocol import LEXICAL
from evalhouse.tasks.models.make import Judges
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.trials.label_agreement import (
    JUDGE,
    Figure,
    Line,
    SetAgreement,
    explain_published,
    list_published,
    list_unrated,
    measure_labels,
    measure_ratings,
    measure_splits,
)
from evalhouse.tasks.trials.labelled import GRADED_BY, Half, Judged, Labelled, Part, judge_part, list_steps
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.steps import SEPARATE

_FIGURES: Final[tuple[Figure, ...]] = get_args(Figure)
_NAMES: Final[Mapping[Figure, str]] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "kappa": "κ",
    "f1": "F1",
    "auc": "AUC",
    "ndcg": "nDCG",
    "correlation": "ρ",
    "match": "match",
}
_TOTAL: Final = "all sets"
_MAX_FAILURES: Final = 5
_USED: Final = ("requests", "reused", "failed", "unreadable", "prompt_tokens", "completion_tokens", "cost_usd")


@dataclass(frozen=True, kw_only=True)
class JudgedPart:
    """A set in one language with the judge's verdict on each row by one plan, and what asking took."""

    part: Part
    judged: Sequence[Judged]
    usage: Usage
    plan: str = SEPARATE

    @property
    def n_failed(self) -> int:
        """Rows without a verdict."""
        return sum(judged.failure is not None for judged in self.judged)


@dataclass(frozen=True, kw_only=True)
class BenchmarkOutcome:
    """The verdicts on all sets. `problem` ended the asking early: rows that were not reached have no verdict."""

    run_id: str
    parts: Sequence[JudgedPart]
    problem: str | None


def run_benchmark(settings: RunSettings, parts: Sequence[Part], watch: Watch) -> BenchmarkOutcome:
    """Ask about all rows; raises FatalJudgeError when the judge cannot be asked at all."""
    plan = plan_parts(parts, settings.plan)
    tags = dict.fromkeys(part.name for part in parts)
    run = begin_run("benchmark", settings, tags=tuple(tags), n_samples=sum(len(part.rows) for part in parts))
    with open_session(settings, plan, run=run) as session:
        judged = session.carry_out(partial(_ask_in_turn, parts=parts), watch)
        session.has_failures = any(part.n_failed for part in judged)
    return BenchmarkOutcome(run_id=run.run_id, parts=judged, problem=session.problem)


def estimate_benchmark(settings: RunSettings, parts: Sequence[Part]) -> list[Usage]:
    """Return the usage of asking about each part, without stored replies; nothing is asked or written."""
    judged = rehearse(settings, plan_parts(parts, settings.plan), partial(_ask_in_turn, parts=parts))
    return [sum((one.usage for one in judged if one.part is part), start=Usage()) for part in parts]


async def _ask_in_turn(session: Session, parts: Sequence[Part]) -> list[JudgedPart]:
    """Ask about all parts, one after the other, by the separate plan and by the plan of the settings."""
    other = session.live_run.settings.plan
    turns: list[tuple[Part, str]] = []
    for part in parts:
        turns.append((part, SEPARATE))
        if list_steps(part.kind, other) != list_steps(part.kind, SEPARATE):
            turns.append((part, other))
    session.expect(sum(len(part.rows) for part, _ in turns), "rows")
    judged_parts: list[JudgedPart] = []
    for part, plan in turns:
        # The live run with the steps of the part's kind, asked by this plan, and the prompts of its language.
        settings = session.live_run.settings.model_copy(update={"language": part.language, "plan": plan})
        asker = session.live_run.asker
        judges = Judges(default=asker.judge, of_tasks={task: other.judge for task, other in asker.of_tasks.items()})
        prompts = make_prompts(settings, judges)
        rubrics = (prompts[GRADED_BY],) if part.kind == "rubric" and judges.find("grade").name != LEXICAL else ()
        live_run = await session.fit(
            replace(
                session.live_run, settings=settings, prompts=prompts, steps=list_steps(part.kind, plan), rubrics=rubrics
            )
        )
        before = session.usage
        judged = await judge_part(live_run, part, session.note_done)
        judged_parts.append(JudgedPart(part=part, judged=judged, usage=session.usage - before, plan=plan))
    return judged_parts


def plan_parts(parts: Sequence[Part], plan: str) -> Plan:
    """Plan the steps of all kinds of parts, asked by this plan; raises SettingsError without rows."""
    if not any(part.rows for part in parts):
        raise SettingsError("no row is left to judge; take another --half, or more folders")
    steps = frozenset(step for part in parts for step in list_steps(part.kind, plan))
    return Plan(metrics=(), steps=steps)


@dataclass(frozen=True, kw_only=True)
class Total:
    """The mean over the sets of a kind, each of the same weight, of one of the judge's lines."""

    kind: str
    who: str
    n_sets: int
    n: int
    figures: Mapping[Figure, Estimate]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A benchmark, ready to be shown."""

    settings: RunSettings
    model: str
    half: Half
    seed: int
    passed_over: Sequence[str]
    outcome: BenchmarkOutcome
    sets: Sequence[SetAgreement]

    @property
    def totals(self) -> list[Total]:
        """The means for each kind and each dimension that people rated; with two plans also the difference."""
        groups: dict[tuple[str, str], list[Line]] = {}
        for result in self.sets:
            kind = f"{result.part.kind}: {result.about}" if result.about else result.part.kind
            for line in (result.judge, *result.others):
                if line.is_own or line.who == JUDGE:
                    groups.setdefault((kind, line.who), []).append(line)
        totals = []
        for (kind, who), lines in groups.items():
            of_sets = {name: [line.figures[name] for line in lines if name in line.figures] for name in _FIGURES}
            means = {name: average(estimates) for name, estimates in of_sets.items()}
            figures = {name: mean for name, mean in means.items() if mean is not None}
            n = sum(line.n for line in lines)
            totals.append(Total(kind=kind, who=who, n_sets=len(lines), n=n, figures=figures))
        return totals

    @property
    def usage(self) -> Usage:
        """The usage for all sets together."""
        return sum((part.usage for part in self.outcome.parts), start=Usage())

    @property
    def n_failed(self) -> int:
        """Rows without a verdict."""
        return sum(part.n_failed for part in self.outcome.parts)

    def to_plain(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        described = []
        for result in self.sets:
            lines = [
                {
                    "who": line.who, "n": line.n, "n_missing": line.n_missing,
                    "figures": {name: asdict(figure.measure) for name, figure in line.figures.items()},
                }
                for line in (result.judge, *result.others)
            ]  # fmt: skip
            described.append(
                {
                    "set": result.part.name,
                    "kind": result.part.kind,
                    "language": result.part.language,
                    "about": result.about or None,
                    "n_rows": result.n_rows,
                    "n_groups": result.n_groups,
                    "labels": dict(result.labels),
                    "judge": lines[0],
                    "others": lines[1:],
                    "notes": result.notes,
                }
            )
        return {
            "judge": self.settings.judge,
            "model": self.model,
            "run_id": self.outcome.run_id,
            "half": self.half,
            "seed": self.seed,
            "problem": self.outcome.problem,
            "sets": described,
            "totals": [
                {
                    "kind": total.kind,
                    "who": total.who,
                    "n_sets": total.n_sets,
                    "n": total.n,
                    "figures": {name: asdict(figure.measure) for name, figure in total.figures.items()},
                }
                for total in self.totals
            ],
            "costs": [
                {"set": judged.part.name, "language": judged.part.language, "rows": len(judged.part.rows)}
                | {"plan": judged.plan, "left_out": judged.part.n_left_out, "not_judged": judged.n_failed}
                | judged.usage.pick(*_USED)
                for judged in self.outcome.parts
            ],
            "calls": self.usage.pick(*_USED),
            "passed_over": list(self.passed_over),
        }

    def print(self) -> None:
        """Print the report for a person."""
        half = "" if self.half == "all" else f", half `{self.half}` of each set"
        print_line(f"{self.model} against people{half}; 95 % intervals, drawn by groups of rows")
        print_line()
        for kind in dict.fromkeys(result.part.kind for result in self.sets):
            sets = [result for result in self.sets if result.part.kind == kind]
            # The judge's line of each set, then the lines of others.
            totals = [total for total in self.totals if total.kind.partition(":")[0] == kind]
            lines = [line for result in sets for line in (result.judge, *result.others)]
            shown = [name for name in _FIGURES if any(name in line.figures for line in lines)]
            columns = ["set", "language", "who", "#n", *(f"#{_NAMES[name]}" for name in shown), "mind"]
            rows: list[list[object]] = []
            for result in sets:
                name, judge = f"{result.part.name}, {result.about}" if result.about else result.part.name, result.judge
                cells = _write(judge.figures, shown)
                lacks = "without what it rests on" if result.part.kind == "rubric" else "without a verdict"
                missing = [f"{judge.n_missing} {lacks}"] if judge.n_missing else []
                mind = "; ".join((*missing, *result.notes)) or None
                rows.append([name, result.part.language, "the judge", f"{judge.n:,}", *cells, mind])
                for other in result.others:
                    cells = _write(other.figures, shown, bare=not other.is_own)
                    rows.append(["", "", shorten(other.who, 40), f"{other.n:,}", *cells, None])
            for total in totals:
                if total.n_sets > 1:
                    what = total.kind.partition(": ")[2]
                    name = f"mean of {total.n_sets}, {what}" if what else f"mean of {total.n_sets}"
                    who = "the judge" if total.who == JUDGE else total.who
                    rows.append([name, "", who, f"{total.n:,}", *_write(total.figures, shown), None])
            print_table(make_table(columns, rows, title=kind.capitalize()))
            print_line()
        parts = self.outcome.parts
        columns = ["set", "language", "#rows", "#left out", "#not judged"]
        costs: list[tuple[list[object], Usage]] = [
            ([judged.part.name + ("" if judged.plan == SEPARATE else f", plan {judged.plan}"), judged.part.language,
              len(judged.part.rows), judged.part.n_left_out, judged.n_failed], judged.usage)
            for judged in parts
        ]  # fmt: skip
        if len(parts) > 1:
            asked = [row.part for row in parts if row.plan == SEPARATE]
            n_rows, n_left_out = sum(len(part.rows) for part in asked), sum(part.n_left_out for part in asked)
            costs.append(([_TOTAL, "", n_rows, n_left_out, sum(row.n_failed for row in parts)], self.usage))
        print_table(usage_table(columns, costs, _USED, title="Costs"))
        print_line()
        if self.settings.plan != SEPARATE and self.settings.judge == LEXICAL:
            print_line(
                "The lexical judge decides on each item separately, so another plan changes nothing: the difference "
                "shows nothing about a model."
            )
        for name, dimensions in {judged.part.name: list_unrated(judged.part) for judged in self.outcome.parts}.items():
            if dimensions:
                print_line(f"{name}: people also rated {', '.join(dimensions)}, which is not measured here.")
        for line in explain_published([judged.part for judged in self.outcome.parts]):
            print_line(line)
        if self.passed_over:
            print_line(f"Skipped, since their columns match no kind: {len(self.passed_over)} sets (--json names them).")
        print_line(f"The calls are stored under run {self.outcome.run_id}.")
        failures = dict.fromkeys(
            row.failure for part in self.outcome.parts for row in part.judged if row.failure is not None
        )
        for failure in list(failures)[:_MAX_FAILURES]:
            print_notice(f"without a verdict: {shorten(failure, 200)}")
        if self.n_failed:
            print_notice(
                f"{self.n_failed} rows have no verdict, and the figures leave them out; the same command asks for "
                "these alone"
            )


def make_report(
    settings: RunSettings,
    outcome: BenchmarkOutcome,
    labelled: Labelled,
    *,
    model: str,
    half: Half,
    seed: int,
) -> Report:
    """Measure how far the verdicts agree with people."""
    # A different seed for each set, so that the draws of two sets are independent.
    others = {id(judged.part): judged for judged in outcome.parts if judged.plan != SEPARATE}
    sets: list[SetAgreement] = []
    for number, judged in enumerate(one for one in outcome.parts if one.plan == SEPARATE):
        results = _measure_part(judged.part, judged.judged, seed=seed + number)
        other = others.get(id(judged.part))
        if other is not None:
            # Also the agreement of the other plan and the difference, on rows with both.
            both = [one for one in zip(judged.judged, other.judged, strict=True) if not any(row.failure for row in one)]
            part = replace(judged.part, rows=tuple(pair[0].row for pair in both))
            before, after = (
                {result.about: result.judge for result in _measure_part(part, list(of_plan), seed=seed + number)}
                for of_plan in (zip(*both, strict=True) if both else ((), ()))
            )
            for place, result in enumerate(results):
                if result.about not in before or result.about not in after:
                    continue
                old, new = before[result.about].figures, after[result.about]
                lines = [replace(new, who=f"plan {other.plan}", is_own=True)]
                if before[result.about].n == new.n:  # over equal decisions both have the same draws
                    figures = {name: new.figures[name] - old[name] for name in old if name in new.figures}
                    lines.append(replace(new, who=f"{other.plan} - separate", is_own=True, figures=figures))
                results[place] = replace(result, others=(*lines, *result.others))
        sets += results
    return Report(
        settings=settings,
        model=model,
        half=half,
        seed=seed,
        passed_over=labelled.passed_over,
        outcome=outcome,
        sets=sets,
    )


def _measure_part(part: Part, judged: Sequence[Judged], *, seed: int) -> list[SetAgreement]:
    """Measure the agreement on one set in one language, for each dimension that people rated."""
    if part.kind == "decomposition":
        return [measure_splits(part, judged, seed=seed)]
    if part.kind == "rubric":
        return list(measure_ratings(part, judged, seed=seed))
    measured = measure_labels(part, judged, seed=seed)
    return [replace(measured, others=[*measured.others, *list_published(part)])]


def describe_estimate(judge: str, parts: Sequence[Part], costs: Sequence[Usage]) -> str:
    """Describe the estimate in a sentence."""
    whole, n_rows = sum(costs, start=Usage()), sum(len(part.rows) for part in parts)
    return (
        f"{n_rows:,} rows of {len({part.name for part in parts})} sets: {whole.requests:,} requests to {judge}, "
        f"{whole.reused:,} replies on record; about {whole.prompt_tokens:,} + {whole.completion_tokens:,} tokens, "
        f"cost {write_dollars(whole.cost_usd)}"
    )


def _write(figures: Mapping[Figure, Estimate], shown: Sequence[Figure], *, bare: bool = False) -> Iterator[str | None]:
    for name in shown:
        measure = figures[name].measure if name in figures else None
        if measure is None or measure.value is None:
            yield None
        elif bare or measure.ci_low is None or measure.ci_high is None:
            yield write_number(measure.value)
        else:
            yield f"{measure.value:.2f} ({measure.ci_low:.2f} to {measure.ci_high:.2f})"
