"""`testset make`: questions written from a knowledge base, of which those that stand all checks become a test set.

It goes in rounds. In each, as many questions of each kind are asked for as are still wanted and a few more, all of them
are checked, and those that stand are kept in the order of their drafts. It ends when there are enough, when the
documents hold no more drafts, or when so many were turned down that more of the same would not help. The requests
depend on documents and settings alone: the same command again finds every reply on record and goes on where it was.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from math import ceil
from typing import Any, Literal

from evalhouse.flows.run.outcome import Watch
from evalhouse.flows.testsets.asking import PLAN, Spoken, begin_set_run, speak
from evalhouse.flows.testsets.written import dump_json, list_check_rows
from evalhouse.flows.trials.session import Session, open_session, rehearse
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.errors import BudgetExhausted, JudgeFailed
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.candidates import Candidate, write_candidates
from evalhouse.tasks.testsets.drafts import Draft, Drafter, share_out
from evalhouse.tasks.testsets.duplicates import QuestionIndex, find_twin
from evalhouse.tasks.testsets.filters import Checked, check_by_judge, check_words
from evalhouse.tasks.testsets.near import NearPassages
from evalhouse.tasks.testsets.passages import Document, Passage
from evalhouse.tasks.testsets.questions import UNANSWERABLE, QuestionKind, SetQuestion, make_question_id
from evalhouse.warehouse.rows.testsets import append_testset_rows
from evalhouse.warehouse.steps import APART_PROMPTS

_BEYOND = 1.3  # asked for in a round, as a share of what is wanted: some are always turned down
_MOST_TRIED = 4  # candidates for each question that is wanted
_MOST_ROUNDS = 20


@dataclass(frozen=True, kw_only=True)
class MakeRequest:
    """What a set is asked to be: `n` questions, by `shares`, each kind from passages in an order that `seed` decides.

    Questions refer to the passages that they rest on, or with `by_document` to their documents. With `only`, the ids of
    some passages, they are written from these; all are still what they are checked against. `source` is where the
    documents were read, `command` how a person asks for the same again, `language` that of the prompts where it was
    named, `indexed` the index of the passages where there is one already.
    """

    settings: RunSettings
    documents: Sequence[Document]
    n: int
    shares: Mapping[QuestionKind, float]
    seed: int
    by_document: bool
    only: frozenset[str] | None = None
    source: str = ""
    command: str = ""
    language: str | None = None
    indexed: NearPassages | None = None

    @cached_property
    def near(self) -> NearPassages:
        """The index of all passages: made once for an estimate and for the asking."""
        return self.indexed or NearPassages(self.passages)

    @property
    def passages(self) -> list[Passage]:
        """Of all documents."""
        return [passage for document in self.documents for passage in document.passages]


@dataclass(kw_only=True)
class Making:
    """A set in the making: what was kept, and how all candidates ended. `others` are the questions that no further one
    may repeat: those that were kept and those that the set has already."""

    spoken: Spoken
    near: NearPassages
    others: QuestionIndex
    kept: list[SetQuestion] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    n_failed: int = 0
    problem: str | None = None

    @property
    def by_kind(self) -> Counter[str]:
        """How many of each kind were kept."""
        return Counter(question.kind for question in self.kept)

    @property
    def n_candidates(self) -> int:
        """How many were written."""
        return self.outcomes.total()

    def draw(self, drafter: Drafter, wanted: Mapping[QuestionKind, int]) -> list[Draft]:
        """Drafts for what is still wanted of each kind, and some more; none for a kind that has none left."""
        missing = {kind: n - self.by_kind[kind] for kind, n in wanted.items()}
        return [draft for kind, n in missing.items() if n > 0 for draft in drafter.draw(kind, ceil(n * _BEYOND))]

    def keep(self, question: SetQuestion) -> None:
        """Take a question into the set."""
        self.kept.append(question)
        self.others.add(question)

    def note_failure(self, error: JudgeFailed) -> None:
        """Something was left without a usable reply; nothing more is asked once the budget is spent."""
        self.n_failed += 1
        if isinstance(error, BudgetExhausted):
            self.problem = str(error)


@dataclass(frozen=True, kw_only=True)
class MakeOutcome:
    """What came of it; `problem` says what ended the asking early."""

    run_id: str
    making: Making
    usage: Usage
    problem: str | None


def make_set(request: MakeRequest, watch: Watch) -> MakeOutcome:
    """Make a set; raises FatalJudgeError when the judge cannot be asked at all."""
    run = begin_set_run(request.settings, n_samples=request.n, source=request.source, command=request.command)
    with open_session(request.settings, PLAN, run=run) as session:
        making = session.carry_out(partial(make_questions, request=request), watch)
        session.has_failures = making.n_failed > 0 or making.problem is not None
        usage = session.usage
    return MakeOutcome(run_id=run.run_id, making=making, usage=usage, problem=session.problem or making.problem)


def estimate_set(request: MakeRequest) -> Usage:
    """What making the set would take, less what is on record, when every question stands; nothing is asked."""
    return rehearse(request.settings, PLAN, partial(_make_dry, request=request))


async def _make_dry(session: Session, request: MakeRequest) -> Usage:
    await make_questions(session, request)
    return session.usage


async def make_questions(session: Session, request: MakeRequest, kept: Sequence[SetQuestion] = ()) -> Making:
    """Questions as asked for; none of them repeats another or one of those that are `kept` already."""
    sources = [one for one in request.passages if request.only is None or one.passage_id in request.only]
    spoken = await speak(session, APART_PROMPTS, (one.language for one in sources), named=request.language)
    live_run = spoken.own
    drafter = Drafter(passages=sources, near=request.near, seed=request.seed)
    wanted = share_out(request.n, request.shares)
    making = Making(spoken=spoken, near=request.near, others=QuestionIndex(kept))
    session.expect(request.n, "questions")
    for number in range(1, _MOST_ROUNDS + 1):
        drafts = making.draw(drafter, wanted)
        if not drafts or making.problem is not None or making.n_candidates >= _MOST_TRIED * request.n:
            break
        candidates = await _take_round(making, drafts)
        ended = [await _end(making, checked, wanted, by_document=request.by_document) for checked in candidates]
        session.live_run.progress.n_done = len(making.kept)
        if session.dry is not None:
            break
        rows = list_rows(live_run.run_id, ended)
        await asyncio.to_thread(append_testset_rows, live_run.warehouse, live_run.run_id, f"round {number}", rows)
    return making


async def _take_round(making: Making, drafts: Sequence[Draft]) -> list[Checked]:
    """The candidates of a round, checked, in the order of their drafts."""
    written = await gather_all([_write(making, draft) for draft in drafts])
    checked = [check_words(candidate) for candidates in written for candidate in candidates]
    await gather_all([_check(making, one) for one in checked if one.reason is None])
    return checked


async def _write(making: Making, draft: Draft) -> list[Candidate]:
    try:
        return await write_candidates(making.spoken.about(draft.passages[0].language), draft)
    except JudgeFailed as error:
        making.note_failure(error)
        return []


async def _check(making: Making, checked: Checked) -> None:
    """What asks the judge, unless the question is like one that was kept before."""
    try:
        if await _note_twin(making, checked):
            language = checked.candidate.passages[0].language
            await check_by_judge(making.spoken.about(language), checked, making.near)
    except JudgeFailed as error:
        checked.failure = str(error)
        making.note_failure(error)


async def _note_twin(making: Making, checked: Checked) -> bool:
    """Put on record whether a kept question asks the same; returns whether none does."""
    embedder = making.spoken.own.embedder
    assert embedder is not None
    twin = await find_twin(to_question(checked), making.others, embedder)
    return checked.note("duplicate", twin is None, f"asks the same as {twin}" if twin else "no other asks the same")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A candidate and how it ended; `question` is what stands in the set where it was kept."""

    checked: Checked
    outcome: Literal["kept", "rejected", "surplus", "failed"]
    question: SetQuestion | None = None


