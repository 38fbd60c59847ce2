"""One question in, one usable reply out: repeats, retries, budget, stopping, and a row for every request; ids in, ids
out, and votes on them: what is asked, how often, how votes are counted, and which failure counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from live_runs import (
    PROMPTS,
    ScriptedJudge,
    lay_out_run,
    make_settings,
    read_calls,
    say_by_vote,
    say_good,
    say_useful,
    say_verdicts,
)
from provider_calls import make_question

from evalhouse.prompts import Item
from evalhouse.tasks.asking.asker import LAST_CHANCE, Asker
from evalhouse.tasks.asking.verdicts import (
    Inquiry,
    JudgedItem,
    Verdict,
    Vote,
    ask_verdicts,
    elect,
    gather_all,
    read_statements,
    write_verdict,
)
from evalhouse.tasks.judge.protocol import (
    BudgetExhausted,
    EndpointDown,
    FatalJudgeError,
    JudgeFailed,
    ModelReply,
    ModelRequest,
    Question,
    RefusedRequest,
    RunCancelled,
    TransientJudgeError,
    UnsupportedOption,
)

Reply = str | Exception


def cast_labels(*labels: str) -> list[Vote]:
    return [
        Vote(number=number, verdict=Verdict(label=label, reason=f"reason {number}"), call_id=f"call {number}")
        for number, label in enumerate(labels, start=1)
    ]


def cast_contexts(*ranks: Collection[int]) -> list[Vote]:
    named = [tuple(f"C{rank}" for rank in sorted(some)) for some in ranks]
    return [
        Vote(number=number, verdict=Verdict(contexts=contexts, reason=f"reason {number}"), call_id=f"call {number}")
        for number, contexts in enumerate(named, start=1)
    ]


def must_elect(cast: Sequence[Vote], asked: int | None = None) -> JudgedItem:
    elected = elect(cast, asked=asked or len(cast))
    assert elected is not None
    return elected


def test_majority_has_the_reason_of_its_first_vote() -> None:
    elected = must_elect(cast_labels("FP", "TP", "TP"))
    assert (elected.verdict.label, elected.verdict.reason, elected.call_id) == ("TP", "reason 2", "call 2")
    assert [(vote.number, vote.verdict.label, vote.agrees) for vote in elected.votes] == [
        (1, "FP", False), (2, "TP", True), (3, "TP", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("votes", "contexts", "named_by", "agrees"),
    [
        ([{1}, {1, 2}, {1, 2}], ["C1", "C2"], 2, [False, True, True]),
        ([{1, 3}, set(), set()], [], 2, [False, True, True]),
        ([{2}, {10}, {2, 10}, {2, 10}, {10}], ["C2", "C10"], 3, [False, False, True, True, False]),
        ([{1}, {1}, {1}], ["C1"], 1, [True, True, True]),
    ],
)
def test_supporting_contexts_are_counted_one_by_one(
    votes: Sequence[set[int]], contexts: list[str], named_by: int, agrees: list[bool]
) -> None:
    elected = must_elect(cast_contexts(*votes))
    assert list(elected.verdict.contexts) == contexts
    assert (elected.verdict.reason, elected.call_id) == (f"reason {named_by}", f"call {named_by}")
    assert [vote.agrees for vote in elected.votes] == agrees


@pytest.mark.parametrize(
    ("cast", "labels", "verdict", "is_tie"),
    [
        (cast_labels("TP", "FP"), ("TP", "FP"), "FP", True),
        (cast_labels("FN", "TP"), ("TP", "FN"), "FN", True),
        (cast_labels("TP", "FP", "TP", "FP"), ("TP", "FP"), "FP", True),
        (cast_labels("TP", "FP", "TP", "TP"), ("TP", "FP"), "TP", False),
        (cast_contexts({1}, ()), (), (), True),
        (cast_contexts({1}, {1}, (), ()), (), (), True),
        (cast_contexts({1}, {1}, {1}, ()), (), ("C1",), False),
    ],
)
def test_a_tie_counts_as_the_stricter_verdict_and_is_named(
    cast: Sequence[Vote], labels: tuple[str, ...], verdict: object, is_tie: bool
) -> None:
    elected = elect(cast, asked=len(cast), labels=labels)
    assert elected is not None
    assert (elected.verdict.label or elected.verdict.contexts) == verdict
    assert elected.verdict.reason.startswith("by a tie, in which the stricter verdict counts") == is_tie
    # One that did not vote could have settled it.
    assert elect(cast[:1], asked=2, labels=labels) is None


FOR_EACH = "by a majority for each context"
FOR_NONE = "by a majority that it is supported, and by none for a context"


@pytest.mark.parametrize(
    ("votes", "contexts", "nearest", "reason"),
    [
        ([{2, 10}, {1, 10}, {1, 2}], ["C1", "C2", "C10"], 1, FOR_EACH),  # as near as the others: the first
        ([{1}, {2, 3}, {4}], ["C1"], 1, FOR_NONE),
        ([{2, 3}, {4}, {5}], ["C4"], 2, FOR_NONE),
        ([set(), {2}, {3}], ["C2"], 2, FOR_NONE),
    ],
)
def test_support_that_no_vote_named_has_the_reason_of_the_nearest(
    votes: Sequence[set[int]], contexts: list[str], nearest: int, reason: str
) -> None:
    elected = must_elect(cast_contexts(*votes))
    assert list(elected.verdict.contexts) == contexts
    assert elected.call_id == f"call {nearest}"
    assert elected.verdict.reason == f"{reason}; the nearest vote: reason {nearest}"
    assert not any(vote.agrees for vote in elected.votes)


@pytest.mark.parametrize(
    ("votes", "alone", "together", "agrees"),
    [
        (["1+2", "1+2", ""], [], ["C1", "C2"], [True, True, False]),
        (["1+2", "1+2+3", "1"], [], ["C1", "C2"], [True, False, False]),
        (["1", "1", "1+2"], ["C1"], [], [True, True, False]),
        (["1+2", "2+3", "1+3"], [], ["C1", "C2", "C3"], [False, False, False]),
        (["1", "1+2", ""], ["C1"], [], [False, False, False]),  # supported by two of three, the first is as near
        (["1+2", "3+4", ""], [], ["C1", "C2"], [False, False, False]),
        (["1+2", "", ""], [], [], [False, True, True]),
    ],
)
def test_support_together_is_voted_on_with_support_as_such(
    votes: Sequence[str], alone: list[str], together: list[str], agrees: list[bool]
) -> None:
    cast = [
        Vote(
            number=number,
            verdict=Verdict(
                reason="",
                contexts=tuple(f"C{rank}" for rank in text.split() if "+" not in text),
                together=tuple(f"C{rank}" for rank in text.split("+") if "+" in text),
            ),
            call_id=f"call {number}",
        )
        for number, text in enumerate(votes, start=1)
    ]
    elected = must_elect(cast)
    assert (list(elected.verdict.contexts), list(elected.verdict.together)) == (alone, together)
    assert [vote.agrees for vote in elected.votes] == agrees
    assert [write_verdict(vote.verdict) for vote in elected.votes] == [text or "none" for text in votes]


def test_that_anything_supports_counts_more_than_how_many_contexts_differ() -> None:
    """The empty vote differs from C1 by one context, the others by two and more; it would tell why nothing supports."""
    elected = must_elect(cast_contexts(set(), {1, 2, 3}, {1, 4, 5}))
    assert elected.verdict.contexts == ("C1",)
    assert elected.call_id == "call 2"


def list_outcomes(cast: Sequence[Vote], asked: int, choices: Sequence[Vote]) -> set[tuple[object, ...]]:
    """Return the majorities that are possible, over all replies of the missing votes."""
    ways = product(choices, repeat=asked - len(cast))
    found = [must_elect([*cast, *way], asked).verdict for way in ways]
    return {(verdict.label, verdict.contexts, "none for a context" in verdict.reason) for verdict in found}


@pytest.mark.parametrize("asked", [3, 5])
@pytest.mark.parametrize("kind", ["labels", "contexts"])
def test_missing_votes_leave_open_exactly_what_they_could_change(asked: int, kind: str) -> None:
    sets = [set(some) for size in range(3) for some in combinations((1, 2), size)]
    choices = cast_labels("TP", "FP") if kind == "labels" else cast_contexts(*sets)
    for n_cast in range(asked):
        for cast in product(choices, repeat=n_cast):
            elected = elect(cast, asked=asked)
            outcomes = list_outcomes(cast, asked, choices)
            # Where support may end up in no context by a majority, every vote is waited for.
            is_open = len(outcomes) > 1 or any(by_none for _, _, by_none in outcomes)
            assert (elected is None) == is_open
            if elected is not None:
                assert outcomes == {(elected.verdict.label, elected.verdict.contexts, False)}


IDS = ("C1", "C2", "C3")
LABELS = ("useful", "not_useful")


def make_inquiry(votes: int = 3, among: Sequence[str] = IDS) -> Inquiry:
    contexts = [Item(id=item_id, text=f"Context {item_id}.") for item_id in among]
    return Inquiry(
        step="rank",
        sample_id="s1",
        prompt=PROMPTS["rank"],
        build_data=lambda ids: {
            "question": "?", "ground_truth": "It is red.", "contexts": [item for item in contexts if item.id in ids],
        },
        allowed=dict.fromkeys(among, LABELS),
        votes=votes,
    )  # fmt: skip


async def ask(
    folder: Path, says: Callable[[Question], Reply], *, ids: Sequence[str] = IDS, votes: int = 3, attempts: int = 3
) -> tuple[dict[str, JudgedItem] | JudgeFailed | EndpointDown, list[Question]]:
    """The verdicts or the error, and the questions that were sent."""
    judge = ScriptedJudge(says)
    async with lay_out_run(folder, make_settings(attempts=attempts), judge=judge) as live_run:
        try:
            poll = await ask_verdicts(live_run.asker, make_inquiry(votes, ids))
            return poll.failure or poll.judged, judge.asked
        except (JudgeFailed, EndpointDown) as error:
            return error, judge.asked


class CountingJudge(ScriptedJudge):
    """Replies only when `wanted` requests are waiting."""

    def __init__(self, wanted: int) -> None:
        super().__init__(say_good)
        self._all_there = asyncio.Barrier(wanted)

    async def reply(self, request: ModelRequest) -> ModelReply:
        await self._all_there.wait()
        return await super().reply(request)


async def test_votes_are_asked_for_at_once(tmp_path: Path) -> None:
    async with lay_out_run(tmp_path, judge=CountingJudge(5)) as live_run, asyncio.timeout(30):
        judged = (await ask_verdicts(live_run.asker, make_inquiry(5))).judged
    assert all(len(one.votes) == 5 for one in judged.values())


async def test_ids_missing_from_a_vote_are_asked_for_again_in_that_vote(tmp_path: Path) -> None:
    def says(question: Question) -> str:
        ids = question.only or (IDS[1:] if question.vote == 2 else IDS)
        return say_useful({"C1"} if question.vote == 2 else (), f"vote {question.vote}.{question.number}", ids)

    judged, asked = await ask(tmp_path, says)
    assert isinstance(judged, dict)
    assert [(question.vote, question.number, question.only) for question in asked if question.number > 1] == [
        (2, 2, ("C1",))
    ]
    assert len(asked) == 4
    assert [vote.verdict.reason for vote in judged["C1"].votes] == ["vote 1.1", "vote 2.2", "vote 3.1"]
    assert [vote.agrees for vote in judged["C1"].votes] == [True, False, True]


async def test_failed_vote_does_not_matter_where_the_others_agree(tmp_path: Path) -> None:
    judged, _ = await ask(tmp_path, say_by_vote(RefusedRequest("filtered"), say_useful({"C1"}), say_useful({"C1"})))
    assert isinstance(judged, dict)
    assert [judged[item].verdict.label for item in IDS] == ["useful", "not_useful", "not_useful"]
    assert [[vote.number for vote in judged[item].votes] for item in IDS] == [[2, 3]] * 3


async def test_a_vote_that_fails_leaves_open_where_the_others_disagree(tmp_path: Path) -> None:
    error, _ = await ask(tmp_path, say_by_vote(say_useful({"C1"}), RefusedRequest("filtered"), say_useful({"C2"})))
    assert type(error) is JudgeFailed
    assert str(error) == "no majority of 3 votes on C1, C2; 1 failed, the first: filtered"


@pytest.mark.parametrize(("third", "open_ids"), [({"C1", "C3"}, ""), ({"C1"}, "C3")])
async def test_a_vote_that_stays_incomplete_counts_for_the_ids_it_gave(
    tmp_path: Path, third: set[str], open_ids: str
) -> None:
    says = say_by_vote(say_useful({"C1", "C3"}), say_useful({"C2"}, ids=("C1", "C2")), say_useful(third))
    judged, asked = await ask(tmp_path, says, attempts=2)
    assert len(asked) == 4
    if open_ids:
        assert isinstance(judged, JudgeFailed)
        assert str(judged).startswith(f"no majority of 3 votes on {open_ids}; 1 failed, the first: given up after 1")
    else:
        assert isinstance(judged, dict)
        assert [judged[item].verdict.label for item in IDS] == ["useful", "not_useful", "useful"]
        assert [len(judged[item].votes) for item in IDS] == [3, 3, 2]


async def test_votes_that_money_was_missing_for_can_be_had_with_more(tmp_path: Path) -> None:
    spent = BudgetExhausted("the budget of 1 dollars is spent")
    error, _ = await ask(tmp_path, say_by_vote(say_useful(IDS), RefusedRequest("filtered"), spent))
    assert type(error) is BudgetExhausted
    assert error.reason == "budget_exhausted"


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize(("last_chance", "kind"), [(False, EndpointDown), (True, dict)])
async def test_a_vote_is_waited_for_as_long_as_prefect_tries_again(
    tmp_path: Path, last_chance: bool, kind: type
) -> None:
    LAST_CHANCE.set(last_chance)
    down = say_by_vote(say_useful({"C1"}), TransientJudgeError("status 503"), say_useful({"C1"}))
    judged, asked = await ask(tmp_path, down, attempts=2)
    assert isinstance(judged, kind)
    assert len(asked) == 4
    again, asked = await ask(tmp_path, say_by_vote("never sent", say_useful(()), "never sent"))
    assert isinstance(again, dict)
    assert [question.vote for question in asked] == [2]
    assert [vote.agrees for vote in again["C1"].votes] == [True, False, True]


FOUR = ("C1", "C2", "C3", "C4")


def say_by_number(*replies: Reply) -> Callable[[Question], Reply]:
    """The n-th of these to the n-th question, however often that is sent; the last for ever."""
    return lambda question: replies[min(question.number, len(replies)) - 1]


def say_yes(ids: Collection[str], reason: str = "") -> str:
    """Useful on these ids, and nothing on others."""
    return say_useful(ids, reason, ids)


async def ask_once(
    folder: Path, says: Callable[[Question], Reply], *, attempts: int = 4
) -> tuple[dict[str, JudgedItem] | JudgeFailed | EndpointDown, list[Question]]:
    return await ask(folder, says, ids=FOUR, votes=1, attempts=attempts)


async def test_each_verdict_is_the_first_usable_one_and_names_its_call(tmp_path: Path) -> None:
    """The second reply repeats C1, which was not asked for again, with another label."""
    second = say_verdicts({"id": "C1", "label": "not_useful"}, {"id": "C3", "label": "useful", "reason": "second"})
    says = say_by_number(say_yes(("C1", "C2"), "first"), second, say_yes(("C4",), "third"))
    judged, asked = await ask_once(tmp_path, says)
    assert isinstance(judged, dict)
    assert {item: one.verdict.reason for item, one in judged.items()} == {
        "C1": "first", "C2": "first", "C3": "second", "C4": "third",
    }  # fmt: skip
    assert {one.verdict.label for one in judged.values()} == {"useful"}
    assert [question.only for question in asked] == [(), ("C3", "C4"), ("C4",)]
    calls = [call["call_id"] for call in read_calls(tmp_path)]
    assert [judged[item].call_id for item in FOUR] == [calls[0], calls[0], calls[1], calls[2]]


async def test_reply_without_any_missing_verdict_is_asked_again_with_a_note(tmp_path: Path) -> None:
    """It is as good as unreadable: the same question with a note, and no later question uses it."""

    def says(question: Question) -> str:
        return say_yes(("C1", "C2", "C3") if question.number == 1 else ("C4",) if question.note else ("C3",))

    judged, asked = await ask_once(tmp_path, says)
    assert isinstance(judged, dict)
    assert [(question.number, question.only, bool(question.note)) for question in asked] == [
        (1, (), False), (2, ("C4",), False), (2, ("C4",), True),
    ]  # fmt: skip
    assert [call["status"] for call in read_calls(tmp_path)] == ["ok", "error", "ok"]


async def test_attempts_are_shared_by_a_silent_and_an_incomplete_judge(tmp_path: Path) -> None:
    for folder, first in (("silent", "no"), ("incomplete", say_yes(("C1",)))):
        error, asked = await ask_once(tmp_path / folder, say_by_number(first, "no"), attempts=3)
        assert isinstance(error, JudgeFailed)
        assert len(asked) == 3


async def test_incomplete_reply_is_reused_and_only_the_rest_is_asked(tmp_path: Path) -> None:
    """A run that is resumed, or another one, pays for no part again."""
    await ask_once(tmp_path, say_by_number(say_yes(("C1", "C2")), RefusedRequest("too long")))
    judged, asked = await ask_once(tmp_path, say_by_number("never sent", say_yes(("C3", "C4"))))
    assert isinstance(judged, dict)
    assert set(judged) == set(FOUR)
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
    says = say_by_number(say_yes(("C1", "C2")), TransientJudgeError("status 503"))
    error, asked = await ask_once(tmp_path, says, attempts=3)
    assert type(error) is kind
    assert "status 503" in str(error)
    assert [question.only for question in asked] == [(), ("C3", "C4"), ("C3", "C4")]


async def fail(error: Exception, after_s: float = 0.0) -> int:
    await asyncio.sleep(after_s)
    raise error


async def give(value: int, after_s: float = 0.0) -> int:
    await asyncio.sleep(after_s)
    return value


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


GOOD = '{"statements": ["It is red."]}'


def say_in_turn(*replies: str | Exception) -> Callable[[Question], str | Exception]:
    """These one after the other, the last for ever."""
    turns = list(replies)
    return lambda question: turns.pop(0) if len(turns) > 1 else turns[0]


async def ask_all(
    folder: Path,
    judge: ScriptedJudge,
    questions: Sequence[Question],
    **settings: Any,  # noqa: ANN401
) -> list[Any]:
    """Ask all at once; a value or an error for each."""
    async with lay_out_run(folder, make_settings(**settings), judge=judge) as live_run:
        asked = [live_run.asker.ask(question, read_statements) for question in questions]
        results = await asyncio.gather(*asked, return_exceptions=True)
    return [result if isinstance(result, BaseException) else result.value for result in results]


@pytest.mark.parametrize("good_at", [None, 19])
async def test_step_whose_first_replies_are_all_unusable_stops_the_run(tmp_path: Path, good_at: int | None) -> None:
    """One usable reply among the first 20 is enough to continue; another step's does not count."""
    monster = "No. " * 100 + "Key sk-abcdefghijklmnopqrstuvwxyz0123456789"
    places = iter(range(1000))
    classify = make_question(0, step="classify")

    def reply(question: Question) -> str:
        return GOOD if question.step == "classify" or next(places) == good_at else monster

    judge = ScriptedJudge(reply)
    questions = [classify, *(make_question(number) for number in range(1, 31))]
    results = await ask_all(tmp_path, judge, questions, attempts=2, concurrency=1)
    assert results[0] == ["It is red."]
    stopped = [result for result in results if isinstance(result, FatalJudgeError)]
    if good_at is not None:
        assert not stopped
        return
    assert len(judge.asked) == 21
    assert len(stopped) > 15
    message = str(stopped[0])
    assert message.startswith("none of the first 20 replies of scripted to extract_answer could be used")
    for part in ("no complete JSON object", "No. No. No.", "…", "--judge extract=MODEL", "--prompts"):
        assert part in message
    assert "sk-abc" not in message


