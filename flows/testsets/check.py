"""`testset check`: a set held against itself and against its documents, and what was found of it.

What needs no judge is seen first; then each question is held against those that are like it, and against its documents.
The requests depend on the set, the documents and the settings alone: the same command again asks nothing twice.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from evalhouse.flows.run.outcome import Watch
from evalhouse.flows.testsets.asking import PLAN, Spoken, begin_set_run, speak
from evalhouse.flows.testsets.written import list_check_rows
from evalhouse.flows.trials.session import Session, open_session, rehearse
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.errors import BudgetExhausted, JudgeFailed
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.check import CheckedQuestion, check_in_documents, check_twin
from evalhouse.tasks.testsets.duplicates import QuestionIndex
from evalhouse.tasks.testsets.findings import Base, FindingName, check_alone
from evalhouse.tasks.testsets.given import GivenQuestion
from evalhouse.tasks.testsets.passages import Document
from evalhouse.warehouse.rows.testsets import append_testset_rows


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """What is checked: the questions of a set, and the documents that they are about; None without any. `command` is
    how a person asks for the same again, `language` that of the prompts where it was named."""

    settings: RunSettings
    path: str
    content_hash: str
    questions: Sequence[GivenQuestion]
    source: str | None
    documents: Sequence[Document] | None
    command: str
    language: str | None

    @cached_property
    def base(self) -> Base | None:
        """What is known of the documents: found once for an estimate and for the asking."""
        return None if self.documents is None else Base(self.documents)


@dataclass(kw_only=True)
class Checking:
    """A set while it is checked."""

    spoken: Spoken
    checked: list[CheckedQuestion]
    problem: str | None = None
    _by_id: dict[str, GivenQuestion] = field(init=False)

    def __post_init__(self) -> None:
        self._by_id = {one.question.id: one.question for one in self.checked}

    @property
    def n_failed(self) -> int:
        """Questions that could not be checked to the end."""
        return sum(one.failure is not None for one in self.checked)

    def find(self, question_id: str) -> GivenQuestion:
        """A question by its id."""
        return self._by_id[question_id]

    def note_failure(self, one: CheckedQuestion, error: JudgeFailed) -> None:
        """A question was left without a usable reply; nothing more is asked once the budget is spent."""
        one.failure = str(error)
        if isinstance(error, BudgetExhausted):
            self.problem = str(error)


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """What came of it; `problem` says what ended the asking early."""

    request: CheckRequest
    run_id: str
    checked: Sequence[CheckedQuestion]
    usage: Usage
    problem: str | None

    @property
    def n_failed(self) -> int:
        """Questions that could not be checked to the end."""
        return sum(one.failure is not None for one in self.checked)

    @property
    def by_finding(self) -> Counter[FindingName]:
        """How often each thing was found."""
        return Counter(finding.name for one in self.checked for finding in one.findings)

    @property
    def documents(self) -> Counter[str] | None:
        """How many questions each document has; None without documents."""
        if self.request.documents is None:
            return None
        counts = Counter({document.document_id: 0 for document in self.request.documents})
        counts.update(name for one in self.checked for name in one.documents)
        return counts


def check_set(request: CheckRequest, watch: Watch) -> CheckOutcome:
    """Check a set; raises FatalJudgeError when the judge cannot be asked at all."""
    n_samples, path = len(request.questions), request.path
    run = begin_set_run(request.settings, n_samples=n_samples, source=path, command=request.command)
    run = replace(run, dataset_hash=request.content_hash)
    with open_session(request.settings, PLAN, run=run) as session:
        checking = session.carry_out(partial(_check_all, request=request), watch)
        session.has_failures = checking.n_failed > 0
        usage = session.usage
        rows = list_check_rows(run.run_id, {one.question.id: one.checks for one in checking.checked})
        append_testset_rows(session.live_run.warehouse, run.run_id, "check", {"testset_checks": rows})
    return CheckOutcome(
        request=request,
        run_id=run.run_id,
        checked=checking.checked,
        usage=usage,
        problem=session.problem or checking.problem,
    )


def estimate_check(request: CheckRequest) -> Usage:
    """What checking the set would take at most, less what is on record; nothing is asked."""
    return rehearse(request.settings, PLAN, partial(_check_dry, request=request))


async def _check_dry(session: Session, request: CheckRequest) -> Usage:
    await _check_all(session, request)
    return session.usage


async def _check_all(session: Session, request: CheckRequest) -> Checking:
    languages = (question.language for question in request.questions)
    spoken = await speak(session, ("answer_question",), languages, named=request.language)
    base = request.base
    checking = Checking(spoken=spoken, checked=[_begin(question, base) for question in request.questions])
    session.expect(len(checking.checked), "questions")
    index = QuestionIndex(request.questions)

    async def finish(place: int, one: CheckedQuestion) -> None:
        try:
            await _check_twins(checking, index, one, place)
            if base is not None:
                await check_in_documents(spoken.about(one.question.language), one, base)
        except JudgeFailed as error:
            checking.note_failure(one, error)
        session.note_done()

    await gather_all([finish(place, one) for place, one in enumerate(checking.checked)])
    return checking


def _begin(question: GivenQuestion, base: Base | None) -> CheckedQuestion:
    documents = base.find_documents(question) if base is not None else set[str]()
    return CheckedQuestion(question=question, checks=list(check_alone(question, base)), documents=documents)


async def _check_twins(checking: Checking, index: QuestionIndex, one: CheckedQuestion, place: int) -> None:
    """Note the first earlier question that asks the same; raises JudgeFailed."""
    live_run = checking.spoken.about(one.question.language)
    assert live_run.embedder is not None
    async for twin in index.list_twins(one.question, live_run.embedder, before=place):
        if await check_twin(live_run, one, checking.find(twin.id), twin):
            return
    one.note("duplicate", True, "no earlier question asks the same")
