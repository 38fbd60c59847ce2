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


def test_error_of_duckdb_after_a_signal_is_an_interruption() -> None:
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        work(interrupted=True)
    with pytest.raises(RuntimeError, match="Query interrupted"):
        work(interrupted=False)
