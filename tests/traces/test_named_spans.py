"""The spans of a question, an answer and contexts, where a user names them with --map."""

import json
from pathlib import Path
from typing import Any

import pytest
from trace_files import (
    ANSWER,
    QUESTION,
    TEXTS,
    make_bot_trace,
    make_request,
    make_span,
    number_trace,
    write_lines,
)

from evalhouse.tasks.datasets.read import StagedDataset, stage_of
from evalhouse.tasks.datasets.values import DatasetError
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.rows.samples import StoredSample

FOUND = [*TEXTS, "Quillon has two piers."]
GREETING = "Hello, I am the bot of the harbour."


def read_named(folder: Path, spans: list[dict[str, Any]], **names: str) -> tuple[list[StoredSample], StagedDataset]:
    path = write_lines(folder / "t.jsonl", [make_request(spans)])
    staged = stage_of(RunSettings(dataset=str(path), format="otel", mapping=names))
    try:
        return staged.staging.read_between(1, staged.n_samples), staged
    finally:
        staged.staging.discard()


def make_call(prompt: str, reply: str) -> dict[str, Any]:
    return {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": prompt,
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": reply,
    }


def make_web_trace() -> list[dict[str, Any]]:
    """Below a web server's span: a search, a function that picks two of three documents, the answer, and a greeting
    that another model writes for the page."""

    def make(number: int, name: str, attributes: dict[str, Any], at_s: float) -> dict[str, Any]:
        return {**make_span(number, attributes, parent=1, at_s=at_s, took_s=0.1), "name": name}

    documents = {f"retrieval.documents.{place}.document.content": text for place, text in enumerate(FOUND)}
    search = {"openinference.span.kind": "RETRIEVER", "input.value": QUESTION, **documents}
    pick = {
        "openinference.span.kind": "CHAIN",
        "input.value": json.dumps(FOUND),
        "output.value": json.dumps([{"page_content": text} for text in TEXTS]),
    }
    return [
        {**make_span(1, {"http.route": "/chat"}), "name": "POST /chat"},
        make(2, "search", search, 0.1),
        make(3, "pick", pick, 0.3),
        make(4, "answer", make_call(QUESTION, ANSWER), 0.5),
        make(6, "format", {"openinference.span.kind": "CHAIN", "output.value": "A note."}, 0.4),
        make(5, "greet", make_call("Write a greeting for the page.", GREETING), 0.7),
    ]


def test_the_named_span_has_the_answer_where_several_could(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"1 several questions or answers.*--map answer=SPAN names its span"):
        read_named(tmp_path, make_web_trace())
    (sample,), _ = read_named(tmp_path, make_web_trace(), answer="answer")
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)
    (sample,), _ = read_named(tmp_path, make_web_trace(), answer="greet", question="greet")
    assert (sample.question, sample.answer) == ("Write a greeting for the page.", GREETING)


@pytest.mark.parametrize(
    ("names", "contexts"), [("search", FOUND), ("pick", TEXTS), ("pick, search", FOUND), ("format", ["A note."])]
)
def test_the_named_spans_have_the_contexts(tmp_path: Path, names: str, contexts: list[str]) -> None:
    """They are in order of time, each text once; a text that a step returned is one. No prompt decides on them."""
    (sample,), staged = read_named(tmp_path, make_web_trace(), answer="answer", contexts=names)
    assert sample.contexts == contexts
    of_spans = sample.metadata["contexts_from"]
    assert of_spans == [names.rpartition(", ")[2]]
    note = f"contexts by span, in samples: {of_spans[0]!r} 1; --map contexts=SPAN names others"
    assert staged.notes[1] == note


