"""The reading of spans by the conventions of GenAI, OpenInference and OpenLLMetry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trace_files import ANSWER, QUESTION, TEXTS

from evalhouse.tasks.datasets.otel import Recorded, read_span
from evalhouse.tasks.datasets.spans import Document, Span, find_history, find_message, find_messages, read_documents
from evalhouse.tasks.datasets.traces import make_row

PARTS_IN = [
    {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
    {"role": "user", "parts": [{"type": "text", "content": "And who are you?"}]},
    {"role": "assistant", "parts": [{"type": "text", "content": "A bot."}]},
    {"role": "user", "parts": [{"type": "text", "content": QUESTION}, {"type": "blob", "data": "…"}]},
]
PARTS_OUT = [
    {
        "role": "assistant",
        "parts": [
            {"type": "tool_call", "id": "c", "name": "timetable", "arguments": {"pier": 4}},
            {"type": "text", "content": ANSWER},
        ],
    }
]


def _read(attributes: dict[str, Any], **beside: Any) -> Span:  # noqa: ANN401  # fields of Recorded
    return read_span(Recorded(trace_id="t", span_id="s", attributes=attributes, **beside))


@pytest.mark.parametrize("as_text", [True, False])
def test_messages_with_parts_are_read_from_attributes(as_text: bool) -> None:
    span = _read(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m-1",
            "gen_ai.input.messages": json.dumps(PARTS_IN) if as_text else PARTS_IN,
            "gen_ai.output.messages": json.dumps(PARTS_OUT) if as_text else PARTS_OUT,
            "gen_ai.usage.input_tokens": 30,
            "gen_ai.usage.output_tokens": 5,
            "gen_ai.conversation.id": "c-1",
        }
    )
    assert (span.kind, span.question, span.answer, span.session) == ("llm", QUESTION, ANSWER, "c-1")
    assert (span.prompt_tokens, span.completion_tokens, span.model) == (30, 5, "m-1")
    assert span.tool_calls == ({"name": "timetable", "arguments": {"pier": 4}},)
    assert [turn["text"] for turn in span.turns] == ["And who are you?", "A bot."]


PARTS = json.dumps([{"text": ANSWER}])
CHOICES: dict[str, dict[str, Any]] = {
    "a text": {"message": ANSWER, "finish_reason": "end_turn"},
    "an object as text": {"index": 0, "message": json.dumps({"content": ANSWER})},
    "a list of parts as text": {"message": PARTS},
    "an object": {"message": {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]}},
    "a body as text": {"gen_ai.event.content": json.dumps({"message": {"content": ANSWER}})},
    "a content": {"content": ANSWER},
}


@pytest.mark.parametrize("form", CHOICES)
def test_messages_in_events_are_read(form: str) -> None:
    events = (
        {"name": "gen_ai.system.message", "attributes": {"content": "Be brief."}},
        {"name": "gen_ai.user.message", "attributes": {"content": json.dumps([{"text": QUESTION}])}},
        {"name": "gen_ai.choice", "attributes": CHOICES[form]},
        {"name": "gen_ai.choice", "attributes": {"index": 1, "message": "Another choice."}},
    )
    kind = {"gen_ai.operation.name": "chat"}
    span = _read(kind, events=events)
    assert (span.question, span.answer) == (QUESTION, ANSWER)
    # As Pydantic AI wrote them: in an attribute. As others do: the request in attributes, the reply in an event.
    listed = json.dumps([{"event.name": event["name"], **event["attributes"]} for event in events])  # type: ignore[dict-item]
    span = _read({**kind, "events": listed})
    assert (span.question, span.answer) == (QUESTION, ANSWER)
    span = _read({**kind, "gen_ai.input.messages": json.dumps(PARTS_IN)}, events=events)
    assert (span.question, span.answer, len(span.turns)) == (QUESTION, ANSWER, 2)


def test_calls_and_results_of_tools_in_events_are_read() -> None:
    events = (
        {"name": "gen_ai.tool.message", "attributes": {"role": "tool", "content": '{"pier": 4}'}},
        {"name": "gen_ai.choice", "attributes": {"message": json.dumps([{"text": TEXTS[0]}])}},
    )
    span = _read({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "timetable"}, events=events)
    assert span.tool_calls == ({"name": "timetable", "arguments": {"pier": 4}},)
    assert span.returned is None, "a text may be anything"
    found = json.dumps([{"id": "d1", "text": TEXTS[0]}])
    choice = {"name": "gen_ai.choice", "attributes": {"message": json.dumps([{"text": found}])}}
    span = _read({"gen_ai.operation.name": "execute_tool"}, events=(choice,))
    assert [document.text for document in span.returned or ()] == [TEXTS[0]]


@pytest.mark.parametrize(
    "turns",
    [
        [{"type": "human", "data": {"content": "Who?"}}, {"type": "ai", "data": {"content": "A bot."}}],
        [["human", "Who?"], ["ai", "A bot."]],
        [["Who?", "A bot."]],
    ],
)
def test_history_beside_a_question_is_read(turns: object) -> None:
    given = {"input": QUESTION, "chat_history": turns}
    for value in (given, {"inputs": given, "kwargs": {}}):
        span = _read({"input.value": json.dumps(value), "output.value": ANSWER})
        assert span.question == QUESTION
        assert [turn["text"] for turn in span.turns] == ["Who?", "A bot."]


@pytest.mark.parametrize(
    "printed",
    [
        "<generator object>",
        "<openai.Stream object at 0x7f3a>",
        "StopEvent(result=AgentOutput(response=ChatMessage(role=<MessageRole.ASSISTANT: 'assistant'>, blocks=[...",
        json.dumps({"response_gen": "<generator object>", "source_nodes": ["<NodeWithScore(node=TextNode(id_=d1))>"]}),
    ],
)
def test_the_text_of_a_stream_is_that_of_the_last_model(printed: str) -> None:
    beside: dict[str, Any] = {"trace_id": "t", "started_at": 1.0}
    outer = Recorded(**beside, span_id="1", ended_at=9.0, attributes={
        "openinference.span.kind": "CHAIN", "input.value": QUESTION, "output.value": printed,
    })  # fmt: skip
    splitter = Recorded(**beside, span_id="2", parent_id="1", ended_at=3.0, attributes={
        "openinference.span.kind": "CHAIN", "output.value": json.dumps([TEXTS[0]]),
    })  # fmt: skip
    models = [
        Recorded(**beside, span_id=f"{place}", parent_id="2", ended_at=float(place), attributes={
            "openinference.span.kind": "LLM", "llm.output_messages.0.message.content": text,
        })
        for place, text in ((4, "A question in other words."), (5, ANSWER))
    ]  # fmt: skip
    row = make_row([read_span(recorded) for recorded in (outer, splitter, *models)])
    assert isinstance(row, dict)
    assert (row["question"], row["answer"]) == (QUESTION, ANSWER)


def test_texts_in_events_of_spring_ai_are_read() -> None:
    events = (
        {"name": "gen_ai.content.completion", "attributes": {"gen_ai.completion": [ANSWER]}},
        {"name": "gen_ai.content.prompt", "attributes": {"gen_ai.prompt": [QUESTION, "", ""]}},
    )
    span = _read({"gen_ai.operation.name": "chat"}, events=events)
    assert (span.question, span.answer) == (QUESTION, ANSWER)
    client = {"gen_ai.operation.name": "framework", "spring.ai.chat.client.user.text": QUESTION}
    assert _read(client).question == QUESTION


def test_numbered_prompts_of_openllmetry_are_read() -> None:
    span = _read(
        {
            "llm.request.type": "chat",
            "gen_ai.prompt.0.role": "system",
            "gen_ai.prompt.0.content": "Be brief.",
            "gen_ai.prompt.1.role": "user",
            "gen_ai.prompt.1.content": QUESTION,
            "gen_ai.completion.0.content": ANSWER,
            "gen_ai.usage.prompt_tokens": 30,
        }
    )
    assert (span.kind, span.question, span.answer, span.prompt_tokens) == ("llm", QUESTION, ANSWER, 30)


def test_entities_of_openllmetry_are_read() -> None:
    outer = _read(
        {
            "traceloop.span.kind": "workflow",
            "traceloop.entity.input": json.dumps(
                {"inputs": QUESTION, "tags": ["a"], "metadata": {"b": 1}, "kwargs": {}}
            ),
            "traceloop.entity.output": json.dumps({"outputs": ANSWER, "kwargs": {"tags": []}}),
            "traceloop.association.properties.session_id": "s-1",
        }
    )
    assert (outer.kind, outer.question, outer.answer, outer.session) == ("chain", QUESTION, ANSWER, "s-1")
    decorated = _read({"traceloop.entity.input": json.dumps({"args": [], "kwargs": {"question": QUESTION}})})
    assert decorated.question == QUESTION
    # A function's result is JSON as well: its letters came as escapes, and were judged so.
    assert _read({"traceloop.entity.output": json.dumps("Um neun öffnet es.")}).answer == "Um neun öffnet es."
    found = [{"page_content": text, "metadata": {"score": 0.5}} for text in TEXTS]
    retriever = _read(
        {"gen_ai.operation.name": "vector_db_retrieve", "traceloop.entity.output": json.dumps({"documents": found})}
    )
    assert [document.text for document in retriever.documents or ()] == TEXTS


def test_a_request_as_text_has_what_tools_returned() -> None:
    """Langfuse records a generation's messages as JSON, and documents that a tool had sent seemed not to be sent."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    messages.append({"role": "tool", "content": TEXTS[0], "tool_call_id": "c1"})
    asked = {"langfuse.observation.type": "generation", "langfuse.observation.input": json.dumps(messages)}
    assert _read(asked).beside == f"Be brief.\n{TEXTS[0]}"
    assert _read({**asked, "langfuse.observation.type": "chain"}).beside == "Be brief."  # which a person may have typed


