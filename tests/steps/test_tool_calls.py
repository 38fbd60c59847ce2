"""Tool calls: the shapes they come in, their agreement, and unreadable calls."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import pytest
from grades import measure, score_work
from hypothesis import given
from hypothesis import strategies as st
from live_runs import make_sample, read_outcomes
from rows import fill, open_rows

from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.measures import overlap
from evalhouse.tasks.measures import structured_answers as tool_calls
from evalhouse.tasks.measures.overlap import KINDS, measure_overlap
from evalhouse.tasks.measures.structured_answers import ToolCall, ToolCallError, grade_tool_calls, read_tool_calls
from evalhouse.tasks.pipeline.live_run import SampleWork
from evalhouse.warehouse.queries import read_query

ASK = ToolCall(name="ask_tide", arguments={"harbour": "Quillon", "day": 1})
BOOK = ToolCall(name="book_berth", arguments={"length_m": 12.5})
LIST = ToolCall(name="list_ships")
RATINGS = ("names", "arguments", "order", "in_order", "any_order")


def grade(expected: list[ToolCall], made: list[ToolCall]) -> dict[str, float]:
    return {one.criterion: one.rating for one in grade_tool_calls(expected, made)}


def explain(expected: list[ToolCall], made: list[ToolCall]) -> str:
    (reason,) = {one.reason for one in grade_tool_calls(expected, made)}
    return reason


@pytest.mark.parametrize("module", [tool_calls, overlap])
def test_the_worked_examples_hold(module: Any) -> None:  # noqa: ANN401
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted > 0


SHAPES: dict[str, Any] = {
    "LangChain": {"name": "ask_tide", "args": {"harbour": "Quillon", "day": 1}, "id": "c1", "type": "tool_call"},
    "OpenAI": {
        "id": "c1", "type": "function",
        "function": {"name": "ask_tide", "arguments": '{"harbour": "Quillon", "day": 1}'},
    },
    "OpenAI responses": {"type": "function_call", "name": "ask_tide", "arguments": '{"day": 1, "harbour": "Quillon"}'},
    "deepeval": {"name": "ask_tide", "input_parameters": {"harbour": "Quillon", "day": 1}, "output": None},
    "Llama": {"name": "ask_tide", "parameters": {"harbour": "Quillon", "day": 1}},
    "Gemini": {"functionCall": {"name": "ask_tide", "args": {"harbour": "Quillon", "day": 1}}},
    "Gemini in Python": {"function_call": {"name": "ask_tide", "args": {"harbour": "Quillon", "day": 1}}},
    "Bedrock": {"toolUse": {"toolUseId": "c1", "name": "ask_tide", "input": {"harbour": "Quillon", "day": 1}}},
    "Pydantic AI": {"tool_name": "ask_tide", "args": '{"harbour": "Quillon", "day": 1}', "tool_call_id": "c1"},
    "LlamaIndex": {"tool_id": "c1", "tool_name": "ask_tide", "tool_kwargs": {"harbour": "Quillon", "day": 1}},
    "LangChain's agents": {"tool": "ask_tide", "tool_input": {"harbour": "Quillon", "day": 1}, "log": "I look it up."},
    "AI SDK": {"type": "tool-call", "toolName": "ask_tide", "input": {"harbour": "Quillon", "day": 1}},
    "Anthropic": {"type": "tool_use", "id": "c1", "name": "ask_tide", "input": {"harbour": "Quillon", "day": 1}},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_common_shape_is_the_same_call(shape: str, packed: bool) -> None:
    calls: Any = [SHAPES[shape]]
    assert read_tool_calls(json.dumps(calls) if packed else calls, strict=True) == [ASK]
    assert read_tool_calls(json.dumps(calls[0]) if packed else calls[0], strict=True) == [ASK]


@pytest.mark.parametrize("arguments", [{"args": {}}, {"arguments": ""}, {"arguments": "{}"}, {"input": None}, {}])
def test_a_call_may_have_no_arguments(arguments: dict[str, Any]) -> None:
    assert read_tool_calls([{"name": "list_ships", **arguments}], strict=True) == [LIST]


def ask(**arguments: object) -> ToolCall:
    return ToolCall(name="ask_tide", arguments=arguments)


ALL_RIGHT, NONE_RIGHT = dict.fromkeys(RATINGS, 1.0), dict.fromkeys(("names", "any_order", "in_order"), 0.0)
ONE_OF_TWO = {**dict.fromkeys(RATINGS, 2 / 3), "arguments": 1.0, "order": 1.0}
OTHER_DAY = {"names": 1.0, "arguments": 2 / 3, "order": 1.0, "in_order": 2 / 3, "any_order": 2 / 3}
DAYS = [ask(day=day) for day in (1, 2, 3)]
# By case the calls that were expected and made, their ratings, and the reason.
AGREEMENTS: dict[str, tuple[list[ToolCall], list[ToolCall], dict[str, float], str]] = {
    **{f"{len(calls)} as expected": (calls, calls, ALL_RIGHT, "all calls as expected")
       for calls in ([], [LIST], [ASK, ASK], [ASK, BOOK, LIST])},
    "missing": ([ASK, BOOK], [ASK], ONE_OF_TWO, "missing book_berth"),
    "extra": ([ASK], [ASK, BOOK], ONE_OF_TWO, "extra book_berth"),
    "none made": ([ASK], [], NONE_RIGHT, "missing ask_tide"),
    "none expected": ([], [ASK], NONE_RIGHT, "extra ask_tide"),
    "another": ([ASK], [BOOK], NONE_RIGHT, "missing ask_tide"),
    "another order": (
        [ASK, BOOK, LIST], [BOOK, LIST, ASK], {"any_order": 1.0, "in_order": 2 / 3, "order": 2 / 3},
        "all calls as expected, in another order",
    ),
    "another day": ([ASK], [ask(harbour="Quillon", day=2)], OTHER_DAY, "wrong arguments ask_tide: day"),
    "an argument missing": ([ASK], [ask(harbour="Quillon")], {"arguments": 2 / 3}, "ask_tide: day"),
    "an argument more": ([ASK], [ask(harbour="Quillon", day=1, year=2024)], {"arguments": 3 / 4}, "ask_tide: year"),
    "no argument right": ([ASK], [ask(harbour="Orm", day=9)], {"arguments": 1 / 3}, "ask_tide: "),
    "no arguments": ([ASK], [ask()], {"arguments": 1 / 3}, "ask_tide: "),
    # Paired so that they agree best; in order the last two agree wholly, and nothing is left for the third.
    "turned round": (DAYS, [DAYS[2], DAYS[0], DAYS[1]], {"any_order": 1.0, "in_order": 2 * 2 / 6}, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", AGREEMENTS)
def test_ratings_are_shares_of_what_agrees(case: str) -> None:
    expected, made, ratings, reason = AGREEMENTS[case]
    found = grade(expected, made)
    assert {name: found[name] for name in ratings} == pytest.approx(ratings)
    assert reason in explain(expected, made)


@pytest.mark.parametrize(
    ("wanted", "given", "is_equal"),
    [
        (1, 1.0, True), (1, "1", False), (1, True, False), (0, False, False), (True, True, True), (None, None, True),
        ("Quillon", " Quillon ", True), ("Quillon", "quillon", False), ([1, 2], [2, 1], False),
        ({"a": [1]}, {"a": [1.0]}, True), ({"a": 1}, {"a": 1, "b": 2}, False), ({"a": None}, {}, False),
        ([True], [1], False), ("", None, False), ("M\u00fcnchen", "Mu\u0308nchen", True),
    ],
)  # fmt: skip
def test_arguments_are_equal_as_json_is(wanted: object, given: object, is_equal: bool) -> None:
    expected, made = (ToolCall(name="f", arguments={"x": value}) for value in (wanted, given))
    assert (grade([expected], [made])["any_order"] == 1) is is_equal


def test_an_argument_may_have_several_right_values_and_be_left_out() -> None:
    (call,) = read_tool_calls(
        [{"name": "ask_tide", "args": {"day": 1}, "accepted": {"harbour": ["Quillon", "Quillon Minor", None]}}],
        strict=True,
    )
    for right in ({"harbour": "Quillon"}, {"harbour": "Quillon Minor"}, {"harbour": None}, {}):
        assert grade([call], [ToolCall(name="ask_tide", arguments={"day": 1, **right})])["any_order"] == 1
    assert grade([call], [ToolCall(name="ask_tide", arguments={"day": 1, "harbour": "Orm"})])["any_order"] < 1


def test_a_bot_cannot_accept_its_own_arguments() -> None:
    made = read_tool_calls(
        [{"name": "ask_tide", "args": {}, "accepted": {"harbour": [None], "day": [None]}}], strict=False
    )
    assert grade([ASK], made)["any_order"] == pytest.approx(1 / 3)


MALFORMED: list[Any] = [
    "not JSON", "{", 7, {"called": "ask_tide"}, '{"called": "ask_tide"}', [7], [None], [["ask_tide"]], [{}],
    [{"name": None}], [{"function": None}], [{"function": "ask_tide"}], [{"name": "ask_tide", "args": 7}],
    [{"name": "ask_tide", "arguments": "{broken"}], [{"name": "ask_tide", "arguments": "[1]"}],
    [{"name": "ask_tide", "accepted": {"day": 1}}], "[" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("value", MALFORMED, ids=lambda value: str(value)[:30])
def test_calls_that_cannot_be_read_are_wrong_where_made_and_an_error_where_expected(value: object) -> None:
    made = read_tool_calls(value, strict=False)
    assert made
    assert grade([ASK], made)["any_order"] == 0
    assert grade([], made)["any_order"] == 0
    with pytest.raises(ToolCallError, match=r"must be|not valid JSON"):
        read_tool_calls(value, strict=True)


def test_one_malformed_call_does_not_spoil_the_others() -> None:
    made = read_tool_calls([SHAPES["OpenAI"], {"name": "book_berth", "arguments": "{"}], strict=False)
    found = grade([ASK, BOOK], made)
    assert (found["names"], found["any_order"]) == (0.5, 0.5)
    assert "extra book_berth (unreadable)" in explain([ASK, BOOK], made)


names = st.sampled_from(["ask", "book", "list"])
values = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.text(max_size=2), st.lists(st.integers(), max_size=2)
)
calls = st.lists(
    st.builds(ToolCall, name=names, arguments=st.dictionaries(st.sampled_from("abc"), values, max_size=3)), max_size=5
)


@given(calls, calls)
def test_any_calls_have_shares_that_are_the_same_from_both_sides(one: list[ToolCall], other: list[ToolCall]) -> None:
    found = grade(one, other)
    assert all(0 <= value <= 1 for value in found.values())
    assert found["in_order"] <= found["any_order"] + 1e-12
    for name, value in grade(other, one).items():
        assert value == pytest.approx(found[name])


@given(calls, st.randoms(use_true_random=False))
def test_order_is_of_no_matter_to_what_is_free_of_it(one: list[ToolCall], random: Any) -> None:  # noqa: ANN401
    shuffled = random.sample(one, k=len(one))
    assert grade(one, shuffled)["any_order"] == pytest.approx(1)
    assert grade(one, one)["in_order"] == pytest.approx(1)


@given(st.recursive(values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)))
def test_anything_a_bot_sends_has_a_score(value: Any) -> None:  # noqa: ANN401
    assert 0 <= grade([ASK], read_tool_calls(value, strict=False))["any_order"] <= 1


async def measure_calls(folder: Path, **metadata: object) -> SampleWork:
    return await measure(folder, make_sample(metadata_json=json.dumps(metadata)), "tool_call_accuracy")


async def test_a_samples_calls_are_scored_in_order_or_in_any(tmp_path: Path) -> None:
    expected = [SHAPES["Anthropic"], {"name": "list_ships"}]
    work = await measure_calls(
        tmp_path, expected_tool_calls=expected, tool_calls=[{"name": "list_ships"}, SHAPES["OpenAI"]]
    )
    assert read_outcomes(work) == {"tool_calls": None}
    assert score_work(work, "tool_call_accuracy") == (0.5, None)
    assert score_work(work, "tool_call_accuracy", any_order=1) == (1, None)
    assert {row["criterion"] for row in work.rows["grades"]} == {"names", "arguments", "order", "in_order", "any_order"}


@pytest.mark.parametrize(("metadata", "expected"), [
    ({"tool_calls": []}, "no_ground_truth"),
    ({"expected_tool_calls": []}, "no_answer"),
    ({"expected_tool_calls": [], "tool_calls": None}, 1),
    ({"expected_tool_calls": [{"name": "list_ships"}], "tool_calls": None}, 0),
    ({"expected_tool_calls": [{"name": "list_ships"}], "turn": 1}, 0),
    ({"expected_tool_calls": [], "turn": 1}, 1),
    ({"reference_tool_calls": [{"name": "list_ships"}], "tool_calls": [{"name": "list_ships"}]}, 1),  # of ragas
    ({"expected_tools": [{"name": "list_ships"}], "tools_called": [{"name": "list_ships"}]}, 1),  # of deepeval
    ({"expected_tools": [{"name": "list_ships"}], "tools_called": None}, 0),
    ({"expected_tools": ["list_ships"], "tools_called": ["list_ships"]}, "no_ground_truth"),
])  # fmt: skip
async def test_no_call_differs_from_no_record(tmp_path: Path, metadata: dict[str, Any], expected: float | str) -> None:
    work = await measure_calls(tmp_path, **metadata)
    assert score_work(work, "tool_call_accuracy") == (
        (None, expected) if isinstance(expected, str) else (expected, None)
    )


@pytest.mark.parametrize(("filled", "score"), [(["expected_tool_calls"], 1.0), (["tool_calls"], 1.0), ([], 0.667)])
async def test_a_null_that_a_table_may_have_filled_in_is_an_argument_that_was_not_given(
    tmp_path: Path, filled: list[str], score: float
) -> None:
    """OpenAI's strict mode sends all arguments as JSON, null for the optional ones."""
    calls = [{"function": {"name": "ask_tide", "arguments": '{"harbour": "Quillon", "day": null}'}}]
    expected = [{"name": "ask_tide", "args": {"harbour": "Quillon"}, "accepted": None}]
    metadata = {"expected_tool_calls": expected, "tool_calls": calls, "nulls_filled_in": filled}
    value, _ = score_work(await measure_calls(tmp_path, **metadata), "tool_call_accuracy")
    assert value == pytest.approx(score, abs=1e-3)


