"""The call path: one question in, one usable reply out, and every request on the way on record.

A question is looked up first (two equal questions at once are one), then sent within the endpoint's limits, and asked
again where that may help. Each attempt is a row, written before its reply is used.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import orjson

from evalhouse.tasks.asking.batches import Activity, BatchQueue
from evalhouse.tasks.asking.limits import EndpointLimit, ReplyTimer, Slot, draw_backoff, write_span
from evalhouse.tasks.asking.record import Call, Record
from evalhouse.tasks.asking.usage import Price, Usage, estimate_prompt, guess_tokens, price_reply
from evalhouse.tasks.judge.errors import (
    CUT_OFF,
    BudgetExhausted,
    CutReply,
    EndpointDown,
    FatalJudgeError,
    JudgeError,
    JudgeFailed,
    QuestionRefused,
    RefusedRequest,
    RunCancelled,
    TooLong,
    TransientJudgeError,
    UnsupportedOption,
    UnusableReply,
    repeat_error,
)
from evalhouse.tasks.judge.protocol import Judge, ModelReply, ModelRequest, Question
from evalhouse.warehouse.names import name_setting
from evalhouse.warehouse.steps import find_task

# How long requests that are under way may still take.
DRAIN_S = 3.0


Listener = Callable[[FatalJudgeError, float], None]


class StopSign:
    """Stops everything that asks for a run: nothing more is sent, and all who wait end at once.

    Given by a person's Ctrl-C, or by whatever finds that nothing will work (a wrong key, a full disk). All askers of a
    run share one, so that embeddings with a wrong key stop the judge as well. Given at most once; the first reason
    counts. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._error: FatalJudgeError | None = None
        self._listeners: list[Listener] = []
        self._sleeping: set[asyncio.Future[None]] = set()

    def give(self, error: FatalJudgeError, *, drain_s: float = DRAIN_S) -> None:
        """Stop everything with this error; requests under way have `drain_s` seconds left."""
        if self._error is not None:
            return
        self._error = error
        for sleeper in self._sleeping:
            if not sleeper.done():
                sleeper.set_exception(repeat_error(error))
        for listener in self._listeners:
            listener(error, drain_s)

    def listen(self, listener: Listener) -> None:
        """Call `listener` with the error and the seconds left when the sign is given."""
        self._listeners.append(listener)

    def raise_if_given(self) -> None:
        """Raise what the sign was given for, if it was."""
        if self._error is not None:
            raise repeat_error(self._error)

    async def sleep(self, seconds: float) -> None:
        """Wait that long; raises as soon as the sign is given."""
        self.raise_if_given()
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeping.add(sleeper)
        try:
            async with asyncio.timeout(seconds):
                await sleeper
        except TimeoutError:
            pass
        finally:
            self._sleeping.discard(sleeper)


T = TypeVar("T")

# What a 503 may ask us to wait; beyond that Prefect's retry or `resume` is the better way to wait.
_NAMED_MOST_S = 60.0
# More than one request can hold.
_OPTIONS_DROPPED_MOST = 12
# No model writes as much at once; of what is longer the beginning stands on record.
_MOST_REPLY = 1_000_000
_KEPT_OF_LONGER = 30_000
# So many requests refused without a reason that lies in them, and not one answered: the rest would end like them.
_REFUSED_MOST = 8
# In our own words alone: a note stands outside of all blocks, where nothing of a reply or a text under test may come.
_UNUSABLE_NOTE = (
    "Your previous reply to this material could not be used. Reply with one complete JSON object of the shape "
    "described above and nothing else, with exactly one verdict or list for everything that is asked."
)

# Estimates are off by less; a server whose window is too small counts what it has kept of a request.
_SHORTENED = 0.5
LATE = "no reply within"
"""How the error of a request begins whose time was over."""