def test_what_openais_file_search_found_is_returned() -> None:
    results = [{"file_id": "d1", "filename": "d1.md", "score": 0.9, "text": TEXTS[0], "attributes": {}}]
    output = [{"type": "file_search_call", "queries": ["ferry"], "results": results}, {"type": "message"}]
    span = _read({"openinference.span.kind": "LLM", "output.value": json.dumps({"output": output})})
    assert [(document.id, document.text) for document in span.returned or ()] == [("d1", TEXTS[0])]


def test_the_structured_answer_of_a_pydantic_ai_agent_is_read() -> None:
    """The model calls a tool with its answer, and no answer was found."""
    result = {"answer": ANSWER, "confident": True}
    asked = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "bot", "final_result": json.dumps(result)}
    assert _read(asked).answer == ANSWER
    assert _read({**asked, "final_result": ANSWER}).answer == ANSWER  # a validator may replace the model's text


def test_observations_of_langfuses_sdks_are_read() -> None:
    usage = {"input": 50, "input_cached_tokens": 11, "output": 6}
    model = _read(
        {
            "langfuse.observation.type": "generation",
            "langfuse.observation.model.name": "m-1",
            "langfuse.observation.input": json.dumps([{"role": "user", "content": QUESTION}]),
            "langfuse.observation.output": json.dumps({"role": "assistant", "content": ANSWER}),
            "langfuse.observation.usage_details": json.dumps(usage),
        }
    )
    assert (model.kind, model.question, model.answer, model.model) == ("llm", QUESTION, ANSWER, "m-1")
    assert (model.prompt_tokens, model.completion_tokens) == (61, 6)
    found = {"chunks": [{"id": f"d{place}", "content": text} for place, text in enumerate(TEXTS, start=1)]}
    kind = {"langfuse.observation.type": "retriever"}
    retriever = _read({**kind, "langfuse.observation.output": json.dumps(found)})
    assert [(document.id, document.text) for document in retriever.documents or ()] == [
        ("d1", TEXTS[0]),
        ("d2", TEXTS[1]),
    ]
    assert _read(kind, name="Rerank").kind == "reranker"
    tool = _read({"langfuse.observation.type": "tool", "langfuse.observation.input": '{"pier": 4}'}, name="timetable")
    assert tool.tool_calls == ({"name": "timetable", "arguments": {"pier": 4}},)
    level = {"langfuse.observation.level": "ERROR", "langfuse.observation.status_message": "the index is down"}
    assert _read({**kind, **level}).error == "the index is down"
    named = {"langfuse.trace.input": QUESTION, "langfuse.observation.input": '{"args": ["x", "y"]}'}
    assert _read({"langfuse.observation.type": "span", **named}).question == QUESTION


