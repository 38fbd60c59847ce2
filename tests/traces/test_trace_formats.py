"""Traces as datasets: what each export becomes, and what becomes of what cannot be judged."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from receiving import read_stored, receiving
from trace_files import (
    ANSWER,
    NOON,
    NOON_NS,
    QUESTION,
    TEXTS,
    TRACE,
    check_bot,
    make_bot_trace,
    make_langfuse_trace,
    make_request,
    make_span,
    number_trace,
    read_one,
    read_traces_of,
    write_lines,
)

from evalhouse.tasks.datasets import chat
from evalhouse.tasks.datasets.read import stage_of
from evalhouse.tasks.datasets.spans import Span, read_time
from evalhouse.tasks.datasets.traces import make_row
from evalhouse.tasks.datasets.values import DatasetError, open_value
from evalhouse.tasks.settings.run import RunSettings


def test_otlp_as_the_collector_writes_it_is_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [make_request([span]) for span in make_bot_trace(session="s-7")])
    sample = read_one(path, "otel")
    metadata = check_bot(sample, ids=["d1", "d2"])
    assert sample.sample_id == TRACE
    assert (metadata["conversation_id"], metadata["service"], metadata["n_spans"]) == ("s-7", "ferry-bot", 3)
    assert [context["score"] for context in metadata["contexts"]] == [0.9, 0.65]
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(make_request(make_bot_trace(session="s-7")), indent=1), encoding="utf-8")
    assert read_one(whole, "openinference").input_hash == sample.input_hash


def _write_as_in_proto(value: object) -> Any:  # noqa: ANN401  # any JSON
    """A message of OTLP with the names of its .proto file, and null for the other kinds of an attribute's value."""
    if isinstance(value, list):
        return [_write_as_in_proto(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): value[name] for name in value}
    nothing = dict.fromkeys(("array_value", "int_value", "string_value") if set(value) & {"stringValue"} else ())
    return {name: _write_as_in_proto(inner) for name, inner in {**nothing, **named}.items()}


@pytest.mark.parametrize("form", ["otel", "phoenix"])
def test_otlp_with_the_names_of_its_proto_file_is_read(tmp_path: Path, form: str) -> None:
    request = make_request(make_bot_trace(session="s-7"))
    whole = write_lines(tmp_path / "whole.jsonl", [_write_as_in_proto(request)])
    check_bot(read_one(whole, form), ids=["d1", "d2"])
    # As Phoenix's API lists spans: each by itself, the outermost with a parent that is null.
    (scope,) = request["resourceSpans"][0]["scopeSpans"]
    spans = [{"parent_span_id": None, **_write_as_in_proto(span)} for span in scope["spans"]]
    check_bot(read_one(write_lines(tmp_path / "spans.jsonl", spans), form), ids=["d1", "d2"])


def _make_phoenix_rows() -> list[dict[str, Any]]:
    outer = {
        "name": "answer", "span_kind": "CHAIN", "parent_id": None, "start_time": NOON.format(0),
        "end_time": NOON.format(1), "status_code": "OK", "status_message": "", "events": [],
        "context.span_id": "a1", "context.trace_id": TRACE, "attributes.input.value": QUESTION,
        "attributes.output.value": ANSWER, "attributes.llm.input_messages": None,
        "attributes.llm.output_messages": None, "attributes.retrieval.documents": None,
        "attributes.llm.model_name": None,
        "attributes.llm.token_count.prompt": None, "attributes.llm.token_count.completion": None,
    }  # fmt: skip
    documents = [{"document.content": text, "document.id": f"d{place}"} for place, text in enumerate(TEXTS, start=1)]
    asked = [{"message.role": "user", "message.content": f"{QUESTION} {TEXTS}"}]
    retriever = {
        **outer, "span_kind": "RETRIEVER", "parent_id": "a1", "context.span_id": "a2",
        "attributes.retrieval.documents": documents, "attributes.output.value": None,
    }  # fmt: skip
    model = {
        **outer, "span_kind": "LLM", "parent_id": "a1", "context.span_id": "a3", "attributes.input.value": None,
        "attributes.output.value": None, "attributes.llm.input_messages": asked,
        "attributes.llm.output_messages": [{"message.role": "assistant", "message.content": ANSWER}],
        "attributes.llm.model_name": "m-1", "attributes.llm.token_count.prompt": 61.0,
        "attributes.llm.token_count.completion": 6.0,
    }  # fmt: skip
    return [retriever, model, outer]


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_a_frame_of_phoenix_is_read_however_it_was_saved(tmp_path: Path, ending: str) -> None:
    rows, path = _make_phoenix_rows(), tmp_path / f"spans.{ending}"
    if ending == "parquet":
        pl.DataFrame(rows, infer_schema_length=None).drop("events").write_parquet(path)
    elif ending == "csv":
        cells = [
            {name: repr(value) if isinstance(value, list) else value for name, value in row.items()} for row in rows
        ]
        frame = pl.DataFrame(cells, infer_schema_length=None)
        # As pandas writes it: the index, which is a column too, comes first.
        index = ["context.span_id", *frame["context.span_id"]]
        lines = frame.write_csv().splitlines()
        path.write_text("".join(f"{own},{line}\n" for own, line in zip(index, lines, strict=True)), encoding="utf-8")
    else:
        write_lines(path, rows)
    check_bot(read_one(path, "phoenix"), ids=["d1", "d2"])


def _make_langsmith() -> list[dict[str, Any]]:
    run = {
        "trace_id": TRACE, "start_time": "2026-03-14T12:00:00", "end_time": "2026-03-14T12:00:01", "error": None,
        "session_id": "a-project", "status": "success", "extra": {"metadata": {"thread_id": "s-7"}},
    }  # fmt: skip
    documents = [
        {"id": f"d{place}", "page_content": text, "metadata": {"source": "a.md"}, "type": "Document"}
        for place, text in enumerate(TEXTS, start=1)
    ]
    message = {
        "lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"],
        "kwargs": {"content": ANSWER, "tool_calls": [{"name": "timetable", "args": {"pier": 4}, "id": "c1"}]},
    }  # fmt: skip
    return [
        {**run, "id": TRACE, "parent_run_id": None, "run_type": "chain", "name": "RunnableSequence",
         "inputs": {"input": QUESTION}, "outputs": {"output": ANSWER}},
        {**run, "id": "r2", "parent_run_id": TRACE, "run_type": "retriever", "name": "Retriever",
         "inputs": {"query": QUESTION}, "outputs": {"documents": documents}},
        {**run, "id": "r3", "parent_run_id": TRACE, "run_type": "llm", "name": "ChatOpenAI",
         "inputs": {"messages": [[{"type": "human", "content": "prompt"}]]}, "prompt_tokens": 61,
         "completion_tokens": 6, "outputs": {"generations": [[{"text": ANSWER, "message": message}]]},
         "extra": {"metadata": {"thread_id": "s-7", "ls_model_name": "m-1"}}},
    ]  # fmt: skip


def test_runs_of_langsmith_are_read_side_by_side_or_nested(tmp_path: Path) -> None:
    runs = _make_langsmith()
    sample = read_one(write_lines(tmp_path / "t.jsonl", runs), "langsmith")
    metadata = check_bot(sample, ids=["d1", "d2"])
    assert metadata["conversation_id"] == "s-7"
    assert metadata["tool_calls"] == [{"name": "timetable", "arguments": {"pier": 4}}]
    outer, *inner = runs
    nested = {**outer, "child_runs": [{k: v for k, v in run.items() if k != "trace_id"} for run in inner]}
    assert read_one(write_lines(tmp_path / "n.jsonl", [nested]), "langsmith").input_hash == sample.input_hash
    frame = pl.DataFrame([{k: json.dumps(v) if isinstance(v, dict) else v for k, v in run.items()} for run in runs])
    frame.write_parquet(tmp_path / "t.parquet")  # as the bulk export has it, with objects as text
    assert read_one(tmp_path / "t.parquet", "langsmith").input_hash == sample.input_hash


@pytest.mark.parametrize("is_text", [False, True])
def test_documents_that_a_traced_tool_returned_are_contexts(tmp_path: Path, is_text: bool) -> None:
    """LangSmith's decorator puts what a function returned into `output`."""
    outer, search, call = _make_langsmith()
    found = [{"id": f"d{place}", "content": text} for place, text in enumerate(TEXTS, start=1)]
    made = json.dumps(found) if is_text else found
    tool = {**search, "run_type": "tool", "name": "search", "inputs": {"query": "pier"}, "outputs": {"output": made}}
    sample = read_one(write_lines(tmp_path / "t.jsonl", [outer, tool, call]), "langsmith")
    assert (sample.contexts, sample.context_ids) == (TEXTS, ["d1", "d2"])


