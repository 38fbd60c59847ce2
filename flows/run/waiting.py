"""How a run waits for a warehouse that another program keeps: for as long as it takes, and saying so."""

from collections.abc import Iterator
from contextlib import contextmanager

from evalhouse.flows.display.output import print_notice
from evalhouse.warehouse.engine.waiting import waiting_for_others


@contextmanager
def wait_for_warehouse() -> Iterator[None]:
    """Wait within this block, or a function that this decorates, until the warehouse can be had or a signal comes."""
    from evalhouse.flows.server.interrupts import is_stopping  # noqa: PLC0415  # a command's help can do without

    with waiting_for_others(print_notice, is_stopped=is_stopping):
        yield
