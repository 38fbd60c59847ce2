"""Which columns are read as which field: the names of the common tools, what wins, and --map."""

from pathlib import Path

import polars as pl
import pytest
from dataset_files import Row, read_all, read_one, refuse, write_json_lines


@pytest.mark.parametrize(
    "row",
    [
        {"user_input": "q", "response": "a", "reference": "g", "retrieved_contexts": ["c"], "sample_id": "i"},
        {"input": "q", "actual_output": "a", "expected_output": "g", "retrieval_context": ["c"], "query_id": "i"},
        {"query": "q", "output": "a", "reference_answer": "g", "context": ["c"], "qid": "i"},
        {"prompt": "q", "generated_answer": "a", "ground_truths": ["g"], "documents": ["c"], "id": "i"},
        {
            "inputs": {"question": "q"},
            "outputs": {"answer": "a"},
            "reference_outputs": {"answer": "g"},
            "contexts": ["c"],
            "id": "i",
        },
        {
            "inputs.question": "q",
            "outputs.answer": "a",
            "reference_outputs.answer": "g",
            "contexts": ["c"],
            "id": "i",
        },
    ],
    ids=["ragas", "deepeval", "beir", "older ragas", "langsmith", "flattened"],
)
def test_the_columns_of_the_common_tools_are_understood(tmp_path: Path, row: Row) -> None:
    for sample in (read_one(tmp_path, row), read_all(pl.DataFrame([row]))[0]):
        assert (sample.question, sample.answer, sample.ground_truth) == ("q", "a", "g")
        assert (sample.contexts, sample.given_id, sample.metadata) == (["c"], "i", {})


@pytest.mark.parametrize("name", ["reference_context_ids", "reference_contexts_ids", "gold_context_ids"])
def test_reference_ids_have_several_spellings(tmp_path: Path, name: str) -> None:
    sample = read_one(tmp_path, {"question": "q", name: ["d1", 7]})
    assert sample.reference_context_ids == ["d1", "7"]


@pytest.mark.parametrize("name", ["context_ids", "retrieved_context_ids"])
def test_ids_of_contexts_may_stand_in_a_column_of_their_own(tmp_path: Path, name: str) -> None:
    sample = read_one(tmp_path, {"question": "q", "contexts": ["a", "b"], name: ["d1", "d2"]})
    assert (sample.contexts, sample.context_ids) == (["a", "b"], ["d1", "d2"])
    assert read_one(tmp_path, {"question": "q", name: ["d1"]}).context_ids == ["d1"]


def test_of_two_columns_the_first_in_order_wins_and_the_other_is_kept(tmp_path: Path) -> None:
    row: Row = {"query": "second", "prompt": "third", "question": "first", "output": "o", "response": "r"}
    sample = read_one(tmp_path, row)
    assert (sample.question, sample.answer) == ("first", "r")
    assert sample.metadata == {"query": "second", "prompt": "third", "output": "o"}


def test_a_winning_column_that_is_empty_does_not_give_way(tmp_path: Path) -> None:
    sample = read_one(tmp_path, {"question": "q", "answer": None, "output": "something else"})
    assert sample.answer is None
    assert sample.metadata == {"output": "something else"}


def test_rows_of_one_file_may_have_different_columns(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"question": "a", "answer": "x"},
        {"query": "b", "response": "y", "lang": "en"},
        {"inputs": {"question": "c"}, "outputs": {"answer": "z"}, "run_type": "chain"},
        {"inputs": {"text": "kept"}, "question": "d"},
        {"question": "e", "answer": "v"},
    ]
    samples = read_all(write_json_lines(tmp_path / "qa.jsonl", rows))
    assert [sample.question for sample in samples] == ["a", "b", "c", "d", "e"]
    assert [sample.answer for sample in samples] == ["x", "y", "z", None, "v"]
    assert [sample.metadata for sample in samples] == [
        {},
        {"lang": "en"},
        {"run_type": "chain"},
        {"inputs": {"text": "kept"}},
        {},
    ]


def test_what_is_left_of_a_nested_column_is_kept(tmp_path: Path) -> None:
    row: Row = {
        "inputs": {"question": "q", "language": "en"},
        "outputs": {"answer": "a", "usage": {"tokens": 3}},
        "ground_truths": ["g", "another"],
    }
    sample = read_one(tmp_path, row)
    assert sample.metadata == {
        "inputs": {"language": "en"},
        "outputs": {"usage": {"tokens": 3}},
        "ground_truths": ["g", "another"],
    }


def test_an_empty_list_of_ground_truths_is_none(tmp_path: Path) -> None:
    sample = read_one(tmp_path, {"question": "q", "ground_truths": []})
    assert sample.ground_truth is None


# --- --map


def test_map_names_any_column(tmp_path: Path) -> None:
    row: Row = {"frage": "q", "bot_reply": "a", "gold": "g", "hits": ["c"], "nr": 7, "gold_docs": ["d"], "answer": "no"}
    mapping = {
        "question": "frage",
        "answer": "bot_reply",
        "ground_truth": "gold",
        "contexts": "hits",
        "id": "nr",
        "reference_context_ids": "gold_docs",
    }
    sample = read_one(tmp_path, row, mapping)
    assert (sample.question, sample.answer, sample.ground_truth, sample.given_id) == ("q", "a", "g", "7")
    assert (sample.contexts, sample.reference_context_ids) == (["c"], ["d"])
    assert sample.metadata == {"answer": "no"}