def test_documents_that_a_graph_gave_out_with_its_answer_are_contexts_where_no_step_retrieved(tmp_path: Path) -> None:
    chunks = [
        {
            "chunk_id": f"k{place}",
            "document_id": f"d{place}",
            "content": text,
            "metadata": {"pages": "9"},
            "rank": place,
        }
        for place, text in enumerate(TEXTS, start=1)
    ]
    graph = {
        "id": TRACE, "trace_id": TRACE, "name": "LangGraph", "run_type": "chain", "parent_run_id": None,
        "start_time": NOON.format(0), "end_time": NOON.format(1), "status": "success", "child_runs": None,
        "inputs": {"messages": [{"type": "human", "content": QUESTION}], "query": QUESTION, "retrieved_chunks": []},
        "outputs": {"generated_response": ANSWER, "messages": [{"type": "ai", "content": ANSWER}], "chunks": chunks},
    }  # fmt: skip
    sample = read_one(write_lines(tmp_path / "t.jsonl", [graph]), "langsmith")
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)
    assert (sample.contexts, sample.context_ids) == (TEXTS, ["d1", "d2"])
    outputs = {**graph["outputs"], "chunks": [], "retrieved_chunks": []}
    nothing = write_lines(tmp_path / "none.jsonl", [{**graph, "outputs": outputs}])
    assert read_one(nothing, "langsmith").contexts == []
    # The documents of a retriever of the trace come before the output of the chain.
    retriever = {
        "id": "r1", "trace_id": TRACE, "run_type": "retriever", "parent_run_id": TRACE, "start_time": NOON.format(0),
        "end_time": NOON.format(1), "inputs": {"query": QUESTION}, "outputs": {"documents": [{"page_content": "One."}]},
    }  # fmt: skip
    assert read_one(write_lines(tmp_path / "both.jsonl", [graph, retriever]), "langsmith").contexts == ["One."]


ASKED = {"openinference.span.kind": "CHAIN", "input.value": QUESTION}


def test_what_cannot_be_judged_is_counted_with_its_reason(tmp_path: Path) -> None:
    spans = [
        *make_bot_trace(trace=number_trace(1)),
        make_span(1, ASKED, trace=number_trace(2), error="the index is down"),
        make_span(1, {"http.route": "/health"}, trace=number_trace(3)),
        make_span(2, ASKED, trace=number_trace(4), parent=1),
        make_span(3, ASKED, trace=number_trace(4), parent=1),
        make_span(1, ASKED, trace=number_trace(5), took_s=None),
        make_span(2, {**ASKED, "openinference.span.kind": "RETRIEVER"}, trace=number_trace(6), parent=1),
    ]
    samples, staged = read_traces_of(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel")
    assert [sample.sample_id for sample in samples] == [number_trace(1)]
    note = staged.notes[0]
    assert note.startswith("traces: 6 of 9 spans, 1 became samples; left out: ")
    assert f"1 ended with an error and no answer ({number_trace(2)}: the index is down)" in note
    assert f"1 no span has a question that a person asked ({number_trace(3)})" in note
    assert f"3 still running, or its outermost span is not there ({number_trace(4)}, {number_trace(5)}, " in note


TYPED = json.dumps(
    [
        {"role": "user", "content": "Is it open?", "contexts": ["The pier is made of cheese."]},
        {"role": "assistant", "content": "The moon is made of cheese."},
        {"role": "user", "content": "Really?"},
    ]
)
_LLM = "openinference.span.kind"


@pytest.mark.parametrize("typed", [TYPED, json.dumps(json.loads(TYPED)[:2]), '[{"lc":1,"kwargs":{},"id":5}]', '"{'])
@pytest.mark.parametrize(
    "write",
    [
        lambda typed: {_LLM: "CHAIN", "input.value": json.dumps({"messages": [{"role": "user", "content": typed}]})},
        lambda typed: {_LLM: "CHAIN", "input.value": json.dumps({"inputs": {"question": typed}})},
        lambda typed: {
            _LLM: "CHAIN",
            "input.value": json.dumps({"input": typed}),
            "input.mime_type": "application/json",
        },
        lambda typed: {_LLM: "CHAIN", "input.value": json.dumps([typed]), "input.mime_type": "application/json"},
        lambda typed: {_LLM: "LLM", "input.value": typed, "input.mime_type": "text/plain; charset=utf-8"},
        lambda typed: {"traceloop.span.kind": "workflow", "traceloop.entity.input": json.dumps({"args": [typed]})},
        lambda typed: {"mlflow.spanType": '"CHAIN"', "mlflow.spanInputs": json.dumps(typed)},
        lambda typed: {"spring.ai.chat.client.user.text": typed},
        lambda typed: {
            "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": typed}]}])
        },
        lambda typed: {
            _LLM: "LLM",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": typed,
        },
    ],
)
def test_what_a_person_typed_is_the_question_and_nothing_else(
    tmp_path: Path, typed: str, write: Callable[[str], dict[str, Any]]
) -> None:
    """A list of messages among what visitors of a bot typed became samples with answers that the bot never gave."""
    spans = [make_span(1, {"gen_ai.operation.name": "chat", **write(typed), "output.value": ANSWER})]
    sample = read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel")
    assert (sample.question, sample.answer, sample.contexts) == (typed, ANSWER, None)
    assert not sample.conversation


def test_messages_that_were_given_hold_no_answer_and_no_context_of_a_bot(tmp_path: Path) -> None:
    """Without its type a text may be the messages of an application, or typed."""
    returned = json.dumps([{"id": "1", "text": "The pier is made of cheese.", "source": "s"}])
    with_tool = json.dumps([{"role": "user", "content": "Is it open?"}, {"role": "tool", "content": returned}])
    for typed in (json.dumps(json.loads(TYPED)[:2]), with_tool):
        langfuse = {**make_langfuse_trace(), "input": typed, "observations": []}
        for form, attributes in (
            ("otel", {_LLM: "LLM", "input.value": typed}), ("otel", {"gen_ai.prompt": typed}), ("langfuse", None),
        ):  # fmt: skip
            row = (
                langfuse if attributes is None else make_request([make_span(1, {**attributes, "output.value": ANSWER})])
            )
            sample = read_one(write_lines(tmp_path / "t.jsonl", [row]), form)
            assert (sample.question, sample.answer, sample.contexts) == ("Is it open?", ANSWER, None)


def test_several_questions_of_one_trace_are_several_samples(tmp_path: Path) -> None:
    """A session may be one trace, and so is all that comes with one trace id."""
    first = make_bot_trace()
    second = [
        {**span, "spanId": f"{number:016x}", **({"parentSpanId": f"{9:016x}"} if span["parentSpanId"] else {})}
        for number, span in zip(
            (7, 8, 9), make_bot_trace(question="And back?", answer="At six.", at_s=60.0), strict=True
        )
    ]
    samples, _ = read_traces_of(write_lines(tmp_path / "t.jsonl", [make_request([*second, *first])]), "otel")
    assert [(sample.sample_id, sample.question, sample.answer) for sample in samples] == [
        (f"{TRACE}/1", QUESTION, ANSWER), (f"{TRACE}/2", "And back?", "At six."),
    ]  # fmt: skip
    assert [sample.contexts for sample in samples] == [TEXTS, TEXTS]
    assert [sample.metadata["n_spans"] for sample in samples] == [3, 3]
    # Below the span of a web server: steps of one question unless each has retrieved its own documents.
    server = make_span(11, {"session.id": "s1"}, took_s=90.0)
    below = [span if span["parentSpanId"] else {**span, "parentSpanId": f"{11:016x}"} for span in [*second, *first]]
    apart, _ = read_traces_of(write_lines(tmp_path / "t.jsonl", [make_request([server, *below])]), "otel")
    assert [(sample.question, sample.answer, sample.contexts, len(sample.conversation)) for sample in apart] == [
        (QUESTION, ANSWER, TEXTS, 0), ("And back?", "At six.", TEXTS, 2),
    ]  # fmt: skip
    steps = [span for span in below if span["spanId"] != f"{2:016x}"]
    check_pair(write_lines(tmp_path / "t.jsonl", [make_request([server, *steps])]), None)
    alone = make_span(5, {"openinference.span.kind": "RETRIEVER", "input.value": QUESTION})
    check_pair(write_lines(tmp_path / "t.jsonl", [make_request([*second, *first, alone])]), None)


def check_pair(path: Path, read: tuple[str, str] | None) -> None:
    """The only trace is a sample of this question and answer, or left out as several questions."""
    if read is None:
        with pytest.raises(DatasetError, match="1 several questions"):
            read_traces_of(path, "otel")
    else:
        sample = read_one(path, "otel")
        assert (sample.question, sample.answer) == read


@pytest.mark.parametrize(
    ("calls", "read"),
    [
        ([(QUESTION, ANSWER), (f"Write a title: {QUESTION} {ANSWER}", "Ferries")], None),
        ([(QUESTION, ANSWER), ("And back?", "At six.")], None),
        ([(f"Is this harmful? {QUESTION}", "no"), (QUESTION, ANSWER)], None),
        ([(QUESTION, ANSWER), (QUESTION, "Ferry times")], None),
        ([(QUESTION, "ferry times"), (f"{QUESTION} ferry times. Context: {TEXTS[0]}", ANSWER)], (QUESTION, ANSWER)),
    ],
    ids=["title", "two questions", "guard", "title of the question", "rewritten"],
)
def test_a_question_and_an_answer_of_two_calls_of_a_model_are_one_sample_only_where_they_belong_together(
    tmp_path: Path, calls: list[tuple[str, str]], read: tuple[str, str] | None
) -> None:
    """The title of a chat was the answer to its question."""
    spans = [make_span(1, {"http.method": "POST"}, took_s=30.0), make_span(9, {_LLM: "EMBEDDING"}, parent=1, at_s=1.5)]
    spans = spans[: 2 if "Context" in calls[1][0] else 1]
    for place, (question, answer) in enumerate(calls):
        sent = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": question}
        received = {"llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": answer}
        spans.append(make_span(2 + place, {_LLM: "LLM", **sent, **received}, parent=1, at_s=3.0 * place))
    path = write_lines(tmp_path / "t.jsonl", [make_request(spans)])
    check_pair(path, read)


