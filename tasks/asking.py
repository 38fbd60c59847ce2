"""The call path: one question in, one usable reply out, and every request on the way on record.

A question is first looked up (two equal questions at once are one), then sent within the endpoint's limits,
retried with jittered backoff on what may pass, asked again with what was wrong when the reply cannot be read, and
given up with a reason at the end. Each attempt is a row, written before its reply is used.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import orjson

from tasks.call_record import Call, CallRecord
from tasks.judge import Judge, ModelReply, ModelRequest, Question
from tasks.judge_errors import (
    BudgetExhausted,
    EndpointDown,
    FatalJudgeError,
    JudgeFailed,
    RefusedRequest,
    TransientJudgeError,
    UnsupportedOption,
    UnusableReply,
)
from tasks.limits import EndpointLimit
from tasks.prices import Price

T = TypeVar("T")

_BACKOFF_FIRST_S = 0.5
_BACKOFF_MOST_S = 30.0
# A 429 says that the endpoint is alive; it is waited out and is no attempt, but not for ever.
_RATE_LIMITED_MOST_S = 900.0
# In our own words alone: a note stands in the instructions, where nothing of a reply or a text under test may come.
_UNUSABLE_NOTE = (
    "Your previous reply to this material could not be used. Reply with one complete JSON object of the shape "
    "described above and nothing else, with exactly one verdict or list for everything that is asked."
)

# Set by whoever would retry on EndpointDown, when it will not do so again: the question is then given up.
LAST_CHANCE: ContextVar[bool] = ContextVar("LAST_CHANCE", default=True)


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[T]):
    """A reply that was read, and the call it stands in."""

    call_id: str
    value: T


@dataclass(kw_only=True)
class CallCounts:
    """What a run has asked so far; progress and the summary read it."""

    requests: int = 0
    reused: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    priced: bool = True


@dataclass(kw_only=True)
class _Attempts:
    """How often one question was sent and what it met."""

    sent: int = 0
    transport_failures: int = 0
    note: str = ""
    last_problem: str = ""
    first_limited_at: float = 0.0


@dataclass(kw_only=True)
class Asker:
    """Asks one judge for one run."""

    judge: Judge
    record: CallRecord
    limit: EndpointLimit
    attempts: int
    price: Price | None
    budget_usd: float | None = None
    counts: CallCounts = field(default_factory=CallCounts)
    _in_flight: dict[str, asyncio.Future[str]] = field(default_factory=dict)
    _fatal: FatalJudgeError | None = None

    async def ask(self, question: Question, read: Callable[[str], T]) -> Answer[T]:
        """Ask until a reply can be read by `read`, which raises UnusableReply otherwise.

        Raises JudgeFailed when the question is given up, EndpointDown when that was for transport errors alone,
        and FatalJudgeError when the run cannot go on.
        """
        request = self.judge.prepare(question)
        while (other := self._in_flight.get(request.request_hash)) is not None:
            await asyncio.wait([other])
        mine: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._in_flight[request.request_hash] = mine
        try:
            found = await self._find(question, request, read)
            return found or await self._send_until_usable(question, request, read)
        finally:
            del self._in_flight[request.request_hash]
            mine.cancel()

    async def _find(self, question: Question, request: ModelRequest, read: Callable[[str], T]) -> Answer[T] | None:
        recorded = await self.record.find(request.request_hash)
        if recorded is None:
            return None
        try:
            value = read(recorded.reply)
        except UnusableReply:
            return None  # an older evalhouse could read it and this one cannot: it is asked anew
        self.counts.reused += 1
        call_id = self.record.keep(
            self._describe(question, request, status="cached", attempt=0, reused_call_id=recorded.call_id)
        )
        return Answer(call_id=call_id, value=value)

    async def _send_until_usable(self, question: Question, request: ModelRequest, read: Callable[[str], T]) -> Answer[T]:
        attempts = _Attempts()
        while attempts.sent < self.attempts:
            try:
                return await self._send_once(question, request, read, attempts)
            except RefusedRequest as error:
                raise JudgeFailed(str(error)) from None
            except UnusableReply as error:
                attempts.note = _UNUSABLE_NOTE
                attempts.last_problem = str(error)
            except TransientJudgeError as error:
                attempts.last_problem = str(error)
                await self._back_off(error, attempts)
            except UnsupportedOption:
                attempts.sent -= 1  # sent again without the option, which is no fault of the question
            request = self.judge.prepare(replace(question, note=attempts.note))
        if attempts.transport_failures == attempts.sent and not LAST_CHANCE.get():
            raise EndpointDown(f"{attempts.sent} attempts failed, the last with: {attempts.last_problem}")
        raise JudgeFailed(f"given up after {attempts.sent} attempts; the last: {attempts.last_problem}")

    async def _send_once(
        self, question: Question, request: ModelRequest, read: Callable[[str], T], attempts: _Attempts
    ) -> Answer[T]:
        async with self.limit.slot():
            self._check_budget()
            attempts.sent += 1
            self.counts.requests += 1
            started_at, clock = time.time(), time.perf_counter()
            described = self._describe(
                question,
                request,
                status="error",
                attempt=attempts.sent,
                request=orjson.dumps(request.payload).decode(),
                started_at=started_at,
            )
            try:
                reply = await self.judge.reply(request)
            except UnusableReply as error:
                self._keep_failure(described, clock, str(error), reply=error.reply)
                raise
            except RefusedRequest as error:
                self._keep_failure(described, clock, str(error), status="refused")
                raise
            except FatalJudgeError as error:
                self.stop(error)
                self._keep_failure(described, clock, str(error))
                raise
            except (TransientJudgeError, UnsupportedOption) as error:
                self._keep_failure(described, clock, str(error))
                raise
        self.limit.note_success()
        try:
            value = read(reply.text)
        except UnusableReply as error:
            self._keep_failure(described, clock, str(error), reply=reply)
            raise
        return Answer(call_id=self._keep(described, clock, reply, status="ok"), value=value)

    def stop(self, error: FatalJudgeError) -> None:
        """Ask nothing more: whoever asks from now on gets this error."""
        self._fatal = self._fatal or error

    def raise_if_stopped(self) -> None:
        """Raise what stopped the asking, if anything did."""
        if self._fatal is not None:
            raise self._fatal

    def _check_budget(self) -> None:
        self.raise_if_stopped()
        if self.budget_usd is not None and self.counts.cost_usd >= self.budget_usd:
            raise BudgetExhausted(f"the budget of {self.budget_usd:g} dollars is spent")

    async def _back_off(self, error: TransientJudgeError, attempts: _Attempts) -> None:
        if error.rate_limited:
            self.limit.note_rate_limited(error.retry_after_s)
            now = time.monotonic()
            attempts.first_limited_at = attempts.first_limited_at or now
            if now - attempts.first_limited_at < _RATE_LIMITED_MOST_S:
                attempts.sent -= 1
                return
        attempts.transport_failures += 1
        if attempts.sent < self.attempts:
            exponential = min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2 ** (attempts.transport_failures - 1))
            await asyncio.sleep(max(error.retry_after_s or 0.0, exponential * random.uniform(0.5, 1.0)))

    def _describe(self, question: Question, asked: ModelRequest, /, **columns: object) -> Call:
        return Call(
            step=question.step,
            sample_id=question.sample_id,
            prompt=question.prompt.name if question.prompt else None,
            prompt_hash=question.prompt.prompt_hash if question.prompt else None,
            judge=self.judge.name,
            model=self.judge.model,
            request_hash=asked.request_hash,
            **columns,  # type: ignore[arg-type]  # the remaining columns of Call, by name
        )

    def _keep_failure(
        self, call: Call, clock: float, error: str, *, reply: ModelReply | None = None, status: str = "error"
    ) -> None:
        self.counts.failed += 1
        self._keep(call, clock, reply, status=status, error=error)

    def _keep(
        self, call: Call, clock: float, reply: ModelReply | None, *, status: str, error: str | None = None
    ) -> str:
        prompt_tokens = reply.prompt_tokens if reply else None
        completion_tokens = reply.completion_tokens if reply else None
        cost = self.price.cost_usd(prompt_tokens, completion_tokens) if self.price else None
        self.counts.prompt_tokens += prompt_tokens or 0
        self.counts.completion_tokens += completion_tokens or 0
        self.counts.cost_usd += cost or 0.0
        self.counts.priced = self.counts.priced and self.price is not None
        return self.record.keep(
            replace(
                call,
                status=status,
                error=error,
                reply=reply.text if reply else None,
                model=(reply.model if reply else None) or call.model,
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                cost_usd=cost,
                latency_ms=(time.perf_counter() - clock) * 1000,
            )
        )
