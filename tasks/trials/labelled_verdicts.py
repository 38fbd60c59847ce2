"""What a judge says of labelled rows: the steps of a run over them, with the requests that a run would send.

A row of support comes with its statement, so nothing is split; a row of correctness or pairwise is split and classified
as an answer is in a run. What is read off the verdicts:

- support: supported by any context.
- correctness: the metric statement_recall, the share of the ground truth's statements that the answer states, correct
  from 0.5. People call an answer correct for what it says of the truth, whatever else it adds.
- relevance: useful, for each context.
- pairwise: the answer with the higher F1 of its statements and the truth's, a tie within 0.05.
- rubric: the metrics faithfulness, factual_recall, factual_f1, and the rating of `accuracy` by a model.
- decomposition: the statements.

Labels decide. What rows are ordered by says more where the judge says how near it was, as the lexical one and
classifiers do: their scores then stand in the place of 1 for yes and 0 for no.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from evalhouse.prompts import Item
from evalhouse.tasks.asking.pairs import read_score as read_pair_score
from evalhouse.tasks.attribute import attribute_statements
from evalhouse.tasks.classify import classify_statements
from evalhouse.tasks.extract import extract_answer, extract_ground_truth, extract_statements
from evalhouse.tasks.fused import judge_together
from evalhouse.tasks.grade import grade_sample
from evalhouse.tasks.judge.errors import RunCancelled
from evalhouse.tasks.judge.names import LEXICAL, LOCAL
from evalhouse.tasks.lexical.judge import read_score
from evalhouse.tasks.pipeline.live_run import Extraction, LiveRun, SampleWork, make_work
from evalhouse.tasks.rank import rank_contexts
from evalhouse.tasks.trials.labelled_sets import Kind, Part, Row
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.steps import PLANS, SEPARATE, add_earlier

CORRECT_FROM: Final = 0.5
TIE_WITHIN: Final = 0.05
_AT_ONCE = 64
_NOT_THERE = ("no_contexts", "no_statements")

STEPS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "support": ("attribute_answer",),
    "correctness": ("extract_answer", "extract_ground_truth", "classify"),
    "relevance": ("rank",),
    "decomposition": ("extract_answer",),
    "rubric": ("extract_answer", "extract_ground_truth", "classify", "attribute_answer"),
    "pairwise": ("extract_answer", "extract_ground_truth", "classify"),
}
GRADED_BY: Final = "accuracy"
"""The rubric that a model rates rows of kind rubric by."""
_JOINED: Final = {classify_statements: "classify", attribute_statements: "attribute_answer", rank_contexts: "rank"}
"""What a plan asks in one request, with the step whose verdicts are held against people's."""
_Step = Callable[[LiveRun, SampleWork], Awaitable[None]]
# Judges whose reasons begin with how near it was.
_SCORES: Final[Mapping[str, Callable[[str], float | None]]] = {LEXICAL: read_score, LOCAL: read_pair_score}


def list_steps(kind: Kind, plan: str) -> frozenset[str]:
    """The steps of a kind; by a plan that joins some all that it joins, for that is how a run would ask."""
    if plan == SEPARATE or kind == "decomposition":
        return frozenset(STEPS[kind])
    return add_earlier((*STEPS[kind], *PLANS[plan].joins))


