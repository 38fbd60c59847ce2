"""Rows that are whole conversations: each tool's shape as it writes it, and the turns that it becomes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from dataset_files import Row, write_json_lines
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.tasks.datasets.chat import Message, Speaker
from evalhouse.tasks.datasets.conversations import cut_turns
from evalhouse.tasks.datasets.read import DatasetError, SampleRow, read_samples
from evalhouse.tasks.datasets.rows import ColumnUse, Turns

TIDE, SIX, LOW, NOON = "When is high tide?", "At six.", "And low tide?", "At noon."
CHART = {"id": "chart#4", "text": "High tide is at six, low tide at noon."}
RULES = "Answer in one sentence."


def tell(role: str, content: object, **more: object) -> Row:
    return {"role": role, "content": content, **more}


def of_langchain(name: str, content: str) -> Row:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name],
            "kwargs": {"content": content}}  # fmt: skip


def run_of(run_id: str, messages: Sequence[object], answer: str) -> Row:
    """A root run as LangSmith exports it; its `session_id` is the project's."""
    return {
        "id": run_id, "name": "bot", "run_type": "chain", "session_id": "project", "trace_id": run_id,
        "start_time": "2026-11-02T08:01", "parent_run_id": None, "inputs": {"messages": messages},
        "outputs": {"messages": [tell("assistant", answer)]},
    }  # fmt: skip


def read(path: Path, turns: Turns = "all", **mapping: str) -> tuple[list[SampleRow], ColumnUse]:
    use = ColumnUse()
    batches = read_samples(str(path), mapping=mapping, turns=turns, use=use)
    return [sample for batch in batches for sample in batch], use


def read_rows(folder: Path, *rows: Row, turns: Turns = "all", **mapping: str) -> tuple[list[SampleRow], ColumnUse]:
    path = folder / "talks.jsonl"
    write_json_lines(path, rows)
    return read(path, turns, **mapping)


def describe(sample: SampleRow) -> tuple[object, ...]:
    spoken = [turn.text for turn in sample.conversation or ()]
    return sample.metadata["turn"], spoken, sample.question, sample.answer, sample.ground_truth


OPENAI = {
    "id": "c1",
    "messages": [
        tell("developer", RULES),
        tell("user", [{"type": "text", "text": TIDE}, {"type": "image_url", "image_url": {"url": "data:"}}]),
        tell("assistant", None, tool_calls=[{"id": "t1", "type": "function", "function": {"name": "look_up"}}]),
        tell("tool", json.dumps([CHART]), tool_call_id="t1"), tell("assistant", SIX), tell("user", LOW),
        tell("assistant", NOON)],
}  # fmt: skip
RAGAS = {
    "user_input": [
        {"content": TIDE, "type": "human"},
        {"content": "", "type": "ai", "tool_calls": [{"name": "look_up", "args": {"what": "tide"}}]},
        {"content": "six", "type": "tool"}, {"content": SIX, "metadata": None, "type": "ai"},
        {"content": LOW, "type": "human"}, {"content": NOON, "type": "ai"}],
    "reference": "Low tide is at noon.",
    "reference_topics": ["tides"],
    "reference_tool_calls": [{"name": "look_up", "args": {"what": "tide"}}],
}  # fmt: skip
TURNS = {
    "id": 7,
    "turns": [
        {"question": TIDE, "answer": SIX, "contexts": [CHART], "ground_truth": "Six."},
        {"question": LOW, "answer": NOON},
    ],
}
TWO = [(1, [], TIDE, SIX, None), (2, [TIDE, SIX], LOW, NOON, None)]


def test_messages_of_openai_are_cut_with_their_tools_and_parts(tmp_path: Path) -> None:
    (first, second), use = read_rows(tmp_path, OPENAI)
    assert [describe(first), describe(second)] == TWO
    assert [first.sample_id, second.sample_id] == ["c1/1", "c1/2"]
    assert (first.contexts, first.context_ids) == ([CHART["text"]], [CHART["id"]]), (
        "what the tool returned is documents"
    )
    assert first.metadata["tool_calls"] == [{"id": "t1", "type": "function", "function": {"name": "look_up"}}]
    assert first.metadata["content_parts"] == [{"type": "image_url", "image_url": {"url": "data:"}}]
    assert {sample.metadata["system"] for sample in (first, second)} == {RULES}
    assert {sample.metadata["conversation_id"] for sample in (first, second)} == {"c1"}
    assert second.conversation is not None
    assert (second.conversation[1].contexts, second.conversation[0].contexts) == ([CHART["text"]], None)
    assert use.describe(is_asked=False).startswith(
        "2 samples from the turns of 1 conversation in 'messages'; columns: question, answer, "
    )


