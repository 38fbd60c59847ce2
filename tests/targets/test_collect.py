"""Asking a real bot and judging what it says, by the command line: what is asked, what is kept, what is not asked.

A run costs seconds, so most tests read of one history of runs what they are about.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, finish
from collect_house import QUESTIONS, Harbour, N, build_harbour
from rag_bot import start_rag_bot

SUITE = "harbour.toml"


@pytest.fixture
def harbour(tmp_path: Path, prefect_home: Path) -> Iterator[Harbour]:
    built = build_harbour(tmp_path / "harbour", {"PREFECT_HOME": str(prefect_home)})
    with built.bot:
        yield built


@dataclass(frozen=True, kw_only=True)
class Night:
    """A command that has ended, and what the bot was asked meanwhile."""

    finished: Finished
    asked: list[str]

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = self.finished.document
        return found

    @property
    def run_id(self) -> str:
        return str(self.document["run_id"])


@dataclass(frozen=True, kw_only=True)
class History:
    """A harbour, and its nights by name, in the order in which they went by."""

    harbour: Harbour
    nights: dict[str, Night]

    def __getitem__(self, name: str) -> Night:
        return self.nights[name]

    def pass_night(self, name: str, *arguments: str, status: int = 0) -> Night:
        self.harbour.bot.reset()
        finished = self.harbour.place.call(*arguments)
        assert finished.status == status, finished.stderr
        self.nights[name] = Night(finished=finished, asked=list(self.harbour.bot.stats.questions))
        return self.nights[name]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Iterator[History]:
    """Make nights: answers collected and judged twice, a run, and runs after two documents changed."""
    harbour = build_harbour(tmp_path_factory.mktemp("history") / "harbour", {"PREFECT_HOME": str(prefect_home)})
    nights = History(harbour=harbour, nights={})
    run_suite, collect = ("run", SUITE, "--json"), ("collect", SUITE, "--json")
    with harbour.bot:
        collected = nights.pass_night("collected", *collect, "--label", "asked")
        judged = nights.pass_night("judged", *run_suite, "--responses", collected.run_id)
        nights.pass_night("judged again", *run_suite, "--responses", judged.run_id)
        nights.pass_night("run", *run_suite)
        harbour.change_document("lock.txt", "The lock at Brankmouth is 9 metres deep. It opens at 6 in the morning.")
        nights.pass_night("updated", *run_suite)
        harbour.change_document(
            "light.txt", "The lighthouse stands 50 metres tall.\n\nThe lighthouse was built in 1890."
        )
        affected = nights.pass_night("affected", *collect, "--only-affected", "--changed", "light.txt")
        nights.pass_night("affected judged", *run_suite, "--responses", affected.run_id)
        nights.pass_night("nothing changed", *collect, "--only-affected")
        yield nights


def run(harbour: Harbour, *arguments: str, status: int = 0) -> dict[str, Any]:
    """A command's JSON document."""
    finished = harbour.place.call(*arguments, "--json")
    assert finished.status == status, finished.stderr
    document: dict[str, Any] = finished.document
    return document


def read_responses(harbour: Harbour, run_id: str) -> dict[str, dict[str, Any]]:
    rows = harbour.read("select * from responses where run_id = $run_id", run_id=run_id)
    found = {row["sample_id"]: row for row in rows}
    assert len(found) == len(rows), "one row per sample"
    return found


def read_judged(harbour: Harbour, run_id: str) -> dict[str, str | None]:
    rows = harbour.read("select sample_id, judged from sample_changes where run_id = $run_id", run_id=run_id)
    return {row["sample_id"]: row["judged"] for row in rows}


def read_loaded(harbour: Harbour, run_id: str) -> list[dict[str, Any]]:
    """Return the judged answers of the bot, in the dataset's order."""
    return harbour.read(
        "select sample_id, answer, contexts, context_ids from run_samples join samples using (sample_id, input_hash) "
        "where run_id = $run_id order by ordinal",
        run_id=run_id,
    )


def test_collecting_judges_nothing(history: History) -> None:
    collected = history["collected"]
    assert collected.document["status"] == "completed"
    responses = collected.document["responses"]
    assert responses == {**responses, "n_ok": N, "n_failed": 0, "n_reused": 0, "errors": []}
    assert 0 < responses["latency_p50_ms"] <= responses["latency_p95_ms"]
    (row,) = history.harbour.read(
        "select kind, judge, label, len(metrics) as n_metrics, n_samples from runs where run_id = $run_id",
        run_id=collected.run_id,
    )
    assert row == {"kind": "collection", "judge": "none", "label": "asked", "n_metrics": 0, "n_samples": N}
    n_scores = "select count(*) as n from scores where run_id = $run_id"
    assert history.harbour.read(n_scores, run_id=collected.run_id) == [{"n": 0}]