RECORDED = sorted(Path(__file__).with_name("recorded").glob("*.jsonl"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_a_run_prints_about_questions_and_answers_can_be_given_back(path: Path) -> None:
    """A user who sees the wrong span named names another one in the same way."""

    def read(**names: str) -> tuple[list[StoredSample], StagedDataset]:
        staged = stage_of(RunSettings(dataset=str(path), format="otel", mapping=names))
        try:
            return staged.staging.read_between(1, staged.n_samples), staged
        finally:
            staged.staging.discard()

    samples, staged = read()
    for sample in filter(lambda sample: sample.answer, samples):
        asked, answered = sample.metadata["question_from"], sample.metadata["answer_from"]
        assert f"{asked!r}, {answered!r} " in staged.notes[2]
        again, _ = read(question=asked, answer=answered)
        assert (sample.question, sample.answer) in [(one.question, one.answer) for one in again]


def test_the_members_that_questions_and_answers_are_from_are_counted(tmp_path: Path) -> None:
    """The more samples, the further in front; a bot that did not answer has no member."""

    def make(number: int, given: dict[str, str], made: dict[str, str]) -> dict[str, Any]:
        attributes = {
            "openinference.span.kind": "CHAIN", "input.value": json.dumps(given), "output.value": json.dumps(made)
        }  # fmt: skip
        return {**make_span(1, attributes, trace=number_trace(number)), "name": "ask"}

    asked, answered = {"user_query": QUESTION, "page": "Fares"}, {"reply": ANSWER}
    _, staged = read_named(
        tmp_path,
        [make(1, {"question": QUESTION}, {}), make(2, asked, answered), make(3, asked, answered)],
    )
    assert staged.notes[2] == (
        "question and answer by span, in samples: 'ask#user_query', 'ask#reply' 2, 'ask#question', none 1;"
        " --map question=SPAN#KEY and --map answer=SPAN#KEY name others"
    )


def test_a_span_without_a_text_does_not_hide_one_within_it(tmp_path: Path) -> None:
    """Langfuse's decorator gives the trace and its first observation one name, and only the second has texts."""
    chain = {"openinference.span.kind": "CHAIN", "input.value": QUESTION, "output.value": ANSWER}
    spans = [{**make_span(1, {}), "name": "ask"}, {**make_span(2, chain, parent=1), "name": "ask"}]
    (sample,), _ = read_named(tmp_path, spans, question="ask", answer="ask")
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)


@pytest.mark.parametrize("title", [True, False])
@pytest.mark.parametrize("prompt", [QUESTION, f"Answer from: {TEXTS[0]}\n{QUESTION}"])
def test_a_query_that_a_model_wrote_is_not_the_question_of_a_named_answer(
    tmp_path: Path, prompt: str, title: bool
) -> None:
    """The usual bot without a framework: it rewrites the question, looks it up, answers, and titles the talk."""

    def make(number: int, name: str, attributes: dict[str, Any], at_s: float) -> dict[str, Any]:
        return {**make_span(number, attributes, parent=1, at_s=at_s, took_s=0.1), "name": name}

    found = {"retrieval.documents.0.document.content": TEXTS[0]}
    spans = [
        {**make_span(1, {"http.route": "/chat"}), "name": "POST /chat"},
        make(2, "rewrite", make_call(QUESTION, "ferry time"), 0.1),
        make(3, "search", {"openinference.span.kind": "RETRIEVER", "input.value": "ferry time", **found}, 0.3),
        make(4, "generate", make_call(prompt, ANSWER), 0.5),
        *([make(5, "title", make_call(f"Write a title for: {QUESTION}", "Ferries"), 0.7)] if title else []),
    ]
    if prompt != QUESTION and title:
        with pytest.raises(DatasetError, match="several questions or answers"):
            read_named(tmp_path, spans, answer="generate")
        return
    (sample,), staged = read_named(tmp_path, spans, answer="generate")
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)
    assert f"{'generate' if prompt == QUESTION else 'rewrite'!r}, 'generate' 1" in staged.notes[2]


def test_an_inner_span_of_the_same_name_is_a_part_and_the_last_one_beside_it_has_the_answer(tmp_path: Path) -> None:
    """A traced function calls itself, or an agent asks a model again and again."""

    def make(number: int, answer: str, parent: int, at_s: float) -> dict[str, Any]:
        attributes = {"openinference.span.kind": "CHAIN", "input.value": QUESTION, "output.value": answer}
        return {**make_span(number, attributes, parent=parent, at_s=at_s, took_s=0.3), "name": "reply"}

    spans = [make_span(1, {"http.route": "/chat"}), make(2, "A draft.", 1, 0.1), make(3, ANSWER, 1, 0.5)]
    (sample,), _ = read_named(tmp_path, [*spans, make(4, "A part.", 3, 0.6)], answer="reply")
    assert sample.answer == ANSWER


def test_a_trace_without_the_named_span_is_left_out_or_has_no_contexts(tmp_path: Path) -> None:
    other = make_bot_trace(trace=number_trace(2))
    (sample,), staged = read_named(tmp_path, [*make_web_trace(), *other], answer="answer")
    assert sample.answer == ANSWER
    assert f"left out: 1 no span of the name that was given has a text ({number_trace(2)})" in staged.notes[0]
    samples, staged = read_named(tmp_path, [*make_web_trace(), *other], answer="answer, step 1", contexts="pick")
    assert [sample.contexts for sample in samples] == [TEXTS, None]
    assert staged.notes[1].startswith("contexts by span, in samples: 'pick' 1, none 1; ")


@pytest.mark.parametrize("field", ["question", "answer", "contexts"])
def test_a_name_that_no_span_has_is_refused_with_the_names_there_are(tmp_path: Path, field: str) -> None:
    with pytest.raises(DatasetError) as refused:
        read_named(tmp_path, make_web_trace(), **{"answer": "answer", field: "serch"})
    text = str(refused.value)
    assert f"no span for --map {field}=serch; names of spans: POST /chat, search, pick, answer, format, greet" in text
    assert "names the spans" in text


def test_the_way_to_contexts_is_named_where_no_sample_has_any(tmp_path: Path) -> None:
    attributes = {"openinference.span.kind": "CHAIN", "input.value": QUESTION, "output.value": ANSWER}
    _, staged = read_named(tmp_path, [make_span(1, attributes)])
    assert staged.notes[1] == "no sample has contexts; --map contexts=SPAN names the spans that have them"


def test_a_stream_that_is_named_has_the_text_of_its_model(tmp_path: Path) -> None:
    """A decorator records the object of a stream in place of its text."""
    spans = make_web_trace()
    stream = {"openinference.span.kind": "CHAIN", "output.value": "<generator object reply at 0x7f3a>"}
    spans[3]["parentSpanId"] = f"{9:016x}"
    spans.append({**make_span(9, stream, parent=1, at_s=0.45, took_s=0.2), "name": "reply"})
    (sample,), _ = read_named(tmp_path, spans, answer="reply")
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)