def test_a_dataset_has_a_column_that_any_row_has() -> None:
    with open_rows() as con:
        for run_id, metadata in (("with", '{"tool_calls": null}'), ("without", "{}"), ("with", None)):
            key = {"sample_id": f"{run_id}-{metadata}", "input_hash": "h"}
            fill(con, "samples", {**key, "metadata": metadata})
            fill(con, "run_samples", {**key, "run_id": run_id})
        query = read_query("samples/has_column")
        found = [
            con.execute(query, {"run_id": name, "column": "tool_calls"}).fetchall() for name in ("with", "without")
        ]
    assert found == [[(1,)], []]


async def test_malformed_expectations_stop_the_run_with_one_message_that_names_the_sample(tmp_path: Path) -> None:
    message = "sample s1, column expected_tool_calls: an expected tool call is .*; it must be "
    with pytest.raises(FatalJudgeError, match=message):
        await measure_calls(tmp_path, expected_tool_calls=[{"called": "ask_tide"}], tool_calls=[])


async def test_what_a_bot_made_never_stops_a_run(tmp_path: Path) -> None:
    work = await measure_calls(tmp_path, expected_tool_calls=[SHAPES["OpenAI"]], tool_calls="I would call ask_tide.")
    assert score_work(work, "tool_call_accuracy") == (0, None)


