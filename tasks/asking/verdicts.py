"""Ids in, ids out: ask about a set of items until each has exactly one usable verdict.

What a reply leaves out, doubles or labels wrongly is asked for again, alone. Nothing is padded or guessed: when
the attempts are used up the question has failed, with the ids that are missing. With votes all of this is done that
many times side by side, and the majority decides on each item; the steps keep each vote beside their verdict.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from evalhouse.prompts import BlockValue, Prompt
from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.asking.replies import Verdict, Verdicts
from evalhouse.tasks.judge.errors import BudgetExhausted, EndpointDown, JudgeFailed
from evalhouse.tasks.judge.protocol import Question

T = TypeVar("T")
_NO_CONTEXT = "none"


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """What to ask about a sample, and how many votes to take on it.

    `build_data` gives the data of a request about some of the ids, with all that they are judged against; `read`
    reads its reply for exactly those.
    """

    step: str
    sample_id: str
    prompt: Prompt
    build_data: Callable[[Collection[str]], Mapping[str, BlockValue]]
    read: Callable[[str, Collection[str]], Verdicts]
    votes: int = 1


@dataclass(frozen=True, kw_only=True)
class Vote:
    """One vote on one item, the call it came from, and whether the majority said just the same.

    `number` is that of the question it answers: from 1, or 0 where nothing was put to the vote.
    """

    number: int
    verdict: Verdict
    call_id: str
    agrees: bool = True


@dataclass(frozen=True, kw_only=True)
class JudgedItem:
    """A verdict and the call it came from; `votes` are all that were taken on it, none where it was asked for once."""

    verdict: Verdict
    call_id: str
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Poll:
    """One vote on all items: what came of it by id, and what ended it when some are missing."""

    by_id: Mapping[str, Vote]
    failure: JudgeFailed | None


async def ask_verdicts(asker: Asker, inquiry: Inquiry, ids: Sequence[str]) -> dict[str, JudgedItem]:
    """A verdict for every id; raises JudgeFailed when some are still missing after the last attempt.

    Of several votes some may fail, as long as those that came are a majority of all for every id.
    """
    if inquiry.votes > 1:
        return await _ask_by_vote(asker, inquiry, ids)
    poll = await _take_vote(asker, inquiry, ids, number=0)
    if poll.failure is not None:
        raise poll.failure
    return {item_id: JudgedItem(verdict=vote.verdict, call_id=vote.call_id) for item_id, vote in poll.by_id.items()}


async def _ask_by_vote(asker: Asker, inquiry: Inquiry, ids: Sequence[str]) -> dict[str, JudgedItem]:
    numbers = range(1, inquiry.votes + 1)
    polls = await gather_all([_take_vote(asker, inquiry, ids, number=number) for number in numbers])
    judged: dict[str, JudgedItem] = {}
    for item_id in ids:
        elected = elect([poll.by_id[item_id] for poll in polls if item_id in poll.by_id], asked=inquiry.votes)
        if elected is not None:
            judged[item_id] = elected
    if len(judged) < len(ids):
        open_ids = ", ".join(item_id for item_id in ids if item_id not in judged)
        raise _make_failure(open_ids, [poll.failure for poll in polls if poll.failure is not None], inquiry.votes)
    return judged


def _make_failure(open_ids: str, failures: Sequence[JudgeFailed], n_votes: int) -> JudgeFailed:
    """One error for the votes that are missing. Where money was, it is that: with more of it they can still be had."""
    kind = next((type(failure) for failure in failures if isinstance(failure, BudgetExhausted)), JudgeFailed)
    why = f"; {len(failures)} failed, the first: {failures[0]}" if failures else ""
    return kind(f"no majority of {n_votes} votes on {open_ids}{why}")


async def _take_vote(asker: Asker, inquiry: Inquiry, ids: Sequence[str], *, number: int) -> _Poll:
    by_id: dict[str, Vote] = {}
    try:
        await _ask_until_complete(asker, inquiry, ids, vote=number, by_id=by_id)
    except JudgeFailed as error:
        return _Poll(by_id=by_id, failure=error)
    return _Poll(by_id=by_id, failure=None)


async def _ask_until_complete(
    asker: Asker, inquiry: Inquiry, ids: Sequence[str], *, vote: int, by_id: dict[str, Vote]
) -> None:
    """Fill `by_id` with a verdict for every id.

    The first request asks for all ids, later ones name those that are missing. The run's attempts are shared among
    them, so a judge that never gives one verdict is not asked more often than one that gives none.
    """
    missing: Sequence[str] = ids
    problems: Sequence[str] = ()
    for number in range(1, asker.attempts + 1):
        question = Question(
            step=inquiry.step,
            sample_id=inquiry.sample_id,
            prompt=inquiry.prompt,
            data=inquiry.build_data(missing),
            vote=vote,
            number=number,
            only=tuple(missing) if number > 1 else (),
        )
        answer = await asker.ask(question, _read_for(inquiry, missing), attempts=asker.attempts - number + 1)
        for item_id, verdict in answer.value.by_id.items():
            by_id[item_id] = Vote(number=vote, verdict=verdict, call_id=answer.call_id)
        problems = answer.value.problems
        missing = [item for item in ids if item not in by_id]
        if not missing:
            return
    raise JudgeFailed(f"still incomplete after asking {asker.attempts} times: {'; '.join(problems)}")


def _read_for(inquiry: Inquiry, ids: Collection[str]) -> Callable[[str], Verdicts]:
    return lambda text: inquiry.read(text, ids)


async def gather_all(asked: Sequence[Awaitable[T]]) -> list[T]:
    """All results in order. When some fail, the first failure once all have ended, so that nothing is left behind.

    A failure for good goes before EndpointDown, which would have the others tried again for nothing.
    """
    if len(asked) == 1:
        return [await asked[0]]
    results = await asyncio.gather(*asked, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise next((failure for failure in failures if not isinstance(failure, EndpointDown)), failures[0])
    return [result for result in results if not isinstance(result, BaseException)]


def elect(cast: Sequence[Vote], *, asked: int) -> JudgedItem | None:
    """What the majority of `asked` votes says, in the words and with the call of the vote that is nearest to it.

    `cast` are those that came; None when they leave it open. Counted are marks: a label is one mark, and each context
    that is said to support a statement is one. A mark holds when more than half of all votes set it, and does not when
    more than half leave it out; a vote that failed could have done either, so it counts as undecided.

    Supporting contexts are counted one by one, so that the majority may be a set that no single vote named.
    """
    counts = Counter(mark for vote in cast for mark in _list_marks(vote.verdict))
    half = asked / 2
    settled = all(count > half or len(cast) - count > half for count in counts.values())
    elected = frozenset(mark for mark, count in counts.items() if count > half)
    is_label = any(vote.verdict.label is not None for vote in cast)
    if len(cast) <= half or not settled or (is_label and not elected):
        return None
    votes = tuple(replace(vote, agrees=_list_marks(vote.verdict) == elected) for vote in cast)
    nearest = min(votes, key=lambda vote: _measure_distance(_list_marks(vote.verdict), elected))
    verdict = nearest.verdict
    if not nearest.agrees:
        reason = f"by a majority for each context; the nearest vote: {verdict.reason}"
        verdict = Verdict(reason=reason, contexts=tuple(sorted(elected, key=_read_rank)))
    return JudgedItem(verdict=verdict, call_id=nearest.call_id, votes=votes)


def _list_marks(verdict: Verdict) -> frozenset[str]:
    return frozenset(verdict.contexts if verdict.label is None else (verdict.label,))


def _measure_distance(marks: frozenset[str], elected: frozenset[str]) -> tuple[bool, int]:
    """How far a vote is from the majority: whether there is support at all comes first, then by how many marks."""
    return bool(marks) != bool(elected), len(marks ^ elected)


def _read_rank(context_id: str) -> int:
    return int(context_id[1:])


def write_verdict(verdict: Verdict) -> str:
    """A verdict as the table `votes` has it: its label, or the ranks of the contexts joined by commas, else `none`."""
    if verdict.label is not None:
        return verdict.label
    return ",".join(map(str, sorted({_read_rank(item) for item in verdict.contexts}))) or _NO_CONTEXT
