"""What a page says of a run as a whole, above and below its samples: as values of the templates in
`assets/sections`.

The report shows them, and so does the run's page of `evalhouse ui`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from evalhouse.flows.report.charts import (
    ALL_PARTS,
    draw_distribution,
    draw_history,
    draw_interval,
    draw_parts,
    write_change,
)
from evalhouse.flows.report.head import (
    Compare,
    build_head,
    compare_plainly,
    explain_metrics,
    lay_against,
    rank_causes,
    sort_headline,
    write_share,
)
from evalhouse.flows.results.comparison import name_part, write_also, write_p
from evalhouse.flows.results.output import sort_by_metric, write_cost, write_interval, write_shared, write_value
from evalhouse.flows.results.preferences import (
    describe_preferences,
    lay_out_left_out,
    lay_out_position,
    lay_out_result,
    list_remarks,
    write_result,
)
from evalhouse.flows.results.run_origin import HEADLINE, explain_joint_split, explain_sampling, explain_stand_in
from evalhouse.tasks.comparing.paired import ROUNDING
from evalhouse.tasks.comparing.parts import Part
from evalhouse.tasks.comparing.runs import Comparison, MetricComparison
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.report import Row, RunSummary
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, find_forgotten, find_run
from evalhouse.warehouse.rows.told import read_causes
from evalhouse.warehouse.store import Warehouse

_LEAST_SHOWN: Final = 0.0005


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where links of a page lead: what stands before a run's id, what between it and a sample's, and the address of two
    runs side by side; None where there is no such page."""

    run: str
    sample: str | None = None
    compare: str | None = None


def describe_run(
    warehouse: Warehouse,
    run: RunRow,
    base: RunRow | None,
    summary: RunSummary,
    *,
    compare: Compare = compare_plainly,
) -> dict[str, Any]:
    """All sections but that of samples and the distributions; `base` is the run to compare with, None for one alone.

    `compare` is how runs are compared.
    """
    preferences = describe_preferences(warehouse, run, with_samples=False)
    described = {
        "base": base,
        **describe_about(run),
        "unscored": _describe_unscored(summary.unscored),
        "stand_in": " ".join(filter(None, (explain_stand_in(run), explain_sampling(warehouse, run)))),
        "costs_note": explain_joint_split(summary.costs),
        "costs": [{**row, "cost": write_cost(row)} for row in summary.costs],
        "preferences": _lay_out_preferences(preferences) if preferences else [],
        "flips": [{**row, "percent": write_share(row["flip_rate"])} for row in summary.flips],
        **_describe_result(warehouse, run, base, summary, compare),
    }
    if preferences:
        described["head"] = replace(described["head"], result=f"{write_result(preferences)}.")
    return described


