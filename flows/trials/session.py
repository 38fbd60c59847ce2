"""Sessions that ask a judge outside an evaluation, for `benchmark`, `prefer`, `prompts compare` and `testset`.

The requests are sent like the requests of a run, so stored replies are reused. The calls belong to a separate run
without scores, which `latest`, `previous` and labels never select; or they are not stored. Ctrl-C and SIGTERM stop the
asking: open requests may still finish for a few seconds. A dry session counts its requests by the same code.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from evalhouse.flows.preparing.live_run import make_live_run
from evalhouse.flows.run.estimate import ask_dry
from evalhouse.flows.run.open_run import show_warnings
from evalhouse.flows.run.outcome import Watch
from evalhouse.flows.server.interrupts import Interrupts
from evalhouse.tasks.asking.limits import DRAIN_S
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.judge.protocol import FatalJudgeError, RunCancelled
from evalhouse.tasks.load import make_prompt_batch
from evalhouse.tasks.models.make import make_judges
from evalhouse.tasks.models.stand_ins import DryRecord, NoRecord
from evalhouse.tasks.pipeline.live_run import Clients, LiveRun
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.runs import RunRow, RunStatus, insert_run, now_utc, update_run
from evalhouse.warehouse.store import Warehouse

T = TypeVar("T")


@dataclass(kw_only=True)
class Session:
    """A session and its usage. `dry` is the record of a dry session, in which nothing is sent or written.

    With `has_failures` something has no verdict, and the run ends as `incomplete`.
    """

    live_run: LiveRun
    dry: DryRecord | None = None
    has_failures: bool = False

    @property
    def usage(self) -> Usage:
        """The usage so far, or the estimated usage of a dry session."""
        return self.dry.usage if self.dry else replace(self.live_run.asker.counts)

    @property
    def problem(self) -> str | None:
        """The error that ended the asking early, if any."""
        try:
            self.live_run.asker.raise_if_stopped()
        except FatalJudgeError as error:
            return str(error)
        return None

    def note_done(self) -> None:
        """Count one more thing as done, for the display of progress."""
        self.live_run.progress.n_done += 1

    def expect(self, number: int, what: str) -> None:
        """Set the number of things to ask about, for the display of progress."""
        self.live_run.progress.n_samples, self.live_run.progress.what = number, what

    async def fit(self, live_run: LiveRun, prompts: Sequence[str] = ()) -> LiveRun:
        """Return a variant of the session's live run with other prompts or steps; they are stored, with `prompts`."""
        # All variants share one asker, so their requests are counted, limited, stopped and stored together.
        clients = Clients(asker=self.live_run.asker, embedder=self.live_run.embedder)
        fitted = replace(live_run, session=secrets.token_hex(4), open_clients=lambda: clients)
        if self.dry is None and (batch := make_prompt_batch(fitted, prompts)) is not None:
            await asyncio.to_thread(fitted.warehouse.append, batch)
        return fitted

    def carry_out(self, ask: "Callable[[Session], Coroutine[Any, Any, T]]", watch: Watch | None = None) -> T:
        """Ask, once a session; `watch` is open meanwhile. Raises FatalJudgeError where `ask` does."""
        return asyncio.run(self._carry_out(ask, watch or (lambda _: nullcontext())))

    async def _carry_out(self, ask: "Callable[[Session], Coroutine[Any, Any, T]]", watch: Watch) -> T:
        live_run, loop = self.live_run, asyncio.get_running_loop()

        def stop(name: str) -> None:
            loop.call_soon_threadsafe(partial(live_run.stop, RunCancelled(f"stopped by {name}"), drain_s=DRAIN_S))

        with Interrupts() as interrupts:
            try:
                with interrupts.answered_by(stop), watch(live_run):
                    return await ask(self)
            finally:
                interrupts.note_only()
                await live_run.close()
                await asyncio.to_thread(live_run.asker.record.close)


@contextmanager
def open_session(
    settings: RunSettings, plan: Plan, *, run: RunRow | None = None, resumes: bool = False
) -> Iterator[Session]:
    """Open a session whose calls belong to `run`, and store how it ended. Without a run nothing is stored.

    The warehouse is made ready first and takes in rows that other processes left behind. With `resumes` the run is
    stored already, and was stopped.

    Raises FatalJudgeError if the judge cannot be asked; nothing is stored then.
    """
    warehouse, judges = Warehouse(settings.warehouse), make_judges(settings, plan)
    if run is None:
        with show_warnings():
            yield Session(live_run=make_live_run("trial", settings, plan, judges, warehouse, record=NoRecord()))
        return
    warehouse.make_ready()
    take_in_orphans(warehouse)
    status: RunStatus = "failed"
    problem = None
    with show_warnings(), hold_run(warehouse.location, run.run_id):
        session = Session(live_run=make_live_run(run.run_id, settings, plan, judges, warehouse))
        if resumes:
            session.live_run.resumed = True
            update_run(warehouse, run.run_id, status="running", finished_at=None, problem=None)
        else:
            insert_run(warehouse, run)
        try:
            yield session
            problem = session.problem
            status = "cancelled" if problem else "incomplete" if session.has_failures else "completed"
        except FatalJudgeError as error:
            problem = str(error)
            status = "cancelled" if isinstance(error, RunCancelled) else "failed"
            raise
        finally:
            update_run(warehouse, run.run_id, status=status, finished_at=now_utc(), problem=problem)


def rehearse(settings: RunSettings, plan: Plan, ask: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
    """Run `ask` in a dry session, which counts the requests without a stored reply."""
    return ask_dry(settings, plan, lambda live_run, record: ask(Session(live_run=live_run, dry=record)))


def estimate_usage(settings: RunSettings, plan: Plan, work: Callable[[Session], Coroutine[Any, Any, Any]]) -> Usage:
    """Return the usage that some work would have beyond the stored replies; nothing is asked or written."""

    async def ask(session: Session) -> Usage:
        await work(session)
        return session.usage

    return rehearse(settings, plan, ask)
