"""What a row becomes: texts, contexts, ids, hashes and metadata, and what is wrong with a row that is refused."""

import hashlib
import json
from pathlib import Path

import pytest
from dataset_files import FRANCE, Row, read_all, read_one, refuse_rows, write_json_lines

from evalhouse.tasks.datasets.read import DatasetError

# --- texts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("  Paris. ", "  Paris. "),
        (42, "42"),
        (0, "0"),
        (2.5, "2.5"),
        (True, "true"),
        (False, "false"),
        ("", None),
        (" \n\t　", None),
        (None, None),
    ],
)
def test_answers_are_text_numbers_or_absent(tmp_path: Path, value: object, text: str | None) -> None:
    sample = read_one(tmp_path, {"question": "q", "answer": value, "ground_truth": value})
    assert (sample.answer, sample.ground_truth) == (text, text)


def test_a_row_of_nothing_but_a_question_is_no_error(tmp_path: Path) -> None:
    sample = read_one(tmp_path, {"question": 7})
    assert sample.question == "7"
    assert (sample.answer, sample.ground_truth, sample.contexts, sample.given_id) == (None, None, None, None)
    assert sample.metadata == {}


@pytest.mark.parametrize("question", ["", "   ", None])
def test_an_empty_question_is_a_problem_of_its_row(tmp_path: Path, question: str | None) -> None:
    message = refuse_rows(tmp_path, {"question": question, "query": "not asked"})
    assert "line 2: the question is empty" in message
    assert "every row needs a question" in message


def test_a_row_without_question_tells_its_columns(tmp_path: Path) -> None:
    assert "line 2: no question; columns of this row: text, lang" in refuse_rows(tmp_path, {"text": "t", "lang": "en"})


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question": [{"role": "user"}]}, "question is a list, not text: [{'role': 'user'}]"),
        ({"question": "q", "answer": {"text": "a"}}, "answer is an object, not text: {'text': 'a'}"),
        ({"question": "q", "ground_truth": ["a", "b"]}, "ground_truth is a list, not text: ['a', 'b']"),
    ],
)
def test_texts_that_are_none_are_refused_with_the_way_out(tmp_path: Path, row: Row, problem: str) -> None:
    message = refuse_rows(tmp_path, row)
    assert f"line 2: {problem}" in message
    assert "--map answer=output.text" in message
    assert "1 problem;" in message


# --- contexts


def test_contexts_as_objects_give_texts_and_ids(tmp_path: Path) -> None:
    contexts: list[object] = [
        {"id": "d1", "text": "one"},
        {"id": 2, "content": "two", "score": 0.5},
        {"page_content": "three", "metadata": {"id": "d3", "page": 4}, "id": None},
        {"text": None, "content": "four"},
        "five",
        6,
    ]
    sample = read_one(tmp_path, {"question": "q", "documents": contexts})
    assert sample.contexts == ["one", "two", "three", "four", "five", "6"]
    assert sample.context_ids == ["d1", "2", "d3", "", "", ""]
    assert sample.metadata == {"contexts": [{}, {"score": 0.5}, {"metadata": {"page": 4}}, {}, {}, {}]}


def test_langchain_documents_are_read(tmp_path: Path) -> None:
    documents = [{"id": None, "metadata": {"id": "d1"}, "page_content": "one", "type": "Document"}]
    sample = read_one(tmp_path, {"question": "q", "contexts": documents})
    assert (sample.contexts, sample.context_ids) == (["one"], ["d1"])
    assert sample.metadata == {"contexts": [{"type": "Document"}]}


def test_objects_without_ids_have_no_context_ids(tmp_path: Path) -> None:
    sample = read_one(tmp_path, {"question": "q", "contexts": [{"text": "one"}, {"text": "two"}]})
    assert (sample.contexts, sample.context_ids, sample.metadata) == (["one", "two"], None, {})


def test_an_empty_list_of_contexts_is_not_the_same_as_none(tmp_path: Path) -> None:
    assert read_one(tmp_path, {"question": "q", "contexts": []}).contexts == []
    assert read_one(tmp_path, {"question": "q", "contexts": None}).contexts is None
    assert read_one(tmp_path, {"question": "q", "reference_context_ids": []}).reference_context_ids == []


