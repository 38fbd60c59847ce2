"""Which of two answers a judge prefers, asked with either of them in front.

What is asked of a pair rests on its texts alone, so that the same pair is not asked about again, whichever run or
column brings it and whichever side it is on. Answers that are the same are a tie without a request.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from evalhouse.prompts import PREFERENCES, BlockValue, Item, Prompt
from evalhouse.tasks.asking.verdicts import gather_all, parse_object
from evalhouse.tasks.judge.errors import JudgeFailed, UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import LiveRun, collect_turns
from evalhouse.tasks.trials.answer_pairs import AnswerPair

STEP: Final = "prefer"
BUILT_IN: Final = "preference"
"""The rubric that is taken where none is named."""
Side = Literal["base", "candidate"]
SIDES: Final[Sequence[Side]] = ("base", "candidate")
_SAME: Final = "the answers are the same"
_MISSING: Final = {
    (True, True): "no_answer",
    (True, False): "no_base_answer",
    (False, True): "no_candidate_answer",
}
"""What an outcome says where an answer is missing: the base's, the candidate's."""


@dataclass(frozen=True, kw_only=True)
class Preference:
    """What the judge says of a pair: the answer by its place, and why."""

    verdict: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PreferenceRequest:
    """How pairs are asked about: by which rubric, and what is kept from the judge."""

    prompt: Prompt
    without: Collection[str] = ()


@dataclass(kw_only=True)
class PairVerdicts:
    """The rows of one pair: a preference an order, and why there are none or only one."""

    pair: AnswerPair
    preferences: list[dict[str, object]] = field(default_factory=list)
    outcome: dict[str, object] | None = None

    def add(self, shown_first: Side, preference: Preference, call_id: str | None) -> None:
        """Put the verdict of one order aside."""
        self.preferences.append(
            {
                "sample_id": self.pair.sample.sample_id,
                "shown_first": shown_first,
                "verdict": preference.verdict,
                "reason": preference.reason,
                "cluster": self.pair.cluster,
                "call_id": call_id,
            }
        )

    def note(self, reason: str | None, detail: str | None = None) -> None:
        """Say how it ended; the first that went wrong counts."""
        if self.outcome is None or self.outcome["reason"] is None:
            self.outcome = {
                "sample_id": self.pair.sample.sample_id, "step": STEP, "reason": reason, "detail": detail,
            }  # fmt: skip

    @property
    def has_failed(self) -> bool:
        """Whether the judge gave no verdict that it was asked for."""
        return self.outcome is not None and self.outcome["detail"] is not None


async def judge_pair(live_run: LiveRun, request: PreferenceRequest, pair: AnswerPair) -> PairVerdicts:
    """Ask about a pair in both orders."""
    verdicts = PairVerdicts(pair=pair)
    problem = pair.problem or _find_missing(request.prompt, pair)
    if problem is not None:
        verdicts.note(problem)
    elif _is_same(pair):
        for side in SIDES:
            verdicts.add(side, Preference(verdict="tie", reason=_SAME), None)
        verdicts.note(None)
    else:
        await gather_all([_ask(live_run, request, verdicts, side) for side in SIDES])
    return verdicts


async def _ask(live_run: LiveRun, request: PreferenceRequest, verdicts: PairVerdicts, shown_first: Side) -> None:
    before = collect_turns(verdicts.pair.sample, live_run.settings.request_tokens)
    question = Question(
        step=STEP,
        sample_id=verdicts.pair.sample.sample_id,
        prompt=request.prompt.after(before.turns),
        data={**before.block, **lay_out(request, verdicts.pair, shown_first)},
    )
    try:
        answer = await live_run.asker.ask(question, partial(read_preference, criterion=find_criterion(request.prompt)))
    except JudgeFailed as error:
        verdicts.note(error.reason, str(error))
        return
    verdicts.add(shown_first, answer.value, answer.call_id)
    verdicts.note(None)


def lay_out(request: PreferenceRequest, pair: AnswerPair, shown_first: Side) -> Mapping[str, BlockValue]:
    """The blocks that the rubric declares; what is missing, or kept from the judge, is empty."""
    answers = (pair.base or "", pair.candidate or "")
    first, second = answers if shown_first == "base" else answers[::-1]
    given: dict[str, BlockValue] = {
        "question": pair.sample.question,
        "ground_truth": "" if "ground_truth" in request.without else "\n".join(pair.sample.accepted_answers),
        "contexts": () if "contexts" in request.without else _number_contexts(pair),
        "first_answer": first,
        "second_answer": second,
    }
    return {name: given[name] for name in request.prompt.variables}


def _number_contexts(pair: AnswerPair) -> Sequence[Item]:
    return [Item(id=f"C{place}", text=text) for place, text in enumerate(pair.sample.contexts or (), start=1)]


def read_preference(text: str, *, criterion: str) -> Preference:
    """The preference in a reply; raises UnusableReply for one that is none."""
    entry = parse_object(text, criterion).get(criterion)
    if not isinstance(entry, dict):
        raise UnusableReply(f"the reply gave nothing for {criterion}")
    reason, verdict = entry.get("reason"), entry.get("verdict")
    if not isinstance(reason, str) or not reason.strip():
        raise UnusableReply(f"the reply gave no reason for {criterion}")
    if verdict not in PREFERENCES:
        raise UnusableReply(f"{criterion} is {verdict!r:.40}, allowed: {', '.join(PREFERENCES)}")
    return Preference(verdict=str(verdict), reason=reason.strip())


def find_criterion(prompt: Prompt) -> str:
    """What a rubric of pairs calls its one criterion."""
    assert prompt.rubric is not None
    (criterion,) = prompt.rubric.criteria
    return criterion


def _find_missing(prompt: Prompt, pair: AnswerPair) -> str | None:
    """What the pair has not got and cannot be judged without."""
    missing = _MISSING.get((not (pair.base or "").strip(), not (pair.candidate or "").strip()))
    needs = prompt.rubric.needs if prompt.rubric is not None else []
    return missing or next((f"no_{need}" for need, *_ in needs if getattr(pair.sample, need) is None), None)


def _is_same(pair: AnswerPair) -> bool:
    return (pair.base or "").strip() == (pair.candidate or "").strip()
