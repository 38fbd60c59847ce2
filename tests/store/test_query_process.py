"""The query process: the same rows as in this process, and every query ends."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from warehouse_processes import count_rows, make_batch, make_warehouse

from evalhouse.warehouse.errors import QueryError, QueryStopped, WarehouseBusy, WarehouseError
from evalhouse.warehouse.metric_files import parse_metric, set_metrics
from evalhouse.warehouse.sandbox import query_process
from evalhouse.warehouse.sandbox.query_process import answer_apart, select_apart, serving_queries, try_metrics
from evalhouse.warehouse.store import Warehouse

ENDLESS_FUNCTION = "select levenshtein(repeat('a', 2000000), repeat('b', 2000000))"
ENDLESS = "select count(*) from range(100000000000) as t(i) where hash(i) = 1"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A served warehouse with a batch in it, and a process ready for each query."""
    made = make_warehouse(tmp_path_factory.mktemp("apart"))
    made.append(make_batch("first"))
    with serving_queries():
        yield made


def test_rows_come_as_they_do_from_query_while_pages_read(warehouse: Warehouse) -> None:
    assert count_rows(warehouse, "statements") == 3
    frame = answer_apart(
        warehouse.location, "select sample_id, [1, 2] as list, sum(1) as n from statements group by all"
    )
    assert sorted(frame.rows()) == [(f"first-{number}", [1, 2], 1) for number in (1, 2, 3)]
    assert answer_apart(warehouse.location, "from range(10)", most_rows=4).height == 4
    assert warehouse.append(make_batch("second"), patience_s=1)


def test_what_is_wrong_with_it_is_reported(warehouse: Warehouse) -> None:
    with pytest.raises(QueryError, match="nosuch") as raised:
        answer_apart(warehouse.location, "select nosuch from runs")
    assert raised.value.place == 7
    with pytest.raises(QueryError, match="Permission Error"):
        answer_apart(warehouse.location, "from read_text('/etc/hostname')")


def test_what_takes_too_long_or_is_stopped_ends_and_is_in_no_ones_way(warehouse: Warehouse) -> None:
    began = time.monotonic()
    with pytest.raises(QueryError, match=r"stopped after 0.2 s"):
        answer_apart(warehouse.location, ENDLESS, timeout_s=0.2)
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(QueryError, match="was stopped"):
        answer_apart(warehouse.location, ENDLESS, stop=stop)
    assert time.monotonic() - began < 5
    assert warehouse.append(make_batch("after"), patience_s=1)


@pytest.mark.parametrize(
    "sql",
    [
        # Held by DuckDB's own limit, by the system's, and by what is looked at while it works.
        "select list(i) from range(300000000) as t(i)",
        "select repeat('x', 3000000000) as a",
        "select i, repeat('x', 1000) as a from range(3000000) as t(i)",
    ],
)
def test_what_takes_too_much_memory_is_refused(warehouse: Warehouse, sql: str) -> None:
    with pytest.raises(QueryError, match=r"Out of Memory|more memory|more than the"):
        answer_apart(warehouse.location, sql, memory_mb=150)


def test_no_more_than_two_are_at_work(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_process, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(query_process, "_turns", threading.BoundedSemaphore(1))
    with query_process._turns, pytest.raises(WarehouseBusy, match="queries are running"):
        answer_apart(warehouse.location, "from runs")


def test_it_is_given_no_key_and_leaves_nothing(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    process = query_process._start()
    try:
        environment = b""
        while b"PATH=" not in environment:  # until it has begun
            environment = Path(f"/proc/{process.process.pid}/environ").read_bytes()
        assert b"sk-secret" not in environment
    finally:
        process.close()
    assert process.process.returncode != 0
    assert process.folder.name not in [entry.path for entry in os.scandir(tempfile.gettempdir())]


def test_it_ends_and_removes_its_folder_when_the_process_that_asks_has_ended(warehouse: Warehouse) -> None:
    process = query_process._start()
    assert process.process.stdin is not None
    process.process.stdin.close()  # as the system does for a process that is gone
    assert process.process.wait(20) == 0
    assert not Path(process.folder.name).exists()
    process.process.stdin = None
    process.close()


@pytest.mark.slow
def test_one_process_answers_until_it_has_to_be_stopped(warehouse: Warehouse) -> None:
    def ask_pid(sql: str, timeout_s: float = 20.0) -> int:
        answer_apart(warehouse.location, sql, timeout_s=timeout_s)
        return query_process._idle[-1].process.pid

    first = ask_pid("select 1")
    assert ask_pid("select 2") == first
    with pytest.raises(QueryError):
        ask_pid("select nosuch from runs")
    assert ask_pid("select 1") == first
    for sql, timeout_s in (("select * from pandas_scan(NULL)", 20.0), (ENDLESS_FUNCTION, 0.2)):
        with pytest.raises(QueryStopped):
            ask_pid(sql, timeout_s)
    assert ask_pid("select 1") != first
    assert answer_apart(warehouse.location, "from statements").height >= 3


def test_memory_beside_that_of_duckdb_is_limited_too(warehouse: Warehouse) -> None:
    largest_before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with pytest.raises(QueryStopped, match=r"Out of Memory|more than the 300 MB"):
        answer_apart(warehouse.location, "select length(repeat('x', 3000000000))", memory_mb=300)
    query_process._close_idle()  # so that their memory is counted
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert largest == largest_before or largest < 1_500_000


_METRIC = "-- metric: mine\n-- version: 1\n-- needs: classify\n-- One row per sample of the run: a number.\n"


@pytest.mark.parametrize(
    "source", ["read_text('{path}')", "read_csv('{path}')", "read_blob('{path}')", "glob('{path}')", "'{path}'"]
)
def test_metric_file_reads_no_other_file(warehouse: Warehouse, tmp_path: Path, source: str) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n", encoding="utf-8")
    read = f"(select count(*) from {source.format(path=tmp_path / 'secret.csv')})"
    for value, is_allowed in (("1", True), (read, False), ("2", True)):
        of_run = "from statements where $run_id > ''"
        sql = f"select run_id, sample_id, {value}::double as value, null as unscored_reason {of_run}"
        (metric,) = set_metrics([parse_metric(f"{_METRIC}{sql}", name="mine", place="mine.sql")], {})
        if is_allowed:
            try_metrics([metric.file], {})
            assert not select_apart(warehouse.location, "r", metric, 1).is_empty()
            continue
        with pytest.raises(WarehouseError, match=r"mine\.sql.*disabled"):
            try_metrics([metric.file], {})
        with pytest.raises(WarehouseError, match=r"mine\.sql.*disabled"):
            select_apart(warehouse.location, "r", metric, 1)
