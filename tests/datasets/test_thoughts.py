"""The thoughts of a bot: found by their marks, left out of its answers, and kept."""

import re
import time
from pathlib import Path

import pytest
from dataset_files import Row, read_all, read_one, write_json_lines
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.tasks.datasets.read import read_samples
from evalhouse.tasks.datasets.rows import Thoughts
from evalhouse.tasks.datasets.thoughts import join_thoughts, split_thoughts
from evalhouse.tasks.targets.protocol import make_answer

RED = "Alpha is red."
# By name a text and its answer.
WITH_THOUGHTS: dict[str, tuple[str, str]] = {
    "a block": (f"<think>\nThe user asks.\n</think>\n\n{RED}", RED),
    "on one line": (f"<think>x</think> {RED}", RED),
    "capitals": (f"<Thinking>x</THINKING>{RED}", RED),
    "reasoning": (f"<reasoning>why</reasoning>\n<answer>{RED}</answer>", f"<answer>{RED}</answer>"),
    "Mistral's": (f"[THINK]a[/THINK]{RED}", RED),
    "Kimi's": (f"◁think▷a◁/think▷{RED}", RED),
    "Open WebUI's": (f'<details type="reasoning" done="true">\n<summary>hm</summary>\n</details>\n{RED}', RED),
    "not closed": ("<think>never ends, Alpha", ""),
    "cut off behind an answer": (f"{RED}\n<think>Wait", RED),
    "a closing mark alone": (f"Okay.\nYes.</think>\n\n{RED}", RED),
    "a closing mark before the answer": (f"Okay</think>{RED}", RED),
    "a closing mark at the end of a sentence": (f"Okay. It is so.</think> {RED}", RED),
    "a closing mark behind a space": (f"Okay. It is so. </think> {RED}", RED),
    "a closing mark behind a quote": (f'Okay, "so".</think> {RED}', RED),
    "a closing mark before a tag": (f"Okay</think><p>{RED}</p>", f"<p>{RED}</p>"),
    "a closing mark before code": ("Okay</think>```sql\nselect 1\n```", "```sql\nselect 1\n```"),
    "a closing mark before a quote": (f"Okay</think>“{RED}”", f"“{RED}”"),
    "a closing mark before a Spanish question": (f"Vale</think>¿{RED}?", f"¿{RED}?"),
    "two blocks": (f"<think>a</think>\n{RED}\n<think>b</think>\nBeta.", f"{RED}\n\nBeta."),
    "behind a greeting": (f"Sure.\n\n<think>hm</think>\n\n{RED}", f"Sure.\n\n{RED}"),
    "a quoted mark inside": (f"<think>the </think> tag, `</think>`</think>\n{RED}", RED),
    "one in another": (f"<think>a <think>b</think> c</think>\n{RED}", RED),
    "code that is not closed inside": (f"<think>```python\nx</think>\n\n{RED}", RED),
    "nothing inside": (f"<think>\n\n</think>\n\n{RED}", RED),
    "an answer about the marks": (f"<think>hm</think>\n\n{RED} Not `<think>`.", f"{RED} Not `<think>`."),
    "harmony": (
        f"<|channel|>analysis<|message|>Asks.<|end|><|start|>assistant<|channel|>final<|message|>{RED}<|return|>", RED,
    ),
    "harmony with a tool": (
        f"<|channel|>analysis hm<|end|><|channel|>commentary to=functions.find <|constrain|>json<|message|>{{}}<|call|>"
        f"<|channel|>final {RED}",
        RED,
    ),
    "harmony cut off": ("<|channel|>analysis<|message|>The user", ""),
    "harmony without its tokens": (f"analysisThe user asks.assistantfinal{RED}", RED),
}  # fmt: skip
WITHOUT = [
    RED,
    "Use `<think>` and `</think>` to wrap.",
    "Write:\n```\n<think>\nhm\n</think>\nanswer\n```\nThat is it.",
    "~~~xml\n<thinking>x</thinking>\n~~~",
    "The model writes <think> before and </think> after.",
    "Use </think> to close.",
    "Close with </think>.",
    "The marks are “<b>”, “</think>” and others.",
    "3 < 4, [1] and <b>bold</b>.",
    "analysis shows that the assistant is final",
    "",
]


@pytest.mark.parametrize("name", WITH_THOUGHTS)
def test_thoughts_are_kept_apart_from_the_answer(tmp_path: Path, name: str) -> None:
    text, answer = WITH_THOUGHTS[name]
    spoken = split_thoughts(text)
    assert spoken.text == answer
    assert spoken.thoughts is not None
    assert split_thoughts(join_thoughts(spoken.thoughts, answer)).text == answer
    row: Row = {"question": "q", "answer": text}
    sample = read_one(tmp_path, row)
    assert (sample.answer, sample.metadata) == (answer or None, {"answer_thoughts": spoken.thoughts})
    path = write_json_lines(tmp_path / "judged.jsonl", [row])
    ((judged,),) = read_samples(path, thoughts="beside")
    assert (judged.answer, judged.metadata) == (text, {})