def test_a_column_of_ids_goes_before_the_ids_of_objects(tmp_path: Path) -> None:
    row: Row = {"question": "q", "contexts": [{"id": "inner", "text": "one"}], "context_ids": ["outer"]}
    assert read_one(tmp_path, row).context_ids == ["outer"]


@pytest.mark.parametrize(
    ("contexts", "problem"),
    [
        ("one text", "contexts are not a list but text: 'one text'"),
        ('["a list as text"]', "contexts are not a list but text"),
        ({"text": "one"}, "contexts are not a list but an object"),
        (7, "contexts are not a list but a number: 7"),
        (["fine", None], "context 2 is null"),
        ([["nested"]], "context 1 is a list, not text: ['nested']"),
        ([{"id": "d1", "body": "x"}], "context 1 has no text; it has: id, body"),
        ([{"id": "d1", "text": None}], "context 1 has no text; it has: id, text"),
        ([{"id": ["d1"], "text": "x"}], "the id of context 1 is a list, not a text or a number"),
        ([True], "context 1 is true or false, not text"),
    ],
)
def test_contexts_that_are_no_list_of_texts_are_refused(tmp_path: Path, contexts: object, problem: str) -> None:
    message = refuse_rows(tmp_path, {"question": "q", "contexts": contexts})
    assert f"line 2: {problem}" in message
    assert "to do: " in message


def test_contexts_that_are_no_list_in_a_cell_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "qa.csv"
    path.write_text('question,contexts\nq,plain\nq,"[\'a\' \'b\']"\nq,"{""text"": ""x""}"\n')
    with pytest.raises(DatasetError, match="3 problems") as caught:
        read_all(path)
    message = str(caught.value)
    assert "line 2: contexts are not a list but text: 'plain'" in message
    assert "line 3: contexts are not a list but text that is a list neither in JSON nor in Python" in message
    assert "line 4: contexts are not a list but an object" in message
    assert "(in a cell of a table: a list in JSON, or as Python prints one)" in message


def test_as_many_ids_as_contexts(tmp_path: Path) -> None:
    row: Row = {"question": "q", "contexts": ["a", "b"], "context_ids": ["d1"]}
    assert "line 2: context_ids has 1 ids for 2 contexts" in refuse_rows(tmp_path, row)


# --- ids and hashes


@pytest.mark.parametrize(("given", "sample_id"), [("q-1", "q-1"), (17, "17"), (17.0, "17"), (0, "0")])
def test_the_datasets_own_id_is_the_sample_id(tmp_path: Path, given: object, sample_id: str) -> None:
    sample = read_one(tmp_path, {"id": given, "question": "q"})
    assert (sample.given_id, sample.sample_id) == (sample_id, sample_id)


@pytest.mark.parametrize("given", [None, "", "  "])
def test_an_empty_id_is_made_from_question_and_ground_truth(tmp_path: Path, given: object) -> None:
    sample = read_one(tmp_path, {"id": given, "question": "什么？", "ground_truth": "g", "answer": "a"})
    canonical = json.dumps(["什么？", "g"], ensure_ascii=False, separators=(",", ":"))
    assert sample.given_id is None
    assert sample.sample_id == hashlib.sha256(canonical.encode()).hexdigest()[:16]


@pytest.mark.parametrize("given", [True, ["a"], {"a": 1}, 1e30])
def test_other_ids_are_refused(tmp_path: Path, given: object) -> None:
    path = write_json_lines(tmp_path / "qa.jsonl", [FRANCE])
    path.write_text(path.read_text() + json.dumps({"id": given, "question": "q"}).replace("1e+30", "1e30") + "\n")
    with pytest.raises(DatasetError, match="line 2: id is ") as caught:
        read_all(path)
    assert "ids are texts or whole numbers" in str(caught.value)


@pytest.mark.parametrize("ids", ["d1", {"id": "d1"}, 5])
def test_reference_ids_that_are_no_list_are_refused(tmp_path: Path, ids: object) -> None:
    message = refuse_rows(tmp_path, {"question": "q", "reference_context_ids": ids})
    assert "line 2: reference_context_ids are not a list" in message


