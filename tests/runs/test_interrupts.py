"""Signals before a run is stored."""

import contextlib
import signal

import pytest

from evalhouse.flows.server.interrupts import Interrupts


def work(*, interrupted: bool) -> None:
    """Imitate DuckDB, which loses the exception of the signal's handler, and raises an error in its place."""
    with Interrupts():
        if interrupted:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        raise RuntimeError("Query interrupted")


def test_a_signal_that_came_while_duckdb_worked_is_an_interruption() -> None:
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        work(interrupted=True)


def test_an_error_without_a_signal_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="Query interrupted"):
        work(interrupted=False)
