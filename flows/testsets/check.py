"""`testset check`: a set held against itself and against its documents, and what was found of it.

What needs no judge is seen first; then each question is held against those that are like it, and against its documents.
The requests depend on the set, the documents and the settings alone: the same command again asks nothing twice.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

from evalhouse.flows.errors import GATE_FAILED, INCOMPLETE
from evalhouse.flows.prompt_trials.session import Session, open_session, rehearse
from evalhouse.flows.results.output import (
    make_table,
    print_json,
    print_line,
    print_notice,
    print_section,
    print_table,
    write_count,
)
from evalhouse.flows.results.progress import show_run
from evalhouse.flows.run.outcome import Watch
from evalhouse.flows.testsets.set_run import (
    EXPECTED,
    PLAN,
    USED,
    Spoken,
    begin_set_run,
    describe_expected,
    list_check_rows,
    print_calls,
    resolve_in_language,
    speak,
)
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.errors import BudgetExhausted, JudgeFailed
from evalhouse.tasks.judge.names import LEXICAL
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.documents import read_documents
from evalhouse.tasks.testsets.findings import (
    FINDINGS,
    MEANINGS,
    Base,
    CheckedQuestion,
    FindingName,
    SetCheck,
    check_alone,
    check_in_documents,
    check_twin,
    weigh,
)
from evalhouse.tasks.testsets.near import QuestionIndex
from evalhouse.tasks.testsets.passages import Document
from evalhouse.tasks.testsets.questions import KINDS, GivenQuestion, read_given
from evalhouse.warehouse.messages import list_names, shorten
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


STAND_IN: Final = (
    "The lexical judge compares words: what it calls unsupported may be said in other words. To rely on it takes a "
    "model: --judge openai:MODEL."
)
_SHOWN: Final = 40
"""Findings that are printed in full; the others are in the JSON and the page."""
_SHORT: Final = 160


@dataclass(frozen=True, kw_only=True)
class Found:
    """A finding and its question."""

    one: CheckedQuestion
    check: SetCheck


@dataclass(frozen=True, kw_only=True)
class CheckedSet:
    """A set that was checked."""

    outcome: CheckOutcome

    @property
    def found(self) -> list[Found]:
        """All findings, the gravest kind first, in the order of the set within a kind."""
        found = [Found(one=one, check=check) for one in self.outcome.checked for check in one.findings]
        return sorted(found, key=lambda one: FINDINGS.index(one.check.name))

    @property
    def counts(self) -> list[dict[str, Any]]:
        """By finding how many questions it was found of."""
        counts = self.outcome.by_finding
        return [
            {"finding": name, "severity": weigh(name), "meaning": MEANINGS[name], "n": counts[name]}
            for name in FINDINGS
            if counts[name]
        ]

    @property
    def status(self) -> int:
        """The command's exit status."""
        if self.outcome.n_failed or self.outcome.problem:
            return INCOMPLETE
        return GATE_FAILED if self.outcome.by_finding else 0

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        outcome, request = self.outcome, self.outcome.request
        documents = outcome.documents
        return {
            "run_id": outcome.run_id,
            "set": request.path,
            "documents": request.source,
            "n_questions": len(request.questions),
            "n_with_findings": sum(bool(one.findings) for one in outcome.checked),
            "counts": self.counts,
            "findings": [_describe(found) for found in self.found],
            "coverage": {
                "kinds": _count_kinds(outcome.checked),
                "kinds_are_guessed": not all(one.question.given_kind for one in outcome.checked),
                "languages": dict(Counter(one.question.language for one in outcome.checked)),
                "documents": dict(documents) if documents is not None else None,
                "documents_without_a_question": _list_bare(documents),
            },
            "failed": [{"id": one.question.id, "why": one.failure} for one in outcome.checked if one.failure],
            "problem": outcome.problem,
            "calls": outcome.usage.pick(*USED),
        }

    def print(self) -> None:
        """As a person reads it."""
        outcome, request = self.outcome, self.outcome.request
        n_with = sum(bool(one.findings) for one in outcome.checked)
        against = f" against {write_count(len(request.documents), 'document')}" if request.documents is not None else ""
        print_line(
            f"{request.path}: {write_count(len(request.questions), 'question')}{against}, judged by "
            f"{request.settings.judge}; " + (f"something was found of {n_with:,}" if n_with else "nothing was found"),
            bold=True,
        )
        rows = [
            [row["severity"], row["finding"], row["n"], row["meaning"], _name_questions(self.found, row["finding"])]
            for row in self.counts
        ]
        print_section("Findings", ["severity", "finding", "#questions", "what it means", "of"], rows)
        listed = [
            [
                found.one.question.id,
                found.check.name,
                f"{shorten(found.one.question.question, _SHORT)} – {shorten(found.check.detail, 2 * _SHORT)}",
            ]
            for found in self.found
        ]
        print_section("What was found", ["question", "finding", "detail"], listed[:_SHOWN])
        if len(listed) > _SHOWN:
            print_line(f"and {len(listed) - _SHOWN:,} more: --json or --html FILE has them all")
        self._print_coverage()
        self._print_end()

    def _print_coverage(self) -> None:
        kinds = _count_kinds(self.outcome.checked)
        is_guessed = not all(one.question.given_kind for one in self.outcome.checked)
        print_line()
        print_table(
            make_table(
                ["kind", "#questions"], list(kinds.items()), title=f"Kinds{' (by their words)' if is_guessed else ''}"
            )
        )
        documents = self.outcome.documents
        if documents is None:
            return
        bare = _list_bare(documents) or []
        print_line()
        print_line(f"{len(documents) - len(bare):,} of {write_count(len(documents), 'document')} have a question")
        if bare:
            print_line(f"without one: {list_names(bare, 10)}")

    def _print_end(self) -> None:
        outcome = self.outcome
        print_calls(outcome.usage)
        if outcome.problem or outcome.n_failed:
            failed = [one.question.id for one in outcome.checked if one.failure]
            why = outcome.problem or next(one.failure for one in outcome.checked if one.failure)
            print_notice(
                f"{write_count(len(failed), 'question')} could not be checked to the end ({list_names(failed, 5)}): "
                f"{why}; the same command goes on from here."
            )
        print_line(
            '      evalhouse query "select candidate_id, name, detail from testset_checks '
            f"where run_id = '{outcome.run_id}' and not passed\""
        )


