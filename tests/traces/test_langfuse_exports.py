"""Langfuse's exports, each in the shape that Langfuse writes: one bot's answer by all ways out."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_files import (
    ANSWER,
    NOON,
    QUESTION,
    TEXTS,
    TRACE,
    check_bot,
    make_langfuse_trace,
    read_one,
    read_traces_of,
    write_lines,
)

from evalhouse.tasks.datasets.values import DatasetError
from evalhouse.tasks.datasets.vendors import read_langfuse

Row = dict[str, Any]


def _read(tmp_path: Path, *rows: Row) -> Any:  # noqa: ANN401  # a StoredSample, asked for what its metadata holds
    return read_one(write_lines(tmp_path / "t.jsonl", rows), "langfuse")


def _write_texts(row: Row, names: tuple[str, ...] = ("input", "output", "metadata")) -> Row:
    """Return recorded data as the JSON text in which Langfuse stores it, also for a text."""
    return {key: json.dumps(value) if key in names and value is not None else value for key, value in row.items()}


def _to_snake(row: Row) -> Row:
    return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key): value for key, value in row.items()}


def _make_rows() -> list[Row]:
    """The bot's observations, the outermost with what the trace has."""
    trace = make_langfuse_trace()
    outer = {
        "id": "o9", "traceId": TRACE, "type": "SPAN", "name": "answer", "parentObservationId": None,
        "startTime": NOON.format(0), "endTime": NOON.format(1), "level": "DEFAULT",
        "input": {"args": [QUESTION], "kwargs": {}}, "output": ANSWER, "sessionId": "s-7",
    }  # fmt: skip
    return [outer, *({**item, "parentObservationId": "o9"} for item in trace["observations"])]


def _without(row: Row, *names: str) -> Row:
    return {key: value for key, value in row.items() if key not in names}


def _as_api(trace: Row) -> Row:
    return trace


def _as_answer(trace: Row) -> Row:
    return {"data": [trace], "meta": {"page": 1, "limit": 50, "totalItems": 1, "totalPages": 1}}


def _as_download(trace: Row) -> Row:
    """The trace lists its observations as well, without their texts."""
    bare = [{**item, "input": None, "output": None} for item in trace["observations"]]
    whole = {**_write_texts(trace), "observations": bare, "scores": []}
    return {"trace": whole, "observations": [_write_texts(item) for item in trace["observations"]]}


def _as_session(trace: Row) -> Row:
    return {"id": "s-7", "createdAt": NOON.format(0), "projectId": "p", "traces": [_without(trace, "sessionId")]}


@pytest.mark.parametrize(
    ("shape", "is_whole_file"), [(_as_api, True), (_as_answer, False), (_as_download, False), (_as_session, True)]
)
def test_a_trace_is_the_same_by_each_way_out(tmp_path: Path, shape: Callable[[Row], Row], is_whole_file: bool) -> None:
    path = tmp_path / "t.json"
    held = shape(make_langfuse_trace())
    path.write_text(json.dumps(held, indent=2 if is_whole_file else None), encoding="utf-8")
    sample = read_one(path if is_whole_file else path.rename(tmp_path / "t.jsonl"), "langfuse")
    assert check_bot(sample, ids=["d1", "d2"])["conversation_id"] == "s-7"
    assert sample.metadata["trace_name"] == "answer"


def test_a_download_without_the_trace_is_read_by_its_observations(tmp_path: Path) -> None:
    """Return the export of newer versions: observations with the trace's name and session, and scores beside them."""
    observations = [{**_write_texts(row), "traceName": "answer", "tags": []} for row in _make_rows()]
    score = {"id": "x", "traceId": TRACE, "name": "liked", "value": 1, "dataType": "NUMERIC"}
    sample = _read(tmp_path, {"observations": observations, "scores": [score]})
    assert check_bot(sample, ids=["d1", "d2"])["conversation_id"] == "s-7"


