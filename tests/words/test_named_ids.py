"""The schema of one request names the ids that are asked for, so that a model held to it can neither miss nor invent
one."""

from typing import Any

import pytest

from evalhouse.prompts import BlockValue, Item, list_languages, load_prompts

ITEMS = {"contexts": "C", "answer_statements": "A", "ground_truth_statements": "G"}


def make_data(variables: Any, n: int) -> dict[str, BlockValue]:  # noqa: ANN401
    return {
        name: [Item(id=f"{ITEMS[name]}{place}", text="x") for place in range(1, n + 1)] if name in ITEMS else "x"
        for name in variables
    }


def read_names(schema: dict[str, Any]) -> dict[str, list[tuple[str, Any]]]:
    """Return for each list the ids in order, each with its labels or the contexts that may be cited."""
    named: dict[str, list[tuple[str, Any]]] = {}
    for key, part in schema["properties"].items():
        assert part["minItems"] == part["maxItems"] == len(part["prefixItems"])
        for verdict in part["prefixItems"]:
            assert verdict["required"] == list(verdict["properties"])
            (item_id,) = verdict["properties"]["id"]["enum"]
            choices = verdict["properties"].get("label") or verdict["properties"]["contexts"]["items"]
            named.setdefault(key, []).append((item_id, choices["enum"]))
    return named


EXPECTED = {
    "classify": {
        "answer_statements": [("A1", ["TP", "FP"]), ("A2", ["TP", "FP"])],
        "ground_truth_statements": [("G1", ["TP", "FN"]), ("G2", ["TP", "FN"])],
    },
    "attribute": {"verdicts": [(item_id, ["C1", "C2"]) for item_id in ("A1", "A2", "G1", "G2")]},
    "rank": {"verdicts": [("C1", ["useful", "not_useful"]), ("C2", ["useful", "not_useful"])]},
}


@pytest.mark.parametrize("language", list_languages())
@pytest.mark.parametrize("name", EXPECTED)
def test_every_id_is_named_once_with_its_choices(language: str, name: str) -> None:
    prompt = load_prompts(language)[name]
    schema = prompt.build_schema(make_data(prompt.variables, 2))
    assert read_names(schema) == EXPECTED[name]
    assert schema["required"] == list(schema["properties"])
    assert "prefixItems" not in str(prompt.reply_schema), "the prompt's own schema is as it was"


def test_a_request_for_some_ids_names_those_alone() -> None:
    prompt = load_prompts()["classify"]
    schema = prompt.build_schema(make_data(prompt.variables, 3), only=("G2",))
    assert read_names(schema) == {"ground_truth_statements": [("G2", ["TP", "FN"])]}
    assert schema["required"] == ["ground_truth_statements"]


def read_cells(schema: dict[str, Any]) -> list[list[Any]]:
    """Return the allowed texts of each cell of each row, None for any text."""
    part = schema["properties"]["verdicts"]
    assert part["minItems"] == part["maxItems"] == len(part["prefixItems"])
    assert all(row["minItems"] == row["maxItems"] == len(row["prefixItems"]) for row in part["prefixItems"])
    return [[cell.get("enum") for cell in row["prefixItems"]] for row in part["prefixItems"]]


def test_rows_name_their_ids_and_labels_and_leave_out_cells_that_are_not_asked_for() -> None:
    prompt = load_prompts()["fused"]
    data = make_data(prompt.variables, 1)
    assert read_cells(prompt.build_schema(data)) == [
        [["A1"], None, ["TP", "FP"], None],
        [["G1"], None, ["TP", "FN"], None],
        [["C1"], None, ["useful", "not_useful"]],
    ]
    assert read_cells(prompt.build_schema(data, only=("A1", "supports G1"))) == [
        [["A1"], None, ["TP", "FP"], ["-"]],
        [["G1"], ["-"], ["-"], None],
    ]


@pytest.mark.parametrize(("name", "n"), [("accuracy", 1), ("rank", 65)])
def test_a_reply_without_lists_and_one_with_very_many_verdicts_keep_the_prompts_schema(name: str, n: int) -> None:
    prompt = load_prompts()[name]
    assert prompt.build_schema(make_data(prompt.variables, n)) == prompt.reply_schema


@pytest.mark.parametrize(("text", "most"), [("2, 3, 5: " * 20, 60), ("春夏秋冬" * 20, 80), ("Yes.", 8)])
def test_a_list_of_texts_ends_where_there_are_no_more_words_to_make_one_of(text: str, most: int) -> None:
    prompt = load_prompts()["extract"]
    schema = prompt.build_schema({"question": "", "text": text})
    assert schema["properties"]["statements"] == {"type": "array", "items": {"type": "string"}, "maxItems": most}
    assert "maxItems" not in str(prompt.reply_schema), "the prompt's own schema is as it was"
