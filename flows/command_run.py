"""`evalhouse run` and `evalhouse resume`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.cli import INCOMPLETE, INTERRUPTED
from flows.options import JSON_OPTION, RUN_ARGUMENT, WAREHOUSE_OPTION, find_warehouse, limit_options
from flows.output import metrics_table, print_json, print_line, print_notice, print_table, write_dollars
from flows.prefect_reach import check_prefect_server
from flows.settings import (
    Resolved,
    find_unknown_variables,
    parse_metric_settings,
    parse_pairs,
    resolve_changes,
    resolve_settings,
    split_list,
)
from tasks.plan import plan_run
from tasks.run_settings import RunSettings
from warehouse.metric_files import load_metrics, resolve_parameters
from warehouse.runs import RunRow
from warehouse.store import Warehouse

if TYPE_CHECKING:
    from flows.running import RunOutcome

_MEANS = """
select metric, mean, ci_low, ci_high, n_scored, n_unscored
from run_scores where run_id = $run_id
order by list_position($metrics, metric), metric
"""


@click.command()
@click.argument("dataset")
@click.option("--judge", metavar="J", help="lexical, openai:MODEL, or module:factory of a LangChain chat model.")
@click.option("--embeddings", metavar="E", help="hashing (offline, default), openai:MODEL, or module:factory.")
@click.option("--metrics", metavar="A,B", help="Metrics to score. Default: the usual ones and what comes with them.")
@click.option("--metric-files", metavar="DIR", help="A folder with metrics of your own, one SQL file each.")
@click.option("--set", "sets", multiple=True, metavar="METRIC.PARAMETER=N", help="Set a metric's parameter.")
@click.option("--language", metavar="en|zh", help="Language of the prompts. Default: en.")
@click.option("--prompts", metavar="DIR", help="A folder whose prompt files replace ours.")
@click.option("--temperature", metavar="T", help="Sampling temperature, or `none` to send none. Default: 0.")
@click.option("--votes", type=int, metavar="N", help="Take N votes on each verdict, an odd number. Default: 1.")
@click.option("--contexts-alone", is_flag=True, default=None, help="Judge each context in a request of its own.")
@click.option("--logprobs", is_flag=True, default=None, help="Grade by token probabilities where there are any.")
@click.option("--contexts-role", metavar="ROLE", help="authoritative (default) or supplementary, for `relevance`.")
@click.option("--regenerated-questions", type=int, metavar="N", help="Questions for answer_relevancy. Default: 3.")
@click.option("--label", metavar="TEXT", help="A name for this run.")
@click.option("--href", metavar="URL", help="A link to what was evaluated: a commit, a build.")
@click.option("--tag", "tags", multiple=True, metavar="T", help="A tag; may be given several times.")
@click.option("--limit", type=int, metavar="N", help="Judge only the first N samples.")
@click.option("--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Read our column OURS from THEIRS.")
@click.option("--fresh", is_flag=True, default=None, help="Ask anew although replies are on record.")
@click.option("--dry-run", is_flag=True, help="Say what would be asked and what it would cost, and ask nothing.")
@limit_options
@WAREHOUSE_OPTION
@JSON_OPTION
def run(
    *,
    as_json: bool,
    dry_run: bool,
    maps: tuple[str, ...],
    sets: tuple[str, ...],
    metrics: str | None,
    **flags: object,
) -> int:
    """Evaluate DATASET and print its scores.

    DATASET is a file (JSON Lines, JSON, CSV, Parquet, Arrow), a table as `file.duckdb#table`, or `sample`, the
    dataset that ships with evalhouse. It holds one sample a row: question, answer, ground_truth and contexts, under
    these names or those of other evaluation tools.
    """
    resolved = resolve_settings(
        flags
        | {
            "metrics": split_list(metrics),
            "mapping": parse_pairs(maps, "--map"),
            "metric_settings": parse_metric_settings(sets),
        }
    )
    settings = resolved.settings
    _check_metric_settings(settings)
    _warn_of_variables()
    if dry_run:
        from flows.estimate import estimate_run, print_estimate  # noqa: PLC0415

        print_estimate(estimate_run(settings), as_json=as_json)
        return 0
    check_prefect_server()
    from flows.progress import show_run  # noqa: PLC0415
    from flows.running import start_run  # noqa: PLC0415

    with show_run(_introduce_judge(resolved)) as watch:
        outcome = start_run(settings, watch=watch)
    return report_outcome(outcome, settings.warehouse, as_json=as_json)


@click.command()
@RUN_ARGUMENT
@limit_options
@WAREHOUSE_OPTION
@JSON_OPTION
def resume(run: str, warehouse: str | None, as_json: bool, **flags: object) -> int:
    """Go on where RUN stopped.

    Whatever was answered is on record and is not asked again; samples that failed are tried once more. RUN is a run
    id, a unique start of one, a label, `latest` or `previous`. The run keeps its settings; the options here change
    how it is asked.
    """
    changes = resolve_changes(flags)
    check_prefect_server()
    from flows.progress import show_run  # noqa: PLC0415
    from flows.running import resume_run  # noqa: PLC0415

    url = find_warehouse(warehouse)
    with show_run() as watch:
        outcome = resume_run(run, warehouse_url=url, changes=changes, watch=watch)
    return report_outcome(outcome, url, as_json=as_json)


def report_outcome(outcome: "RunOutcome", url: str, *, as_json: bool) -> int:
    """Print how a run ended and return the exit status."""
    warehouse = Warehouse(url)
    rows = warehouse.read_rows(_MEANS, {"run_id": outcome.run.run_id, "metrics": list(outcome.run.metrics)})
    if as_json:
        print_json(_to_document(outcome, rows, warehouse))
    else:
        _print_outcome(outcome, rows)
    if outcome.status == "completed":
        return 0
    return INTERRUPTED if outcome.status == "cancelled" else INCOMPLETE


def _check_metric_settings(settings: RunSettings) -> None:
    """Refuse a parameter of a metric that is not there; one of a metric that is not asked for may stay."""
    if settings.metric_settings:
        known = load_metrics(Path(settings.metric_files) if settings.metric_files else None)
        plan_run(list(settings.metric_settings), known)
        for name, parameters in settings.metric_settings.items():
            resolve_parameters(known[name], parameters)


def _warn_of_variables() -> None:
    for name, meant in find_unknown_variables().items():
        if meant:
            print_notice(f"{name} is set, and there is no such setting; did you mean {meant}? It is left out.")


def _introduce_judge(resolved: Resolved) -> str | None:
    """Who judges, when nobody has named a judge: verdicts without a model, or calls that cost money."""
    judge = resolved.settings.judge
    if resolved.judge_was_chosen:
        return None
    if judge != "lexical":
        return f"OPENAI_API_KEY is set, so {judge} is asked; --judge names another, such as lexical."
    return (
        "No OPENAI_API_KEY is set, so the built-in lexical judge gives the verdicts: it compares words and sentences "
        "and understands none of them. Take its scores as a free baseline."
    )


def _to_document(outcome: "RunOutcome", rows: list[dict[str, Any]], warehouse: Warehouse) -> dict[str, object]:
    counts = outcome.counts
    return {
        "run_id": outcome.run.run_id,
        "status": outcome.status,
        "problem": outcome.problem,
        "n_samples": outcome.run.n_samples,
        "judge": outcome.run.judge,
        "metrics": {row["metric"]: {key: row[key] for key in row if key != "metric"} for row in rows},
        "calls": {
            "requests": counts.requests,
            "reused": counts.reused,
            "failed": counts.failed,
            "prompt_tokens": counts.prompt_tokens,
            "cached_tokens": counts.cached_tokens,
            "completion_tokens": counts.completion_tokens,
            "cost_usd": counts.cost_usd if counts.priced else None,
        },
        "warehouse": warehouse.location.url,
    }


def _print_outcome(outcome: "RunOutcome", rows: Sequence[Mapping[str, Any]]) -> None:
    run = outcome.run
    print_line(f"run {run.run_id} {outcome.status}: {run.n_samples} samples, {_describe_tools(run)}", bold=True)
    # A run that was stopped has scores of some samples only; `show` has them for whoever wants to look.
    if outcome.status in ("completed", "incomplete"):
        print_line()
        print_table(metrics_table(rows, run.metrics))
        print_line()
    print_line(_describe_calls(outcome))
    if outcome.status == "cancelled":
        print_notice("The run was interrupted.")
    elif outcome.problem:
        print_notice(f"The run stopped: {outcome.problem}")
    _print_next(outcome, rows)


def _describe_tools(run: RunRow) -> str:
    tools = f"judged by {run.judge}"
    return f"{tools}, embeddings {run.embeddings}" if run.embeddings else tools


def _describe_calls(outcome: "RunOutcome") -> str:
    counts = outcome.counts
    cost = write_dollars(counts.cost_usd) if counts.priced else "unknown: no price is on the list (--prices FILE)"
    cached = f" ({counts.cached_tokens:,} cached)" if counts.cached_tokens else ""
    return (
        f"{counts.requests:,} requests, {counts.reused:,} reused from the record, {counts.failed:,} failed; "
        f"{counts.prompt_tokens:,}{cached} + {counts.completion_tokens:,} tokens, cost {cost}"
    )


def _print_next(outcome: "RunOutcome", rows: Sequence[Mapping[str, Any]]) -> None:
    run_id = outcome.run.run_id
    unscored = " and what is unscored and why" if any(row["n_unscored"] for row in rows) else ""
    show = f"evalhouse show {run_id}   (worst samples, costs{unscored})"
    if outcome.status == "completed":
        print_line(f"next: {show}")
        return
    print_line(f"next: evalhouse resume {run_id}   (what was answered is on record and is not asked again)")
    if outcome.status == "incomplete":
        print_line(f"or:   {show}")