def test_responses_are_judged_as_often_as_one_likes_without_asking(history: History) -> None:
    judged, again = history["judged"], history["judged again"]
    assert judged.asked == again.asked == []
    assert judged.document["calls"]["requests"] > 0
    assert judged.document["metrics"] == again.document["metrics"]
    assert again.document["calls"]["requests"] == 0
    parent = "select parent_run_id from runs where run_id = $run_id"
    assert history.harbour.read(parent, run_id=judged.run_id) == [{"parent_run_id": history["collected"].run_id}]
    for night in (judged, again):
        responses = read_responses(history.harbour, night.run_id)
        assert {(row["status"], row["reused_run_id"]) for row in responses.values()} == {
            ("reused", history["collected"].run_id)
        }


def test_the_bots_answers_are_judged_in_the_place_of_the_datasets(history: History) -> None:
    night, harbour = history["run"], history.harbour
    assert night.finished.stderr.count("answers or contexts for 1 of its 4 samples") == 1
    responses = read_responses(harbour, night.run_id)
    assert {row["status"] for row in responses.values()} == {"ok"}
    assert all(row["latency_ms"] > 0 and row["attempts"] == 1 for row in responses.values())
    loaded = read_loaded(harbour, night.run_id)
    assert [row["sample_id"] for row in loaded] == [row["id"] for row in QUESTIONS], "in the dataset's order"
    for row in loaded:
        assert {name: responses[row["sample_id"]][name] for name in row if name != "sample_id"} == {
            name: value for name, value in row.items() if name != "sample_id"
        }
    assert loaded[0]["answer"] == "The lock at Brankmouth is 7 metres deep."
    assert loaded[0]["context_ids"] == ["lock.txt#1"]
    assert night.document["metrics"]["faithfulness"]["mean"] == 1
    assert len(night.asked) == N


def test_after_an_update_the_bot_is_asked_again_and_only_what_changed_is_judged(history: History) -> None:
    night = history["updated"]
    assert len(night.asked) == N, "a run without changed documents is complete"
    assert read_judged(history.harbour, night.run_id) == {
        "lock": "asked anew", "mayor": "reused", "light": "reused", "built": "reused"
    }  # fmt: skip
    changes = {row["change"]: row for row in run(history.harbour, "show", night.run_id)["changes"]}
    assert {change: row["n_samples"] for change, row in changes.items()} == {
        "changed": 1, "new": 0, "unchanged": 3, "gone": 0
    }  # fmt: skip
    assert (changes["changed"]["n_asked_anew"], changes["unchanged"]["n_asked_anew"]) == (1, 0)
    assert changes["changed"]["n_requests"] == night.document["calls"]["requests"] > 0
    assert changes["unchanged"]["n_requests"] == 0
    assert changes["unchanged"]["n_reused"] + changes["changed"]["n_reused"] == night.document["calls"]["reused"]


def test_only_questions_whose_contexts_cited_a_changed_document_are_asked(history: History) -> None:
    night, harbour = history["affected"], history.harbour
    assert Counter(night.asked) == Counter(row["question"] for row in QUESTIONS[2:])
    counts = night.document["responses"]
    assert (night.document["status"], counts["n_ok"], counts["n_reused"]) == ("completed", 2, 2)
    responses = read_responses(harbour, night.run_id)
    assert responses["mayor"]["reused_run_id"] == history["updated"].run_id
    assert responses["mayor"]["answer"] == "The mayor is Maud Tregarthen."
    assert "50 metres" in responses["light"]["answer"]
    judged = history["affected judged"].document
    assert judged["metrics"]["factual_f1"]["n_scored"] == N, "complete, and so its means are comparable"
    shown = run(harbour, "show", night.run_id)["run"]
    assert (shown["kb_name"], shown["kb_changed"], shown["suite"]) == ("harbour", ["light.txt"], "harbour")


def test_without_changed_documents_every_question_is_asked(history: History) -> None:
    night = history["nothing changed"]
    assert "No changed documents were announced" in night.finished.stderr
    assert night.document["responses"]["n_ok"] == len(night.asked) == N


def test_responses_that_lack_questions_are_refused_before_anything_is_on_record(history: History) -> None:
    harbour, collected = history.harbour, history["collected"].run_id
    n_runs = harbour.read("select count(*) as n from runs")
    more = [{"id": name, "question": f"Who is the {name}?", "ground_truth": "No one."} for name in ("baker", "smith")]
    judge = ("run", SUITE, "--responses")
    try:
        harbour.write_questions([*QUESTIONS, *more])
        refused = harbour.place.call(*judge, collected)
        assert refused.status == 2
        assert f"2 of 6 questions have no response in run {collected} (the first: baker)" in refused.stderr
        harbour.write_questions([{**QUESTIONS[0], "question": "What is the depth of the lock?"}, QUESTIONS[1]])
        refused = harbour.place.call(*judge, collected)
        assert "1 of 2 questions has no response" in refused.stderr, "an answer to another question does not count"
        assert "the first: lock" in refused.stderr
    finally:
        harbour.write_questions(QUESTIONS)
    assert harbour.place.call(*judge, "nightly").status == 2
    assert harbour.read("select count(*) as n from runs") == n_runs


