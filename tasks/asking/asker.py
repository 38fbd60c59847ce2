"""The call path: one question in, one usable reply out, and every request on the way recorded.

A question is looked up first (two equal questions at once are one), then sent within the endpoint's limits, and asked
again where that may help. Each attempt is a row, written before its reply is used. All askers of a run share its stop
sign, and count together how many questions move.

From a shard to the socket a request passes `judge_shard`, the step's task (`classify`), `take_shard` with its
`take_sample`, the step for one sample (`classify_statements`, `ask_labels`), `ask_in_parts`, `ask_verdicts`, and here
`Asker.ask` and `Asker._send`; then the judge's `reply` and `HttpSession.send`. On the way back `_read` writes the row.
"""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

import orjson

from evalhouse.tasks.asking.limits import DRAIN_S, Activity, EndpointLimit, StopSign
from evalhouse.tasks.asking.record import Call, Record
from evalhouse.tasks.asking.usage import Price, Usage, estimate_prompt, guess_tokens, price_reply
from evalhouse.tasks.judge.protocol import (
    CUT_OFF,
    LATE,
    NEW_RUN,
    BudgetExhausted,
    CutReply,
    EndpointDown,
    FatalJudgeError,
    Judge,
    JudgeError,
    JudgeFailed,
    ModelReply,
    ModelRequest,
    Question,
    QuestionRefused,
    RefusedRequest,
    RunCancelled,
    TooLong,
    TransientJudgeError,
    UnsupportedOption,
    UnusableReply,
    draw_backoff,
    repeat_error,
)
from evalhouse.warehouse.messages import name_setting, write_span
from evalhouse.warehouse.steps import JUDGED_TASKS, find_task

if TYPE_CHECKING:
    from evalhouse.tasks.asking.batches import BatchQueue

T = TypeVar("T")

# The longest wait that a 503 may ask for; for a longer one Prefect's retry or `resume` is the better way to wait.
_MAX_NAMED_WAIT_S = 60.0
# More than one request can hold.
_MAX_OPTIONS_DROPPED = 12
# No model writes as much at once; of a longer reply the beginning is recorded.
_MAX_REPLY = 1_000_000
_KEPT_OF_LONGER = 30_000
# After so many requests refused without a reason that lies in them, and not one answered, the rest would end the same.
_MAX_REFUSED = 8
# A judge that gives so many unusable replies to a step, and no usable one before, will not do better.
_MAX_UNUSABLE = 20
_LOOK_S = 0.1
_SHOWN_OF_REPLY = 200
# In our own words alone: the note is outside of all blocks, where no text of a reply or a sample may be.
_UNUSABLE_NOTE = (
    "Your previous reply to this material could not be used. Reply with one complete JSON object of the shape "
    "described above and nothing else, with exactly one verdict or list for everything that is asked."
)
# Escapes in a reply that a strict reading takes for a control character, and for one backslash.
_DOUBTFUL = re.compile(r"\\[bf]|\\[nrtu\\][A-Za-z]")
# Estimates are off by less; a server that counts fewer tokens has cut the request to its window.
_SHORTENED = 0.5

# Set by the caller that would retry on EndpointDown, when it will not do so again: the question is then given up.
LAST_CHANCE: ContextVar[bool] = ContextVar("LAST_CHANCE", default=True)


