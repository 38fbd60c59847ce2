"""`kill -9` while a test set is made, with faults, and the same command again after each: the set is the one that an
undisturbed process makes, and no reply on record is paid for twice."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from cli_process import Place
from kill_runs import Lane, NotingEndpoint, draw_moments, noting_endpoint, read_recorded, read_rows
from port_answers import PortAnswers
from port_base import write_base

SEED = 20261123
FAULTS = {"rate_limit": 0.1, "server_error": 0.1, "reset": 0.1}
ARGUMENTS = (
    "testset", "make", "docs", "-n", "24", "-o", "set.jsonl", "--force", "--judge", "openai:m", "--embeddings",
    "hashing", "--concurrency", "8", "--attempts", "30", "--warehouse", "evalhouse.duckdb",
)  # fmt: skip


class MakingLane(Lane):
    """A command that is given again after each kill."""

    def start(self) -> subprocess.Popen[str]:
        return self.place.start(*self.arguments)


def make_lane(folder: Path, endpoint: NotingEndpoint, n_requests: int = 0) -> MakingLane:
    folder.mkdir()
    write_base(folder / "docs", version=1)
    place = Place(folder=folder, variables={"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "sk-test"})
    return MakingLane(place=place, endpoint=endpoint, arguments=ARGUMENTS, n_requests=n_requests)


@pytest.mark.slow
def test_a_set_survives_kills_and_faults_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    with noting_endpoint(latency="0.02-0.08", compose=PortAnswers().compose) as endpoint:
        undisturbed = make_lane(tmp_path / "undisturbed", endpoint)
        assert undisturbed.place.call_process(*ARGUMENTS).status == 0
        n_requests = len(endpoint.asked)
    dice = random.Random(SEED)
    with noting_endpoint(latency="0.02-0.08", faults=FAULTS, compose=PortAnswers().compose) as endpoint:
        lane = make_lane(tmp_path / "killed", endpoint, n_requests)
        for moment in draw_moments(dice, n_kills=8, n_requests=n_requests, startup_s=1.0):
            while not lane.kill_at(moment):
                pass  # done before its kill: another life, in which nothing is left to ask, gets it
        finished = lane.place.call_process(*ARGUMENTS, "--json")
        assert finished.status == 0, finished.stderr
    assert finished.document["n_failed"] == 0
    sets = [(lane_.place.folder / "set.jsonl").read_bytes() for lane_ in (undisturbed, lane)]
    assert sets[0] == sets[1]
    recorded = read_recorded(lane.place.folder / "evalhouse.duckdb")
    assert set(recorded.values()) == {1}, "a reply on record is never paid for again"
    answered = [noted.texts for noted in endpoint.answered]
    assert recorded.keys() == set(answered), "and none that was on record is lost"
    assert len(answered) - len(set(answered)) <= sum(len(life.unsettled) for life in lane.lives)
    n_recorded = [life.n_recorded for life in lane.lives]
    assert n_recorded == sorted(n_recorded), "what is on disk stays there through every kill"
    kinds = read_rows(lane.place.folder / "evalhouse.duckdb", "select distinct kind from runs")
    assert kinds == [{"kind": "testset"}]
