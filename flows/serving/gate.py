"""The gate of a suite: its limits held against each of its runs, and the verdict put on record.

The limits come from the run's own settings and not from the file, which may have changed since; so a run that is
resumed is judged like one that went through.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evalhouse.flows.documents.baseline import Baseline, find_baseline, make_decision
from evalhouse.flows.errors import SettingsError
from evalhouse.tasks.settings.suite import SuiteGate, explain_low
from evalhouse.warehouse.engine.connection import readers_kept
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.rows.gates import Night, list_nights, record_decision
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.comparing.gate_checks import Score


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


@readers_kept()
def decide_suite_gate(warehouse: Warehouse, run: RunRow) -> dict[str, Any] | None:
    """Decide on a run that has ended and put the outcome on record.

    None without a gate, and of a run that judged nothing or came to no end of its own.
    """
    limits = run.config.get("gate")
    if limits is None or run.kind != "evaluation" or run.status not in ("completed", "incomplete"):
        return None
    gate = SuiteGate.model_validate(limits, strict=False)
    nights = list_nights(warehouse, run) if gate.max_drop or gate.trends else []
    baseline = Baseline()
    if gate.max_drop:
        baseline = find_baseline(warehouse, run, gate.against, k=gate.k, nights=nights)
    document = _decide(warehouse, run, gate, baseline, nights)
    record_decision(warehouse, make_decision(document, "suite"))
    return document


def _decide(
    warehouse: Warehouse, run: RunRow, gate: SuiteGate, baseline: Baseline, nights: Sequence[Night]
) -> dict[str, Any]:
    # The statistics, which most runs do without.
    from evalhouse.flows.documents.gate import decide, read_scores  # noqa: PLC0415
    from evalhouse.tasks.comparing.gate_checks import Limits  # noqa: PLC0415
    from evalhouse.tasks.comparing.runs import ComparisonError, ComparisonSettings  # noqa: PLC0415

    scores = read_scores(warehouse, run)
    limits = Limits(
        minimums=gate.min,
        maximums=gate.max,
        drops=gate.max_drop,
        trends=gate.trends,
        coverages=_find_coverages(gate, scores),
        cost_usd=gate.max_cost,
        latency_p95_ms=gate.max_latency_p95_ms,
    )
    hold = partial(decide, warehouse, run, scores=scores, undecided=gate.undecided)
    try:
        return hold(baseline, nights=nights, limits=limits, settings=ComparisonSettings(cluster=gate.cluster))
    except ComparisonError as error:
        # The run is paid for and on record; that it cannot be compared is no reason to lose what can be decided.
        missing = Baseline(against=baseline.against, missing=f"it cannot be compared: {error}")
        return hold(missing, limits=replace(limits, trends={}), settings=ComparisonSettings())


def _find_coverages(gate: SuiteGate, scores: Mapping[str, "Score"]) -> dict[str, float]:
    """Shares by metric; `min_coverage` is for all that have none of their own."""
    if gate.min_coverage is None:
        return dict(gate.coverage)
    return {metric: gate.coverage.get(metric, gate.min_coverage) for metric in scores}
