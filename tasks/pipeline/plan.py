"""Which steps a set of metrics needs, from the `needs` line of each metric's file."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalhouse.warehouse.metric_files import MetricFile
from evalhouse.warehouse.steps import add_earlier

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
    steps: frozenset[str]
    optional_steps: frozenset[str]


def plan_run(wanted: Sequence[str], known: dict[str, MetricFile]) -> Plan:
    """The plan for some metrics; without any, the default ones and all that follow from the same verdicts.

    Raises UnknownMetric with the list of known names.
    """
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UnknownMetric(f"unknown metric {unknown[0]!r}; known: {', '.join(sorted(known))}")
    chosen = [known[name] for name in dict.fromkeys(wanted or DEFAULT_METRICS)]
    steps = add_earlier(step for metric in chosen for step in metric.needs)
    if not wanted:
        chosen += [metric for metric in known.values() if metric not in chosen and add_earlier(metric.needs) <= steps]
    optional = add_earlier(step for metric in chosen for step in metric.optional_needs) - steps
    return Plan(metrics=tuple(chosen), steps=steps, optional_steps=optional)
