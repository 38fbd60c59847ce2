"""`kill -9` within a run, or at thirty moments of three, and `evalhouse resume` after each: what is asked again.

A reply that reached the process is on disk before it is used. So the bounds need no clock: after a kill the requests
that were sent and have no recorded reply are at most the requests in flight, and a request with a recorded reply
is never sent again. The moments are seeded: a fifth before the first request, a fifth after the last answer,
the rest in between. Of the three runs one brings its own Prefect server each time, as people have it; the others share
one, which halves what a life costs.
"""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_house import make_rows, write_dataset
from cli_process import Place
from kill_runs import Lane, draw_moments, noting_endpoint, read_recorded, read_rows
from prefect_holder import find_server

SEED = 20260706
N_SAMPLES = 60
IN_FLIGHT = 8
MOST_UNSETTLED = IN_FLIGHT
OPTIONS = (
    "berths.jsonl", "--judge", "openai:judge", "--embeddings", "openai:embedder", "--concurrency", str(IN_FLIGHT),
)  # fmt: skip
LATENCY = "0.02-0.08"
# An answer may lie in the socket's buffer while the process is busy with something else, on a machine that is busy.
UNREAD_MOST_S = 2.0
_SCORES = "select sample_id, metric, value, unscored_reason from scores order by all"


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """The same run without a kill: its scores, its number of requests, and when the first one came."""

    n_samples: int
    scores: list[dict[str, object]]
    n_requests: int
    startup_s: float


def make_place(folder: Path, base_url: str, variables: dict[str, str], n_samples: int) -> Place:
    folder.mkdir()
    write_dataset(folder, make_rows(n_samples), "berths.jsonl")
    return Place(
        folder=folder,
        variables={"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "sk-test", **variables},
        own_server=True,
    )


def run_undisturbed(folder: Path, variables: dict[str, str], n_samples: int) -> Undisturbed:
    with noting_endpoint(latency=LATENCY) as endpoint:
        place = make_place(folder, endpoint.base_url, variables, n_samples)
        finished = place.call_process("run", *OPTIONS, "--json")
        assert finished.status == 0, finished.stderr
        spent_s = endpoint.answered[-1].at - endpoint.asked[0].at
        return Undisturbed(
            n_samples=n_samples,
            scores=read_rows(folder / "evalhouse.duckdb", _SCORES),
            n_requests=len(endpoint.asked),
            startup_s=finished.seconds - spent_s,
        )


def live_through(folder: Path, variables: dict[str, str], *, n_kills: int, seed: int, undisturbed: Undisturbed) -> Lane:
    """One run, killed that often and then left to itself; asserts what must hold of it."""
    with noting_endpoint(latency=LATENCY) as endpoint:
        lane = Lane(
            place=make_place(folder, endpoint.base_url, variables, undisturbed.n_samples),
            endpoint=endpoint,
            arguments=OPTIONS,
            n_requests=undisturbed.n_requests,
        )
        dice = random.Random(seed)
        moments = draw_moments(
            dice, n_kills=n_kills, n_requests=undisturbed.n_requests, startup_s=undisturbed.startup_s
        )
        for moment in moments:
            while not lane.kill_at(moment):
                pass  # done before its kill: another life, in which nothing is left to ask, gets it
        finished = lane.place.call_process("resume", "latest", "--json")
        assert finished.status == 0, finished.stderr
        assert finished.document["status"] == "completed"
    assert_paid_once(lane)
    path = folder / "evalhouse.duckdb"
    assert read_rows(path, _SCORES) == undisturbed.scores
    assert len(endpoint.stats.kinds) == 5
    assert read_rows(path, "select count(*) as n from runs") == [{"n": 1}]
    assert not list(path.with_name("evalhouse.duckdb.journal").iterdir())
    return lane


def assert_paid_once(lane: Lane) -> None:
    """Nothing on record was asked again, and what was asked again had been unsettled at a kill, and was little."""
    recorded = read_recorded(lane.place.folder / "evalhouse.duckdb")
    assert set(recorded.values()) == {1}, "a reply on record is never paid for again"
    asked = [noted.texts for noted in lane.endpoint.asked]
    assert recorded.keys() == set(asked), "and none that was on record is lost"
    # Of embeddings a request has one text, of which many may be in flight together.
    chats = [[texts for texts in life.unsettled if len(texts) > 1] for life in lane.lives]
    assert all(len(unsettled) <= MOST_UNSETTLED for unsettled in chats), lane.lives
    assert all(life.late_s <= UNREAD_MOST_S for life in lane.lives), lane.lives
    assert len(asked) - len(set(asked)) <= sum(len(life.unsettled) for life in lane.lives)
    n_recorded = [life.n_recorded for life in lane.lives]
    assert n_recorded == sorted(n_recorded), "what is on disk stays there through every kill"


def describe(name: str, lane: Lane) -> str:
    """Print figures, which -s shows."""
    stages = Counter(life.stage for life in lane.lives)
    asked = [noted.texts for noted in lane.endpoint.asked]
    late_ms = max(life.late_s for life in lane.lives) * 1000
    return (
        f"{name}: {len(lane.lives)} kills {dict(stages)}, {len(set(asked))} requests, "
        f"{len(asked) - len(set(asked))} asked again, {lane.endpoint.stats.duplicates_answered} answered twice\n"
        f"  without a reply on record at each kill: {[len(life.unsettled) for life in lane.lives]}\n"
        f"  of these not answered by then: {[life.n_open for life in lane.lives]}; "
        f"the oldest answer not on record was sent {late_ms:.0f} ms before"
    )


@pytest.mark.slow
def test_twenty_kills_pay_for_nothing_on_record_again(tmp_path: Path, prefect_home: Path) -> None:
    """Three runs side by side, of which the first brings its own Prefect server."""
    own = {"PREFECT_HOME": str(prefect_home)}
    shared = own | find_server()
    undisturbed = run_undisturbed(tmp_path / "undisturbed", shared, N_SAMPLES)
    worlds = [(own, 4), (shared, 8), (shared, 8)]
    with ThreadPoolExecutor(max_workers=len(worlds)) as pool:
        lanes = [
            pool.submit(
                live_through, tmp_path / str(place), variables,
                n_kills=n_kills, seed=SEED + place, undisturbed=undisturbed,
            )
            for place, (variables, n_kills) in enumerate(worlds)
        ]  # fmt: skip
        lived = [lane.result() for lane in lanes]
    for place, lane in enumerate(lived):
        print(describe(f"lane {place}", lane))
    lives = [life for lane in lived for life in lane.lives]
    assert len(lives) == 20
    assert any(life.n_asked == 0 for life in lives)
    assert sum(life.n_asked > 0 for life in lives) >= 2 * len(lives) // 5, "most lives ask something before the kill"
