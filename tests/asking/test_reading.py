"""Replies as models write them, objects and rows: JSON is found anywhere and checked against the question."""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from live_runs import (
    PROMPTS,
    ScriptedJudge,
    judge_samples,
    lay_out_run,
    make_sample,
    read_calls,
    read_outcomes,
    say_good,
    say_verdicts,
)

from evalhouse.tasks.asking.asker import read_twice
from evalhouse.tasks.asking.verdicts import (
    Inquiry,
    Verdict,
    Verdicts,
    _read_reply,
    read_statements,
    read_verdicts,
)
from evalhouse.tasks.judge.protocol import ModelReply, ModelRequest, Question, UnusableReply

OBJECT = '{"statements": ["It is 40 m high {really}.", "Es ist 40 m hoch \\"ja\\"."]}'
TEXTS = ["It is 40 m high {really}.", 'Es ist 40 m hoch "ja".']
AG = {"A1": ("TP", "FP"), "G1": ("TP", "FN")}


@pytest.mark.parametrize(
    "reply",
    [
        OBJECT,
        f"```\n{OBJECT}\n```\nI hope this helps {{friend}}.",
        f"Here is what I found:\n\n{OBJECT}",
        f"<think>Maybe {{this}} or {{that: 1}}?</think>{OBJECT}",
        f'First thought: {{"statements": ["wrong"]}}. No, rather: {OBJECT}',
        f'{OBJECT}\nConfidence: {{"confidence": 0.9}}',
    ],
)
def test_json_is_found_anywhere(reply: str) -> None:
    assert read_statements(reply) == TEXTS


def test_line_breaks_within_a_text_are_read_as_models_write_them() -> None:
    assert read_statements('Sure:\n{"statements": ["one\ntwo"]}') == ["one two"]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "empty"),
        ("I cannot do that.", "no complete JSON object"),
        ('{"statements": ["cut of', "no complete JSON object"),
        ('"text"', "not a JSON object but a str"),
        ('{"statements": ["half \\ud83d"]}', "cannot be stored"),
        ('{"statement": ["a"]}', "no list of texts"),
        ('{"statements": ["a", 1]}', "no list of texts"),
    ],
)
def test_unreadable_reply_names_the_reason(reply: str, problem: str) -> None:
    with pytest.raises(UnusableReply, match=problem):
        read_statements(reply)


def test_blank_statements_and_repeats_are_left_out() -> None:
    assert read_statements('{"statements": [" a  b ", "", "a b", "c", "  "]}') == ["a b", "c"]
    assert read_statements('{"statements": []}') == []


def test_each_asked_id_gets_its_verdict() -> None:
    reply = say_verdicts({"id": "A1", "label": "TP", "reason": " as G1 "}, {"id": " [G1] ", "label": "FN"})
    verdicts = read_verdicts(reply, AG)
    assert verdicts.by_id["A1"].label == "TP"
    assert verdicts.by_id["A1"].reason == "as G1"
    assert verdicts.by_id["G1"].label == "FN"
    assert not verdicts.problems


@pytest.mark.parametrize(
    ("spoiled", "problem"),
    [
        ([], "no usable verdict for G1"),
        ([{"id": "G1", "label": "FP"}], "G1 has the label 'FP', allowed: FN, TP"),
        ([{"id": "G1", "label": "fn"}], "label 'fn'"),
        ([{"id": "G1", "label": ["TP"]}], "label"),
        ([{"id": "G1"}], "label None"),
        ([{"id": "G1", "label": "TP"}, {"id": "G1", "label": "TP"}], "G1 came more than once"),
        ([{"id": 1, "label": "TP"}], "no id"),
    ],
)
def test_a_verdict_that_breaks_the_rules_is_as_good_as_missing(spoiled: list[dict[str, object]], problem: str) -> None:
    verdicts = read_verdicts(say_verdicts({"id": "A1", "label": "TP"}, *spoiled), AG)
    assert set(verdicts.by_id) == {"A1"}
    assert problem in "; ".join(verdicts.problems)
    assert "no usable verdict for G1" in verdicts.problems[-1]


def test_verdicts_that_were_not_asked_for_are_left_out() -> None:
    reply = say_verdicts(*({"id": item, "label": "TP"} for item in ("A1", "A2", "G1", "X9")))
    verdicts = read_verdicts(reply, {"A2": ("TP", "FP")})
    assert set(verdicts.by_id) == {"A2"}


