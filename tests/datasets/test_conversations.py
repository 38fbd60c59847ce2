"""Earlier turns in the spellings of datasets, and their effect on a sample's id and hash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dataset_files import read_all, write_json_lines

from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.datasets.rows import hash_inputs
from evalhouse.tasks.datasets.values import DatasetError
from evalhouse.warehouse.rows.samples import Turn, dump_turns, load_turns

OURS = [
    {"role": "user", "text": "How long is the crossing?"},
    {"role": "assistant", "text": "40 minutes.", "contexts": ["Crossing: 40 minutes."], "context_ids": ["c1"]},
]
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "human", "content": "How long is the crossing?"},
    {"role": "ai", "content": [{"type": "text", "text": "40"}, {"type": "text", "text": "minutes."}]},
]
NOTHING: dict[str, Any] = {
    "question": "Why?", "answer": "So.", "ground_truth": None, "contexts": None, "context_ids": None,
    "reference_context_ids": None,
}  # fmt: skip


def read_one(folder: Path, conversation: object, **columns: object) -> Any:  # noqa: ANN401  # a SampleRow
    (sample,) = read_all(
        write_json_lines(
            folder / "rows.jsonl", [{"question": "And in winter?", "conversation": conversation, **columns}]
        )
    )
    return sample


def test_turns_and_messages_of_chat_apis_are_read(tmp_path: Path) -> None:
    asked = Turn(role="user", text="How long is the crossing?")
    answered = Turn(role="assistant", text="40 minutes.", contexts=["Crossing: 40 minutes."], context_ids=["c1"])
    assert read_one(tmp_path, OURS).conversation == [asked, answered]
    assert read_one(tmp_path, MESSAGES).conversation == [asked, Turn(role="assistant", text="40\nminutes.")]
    assert load_turns(dump_turns([asked, answered])) == [asked, answered]
    assert "conversation" not in read_one(tmp_path, OURS).metadata


def test_instructions_of_a_system_are_left_out_with_a_word(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "rows.jsonl", [{"question": "And?", "conversation": MESSAGES}])
    staged = stage_dataset(str(path), mapping={}, limit=None)
    staged.staging.discard()
    assert "left out of conversations: 1 system turns" in staged.use.describe(is_asked=False)


def test_a_cell_of_a_table_holds_a_conversation_as_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    cell = json.dumps(OURS).replace('"', '""')
    path.write_text(f'question,talk\nAnd in winter?,"{cell}"\nAlone?,\n', encoding="utf-8")
    staged = stage_dataset(str(path), mapping={"conversation": "talk"}, limit=None)
    samples = staged.staging.read_between(1, 2)
    staged.staging.discard()
    assert [turn.text for turn in samples[0].conversation] == ["How long is the crossing?", "40 minutes."]
    assert samples[1].conversation_json is None


@pytest.mark.parametrize(
    ("conversation", "problem"),
    [
        ("c-17", "conversation is not a list of turns but text"),
        (["Hello"], "turn 1 of the conversation: it is text, not an object"),
        (
            [{"role": "critic", "text": "x"}],
            "turn 1 of the conversation: it has no role that is known (user, human, assistant",
        ),
        ([{"text": "x"}], "it has no role that is known"),
        ([OURS[0], {"role": "assistant", "content": None}], "turn 2 of the conversation: it has no text"),
        ([{"role": "user", "text": "x", "contexts": ["c"]}], "only an assistant's turn may have them"),
        ([{"role": "ai", "text": "x", "contexts": ["c"], "context_ids": []}], "it has 0 context_ids for 1 contexts"),
        ([{"role": "ai", "text": {"a": 1}}], "its text is an object, not text"),
    ],
)
def test_invalid_conversation_is_refused_with_its_row(tmp_path: Path, conversation: object, problem: str) -> None:
    with pytest.raises(DatasetError) as raised:
        read_one(tmp_path, conversation)
    assert problem in str(raised.value)
    assert "line 1" in str(raised.value)
    assert '{"role": "user", "text": "…"}' in str(raised.value)


def test_ids_of_follow_up_questions_depend_on_the_users_turns_alone(tmp_path: Path) -> None:
    first = read_one(tmp_path, OURS)
    otherwise = read_one(tmp_path, [OURS[0], {"role": "assistant", "text": "An hour."}])
    another = read_one(tmp_path, [{"role": "user", "text": "How long is the ride?"}, OURS[1]])
    alone = read_one(tmp_path, None)
    assert first.sample_id == otherwise.sample_id != another.sample_id
    assert first.sample_id != alone.sample_id == read_one(tmp_path, []).sample_id
    assert len({row.input_hash for row in (first, otherwise, another, alone)}) == 4


def test_sample_without_turns_keeps_its_hash(tmp_path: Path) -> None:
    assert hash_inputs(**NOTHING) == "66c105536fb746356173729251715cc2"
    assert (
        hash_inputs(**NOTHING, conversation=None) == hash_inputs(**NOTHING, conversation=[]) == hash_inputs(**NOTHING)
    )