def test_map_reaches_into_nested_columns(tmp_path: Path) -> None:
    row: Row = {"run": {"io": {"in": "q"}, "ms": 3}, "choices": [{"text": "first"}, {"text": "second"}]}
    sample = read_one(tmp_path, row, {"question": "run.io.in", "answer": "choices[1].text"})
    assert (sample.question, sample.answer) == ("q", "second")
    assert sample.metadata == {"run": {"ms": 3}, "choices": [{"text": "first"}, {"text": "second"}]}
    assert read_one(tmp_path, row, {"question": "run.io.in", "answer": "choices.0.text"}).answer == "first"


def test_a_mapped_column_is_no_alias_of_another_field(tmp_path: Path) -> None:
    row: Row = {"question": "q", "answer": "the gold one", "response": "the bot's"}
    sample = read_one(tmp_path, row, {"ground_truth": "answer"})
    assert (sample.ground_truth, sample.answer, sample.metadata) == ("the gold one", "the bot's", {})
    alone = read_one(tmp_path, {"question": "q", "answer": "the gold one"}, {"ground_truth": "answer"})
    assert (alone.ground_truth, alone.answer) == ("the gold one", None)


def test_one_column_may_serve_two_fields(tmp_path: Path) -> None:
    sample = read_one(tmp_path, {"question": "q"}, {"id": "question", "question": "question"})
    assert (sample.given_id, sample.question, sample.metadata) == ("q", "q", {})


def test_a_mapped_column_may_be_missing_in_some_rows(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "qa.jsonl", [{"question": "a"}, {"question": "b", "gold": "g"}])
    assert [sample.ground_truth for sample in read_all(path, {"ground_truth": "gold"})] == [None, "g"]


def test_a_mapping_of_an_unknown_field_is_refused(tmp_path: Path) -> None:
    message = str(refuse(write_json_lines(tmp_path / "qa.jsonl", [{"question": "q"}]), {"anwser": "reply"}))
    assert "--map anwser=reply: 'anwser' is not one of our fields; did you mean answer?" in message
    assert (
        "allowed: question, answer, ground_truth, ground_truths, contexts, id, context_ids, reference_context_ids"
        in message
    )
    assert "kept as metadata without being mapped" in message


def test_a_mapping_to_nothing_is_refused(tmp_path: Path) -> None:
    message = str(refuse(write_json_lines(tmp_path / "qa.jsonl", [{"question": "q"}]), {"answer": " "}))
    assert "--map answer= names no column" in message
    assert "--map answer=COLUMN" in message


@pytest.mark.parametrize("name", ["qa.jsonl", "qa.parquet"])
def test_a_mapped_column_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    frame = pl.DataFrame({"question": ["q"], "reply": ["a"]})
    frame.write_parquet(path) if name.endswith("parquet") else frame.write_ndjson(path)
    message = str(refuse(path, {"answer": "bot_reply", "contexts": "reply.hits"}))
    assert message.startswith(f"{path}: no column for --map answer=bot_reply")
    assert "columns: question, reply;" in message
    assert "name the column with --map" in message


def test_a_place_inside_a_table_column_that_never_comes_is_refused() -> None:
    frame = pl.DataFrame({"question": ["q"], "run": [{"io": "x"}]})
    assert "no column for --map answer=run.out" in str(refuse(frame, {"answer": "run.out"}))


# --- several accepted answers


@pytest.mark.parametrize(
    ("row", "mapping", "accepted"),
    [
        ({"ground_truths": ["g", "another", "g"]}, {}, ["g", "another"]),
        ({"ground_truth": "first", "ground_truths": ["g", "first"]}, {}, ["first", "g"]),
        ({"references": ["g", 1912]}, {"ground_truths": "references"}, ["g", "1912"]),
        ({"outputs": {"gold": ["g", "h"]}}, {"ground_truths": "outputs.gold"}, ["g", "h"]),
        ({"ground_truths": ["g", None, " "]}, {}, ["g"]),
        # Who names one place alone has that one.
        ({"references": ["g", "h"]}, {"ground_truth": "references[1]"}, ["h"]),
    ],
)
def test_all_accepted_answers_are_kept(tmp_path: Path, row: Row, mapping: dict[str, str], accepted: list[str]) -> None:
    sample = read_one(tmp_path, {"question": "q", **row}, mapping)
    assert sample.ground_truth == accepted[0]
    assert sample.metadata.get("ground_truths", [accepted[0]]) == accepted


def test_another_accepted_answer_changes_what_is_judged(tmp_path: Path) -> None:
    hashes = {
        read_one(tmp_path, {"question": "q", "id": "i", "ground_truths": texts}).input_hash
        for texts in (["g"], ["g", "h"], ["g", "i"])
    }
    assert len(hashes) == 3
    assert read_one(tmp_path, {"question": "q", "id": "i", "ground_truth": "g"}).input_hash in hashes