def test_something_else_than_a_verdict_does_not_spoil_the_others() -> None:
    reply = orjson.dumps({"verdicts": ["A1", None, 3, {"id": "A1", "label": "FP"}]}).decode()
    assert read_verdicts(reply, {"A1": ("TP", "FP")}).by_id["A1"].label == "FP"


@pytest.mark.parametrize("reply", ['{"verdicts": []}', '{"verdicts": [{"id": "A7", "label": "TP"}]}'])
def test_a_reply_without_one_usable_verdict_is_unusable(reply: str) -> None:
    with pytest.raises(UnusableReply, match="no usable verdict for A1, G1"):
        read_verdicts(reply, AG)


@pytest.mark.parametrize("reply", ['{"verdicts": {"A1": "TP"}}', '{"labels": []}'])
def test_a_reply_of_another_shape_is_unusable(reply: str) -> None:
    with pytest.raises(UnusableReply, match="no list under"):
        read_verdicts(reply, AG)


def test_supporting_contexts_are_read_without_repeats() -> None:
    reply = say_verdicts({"id": "A1", "contexts": ["C2", "C1", "C2"]}, {"id": "G1", "contexts": []})
    verdicts = read_verdicts(reply, dict.fromkeys(["A1", "G1"], ()), {"C1", "C2"})
    assert verdicts.by_id["A1"].contexts == ("C2", "C1")
    assert verdicts.by_id["G1"].contexts == ()


@pytest.mark.parametrize("contexts", [["C1", "C9"], [1], "C1", None])
def test_support_by_an_unknown_context_is_refused(contexts: object) -> None:
    reply = say_verdicts({"id": "A1", "contexts": contexts}, {"id": "G1", "contexts": ["C1"]})
    assert set(read_verdicts(reply, dict.fromkeys(["A1", "G1"], ()), {"C1"}).by_id) == {"G1"}


GIVEN = {"C1", "C2", "C3"}


def test_contexts_that_support_together_are_read_where_none_does_alone() -> None:
    reply = say_verdicts(
        {"id": "A1", "contexts": [], "together": ["C3", "C1", "C3"]},
        {"id": "A2", "contexts": ["C2"], "together": ["C1", "C3"]},  # it needs no other context
        {"id": "A3", "contexts": [], "together": []},
        {"id": "A4", "contexts": ["C2"], "together": ["C2"]},
        {"id": "A5", "contexts": ["C1"]},  # a user's prompt that asks for no more
    )
    verdicts = read_verdicts(reply, dict.fromkeys(["A1", "A2", "A3", "A4", "A5"], ()), GIVEN)
    assert not verdicts.problems
    assert {item: (verdict.contexts, verdict.together) for item, verdict in verdicts.by_id.items()} == {
        "A1": ((), ("C3", "C1")), "A2": (("C2",), ()), "A3": ((), ()), "A4": (("C2",), ()), "A5": (("C1",), ()),
    }  # fmt: skip
    assert [verdict.is_supported for verdict in verdicts.by_id.values()] == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("together", "problem"),
    [
        (["C2"], "A1 names C2 as support together with no other context"),
        (["C2", "C9"], "A1 names the context 'C9', which was not given"),
        ("C1 C2", "A1 has no list of contexts together"),
        (None, "A1 has no list of contexts together"),
    ],
)
def test_impossible_support_together_is_not_a_verdict(together: object, problem: str) -> None:
    reply = say_verdicts({"id": "A1", "contexts": [], "together": together}, {"id": "G1", "contexts": ["C1"]})
    verdicts = read_verdicts(reply, dict.fromkeys(["A1", "G1"], ()), GIVEN)
    assert set(verdicts.by_id) == {"G1"}
    assert problem in verdicts.problems[0]


def test_problems_quote_little_of_what_came() -> None:
    good = {"id": "G1", "label": "TP"}
    reply = say_verdicts({"id": "A1", "label": "x" * 5000}, {"id": "y" * 5000, "label": "TP"}, good)
    assert len("; ".join(read_verdicts(reply, AG).problems)) < 400


CANNOT_BE_STORED = ["good \\ud83d", 10**30, {"n": 2**64}]


