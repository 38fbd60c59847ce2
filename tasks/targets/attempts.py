"""How often and how fast the application under test is asked: attempts, pauses between them, limits, the clock.

One `Attempts` belongs to one target, so that its limits have nothing to do with the judge's. What an attempt is, the
targets say; here it either returns what was said or raises one of `target_errors`.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from evalhouse.tasks.asking.limits import EndpointLimit, Slot
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.answers import Said
from evalhouse.tasks.targets.errors import PassingFailure, QuestionFailed, TargetError
from evalhouse.tasks.targets.protocol import Response

_BACKOFF_FIRST_S = 0.5
_BACKOFF_MOST_S = 30.0
# Who asks to come back later than this is not waited for: a night is too short for many such questions.
_NAMED_MOST_S = 300.0
# Questions given up while nobody has ever been there. A bot that is down all night is not asked thousands of times.
_UNREACHED_MOST = 5

Attempt = Callable[[], Awaitable[Said]]


class Attempts:
    """Asks within the limits of the settings, and again where that may help."""

    def __init__(self, settings: TargetSettings) -> None:
        self._most = settings.attempts
        self._limit = EndpointLimit(concurrency=settings.concurrency, rpm=settings.rpm)
        self._was_there = False
        self._n_unreached = 0

    async def ask(self, attempt: Attempt) -> Response:
        """The response to one question, failed or not; raises TargetError when nobody is there to be asked."""
        for number in range(1, self._most + 1):
            try:
                return await self._ask_once(attempt, number)
            except PassingFailure as failure:
                wait_s = _find_wait(failure, number)
                if number == self._most or wait_s > _NAMED_MOST_S:
                    self._stop_if_nobody_is_there(failure)
                    return make_failed(_say_tries(failure, number, wait_s), attempts=number)
            except QuestionFailed as failure:
                return make_failed(str(failure), attempts=number - failure.unasked)
            await asyncio.sleep(wait_s)
        raise AssertionError("at least one attempt is made")

    async def _ask_once(self, attempt: Attempt, number: int) -> Response:
        async with self._limit.slot() as slot:
            clock = time.perf_counter()
            said = await self._watch(attempt, slot)
            latency_ms = (time.perf_counter() - clock) * 1000
            self._limit.note_success(slot)
        return Response(
            answer=said.answer,
            contexts=said.contexts,
            context_ids=said.context_ids,
            latency_ms=latency_ms,
            attempts=number,
            error=None,
        )

    def _stop_if_nobody_is_there(self, failure: PassingFailure) -> None:
        self._n_unreached += failure.unreached
        if not self._was_there and self._n_unreached >= _UNREACHED_MOST:
            raise TargetError(f"{failure}; none of the first {_UNREACHED_MOST} questions got through")

    async def _watch(self, attempt: Attempt, slot: Slot) -> Said:
        """The attempt; who is asked too much gets fewer questions at once."""
        try:
            said = await attempt()
        except PassingFailure as failure:
            self._was_there = self._was_there or not failure.unreached
            if failure.rate_limited:
                self._limit.note_refused(slot, failure.retry_after_s)
            raise
        except QuestionFailed as failure:
            self._was_there = self._was_there or not failure.unasked
            raise
        self._was_there = True
        return said


def make_failed(error: str, *, attempts: int) -> Response:
    """The response of a question that has failed."""
    return Response(answer=None, contexts=None, context_ids=None, latency_ms=None, attempts=attempts, error=error)


def _find_wait(failure: PassingFailure, failures: int) -> float:
    """Seconds before the next attempt, with jitter, so that many who fail do not return as one."""
    backoff_s = min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)
    return max(backoff_s, (failure.retry_after_s or 0.0) * random.uniform(1.0, 1.1))


def _say_tries(failure: PassingFailure, number: int, wait_s: float) -> str:
    if wait_s > _NAMED_MOST_S:
        return f"{failure}; it asks to come back in {failure.retry_after_s:,.0f} s, which is too long to wait"
    return f"{failure} (asked {number} times)" if number > 1 else str(failure)
