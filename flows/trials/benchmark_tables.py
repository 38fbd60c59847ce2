"""What a benchmark says: tables for people, and the same as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, get_args

from evalhouse.flows.display.output import (
    make_table,
    print_line,
    print_notice,
    print_table,
    write_dollars,
    write_number,
)
from evalhouse.flows.trials.benchmark import BenchmarkOutcome, JudgedPart
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.comparing.bootstrap import Estimate, Measure, average
from evalhouse.tasks.messages import shorten
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.trials.label_agreement import Figure, Line, SetAgreement, measure_labels
from evalhouse.tasks.trials.labelled_sets import Half, Labelled, Part
from evalhouse.tasks.trials.labelled_verdicts import Judged
from evalhouse.tasks.trials.rating_agreement import list_unrated, measure_ratings, measure_splits

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
_MOST_FAILURES: Final = 5
_USED: Final = ("requests", "reused", "failed", "unreadable", "prompt_tokens", "completion_tokens", "cost_usd")


@dataclass(frozen=True, kw_only=True)
class Total:
    """The mean over the sets of a kind, each of the same weight."""

    kind: str
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
        """One for each kind, and one for each thing that people rated."""
        groups: dict[str, list[SetAgreement]] = {}
        for one in self.sets:
            groups.setdefault(f"{one.part.kind}: {one.about}" if one.about else one.part.kind, []).append(one)
        return [_total(kind, sets) for kind, sets in groups.items()]

    @property
    def usage(self) -> Usage:
        """Of all sets together."""
        return sum((part.usage for part in self.outcome.parts), start=Usage())

    @property
    def n_failed(self) -> int:
        """Rows without a verdict."""
        return sum(part.n_failed for part in self.outcome.parts)

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "judge": self.settings.judge,
            "model": self.model,
            "run_id": self.outcome.run_id,
            "half": self.half,
            "seed": self.seed,
            "problem": self.outcome.problem,
            "sets": [_describe_set(one) for one in self.sets],
            "totals": [
                {"kind": one.kind, "n_sets": one.n_sets, "n": one.n, "figures": _describe_figures(one.figures)}
                for one in self.totals
            ],
            "costs": [
                {"set": one.part.name, "language": one.part.language, "rows": len(one.part.rows)}
                | {"left_out": one.part.n_left_out, "not_judged": one.n_failed}
                | one.usage.pick(*_USED)
                for one in self.outcome.parts
            ],
            "calls": self.usage.pick(*_USED),
            "passed_over": list(self.passed_over),
        }

    def print(self) -> None:
        """As a person reads it."""
        half = "" if self.half == "all" else f", half `{self.half}` of each set"
        print_line(f"{self.model} against people{half}; 95 % intervals, drawn by groups of rows")
        print_line()
        by_kind: dict[str, list[SetAgreement]] = {}
        for one in self.sets:
            by_kind.setdefault(one.part.kind, []).append(one)
        for kind, sets in by_kind.items():
            _print_kind(kind, sets, [total for total in self.totals if total.kind.partition(":")[0] == kind])
        _print_costs(self.outcome.parts, self.usage)
        _print_rest(self)


def make_report(
    settings: RunSettings,
    outcome: BenchmarkOutcome,
    labelled: Labelled,
    *,
    model: str,
    half: Half,
    seed: int,
) -> Report:
    """Measure what came of the asking."""
    # Another seed for each set, so that the draws of two have nothing to do with each other.
    sets = [
        found
        for place, one in enumerate(outcome.parts)
        for found in _measure_part(one.part, one.judged, seed=seed + place)
    ]
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
    """The agreement on one set in one language, one for each dimension that people rated."""
    if part.kind == "decomposition":
        return [measure_splits(part, judged, seed=seed)]
    if part.kind == "rubric":
        return list(measure_ratings(part, judged, seed=seed))
    return [measure_labels(part, judged, seed=seed)]


def describe_estimate(judge: str, parts: Sequence[Part], costs: Sequence[Usage]) -> str:
    """A sentence for whoever is about to pay for it."""
    whole, n_rows = sum(costs, start=Usage()), sum(len(part.rows) for part in parts)
    return (
        f"{n_rows:,} rows of {len({part.name for part in parts})} sets: {whole.requests:,} requests to {judge}, "
        f"{whole.reused:,} replies on record; about {whole.prompt_tokens:,} + {whole.completion_tokens:,} tokens, "
        f"cost {write_dollars(whole.cost_usd)}"
    )


def print_estimate(parts: Sequence[Part], costs: Sequence[Usage]) -> None:
    """What each set would take."""
    columns = ["set", "kind", "language", "#rows", "#requests", "#on record", "#tokens in", "#tokens out", "#cost"]
    rows = [
        [
            part.name, part.kind, part.language, len(part.rows), f"{one.requests:,}", f"{one.reused:,}",
            f"{one.prompt_tokens:,}", f"{one.completion_tokens:,}", write_dollars(one.cost_usd),
        ]
        for part, one in zip(parts, costs, strict=True)
    ]  # fmt: skip
    print_table(make_table(columns, rows))


def describe_plainly(judge: str, parts: Sequence[Part], costs: Sequence[Usage]) -> dict[str, Any]:
    """An estimate as JSON has it."""
    return {
        "judge": judge,
        "sets": [
            {"set": part.name, "kind": part.kind, "language": part.language, "rows": len(part.rows)} | one.pick(*_USED)
            for part, one in zip(parts, costs, strict=True)
        ],
        "calls": sum(costs, start=Usage()).pick(*_USED),
    }


def _total(kind: str, sets: Sequence[SetAgreement]) -> Total:
    figures: dict[Figure, Estimate] = {}
    for name in _FIGURES:
        mean = average([one.judge.figures[name] for one in sets if name in one.judge.figures])
        if mean is not None:
            figures[name] = mean
    return Total(kind=kind, n_sets=len(sets), n=sum(one.judge.n for one in sets), figures=figures)


def _describe_set(one: SetAgreement) -> dict[str, Any]:
    return {
        "set": one.part.name,
        "kind": one.part.kind,
        "language": one.part.language,
        "about": one.about or None,
        "n_rows": one.n_rows,
        "n_groups": one.n_groups,
        "labels": dict(one.labels),
        "judge": _describe_line(one.judge),
        "others": [_describe_line(other) for other in one.others],
        "notes": one.notes,
    }


def _describe_line(line: Line) -> dict[str, Any]:
    return {"who": line.who, "n": line.n, "n_missing": line.n_missing, "figures": _describe_figures(line.figures)}


def _describe_figures(figures: Mapping[Figure, Estimate]) -> dict[str, Any]:
    return {name: asdict(figure.measure) for name, figure in figures.items()}


def _print_kind(kind: str, sets: Sequence[SetAgreement], totals: Sequence[Total]) -> None:
    """The judge's line of each set, then under it those of others."""
    lines = [line for one in sets for line in (one.judge, *one.others)]
    shown = [name for name in _FIGURES if any(name in line.figures for line in lines)]
    columns = ["set", "language", "who", "#n", *(f"#{_NAMES[name]}" for name in shown), "mind"]
    rows: list[list[object]] = []
    for one in sets:
        name = f"{one.part.name}, {one.about}" if one.about else one.part.name
        rows.append(
            [name, one.part.language, "the judge", f"{one.judge.n:,}", *_write(one.judge.figures, shown), _mind(one)]
        )
        rows += [
            ["", "", shorten(o.who, 40), f"{o.n:,}", *_write(o.figures, shown, bare=True), None] for o in one.others
        ]
    for total in totals:
        if total.n_sets > 1:
            what = total.kind.partition(": ")[2]
            name = f"mean of {total.n_sets}, {what}" if what else f"mean of {total.n_sets}"
            rows.append([name, "", "the judge", f"{total.n:,}", *_write(total.figures, shown), None])
    print_table(make_table(columns, rows, title=kind.capitalize()))
    print_line()