async def test_step_with_a_reply_on_record_is_not_stopped(tmp_path: Path) -> None:
    await ask_all(tmp_path, ScriptedJudge(say_in_turn(GOOD)), [make_question(1)])
    async with lay_out_run(tmp_path, make_settings(attempts=1), judge=ScriptedJudge(say_in_turn("No."))) as live_run:
        assert (await live_run.asker.ask(make_question(1), read_statements)).value == ["It is red."]
        for number in range(2, 30):
            with pytest.raises(JudgeFailed):
                await live_run.asker.ask(make_question(number), read_statements)


async def test_equal_questions_at_once_are_one_request(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn(GOOD), latency_s=0.02)
    questions = [make_question(1, sample_id=f"s{number}") for number in range(5)]
    assert await ask_all(tmp_path, judge, questions) == [["It is red."]] * 5
    assert len(judge.asked) == 1
    calls = read_calls(tmp_path)
    paid = [call for call in calls if call["status"] == "ok"]
    reused = [call for call in calls if call["status"] == "cached"]
    assert len(paid) == 1
    assert {call["reused_call_id"] for call in reused} == {paid[0]["call_id"]}
    assert sorted(call["sample_id"] for call in calls) == ["s0", "s1", "s2", "s3", "s4"]
    assert all(call["request"] is None and call["cost_usd"] is None for call in reused)


