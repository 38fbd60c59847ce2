"""Requests that go by batch: in rounds, found again by later processes, paid once also when processes die."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from endpoint import Endpoint, Raw, Trouble, make_error, running_endpoint
from endpoint_replies import Asked
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to, read_calls, read_outcomes
from provider_calls import make_question

from evalhouse.flows.preparing.batches import add_batch_queue
from evalhouse.flows.serving.backlog import has_left_batch
from evalhouse.tasks.asking import batches as queues
from evalhouse.tasks.asking.batches import BatchUnderWay
from evalhouse.tasks.asking.record import CallRecord
from evalhouse.tasks.asking.usage import Price
from evalhouse.tasks.extract import extract_statements
from evalhouse.tasks.judge.protocol import FatalJudgeError, RunCancelled, TransientJudgeError
from evalhouse.tasks.models.make import make_judge
from evalhouse.tasks.pipeline.live_run import LiveRun, make_work
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.runs import RunRow, now_utc
from evalhouse.warehouse.store import Warehouse

N_SAMPLES = 6
STEPS = {"extract_answer", "extract_ground_truth", "classify", "attribute_answer", "attribute_ground_truth", "rank"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, quick_backoff: None) -> None:
    """Shorten the time until a run counts as still, and between looks at a batch, to a twentieth of a second."""
    monkeypatch.setattr("evalhouse.tasks.asking.batches._STILL_LOOK_S", 0.01)
    monkeypatch.setattr("evalhouse.tasks.asking.batches._STILL_LOOKS", 5)
    monkeypatch.setattr("evalhouse.tasks.asking.batches._FIRST_LOOK_S", 0.03)
    monkeypatch.setattr("evalhouse.tasks.asking.batches._MAX_LOOK_S", 0.05)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(takes_s=0.0) as running:
        point_to(running.base_url)
        yield running


@asynccontextmanager
async def lay_out_night(
    folder: Path,
    run_id: str = "run-1",
    *,
    price: Price | None = None,
    **changes: Any,  # noqa: ANN401
) -> AsyncIterator[LiveRun]:
    settings = make_settings(batch=True, **changes)
    async with lay_out_run(folder, settings, run_id=run_id, price=price) as live_run:
        take_in_orphans(live_run.warehouse)
        add_batch_queue(live_run.asker, settings, run_id, live_run.warehouse)
        yield live_run


async def judge_night(
    folder: Path,
    run_id: str = "run-1",
    *,
    first: int = 1,
    **changes: Any,  # noqa: ANN401
) -> list[dict[str, str | None]]:
    async with lay_out_night(folder, run_id, **changes) as live_run:
        works = await judge_samples(live_run, [make_sample(number) for number in range(first, first + N_SAMPLES)])
        return [read_outcomes(work) for work in works]


def read_batches(folder: Path) -> list[dict[str, Any]]:
    sql = "select * from provider_batches order by noted_at, batch_id"
    return Warehouse(str(folder / "w.duckdb")).read_rows(sql)


async def test_a_night_takes_two_rounds_and_pays_each_request_once_at_the_rate(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    outcomes = await judge_night(tmp_path)
    assert all(set(outcome.values()) == {None} for outcome in outcomes)
    assert [len(batch.lines) for batch in endpoint.batches.values()] == [2 * N_SAMPLES, 4 * N_SAMPLES]
    calls = read_calls(tmp_path)
    assert Counter(call["step"] for call in calls) == dict.fromkeys(STEPS, N_SAMPLES)
    assert {(call["status"], call["batch_id"] is None, call["latency_ms"]) for call in calls} == {("ok", False, None)}
    assert set(endpoint.paid.values()) == {1}
    noted = read_batches(tmp_path)
    assert [row["status"] for row in noted] == ["planned", "sent", "over"] * 2
    assert {row["provider_batch_id"] for row in noted} == {None, "batch_1", "batch_2"}
    assert not list((tmp_path / "w.duckdb.journal").rglob("batches/*/*"))


class _Doom:
    """Kills a process at the n-th step of its batches: everything stops there."""

    def __init__(self, live_run: LiveRun, n: int) -> None:
        self._left = n
        self.struck = asyncio.Event()
        (of_run,) = live_run.batch_queues
        service, ledger = of_run.service, of_run._ledger
        object.__setattr__(ledger, "write", self._around_thread(ledger.write))
        for name in ("create", "look"):
            setattr(service, name, self._around(getattr(service, name)))
        service.fetch = self._around_lines(service.fetch)  # type: ignore[method-assign]

    async def _pass(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.struck.set()
            await asyncio.Event().wait()

    def _around(self, do: Callable[..., Any]) -> Callable[..., Any]:
        async def around(*arguments: Any) -> Any:  # noqa: ANN401
            await self._pass()
            done = await do(*arguments)
            await self._pass()
            return done

        return around

    def _around_thread(self, do: Callable[..., Any]) -> Callable[..., Any]:
        loop = asyncio.get_running_loop()

        def around(*arguments: Any, **named: Any) -> None:  # noqa: ANN401
            for act in (lambda: None, lambda: do(*arguments, **named)):
                self._left -= 1
                if self._left <= 0:
                    loop.call_soon_threadsafe(self.struck.set)
                    return
                act()

        return around

    def _around_lines(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        async def around(*arguments: Any) -> Any:  # noqa: ANN401
            async for line in fetch(*arguments):
                await asyncio.sleep(0)
                await self._pass()
                yield line

        return around


async def live_until(folder: Path, n: int) -> bool:
    """Run the process until it is killed at its n-th moment; return whether it ended before."""
    async with lay_out_night(folder) as live_run:
        doom = _Doom(live_run, n)
        judging = asyncio.create_task(
            judge_samples(live_run, [make_sample(number) for number in range(1, N_SAMPLES + 1)])
        )
        striking = asyncio.create_task(doom.struck.wait())
        await asyncio.wait([judging, striking], return_when=asyncio.FIRST_COMPLETED)
        striking.cancel()
        if not doom.struck.is_set():
            assert all(set(read_outcomes(work).values()) == {None} for work in await judging)
            return True
        judging.cancel()
        await asyncio.gather(judging, return_exceptions=True)
        for task in live_run.batch_queues[0]._tasks:  # that of a batch which ends is not cancelled by `close`
            task.cancel()
        lose_memory(live_run)
        return False


def lose_memory(live_run: LiveRun) -> None:
    """Keep only the journal's files of the record, as after `kill -9`."""
    record = live_run.asker.record
    assert isinstance(record, CallRecord)
    mover = record._mover
    mover._has_ended = True
    mover._wake.set()
    mover._thread.join()
    mover.journal.close()
    record.close = lambda: None  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
