"""`evalhouse receive`: take in the traces of applications in use."""

from pathlib import Path

import click

from evalhouse.flows.commands.options import WAREHOUSE_OPTION
from evalhouse.flows.results.output import print_line
from evalhouse.flows.server.interrupts import wait_for_warehouse
from evalhouse.warehouse.store import Warehouse


@click.command()
@click.argument("settings", metavar="[RECEIVER.toml]", required=False)
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Address to listen at. Default: this machine alone.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Default: 4318, or a free one.")
@WAREHOUSE_OPTION
@wait_for_warehouse()
def receive(*, settings: str | None, host: str, port: int | None, warehouse: Warehouse) -> None:
    """Receive traces by OTLP over HTTP (POST /v1/traces, protobuf or JSON) until Ctrl-C, and keep them.

    Events that hold what was said in their place are taken as well (POST /v1/logs), and joined to them.

    A suite with `dataset = "traces"` judges them. RECEIVER.toml says which are kept ([sampling]), what is taken out of
    their texts before anything is stored ([redaction]), and for how long ([retention]). Every application that sends
    needs the token that is printed, or that EVALHOUSE_RECEIVE_TOKEN sets.
    """
    from evalhouse.flows.preparing.suites import load_receiver  # noqa: PLC0415  # brings pydantic
    from evalhouse.flows.receiver import serve_receiver  # noqa: PLC0415  # uvicorn, which few commands need

    read = load_receiver(Path(settings) if settings else None)
    serve_receiver(warehouse, read, host=host, port=port, report=print_line)