@pytest.mark.parametrize(
    ("answer", "ground_truth", "exact", "f1"),
    [
        ("Paris.", "Paris", 1, 1),
        ("An apple a day", "apple day", 1, 1),
        # paris, is, capital, of, france against paris: 1 in common of 5 and of 1 token.
        ("Paris is the capital of France.", "Paris", 0, 2 / 6),
        # Each as often as both have it: tick, tick in common of 3 and of 2.
        ("tick tick tick", "tick tick", 0, 4 / 5),
        # A hyphen is taken out, and no gap is left.
        ("well-known", "wellknown", 1, 1),
        ("well-known", "well known", 0, 0),
        ("$20", "20 dollars", 0, 2 / 3),
        ("“Café”, 1999…", "café 1999", 1, 1),
        # 首 都 是 北 京 市 against 北 京: 2 in common of 6 and of 2 characters.
        ("首都是北京市", "北京", 0, 4 / 8),
        ("The", "A", 0, 0),
        *((text, "A", 1, 1) for text in ("A.", "(A)", "a", " “A” ", "A:")),
        # One text in several Unicode forms.
        ("카이로는 수도입니다", "카이로는 수도입니다", 1, 1),
        ("ｶﾞﾗｽ", "ガラス", 1, 1),
        ("e\u00adlec\u200btri\u2060city\ufeff", "electricity", 1, 1),
        ("10²", "102", 0, 0),
        ("", "Paris", 0, 0),
    ],
)
def test_exact_match_and_token_f1_are_squads(answer: str, ground_truth: str, exact: float, f1: float) -> None:
    found = measure_overlap(answer, ground_truth)
    assert found["squad_exact_match"] == exact
    assert found["token_f1"] == pytest.approx(f1)


