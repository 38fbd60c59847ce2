"""What a gate decides and how it is shown: one path for `evalhouse gate` and for the gate of a suite.

The numbers are read from the record here and judged in `evalhouse.tasks.comparing.gate_checks`; who sets the limits,
and whether a run may be decided on at all, is the business of the two callers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from evalhouse.flows.display.output import make_table, print_line, print_table, write_interval
from evalhouse.flows.documents.gate_files import (
    KINDS,
    describe_verdict,
    has_floors,
    write_amount,
    write_beyond,
    write_floor,
    write_junit,
    write_limit,
    write_markdown,
)
from evalhouse.tasks.comparing.gate_checks import (
    OUTCOMES,
    Check,
    Cost,
    Limits,
    Score,
    check_all,
    count_outcomes,
    is_passed,
)
from evalhouse.tasks.comparing.runs import Comparison, ComparisonSettings, compare_runs
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

STDOUT = "-"
_RUN_COLUMNS = ("run_id", "status", "suite", "label", "dataset", "judge", "embeddings", "started_at", "n_samples")
_SAMPLES = "select count(*) as n from run_samples where run_id = $run_id"


def decide(
    store: Warehouse,
    run: RunRow,
    base: RunRow | None,
    *,
    scores: Mapping[str, Score],
    limits: Limits,
    settings: ComparisonSettings,
    undecided: Literal["pass", "fail"],
    no_base: str | None = None,
) -> dict[str, Any]:
    """All checks and the gate's outcome, as --json prints it.

    `no_base` says why there is no baseline for drops that are limited, which leaves them undecided. Raises
    ComparisonError where the runs cannot be compared as asked.
    """
    comparison = compare_runs(RunPair(store, base, run), settings) if base else None
    comparisons = {one.metric: one for one in comparison.metrics} if comparison else {}
    checks = check_all(limits, scores=scores, comparisons=comparisons, cost=_read_cost(store, run))
    if base is None and no_base is not None:
        checks = [_leave_open(check, no_base) if check.kind == "max_drop" else check for check in checks]
    return {
        "outcome": "passed" if is_passed(checks, undecided=undecided) else "failed",
        "undecided": undecided,
        "counts": count_outcomes(checks),
        "run": _describe_run(run),
        "against": _describe_run(base) if base else None,
        "cluster": comparison.cluster if comparison else None,
        "seed": settings.seed,
        "warnings": _list_warnings(run, comparison),
        "checks": [asdict(check) for check in sorted(checks, key=lambda check: OUTCOMES.index(check.outcome))],
    }


def read_scores(store: Warehouse, run: RunRow) -> dict[str, Score]:
    """Every metric of the run, in its order; one that left no row has no score."""
    of_run = {"run_id": run.run_id}
    n_samples = int(str(store.read_rows(_SAMPLES, of_run)[0]["n"]))
    scores = store.read_rows(read_query("gate/scores"), of_run)
    rows: dict[str, dict[str, Any]] = {str(row.pop("metric")): row for row in scores}
    none = {"mean": None, "ci_low": None, "ci_high": None, "spread": None, "n_scored": 0}
    names = dict.fromkeys((*run.metrics, *sorted(rows)))
    return {name: Score(n_samples=n_samples, **rows.get(name, none)) for name in names}


def write_gate_files(document: Mapping[str, Any], *, junit: str | None, markdown: str | None) -> None:
    """Write the files that were asked for; `-` is none."""
    if junit is not None:
        Path(junit).write_bytes(write_junit(document))
    if markdown is not None and markdown != STDOUT:
        Path(markdown).write_text(write_markdown(document), encoding="utf-8")


def print_gate(document: Mapping[str, Any], *, names_run: bool = True) -> None:
    """The gate for a person: which runs, warnings, a table of all checks, and the verdict."""
    for name in ("run", "against") if names_run else ("against",):
        _print_run(name, document[name])
    for warning in document["warnings"]:
        print_line(f"warning: {warning}")
    floor = ("#noise floor",) if has_floors(document) else ()
    columns = [
        "outcome", "metric", "check", "#limit", "#found", "95 % interval", *floor, "#n", "#beyond limit by", "why",
    ]  # fmt: skip
    print_line()
    print_table(make_table(columns, [_make_cells(check, with_floor=bool(floor)) for check in document["checks"]]))
    print_line()
    print_line(describe_verdict(document), bold=True)


def _print_run(name: str, run: Mapping[str, Any] | None) -> None:
    if run is not None:
        label = f" ({run['label']})" if run["label"] else ""
        print_line(f"{name} {run['run_id']}{label}, {run['n_samples']} samples of {run['dataset']}")


def _make_cells(check: Mapping[str, Any], *, with_floor: bool) -> Sequence[object]:
    return [
        check["outcome"],
        check["metric"],
        KINDS[check["kind"]],
        write_limit(check["kind"], check["limit"]),
        write_amount(check["kind"], check["value"]),
        write_interval(check["ci_low"], check["ci_high"]),
        *([write_floor(check)] if with_floor else []),
        check["n"],
        write_beyond(check),
        check["detail"],
    ]


def _leave_open(check: Check, why: str) -> Check:
    """A drop that has nothing to be measured against, whatever the run has scored."""
    return Check(
        kind=check.kind, metric=check.metric, limit=check.limit, value=None, n=0, outcome="undecided",
        reason="nothing_common", detail=why,
    )  # fmt: skip


def _read_cost(store: Warehouse, run: RunRow) -> Cost:
    rows: list[dict[str, Any]] = store.read_rows(read_query("gate/costs"), {"run_id": run.run_id})
    return Cost(
        usd=sum(row["cost_usd"] or 0.0 for row in rows),
        n_unpriced=sum(row["n_unpriced"] for row in rows),
        n_estimated=sum(row.get("n_estimated", 0) for row in rows),
    )


def _list_warnings(run: RunRow, comparison: Comparison | None) -> list[str]:
    if comparison is not None:
        return list(comparison.warnings)
    if run.status == "completed":
        return []
    return [f"run {run.run_id} is {run.status}: some of its samples may be unscored"]


def _describe_run(run: RunRow) -> dict[str, Any]:
    return {name: getattr(run, name) for name in _RUN_COLUMNS}
