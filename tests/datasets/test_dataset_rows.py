"""Samples from rows: the columns that are read as each field, --map, texts, contexts, ids, hashes, and refusals."""

import hashlib
import json
from pathlib import Path

import polars as pl
import pytest
from dataset_files import Row, read_all, read_one, refuse, refuse_rows, write_json_lines

Q = {"question": "q"}
DOCUMENTS: list[object] = [
    {"id": "d1", "text": "one"},
    {"id": 2, "content": "two", "score": 0.5},
    {"page_content": "three", "metadata": {"id": "d3", "page": 4}, "id": None},
    {"text": None, "content": "four"},
    "five",
    6,
]
REST: Row = {"lang": "en", "tags": ["a", "b"], "inner": {"n": 1.5}, "flag": True, "nothing": None}
NESTED: Row = {"run": {"io": {"in": "q"}, "ms": 3}, "choices": [{"text": "first"}, {"text": "second"}]}
ACCEPTED = "ground_truths"
# By name a row, its mapping, and fields of the sample that it becomes.
SAMPLES: dict[str, tuple[Row, dict[str, str], Row]] = {
    # --- columns
    **{
        f"reference ids in {name}": ({**Q, name: ["d1", 7]}, {}, {"reference_context_ids": ["d1", "7"]})
        for name in ("reference_context_ids", "reference_contexts_ids", "gold_context_ids")
    },
    **{
        f"context ids in {name}": (
            {**Q, "contexts": ["a", "b"], name: ["d1", "d2"]}, {},
            {"contexts": ["a", "b"], "context_ids": ["d1", "d2"]},
        )
        for name in ("context_ids", "retrieved_context_ids")
    },
    "context ids alone": ({**Q, "context_ids": ["d1"]}, {}, {"contexts": None, "context_ids": ["d1"]}),
    "the first of two columns wins, the other is kept": (
        {"query": "second", "prompt": "third", "question": "first", "output": "o", "response": "r"}, {},
        {"question": "first", "answer": "r", "metadata": {"query": "second", "prompt": "third", "output": "o"}},
    ),
    "a winning column that is empty": (
        {**Q, "answer": None, "output": "something else"}, {},
        {"answer": None, "metadata": {"output": "something else"}},
    ),
    "the remainder of a nested column": (
        {"inputs": {**Q, "language": "en"}, "outputs": {"answer": "a", "usage": {"tokens": 3}}, ACCEPTED: ["g", "h"]},
        {},
        {"metadata": {"inputs": {"language": "en"}, "outputs": {"usage": {"tokens": 3}}, ACCEPTED: ["g", "h"]}},
    ),
    "no ground truths": ({**Q, ACCEPTED: []}, {}, {"ground_truth": None}),
    # --- --map
    "any column": (
        {"frage": "q", "bot_reply": "a", "gold": "g", "hits": ["c"], "nr": 7, "gold_docs": ["d"], "answer": "no"},
        {"question": "frage", "answer": "bot_reply", "ground_truth": "gold", "contexts": "hits", "id": "nr",
         "reference_context_ids": "gold_docs"},
        {"question": "q", "answer": "a", "ground_truth": "g", "given_id": "7", "contexts": ["c"],
         "reference_context_ids": ["d"], "metadata": {"answer": "no"}},
    ),
    "nested columns": (
        NESTED, {"question": "run.io.in", "answer": "choices[1].text"},
        {"question": "q", "answer": "second", "metadata": {"run": {"ms": 3}, "choices": NESTED["choices"]}},
    ),
    "a place by a dot": (NESTED, {"question": "run.io.in", "answer": "choices.0.text"}, {"answer": "first"}),
    "a mapped column is not an alias of another field": (
        {**Q, "answer": "the gold one", "response": "the bot's"}, {"ground_truth": "answer"},
        {"ground_truth": "the gold one", "answer": "the bot's", "metadata": {}},
    ),
    "a mapped column is not the answer": (
        {**Q, "answer": "the gold one"}, {"ground_truth": "answer"}, {"ground_truth": "the gold one", "answer": None},
    ),
    "one column for two fields": (
        Q, {"id": "question", "question": "question"}, {"given_id": "q", "question": "q", "metadata": {}},
    ),
    # --- several accepted answers
    **{
        f"accepted answers of {row}": (
            {**Q, **row}, mapping,
            {"ground_truth": accepted[0]} | ({"metadata": {ACCEPTED: accepted}} if len(accepted) > 1 else {}),
        )
        for row, mapping, accepted in [
            ({ACCEPTED: ["g", "another", "g"]}, {}, ["g", "another"]),
            ({"ground_truth": "first", ACCEPTED: ["g", "first"]}, {}, ["first", "g"]),
            ({"references": ["g", 1912]}, {ACCEPTED: "references"}, ["g", "1912"]),
            ({"outputs": {"gold": ["g", "h"]}}, {ACCEPTED: "outputs.gold"}, ["g", "h"]),
            ({ACCEPTED: ["g", None, " "]}, {}, ["g"]),
            ({ACCEPTED: "g"}, {}, ["g"]),
            ({"expected_output": ["g", "h"]}, {}, ["g", "h"]),
            ({"ground_truth": "[g] and [h]"}, {}, ["[g] and [h]"]),
            ({"right": [{"is": "g"}, {"is": "h"}]}, {"ground_truth": "$.right[*].is"}, ["g", "h"]),
            ({"references": ["g", "h"]}, {"ground_truth": "references[1]"}, ["h"]),
        ]
    },
    # --- texts
    **{
        f"the text {value!r}": (
            {**Q, "answer": value, "ground_truth": value}, {}, {"answer": text, "ground_truth": text},
        )
        for value, text in [
            ("  Paris. ", "  Paris. "), (42, "42"), (0, "0"), (2.5, "2.5"), (True, "true"), (False, "false"),
            ("", None), (" \n\t\u3000", None), (None, None),
        ]
    },
    "a question alone": (
        {"question": 7}, {},
        {"question": "7", "answer": None, "ground_truth": None, "contexts": None, "given_id": None, "metadata": {}},
    ),
    "a whole number that a table stores as a float": (
        {"question": "q", "answer": 0.5, "ground_truth": 118.0}, {}, {"answer": "0.5", "ground_truth": "118"},
    ),
    # --- contexts
    "contexts as objects": (
        {**Q, "documents": DOCUMENTS}, {},
        {"contexts": ["one", "two", "three", "four", "five", "6"], "context_ids": ["d1", "2", "d3", "", "", ""],
         "metadata": {"contexts": [{}, {"score": 0.5}, {"metadata": {"page": 4}}, {}, {}, {}]}},
    ),
    "an empty list of contexts": ({**Q, "contexts": []}, {}, {"contexts": []}),
    "null contexts": ({**Q, "contexts": None}, {}, {"contexts": None}),
    **{
        f"the reference ids {given!r}": ({**Q, "reference_context_ids": given}, {}, {"reference_context_ids": ids})
        for given, ids in [
            ("d1", ["d1"]), (5, ["5"]), ("Fees 2026.pdf", ["Fees 2026.pdf"]), ('["a", 7]', ["a", "7"]),
            ([["a", "b"], ["c"], ["a"]], ["a", "b", "c"]), ([], []), (" ", None),
        ]
    },
    "a column of ids goes before the ids of objects": (
        {**Q, "contexts": [{"id": "inner", "text": "one"}], "context_ids": ["outer"]}, {}, {"context_ids": ["outer"]},
    ),
    "ids that belong to the contexts beside the mapped ones": (
        {**Q, "contexts": ["one"], "context_ids": ["d1"], "other": [{"id": "x", "text": "two"}]},
        {"contexts": "other"}, {"contexts": ["two"], "context_ids": ["x"]},
    ),
    "such ids, and mapped contexts without": (
        {**Q, "retrieved_contexts": ["one"], "retrieved_context_ids": ["d1"], "other": ["two"]},
        {"contexts": "other"}, {"contexts": ["two"], "context_ids": None},
    ),
    "such ids by name": (
        {**Q, "contexts": ["one"], "context_ids": ["d1"], "other": ["two"]},
        {"contexts": "other", "context_ids": "context_ids"}, {"contexts": ["two"], "context_ids": ["d1"]},
    ),
    "addresses of the contexts beside the mapped ones": (
        {**Q, "contexts": [{"text": "one", "url": "a"}], "other": [{"text": "two", "url": "b"}]},
        {"contexts": "other"},
        {"metadata": {"contexts": [{"url": "b"}], "unread_contexts": [{"text": "one", "url": "a"}]}},
    ),
    "such addresses, and mapped contexts without": (
        {**Q, "contexts": [{"text": "one", "url": "a"}], "other": ["two"]}, {"contexts": "other"},
        {"metadata": {"unread_contexts": [{"text": "one", "url": "a"}]}},
    ),
    "addresses beside a place within the contexts": (
        {**Q, "contexts": [{"body": "one", "url": "a"}]}, {"contexts": "$.contexts[*].body"},
        {"metadata": {"contexts": [{"url": "a"}]}},
    ),
    "ids and addresses beside a path from anywhere": (
        {**Q, "contexts": [{"body": "one", "url": "a"}], "context_ids": ["d1"]}, {"contexts": "$..body"},
        {"contexts": ["one"], "context_ids": ["d1"],
         "metadata": {"contexts": [{"url": "a"}], "unread_contexts": [{"body": "one", "url": "a"}]}},
    ),
    "addresses beside a place anywhere in another column": (
        {**Q, "hits": [{"text": "one", "url": "a"}, {"text": "two"}], "contexts": ["two"]},
        {"contexts": "$.hits[*].text"},
        {"metadata": {
            "contexts": [{"url": "a"}, {}], "hits": [{"url": "a"}, {}], "unread_contexts": ["two"],
        }},
    ),
    "the address beside one text": (
        {**Q, "rag": {"hit": {"text": "one"}, "url": "a"}}, {"contexts": "rag.hit.text"},
        {"contexts": ["one"], "metadata": {"contexts": [{"url": "a"}], "rag": {"url": "a"}}},
    ),
    "addresses further out than the text": (
        {**Q, "contexts": [{"document": {"text": "one", "page": 1}, "url": "a"}]},
        {"contexts": "$.contexts[*].document.text"},
        {"metadata": {
            "contexts": [{"url": "a", "page": 1}], "unread_contexts": [{"document": {"page": 1}, "url": "a"}],
        }},
    ),
    "the address of the row itself": (
        {**Q, "texts": ["one"], "url": "a"}, {"contexts": "$..texts"}, {"metadata": {"texts": ["one"], "url": "a"}},
    ),
    "addresses of a list within the contexts": (
        {**Q, "contexts": {"items": [{"text": "one", "url": "a"}], "total": 1}}, {"contexts": "contexts.items"},
        {"metadata": {"contexts": [{"url": "a"}], "unread_contexts": {"total": 1}}},
    ),
    **{
        f"addresses of {path}": (
            {**Q, "contexts": [{"text": "one", "url": "a"}, {"text": "two", "url": "b"}]}, {"contexts": path},
            {"contexts": texts, "metadata": {
                "contexts": [{"url": url} for url in urls],
                "unread_contexts": [{"text": "one", "url": "a"}, {"text": "two", "url": "b"}],
            }},
        )
        for path, texts, urls in [
            ("$.contexts[:1]", ["one"], "a"), ("$.contexts[?@.url == 'b']", ["two"], "b"),
            ("$.contexts[::-1]", ["two", "one"], "ba"), ("$.contexts[::-1].text", ["two", "one"], "ba"),
            ("$.contexts[1:].text", ["two"], "b"), ("contexts[0].text", ["one"], "a"),
            ("$.contexts[1].text", ["two"], "b"), ("contexts[1]", ["two"], "b"),
        ]
    },
    "ids that belong to the mapped contexts": (
        {**Q, "contexts": ["one"], "context_ids": ["d1"], "retrieved_contexts": ["two"],
         "retrieved_context_ids": ["d2"]},
        {"contexts": "retrieved_contexts"}, {"contexts": ["two"], "context_ids": ["d2"]},
    ),
    "ids of other contexts in another spelling": (
        {**Q, "contexts": ["one"], "contextIds": ["d1"], "hits": [{"text": "two", "id": "d2"}]}, {"contexts": "hits"},
        {"contexts": ["two"], "context_ids": ["d2"]},
    ),
    "ids of other contexts than the ones read": (
        {**Q, "contexts": ["one"], "retrieved_contexts": ["two"], "retrieved_context_ids": ["d2"]}, {},
        {"contexts": ["one"], "context_ids": None},
    ),
    "ids of the same contexts by another name": (
        {**Q, "contexts": ["one"], "retrieved_contexts": ["one"], "retrieved_context_ids": ["d1"]}, {},
        {"contexts": ["one"], "context_ids": ["d1"]},
    ),
    "ids of other contexts where none are read": (
        {**Q, "contexts": None, "retrieved_contexts": ["two"], "retrieved_context_ids": ["d2"]}, {},
        {"contexts": None, "context_ids": ["d2"]},
    ),
    "ids beside texts from anywhere": (
        {**Q, "contexts": ["one"], "context_ids": ["d1"], "trace": {"docs": [{"text": "two"}]}},
        {"contexts": "$..docs[*].text"}, {"contexts": ["two"], "context_ids": None},
    ),
    "ids of objects from anywhere": (
        {**Q, "contexts": ["one"], "context_ids": ["d1"], "trace": {"docs": [{"text": "two", "id": "d2"}]}},
        {"contexts": "$..docs[*]"}, {"contexts": ["two"], "context_ids": ["d2"]},
    ),
    "ids beside the only contexts": (
        {**Q, "chunks": ["one"], "context_ids": ["d1"]}, {"contexts": "chunks"}, {"context_ids": ["d1"]},
    ),
    "ids beside a place within the contexts": (
        {**Q, "contexts": [{"body": "one"}], "context_ids": ["d1"]},
        {"contexts": "$.contexts[*].body"}, {"contexts": ["one"], "context_ids": ["d1"]},
    ),
    "ids that no column is to give": (
        {**Q, "contexts": [{"id": "inner", "text": "one"}], "context_ids": ["outer"]},
        {"context_ids": ""}, {"context_ids": ["inner"]},
    ),
    # --- ids
    **{
        f"the id {given!r}": ({**Q, "id": given}, {}, {"given_id": text, "sample_id": text})
        for given, text in [("q-1", "q-1"), (17, "17"), (17.0, "17"), (0, "0")]
    },
    **{
        f"the empty id {given!r}": (
            {"id": given, "question": "什么？", "ground_truth": "g", "answer": "a"}, {},
            {"given_id": None, "sample_id": hashlib.sha256('["什么？","g"]'.encode()).hexdigest()[:16]},
        )
        for given in (None, "", "  ")
    },
    # --- metadata
    "everything else": ({**Q, **REST}, {}, {"metadata": REST}),
    "a metadata column is taken apart": (
        {**Q, "lang": "en", "metadata": {"topic": "t", "lang": "de"}}, {},
        {"metadata": {"lang": "en", "topic": "t", "metadata": {"lang": "de"}}},
    ),
    "a metadata column of text": ({**Q, "metadata": "text"}, {}, {"metadata": {"metadata": "text"}}),
    "an empty metadata column": ({**Q, "metadata": {}}, {}, {"metadata": {}}),
}  # fmt: skip


