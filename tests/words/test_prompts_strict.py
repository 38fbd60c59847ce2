"""A user's own prompt files: where they are looked for, what they may change, and how a faulty one is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prompt_files import NAMES, read_content, write_prompt

from evalhouse.prompts import PromptError, PromptProblem, check_prompts, load_prompts
from evalhouse.prompts.checks import load_folder

Edit = Callable[[dict[str, Any]], None]


def find_problems(tmp_path: Path, name: str, edit: Edit, language: str = "en") -> list[PromptProblem]:
    """Return the problems of a built-in prompt after one edit, which `check_prompts` reports beside others."""
    content = read_content(name, language)
    file_name = f"{name}.yaml"
    edit(content)
    write_prompt(tmp_path, content, file_name=file_name)
    return load_folder(language, tmp_path)[1]


# --- a user's folder


def override(name: str, language: str = "en") -> dict[str, Any]:
    content = read_content(name, language)
    content["version"] = 7
    content["system"] = f"House rules first.\n\n{content['system']}"
    return content


@pytest.mark.parametrize("place", ["", "en"])
def test_a_users_file_takes_the_place_of_the_built_in_one(tmp_path: Path, place: str) -> None:
    write_prompt(tmp_path / place, override("classify"))
    prompts = load_prompts("en", tmp_path)
    assert prompts["classify"].version == "7"
    assert prompts["classify"].opening[0].content.startswith("House rules first.")
    assert prompts["rank"] == load_prompts()["rank"]
    assert load_prompts()["classify"].version != "7"


def test_a_new_language_needs_every_prompt(tmp_path: Path) -> None:
    for name in NAMES[:-1]:
        write_prompt(tmp_path / "fr", {**read_content(name), "language": "fr"})
    with pytest.raises(PromptError, match="no prompts in 'fr' are built in, so files are needed for: rank"):
        load_prompts("fr", tmp_path)
    write_prompt(tmp_path / "fr", {**read_content("rank"), "language": "fr"})
    assert sorted(load_prompts("fr", tmp_path)) == NAMES


def test_words_in_the_schema_are_free_its_shape_is_not(tmp_path: Path) -> None:
    content = override("classify")
    verdict = content["reply_schema"]["properties"]["answer_statements"]["items"]["properties"]
    verdict["reason"]["description"] = "one sentence"
    write_prompt(tmp_path, content)
    assert check_prompts(tmp_path) == []
    verdict["reason"]["type"] = "integer"
    content["examples"] = []
    write_prompt(tmp_path, content)
    assert [problem.key for problem in check_prompts(tmp_path)] == ["reply_schema"]


@pytest.mark.parametrize(("file_name", "message"), [
    ("clasify.yaml", "'clasify' is not a prompt; known: accuracy, "),
    ("classify.yml", "must end in .yaml: rename it to classify.yaml"),
    ("notes.txt", "has no prompt files"),
])  # fmt: skip
def test_a_misnamed_file_is_not_passed_over(tmp_path: Path, file_name: str, message: str) -> None:
    write_prompt(tmp_path, read_content("classify"), file_name=file_name)
    with pytest.raises(PromptError, match=re.escape(message)):
        load_prompts("en", tmp_path)


def test_the_same_prompt_twice_is_refused(tmp_path: Path) -> None:
    write_prompt(tmp_path, override("rank"))
    write_prompt(tmp_path / "en", override("rank"))
    with pytest.raises(PromptError, match="'rank' is in the folder and in its subfolder 'en'"):
        load_prompts("en", tmp_path)


def test_all_problems_of_all_files_come_in_one_error(tmp_path: Path) -> None:
    first, second = override("rank"), override("classify")
    del first["version"]
    first["extra"] = 1
    second["language"] = "de"
    paths = [write_prompt(tmp_path, first), write_prompt(tmp_path, second)]
    with pytest.raises(PromptError) as caught:
        load_prompts("en", tmp_path)
    assert sorted((problem.file, problem.key) for problem in caught.value.problems) == [
        (str(paths[1]), "language"),
        (str(paths[0]), "extra"),
        (str(paths[0]), "version"),
    ]
    assert list(caught.value.problems) == check_prompts(tmp_path)
    assert str(caught.value) == "\n".join(map(str, check_prompts(tmp_path)))


# --- what a file may not be


@pytest.mark.parametrize(("data", "message"), [
    (b"name: \xff\xfe", "is not UTF-8 (byte 6)"),
    (b"name: [rank", "is not valid YAML at line 1"),
    (b"name: rank\nversion: 1\nname: rank\n", "line 3: the key 'name' is given twice"),
    (b"- name\n", "must be a mapping with the keys name, version, language"),
])  # fmt: skip
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "rank.yaml").write_bytes(data)
    with pytest.raises(PromptError, match=re.escape(message)):
        load_prompts("en", tmp_path)


def set_key(path: str, value: object) -> Edit:
    """An edit of one place: `examples.0.reply.verdicts` and the like; None takes the key away."""

    def edit(content: dict[str, Any]) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        place: Any = content
        for part in parents:
            place = place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value

    return edit


VERDICT = "reply_schema.properties.answer_statements.items"


@pytest.mark.parametrize(("edit", "key", "message"), [
    (set_key("colour", "red"), "colour", "unknown key; allowed: name, version, language"),
    (set_key("labels", None), "labels", "missing; required: name, version"),
    (set_key("examples.0.note", "x"), "examples.0.note", "unknown key; allowed: data, reply"),
    (set_key("version", "1"), "version", "should be a valid integer, not '1'"),
    (set_key("name", "rank"), "name", "'rank' is in a file named classify.yaml"),
    (set_key("language", "zh"), "language", "'zh' where prompts in 'en' are read"),
    (set_key("variables.topic", "text"), "variables.topic", "unknown block; allowed: question, answer,"),
    (set_key("variables.answer", "text"), "variables.answer", "is never used: the system text must say"),
    (set_key("variables.question", None), "system", "names <question>, which is not a variable of this prompt"),
    (set_key("labels.C", ["x"]), "labels.C", "no variable has ids with this prefix; allowed: A, G"),
    (set_key("labels.A", ["TP", "WRONG"]), "labels", "the label WRONG is never explained in the system text"),
    (set_key("labels", {}), "labels", "must name the id prefixes that verdicts are given for"),
    (set_key("labels.A", ["TP", "TP"]), "labels.A", "has an empty label or one twice"),
    (set_key("variables.question", "items"), "variables.question", "'items' is not what this block holds"),
    (set_key("labels.G", ["FN", "TP"]), "labels", "must be as the step 'classify' needs it"),
])  # fmt: skip
def test_faulty_file_names_the_key_and_the_allowed_values(tmp_path: Path, edit: Edit, key: str, message: str) -> None:
    problems = find_problems(tmp_path, "classify", edit)
    assert any(problem.key == key and message in problem.message for problem in problems), problems
    assert {problem.file for problem in problems} == {str(tmp_path / "classify.yaml")}


@pytest.mark.parametrize(
    ("edit", "key", "message"),
    [
        (set_key(f"{VERDICT}.additionalProperties", True), f"{VERDICT}.additionalProperties", "must be false"),
        (set_key(f"{VERDICT}.required", ["id", "label"]), f"{VERDICT}.required", "[id, reason, label]"),
        (set_key(f"{VERDICT}.properties.label.enum", []), f"{VERDICT}.properties.label.enum", "must not be empty"),
        (set_key(f"{VERDICT}.properties.label.enum", [1]), f"{VERDICT}.properties.label.enum[0]", "not 1; YAML"),
        (set_key(f"{VERDICT}.properties.label.enum", ["TP"]), f"{VERDICT}.properties.label.enum", "[TP, FP]"),
        (
            set_key(f"{VERDICT}.properties.label.type", "text"),
            f"{VERDICT}.properties.label.type",
            "'text' is not allowed; allowed: object, array, string, integer, number, boolean",
        ),
        (
            set_key(f"{VERDICT}.properties.id.pattern", "A"),
            f"{VERDICT}.properties.id",
            "has the keys type, pattern; required: type; also allowed: description, enum",
        ),
        (
            set_key(
                f"{VERDICT}.properties",
                {"id": {"type": "string"}, "label": {"type": "string"}, "reason": {"type": "string"}},
            ),
            f"{VERDICT}.properties",
            "`reason` must come before label",
        ),
    ],
)
def test_a_schema_an_endpoint_would_refuse_is_refused_here(tmp_path: Path, edit: Edit, key: str, message: str) -> None:
    problems = find_problems(tmp_path, "classify", edit)
    keys_and_messages = [(problem.key, f"{problem.message} {problem.key}") for problem in problems]
    assert any(found == key and message in text for found, text in keys_and_messages), problems


def test_a_verdict_needs_an_id_and_a_reason(tmp_path: Path) -> None:
    def edit(content: dict[str, Any]) -> None:
        verdict = content["reply_schema"]["properties"]["verdicts"]["items"]
        del verdict["properties"]["reason"]
        verdict["required"] = ["id", "label"]

    messages = [problem.message for problem in find_problems(tmp_path, "rank", edit)]
    assert "must be an array of objects with at least `id` and `reason`" in messages


def test_rows_are_texts_and_nothing_else(tmp_path: Path) -> None:
    cells = "reply_schema.properties.verdicts.items"
    (problem, *_) = find_problems(tmp_path, "fused", set_key(f"{cells}.items", {"type": "integer"}))
    assert (problem.key, "must be an array of texts, the cells of a row" in problem.message) == (cells, True)


def test_labels_without_verdicts_are_refused(tmp_path: Path) -> None:
    def edit(content: dict[str, Any]) -> None:
        content["reply_schema"]["properties"] = {"ranking": {"type": "array", "items": {"type": "string"}}}
        content["reply_schema"]["required"] = ["ranking"]
        content["examples"] = []

    messages = [problem.message for problem in find_problems(tmp_path, "rank", edit)]
    assert "must be empty ({}) where the reply has no `verdicts`" in messages


EXAMPLE = "examples[0]"
FIRST = "examples.0.reply.verdicts.0"
SIDE = "examples.0.reply.answer_statements.0"


@pytest.mark.parametrize(("name", "edit", "key", "message"), [
    ("classify", set_key("examples.0.data.question", None), f"{EXAMPLE}.data", "required: question, answer_stat"),
    ("classify", set_key("examples.0.data.question", 5), f"{EXAMPLE}.data.question", "must be a text"),
    ("rank", set_key("examples.0.data.contexts", "x"), f"{EXAMPLE}.data.contexts", "a list of {id: C1, text: …}"),
    ("rank", set_key("examples.0.data.contexts.0.id", "C2"), f"{EXAMPLE}.data.contexts", "each id once"),
    ("rank", set_key(f"{FIRST}.id", "C9"), f"{EXAMPLE}.reply", "has verdicts for C9, C2, C3, C4"),
    ("rank", set_key(f"{FIRST}.label", "good"), f"{EXAMPLE}.reply.verdicts[0].label", "allowed: useful, not_use"),
    ("rank", set_key(f"{FIRST}.reason", None), f"{EXAMPLE}.reply.verdicts[0]", "required: id, reason, label"),
    ("rank", set_key(f"{FIRST}.reason", False), f"{EXAMPLE}.reply.verdicts[0].reason", "type string, not False"),
    ("classify", set_key(f"{SIDE}.label", "FN"), f"{EXAMPLE}.reply.answer_statements[0].label", "allowed: TP, FP"),
    ("attribute", set_key(f"{FIRST}.contexts", ["C7"]), f"{EXAMPLE}.reply", "A1 cites C7; sent were C1, C2, C3"),
    ("fused", set_key(FIRST, []), f"{EXAMPLE}.reply", "has verdicts for , A2, A3, A4, G1"),
    ("fused", set_key(f"{FIRST}.1", ""), f"{EXAMPLE}.reply", "A1 has neither evidence nor a reason"),
    ("fused", set_key(f"{FIRST}.1", "G9"), f"{EXAMPLE}.reply", "A1 cites G9; sent were C1, C2, C3, C4, C5, A1"),
    ("fused", set_key(f"{FIRST}.2", "FN"), f"{EXAMPLE}.reply", "A1 has the label FN; allowed: TP, FP"),
    ("fused", set_key(f"{FIRST}.3", "all"), f"{EXAMPLE}.reply", "'all' names no contexts; it must begin with ids or"),
    ("fused", set_key(FIRST, ["A1", "G1"]), f"{EXAMPLE}.reply", "A1: a row has 3 cells for a context, 4 for a sta"),
    ("extract", set_key("examples.0.reply.statements", "x"), f"{EXAMPLE}.reply.statements", "must be of type array"),
])  # fmt: skip
def test_example_must_do_as_the_judge_is_asked(tmp_path: Path, name: str, edit: Edit, key: str, message: str) -> None:
    problems = find_problems(tmp_path, name, edit)
    assert [problem.key for problem in problems] == [key]
    assert message in problems[0].message


def test_a_time_of_day_in_an_example_must_be_quoted(tmp_path: Path) -> None:
    """YAML reads 22:40 as the number 1360, and a date as a date; neither may slip into a request."""
    content = yaml.safe_dump(override("rank"), sort_keys=False)
    line = next(line for line in content.splitlines() if "22:40 from" in line)
    for value, fits in (("22:40", False), ("1911-05-02", True), ("'22:40'", True)):
        (tmp_path / "rank.yaml").write_text(content.replace(line, f"    ground_truth: {value}"), encoding="utf-8")
        assert (check_prompts(tmp_path) == []) is fits


_ALIASES = {
    "nested": "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 4)}]\n" for n in range(1, 9)),
    "of itself": "a: &a [*a]\n",
}


@pytest.mark.parametrize("text", _ALIASES.values(), ids=_ALIASES)
def test_aliases_that_unfold_to_much_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "classify.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(PromptError, match="holds more than 20,000 values with its aliases unfolded"):
        load_prompts("en", tmp_path)
