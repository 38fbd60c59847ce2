"""`evalhouse runs` and `evalhouse show`."""

from typing import Any

import click

from flows.command_run import JSON_OPTION, WAREHOUSE_OPTION
from flows.output import make_console, make_table, metrics_table, print_json, shorten, write_dollars
from warehouse.errors import WarehouseError
from warehouse.location import DEFAULT_URL
from warehouse.runs import RunRow, find_run, list_runs
from warehouse.store import Warehouse

_HEADLINE = ("answer_correctness", "factual_f1", "faithfulness", "context_recall", "context_precision")

_MEANS = "select run_id, metric, mean from run_scores where run_id in (select unnest($run_ids))"
_SCORES = """
select run_scores.metric, run_scores.mean, run_scores.ci_low, run_scores.ci_high, run_scores.n_scored,
       run_scores.n_unscored, score_history.change
from run_scores
left join score_history using (run_id, metric)
where run_id = $run_id
"""
_WORST = """
select scores.sample_id, scores.value, samples.question, samples.answer
from scores
join run_samples using (run_id, sample_id)
join samples using (sample_id, input_hash)
where scores.run_id = $run_id and scores.metric = $metric and scores.value is not null
order by scores.value, run_samples.ordinal
limit $worst
"""
_COSTS = """
select step, n_calls, n_requests, n_reused, n_failed, prompt_tokens, completion_tokens, cost_usd
from run_costs where run_id = $run_id order by step
"""
_UNSCORED = """
select reason, count(distinct sample_id) as n_samples, list(distinct metric order by metric) as metrics,
       any_value(detail) as example
from unscored where run_id = $run_id group by reason order by n_samples desc, reason
"""


@click.command()
@click.option("--limit", type=int, default=20, show_default=True, metavar="N", help="How many of the newest runs.")
@WAREHOUSE_OPTION
@JSON_OPTION
def runs(limit: int, warehouse: str | None, as_json: bool) -> None:
    """List the newest runs with the means of their main metrics."""
    store = Warehouse(warehouse or DEFAULT_URL)
    found = list_runs(store, limit=limit)
    means: dict[str, dict[str, float | None]] = {run.run_id: {} for run in found}
    for row in store.read_rows(_MEANS, {"run_ids": list(means)}):
        means[str(row["run_id"])][str(row["metric"])] = row["mean"]  # type: ignore[assignment]  # a mean is a number
    if as_json:
        print_json([_describe_run(run) | {"metrics": means[run.run_id]} for run in found])
        return
    if not found:
        click.echo(f"No run is on record in {store.location.path}; start one with `evalhouse run sample`.")
        return
    shown = [metric for metric in _HEADLINE if any(metric in row for row in means.values())]
    rows = [
        [run.run_id, run.status, run.n_samples, run.judge, run.dataset, run.label]
        + [means[run.run_id].get(metric) for metric in shown]
        for run in found
    ]
    columns = ["run", "status", "#samples", "judge", "dataset", "label", *(f"#{metric}" for metric in shown)]
    make_console().print(make_table(columns, rows))


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--worst", type=click.IntRange(min=0), default=5, show_default=True, metavar="N", help="Worst samples to show.")
@click.option("--by", metavar="METRIC", help="The metric that says which samples are worst.")
@WAREHOUSE_OPTION
@JSON_OPTION
def show(run: str, worst: int, by: str | None, warehouse: str | None, as_json: bool) -> None:
    """Show RUN: its scores with the change since the run before, worst samples, costs, and what is unscored and why.

    RUN is a run id, a unique start of one, a label, `latest` or `previous`.
    """
    store = Warehouse(warehouse or DEFAULT_URL)
    found = find_run(store, run)
    document = _read_run(store, found, worst=worst, by=by)
    if as_json:
        print_json(document)
    else:
        _print_run(found, document)


def _read_run(store: Warehouse, run: RunRow, *, worst: int, by: str | None) -> dict[str, Any]:
    of_run = {"run_id": run.run_id}
    scores = store.read_rows(_SCORES, of_run)
    scored = {row["metric"] for row in scores if row["n_scored"]}
    if by is not None and by not in {row["metric"] for row in scores}:
        raise WarehouseError(f"run {run.run_id} has no metric {by!r}; it has: {', '.join(sorted(map(str, scored)))}")
    metric = by or next((name for name in (*_HEADLINE, *run.metrics) if name in scored), None)
    return {
        "run": _describe_run(run),
        "metrics": scores,
        "worst_by": metric,
        "worst": store.read_rows(_WORST, {**of_run, "metric": metric, "worst": worst}) if metric else [],
        "costs": store.read_rows(_COSTS, of_run),
        "unscored": store.read_rows(_UNSCORED, of_run),
    }


def _describe_run(run: RunRow) -> dict[str, object]:
    names = (
        "run_id", "status", "label", "href", "tags", "dataset", "dataset_hash", "judge", "embeddings", "language",
        "trigger", "n_samples", "started_at", "finished_at", "flow_run_id",
    )  # fmt: skip
    return {name: getattr(run, name) for name in names}


def _print_run(run: RunRow, document: dict[str, Any]) -> None:
    console = make_console()
    tools = f"judge {run.judge}, embeddings {run.embeddings or '–'}, prompts in {run.language}"
    console.print(f"run [bold]{run.run_id}[/bold] {run.status}: {run.n_samples} samples of {run.dataset}; {tools}")
    taken = f", took {(run.finished_at - run.started_at).total_seconds():.1f} s" if run.finished_at else ""
    console.print(f"started {run.started_at:%Y-%m-%d %H:%M:%S} UTC{taken}")
    for name, value in (("label", run.label), ("link", run.href), ("tags", ", ".join(run.tags))):
        if value:
            console.print(f"{name}: {value}", markup=False)
    console.print()
    console.print(metrics_table(document["metrics"], run.metrics))
    changes = [
        [row["metric"], f"{row['change']:+.3f}"] for row in document["metrics"] if row["change"] not in (None, 0)
    ]
    if changes:
        console.print()
        console.print(make_table(["metric", "#change"], changes, title="Since the run before"))
    if document["worst"]:
        rows = [[row["sample_id"], row["value"], shorten(row["question"], 50), shorten(row["answer"], 60)] for row in document["worst"]]
        console.print()
        console.print(
            make_table(["sample", "#value", "question", "answer"], rows, title=f"Worst by {document['worst_by']}")
        )
    _print_costs(console, document)
    _print_unscored(console, document)
    if document["worst"]:
        first = document["worst"][0]["sample_id"]
        console.print(f"\nnext: evalhouse lineage {run.run_id} {first} {document['worst_by']}", markup=False)


def _print_costs(console: Any, document: dict[str, Any]) -> None:
    rows = [
        [
            row["step"], row["n_requests"], row["n_reused"], row["n_failed"], row["prompt_tokens"],
            row["completion_tokens"], write_dollars(row["cost_usd"]),
        ]
        for row in document["costs"]
    ]  # fmt: skip
    columns = ["step", "#requests", "#reused", "#failed", "#prompt tokens", "#completion tokens", "#cost"]
    console.print()
    console.print(make_table(columns, rows, title="Calls"))


def _print_unscored(console: Any, document: dict[str, Any]) -> None:
    if not document["unscored"]:
        return
    rows = [
        [row["reason"], row["n_samples"], shorten(", ".join(row["metrics"]), 70), shorten(row["example"], 60)]
        for row in document["unscored"]
    ]
    console.print()
    console.print(make_table(["reason", "#samples", "metrics", "example"], rows, title="Unscored"))
