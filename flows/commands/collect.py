"""`evalhouse collect`: ask the application under test, and leave the judging to a later run."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from evalhouse.flows.commands.options import JSON_OPTION, WAREHOUSE_OPTION
from evalhouse.flows.display.output import print_json, print_line, print_notice
from evalhouse.flows.documents.run_origin import describe_responses, print_response_errors
from evalhouse.flows.errors import INCOMPLETE, INTERRUPTED, SettingsError
from evalhouse.flows.preparing.suites import Suite, load_suite
from evalhouse.flows.preparing.triggers import BY_HAND, Trigger, Update
from evalhouse.flows.server.api import check_prefect_server
from evalhouse.warehouse.rows.responses import count_responses, list_response_errors
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.flows.run.outcome import RunOutcome


@click.command()
@click.argument("suite", metavar="SUITE.toml")
@click.option("--label", metavar="TEXT", help="A name for this run.")
@click.option("--limit", type=int, metavar="N", help="Ask only about the first N samples.")
@click.option("--only-affected", is_flag=True, default=None, help="Ask only where a --changed document was cited.")
@click.option("--changed", multiple=True, metavar="ID", help="A document that changed; may be given several times.")
@WAREHOUSE_OPTION
@JSON_OPTION
def collect(*, suite: str, as_json: bool, changed: tuple[str, ...], **flags: object) -> int:
    """Ask the application of SUITE.toml about every sample, and judge nothing.

    The responses are a run of their own, which `evalhouse run SUITE.toml --responses RUN` judges, as often as you like,
    without asking again. What was answered is on record at once: a run that was stopped or in which questions failed
    is gone on with by `evalhouse resume`.
    """
    read = load_suite(suite)
    from evalhouse.flows.serving.suite_runs import resolve_suite  # noqa: PLC0415  # imports what runs

    trigger = _make_trigger(read, changed)
    settings = resolve_suite(read, flags=flags, trigger=trigger).settings
    if settings.target is None:
        raise SettingsError(f"{suite} has no [target], so there is nothing to ask; `evalhouse run` judges its dataset")
    check_prefect_server()
    from evalhouse.flows.display.progress import show_run  # noqa: PLC0415
    from evalhouse.flows.run.start_to_end import start_collection  # noqa: PLC0415

    with show_run() as watch:
        outcome = start_collection(settings, trigger=trigger, watch=watch)
    return report_collection(outcome, settings.warehouse, as_json=as_json, suite_path=suite)


def report_collection(outcome: "RunOutcome", url: str, *, as_json: bool, suite_path: str | None = None) -> int:
    """Print how a run that only asked has ended, and return the exit status."""
    warehouse = Warehouse(url)
    run = outcome.run
    counts, errors = count_responses(warehouse, run.run_id), list_response_errors(warehouse, run.run_id)
    if as_json:
        print_json(
            {
                "run_id": run.run_id,
                "kind": run.kind,
                "status": outcome.status,
                "problem": outcome.problem,
                "suite": run.suite,
                "n_samples": run.n_samples,
                "responses": {**counts, "errors": errors},
                "warehouse": warehouse.location.url,
            }
        )
    else:
        _print_collection(outcome, counts, errors)
        _print_next(outcome, suite_path)
    if outcome.status == "completed":
        return 0
    return INTERRUPTED if outcome.status == "cancelled" else INCOMPLETE


def _make_trigger(suite: Suite, changed: tuple[str, ...]) -> Trigger:
    if not changed:
        return BY_HAND
    now = datetime.now(UTC).replace(tzinfo=None)
    told = Update(event_id="by hand", version=None, changed=changed, occurred_at=now)
    return Trigger(kb_name=suite.trigger.knowledge_base if suite.trigger else None, updates=(told,))


def _print_collection(outcome: "RunOutcome", counts: Mapping[str, Any], errors: list[dict[str, Any]]) -> None:
    run = outcome.run
    print_line(f"run {run.run_id} {outcome.status}: {run.n_samples} samples, nothing judged", bold=True)
    print_line(describe_responses(counts))
    if outcome.status == "cancelled":
        print_notice("The run was interrupted.")
    elif outcome.problem:
        print_notice(f"The run stopped: {outcome.problem}")
    if errors:
        print_response_errors(errors)
        print_line()


def _print_next(outcome: "RunOutcome", suite_path: str | None) -> None:
    run_id = outcome.run.run_id
    judge = f"evalhouse run {suite_path or 'SUITE.toml'} --responses {run_id}   (judges these responses)"
    if outcome.status == "completed":
        print_line(f"next: {judge}")
        return
    print_line(f"next: evalhouse resume {run_id}   (asks where no answer has come yet)")
    if outcome.status == "incomplete":
        print_line(f"or:   {judge}")