_LONG = "The night ferry leaves at 22:40 from pier 3."
TURN = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": _LONG}]


@pytest.mark.parametrize("output", [None, "null"])
def test_what_a_step_without_a_model_returns_is_not_the_answer(tmp_path: Path, output: str | None) -> None:
    """A workflow that streams has no output, and its steps have: what was retrieved was judged against itself."""
    outer: dict[str, Any] = {
        "traceloop.span.kind": "workflow",
        "traceloop.entity.input": json.dumps({"args": [QUESTION]}),
    }
    outer |= {} if output is None else {"traceloop.entity.output": output}
    step = {"traceloop.span.kind": "task", "traceloop.entity.output": json.dumps(TEXTS[:1])}
    model = {"gen_ai.operation.name": "chat", "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": QUESTION}
    model |= {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": ANSWER}
    spans = [make_span(1, outer, took_s=9.0), make_span(2, step, parent=1), make_span(3, model, parent=1, at_s=2.0)]
    sample = read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel")
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)


LATER = [
    ("title", [{"role": "user", "content": f"A title of: {QUESTION} {_LONG}"}]),
    ("title of the question", TURN[:1]),
    ("suggestions", [*TURN, {"role": "user", "content": "Suggest two further questions."}]),
    ("next turn", [*TURN, {"role": "user", "content": "And back?"}]),
    ("improvement", [{"role": "user", "content": f"Shorten: {_LONG}"}]),
    ("answer to a condensed question", [{"role": "user", "content": _LONG}]),
]


@pytest.mark.parametrize(("name", "messages"), LATER, ids=[name for name, *_ in LATER])
def test_of_several_calls_of_a_model_alone_none_is_taken_for_the_answer(
    tmp_path: Path, name: str, messages: list[dict[str, str]]
) -> None:
    """The first one may be an answer of which a title is made, or a question that the next one answers."""
    looked_up = {_LLM: "RETRIEVER", "retrieval.documents.0.document.content": TEXTS[0]}
    spans = [make_span(1, {"http.method": "POST"}, took_s=60.0)]
    for place, (sent, answer) in enumerate(((TURN[:1], _LONG), (messages, "Something else."))):
        attributes = {_LLM: "LLM", "llm.output_messages.0.message.role": "assistant"}
        attributes["llm.output_messages.0.message.content"] = answer
        for number, message in enumerate(sent):
            attributes |= {f"llm.input_messages.{number}.message.{key}": value for key, value in message.items()}
        if place == 0 or name == "next turn":
            query = {"input.value": "ferry times"} if name == "title" else {"input.value": sent[-1]["content"]}
            spans.append(make_span(2 + place, {**looked_up, **query}, parent=1, at_s=10.0 * place))
        spans.append(make_span(4 + place, attributes, parent=1, at_s=10.0 * place + 2))
    check_pair(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), None)


def make_call(question: str, answer: str) -> dict[str, Any]:
    """The attributes of a call of a model."""
    return {
        _LLM: "LLM", "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": question,
        "llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": answer,
    }  # fmt: skip


_CHAIN = {_LLM: "CHAIN", "input.value": QUESTION, "output.value": ANSWER}
_FOUND = {_LLM: "RETRIEVER", "input.value": QUESTION, "retrieval.documents.0.document.content": TEXTS[0]}
_GUARD = make_call(f"Is this safe? {QUESTION}", "safe")
_PROMPTED = make_call(f"{TEXTS[0]} {QUESTION}", ANSWER)
_REWRITING = make_call(f"In other words: {QUESTION}", "ferry times")


@pytest.mark.parametrize(
    ("spans", "read"),
    [
        ([(_CHAIN, 1, 1.0, 3.0), (_FOUND, 2, 1.1, 0.1), (_CHAIN | {"output.value": "Ferries"}, 1, 5.0, 1.0)], None),
        (
            [
                (_CHAIN, 1, 1.0, 3.0), (_FOUND, 2, 1.1, 0.1),
                (_CHAIN | {"input.value": f"Translate: {ANSWER}", "output.value": "Um 22:40."}, 1, 5.0, 1.0),
            ],
            None,
        ),
        ([(_GUARD, 1, 0.1, 0.5), (_CHAIN, 1, 1.0, 3.0), (_FOUND, 3, 1.1, 0.1)], (QUESTION, ANSWER)),
        ([(_FOUND, 1, 0.1, 0.5), (_GUARD, 1, 0.2, 0.3), (_PROMPTED, 1, 1.0, 1.0)], (QUESTION, ANSWER)),
        (
            [(_REWRITING, 1, 0.1, 0.5), (_FOUND, 1, 1.0, 0.1), (_CHAIN, 1, 2.0, 1.0)],
            (QUESTION, ANSWER),
        ),
        (
            [(_CHAIN, 1, 1.0, 3.0), (_FOUND, 2, 1.1, 0.1), (make_call(f"Is it true? {ANSWER}", "yes"), 1, 5.0, 1.0)],
            None,
        ),
        (
            [
                (_FOUND, 1, 0.1, 0.5), (_PROMPTED, 1, 1.0, 1.0),
                (_CHAIN | {"output.value": "Ferry times"}, 1, 3.0, 1.0),
                (make_call("A title", "Ferry times"), 4, 3.1, 0.5),
            ],
            None,
        ),
        (
            [
                ({}, 1, 0.1, 1.0), (_REWRITING, 2, 0.2, 0.3), (_FOUND | {"input.value": "ferry times"}, 2, 0.6, 0.1),
                ({}, 1, 2.0, 1.0), (make_call(QUESTION, ANSWER), 5, 2.1, 0.5),
            ],
            (QUESTION, ANSWER),
        ),
    ],
    ids=["two answers", "translated", "guard", "guard beside", "untraced model", "check", "title by a chain",
         "steps without texts"],
)  # fmt: skip
def test_the_answer_of_steps_below_a_web_server_is_the_only_one_that_it_can_be(
    tmp_path: Path, spans: list[tuple[dict[str, Any], int, float, float]], read: tuple[str, str] | None
) -> None:
    """A draft, a guard's word and a rewritten question were judged in place of what the bot's users read."""
    placed = [
        make_span(number, attributes, parent=parent, at_s=at_s, took_s=took_s)
        for number, (attributes, parent, at_s, took_s) in enumerate(spans, start=2)
    ]
    server = make_span(1, {"http.route": "/ask"}, took_s=9.0)
    check_pair(write_lines(tmp_path / "t.jsonl", [make_request([server, *placed])]), read)


_ANSWERED = make_call(f"{TEXTS[0]} {QUESTION}", ANSWER)
_STORED = make_call("You are a memory manager. New facts: likes night ferries.", "ADD")


@pytest.mark.parametrize(
    "spans",
    [
        [(_FOUND, 1.0), (_ANSWERED, 2.0), (_FOUND | {"input.value": ANSWER}, 4.0), (make_call("True?", "yes"), 5.0)],
        [({_LLM: "EMBEDDING"}, 1.0), (_ANSWERED, 2.0), ({_LLM: "EMBEDDING"}, 4.0), (_STORED, 5.0)],
        [({_LLM: "EMBEDDING"}, 1.0), (_ANSWERED, 2.0), ({_LLM: "TOOL"}, 4.0), (make_call("Sum up.", "A ferry."), 5.0)],
    ],
    ids=["checked", "remembered", "summed up"],
)
def test_what_follows_a_lookup_after_the_answer_is_not_taken_for_the_answer(
    tmp_path: Path, spans: list[tuple[dict[str, Any], float]]
) -> None:
    """A check's "yes" and the update of a memory were judged as what the bot's users had read."""
    placed = [make_span(number, item, parent=1, at_s=at_s) for number, (item, at_s) in enumerate(spans, start=2)]
    path = write_lines(tmp_path / "t.jsonl", [make_request([make_span(1, {"http.route": "/"}, took_s=9.0), *placed])])
    check_pair(path, None)


