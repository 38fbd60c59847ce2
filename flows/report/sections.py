"""The sections of a run above and below its samples, as values for the templates in `assets/sections`.

The report shows them, and so does the run's page of `evalhouse ui`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Final, Literal

from evalhouse.flows.report.charts import (
    ALL_PARTS,
    draw_distribution,
    draw_interval,
    draw_parts,
    draw_trend,
    write_change,
)
from evalhouse.flows.results.comparison import (
    describe_preferences,
    lay_out_jury,
    lay_out_left_out,
    lay_out_position,
    lay_out_result,
    list_remarks,
    name_check,
    name_part,
    write_also,
    write_amount,
    write_p,
    write_result,
)
from evalhouse.flows.results.headline import (
    Against,
    Compare,
    compare_plainly,
    describe_result,
    is_measured_otherwise,
    lay_against,
    write_headline,
)
from evalhouse.flows.results.output import (
    capitalise,
    sort_by_metric,
    write_cost,
    write_count,
    write_interval,
    write_share,
    write_shared,
    write_value,
)
from evalhouse.flows.results.run_facts import (
    FIRST,
    explain_joint_split,
    explain_sampling,
    group_metrics,
    list_first,
    list_notes,
    load_advice,
    read_slices,
    sort_first,
)
from evalhouse.flows.results.variants import describe_night
from evalhouse.tasks.comparing.agreement import list_outsiders, measure_jury
from evalhouse.tasks.comparing.changes import FINE
from evalhouse.tasks.comparing.paired import ROUNDING
from evalhouse.tasks.comparing.runs import Comparison, ComparisonError, ComparisonSettings, MetricComparison
from evalhouse.tasks.comparing.slices import MAX_SLICES, compare_slices, describe_fallen
from evalhouse.warehouse.metric_files import SIGNS, MetricFile, load_metrics
from evalhouse.warehouse.rows.pages import Row, RunSummary
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import ForgottenTexts, RunRow, find_forgotten, find_run
from evalhouse.warehouse.store import Warehouse

_UNJUDGED: Final = "not_judged"
_FEW: Final = 20
"""The page warns of few answers if fewer are judged."""
_MAX_NAMED: Final = 3
_SAYS: Final = "One row per sample of the run: "
_MOST_LOOKED_AT: Final = 1_000  # samples whose columns are offered for a table by slice
_CLEAR: Final = ("worse", "better")


Tone = Literal["good", "bad", "unclear"]


@dataclass(frozen=True, kw_only=True)
class Head:
    """The result and further sentences; `tone` is good, bad, or unclear where neither is known."""

    tone: Tone
    result: str
    further: tuple[str, ...]


def build_head(
    causes: Sequence[Row],
    *,
    metrics: Sequence[Row],
    against: Against | None,
    gate: Sequence[Row],
    forgotten: ForgottenTexts | None = None,
    night: Sequence[str] = (),
) -> Head:
    """Build the head of a run. It opens with `night`, which variant of its suite is best.

    `causes` are rows of `run_causes`, `metrics` of `run_scores`, `gate` the checks that did not pass, empty where no
    gate decided; `forgotten` are the texts that were deleted.
    """
    moves = _sort_moves(against)
    outcome = gate[0]["gate"] if gate else None
    headline = describe_result(causes, metrics, against)
    n_judged = next((int(row["n_of"]) for row in causes if row["cause"] != _UNJUDGED), 0)
    further = [f"{capitalise(forgotten.words)}."] if forgotten else []
    if outcome is not None:
        failed = [check for check in gate if check["outcome"] == "failed"] or [check for check in gate if check["kind"]]
        named = [f"{name_check(check)}, found {write_amount(check['kind'], check['value'])}" for check in failed]
        more = f"; and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        why = f": {'; '.join(named[:_MAX_NAMED])}{more}" if outcome != "passed" and named else ""
        further.append(f"The gate {outcome}{why}.")
    further.extend(headline.further)
    further.extend(_describe_moves(moves, against))
    # How far the result can be relied on.
    if 0 < n_judged < _FEW:
        further.append("So few answers show little: as many others may look different.")
    if n_unjudged := sum(row["n_samples"] for row in causes if row["cause"] == _UNJUDGED):
        lack = "lacks" if n_unjudged == 1 else "lack"
        further.append(f"{write_count(n_unjudged, 'sample')} {lack} verdicts that a cause rests on.")
    tone = _find_tone(moves, outcome)
    if tone == "unclear" and against and against.slices:
        tone = "bad"
    result, *rest = [*night, f"{headline.sentence}."]
    return Head(tone=tone, result=result, further=(*rest, *further))


def build_pair_head(against: Against) -> Head:
    """Build the head of two runs side by side."""
    moves = _sort_moves(against)
    headline = write_headline(against)
    further = (*headline.further, *_describe_moves(moves, against))
    return Head(tone=_find_tone(moves, None), result=f"{headline.sentence}.", further=further)


def rank_causes(counted: Sequence[Row], before: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the causes of samples as rows of the page: faults by size, then samples that were not judged, then fine
    ones. `before` are the causes of the other run, empty without one."""
    advice = {str(cause): entry for cause, entry in load_advice("en").items()}
    earlier = {row["cause"]: row["share"] or 0.0 for row in before}
    rows = []
    for row in counted:
        if not row["n_samples"]:
            continue
        low, high = row.get("ci_low"), row.get("ci_high")
        rows.append(
            {
                **row,
                "name": advice[row["cause"]].name,
                "meaning": advice[row["cause"]].meaning,
                "remedies": advice[row["cause"]].remedies,
                "is_wrong": _place_cause(row) == 0,
                "percent": write_share(row["share"]),
                "interval": ("–" if low is None or high is None else f"{100 * low:.0f} to {100 * high:.0f} %"),
                "before": write_share(earlier.get(row["cause"], 0.0)) if before else None,
            }
        )
    return sorted(rows, key=lambda row: (_place_cause(row), -row["n_samples"]))


