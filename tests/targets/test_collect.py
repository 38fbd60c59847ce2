"""Asking a real bot and judging what it says, by the command line: what is asked, what is kept, what is not asked."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, finish, wait_for
from collect_house import QUESTIONS, Harbour, N, build_harbour
from rag_bot import start_rag_bot

SUITE = "harbour.toml"


@pytest.fixture
def harbour(tmp_path: Path, prefect_home: Path) -> Iterator[Harbour]:
    built = build_harbour(tmp_path / "harbour", {"PREFECT_HOME": str(prefect_home)})
    with built.bot:
        yield built


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


def test_the_bots_answers_are_judged_in_the_place_of_the_datasets(harbour: Harbour) -> None:
    finished = harbour.place.call_process("run", SUITE, "--json")
    assert finished.status == 0, finished.stderr
    assert finished.stderr.count("answers or contexts for 1 of its 4 samples") == 1
    run_id = finished.document["run_id"]
    responses = read_responses(harbour, run_id)
    assert {row["status"] for row in responses.values()} == {"ok"}
    assert all(row["latency_ms"] > 0 and row["attempts"] == 1 for row in responses.values())
    loaded = harbour.read(
        "select sample_id, answer, contexts, context_ids from run_samples join samples using (sample_id, input_hash) "
        "where run_id = $run_id order by ordinal",
        run_id=run_id,
    )
    assert [row["sample_id"] for row in loaded] == [row["id"] for row in QUESTIONS], "in the dataset's order"
    for row in loaded:
        assert {name: responses[row["sample_id"]][name] for name in row if name != "sample_id"} == {
            name: value for name, value in row.items() if name != "sample_id"
        }
    assert loaded[0]["answer"] == "The lock at Brankmouth is 7 metres deep."
    assert loaded[0]["context_ids"] == ["lock.txt#1"]
    assert finished.document["metrics"]["faithfulness"]["mean"] == 1
    assert harbour.bot.stats.n_requests == N


def test_a_failed_question_is_asked_again_by_resume_and_alone(harbour: Harbour) -> None:
    harbour.bot.configure(refuse="mayor", fail_status=418)
    first = run(harbour, "run", SUITE, status=3)
    assert first["status"] == "incomplete"
    failed = read_responses(harbour, first["run_id"])["mayor"]
    assert (failed["status"], failed["answer"], failed["contexts"]) == ("failed", None, None)
    assert "418" in failed["error"]
    unscored = harbour.read("select distinct sample_id, metric, reason, detail from unscored order by metric")
    assert {(row["sample_id"], row["reason"], row["detail"]) for row in unscored} == {
        ("mayor", "target_failed", failed["error"])
    }
    assert len(unscored) == len(first["metrics"]), "everything rests on the answer or the contexts"
    harbour.bot.configure(refuse=None)
    harbour.bot.reset()
    resumed = run(harbour, "resume", first["run_id"])
    assert harbour.bot.stats.questions == ["Who is the mayor?"]
    assert resumed["metrics"]["factual_f1"] == {**resumed["metrics"]["factual_f1"], "n_scored": N, "n_unscored": 0}
    assert read_responses(harbour, first["run_id"])["mayor"]["status"] == "ok"
    assert harbour.read("select count(*) as n from run_samples") == [{"n": N}]


def test_a_bot_that_is_down_ends_the_run_at_once_and_resume_asks_it_when_it_is_up(harbour: Harbour) -> None:
    rows = [{**QUESTIONS[number % N], "id": f"q{number}"} for number in range(30)]
    harbour.write_questions(rows)
    harbour.bot.stop()
    stopped = harbour.place.call("run", SUITE)
    assert stopped.status == 3, stopped.stderr
    told = f"no connection to {harbour.bot.url}"
    assert told in stopped.stderr
    assert "none of the first 5 questions got through" in " ".join(stopped.stderr.split())
    (run_row,) = harbour.read("select run_id, status, problem from runs")
    assert told in run_row["problem"]
    assert harbour.read("select count(*) as n from responses")[0]["n"] < 10, "the others were not tried"
    with start_rag_bot(harbour.bot.folder, port=int(harbour.bot.root_url.rpartition(":")[2])) as bot:
        resumed = run(harbour, "resume", run_row["run_id"])
        assert len(bot.stats.questions) == 30
    assert resumed["metrics"]["factual_f1"]["n_scored"] == 30


def test_collecting_judges_nothing_and_its_responses_are_judged_as_often_as_one_likes(harbour: Harbour) -> None:
    collected = run(harbour, "collect", SUITE, "--label", "asked")
    assert collected["status"] == "completed"
    assert collected["responses"] == {
        **collected["responses"], "n_ok": N, "n_failed": 0, "n_reused": 0, "errors": []
    }  # fmt: skip
    assert 0 < collected["responses"]["latency_p50_ms"] <= collected["responses"]["latency_p95_ms"]
    (row,) = harbour.read("select kind, judge, label, len(metrics) as n_metrics, n_samples from runs")
    assert row == {"kind": "collection", "judge": "none", "label": "asked", "n_metrics": 0, "n_samples": N}
    assert harbour.read("select count(*) as n from scores") == [{"n": 0}]
    harbour.bot.reset()
    judged = [run(harbour, "run", SUITE, "--responses", collected["run_id"]) for _ in range(2)]
    assert harbour.bot.stats.n_requests == 0
    assert judged[0]["metrics"] == judged[1]["metrics"]
    assert judged[1]["calls"]["requests"] == 0
    parents = harbour.read("select distinct parent_run_id from runs where kind = 'evaluation'")
    assert parents == [{"parent_run_id": collected["run_id"]}]
    responses = read_responses(harbour, judged[1]["run_id"])
    assert {(row["status"], row["reused_run_id"]) for row in responses.values()} == {("reused", collected["run_id"])}
    third = run(harbour, "run", SUITE, "--responses", judged[1]["run_id"])
    assert {row["reused_run_id"] for row in read_responses(harbour, third["run_id"]).values()} == {collected["run_id"]}


def test_a_failed_response_is_failed_wherever_it_is_judged(harbour: Harbour) -> None:
    harbour.bot.configure(refuse="mayor", fail_status=418)
    collected = run(harbour, "collect", SUITE, status=3)
    assert collected["status"] == "incomplete"
    assert [(row["n_samples"], row["example"]) for row in collected["responses"]["errors"]] == [(1, "mayor")]
    judged = run(harbour, "run", SUITE, "--responses", collected["run_id"], status=3)
    assert read_responses(harbour, judged["run_id"])["mayor"]["status"] == "failed"
    harbour.bot.configure(refuse=None)
    assert run(harbour, "resume", collected["run_id"])["responses"]["n_ok"] == N
    harbour.bot.reset()
    assert run(harbour, "resume", judged["run_id"])["status"] == "completed", "taken from the parent, which has it now"
    assert harbour.bot.stats.n_requests == 0


def test_what_collect_prints(harbour: Harbour) -> None:
    harbour.bot.configure(refuse="mayor", fail_status=418)
    finished = harbour.place.call_process("collect", SUITE)
    assert finished.status == 3
    run_id = harbour.read("select run_id from runs")[0]["run_id"]
    assert finished.lines[0] == f"run {run_id} incomplete: {N} samples, nothing judged"
    assert finished.lines[1].startswith(f"{N - 1} answered, 1 failed, latency p50 ")
    assert any("418" in line and line.endswith("mayor") for line in finished.lines)
    assert finished.lines[-2].startswith(f"next: evalhouse resume {run_id}")
    assert finished.lines[-1].startswith(f"or:   evalhouse run {SUITE} --responses {run_id}")
    shown = harbour.place.call("show", run_id)
    assert f"responses: {finished.lines[1]}" in shown.lines
    assert "No scores yet." not in shown.stdout


def test_a_suite_without_a_target_has_nothing_to_collect(harbour: Harbour) -> None:
    suite = harbour.place.folder / "plain.toml"
    suite.write_text('dataset = "harbour.jsonl"\n', encoding="utf-8")
    refused = harbour.place.call("collect", "plain.toml")
    assert refused.status == 2
    assert "plain.toml has no [target]" in refused.stderr


def test_responses_that_lack_questions_are_refused_before_anything_is_on_record(harbour: Harbour) -> None:
    collected = run(harbour, "collect", SUITE, "--limit", "2")
    refused = harbour.place.call("run", SUITE, "--responses", collected["run_id"])
    assert refused.status == 2
    assert f"2 of 4 questions have no response in run {collected['run_id']} (the first: light)" in refused.stderr
    reworded = {**QUESTIONS[0], "question": "What is the depth of the lock?"}
    harbour.write_questions([reworded, QUESTIONS[1]])
    refused = harbour.place.call("run", SUITE, "--responses", collected["run_id"])
    assert "1 of 2 questions has no response" in refused.stderr, "an answer to another question is none"
    assert "the first: lock" in refused.stderr
    assert harbour.read("select count(*) as n from runs") == [{"n": 1}]
    assert harbour.place.call("run", SUITE, "--responses", "nightly").status == 2


def test_the_samples_of_a_run_without_a_target_are_responses_too(harbour: Harbour) -> None:
    answered = [{**row, "answer": f"It is {number}.", "contexts": ["One."]} for number, row in enumerate(QUESTIONS)]
    harbour.write_questions(answered)
    metrics = ("--metrics", "faithfulness", "--judge", "lexical")
    brought = run(harbour, "run", "harbour.jsonl", *metrics)
    again = run(harbour, "run", "harbour.jsonl", *metrics, "--responses", brought["run_id"])
    assert again["metrics"] == brought["metrics"]
    assert again["calls"]["requests"] == 0
    hashes = "select run_id, list(input_hash order by ordinal) as hashes from run_samples group by run_id"
    first, second = harbour.read(hashes)
    assert first["hashes"] == second["hashes"], "the same inputs, whichever way they came"


def test_after_an_update_the_bot_is_asked_again_and_only_what_changed_is_judged(harbour: Harbour) -> None:
    run(harbour, "run", SUITE)
    harbour.change_document("lock.txt", "The lock at Brankmouth is 9 metres deep. It opens at 6 in the morning.")
    harbour.bot.reset()
    second = run(harbour, "run", SUITE)
    assert harbour.bot.stats.n_requests == N, "a run that is told of no documents is complete"
    assert read_judged(harbour, second["run_id"]) == {
        "lock": "asked anew", "mayor": "reused", "light": "reused", "built": "reused"
    }  # fmt: skip
    changes = {row["change"]: row for row in run(harbour, "show", second["run_id"])["changes"]}
    assert {change: row["n_samples"] for change, row in changes.items()} == {
        "changed": 1, "new": 0, "unchanged": 3, "gone": 0
    }  # fmt: skip
    assert (changes["changed"]["n_asked_anew"], changes["unchanged"]["n_asked_anew"]) == (1, 0)
    assert changes["changed"]["n_requests"] == second["calls"]["requests"]
    assert changes["unchanged"]["n_requests"] == 0
    assert changes["unchanged"]["n_reused"] + changes["changed"]["n_reused"] == second["calls"]["reused"]


def test_only_questions_whose_contexts_cited_a_changed_document_are_asked(harbour: Harbour) -> None:
    first = run(harbour, "run", SUITE)
    harbour.change_document("light.txt", "The lighthouse stands 50 metres tall.\n\nThe lighthouse was built in 1890.")
    harbour.bot.reset()
    told = run(harbour, "collect", SUITE, "--only-affected", "--changed", "light.txt")
    assert Counter(harbour.bot.stats.questions) == Counter(row["question"] for row in QUESTIONS[2:])
    assert (told["status"], told["responses"]["n_ok"], told["responses"]["n_reused"]) == ("completed", 2, 2)
    responses = read_responses(harbour, told["run_id"])
    assert responses["mayor"]["reused_run_id"] == first["run_id"]
    assert responses["mayor"]["answer"] == "The mayor is Maud Tregarthen."
    assert "50 metres" in responses["light"]["answer"]
    judged = run(harbour, "run", SUITE, "--responses", told["run_id"])
    assert judged["metrics"]["factual_f1"]["n_scored"] == N, "complete, and so its means are comparable"
    shown = run(harbour, "show", told["run_id"])["run"]
    assert (shown["kb_name"], shown["kb_changed"], shown["suite"]) == ("harbour", ["light.txt"], "harbour")


def test_without_changed_documents_every_question_is_asked(harbour: Harbour) -> None:
    run(harbour, "collect", SUITE)
    harbour.bot.reset()
    finished = harbour.place.call("collect", SUITE, "--only-affected", "--json")
    assert "No changed documents were announced" in finished.stderr
    assert finished.document["responses"]["n_ok"] == harbour.bot.stats.n_requests == N


def test_two_runs_of_a_suite_never_overlap(harbour: Harbour) -> None:
    harbour.bot.configure(hold_after=1)
    first = harbour.place.start("run", SUITE, "--json")
    try:
        harbour.bot.wait_for(2)
        (under_way,) = harbour.read("select run_id from runs")
        second = harbour.place.call("run", SUITE)
        assert second.status == 3
        assert f"run {under_way['run_id']} of suite 'harbour' is under way" in second.stderr
        assert harbour.place.call("collect", SUITE).status == 3
    finally:
        harbour.bot.configure(hold_after=None)
        ended = finish(first)
    assert ended.status == 0, ended.stderr
    assert harbour.read("select run_id from runs") == [under_way]


def test_another_suite_is_not_kept_waiting(harbour: Harbour) -> None:
    folder = harbour.place.folder
    (folder / "other.toml").write_text((folder / SUITE).read_text(encoding="utf-8"), encoding="utf-8")
    harbour.bot.configure(hold_after=1)
    first = harbour.place.start("collect", SUITE)
    try:
        harbour.bot.wait_for(2)
        other = harbour.place.start("collect", "other.toml")
        wait_for(lambda: len(harbour.read("select run_id from runs")) == 2, other)
    finally:
        harbour.bot.configure(hold_after=None)
        ended = [finish(process).status for process in (first, other)]
    assert ended == [0, 0]


@pytest.mark.parametrize("command", ["run", "collect"])
def test_a_signal_while_asking_leaves_a_run_that_goes_on(harbour: Harbour, command: str) -> None:
    harbour.bot.configure(hold_after=2)
    process = harbour.place.start(command, SUITE)
    harbour.bot.wait_for(N)
    process.send_signal(signal.SIGINT)
    ended: Finished = finish(process)
    assert ended.status == 130, ended.stderr
    (row,) = harbour.read("select run_id, status, problem from runs")
    assert (row["status"], row["problem"]) == ("cancelled", "stopped by SIGINT")
    assert len(read_responses(harbour, row["run_id"])) == 2
    harbour.bot.configure(hold_after=None)
    harbour.bot.reset()
    assert run(harbour, "resume", row["run_id"])["status"] == "completed"
    assert harbour.bot.stats.n_requests == N - 2, "what came back is not asked for again"
