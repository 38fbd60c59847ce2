"""Signals before a run is stored."""

import contextlib
import signal

import pytest
from prefect.exceptions import TerminationSignal
from prefect.utilities.engine import capture_sigterm

from evalhouse.flows.server.interrupts import Interrupts, answer_for_prefect


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


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_is_answered_at_every_moment_of_a_flow(name: str) -> None:
    answer_for_prefect()
    answers: list[str] = []
    # Under `nohup`, which a run survives, SIGHUP is ignored in these tests too.
    before = signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        # Prefect's flow engine sets its own handler for SIGTERM, and that of a flow within the flow does so too.
        with Interrupts() as interrupts, interrupts.answered_by(answers.append), capture_sigterm(), capture_sigterm():
            signal.raise_signal(getattr(signal, name))
    finally:
        signal.signal(getattr(signal, name), before)
    assert answers == [name]
    assert interrupts.taken == name


def test_signal_outside_of_a_run_is_prefects() -> None:
    answer_for_prefect()
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with pytest.raises(TerminationSignal), capture_sigterm():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