def explain_metrics(names: Sequence[str], files: Mapping[str, MetricFile]) -> dict[str, str]:
    """Return what each metric means, by name; those without a file here are left out."""
    explained = {}
    for name in names:
        if name in files:
            text = files[name].meaning or files[name].description.removeprefix(_SAYS).partition(";")[0]
            explained[name] = capitalise(text).rstrip(".")
    return explained


def _place_cause(row: Row) -> int:
    return 2 if row["cause"] in FINE else 1 if row["cause"] == _UNJUDGED else 0


def _sort_moves(against: Against | None) -> dict[str, list[MetricComparison]]:
    """Return the metrics of a comparison by verdict, the main ones first."""
    found: dict[str, list[MetricComparison]] = {}
    for compared in against.comparison.metrics if against and against.comparison else ():
        if compared.is_compared:
            way = "otherwise" if is_measured_otherwise(compared) else compared.paired.verdict
            found.setdefault(way, []).append(compared)
    for of_verdict in found.values():
        places = {name: place for place, name in enumerate(sort_first([one.metric for one in of_verdict]))}
        of_verdict.sort(key=lambda compared: places[compared.metric])
    return found


def _describe_moves(moves: Mapping[str, Sequence[MetricComparison]], against: Against | None) -> Iterator[str]:
    if against is None:
        return
    yield f"Compared with {against.name}: {against.otherwise or _join_moves(moves)}."


def _join_moves(moves: Mapping[str, Sequence[MetricComparison]]) -> str:
    """Return the result of a comparison in half a sentence."""
    if not moves:
        return "no sample has a score in both, so better or worse is unknown"
    if moves.keys() == {"same"}:
        return "no score differs"
    summary = "no metric is better or worse beyond chance"
    if any(way in moves for way in _CLEAR):
        by_way = []
        for way in _CLEAR:
            metrics = moves.get(way, ())
            named = [f"{metric.metric} ({write_change(metric.paired.difference)})" for metric in metrics[:_MAX_NAMED]]
            n_more = len(metrics) - len(named)
            more = f" and {write_count(n_more, 'more metric')}" if n_more else ""
            by_way.append(f"{way} in {', '.join(named) or 'none'}{more}")
        summary = "; ".join(by_way)
    n_otherwise = len(moves.get("otherwise", ()))
    if not n_otherwise:
        return summary
    return f"{summary}; unknown for {write_count(n_otherwise, 'metric')} with another judge, prompt or formula"


def _find_tone(moves: Mapping[str, Sequence[MetricComparison]], gate: str | None) -> Tone:
    """Return the tone by the gate if it decided, else by the main metrics, else by all."""
    if gate in ("passed", "failed"):
        return "good" if gate == "passed" else "bad"
    main = [way for way in _CLEAR if any(compared.metric in FIRST for compared in moves.get(way, ()))]
    ways = main or [way for way in _CLEAR if way in moves]
    return "unclear" if len(ways) != 1 else "bad" if ways == ["worse"] else "good"


_MIN_SHOWN: Final = 0.0005


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """The addresses that links of a page begin with: of a run, of a sample, and of two runs side by side; None without
    such a page."""

    run: str
    sample: str | None = None
    compare: str | None = None