@pytest.mark.parametrize(
    ("result", "contexts"),
    [
        (TEXTS[0], TEXTS[:1]),
        (json.dumps([{"snippet": text, "title": "Ferries", "link": "https://x.test"} for text in TEXTS]), TEXTS),
        (json.dumps([{"chunk": text, "doc_id": "a", "score": 0.5} for text in TEXTS]), TEXTS),
        (json.dumps([{"body": text, "title": "Ferries", "href": "https://x.test"} for text in TEXTS]), TEXTS),
        (json.dumps(TEXTS), TEXTS),
        (json.dumps({"temperature": 21}), ['{"temperature": 21}']),
    ],
    ids=["text", "snippets", "chunks", "bodies", "texts", "an object"],
)
def test_what_a_named_tool_returned_is_the_context(tmp_path: Path, result: str, contexts: list[str]) -> None:
    """LangChain's tools return a message, which the tracer records as an object."""
    message = {"output": {"type": "tool", "data": {"content": result, "tool_call_id": "c1", "name": "web"}}}
    tool = {"openinference.span.kind": "TOOL", "tool.name": "web", "output.value": json.dumps(message["output"])}
    spans = [*make_web_trace(), {**make_span(7, tool, parent=1, at_s=0.4, took_s=0.05), "name": "web"}]
    (sample,), staged = read_named(tmp_path, spans, answer="answer", contexts="web")
    assert sample.contexts == contexts
    assert staged.notes[1].startswith("contexts by span, in samples: 'web' 1; ")


HITS = [{"id": place, "score": 0.5, "payload": {"text": text}} for place, text in enumerate(TEXTS)]


@pytest.mark.parametrize("kind", ["CHAIN", "RETRIEVER"])
@pytest.mark.parametrize(
    ("output", "contexts"),
    [
        ({"web_results": [{"page_content": text} for text in TEXTS], "question": QUESTION}, TEXTS),
        ({"search_results": TEXTS}, TEXTS),
        ({"web_results": " ".join(TEXTS), "question": QUESTION}, [" ".join(TEXTS)]),
        ({"web_results": [], "question": QUESTION}, []),
        ({"matches": HITS, "namespace": ""}, TEXTS),
        (HITS, TEXTS),
        (" ".join(TEXTS), [" ".join(TEXTS)]),
        ({"city": "Quillon", "sky": "clear"}, ['{"city": "Quillon", "sky": "clear"}']),
        ({"context": " ".join(TEXTS), "route": "web", "steps": ["retrieve"]}, [" ".join(TEXTS)]),
        ({"web_results": [{"page_content": text} for text in TEXTS], "steps": ["retrieve"]}, TEXTS),
        ([[{"content": text} for text in TEXTS], [0.9, 0.8]], TEXTS),
        ([[{"content": text} for text in TEXTS], "night ferry times"], TEXTS),
        ([[place, text, 0.9] for place, text in enumerate(TEXTS)], TEXTS),
        ([TEXTS, ["d1", "d2"]], TEXTS),
    ],
    ids=[
        "documents",
        "texts",
        "a text",
        "nothing",
        "an object of hits",
        "hits",
        "a lone text",
        "an object",
        "a text beside names",
        "documents beside names",
        "documents and scores",
        "documents and a query",
        "rows",
        "texts and ids",
    ],
)
def test_what_a_named_step_returned_is_its_contexts_in_any_form(
    tmp_path: Path, kind: str, output: object, contexts: list[str]
) -> None:
    """A graph's state has any names, and beside its documents the question."""
    text = output if isinstance(output, str) else json.dumps(output)
    step = {"openinference.span.kind": kind, "input.value": json.dumps({"question": QUESTION}), "output.value": text}
    spans = [*make_web_trace(), {**make_span(7, step, parent=1, at_s=0.4, took_s=0.05), "name": "web"}]
    (sample,), _ = read_named(tmp_path, spans, answer="answer", contexts="web")
    assert sample.contexts == contexts


def test_a_named_span_without_recorded_documents_is_not_named_as_theirs(tmp_path: Path) -> None:
    """Nor does a model's reply count, which would support itself."""
    spans = [*make_web_trace(), {**make_span(7, {"x": 1}, parent=1, at_s=0.4, took_s=0.05), "name": "web"}]
    (sample,), staged = read_named(tmp_path, spans, answer="answer", contexts="web,answer")
    assert sample.contexts is None
    assert staged.notes[1] == "no sample has contexts; --map contexts=SPAN names the spans that have them"


def make_step(output: object, given: object = None, prompt: str = "") -> list[dict[str, Any]]:
    """A trace of a graph: a node `web` with an input and output, then the call of a model that writes the answer."""
    spans = make_web_trace()
    step = {
        "openinference.span.kind": "CHAIN",
        "input.value": json.dumps({"question": QUESTION} if given is None else given),
        "output.value": output if isinstance(output, str) else json.dumps(output),
    }
    spans[3] = {
        **make_span(4, make_call(f"{prompt}\n{QUESTION}", ANSWER), parent=1, at_s=0.5, took_s=0.1),
        "name": "answer",
    }
    return [*spans, {**make_span(7, step, parent=1, at_s=0.4, took_s=0.05), "name": "web"}]


JOINED = "\n\n".join(TEXTS)
HARBOUR = "The harbour office opens at seven in the morning."