async def test_equal_questions_at_once_fail_together(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn(RefusedRequest("content filter")), latency_s=0.02)
    results = await ask_all(tmp_path, judge, [make_question()] * 4)
    assert [str(result) for result in results] == ["content filter"] * 4
    assert all(isinstance(result, JudgeFailed) for result in results)
    assert len(judge.asked) == 1


async def test_equal_question_is_asked_when_the_first_is_cancelled(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn(GOOD), latency_s=0.2)
    async with lay_out_run(tmp_path, judge=judge) as live_run:
        first, second = (asyncio.create_task(live_run.asker.ask(make_question(), read_statements)) for _ in range(2))
        while not judge.asked:
            await asyncio.sleep(0.001)
        first.cancel()
        assert (await second).value == ["It is red."]
    assert [call["status"] for call in read_calls(tmp_path)] == ["error", "ok"]
    assert "cancelled" in read_calls(tmp_path)[0]["error"]


async def test_an_unusable_reply_is_asked_again_with_a_note_and_both_are_on_record(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn("prose only", '{"statements": ["cut', GOOD))
    assert await ask_all(tmp_path, judge, [make_question()]) == [["It is red."]]
    assert [bool(question.note) for question in judge.asked] == [False, True, True]
    assert "prose" not in judge.asked[1].note
    calls = read_calls(tmp_path)
    assert [(call["status"], call["attempts"], call["reply"]) for call in calls] == [
        ("error", 1, "prose only"),
        ("error", 2, '{"statements": ["cut'),
        ("ok", 3, GOOD),
    ]
    assert len({call["request_hash"] for call in calls}) == 1
    assert all(call["prompt_tokens"] == 100 for call in calls)


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize(("last_chance", "kind"), [(False, EndpointDown), (True, JudgeFailed)])
async def test_transport_errors_alone_are_for_prefect_to_try_again_until_the_last_chance(
    tmp_path: Path, last_chance: bool, kind: type[Exception]
) -> None:
    LAST_CHANCE.set(last_chance)
    judge = ScriptedJudge(say_in_turn(TransientJudgeError("status 503: busy")))
    results = await ask_all(tmp_path, judge, [make_question(), make_question()], attempts=2)
    LAST_CHANCE.set(True)
    assert [type(result) for result in results] == [kind, kind]
    assert "given up after 2 attempts; the last: status 503: busy" in str(results[0])
    assert len(judge.asked) == 2


