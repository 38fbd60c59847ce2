"""Whole runs with votes, as a person starts them, against an endpoint whose verdicts flip by seed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import place_at
from cli_process import Finished, Place
from endpoint import Endpoint, Inject, running_endpoint
from endpoint_replies import Asked, compose_reply

N_SAMPLES = 12
N_VOTES = 3
CHAT = "/v1/chat/completions"
RUN = ("run", "berths.jsonl", "--judge", "openai:judge", "--votes", str(N_VOTES), "--concurrency", "6")


def flip(asked: Asked) -> dict[str, Any]:
    """The endpoint's own verdicts, but the second vote turns all of a ranking and the third one label of A1."""
    reply = compose_reply(asked)
    assert isinstance(reply, dict)
    seed = asked.body["seed"]
    for verdict in reply["verdicts"]:
        if asked.kind == "rank" and seed == 2:
            verdict["label"] = "not_useful" if verdict["label"] == "useful" else "useful"
        if asked.kind == "classify" and seed == 3 and verdict["id"] == "A1":
            verdict["label"] = "FP"
    return reply


SCRIPT = {"rank": flip, "classify": flip}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(models=("judge",), script=SCRIPT) as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path, endpoint: Endpoint) -> Place:
    return place_at(tmp_path_factory.mktemp("votes"), prefect_home, endpoint.base_url, n_rows=N_SAMPLES)


@pytest.fixture(scope="module")
def estimates(place: Place) -> dict[int, Any]:
    """Return the output of a dry run before any call is recorded, by number of votes."""
    return {
        votes: place.call(*RUN[:-4], "--votes", str(votes), "--dry-run", "--json").document for votes in (1, N_VOTES)
    }


@pytest.fixture(scope="module")
def resumed(place: Place, endpoint: Endpoint, estimates: dict[int, Any]) -> Finished:
    """A run that was stopped before its end, by a quota that was used up, and gone on with."""
    assert endpoint.stats.requests.total() == 0

    def use_up(asked: Asked) -> Any:  # noqa: ANN401  # a reply, or what comes in its place
        return Inject(fault="insufficient_quota") if endpoint.stats.requests[CHAT] > 40 else flip(asked)

    endpoint.configure(script={"rank": use_up, "classify": use_up})
    stopped = place.call(*RUN)
    assert stopped.status == 3, stopped.stderr
    resume = re.search(r"evalhouse resume (\S+)", stopped.stdout + stopped.stderr)
    assert resume is not None
    assert endpoint.stats.requests[CHAT] < estimates[N_VOTES]["requests"], "it was stopped before its end"
    endpoint.configure(script=SCRIPT)
    return place.call("resume", resume[1], "--json")


def query(place: Place, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(place.folder / "evalhouse.duckdb"), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def test_a_dry_run_counts_each_vote_on_a_verdict_and_one_split(estimates: dict[int, Any]) -> None:
    assert estimates[1]["requests"] == N_SAMPLES * (2 + 4)
    assert estimates[N_VOTES]["requests"] == N_SAMPLES * (2 + 4 * N_VOTES)
    assert estimates[N_VOTES]["prompt_tokens"] > 2 * estimates[1]["prompt_tokens"]


def test_stopped_run_resumes_and_pays_nothing_twice(
    resumed: Finished, place: Place, endpoint: Endpoint, estimates: dict[int, Any]
) -> None:
    assert resumed.status == 0, resumed.stderr
    assert resumed.document["status"] == "completed"
    assert endpoint.stats.duplicates_answered == 0
    # What the stop cut off was sent and never answered.
    assert endpoint.stats.statuses[200] == estimates[N_VOTES]["requests"]
    sent = (
        "select distinct request ->> 'seed', request ->> 'temperature' from llm_calls where status = 'ok' order by all"
    )
    assert query(place, sent) == [("1", None), ("2", None), ("3", None), (None, None)], "at the model's own"


def test_every_vote_is_kept_once(resumed: Finished, place: Place) -> None:
    counted = query(place, "select step, vote, count(*) from votes group by all order by all")
    assert counted == [
        (step, vote, n * N_SAMPLES)
        for step, n in (("attribute", 3), ("classify", 3), ("rank", 2))
        for vote in range(1, N_VOTES + 1)
    ]
    assert query(place, "select count(*) from votes anti join llm_calls using (run_id, call_id)") == [(0,)]


def test_the_majority_is_what_is_scored(resumed: Finished, place: Place) -> None:
    """Two votes of each step are the changed verdicts, so these are the majority."""
    assert query(place, "select statement_id, list(distinct label) from classifications group by all order by all") == [
        ("A1", ["TP"]), ("A2", ["FP"]), ("G1", ["TP"]),
    ]  # fmt: skip
    ranked = "select context_rank, list(distinct useful) from context_verdicts group by all order by all"
    assert query(place, ranked) == [(1, [True]), (2, [False])]
    assert resumed.document["metrics"]["factual_precision"]["mean"] == 0.5


def test_show_reports_how_often_votes_flipped(resumed: Finished, place: Place) -> None:
    run_id = resumed.document["run_id"]
    n = N_SAMPLES
    assert place.call("show", run_id, "--json").document["votes"] == [
        {"step": "attribute", "n_items": 3 * n, "n_flipped": 0, "flip_rate": 0.0,
         "n_votes": 9 * n, "n_against": 0, "against_rate": 0.0},
        {"step": "classify", "n_items": 3 * n, "n_flipped": n, "flip_rate": pytest.approx(1 / 3),
         "n_votes": 9 * n, "n_against": n, "against_rate": pytest.approx(1 / 9)},
        {"step": "rank", "n_items": 2 * n, "n_flipped": 2 * n, "flip_rate": 1.0,
         "n_votes": 6 * n, "n_against": 2 * n, "against_rate": pytest.approx(1 / 3)},
    ]  # fmt: skip
    lines = place.call("show", run_id).lines
    first = lines.index("Votes")
    assert [line.split() for line in lines[first + 3 : first + 5]] == [
        ["classify", "36", "12", "0.333", "108", "12", "0.111"],
        ["rank", "24", "24", "1.000", "72", "24", "0.333"],
    ]


def test_lineage_leads_from_a_voted_verdict_to_a_reply(resumed: Finished, place: Place) -> None:
    run_id = resumed.document["run_id"]
    rows = place.call("lineage", run_id, "berth-1", "context_precision", "--json").document
    # The ground truth is split first: one that states nothing is not ranked by.
    assert {row["step"] for row in rows} == {"rank", "extract_ground_truth"}
    rows = [row for row in rows if row["step"] == "rank"]
    assert [(row["context_rank"], row["useful"]) for row in rows] == [(1, True), (2, False)]
    assert {(row["step"], row["call_status"]) for row in rows} <= {("rank", "ok"), ("rank", "cached")}
    assert all(json.loads(row["request"])["seed"] == 1 for row in rows)
    assert all('"label":"useful"' in row["reply"] for row in rows)


@pytest.mark.slow
def test_a_later_run_finds_every_vote_on_record(resumed: Finished, place: Place, endpoint: Endpoint) -> None:
    n_before = endpoint.stats.requests.total()
    again = place.call(*RUN, "--json")
    assert again.status == 0, again.stderr
    assert again.document["calls"]["requests"] == 0
    assert endpoint.stats.requests.total() == n_before
    flips = query(place, "select step, flip_rate from vote_flips order by step, run_id")
    assert [rate for _, rate in flips] == pytest.approx([0.0, 0.0, 1 / 3, 1 / 3, 1.0, 1.0])
