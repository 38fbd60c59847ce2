"""Contexts in the shapes in which files and bots have them: read alike from both, or refused with what to do."""

import json
from pathlib import Path

import polars as pl
import pytest
from dataset_files import Row, read_all, read_one, refuse, refuse_rows, write_json_lines

from evalhouse.tasks.datasets.json_path import compile_path
from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.targets.protocol import make_answer

ONE = "Tides turn at six. [1]\n\nFees: 3 || 4."
TABLE = "| fee | price |\n|---|---|\n| late | 5 |"
# By name the contexts as they come, their texts, and their ids or None.
SHAPES: dict[str, tuple[object, list[str], list[str] | None]] = {
    "a text": (ONE, [ONE], None),
    "a table in Markdown": (TABLE, [TABLE], None),
    "a text that begins with a mark": ("[1] Tides turn.", ["[1] Tides turn."], None),
    "an object": ({"text": "a", "id": 7, "score": 0.5}, ["a"], ["7"]),
    "a list as JSON text": ('["a", "b"]', ["a", "b"], None),
    "a list as Python prints it": ("['a', \"b's\"]", ["a", "b's"], None),
    "an object as JSON text": ('{"content": "a", "doc_id": "d1"}', ["a"], ["d1"]),
    "a batch of one query": ([["a", "b"]], ["a", "b"], None),
    "pairs with scores": (
        [["a", 0.9], [{"page_content": "b", "metadata": {"doc_id": "d2"}}, 0.8]], ["a", "b"], ["", "d2"],
    ),
    "Bedrock's": ([{"content": {"text": "a", "type": "TEXT"}, "score": 0.4}], ["a"], None),
    "LlamaIndex's": ([{"node": {"text": "a", "id_": "n1"}, "score": 0.4}], ["a"], ["n1"]),
    "OpenInference's": (
        [{"document.content": "a", "document.id": "d1"}, {"document": {"content": "b"}}], ["a", "b"], ["d1", ""],
    ),
    "RAGChecker's": ([{"doc_id": "000", "text": "a"}], ["a"], ["000"]),
    "none": ([], [], None),
}  # fmt: skip


def test_contexts_of_a_file_and_of_a_bot_are_read_alike(tmp_path: Path) -> None:
    for name, (value, texts, ids) in SHAPES.items():
        sample = read_one(tmp_path, {"question": "q", "context": value})
        returned = make_answer("a", value)
        assert (sample.contexts, sample.context_ids) == (texts, ids), name
        assert (returned.contexts, returned.context_ids) == (tuple(texts), ids and tuple(ids)), name
        cell = value if isinstance(value, str) else json.dumps(value)
        (of_table,) = read_all(pl.DataFrame({"question": ["q"], "contexts": [cell]}))
        assert (of_table.contexts, of_table.context_ids) == (texts, ids), name


# What may be one context or several, or is a part of a list.
AMBIGUOUS = [
    "one.|two.",
    "one | two",
    "['a' 'b']",
    '["a", "b',
    "[array(['a'], dtype=object)]",
    "[Document(page_content='a')]",
]


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_text_that_may_be_several_contexts_is_read_only_where_a_path_names_it(tmp_path: Path, text: str) -> None:
    message = refuse_rows(tmp_path, {"question": "q", "context": text})
    assert "line 2: contexts are not a list but text " in message
    assert "name a text that is one context with --map contexts=$.COLUMN" in message
    assert read_one(tmp_path, {"question": "q", "context": text}, {"contexts": "$.context"}).contexts == [text]
    assert make_answer("a", text).contexts == (text,)


def test_rows_of_one_text_are_counted(tmp_path: Path) -> None:
    rows: list[Row] = [{"question": "q", "context": context} for context in ("one", ["two"], None)]
    staged = stage_dataset(str(write_json_lines(tmp_path / "qa.jsonl", rows)), mapping={}, limit=None)
    staged.staging.discard()
    columns = staged.use.describe(is_asked=False)
    assert "contexts = context (in 2 of 3 rows) (one text is one context, in 1 of 3 rows)" in columns


HITS: Row = {
    "question": "q",
    "turns": [{"out": {"text": "a"}}],
    "hits": [{"body": {"text": "one"}, "url": "u1", "rank": 1}, {"body": {"text": "two"}, "url": "u2", "rank": 2}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("contexts", "texts"),
    [
        ("$.hits[*].body.text", ["one", "two"]),
        ("hits[*].body.text", ["one", "two"]),
        ("$['hits'][*]['body'].text", ["one", "two"]),
        ('hits[*]["body"].text', ["one", "two"]),
        ("$.hits[?@.rank > 1].body.text", ["two"]),
        ("$.hits[1:].body.text", ["two"]),
        ("$..body.text", ["one", "two"]),
        ("hits[0].body.text", ["one"]),
        ("$.hits[-1].body.text", ["two"]),
        ("$.hits[?@.rank > 5].body.text", []),
    ],
)
def test_map_takes_the_json_path_of_a_target(tmp_path: Path, contexts: str, texts: list[str]) -> None:
    mapping = {"contexts": contexts, "context_ids": "$.hits[*].url"} if len(texts) == 2 else {"contexts": contexts}
    written = {**HITS, "hits": json.dumps(HITS["hits"])}  # as a table's cell holds it
    for row in (HITS,) if ".." in contexts else (HITS, written):  # `..` looks into no text
        sample = read_one(tmp_path, row, {**mapping, "answer": "$.turns[0].out.text"})
        assert (sample.answer, sample.contexts) == ("a", texts)
        assert sample.context_ids == (["u1", "u2"] if len(texts) == 2 else None)
        assert compile_path("contexts", contexts).find_items(row) == texts  # as [target] reads a response


def test_texts_that_a_path_takes_leave_the_metadata(tmp_path: Path) -> None:
    row = {**HITS, "answer": "a"}
    sample = read_one(tmp_path, row, {"contexts": "$.hits[*].body", "context_ids": "$.hits[*].url"})
    assert (sample.contexts, sample.metadata["hits"]) == (["one", "two"], [{"rank": 1}, {"rank": 2}])


def test_path_of_a_truth_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "qa.jsonl", [{**HITS, "answer": "a"}])
    assert "ground_truth = '$.hits[*].gold' matches nothing" in str(refuse(path, {"ground_truth": "$.hits[*].gold"}))


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (
            "$.hits[*].text",
            "matches nothing, although there is something at \"$['hits']\"; write the path of each text",
        ),
        ("$.hitz[*].text", "no column for --map contexts=$.hitz[*].text; columns: question, turns, hits"),
        ("$.hits[", "--map: contexts = '$.hits[' is not a valid JSONPath"),
        ("the_documents_that_were_retrieved[*.body", "is not a valid JSONPath"),  # such a text took minutes
    ],
)
def test_path_that_cannot_be_meant_is_refused(tmp_path: Path, path: str, problem: str) -> None:
    assert problem in str(refuse(write_json_lines(tmp_path / "qa.jsonl", [HITS]), {"contexts": path}))
