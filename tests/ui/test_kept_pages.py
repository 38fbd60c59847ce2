"""Pages that are kept for the next who asks: held as long as nothing they show has changed, and no longer."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from history_nights import Size, write_nights
from starlette.testclient import TestClient
from ui_house import make_client
from warehouse_runs import make_run

from evalhouse.flows.ui import app, kept_pages
from evalhouse.flows.ui.app import list_common
from evalhouse.flows.ui.kept_pages import Turns
from evalhouse.warehouse.engine.connection import serving_reads
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import insert_run, store_ended, update_run
from evalhouse.warehouse.store import Warehouse

AS_OF = re.compile(r"As of \d\d:\d\d:\d\d UTC")


class Asked:
    """A client that knows how many queries its last page made."""

    def __init__(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = client
        self.n_queries = 0
        monkeypatch.setattr(Warehouse, "read", lambda *a, _read=Warehouse.read, **k: self._read(_read, *a, **k))

    def _read(self, read: object, *arguments: object, **named: object) -> pl.DataFrame:
        if "stored_runs" not in str(arguments[1]) and arguments[1] != "select 1":  # what the keeping itself looks at
            self.n_queries += 1
        return read(*arguments, **named)  # type: ignore[operator,no-any-return]

    def is_kept(self, address: str) -> bool:
        """Whether a page comes without a query; it must be there."""
        self.n_queries = 0
        answer = self.client.get(address)
        assert answer.status_code == 200, answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        return self.n_queries == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("kept") / "w.duckdb"
    write_nights(path, Size(nights=3, samples=60, metrics=2))
    Warehouse(str(path)).migrate()
    store_ended(Warehouse(str(path)))
    return path.read_bytes()


@pytest.fixture
def warehouse(made: bytes, tmp_path: Path) -> Iterator[Warehouse]:
    (tmp_path / "w.duckdb").write_bytes(made)
    found = Warehouse(str(tmp_path / "w.duckdb"))
    with serving_reads(found.location):
        yield found


@pytest.fixture
def run_id(warehouse: Warehouse) -> str:
    return str(warehouse.read("select max(run_id) from runs where kind = 'evaluation'").item())


@pytest.fixture
def asked(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setattr(kept_pages, "_STALE_S", -1.0)
    monkeypatch.setattr(app, "list_common", lambda _: [])  # pages that nobody has asked for yet are no test's business
    return Asked(make_client(str(warehouse.location.path)), monkeypatch)


def test_while_no_run_is_under_way_a_page_holds_until_anything_is_written(
    asked: Asked, warehouse: Warehouse, run_id: str
) -> None:
    for address in ("/", "/runs", "/runs/latest", f"/runs/{run_id}/samples"):
        assert [asked.is_kept(address) for _ in range(2)] == [False, True]
    assert not asked.is_kept("/runs?words=other")
    update_run(warehouse, run_id, label="another")
    assert not asked.is_kept("/runs")
    assert "another" in asked.client.get("/runs").text


def test_while_one_is_under_way_pages_of_those_that_have_ended_hold(
    asked: Asked, warehouse: Warehouse, run_id: str
) -> None:
    insert_run(warehouse, make_run("live", minute=5))
    pages = (f"/runs/{run_id}", f"/runs/{run_id}/samples")
    for address in pages:
        assert not asked.is_kept(address)
    write(warehouse, "live")
    assert [asked.is_kept(address) for address in pages] == [True, True]
    write(warehouse, run_id)  # what was stored of it no longer holds
    assert not asked.is_kept(pages[0])


@pytest.mark.parametrize("holds", [True, False])
def test_while_one_is_under_way_pages_of_it_and_of_many_hold_for_some_seconds(
    asked: Asked, warehouse: Warehouse, run_id: str, monkeypatch: pytest.MonkeyPatch, holds: bool
) -> None:
    for kind in ("_MANY_S", "_LIVE_S"):
        monkeypatch.setattr(kept_pages, kind, 1e6 if holds else 1e-9)
    monkeypatch.setattr(kept_pages, "_TIMES_MAKING", 0.0)
    insert_run(warehouse, make_run("now", minute=5))
    for address in ("/", "/runs", "/costs", "/runs/latest", "/runs/now", f"/runs/{run_id}/samples?base=now"):
        assert [asked.is_kept(address) for _ in range(2)] == [False, holds], address


def write(warehouse: Warehouse, run_id: str) -> None:
    named = {"run": run_id}
    with warehouse.writing(run_id=run_id) as connection:
        connection.execute(
            "insert into scores by name select * replace ($run as run_id) from scores limit 5", {"run": run_id}
        )
        connection.execute("delete from stored_parts where run_id = $run", named)


@pytest.mark.parametrize(
    "change",
    [
        "insert into reviews by name select $run as run_id, 'tide-1' as sample_id, 'rank' as step, 'useful' as label, "
        "'x' as reviewer, now()::timestamp as reviewed_at, 'h' as item_hash, 'q' as question_hash, 'useful' as "
        "judge_label, now()::timestamp as imported_at, 1 as context_rank",
        "update runs set label = 'new' where run_id = $run",
        "update stored_parts set stored_at = now()::timestamp where run_id = $run",
    ],
)
def test_what_a_person_does_meanwhile_shows(asked: Asked, warehouse: Warehouse, run_id: str, change: str) -> None:
    insert_run(warehouse, make_run("live", minute=5))
    assert [asked.is_kept(f"/runs/{run_id}") for _ in range(2)] == [False, True]
    with warehouse.writing() as connection:
        connection.execute(change, {"run": run_id})
    assert not asked.is_kept(f"/runs/{run_id}")


def test_while_a_run_writes_what_has_ended_may_be_a_few_seconds_old_but_not_after_a_word_of_ones_own(
    asked: Asked, warehouse: Warehouse, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_pages, "_STALE_S", 60.0)
    monkeypatch.setattr(kept_pages, "_FRESH_S", 60.0)
    insert_run(warehouse, make_run("live", minute=5))
    assert [asked.is_kept(f"/runs/{run_id}") for _ in range(2)] == [False, True]
    update_run(warehouse, run_id, label="another")
    assert asked.is_kept(f"/runs/{run_id}")
    own = {"origin": str(asked.client.base_url).rstrip("/")}
    assert asked.client.post("/nowhere", headers=own).status_code in (404, 405)
    assert [asked.is_kept(f"/runs/{run_id}") for _ in range(2)] == [False, True]
    update_run(warehouse, run_id, label="a third")
    monkeypatch.setattr(kept_pages, "_FRESH_S", -1.0)
    deadline = time.monotonic() + 10
    while asked.is_kept(f"/runs/{run_id}"):  # looked at meanwhile
        assert time.monotonic() < deadline


def test_who_asks_may_see_another_page(asked: Asked) -> None:
    assert [asked.is_kept("/runs") for _ in range(2)] == [False, True]
    asked.client.cookies.set("reviewer", "maud")
    assert [asked.is_kept("/runs") for _ in range(2)] == [False, True]


def test_no_more_is_kept_than_there_is_room_for_nor_longer_than_a_minute(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(asked.client.get("/runs?words=0").content)
    monkeypatch.setattr(kept_pages, "_MOST_BYTES", 2 * size + 1)
    assert [asked.is_kept(f"/runs?words={number}") for number in (1, 2, 3)] == [False] * 3
    assert [asked.is_kept(f"/runs?words={number}") for number in (2, 3, 1)] == [True, True, False]
    monkeypatch.setattr(kept_pages, "_KEPT_S", -1.0)
    assert [asked.is_kept("/runs?words=4") for _ in range(2)] == [False, False]


@pytest.mark.parametrize("address", ["/live", "/runs/latest/live", "/runs/latest/samples.csv"])
def test_what_must_be_of_this_moment_is_never_kept(asked: Asked, address: str) -> None:
    assert [asked.is_kept(address) for _ in range(2)] == [False, False]


def test_beside_a_run_a_page_that_takes_long_is_shown_as_it_was_and_says_as_of_when(
    asked: Asked, warehouse: Warehouse, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_pages, "_PATIENCE_S", 0.0)
    insert_run(warehouse, make_run("live", minute=5))
    address = f"/runs/{run_id}"
    with asked.client as client:
        assert AS_OF.search(client.get(address).text) is None
        update_run(warehouse, run_id, label="another")
        earlier = client.get(address)
        assert AS_OF.search(earlier.text)
        assert "another" not in earlier.text
        assert int(earlier.headers["age"]) < 60
        assert int(earlier.headers["content-length"]) == len(earlier.content)
        wait_until(lambda: "another" in client.get(address).text)
        assert AS_OF.search(client.get(address).text) is None  # it holds, however old it is
        assert client.get("/nowhere").status_code == 404


def test_a_word_of_ones_own_is_seen_however_long_the_page_takes(
    asked: Asked, warehouse: Warehouse, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_pages, "_PATIENCE_S", 0.0)
    insert_run(warehouse, make_run("live", minute=5))
    address = f"/runs/{run_id}"
    with asked.client as client:
        client.get(address)
        update_run(warehouse, run_id, label="another")
        client.get(address)  # the earlier one, and this one goes on being made
        update_run(warehouse, run_id, label="a third")
        client.post("/nowhere", headers={"origin": str(client.base_url).rstrip("/")})
        assert "a third" in client.get(address).text


@pytest.mark.parametrize(("limit", "is_marked"), [(-1.0, True), (1e6, False)])
def test_a_page_of_many_runs_that_is_kept_beside_a_run_says_how_old_it_is(
    asked: Asked, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, limit: float, is_marked: bool
) -> None:
    monkeypatch.setattr(kept_pages, "_YOUNG_S", limit)
    insert_run(warehouse, make_run("live", minute=5))
    assert AS_OF.search(asked.client.get("/").text) is None
    assert (AS_OF.search(asked.client.get("/").text) is not None) == is_marked


def test_without_a_run_nothing_is_shown_as_it_was(
    asked: Asked, warehouse: Warehouse, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_pages, "_PATIENCE_S", 0.0)
    with asked.client as client:
        client.get(f"/runs/{run_id}")
        update_run(warehouse, run_id, label="another")
        assert "another" in client.get(f"/runs/{run_id}").text


def test_a_page_is_made_once_for_all_who_ask_for_it_at_once(
    asked: Asked, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, read = [], Warehouse.read_rows

    def read_slowly(self: Warehouse, sql: str, *arguments: object) -> object:
        if sql == read_query("ui/series"):
            made.append(sql)
            time.sleep(0.3)
        return read(self, sql, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Warehouse, "read_rows", read_slowly)
    monkeypatch.setattr(app, "list_common", lambda warehouse: ["/"])
    with make_client(str(warehouse.location.path)) as client:  # which begins to make it before anybody asks
        wait_until(lambda: bool(made))
        with ThreadPoolExecutor(max_workers=5) as others:
            answers = list(others.map(client.get, ["/"] * 5))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert len(made) <= 2  # those who asked when it was half made are given what was begun after that


def test_what_everybody_asks_for_is_there(asked: Asked, warehouse: Warehouse) -> None:
    addresses = list_common(warehouse)
    assert len(addresses) == len(set(addresses)) > 7
    for address in addresses:
        assert asked.client.get(address).status_code == 200, address


def test_turns_go_to_those_who_are_waited_for_and_are_never_lost() -> None:
    async def take_all() -> list[str]:
        turns, had = Turns(1), []

        async def take(name: str, rank: int) -> None:
            async with turns.take(rank):
                had.append(name)
                await asyncio.sleep(0)

        async with turns.take(0):
            tasks = [
                asyncio.create_task(take(*each)) for each in (("c", 2), ("a", 0), ("b", 1), ("gone", 0), ("a2", 0))
            ]
            await asyncio.sleep(0)
            tasks[3].cancel()
        tasks[1].cancel()  # its turn has just come
        await asyncio.wait(tasks)
        await asyncio.wait_for(take("last", 2), 5)
        return had

    assert asyncio.run(take_all()) == ["a2", "b", "c", "last"]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