def test_a_retriever_that_found_nothing_is_not_one_of_which_nothing_is_known() -> None:
    kind = {"openinference.span.kind": "RETRIEVER"}
    assert _read({**kind, "output.value": '{"documents": []}'}).documents == ()
    assert _read({**kind, "retrieval.documents": "[]"}).documents == ()
    assert _read({**kind, "retrieval.documents": "[]", "output.value": '{"hits": [7]}'}).documents is None
    assert _read({"gen_ai.operation.name": "retrieval", "gen_ai.retrieval.documents": "[]"}).documents == ()
    assert _read({"openinference.span.kind": "CHAIN", "retrieval.documents": "[]"}).documents is None
    assert _read(kind).documents is None


def test_documents_of_which_only_ids_were_recorded_are_known_by_these() -> None:
    attributes = {"gen_ai.operation.name": "retrieval", "gen_ai.retrieval.query.text": QUESTION}
    found = json.dumps([{"id": "d1", "score": 0.9}, {"id": "d2", "score": 0.8}])
    row = make_row([_read({**attributes, "gen_ai.retrieval.documents": found}, started_at=1.0, ended_at=2.0)])
    assert isinstance(row, dict)
    assert row["context_ids"] == ["d1", "d2"]
    assert "contexts" not in row


def test_what_a_reranker_left_are_the_contexts() -> None:
    outer = Span(trace_id="t", span_id="1", kind="chain", question=QUESTION, answer=ANSWER, started_at=1, ended_at=9)
    found = tuple(Document(text=text) for text in ("a", "b", "c"))
    beside = {"trace_id": "t", "parent_id": "1", "ended_at": 8.0}
    first = Span(span_id="2", kind="retriever", documents=found, started_at=2, **beside)  # type: ignore[arg-type]
    again = Span(span_id="3", kind="retriever", documents=found[:1], started_at=3, **beside)  # type: ignore[arg-type]
    row = make_row([outer, again, first])
    assert isinstance(row, dict)
    assert [context["text"] for context in row["contexts"]] == ["a", "b", "c"]
    reranked = Span(span_id="4", kind="reranker", documents=found[2:], started_at=4, **beside)  # type: ignore[arg-type]
    row = make_row([outer, first, again, reranked])
    assert isinstance(row, dict)
    assert [context["text"] for context in row["contexts"]] == ["c"]


