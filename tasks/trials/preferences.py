"""A judge's preference between two answers, asked with either of them first.

The request depends on the texts alone, so that the same pair is not asked about again, from any run or column and on
any side. Equal answers are a tie without a request.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, Literal

import orjson

from evalhouse.prompts import PREFERENCES, BlockValue, Item, Prompt
from evalhouse.tasks.asking.verdicts import gather_all, parse_object
from evalhouse.tasks.comparing.runs import choose_cluster
from evalhouse.tasks.datasets.read import StagedDataset
from evalhouse.tasks.judge.protocol import JudgeFailed, Question, UnusableReply
from evalhouse.tasks.pipeline.live_run import LiveRun, collect_turns
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.samples import StoredSample, dump_turns, load_turns

_AT_ONCE: Final = 500
STEP: Final = "prefer"
BUILT_IN: Final = "preference"
"""The default rubric."""
Side = Literal["base", "candidate"]
SIDES: Final[Sequence[Side]] = ("base", "candidate")
_SAME: Final = "the answers are the same"
_MISSING: Final = {
    (True, True): "no_answer",
    (True, False): "no_base_answer",
    (False, True): "no_candidate_answer",
}
"""The reason of an outcome by which answers are missing: the base's, the candidate's."""


@dataclass(frozen=True, kw_only=True)
class AnswerPair:
    """Two answers to one question; None for one that is missing.

    `sample` is the candidate's, with the contexts of both sides, each once. `cluster` is its group of samples that are
    not independent. `problem` is why the two cannot be compared.
    """

    sample: StoredSample
    base: str | None
    candidate: str | None
    cluster: str | None = None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class PairsOfRuns:
    """The answers of two runs to the samples that both have, at most `limit`; `wanted` names the grouping column."""

    runs: RunPair
    wanted: str | None = None
    limit: int | None = None

    @cached_property
    def n(self) -> int:
        """The number of samples that both have."""
        n = self.runs.fetch("samples").filter("in_base", "in_candidate").height
        return n if self.limit is None else min(n, self.limit)

    @cached_property
    def cluster(self) -> str | None:
        """The metadata column that groups them, chosen by the metadata of all."""
        frame = self.runs.fetch("metadata").join(
            self.runs.fetch("samples").filter("in_base", "in_candidate"), on="sample_id", how="semi"
        )
        return choose_cluster([orjson.loads(text) if text else {} for text in frame["metadata"]], self.wanted, least=2)

    def read(self) -> Iterator[list[AnswerPair]]:
        """Yield the pairs in the candidate's order."""
        names = ("ordinal", "sample_id", "input_hash", "question", "ground_truth", "metadata_json", "conversation_json")
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
            pairs = []
            for row in rows:
                # The contexts of both sides, each once, by the better of its ranks. The sides are not distinguished, so
                # that the recorded reply to the pair is found from either.
                sides = (row["base_contexts"], row["candidate_contexts"])
                ranked = sorted((rank, text) for side in sides for rank, text in enumerate(side or ()))
                no_contexts = all(side is None for side in sides)
                # Another text of the user makes another question. Earlier answers of the bot that only one side gave
                # are not shown, so that neither side is judged in the conversation of the other.
                before, turns = load_turns(row["base_conversation_json"]), load_turns(row["conversation_json"])
                asked, asked_base = ([turn.text for turn in side if turn.role == "user"] for side in (turns, before))
                if before != turns:
                    texts = {(turn.role, turn.text) for turn in before}
                    row["conversation_json"] = dump_turns([turn for turn in turns if (turn.role, turn.text) in texts])
                sample = StoredSample(
                    **{name: row[name] for name in names},
                    answer=row["candidate_answer"],
                    contexts=None if no_contexts else list(dict.fromkeys(text for _, text in ranked)),
                    context_ids=None,
                    reference_context_ids=None,
                )
                pairs.append(
                    AnswerPair(
                        sample=sample,
                        base=row["base_answer"],
                        candidate=row["candidate_answer"],
                        cluster=_name_cluster(sample, self.cluster),
                        problem=None
                        if (row["question"], asked) == (row["base_question"], asked_base)
                        else "other_question",
                    )
                )
            yield pairs
            after, left = int(rows[-1]["ordinal"]), left - len(rows)