@pytest.mark.parametrize(
    "beside",
    [
        ["https://quillon.test/ferries/night", "https://quillon.test/ferries/day"],
        [{"title": "Ferries", "url": "https://quillon.test"}],
        [{"id": "doc-1", "source": "ferries.pdf", "page": 2}],
        ["When does the night ferry leave Quillon?", "When does the day ferry leave Quillon?"],
        "Look at the timetable of ferries first.",
    ],
    ids=["addresses", "sources", "citations", "queries", "a plan"],
)
@pytest.mark.parametrize("found", [JOINED, TEXTS], ids=["joined", "texts"])
def test_of_several_members_the_one_that_the_model_was_sent_counts(
    tmp_path: Path, found: object, beside: object
) -> None:
    spans = make_step({"further": beside, "found": found}, prompt=f"Use this: {JOINED}")
    (sample,), staged = read_named(tmp_path, spans, answer="answer", contexts="web")
    assert sample.contexts == (TEXTS if found is TEXTS else [JOINED])
    assert staged.notes[1].startswith("contexts by span, in samples: 'web#found' 1; ")


def test_a_joined_text_beside_its_documents_is_not_counted_twice(tmp_path: Path) -> None:
    spans = make_step({"context": JOINED, "documents": TEXTS}, prompt=JOINED)
    (sample,), _ = read_named(tmp_path, spans, answer="answer", contexts="web")
    assert sample.contexts == TEXTS
    spans = make_step({"context": JOINED, "text": JOINED}, prompt=JOINED)
    (sample,), _ = read_named(tmp_path, spans, answer="answer", contexts="web")
    assert sample.contexts == [JOINED]


@pytest.mark.parametrize("key", ["documents", "web_results"])
def test_a_state_that_a_node_returns_has_what_it_was_given_too(tmp_path: Path, key: str) -> None:
    """LangGraph's nodes may return the whole state."""
    state = {"question": QUESTION, "documents": [HARBOUR]}
    spans = make_step({**state, key: TEXTS}, given=state, prompt="\n".join([HARBOUR, *TEXTS]))
    (sample,), _ = read_named(tmp_path, spans, answer="answer", contexts="web")
    assert sample.contexts == TEXTS
    (sample,), _ = read_named(tmp_path, make_step(state, given=state), answer="answer", contexts="web")
    assert sample.contexts == [HARBOUR], "a filter that keeps all returns what it was given"


@pytest.mark.parametrize(
    "output",
    ["null", {"found": None, "steps": ["web"]}, {"found": [], "steps": ["web"]}, {"found": "", "question": QUESTION}],
    ids=["nothing", "null", "an empty list", "an empty text"],
)
def test_a_named_step_that_found_nothing_has_no_contexts(tmp_path: Path, output: object) -> None:
    (sample,), _ = read_named(tmp_path, make_step(output), answer="answer", contexts="web")
    assert sample.contexts == []


def test_the_answer_is_no_context_of_itself(tmp_path: Path) -> None:
    for output in ({"reply": "The night ferry leaves at 22:40.", "found": JOINED}, "The night ferry leaves at 22:40."):
        spans = make_step(output)
        spans[-1]["endTimeUnixNano"] = spans[0]["endTimeUnixNano"]
        spans[3] = {
            **make_span(4, make_call(QUESTION, "The night ferry leaves at 22:40."), parent=1, at_s=0.42, took_s=0.01),
            "name": "answer",
        }
        (sample,), _ = read_named(tmp_path, spans, answer="answer", contexts="web")
        assert sample.contexts == ([JOINED] if isinstance(output, dict) else None)


def test_an_error_that_did_not_happen_does_not_empty_a_result(tmp_path: Path) -> None:
    for output in ({"error": None, "summary": JOINED}, {"error": None, "temperature": 21}):
        call = {**make_span(8, make_call(QUESTION, JOINED), parent=1, at_s=0.2, took_s=0.05), "name": "sum up"}
        (sample,), _ = read_named(tmp_path, [*make_step(output), call], answer="answer", contexts="web")
        assert sample.contexts == [JOINED if "summary" in output else json.dumps(output)]


def test_a_query_that_a_model_wrote_is_no_context(tmp_path: Path) -> None:
    query = "departure of the night ferry from Quillon"
    spans = make_step({"found": [], "query": query}, prompt=query)
    call = make_span(8, make_call(QUESTION, query), parent=1, at_s=0.2, took_s=0.05)
    (sample,), _ = read_named(tmp_path, [*spans, {**call, "name": "rewrite"}], answer="answer", contexts="web")
    assert sample.contexts == []
    spans = make_step({"context": JOINED, "query": query}, prompt=f"{JOINED}\n{query}")
    (sample,), _ = read_named(tmp_path, [*spans, {**call, "name": "rewrite"}], answer="answer", contexts="web")
    assert sample.contexts == [JOINED]


def test_results_of_tools_in_messages_are_contexts(tmp_path: Path) -> None:
    """LangGraph's ToolNode returns messages."""
    messages = [{"type": "tool", "data": {"content": text, "tool_call_id": "c", "name": "web"}} for text in TEXTS]
    (sample,), _ = read_named(tmp_path, make_step({"messages": messages}), answer="answer", contexts="web")
    assert sample.contexts == TEXTS


@pytest.mark.parametrize(
    ("key", "contexts"),
    [("note", ["A note of the keeper."]), ("state.found", TEXTS), ("state", TEXTS), ("tag", ["short"])],
)
def test_a_member_of_what_a_span_returned_can_be_named(tmp_path: Path, key: str, contexts: list[str]) -> None:
    output = {"note": "A note of the keeper.", "tag": "short", "state": {"found": TEXTS, "n": 2}}
    (sample,), _ = read_named(tmp_path, make_step(output), answer="answer", contexts=f"web#{key}")
    assert sample.contexts == contexts


