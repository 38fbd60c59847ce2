"""`evalhouse init`: the file that it writes, and the one question that shows whether it works."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from cli_process import Place
from rag_bot import start_rag_bot
from target_server import answer_json, serving

from evalhouse.flows.commands.setup import write_suite
from evalhouse.flows.preparing.suites import load_suite

QUESTION = {"id": "tide-1", "question": "When is high tide at Brankmouth?", "ground_truth": "High tide is at 6:40."}
VALUES = {
    "dataset": "sample",
    "url": "http://localhost:8000/ask",
    "judge": "lexical",
    "answer": "$.a",
    "contexts": "$.c",
}


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path) -> Place:
    (tmp_path / "tides.jsonl").write_text(f"{json.dumps(QUESTION)}\n{json.dumps(QUESTION | {'id': 'tide-2'})}\n")
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "tides.txt").write_text("High tide at Brankmouth is at 6:40.\n")
    return Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})


def test_the_bot_is_asked_one_question_and_its_answer_judged(place: Place) -> None:
    with start_rag_bot(place.folder / "documents") as bot:
        made = place.call("init", "tides.toml", "--url", bot.url, "--dataset", "tides.jsonl")
        assert made.status == 0, made.stderr
        assert bot.stats.questions == [QUESTION["question"]]
    for line in (
        "wrote tides.toml",
        f"question: {QUESTION['question']}",
        "answer: High tide at Brankmouth is at 6:40.",
    ):
        assert line in made.lines
    assert re.search(r"^factual_f1 +\d\.\d{3} +high$", made.stdout, re.MULTILINE)
    assert "next: evalhouse run tides.toml   (all questions)" in made.lines
    (run,) = place.call("runs", "--json").document
    assert (run["n_samples"], run["suite"], run["judge"]) == (1, None, "lexical"), "one question is not a night"
    suite = load_suite(place.folder / "tides.toml")
    assert suite.path.name == "tides.toml"


def test_a_bot_that_does_not_answer_is_shown_with_its_whole_error(place: Place) -> None:
    with start_rag_bot(place.folder / "documents", token="secret") as bot:
        made = place.call("init", "tides.toml", "--url", bot.url, "--dataset", "tides.jsonl")
    assert made.status == 3
    assert "status 401" in made.stdout
    assert "next: fix tides.toml, then evalhouse run tides.toml --limit 1" in made.lines
    written = (place.folder / "tides.toml").read_text()
    (place.folder / "tides.toml").write_text(written := f"{written}# mine\n")
    refused = place.call("init", "tides.toml")
    assert (refused.status, refused.stderr.count("\n")) == (2, 1)
    assert "already exists" in refused.stderr
    assert (place.folder / "tides.toml").read_text() == written


@pytest.mark.slow
def test_init_proposes_the_bots_members_and_can_be_called_again(place: Place) -> None:
    body = {"reply": "At 6:40.", "hits": [{"blurb": "High tide is at 6:40.", "n": 1}]}
    with serving(*[answer_json(body)] * 6) as bot:
        first = place.call("init", "tides.toml", "--url", bot.url, "--dataset", "tides.jsonl")
        assert first.status == 3
        assert "is it answer = '$.reply' and contexts = '$.hits[*].blurb'?" in first.stdout
        options = ("--answer", "$.reply", "--contexts", "$.hits[*].blurb")
        second = place.call("init", "tides.toml", "--url", bot.url, "--dataset", "tides.jsonl", *options)
    assert second.status == 0, second.stderr
    assert "answer: At 6:40." in second.lines
    assert tomllib.loads((place.folder / "tides.toml").read_text())["target"]["answer"] == "$.reply"


def test_what_a_run_of_all_questions_would_refuse_is_reported_at_once(place: Place) -> None:
    turns = [{"role": "user", "content": "Is it far?"}, {"role": "assistant", "content": "No."}]
    printed = ("1 questions are asked in the middle of a conversation", "leave these rows out")
    with (place.folder / "tides.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(QUESTION | {'id': 'tide-3', 'conversation': turns})}\n")
    with start_rag_bot(place.folder / "documents") as bot:
        made = place.call("init", "tides.toml", "--url", bot.url, "--dataset", "tides.jsonl")
        assert bot.stats.questions == [QUESTION["question"]]
    assert made.status == 3
    assert [text for text in ("would be refused", *printed) if text not in made.stderr] == [], made.stderr
    assert "next: correct that, then evalhouse run tides.toml" in made.lines
    ran = place.call("run", "tides.toml")
    assert ran.status == 2
    assert [text for text in printed if text not in ran.stderr] == [], ran.stderr


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [(("--url", "nonsense"), "is not an address"), (("--judge", "unknown"), "judge")],
)
def test_invalid_values_are_refused_and_leave_no_file(place: Place, arguments: tuple[str, ...], printed: str) -> None:
    refused = place.call("init", "new.toml", *arguments)
    assert refused.status == 2
    assert printed in refused.stderr
    assert not (place.folder / "new.toml").exists()


@pytest.mark.parametrize("url", ["", VALUES["url"]])
def test_every_key_in_a_comment_is_accepted_by_a_suite(url: str, tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    write_suite(path, VALUES | {"url": url})
    assert ("target" in tomllib.loads(path.read_text())) is bool(url)
    path.write_text(re.sub(r"^# (?=\[|\w+ = )", "", path.read_text(), flags=re.MULTILINE))
    taken = load_suite(path)
    assert {"target", "gate", "schedule"} <= set(tomllib.loads(path.read_text()))
    assert taken.schedule is not None


def test_a_dataset_is_seen_from_the_folder_of_the_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    (place.folder / "suites").mkdir()
    write_suite(Path("suites/new.toml"), VALUES | {"dataset": "tides.jsonl", "url": ""})
    assert tomllib.loads(Path("suites/new.toml").read_text())["dataset"] == "../tides.jsonl"
