"""The commands that serve until Ctrl-C (`serve`, `receive`, `ui`), and `kb-updated`, which announces an update."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalhouse.flows.commands.options import JSON_OPTION, WAREHOUSE_OPTION
from evalhouse.flows.results.output import print_json, print_line, print_notice
from evalhouse.flows.server.api import PrefectApiError, find_api
from evalhouse.flows.server.environment import configure_prefect_environment, prepare_environment
from evalhouse.flows.server.interrupts import wait_for_warehouse
from evalhouse.warehouse.messages import suggest

if TYPE_CHECKING:
    from prefect import Flow

    from evalhouse.warehouse.store import Warehouse


@click.command()
@click.argument("suites", nargs=-1, required=True, metavar="SUITE.toml…")
@click.option("--with-server", is_flag=True, help="Start a Prefect server on this machine as well.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Its port. Default: 4200, or a free one.")
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Runs of different suites at a time. Default: 1.",
)
def serve(suites: tuple[str, ...], with_server: bool, port: int | None, parallel: int) -> int:
    """Run suites on their schedules and after updates of their knowledge bases, until Ctrl-C.

    The Prefect server is the one that PREFECT_API_URL or Prefect's own profile names; with --with-server one is started
    here and ends with this process. Two runs of one suite never overlap.
    """
    if port is not None and not with_server:
        raise click.UsageError("--port is the port of the server that --with-server starts")
    from evalhouse.flows.server.interrupts import StopOrders  # noqa: PLC0415

    orders = StopOrders()
    from evalhouse.flows.serving.serve import load_suites, serve_suites, use_server  # noqa: PLC0415  # may start threads, which block SIGINT too

    loaded = load_suites(suites)
    with use_server(with_server=with_server, port=port) as server:
        serve_suites(loaded, server, orders, _load_flow, parallel=parallel, report=print_line)
    return 0


def _load_flow() -> "Flow[..., Any]":
    from evalhouse.flows.suite import evaluate_suite  # noqa: PLC0415  # Prefect

    return evaluate_suite


@click.command("kb-updated")
@click.argument("name")
@click.option("--version", metavar="V", help="The knowledge base's new version, such as a date or a commit.")
@click.option("--changed", multiple=True, metavar="ID", help="A changed document. Repeatable.")
@JSON_OPTION
def kb_updated(name: str, version: str | None, changed: tuple[str, ...], as_json: bool) -> int:
    """Announce that knowledge base NAME was updated.

    Every served suite with a trigger on NAME runs when no further update has come for a while, its `debounce_s`. The
    Prefect server is the one that PREFECT_API_URL or Prefect's own profile names, else that of the last
    `evalhouse serve --with-server`.
    """
    prepare_environment()
    configure_prefect_environment(None)
    api = find_api("the update cannot be announced", finds_served=True)
    from evalhouse.flows.serving.flow_runs import announce_update, list_awaited  # noqa: PLC0415  # serve blocks signals first

    event_id = announce_update(api, name, version=version, changed=changed)
    known = {name}
    with contextlib.suppress(PrefectApiError):  # the update is announced; another server may have no automations
        known = list_awaited(api)
    if name not in known:
        advice = suggest(name, sorted(known)) if known else "none of them has a [trigger]"
        print_notice(f"note: no suite that is served waits for updates of {name!r}; {advice}")
    if as_json:
        print_json({"event_id": event_id, "knowledge_base": name, "version": version, "changed": list(changed)})
        return 0
    change = f" to version {version}" if version is not None else ""
    documents = f", {len(changed)} changed document{'s' if len(changed) != 1 else ''}" if changed else ""
    print_line(f"announced: {name} was updated{change}{documents}; event {event_id}")
    return 0


@click.command()
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Address to serve. Default: this machine alone.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Default: 4210, or a free one.")
@click.option("--browser/--no-browser", default=None, help="Open a browser. Default: from a terminal, without --host.")
@WAREHOUSE_OPTION
def ui(*, host: str, port: int | None, browser: bool | None, warehouse: "Warehouse") -> None:
    """Show all runs in a browser, live, until Ctrl-C: series, samples with their verdicts, comparisons, costs, SQL.

    It reads the warehouse and writes only a person's labels. Only this machine is answered; with another --host every
    visitor needs the token that is printed, or that EVALHOUSE_UI_TOKEN sets.
    """
    from evalhouse.flows.ui.app import serve_pages  # noqa: PLC0415  # FastAPI, which no other command needs

    serve_pages(warehouse, host=host, port=port, opens_browser=browser, report=print_line)


@click.command()
@click.argument("settings", metavar="[RECEIVER.toml]", required=False)
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Address to listen at. Default: this machine alone.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Default: 4318, or a free one.")
@WAREHOUSE_OPTION
@wait_for_warehouse()
def receive(*, settings: str | None, host: str, port: int | None, warehouse: "Warehouse") -> None:
    """Receive traces by OTLP over HTTP (POST /v1/traces, protobuf or JSON) until Ctrl-C, and keep them.

    Events with the content of spans are received as well (POST /v1/logs), and joined to the traces.

    A suite with `dataset = "traces"` judges them. RECEIVER.toml sets which traces are kept ([sampling]), what is
    removed from their texts before anything is stored ([redaction]), and for how long ([retention]). Every application
    that sends needs the token that is printed, or that EVALHOUSE_RECEIVE_TOKEN sets.
    """
    from evalhouse.flows.receiver import load_receiver, serve_receiver  # noqa: PLC0415  # uvicorn, which few commands need

    read = load_receiver(Path(settings) if settings else None)
    serve_receiver(warehouse, read, host=host, port=port, report=print_line)