def describe_slices(warehouse: Warehouse, run: RunRow, column: str | None) -> dict[str, Any]:
    """Return the table of the main metrics by the values of a metadata column, or the problem with that column.

    `columns` can be chosen instead; all is empty without a column and a choice.
    """
    known = warehouse.fetch_rows("slices/columns", run_id=run.run_id, most=_MOST_LOOKED_AT)
    columns = [str(row["name"]) for row in known if 1 < int(str(row["n_values"])) <= MAX_SLICES]
    if column is None and not columns:
        return {}
    described: dict[str, Any] = {"column": column, "columns": columns, "problem": None, "rows": [], "names": []}
    try:
        means = read_slices(warehouse, run, column)
    except ComparisonError as error:
        return described | {"problem": str(error)}
    names = [name for name in dict.fromkeys(str(row["metric"]) for row in means)
             if any(row["n_scored"] for row in means if row["metric"] == name)]  # fmt: skip
    rows = []
    for value, of_slice in groupby(means, key=lambda row: row["slice"]):
        cells = [
            {
                "metric": row["metric"],
                "mean": write_value(row["mean"]),
                "interval": write_interval(row["ci_low"], row["ci_high"]),
                "n_scored": row["n_scored"],
                "n_samples": row["n_samples"],
            }
            for row in of_slice
            if row["metric"] in names
        ]
        rows.append({"slice": value, "n_samples": cells[0]["n_samples"] if cells else 0, "cells": cells})
    return described | {"names": names, "rows": rows}


def describe_run(
    warehouse: Warehouse,
    run: RunRow,
    base: RunRow | None,
    summary: RunSummary,
    *,
    by: str | None = None,
    compare: Compare = compare_plainly,
) -> dict[str, Any]:
    """Return all sections but that of samples and the distributions.

    `base` is the run to compare with, None for one alone; `compare` compares two runs. Values of the metadata column
    `by` whose samples got worse while the whole did not are named on top.
    """
    preferences = describe_preferences(warehouse, run, with_samples=False)
    metrics = sort_by_metric(summary.metrics, run.metrics)
    # Without a base, the run before this one in its series; None for the first.
    previous = max((row["previous_run_id"] for row in metrics if row["previous_run_id"]), default=None)
    other = base or (find_run(warehouse, previous) if previous else None)
    pair = RunPair(warehouse, other, run) if other else None
    comparison = compare(pair) if base and pair else None
    counted = warehouse.fetch_rows("diagnosis/causes", run_id=run.run_id)
    names = sort_first([str(row["metric"]) for row in metrics])
    compared_by_name = {metric.metric: metric for metric in comparison.metrics} if comparison else {}
    rows = {}
    for row in metrics:
        name, mean = str(row["metric"]), row["mean"]
        compared = compared_by_name.get(name)
        base_mean = compared.mean_base if compared else None
        if base_mean is not None and not 0 <= base_mean <= 1:
            base_mean = None
        cells = {
            "name": name,
            "strip": draw_interval(row, base_mean) if mean is not None and 0 <= mean <= 1 else None,
            "mean": write_value(mean),
            "interval": write_interval(row["ci_low"], row["ci_high"]),
            "n_scored": row["n_scored"],
            "n_unscored": row["n_unscored"],
            "is_low": row["better"] == "low",
        }
        if compared:
            paired = compared.paired
            cells |= {
                "base_mean": write_value(compared.mean_base),
                "change": write_change(paired.difference),
                "change_interval": write_interval(paired.ci_low, paired.ci_high),
                "p": write_p(paired.p_adjusted),
                "verdict": paired.verdict,
                "n_common": paired.n,
                "n_higher": paired.n_higher,
                "n_lower": paired.n_lower,
            }
        else:
            is_alike = row["same_yardstick"] is not False
            cells |= {
                "change": write_change(row["change"]),
                "note": write_shared(row) if is_alike else "measured differently",
            }
        rows[name] = cells
    unscored: dict[str, list[Row]] = {}
    for row in summary.unscored:
        unscored.setdefault(row["reason"], []).append(row)
    preferred = []
    if preferences:
        # The tables of a run that preferred one of two answers.
        tables = [lay_out_result(preferences), lay_out_position(preferences), lay_out_left_out(preferences)]
        for place, (columns, table) in enumerate(tables):
            if table:
                remarks = () if place else list_remarks(preferences)
                preferred.append(
                    {"columns": columns, "rows": [[*map(write_value, row)] for row in table], "remarks": remarks}
                )
    against = None
    if pair:
        called = "the base" if base else "the run before"
        against = lay_against(pair, called, lambda pair: comparison or compare(pair))
        if by and against.comparison:
            # A column that cannot be compared is refused in the section by that column.
            with suppress(ComparisonError):
                slices = compare_slices(pair, ComparisonSettings(), by, list_first(names, run.config))
                against = replace(against, slices=tuple(describe_fallen(by, slices, against.comparison)))
    sampling = explain_sampling(warehouse, run)
    described = {
        "base": base,
        **describe_about(run),
        "unscored": [
            {
                "reason": reason,
                "metrics": ", ".join(f"{row['metric']} {row['n_samples']}" for row in of_reason),
                "example": next((row["example"] for row in of_reason if row["example"]), ""),
            }
            for reason, of_reason in unscored.items()
        ],
        "stand_in": " ".join(filter(None, (*list_notes(warehouse, run), sampling))),
        "sampled": sampling is not None,
        "costs_note": explain_joint_split(summary.costs),
        "costs": [{**row, "cost": write_cost(row)} for row in summary.costs],
        "preferences": preferred,
        "flips": [{**row, "percent": write_share(row["flip_rate"])} for row in summary.flips],
        "jury": show_jury(warehouse, run),
        "head": build_head(
            counted,
            metrics=metrics,
            gate=summary.gate,
            against=against,
            forgotten=find_forgotten(warehouse, run.run_id),
            night=describe_night(warehouse, run),
        ),
        "causes": rank_causes(counted, warehouse.fetch_rows("diagnosis/causes", run_id=other.run_id) if other else ()),
        "other": other,
        "metrics": rows,
        "groups": group_metrics(names, run.config),
        "meanings": explain_metrics(names, load_metrics(run.metric_folder)),
        "parts": describe_parts(comparison, names) if comparison else (),
        "warnings": comparison.warnings if comparison else (),
    }
    if preferences:
        described["head"] = replace(described["head"], result=f"{write_result(preferences)}.")
    return described


