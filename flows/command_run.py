"""`evalhouse run` and `evalhouse resume`."""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flows.cli import INCOMPLETE, INTERRUPTED
from flows.output import make_console, metrics_table, print_json, write_dollars
from flows.settings import parse_metric_settings, parse_pairs, resolve_settings, split_list
from warehouse.location import DEFAULT_URL
from warehouse.runs import RunRow
from warehouse.store import Warehouse

if TYPE_CHECKING:
    from flows.running import RunOutcome

_Command = TypeVar("_Command", bound=Callable[..., Any])

WAREHOUSE_OPTION = click.option(
    "--warehouse",
    metavar="URL",
    envvar="EVALHOUSE_WAREHOUSE",
    help=f"Where everything is kept: a path or duckdb:///path. Default: {DEFAULT_URL}.",
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")


def limit_options(command: _Command) -> _Command:
    """The options that `run` and `resume` share: how hard to ask."""
    for option in (
        click.option("--concurrency", type=int, metavar="N", help="Requests in flight at once. Default: 16."),
        click.option("--rpm", type=int, metavar="N", help="Requests per minute. Default: no limit."),
        click.option("--budget", "budget_usd", type=float, metavar="USD", help="Stop asking when this much is spent."),
        click.option("--timeout", "timeout_s", type=float, metavar="S", help="Seconds a request may take. Default: 60."),
        click.option("--attempts", type=int, metavar="N", help="Times a question is asked at most. Default: 5."),
        click.option("--prices", metavar="FILE", help="Prices of your own: `model: [input, output]` in $ per million."),
    ):
        command = option(command)
    return command


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
def run(as_json: bool, dry_run: bool, maps: tuple[str, ...], sets: tuple[str, ...], **flags: Any) -> int:
    """Evaluate DATASET and print its scores.

    DATASET is a file (JSON Lines, JSON, CSV, Parquet, Arrow), a table as `file.duckdb#table`, or `sample`, the
    dataset that ships with evalhouse. It holds one sample a row: question, answer, ground_truth and contexts, under
    these names or those of other evaluation tools.
    """
    resolved = resolve_settings(
        flags
        | {
            "metrics": split_list(flags["metrics"]),
            "mapping": parse_pairs(maps, "--map"),
            "metric_settings": parse_metric_settings(sets),
        }
    )
    settings = resolved.settings
    if dry_run:
        from flows.estimate import estimate_run, print_estimate  # noqa: PLC0415

        print_estimate(estimate_run(settings), as_json=as_json)
        return 0
    if settings.judge == "lexical" and resolved.origins["judge"].startswith("default"):
        click.echo(
            "No OPENAI_API_KEY is set, so the built-in lexical judge gives the verdicts: it compares words and sentences "
            "and understands none of them. Take its scores as a free baseline.",
            err=True,
        )
    from flows.progress import show_progress  # noqa: PLC0415
    from flows.running import start_run  # noqa: PLC0415

    return report_outcome(start_run(settings, watch=show_progress), settings.warehouse, as_json=as_json)


@click.command()
@click.argument("run", metavar="RUN")
@limit_options
@WAREHOUSE_OPTION
@JSON_OPTION
def resume(run: str, warehouse: str | None, as_json: bool, **flags: Any) -> int:
    """Go on where RUN stopped.

    Whatever was answered is on record and is not asked again; samples that failed are tried once more. RUN is a run
    id, a unique start of one, a label, `latest` or `previous`. The run keeps its settings; the options here change
    how it is asked.
    """
    from flows.progress import show_progress  # noqa: PLC0415
    from flows.running import resume_run  # noqa: PLC0415

    changes = {name: value for name, value in flags.items() if value is not None}
    url = warehouse or DEFAULT_URL
    outcome = resume_run(run, warehouse_url=url, changes=changes, watch=show_progress)
    return report_outcome(outcome, url, as_json=as_json)


def report_outcome(outcome: "RunOutcome", url: str, *, as_json: bool) -> int:
    """Print how a run ended and return the exit status."""
    warehouse = Warehouse(url)
    rows = warehouse.read_rows(
        "select metric, mean, ci_low, ci_high, n_scored, n_unscored from run_scores where run_id = $run_id",
        {"run_id": outcome.run.run_id},
    )
    if as_json:
        print_json(_to_document(outcome, rows, warehouse))
    else:
        _print_outcome(outcome, rows)
    if outcome.status == "completed":
        return 0
    return INTERRUPTED if outcome.status == "cancelled" else INCOMPLETE


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
            "completion_tokens": counts.completion_tokens,
            "cost_usd": counts.cost_usd if counts.priced else None,
        },
        "warehouse": warehouse.location.url,
    }


def _print_outcome(outcome: "RunOutcome", rows: list[dict[str, Any]]) -> None:
    console = make_console()
    run = outcome.run
    console.print(f"run [bold]{run.run_id}[/bold] {outcome.status}: {run.n_samples} samples, {_describe_tools(run)}")
    console.print()
    console.print(metrics_table(rows, run.metrics))
    console.print()
    counts = outcome.counts
    cost = write_dollars(counts.cost_usd if counts.priced else None)
    console.print(
        f"{counts.requests} requests, {counts.reused} reused from the record, {counts.failed} failed; "
        f"{counts.prompt_tokens:,} + {counts.completion_tokens:,} tokens, cost {cost}"
    )
    if outcome.problem:
        sys.stdout.flush()
        click.echo(f"The run stopped: {outcome.problem}", err=True)
    _print_next(console.print, outcome, rows)


def _describe_tools(run: RunRow) -> str:
    tools = f"judged by {run.judge}"
    return f"{tools}, embeddings {run.embeddings}" if run.embeddings else tools


def _print_next(say: Callable[[str], None], outcome: "RunOutcome", rows: list[Mapping[str, Any]] | list[dict[str, Any]]) -> None:
    run_id = outcome.run.run_id
    if outcome.status != "completed":
        say(f"go on with: evalhouse resume {run_id}")
        return
    unscored = " and what is unscored and why" if any(row["n_unscored"] for row in rows) else ""
    say(f"next: evalhouse show {run_id}   (worst samples, costs{unscored})")
