"""`evalhouse lineage`: a score down to the raw replies, as a tree a person can read."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import click
from rich.markup import escape
from rich.tree import Tree

from flows.command_run import JSON_OPTION, WAREHOUSE_OPTION
from flows.output import make_console, print_json, shorten, write_value
from warehouse.errors import WarehouseError
from warehouse.location import DEFAULT_URL
from warehouse.runs import RunRow, find_run
from warehouse.store import Warehouse

_LINEAGE = """
select * from score_lineage
where run_id = $run_id and sample_id = $sample_id and ($metric is null or metric = $metric)
order by metric, step, source, ordinal, context_rank
"""
_KNOWN = "select sample_id from run_samples where run_id = $run_id order by ordinal limit 5"
_METRICS = "select distinct metric from scores where run_id = $run_id order by metric"

Row = Mapping[str, Any]


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("sample", metavar="SAMPLE")
@click.argument("metric", metavar="[METRIC]", required=False)
@click.option("--full", is_flag=True, help="Show requests and replies whole.")
@WAREHOUSE_OPTION
@JSON_OPTION
def lineage(run: str, sample: str, metric: str | None, full: bool, warehouse: str | None, as_json: bool) -> None:
    """Walk from a score of SAMPLE in RUN to its verdicts, the calls they stand in, the prompts and the sample."""
    store = Warehouse(warehouse or DEFAULT_URL)
    found = find_run(store, run)
    rows = store.read_rows(_LINEAGE, {"run_id": found.run_id, "sample_id": sample, "metric": metric})
    if not rows:
        raise WarehouseError(_explain_nothing(store, found, sample, metric))
    if as_json:
        print_json(rows)
        return
    make_console().print(_draw(found, rows, full=full))


def _explain_nothing(store: Warehouse, run: RunRow, sample: str, metric: str | None) -> str:
    of_run = {"run_id": run.run_id}
    here = store.read_rows(
        "select 1 from run_samples where run_id = $run_id and sample_id = $sample_id", {**of_run, "sample_id": sample}
    )
    if not here:
        known = ", ".join(str(row["sample_id"]) for row in store.read_rows(_KNOWN, of_run))
        return f"run {run.run_id} has no sample {sample!r}; its first are: {known}"
    known = ", ".join(str(row["metric"]) for row in store.read_rows(_METRICS, of_run))
    return f"run {run.run_id} has no score of metric {metric!r} for {sample!r}; its metrics: {known or 'none yet'}"


def _draw(run: RunRow, rows: list[dict[str, Any]], *, full: bool) -> Tree:
    first = rows[0]
    tree = Tree(f"[bold]{escape(first['sample_id'])}[/bold] in run {run.run_id} ({escape(run.dataset or '')})")
    sample = tree.add("sample")
    for name in ("question", "answer", "ground_truth"):
        sample.add(f"{name}: {escape(_cut(first[name], full))}")
    for rank, text in enumerate(first["contexts"] or [], start=1):
        sample.add(f"C{rank}: {escape(_cut(text, full))}")
    for metric, of_metric in groupby(rows, key=lambda row: row["metric"]):
        _draw_metric(tree, metric, list(of_metric), full=full)
    return tree


def _draw_metric(tree: Tree, metric: str, rows: list[dict[str, Any]], *, full: bool) -> None:
    first = rows[0]
    value = write_value(first["value"]) if first["value"] is not None else f"unscored: {first['unscored_reason']}"
    branch = tree.add(f"[bold]{metric}[/bold] = {value}  (formula version {first['metric_version']})")
    for step, of_step in groupby(rows, key=lambda row: row["step"]):
        verdicts = list(of_step)
        ended = verdicts[0]["step_reason"]
        title = step if ended is None else f"{step}: {ended} {verdicts[0]['step_detail'] or ''}"
        step_branch = branch.add(escape(title.rstrip()))
        for verdict in verdicts:
            line = _describe_verdict(verdict)
            if line:
                step_branch.add(line)
        _draw_calls(step_branch, verdicts, full=full)


def _describe_verdict(row: Row) -> str | None:
    if row["similarity"] is not None:
        return f"cosine {write_value(row['similarity'])}"
    if row["statement_id"] is not None:
        said = row["label"] if row["label"] is not None else _describe_support(row)
        label = f" [bold]{said}[/bold]" if said else ""
        reason = f"  — {escape(row['reason'])}" if row["reason"] else ""
        return f"{escape('[' + row['statement_id'] + ']')}{label} {escape(row['statement'] or '')}{reason}"
    if row["context_rank"] is not None and row["useful"] is not None:
        word = "useful" if row["useful"] else "not useful"
        return f"C{row['context_rank']} [bold]{word}[/bold]  — {escape(row['reason'] or '')}"
    return None


def _describe_support(row: Row) -> str | None:
    if row["supported"] is None:
        return None
    if not row["supported"]:
        return "unsupported"
    return "supported by " + ", ".join(f"C{rank}" for rank in row["context_ranks"])


def _draw_calls(branch: Tree, rows: Iterable[Row], *, full: bool) -> None:
    seen: set[str] = set()
    for row in rows:
        call_id = row["call_id"]
        if call_id is None or call_id in seen:
            continue
        seen.add(call_id)
        reused = "" if row["original_call_id"] == call_id else f", reused from run {row['original_run_id']}"
        call = branch.add(f"call {call_id[:8]}: {row['model']} {row['call_status']}{reused}")
        if row["prompt"]:
            call.add(
                f"prompt {row['prompt']} version {row['prompt_version']} {row['prompt_language'] or ''} "
                f"({row['prompt_hash'][:8]})"
            )
        if full:
            call.add(f"request: {escape(row['request'] or '')}")
        call.add(f"reply: {escape(_cut(row['reply'], full))}")


def _cut(text: str | None, full: bool) -> str:
    return (text or "–") if full else shorten(text or "–", 300)