def test_rows_become_samples(tmp_path: Path) -> None:
    for name, (row, mapping, expected) in SAMPLES.items():
        sample = read_one(tmp_path, row, mapping)
        assert {field: getattr(sample, field) for field in expected} == expected, name


TOOLS: dict[str, Row] = {
    "ragas": {"user_input": "q", "response": "a", "reference": "g", "retrieved_contexts": ["c"], "sample_id": "i"},
    "deepeval": {"input": "q", "actual_output": "a", "expected_output": "g", "retrieval_context": ["c"],
                 "query_id": "i"},
    "beir": {"query": "q", "output": "a", "reference_answer": "g", "context": ["c"], "qid": "i"},
    "older ragas": {"prompt": "q", "generated_answer": "a", "ground_truths": ["g"], "documents": ["c"], "id": "i"},
    "langsmith": {"inputs": Q, "outputs": {"answer": "a"}, "reference_outputs": {"answer": "g"}, "contexts": ["c"],
                  "id": "i"},
    "flattened": {"inputs.question": "q", "outputs.answer": "a", "reference_outputs.answer": "g", "contexts": ["c"],
                  "id": "i"},
}  # fmt: skip


def test_columns_of_the_common_tools_are_understood(tmp_path: Path) -> None:
    for tool, row in TOOLS.items():
        for sample in (read_one(tmp_path, row), read_all(pl.DataFrame([row]))[0]):
            assert (sample.question, sample.answer, sample.ground_truth) == ("q", "a", "g"), tool
            assert (sample.contexts, sample.given_id, sample.metadata) == (["c"], "i", {}), tool


