"""Which steps a set of metrics needs, from the `needs` line of each metric's file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evalhouse.warehouse.metric_files import MetricFile, Step

_RESTS_ON: dict[Step, tuple[Step, ...]] = {
    "classify": ("extract_answer", "extract_ground_truth"),
    "attribute_answer": ("extract_answer",),
    "attribute_ground_truth": ("extract_ground_truth",),
}

DEFAULT_METRICS = (
    "factual_precision", "factual_recall", "factual_f1", "answer_correctness", "context_recall", "context_precision",
    "faithfulness",
)  # fmt: skip


class UnknownMetric(Exception):
    """A metric was asked for that no file defines."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Metrics to score and the steps to take for each sample."""

    metrics: tuple[MetricFile, ...]
    steps: frozenset[Step]
    optional_steps: frozenset[Step]


def plan_run(wanted: Sequence[str], known: dict[str, MetricFile]) -> Plan:
    """The plan for some metrics; without any, the default ones and all that follow from the same verdicts.

    Raises UnknownMetric with the list of known names.
    """
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UnknownMetric(f"unknown metric {unknown[0]!r}; known: {', '.join(sorted(known))}")
    chosen = [known[name] for name in dict.fromkeys(wanted or DEFAULT_METRICS)]
    steps = _close(step for metric in chosen for step in metric.needs)
    if not wanted:
        chosen += [metric for metric in known.values() if metric not in chosen and _close(metric.needs) <= steps]
    optional = _close(step for metric in chosen for step in metric.optional_needs) - steps
    return Plan(metrics=tuple(chosen), steps=steps, optional_steps=optional)


def _close(steps: Iterable[Step]) -> frozenset[Step]:
    """Steps together with those they rest on."""
    found = set(steps)
    for step in tuple(found):
        found.update(_RESTS_ON.get(step, ()))
    return frozenset(found)
