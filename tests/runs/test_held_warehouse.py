"""A warehouse that another program keeps open from the middle of a run: the run reports that it waits, continues by
itself, loses nothing and asks nothing twice."""

from __future__ import annotations

import io
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import pytest
from cli_house import place_at
from cli_process import Place
from endpoint import Endpoint
from kill_runs import read_recorded, read_rows
from warehouse_processes import held_file, make_warehouse

from evalhouse.warehouse.engine.connection import open_reader
from evalhouse.warehouse.engine.locks import waiting_for_others
from evalhouse.warehouse.errors import WarehouseBusy
from evalhouse.warehouse.rows.runs import list_runs

N_ROWS, N_CALLS = 8, 6
RUN = ("run", "berths.jsonl", "--judge", "openai:judge", "--embeddings", "openai:embedder", "--concurrency", "4")


@pytest.fixture(autouse=True)
def _short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second until a run prints why it waits, in place of five."""
    monkeypatch.setattr("evalhouse.warehouse.engine.connection.ATTEMPT_S", 0.5)


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path, endpoint: Endpoint) -> Place:
    return place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=N_ROWS)


def find_file(place: Place) -> Path:
    return place.folder / "evalhouse.duckdb"


def read_stderr() -> str:
    """Return the standard error so far of a command that is called in this process."""
    buffer = getattr(sys.stderr, "buffer", None)
    return buffer.getvalue().decode() if isinstance(buffer, io.BytesIO) else ""


def count_requests(endpoint: Endpoint) -> int:
    """Return the number of requests to the judge; texts are embedded many at a time."""
    return endpoint.stats.requests["/v1/chat/completions"]


@pytest.mark.slow
def test_a_run_waits_for_a_file_that_is_kept_open_and_then_completes(place: Place, endpoint: Endpoint) -> None:
    endpoint.configure(latency=0.1)
    has_ended = threading.Event()

    def keep() -> tuple[int, int]:
        """Keep the file until the run reports that it waits; return the keeper's process and the requests by then."""
        while count_requests(endpoint) < 20 and not has_ended.is_set():
            time.sleep(0.02)
        with held_file(find_file(place), read_only=True) as pid:
            while "the run waits" not in read_stderr() and not has_ended.is_set():
                time.sleep(0.05)
            return pid, count_requests(endpoint)

    with ThreadPoolExecutor(1) as other:
        kept = other.submit(keep)
        try:
            done = place.call(*RUN)
        finally:
            has_ended.set()
        pid, n_meanwhile = kept.result()
    assert done.status == 0, done.stderr
    waits, continues = (done.stderr.find(words) for words in ("the run waits", "the run continues"))
    assert 0 <= waits < continues, done.stderr
    assert f"(PID {pid}); close it there" in done.stderr
    # A reader does not prevent judging: writes meanwhile wait beside the file.
    assert n_meanwhile == N_CALLS * N_ROWS
    assert [row["status"] for row in read_rows(find_file(place), "select status from runs")] == ["completed"]
    assert set(read_recorded(find_file(place)).values()) == {1}
    assert count_requests(endpoint) == N_CALLS * N_ROWS
    assert read_rows(find_file(place), "select count(distinct sample_id) as n from scores") == [{"n": N_ROWS}]


def test_all_threads_report_waiting_once_and_those_outside_do_not_wait(tmp_path: Path) -> None:
    warehouse, printed = make_warehouse(tmp_path), list[str]()
    with waiting_for_others(printed.append, is_stopped=lambda: False):
        contexts = [copy_context() for _ in range(3)]
    with held_file(warehouse.location.path, read_only=False):
        threads = [threading.Thread(target=context.run, args=(list_runs, warehouse)) for context in contexts]
        for thread in threads:
            thread.start()
        with pytest.raises(WarehouseBusy), open_reader(warehouse.location, patience_s=0.2):
            pass
        while not printed:
            threads[0].join(0.05)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert [" ".join(line.split()[1:4]) for line in printed] == ["the run waits", "the run continues"]