def test_the_reference_of_a_frame_of_phoenix_is_what_was_retrieved(tmp_path: Path) -> None:
    """Its frame for evaluators had the documents as ground truth: right answers scored low, without faithfulness."""
    row = {"context.span_id": "0a1b", "input": "q", "output": "a", "reference": "One text. Another text."}
    sample = read_one(tmp_path, row)
    assert (sample.answer, sample.ground_truth, sample.contexts) == ("a", None, ["One text. Another text."])
    mapped = read_one(tmp_path, row, {"ground_truth": "reference"})
    assert (mapped.ground_truth, mapped.contexts) == ("One text. Another text.", None)
    assert read_one(tmp_path, {**row, "contexts": ["c"]}).contexts == ["c"]


def test_rows_of_one_file_may_have_different_columns(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"question": "a", "answer": "x"},
        {"query": "b", "response": "y", "lang": "en"},
        {"inputs": {"question": "c"}, "outputs": {"answer": "z"}, "run_type": "chain"},
        {"inputs": {"text": "kept"}, "question": "d"},
        {"question": "e", "answer": "v", "gold": "g"},
    ]
    samples = read_all(write_json_lines(tmp_path / "qa.jsonl", rows), {"ground_truth": "gold"})
    assert [(sample.question, sample.answer, sample.ground_truth, sample.metadata) for sample in samples] == [
        ("a", "x", None, {}),
        ("b", "y", None, {"lang": "en"}),
        ("c", "z", None, {"run_type": "chain"}),
        ("d", None, None, {"inputs": {"text": "kept"}}),
        ("e", "v", "g", {}),
    ]