async def test_nothing_is_paid_twice_over_random_kills(endpoint: Endpoint, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    n_kills = 0
    while not await live_until(tmp_path, dice.randrange(1, 40)):
        n_kills += 1
    assert n_kills
    assert not endpoint.paid_twice
    calls = read_calls(tmp_path)
    good = Counter(call["request_hash"] for call in calls if call["status"] == "ok")
    assert set(good.values()) == {1}
    assert len(good) == len(endpoint.paid) == 6 * N_SAMPLES
    assert {call["status"] for call in calls} <= {"ok", "cached"}


async def test_an_answer_to_the_creation_that_is_lost_makes_no_second_batch(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.trouble = Trouble(lose_created=1, unreachable=2)
    await judge_night(tmp_path)
    assert len(endpoint.batches) == 2
    assert not endpoint.paid_twice


async def test_results_whose_download_breaks_off_are_fetched_again(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.trouble = Trouble(garbled=1, cut_results=2)
    outcomes = await judge_night(tmp_path)
    assert all(set(outcome.values()) == {None} for outcome in outcomes)
    assert (endpoint.trouble.garbled, endpoint.trouble.cut_results) == (0, 0)
    assert not endpoint.paid_twice


async def test_expired_and_refused_lines_are_handled_like_other_errors(endpoint: Endpoint, tmp_path: Path) -> None:
    limited: Counter[str] = Counter()

    def answer_line(asked: Asked) -> Raw | None:
        if asked.kind == "rank" and "lighthouse 2" in asked.texts[-1]:
            return make_error(400, "flagged by the content filter", code="content_filter")
        limited[asked.kind] += 1
        return make_error(429, "Rate limit reached") if asked.kind == "classify" and limited["classify"] == 1 else None

    endpoint.trouble = Trouble(expire=[0.5], answer_line=answer_line)
    outcomes = await judge_night(tmp_path)
    reasons = Counter((step, reason) for outcome in outcomes for step, reason in outcome.items() if reason)
    assert reasons == {("rank", "judge_failed"): 1}
    calls = read_calls(tmp_path)
    failed = Counter((call["status"], (call["error"] or "")[:3]) for call in calls if call["status"] != "ok")
    assert failed == {("error", "the"): N_SAMPLES, ("error", "sta"): 1, ("refused", "con"): 1}
    assert all(call["batch_id"] for call in calls)
    assert not endpoint.paid_twice


async def test_unusable_reply_is_asked_again_in_the_next_round(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(script={"rank": ["I would rather not."]})
    outcomes = await judge_night(tmp_path)
    assert all(set(outcome.values()) == {None} for outcome in outcomes)
    ranked = [call for call in read_calls(tmp_path) if call["step"] == "rank"]
    assert Counter(call["status"] for call in ranked) == {"ok": N_SAMPLES, "error": 1}
    assert [len(batch.lines) for batch in endpoint.batches.values()] == [12, 24, 1]


async def test_a_provider_with_no_room_gets_less_at_once(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.trouble = Trouble(fail=[{"code": "token_limit_exceeded", "message": "Enqueued token limit reached"}])
    outcomes = await judge_night(tmp_path)
    assert all(set(outcome.values()) == {None} for outcome in outcomes)
    assert [len(batch.lines) for batch in endpoint.batches.values()] == [12, 6, 6, 6, 6, 6, 6]
    assert not endpoint.paid_twice


async def test_a_batch_that_is_not_taken_stops_the_run_with_the_reason(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.trouble = Trouble(fail=[{"code": "model_not_found", "message": "The model `judge` is not supported."}])
    async with lay_out_night(tmp_path) as live_run:
        with pytest.raises(FatalJudgeError, match="did not take the batch batch_1: The model `judge` is not supported"):
            await extract_statements(live_run, make_work(make_sample()))


async def test_after_the_deadline_the_rest_is_asked_by_itself(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.takes_s = None
    outcomes = await judge_night(tmp_path, deadline="1s")
    assert all(set(outcome.values()) == {None} for outcome in outcomes)
    (batch,) = endpoint.batches.values()
    assert batch.status == "cancelled"
    by_batch = Counter(call["batch_id"] is not None for call in read_calls(tmp_path))
    assert by_batch == {True: len({*batch.answered}) - 1, False: 6 * N_SAMPLES - (len({*batch.answered}) - 1)}
    assert not endpoint.paid_twice


async def test_a_budget_holds_for_what_a_batch_will_cost(endpoint: Endpoint, tmp_path: Path) -> None:
    price = Price(input_usd=1.0, output_usd=1.0)
    async with lay_out_night(tmp_path, budget_usd=0.01, price=price) as live_run:
        works = await judge_samples(live_run, [make_sample(number) for number in range(1, N_SAMPLES + 1)])
        assert live_run.usage.spent_usd < 0.01
    reasons = {reason for work in works for reason in read_outcomes(work).values()}
    assert "budget_exhausted" in reasons
    assert 0 < sum(len(batch.lines) for batch in endpoint.batches.values()) < 6 * N_SAMPLES


async def test_a_run_that_is_stopped_leaves_its_batch_and_a_later_one_fetches_it(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.takes_s = None
    warnings: list[str] = []
    monkeypatch.setattr(queues.logger, "warning", lambda text, *parts: warnings.append(text % parts))
    async with lay_out_night(tmp_path) as live_run:
        judging = asyncio.create_task(extract_statements(live_run, make_work(make_sample())))
        while live_run.batch_queues[0].describe() is None:
            await asyncio.sleep(0.01)
        live_run.stop(RunCancelled("stopped by SIGINT"), drain_s=0.0)
        with pytest.raises(RunCancelled, match="SIGINT"):
            await judging
    assert "2 requests stay with the provider in batch_1; nothing is cancelled there" in warnings[0]
    assert read_calls(tmp_path) == []
    endpoint.takes_s = 0.0
    await judge_night(tmp_path, "run-2")
    assert not endpoint.paid_twice
    assert {call["run_id"] for call in read_calls(tmp_path)} == {"run-2"}


@pytest.mark.parametrize("first", [1 + N_SAMPLES, N_SAMPLES - 1], ids=["other samples", "some of them"])
async def test_a_batch_that_a_stopped_run_left_stays_there_for_it(
    endpoint: Endpoint, tmp_path: Path, first: int
) -> None:
    """Another run fetched it, dropped the answers that it had no use for, and noted that the batch was over."""
    endpoint.takes_s = None
    async with lay_out_night(tmp_path) as live_run:
        works = [make_work(make_sample(number)) for number in range(1, N_SAMPLES + 1)]
        judging = asyncio.gather(*(extract_statements(live_run, work) for work in works))
        while live_run.batch_queues[0].describe() is None:
            await asyncio.sleep(0.01)
        live_run.stop(RunCancelled("stopped by SIGINT"), drain_s=0.0)
        with pytest.raises(RunCancelled):
            await judging
    endpoint.takes_s = 0.0
    await judge_night(tmp_path, "run-2", first=first)
    await judge_night(tmp_path)
    assert not endpoint.paid_twice


async def test_past_the_deadline_all_is_asked_by_itself_where_no_batch_is_taken(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The creation was tried for ever, and the deadline did not count."""

    async def refuse(*_: object) -> None:
        raise TransientJudgeError("status 503")

    monkeypatch.setattr("evalhouse.tasks.models.openai_batches.OpenAIBatches.create", refuse)
    outcomes = await judge_night(tmp_path, deadline="1s")
    assert all(set(outcome.values()) == {None} for outcome in outcomes)
    assert not endpoint.batches
    assert not endpoint.paid_twice


async def test_two_runs_at_once_share_the_batches_of_all_rounds(endpoint: Endpoint, tmp_path: Path) -> None:
    """The second round, which is the dearer one, was sent and paid twice. Either run may send a round."""
    endpoint.takes_s = 0.5
    one, other = await asyncio.gather(judge_night(tmp_path, "run-1"), judge_night(tmp_path, "run-2"))
    assert one == other
    assert not endpoint.paid_twice
    assert len(endpoint.batches) == 2


async def test_a_run_that_waits_for_anothers_upload_says_so_and_keeps_its_deadline(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("evalhouse.tasks.asking.batches._SHOWN_WAIT_S", 0.05)
    async with lay_out_night(tmp_path, "other") as other:
        with other.batch_queues[0]._ledger.hold_turn():
            outcomes = await judge_night(tmp_path, deadline="1s")
    assert all(set(outcome.values()) == {None} for outcome in outcomes)
    assert [message for message in caplog.messages if "another run is sending a batch" in message] != []
    assert not endpoint.batches


async def test_run_that_need_not_wait_leaves_its_batch(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.takes_s = None
    async with lay_out_night(tmp_path) as live_run:
        live_run.batch_queues[0].leave_after(0.2)
        with pytest.raises(BatchUnderWay) as left:
            await extract_statements(live_run, make_work(make_sample()))
    row = RunRow(run_id="run-1", judge="openai:judge", started_at=now_utc(), config={}, status="cancelled")
    assert has_left_batch(replace(row, problem=str(left.value)))
    assert not has_left_batch(replace(row, problem="stopped by SIGINT"))
    assert [batch.status for batch in endpoint.batches.values()] != ["cancelled"], "it continues at the provider"
    endpoint.takes_s = 0.0
    await judge_night(tmp_path)
    assert not endpoint.paid_twice


@pytest.mark.slow
async def test_anthropic_takes_a_night_in_message_batches(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", endpoint.root_url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    settings = make_settings(batch=True, judge="anthropic:claude-test")

    def answer_line(asked: Asked) -> Raw | None:
        is_refused = asked.kind == "rank" and "lighthouse 2" in asked.texts[-1]
        return make_error(400, "prompt is too long: 300000 tokens > 200000 maximum") if is_refused else None

    endpoint.trouble = Trouble(lose_created=1, expire=[0.5], answer_line=answer_line, garbled=1, cut_results=1)
    async with lay_out_run(tmp_path, settings, judge=make_judge(settings)) as live_run:
        add_batch_queue(live_run.asker, settings, "run-1", live_run.warehouse)
        works = await judge_samples(live_run, [make_sample(number) for number in range(1, N_SAMPLES + 1)])
    reasons = Counter((step, why) for work in works for step, why in read_outcomes(work).items() if why)
    assert reasons == {("rank", "judge_failed"): 1}
    assert not endpoint.paid_twice
    calls = read_calls(tmp_path)
    assert Counter(call["status"] for call in calls) == {"ok": 6 * N_SAMPLES - 1, "refused": 1, "error": N_SAMPLES}
    assert all(call["batch_id"] and call["judge"] == "anthropic:claude-test" for call in calls)
    assert all(call["prompt_tokens"] and call["completion_tokens"] for call in calls if call["status"] == "ok")
    # Of each prompt's requests the first has no mark, the second fills the cache, and the rest find it there.
    assert sum(bool(call["cached_tokens"]) for call in calls) >= len(calls) - N_SAMPLES - 2 * 4 - 1


@pytest.mark.slow
async def test_an_invalid_line_of_anthropics_results_is_asked_again_and_no_other(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", endpoint.root_url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    settings = make_settings(batch=True, judge="anthropic:claude-test")
    endpoint.trouble = Trouble(damaged=1)
    async with lay_out_run(tmp_path, settings, judge=make_judge(settings)) as live_run:
        add_batch_queue(live_run.asker, settings, "run-1", live_run.warehouse)
        works = await judge_samples(live_run, [make_sample(number) for number in range(1, N_SAMPLES + 1)])
    assert not [why for work in works for why in read_outcomes(work).values() if why]
    assert (endpoint.trouble.damaged, endpoint.paid_twice) == (0, [])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of models that end some day
@pytest.mark.parametrize("model", ["claude-haiku-4-5", "claude-sonnet-4-5", "claude-opus-4-1"])
async def test_requests_of_models_with_long_replies_are_written(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """Their client refuses to ask for a reply of 64,000 tokens at once, where it has a time limit."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    judge = make_judge(make_settings(batch=True, judge=f"anthropic:{model}"))
    service = queues.find_batches(judge)
    assert service is not None
    line = json.loads(service.write_line("one", judge.prepare(make_question())))
    assert (line["custom_id"], line["params"]["model"]) == ("one", model)
    await judge.close()
