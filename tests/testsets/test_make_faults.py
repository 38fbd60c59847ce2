"""`testset make` against an endpoint that fails often: what is left out comes later, and nothing is paid twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import call_here
from live_runs import point_to
from port_answers import port_endpoint
from port_base import write_base

from evalhouse.warehouse.store import Warehouse

N = 6


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    """Makes a set of the port's handbook by the judge that the environment points to."""
    write_base(tmp_path / "docs", version=1)
    written = ("-n", str(N), "-o", str(tmp_path / "set.jsonl"), "--warehouse", str(tmp_path / "own.duckdb"))
    return ("testset", "make", str(tmp_path / "docs"), *written, "--judge", "openai:m", "--embeddings", "hashing",
            "--attempts", "20", "--json")  # fmt: skip


def read(tmp_path: Path, sql: str) -> list[dict[str, Any]]:
    return Warehouse(str(tmp_path / "own.duckdb")).read_rows(sql)


@pytest.mark.usefixtures("quick_backoff")
def test_requests_after_faults_come_later_and_nothing_is_asked_twice(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalhouse.tasks.asking.limits._PAUSE_S", 0.01)
    faults = {"rate_limit": 0.1, "server_error": 0.1, "reset": 0.1}
    again = (*command, "--force")
    with port_endpoint(faults=faults, seed=5, retry_after=0.01) as (endpoint, _):
        point_to(endpoint.base_url)
        first = call_here(capsys, *again).document
        second = call_here(capsys, *again).document
    assert first["n_questions"] == second["n_questions"] == N
    assert (first["n_failed"], first["set_hash"]) == (0, second["set_hash"])
    assert first["calls"]["failed"] > 0
    assert second["calls"]["requests"] == 0
    calls = read(tmp_path, "select count(*) as n, count(distinct request_hash) as n_different from llm_calls "
                           "where status = 'ok'")  # fmt: skip
    assert calls[0]["n"] == calls[0]["n_different"] > 30