def show_jury(warehouse: Warehouse, run: RunRow) -> dict[str, Any] | None:
    """Return the tables of a jury's agreement and its warnings; None for a run without one."""
    if not run.has_jury:
        return None
    steps = measure_jury(warehouse, run)
    tables = [
        {"title": title, "columns": columns, "rows": [[*map(write_value, row)] for row in rows]}
        for title, (columns, rows) in lay_out_jury([asdict(step) for step in steps]).items()
    ]
    return {"tables": tables, "warnings": list_outsiders(steps)}


def draw_charts(
    values: Mapping[str, Sequence[float | None]], history: Sequence[Row], *, link: str | None = None
) -> list[dict[str, Any]]:
    """Draw by metric the distribution of its values, and the history of its mean if there is an earlier run."""
    runs = {metric: list(rows) for metric, rows in groupby(history, key=lambda row: str(row["metric"]))}
    charts = []
    for name in sort_first(list(values)):
        scored = [value for value in values[name] if value is not None]
        rows = [row for row in runs.get(name, []) if row["mean"] is not None]
        if scored:
            charts.append(
                {
                    "name": name,
                    "distribution": draw_distribution(scored, of=name),
                    "history": draw_trend(rows, f"Mean of {name}", link=link) if len(rows) > 1 else None,
                    "n_runs": len(rows),
                    "n_yardsticks": 1 + sum(row["same_yardstick"] is False for row in rows[1:]),
                }
            )
    return charts


def describe_about(run: RunRow) -> dict[str, Any]:
    """Return the run with its heading and its link."""
    return {
        "run": run,
        "heading": run.label or run.dataset or "Run",
        "link_of_run": run.href if (run.href or "").startswith(("https://", "http://")) else None,
    }


def describe_parts(comparison: Comparison, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return why the means moved, by metric in the order of the names; unmoved metrics are left out.

    A chart shows the parts of a mean's change; of their numbers the last row is the sum.
    """
    described = []
    shown = [metric for metric in comparison.metrics if metric.metric in names]  # the base may have others
    for compared in sorted(shown, key=lambda metric: names.index(metric.metric)):
        moved = [part for part in compared.parts if part.n_moved and abs(part.value) > ROUNDING]
        if compared.change is None or not moved:
            continue
        parts = sorted(moved, key=lambda part: -abs(part.value))
        rows: list[dict[str, Any]] = [
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
        described.append(
            {
                "metric": compared.metric,
                "base": write_value(compared.mean_base),
                "candidate": write_value(compared.mean_candidate),
                "change": write_change(compared.change),
                "floor": write_value(compared.noise_floor) if (compared.noise_floor or 0) >= _MIN_SHOWN else None,
                "chart": draw_parts(parts, sign=SIGNS[compared.better]),
                "rows": [*rows, total],
            }
        )
    return described