def _describe(found: Found) -> dict[str, Any]:
    question, check = found.one.question, found.check
    return {
        "id": question.id,
        "finding": check.name,
        "severity": weigh(check.name),
        "detail": check.detail,
        "others": list(check.others),
        "question": question.question,
        "ground_truth": question.ground_truth,
        "call_id": check.call_id,
    }


def _name_questions(found: Sequence[Found], name: str) -> str:
    return list_names([one.one.question.id for one in found if one.check.name == name], 3)


def _count_kinds(checked: Sequence[CheckedQuestion]) -> dict[str, int]:
    """Questions of each kind, those without one too."""
    counts = Counter(one.question.kind for one in checked)
    return {kind: counts[kind] for kind in KINDS}


def _list_bare(documents: Mapping[str, int] | None) -> list[str] | None:
    return None if documents is None else [name for name, n in documents.items() if not n]


@dataclass(frozen=True, kw_only=True)
class CheckPlan:
    """A set that can be checked: everything that can be refused has been looked at."""

    request: CheckRequest
    notices: tuple[str, ...]

    def print_estimate(self, *, as_json: bool) -> None:
        """What checking it would take at most; nothing is asked."""
        usage = estimate_check(self.request)
        if as_json:
            print_json({"n_questions": len(self.request.questions), **usage.pick(*EXPECTED)})
            return
        print_line(f"{self._describe(usage)}. Nothing was asked.")

    def _describe(self, usage: Usage) -> str:
        documents = self.request.documents
        against = f" against {write_count(len(documents), 'document')}" if documents is not None else ""
        return (
            f"{write_count(len(self.request.questions), 'question')}{against}: "
            f"{describe_expected(self.request.settings.judge, usage)}"
        )

    def check(self) -> CheckedSet:
        """Check it; raises FatalJudgeError when the judge cannot be asked."""
        if self.request.settings.judge != LEXICAL:
            print_notice(self._describe(estimate_check(self.request)))
        with show_run() as watch:
            return CheckedSet(outcome=check_set(self.request, watch))


def plan_check(
    path: str,
    docs: str | None,
    *,
    mapping: Mapping[str, str],
    language: str | None,
    encoding: str | None,
    command: str,
    flags: Mapping[str, Any],
) -> CheckPlan:
    """Read the set, the documents and the settings; raises SettingsError, DatasetError or TestsetError."""
    notices: list[str] = []
    questions, content_hash = read_given(path, mapping=mapping, encoding=encoding)
    documents = read_documents(docs, encoding=encoding, note=notices.append) if docs is not None else None
    settings = resolve_in_language(flags, language, (question.language for question in questions))
    if settings.judge == LEXICAL and documents is not None:
        notices.append(STAND_IN)
    request = CheckRequest(
        settings=settings,
        path=path,
        content_hash=content_hash,
        questions=questions,
        source=docs,
        documents=documents,
        command=command,
        language=language,
    )
    return CheckPlan(request=request, notices=tuple(notices))
