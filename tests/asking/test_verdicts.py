"""Ids in, ids out, without a step around it: what is asked, how often, and which failure counts where several come."""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from live_runs import PROMPTS, ScriptedJudge, lay_out_run, make_settings, read_calls, say_verdicts

from evalhouse.prompts import Item
from evalhouse.tasks.asking.asker import LAST_CHANCE
from evalhouse.tasks.asking.verdicts import Inquiry, JudgedItem, ask_verdicts, gather_all
from evalhouse.tasks.judge.protocol import (
    BudgetExhausted,
    EndpointDown,
    FatalJudgeError,
    JudgeFailed,
    Question,
    RefusedRequest,
    TransientJudgeError,
)

IDS = ("C1", "C2", "C3", "C4")
CONTEXTS = [Item(id=item_id, text=f"Context {item_id}.") for item_id in IDS]
LABELS = ("useful", "not_useful")


def make_inquiry() -> Inquiry:
    return Inquiry(
        step="rank",
        sample_id="s1",
        prompt=PROMPTS["rank"],
        build_data=lambda ids: {
            "question": "?", "ground_truth": "It is red.", "contexts": [item for item in CONTEXTS if item.id in ids],
        },
        allowed=dict.fromkeys(IDS, LABELS),
    )  # fmt: skip


def say_useful(ids: Collection[str], reason: str = "") -> str:
    return say_verdicts(*({"id": item, "label": "useful", "reason": reason} for item in ids))


def say_by_number(*replies: str | Exception) -> Callable[[Question], str | Exception]:
    """The n-th of these to the n-th question, however often that is sent; the last for ever."""
    return lambda question: replies[min(question.number, len(replies)) - 1]


async def ask(
    folder: Path, says: Callable[[Question], str | Exception], *, attempts: int = 4
) -> tuple[dict[str, JudgedItem] | Exception, list[Question]]:
    """The verdicts or the error, and the questions that were sent."""
    judge = ScriptedJudge(says)
    async with lay_out_run(folder, make_settings(attempts=attempts), judge=judge) as live_run:
        try:
            poll = await ask_verdicts(live_run.asker, make_inquiry())
            return poll.failure or poll.judged, judge.asked
        except (JudgeFailed, EndpointDown) as error:
            return error, judge.asked


async def test_all_at_once_is_one_request_that_narrows_nothing(tmp_path: Path) -> None:
    judged, asked = await ask(tmp_path, say_by_number(say_useful(IDS)))
    assert isinstance(judged, dict)
    assert set(judged) == set(IDS)
    assert [(question.number, question.only) for question in asked] == [(1, ())]


async def test_each_verdict_is_the_first_usable_one_and_names_its_call(tmp_path: Path) -> None:
    """The second reply repeats C1, which was not asked for again, with another label."""
    second = say_verdicts({"id": "C1", "label": "not_useful"}, {"id": "C3", "label": "useful", "reason": "second"})
    says = say_by_number(say_useful(("C1", "C2"), "first"), second, say_useful(("C4",), "third"))
    judged, asked = await ask(tmp_path, says)
    assert isinstance(judged, dict)
    assert {item: one.verdict.reason for item, one in judged.items()} == {
        "C1": "first", "C2": "first", "C3": "second", "C4": "third",
    }  # fmt: skip
    assert {one.verdict.label for one in judged.values()} == {"useful"}
    assert [question.only for question in asked] == [(), ("C3", "C4"), ("C4",)]
    calls = [call["call_id"] for call in read_calls(tmp_path)]
    assert [judged[item].call_id for item in IDS] == [calls[0], calls[0], calls[1], calls[2]]


async def test_reply_without_any_missing_verdict_is_asked_again_with_a_note(tmp_path: Path) -> None:
    """It is as good as unreadable: the same question with a note, and no later question uses it."""

    def says(question: Question) -> str:
        return say_useful(("C1", "C2", "C3") if question.number == 1 else ("C4",) if question.note else ("C3",))

    judged, asked = await ask(tmp_path, says)
    assert isinstance(judged, dict)
    assert [(question.number, question.only, bool(question.note)) for question in asked] == [
        (1, (), False), (2, ("C4",), False), (2, ("C4",), True),
    ]  # fmt: skip
    assert [call["status"] for call in read_calls(tmp_path)] == ["ok", "error", "ok"]


