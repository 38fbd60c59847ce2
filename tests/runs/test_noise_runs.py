"""Noise runs end to end: a real run against a judge that flips verdicts at a known rate, and its messages."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import place_at
from cli_process import Finished, Place, call_here, finish, wait_for
from endpoint import Asked, Endpoint, running_endpoint
from endpoint_replies import compose_reply
from prefect_holder import find_server
from ui_house import make_client, read_main

from evalhouse.flows.server.api import PrefectApi

N_SAMPLES = 40
FLIP_RATE = 0.15
SEED = 1  # of verdicts whose flips do not cancel out in the means
JUDGED = ("--judge", "openai:judge", "--metrics", "factual_f1,faithfulness,bleu", "--json")
NOISE_SHARE = 0.5
N_AGAIN = 20
_OTHER = {"TP": "FP", "FP": "TP", "FN": "TP"}


class Wavering:
    """A judge of statements that says the opposite in FLIP_RATE of its verdicts, other ones each night.

    Which ones depends on the night and on what is asked alone: not on the order in which requests happen to come, on
    replies that are requested again, or on the samples that a noise run happens to pick.
    """

    night = 1

    def __call__(self, asked: Asked) -> dict[str, Any]:
        reply: Any = compose_reply(asked)
        generator = random.Random(f"{SEED} {self.night} {asked.texts[-1]}")
        for verdict in reply["verdicts"]:
            if verdict["id"].startswith("A") and generator.random() < FLIP_RATE:
                verdict["label"] = _OTHER[verdict["label"]]
        return dict(reply)


class Nights:
    """A folder in which two nights were judged: a first without noise, and a second that measured it.

    In a copy, `third`, is a third night, on which all verdicts were asked for again, so that only the judge's noise
    moves the means.
    """

    def __init__(self, place: Place, endpoint: Endpoint, judge: Wavering) -> None:
        self.place, self.endpoint = place, endpoint
        self.first = self.run()
        judge.night = 2
        self.second = self.run("--noise", str(NOISE_SHARE))
        judge.night = 3
        self.third = str(shutil.copy(place.folder / "evalhouse.duckdb", place.folder / "third.duckdb"))
        self.run("--fresh", "--label", "third", "--warehouse", self.third)

    def run(self, *arguments: str, dataset: str = "berths.jsonl") -> Finished:
        finished = self.place.call("run", dataset, *JUDGED, *arguments)
        assert finished.status == 0, finished.stderr
        return finished

    @property
    def noise(self) -> dict[str, Any]:
        found: dict[str, Any] = self.second.document["noise"]
        return found

    def read(self, sql: str) -> list[dict[str, Any]]:
        with duckdb.connect(str(self.place.folder / "evalhouse.duckdb"), read_only=True) as connection:
            return connection.sql(sql).pl().to_dicts()


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Iterator[Nights]:
    folder = tmp_path_factory.mktemp("nights")
    judge = Wavering()
    with running_endpoint(script={"classify": judge}) as endpoint:
        yield Nights(place_at(folder, prefect_home, endpoint.base_url, n_rows=N_SAMPLES), endpoint, judge)


def test_unchanged_samples_are_judged_again_with_new_requests(nights: Nights) -> None:
    assert nights.second.document["calls"]["requests"] == 0, "replies of the night itself are stored"
    noise = nights.noise
    assert (noise["status"], noise["population"], noise["n_samples"]) == ("completed", "unchanged", N_AGAIN)
    calls = nights.read(f"select step, status, sample_id from llm_calls where run_id = '{noise['run_id']}'")
    assert {call["status"] for call in calls} == {"ok"}
    assert noise["requests"] == len(calls) == 4 * N_AGAIN
    assert {call["step"] for call in calls} == {
        "extract_answer",
        "extract_ground_truth",
        "classify",
        "attribute_answer",
    }
    assert len({call["sample_id"] for call in calls}) == N_AGAIN


def test_the_run_is_on_record_as_what_it_is(nights: Nights) -> None:
    (row,) = nights.read("select * from runs where kind = 'noise'")
    assert row["parent_run_id"] == nights.second.document["run_id"]
    assert (row["tags"], row["n_samples"], row["status"]) == (["of unchanged samples"], N_AGAIN, "completed")
    assert row["label"] is None
    texts = "select sample_id, input_hash from run_samples where run_id = '{}' order by ordinal"
    picked = nights.read(texts.format(row["run_id"]))
    of_parent = nights.read(texts.format(row["parent_run_id"]))
    assert picked == [one for one in of_parent if one in picked]


def test_the_scores_of_a_noise_run_do_not_take_the_place_of_the_runs_own_in_prefect(nights: Nights) -> None:
    run_id, noise_id = nights.second.document["run_id"], nights.noise["run_id"]
    pages = PrefectApi(find_server()).post("/artifacts/filter", {"artifacts": {"key": {"like_": "scores%berths"}}})
    keys = {name: page["key"] for page in pages for name in (run_id, noise_id) if f"run {name}" in page["description"]}
    assert keys == {run_id: "scores-berths", noise_id: "scores-of-noise-berths"}


def test_measured_noise_is_the_noise_of_the_judge(nights: Nights) -> None:
    """Two answers to one question differ when one of them was flipped: in 2 · q · (1 - q) of the cases."""
    run_id = nights.second.document["run_id"]
    compared = nights.place.call("compare", "previous", "latest", "--json")
    assert compared.status == 0, compared.stderr
    assert compared.document["noise"] == {"run_ids": [], "steps": [], "shifts": []}, "replies of the first night"
    rows = {row["metric"]: row for row in nights.read(f"select * from noise where run_id = '{run_id}'")}
    assert rows.keys() == {"factual_f1", "faithfulness", "bleu"}
    assert {row["n_samples"] for row in rows.values()} == {N_AGAIN}
    # Two statements of an answer: the score changes if one of the two verdicts does.
    share = 1 - (1 - 2 * FLIP_RATE * (1 - FLIP_RATE)) ** 2
    spread = 4 * sqrt(N_AGAIN * share * (1 - share))
    assert rows["factual_f1"]["n_changed"] == pytest.approx(N_AGAIN * share, abs=spread)
    assert rows["factual_f1"]["n_changed"] > 0
    assert nights.noise["n_changed"] == rows["factual_f1"]["n_changed"]
    assert [rows[name]["n_changed"] for name in ("faithfulness", "bleu")] == [0, 0]


def test_latest_previous_and_history_leave_the_noise_run_out(nights: Nights) -> None:
    latest = nights.place.call("show", "latest", "--json").document
    previous = nights.place.call("show", "previous", "--json").document
    expected = [nights.second.document["run_id"], nights.first.document["run_id"]]
    assert [latest["run"]["run_id"], previous["run"]["run_id"]] == expected
    history = nights.read("select distinct run_id from score_history")
    assert {row["run_id"] for row in history} == set(expected)


def test_a_later_night_takes_no_reply_from_it(nights: Nights, tmp_path: Path) -> None:
    """Else an unchanged sample would have another verdict after the night on which it was judged twice."""
    copied = tmp_path / "copy.duckdb"
    shutil.copy(nights.place.folder / "evalhouse.duckdb", copied)
    third = nights.run("--warehouse", str(copied))
    assert third.document["calls"]["requests"] == 0
    assert third.document["metrics"] == nights.first.document["metrics"]
    assert third.document["noise"] is None


@pytest.mark.slow
def test_stopping_the_noise_run_keeps_the_run_itself(nights: Nights, tmp_path: Path) -> None:
    copied = tmp_path / "copy.duckdb"
    shutil.copy(nights.place.folder / "evalhouse.duckdb", copied)
    endpoint = nights.endpoint
    n_before = sum(endpoint.stats.requests.values())
    endpoint.configure(latency=1.0)
    try:
        process = nights.place.start("run", "berths.jsonl", *JUDGED, "--noise", "0.5", "--warehouse", str(copied))
        wait_for(lambda: sum(endpoint.stats.requests.values()) > n_before, process)
        process.send_signal(signal.SIGINT)
        finished = finish(process)
    finally:
        endpoint.configure(latency=0.0)
    assert finished.status == 0, finished.stderr
    document = finished.document
    assert document["status"] == "completed"
    assert document["metrics"] == nights.first.document["metrics"]
    assert (document["noise"]["status"], document["noise"]["problem"]) == ("cancelled", "stopped by SIGINT")
    resumed = nights.place.call("resume", document["run_id"], "--json", "--warehouse", str(copied))
    assert resumed.status == 0, resumed.stderr
    assert resumed.document["noise"]["run_id"] == document["noise"]["run_id"]
    assert (resumed.document["noise"]["status"], resumed.document["noise"]["n_samples"]) == ("completed", N_AGAIN)
    with duckdb.connect(str(copied), read_only=True) as connection:
        counted = "select count(*) from llm_calls where run_id = ? and error is null and reused_call_id is null"
        asked = [
            connection.execute(counted, [one["run_id"]]).fetchall()[0][0] for one in (document["noise"], nights.noise)
        ]
    assert asked[0] == asked[1], "no request was sent twice"


def test_noise_run_is_not_resumed(nights: Nights) -> None:
    finished = nights.place.call("resume", nights.noise["run_id"])
    assert finished.status == 2
    assert "the next run measures it again" in finished.stderr


def test_a_change_within_noise_is_not_a_finding_and_its_floor_is_reported(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = (nights.second.document["run_id"], "third", "--warehouse", nights.third)
    document = call_here(capsys, "compare", *runs, "--json").document
    found = {one["metric"]: one for one in document["metrics"]}
    f1 = found["factual_f1"]
    assert f1["noise"]["n_anew"] == f1["n_common"] == N_SAMPLES
    assert (f1["noise"]["n_pairs"], f1["noise"]["n_runs"]) == (N_AGAIN, 1)
    assert f1["noise_floor"] > abs(f1["difference"]) > 0
    assert (f1["verdict"], f1["is_real"]) == ("undecided", False)
    assert (found["bleu"]["noise_floor"], found["bleu"]["noise"]["n_anew"]) == (0.0, 0), "no judge is asked for it"
    assert found["faithfulness"]["noise_floor"] > 0, "twenty equal pairs do not exclude noise"
    assert document["warnings"] == []
    assert document["noise"]["run_ids"] == [nights.noise["run_id"]]
    steps = {row["step"]: row for row in document["noise"]["steps"]}
    assert [steps[name]["n_flipped"] for name in ("attribute", "extract_answer", "extract_ground_truth")] == [0, 0, 0]
    # Two statements of the answer and one of the ground truth, of which only those are ever flipped.
    assert steps["classify"]["n_items"] == 3 * N_AGAIN
    rate = 2 * FLIP_RATE * (1 - FLIP_RATE)
    n = 2 * N_AGAIN
    assert steps["classify"]["n_flipped"] == pytest.approx(n * rate, abs=4 * sqrt(n * rate * (1 - rate)))
    printed = call_here(capsys, "compare", *runs, "--all").stdout
    assert "The judge against itself: what was judged twice, in 1 noise run" in printed
    # The page had no comparison of nights of which one had measured noise, but an error.
    page = read_main(make_client(nights.third), f"/compare?base={runs[0]}&candidate=third")
    assert "step or metric" in page
    assert f"classify {3 * N_AGAIN} {steps['classify']['n_flipped']} " in page


def test_a_gate_does_not_fail_by_noise_and_says_so(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("third", "--against", nights.second.document["run_id"], "--warehouse", nights.third)
    drop = ("--max-drop", "factual_f1=0")
    (check,) = call_here(capsys, "gate", *arguments, *drop, "--json").document["checks"]
    assert (check["outcome"], check["reason"]) == ("undecided", "not_beyond_chance")
    assert check["noise_floor"] > abs(check["value"]) > 0
    printed = call_here(capsys, "gate", *arguments, *drop).stdout
    assert "noise floor" in printed
    assert f"{check['noise_floor']:.3f}" in printed
