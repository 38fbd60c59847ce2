"""Signals before a run is stored, in commands without a run, and while a command ends."""

import contextlib
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from prefect.exceptions import TerminationSignal
from prefect.utilities.engine import capture_sigterm

from evalhouse.flows.run.outcome import show_run
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


def test_an_interruption_after_the_end_of_a_run_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    """While a webhook was waited for, a finished run was reported as not stored."""

    def run() -> None:
        with show_run() as watch:
            with watch(SimpleNamespace(run_id="r1", notices=[])):  # type: ignore[arg-type]
                pass
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert capsys.readouterr().err.strip() == "Run r1 had ended and is stored (`evalhouse show r1`)."


_AT_THE_END = """
import asyncio, os, signal, sys
from evalhouse.flows import cli

def strike(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)

class Late:
    def __del__(self, strike=strike, number=signal.{name}):
        strike(number)

async def wait():
    asyncio.get_running_loop().call_later(0.05, strike, signal.{name})
    try:
        await asyncio.sleep(30)
    finally:
        print("closed in order", flush=True)

cases = {{
    "the interpreter ends": lambda: setattr(sys, "late", Late()),
    "asyncio waits": lambda: asyncio.run(wait()),
    "the first is answered": lambda: strike(signal.{name}),
}}
if {case!r} == "the first is answered":
    cli.click.echo = lambda *_, **__: strike(signal.{name})
cli.evalhouse.main = lambda **_: cases[{case!r}]()
cli.main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize(
    ("case", "status", "printed"),
    [
        ("the interpreter ends", 0, ""),
        ("asyncio waits", 130, "closed in order\ninterrupted\n"),
        ("the first is answered", 130, ""),
    ],
)
def test_signal_does_not_change_the_exit_status_of_an_end(case: str, status: int, printed: str, name: str) -> None:
    script = _AT_THE_END.format(case=case, name=name)
    ended = subprocess.run(
        [sys.executable, "-c", script],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # `nohup` ignores it
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (status, printed)
