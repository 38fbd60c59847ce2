"""`evalhouse publish`: send the scores of a run to the tool that has its traces."""

from collections import Counter
from typing import TYPE_CHECKING

import click

from evalhouse.flows.commands.options import JSON_OPTION, LATEST_ARGUMENT, WAREHOUSE_OPTION
from evalhouse.flows.errors import INCOMPLETE, SettingsError
from evalhouse.flows.results.output import is_watched, print_json, print_line, print_notice, write_count, write_json
from evalhouse.warehouse.messages import hide_credentials
from evalhouse.warehouse.rows.runs import find_run

if TYPE_CHECKING:
    from evalhouse.warehouse.store import Warehouse


@click.command()
@LATEST_ARGUMENT
@click.option("--to", required=True, type=click.Choice(["otlp", "langfuse", "langsmith"]), help="The tool.")
@click.option("--metrics", metavar="A,B", help="Metrics to send. Default: the ones that `show` lists first.")
@click.option("--ui-url", metavar="URL", envvar="EVALHOUSE_UI_URL", help="Address of `evalhouse ui`, for links.")
@click.option("--dry-run", is_flag=True, help="Print what would be sent, and send nothing.")
@WAREHOUSE_OPTION
@JSON_OPTION
def publish(
    *, run: str, to: str, metrics: str | None, ui_url: str | None, dry_run: bool, warehouse: "Warehouse", as_json: bool
) -> int:
    """Send the scores of RUN to the tool that has the traces which it judged.

    otlp sends an event gen_ai.evaluation.result to OTEL_EXPORTER_OTLP_ENDPOINT, langfuse a score to LANGFUSE_BASE_URL,
    langsmith a feedback to LANGSMITH_ENDPOINT: one for each sample and metric, with the reason, and with a link to its
    page in `evalhouse ui`. The keys are read from the variables of these tools. Sending a run again doubles nothing.
    Exit status 3 when some scores did not arrive.
    """
    from evalhouse.flows.preparing.request import split_list  # noqa: PLC0415  # the settings of a run
    from evalhouse.flows.publish import RECEIVERS, find_address, read_published, send_scores  # noqa: PLC0415  # httpx

    found = find_run(warehouse, run)
    names = list(split_list(metrics) or ())
    all_scores = read_published(warehouse, found, names, ui_url or found.config.get("ui_url"))
    scores = [score for score in all_scores if RECEIVERS[to].trace_ids.fullmatch(score["trace_id"])]
    if not scores:
        ids = (
            f"its ids, such as {all_scores[0]['sample_id']!r}, are not ids of {to}" if all_scores else "it has no score"
        )
        raise SettingsError(f"run {found.run_id} has nothing to send: {ids}; name the tool of its traces with --to")
    address, counts = hide_credentials(find_address(to)), Counter(score["metric"] for score in scores)
    n_left_out = len(all_scores) - len(scores)
    document = {"run_id": found.run_id, "to": to, "address": address, "scores": dict(counts), "left_out": n_left_out}
    listed = ", ".join(f"{name} {n:,}" for name, n in counts.items())
    sentence = f"{write_count(len(scores), 'score')} of run {found.run_id} to {address} ({listed})"
    if n_left_out:
        sentence += f"; left out: {write_count(n_left_out, 'score')} of samples without an id of {to}"
    if dry_run:
        first = RECEIVERS[to].write(found, scores[:1])
        if as_json:
            print_json({**document, "sent": 0, "first_request": first})
        else:
            print_line(f"would send {sentence}; the first request:")
            print_line(write_json(first))
        return 0

    def report(n_done: int) -> None:
        if is_watched() and (n_done % 100 == 0 or n_done == len(scores)):
            print_notice(f"{n_done:,} of {len(scores):,} scores")

    problems = send_scores(to, found, scores, report)
    n_sent = len(scores) - len(problems)
    if as_json:
        print_json({**document, "sent": n_sent, "failed": len(problems), "problem": next(iter(problems), None)})
    elif n_sent:
        print_line(f"sent {sentence}" if not problems else f"sent {n_sent:,} of {sentence}")
    if problems:
        n_failed = write_count(len(problems), "score")
        print_notice(f"error: {n_failed} did not arrive: {problems[0]}; send the run again, which doubles nothing")
    return INCOMPLETE if problems else 0