def test_sequences_of_words_or_chinese_characters_are_compared() -> None:
    # Common in order: the, cat, on, the, mat (5 of 6 and of 7 words).
    found = measure_overlap("the cat sat on the mat", "the big cat lay on the mat")
    assert found["rouge_l"] == pytest.approx(2 * 5 / (6 + 7))
    # 1-grams 3 of 4, 2-grams 2 of 3, 3-grams 1 of 2; no 4-gram in common, smoothed to a half of one; equal lengths.
    found = measure_overlap("a b c x", "a b c y")
    assert found["bleu"] == pytest.approx((3 / 4 * 2 / 3 * 1 / 2 * (1 / 2) / 1) ** (1 / 4))
    # 首 都 北 京 in common of 6 and of 5 characters; as one word without a gap there would be nothing in common.
    found = measure_overlap("首都是北京市。", "首都：北京!")
    assert found["rouge_l"] == pytest.approx(2 * 4 / (6 + 4))
    assert 0 < found["bleu"] < 1
    assert measure_overlap("首都是北京", "首都是北京") == dict.fromkeys(KINDS, 1.0)


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_two_texts_have_shares_and_equal_ones_agree(one: str, other: str) -> None:
    assert all(0 <= value <= 1 for value in measure_overlap(one, other).values())
    if any(char.isalnum() for char in one):
        assert measure_overlap(one, one)["squad_exact_match"] == 1


async def test_a_sample_has_all_of_them_on_record(tmp_path: Path) -> None:
    work = await measure(tmp_path, make_sample(answer="in Paris today", ground_truth="in Paris"), "bleu")
    expected = measure_overlap("in Paris today", "in Paris")
    assert {row["kind"]: row["value"] for row in work.rows["similarities"]} == expected
    for kind in KINDS:
        assert score_work(work, kind.removeprefix("squad_")) == (expected[kind], None)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"answer": None}, "no_answer"),
    ({"ground_truth": None}, "no_ground_truth"),
    ({"answer": None, "ground_truth": None}, "no_ground_truth"),
])  # fmt: skip
async def test_one_text_alone_has_no_score(tmp_path: Path, changes: dict[str, str | None], reason: str) -> None:
    work = await measure(tmp_path, make_sample(**changes), "bleu")
    assert score_work(work, "rouge_l") == (None, reason)