class _AskedElsewhere(Exception):
    """Another process sends this request, or has done so meanwhile."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__()
        self.request = request


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[T]):
    """The value that was read from a reply, the call of the reply, and its packed log-probabilities, if any.

    Of a reply that is cut, `value` is what it holds until then. Of a question of several parts `parts` are the
    replies, by the `model` that gave them.
    """

    call_id: str
    value: T
    logprobs: str | None = None
    is_cut: bool = False
    parts: Sequence[str] = ()
    model: str | None = None


@dataclass(kw_only=True)
class _Attempts:
    """The attempts at one question and their failures.

    `request` is the question as prepared when the run had dropped `prepared_after` options; `tokens` is a guess at what
    one attempt takes, reply included; `number` is its place among the questions that wait for a slot. `call` is the
    row of the last attempt in the making.
    """

    max_used: int
    request: ModelRequest
    prepared_after: int
    tokens: int
    number: int
    sent: int = 0
    unusable: int = 0
    transport_failures: int = 0
    unreachable: int = 0
    late: int = 0
    exceeded_s: float = 0.0
    refusals: int = 0
    waited_s: float = 0.0
    elsewhere_s: float = 0.0
    options_dropped: int = 0
    note: str = ""
    last_problem: str = ""
    call: Call = field(init=False)

    @property
    def used(self) -> int:
        """The attempts that count against `max_used`: not refusals by 429, nor of the first options."""
        return self.unusable + self.transport_failures + max(0, self.options_dropped - _MAX_OPTIONS_DROPPED)


class InFlight:
    """The questions that are being asked, by the hashes of their requests: equal ones wait for the end of the first."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def hold(
        self,
        hashes: Collection[str],
        *,
        shares_failure: bool = True,
        while_waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> AsyncIterator[None]:
        """Hold these hashes while the block runs, once none of them is held.

        With `shares_failure` the failure of a question that was given up is raised to all who wait for it.
        """
        while others := [self._ends[key] for key in hashes if key in self._ends]:
            with while_waiting():
                await asyncio.wait(others)
            for failure in (other.exception() for other in others if shares_failure and not other.cancelled()):
                if isinstance(failure, EndpointDown) and LAST_CHANCE.get():
                    raise JudgeFailed(str(failure))
                if isinstance(failure, EndpointDown | JudgeFailed):
                    raise repeat_error(failure)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.update(dict.fromkeys(hashes, mine))
        try:
            yield
        except (JudgeFailed, EndpointDown) as error:
            if shares_failure:
                mine.set_exception(error)
                mine.exception()  # looked at, so that asyncio does not report it where no equal question waits
            raise
        finally:
            for key in hashes:
                del self._ends[key]
            mine.cancel()


