"""`compare`: two stored runs that differ in one thing at a time, and the output for people and programs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import N_JUDGED, ROWS, House, write_dataset
from cli_process import Ask

_RUN_TABLES = (
    "run_samples", "statements", "classifications", "attributions", "context_verdicts", "similarities", "outcomes",
    "scores", "llm_calls", "grades",
)  # fmt: skip
TIDE = "tide-1"


class Copy:
    """A warehouse with one more run, `copied`, that is equal to the first until it is changed."""

    def __init__(self, house: House, path: str, ask: Ask) -> None:
        self.path, self._ask, self.base = path, ask, house.run_id

    def change(self, *statements: str) -> None:
        with duckdb.connect(self.path) as connection:
            for sql in statements:
                connection.execute(sql)

    def change_sample(self, sample_id: str, assignment: str) -> None:
        """Give the copied run another version of a sample."""
        where = f"run_id = 'copied' and sample_id = '{sample_id}'"
        self.change(
            f"insert into samples select * replace ('changed' as input_hash, {assignment}) "
            f"from samples where sample_id = '{sample_id}' limit 1",
            f"update run_samples set input_hash = 'changed' where {where}",
        )

    def move(self, sample_id: str, value: str, *metrics: str) -> None:
        where = f"run_id = 'copied' and sample_id = '{sample_id}' and metric in {(*metrics, '')}"
        self.change(f"update scores set value = {value} where {where}")

    def compare(self, *arguments: str) -> dict[str, Any]:
        finished = self._ask("compare", self.base, "copied", "--warehouse", self.path, "--json", *arguments)
        assert finished.status == 0, finished.stderr
        found: dict[str, Any] = finished.document
        return found


@pytest.fixture(scope="module")
def template(house: House, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A copy of the house's warehouse with a second copy of the first run."""
    path = str(shutil.copy(house.path, tmp_path_factory.mktemp("template") / "template.duckdb"))
    where = f"where run_id = '{house.run_id}'"
    columns = "'copied' as run_id, 'copy' as label, started_at + interval 1 hour as started_at"
    with duckdb.connect(path) as connection:
        connection.execute("update runs set started_at = started_at - interval 2 hour")  # the copy is the newest one
        connection.execute(f"insert into runs select * replace ({columns}) from runs {where}")
        for table in _RUN_TABLES:
            connection.execute(f"insert into {table} select * replace ('copied' as run_id) from {table} {where}")
    return path


@pytest.fixture
def copy(house: House, template: str, tmp_path: Path, ask: Ask) -> Copy:
    return Copy(house, str(shutil.copy(template, tmp_path / "copy.duckdb")), ask)


