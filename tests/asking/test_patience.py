"""A model on your own machine: one request after the other, each of them slow. In virtual time."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from virtual_time import in_virtual_time, read_clock

from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.asking.limits import EndpointLimit
from evalhouse.tasks.asking.record import Call
from evalhouse.tasks.asking.usage import Price
from evalhouse.tasks.judge.protocol import JudgeFailed, ModelReply, ModelRequest, Question, choose_timeout, is_near
from evalhouse.tasks.settings.run import RunSettings

DEFAULTS = RunSettings()


@dataclass
class NoRecord:
    """Keeps calls in memory and finds none."""

    calls: list[Call] = field(default_factory=list)

    async def find(self, request_hash: str) -> None:
        return None

    def claim(self, request_hash: str) -> bool:
        return True

    def keep(self, call: Call) -> str:
        self.calls.append(call)
        return str(len(self.calls))

    def close(self) -> None:
        pass


@dataclass
class LocalModel:
    """A server with some slots and a queue, which stops working on a request when its client goes away.

    What it has read of a prompt is kept until it reads another one. `takes` gives the seconds for a request.
    """

    takes: Callable[[str], float]
    n_slots: int = 1
    name: str = "openai:own"
    model: str = "own"
    endpoint: str | None = "https://judge.example/v1"
    done: Counter[str] = field(default_factory=Counter)
    max_waiting: int = 0
    _waiting: int = 0
    _read: tuple[str, float] = ("", 0.0)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.n_slots)

    def prepare(self, question: Question) -> ModelRequest:
        return ModelRequest(request_hash=question.sample_id, payload={"input": question.sample_id})

    async def reply(self, request: ModelRequest) -> ModelReply:
        self._waiting += 1
        self.max_waiting = max(self.max_waiting, self._waiting)
        try:
            async with self._slots:
                await self._work_on(request.request_hash)
        finally:
            self._waiting -= 1
        return ModelReply(text="{}")

    async def _work_on(self, name: str) -> None:
        known_s = self._read[1] if self._read[0] == name else 0.0
        began = read_clock()
        try:
            await asyncio.sleep(self.takes(name) - known_s)
        finally:
            self._read = (name, known_s + read_clock() - began)
        self.done[name] += 1

    async def close(self) -> None:
        pass


async def ask_all(model: LocalModel, n: int, concurrency: int = DEFAULTS.concurrency) -> tuple[Asker, list[object]]:
    """Ask so many questions at once with the settings that a run has by itself."""
    timeout_s = choose_timeout(DEFAULTS.timeout_s, model.endpoint)
    limit = EndpointLimit(concurrency=concurrency, timeout_s=timeout_s)
    price = Price(input_usd=0, output_usd=0)
    asker = Asker(judge=model, record=NoRecord(), limit=limit, attempts=DEFAULTS.attempts, price=price)
    question = Question(step="rank", sample_id="", prompt=None, data={})
    asked = [asker.ask(replace(question, sample_id=f"s{number}"), str) for number in range(n)]
    return asker, await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize(("takes_s", "n"), [(9.0, 40), (25.0, 40), (59.0, 20)])
@in_virtual_time
async def test_request_in_a_moving_queue_is_not_given_up(takes_s: float, n: int) -> None:
    model, began = LocalModel(takes=lambda _: takes_s), read_clock()
    asker, answers = await ask_all(model, n)
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    assert (asker.counts.requests, asker.counts.late, set(model.done.values())) == (n, 0, {1})
    assert read_clock() - began == pytest.approx(takes_s * n)


@dataclass
class NewestFirst(LocalModel):
    """A server that gives a free slot to the last request, as llama.cpp does."""

    _line: list[asyncio.Event] = field(default_factory=list)
    _is_busy: bool = False

    async def reply(self, request: ModelRequest) -> ModelReply:
        turn = asyncio.Event()
        self._line.append(turn)
        self._call_next()
        await turn.wait()
        try:
            await self._work_on(request.request_hash)
        finally:
            self._is_busy = False
            self._call_next()
        return ModelReply(text="{}")

    def _call_next(self) -> None:
        if self._line and not self._is_busy:
            self._is_busy = True
            self._line.pop().set()


@in_virtual_time
async def test_queue_that_begins_with_the_newest_loses_none() -> None:
    model, began = NewestFirst(takes=lambda _: 25.0), read_clock()
    asker, _ = await ask_all(model, 60)
    assert (asker.counts.requests, asker.counts.late, set(model.done.values())) == (60, 0, {1})
    assert read_clock() - began == pytest.approx(25.0 * 60)


@pytest.mark.parametrize("n_slots", [2, 4])
@in_virtual_time
async def test_request_that_some_overtake_is_not_given_up(n_slots: int) -> None:
    """A long request holds one slot while shorter ones pass it in the others."""
    model = LocalModel(takes=lambda name: 50.0 if name.endswith("7") else 15.0, n_slots=n_slots)
    asker, _ = await ask_all(model, 40)
    assert (asker.counts.requests, asker.counts.late, sum(model.done.values())) == (40, 0, 40)


@in_virtual_time
async def test_first_request_of_minutes_is_waited_for_on_this_machine() -> None:
    """A cold model that reads a long prompt on a busy machine was seen to take 170 s."""
    model = LocalModel(takes=lambda name: 400.0 if name == "s0" else 30.0, endpoint="http://127.0.0.1:8080/v1")
    asker, _ = await ask_all(model, 8)
    assert (asker.counts.requests, asker.counts.late) == (8, 0)


@pytest.mark.parametrize("concurrency", [1, 16])
@in_virtual_time
async def test_a_question_that_takes_longer_than_the_timeout_is_asked_again_at_once_and_longer(
    concurrency: int,
) -> None:
    """Asked in turn with the others, it would never be read to the end."""
    model = LocalModel(takes=lambda _: 200.0)
    asker, answers = await ask_all(model, 8, concurrency)
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    assert set(model.done.values()) == {1}, "what was read to the end was not asked for again"
    assert asker.counts.late <= 2 + concurrency
    assert read_clock() - 1000.0 <= 8 * 200.0 + 300.0


@in_virtual_time
async def test_fewer_are_sent_at_once_after_a_time_out() -> None:
    model = LocalModel(takes=lambda _: 100.0)
    asker, _ = await ask_all(model, 40)
    assert model.max_waiting == DEFAULTS.concurrency
    assert asker.limit.capacity.allowed <= DEFAULTS.concurrency // 2 + 1
    assert asker.counts.late == DEFAULTS.concurrency, "only the requests of the first minute"


@in_virtual_time
async def test_endpoint_that_never_answers_is_given_up_for_all_questions_at_once() -> None:
    began = read_clock()
    asker, answers = await ask_all(LocalModel(takes=lambda _: 1e9), 16)
    assert all(isinstance(answer, JudgeFailed) for answer in answers)
    assert asker.counts.requests == 16 * DEFAULTS.attempts
    assert read_clock() - began <= 2 * (60.0 + 120.0 + 3 * 240.0)


@in_virtual_time
async def test_lost_request_slows_no_other_down() -> None:
    lost = iter([1e9])
    model = LocalModel(takes=lambda name: next(lost, 2.0) if name == "s3" else 2.0, n_slots=16)
    asker, _ = await ask_all(model, 200)
    assert asker.counts.late == 1
    assert asker.limit.capacity.allowed == DEFAULTS.concurrency
    assert read_clock() - 1000.0 < 70.0


@pytest.mark.parametrize(
    ("endpoint", "near"),
    [
        ("http://localhost:11434/v1", True),
        ("http://127.0.0.1:8080/v1", True),
        ("http://[::1]:8080/v1", True),
        ("http://192.168.1.20:8000/v1", True),
        ("http://10.0.0.7/v1", True),
        ("http://ollama:11434/v1", True),
        ("http://host.docker.internal:11434/v1", True),
        ("https://api.openai.com/v1", False),
        ("https://8.8.8.8/v1", False),
        ("my_models:make_judge", False),
        ("", False),
    ],
)
def test_addresses_of_this_machine_and_its_network_are_known(endpoint: str, near: bool) -> None:
    assert is_near(endpoint) is near
    assert choose_timeout(None, endpoint) == (600 if near else 60)
    assert choose_timeout(7.0, endpoint) == 7