def _write_table(path: Path, rows: list[Row]) -> Path:
    """Return the export of a table: texts unchanged, all else as JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            cells = ["" if row.get(name) is None else row[name] for name in names]
            writer.writerow([cell if isinstance(cell, str) else json.dumps(cell) for cell in cells])
    return path


def test_the_table_of_observations_is_read(tmp_path: Path) -> None:
    rows = [
        {**_write_texts(row), "traceTags": [], "latency": 1000, "providedModelName": row.get("model"), "scores": {}}
        for row in _make_rows()
    ]
    sample = read_one(_write_table(tmp_path / "observations.csv", rows), "langfuse")
    assert check_bot(sample, ids=["d1", "d2"])["conversation_id"] == "s-7"
    as_json = tmp_path / "observations.json"
    as_json.write_text(json.dumps(rows), encoding="utf-8")
    assert read_one(as_json, "langfuse").input_hash == sample.input_hash


def test_the_table_of_traces_has_questions_and_answers_alone(tmp_path: Path) -> None:
    trace = _without(make_langfuse_trace(), "observations", "latency")
    rows = [{**_write_texts(trace), "release": None, "version": None, "bookmarked": False, "public": False}]
    for path in (_write_table(tmp_path / "t.csv", rows), write_lines(tmp_path / "t.jsonl", rows)):
        sample = read_one(path, "langfuse")
        assert (sample.question, sample.answer, sample.contexts) == (QUESTION, ANSWER, None)
        assert sample.metadata["conversation_id"] == "s-7"
        assert "latency_ms" not in sample.metadata


def test_both_tables_may_stand_in_one_file(tmp_path: Path) -> None:
    trace = _without(make_langfuse_trace(), "observations", "latency")
    rows = [{**row, "input": None, "sessionId": None} if row["id"] == "o9" else row for row in _make_rows()]
    sample = _read(tmp_path, *map(_write_texts, [*rows[1:], trace, rows[0]]))
    assert check_bot(sample, ids=["d1", "d2"])["conversation_id"] == "s-7"


def test_a_list_of_traces_names_its_observations_by_their_ids(tmp_path: Path) -> None:
    trace = {**make_langfuse_trace(), "observations": ["o1", "o2"], "scores": [], "htmlPath": "/project/p/traces/t"}
    sample = _read(tmp_path, {"data": [trace], "meta": {}})
    assert (sample.question, sample.answer, sample.contexts) == (QUESTION, ANSWER, None)
    assert sample.metadata["latency_ms"] == pytest.approx(1000)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_exports_to_a_bucket_are_read(tmp_path: Path, ending: str) -> None:
    """Names in snake case, times without a zone, and in Parquet maps as pairs."""
    rows = [_to_snake(_write_texts(row)) for row in _make_rows()]
    for row in rows:
        row |= {"start_time": "2026-03-14 12:00:00.000", "end_time": "2026-03-14 12:00:01.000"}
        row |= {"provided_model_name": row.pop("model", None), "project_id": "p"}
    path = tmp_path / f"observations.{ending}"
    if ending == "parquet":
        maps = {"usage_details": pa.map_(pa.string(), pa.uint64()), "metadata": pa.map_(pa.string(), pa.string())}
        columns: dict[str, Any] = {
            name: pa.array([row.get(name) for row in rows])
            for name in dict.fromkeys(name for row in rows for name in row)
            if name not in maps
        }
        for name, kind in maps.items():
            columns[name] = pa.array([list((row.get(name) or {}).items()) for row in rows], type=kind)
        pq.write_table(pa.table(columns), path)
    else:
        write_lines(path, rows)
    assert check_bot(read_one(path, "langfuse"), ids=["d1", "d2"])["conversation_id"] == "s-7"


def test_text_that_was_written_as_json_more_than_once_is_opened(tmp_path: Path) -> None:
    trace = _without(make_langfuse_trace(), "observations")
    once = json.dumps({"messages": [{"role": "user", "content": QUESTION}]})
    twice = {**trace, "input": json.dumps(once), "output": json.dumps(json.dumps(ANSWER))}
    assert (_read(tmp_path, twice).question, _read(tmp_path, twice).answer) == (QUESTION, ANSWER)
    quoted = _read(tmp_path, {**trace, "input": '"Night" or "day"?', "output": '"'})
    assert (quoted.question, quoted.answer) == ('"Night" or "day"?', '"')


@pytest.mark.parametrize(("output", "answer"), [(22.5, "22.5"), (True, "true"), ("null", None)])
def test_an_answer_that_json_takes_for_another_kind_is_a_text(
    tmp_path: Path, output: object, answer: str | None
) -> None:
    assert _read(tmp_path, {**_without(make_langfuse_trace(), "observations"), "output": output}).answer == answer


_ATTRIBUTES = {
    "openinference.span.kind": "RETRIEVER",
    **{
        f"retrieval.documents.{place}.document.{key}": value
        for place, text in enumerate(TEXTS)
        for key, value in {"content": text, "id": f"d{place + 1}"}.items()
    },
}


@pytest.mark.parametrize(
    "metadata",
    [
        {"attributes": _ATTRIBUTES, "resourceAttributes": {"service.name": "ferry-bot"}, "scope": {"name": "x"}},
        {
            **{f"attributes.{name}": value for name, value in _ATTRIBUTES.items()},
            "resourceAttributes.service.name": "ferry-bot",
        },
        json.dumps({"attributes": json.dumps(_ATTRIBUTES), "resourceAttributes": '{"service.name": "ferry-bot"}'}),
    ],
    ids=["object", "names", "text"],
)
def test_what_came_by_opentelemetry_is_read_from_the_metadata(tmp_path: Path, metadata: object) -> None:
    """Langfuse made a SPAN of it, and has no field for documents."""
    outer, retriever, model = _make_rows()
    spans = [outer, {**retriever, "type": "SPAN", "output": None, "metadata": metadata}, model]
    sample = _read(tmp_path, *spans)
    check_bot(sample, ids=["d1", "d2"])
    assert sample.metadata["service"] == "ferry-bot"


def test_a_service_without_a_name_has_none(tmp_path: Path) -> None:
    metadata = {"resourceAttributes": {"service.name": "unknown_service:python"}}
    assert "service" not in _read(tmp_path, {**make_langfuse_trace(), "metadata": metadata}).metadata


def _make_documents() -> list[Row]:
    documents: list[Row] = _make_rows()[1]["output"]
    return documents


def _number_texts(make: Callable[[int, str], Row]) -> list[Row]:
    return [make(place, text) for place, text in enumerate(TEXTS, 1)]


@pytest.mark.parametrize(
    ("changes", "are_documents"),
    [
        # Before Langfuse had a type for retrievers they were SPANs: of LangChain, and two of LlamaIndex.
        ({"type": "SPAN", "output": json.dumps(_number_texts(
            lambda place, text: {"id": None, "page_content": text, "metadata": {"id": f"d{place}"}}))}, True),
        ({"type": "SPAN", "output": json.dumps(_number_texts(
            lambda place, text: {"node": {"id_": f"d{place}", "text": text, "metadata": {}}, "score": 0.5}))}, True),
        ({"type": "SPAN", "output": json.dumps(_number_texts(
            lambda place, text: {"node": {"id_": f"d{place}", "text_resource": {"text": text}}, "score": 0.5}))}, True),
        ({"output": {"documents": _make_documents(), "took_ms": 3}}, True),
        ({"output": {"results": _make_documents(), "took_ms": 3}}, True),
        ({"type": "SPAN", "output": [{"role": "tool", "content": "Not a document.", "metadata": {}}]}, False),
        ({"type": "SPAN", "output": [{"title": "A page", "href": "https://example.org", "metadata": {}}]}, False),
    ],
)  # fmt: skip
def test_documents_are_those_that_a_step_gave_out(tmp_path: Path, changes: Row, are_documents: bool) -> None:
    outer, retriever, model = _make_rows()
    sample = _read(tmp_path, outer, {**retriever, **changes}, model)
    if are_documents:
        check_bot(sample, ids=["d1", "d2"])
    else:
        assert sample.contexts is None


def test_what_a_reranker_left_are_the_contexts(tmp_path: Path) -> None:
    outer, retriever, model = _make_rows()
    left = [{**retriever["output"][1], "score": 0.9}]
    times = {"startTime": NOON.format(1), "endTime": NOON.format(2)}
    reranker = {**retriever, **times, "id": "o3", "type": "SPAN", "name": "cohere-rerank", "output": left}
    assert _read(tmp_path, outer, retriever, reranker, model).contexts == TEXTS[1:]


def test_a_tool_is_called_by_its_name_and_not_by_that_of_the_observation(tmp_path: Path) -> None:
    attributes = {"openinference.span.kind": "TOOL", "tool.name": "timetable"}
    tool = {
        **_make_rows()[1], "type": "TOOL", "name": "execute_tool timetable", "input": "{'pier': 4}", "output": "22:40",
        "metadata": {"attributes": attributes},
    }  # fmt: skip
    outer = _make_rows()[0]
    calls = _read(tmp_path, outer, tool).metadata["tool_calls"]
    assert calls == [{"name": "timetable", "arguments": {"pier": 4}}]
    named = _read(tmp_path, outer, _without(tool, "metadata")).metadata["tool_calls"]
    assert named[0]["name"] == "execute_tool timetable"


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"usageDetails": {"input": 50, "input_cached": 11, "output": 4, "output_reasoning": 2, "total": 67}}, (61, 6)),
        ({"usageDetails": {}, "usage": {"promptTokens": 61, "completionTokens": 6}}, (61, 6)),
        ({"promptTokens": 61, "completionTokens": 6, "usage": {"unit": "TOKENS"}}, (61, 6)),
        ({"usageDetails": {}, "inputUsage": 61, "outputUsage": 6, "totalUsage": 67}, (61, 6)),
        ({"usageDetails": {}, "inputUsage": 0, "outputUsage": 0, "totalUsage": 0}, (None, None)),
    ],
)  # fmt: skip
def test_tokens_of_all_kinds_are_counted(tmp_path: Path, usage: Row, tokens: tuple[int | None, int | None]) -> None:
    outer, _, model = _make_rows()
    metadata = _read(tmp_path, outer, {**_without(model, "usageDetails"), **usage}).metadata
    assert (metadata.get("prompt_tokens"), metadata.get("completion_tokens")) == tokens


def test_an_observation_that_was_never_ended_does_not_keep_an_answered_trace_running(tmp_path: Path) -> None:
    trace = make_langfuse_trace()
    trace["observations"][1]["endTime"] = None
    check_bot(_read(tmp_path, trace), ids=["d1", "d2"])
    with pytest.raises(DatasetError, match="still running"):
        _read(tmp_path, {**trace, "output": None})


def test_a_parent_outside_the_trace_is_the_trace(tmp_path: Path) -> None:
    """The outermost observation of an application may be within a span that Langfuse was not sent."""
    trace = {**make_langfuse_trace(), "input": None, "output": None}
    trace["observations"] = [
        {**row, "parentObservationId": row["parentObservationId"] or "f" * 16} for row in _make_rows()
    ]
    check_bot(_read(tmp_path, trace), ids=["d1", "d2"])


def _make_observation(number: int, kind: str, given: object, made: object, **columns: object) -> Row:
    return {
        "id": f"o{number}", "traceId": TRACE, "type": kind, "name": f"step {number}", "parentObservationId": None,
        "startTime": NOON.format(number), "endTime": NOON.format(number + 1), "input": given, "output": made, **columns,
    }  # fmt: skip


def test_a_step_that_kept_no_document_states_so() -> None:
    """It read as a step of which nothing is known, and what a grader had dropped stayed."""
    given, blamed = {"documents": [{"page_content": TEXTS[0]}]}, list[str]()
    (span,) = read_langfuse(_make_observation(1, "CHAIN", given, {"documents": []}), blamed.append)
    assert (span.kept, blamed) == ((), [])


def test_a_batch_of_questions_is_a_sample_each(tmp_path: Path) -> None:
    """Langfuse nests the chains of a batch below the first one, and copies its question to the trace."""
    observations = []
    for number in (1, 3):
        outer = None if number == 1 else "o1"
        root = {"name": "chain", "parentObservationId": outer, "endTime": NOON.format(9)}
        root["metadata"] = {"is_langchain_root": True}
        document = {"page_content": f"Text {number}", "metadata": {}}
        asked = {"question": f"Q{number}"}
        observations.append(_make_observation(number, "CHAIN", asked, f"At {number}.", **root))
        inner = {"parentObservationId": f"o{number}"}
        observations.append(_make_observation(number + 1, "RETRIEVER", f"Q{number}", [document], **inner))
    trace = {"id": TRACE, "timestamp": NOON.format(1), "input": {"question": "Q1"}, "output": "At 1."}
    path = write_lines(tmp_path / "t.jsonl", [{**trace, "observations": observations}])
    samples, _ = read_traces_of(path, "langfuse")
    read = [(sample.question, sample.answer, sample.contexts) for sample in samples]
    assert read == [("Q1", "At 1.", ["Text 1"]), ("Q3", "At 3.", ["Text 3"])]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"id": "x", "traceId": TRACE, "timestamp": "", "name": "liked", "value": 1, "source": "API"}, "a score"),
        ({"id": "s-7", "createdAt": NOON.format(0), "countTraces": 3, "userIds": []}, "sessions only those"),
        ({"id": "o1", "type": "SPAN", "startTime": NOON.format(0), "depth": 0, "input": QUESTION}, "names no trace"),
        ({"name": "x"}, "no id of a trace"),
    ],
)  # fmt: skip
def test_rows_that_are_neither_traces_nor_observations_are_refused(tmp_path: Path, row: Row, why: str) -> None:
    with pytest.raises(DatasetError, match=f"line 1: .*{why}.* \\(--format langfuse\\)"):
        read_traces_of(write_lines(tmp_path / "t.jsonl", [row]), "langfuse")