# By name a row, and texts of the message that refuses it on line 2.
REFUSALS: dict[str, tuple[object, tuple[str, ...]]] = {
    **{
        f"the question {question!r}": (
            {"question": question, "query": "not asked"},
            ("line 2: the question is empty", "every row needs a question"),
        )
        for question in ("", "   ", None)
    },
    "no question": ({"text": "t", "lang": "en"}, ("line 2: no question; columns of this row: text, lang",)),
    **{
        problem: (row, (f"line 2: {problem}", "--map answer=output.text", "1 problem;"))
        for row, problem in [
            ({"question": [{"role": "user"}]}, "question is a list, not text: [{'role': 'user'}]"),
            ({**Q, "answer": {"text": "a"}}, "answer is an object, not text: {'text': 'a'}"),
            ({**Q, "ground_truth": {"a": 1}}, "ground_truth is an object, not text: {'a': 1}"),
        ]
    },
    **{
        f"the contexts {contexts}": ({**Q, "contexts": contexts}, (f"line 2: {problem}", "to do: "))
        for contexts, problem in [
            (7, "contexts are not a list but a number: 7"),
            (["fine", None], "context 2 is null"),
            ([["nested"], ["more"]], "context 1 is a list, not text: ['nested']"),
            ([{"id": "d1", "lines": "x"}], "context 1 has no text; it has: id, lines"),
            ([{"id": "d1", "text": None}], "context 1 has no text; it has: id, text"),
            ([{"id": ["d1"], "text": "x"}], "the id of context 1 is a list, not a text or a number"),
            ([True], "context 1 is true or false, not text"),
        ]
    },
    "fewer ids than contexts": (
        {**Q, "contexts": ["a", "b"], "context_ids": ["d1"]}, ("line 2: context_ids has 1 ids for 2 contexts",),
    ),
    **{
        f"the id {given}": ({**Q, "id": given}, ("line 2: id is ", "ids are texts or whole numbers"))
        for given in (True, ["a"], {"a": 1}, 1e30)
    },
    **{
        f"the reference ids {ids}": (
            {**Q, "reference_context_ids": ids}, ("line 2: reference_context_ids are not a list",),
        )
        for ids in ("d1, d2", "d1|d2", "[d1", {"id": "d1"}, True)
    },
    "empty reference ids": (
        {**Q, "gold_context_ids": ["a", None, ""]}, ("reference_context_ids has an empty id at place 2, 3",),
    ),
    "metadata nested too deep": (
        {**Q, "deep": json.loads("[" * 400 + "]" * 400)},
        ("line 2: a column does not fit into JSON: it is nested too deep", "flatten or remove"),
    ),
    "several problems": (
        {"question": "", "answer": [1], "contexts": 1, "id": True},
        ("line 2: the question is empty", "line 2: answer is a list", "line 2: contexts are not a list",
         "line 2: id is true or false", "4 problems; nothing was loaded"),
    ),
}  # fmt: skip