def test_members_with_the_question_and_the_answer_can_be_named(tmp_path: Path) -> None:
    asked = {"state": {"a": "When does the ferry leave?", "b": "Be short and friendly."}}
    replied = {"draft": "It leaves at nine.", "sent": "I cannot say."}
    spans = make_step(replied, given=asked)
    (sample,), _ = read_named(tmp_path, spans, question="web#state.a", answer="web#sent")
    assert (sample.question, sample.answer) == ("When does the ferry leave?", "I cannot say.")


def test_documents_that_a_step_was_given_can_be_named(tmp_path: Path) -> None:
    outer, _, call = make_outer(QUESTION, ANSWER)
    given = {"openinference.span.kind": "CHAIN", "input.value": json.dumps({"context": TEXTS, "question": QUESTION})}
    step = {**make_span(5, given | {"output.value": ANSWER}, parent=1, at_s=0.25, took_s=0.2), "name": "Predict"}
    (sample,), _ = read_named(tmp_path, [outer, step, call], contexts="Predict#context")
    assert sample.contexts == TEXTS


def test_a_member_that_is_not_there_is_refused_with_the_ones_there_are(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no span for --map contexts=web#serch; names of spans: .*web#found, web#n"):
        read_named(tmp_path, make_step({"found": TEXTS, "n": 2}), answer="answer", contexts="web#serch")


@pytest.mark.parametrize(
    "around", [{"http.route": "/chat"}, {"openinference.span.kind": "CHAIN", "output.value": "ok"}]
)
def test_the_turns_of_a_session_in_one_trace_are_samples_where_their_span_is_named(
    tmp_path: Path, around: dict[str, str]
) -> None:
    """One turn looked nothing up, so that it is not known whether the chains are steps for one question."""
    spans = [{**make_span(1, around, took_s=9.0), "name": "websocket"}]
    for turn in range(3):
        exchange = {
            "openinference.span.kind": "CHAIN",
            "input.value": f"Question {turn}?",
            "output.value": f"Reply {turn}.",
        }
        spans.append({**make_span(10 * turn + 2, exchange, parent=1, at_s=turn + 0.1, took_s=0.8), "name": "turn"})
        documents = {"retrieval.documents.0.document.content": f"Text {turn} of the harbour."}
        search = {"openinference.span.kind": "RETRIEVER", "input.value": f"Question {turn}?", **documents}
        if turn:
            spans.append(
                {
                    **make_span(10 * turn + 3, search, parent=10 * turn + 2, at_s=turn + 0.2, took_s=0.1),
                    "name": "search",
                }
            )
    with pytest.raises(DatasetError, match="several questions or answers"):
        read_named(tmp_path, spans)
    samples, _ = read_named(tmp_path, spans, answer="turn")
    assert [(sample.question, sample.answer) for sample in samples] == [
        (f"Question {turn}?", f"Reply {turn}.") for turn in range(3)
    ]
    assert [sample.contexts for sample in samples] == [None, ["Text 1 of the harbour."], ["Text 2 of the harbour."]]
    spans[1]["name"] = "synthesize"  # the others are steps for its question
    (sample,), _ = read_named(tmp_path, spans, answer="synthesize")
    assert (sample.answer, len(sample.contexts or ())) == ("Reply 0.", 2)


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_turn_of_a_session_without_the_named_span_is_left_out_alone(tmp_path: Path, is_answered: bool) -> None:
    """Small talk that code answered, or a turn that failed before its step."""
    spans = [{**make_span(1, {"http.route": "/chat"}, took_s=9.0), "name": "websocket"}]
    for turn, words in enumerate(["When does the night ferry leave?", "Hello there!", "May bicycles come along?"]):
        exchange = {"openinference.span.kind": "CHAIN", "input.value": words}
        outer = exchange | {"output.value": f"Reply {turn}."} if is_answered or turn != 1 else exchange
        spans.append({**make_span(10 * turn + 2, outer, parent=1, at_s=turn + 0.1, took_s=0.8), "name": "turn"})
        if outer is exchange:
            spans[-1]["status"] = {"code": 2, "message": "timeout"}
        if turn != 1:
            inner = make_span(
                10 * turn + 3,
                exchange | {"output.value": f"Reply {turn}."},
                parent=10 * turn + 2,
                at_s=turn + 0.2,
                took_s=0.5,
            )
            spans.append({**inner, "name": "generate"})
    samples, _ = read_named(tmp_path, spans, answer="generate")
    assert [(sample.question, sample.answer) for sample in samples] == [
        ("When does the night ferry leave?", "Reply 0."),
        ("May bicycles come along?", "Reply 2."),
    ]


@pytest.mark.parametrize("beside", [[{"id": "d1"}, {"id": "d2"}], 0.4, True, ["d1", "d2"], "success"])
def test_a_tuple_has_the_answer_beside_other_things(tmp_path: Path, beside: object) -> None:
    refusal = "I am sorry, but I cannot help with that."
    (sample,), _ = read_named(tmp_path, make_outer(QUESTION, [refusal, beside]))
    assert sample.answer == refusal
    texts = ["One text of the harbour.", "Another text of the harbour.", beside]
    (sample,), _ = read_named(tmp_path, make_outer(QUESTION, texts), answer="reply#1")
    assert sample.answer == texts[1]
    (sample,), _ = read_named(tmp_path, make_outer(QUESTION, [{"answer": refusal}, beside]))
    assert sample.answer == refusal
    (sample,), _ = read_named(tmp_path, make_outer(QUESTION, [{"answer": refusal}, beside]), answer="reply#0.answer")
    assert sample.answer == refusal


def test_of_two_texts_the_one_of_several_words_may_be_the_documents(tmp_path: Path) -> None:
    """A function returned its answer "22:40" with its context as one text, and that was the answer."""
    outer, search, _ = make_outer(QUESTION, ["22:40", JOINED])
    call = {**make_span(3, make_call(f"{JOINED}\n{QUESTION}", "22:40"), parent=1, at_s=0.3, took_s=0.1)}
    (sample,), _ = read_named(tmp_path, [outer, search, call])
    assert sample.answer == "22:40"
    refused = make_outer(QUESTION, ["I am sorry, but I cannot help with that.", JOINED])
    with pytest.raises(DatasetError, match="several"):
        read_named(tmp_path, refused)
    (sample,), _ = read_named(tmp_path, refused, answer="reply#0")
    assert sample.answer == "I am sorry, but I cannot help with that."


def test_the_history_that_a_function_returns_ends_in_the_answer(tmp_path: Path) -> None:
    """A function of a chat's page returns the emptied text field with all messages."""
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "I cannot help with that."}]
    (sample,), _ = read_named(tmp_path, make_outer(QUESTION, ["", messages]))
    assert sample.answer == "I cannot help with that."


