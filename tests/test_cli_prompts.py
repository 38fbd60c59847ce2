"""`evalhouse prompts`: the languages and folders it takes its files from, and that what it shows is what is sent.

The plain listing and the ways to misname a prompt are in test_cli_doctor.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import Finished
from prompt_files import NAMES, read_content, write_prompt

from prompts import BlockValue, Item, load_prompts

Ask = Callable[..., Finished]
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
    assert ask("prompts", "check").stdout == f"4 prompts in zh are sound: {', '.join(NAMES)}\n"


def test_a_folder_named_by_flag_goes_before_one_named_by_variable(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flag", "variable"):
        write_prompt(tmp_path / name, read_content("rank") | {"description": f"Named by {name}."})
    monkeypatch.setenv("EVALHOUSE_PROMPTS", str(tmp_path / "variable"))
    described = ask("prompts", "show", "rank", "--prompts", str(tmp_path / "flag"), "--json").document
    assert described["description"] == "Named by flag."
    assert described["prompt_hash"] != load_prompts()["rank"].prompt_hash


def test_a_file_of_ones_own_is_shown_and_not_obeyed(ask: Ask, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show",), "Missing argument 'NAME'"),
        (("show", "rank", "--prompts", "nowhere"), "nowhere: is no folder"),
        (("show", "rank", "--language", "fr"), "unknown language"),
        (("list", "--nonsense"), "--nonsense"),
        (("lst",), "'lst'"),
    ],
)
def test_what_is_refused_is_refused_in_one_message(ask: Ask, arguments: tuple[str, ...], told: str) -> None:
    finished = ask("prompts", *arguments)
    assert finished.status == 2
    assert finished.stdout == ""
    assert told in finished.stderr
    assert sum(line.startswith("Error: ") for line in finished.stderr.splitlines()) == 1


def test_prompts_need_no_warehouse_and_make_none(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (("list",), ("show", "classify"), ("check",)):
        assert ask("prompts", *arguments).status == 0
    assert list(tmp_path.iterdir()) == []