# Set by the caller that would retry on EndpointDown, when it will not do so again: the question is then given up.
LAST_CHANCE: ContextVar[bool] = ContextVar("LAST_CHANCE", default=True)


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[T]):
    """A reply that was read, the call it stands in, and the packed log-probabilities that came with it, if any.

    `is_cut` says that it broke off, so that `value` is what had been said until then. Of a question of several parts
    `parts` are the replies, by the `model` that gave them.
    """

    call_id: str
    value: T
    logprobs: str | None = None
    is_cut: bool = False
    parts: Sequence[str] = ()
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Reader(Generic[T]):
    """How a reply is read, and how one that breaks off; None where such a one is of no use."""

    whole: Callable[[str], T]
    cut: Callable[[str], T] | None

    def read(self, reply: ModelReply) -> T:
        """Raises UnusableReply, and CutReply where less should be asked."""
        text = _check_length(reply)
        if not reply.is_cut:
            return self.whole(text)
        if self.cut is None:
            raise UnusableReply(CUT_OFF)
        try:
            return self.cut(text)
        except UnusableReply:
            raise CutReply(CUT_OFF) from None

    def read_recorded(self, text: str) -> tuple[T, bool]:
        """What a reply on record says, and whether it breaks off."""
        try:
            return self.whole(text), False
        except UnusableReply:
            if self.cut is None:
                raise
            return self.cut(text), True


@dataclass(kw_only=True)
class _Attempts:
    """How often one question was sent and what it met; `used` are those that count against `most`.

    `request` is the question as prepared when the run had dropped `prepared_after` options; `tokens` is a guess at what
    one attempt takes, reply included.
    """

    most: int
    request: ModelRequest
    prepared_after: int
    tokens: int
    number: int
    sent: int = 0
    used: int = 0
    unusable: int = 0
    transport_failures: int = 0
    unreachable: int = 0
    late: int = 0
    exceeded_s: float = 0.0
    refusals: int = 0
    waited_s: float = 0.0
    options_dropped: int = 0
    note: str = ""
    last_problem: str = ""


# A call in the making, when it was begun (None for one that came by batch), and the reply.
_Answered = tuple[Call, float | None, ModelReply]