@dataclass(kw_only=True)
class Asker:
    """Asks one judge for one run. Copies made with `dataclasses.replace` share counts, budget and stop sign.

    `of_tasks` has, by task, the copies that ask for steps with a separate judge, `juries` the copies of a step's jury.
    `window` is how many tokens the model's context window holds, None where it is unknown; `spent_usd` is what the
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
    juries: Mapping[str, Sequence["Asker"]] = field(default_factory=dict)
    activity: Activity = field(default_factory=Activity)
    batch_queue: "BatchQueue | None" = None
    batch_price: Price | None = None
    _awaited_usd: dict[str, float] = field(default_factory=dict)  # of requests in batches
    _expected_usd: dict[int, float] = field(default_factory=dict)  # of requests in flight, where there is a budget
    _in_flight: InFlight = field(default_factory=InFlight)

    def __post_init__(self) -> None:
        if self.budget_usd is not None and self.price is None:
            raise FatalJudgeError(
                f"a budget needs a price for {self.judge.model!r}; "
                "add it to your own price file (EVALHOUSE_PRICES), or leave the budget out"
            )
        self._was_answered = False
        self._n_unexplained = 0
        self._n_dropped = 0
        self._n_unusable: Counter[str] = Counter()  # by step
        self._useful_steps: set[str] = set()
        self._too_long: dict[str, str] = {}
        self.stop_sign.listen(self.limit.close)

    def find(self, step: str) -> "Asker":
        """Return the asker for a step, as `llm_calls` names it: this one, unless the step has a separate judge."""
        return self.of_tasks.get(find_task(step), self) if self.of_tasks else self

    @property
    def all(self) -> "list[Asker]":
        """This asker and the askers of steps, each once."""
        jurors = (asker for jury in self.juries.values() for asker in jury)
        return list({id(asker): asker for asker in (self, *self.of_tasks.values(), *jurors)}.values())

    def stop(self, error: FatalJudgeError, *, drain_s: float = DRAIN_S) -> None:
        """Send nothing more: all who ask or wait get this error, requests in flight have `drain_s` seconds left."""
        self.stop_sign.give(error, drain_s=drain_s)

    def raise_if_stopped(self) -> None:
        """Raise the error that stopped the run, if one did."""
        self.stop_sign.raise_if_given()

    def _end_run(self, message: str) -> NoReturn:
        """Stop the run, and raise the error that came first."""
        self.stop(FatalJudgeError(message))
        self.raise_if_stopped()
        raise AssertionError("a run that was stopped has an error")

    async def ask(
        self,
        question: Question,
        read: Callable[[str], T],
        *,
        attempts: int | None = None,
        read_cut: Callable[[str], T] | None = None,
    ) -> Answer[T]:
        """Ask until a reply can be read by `read`, which raises UnusableReply otherwise.

        With `read_cut`, which reads the text before a reply was cut off, CutReply is raised where that holds nothing.

        Raises JudgeFailed when the question is given up, EndpointDown when that was for transport errors alone,
        and FatalJudgeError when the run cannot continue. `attempts` has the default of the run.
        """
        asker = self.find(question.step)
        if asker is not self:
            return await asker.ask(question, read, attempts=attempts, read_cut=read_cut)
        self.raise_if_stopped()
        with self.activity.moving():
            request, n_dropped = self.judge.prepare(question), self._n_dropped
            async with self._in_flight.hold([request.request_hash], while_waiting=self.activity.still):
                recorded = await self.find_recorded(question, request, read, read_cut)
                if recorded is not None:
                    return recorded
                tokens = guess_tokens(request.payload, self.counts)
                if problem := self._too_long.get(request.request_hash):
                    raise TooLong(problem)
                if self.window is not None and tokens > self.window:
                    raise TooLong(
                        f"too long for the model: about {tokens:,} tokens with the reply, where its context window "
                        f"holds {self.window:,}"
                    )
                state = _Attempts(
                    max_used=attempts or self.attempts,
                    request=request,
                    prepared_after=n_dropped,
                    tokens=tokens,
                    number=self.limit.capacity.take_number(),
                )
                while state.used < state.max_used:
                    again = replace(question, note=state.note, n_unusable=question.n_unusable + state.unusable)
                    try:
                        reply = None if self.batch_queue is None else await self._send_by_batch(again, state)
                        reply = reply or await self._send(again, state)
                        return self._read(reply, state.call, question, read, read_cut)
                    except _AskedElsewhere as elsewhere:
                        # It may lack an option, or have a note, that the first request had or lacked.
                        state.elsewhere_s += await self._wait_for_other(elsewhere.request.request_hash, state)
                        recorded = await self.find_recorded(question, elsewhere.request, read, read_cut)
                        if recorded is not None:
                            return recorded
                    except (UnusableReply, RefusedRequest, TransientJudgeError, UnsupportedOption) as error:
                        await self._prepare_next(error, state, question)
                message = f"given up after {state.sent} attempts; the last: {state.last_problem}"
                if state.transport_failures < state.used:
                    raise JudgeFailed(message)
                if state.unreachable == state.used and not self._was_answered:
                    # Not one request of the run got through: a wrong address, not a verdict on every sample.
                    self._end_run(f"{self.judge.name} cannot be reached: {state.last_problem}")
                raise JudgeFailed(message) if LAST_CHANCE.get() else EndpointDown(message)

    async def _send(self, question: Question, attempts: _Attempts) -> ModelReply:
        """Send one request and return its reply; an error is recorded before it is raised."""
        async with self._within_budget(attempts), self.limit.slot(attempts.tokens, number=attempts.number) as slot:
            request = self._prepare_again(question, attempts)
            if attempts.elsewhere_s < self.limit.find_timeout(0) and not self.record.claim(request.request_hash):
                raise _AskedElsewhere(request)
            allowed_s, clock = self.limit.find_timeout(attempts.late), time.perf_counter()
            call = self._begin_call(question, request, attempts, started_at=time.time())
            try:
                async with self.stop_sign.in_flight() as timeout:
                    with self.limit.expire_late(timeout, slot, allowed_s):
                        reply = await self.judge.reply(request)
            except (JudgeError, TimeoutError, asyncio.CancelledError) as caught:
                call.latency_ms = (time.perf_counter() - clock) * 1000
                error: BaseException = caught
                if isinstance(caught, TimeoutError) and slot.is_late:
                    error = TransientJudgeError(f"{LATE} {allowed_s:g} s", late=True)
                    self.counts.late += 1
                    if not self.limit.is_lost(slot):
                        attempts.exceeded_s = allowed_s
                    self.limit.note_late(slot)
                elif isinstance(caught, TimeoutError):
                    error = RunCancelled("the run was stopped before a reply came")
                elif isinstance(caught, TransientJudgeError) and self._has_to_wait(caught):
                    self.limit.note_refused(slot, caught.retry_after_s)
                if isinstance(error, FatalJudgeError):
                    self.stop(error)
                self._record_error(call, error)
                if isinstance(error, FatalJudgeError):
                    self.raise_if_stopped()  # with the reason that came first
                raise error from None
            call.latency_ms = (time.perf_counter() - clock) * 1000
            if reply.prompt_tokens and reply.prompt_tokens < _SHORTENED * estimate_prompt(request.payload):
                self.counts.shortened += 1
            tokens = None if reply.prompt_tokens is None else reply.prompt_tokens + (reply.completion_tokens or 0)
            self.limit.note_success(slot, tokens=tokens, exceeded_s=attempts.exceeded_s)
        return reply

    @asynccontextmanager
    async def _within_budget(self, attempts: _Attempts) -> AsyncIterator[None]:
        """Run the block once the budget pays for its request beside the ones in flight, or none is in flight."""
        if self.budget_usd is None or self.price is None:
            yield
            return
        prompt_tokens = estimate_prompt(attempts.request.payload) or attempts.tokens  # embeddings have no reply
        expected_usd = self.price.cost_usd(prompt_tokens, attempts.tokens - prompt_tokens) or 0.0
        while self._expected_usd:
            left_usd = self.budget_usd - self.spent_usd - self.counts.spent_usd
            if left_usd <= 0 or sum(self._expected_usd.values()) + expected_usd <= left_usd:
                break
            await self.stop_sign.sleep(_LOOK_S)
        self._expected_usd[id(attempts)] = expected_usd
        try:
            yield
        finally:
            del self._expected_usd[id(attempts)]

    async def _wait_for_other(self, request_hash: str, attempts: _Attempts) -> float:
        """Wait while another process sends this, at most as long as a reply may take in all; return the seconds."""
        began_at = time.monotonic()
        left_s = self.limit.find_timeout(0) - attempts.elsewhere_s
        while True:
            await self.stop_sign.sleep(_LOOK_S)
            waited_s = time.monotonic() - began_at
            if waited_s >= left_s or self.record.claim(request_hash) or await self.record.find(request_hash):
                return waited_s

    async def _send_by_batch(self, question: Question, attempts: _Attempts) -> ModelReply | None:
        """Return the reply that came by batch; None where the request has to be sent by itself."""
        assert self.batch_queue is not None
        request = self._prepare_again(question, attempts)
        try:
            result = await self.batch_queue.wait_for(request)
        except FatalJudgeError as error:
            self.stop(error)
            raise
        finally:
            self._awaited_usd.pop(request.request_hash, None)
        if result is None:
            return None
        call = self._begin_call(question, request, attempts, started_at=result.sent_at, batch_id=result.batch_id)
        try:
            return result.read(self.batch_queue.service, request)
        except JudgeError as error:
            if isinstance(error, FatalJudgeError):
                self.stop(error)
            self._record_error(call, error)
            raise

    def _read(
        self,
        reply: ModelReply,
        call: Call,
        question: Question,
        read: Callable[[str], T],
        read_cut: Callable[[str], T] | None,
    ) -> Answer[T]:
        """Read a reply and record its call; raises UnusableReply, and CutReply where less should be asked."""
        self._was_answered = True
        try:
            if len(reply.text) > _MAX_REPLY:
                raise UnusableReply(f"the reply had {len(reply.text):,} characters; {_MAX_REPLY:,} are allowed")
            if quotes_data(reply.text, question):
                if reply.is_cut and read_cut is not None:
                    raise CutReply(CUT_OFF)
                raise UnusableReply("it quotes JSON of the texts under test, and what is its own verdict is not clear")
            if not reply.is_cut:
                value, call.reply_repair = read_twice(reply.text, read, question)
            elif read_cut is None:
                raise UnusableReply(CUT_OFF)
            else:
                try:
                    value = read_cut(reply.text)
                except UnusableReply:
                    raise CutReply(CUT_OFF) from None
        except UnusableReply as error:
            if len(reply.text) > _MAX_REPLY:
                reply = replace(reply, text=reply.text[:_KEPT_OF_LONGER], logprobs=None)
            self._record_error(call, error, reply=reply)
            error.reply = reply
            raise
        self._useful_steps.add(question.step)
        # What a usable reply lacks; only verdicts can.
        lacking = [CUT_OFF if reply.is_cut else None, getattr(value, "shortfall", None)]
        call.status, call.error = "ok", "; ".join(filter(None, lacking)) or None
        return Answer(
            call_id=self._record(call, reply),
            value=value,
            logprobs=None if call.reply_repair else reply.logprobs,  # its tokens spell another text
            is_cut=reply.is_cut,
            parts=reply.parts,
            model=reply.model,
        )

    async def _prepare_next(self, error: JudgeError, attempts: _Attempts, question: Question) -> None:
        """Wait and change what the next attempt needs; raises where the question is not asked again.

        Stops the run where the first requests of all, or the first replies to a step, came to nothing. Waits as the
        endpoint asks; raises JudgeFailed where this, or all waiting there, takes longer than allowed.
        """
        attempts.last_problem, wait_s = str(error), None
        match error:
            case CutReply():  # the same is asked in parts
                raise error
            case RefusedRequest():
                self._n_unexplained += error.unexplained
                if error.unexplained and not self._was_answered and self._n_unexplained >= _MAX_REFUSED:
                    self._end_run(
                        f"{self.judge.name} answered none of the first {_MAX_REFUSED} requests; the last: {error}"
                    )
                if error.too_long:
                    self._too_long[attempts.request.request_hash] = str(error)
                raise (TooLong if error.too_long else QuestionRefused)(str(error)) from None
            case UnusableReply():
                step = question.step
                self._n_unusable[step] += step not in self._useful_steps
                if step not in self._useful_steps and self._n_unusable[step] >= _MAX_UNUSABLE:
                    task = find_task(step)
                    text = " ".join(error.reply.text.split()) if error.reply else ""
                    quoted = f"{text[:_SHOWN_OF_REPLY]}…" if len(text) > _SHOWN_OF_REPLY else text
                    judge = f"--judge {task}=MODEL for this step alone" if task in JUDGED_TASKS else "--judge"
                    self._end_run(
                        f"none of the first {_MAX_UNUSABLE} replies of {self.judge.name} to {step} could be used, so "
                        f"no more requests were sent; the last: {error}: {quoted!r}; {NEW_RUN} model ({judge}), or "
                        "another prompt (--prompts)"
                    )
                attempts.unusable += 1
                attempts.note = _UNUSABLE_NOTE
            case UnsupportedOption():
                # Sent again without the option, which the question cannot help; but not for ever.
                self._n_dropped += 1
                attempts.options_dropped += 1
            case TransientJudgeError() if self._has_to_wait(error):
                attempts.refusals += 1
                wait_s = max(error.retry_after_s or 0.0, draw_backoff(attempts.refusals))
            case TransientJudgeError():
                attempts.transport_failures += 1
                attempts.unreachable += error.unreachable
                attempts.late += error.late
                if attempts.used < attempts.max_used and not error.late:
                    named_s = min(error.retry_after_s or 0.0, _MAX_NAMED_WAIT_S)
                    wait_s = max(named_s, draw_backoff(attempts.transport_failures))
        if wait_s is None:
            return
        state = "cannot be reached" if isinstance(error, TransientJudgeError) and error.unreachable else "asks to wait"
        why = f"{self.judge.name} {state} ({attempts.last_problem})"
        self.limit.note_wait(wait_s, why)
        attempts.waited_s += wait_s
        if attempts.waited_s > self.limit.max_wait_s:
            allowed, waited = (write_span(seconds) for seconds in (self.limit.max_wait_s, attempts.waited_s))
            raise JudgeFailed(f"{why}: {waited} in all, and {name_setting('max_wait_s')} is {allowed}")
        # With jitter, so that many questions that were refused together do not return as one.
        await self.stop_sign.sleep(wait_s * random.uniform(1.0, 1.1))

    def _has_to_wait(self, error: TransientJudgeError) -> bool:
        """Return whether the endpoint is waited for, which does not count as an attempt: it asks for that, or it has
        answered this run before and no connection is made now, as while it is restarted."""
        return error.rate_limited or (error.unreachable and self._was_answered)

    def _prepare_again(self, question: Question, attempts: _Attempts) -> ModelRequest:
        """Return the request to send now, without options that the endpoint has refused meanwhile.

        Raises the error that stopped the run, and BudgetExhausted.
        """
        self.raise_if_stopped()
        if self.budget_usd is not None and self.spent_usd + self.counts.spent_usd >= self.budget_usd:
            raise BudgetExhausted(f"the budget of {self.budget_usd:g} dollars is spent")
        if question.note or attempts.prepared_after != self._n_dropped:
            return self.judge.prepare(question)
        return attempts.request

    def count_affordable(self, requests: Iterable[ModelRequest]) -> int:
        """Return how many of these, from the first on, the budget pays for, at a batch's price and by a quick guess."""
        listed, total_usd = list(requests), self.spent_usd + self.counts.spent_usd + sum(self._awaited_usd.values())
        if self.budget_usd is None or self.batch_price is None:
            return len(listed)
        for number, request in enumerate(listed):
            prompt_tokens = estimate_prompt(request.payload)
            reply_tokens = guess_tokens(request.payload, self.counts) - prompt_tokens
            cost_usd = self.batch_price.cost_usd(prompt_tokens, reply_tokens) or 0.0
            total_usd += cost_usd
            if total_usd > self.budget_usd:
                return number
            self._awaited_usd[request.request_hash] = cost_usd
        return len(listed)

    @asynccontextmanager
    async def claim(self, questions: Sequence[Question]) -> AsyncIterator[None]:
        """Hold these questions while one request asks all of them: one of them asked alone waits for its end.

        Begins when none of them is being asked. They are questions of one step or of steps with one judge.
        """
        asker = self.find(questions[0].step)
        hashes = {asker.judge.prepare(question).request_hash for question in questions}
        async with asker._in_flight.hold(hashes, shares_failure=False):
            yield

    async def find_recorded(
        self,
        question: Question,
        request: ModelRequest,
        read: Callable[[str], T],
        read_cut: Callable[[str], T] | None = None,
    ) -> Answer[T] | None:
        """Return the answer to a prepared question and record the call, if a usable reply to it is recorded."""
        recorded = await self.record.find(request.request_hash)
        if recorded is None or quotes_data(recorded.reply, question):
            return None
        # What an older evalhouse could read and this one cannot is asked again.
        repair = None
        try:
            (value, repair), is_cut = read_twice(recorded.reply, read, question), False
        except UnusableReply:
            if read_cut is None:
                return None
            try:
                value, is_cut = read_cut(recorded.reply), True
            except UnusableReply:
                return None
        self.counts.reused += 1
        self._useful_steps.add(question.step)
        call = self._describe_call(
            question, request, status="cached", attempt=0, reused_call_id=recorded.call_id, reply_repair=repair
        )
        logprobs = None if repair else recorded.logprobs
        return Answer(call_id=self._keep(call), value=value, logprobs=logprobs, is_cut=is_cut)

    async def is_recorded(self, question: Question) -> bool:
        """Return whether a reply to the question is recorded; records nothing."""
        asker = self.find(question.step)
        return await asker.record.find(asker.judge.prepare(question).request_hash) is not None

    def keep_part(self, question: Question, text: str, *, of: Answer[T]) -> None:
        """Record the reply to one part of a question under the key that the part has when it is asked alone."""
        asker = self.find(question.step)
        call = asker._describe_call(question, asker.judge.prepare(question), status="ok", attempt=0)
        call.model, call.reply, call.reused_call_id = of.model or call.model, text, of.call_id
        call.cost_usd, call.started_at = 0.0, time.time()
        asker._keep(call)

    def _begin_call(self, question: Question, request: ModelRequest, attempts: _Attempts, /, **columns: object) -> Call:
        attempts.sent += 1
        self.counts.requests += 1
        text = orjson.dumps(request.payload).decode()
        attempts.call = self._describe_call(
            question, request, status="error", attempt=attempts.sent, request=text, **columns
        )
        return attempts.call

    def _describe_call(self, question: Question, request: ModelRequest, /, **columns: object) -> Call:
        return Call(
            step=question.step,
            sample_id=question.sample_id,
            prompt=question.prompt.name if question.prompt else None,
            prompt_hash=question.prompt.prompt_hash if question.prompt else None,
            judge=self.judge.name,
            model=self.judge.model,
            request_hash=request.request_hash,
            **columns,  # type: ignore[arg-type]  # the remaining columns of Call, by name
        )

    def _record_error(self, call: Call, error: BaseException, *, reply: ModelReply | None = None) -> None:
        """Record an error, and the reply that came with it and was paid for, if any."""
        if isinstance(error, UnusableReply | RefusedRequest):
            reply = reply or error.reply
        elif not isinstance(error, JudgeError):
            error = RunCancelled("cancelled before a reply came")
        call.status, call.error = "refused" if isinstance(error, RefusedRequest) else "error", str(error)
        self.counts.failed += 1
        self.counts.unreadable += reply is not None and call.status == "error"
        self._record(call, reply)

    def _record(self, call: Call, reply: ModelReply | None) -> str:
        """Record the end of a call, count its tokens and dollars, and return its id."""
        price = self.price if call.batch_id is None else self.batch_price
        self.counts.unpriced += price is None
        if reply is not None:
            call.cost_usd = price_reply(price, call.request, reply) if price else None
            call.reply, call.thoughts, call.logprobs = (
                None if reply.parts else reply.text,
                reply.thoughts,
                reply.logprobs,
            )
            call.model = reply.model or call.model
            call.prompt_tokens, call.completion_tokens = reply.prompt_tokens, reply.completion_tokens
            call.cached_tokens = reply.cached_tokens
            self.counts.prompt_tokens += reply.prompt_tokens or 0
            self.counts.cached_tokens += reply.cached_tokens or 0
            self.counts.completion_tokens += reply.completion_tokens or 0
            self.counts.spent_usd += call.cost_usd or 0.0
        return self._keep(call)

    def _keep(self, call: Call) -> str:
        try:
            return self.record.keep(call)
        except FatalJudgeError as error:
            self.stop(error)
            raise


