"""What is turned down when a set is made, by an endpoint that answers from the documents and spoils some questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import call_here
from live_runs import point_to
from port_answers import port_endpoint
from port_base import write_base
from port_mischief import FILTERS, WAYS, Mischief

from evalhouse.tasks.testsets.filters import REASONS
from evalhouse.warehouse.store import Warehouse

N = 30
# A draft of its own has no question to repeat; see `test_duplicates`.
EASY = tuple(way for way in WAYS if FILTERS[way] != "duplicate")


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    """Makes a set of the port's handbook by the judge that the environment points to."""
    write_base(tmp_path / "docs", version=1)
    written = ("-n", str(N), "-o", str(tmp_path / "set.jsonl"), "--warehouse", str(tmp_path / "own.duckdb"))
    return ("testset", "make", str(tmp_path / "docs"), *written, "--judge", "openai:m", "--embeddings", "hashing",
            "--attempts", "20", "--json")  # fmt: skip


def read(tmp_path: Path, sql: str) -> list[dict[str, Any]]:
    return Warehouse(str(tmp_path / "own.duckdb")).read_rows(sql)


def test_every_question_that_was_spoilt_is_turned_down_for_what_is_wrong(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], tmp_path: Path
) -> None:
    shares = dict.fromkeys(EASY, 0.6 / len(EASY))
    with port_endpoint(mischief=Mischief(seed=2, shares=shares)) as (endpoint, answers):
        point_to(endpoint.base_url)
        made = call_here(capsys, *command).document
    spoilt = {(one.question, one.ground_truth or None): one.way for one in answers.spoilt}
    rows = read(tmp_path, "select question, ground_truth, outcome, reason, detail from testset_candidates")
    ended = {(row["question"], row["ground_truth"]): row for row in rows}
    # What is wrong in one way may be so in another that is looked at before.
    stood = [
        (way, ended[words]["outcome"], ended[words]["reason"])
        for words, way in spoilt.items()
        if words in ended and ended[words]["reason"] not in REASONS[: REASONS.index(FILTERS[way]) + 1]
    ]
    assert stood == []
    reasons = {row["reason"] for words, row in ended.items() if words in spoilt}
    assert reasons >= {"form", "span", "leak", "unsupported", "unanswered"}
    assert made["n_questions"] == N
    # The handbook contradicts itself, and everybody knows how long a mile is.
    good = [row for words, row in ended.items() if words not in spoilt and row["outcome"] == "rejected"]
    assert {row["reason"] for row in good} <= {
        "contradicted",
        "without_spans",
        "answerable",
        "unsupported",
        "duplicate",
    }
    assert set(made["turned_down"]) <= set(REASONS)


def test_what_faults_left_unanswered_comes_later_and_nothing_is_asked_twice(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], tmp_path: Path
) -> None:
    faults = {"rate_limit": 0.1, "server_error": 0.1, "reset": 0.1}
    few = (*command, "-n", "6", "--force")
    with port_endpoint(faults=faults, seed=5) as (endpoint, _):
        point_to(endpoint.base_url)
        first = call_here(capsys, *few).document
        second = call_here(capsys, *few).document
    assert first["n_questions"] == second["n_questions"] == 6
    assert (first["n_failed"], first["set_hash"]) == (0, second["set_hash"])
    assert first["calls"]["failed"] > 0
    assert second["calls"]["requests"] == 0
    calls = read(tmp_path, "select count(*) as n, count(distinct request_hash) as n_different from llm_calls "
                           "where status = 'ok'")  # fmt: skip
    assert calls[0]["n"] == calls[0]["n_different"] > 30