def _lay_out_preferences(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tables of a run that preferred one of two answers."""
    tables = [lay_out_result(document), lay_out_position(document), lay_out_left_out(document)]
    return [
        {
            "columns": columns,
            "rows": [[*map(write_value, row)] for row in rows],
            "remarks": () if place else list_remarks(document),
        }
        for place, (columns, rows) in enumerate(tables)
        if rows
    ]


def draw_charts(
    values: Mapping[str, Sequence[float | None]], history: Sequence[Row], *, link: str | None = None
) -> list[dict[str, Any]]:
    """By metric a distribution of its values, where it has any, and the history of its mean if a run went before."""
    runs = {metric: list(rows) for metric, rows in groupby(history, key=lambda row: str(row["metric"]))}
    charts = []
    for name in sort_headline(list(values)):
        scored = [value for value in values[name] if value is not None]
        rows = [row for row in runs.get(name, []) if row["mean"] is not None]
        if scored:
            charts.append(
                {
                    "name": name,
                    "is_main": name in HEADLINE,
                    "distribution": draw_distribution(scored, of=name),
                    "history": draw_history(rows, of=f"Mean of {name}", link=link) if len(rows) > 1 else None,
                    "n_runs": len(rows),
                    "n_yardsticks": 1 + sum(row["same_yardstick"] is False for row in rows[1:]),
                }
            )
    return charts


def describe_about(run: RunRow) -> dict[str, Any]:
    """What a run is called, and what it was made of and with."""
    return {
        "run": run,
        "heading": run.label or run.dataset or "Run",
        "link_of_run": run.href if (run.href or "").startswith(("https://", "http://")) else None,
    }


def _describe_result(
    warehouse: Warehouse,
    run: RunRow,
    base: RunRow | None,
    summary: RunSummary,
    compare: Compare,
) -> dict[str, Any]:
    """What its head says, its causes and scores, and why they moved."""
    metrics = sort_by_metric(summary.metrics, run.metrics)
    other = base or _find_previous(warehouse, metrics)
    pair = RunPair(warehouse, other, run) if other else None
    comparison = compare(pair) if base and pair else None
    counted = read_causes(warehouse, run.run_id)
    names = sort_headline([str(row["metric"]) for row in metrics])
    rows = {row["name"]: row for row in (_describe_metric(row, comparison) for row in metrics)}
    return {
        "head": build_head(
            counted,
            metrics=metrics,
            gate=summary.gate,
            against=lay_against(
                pair, "the base" if base else "the run before", lambda pair: comparison or compare(pair)
            )
            if pair
            else None,
            forgotten=find_forgotten(warehouse, run.run_id),
        ),
        "causes": rank_causes(counted, read_causes(warehouse, other.run_id) if other else ()),
        "other": other,
        "metrics": [rows[name] | {"is_main": name in HEADLINE} for name in names],
        "meanings": explain_metrics(names, load_metrics(run.metric_folder)),
        "parts": describe_parts(comparison, names) if comparison else (),
        "warnings": comparison.warnings if comparison else (),
        "retrieval": [finding.describe() for finding in comparison.retrieval] if comparison else (),
    }


def _find_previous(warehouse: Warehouse, metrics: Sequence[Row]) -> RunRow | None:
    """The run before this one in its series; None for the first."""
    previous = max((row["previous_run_id"] for row in metrics if row["previous_run_id"]), default=None)
    return find_run(warehouse, previous) if previous else None


def _describe_metric(row: Row, comparison: Comparison | None) -> dict[str, Any]:
    name, mean = str(row["metric"]), row["mean"]
    compared = next((metric for metric in comparison.metrics if metric.metric == name), None) if comparison else None
    base_mean = compared.mean_base if compared else None
    cells = {
        "name": name,
        "strip": draw_interval(row, base_mean if _is_share(base_mean) else None) if _is_share(mean) else None,
        "mean": write_value(mean),
        "interval": _write_interval(row),
        "n_scored": row["n_scored"],
        "n_unscored": row["n_unscored"],
        "is_low": row["better"] == "low",
    }
    if compared:
        return cells | _describe_comparison(compared)
    is_alike = row["same_yardstick"] is not False
    return cells | {
        "change": write_change(row["change"]),
        "note": write_shared(row) if is_alike else "measured otherwise",
    }


def _describe_comparison(compared: MetricComparison) -> dict[str, Any]:
    paired = compared.paired
    return {
        "base_mean": write_value(compared.mean_base),
        "change": write_change(paired.difference),
        "change_interval": write_interval(paired.ci_low, paired.ci_high),
        "p": write_p(paired.p_adjusted),
        "verdict": paired.verdict,
        "n_common": paired.n,
        "n_higher": paired.n_higher,
        "n_lower": paired.n_lower,
    }


def describe_parts(comparison: Comparison, names: Sequence[str]) -> list[dict[str, Any]]:
    """Why the means moved, by metric in the order of the names; those that nothing moved are left out."""
    return [
        _describe_parts(metric, parts)
        for metric in sorted(comparison.metrics, key=lambda one: names.index(one.metric))
        if metric.change is not None and (parts := _list_moved(metric))
    ]


def _describe_parts(compared: MetricComparison, parts: Sequence[Part]) -> dict[str, Any]:
    """The chart of the parts of a mean's change and their numbers; the last row is the sum."""
    rows = [
        {
            "name": name_part(part.name),
            "n": part.n,
            "n_moved": part.n_moved,
            "value": write_change(part.value),
            "also": write_also(part.also),
        }
        for part in parts
    ]
    total = {"name": ALL_PARTS, "n": "", "n_moved": "", "value": write_change(compared.change), "also": ""}
    return {
        "metric": compared.metric,
        "base": write_value(compared.mean_base),
        "candidate": write_value(compared.mean_candidate),
        "change": write_change(compared.change),
        "floor": write_value(compared.noise_floor) if (compared.noise_floor or 0) >= _LEAST_SHOWN else None,
        "chart": draw_parts(parts, low_is_good=compared.better == "low"),
        "rows": [*rows, total],
    }


def _list_moved(compared: MetricComparison) -> list[Part]:
    """What moved the mean, the most first."""
    moved = [part for part in compared.parts if part.n_moved and abs(part.value) > ROUNDING]
    return sorted(moved, key=lambda part: -abs(part.value))


def _write_interval(row: Row) -> str:
    return write_interval(row["ci_low"], row["ci_high"])


def _is_share(value: float | None) -> bool:
    return value is not None and 0 <= value <= 1


def _describe_unscored(rows: Sequence[Row]) -> list[dict[str, str]]:
    metrics: defaultdict[str, list[str]] = defaultdict(list)
    examples: dict[str, str] = {}
    for row in rows:
        metrics[row["reason"]].append(f"{row['metric']} {row['n_samples']}")
        examples[row["reason"]] = examples.get(row["reason"]) or row["example"] or ""
    return [
        {"reason": reason, "metrics": ", ".join(counts), "example": examples[reason]}
        for reason, counts in metrics.items()
    ]