@pytest.mark.usefixtures("quick_backoff")
async def test_an_endpoint_that_was_never_reached_stops_the_run_with_one_message(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn(TransientJudgeError("connection refused", unreachable=True)))
    results = await ask_all(tmp_path, judge, [make_question(number) for number in range(4)], attempts=2)
    assert {type(result) for result in results} == {FatalJudgeError}
    assert {str(result) for result in results} == {"scripted cannot be reached: connection refused"}


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize("n_refused", [7, 10_000])
async def test_an_endpoint_that_goes_away_later_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_refused: int
) -> None:
    """A server that was restarted within a night cost the night: each question has a few attempts within seconds."""
    monkeypatch.setattr("evalhouse.tasks.asking.limits._PAUSE_S", 0.001)
    refused = [TransientJudgeError("connection refused", unreachable=True)] * n_refused
    judge = ScriptedJudge(say_in_turn(GOOD, *refused, GOOD))
    async with lay_out_run(tmp_path, make_settings(attempts=2), judge=judge) as live_run:
        await live_run.asker.ask(make_question(1), read_statements)
        if n_refused < 10:
            assert (await live_run.asker.ask(make_question(2), read_statements)).value == ["It is red."]
        else:
            live_run.asker.limit.max_wait_s = 0.05
            for number in (2, 3):
                with pytest.raises(JudgeFailed, match=r"cannot be reached \(connection refused\).*--max-wait"):
                    await live_run.asker.ask(make_question(number), read_statements)
            assert len(judge.asked) < 1000
        live_run.asker.raise_if_stopped()