# One turn with a call of a tool and its result, in the parts of each API.
IN_PARTS: dict[str, list[Row]] = {
    "Anthropic": [
        tell("user", TIDE),
        tell("assistant", [{"type": "text", "text": "I look."}, {"type": "tool_use", "name": "look_up", "input": {}}]),
        tell("user", [{"type": "tool_result", "content": [{"type": "text", "text": json.dumps([CHART])}]}]),
        tell("assistant", [{"type": "thinking", "thinking": "Six."}, {"type": "text", "text": SIX}]),
    ],
    "Bedrock": [
        tell("user", [{"text": TIDE}]),
        tell("assistant", [{"toolUse": {"name": "look_up", "input": {}}}]),
        tell("user", [{"toolResult": {"content": [{"json": {"results": [CHART]}}]}}]),
        tell("assistant", [{"text": SIX}]),
    ],
    "Gemini": [
        {"role": "user", "parts": [{"text": TIDE}]},
        {"role": "model", "parts": [{"functionCall": {"name": "look_up", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "look_up", "response": {"documents": [CHART]}}}]},
        {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": SIX}]},
    ],
    "OpenAI's Responses": [
        tell("user", [{"type": "input_text", "text": TIDE}]),
        {"type": "function_call", "name": "look_up", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": json.dumps([CHART])},
        tell("assistant", [{"type": "output_text", "text": SIX}], type="message"),
    ],
    "OpenTelemetry": [
        {"role": "user", "parts": [{"type": "text", "content": TIDE}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "name": "look_up", "arguments": {}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "response": [CHART]}]},
        {"role": "assistant", "parts": [{"type": "text", "content": SIX}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("api", IN_PARTS)
def test_tools_in_parts_of_messages_are_read(tmp_path: Path, api: str) -> None:
    ((sample,), _) = read_rows(tmp_path, {"messages": IN_PARTS[api]})
    assert (sample.question, sample.answer, sample.contexts) == (TIDE, SIX, [CHART["text"]])
    assert [call["name"] for call in sample.metadata["tool_calls"]] == ["look_up"]


@pytest.mark.parametrize("mark", [{"answerable": False}, {"kind": "unanswerable"}])
def test_what_marks_a_conversation_as_without_an_answer_is_of_its_last_turn(
    tmp_path: Path, mark: dict[str, object]
) -> None:
    """The turns before it are questions like any other."""
    talk = {key: value for key, value in RAGAS.items() if key != "reference"}
    (first, second), _ = read_rows(tmp_path, {**talk, **mark})
    assert mark.keys().isdisjoint(first.metadata)
    assert second.metadata.items() >= mark.items()
    (first, second), _ = read_rows(tmp_path, {**talk, "kind": "tides"})
    assert (first.metadata["kind"], second.metadata["kind"]) == ("tides", "tides")


def test_as_many_lists_of_ids_as_turns_are_one_for_each(tmp_path: Path) -> None:
    """Ground truths and contexts are read so as well; a single list is the last turn's."""
    talk = {key: value for key, value in RAGAS.items() if key != "reference"}
    contexts = [[{"id": "tide.md", "text": "a"}], [{"id": "low.md", "text": "b"}]]
    given = {**talk, "contexts": contexts, "reference_context_ids": [["tide.md"], ["low.md", "moon.md"]]}
    samples, _ = read_rows(tmp_path, given)
    assert [sample.reference_context_ids for sample in samples] == [["tide.md"], ["low.md", "moon.md"]]
    samples, _ = read_rows(tmp_path, {**given, "reference_context_ids": ["low.md", "moon.md"]})
    assert [sample.reference_context_ids for sample in samples] == [None, ["low.md", "moon.md"]]


@pytest.mark.parametrize("name", ["reference_tool_calls", "expected_tool_calls"])
def test_a_reference_and_expected_calls_are_the_last_turns(tmp_path: Path, name: str) -> None:
    """Ragas and our own column have the calls of the whole conversation."""
    renamed = {name if key == "reference_tool_calls" else key: value for key, value in RAGAS.items()}
    (first, second), use = read_rows(tmp_path, renamed)
    assert [describe(first), describe(second)] == [TWO[0], (*TWO[1][:4], RAGAS["reference"])]
    assert first.contexts is None, "a word that a tool returned may be anything"
    assert first.metadata["tool_results"] == [{"content": "six"}]
    assert "expected_tool_calls" not in first.metadata
    assert second.metadata["expected_tool_calls"] == RAGAS["reference_tool_calls"]
    assert second.metadata["tool_calls"] == RAGAS["reference_tool_calls"], "all that were made in the conversation"
    assert {str(sample.metadata["reference_topics"]) for sample in (first, second)} == {"['tides']"}
    assert first.metadata["conversation_id"] == second.metadata["conversation_id"]
    assert "ground_truth = reference (in 1 of 2 rows)" in use.describe(is_asked=False)


def test_ragas_in_a_csv_as_python_prints_it(tmp_path: Path) -> None:
    pl.DataFrame({"user_input": [str(RAGAS["user_input"])], "reference": [RAGAS["reference"]]}).write_csv(
        tmp_path / "ragas.csv"
    )
    samples, _ = read(tmp_path / "ragas.csv")
    assert [describe(sample)[:4] for sample in samples] == [turn[:4] for turn in TWO]


@pytest.mark.parametrize(
    "messages",
    [
        [tell("user", TIDE), tell("assistant", SIX), tell("user", LOW), tell("assistant", NOON)],
        [{"role": "user", "text": TIDE}, {"role": "agent", "text": SIX}, {"role": "user", "text": LOW},
         {"role": "agent", "text": NOON}],
        [of_langchain("HumanMessage", TIDE), of_langchain("AIMessageChunk", SIX), of_langchain("HumanMessage", LOW),
         of_langchain("AIMessage", NOON)],
        [{"type": "human", "data": {"content": TIDE}}, {"type": "ai", "data": {"content": SIX}},
         {"type": "human", "data": {"content": LOW}}, {"type": "ai", "data": {"content": NOON}}],
        [{"user": TIDE, "assistant": SIX}, {"user": LOW, "assistant": NOON}],
    ],
    ids=["openai", "plain", "langchain", "langchain dicts", "pairs"],
)  # fmt: skip
@pytest.mark.parametrize("column", ["messages", "turns", "conversation", "user_input", "input", "dialogue"])
def test_the_same_conversation_in_other_words(tmp_path: Path, messages: list[Row], column: str) -> None:
    if "assistant" in messages[0] and column in ("user_input", "input"):
        pytest.skip("a list of objects without roles may be anything under these names")
    mapping = {"conversation": column} if column == "dialogue" else {}
    samples, _ = read_rows(tmp_path, {column: messages}, **mapping)
    assert [describe(sample) for sample in samples] == TWO


def test_whole_turns_have_separate_contexts_and_ground_truths(tmp_path: Path) -> None:
    (first, second), _ = read_rows(tmp_path, TURNS)
    assert [describe(first), describe(second)] == [(*TWO[0][:4], "Six."), TWO[1]]
    assert (first.sample_id, first.context_ids, second.contexts) == ("7/1", ["chart#4"], None)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({"reference": "Noon."}, [None, "Noon."]),
        ({"reference": ["Six.", None]}, ["Six.", None]),
        ({"ground_truths": ["Noon.", "Twelve."]}, [None, "Noon."]),
        ({}, [None, None]),
    ],
)
def test_a_ground_truth_is_the_last_turns_unless_there_is_one_for_each(
    tmp_path: Path, beside: Row, expected: list[str | None]
) -> None:
    samples, _ = read_rows(tmp_path, {"messages": OPENAI["messages"], **beside})
    assert [sample.ground_truth for sample in samples] == expected
    assert samples[-1].metadata.get("ground_truths") == beside.get("ground_truths")


def test_a_question_that_waits_is_the_last_turn_and_the_row_may_bring_its_answer(tmp_path: Path) -> None:
    waiting = {"id": "w", "messages": [tell("user", TIDE), tell("assistant", SIX), tell("user", LOW)]}
    (first, second), _ = read_rows(tmp_path, waiting)
    assert [describe(first), describe(second)] == [TWO[0], (2, [TIDE, SIX], LOW, None, None)]
    samples, _ = read_rows(tmp_path, {**waiting, "response": NOON, "contexts": [CHART["text"]]})
    assert [(sample.answer, sample.contexts) for sample in samples] == [(SIX, None), (NOON, [CHART["text"]])]


def test_only_the_last_turn_and_only_so_many_conversations(tmp_path: Path) -> None:
    samples, use = read_rows(tmp_path, OPENAI, TURNS, turns="last")
    assert [sample.sample_id for sample in samples] == ["c1/2", "7/2"]
    assert [describe(sample) for sample in samples] == [TWO[1], TWO[1]]
    write_json_lines(tmp_path / "two.jsonl", [OPENAI, TURNS])
    limited = [sample for batch in read_samples(str(tmp_path / "two.jsonl"), limit=1) for sample in batch]
    assert [(sample.sample_id, sample.ordinal) for sample in limited] == [("c1/1", 1), ("c1/2", 2)]
    parts = [f"1 sample from the turns of 1 conversation in '{column}'; " for column in ("messages", "turns")]
    assert use.describe(is_asked=False).startswith("".join(parts))


def test_run_that_was_given_the_history_is_one_turn(tmp_path: Path) -> None:
    history = [of_langchain("HumanMessage", TIDE), of_langchain("AIMessage", SIX), of_langchain("HumanMessage", LOW)]
    (sample,), _ = read_rows(tmp_path, run_of("r9", [history], NOON))
    assert describe(sample) == TWO[1]
    assert (sample.sample_id, sample.metadata["conversation_id"]) == ("r9", "r9")


def test_run_in_a_bulk_export_holds_its_objects_as_json(tmp_path: Path) -> None:
    run = run_of("r2", [tell("user", TIDE), tell("assistant", SIX), tell("user", LOW)], NOON)
    text = {**run, **{name: json.dumps(run[name]) for name in ("inputs", "outputs")}}
    pl.DataFrame([text]).with_columns(pl.col("start_time").str.to_datetime()).write_parquet(tmp_path / "runs.parquet")
    assert [describe(sample) for sample in read(tmp_path / "runs.parquet")[0]] == [TWO[1]]


def test_a_graph_that_gives_all_messages_back_says_only_what_is_new(tmp_path: Path) -> None:
    asked = [tell("user", TIDE), tell("assistant", SIX), tell("user", LOW)]
    row = {"id": "x", "input": {"messages": asked}, "output": {"messages": [*asked, tell("assistant", NOON)]}}
    assert [describe(sample) for sample in read_rows(tmp_path, row)[0]] == TWO


@pytest.mark.parametrize(
    "row",
    [
        {"input": {"messages": [tell("system", RULES), tell("user", TIDE)]}, "output": SIX},
        {"question": TIDE, "answer": SIX, "messages": OPENAI["messages"], "turns": [1, 2]},
        {"id": "r", "run_type": "chain", "inputs": {"question": TIDE}, "outputs": {"answer": SIX}},
        run_of("r", [tell("user", TIDE)], SIX),
    ],
    ids=["one question", "a separate question", "a run", "a run of messages"],
)
def test_single_turns_stay_as_they_are(tmp_path: Path, row: Row) -> None:
    (sample,), use = read_rows(tmp_path, row)
    assert (sample.question, sample.answer, sample.conversation) == (TIDE, SIX, None)
    assert not {"conversation_id", "turn"} & sample.metadata.keys()
    assert use.describe(is_asked=False).startswith("columns: ")


@pytest.mark.parametrize("column", ["question", "query", "inputs.question", "user_input", "prompt", "inputs"])
def test_a_list_of_messages_that_a_person_typed_is_one_question(tmp_path: Path, column: str) -> None:
    typed = json.dumps([tell("user", TIDE), tell("assistant", SIX, contexts=[LOW]), tell("user", LOW)])
    plain = [{column: TIDE, "answer": SIX}] if column in ("user_input", "prompt") else []
    rows = [{column: typed, "answer": NOON}, *plain]
    if column == "inputs":
        rows = [{"inputs": {"question": typed}, "answer": NOON}]
    samples, _ = read_rows(tmp_path, *rows)
    assert len(samples) == len(rows)
    sample = samples[0]
    assert (sample.question, sample.answer, sample.contexts, sample.conversation) == (typed, NOON, None, None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"messages": [tell("user", TIDE), tell("critic", SIX)]},
            "message 2: it has no role that is known (user, human, assistant, ai, agent, bot, model, gpt, chatgpt, "
            "tool, function, observation, system, developer) and no question: role 'critic', content"),
        (
            {**OPENAI, "response": "At one."},
            "it ends with an answer, and 'response' holds another; leave one of the two out"),
        (
            {**OPENAI, "reference": ["Six."]},
            "'reference' is a list of 1 for 2 turns; write one for each turn, null for a turn without one, or a "
            "single one for the last"),
        ({"messages": [tell("assistant", SIX)]}, "no message is the user's"),
        ({"messages": [tell("user", 7)]}, "message 1: its text is a number, not text: 7"),
        ({"messages": [tell("user", [{"type": "image_url"}])]}, "the question is empty"),
    ],
)  # fmt: skip
def test_ambiguous_conversation_is_refused_with_its_place(tmp_path: Path, row: Row, message: str) -> None:
    with pytest.raises(DatasetError) as caught:
        read_rows(tmp_path, row)
    place = "" if message == "the question is empty" else "the conversation in 'messages': "
    assert str(caught.value).splitlines()[1] == f"  line 1: {place}{message}"
    assert "1 problem; nothing was loaded" in str(caught.value)