@pytest.fixture(scope="module")
def moved(house: House, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A copy with a further night: one answer and one ground truth are others, one sample went and one came."""
    folder = tmp_path_factory.mktemp("moved")
    path = shutil.copy(house.path, folder / "moved.duckdb")
    rows = json.loads(json.dumps(ROWS))
    rows[0]["bot_reply"] = "High tide at Brankmouth is at 9 in the evening. The harbour is closed on Mondays."
    rows[2]["ground_truth"] = "灯塔高五十米。"
    rows = [rows[0], rows[2], rows[3], rows[4]]
    dataset = write_dataset(folder, rows)
    finished = house.place.call(
        "run", str(dataset), "--map", "answer=bot_reply", "--label", "moved", "--warehouse", str(path)
    )
    assert finished.status == 0, finished.stderr
    return str(path)


def find_metric(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in document["metrics"] if one["metric"] == name)
    assert isinstance(found, dict)
    return found


def list_parts(document: dict[str, Any], metric: str) -> dict[str, float]:
    """Return how much each part adds to the change of a metric."""
    return {part["name"]: part["value"] for part in find_metric(document, metric)["parts"] if part["n_moved"]}


def check_sums(document: dict[str, Any]) -> None:
    for one in document["metrics"]:
        if one["change"] is None:
            assert one["parts"] == []
        else:
            assert sum(part["value"] for part in one["parts"]) == pytest.approx(one["change"], abs=1e-12)


@pytest.fixture(scope="module")
def equal(house: House) -> dict[str, Any]:
    """The house's two runs compared."""
    found: dict[str, Any] = house.place.call("compare", "previous", "latest", "--json").document
    return found


def test_two_equal_runs_are_the_same_in_every_metric(house: House, equal: dict[str, Any]) -> None:
    document = equal
    assert document["base"]["run_id"] == house.run_id
    assert document["n_samples"] == {"base": N_JUDGED, "candidate": N_JUDGED, "common": N_JUDGED}
    assert {one["verdict"] for one in document["metrics"]} <= {"same", "undecided"}
    scored = [one for one in document["metrics"] if one["n_common"]]
    assert len(scored) > 10
    assert {one["verdict"] for one in scored} == {"same"}
    assert all(part["name"] == "noise" and part["n_moved"] == 0 for one in scored for part in one["parts"])
    assert document["moved"] == document["warnings"] == []
    check_sums(document)


def test_json_has_what_the_readme_says(equal: dict[str, Any]) -> None:
    document = equal
    assert document.keys() == {
        "base", "candidate", "n_samples", "cluster", "alpha", "seed", "resamples", "warnings", "headline", "n_judged",
        "stages", "causes", "metrics", "by", "noise", "moved", "corrected", "components", "components_of",
        "all_answers",
    }  # fmt: skip
    assert document["metrics"][0].keys() == {
        "metric", "n_base", "n_candidate", "coverage_base", "coverage_candidate", "mean_base", "mean_candidate",
        "common_base", "common_candidate", "change", "n_common", "n_clusters", "n_higher", "n_lower", "difference",
        "ci_low", "ci_high", "p", "p_adjusted", "p_holm", "is_exact", "verdict", "noise_floor", "noise", "is_real",
        "parts", "lost", "n_missing", "n_gained", "is_estimate",
    }  # fmt: skip
    scored = next(one for one in document["metrics"] if one["n_common"])
    assert scored["noise"].keys() == {"n_anew", "n_runs", "n_pairs", "n_changed", "deviation"}
    assert document["noise"] == {"run_ids": [], "steps": [], "shifts": []}


def test_another_weight_is_the_formulas_change(copy: Copy, ask: Ask) -> None:
    weights = ("--set", "answer_correctness.factual_weight=1", "--set", "answer_correctness.similarity_weight=0")
    assert ask("rescore", "copied", *weights, "--warehouse", copy.path).status == 0
    document = copy.compare()
    assert list_parts(document, "answer_correctness").keys() == {"formula"}
    assert find_metric(document, "factual_f1")["verdict"] == "same"
    (warning,) = document["warnings"]
    assert "answer_correctness has another formula version: 1 and 1;factual_weight=1" in warning


def test_runs_without_a_common_sample_are_refused(copy: Copy, ask: Ask) -> None:
    copy.change(
        *(f"update {table} set sample_id = sample_id || '-new' where run_id = 'copied'" for table in _RUN_TABLES)
    )
    copy.change(
        "insert into samples select * replace (sample_id || '-new' as sample_id) from samples",
        "update runs set dataset = 'other.jsonl' where run_id = 'copied'",
    )
    drops = ("--max-drop", "factual_f1=0.02")
    for command in (("compare", copy.base, "copied"), ("gate", "copied", "--against", copy.base, *drops)):
        finished = ask(*command, "--warehouse", copy.path)
        assert finished.status == 2
        assert (
            f"run {copy.base} of harbour.jsonl and run copied of other.jsonl have no sample in common"
            in finished.stderr
        )
        assert "evalhouse runs" in finished.stderr
    # Of another series no run is `previous`.
    for command in (("compare",), ("gate", "latest", "--against", "previous", *drops)):
        finished = ask(*command, "--warehouse", copy.path)
        assert finished.status == 2
        assert "run copied is the first of its series (dataset other.jsonl)" in finished.stderr


def test_a_night_with_changes_of_every_kind(moved: str, ask: Ask) -> None:
    document = ask("compare", "first night", "moved", "--warehouse", moved, "--json").document
    assert document["n_samples"] == {"base": 4, "candidate": 4, "common": 3}
    check_sums(document)
    names = {part["name"] for part in find_metric(document, "factual_f1")["parts"]}
    assert names >= {"answer", "ground_truth", "removed"}
    by_id = {sample["sample_id"]: sample for sample in document["moved"]}
    assert {TIDE, "zh-1"} == by_id.keys()
    assert by_id[TIDE]["scores"]["factual_precision"] == {"base": 0.5, "candidate": 0.0, "changed": "answer"}
    reworded = [flip for flip in by_id[TIDE]["flips"] if flip["change"] == "reworded" and flip["kind"] == "answer"]
    (flip,) = reworded
    assert flip["base"]["text"] == "High tide at Brankmouth is at 6 in the morning."
    assert flip["candidate"]["text"] == "High tide at Brankmouth is at 9 in the evening."
    assert (flip["base"]["label"], flip["candidate"]["label"]) == ("TP", "FP")
    assert flip["base"]["label_reason"] != flip["candidate"]["label_reason"]


def test_the_tables_say_what_moved_why_and_where(moved: str, ask: Ask) -> None:
    finished = ask("compare", "first night", "moved", "--warehouse", moved, "--all")
    assert finished.status == 0
    text = finished.stdout
    assert re.search(r"^base: run \S+ \(first night\), 4 samples of harbour\.jsonl$", text, re.MULTILINE)
    assert "3 samples in both" in text
    assert re.search(r"^factual_f1 +\d\.\d{3} +\d\.\d{3} +-0\.\d{3} .* undecided$", text, re.MULTILINE)
    assert re.search(r"^factual_f1 +-0\.\d{3} +answer changed +1 +1 +-0\.\d{3}$", text, re.MULTILINE)
    assert re.search(r"^factual_f1 .* samples removed ", text, re.MULTILINE)
    assert "sample zh-1" in text
    assert re.search(r"^answer says +reworded +TP, in C1: High tide .* FP, ", text, re.MULTILINE)
    next_command = shlex.split(finished.lines[-1].removeprefix("next: evalhouse "))
    assert ask(*next_command, "--warehouse", moved).status == 0


def test_samples_are_ranked_by_a_metric_and_shown_one_by_one(moved: str, ask: Ask) -> None:
    runs = ("compare", "first night", "moved", "--warehouse", moved)
    ranked = ask(*runs, "--sort", "factual_recall", "--json").document["moved"]
    assert ranked[0]["scores"]["factual_recall"]["base"] != ranked[0]["scores"]["factual_recall"]["candidate"]
    assert ask(*runs, "--top", "0").stdout.count("\nsample ") == 0
    assert ask(*runs, "--top", "1").stdout.count("\nsample ") == 1
    text = ask(*runs, "--sample", TIDE).stdout
    assert "answer, base: High tide at Brankmouth is at 6 in the morning." in text
    assert "answer, candidate: High tide at Brankmouth is at 9 in the evening." in text
    assert "C2: Gulls nest on the pier." in text
    assert "zh-1" not in text
    (sample,) = ask(*runs, "--sample", TIDE, "--json").document["moved"]
    assert sample["texts"]["base"]["contexts"] == sample["texts"]["candidate"]["contexts"]


def test_runs_of_a_suite_are_named_by_it(copy: Copy, ask: Ask) -> None:
    copy.change(f"update runs set suite = 'nightly' where run_id in ('copied', '{copy.base}')")
    finished = ask("compare", "previous:nightly", "latest:nightly", "--warehouse", copy.path, "--json")
    assert finished.document["base"]["run_id"] == copy.base
    assert finished.document["candidate"]["run_id"] == "copied"
    refused = ask("compare", "latest:weekly", "latest", "--warehouse", copy.path)
    assert refused.status == 2
    assert "no run is of suite 'weekly'; suites in the warehouse: nightly" in refused.stderr