@pytest.mark.usefixtures("quick_backoff")
async def test_rate_limits_are_waited_out_and_use_up_no_attempt(tmp_path: Path) -> None:
    limited = [TransientJudgeError("status 429", retry_after_s=0.02, rate_limited=True) for _ in range(4)]
    judge = ScriptedJudge(say_in_turn(*limited, GOOD))
    async with lay_out_run(tmp_path, make_settings(attempts=1), judge=judge) as live_run:
        live_run.asker.limit.note_refused = lambda slot, retry_after_s: None  # type: ignore[method-assign]  # no pause
        assert (await live_run.asker.ask(make_question(), read_statements)).value == ["It is red."]
    assert [call["attempts"] for call in read_calls(tmp_path)] == [1, 2, 3, 4, 5]


async def test_an_option_that_is_not_taken_costs_no_attempt_but_not_for_ever(tmp_path: Path) -> None:
    no_schema = UnsupportedOption("no response_format", options=["response_format"])
    assert await ask_all(tmp_path / "a", ScriptedJudge(say_in_turn(no_schema, GOOD)), [make_question()], attempts=1)
    (error,) = await ask_all(tmp_path / "b", ScriptedJudge(say_in_turn(no_schema)), [make_question()], attempts=2)
    assert isinstance(error, JudgeFailed)