_CHECKED = _FOUND | {"input.value": ANSWER, "retrieval.documents.0.document.content": TEXTS[1]}
_SILENT = {key: value for key, value in _PROMPTED.items() if "output" not in key}
_DEAD = {key: value for key, value in make_call(QUESTION, ANSWER).items() if "output" not in key}
_REPLIED = {key: value for key, value in _PROMPTED.items() if "output" in key}
_RULES = {"llm.input_messages.1.message.role": "system", "llm.input_messages.1.message.content": f"Use: {TEXTS[0]}"}
_CALLING = {**make_call(QUESTION, ""), "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "find"}


@pytest.mark.parametrize(
    ("spans", "error", "read"),
    [
        ([(_REWRITING, 0.1), (_FOUND, 1.0), (_SILENT, 3.0)], "boom", "1 ended with an error and no answer .*: boom"),
        ([(_REWRITING, 0.1), (_FOUND, 1.0), (_SILENT, 3.0)], None, None),
        ([(_FOUND, 1.0), (_SILENT, 3.0), (make_call(QUESTION, "Ferry times"), 5.0)], None, "1 several questions"),
        ([(_REWRITING, 0.1), (_FOUND | {"input.value": "ferry times"}, 2.0)], None, "1 several questions"),
        ([(_FOUND, 1.0), (_SILENT, 3.0), (_PROMPTED, 5.0)], "boom", ANSWER),
        ([(_CALLING, 1.0), (make_call(QUESTION, ANSWER), 3.0)], None, ANSWER),
        ([(_FOUND, 1.0), (_SILENT | _RULES, 3.0), (_PROMPTED | _RULES, 5.0)], "boom", ANSWER),
        ([(_FOUND, 1.0), (_DEAD | _RULES, 3.0), (_DEAD | _RULES | _REPLIED, 5.0)], None, ANSWER),
        ([(_FOUND, 1.0), (_DEAD | _RULES, 3.0), (_DEAD | _REPLIED, 5.0)], None, "1 several questions"),
        ([({_LLM: "TOOL"}, 1.0), (_DEAD, 3.0), (_DEAD | _REPLIED, 5.0)], "boom", ANSWER),
        ([(_FOUND, 1.0), ({_LLM: "LLM"}, 3.0), (_PROMPTED, 3.2)], None, ANSWER),
        ([(_FOUND | {"input.value": "ferry times"}, 1.0), (make_call(QUESTION, ANSWER), 1.9)], None, ANSWER),
    ],
    ids=["failed", "not recorded", "title", "nothing found", "tried again", "called a tool", "instructions",
         "same call", "other instructions", "no documents", "two tracers", "clocks"],
)  # fmt: skip
def test_a_call_without_a_text_may_be_the_one_that_answers(
    tmp_path: Path, spans: list[tuple[dict[str, Any], float]], error: str | None, read: str | None
) -> None:
    """A rewritten question or a title was judged in place of an answer that failed or was not recorded."""
    placed = [
        make_span(number, item, parent=1, at_s=at_s, error=error if item is _SILENT else None)
        for number, (item, at_s) in enumerate(spans, start=2)
    ]
    path = write_lines(tmp_path / "t.jsonl", [make_request([make_span(1, {"http.route": "/"}, took_s=9.0), *placed])])
    if read not in (None, ANSWER):
        with pytest.raises(DatasetError, match=read):
            read_traces_of(path, "otel")
    else:
        sample = read_one(path, "otel")
        assert (sample.question in (QUESTION, f"{TEXTS[0]} {QUESTION}"), sample.answer) == (True, read)


@pytest.mark.parametrize(
    ("after", "contexts"),
    [
        ([(_CHECKED, 5.0)], TEXTS[:1]),
        ([(_CHECKED, 5.0), (make_call(" ".join(TEXTS), ANSWER), 7.0)], TEXTS),
        ([(_CHECKED, 5.0), (_SILENT, 7.0)], TEXTS[:1]),
        ([(_CHECKED, 5.0), (make_call(" ".join(TEXTS), ANSWER[-20:]), 7.0)], TEXTS),
    ],
    ids=["links", "asked again", "not recorded", "answered in parts"],
)  # fmt: skip
def test_what_is_looked_up_after_the_answer_is_no_context(
    tmp_path: Path, after: list[tuple[dict[str, Any], float]], contexts: list[str]
) -> None:
    """A lookup of the answer finds what supports it: an invented statement was faithful."""
    spans = [(_CHAIN, 0.0), (_FOUND, 1.0), (_PROMPTED, 3.0), *after]
    placed = [
        make_span(number, item, parent=1 if number > 1 else None, at_s=at_s, took_s=1.0 if number > 1 else 9.0)
        for number, (item, at_s) in enumerate(spans, start=1)
    ]
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(placed)]), "otel").contexts == contexts


def test_a_lookup_that_was_recorded_after_the_answer_is_a_context_where_it_is_the_only_one(tmp_path: Path) -> None:
    """Some bots write their trace when all is done, the answer first."""
    spans = [
        make_span(1, _CHAIN, took_s=9.0), make_span(2, _PROMPTED, parent=1, at_s=1.0),
        make_span(3, _FOUND, parent=1, at_s=3.0),
    ]  # fmt: skip
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == TEXTS[:1]


@pytest.mark.parametrize(
    ("steps", "read"),
    [
        ([(_FOUND, None), (_PROMPTED, None), (_DEAD, "status 429")], ANSWER),
        ([(_REWRITING, None), (_FOUND, None), (_DEAD, "status 429")], "1 ended with an error and no answer"),
        ([(_REWRITING, None), (_FOUND, None), (_DEAD, None)], None),
    ],
    ids=["title failed", "answer failed", "answer not recorded"],
)  # fmt: skip
def test_the_text_of_a_stream_is_from_after_the_lookup(
    tmp_path: Path, steps: list[tuple[dict[str, Any], str | None]], read: str | None
) -> None:
    root = _CHAIN | {"output.value": "<async_generator object stream at 0x7f0a1b2c3d4e>"}
    spans = [make_span(1, root, took_s=9.0)]
    spans += [make_span(n, item, parent=1, at_s=2.0 * n, error=error) for n, (item, error) in enumerate(steps, start=2)]
    path = write_lines(tmp_path / "t.jsonl", [make_request(spans)])
    if read not in (None, ANSWER):
        with pytest.raises(DatasetError, match=read):
            read_traces_of(path, "otel")
    else:
        assert read_one(path, "otel").answer == read


@pytest.mark.parametrize("context", [TEXTS[0], ""])
def test_a_builder_of_prompts_does_not_answer(tmp_path: Path, context: str) -> None:
    """OpenInference records the one of Haystack as a model: its prompt was judged as the bot's answer."""
    prompt = f"Context: {context}. Question: {QUESTION}"
    template = {"llm.prompt_template.template": "Context: {{context}}. Question: {{question}}"}
    given, made = json.dumps({"question": QUESTION}), json.dumps({"prompt": prompt})
    builder = {_LLM: "LLM", **template, "input.value": given, "output.value": made}
    spans = [
        make_span(1, {_LLM: "CHAIN"}, took_s=9.0), make_span(2, _FOUND, parent=1, at_s=1.0),
        make_span(3, builder, parent=1, at_s=2.0), make_span(4, make_call(prompt, ANSWER), parent=1, at_s=4.0),
    ]  # fmt: skip
    check_pair(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), (QUESTION, ANSWER))


@pytest.mark.parametrize("between", [{}, None], ids=["in spans", "alone"])
@pytest.mark.parametrize("questions", [("What does a dog pay?", "Who may park?"), ("fee", "fee for cats")])
def test_questions_of_a_loop_without_chains_are_several(
    tmp_path: Path, questions: tuple[str, str], between: dict[str, Any] | None
) -> None:
    """The last question was judged by what had been retrieved for all of them, and the others were gone."""
    spans = [make_span(1, {"job.name": "nightly"}, took_s=60.0)]
    for turn, question in enumerate(questions, start=1):
        at_s, parent = turn * 10.0, 1 if between is None else turn * 10
        if between is not None:
            spans.append(make_span(parent, between, parent=1, at_s=at_s, took_s=5.0))
        spans.append(make_span(turn * 10 + 1, _FOUND | {"input.value": question}, parent=parent, at_s=at_s))
        answer = make_call(question, f"Answer {turn}.")
        spans.append(make_span(turn * 10 + 2, answer, parent=parent, at_s=at_s + 2))
    check_pair(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), None)


@pytest.mark.parametrize(
    ("root", "parent", "is_apart"), [({}, 999, True), ({"output.value": "done"}, None, False)], ids=["gateway", "done"]
)
def test_turns_below_a_span_of_another_service_or_one_that_returns_a_text(
    tmp_path: Path, root: dict[str, Any], parent: int | None, is_apart: bool
) -> None:
    """The first question was paired with the last answer, or with "done", and with the contexts of all."""
    spans = [make_span(1, {_LLM: "CHAIN", **root}, parent=parent, took_s=60.0)]
    for turn, question in enumerate(("fees", "fees for cats"), start=1):
        chain = {_LLM: "CHAIN", "input.value": question, "output.value": f"At {turn}."}
        spans.append(make_span(turn * 10, chain, parent=1, at_s=turn * 10.0, took_s=5.0))
        spans.append(make_span(turn * 10 + 1, _FOUND, parent=turn * 10, at_s=turn * 10.0 + 1))
    path = write_lines(tmp_path / "t.jsonl", [make_request(spans)])
    if is_apart:
        samples, _ = read_traces_of(path, "otel")
        assert [(sample.question, sample.answer) for sample in samples] == [
            ("fees", "At 1."), ("fees for cats", "At 2."),
        ]  # fmt: skip
    else:
        check_pair(path, None)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({"db.system": "postgresql", "db.statement": "select 1"}, ["At 1.", "At 2."]),
        ({_LLM: "EMBEDDING", "input.value": "warm up"}, ["At 1.", "At 2."]),
        ({_LLM: "CHAIN", "input.value": "Write a title: Q1 At 1.", "output.value": "Ferries"}, None),
        ({_LLM: "CHAIN", "input.value": "Thanks!", "output.value": "You are welcome."}, None),
        (make_call("Is it grounded? At 1.", "yes"), None),
    ],
    ids=["database", "setup", "title", "thanks", "check"],
)
def test_turns_in_one_trace_are_apart_unless_it_is_unclear_what_belongs_to_which(
    tmp_path: Path, beside: dict[str, Any], expected: list[str] | None
) -> None:
    """A turn whose retriever found nothing is one too. The first question was paired with the last answer."""
    spans = [make_span(1, {"http.route": "/chat"}, took_s=60.0), make_span(2, beside, parent=1, at_s=20.0)]
    for turn in (1, 2):
        texts = {"input.value": f"Q{turn}", "output.value": f"At {turn}."}
        found = {_LLM: "RETRIEVER", "input.value": f"Q{turn}"} | (_FOUND if turn == 1 else {})
        spans.append(make_span(turn * 10, {_LLM: "CHAIN", **texts}, parent=1, at_s=turn * 10.0, took_s=5.0))
        spans.append(make_span(turn * 10 + 1, found, parent=turn * 10, at_s=turn * 10.0 + 1))
    path = write_lines(tmp_path / "t.jsonl", [make_request(spans)])
    if expected is None:
        check_pair(path, None)
    else:
        samples, _ = read_traces_of(path, "otel")
        assert [(sample.question, sample.answer) for sample in samples] == [("Q1", "At 1."), ("Q2", "At 2.")]
        assert [sample.contexts for sample in samples] == [TEXTS[:1], None]