@pytest.mark.parametrize(
    "given",
    [
        {"args": [QUESTION, []], "kwargs": {}},
        {"args": ["u-4711", QUESTION], "kwargs": {}},
        {"args": ["Anna Smith", QUESTION, 5], "kwargs": {}},
        {"args": ["u-4711"], "kwargs": {"question": QUESTION}},
        {"args": [{"question": QUESTION, "lang": "en"}, "Anna Smith"], "kwargs": {}},
        {"question": QUESTION, "user_prompt": "You are a helpful assistant."},
        {"args": [[{"role": "user", "content": QUESTION}], "u-4711"], "kwargs": {}},
        {"args": [], "kwargs": {"user": "u-4711", "msg": QUESTION}},
        {"args": [QUESTION], "kwargs": {"prompt": "You are a helpful assistant."}},
        {"args": [QUESTION, {"url": "https://harbour.test", "text": "Welcome to the harbour."}], "kwargs": {}},
        {"args": [QUESTION, {"role": "system", "content": "You are a helpful assistant."}], "kwargs": {}},
        {"prompt": "You are a helpful assistant.", "message": QUESTION},
        {"query": "ferry night departure", "original_query": QUESTION},
        {"task": QUESTION, "stream": False, "reset": True},
        {"task": "chat", "message": QUESTION},
        {"task": "faq", "customer_question": QUESTION},
        {"task": "chat", "payload": {"question": QUESTION}},
        {"task": QUESTION, "language": "en"},
        {"task": "customer support", "body": QUESTION.rstrip("?")},
        {"task": QUESTION.rstrip("?"), "tenant": "Acme Corp"},
        {"task": QUESTION, "system_prompt": "You are a helpful assistant."},
        {"messages": [f"id='7e7d' source='user' metadata={{}} content={QUESTION!r} type='TextMessage'"]},
    ],
)
def test_the_question_is_found_among_several_arguments(tmp_path: Path, given: object) -> None:
    """Langfuse records a function's arguments by position and by name."""
    (sample,), _ = read_named(tmp_path, make_outer(given, ANSWER))
    assert f"{sample.question.rstrip('?')}?" == QUESTION


def test_the_history_is_found_among_several_arguments(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Is there a ferry?"}, {"role": "assistant", "content": "Yes."}]
    (sample,), _ = read_named(tmp_path, make_outer({"args": [QUESTION, turns], "kwargs": {}}, ANSWER))
    assert [turn.text for turn in sample.conversation or []] == ["Is there a ferry?", "Yes."]
    two = {"args": ["Answer in a friendly tone.", "Tell me when it leaves."], "kwargs": {}}
    with pytest.raises(DatasetError, match="several"):
        read_named(tmp_path, make_outer(two, ANSWER))
    (sample,), _ = read_named(tmp_path, make_outer(two, ANSWER), question="reply#args.1")
    assert sample.question == "Tell me when it leaves."


@pytest.mark.parametrize(
    "made",
    [
        {"code": 0, "message": "success", "data": {"answer": "It sails at ten."}},
        {"success": True, "message": "Answer was made", "data": {"reply": "It sails at ten."}},
        {
            "messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": '{"answer": "?"}'}],
            "structured_response": {"answer": "It sails at ten.", "sources": ["a.md"]},
        },
        {"messages": [{"role": "assistant", "content": '{"answer": "It sails at ten.", "sources": [1]}'}]},
        "StopEvent(result='It sails at ten.')",
        "StopEvent(result={'answer': 'It sails at ten.', 'sources': []})",
        "FerryReply(answer='It sails at ten.')",
    ],
)
def test_the_answer_is_found_in_an_envelope(tmp_path: Path, made: object) -> None:
    (sample,), _ = read_named(tmp_path, make_outer(QUESTION, made))
    assert sample.answer == "It sails at ten."


@pytest.mark.parametrize("inner", [{"answer": "It leaves at nine."}, {"llm_response": "It leaves at nine."}])
def test_the_data_beside_an_answer_are_not_the_answer(tmp_path: Path, inner: dict[str, str]) -> None:
    """A guard's refusal is beside the draft, or beside the row of the dataset that was asked."""
    (sample,), _ = read_named(tmp_path, make_outer(QUESTION, {"answer": "I cannot say.", "result": inner}))
    assert sample.answer == "I cannot say."