def test_reference_ids_with_empty_ones_are_refused(tmp_path: Path) -> None:
    message = refuse_rows(tmp_path, {"question": "q", "gold_context_ids": ["a", None, ""]})
    assert "reference_context_ids has an empty id at place 2, 3" in message


JUDGED: Row = {
    "id": "i",
    "question": "q",
    "answer": "a",
    "ground_truth": "g",
    "contexts": ["c"],
    "context_ids": ["d"],
    "reference_context_ids": ["r"],
}


@pytest.mark.parametrize("changed", [name for name in JUDGED if name != "id"])
def test_the_input_hash_changes_with_everything_that_is_judged(tmp_path: Path, changed: str) -> None:
    value = ["other"] if isinstance(JUDGED[changed], list) else "other"
    before, after = read_one(tmp_path, JUDGED), read_one(tmp_path, {**JUDGED, changed: value})
    assert before.input_hash != after.input_hash
    assert len(before.input_hash) == 32


def test_the_input_hash_does_not_change_with_anything_else(tmp_path: Path) -> None:
    before = read_one(tmp_path, JUDGED)
    renamed: Row = {"lang": "en", "response": "a", **{key: JUDGED[key] for key in JUDGED if key != "answer"}}
    assert read_one(tmp_path, {**renamed, "id": "other"}).input_hash == before.input_hash


def test_absent_and_empty_are_the_same_to_the_hash_but_no_contexts_and_none_are_not(tmp_path: Path) -> None:
    bare = read_one(tmp_path, {"question": "q"})
    assert read_one(tmp_path, {"question": "q", "answer": " "}).input_hash == bare.input_hash
    assert read_one(tmp_path, {"question": "q", "contexts": []}).input_hash != bare.input_hash


def test_hashes_stay_what_they_are(tmp_path: Path) -> None:
    """The warehouse knows samples by them: another value would make every sample on record a new one."""
    sample = read_one(tmp_path, {"question": "什么？", "answer": "a", "contexts": ["c1", "c2"]})
    canonical = (
        '{"answer":"a","context_ids":null,"contexts":["c1","c2"],"ground_truth":null,"question":"什么？",'
        '"reference_context_ids":null}'
    )
    assert sample.input_hash == hashlib.sha256(canonical.encode()).hexdigest()[:32]


# --- metadata


def test_everything_else_is_metadata(tmp_path: Path) -> None:
    rest: Row = {"lang": "en", "tags": ["a", "b"], "inner": {"n": 1.5}, "flag": True, "nothing": None}
    assert read_one(tmp_path, {"question": "q", **rest}).metadata == rest


def test_a_metadata_column_is_taken_apart(tmp_path: Path) -> None:
    row: Row = {"question": "q", "lang": "en", "metadata": {"topic": "t", "lang": "de"}}
    assert read_one(tmp_path, row).metadata == {"lang": "en", "topic": "t", "metadata": {"lang": "de"}}
    assert read_one(tmp_path, {"question": "q", "metadata": "text"}).metadata == {"metadata": "text"}
    assert read_one(tmp_path, {"question": "q", "metadata": {}}).metadata == {}


def test_metadata_nested_too_deep_is_refused(tmp_path: Path) -> None:
    deep = '{"question": "q", "deep": ' + "[" * 400 + "]" * 400 + "}\n"
    path = tmp_path / "qa.jsonl"
    path.write_text(json.dumps(FRANCE) + "\n" + deep)
    with pytest.raises(DatasetError, match="line 2: a column does not fit into JSON") as caught:
        read_all(path)
    assert "flatten or remove" in str(caught.value)


def test_all_problems_of_a_row_are_told(tmp_path: Path) -> None:
    message = refuse_rows(tmp_path, {"question": "", "answer": [1], "contexts": "c", "id": True})
    for problem in ("the question is empty", "answer is a list", "contexts are not a list", "id is true or false"):
        assert f"line 2: {problem}" in message
    assert "4 problems; nothing was loaded" in message