@dataclass(frozen=True, kw_only=True)
class ScoredLabel:
    """One verdict: a label and a number that orders rows by it."""

    label: str
    score: float


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a judge said of a row. `failure` says why there is nothing.

    `verdicts` has one entry, for relevance one a context; `values` are the metrics of a row of kind rubric.
    """

    row: Row
    verdicts: tuple[ScoredLabel, ...] = ()
    statements: tuple[str, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


class _NoVerdict(Exception):
    """A step gave none; says why."""


_Judge = Callable[[LiveRun, str, Row], Awaitable[Judged]]


async def judge_part(live_run: LiveRun, part: Part, note_done: Callable[[], None]) -> list[Judged]:
    """What the live run's judge says of all rows, in their order; `note_done` is called after each.

    A row that was given up says why. When the asking is stopped with RunCancelled those that came before are returned
    and the others say so; any other FatalJudgeError is raised.
    """
    free = asyncio.Semaphore(max(_AT_ONCE, 2 * live_run.settings.concurrency))
    judge = _JUDGES[part.kind]

    async def take(row: Row) -> Judged:
        async with free:
            try:
                judged = await judge(live_run, f"{part.name}/{row.id}", row)
            except (_NoVerdict, RunCancelled) as error:
                return Judged(row=row, failure=str(error))
            note_done()
            return judged

    results = await asyncio.gather(*map(take, part.rows), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, Judged)]


async def judge_support(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    work = _lay_out(sample_id, row, ground_truth=row.ground_truth or None)
    statement = Item(id="A1", text=str(row.data["statement"]))
    work.hand_over("answer", Extraction(items=(statement,)))
    await _take(live_run, work, (attribute_statements,))
    (verdict,) = [verdict for verdict in work.rows["attributions"] if verdict["statement_id"] == statement.id]
    label = "supported" if verdict["supported"] else "unsupported"
    return Judged(
        row=row,
        verdicts=(ScoredLabel(label=label, score=_score(live_run, "attribute", verdict, yes=label == "supported")),),
    )


async def judge_relevance(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    work = _lay_out(sample_id, row, ground_truth=row.ground_truth)
    await _take(live_run, work, (rank_contexts,))
    verdicts = [
        ScoredLabel(
            label="useful" if verdict["useful"] else "not_useful",
            score=_score(live_run, "rank", verdict, yes=bool(verdict["useful"])),
        )
        for verdict in work.rows["context_verdicts"]
    ]
    return Judged(row=row, verdicts=tuple(verdicts))


async def judge_correctness(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    compared = await _compare(live_run, sample_id, row, str(row.data["answer"]))
    label = "correct" if _mean(compared.stated) >= CORRECT_FROM else "incorrect"
    return Judged(row=row, verdicts=(ScoredLabel(label=label, score=_mean(compared.scores["G"])),))


async def judge_pair(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    answers = {side: str(row.data[f"answer_{side}"]) for side in "ab"}
    of_a, of_b = await asyncio.gather(
        *(_compare(live_run, f"{sample_id}/{side}", row, text) for side, text in answers.items())
    )
    # Of two long answers the labels alone are often equal.
    ahead = of_b.f1_by_scores - of_a.f1_by_scores
    label = "tie" if abs(ahead) < TIE_WITHIN else "b" if ahead > 0 else "a"
    return Judged(row=row, verdicts=(ScoredLabel(label=label, score=ahead),))


async def judge_split(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    work = _lay_out(sample_id, row, answer=str(row.data["text"]))
    await _take(live_run, work, (extract_answer,))
    return Judged(row=row, statements=tuple(str(statement["text"]) for statement in work.rows["statements"]))


async def judge_rated(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    """Metrics that need a ground truth or contexts are left out where there are none."""
    answer, truth = str(row.data["answer"]), row.ground_truth or None
    if not answer.strip():
        return Judged(row=row, failure="there is no answer to judge")
    work = _lay_out(sample_id, row, answer=answer, ground_truth=truth)
    splits, others = [extract_answer], [attribute_statements]
    if truth is not None:
        splits.append(extract_ground_truth)
        others += [classify_statements, grade_sample]
    # What a row has no texts for says nothing of the judge.
    await _take(live_run, work, splits, forgives=_NOT_THERE)
    await _take(live_run, work, others, forgives=_NOT_THERE)
    # factual_recall and factual_f1, as the warehouse computes them.
    labels = [(str(entry["statement_id"])[0], entry["label"]) for entry in work.rows["classifications"]]
    right, wrong, missed = (labels.count(entry) for entry in (("A", "TP"), ("A", "FP"), ("G", "FN")))
    values = {}
    if right + missed:
        values["factual_recall"] = right / (right + missed)
    if right + wrong + missed:
        values["factual_f1"] = right / (right + 0.5 * (wrong + missed))
    of_answer = [verdict for verdict in work.rows["attributions"] if str(verdict["statement_id"]).startswith("A")]
    if of_answer:
        values["faithfulness"] = _mean([float(bool(verdict["supported"])) for verdict in of_answer])
    for grade in work.rows["grades"]:
        values[GRADED_BY] = _to_number(grade["rating"]) / _to_number(grade["scale_max"])
    return Judged(row=row, values=values)


_JUDGES: Mapping[Kind, _Judge] = {
    "support": judge_support,
    "correctness": judge_correctness,
    "relevance": judge_relevance,
    "decomposition": judge_split,
    "rubric": judge_rated,
    "pairwise": judge_pair,
}


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """An answer against the ground truth: whether each statement of the truth is stated, and the judge's scores of the
    answer's statements (A) and of the truth's (G). Of an empty answer there is nothing."""

    stated: Sequence[float] = ()
    scores: Mapping[str, Sequence[float]] = field(default_factory=lambda: {"A": [], "G": []})

    @property
    def f1_by_scores(self) -> float:
        """F1 of the means of both sides."""
        precision, recall = _mean(self.scores["A"]), _mean(self.scores["G"])
        return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


async def _compare(live_run: LiveRun, sample_id: str, row: Row, answer: str) -> _Compared:
    if not answer.strip():
        return _Compared()
    work = _lay_out(sample_id, row, answer=answer, ground_truth=row.ground_truth)
    await _take(live_run, work, (extract_answer, extract_ground_truth))
    await _take(live_run, work, (classify_statements,))
    stated: list[float] = []
    scores: dict[str, list[float]] = {"A": [], "G": []}
    for verdict in work.rows["classifications"]:
        side, is_right = str(verdict["statement_id"])[0], verdict["label"] == "TP"
        scores[side].append(_score(live_run, "classify", verdict, yes=is_right))
        if side == "G":
            stated.append(float(is_right))
    return _Compared(stated=stated, scores=scores)


def _lay_out(sample_id: str, row: Row, *, answer: str | None = None, ground_truth: str | None = None) -> SampleWork:
    return make_work(
        StoredSample(
            ordinal=0,
            sample_id=sample_id,
            input_hash="",
            question=row.question,
            answer=answer,
            ground_truth=ground_truth,
            # Where people labelled without contexts nothing is known of a retrieval, whichever way a row says so.
            contexts=row.contexts or None,
            context_ids=None,
            reference_context_ids=None,
        )
    )


async def _take(live_run: LiveRun, work: SampleWork, steps: Sequence[_Step], *, forgives: Sequence[str] = ()) -> None:
    """Take some steps side by side, of which none waits for another; raises _NoVerdict when one gave nothing.

    By a plan that joins steps, one request asks all that the row has texts for: what else came of it does not count.
    """
    joined = [step for step in steps if step in _JOINED] if live_run.settings.plan != SEPARATE else []
    passed_over: set[str] = set()
    if joined:
        for source, extraction in work.extractions.items():
            if not extraction.done() and not (work.sample.answer if source == "answer" else work.sample.ground_truth):
                work.hand_over(source, Extraction(reason=f"no_{source}"))
        await extract_statements(live_run, work)
        passed_over = set(PLANS[live_run.settings.plan].joins) - {_JOINED[step] for step in joined}
        steps = [*(step for step in steps if step not in _JOINED), partial(judge_together, least=1)]
    results = await asyncio.gather(*(step(live_run, work) for step in steps), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    for outcome in work.rows["outcomes"]:
        is_counted = outcome["step"] not in passed_over and outcome["reason"] not in (None, *forgives)
        if is_counted:
            raise _NoVerdict(str(outcome["detail"] or outcome["reason"]))


def _score(live_run: LiveRun, step: str, verdict: Mapping[str, Any], *, yes: bool) -> float:
    """What the judge says of how near it was, or 1 and 0 where it says nothing of that."""
    read = _SCORES.get(live_run.asker.find(step).judge.name.partition(":")[0])
    score = read(str(verdict["reason"])) if read else None
    return float(yes) if score is None else score


def _to_number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