ROLES: list[Speaker] = ["user", "assistant", "tool", "system"]


@given(st.lists(st.tuples(st.sampled_from(ROLES), st.text(alphabet="ab é", max_size=3)), max_size=12))
def test_every_turn_has_the_turns_before_it(spoken: Sequence[tuple[Speaker, str]]) -> None:
    messages = [Message(role=role, text=text) for role, text in spoken]
    turns = cut_turns(messages)
    assert [turn.number for turn in turns] == list(range(1, len(turns) + 1))
    assert bool(turns) == any(role == "user" for role, _ in spoken)
    for turn in turns:
        assert all(entry["role"] in ("user", "assistant") and str(entry["text"]).strip() for entry in turn.conversation)
    for earlier, later in itertools.pairwise(turns):
        entries = [*earlier.conversation, _entry("user", earlier.question), _entry("assistant", earlier.answer or "")]
        grown = [entry for entry in entries if str(entry["text"]).strip()]
        assert later.conversation[: len(grown)] == grown
        assert all(entry["role"] == "user" for entry in later.conversation[len(grown) :])


def _entry(role: str, text: str) -> Mapping[str, Any]:
    return {"role": role, "text": text}


@pytest.mark.parametrize("column", ["chat_history", "history"])
def test_a_history_beside_a_question_is_proposed_as_the_conversation(tmp_path: Path, column: str) -> None:
    """Frameworks keep it in a column of that name, which may be anything else as well; pairs are read like messages."""
    row: Row = {"question": LOW, "answer": NOON, column: [["human", TIDE], ["ai", SIX]]}
    (sample,), _ = read_rows(tmp_path, row, conversation=column)
    assert [(turn.role, turn.text) for turn in sample.conversation or ()] == [("user", TIDE), ("assistant", SIX)]
    row[column] = [["agent", "You are in the queue."], [TIDE, SIX]]
    (sample,), _ = read_rows(tmp_path, row, conversation=column)
    assert [turn.text for turn in sample.conversation or ()] == ["agent", "You are in the queue.", TIDE, SIX]
    row[column] = [[TIDE, SIX]]
    (sample,), use = read_rows(tmp_path, row)
    assert not sample.conversation
    assert use.suggest(is_asked=True)[-1] == (f"is {column!r} the conversation? --map conversation={column} reads it")
    (sample,), use = read_rows(tmp_path, row, conversation=column)
    assert [turn.text for turn in sample.conversation or ()] == [TIDE, SIX]
    assert not any("conversation" in line for line in use.suggest(is_asked=True))
    _, use = read_rows(tmp_path, {**row, column: "The port was built in 1788."})
    assert not any("conversation" in line for line in use.suggest(is_asked=True)), "a text holds no turns"
