"""The record of a run: what was asked is found again at once, later, and in another run; no caller waits for ever."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from live_runs import (
    ScriptedJudge,
    judge_samples,
    lay_out_run,
    make_sample,
    make_settings,
    open_warehouse,
    read_outcomes,
    say_good,
)

from evalhouse.tasks.asking.record import ORIGIN, Call, CallRecord, Origin
from evalhouse.tasks.extract import extract_statements
from evalhouse.tasks.judge.protocol import (
    FatalJudgeError,
    hash_canonical,
)
from evalhouse.tasks.pipeline.live_run import make_work
from evalhouse.warehouse.engine.connection import open_writer
from evalhouse.warehouse.engine.locks import Claims
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.mover import FLUSH_POLICIES, take_in_orphans
from evalhouse.warehouse.store import Warehouse


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return open_warehouse(tmp_path)


@asynccontextmanager
async def open_record(
    warehouse: Warehouse, run_id: str = "run-1", *, fresh: bool = False, beside: Sequence[str] = ()
) -> AsyncIterator[CallRecord]:
    record = CallRecord(warehouse, run_id, fresh=fresh, beside=beside)
    try:
        yield record
    finally:
        await asyncio.to_thread(record.close)


def move_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.warehouse.mover._PATIENCE_S", 0.02)
    monkeypatch.setitem(FLUSH_POLICIES, "llm_calls", replace(FLUSH_POLICIES["llm_calls"], every_s=0.02))


def make_call(number: int = 1, **changes: Any) -> Call:  # noqa: ANN401  # fields of Call
    columns: dict[str, Any] = {
        "step": "classify", "sample_id": f"s{number}", "prompt": "classify", "prompt_hash": "p", "judge": "j",
        "model": "m", "request_hash": hash_canonical(number), "status": "ok", "attempt": 1, "request": '{"n": 1}',
        "reply": f'{{"n": {number}}}', "started_at": 1_700_000_000.0 + number,
    }  # fmt: skip
    return Call(**{**columns, **changes})


async def test_a_call_is_found_before_it_is_moved_and_afterwards(warehouse: Warehouse) -> None:
    async with open_record(warehouse) as record:
        call_id = record.keep(make_call())
        assert warehouse.read("select * from llm_calls").is_empty()
        found = await record.find(make_call().request_hash)
        assert found is not None
        assert (found.call_id, found.reply) == (call_id, '{"n": 1}')
    async with open_record(warehouse, "run-2") as record:
        later = await record.find(make_call().request_hash)
        assert later is not None
        assert (later.call_id, later.reply) == (call_id, '{"n": 1}')
        assert await record.find(make_call(2).request_hash) is None


async def test_a_call_is_found_by_the_same_run_after_it_was_moved(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_at_once(monkeypatch)
    async with open_record(warehouse) as record:
        assert await record.find(make_call(1).request_hash) is None
        record.keep(make_call(1))
        async with asyncio.timeout(5):
            while warehouse.read("select * from llm_calls").is_empty():
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        assert await record.find(make_call(1).request_hash) is not None


async def test_all_columns_reach_the_table(warehouse: Warehouse) -> None:
    ORIGIN.set(Origin(flow_run_id="flow", task_run_id="task"))
    async with open_record(warehouse) as record:
        call = make_call(3, prompt_tokens=5, completion_tokens=6, cost_usd=0.1, latency_ms=2.5, model="m-2025")
        call_id = record.keep(call)
    (row,) = warehouse.read_rows("select * from llm_calls")
    assert row["request_key"] == int(call.request_hash[:16], 16)
    assert {name: row[name] for name in ("call_id", "run_id", "flow_run_id", "task_run_id", "attempts", "model")} == {
        "call_id": call_id, "run_id": "run-1", "flow_run_id": "flow", "task_run_id": "task", "attempts": 1,
        "model": "m-2025",
    }  # fmt: skip
    assert (row["prompt_tokens"], row["completion_tokens"], row["cost_usd"], row["latency_ms"]) == (5, 6, 0.1, 2.5)
    assert str(row["started_at"]) == "2023-11-14 22:13:23"
    assert orjson.loads(row["request"]) == {"n": 1}


@pytest.mark.parametrize("status", ["error", "refused", "cached"])
async def test_only_good_replies_are_used_again(warehouse: Warehouse, status: str) -> None:
    async with open_record(warehouse) as record:
        record.keep(make_call(status=status))
        assert await record.find(make_call().request_hash) is None
    async with open_record(warehouse, "run-2") as record:
        assert await record.find(make_call().request_hash) is None


async def test_fresh_asks_again_but_not_twice_within_one_run(warehouse: Warehouse) -> None:
    async with open_record(warehouse) as record:
        record.keep(make_call(1))
    async with open_record(warehouse, "run-2", fresh=True) as record:
        assert await record.find(make_call(1).request_hash) is None
        own = record.keep(make_call(1, reply='{"n": "new"}'))
        assert (await record.find(make_call(1).request_hash)).call_id == own  # type: ignore[union-attr]
    async with open_record(warehouse, "run-2", fresh=True) as resumed:
        assert (await resumed.find(make_call(1).request_hash)).call_id == own  # type: ignore[union-attr]
    async with open_record(warehouse, "run-3", fresh=True, beside=["run-2"]) as variant:
        assert (await variant.find(make_call(1).request_hash)).call_id == own  # type: ignore[union-attr]


async def test_what_a_killed_process_left_in_the_journal_is_found(warehouse: Warehouse) -> None:
    record = CallRecord(warehouse, "run-1")
    call_id = record.keep(make_call())
    record._mover.journal._lock.release()  # as the system does when the process is killed
    assert take_in_orphans(warehouse) == 1
    async with open_record(warehouse, "run-1") as resumed:
        assert (await resumed.find(make_call().request_hash)).call_id == call_id  # type: ignore[union-attr]
    await asyncio.to_thread(record.close)
    assert warehouse.read("select count(*) as n from llm_calls")["n"][0] == 1


async def test_many_look_ups_at_once_are_few_queries(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_record(warehouse) as record:
        for number in range(300):
            record.keep(make_call(number))
    queries: list[str] = []
    read = Warehouse.read

    def counting_read(self: Warehouse, sql: str, *rest: Any, **more: Any) -> Any:  # noqa: ANN401  # a frame
        queries.append(sql)
        return read(self, sql, *rest, **more)

    monkeypatch.setattr(Warehouse, "read", counting_read)
    async with open_record(warehouse, "run-2") as record:
        found = await asyncio.gather(*(record.find(make_call(number).request_hash) for number in range(600)))
    assert [reply is not None for reply in found] == [number < 300 for number in range(600)]
    assert len(queries) <= 4


async def test_unreadable_warehouse_fails_all_waiters(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_record(warehouse) as record:
        for number in range(3):
            record.keep(make_call(number))
    async with open_record(warehouse, "run-2") as record:
        await record.find(make_call(9).request_hash)
        for error in (WarehouseError("torn file"), RuntimeError("a bug")):

            def fail(*_: object, error: Exception = error, **__: object) -> None:
                raise error

            monkeypatch.setattr("evalhouse.tasks.asking.record.find_replies", fail)
            asked = (record.find(make_call(number).request_hash) for number in range(3))
            async with asyncio.timeout(5):
                results = await asyncio.gather(*asked, return_exceptions=True)
            assert [str(result) for result in results] == [str(error)] * 3
        monkeypatch.undo()
        assert await record.find(make_call(1).request_hash) is not None


async def test_a_locked_file_stops_no_run_and_loses_no_call(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_at_once(monkeypatch)
    locked, free = threading.Event(), threading.Event()

    def keep_file() -> None:
        with open_writer(warehouse.location, patience_s=1):
            locked.set()
            free.wait(10)

    keeper = threading.Thread(target=keep_file)
    keeper.start()
    locked.wait(5)
    async with open_record(warehouse) as record:
        for number in range(20):
            record.keep(make_call(number))
            await asyncio.sleep(0.01)
        free.set()
    keeper.join()
    assert warehouse.read("select count(*) as n from llm_calls")["n"][0] == 20


async def test_a_failing_warehouse_stops_the_run_with_the_reply_safe_on_disk(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise WarehouseError("no space left")

    move_at_once(monkeypatch)
    record = CallRecord(warehouse, "run-1")
    monkeypatch.setattr("evalhouse.warehouse.mover.take_in_segment", refuse)
    record.keep(make_call(1))
    async with asyncio.timeout(5):
        while record._mover.failure is None:
            await asyncio.sleep(0.02)
    with pytest.raises(FatalJudgeError, match="cannot be taken into the warehouse: no space left"):
        record.keep(make_call(2))
    monkeypatch.undo()
    await asyncio.to_thread(record.close)
    assert warehouse.read("select count(*) as n from llm_calls")["n"][0] == 2


@pytest.mark.parametrize("steps_apart", [0, 1], ids=["at once", "one after the other"])
async def test_two_runs_at_once_share_what_is_in_flight(tmp_path: Path, steps_apart: float) -> None:
    samples = [make_sample(number) for number in range(1, 9)]

    async def judge(run_id: str, wait_s: float) -> int:
        judge = ScriptedJudge(say_good, latency_s=0.05)
        async with lay_out_run(tmp_path, make_settings(concurrency=4), judge=judge, run_id=run_id) as live_run:
            await asyncio.sleep(wait_s)
            works = await judge_samples(live_run, samples)
            assert not any(read_outcomes(work)[step] for work in works for step in read_outcomes(work))
            assert live_run.asker.counts.requests + live_run.asker.counts.reused == n_alone
            return len(judge.asked)

    n_alone = 4 * len(samples) + 2 * len(samples)
    n_asked = await asyncio.gather(judge("first", 0.0), judge("second", 0.2 * steps_apart))
    assert sum(n_asked) == n_alone


async def test_claim_of_a_run_ends_with_its_call_and_with_its_record(warehouse: Warehouse) -> None:
    one, two, three = (make_call(number).request_hash for number in (1, 2, 3))
    async with open_record(warehouse, "run-2") as other:
        async with open_record(warehouse) as record:
            assert [record.claim(name) for name in (one, two, three)] == [True] * 3
            assert [other.claim(name) for name in (one, two, three)] == [False] * 3
            record.keep(make_call(1, status="error", reply=None))
            assert other.claim(one), "what failed there is asked here"
            record.keep(make_call(2))
            assert not other.claim(two), "what was answered there is not asked here"
            assert (await other.find(two)) == (await record.find(two))
        assert not other.claim(two), "nor what was moved into the warehouse while it waited for its turn"
        assert other.claim(three), "the claim of a run that has ended is void"
        assert await other.find(two) is not None, "it is in the warehouse now"
        other.keep(make_call(3))
    assert not list(warehouse.location.journal_path.glob("claims"))


async def test_a_process_that_was_stopped_checks_again_what_others_asked_meanwhile(
    warehouse: Warehouse,
) -> None:
    """Their journals came, were moved and went unseen: each of their requests was paid twice."""
    one, two = (make_call(number).request_hash for number in (1, 2))
    async with open_record(warehouse) as record:
        assert await record.find(one) is await record.find(two) is None
        async with open_record(warehouse, "run-2") as other:
            other.keep(make_call(1))
        assert record._others is not None
        record._others._looked_at -= 60.0
        assert not record.claim(one)
        assert not record.claim(two), "nor is what waited for its turn before the stop"
        assert await record.find(one) is not None
        assert await record.find(two) is None
        assert record.claim(two)


async def test_run_that_asks_all_again_claims_nothing(warehouse: Warehouse) -> None:
    async with open_record(warehouse) as record, open_record(warehouse, "run-2", fresh=True) as fresh:
        assert record.claim(make_call().request_hash)
        assert fresh.claim(make_call().request_hash)


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "hangs"])
async def test_no_question_waits_longer_for_another_process_than_a_reply_may_take(
    tmp_path: Path, warehouse: Warehouse, ends: bool
) -> None:
    judge = ScriptedJudge(say_good)
    async with lay_out_run(tmp_path, make_settings(timeout_s=0.6), judge=judge) as live_run:
        holder = CallRecord(warehouse, "run-2")
        claim, hashes = live_run.asker.record.claim, list[str]()

        def note(request_hash: str) -> bool:
            if request_hash not in hashes:
                hashes.append(request_hash)
                holder.claim(request_hash)
            return claim(request_hash)

        live_run.asker.record.claim = note  # type: ignore[method-assign]
        asking = asyncio.create_task(extract_statements(live_run, make_work(make_sample())))
        await asyncio.sleep(0.3)
        assert not judge.asked
        if ends:
            holder.close()
        began_at = time.monotonic()
        async with asyncio.timeout(5):
            await asking
        assert len(judge.asked) == 2
        assert time.monotonic() - began_at < (0.5 if ends else 3)
        if not ends:
            holder.close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, None])
def test_every_claim_is_granted_without_locks_or_where_their_file_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number or 0))

    (tmp_path / "folder").mkdir()
    if number is not None:
        monkeypatch.setattr("fcntl.fcntl", fail)
    for path in (tmp_path / "claims",) if number else (tmp_path / "folder", tmp_path / "gone" / "claims"):
        claims = [Claims(path), Claims(path)]
        assert [one.take(7) for one in claims] == [True, True]
        for one in claims:
            one.release(7)
            one.close()


def test_claims_of_a_killed_process_are_void(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from evalhouse.warehouse.engine.locks import Claims; "
        "claims = Claims(Path(sys.argv[1])); print(claims.take(7), flush=True); time.sleep(100)"
    )
    path = tmp_path / "claims"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        claims = Claims(path)
        assert not claims.take(7)
        process.kill()
        process.wait()
    assert claims.take(7)
    claims.close()
    assert not path.exists()