_DEEP: Any = {}
for _ in range(900):
    _DEEP = {"a": _DEEP}


_BOTH = {
    _LLM: "RETRIEVER", "input.value": QUESTION,
    **{f"retrieval.documents.{n}.document.{key}": value for n in (0, 1) for key, value in
       (("content", TEXTS[n]), ("id", f"d{n}"))},
}  # fmt: skip
_LOOKUP = [make_span(1, _CHAIN, took_s=9.0), make_span(2, _BOTH, parent=1, at_s=0.1, took_s=0.1)]
_PAGES = [{"page_content": text} for text in TEXTS]
_ON_THE_WEB = "On the web: the ferry line changed its timetable in May."
_SUB_QUESTION = "What does the timetable of the ferry line say?"
_PARENT: dict[str, Any] = {"page_content": f"{' '.join(TEXTS)} Fares are nine euros.", "metadata": {"source": "p.md"}}
_NODES = [f"<NodeWithScore(node=TextNode(id_=d{n}), score=0.{9 - n})>" for n in (0, 1)]


@pytest.mark.parametrize(
    ("given", "kept", "sent", "contexts"),
    [
        ({"question": QUESTION, "documents": _PAGES}, {"documents": _PAGES[:1]}, TEXTS[0], TEXTS[:1]),
        (_PAGES, _PAGES[1:], TEXTS[1], TEXTS[1:]),
        (_PAGES, _PAGES[:1], json.dumps(TEXTS[0]), TEXTS[:1]),
        (_PAGES, _PAGES[:1], f"{TEXTS[0][:30]} … {TEXTS[1][:30]} …", TEXTS),
        (_PAGES, _PAGES[:1], "a summary", TEXTS),
        (_PAGES, _PAGES[::-1], TEXTS[0], TEXTS[:1]),
        (_PAGES, [], "", []),
        (_PAGES, [], _ON_THE_WEB, [_ON_THE_WEB]),
        (_PAGES, [{"page_content": f"[1] {TEXTS[1]}"}], f"[1] {TEXTS[1]}", [f"[1] {TEXTS[1]}"]),
        (_PAGES, [{"page_content": TEXTS[0][:30]}], TEXTS[0][:30], [TEXTS[0][:30]]),
        (_PAGES, [{"page_content": "\n".join(TEXTS)}], "\n".join(TEXTS), TEXTS),
        (_PAGES, _PAGES[:1], f"{'Be brief. ' * 105}{TEXTS[0]} {TEXTS[1][:9]}", TEXTS),
        (QUESTION, {"context": [{"role": "user", "content": _ON_THE_WEB}]}, f"{_ON_THE_WEB} {TEXTS[0]}", TEXTS[:1]),
        (QUESTION, [_SUB_QUESTION, QUESTION], f"{_SUB_QUESTION} {TEXTS[0]} {TEXTS[1]}", TEXTS),
        (QUESTION, "a prompt", f"{TEXTS[0]} <p>The <b>day</b> ferry leaves at <i>noon</i>.</p>", TEXTS),
        (QUESTION, "a prompt", f"{TEXTS[0]} The day&nbsp;ferry&nbsp;leaves &quot;at noon&quot;.", TEXTS),
        (_PAGES, _PAGES[:1], f"{'Be brief. ' * 100}{TEXTS[0]} Is there a day ferry, and when does the day", TEXTS[:1]),
        (_PAGES, [_PARENT], _PARENT["page_content"], [_PARENT["page_content"]]),
        (_PAGES, _PAGES[:1], f"{'Be brief. ' * 104}{TEXTS[0]} See also: the day", TEXTS[:1]),
        ({"documents": [_PAGES[:1], _PAGES[1:]]}, {"documents": _PAGES[1:]}, TEXTS[1], TEXTS[1:]),
        ({"documents": [_PAGES, []]}, {"documents": _PAGES[1:]}, TEXTS[1], TEXTS[1:]),
        ({"nodes": _NODES}, _NODES[1:], TEXTS[1], TEXTS[1:]),
        (_PAGES, _PAGES[:1], " ".join(TEXTS), TEXTS),
        (_PAGES[:1], [{"page_content": "Made up."}], "", TEXTS),
        (QUESTION, _PAGES[:1], TEXTS[0], TEXTS[:1]),
    ],
    ids=[
        "graded",
        "cut",
        "as JSON",
        "trimmed",
        "summed up",
        "rearranged",
        "none kept",
        "searched again",
        "numbered",
        "shortened",
        "one text",
        "cut by the tracer",
        "earlier messages",
        "questions of a plan",
        "HTML",
        "entities",
        "ends with the question",
        "parents",
        "ends as a document begins",
        "joined",
        "joined with nothing",
        "postprocessor",
        "for display",
        "summary",
        "of a question",
    ],
)
def test_contexts_are_the_documents_in_the_prompt(
    tmp_path: Path, given: object, kept: object, sent: str, contexts: list[str]
) -> None:
    """All that a retriever found was judged, also what a grader or a cut had left out; or what was left for display."""
    is_cut = sent.endswith((TEXTS[1][:9], "the day"))
    step = {_LLM: "CHAIN", "input.value": json.dumps(given), "output.value": json.dumps(kept)}
    spans = [
        *_LOOKUP,
        make_span(3, step, parent=1, at_s=1.0),
        make_span(4, make_call(sent if is_cut else f"{sent} {QUESTION}", ANSWER), parent=1, at_s=3.0),
    ]  # fmt: skip
    if sent == _ON_THE_WEB:
        added = {_LLM: "CHAIN", "input.value": QUESTION, "output.value": json.dumps([{"page_content": _ON_THE_WEB}])}
        spans.append(make_span(5, added, parent=1, at_s=2.0))
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == contexts


def test_documents_of_several_retrievers_are_in_the_order_of_the_prompt(tmp_path: Path) -> None:
    """A function fuses what two found; the order of one retriever stays, for a prompt may put the best ones last."""
    texts = [*TEXTS, "Fares are nine euros for adults."]

    def read(*found: list[str]) -> list[str] | None:
        lookups = [
            {_LLM: "RETRIEVER", **{f"retrieval.documents.{n}.document.content": text for n, text in enumerate(listed)}}
            for listed in found
        ]
        spans = [
            make_span(1, _CHAIN, took_s=9.0),
            *(make_span(n, lookup, parent=1, at_s=n / 10, took_s=0.1) for n, lookup in enumerate(lookups, start=2)),
            make_span(9, make_call(" ".join([texts[1], texts[2], texts[0]]), ANSWER), parent=1, at_s=3.0),
        ]
        return read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts

    assert read(texts[:2], texts[1:]) == [texts[1], texts[2], texts[0]]
    assert read(texts) == texts


def make_step(given: object, made: object) -> dict[str, Any]:
    return {_LLM: "CHAIN", "input.value": json.dumps(given), "output.value": json.dumps(made)}


@pytest.mark.parametrize("answer", ["The late ferry of Friday leaves at midnight.", "It leaves at midnight."])
def test_a_document_that_a_step_added_stays_where_the_answer_quotes_it(tmp_path: Path, answer: str) -> None:
    """It was taken for a text that the model itself had written, and the most faithful answers scored 0."""
    web = "The late ferry of Friday leaves at midnight. Tickets are sold on board until it leaves the quay."
    spans = [
        *_LOOKUP,
        make_span(3, make_step({"question": QUESTION}, {"documents": [{"page_content": web}]}), parent=1, at_s=1.0),
        make_span(4, make_call(f"{web} {QUESTION}", answer), parent=1, at_s=3.0),
    ]
    spans[0] = {**make_span(1, {**_CHAIN, "output.value": answer}, took_s=9.0)}
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == [web]


@pytest.mark.parametrize("name", ["docs", "retrieved_docs", "sources"])
def test_a_step_that_empties_its_documents_of_any_name_keeps_none(tmp_path: Path, name: str) -> None:
    step = make_step({name: _PAGES}, {name: []})
    spans = [
        *_LOOKUP,
        make_span(3, step, parent=1, at_s=1.0),
        make_span(4, make_call(QUESTION, ANSWER), parent=1, at_s=3.0),
    ]
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == []


def test_a_step_that_adds_no_document_drops_none(tmp_path: Path) -> None:
    """A graph joins what its steps return: an empty list adds nothing, and the prompt has the records in other form."""
    records = ['{"ferry": "night", "leaves": "22:40", "pier": "nine"}', '{"ferry": "day", "leaves": "noon"}']
    found = {f"retrieval.documents.{n}.document.content": text for n, text in enumerate(records)}
    pages = [{"page_content": text} for text in records]
    spans = [
        make_span(1, _CHAIN, took_s=9.0), make_span(2, {_LLM: "RETRIEVER", **found}, parent=1, at_s=0.1, took_s=0.1),
        make_span(3, make_step({"documents": pages}, {"documents": []}), parent=1, at_s=1.0),
        make_span(4, make_call(f"Night ferry leaves: 22:40, pier nine. Day ferry leaves: noon. {QUESTION}", ANSWER),
                  parent=1, at_s=3.0),
    ]  # fmt: skip
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == records