def _mind(one: SetAgreement) -> str | None:
    what = "without what it rests on" if one.part.kind == "rubric" else "without a verdict"
    missing = [f"{one.judge.n_missing} {what}"] if one.judge.n_missing else []
    return "; ".join((*missing, *one.notes)) or None


def _write(figures: Mapping[Figure, Estimate], shown: Sequence[Figure], *, bare: bool = False) -> Iterator[str | None]:
    for name in shown:
        yield _write_measure(figures[name].measure, bare=bare) if name in figures else None


def _write_measure(measure: Measure, *, bare: bool) -> str | None:
    if measure.value is None:
        return None
    if bare or measure.ci_low is None or measure.ci_high is None:
        return write_number(measure.value)
    return f"{measure.value:.2f} ({measure.ci_low:.2f} to {measure.ci_high:.2f})"


def _print_costs(parts: Sequence[JudgedPart], whole: Usage) -> None:
    columns = [
        "set", "language", "#rows", "#left out", "#not judged", "#requests", "#on record", "#failed", "#unreadable",
        "#tokens in", "#tokens out", "#cost",
    ]  # fmt: skip
    rows = [
        [one.part.name, one.part.language, len(one.part.rows), one.part.n_left_out, one.n_failed,
         *_write_costs(one.usage)]
        for one in parts
    ]  # fmt: skip
    if len(parts) > 1:
        n_rows, n_out = (
            sum(counts) for counts in zip(*((len(p.part.rows), p.part.n_left_out) for p in parts), strict=True)
        )
        rows.append([_TOTAL, "", n_rows, n_out, sum(part.n_failed for part in parts), *_write_costs(whole)])
    print_table(make_table(columns, rows, title="Costs"))
    print_line()


def _write_costs(costs: Usage) -> list[object]:
    return [
        f"{costs.requests:,}", f"{costs.reused:,}", costs.failed, costs.unreadable, f"{costs.prompt_tokens:,}",
        f"{costs.completion_tokens:,}", write_dollars(costs.cost_usd),
    ]  # fmt: skip


def _print_rest(report: Report) -> None:
    unrated = {part.part.name: found for part in report.outcome.parts if (found := list_unrated(part.part))}
    for name, dimensions in unrated.items():
        print_line(f"{name}: nothing here measures {', '.join(dimensions)}, which people rated as well.")
    if report.passed_over:
        print_line(f"Passed over, for their columns make no kind: {len(report.passed_over)} sets (--json names them).")
    print_line(f"The calls are those of run {report.outcome.run_id}.")
    failures = dict.fromkeys(
        one.failure for part in report.outcome.parts for one in part.judged if one.failure is not None
    )
    for failure in list(failures)[:_MOST_FAILURES]:
        print_notice(f"without a verdict: {shorten(failure, 200)}")
    if report.n_failed:
        print_notice(
            f"{report.n_failed} rows have no verdict, and the figures leave them out; the same command asks for these "
            "alone"
        )