_SOURCES = {"R1": "abx", "R2": "cdx", "R3": "abcd", "F1": "yz"}


@pytest.mark.parametrize(
    ("steps", "contexts"),
    [
        ("R1 K:abx>a R2 K:cdx>c", "ac"),
        ("R1 K:>a R2 K:>c", "ac"),
        ("F1 R1 K:abx>a", "yza"),
        ("R1 R2 K:abxcd>ad", "ad"),
        ("R1 R2 K:>d", "d"),
        ("R3 K:abcd>abc K:abc>c", "c"),
        ("R3 K:>abc K:>c", "c"),
        ("R1 R2 K:abx>a K:cdx>c", "ac"),
        ("R1 R2 K:abx>ax K:cdx>cx", "axc"),
        ("R1 R2 K:ac>a", "a"),
        ("p/R1 q/R2 p/K:>ax q/K:>cx", "axc"),
        ("p/R1 q/R2 K:>c", "c"),
        ("R1 K:other>a", "a"),
        ("R1 K:abx>", ""),
        ("R1 R2", "abxcd"),
    ],
    ids=["agent", "agent, inputs not recorded", "two sources", "hybrid", "hybrid, not recorded", "coarse and fine",
         "coarse and fine, not recorded", "beside each other", "with a common document", "cut before",
         "parallel searches", "of all searches", "rewritten texts", "none is good", "none"],
)  # fmt: skip
def test_a_reranker_takes_the_place_of_what_it_was_given(steps: str, contexts: str) -> None:
    """An agent that searched twice was judged by what its last search had found."""
    beside: dict[str, Any] = {"trace_id": "t", "ended_at": 99.0}
    spans = [Span(span_id="1", kind="chain", question=QUESTION, answer=ANSWER, started_at=1.0, **beside)]
    spans += [Span(span_id=tool, parent_id="1", kind="tool", started_at=1.0, **beside) for tool in "pq"]
    for number, named in enumerate(steps.split(), start=2):
        tool, _, step = named.rpartition("/")
        common = {**beside, "span_id": str(number), "parent_id": tool or "1", "started_at": float(number)}
        if step.startswith("K:"):
            given, _, kept = step[2:].partition(">")
            documents = {"documents": tuple(map(_document, kept)), "given": tuple(map(_document, given))}
            spans.append(Span(kind="reranker", **documents, **common))
        else:
            spans.append(Span(kind="retriever", documents=tuple(map(_document, _SOURCES[step])), **common))
    row = make_row(spans)
    assert isinstance(row, dict)
    assert "".join(context["text"] for context in row["contexts"]) == contexts


