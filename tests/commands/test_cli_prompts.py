"""`evalhouse prompts`: the languages and folders it takes its files from, and that what it shows is what is sent.

The plain listing is in test_cli_doctor.py; the ways to misname a prompt are in test_cli_errors.py; what a prompt asks
of a sample is in test_prompt_preview.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import Ask
from prompt_files import ALL_NAMES, read_content, write_prompt

from evalhouse.prompts import BlockValue, Item, load_prompts

HOSTILE = "\x1b[31mred\x1b[0m [bold]loud[/bold] \u202eesrever"
RANK_DATA: dict[str, BlockValue] = {"question": "q", "ground_truth": "g", "contexts": [Item(id="C1", text="c")]}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_is_shown_is_what_every_request_begins_with(ask: Ask, language: str) -> None:
    *opening, data = load_prompts(language)["rank"].render(RANK_DATA)
    shown = ask("prompts", "show", "rank", "--language", language, "--json").document
    assert shown["messages"] == [{"role": message.role, "content": message.content} for message in opening]
    text = ask("prompts", "show", "rank", "--language", language).stdout
    places = [text.index(message.content) for message in opening]
    assert places == sorted(places)
    sent = [line.split()[0] for line in data.content.splitlines() if line.startswith("<") and line[1] != "/"]
    last = text[places[-1] :]
    blocks = [line.split()[0] for line in last.splitlines() if line.startswith("<") and line.endswith(" …>")]
    assert [block for block in blocks if block[1] != "/"] == sent == ["<question", "<ground_truth", "<contexts"]


def test_listed_hashes_are_those_of_the_prompts(ask: Ask) -> None:
    lines = ask("prompts", "list").lines[1:]
    for line, (name, prompt) in zip(lines, load_prompts().items(), strict=True):
        assert line.split()[:4] == [name, str(prompt.version), "en", prompt.prompt_hash[:12]]


def test_the_language_is_that_of_the_flag_then_of_the_variable(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALHOUSE_LANGUAGE", "zh")
    assert {item["language"] for item in ask("prompts", "list", "--json").document} == {"zh"}
    assert {item["language"] for item in ask("prompts", "list", "--language", "en", "--json").document} == {"en"}
    assert ask("prompts", "check").stdout == f"{len(ALL_NAMES)} prompts in zh are sound: {', '.join(ALL_NAMES)}\n"


def make_tone(**changes: Any) -> dict[str, Any]:  # noqa: ANN401  # keys of a prompt file
    """A user's rubric with one criterion, which gives the score `tone`."""
    content = read_content("answer_validity")
    content["system"] = content["system"].replace("answer_validity", "friendly")
    content["rubric"]["criteria"] = {"friendly": {"kind": "rating", "min": 1, "max": 5, "anchors": [1, 5]}}
    content["examples"] = []
    return content | {"name": "tone", "description": "Rate the tone."} | changes


def test_rubrics_are_marked_with_their_scales_and_metrics(ask: Ask) -> None:
    rows = {line.split()[0]: line for line in ask("prompts", "list").lines}
    assert rows["prompt"].split()[4:] == ["scale", "metrics", "what", "it", "asks"]
    assert "  1 to 10        accuracy  " in rows["accuracy"]
    assert "  true or false  answer_validity  " in rows["answer_validity"]
    named = "relevance_accuracy, relevance_comprehensiveness, relevance_context_precision, relevance_final"
    assert f"  0 to 10        {named}  " in rows["relevance"], "the flag that only steers rules gives no score"
    assert rows["classify"].split()[4:6] == ["–", "–"]


def test_a_program_gets_criteria_and_metrics_of_rubrics(ask: Ask) -> None:
    listed = {item["name"]: item["rubric"] for item in ask("prompts", "list", "--json").document}
    assert listed["extract"] is None
    assert listed["passage_recall"] == {
        "needs": ["ground_truth", "answer"],
        "criteria": {
            "passage_recall": {"kind": "spread", "min": 1, "max": 5, "anchors": [1, 2, 3, 4, 5], "better": "high"}
        },
        "metrics": {"passage_recall": "passage_recall"},
    }
    assert listed["relevance"]["metrics"]["relevance_final"] == "final"


def test_a_folder_is_checked(ask: Ask, tmp_path: Path) -> None:
    write_prompt(tmp_path, read_content("rank"))
    write_prompt(tmp_path, read_content("classify") | {"version": 70})
    write_prompt(tmp_path, make_tone())
    finished = ask("prompts", "check", str(tmp_path))
    assert finished.status == 0
    names = sorted([*ALL_NAMES, "tone"])
    counted, expected = finished.lines
    assert counted.startswith(f"{len(names)} prompts in en are sound: ")
    assert sorted(counted.partition(": ")[2].split(", ")) == names
    assert sorted(expected.removeprefix(f"in {tmp_path}: ").split("; ")) == [
        "classify replaces the built-in one", "rank is the same as the built-in one",
        "tone is a rubric of 1 to 5 and gives tone",
    ]  # fmt: skip


def test_a_file_of_the_user_is_shown_and_not_obeyed(ask: Ask, tmp_path: Path) -> None:
    write_prompt(tmp_path, read_content("rank") | {"description": HOSTILE})
    finished = ask("prompts", "list", "--prompts", str(tmp_path))
    assert finished.status == 0
    assert "\\x1b[31mred\\x1b[0m [bold]loud[/bold] \\u202eesrever" in finished.stdout
    assert not set("\x1b\u202e") & set(finished.stdout)


def test_each_problem_is_a_line_with_its_file_and_key(ask: Ask, tmp_path: Path) -> None:
    rank, extract = read_content("rank"), read_content("extract")
    write_prompt(tmp_path, rank | {"version": "newest", "labels": {"C": ["useful"]}})
    write_prompt(tmp_path, {key: value for key, value in extract.items() if key != "system"})
    finished = ask("prompts", "check", str(tmp_path))
    assert finished.status == 2
    assert finished.stdout == ""
    lines = finished.stderr.splitlines()
    assert any(line.startswith(f"{tmp_path / 'rank.yaml'}: version: ") for line in lines)
    assert any(line.startswith(f"{tmp_path / 'extract.yaml'}: system: ") for line in lines)
    assert all(line.startswith(str(tmp_path)) for line in lines)


def test_prompts_need_no_warehouse_and_make_none(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (("list",), ("show", "classify"), ("check",)):
        assert ask("prompts", *arguments).status == 0
    assert list(tmp_path.iterdir()) == []