def test_rows_are_refused_with_their_problems(tmp_path: Path) -> None:
    for name, (row, texts) in REFUSALS.items():
        message = refuse_rows(tmp_path, row)
        assert [text for text in texts if text not in message] == [], (name, message)


def test_wrong_mappings_are_refused(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "qa.jsonl", [Q])
    unknown = str(refuse(path, {"anwser": "reply"}))
    assert "--map anwser=reply: 'anwser' is not one of our fields; did you mean answer?" in unknown
    fields = "question, answer, ground_truth, ground_truths, contexts, id, context_ids, reference_context_ids"
    assert f"allowed: {fields}" in unknown
    assert "kept as metadata without being mapped" in unknown
    far = str(refuse(path, {"zzz": "reply"}))
    assert (far.count(fields), "known: " in far) == (1, False), "the fields are listed once"
    empty = str(refuse(path, {"answer": " "}))
    assert "--map answer= names no column" in empty
    assert "--map answer=COLUMN" in empty
    frame = pl.DataFrame({"question": ["q"], "run": [{"io": "x"}]})
    assert "no column for --map answer=run.out" in str(refuse(frame, {"answer": "run.out"}))


@pytest.mark.parametrize("name", ["qa.jsonl", "qa.parquet"])
def test_missing_mapped_column_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    frame = pl.DataFrame({"question": ["q"], "reply": ["a"]})
    frame.write_parquet(path) if name.endswith("parquet") else frame.write_ndjson(path)
    message = str(refuse(path, {"answer": "bot_reply", "contexts": "reply.hits"}))
    assert message.startswith(f"{path}: no column for --map answer=bot_reply")
    assert "columns: question, reply;" in message
    assert "name the column with --map" in message