@pytest.mark.parametrize(
    ("output", "contexts"),
    [(" ".join(TEXTS), None), (json.dumps({"rows": [1]}), None), ("[]", []), (json.dumps({"documents": []}), [])],
)
def test_a_retriever_whose_output_is_not_known_did_not_find_nothing(
    tmp_path: Path, output: str, contexts: list[str] | None
) -> None:
    """Its samples scored 0, where they have no contexts to judge by."""
    retriever = {_LLM: "RETRIEVER", "input.value": QUESTION, "output.value": output}
    spans = [make_span(1, _CHAIN, took_s=9.0), make_span(2, retriever, parent=1, at_s=0.1, took_s=0.1)]
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == contexts


def test_the_answer_of_a_graph_may_be_named_generation(tmp_path: Path) -> None:
    state = {"question": QUESTION, "documents": [], "generation": ANSWER}
    graph = {_LLM: "CHAIN", "input.value": json.dumps({"question": QUESTION}), "output.value": json.dumps(state)}
    grader = make_call("Is it relevant?", "yes")
    spans = [make_span(1, graph, took_s=9.0), *(make_span(n, grader, parent=1, at_s=n) for n in (2, 3))]
    sample = read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel")
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)


def test_chunks_that_overlap_are_known_by_what_only_one_of_them_has(tmp_path: Path) -> None:
    """The beginning of the second chunk is the end of the first one, which alone was sent."""
    sentences = ["The night ferry leaves at 22:40.", "Bicycles are carried on deck C.", "Day tickets are at the kiosk."]
    texts = [" ".join(sentences[:2]), " ".join(sentences[1:])]
    found = {f"retrieval.documents.{n}.document.content": text for n, text in enumerate(texts)}
    spans = [
        make_span(1, _CHAIN, took_s=9.0), make_span(2, {_LLM: "RETRIEVER", **found}, parent=1, at_s=0.1, took_s=0.1),
        make_span(4, make_call(texts[0], ANSWER), parent=1, at_s=3.0),
    ]  # fmt: skip
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == texts[:1]


def test_a_document_that_another_one_has_in_it_stays_where_both_were_found(tmp_path: Path) -> None:
    texts = [f"{TEXTS[0]} {TEXTS[1]}", TEXTS[0], "Fares are nine euros for adults."]
    found = {f"retrieval.documents.{n}.document.content": text for n, text in enumerate(texts)}
    spans = [
        make_span(1, _CHAIN, took_s=9.0), make_span(2, {_LLM: "RETRIEVER", **found}, parent=1, at_s=0.1, took_s=0.1),
        make_span(4, make_call(" ".join(texts[:2]), ANSWER), parent=1, at_s=3.0),
    ]  # fmt: skip
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == texts[:2]


@pytest.mark.parametrize(
    ("read", "contexts"),
    [
        ([(TEXTS[0], "no"), (TEXTS[1], ANSWER)], TEXTS[1:]),
        ([(TEXTS[0], "It leaves at 22:40 from pier three."), (TEXTS[1], "It leaves at noon from pier one."),
          ("It leaves at 22:40 from pier three. It leaves at noon from pier one.", ANSWER)], TEXTS),
        ([(TEXTS[1], "The ferry leaves at noon, it says."), (f"{TEXTS[0]} The ferry leaves at noon, it says.", ANSWER)],
         TEXTS),
        ([(TEXTS[1], '{"extract": "It leaves at noon."}'), (f"{TEXTS[0]} It leaves at noon.", ANSWER)], TEXTS),
    ],
    ids=["looked up again", "summaries", "refined", "structured"],
)  # fmt: skip
def test_calls_whose_texts_reach_the_answer_have_read_its_contexts(
    tmp_path: Path, read: list[tuple[str, str]], contexts: list[str]
) -> None:
    """A call that judged documents to be useless counted as a reader."""
    spans = [*_LOOKUP]
    for number, (sent, text) in enumerate(read, start=3):
        spans.append(make_span(number, make_call(f"{sent} {QUESTION}", text), parent=1, at_s=float(number), took_s=0.5))
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == contexts


@pytest.mark.parametrize("answer", ["<p>It leaves <b>at 22:40</b> from the third pier, each day.</p>", "22.40 Uhr"])
def test_a_grader_with_reasons_is_no_reader_where_code_changed_the_answer(tmp_path: Path, answer: str) -> None:
    """All documents that it graded were contexts, as no call had written the answer that was recorded."""
    chain = {_LLM: "CHAIN", "input.value": QUESTION, "output.value": answer}
    grader = {
        _LLM: "CHAIN", "input.value": json.dumps({"documents": _PAGES}),
        "output.value": json.dumps({"documents": _PAGES[:1]}),
    }  # fmt: skip
    verdict = '{"binary_score": "no", "reason": "It is about another ferry."}'
    spans = [
        make_span(1, chain, took_s=9.0), make_span(2, _BOTH, parent=1, at_s=0.1, took_s=0.1),
        make_span(3, grader, parent=1, at_s=1.0),
        make_span(4, make_call(f"Useful? {' '.join(TEXTS)}", verdict), parent=3, at_s=1.1, took_s=0.5),
        make_span(5, make_call(f"{TEXTS[0]} {QUESTION}", "It leaves at 22:40 from the third pier, each day."), parent=1,
                  at_s=3.0),
    ]  # fmt: skip
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == TEXTS[:1]


def make_chat(*messages: tuple[str, str]) -> dict[str, Any]:
    """The attributes of a call of a model that was sent messages, each a role and a text."""
    call = make_call("", ANSWER)
    for number, (role, text) in enumerate(messages):
        name = f"llm.input_messages.{number}.message"
        call |= {f"{name}.role": role, f"{name}.content": text}
    return call


@pytest.mark.parametrize(
    ("history", "rules", "contexts"),
    [(TEXTS[1], f"Use: {TEXTS[0]}", TEXTS[:1]), (f"{TEXTS[1]} {TEXTS[0]}", "Be brief.", TEXTS[::-1])],
    ids=["documents beside it", "documents in it"],
)
def test_a_document_that_an_earlier_turn_quotes_was_sent_only_where_nothing_else_has_one(
    tmp_path: Path, history: str, rules: str, contexts: list[str]
) -> None:
    call = make_chat(("system", rules), ("user", "What do you know?"), ("assistant", history), ("user", QUESTION))
    step = {_LLM: "CHAIN", "input.value": json.dumps(_PAGES), "output.value": json.dumps(_PAGES[:1])}
    spans = [
        *_LOOKUP,
        make_span(3, step, parent=1, at_s=1.0), make_span(4, call, parent=1, at_s=3.0),
    ]  # fmt: skip
    read = read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts
    assert sorted(read or ()) == sorted(contexts)


def test_documents_in_earlier_messages_of_a_person_were_sent(tmp_path: Path) -> None:
    """A loop sends what it looked up as messages of the user, and the last lookup alone was read."""
    found = [("user", f"Observation: {text}") for text in TEXTS]
    call = make_chat(found[0], ("assistant", "SEARCH: day"), found[1])
    spans = [
        *_LOOKUP,
        make_span(4, call, parent=1, at_s=3.0),
    ]  # fmt: skip
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == TEXTS


def test_a_call_with_as_many_attributes_as_a_tracer_keeps_proves_nothing(tmp_path: Path) -> None:
    """The oldest attributes are dropped, and with them the first messages of an agent with many lookups."""
    for n, contexts in ((127, TEXTS[1:]), (128, TEXTS)):
        call = make_call(f"{TEXTS[1]} {QUESTION}", ANSWER)
        call |= {f"own.{number}": "x" for number in range(n - len(call))}
        spans = [
            *_LOOKUP,
            make_span(4, call, parent=1, at_s=3.0),
        ]  # fmt: skip
        assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == contexts


def test_filtered_documents_with_one_heading_differ_by_their_texts(tmp_path: Path) -> None:
    """Chunks of one document begin alike, and all of them stayed contexts."""
    texts = [f"Ferry handbook 2026, chapter on departures: {text}" for text in TEXTS]
    pages = [{"page_content": text} for text in texts]
    found = {f"retrieval.documents.{n}.document.content": text for n, text in enumerate(texts)}
    step = {_LLM: "CHAIN", "input.value": json.dumps(pages), "output.value": json.dumps(pages[:1])}
    spans = [
        make_span(1, _CHAIN, took_s=9.0), make_span(2, {_LLM: "RETRIEVER", **found}, parent=1, at_s=0.1, took_s=0.1),
        make_span(3, step, parent=1, at_s=1.0), make_span(4, make_call(texts[0], ANSWER), parent=1, at_s=3.0),
    ]  # fmt: skip
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == texts[:1]