def quotes_data(text: str, question: Question) -> bool:
    """Return whether a reply may quote a finished reply from the texts under test (`may_quote_data`)."""
    if question.prompt is None or not question.prompt.reply_schema:
        return False
    with suppress(orjson.JSONDecodeError):
        value = orjson.loads(text)
        if isinstance(value, dict) and not value.keys().isdisjoint(question.prompt.reply_schema.get("properties", {})):
            return False
    from evalhouse.tasks.asking.repairs import may_quote_data  # noqa: PLC0415  # most replies are the object alone

    return may_quote_data(text, question)


def read_twice(text: str, read: Callable[[str], T], question: Question) -> tuple[T, str | None]:
    """Return what `read` makes of a reply, and the repairs that this took, with commas between; None without any.

    Raises the UnusableReply of the strict reading where the second one fails too. A reply that can be read in part is
    read again, and so is one whose escapes may be words of the material, as `\\theta` is.
    """
    problem = None
    try:
        value = read(text)
        if getattr(value, "shortfall", None) is None and _DOUBTFUL.search(text) is None:
            return value, None
    except UnusableReply as error:
        problem = error
    from evalhouse.tasks.asking.repairs import read_again  # noqa: PLC0415  # most replies are read at once

    repaired = read_again(text, read, question)
    if problem is not None:
        if repaired is None:
            raise problem
        return repaired
    if repaired is not None:
        n_missing, n_before = (len(getattr(reading, "missing", ())) for reading in (repaired[0], value))
        if "backslash" in repaired[1] or n_missing < n_before:
            return repaired
    return value, None
