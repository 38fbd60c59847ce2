"""`prompts compare` and `learn`: the agreement with people by other words or examples, and its cost."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cli_house import write_dataset
from cli_process import Finished, Place, call_here
from endpoint import Asked, Endpoint, running_endpoint
from prompt_files import read_content, write_prompt
from warehouse_processes import find_tables

from evalhouse.flows.trials.prompts import walk_verdicts
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.upkeep.forget import Rule, forget

N = 16
STRICT = "Only what the text states in so many words is supported."
SILENT = "Take your time."
LEARNED = "No context states it."
RUN = "the-run"


def attribute_loosely(asked: Asked) -> dict[str, Any]:
    """Everything is supported by the first context; with the strict prompt, only the statement about the ship's place.

    Of the first sample it then denies that as well, unlike people. With the slow prompt it does not answer. An example
    of people's labels makes it strict as well, about days alone; the model `deaf` does not mind examples.
    """
    if SILENT in asked.texts[0]:
        return {"verdicts": []}
    has_learned = asked.model != "deaf" and LEARNED in str(asked.body["messages"])
    strict = STRICT in asked.texts[0]
    items = asked.items("answer_statements") | asked.items("ground_truth_statements")
    verdicts = [
        {
            "id": item_id,
            "reason": "as read",
            "contexts": []
            if (strict and ("came" in text or "berth 1." in text))
            or (has_learned and "came" in text and "day 3." not in text)
            else ["C1"],
        }
        for item_id, text in items.items()
    ]
    return {"verdicts": verdicts}


def make_rows() -> list[dict[str, Any]]:
    return [
        {
            "id": f"berth-{place}",
            "question": f"Which ship lies at berth {place}?",
            "answer": f"Ship number {place * 7} lies at berth {place}. It came on day {place}.",
            "ground_truth": f"Ship number {place * 7} lies at berth {place}.",
            "contexts": [f"The list says that ship number {place * 7} lies at berth {place}.", "Ropes are sold here."],
        }
        for place in range(1, N + 1)
    ]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(
        models=("judge", "deaf"), keep_bodies=True, script={"attribute": attribute_loosely}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path, endpoint: Endpoint) -> Place:
    """A run through the endpoint, all of whose support a person has reviewed; and a folder of other words."""
    folder = tmp_path_factory.mktemp("berths")
    write_dataset(folder, make_rows(), "berths.jsonl")
    variables = {"PREFECT_HOME": str(prefect_home), "OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "sk-x"}
    found = Place(folder=folder, variables=variables)
    ended = found.call(
        "run", "berths.jsonl", "--judge", "openai:judge", "--label", RUN, "--metrics", "faithfulness,context_recall"
    )
    assert ended.status == 0, ended.stderr
    exported = found.call("review", "export", RUN, "--steps", "attribute", "-n", "500", "-o", "picks.jsonl")
    assert exported.status == 0, exported.stderr
    lines = [json.loads(line) for line in (folder / "picks.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line |= {"label": "unsupported" if "came" in line["statement"] else "supported", "reviewer": "ann"}
    (folder / "labels.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    imported = found.call("review", "import", "labels.jsonl")
    assert imported.status == 0, imported.stderr
    content = read_content("attribute")
    write_prompt(folder / "strict", content | {"system": f"{content['system']}\n{STRICT}", "version": 77})
    return found


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Calls the command in this process, in the place's folder."""

    capsys: pytest.CaptureFixture[str]

    def call(self, *arguments: str) -> Finished:
        return call_here(self.capsys, "prompts", "compare", *arguments)

    def compare(self, *arguments: str) -> Any:  # noqa: ANN401  # any JSON
        ended = self.call(*arguments, "--json")
        assert ended.status == 0, ended.stderr
        return ended.document


