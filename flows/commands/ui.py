"""`evalhouse ui`: the whole history in a browser."""

import click

from evalhouse.flows.commands.options import WAREHOUSE_OPTION
from evalhouse.flows.display.output import print_line
from evalhouse.warehouse.store import Warehouse


@click.command()
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Address to serve. Default: this machine alone.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Default: 4210, or a free one.")
@click.option("--browser/--no-browser", default=None, help="Open a browser. Default: from a terminal, without --host.")
@WAREHOUSE_OPTION
def ui(*, host: str, port: int | None, browser: bool | None, warehouse: Warehouse) -> None:
    """Show all runs in a browser, live, until Ctrl-C: series, samples with their verdicts, comparisons, costs, SQL.

    It reads the warehouse and writes nothing but a person's labels. Only this machine is answered; with another --host
    whoever comes needs the token that is printed, or that EVALHOUSE_UI_TOKEN sets.
    """
    from evalhouse.flows.ui.app import serve_pages  # noqa: PLC0415  # FastAPI, which no other command needs

    serve_pages(warehouse, host=host, port=port, opens_browser=browser, report=print_line)