@pytest.mark.parametrize(
    "made",
    [
        {"answer": "It leaves at nine.", "response": "I cannot say when it leaves."},
        {"code": 0, "message": "The request was processed.", "data": "I cannot say when it leaves."},
    ],
)
def test_an_answer_beside_another_response_is_not_guessed(tmp_path: Path, made: dict[str, object]) -> None:
    with pytest.raises(DatasetError, match="several"):
        read_named(tmp_path, make_outer(QUESTION, made))


def make_outer(given: object, made: object) -> list[dict[str, Any]]:
    """A chain around a search with another query, and the call that writes a draft."""
    as_text = [value if isinstance(value, str) else json.dumps(value) for value in (given, made)]
    outer = {"openinference.span.kind": "CHAIN", "input.value": as_text[0], "output.value": as_text[1]}
    documents = {f"retrieval.documents.{place}.document.content": text for place, text in enumerate(TEXTS)}
    search = {"openinference.span.kind": "RETRIEVER", "input.value": "ferry night departure", **documents}
    return [
        {**make_span(1, outer), "name": "reply"},
        {**make_span(2, search, parent=1, at_s=0.1, took_s=0.1), "name": "search"},
        {**make_span(3, make_call(f"{JOINED}\n{QUESTION}", ANSWER), parent=1, at_s=0.3, took_s=0.1), "name": "write"},
    ]


@pytest.mark.parametrize("name", ["user_query", "userQuestion", "user_message", "msg"])
@pytest.mark.parametrize("answer", ["final_answer", "reply", "bot_response", "finalResponse"])
def test_questions_and_answers_have_many_names(tmp_path: Path, name: str, answer: str) -> None:
    refusal = "I am sorry, but I cannot help with that."
    spans = make_outer({name: QUESTION, "tenant": "acme", "top_k": 5}, {answer: refusal, "status": "blocked"})
    (sample,), _ = read_named(tmp_path, spans)
    assert (sample.question, sample.answer) == (QUESTION, refusal)


@pytest.mark.parametrize("name", ["final_answer", "final_output", "safe_answer", "polished_response"])
@pytest.mark.parametrize("draft", ["answer", "generation", "response"])
def test_what_became_of_an_answer_counts_before_it(tmp_path: Path, name: str, draft: str) -> None:
    """The state of a graph keeps the answer of a model beside what a guard or a rewriting made of it."""
    (sample,), _ = read_named(
        tmp_path, make_outer(QUESTION, {draft: ANSWER, "documents": TEXTS, name: "I cannot say."})
    )
    assert sample.answer == "I cannot say."


@pytest.mark.parametrize("name", ["redacted_text", "safety_message", "corrected_text", "final_message"])
def test_what_a_graph_prepared_does_not_count_before_the_answer(tmp_path: Path, name: str) -> None:
    """A question without names, or a guard's note, is in the state as well."""
    (sample,), _ = read_named(tmp_path, make_outer(QUESTION, {name: "Nothing unsafe was found.", "answer": ANSWER}))
    assert sample.answer == ANSWER


def test_a_final_response_counts_before_a_draft(tmp_path: Path) -> None:
    (sample,), _ = read_named(
        tmp_path, make_outer(QUESTION, {"draft_answer": ANSWER, "final_response": "I cannot say."})
    )
    assert sample.answer == "I cannot say."
    with pytest.raises(DatasetError, match="several"):
        read_named(
            tmp_path,
            make_outer(QUESTION, {"draft_answer": "It leaves at nine or so.", "bot_response": "I am sorry, but no."}),
        )


def test_a_printed_stream_is_not_another_answer(tmp_path: Path) -> None:
    """The chat engines of LlamaIndex return an object that holds a thread's event or a task."""
    made = {
        "response": "",
        "event": "<threading.Event at 0x7ff14ca515d0: unset>",
        "task": "<Task pending name='Task-59' coro=<Dispatcher.span.<locals>.wrapper() running at /app/x.py:441>>",
    }
    (sample,), _ = read_named(tmp_path, make_outer(QUESTION, made))
    assert sample.answer == ANSWER


def test_a_query_that_a_model_wrote_is_not_the_question(tmp_path: Path) -> None:
    """A workflow whose outermost step has no question that is known: the model that answered was asked it."""
    outer, search, call = make_outer("<StartEvent()>", ANSWER)
    rewrite = {**make_span(4, make_call("Write a query.", "ferry night departure"), parent=1, at_s=0.05, took_s=0.02)}
    answering = {**make_span(3, make_call(QUESTION, ANSWER), parent=1, at_s=0.3, took_s=0.1), "name": "write"}
    (sample,), _ = read_named(tmp_path, [outer, search, rewrite, answering])
    assert sample.question == QUESTION
    with pytest.raises(DatasetError, match="several"):
        read_named(tmp_path, [outer, search, rewrite, call])