async def test_a_budget_without_a_price_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    async with lay_out_run(tmp_path, judge=ScriptedJudge(say_in_turn(GOOD))) as live_run:
        with pytest.raises(FatalJudgeError, match="a price for 'scripted-1'"):
            Asker(
                judge=live_run.asker.judge,
                record=live_run.asker.record,
                limit=live_run.asker.limit,
                attempts=1,
                price=None,
                budget_usd=1.0,
            )


async def test_stop_sends_nothing_new_and_ends_all_waits(tmp_path: Path) -> None:
    """Two of twenty questions are in flight, some wait for a slot and one for its next attempt."""
    judge = ScriptedJudge(lambda q: TransientJudgeError("busy") if q.sample_id == "s0" else GOOD, latency_s=0.15)
    async with lay_out_run(tmp_path, make_settings(concurrency=3), judge=judge) as live_run:
        tasks = [asyncio.create_task(live_run.asker.ask(make_question(n), read_statements)) for n in range(20)]
        await asyncio.sleep(0.2)
        sent = len(judge.asked)
        started = time.monotonic()
        live_run.stop(RunCancelled("stopped by SIGINT"), drain_s=1.0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - started < 1.0
        with pytest.raises(RunCancelled):
            await live_run.asker.ask(make_question(99), read_statements)
    assert len(judge.asked) == sent
    errors = [result for result in results if isinstance(result, BaseException)]
    assert {(type(error), str(error)) for error in errors} == {(RunCancelled, "stopped by SIGINT")}
    # Replies to requests in flight came in, and are recorded for a resumed run.
    assert [call["status"] for call in read_calls(tmp_path)].count("ok") == 20 - len(errors)


@pytest.mark.parametrize("drain_s", [0.0, 0.01])
async def test_a_stop_waits_as_long_as_replies_have_taken(tmp_path: Path, drain_s: float) -> None:
    """The provider bills a request that is in flight, and a resumed run would pay for it again."""
    judge = ScriptedJudge(lambda _: GOOD, latency_s=0.5)
    async with lay_out_run(tmp_path, make_settings(concurrency=2), judge=judge) as live_run:
        tasks = [asyncio.create_task(live_run.asker.ask(make_question(n), read_statements)) for n in range(8)]
        await asyncio.sleep(0.75)  # two have replied, and two are in flight
        live_run.stop(RunCancelled("stopped by SIGTERM"), drain_s=drain_s)
        await asyncio.gather(*tasks, return_exceptions=True)
    assert [call["status"] for call in read_calls(tmp_path)].count("ok") == (4 if drain_s else 2)


async def test_a_full_disk_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    judge = ScriptedJudge(say_in_turn(GOOD))
    async with lay_out_run(tmp_path, make_settings(concurrency=1), judge=judge) as live_run:
        monkeypatch.setattr("evalhouse.warehouse.mover.os.write", refuse)
        asked = [live_run.asker.ask(make_question(number), read_statements) for number in range(10)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        monkeypatch.undo()
    assert {type(result) for result in results} == {FatalJudgeError}
    assert "No space left on device" in str(results[0])
    assert len(judge.asked) == 1