@dataclass(kw_only=True)
class Asker:
    """Asks one judge for one run. Copies made with `dataclasses.replace` share counts, budget and stop sign.

    `of_tasks` has, by task, the copies that ask for steps with a judge of their own.
    `window` is how many tokens the model's context window holds, None where nobody has said; `spent_usd` is what the
    run had spent before it was resumed; the budget is for all of it. With `batch_queue` requests go
    by batch, at the `batch_price`.
    """

    judge: Judge
    record: Record
    limit: EndpointLimit
    attempts: int
    price: Price | None
    budget_usd: float | None = None
    spent_usd: float = 0.0
    window: int | None = None
    counts: Usage = field(default_factory=Usage)
    stop_sign: StopSign = field(default_factory=StopSign)
    of_tasks: Mapping[str, "Asker"] = field(default_factory=dict)
    activity: Activity = field(default_factory=Activity)
    batch_queue: BatchQueue | None = None
    batch_price: Price | None = None
    _awaited_usd: dict[str, float] = field(default_factory=dict)  # of what is in batches
    _in_flight: dict[str, asyncio.Future[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.budget_usd is not None and self.price is None:
            raise FatalJudgeError(
                f"there is no price for {self.judge.model!r}, so a budget cannot be kept; "
                "add it to a price file of your own (EVALHOUSE_PRICES), or leave the budget out"
            )
        self._sending: set[asyncio.Timeout] = set()
        self._was_answered = False
        self._n_unexplained = 0
        self._n_dropped = 0
        self._too_long: dict[str, str] = {}
        self.stop_sign.listen(self._wind_down)

    def find(self, step: str) -> "Asker":
        """Whoever asks for a step, as `llm_calls` names it: this one, unless the step has a judge of its own."""
        return self.of_tasks.get(find_task(step), self) if self.of_tasks else self

    @property
    def all(self) -> "list[Asker]":
        """This one and those of steps, each once."""
        return list({id(asker): asker for asker in (self, *self.of_tasks.values())}.values())

    async def ask(
        self,
        question: Question,
        read: Callable[[str], T],
        *,
        attempts: int | None = None,
        read_cut: Callable[[str], T] | None = None,
    ) -> Answer[T]:
        """Ask until a reply can be read by `read`, which raises UnusableReply otherwise.

        With `read_cut`, which reads what came before a reply was cut off, CutReply is raised where that is nothing.

        Raises JudgeFailed when the question is given up, EndpointDown when that was for transport errors alone,
        and FatalJudgeError when the run cannot go on. `attempts` are those of the run unless given.
        """
        asker = self.find(question.step)
        if asker is not self:
            return await asker.ask(question, read, attempts=attempts, read_cut=read_cut)
        self.raise_if_stopped()
        reader = _Reader(whole=read, cut=read_cut)
        with self.activity.moving():
            request, n_dropped = self.judge.prepare(question), self._n_dropped
            async with self._asked_once(request.request_hash):
                recorded = await self._find_on_record(question, request, reader)
                if recorded is not None:
                    return recorded
                tokens = guess_tokens(request.payload, self.counts)
                self._check_length(request, tokens)
                state = _Attempts(
                    most=attempts or self.attempts,
                    request=request,
                    prepared_after=n_dropped,
                    tokens=tokens,
                    number=self.limit.take_number(),
                )
                while state.used < state.most:
                    again = replace(question, note=state.note, n_unusable=question.n_unusable + state.unusable)
                    try:
                        return await self._attempt(again, reader, state)
                    except (UnusableReply, RefusedRequest, TransientJudgeError, UnsupportedOption) as error:
                        await self._prepare_next(error, state)
                raise self._give_up(state)

    @asynccontextmanager
    async def _asked_once(self, request_hash: str) -> AsyncIterator[None]:
        """Wait until no equal question is being asked, and share its failure; others then wait for this one."""
        while (other := self._in_flight.get(request_hash)) is not None:
            with self.activity.still():
                await asyncio.wait([other])
            share_failure(other)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight[request_hash] = mine
        try:
            yield
        except (JudgeFailed, EndpointDown) as error:
            mine.set_exception(error)
            mine.exception()  # looked at, so that asyncio does not report it where no equal question waits
            raise
        finally:
            del self._in_flight[request_hash]
            mine.cancel()

    def _check_length(self, request: ModelRequest, tokens: int) -> None:
        """Raise TooLong for a request that the window does not hold, and for one that was refused as that before."""
        if problem := self._too_long.get(request.request_hash):
            raise TooLong(problem)
        if self.window is not None and tokens > self.window:
            raise TooLong(
                f"too long for the model: about {tokens:,} tokens with the reply, where its context window holds "
                f"{self.window:,}"
            )

    async def find_on_record(
        self, question: Question, request: ModelRequest, read: Callable[[str], T]
    ) -> Answer[T] | None:
        """The answer to a prepared question, if a reply that `read` can read is on record; the call then is too."""
        return await self._find_on_record(question, request, _Reader(whole=read, cut=None))

    async def is_on_record(self, question: Question) -> bool:
        """Whether a reply to the question is on record; nothing of this is."""
        asker = self.find(question.step)
        return await asker.record.find(asker.judge.prepare(question).request_hash) is not None

    @asynccontextmanager
    async def claim(self, questions: Sequence[Question]) -> AsyncIterator[None]:
        """The time in which one request asks all of these: whoever asks one of them by itself waits for its end.

        Begins when none of them is being asked. They are questions of one step or of steps with one judge.
        """
        asker = self.find(questions[0].step)
        hashes = {asker.judge.prepare(question).request_hash for question in questions}
        while others := [asker._in_flight[one] for one in hashes if one in asker._in_flight]:
            await asyncio.wait(others)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asker._in_flight.update(dict.fromkeys(hashes, mine))
        try:
            yield
        finally:
            for one in hashes:
                del asker._in_flight[one]
            mine.cancel()

    def keep_part(self, question: Question, text: str, *, of: Answer[T]) -> None:
        """Put the reply to one part of a question on record, under the key that the part has when it is asked alone."""
        asker = self.find(question.step)
        if asker is not self:
            return asker.keep_part(question, text, of=of)
        call = self._describe(
            question,
            self.judge.prepare(question),
            status="ok",
            attempt=0,
            reply=text,
            cost_usd=0.0,
            reused_call_id=of.call_id,
            started_at=time.time(),
        )
        self._put_on_record(replace(call, model=of.model or call.model))

    async def _find_on_record(self, question: Question, request: ModelRequest, reader: _Reader[T]) -> Answer[T] | None:
        recorded = await self.record.find(request.request_hash)
        if recorded is None:
            return None
        try:
            value, is_cut = reader.read_recorded(recorded.reply)
        except UnusableReply:
            return None  # an older evalhouse could read it and this one cannot: it is asked again
        self.counts.reused += 1
        call = self._describe(question, request, status="cached", attempt=0, reused_call_id=recorded.call_id)
        return Answer(call_id=self._put_on_record(call), value=value, logprobs=recorded.logprobs, is_cut=is_cut)

    async def _attempt(self, question: Question, reader: _Reader[T], attempts: _Attempts) -> Answer[T]:
        """Send one request and read its reply; whatever comes is on record before it is used or raised."""
        arrival = None if self.batch_queue is None else await self._park(question, attempts)
        if arrival is not None:
            call, clock, reply = arrival
        else:
            async with self.limit.slot(attempts.tokens, number=attempts.number) as slot:
                self._check_budget()
                request = self._prepare_again(question, attempts)
                clock = time.perf_counter()
                call = self._begin_call(question, request, attempts, started_at=time.time())
                try:
                    reply = await self._wait_for_reply(request, slot, attempts)
                except (JudgeError, asyncio.CancelledError) as error:
                    self._note_failure(error, slot)
                    self._keep_error(call, clock, error)
                    if isinstance(error, FatalJudgeError):
                        self.raise_if_stopped()  # with the reason that came first
                    raise
                if reply.prompt_tokens and reply.prompt_tokens < _SHORTENED * estimate_prompt(request.payload):
                    self.counts.shortened += 1
                if reply.prompt_tokens is not None:
                    self.limit.note_tokens(slot, reply.prompt_tokens + (reply.completion_tokens or 0))
                self.limit.note_success()
        self._was_answered = True
        try:
            value = reader.read(reply)
        except UnusableReply as error:
            if len(reply.text) > _MOST_REPLY:
                reply = replace(reply, text=reply.text[:_KEPT_OF_LONGER], logprobs=None)
            self._keep_failure(call, clock, error, reply=reply)
            raise
        # What a reply that is of use lacks; only verdicts can.
        lacking = [CUT_OFF if reply.is_cut else None, getattr(value, "shortfall", None)]
        call_id = self._keep(call, clock, reply, status="ok", error="; ".join(filter(None, lacking)) or None)
        return Answer(
            call_id=call_id,
            value=value,
            logprobs=reply.logprobs,
            is_cut=reply.is_cut,
            parts=reply.parts,
            model=reply.model,
        )

    async def _wait_for_reply(self, request: ModelRequest, slot: Slot, attempts: _Attempts) -> ModelReply:
        """Return the judge's reply; raises TransientJudgeError when its time is over, and what stopped the run."""
        timer, allowed_s = None, self.limit.find_timeout(attempts.late)
        try:
            async with asyncio.timeout(None) as drain:
                self._sending.add(drain)
                with ReplyTimer(self.limit, slot, allowed_s, drain) as timer:
                    reply = await self.judge.reply(request)
                    self.limit.note_answer(slot, attempts.exceeded_s)
                    return reply
        except TimeoutError:
            if timer is None or not timer.is_late:
                raise RunCancelled("the run was stopped before a reply came") from None
            if not self.limit.is_lost(slot):
                attempts.exceeded_s = allowed_s
            raise TransientJudgeError(f"{LATE} {allowed_s:g} s", late=True) from None
        finally:
            self._sending.discard(drain)

    def _note_failure(self, error: BaseException, slot: Slot) -> None:
        """Tell the limit, and stop the run where nothing will work."""
        if isinstance(error, FatalJudgeError):
            self.stop(error)
        if isinstance(error, TransientJudgeError) and error.rate_limited:
            self.limit.note_refused(slot, error.retry_after_s)
        if isinstance(error, TransientJudgeError) and error.late:
            self.counts.late += 1
            self.limit.note_late(slot)

    async def _park(self, question: Question, attempts: _Attempts) -> _Answered | None:
        """Return what came by batch; None where the request has to be sent by itself."""
        assert self.batch_queue is not None
        self._check_budget()
        request = self._prepare_again(question, attempts)
        try:
            arrival = await self.batch_queue.park(request)
        except FatalJudgeError as error:
            self.stop(error)
            raise
        finally:
            self._awaited_usd.pop(request.request_hash, None)
        if arrival is None:
            return None
        call = self._begin_call(question, request, attempts, started_at=arrival.sent_at, batch_id=arrival.batch_id)
        try:
            return call, None, arrival.read(self.batch_queue.service, request)
        except JudgeError as error:
            if isinstance(error, FatalJudgeError):
                self.stop(error)
            self._keep_error(call, None, error)
            raise

    async def _prepare_next(self, error: JudgeError, attempts: _Attempts) -> None:
        """Wait and change what the next attempt needs; raises where the question is not asked again."""
        attempts.last_problem = str(error)
        match error:
            case CutReply():
                raise error
            case RefusedRequest():
                self._n_unexplained += error.unexplained
                if error.unexplained and not self._was_answered and self._n_unexplained >= _REFUSED_MOST:
                    message = (
                        f"{self.judge.name} answered none of the first {_REFUSED_MOST} requests; the last: {error}"
                    )
                    self.stop(FatalJudgeError(message))
                    self.raise_if_stopped()
                if error.too_long:
                    self._too_long[attempts.request.request_hash] = str(error)
                raise (TooLong if error.too_long else QuestionRefused)(str(error)) from None
            case UnusableReply():
                attempts.used += 1
                attempts.unusable += 1
                attempts.note = _UNUSABLE_NOTE
            case UnsupportedOption():
                # Sent again without the option, which is no fault of the question; but not for ever.
                self._n_dropped += 1
                attempts.options_dropped += 1
                attempts.used += attempts.options_dropped > _OPTIONS_DROPPED_MOST
            case TransientJudgeError(rate_limited=True):
                # The endpoint is alive: it is waited for, and this is no attempt.
                attempts.refusals += 1
                await self._wait_out(max(error.retry_after_s or 0.0, draw_backoff(attempts.refusals)), attempts)
            case TransientJudgeError():
                attempts.used += 1
                attempts.transport_failures += 1
                attempts.unreachable += error.unreachable
                attempts.late += error.late
                if attempts.used < attempts.most and not error.late:
                    named_s = min(error.retry_after_s or 0.0, _NAMED_MOST_S)
                    await self._wait_out(max(named_s, draw_backoff(attempts.transport_failures)), attempts)

    def _give_up(self, attempts: _Attempts) -> JudgeError:
        """Return the error of a question whose attempts are used up."""
        message = f"given up after {attempts.sent} attempts; the last: {attempts.last_problem}"
        if attempts.transport_failures < attempts.used:
            return JudgeFailed(message)
        if attempts.unreachable == attempts.used and not self._was_answered:
            # Not one request of the run got through: a wrong address, not a verdict on every sample.
            error = FatalJudgeError(f"{self.judge.name} cannot be reached: {attempts.last_problem}")
            self.stop(error)
            return error
        return JudgeFailed(message) if LAST_CHANCE.get() else EndpointDown(message)

    def count_affordable(self, requests: Iterable[ModelRequest]) -> int:
        """How many of these, from the first on, the budget is enough for, at a batch's price and by a quick guess."""
        asked, total_usd = list(requests), self.spent_usd + self.counts.spent_usd + sum(self._awaited_usd.values())
        if self.budget_usd is None or self.batch_price is None:
            return len(asked)
        for number, request in enumerate(asked):
            prompt_tokens = estimate_prompt(request.payload)
            reply_tokens = guess_tokens(request.payload, self.counts) - prompt_tokens
            cost_usd = self.batch_price.cost_usd(prompt_tokens, reply_tokens) or 0.0
            total_usd += cost_usd
            if total_usd > self.budget_usd:
                return number
            self._awaited_usd[request.request_hash] = cost_usd
        return len(asked)

    def _prepare_again(self, question: Question, attempts: _Attempts) -> ModelRequest:
        """The request as it is to be sent now."""
        if question.note or attempts.prepared_after != self._n_dropped:
            # A request sent meanwhile has found out what the endpoint does not take.
            return self.judge.prepare(question)
        return attempts.request

    def _begin_call(self, question: Question, request: ModelRequest, attempts: _Attempts, /, **columns: object) -> Call:
        attempts.sent += 1
        self.counts.requests += 1
        text = orjson.dumps(request.payload).decode()
        return self._describe(question, request, status="error", attempt=attempts.sent, request=text, **columns)

    def stop(self, error: FatalJudgeError, *, drain_s: float = DRAIN_S) -> None:
        """Ask nothing more: all who ask or wait get this error, what is under way has `drain_s` seconds left."""
        self.stop_sign.give(error, drain_s=drain_s)

    def raise_if_stopped(self) -> None:
        """Raise what stopped the asking, if anything did."""
        self.stop_sign.raise_if_given()

    def _wind_down(self, error: FatalJudgeError, drain_s: float) -> None:
        self.limit.close(error)
        until = asyncio.get_running_loop().time() + drain_s
        for timeout in self._sending:
            timeout.reschedule(until)

    def _check_budget(self) -> None:
        self.raise_if_stopped()
        if self.budget_usd is not None and self.spent_usd + self.counts.spent_usd >= self.budget_usd:
            raise BudgetExhausted(f"the budget of {self.budget_usd:g} dollars is spent")

    async def _wait_out(self, wait_s: float, attempts: _Attempts) -> None:
        """Wait as the endpoint asks; raises JudgeFailed where this, or all waiting there, takes longer than allowed."""
        why = f"{self.judge.name} asks to wait ({attempts.last_problem})"
        self.limit.note_wait(wait_s, why)
        attempts.waited_s += wait_s
        if attempts.waited_s > self.limit.max_wait_s:
            most, waited = (write_span(seconds) for seconds in (self.limit.max_wait_s, attempts.waited_s))
            raise JudgeFailed(f"{why}: {waited} in all, and {name_setting('max_wait_s')} is {most}")
        # With jitter: many who were told the same shall not return as one.
        await self.stop_sign.sleep(wait_s * random.uniform(1.0, 1.1))

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

    def _keep_error(self, call: Call, clock: float | None, error: BaseException) -> None:
        """Put on record what came instead of a reply, with what was paid for, if anything was."""
        if not isinstance(error, JudgeError):
            error = RunCancelled("cancelled before a reply came")
        status = "refused" if isinstance(error, RefusedRequest) else "error"
        reply = error.reply if isinstance(error, UnusableReply | RefusedRequest) else None
        self._keep_failure(call, clock, error, reply=reply, status=status)

    def _keep_failure(
        self,
        call: Call,
        clock: float | None,
        error: JudgeError,
        *,
        reply: ModelReply | None = None,
        status: str = "error",
    ) -> None:
        self.counts.failed += 1
        self.counts.unreadable += reply is not None and status == "error"
        self._keep(call, clock, reply, status=status, error=str(error))

    def _keep(
        self, call: Call, clock: float | None, reply: ModelReply | None, *, status: str, error: str | None = None
    ) -> str:
        prompt_tokens = reply.prompt_tokens if reply else None
        completion_tokens = reply.completion_tokens if reply else None
        cached_tokens = reply.cached_tokens if reply else None
        price = self.price if call.batch_id is None else self.batch_price
        cost = price_reply(price, call.request, reply) if price and reply else None
        self.counts.prompt_tokens += prompt_tokens or 0
        self.counts.cached_tokens += cached_tokens or 0
        self.counts.completion_tokens += completion_tokens or 0
        self.counts.spent_usd += cost or 0.0
        self.counts.unpriced += price is None
        return self._put_on_record(
            replace(
                call,
                status=status,
                error=error,
                reply=reply.text if reply and not reply.parts else None,
                thoughts=reply.thoughts if reply else None,
                logprobs=reply.logprobs if reply else None,
                model=(reply.model if reply else None) or call.model,
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                completion_tokens=completion_tokens,
                cost_usd=cost,
                latency_ms=None if clock is None else (time.perf_counter() - clock) * 1000,
            )
        )

    def _put_on_record(self, call: Call) -> str:
        try:
            return self.record.keep(call)
        except FatalJudgeError as error:
            self.stop(error)
            raise


def _check_length(reply: ModelReply) -> str:
    """The text of a reply; raises UnusableReply for one that no question of ours has an answer of that length to."""
    if len(reply.text) > _MOST_REPLY:
        raise UnusableReply(f"the reply had {len(reply.text):,} characters; {_MOST_REPLY:,} are allowed")
    return reply.text


def share_failure(other: asyncio.Future[None]) -> None:
    """End as an equal question ended that was given up meanwhile; one that was answered is on record."""
    error = None if other.cancelled() else other.exception()
    if isinstance(error, EndpointDown):
        raise JudgeFailed(str(error)) if LAST_CHANCE.get() else repeat_error(error)
    if isinstance(error, JudgeFailed):
        raise repeat_error(error)