async def test_attempts_are_shared_by_a_silent_and_an_incomplete_judge(tmp_path: Path) -> None:
    for folder, first in (("silent", "no"), ("incomplete", say_useful(("C1",)))):
        error, asked = await ask(tmp_path / folder, say_by_number(first, "no"), attempts=3)
        assert isinstance(error, JudgeFailed)
        assert len(asked) == 3


async def test_one_attempt_is_one_request(tmp_path: Path) -> None:
    error, asked = await ask(tmp_path, say_by_number(say_useful(("C1", "C2", "C3"))), attempts=1)
    assert isinstance(error, JudgeFailed)
    assert "still incomplete after asking 1 times: no usable verdict for C4" in str(error)
    assert len(asked) == 1


async def test_incomplete_reply_is_reused_and_only_the_rest_is_asked(tmp_path: Path) -> None:
    """A run that is resumed, or another one, pays for no part again."""
    await ask(tmp_path, say_by_number(say_useful(("C1", "C2")), RefusedRequest("too long")))
    judged, asked = await ask(tmp_path, say_by_number("never sent", say_useful(("C3", "C4"))))
    assert isinstance(judged, dict)
    assert set(judged) == set(IDS)
    assert [question.only for question in asked] == [("C3", "C4")]
    calls = read_calls(tmp_path)
    cached = [call for call in calls if call["status"] == "cached"]
    assert [call["reused_call_id"] for call in cached] == [calls[0]["call_id"]]
    assert judged["C1"].call_id == cached[0]["call_id"]


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize(("last_chance", "kind"), [(False, EndpointDown), (True, JudgeFailed)])
async def test_endpoint_that_goes_down_in_between_is_not_an_incomplete_judge(
    tmp_path: Path, last_chance: bool, kind: type[Exception]
) -> None:
    LAST_CHANCE.set(last_chance)
    says = say_by_number(say_useful(("C1", "C2")), TransientJudgeError("status 503"))
    error, asked = await ask(tmp_path, says, attempts=3)
    assert type(error) is kind
    assert "status 503" in str(error)
    assert [question.only for question in asked] == [(), ("C3", "C4"), ("C3", "C4")]


# Several at once


async def fail(error: Exception, after_s: float = 0.0) -> int:
    await asyncio.sleep(after_s)
    raise error


async def give(value: int, after_s: float = 0.0) -> int:
    await asyncio.sleep(after_s)
    return value


async def test_results_come_in_the_order_they_were_asked_for() -> None:
    assert await gather_all([give(1, 0.02), give(2), give(3, 0.01)]) == [1, 2, 3]
    assert await gather_all([give(4)]) == [4]
    assert await gather_all(list[asyncio.Future[int]]()) == []


async def test_a_failure_waits_until_all_have_ended() -> None:
    ended: list[int] = []

    async def end_late() -> int:
        ended.append(await give(1, 0.05))
        return 1

    with pytest.raises(JudgeFailed):
        await gather_all([fail(JudgeFailed("first")), end_late()])
    assert ended == [1]


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([JudgeFailed("a"), JudgeFailed("b")], "a"),
        ([EndpointDown("down"), JudgeFailed("b")], "b"),  # trying again would not help
        ([EndpointDown("down"), EndpointDown("too")], "down"),
        ([EndpointDown("down"), FatalJudgeError("wrong key")], "wrong key"),
        ([BudgetExhausted("spent"), EndpointDown("down")], "spent"),
    ],
)
async def test_which_failure_counts(errors: list[Exception], raised: str) -> None:
    with pytest.raises(Exception, match=f"^{raised}$"):
        await gather_all([give(0), *(fail(error) for error in errors)])
