"""Which of two answers a judge prefers, asked with either of them in front.

What is asked of a pair rests on its texts alone, so that the same pair is not asked about again, whichever run or
column brings it and whichever side it is on. Answers that are the same are a tie without a request.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, Literal, Protocol

import orjson

from evalhouse.prompts import PREFERENCES, BlockValue, Item, Prompt
from evalhouse.tasks.asking.verdicts import gather_all, parse_object
from evalhouse.tasks.comparing.runs import choose_cluster
from evalhouse.tasks.datasets.read import StagedDataset
from evalhouse.tasks.judge.errors import JudgeFailed, UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import LiveRun, collect_turns
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.samples import StoredSample

_AT_ONCE: Final = 500
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
class AnswerPair:
    """Two answers to one question; None for one that is missing.

    `sample` is that of the candidate, with the contexts of both sides, each once. `cluster` is its group of samples
    that are not independent. `problem` says why the two cannot be held against each other.
    """

    sample: StoredSample
    base: str | None
    candidate: str | None
    cluster: str | None = None
    problem: str | None = None


class AnswerPairs(Protocol):
    """Where pairs come from. `cluster` is the metadata column that groups them, None where each stands for itself."""

    @property
    def n(self) -> int:
        """How many there are."""

    @property
    def cluster(self) -> str | None:
        """What groups them."""

    def read(self) -> Iterator[list[AnswerPair]]:
        """All of them, some at a time."""


@dataclass(frozen=True, kw_only=True)
class PairsOfRuns:
    """The answers of two runs to the samples that both have, at most `limit`; `wanted` names what groups them."""

    runs: RunPair
    wanted: str | None = None
    limit: int | None = None

    @cached_property
    def n(self) -> int:
        """How many samples both have."""
        n = self.runs.fetch("samples").filter("in_base", "in_candidate").height
        return n if self.limit is None else min(n, self.limit)

    @cached_property
    def cluster(self) -> str | None:
        """What groups them, by the metadata of all."""
        frame = self.runs.fetch("metadata").join(
            self.runs.fetch("samples").filter("in_base", "in_candidate"), on="sample_id", how="semi"
        )
        return choose_cluster([_read_members(text) for text in frame["metadata"]], self.wanted)

    def read(self) -> Iterator[list[AnswerPair]]:
        """In the candidate's order."""
        after, left = 0, self.n
        while left > 0 and (
            rows := self.runs.warehouse.fetch_rows(
                "preferences/pairs",
                base=self.runs.base.run_id,
                candidate=self.runs.candidate.run_id,
                after=after,
                most=min(left, _AT_ONCE),
            )
        ):
            yield [_make_pair(row, self.cluster) for row in rows]
            after, left = int(rows[-1]["ordinal"]), left - len(rows)


@dataclass(frozen=True, kw_only=True)
class PairsOfColumns:
    """The answers in two columns of one dataset, which was staged once with either as its answer."""

    base: StagedDataset
    candidate: StagedDataset
    wanted: str | None = None

    @property
    def n(self) -> int:
        """How many rows there are."""
        return self.candidate.n_samples

    @cached_property
    def cluster(self) -> str | None:
        """What groups them, by the metadata of all."""
        parts = self.candidate.staging.read_parts()
        return choose_cluster([sample.metadata for samples in parts for sample in samples], self.wanted)

    def read(self) -> Iterator[list[AnswerPair]]:
        """In the order of the file."""
        for first in range(1, self.n + 1, _AT_ONCE):
            last = first + _AT_ONCE - 1
            sides = (staged.staging.read_between(first, last) for staged in (self.base, self.candidate))
            yield [
                AnswerPair(
                    sample=ours, base=theirs.answer, candidate=ours.answer, cluster=_name_cluster(ours, self.cluster)
                )
                for theirs, ours in zip(*sides, strict=True)
            ]


def _make_pair(row: Mapping[str, Any], cluster: str | None) -> AnswerPair:
    names = ("ordinal", "sample_id", "input_hash", "question", "ground_truth", "metadata_json", "conversation_json")
    sample = StoredSample(
        **{name: row[name] for name in names},
        answer=row["candidate_answer"],
        contexts=_join_contexts(row["base_contexts"], row["candidate_contexts"]),
        context_ids=None,
        reference_context_ids=None,
    )
    pair = AnswerPair(
        sample=sample,
        base=row["base_answer"],
        candidate=row["candidate_answer"],
        cluster=_name_cluster(sample, cluster),
    )
    return replace(pair, problem="other_question") if row["is_other_question"] else pair


def _join_contexts(*sides: Sequence[str] | None) -> list[str] | None:
    """The contexts of both sides, each once, by the better of its ranks; None where neither has any.

    Which side is which makes no difference, so that the pair is found on record from either.
    """
    if all(side is None for side in sides):
        return None
    ranked = sorted((rank, text) for side in sides for rank, text in enumerate(side or ()))
    return list(dict.fromkeys(text for _, text in ranked))


def _name_cluster(sample: StoredSample, column: str | None) -> str | None:
    value = sample.metadata.get(column) if column is not None else None
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _read_members(text: str | None) -> Mapping[str, Any]:
    members: Mapping[str, Any] = orjson.loads(text) if text else {}
    return members


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
    elif (pair.base or "").strip() == (pair.candidate or "").strip():
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
        "contexts": ()
        if "contexts" in request.without
        else [Item(id=f"C{place}", text=text) for place, text in enumerate(pair.sample.contexts or (), start=1)],
        "first_answer": first,
        "second_answer": second,
    }
    return {name: given[name] for name in request.prompt.variables}


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