def test_a_step_that_answers_and_returns_what_it_cites_leaves_nothing_out(tmp_path: Path) -> None:
    """A check of the answer came after it, with the cited document alone, which was taken for a proof."""
    step = {
        _LLM: "CHAIN", "input.value": json.dumps({"documents": _PAGES}),
        "output.value": json.dumps({"answer": ANSWER, "documents": _PAGES[:1]}),
    }  # fmt: skip
    spans = [
        *_LOOKUP,
        make_span(3, step, parent=1, at_s=1.0),
        make_span(4, make_call(" ".join(TEXTS), ANSWER), parent=3, at_s=1.1, took_s=0.5),
        make_span(5, make_call(f"Is it so? {TEXTS[0]} {ANSWER}", "yes"), parent=1, at_s=3.0),
    ]  # fmt: skip
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == TEXTS


def test_graders_beside_each_other_leave_out_what_each_of_them_dropped(tmp_path: Path) -> None:
    """A branch that dropped its document counted for all, and the contexts were an empty list."""
    spans = [*_LOOKUP]
    for place, kept in enumerate((_PAGES[:1], [])):
        branch = {
            _LLM: "CHAIN", "input.value": json.dumps({"documents": [_PAGES[place]]}),
            "output.value": json.dumps({"chunks": kept}),
        }  # fmt: skip
        spans.append(make_span(3 + place, branch, parent=1, at_s=1.0))
        spans.append(make_span(6 + place, make_call(f"Useful? {TEXTS[place]}", "yes"), parent=3 + place, at_s=1.1))
    spans.append(make_span(9, make_call(f"{TEXTS[0]} {QUESTION}", ANSWER), parent=1, at_s=3.0))
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == TEXTS[:1]


def test_documents_that_are_asked_about_one_after_the_other_were_all_sent(tmp_path: Path) -> None:
    spans = [*_LOOKUP]
    for place in (0, 1):  # each step takes the first of a queue, and asks about it
        queue = {"documents": _PAGES[place:]}
        left = {"documents": _PAGES[place + 1 :]}
        step = {_LLM: "CHAIN", "input.value": json.dumps(queue), "output.value": json.dumps(left)}
        spans.append(make_span(3 + place, step, parent=1, at_s=1.0 + 2 * place))
        sent = make_call(f"{TEXTS[place]} {QUESTION}", ANSWER)
        spans.append(make_span(6 + place, sent, parent=3 + place, at_s=1.1 + 2 * place))
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").contexts == TEXTS


def test_a_step_below_a_lookup_that_had_ended_comes_after_it(tmp_path: Path) -> None:
    """OpenLLMetry puts the next step of an async bot there, and the answer was lost."""
    answering = make_workflow(1) | {"traceloop.entity.input": json.dumps({"inputs": QUESTION})}
    spans = [
        make_span(1, {"http.route": "/ask"}, took_s=9.0), make_span(2, _FOUND, parent=1, at_s=0.5, took_s=0.5),
        make_span(3, answering, parent=2, at_s=2.0), make_span(4, make_call(QUESTION, "Answer 1."), parent=3, at_s=2.1),
    ]  # fmt: skip
    sample = read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel")
    assert (sample.question, sample.answer, sample.contexts) == (QUESTION, "Answer 1.", TEXTS[:1])


def make_workflow(number: int) -> dict[str, Any]:
    return {
        "traceloop.span.kind": "workflow", "traceloop.entity.input": json.dumps({"inputs": f"Question {number}?"}),
        "traceloop.entity.output": json.dumps({"outputs": f"Answer {number}."}),
    }  # fmt: skip


@pytest.mark.parametrize("begins_s", [0.1, 5.0], ids=["batch", "one after the other"])
def test_chains_that_a_tracer_put_below_the_one_before_are_separate_questions(tmp_path: Path, begins_s: float) -> None:
    """The first question of a batch was judged with the documents of all, and the others were missing."""
    chains = [make_span(n, make_workflow(n), parent=n - 1 or None, at_s=begins_s * n) for n in (1, 2, 3)]
    spans = [{**chain, "name": "RunnableSequence.workflow"} for chain in chains]
    spans += [
        make_span(10 + n, _FOUND | {"retrieval.documents.0.document.content": f"Document {n}."}, parent=n)
        for n in (1, 2, 3)
    ]
    samples, _ = read_traces_of(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel")
    assert [(sample.question, sample.answer, sample.contexts) for sample in samples] == [
        (f"Question {n}?", f"Answer {n}.", [f"Document {n}."]) for n in (1, 2, 3)
    ]


def test_a_chain_within_a_function_of_another_name_is_its_step(tmp_path: Path) -> None:
    spans = [make_span(1, make_workflow(1)), {**make_span(2, make_workflow(2), parent=1), "name": "RunnableSequence"}]
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").question == "Question 1?"
    same = [{**make_span(n, make_workflow(1), parent=n - 1 or None), "name": "bot.workflow"} for n in (1, 2)]
    assert read_one(write_lines(tmp_path / "u.jsonl", [make_request(same)]), "otel").question == "Question 1?"


@pytest.mark.parametrize("made", ["null", "None", "True", "<__main__.State object at 0x7f00>"])
def test_what_a_function_that_answers_elsewhere_returns_is_not_the_answer(tmp_path: Path, made: str) -> None:
    model = make_call(QUESTION, ANSWER)
    tool = {_LLM: "CHAIN", "input.value": "{}", "output.value": json.dumps({"state": "<State object at 0x7f01>"})}
    spans = [
        make_span(1, _CHAIN | {"output.value": made}, took_s=9.0), make_span(2, tool, parent=1),
        make_span(3, model, parent=1, at_s=2.0),
    ]  # fmt: skip
    assert read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel").answer == ANSWER
    spans[0]["attributes"] = make_span(1, {_LLM: "CHAIN", "input.value": QUESTION})["attributes"]
    assert read_one(write_lines(tmp_path / "u.jsonl", [make_request(spans)]), "otel").answer == ANSWER
    if made == "True":
        alone = make_span(1, _CHAIN | {"output.value": made})
        assert read_one(write_lines(tmp_path / "v.jsonl", [make_request([alone])]), "otel").answer == "True"


def test_a_call_that_two_instrumentors_recorded_is_one_sample(tmp_path: Path) -> None:
    """OpenInference's OpenAI spans are in other traces than LangChain's, and a rewriting was a sample."""
    call = make_call(QUESTION, ANSWER)
    spans = [make_span(1, _CHAIN, took_s=9.0), make_span(2, call, parent=1, at_s=1.0, took_s=2.0)]
    inner = make_span(3, call, trace="c" * 32, at_s=1.5)
    later = make_span(4, call, trace="d" * 32, at_s=5.0)
    tool = {
        _LLM: "LLM", "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": QUESTION,
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "search",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"q": "ferry"}',
    }  # fmt: skip
    spans.append(make_span(5, tool, parent=1, at_s=0.1, took_s=0.5))
    inner_tool = [make_span(6, tool, trace="e" * 32, at_s=0.2, took_s=0.2), make_span(7, {}, parent=6, trace="e" * 32)]
    path = write_lines(tmp_path / "t.jsonl", [make_request([inner, later, *inner_tool]), make_request(spans)])
    samples, described = read_traces_of(path, "otel")
    assert len(samples) == 2
    assert "2 a model's call alone that another trace has as a step" in str(described)


def test_an_event_without_fields_is_no_question(tmp_path: Path) -> None:
    """The question of each workflow of LlamaIndex was "StartEvent()"."""
    step = {_LLM: "CHAIN", "input.value": json.dumps({"ev": "StartEvent()"}), "output.value": "RetrievedEvent()"}
    spans = [
        make_span(1, {_LLM: "CHAIN", "output.value": ANSWER}, took_s=9.0), make_span(2, step, parent=1),
        make_span(3, _FOUND, parent=2),
    ]  # fmt: skip
    sample = read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel")
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)


def test_components_of_haystack_by_openllmetry_have_their_documents_and_replies(tmp_path: Path) -> None:
    """Each answer was "replies"."""
    component = {
        "haystack.component.type": "InMemoryBM25Retriever",
        "haystack.component.input": json.dumps({"query": QUESTION}),
        "haystack.component.output": json.dumps({"documents": [{"id": "d0", "content": TEXTS[0]}]}),
    }
    outer = {
        "llm.request.type": "completion",
        "gen_ai.completion.0.content": "replies",
        "gen_ai.completion.1.content": "meta",
    }
    model = {"gen_ai.operation.name": "chat", "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": QUESTION}
    model |= {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": ANSWER}
    spans = [
        make_span(1, {"traceloop.span.kind": "workflow"}, took_s=9.0), make_span(2, component, parent=1),
        {**make_span(3, outer, parent=1, at_s=2.0, took_s=2.0), "name": "haystack.openai.completion"},
        make_span(4, model, parent=3, at_s=2.1),
    ]  # fmt: skip
    sample = read_one(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel")
    assert (sample.question, sample.answer, sample.contexts, sample.context_ids) == (
        QUESTION,
        ANSWER,
        TEXTS[:1],
        ["d0"],
    )


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        (
            {"openinference.span.kind": "TOOL", "tool.name": "look_up", "input.value": json.dumps(_DEEP)},
            "nested too deep",
        ),
        ({"llm.input_messages." + "9" * 5000 + ".message.content": "Hi"}, None),
        ({"input.value": json.dumps({"messages": {"9" * 5000: {"role": "user", "content": "Hi"}}})}, None),
        ({"openinference.span.kind": "LLM", "mlflow.chat.tokenUsage": '{"input_tokens": 1e999}'}, None),
        ({"openinference.span.kind": "LLM", "langfuse.observation.usage_details": '{"input": 1e999}'}, None),
        ({"retrieval.documents" + ".documents" * 3000: "x"}, None),
        (
            {
                "input.value": json.dumps(
                    {"chat_history": [{"role": "assistant", "content": "y", "context": {"page": 3}}]}
                )
            },
            None,
        ),
    ],
)
def test_a_trace_that_cannot_be_read_does_not_keep_the_others_from_being_judged(
    tmp_path: Path, attributes: dict[str, Any], why: str | None
) -> None:
    """An application, or a person who talks to it, may write anything into an attribute."""
    odd = [make_span(2, attributes, trace=number_trace(2), parent=1), make_span(1, ASKED, trace=number_trace(2))]
    requests = [make_request(make_bot_trace(trace=number_trace(1))), make_request(odd)]
    with receiving(tmp_path / "w.duckdb") as house:
        for request in requests:
            assert house.post(request).json() == {}
    read = [read_traces_of(write_lines(tmp_path / "t.jsonl", requests), "otel"), read_stored(tmp_path / "w.duckdb")]
    for samples, staged in read:
        names = [sample.sample_id for sample in samples]
        assert names == [number_trace(1)] + ([number_trace(2)] if why is None else [])
        left_out = "" if why is None else f"; left out: 1 cannot be read ({number_trace(2)}: "
        note = staged.notes[0]
        assert note.startswith(f"traces: 2 of 5 spans, {len(names)} became samples{left_out}")
        assert why is None or why in note


