"""Options that several commands share, and the one error for a value given wrongly.

Kept apart from `settings` because reading commands (`query`, `runs`, `show`, `lineage`) need these and nothing of the
settings of a run, whose import alone takes longer than most of their answers.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from evalhouse.warehouse.location import DEFAULT_URL

if TYPE_CHECKING:
    from evalhouse.warehouse.store import Warehouse

_Command = TypeVar("_Command", bound=Callable[..., Any])

WAREHOUSE_VARIABLE = "EVALHOUSE_WAREHOUSE"
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
RUN_ARGUMENT = click.argument("run", metavar="RUN")


def count_option(*names: str, default: int, text: str, least: int = 0) -> Callable[[_Command], _Command]:
    """An option for a whole number of at least `least`."""
    kind = click.IntRange(min=least)
    return click.option(*names, type=kind, default=default, show_default=True, metavar="N", help=text)


SEED_OPTION = count_option("--seed", default=0, text="Of what is drawn at random.")


def find_warehouse(flag: str | None) -> str:
    """The warehouse's URL: the flag, else the environment's, else the default one in the working directory."""
    return flag or os.environ.get(WAREHOUSE_VARIABLE) or DEFAULT_URL


def _open_warehouse(_: click.Context, __: click.Parameter, flag: str | None) -> "Warehouse":
    from evalhouse.warehouse.store import Warehouse  # noqa: PLC0415  # imports Polars, which --help does without

    return Warehouse(find_warehouse(flag))


_describe_warehouse = partial(
    click.option,
    "--warehouse",
    metavar="URL",
    help="Where everything is kept: a path, duckdb:///path, or ducklake:CATALOGUE?data=FOLDER. "
    f"Default: ${WAREHOUSE_VARIABLE}, or {DEFAULT_URL}.",
)
WAREHOUSE_URL_OPTION = _describe_warehouse()
WAREHOUSE_OPTION = _describe_warehouse(callback=_open_warehouse)
"""The warehouse itself, not its URL."""


def _join_options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        # A decorator puts its option before those already there.
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


limit_options = _join_options(
    click.option("--concurrency", type=int, metavar="N", help="Requests in flight at once. Default: 16."),
    click.option("--rpm", type=int, metavar="N", help="Requests per minute. Default: no limit."),
    click.option("--tpm", type=int, metavar="N", help="Tokens per minute. Default: no limit."),
    click.option("--budget", "budget_usd", type=float, metavar="USD", help="Stop asking when this much is spent."),
    click.option("--timeout", "timeout_s", type=float, metavar="S", help="Seconds a request may take. Default: 60."),
    click.option("--attempts", type=int, metavar="N", help="Times a question is asked at most. Default: 5."),
    click.option(
        "--prices", metavar="FILE", help="Your own prices: `model: [input, output, cached input]`, $ per million."
    ),
)
"""The options that `run` and `resume` share: how hard to ask."""
pool_options = _join_options(
    click.option("--pool", metavar="NAME", help="Have the workers of this Prefect work pool judge the samples."),
    click.option("--task-runner", metavar="MODULE:FACTORY", help="Have a task runner's workers judge them."),
    click.option("--part-size", type=int, metavar="N", help="Samples a worker is given at once. Default: 500."),
)
"""The options that `run` and `resume` share: who judges besides this process."""