def _document(text: str) -> Document:
    return Document(text=text)


def test_a_reranker_around_its_retriever_takes_the_place_of_it() -> None:
    beside: dict[str, Any] = {"trace_id": "t", "ended_at": 9.0}
    outer = Span(span_id="1", kind="chain", question=QUESTION, answer=ANSWER, started_at=1.0, **beside)
    reranker = Span(span_id="2", parent_id="1", kind="reranker", started_at=2.0, documents=(_document("a"),), **beside)
    retriever = Span(
        span_id="3", parent_id="2", kind="retriever", started_at=3.0, documents=tuple(map(_document, "ab")), **beside
    )
    row = make_row([outer, reranker, retriever])
    assert isinstance(row, dict)
    assert [context["text"] for context in row["contexts"]] == ["a"]


def test_the_documents_that_a_reranker_was_given_are_read() -> None:
    given = {"reranker.input_documents.0.document.content": "a", "reranker.input_documents.1.document.content": "b"}
    kept = {"reranker.output_documents.0.document.content": "b"}
    span = _read({"openinference.span.kind": "RERANKER", "reranker.query": QUESTION, **given, **kept})
    assert ([item.text for item in span.given], [item.text for item in span.documents or ()]) == (["a", "b"], ["b"])


@pytest.mark.parametrize(
    ("value", "field", "text"),
    [
        (QUESTION, "question", QUESTION),
        ({"messages": [["human", QUESTION]]}, "question", QUESTION),
        ([[{"type": "human", "data": {"content": QUESTION}}]], "question", QUESTION),
        ({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]}, "question",
         QUESTION),
        ({"a": "x", "b": "y"}, "question", None),
        (7, "question", None),
        ({"choices": [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": ANSWER}}]},
         "answer", ANSWER),
        ({"generations": [[{"text": ANSWER, "message": {}}]]}, "answer", ANSWER),
        ({"messages": [{"type": "human", "content": QUESTION}, {"type": "ai", "content": ANSWER}]}, "answer", ANSWER),
        ({"model": "m", "contents": [{"role": "user", "parts": [{"text": QUESTION}]}]}, "question", QUESTION),
        ({"session_id": "s", "new_message": {"role": "user", "parts": [{"text": QUESTION}]}, "run_config": {"a": 1}},
         "question", QUESTION),
        ({"candidates": [{"content": {"role": "model", "parts": [{"text": ANSWER}]}, "index": 0}], "model": "m"},
         "answer", ANSWER),
        ([{"role": "user", "content": QUESTION}], "answer", None),
    ],
)  # fmt: skip
def test_messages_are_found_in_recorded_values(value: object, field: Any, text: str | None) -> None:  # noqa: ANN401
    assert find_message(value, field) == text
    if isinstance(value, list | dict):
        assert find_message(json.dumps(value), field) == text


def test_values_nested_without_end_hold_no_text() -> None:
    value: object = QUESTION
    for _ in range(50):
        value = {"input": value}
    assert find_message(value, "question") is None
    assert find_history(value) == ()
    assert find_messages(value) == []
    assert read_documents({"documents": 7}) is None