@pytest.fixture
def caller(place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.chdir(place.folder)
    for name, value in place.variables.items():
        monkeypatch.setenv(name, value)
    return Caller(capsys=capsys)


def test_better_prompt_is_found_and_no_request_is_paid_twice(endpoint: Endpoint, caller: Caller) -> None:
    estimated = caller.compare("built-in", "strict", "--on", RUN, "--dry-run")
    assert (estimated["costs"]["old"]["requests"], estimated["costs"]["old"]["reused"]) == (0, 2 * N)
    assert (estimated["costs"]["new"]["requests"], estimated["costs"]["new"]["reused"]) == (2 * N, 0)
    before = len(endpoint.stats.bodies)
    document = caller.compare("built-in", "strict", "--on", RUN)
    assert len(endpoint.stats.bodies) == before + 2 * N
    assert document["costs"]["old"]["requests"] == 0
    assert document["costs"]["old"]["reused"] == document["costs"]["new"]["requests"] == 2 * N
    (change,) = document["changes"]
    assert (change["step"], change["n_verdicts"], change["n_samples"]) == ("attribute", 3 * N, N)
    # Once wrong about N statements, then about the first sample's two.
    assert change["accuracy_old"]["value"] == pytest.approx(2 / 3)
    assert change["accuracy_new"]["value"] == pytest.approx(1 - 2 / (3 * N))
    assert change["accuracy_difference"]["value"] == pytest.approx(1 / 3 - 2 / (3 * N))
    assert 0 < change["accuracy_difference"]["ci_low"] < change["accuracy_difference"]["ci_high"] < 0.4
    assert (change["n_changed"], change["n_better"], change["n_worse"]) == (N + 2, N, 2)
    assert change["verdict"] == "better"
    assert change["kappa_old"]["value"] == pytest.approx(0)
    worse = [move for move in document["moves"] if move["moved"] < 0]
    assert {(move["sample_id"], move["statement_id"]) for move in worse} == {("berth-1", "A1"), ("berth-1", "G1")}


def test_calls_belong_to_a_run_that_is_not_a_night(place: Place, caller: Caller) -> None:
    caller.call("built-in", "strict", "--on", "all")
    runs = place.read("select run_id, kind, status, judge, parent_run_id from runs where kind = 'prompts'")
    (reviewed,) = place.read(f"select run_id from runs where label = '{RUN}'")
    assert {(run["status"], run["judge"]) for run in runs} == {("completed", "openai:judge")}
    assert {run["parent_run_id"] for run in runs} == {reviewed["run_id"]}
    assert find_run(Warehouse("duckdb:///evalhouse.duckdb"), "latest").run_id == reviewed["run_id"]
    hashes = place.read("select distinct prompt_hash from llm_calls join runs using (run_id) where kind = 'prompts'")
    known = place.read("select prompt_hash from prompts where prompt = 'attribute'")
    assert {row["prompt_hash"] for row in hashes} <= {row["prompt_hash"] for row in known}


def test_a_sample_is_forgotten_with_what_other_prompts_asked_about_it(
    place: Place, caller: Caller, tmp_path: Path
) -> None:
    caller.call("built-in", "strict", "--on", RUN)
    shutil.copyfile(place.folder / "evalhouse.duckdb", tmp_path / "copy.duckdb")
    copy = Warehouse(f"duckdb:///{tmp_path / 'copy.duckdb'}")
    gone, kept = (f"at berth {number}?" for number in (5, 6))
    assert find_tables(copy, gone) == find_tables(copy, kept) == {"samples", "llm_calls"}
    forget(copy, Rule(words="--sample berth-5", sample_id="berth-5"))
    assert find_tables(copy, gone) == set(), "the calls of the evaluation go as well"
    assert find_tables(copy, kept) == {"samples", "llm_calls"}


def test_what_one_request_asked_is_asked_so_again_in_other_words(
    place: Place, endpoint: Endpoint, caller: Caller
) -> None:
    run = ("run", "berths.jsonl", "--judge", "openai:judge", "--label", "joined", "--plan", "fused", "--limit", "3")
    assert place.call(*run, "--metrics", "context_recall,context_precision").status == 0
    assert place.call("review", "export", "joined", "--steps", "rank", "-n", "50", "-o", "joined.jsonl").status == 0
    lines = [json.loads(line) for line in (place.folder / "joined.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line |= {"label": "useful" if line["context_rank"] == 1 else "not_useful", "reviewer": "ann"}
    (place.folder / "joined.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert place.call("review", "import", "joined.jsonl").status == 0
    content = read_content("fused")
    write_prompt(place.folder / "joined", content | {"system": f"{content['system']}\n{STRICT}", "version": 79})
    before = len(endpoint.stats.bodies)
    document = caller.compare("built-in", "joined", "--on", "joined")
    assert [endpoint.stats.bodies[before + n]["messages"][0]["content"].count(STRICT) for n in range(3)] == [1, 1, 1]
    assert len(endpoint.stats.bodies) == before + 3
    # Labels of the same statements in the other run count here as well.
    assert (document["steps"], document["costs"]["old"]["reused"]) == (["attribute", "rank"], 3)
    assert document["new"]["prompts"].keys() == {"fused"}
    assert ("rank", 6) in [(change["step"], change["n_verdicts"]) for change in document["changes"]]
    expected = caller.call("built-in", "joined", "--on", RUN).stderr
    assert "no verdict that was asked for with fused has been reviewed" in expected


def test_words_on_record_are_found_by_hash_and_version(place: Place, caller: Caller) -> None:
    caller.call("built-in", "strict", "--on", RUN)
    (row,) = place.read("select prompt_hash from prompts where version = '77'")
    by_hash, by_version = (
        caller.compare("built-in", wanted, "--on", RUN) for wanted in (row["prompt_hash"][:10], "77")
    )
    assert by_hash["changes"] == by_version["changes"]
    assert by_hash["new"]["prompts"]["attribute"]["prompt_hash"] == row["prompt_hash"]
    assert by_hash["costs"]["new"]["requests"] == 0


def test_a_person_reads_what_changed(caller: Caller) -> None:
    shown = caller.call("strict", "built-in", "--on", RUN).stdout
    assert "reviewed verdicts" in shown
    assert "worse" in shown
    assert "Verdicts that changed, worst first" in shown
    assert "$" in shown or "unknown" in shown


@pytest.mark.parametrize(("arguments", "expected"), [
    (("built-in", "strict", "--on", RUN, "--judge", "lexical"), "the lexical judge reads no prompt"),
    (("built-in", "built-in", "--on", RUN), "ask in the same words"),
    (("built-in", "no-such", "--on", RUN), "'no-such' is not a folder"),
    (("built-in", "strict", "--on", "missing"), "no run fits 'missing'"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(
    caller: Caller, endpoint: Endpoint, arguments: tuple[str, ...], expected: str
) -> None:
    before = len(endpoint.stats.bodies)
    ended = caller.call(*arguments)
    assert ended.status == 2
    assert expected in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert len(endpoint.stats.bodies) == before


def test_verdicts_the_judge_failed_on_are_left_out(place: Place, caller: Caller) -> None:
    content = read_content("attribute")
    write_prompt(place.folder / "other", content | {"system": f"{content['system']}\n{SILENT}", "version": 78})
    document = caller.compare("built-in", "other", "--on", RUN, "--attempts", "1")
    assert document["n_unjudged"] == 3 * N
    assert document["changes"] == []


def learn(caller: Caller, *arguments: str) -> Finished:
    return call_here(caller.capsys, "prompts", "learn", "--step", "attribute", *arguments)


@pytest.mark.slow
def test_examples_that_help_on_held_out_questions_are_written(place: Place, endpoint: Endpoint, caller: Caller) -> None:
    before = len(endpoint.stats.bodies)
    ended = learn(caller, "--on", RUN, "-o", "learned", "--json")
    assert ended.status == 0, ended.stderr
    document = ended.document
    assert (document["adopted"], document["path"], len(document["examples"])) == (True, "learned/attribute.yaml", 3)
    (change,) = document["changes"]
    assert (change["verdict"], change["n_better"], change["n_worse"]) == ("better", N - 1, 0)
    # The old prompt's replies are stored; each sample is asked about once more, in its fold.
    sent = endpoint.stats.bodies[before:]
    assert len(sent) == 2 * N
    for body in sent:
        *opening, data = [message["content"] for message in body["messages"]]
        (berth,) = {word for word in data.split() if word.rstrip("?.").isdigit()} & {
            str(n) + "?" for n in range(1, N + 1)
        }
        examples = [text for text in opening if "Which ship lies at berth" in text]
        assert len(examples) == 3
        assert not any(f"at berth {berth}" in text for text in examples), "an example judges itself"
    written = yaml.safe_load((place.folder / "learned" / "attribute.yaml").read_text(encoding="utf-8"))
    assert [example["data"]["question"] for example in written["examples"][2:]] == [
        f"Which ship lies at berth {name.removeprefix('berth-')}?" for name in document["examples"]
    ]
    corrected = [
        one for example in written["examples"][2:] for one in example["reply"]["verdicts"] if not one["contexts"]
    ]
    assert {one["reason"] for one in corrected} == {LEARNED}
    # The folder is one that a run takes.
    assert call_here(caller.capsys, "prompts", "check", "learned").status == 0
    compared = caller.compare("built-in", "learned", "--on", RUN)
    assert compared["changes"][0]["verdict"] == "better"
    assert document["new"]["prompts"] == compared["new"]["prompts"] != document["old"]["prompts"]


def test_examples_that_do_not_help_are_not_written(place: Place, caller: Caller) -> None:
    ended = learn(caller, "--on", RUN, "-o", "vain", "--judge", "openai:deaf")
    assert "Not adopted: with examples the judge agrees with people no better beyond chance" in ended.stdout
    assert not (place.folder / "vain").exists()


@pytest.mark.slow
def test_after_a_run_with_own_prompts_the_prompts_that_get_the_examples_are_named(place: Place, caller: Caller) -> None:
    """Examples were learned for the built-in prompt, from verdicts of another one."""
    of_run = ("--judge", "openai:judge", "--metrics", "faithfulness,context_recall", "--prompts", "strict")
    assert place.call("run", "berths.jsonl", *of_run, "--label", "strict").status == 0
    ended = learn(caller, "--on", "strict", "-o", "own")
    assert ended.status == 2
    assert (
        "was judged with the prompts in strict: add the examples to these with --prompts strict, or to" in ended.stderr
    )
    assert learn(caller, "--on", "strict", "-o", "own", "--prompts", "strict", "--dry-run").status == 0


def test_support_of_a_ground_truth_is_by_the_contexts_alone() -> None:
    """People are asked about the contexts there, and the judge was held to be wrong where only a turn has it."""
    by_turn = {"supported": True, "context_ranks": [], "joint_ranks": [], "turn_ranks": [1]}
    rows = [{**by_turn, "statement_id": name} for name in ("A1", "G1")]
    work: Any = SimpleNamespace(rows=defaultdict(list, attributions=rows))
    assert [(item_id, label) for _, item_id, label, _ in walk_verdicts(work)] == [
        ("A1", "supported"),
        ("G1", "unsupported"),
    ]