def test_a_suite_without_a_target_has_nothing_to_collect(history: History) -> None:
    place = history.harbour.place
    (place.folder / "plain.toml").write_text('dataset = "harbour.jsonl"\n', encoding="utf-8")
    refused = place.call("collect", "plain.toml")
    assert refused.status == 2
    assert "plain.toml has no [target]" in refused.stderr


def test_failed_response_is_reported_and_stays_failed_when_judged(harbour: Harbour) -> None:
    harbour.bot.configure(refuse="mayor", fail_status=418)
    finished = harbour.place.call("collect", SUITE)
    assert finished.status == 3
    (collected,) = (row["run_id"] for row in harbour.read("select run_id from runs"))
    assert finished.lines[0] == f"run {collected} incomplete: {N} samples, nothing judged"
    assert finished.lines[1].startswith(f"{N - 1} answered, 1 failed, latency p50 ")
    assert any("418" in line and line.endswith("mayor") for line in finished.lines)
    assert finished.lines[-2].startswith(f"next: evalhouse resume {collected}")
    assert finished.lines[-1].startswith(f"or:   evalhouse run {SUITE} --responses {collected}")
    shown = harbour.place.call("show", collected)
    assert f"responses: {finished.lines[1]}" in shown.lines
    assert "No scores yet." not in shown.stdout
    judged = run(harbour, "run", SUITE, "--responses", collected, status=3)
    assert read_responses(harbour, judged["run_id"])["mayor"]["status"] == "failed"
    errors = harbour.warehouse.fetch_rows("responses/errors", run_id=collected)
    assert [(row["n_samples"], row["example"]) for row in errors] == [(1, "mayor")]
    harbour.bot.configure(refuse=None)
    assert run(harbour, "resume", collected)["responses"]["n_ok"] == N
    harbour.bot.reset()
    assert run(harbour, "resume", judged["run_id"])["status"] == "completed", "taken from the parent, which has it now"
    assert harbour.bot.stats.n_requests == 0


def test_a_forgotten_answer_is_not_judged(harbour: Harbour) -> None:
    """Its mark was the answer, and was sent to the judge."""
    collected = run(harbour, "collect", SUITE)["run_id"]
    forgotten = harbour.place.call("warehouse", "forget", "--sample", "mayor", "--yes")
    assert forgotten.status == 0, forgotten.stderr
    judged = run(harbour, "run", SUITE, "--responses", collected, status=3)
    response = read_responses(harbour, judged["run_id"])["mayor"]
    assert (response["status"], response["answer"]) == ("failed", None)
    assert "its answer was forgotten" in response["error"]


def test_a_bot_that_is_down_ends_the_run_at_once_and_resume_asks_it_when_it_is_up(harbour: Harbour) -> None:
    rows = [{**QUESTIONS[number % N], "id": f"q{number}"} for number in range(30)]
    harbour.write_questions(rows)
    harbour.bot.stop()
    stopped = harbour.place.call("run", SUITE)
    assert stopped.status == 3, stopped.stderr
    problem = f"no connection to {harbour.bot.url}"
    assert problem in stopped.stderr
    assert "none of the first 5 questions was answered" in " ".join(stopped.stderr.split())
    (run_row,) = harbour.read("select run_id, status, problem from runs")
    assert problem in run_row["problem"]
    assert harbour.read("select count(*) as n from responses")[0]["n"] < 10, "the others were not tried"
    with start_rag_bot(harbour.bot.folder, port=int(harbour.bot.root_url.rpartition(":")[2])) as bot:
        resumed = run(harbour, "resume", run_row["run_id"])
        assert len(bot.stats.questions) == 30
    assert resumed["metrics"]["factual_f1"]["n_scored"] == 30


@pytest.mark.slow
def test_run_locks_its_suite_and_resumes_after_a_signal(harbour: Harbour) -> None:
    harbour.bot.configure(hold_after=2)
    first = harbour.place.start("run", SUITE)
    try:
        harbour.bot.wait_for(N)
        (running,) = harbour.read("select run_id from runs")
        second = harbour.place.call("run", SUITE)
        assert second.status == 3
        assert f"run {running['run_id']} of suite 'harbour' is running" in second.stderr
    finally:
        first.send_signal(signal.SIGINT)
        ended: Finished = finish(first)
    assert ended.status == 130, ended.stderr
    (row,) = harbour.read("select run_id, status, problem from runs where suite = 'harbour'")
    assert (row["run_id"], row["status"], row["problem"]) == (running["run_id"], "cancelled", "stopped by SIGINT")
    assert len(read_responses(harbour, row["run_id"])) == 2
    harbour.bot.configure(hold_after=None)
    harbour.bot.reset()
    assert run(harbour, "resume", row["run_id"])["status"] == "completed"
    assert harbour.bot.stats.n_requests == N - 2, "what came back is not asked for again"