@dataclass(frozen=True, kw_only=True)
class PairsOfColumns:
    """The answers in two columns of one dataset, which was staged once with each as its answer."""

    base: StagedDataset
    candidate: StagedDataset
    wanted: str | None = None

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.candidate.n_samples

    @cached_property
    def cluster(self) -> str | None:
        """The metadata column that groups them, chosen by the metadata of all."""
        parts = self.candidate.staging.read_parts()
        return choose_cluster([sample.metadata for samples in parts for sample in samples], self.wanted, least=2)

    def read(self) -> Iterator[list[AnswerPair]]:
        """Yield the pairs in the order of the file."""
        for first in range(1, self.n + 1, _AT_ONCE):
            last = first + _AT_ONCE - 1
            sides = (staged.staging.read_between(first, last) for staged in (self.base, self.candidate))
            yield [
                AnswerPair(
                    sample=ours, base=theirs.answer, candidate=ours.answer, cluster=_name_cluster(ours, self.cluster)
                )
                for theirs, ours in zip(*sides, strict=True)
            ]


AnswerPairs = PairsOfRuns | PairsOfColumns


def _name_cluster(sample: StoredSample, column: str | None) -> str | None:
    value = sample.metadata.get(column) if column is not None else None
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


@dataclass(frozen=True, kw_only=True)
class Preference:
    """The judge's preference in a pair: the answer by its place, and why."""

    verdict: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PreferenceRequest:
    """The rubric of the requests, and the blocks that are hidden from the judge."""

    prompt: Prompt
    without: Collection[str] = ()


@dataclass(kw_only=True)
class PairVerdicts:
    """The rows of one pair: a preference for each order, and the outcome with the reason of a missing one."""

    pair: AnswerPair
    preferences: list[dict[str, object]] = field(default_factory=list)
    outcome: dict[str, object] | None = None

    def add(self, shown_first: Side, preference: Preference, call_id: str | None) -> None:
        """Add the verdict of one order."""
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
        """Set the outcome; the first failure counts."""
        if self.outcome is None or self.outcome["reason"] is None:
            self.outcome = {
                "sample_id": self.pair.sample.sample_id, "step": STEP, "reason": reason, "detail": detail,
            }  # fmt: skip

    @property
    def has_failed(self) -> bool:
        """True if the judge gave no verdict."""
        return self.outcome is not None and self.outcome["detail"] is not None


async def judge_pair(live_run: LiveRun, request: PreferenceRequest, pair: AnswerPair) -> PairVerdicts:
    """Ask about a pair in both orders."""
    verdicts = PairVerdicts(pair=pair)
    prompt = request.prompt
    missing = _MISSING.get((not (pair.base or "").strip(), not (pair.candidate or "").strip()))
    needs = prompt.rubric.needs if prompt.rubric is not None else []
    lacking = next((f"no_{need}" for need in needs if getattr(pair.sample, need) is None), None)
    problem = pair.problem or missing or lacking
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
    assert request.prompt.rubric is not None
    (criterion,) = request.prompt.rubric.criteria  # a rubric of pairs has one
    pair, before = verdicts.pair, collect_turns(verdicts.pair.sample, live_run.settings.request_tokens)
    # The blocks that the rubric declares; a missing or hidden one is empty.
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
    question = Question(
        step=STEP,
        sample_id=pair.sample.sample_id,
        prompt=request.prompt.after(before.turns),
        data={**before.block, **{name: given[name] for name in request.prompt.variables}},
    )
    try:
        answer = await live_run.asker.ask(question, partial(parse_preference, criterion=criterion))
    except JudgeFailed as error:
        verdicts.note(error.reason, str(error))
        return
    verdicts.add(shown_first, answer.value, answer.call_id)
    verdicts.note(None)


def parse_preference(text: str, *, criterion: str) -> Preference:
    """Return the preference in a reply; raises UnusableReply."""
    entry = parse_object(text, criterion).get(criterion)
    if not isinstance(entry, dict):
        raise UnusableReply(f"the reply gave nothing for {criterion}")
    reason, verdict = entry.get("reason"), entry.get("verdict")
    if not isinstance(reason, str) or not reason.strip():
        raise UnusableReply(f"the reply gave no reason for {criterion}")
    if verdict not in PREFERENCES:
        raise UnusableReply(f"{criterion} is {verdict!r:.40}, allowed: {', '.join(PREFERENCES)}")
    return Preference(verdict=str(verdict), reason=reason.strip())
