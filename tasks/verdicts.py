"""Ids in, ids out: ask about a set of items until each has exactly one usable verdict.

What a reply leaves out, doubles or labels wrongly is asked for again, alone. Nothing is padded or guessed: when
the attempts are used up the question has failed, with the ids that are missing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prompts import BlockValue, Prompt
from tasks.asking import Asker
from tasks.judge import Question
from tasks.judge_errors import EndpointDown, JudgeFailed
from tasks.reading import Verdict, Verdicts

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """What to ask about a sample.

    `build_data` gives the data of a request about some of the ids, with all that they are judged against; `read`
    reads its reply for exactly those.
    """

    step: str
    sample_id: str
    prompt: Prompt
    build_data: Callable[[Collection[str]], Mapping[str, BlockValue]]
    read: Callable[[str, Collection[str]], Verdicts]


@dataclass(frozen=True, kw_only=True)
class JudgedItem:
    """A verdict and the call it came from."""

    verdict: Verdict
    call_id: str


async def ask_verdicts(asker: Asker, inquiry: Inquiry, ids: Sequence[str]) -> dict[str, JudgedItem]:
    """A verdict for every id; raises JudgeFailed when some are still missing after the last attempt.

    The first request asks for all ids, later ones name those that are missing. The run's attempts are shared among
    them, so a judge that never gives one verdict is not asked more often than one that gives none.
    """
    judged: dict[str, JudgedItem] = {}
    missing: Sequence[str] = ids
    problems: Sequence[str] = ()
    for number in range(1, asker.attempts + 1):
        question = Question(
            step=inquiry.step,
            sample_id=inquiry.sample_id,
            prompt=inquiry.prompt,
            data=inquiry.build_data(missing),
            number=number,
            only=tuple(missing) if number > 1 else (),
        )
        answer = await asker.ask(question, _read_for(inquiry, missing), attempts=asker.attempts - number + 1)
        for item_id, verdict in answer.value.by_id.items():
            judged[item_id] = JudgedItem(verdict=verdict, call_id=answer.call_id)
        problems = answer.value.problems
        missing = [item for item in ids if item not in judged]
        if not missing:
            return judged
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