@pytest.mark.parametrize("reason", CANNOT_BE_STORED, ids=str)
@pytest.mark.parametrize("cut", [0, 15], ids=["whole", "cut"])
async def test_reply_that_cannot_be_stored_is_recorded_and_asked_again(
    tmp_path: Path, reason: object, cut: int
) -> None:
    replies = []

    def say(question: Question) -> str:
        reply = say_good(question)
        if question.prompt is not None and question.prompt.name == "classify" and not replies:
            verdicts = orjson.loads(reply)["verdicts"]
            verdicts[0]["reason"] = "REASON"
            reply = say_verdicts(*verdicts).replace('"REASON"', json.dumps(reason).replace("\\\\", "\\"))
            replies.append(reply[: len(reply) - cut])
            return replies[0]
        return reply

    class Judge(ScriptedJudge):
        async def reply(self, request: ModelRequest) -> ModelReply:
            n_before = len(replies)
            reply = await super().reply(request)
            return replace(reply, is_cut=bool(cut) and len(replies) > n_before)

    async with lay_out_run(tmp_path, judge=Judge(say)) as live_run:
        (work,) = await judge_samples(live_run, [make_sample()])
    assert set(read_outcomes(work).values()) == {None}
    calls = [call for call in read_calls(tmp_path) if call["step"] == "classify"]
    assert calls[0]["reply"] == replies[0]
    assert calls[-1]["status"] == "ok"


