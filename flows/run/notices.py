"""What a run says while it works: the warnings of the code below, and what it waits for."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from evalhouse.flows.display.output import print_notice
from evalhouse.warehouse.engine.waiting import waiting_for_others


class _Notices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_notice(f"warning: {record.getMessage()}")


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Print our own warnings as notices within this block: Prefect, once imported, has muted the terminal for all."""
    logger, notices = logging.getLogger("evalhouse"), _Notices(logging.WARNING)
    logger.addHandler(notices)
    try:
        yield
    finally:
        logger.removeHandler(notices)


@contextmanager
def wait_for_warehouse() -> Iterator[None]:
    """Wait within this block, or a function that this decorates, until a warehouse that another program keeps can be
    had, for as long as it takes, or a signal comes."""
    from evalhouse.flows.server.interrupts import is_stopping  # noqa: PLC0415  # a command's help can do without

    with waiting_for_others(print_notice, is_stopped=is_stopping):
        yield
