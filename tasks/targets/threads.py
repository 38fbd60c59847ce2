"""Threads for an application's function that is not async, a fixed number of them.

A thread cannot be stopped. One whose call does not return keeps its place, so that never more calls run than were
allowed; and it is a daemon, so that it cannot keep the process from ending.
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evalhouse.tasks.targets.errors import QuestionFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a call returned, or raised. As a value, for a future takes no StopIteration."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """A call that a thread is to make; `ended` is of the loop that waits for it."""

    function: Callable[[], object]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[Outcome]


class Threads:
    """Calls functions in at most `n` threads, each for at most `timeout_s` seconds. Use within one event loop."""

    def __init__(self, n: int, *, timeout_s: float, name: str) -> None:
        self._n = n
        self._timeout_s = timeout_s
        self._name = name
        self._free = asyncio.Semaphore(n)
        self._stuck = False  # no thread came back for a whole timeout, and none has since
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._n_open = 0  # calls that have not ended, those nobody waits for any more too

    async def call(self, function: Callable[[], object]) -> Outcome:
        """What came of the call; raises QuestionFailed when it does not return in time, or cannot begin."""
        await self._wait_for_thread()
        self._n_open += 1
        if len(self._threads) < self._n_open:
            self._start_thread()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Outcome] = loop.create_future()
        self._jobs.put(_Job(function=function, context=contextvars.copy_context(), loop=loop, ended=ended))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await ended
        except TimeoutError:
            raise QuestionFailed(
                f"it did not return within {self._timeout_s:g} s; raise timeout_s if it may take longer"
            ) from None

    def close(self) -> None:
        """Let every thread end, those in a call after it."""
        for _ in self._threads:
            self._jobs.put(None)

    async def _wait_for_thread(self) -> None:
        """All may be held by calls that are late; when nothing moves for long, nobody else waits for that."""
        if self._stuck:
            raise self._say_stuck()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._free.acquire()
        except TimeoutError:
            self._stuck = True
            raise self._say_stuck() from None

    def _say_stuck(self) -> QuestionFailed:
        return QuestionFailed(
            f"it was not called: all {self._n} calls at once that are allowed have not returned for more than "
            f"{self._timeout_s:g} s; look for what they wait for",
            unasked=True,
        )

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads) + 1}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                outcome = Outcome(value=job.context.run(job.function))
            except BaseException as error:  # a function of any maker may raise anything, SystemExit too
                outcome = Outcome(error=error)
            if not job.loop.is_closed():  # else nobody waits for it
                job.loop.call_soon_threadsafe(self._note_end, job.ended, outcome)

    def _note_end(self, ended: asyncio.Future[Outcome], outcome: Outcome) -> None:
        self._n_open -= 1
        self._stuck = False
        self._free.release()
        if not ended.done():
            ended.set_result(outcome)
