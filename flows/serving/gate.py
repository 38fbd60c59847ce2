"""The gate of a suite: its limits held against each of its runs, and the verdict put on record.

The limits come from the run's own settings and not from the file, which may have changed since; so a run that is
resumed is judged like one that went through.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from evalhouse.flows.errors import SettingsError
from evalhouse.tasks.settings.suite import SuiteGate, explain_low
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_runs, update_run
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.comparing.gate_checks import Score

PREVIOUS = "previous"


def check_suite_gate(gate: SuiteGate, plan: Plan) -> None:
    """Refuse limits of metrics that the run does not score, or that are the wrong way round; raises SettingsError."""
    scored = {metric.name for metric in plan.metrics}
    missing = [name for name in gate.metrics if name not in scored]
    if missing:
        raise SettingsError(
            f"[gate] has limits of {', '.join(missing)}, which the run does not score; it scores: "
            f"{', '.join(sorted(scored))}"
        )
    problem = explain_low(gate.min, {metric.name: metric for metric in plan.metrics})
    if problem:
        raise SettingsError(f"[gate.min] {problem}")


def decide_suite_gate(warehouse: Warehouse, run: RunRow) -> dict[str, Any] | None:
    """Decide on a run that has ended and put the outcome on record.

    None without a gate, and of a run that judged nothing or came to no end of its own.
    """
    limits = run.config.get("gate")
    if limits is None or run.kind != "evaluation" or run.status not in ("completed", "incomplete"):
        return None
    gate = SuiteGate.model_validate(limits, strict=False)
    base, no_base = _find_base(warehouse, run, gate)
    document = _decide(warehouse, run, gate, base, no_base)
    update_run(warehouse, run.run_id, gate=document["outcome"])
    return document


def find_previous(warehouse: Warehouse, run: RunRow) -> RunRow | None:
    """The last completed evaluation of the same suite that was started before this one."""
    completed = (
        other
        for other in list_runs(warehouse, kinds=("evaluation",))
        if other.suite == run.suite and other.status == "completed"
    )
    begun = (run.started_at, run.run_id)
    # They come newest first.
    return next((other for other in completed if (other.started_at, other.run_id) < begun), None)


def _decide(
    warehouse: Warehouse, run: RunRow, gate: SuiteGate, base: RunRow | None, no_base: str | None
) -> dict[str, Any]:
    # The statistics, which most runs do without: they import SciPy.
    from evalhouse.flows.documents.gate import decide, read_scores  # noqa: PLC0415
    from evalhouse.tasks.comparing.gate_checks import Limits  # noqa: PLC0415
    from evalhouse.tasks.comparing.runs import ComparisonError, ComparisonSettings  # noqa: PLC0415

    scores = read_scores(warehouse, run)
    limits = Limits(
        minimums=gate.min,
        maximums=gate.max,
        drops=gate.max_drop,
        coverages=_find_coverages(gate, scores),
        cost_usd=gate.max_cost,
    )
    settings = ComparisonSettings(cluster=gate.cluster)
    hold = partial(decide, warehouse, run, scores=scores, limits=limits, settings=settings, undecided=gate.undecided)
    try:
        return hold(base, no_base=no_base)
    except ComparisonError as error:
        # The run is paid for and on record; that it cannot be compared is no reason to lose what can be decided.
        return hold(None, no_base=f"it cannot be compared: {error}")


def _find_base(warehouse: Warehouse, run: RunRow, gate: SuiteGate) -> tuple[RunRow | None, str | None]:
    """The baseline of the drops, or why there is none."""
    if not gate.max_drop:
        return None, None
    if gate.against == PREVIOUS:
        base = find_previous(warehouse, run)
        message = f"there is no earlier completed run of suite {run.suite} to compare with"
        return base, None if base else message
    try:
        base = find_run(warehouse, gate.against)
    except WarehouseError as error:
        return None, f"the baseline is not to be found: {error}"
    if base.run_id == run.run_id:
        return None, f"the baseline {gate.against!r} is this run itself"
    return base, None


def _find_coverages(gate: SuiteGate, scores: Mapping[str, "Score"]) -> dict[str, float]:
    """Shares by metric; `min_coverage` is for all that have none of their own."""
    if gate.min_coverage is None:
        return dict(gate.coverage)
    return {metric: gate.coverage.get(metric, gate.min_coverage) for metric in scores}
