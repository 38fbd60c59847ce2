"""Which steps a set of metrics needs, from the `needs` line of each metric's file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalhouse.warehouse.metric_files import MetricFile
from evalhouse.warehouse.steps import add_earlier


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
    chosen = [known[name] for name in dict.fromkeys(wanted or list_default(known))]
    steps = add_earlier([step for metric in chosen for step in metric.needs])
    if not wanted:
        # `steps` holds what its steps rest on, so that a metric's own needs say enough.
        chosen += [metric for metric in known.values() if metric not in chosen and steps.issuperset(metric.needs)]
    optional = add_earlier([step for metric in chosen for step in metric.optional_needs]) - steps
    return Plan(metrics=tuple(chosen), steps=steps, optional_steps=optional)


def list_default(known: Mapping[str, MetricFile]) -> list[str]:
    """The metrics of a run that names none, in the order that their files give them."""
    places = {name: metric.default_place for name, metric in known.items() if metric.default_place is not None}
    return sorted(places, key=lambda name: (places[name], name))