@pytest.mark.parametrize("query", ["night ferry", "ferry times"])
def test_a_query_for_a_tool_is_not_the_question(tmp_path: Path, query: str) -> None:
    """A loop of calls without a chain: keywords that are a part of the question were the question."""
    wrote = make_call(QUESTION, "") | {
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "search",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": json.dumps({"query": query}),
    }
    search = {"openinference.span.kind": "RETRIEVER", "input.value": query}
    search |= {f"retrieval.documents.{place}.document.content": text for place, text in enumerate(TEXTS)}
    for first in ([make_span(2, wrote, parent=1, took_s=0.1)], []):  # or code wrote it
        spans = [
            {**make_span(1, {"http.request.method": "POST"}), "name": "POST /chat"}, *first,
            make_span(3, search, parent=1, at_s=0.2, took_s=0.1),
            make_span(4, make_call(QUESTION, ANSWER), parent=1, at_s=0.4, took_s=0.1),
        ]  # fmt: skip
        if first or query in QUESTION:
            (sample,), _ = read_named(tmp_path, spans)
            assert (sample.question, sample.answer) == (QUESTION, ANSWER)


def test_printed_arguments_are_not_another_question(tmp_path: Path) -> None:
    """A decorator around a web server's function records its request as Python prints it."""
    given = {"request": "<starlette.requests.Request object at 0x7f3a>", "body": f"ChatRequest(text='{QUESTION}')"}
    outer, _, call = make_outer(given, ANSWER)
    (sample,), _ = read_named(tmp_path, [outer, call])
    assert sample.answer == ANSWER


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"a": QUESTION, "b": "Answer in a friendly tone."}, ANSWER),
        (QUESTION, {"shown": "I am sorry, but I cannot help.", "why": "The draft has a time."}),
    ],
    ids=["question", "answer"],
)
def test_an_inner_text_does_not_stand_for_one_of_an_unknown_name(tmp_path: Path, given: object, made: object) -> None:
    """A query is not the question, nor a draft what a guard let pass."""
    with pytest.raises(DatasetError, match="1 several questions or answers"):
        read_named(tmp_path, make_outer(given, made))
    names = {"question": "reply#a"} if isinstance(given, dict) else {"answer": "reply#shown"}
    (sample,), _ = read_named(tmp_path, make_outer(given, made), **names)
    assert sample.question == QUESTION
    assert sample.answer == (ANSWER if isinstance(given, dict) else "I am sorry, but I cannot help.")


def test_a_state_without_the_answer_leaves_it_to_the_model(tmp_path: Path) -> None:
    """A graph may return what its prompt was made of, and stream the answer."""
    (sample,), _ = read_named(tmp_path, make_outer(QUESTION, {"asked": QUESTION, "material": JOINED}))
    assert sample.answer == ANSWER


@pytest.mark.parametrize(
    ("sources", "contexts"),
    [(["kb/ferries/night.md", "kb/ferries/day.md"], None), (["https://quillon.test/ferries"], None), (TEXTS, TEXTS)],
)
def test_sources_beside_an_answer_are_contexts_if_the_model_was_sent_them(
    tmp_path: Path, sources: list[str], contexts: list[str] | None
) -> None:
    outer, _, call = make_outer(QUESTION, {"answer": ANSWER, "source_documents": sources})
    (sample,), _ = read_named(tmp_path, [outer, call])
    assert (sample.answer, sample.contexts) == (ANSWER, contexts)


def test_the_thoughts_of_an_agent_are_not_its_answer(tmp_path: Path) -> None:
    """LlamaIndex's ReActAgent returns an object; its model writes a thought before each answer."""
    spans = make_outer(QUESTION, "")
    spans[0] = {
        **make_span(
            1,
            {
                "openinference.span.kind": "CHAIN",
                "input.value": QUESTION,
                "output.value": "StopEvent(result=AgentOutput())",
            },
        ),
        "name": "run",
    }
    spans[2] = {
        **make_span(
            3, make_call(QUESTION, f"Thought: I can answer now.\nAnswer: {ANSWER}"), parent=1, at_s=0.3, took_s=0.1
        ),
        "name": "llm",
    }
    (sample,), _ = read_named(tmp_path, spans)
    assert sample.answer == ANSWER


def test_what_a_tracer_hid_was_not_recorded(tmp_path: Path) -> None:
    """OPENINFERENCE_HIDE_OUTPUTS."""
    spans = make_outer(QUESTION, "")
    for span in spans:
        for attribute in span["attributes"]:
            if attribute["key"] == "output.value" or attribute["key"].endswith("content"):
                attribute["value"] = {"stringValue": "__REDACTED__"}
    (sample,), _ = read_named(tmp_path, spans)
    assert (sample.question, sample.answer) == (QUESTION, None)


def test_an_approval_is_not_the_question(tmp_path: Path) -> None:
    """The input of a graph that a person has approved is their decision."""
    spans = make_outer({"graph": None, "update": None, "resume": {"type": "approve"}, "goto": []}, {"answer": ANSWER})
    (sample,), _ = read_named(tmp_path, spans)
    assert sample.question != "approve"
    given = {"graph": None, "update": None, "resume": "And for children?", "goto": []}
    (sample,), _ = read_named(tmp_path, make_outer(given, {"answer": ANSWER}))
    assert sample.question == "And for children?"


@pytest.mark.parametrize(("name", "beside"), [("hypothetical_answer", "report"), ("sql_response", "summary")])
def test_what_a_step_prepared_is_not_the_answer(tmp_path: Path, name: str, beside: str) -> None:
    """HyDE writes a passage to search with, a tool a reply for the model."""
    made = {name: "The ferry leaves every hour.", beside: "The night ferry leaves at 22:40."}
    with pytest.raises(DatasetError, match="several"):
        read_named(tmp_path, make_outer(QUESTION, made))
