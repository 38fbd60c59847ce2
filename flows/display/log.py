"""Warnings that the code below gives while it works, by Python's logging, in front of the person who runs it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from evalhouse.flows.display.output import print_notice


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