THOUGHT_BASE = "<think>\nWhales.\n</think>\n\nbase"


@pytest.mark.parametrize(("columns", "mapping", "thoughts", "answer"), [
    ({"answer": "base"}, {}, "beside", THOUGHT_BASE),
    ({"outputs": {"text": "base", "id": 1}}, {"answer": "outputs.text"}, "beside", THOUGHT_BASE),
    ({"answer": "base", "b": "other"}, {"answer": "b"}, "beside", "other"),
    ({"answer": "base", "response": "other"}, {"answer": "answer"}, "beside", THOUGHT_BASE),
    ({"answer": "other", "response": "base"}, {"answer": "response"}, "beside", "base"),
    ({"answer": None, "output": {"raw": 1}, "b": "base"}, {"answer": "b"}, "beside", THOUGHT_BASE),
    ({"a": "base", "b": "<think>Fish.</think>other"}, {"answer": "b"}, "within", "<think>Fish.</think>other"),
])  # fmt: skip
def test_a_column_of_thoughts_is_judged_with_the_answers_of_its_bot(
    tmp_path: Path, columns: Row, mapping: dict[str, str], thoughts: Thoughts, answer: str
) -> None:
    """A variant's answers were judged with the thoughts of the suite's bot in front."""
    path = write_json_lines(tmp_path / "judged.jsonl", [{"question": "q", "reasoning_content": "Whales.", **columns}])
    ((judged,),) = read_samples(path, mapping=mapping, thoughts=thoughts)
    assert judged.answer == answer


@pytest.mark.parametrize("text", WITHOUT)
def test_answer_without_thoughts_stays_unchanged(text: str) -> None:
    assert (split_thoughts(text).text, split_thoughts(text).thoughts) == (text, None)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "`", "```", "\n", " ", "a", "[THINK]", "<|channel|>", "final"]))
)
def test_every_character_is_in_the_answer_or_the_thoughts(parts: list[str]) -> None:
    text = "".join(parts)
    spoken = split_thoughts(text)
    if "<|channel|>" not in text:  # whose final channel has a name that is not the answer's
        letters = re.sub(r"\s", "", spoken.text + (spoken.thoughts or ""))
        assert sorted(letters) == sorted(re.sub(r"\s", "", text))


@pytest.mark.parametrize(
    "text", ["<think>" + "a <think> `b` </think> c\n" * 9_000, "</think>x" * 20_000, "`" * 20_000 + "<"]
)
def test_long_texts_take_no_time(text: str) -> None:
    clock = time.perf_counter()
    split_thoughts(text)
    assert time.perf_counter() - clock < 5


ASKED = {"role": "user", "content": "q"}
HM = {"type": "thinking", "thinking": "hm"}
THOUGHT = "<think>hm</think>\n"
SHAPES: dict[str, tuple[Row, Row]] = {
    "messages": (
        {"messages": [ASKED, {"role": "assistant", "content": RED, "reasoning_content": "hm"}]},
        {"answer_thoughts": "<think>\nhm\n</think>"},
    ),
    "a message of parts": (
        {"messages": [ASKED, {"role": "assistant", "content": [HM, {"type": "text", "text": RED}]}]},
        {"answer_thoughts": "<think>\nhm\n</think>"},
    ),
    "an object of a tracing tool": (
        {"input": "q", "output": {"role": "assistant", "content": f"{THOUGHT}{RED}"}},
        {"answer_thoughts": "<think>hm</think>"},
    ),
    "parts of a tracing tool": (
        {"input": "q", "output": [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": RED}]},
        {"output": [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": RED}]},
    ),
    "a column beside the answer": (
        {"question": "q", "answer": RED, "reasoning_content": "hm"}, {"reasoning_content": "hm"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_thoughts_beside_an_answer_are_kept_and_not_judged(tmp_path: Path, name: str) -> None:
    row, kept = SHAPES[name]
    (sample,) = read_all(write_json_lines(tmp_path / "qa.jsonl", [row]))
    assert sample.answer == RED
    assert kept.items() <= sample.metadata.items()


def test_earlier_turns_have_no_thoughts(tmp_path: Path) -> None:
    turns = [{"role": "user", "text": "Why?"}, {"role": "assistant", "text": f"{THOUGHT}So."}]
    sample = read_one(tmp_path, {"question": "q", "conversation": [*turns, {"role": "ai", "text": "<think>cut"}]})
    assert [turn.text for turn in sample.conversation or ()] == ["Why?", "So."]


@pytest.mark.parametrize(
    ("answer", "beside", "expected"),
    [
        (RED, "hm", f"<think>\nhm\n</think>\n\n{RED}"),
        (
            [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": RED}],
            None,
            f"<think>\nhm\n</think>\n\n{RED}",
        ),
        ([{"type": "text", "text": "Alpha "}, {"type": "text", "text": "is red."}], None, RED),
    ],
)
def test_thoughts_of_a_bot_come_in_marks_before_its_answer(answer: object, beside: str | None, expected: str) -> None:
    assert make_answer(answer, None, thoughts=beside).answer == expected
