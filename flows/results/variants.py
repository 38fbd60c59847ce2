"""Many runs against the first one: who won in one sentence, the tables of `evalhouse compare A B C`, and their JSON.

`evalhouse compare`, the page of these runs and a suite with variants open with the same sentence.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from evalhouse.flows.results.comparison import write_difference, write_p
from evalhouse.flows.results.headline import Headline
from evalhouse.flows.results.output import (
    capitalise,
    print_fitting,
    print_line,
    print_section,
    write_count,
    write_interval,
    write_value,
)
from evalhouse.flows.results.run_facts import list_first, sort_first
from evalhouse.tasks.comparing.intervals import ALPHA
from evalhouse.tasks.comparing.runs import ComparisonError, ComparisonSettings
from evalhouse.tasks.comparing.variants import (
    MAX_RUNS,
    VariantComparison,
    VariantMetric,
    compare_variants,
    measure_spreads,
)
from evalhouse.warehouse.messages import list_names, shorten
from evalhouse.warehouse.rows.runs import RunRow, list_night_runs
from evalhouse.warehouse.store import Warehouse

Row = Mapping[str, Any]
FOUND: Final = ("better", "worse")
_MAX_METRICS: Final = 3
_MAX_SLICES: Final = 3
_LONGEST_NAME: Final = 24
_MOST_VALUES: Final = 12
# What a narrow terminal does without, in this order.
_DROPPED: Final = (("#samples",), ("#p",))


def pick_headline_metrics(runs: Sequence[RunRow]) -> frozenset[str]:
    """Return the metrics that decide between runs: the ones which any of them shows first."""
    return frozenset(metric for run in runs for metric in list_first(run.metrics, run.config))


def write_variants_headline(comparison: VariantComparison) -> Headline:
    """Write who won, what is better or worse than in the first run, and in which slices a run loses.

    A winner is better than the first run in some metric and worse in none, as the only one; or the first run itself,
    where every other is worse and better in nothing.
    """
    first, *others = comparison.names
    metrics = sort_first([metric.metric for metric in comparison.metrics])
    contenders = [comparison.names[place] for place in comparison.contenders]
    moved: dict[str, str] = {}
    for place, name in enumerate(others, start=1):
        parts: list[str] = []
        for verdict in FOUND:
            by_name = {metric.metric: metric for metric in comparison.list_found(place, verdict)}
            named = [_write_move(by_name[metric], place) for metric in metrics if metric in by_name]
            if named:
                parts.append(f"{verdict} {'' if parts else f'than {first} '}in {list_names(named, _MAX_METRICS)}")
        if parts:
            moved[name] = " and ".join(parts)
    if comparison.winner is None:
        clauses = ["no clear winner"]
        if contenders:
            names = f"{', '.join(contenders[:-1])} and {contenders[-1]}"
            clauses = [f"no clear winner: {names} are better than {first}, and were not tested against each other"]
    elif contenders:
        clauses = [f"the winner is {contenders[0]}, {moved.pop(contenders[0])}"]
    else:
        clauses = [f"the winner is {first}, as {'the other run is' if len(others) == 1 else 'all others are'} worse"]
    for name, failed in zip(comparison.names, comparison.failed, strict=True):
        if failed is not None:
            of_all = write_count(failed.n_of, "sample")
            reasons = ", ".join(reason.replace("_", " ") for reason in failed.reasons[:2])
            whose = "another run" if name == first else first
            clauses.append(f"{name} has no score in {failed.n:,} of {of_all} that {whose} scored ({reasons})")
    clauses += [f"{name} is {parts}" for name, parts in moved.items()]
    metrics_moved = {
        metric.metric
        for metric in comparison.metrics
        if any(difference.verdict in (*FOUND, "changed") for difference in metric.differences)
    }
    alike = [
        metric.metric
        for metric in comparison.metrics
        if metric.metric not in metrics_moved
        and any(difference.unlike is None and difference.paired.n for difference in metric.differences)
    ]
    if alike:
        which = list_names([name for name in metrics if name in alike], _MAX_METRICS)
        clauses.append(f"no run is clearly different from {first} in {which}")
    for place, name in enumerate(others, start=1):
        worse = {metric.metric for metric in comparison.list_found(place, "worse")}
        slices = dict.fromkeys(
            str(metric.slice)
            for metric in comparison.slices
            if metric.differences[place - 1].verdict == "worse" and metric.metric not in worse
        )
        if slices:
            clauses.append(f"{name} loses in {comparison.by} {list_names(list(slices), _MAX_SLICES)}")
        n_unlike = sum(metric.differences[place - 1].unlike is not None for metric in comparison.metrics)
        if n_unlike:
            clauses.append(
                f"{name} was measured differently, so better or worse is unknown in {write_count(n_unlike, 'metric')}"
            )
    tested = write_count(comparison.n_comparisons, "difference")
    n_samples = write_count(comparison.n_samples[0], "sample")
    further = (f"p and the 95 % intervals are for {tested} together, on {n_samples}.",)
    return Headline(sentence=capitalise("; ".join(clauses)), further=further)


def _write_move(metric: VariantMetric, place: int) -> str:
    paired = metric.differences[place - 1].paired
    return f"{metric.metric} ({write_difference(paired.difference)}, {write_interval(paired.ci_low, paired.ci_high)})"


def describe_night(warehouse: Warehouse, own: RunRow) -> list[str]:
    """Return which run of a suite and its variants is best, and in which slices others lose, in sentences.

    `own` is the run of the suite itself. Nothing is returned for a run without variants, and where fewer than two runs
    of the night have scores.

    Slices are by the first column of [gate.by], else by the metadata column with the fewest values, if it has few.
    """
    if own.night != own.run_id:
        return []
    runs = list_night_runs(warehouse, own.run_id, kinds=("evaluation",))
    scored = [run for run in runs if run.status in ("completed", "incomplete")]
    if len(scored) < 2:
        return []
    first = scored[0]
    gate = first.config.get("gate") or {}
    columns = list(gate.get("by") or {})
    if not columns:
        found = warehouse.fetch_rows("slices/columns", run_id=first.run_id, most=first.n_samples or 0)
        few = [row for row in found if 1 < row["n_values"] <= _MOST_VALUES]
        columns = [str(row["name"]) for row in sorted(few, key=lambda row: (row["n_values"], row["name"]))]
    settings = ComparisonSettings(metrics=pick_headline_metrics(scored))
    try:
        comparison = compare_variants(warehouse, scored[:MAX_RUNS], settings, by=columns[0] if columns else None)
    except ComparisonError as error:  # the runs are paid for, and all else is shown
        return [f"The variants cannot be compared: {error}."]
    headline = write_variants_headline(comparison)
    return [f"{headline.sentence}.", *headline.further]


def describe_variants(
    comparison: VariantComparison,
    settings: ComparisonSettings,
    *,
    sort: str | None = None,
    differ: bool = False,
    top: int | None = None,
) -> dict[str, Any]:
    """Return the document of `evalhouse compare A B C --json`.

    `samples` are the ones that differ most, over all metrics or in `sort`; `differ` leaves out samples with equal
    scores.
    """
    headline = write_variants_headline(comparison)
    order = sort_first([metric.metric for metric in comparison.metrics])
    metrics = sorted(comparison.metrics, key=lambda metric: order.index(metric.metric))
    slices = sorted(comparison.slices, key=lambda metric: order.index(metric.metric))
    places = {sample_id: place for place, sample_id in enumerate(comparison.sample_ids)}
    ranked = [pair for pair in comparison.rank_samples(sort) if pair[1] or not differ]
    names = ("run_id", "status", "suite", "label", "dataset", "judge", "embeddings", "language", "started_at")
    return {
        "runs": [
            {"name": name, **{column: getattr(run, column) for column in names}, "n_samples": n}
            for run, name, n in zip(comparison.runs, comparison.names, comparison.n_samples, strict=True)
        ],
        "winner": comparison.winner.run_id if comparison.winner else None,
        "headline": {"sentence": headline.sentence, "further": headline.further},
        "n_comparisons": comparison.n_comparisons,
        "cluster": comparison.cluster,
        "alpha": ALPHA,
        "seed": settings.seed,
        "resamples": settings.resamples,
        "warnings": list(comparison.warnings),
        "metrics": [_describe_metric(comparison, metric) for metric in metrics],
        "by": [{"by": comparison.by, "slice": of.slice, **_describe_metric(comparison, of)} for of in slices],
        "samples": [
            {
                "sample_id": sample_id,
                "distance": distance,
                "scores": {
                    metric: [None if np.isnan(value) else float(value) for value in comparison.scores[metric][place]]
                    for metric in order
                },
            }
            for sample_id, distance in ranked[:top]
            for place in (places[sample_id],)
        ],
    }


def _describe_metric(comparison: VariantComparison, metric: VariantMetric) -> dict[str, Any]:
    runs: list[dict[str, Any]] = [
        {"name": name, "run_id": run.run_id, "mean": mean, "n_scored": n}
        for name, run, mean, n in zip(comparison.names, comparison.runs, metric.means, metric.n_scored, strict=True)
    ]
    columns = ("difference", "ci_low", "ci_high", "p", "p_adjusted")
    for row, difference in zip(runs[1:], metric.differences, strict=True):
        row |= {"n_common": difference.paired.n, "common_first": difference.common_first}
        row |= {**{name: getattr(difference.paired, name) for name in columns}}
        row["verdict"] = difference.verdict
    return {"metric": metric.metric, "better": metric.better, "runs": runs}


def print_variants(document: Row, *, sort: str | None = None) -> None:
    """Print the sentence, the runs and warnings, means, differences, slices that differ, and samples."""
    print_line(f"{document['headline']['sentence']}.", bold=True)
    for sentence in document["headline"]["further"]:
        print_line(sentence)
    print_line()
    names = [shorten(run["name"], _LONGEST_NAME) for run in document["runs"]]
    if len(set(names)) < len(names):
        names = [run["run_id"] for run in document["runs"]]
    for run, name in zip(document["runs"], names, strict=True):
        what = f"{name}: run {run['run_id']}" if run["name"] != run["run_id"] else f"run {name}"
        print_line(f"{what}, {write_count(run['n_samples'], 'sample')} of {run['dataset']}")
    if document["cluster"]:
        print_line(f"clustered by {document['cluster']}")
    for warning in document["warnings"]:
        print_line(f"warning: {warning}")
    if not document["metrics"]:
        print_line("No run has scores yet.")
        return
    cells = [[of["metric"], *(_write_mean(run) for run in of["runs"])] for of in document["metrics"]]
    print_section("Means", ["metric", *(f"#{name}" for name in names)], cells)
    differences: list[dict[str, object]] = [
        {
            "metric": of["metric"],
            "run": name,
            f"#in {names[0]}": run["common_first"],
            "#difference": write_difference(run["difference"]),
            "95 % interval": write_interval(run["ci_low"], run["ci_high"]),
            "#p": write_p(run["p_adjusted"]),
            "#samples": run["n_common"],
            "verdict": run["verdict"],
        }
        for of in document["metrics"]
        for run, name in zip(of["runs"][1:], names[1:], strict=True)
    ]
    print_line()
    print_fitting(differences, _DROPPED, title=f"Differences from {names[0]}")
    if document["by"]:
        by = document["by"][0]["by"]
        cells = [
            [of["slice"], of["metric"], name, run["common_first"], write_difference(run["difference"]),
             write_interval(run["ci_low"], run["ci_high"]), run["n_common"], run["verdict"]]
            for of in document["by"]
            for run, name in zip(of["runs"][1:], names[1:], strict=True)
            if run["verdict"] in FOUND
        ]  # fmt: skip
        columns = ["metric", "run", f"#in {names[0]}", "#difference", "95 % interval", "#samples", "verdict"]
        print_section(f"By {by}", [by, *columns], cells)
        if not cells:
            print_line(f"note: no run is clearly better or worse than {names[0]} in any {by}")
    rows = []
    with_metric = {of["metric"]: [run["n_scored"] > 0 for run in of["runs"]] for of in document["metrics"]}
    for sample in (sample for sample in document["samples"] if sample["distance"]):
        scores = sample["scores"]
        # None is NaN among numbers.
        metric = sort or max(
            scores,
            key=lambda name: measure_spreads(np.array([scores[name]], dtype=float)[:, with_metric[name]])[0],
        )
        rows.append([sample["sample_id"], metric, *map(write_value, scores[metric])])
    columns = ["sample", "metric", *(f"#{name}" for name in names)]
    print_section("Samples that differ most, each by the metric in which it does" if not sort else
                  f"Samples that differ most in {sort}", columns, rows)  # fmt: skip
    first = document["runs"][0]["run_id"]
    print_line()
    for run in document["runs"][1:]:
        print_line(f"next: evalhouse compare {first} {run['run_id']}   (why {run['name']} differs)")


def _write_mean(run: Row) -> str:
    mean = write_value(run["mean"])
    return f"{mean} {run['verdict']}" if run.get("verdict") in FOUND else mean