# --- hashes

JUDGED: Row = {"id": "i", "question": "q", "answer": "a", "ground_truth": "g", "contexts": ["c"], "context_ids": ["d"],
               "reference_context_ids": ["r"]}  # fmt: skip


def test_input_hash_changes_with_everything_that_is_judged_and_nothing_else(tmp_path: Path) -> None:
    before = read_one(tmp_path, JUDGED).input_hash
    assert len(before) == 32
    changes: list[Row] = [
        {name: ["other"] if isinstance(value, list) else "other"} for name, value in JUDGED.items() if name != "id"
    ]
    changes += [{"ground_truth": None, "ground_truths": texts} for texts in (["g", "h"], ["g", "i"])]
    hashes = {read_one(tmp_path, {**JUDGED, **change}).input_hash for change in changes}
    assert len(hashes | {before}) == len(changes) + 1
    renamed: Row = {"lang": "en", "response": "a", **{key: JUDGED[key] for key in JUDGED if key != "answer"}}
    assert read_one(tmp_path, {**renamed, "id": "other"}).input_hash == before
    assert read_one(tmp_path, {**JUDGED, "ground_truth": None, "ground_truths": ["g"]}).input_hash == before
    bare = read_one(tmp_path, Q).input_hash
    assert read_one(tmp_path, {**Q, "answer": " "}).input_hash == bare, "empty is absent"
    assert read_one(tmp_path, {**Q, "contexts": []}).input_hash != bare, "no contexts are not unknown contexts"


def test_hashes_are_stable(tmp_path: Path) -> None:
    """The warehouse identifies samples by them: another value would make every stored sample a new one."""
    sample = read_one(tmp_path, {"question": "什么？", "answer": "a", "contexts": ["c1", "c2"]})
    canonical = (
        '{"answer":"a","context_ids":null,"contexts":["c1","c2"],"ground_truth":null,"question":"什么？",'
        '"reference_context_ids":null}'
    )
    assert sample.input_hash == hashlib.sha256(canonical.encode()).hexdigest()[:32]