@pytest.mark.parametrize(
    ("form", "row", "why"),
    [
        ("otel", {"question": "a dataset"}, r"line 1: no trace_id and span_id.*\(--format otel\)"),
        ("otel", {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}, "a traceId of 32"),
        ("otel", {"resourceSpans": [7]}, "not OTLP"),
        (
            "otel",
            make_request([make_span(1, {"http.route": "/health"})]),
            "0 became samples; left out: 1 no span has a",
        ),
        (
            "otel",
            make_request([make_span(1, ASKED, parent=2), make_span(2, {}, parent=1)]),
            "still running",
        ),  # a circle
        ("langsmith", {"run_type": "llm"}, "no id and trace_id"),
    ],
)
def test_rows_without_spans_and_traces_without_a_sample_are_refused(
    tmp_path: Path, form: str, row: object, why: str
) -> None:
    with pytest.raises(DatasetError, match=why):
        read_traces_of(write_lines(tmp_path / "t.jsonl", [row]), form)


def test_spans_may_stand_in_any_order(tmp_path: Path) -> None:
    spans = [span for number in range(1, 30) for span in make_bot_trace(trace=number_trace(number))]
    hashes = set()
    for seed in range(2):
        random.Random(seed).shuffle(spans)
        samples, _ = read_traces_of(write_lines(tmp_path / "t.jsonl", [make_request([span]) for span in spans]), "otel")
        hashes.add(frozenset((sample.sample_id, sample.input_hash) for sample in samples))
    assert len(hashes) == 1
    assert len(hashes.pop()) == 29


def test_earlier_traces_of_a_session_are_its_earlier_turns(tmp_path: Path) -> None:
    second = make_bot_trace(trace=number_trace(2), question="And back?", answer="At six.", at_s=60, session="s-7")
    spans = [*second, *make_bot_trace(trace=number_trace(1), session="s-7"), *make_bot_trace(trace=number_trace(3))]
    samples, _ = read_traces_of(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), "otel")
    by_id = {sample.sample_id[-1]: sample for sample in samples}
    assert [by_id[number].metadata.get("turn") for number in "123"] == [1, 2, None]
    assert not by_id["1"].conversation
    turns = by_id["2"].conversation or []
    assert [(turn.role, turn.text) for turn in turns] == [("user", QUESTION), ("assistant", ANSWER)]
    assert turns[1].contexts == TEXTS


@pytest.mark.parametrize("form", ["otel", None])
def test_each_of_many_turns_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any) -> None:  # noqa: ANN401
    """An application may have one session for all visitors, and a visitor may chat on and on."""
    n, read = 150, list[object]()
    split = chat.split_thoughts
    monkeypatch.setattr(chat, "split_thoughts", lambda text: (read.append(text), split(text))[1])
    if form:
        traces = [make_bot_trace(trace=number_trace(i), at_s=60.0 * i, session="all") for i in range(1, n + 1)]
        path = write_lines(tmp_path / "t.jsonl", [make_request(spans) for spans in traces])
    else:
        messages = [{"role": role, "content": f"{role} {i}"} for i in range(n) for role in ("user", "assistant")]
        path = write_lines(tmp_path / "t.jsonl", [{"id": "c", "messages": messages}])
    samples, _ = read_traces_of(path, form)
    assert len(samples) == n
    assert [len(sample.conversation or ()) for sample in (samples[1], samples[50], samples[-1])] == [2, 100, 100]
    assert len(read) <= 4 * n


@pytest.mark.parametrize(
    ("row", "form"),
    [
        (make_request([]), "otel"),
        ({"name": "x", "context": {}, "parent_id": None, "attributes": {}}, "otel"),  # as an SDK prints it
        (make_langfuse_trace(), "langfuse"),
        (_make_langsmith()[0], "langsmith"),
    ],
)
def test_missing_format_is_named(tmp_path: Path, row: dict[str, Any], form: str) -> None:
    row = {name: value for name, value in row.items() if name not in ("input", "inputs")}
    with pytest.raises(DatasetError, match=f"are these traces. --format {form} reads them"):
        stage_of(RunSettings(dataset=str(write_lines(tmp_path / "t.jsonl", [row]))))


@pytest.mark.parametrize("is_circle", [False, True])
def test_spans_within_one_another_without_end_take_a_time_in_proportion_to_their_number(is_circle: bool) -> None:
    def measure(number: int) -> float:
        parents = {place: f"s{place - 1}" for place in range(1, number)} | ({0: f"s{number - 1}"} if is_circle else {})
        spans = [
            Span(trace_id="t", span_id=f"s{place}", parent_id=parents.get(place), question="What?", ended_at=1.0)
            for place in range(number)
        ]
        started = time.process_time()
        row = make_row(spans)
        assert is_circle or (isinstance(row, dict) and row["question"] == "What?")
        return time.process_time() - started

    once, fourfold = (min(measure(number) for _ in range(2)) for number in (500, 2_000))
    assert fourfold < 8 * once + 0.1


def test_times_of_all_exports_are_read() -> None:
    noon = NOON_NS / 1e9
    for written in (NOON_NS, str(NOON_NS), NOON_NS / 1e6, noon, "2026-03-14T12:00:00Z", "2026-03-14T13:00:00+01:00"):
        assert read_time(written) == pytest.approx(noon)
    assert [read_time(value) for value in (None, "", "soon", True, 0, -1)] == [None] * 6


@pytest.mark.parametrize("text", ["[" + "None," * 10**6 + "]", "[" + "'a' " * 2 * 10**6 + "]"])
def test_what_python_prints_is_read_up_to_a_length(text: str) -> None:
    """Python's own reader takes some hundred bytes for each member: gigabytes for a cell of ten megabytes."""
    started = time.process_time()
    assert open_value(text) == text
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize("text", ["[0x" + "f" * 400 + ", None]", "{'a': {1, 2}}", "['\\ud800', None]"])
def test_what_json_has_nothing_for_stays_text(text: str) -> None:
    assert open_value(text) == text
    assert open_value("['a', None, {'b': 1.5}]") == ["a", None, {"b": 1.5}]


@pytest.mark.parametrize("late", [10**400, float("inf"), "9" * 30, "9999-12-31T23:59:59-09:00"])
def test_a_time_after_all_dates_is_none(late: object) -> None:
    assert read_time(late) is None
    assert read_time(253402300799 * 10**9) == 253402300799


@pytest.mark.parametrize(
    ("window", "kept", "turns", "numbers"),
    [
        (9, (1, 3), ["", "12"], [1, 3]),
        (9, (3, 5), ["12", "1234"], [3, 5]),
        (2, (1, 2, 5, 6), ["", "1", "1234", "12345"], [1, 2, 5, 6]),
        (2, (1, 4, 6), ["", "123", "12345"], [1, 4, 6]),
        (1, (1, 2, 3), ["", "1", "12"], [1, 2, 3]),
    ],
)
def test_a_request_fills_the_holes_of_its_session(
    tmp_path: Path, window: int, kept: tuple[int, ...], turns: list[str], numbers: list[int]
) -> None:
    """Conversations had holes where a share of the traces was kept, though each request had its last turns."""
    requests = []
    for turn in kept:
        history = [
            {"role": role, "content": f"{role} {n}"}
            for n in range(max(1, turn - window), turn)
            for role in ("user", "assistant")
        ]
        asked = {"question": f"user {turn}", "chat_history": history}
        chain = {
            _LLM: "CHAIN", "session.id": "s-7", "input.value": json.dumps(asked), "output.value": f"assistant {turn}",
        }  # fmt: skip
        requests.append(make_request([make_span(1, chain, trace=f"{turn:032x}", at_s=10.0 * turn)]))
    samples, _ = read_traces_of(write_lines(tmp_path / "t.jsonl", requests), "otel")
    read = [[turn.text for turn in sample.conversation or ()] for sample in samples]
    assert read == [[f"{role} {n}" for n in shown for role in ("user", "assistant")] for shown in turns]
    assert [sample.metadata["turn"] for sample in samples] == numbers
