"""Replies on record: found by all that was asked, the newest good one, and quickly."""

import hashlib
import time
from pathlib import Path

from warehouse_processes import make_warehouse
from warehouse_runs import hash_request, make_call, make_row

from evalhouse.warehouse.engine.connection import open_writer
from evalhouse.warehouse.rows.calls import StoredReply, find_replies, make_request_key
from evalhouse.warehouse.store import Batch, Warehouse, build_frame


def keep_calls(warehouse: Warehouse, *rows: dict[str, object]) -> None:
    frame = build_frame("llm_calls", rows)
    warehouse.append(Batch(key=f"calls {len(rows)} {frame.hash_rows().sum()}", run_id="r", tables={"llm_calls": frame}))


def test_the_newest_good_reply_is_found_with_its_own_call(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    keep_calls(
        warehouse,
        make_call(3, "a", reply="newest"),
        make_call(1, "a", reply="older"),
        make_call(5, "a", reply="reused", status="cached"),
        make_call(6, "a", reply=None, status="error"),
        make_call(7, "a", reply=None),
        make_call(2, "b", reply="other"),
    )
    found = find_replies(warehouse, [hash_request(text) for text in "abc"])
    assert found == {
        hash_request("a"): StoredReply(call_id="c3", reply="newest"),
        hash_request("b"): StoredReply(call_id="c2", reply="other"),
    }


def test_only_this_run_is_searched_when_asked_again(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    keep_calls(warehouse, make_call(1, "a", run_id="mine"), make_call(2, "a", run_id="other"))
    assert find_replies(warehouse, [hash_request("a")], only_runs=["mine"])[hash_request("a")].call_id == "c1"
    assert find_replies(warehouse, [hash_request("a")], only_runs=["mine", "other"])[hash_request("a")].call_id == "c2"
    assert find_replies(warehouse, [hash_request("a")], only_runs=["none"]) == {}


def test_requests_with_one_narrow_key_are_distinguished(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    twins = [f"{'f' * 16}{'0' * 47}{digit}" for digit in "01"]
    assert {make_request_key(twin) for twin in twins} == {2**64 - 1}
    keep_calls(warehouse, make_row(1, request_hash=twins[0], request_key=2**64 - 1))
    assert list(find_replies(warehouse, twins)) == [twins[0]]
    assert find_replies(warehouse, [twins[1]]) == {}


def test_keys_of_any_size_are_found_in_one_look_up(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    hashes = [f"{digit}{'0' * 63}" for digit in "0123456789abcdef"]
    keep_calls(
        warehouse,
        *(
            make_row(number, request_hash=request_hash, request_key=make_request_key(request_hash))
            for number, request_hash in enumerate(hashes)
        ),
    )
    for wanted in (hashes, hashes[:1], hashes[-1:], hashes * 200):
        found = find_replies(warehouse, wanted)
        assert {name: reply.call_id for name, reply in found.items()} == {
            name: f"c{hashes.index(name)}" for name in wanted
        }


def test_a_look_up_among_many_calls_takes_a_moment(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    n = 150_000
    with open_writer(warehouse.location, patience_s=5) as con:
        con.execute(
            """
            insert into llm_calls (call_id, run_id, step, judge, request_hash, request_key, status, attempts,
                                   started_at, reply)
            select 'c' || i, 'r', 's', 'j', sha256(i::varchar), ('0x' || sha256(i::varchar)[:16])::ubigint, 'ok', 1,
                   timestamp '2026-01-01', repeat(md5(i::varchar), 20)
            from range($n) numbers (i)
            """,
            {"n": n},
        )
    wanted = [hash_request(str(number)) for number in range(n - 400, n)]
    times = []
    for _ in range(3):
        began = time.perf_counter()
        found = find_replies(warehouse, wanted)
        times.append(time.perf_counter() - began)
    assert len(found) == 400
    assert found[wanted[0]].reply == hashlib.md5(str(n - 400).encode()).hexdigest() * 20
    # 0.04 s on two busy cores. Unpacking every reply takes a second.
    assert min(times) < 0.4