READERS: dict[str, Callable[[str], object]] = {
    "statements": read_statements,
    "verdicts": lambda text: read_verdicts(text, AG, ["C1"]),
    "supports": lambda text: read_verdicts(text, {"A1": (), "G1": ()}, ["C1", "C2"]),
    "rows": lambda text: read_verdicts(text, AG, ["C1"], sent=["A1", "G1", "C1"]),
}
ODD = ["\\ud83d", "\\u0000", "9" * 30, "1e999", "NaN", "null", "\ud83d", "\0", *'-[]{}"\\,:']


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_nothing_but_the_declared_error_leaves_a_reader(name: str) -> None:
    """Mutate good replies at random places; read them plainly, by the second reading, and as cut replies."""
    draw, read = random.Random(name), READERS[name]
    question = Question(step="classify", sample_id="s", prompt=PROMPTS["classify"], data={"question": "When?"})
    inquiry = Inquiry(
        step="classify", sample_id="s", prompt=PROMPTS["classify"], allowed=AG, build_data=lambda _: {}, contexts=["C1"]
    )
    goods = [
        OBJECT,
        say_verdicts({"id": "A1", "label": "TP", "reason": "as G1"}, {"id": "G1", "label": "FN"}),
        say_verdicts({"id": "A1", "contexts": ["C1"], "together": []}, {"id": "G1", "contexts": []}),
        '{"answer_statements": [["A1", "G1", "TP", "C1"]], "ground_truth_statements": [["G1", "A1", "FN", "-"]]}',
    ]
    for _ in range(5_000):
        text = draw.choice(goods)
        for _ in range(draw.randint(1, 6)):
            begin = draw.randrange(len(text) + 1)
            text = text[:begin] + draw.choice([*ODD, text[begin : begin + 9]]) + text[begin + draw.randint(0, 4) :]
        text = text[: draw.randint(len(text) // 2, len(text))] if draw.random() < 0.3 else text
        for attempt in (
            partial(read, text),
            partial(read_twice, text, read, question),
            partial(_read_reply, text, inquiry=inquiry, ids=list(AG), data={}, is_cut=True),
        ):
            with suppress(UnusableReply):
                attempt()


ALLOWED = {
    "A1": ("TP", "FP"), "supports A1": (), "G1": ("TP", "FN"), "supports G1": (), "C1": ("useful", "not_useful"),
}  # fmt: skip
CONTEXTS = ("C1", "C2", "C3", "T1")
SENT = (*CONTEXTS, "A1", "A2", "G1", "G2")
WHOLE = (["A1", "G1 G2", "TP", "C1 C2"], ["G1", "A1 lacks the year.", "FN", "none: No year."], ["C1", "G1", "useful"])


def read(*rows: Any, asked: Any = ALLOWED) -> Verdicts:  # noqa: ANN401
    return read_verdicts(orjson.dumps({"verdicts": rows}).decode(), asked, CONTEXTS, sent=SENT)


def test_a_row_gives_the_verdicts_of_its_item_each_with_what_it_rests_on() -> None:
    verdicts = read(*WHOLE)
    assert (verdicts.missing, verdicts.problems) == ((), ())
    assert verdicts.by_id == {
        "A1": Verdict(reason="G1, G2", label="TP"),
        "supports A1": Verdict(reason="C1, C2", contexts=("C1", "C2")),
        "G1": Verdict(reason="A1 lacks the year.", label="FN"),
        "supports G1": Verdict(reason="No year."),
        "C1": Verdict(reason="G1", label="useful"),
    }


@pytest.mark.parametrize(
    ("cell", "alone", "together", "reason"),
    [
        ("C2", ("C2",), (), "C2"),
        ("[C2], [C1]", ("C2", "C1"), (), "C2, C1"),
        ("C1+C3", (), ("C1", "C3"), "C1 + C3"),
        ("C2 C1+C3", ("C2",), (), "C2"),
        ("C1+C2, C2+C3", (), ("C1", "C2"), "C1 + C2"),
        ("C1: it gives the year", ("C1",), (), "it gives the year"),
        ("none: No context gives the year: none.", (), (), "No context gives the year: none."),
        ("None：没有年份", (), (), "没有年份"),
    ],
)
def test_the_last_cell_names_contexts_that_support_alone_or_joined_or_none(
    cell: str, alone: tuple[str, ...], together: tuple[str, ...], reason: str
) -> None:
    verdicts = read(["A1", "G1", "TP", cell], asked={"supports A1": ()})
    assert verdicts.by_id == {"supports A1": Verdict(reason=reason, contexts=alone, together=together)}


@pytest.mark.parametrize(
    ("row", "lost", "why"),
    [
        (["A1", "G1", "TP", "C1 supports it"], "supports A1", "no list of contexts"),
        (["A1", "G1", "TP", "none"], "supports A1", "neither evidence nor a reason"),
        (["A1", "G1", "TP", "C9"], "supports A1", "names the context 'C9', which was not given"),
        (["A1", "G1", "TP", "G1"], "supports A1", "names the context 'G1', which was not given"),
        (["A1", "G1", "FN", "C1"], "A1", "has the label 'FN', allowed: FP, TP"),
        (["A1", "", "TP", "C1"], "A1", "neither evidence nor a reason"),
        (["A1", "-", "TP", "C1"], "A1", "neither evidence nor a reason"),
        (["A1", "G9", "TP", "C1"], "A1", "rests on 'G9', which is not one of G1, G2"),
        (["A1", "A2", "TP", "C1"], "A1", "rests on 'A2', which is not one of G1, G2"),
        (["A1", "C1+C2", "TP", "C1"], "A1", "rests on 'C1', which is not one of G1, G2"),
        (["A1", "G1", "TP", "none: G2"], "supports A1", "rests on 'G2', which is not one of C1, C2, C3, T1"),
    ],
)
def test_empty_cell_counts_as_missing_and_the_other_verdict_is_kept(row: list[str], lost: str, why: str) -> None:
    verdicts = read(row, asked={"A1": ("TP", "FP"), "supports A1": ()})
    assert verdicts.missing == (lost,)
    assert set(verdicts.by_id) == {"A1", "supports A1"} - {lost}
    assert why in verdicts.problems[0]


@pytest.mark.parametrize(
    "row", [["A1", "G1"], ["A1", "G1", "TP", "C1", "C2"], ["A1", "G1", "TP", ["C1"]], [], [1, 2, 3]]
)
def test_invalid_rows_are_requested_again(row: list[Any]) -> None:
    verdicts = read(row, WHOLE[1], WHOLE[2])
    assert verdicts.missing == ("A1", "supports A1")
    assert "3 cells for a context, 4 for a statement" in verdicts.problems[0]


def test_a_cell_that_was_not_asked_for_gives_no_verdict() -> None:
    asked = {"A1": ("TP", "FP"), "supports G1": ()}
    verdicts = read(["A1", "G1", "TP", "-"], ["G1", "-", "-", "C1"], asked=asked)
    assert (set(verdicts.by_id), verdicts.problems) == (set(asked), ())


def test_an_item_with_two_rows_has_no_verdict() -> None:
    verdicts = read(*WHOLE, ["A1", "Not in any G item.", "FP", "C3"])
    assert verdicts.missing == ("A1", "supports A1")
    with pytest.raises(UnusableReply, match="A1 came more than once"):
        read(WHOLE[0], WHOLE[0], asked={"A1": ("TP", "FP")})
