"""Ids in, ids out: ask about a set of items until each has exactly one usable verdict.

What a reply leaves out, doubles or labels wrongly is asked for again, alone. Nothing is padded or guessed: when
the attempts are used up the question has failed, with the ids that are missing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from prompts import BlockValue, Prompt
from tasks.asking import Asker
from tasks.judge import Question
from tasks.judge_errors import JudgeFailed
from tasks.reading import Verdict, Verdicts


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """What to ask about a sample.

    `build_data` gives the data of a request about some of the ids; `read` reads its reply for exactly those;
    `group` splits ids that a narrower request cannot hold together.
    """

    step: str
    sample_id: str
    prompt: Prompt
    build_data: Callable[[Collection[str]], Mapping[str, BlockValue]]
    read: Callable[[str, Collection[str]], Verdicts]
    group: Callable[[Sequence[str]], Sequence[Sequence[str]]]


@dataclass(frozen=True, kw_only=True)
class JudgedItem:
    """A verdict and the call it came from."""

    verdict: Verdict
    call_id: str


async def ask_verdicts(
    asker: Asker, inquiry: Inquiry, ids: Sequence[str], *, first: Sequence[Sequence[str]] | None = None
) -> dict[str, JudgedItem]:
    """A verdict for every id; raises JudgeFailed when some are still missing after the last attempt.

    All ids go into one request at first, unless `first` says in which groups.
    """
    judged: dict[str, JudgedItem] = {}
    problems: Sequence[str] = ()
    groups, narrowed = first or [ids], first is not None
    for number in range(1, asker.attempts + 1):
        for group in groups:
            problems = await _ask_group(asker, inquiry, group, judged, number=number, narrowed=narrowed)
        missing = [item for item in ids if item not in judged]
        if not missing:
            return judged
        groups, narrowed = inquiry.group(missing), True
    raise JudgeFailed(f"still incomplete after asking {asker.attempts} times: {'; '.join(problems)}")


async def _ask_group(
    asker: Asker,
    inquiry: Inquiry,
    group: Sequence[str],
    judged: dict[str, JudgedItem],
    *,
    number: int,
    narrowed: bool,
) -> Sequence[str]:
    question = Question(
        step=inquiry.step,
        sample_id=inquiry.sample_id,
        prompt=inquiry.prompt,
        data=inquiry.build_data(group),
        number=number,
        only=tuple(group) if narrowed else (),
    )
    answer = await asker.ask(question, lambda text: inquiry.read(text, group))
    for item_id, verdict in answer.value.by_id.items():
        judged[item_id] = JudgedItem(verdict=verdict, call_id=answer.call_id)
    return answer.value.problems
