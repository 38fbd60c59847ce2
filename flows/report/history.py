"""The page of a series' history: each metric over all nights, what changed meanwhile, and what to look at.

All texts and numbers are in the page itself, so that it can be read without its scripts, which draw the charts and
find runs in their table. `evalhouse ui` shows the same sections. `page.py` makes pages safe.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from evalhouse.flows.report.charts import Mark, draw_amounts, draw_shares, draw_trend, write_change
from evalhouse.flows.report.page import render_page
from evalhouse.flows.report.sections import (
    Addresses,
    Compare,
    build_head,
    compare_plainly,
    explain_metrics,
    lay_against,
    rank_causes,
    sort_headline,
    write_share,
)
from evalhouse.flows.results.baseline import Difference, list_differences
from evalhouse.flows.results.diagnosis import load_advice
from evalhouse.flows.results.output import write_dollars, write_interval, write_shared, write_value
from evalhouse.flows.results.run_origin import HEADLINE
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.history import CAUSE_RUNS, FLAKY_RUNS, SeriesData
from evalhouse.warehouse.rows.report import Row, read_gate
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse

_BLANK: Final = {"mean": None, "ci_low": None, "ci_high": None, "n_scored": 0, "same_yardstick": None}
_SHORT: Final = 160
_MOST_MOVES: Final = 4


def build_history(warehouse: Warehouse, data: SeriesData) -> str:
    """The page as text."""
    return render_page(
        "history.html",
        styles=("report.css",),
        scripts=("plot.js", "charts.js", "history.js"),
        title=f"History of {data.series}",
        warehouse=warehouse.location.path.name,
        **describe_series(warehouse, data, Addresses(run="#run-")),
    )


def describe_series(
    warehouse: Warehouse, data: SeriesData, addresses: Addresses, compare: Compare = compare_plainly
) -> dict[str, Any]:
    """Return what the sections of a series show; `compare` is how runs are compared."""
    runs, files = data.runs, load_metrics()
    # By metric a row for every run of the series, blank where the run has none; those that say most come first.
    places = {run["run_id"]: place for place, run in enumerate(runs)}
    by_metric: dict[str, list[Row]] = {}
    for row in data.means:
        aligned = by_metric.setdefault(str(row["metric"]), [{**run, **_BLANK, "n_unscored": 0} for run in runs])
        aligned[places[row["run_id"]]] = row
    means = {metric: by_metric[metric] for metric in sort_headline(list(by_metric))}
    changes = _list_changes(data, means)
    # The runs with their costs, in a table and as charts, and what they come to together.
    coverage: list[float | None] = []
    for place in range(len(runs)):
        n_scored = sum(rows[place]["n_scored"] for rows in means.values())
        n_all = n_scored + sum(rows[place]["n_unscored"] for rows in means.values())
        coverage.append(n_scored / n_all if n_all else None)
    costs = [data.costs.get(str(run["run_id"]), {}) for run in runs]
    latencies = [data.latencies.get(str(run["run_id"]), {}) for run in runs]
    drawn = [
        ("Requests", [row.get("n_requests") for row in costs], "{:,.0f}"),
        ("Dollars", [row.get("cost_usd") for row in costs], "{:,.4g}"),
        ("Milliseconds to a response, median", [row.get("latency_p50_ms") for row in latencies], "{:,.0f}"),
        ("Milliseconds to a response, 95th percentile", [row.get("latency_p95_ms") for row in latencies], "{:,.0f}"),
        ("Share of scores that are there", coverage, "{:.1%}"),
    ]
    described_runs = []
    for place in reversed(range(len(runs))):
        latency = latencies[place]  # median and 95th percentile of a run's responses; a dash where it asked for none
        is_timed = latency.get("latency_p50_ms") is not None
        described_runs.append(
            {
                **runs[place],
                "knowledge": runs[place]["kb_version"] or "–",
                "requests": costs[place].get("n_requests", "–"),
                "cost": write_dollars(costs[place]["cost_usd"]) if costs[place] else "–",
                "latency": f"{latency['latency_p50_ms']:,.0f} / {latency['latency_p95_ms']:,.0f}" if is_timed else "–",
                "coverage": "–" if (share := coverage[place]) is None else f"{share:.1%}",
                "means": [write_value(rows[place]["mean"]) for rows in means.values()],
            }
        )
    with_costs = [row for row in costs if row]
    total_cost = write_dollars(sum(row["priced_usd"] for row in with_costs))
    if n_unknown := sum(row["n_unpriced"] > 0 for row in with_costs):
        total_cost = (
            f"cost unknown: calls in {n_unknown} of {len(with_costs)} runs have no known price; "
            f"the others cost {total_cost}"
        )
    else:
        total_cost = f"cost {total_cost} in all"
    # The newest run's result, laid against the run a week before.
    newest = str(data.newest["run_id"])
    against = None
    if data.since is not None:
        pair = RunPair(warehouse, find_run(warehouse, str(data.since["run_id"])), find_run(warehouse, newest))
        against = lay_against(pair, f"the run of {pair.base.started_at:%Y-%m-%d}", compare)
    metrics = [{**rows[places[data.newest["run_id"]]], "metric": metric} for metric, rows in means.items()]
    head = build_head(data.causes[newest], metrics=metrics, against=against, gate=read_gate(warehouse, newest))
    worse = []
    for row in data.worse:
        reasons = ("what is judged is another", row["input_changed"]), ("a formula is another", row["formula_changed"])
        moves = [
            {"metric": move["metric"], "before": write_value(move["before"]), "after": write_value(move["after"])}
            for move in row["moves"]
        ]
        worse.append(
            {
                **row,
                "moves": moves[:_MOST_MOVES],
                "n_more": max(0, len(moves) - _MOST_MOVES),
                "why": ", ".join(text for text, holds in reasons if holds) or "nothing that is judged has changed",
                "question": shorten(row["question"], _SHORT),
                "old_answer": shorten(row["old_answer"], _SHORT) if row["old_answer"] != row["new_answer"] else None,
                "new_answer": shorten(row["new_answer"], _SHORT),
            }
        )
    return {
        "addresses": addresses,
        "newest": data.newest,
        "since": data.since,
        "charts": [
            _draw_metric(data, metric, rows, changes, addresses.run)
            | {"is_low": metric in files and files[metric].better == "low"}
            for metric, rows in means.items()
            if any(row["mean"] is not None for row in rows)
        ],
        "head": replace(head, result=f"Newest run: {head.result}"),
        "meanings": explain_metrics(list(means), files),
        "changes": [{"run": data.runs[mark.place], "text": mark.text} for _, mark in reversed(changes)],
        "causes": _describe_causes(data, addresses.run),
        "cause_runs": CAUSE_RUNS,
        "worse": worse,
        "flaky": [
            {**row, "lowest": write_value(row["lowest"]), "highest": write_value(row["highest"])} for row in data.flaky
        ],
        "flaky_runs": FLAKY_RUNS,
        "first": runs[0],
        "last": runs[-1],
        "n_runs": len(runs),
        "gates": _count(runs, "gate"),
        "triggers": _count(runs, "trigger"),
        "statuses": _count(runs, "status"),
        "total_cost": total_cost,
        "metrics": list(means),
        "n_main": sum(name in HEADLINE for name in means) or len(means),
        "amounts": [
            {"name": name, "chart": draw_amounts(runs, values, what=name, form=form, link=addresses.run)}
            for name, values, form in drawn
            if any(value is not None for value in values)
        ],
        "timed": any(latencies),
        "runs": described_runs,
    }


def _list_changes(data: SeriesData, means: Mapping[str, Sequence[Row]]) -> list[tuple[str | None, Mark]]:
    """List what changed in the order of the runs, each with the only metric that it is about, or None."""
    # By run and name of a prompt its versions by hash.
    prompts: defaultdict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for row in data.prompts:
        prompts[str(row["run_id"])].setdefault(str(row["prompt"]), {})[str(row["prompt_hash"])] = str(row["version"])
    changes: list[tuple[str | None, Mark]] = []
    for place, (before, after) in enumerate(pairwise(data.runs), start=1):
        found = [*list_differences(before, after)]
        asked_before, asked_after = prompts[before["run_id"]], prompts[after["run_id"]]
        for name in sorted(asked_before.keys() & asked_after.keys()):
            if asked_before[name].keys() != asked_after[name].keys():
                old, new = (", ".join(sorted(set(side[name].values()))) for side in (asked_before, asked_after))
                change = f"version {old} → {new}" if old != new else f"another text of version {old}"
                found.append(Difference(text=f"prompt {name}: {change}", is_break=True))
        for difference in sorted(found, key=lambda difference: not difference.is_break):
            changes.append((None, Mark(place=place, text=difference.text, is_break=difference.is_break)))
    for metric, rows in means.items():
        versions = [(place, row["metric_version"]) for place, row in enumerate(rows) if "metric_version" in row]
        for (_, old), (place, new) in pairwise(versions):
            if old != new:
                text = f"formula of {metric}: version {old} → {new}"
                changes.append((metric, Mark(place=place, text=text, is_break=True)))
    return sorted(changes, key=lambda change: change[1].place)


def _draw_metric(
    data: SeriesData, metric: str, rows: Sequence[Row], changes: Sequence[tuple[str | None, Mark]], link: str
) -> dict[str, Any]:
    # One mark a place, which names all that changed there.
    by_place: dict[int, list[Mark]] = {}
    for of_metric, mark in changes:
        if of_metric in (None, metric):
            by_place.setdefault(mark.place, []).append(mark)
    marks = [
        Mark(
            place=place,
            text="; ".join(f"{mark.text} ({data.runs[place]['run_id']})" for mark in here),
            is_break=any(mark.is_break for mark in here),
        )
        for place, here in by_place.items()
    ]
    # How far the mean is from that of the run a week before, over the samples that both scored.
    change = None
    if data.since is not None:
        run_ids = [run["run_id"] for run in data.runs]
        start, end = run_ids.index(data.since["run_id"]), run_ids.index(data.newest["run_id"])
        if rows[start]["mean"] is None or rows[end]["mean"] is None:
            change = None
        elif any(row["same_yardstick"] is False for row in rows[start + 1 : end + 1]):
            change = "measured otherwise"
        else:
            counts = {"previous_n_scored": rows[start]["n_scored"], "n_scored": rows[end]["n_scored"]}
            shared = data.shared.get(metric, {"n_shared": 0, "change": None})
            text = write_shared({**shared, **counts})
            change = " ".join(filter(None, (write_change(shared["change"]), f"({text})" if text else "")))
    scored = [row for row in rows if row["mean"] is not None]
    return {
        "name": metric,
        "history": draw_trend(rows, metric, marks, link=link),
        "last": write_value(scored[-1]["mean"]),
        "interval": write_interval(scored[-1]["ci_low"], scored[-1]["ci_high"]),
        "n_runs": len(scored),
        "n_yardsticks": 1 + sum(row["same_yardstick"] is False for row in scored[1:]),
        "change": change,
    }


def _count(runs: Sequence[Row], column: str) -> dict[str, int]:
    return dict(Counter(str(run[column]) for run in runs if run[column] is not None).most_common())


def _describe_causes(data: SeriesData, link: str) -> dict[str, Any] | None:
    """Shares of all samples by cause in the newest runs: a chart, and the newest run's numbers as its key."""
    runs = [run for run in data.runs if data.causes.get(str(run["run_id"]))]
    if not runs:
        return None
    counted = [{row["cause"]: row["n_samples"] for row in data.causes[str(run["run_id"])]} for run in runs]
    advice = load_advice("en")
    # What is fine stands at the bottom, so that the failures are what rises above it.
    causes = [cause for cause in reversed(list(advice)) if any(of_run.get(cause) for of_run in counted)]
    totals = [sum(of_run.values()) or 1 for of_run in counted]
    shares = {
        advice[cause].name: [of_run.get(cause, 0) / total for of_run, total in zip(counted, totals, strict=True)]
        for cause in causes
    }
    key = [
        {"place": place, "cause": cause, "name": name, "meaning": advice[cause].meaning,
         "n_samples": counted[-1].get(cause, 0), "first": write_share(values[0]), "last": write_share(values[-1])}
        for place, (cause, (name, values)) in enumerate(zip(causes, shares.items(), strict=True))
    ]  # fmt: skip
    order = [row["cause"] for row in rank_causes(data.causes[str(runs[-1]["run_id"])], ())]
    key.sort(key=lambda row: order.index(row["cause"]) if row["cause"] in order else len(order))
    return {"chart": draw_shares(runs, shares, link=link), "key": key, "n_runs": len(runs)}