async def _end(making: Making, checked: Checked, wanted: Mapping[QuestionKind, int], *, by_document: bool) -> Ended:
    """Keep a candidate that stands, as far as its kind is wanted and no other of its round asks the same."""
    kind = checked.candidate.kind
    ended = Ended(checked=checked, outcome="failed" if checked.failure else "rejected")
    if checked.failure is None and checked.reason is None:
        if making.by_kind[kind] >= wanted.get(kind, 0):
            ended = replace(ended, outcome="surplus")
        elif await _note_twin(making, checked):
            question = to_question(checked, by_document=by_document)
            making.keep(question)
            ended = replace(ended, outcome="kept", question=question)
    making.outcomes[ended.outcome] += 1
    if checked.reason is not None:
        making.reasons[checked.reason] += 1
    return ended


def to_question(checked: Checked, *, by_document: bool = False) -> SetQuestion:
    """A candidate as a question of a set."""
    candidate = checked.candidate
    names = [passage.document_id if by_document else passage.passage_id for passage in checked.references]
    return SetQuestion(
        id=make_question_id(candidate.question, candidate.conversation),
        question=candidate.question,
        ground_truth=None if candidate.kind == UNANSWERABLE else candidate.ground_truth,
        reference_context_ids=() if candidate.kind == UNANSWERABLE else tuple(dict.fromkeys(names)),
        kind=candidate.kind,
        language=candidate.passages[0].language,
        spans=checked.spans,
        conversation=candidate.conversation,
    )


def list_rows(run_id: str, ended: Sequence[Ended]) -> dict[str, list[dict[str, Any]]]:
    """Candidates and what they stood, as rows of the warehouse."""
    return {
        "testset_candidates": [_to_row(run_id, one) for one in ended],
        "testset_checks": list_check_rows(
            run_id, {one.checked.candidate.candidate_id: one.checked.checks for one in ended}
        ),
    }


def _to_row(run_id: str, ended: Ended) -> dict[str, Any]:
    checked, candidate = ended.checked, ended.checked.candidate
    failed = checked.failed
    return {
        "run_id": run_id,
        "candidate_id": candidate.candidate_id,
        "kind": candidate.kind,
        "language": candidate.passages[0].language,
        "passage_ids": [passage.passage_id for passage in candidate.passages],
        "question": candidate.question,
        "ground_truth": candidate.ground_truth or None,
        "conversation": dump_json([asdict(turn) for turn in candidate.conversation]),
        "spans": dump_json([asdict(span) for span in checked.spans]),
        "reference_ids": [passage.passage_id for passage in checked.references],
        "outcome": ended.outcome,
        "reason": failed.name if failed else None,
        "detail": checked.failure or (failed.detail if failed else None),
        "question_id": ended.question.id if ended.question else None,
        "call_id": candidate.call_id,
    }
