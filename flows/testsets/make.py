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
from pathlib import Path
from typing import Any, Literal

from evalhouse.flows.errors import INCOMPLETE, SettingsError
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
    check_output,
    describe_expected,
    dump_json,
    hash_passages,
    list_check_rows,
    print_calls,
    resolve_in_language,
    speak,
    write_version,
)
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.errors import BudgetExhausted, JudgeFailed
from evalhouse.tasks.judge.names import LEXICAL
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.documents import name_kind, read_documents
from evalhouse.tasks.testsets.drafts import SHARES, Candidate, Draft, Drafter, parse_shares, share_out, write_candidates
from evalhouse.tasks.testsets.filters import Checked, check_by_judge, check_words
from evalhouse.tasks.testsets.near import NearPassages, QuestionIndex, find_twin
from evalhouse.tasks.testsets.passages import Document, Passage
from evalhouse.tasks.testsets.questions import UNANSWERABLE, QuestionKind, SetQuestion, make_question_id
from evalhouse.tasks.testsets.sets import Change, Manifest, TestSet, find_manifest
from evalhouse.warehouse.rows.testsets import append_testset_rows
from evalhouse.warehouse.steps import APART_PROMPTS
from evalhouse.warehouse.store import Warehouse

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
        written = await gather_all([_write(making, draft) for draft in drafts])
        candidates = [check_words(candidate) for of_draft in written for candidate in of_draft]
        await gather_all([_check(making, candidate) for candidate in candidates if candidate.reason is None])
        # In the order of the drafts, so that the same documents and settings give the same set.
        ended = [await _end(making, checked, wanted, by_document=request.by_document) for checked in candidates]
        session.live_run.progress.n_done = len(making.kept)
        if session.dry is not None:
            break
        rows = list_rows(live_run.run_id, ended)
        await asyncio.to_thread(append_testset_rows, live_run.warehouse, live_run.run_id, f"round {number}", rows)
    return making


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


STAND_IN = (
    "The lexical judge writes cloze-like questions and compares words: a stand-in that shows how everything works and "
    "costs nothing. Questions to rely on need a model: --judge openai:MODEL."
)


@dataclass(frozen=True, kw_only=True)
class MadeSet:
    """A set as it was written, and how its candidates ended."""

    path: Path
    request: MakeRequest
    outcome: MakeOutcome
    test_set: TestSet

    @property
    def status(self) -> int:
        """The command's exit status; there may be fewer questions than were asked for."""
        return 0 if len(self.outcome.making.kept) >= self.request.n else INCOMPLETE

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        making = self.outcome.making
        return {
            "run_id": self.outcome.run_id,
            "path": str(self.path),
            "manifest": str(find_manifest(self.path)),
            "set_hash": self.test_set.set_hash,
            "n_asked": self.request.n,
            "n_questions": len(making.kept),
            "kinds": dict(making.by_kind),
            "languages": dict(Counter(question.language for question in making.kept)),
            "n_candidates": making.n_candidates,
            "outcomes": dict(making.outcomes),
            "turned_down": dict(making.reasons),
            "n_failed": making.n_failed,
            "problem": self.outcome.problem,
            "calls": self.outcome.usage.pick(*USED),
        }

    def print(self) -> None:
        """As a person reads it."""
        making = self.outcome.making
        kept, wanted = making.by_kind, share_out(self.request.n, self.request.shares)
        documents = {span.document_id for question in making.kept for span in question.spans}
        print_line(
            f"{self.path}: {write_count(len(making.kept), 'question')} of {self.request.n:,} asked for, from "
            f"{len(documents):,} of {write_count(len(self.request.documents), 'document')}, made by "
            f"{self.request.settings.judge}",
            bold=True,
        )
        print_line()
        rows = [[kind, kept[kind], n] for kind, n in wanted.items() if n]
        print_table(make_table(["kind", "#questions", "#asked for"], rows))
        turned_down = [[reason, n] for reason, n in making.reasons.most_common()]
        print_section("Turned down, by the check they did not stand", ["check", "#candidates"], turned_down)
        print_calls(self.outcome.usage)
        if self.status == INCOMPLETE:
            print_notice(self._explain_shortage())
        run_id = self.outcome.run_id
        print_line(f"next: evalhouse run {self.path} …   (or as the dataset of a suite that asks your bot)")
        print_line(
            '      evalhouse query "select reason, detail, question from testset_candidates '
            f"where run_id = '{run_id}' and outcome = 'rejected'\""
        )

    def _explain_shortage(self) -> str:
        making = self.outcome.making
        if self.outcome.problem is not None:
            again = f"evalhouse resume {self.outcome.run_id}"
            return f"Stopped before all were made: {self.outcome.problem}; {again} goes on from here."
        missing = {kind: n - making.by_kind[kind] for kind, n in share_out(self.request.n, self.request.shares).items()}
        kinds = ", ".join(f"{n} {kind}" for kind, n in missing.items() if n > 0)
        failed = f", {making.n_failed} without a usable reply" if making.n_failed else ""
        return (
            f"Fewer than asked for ({kinds} missing): the documents gave no more that stand all checks after "
            f"{making.n_candidates:,} candidates{failed}. More documents, other --kinds or a stronger judge help."
        )


@dataclass(frozen=True, kw_only=True)
class SetPlan:
    """A set that can be made: everything that can be refused has been looked at."""

    path: Path
    request: MakeRequest
    notices: tuple[str, ...]

    def print_estimate(self, *, as_json: bool) -> None:
        """What making it would take when every candidate stands; nothing is asked."""
        usage = estimate_set(self.request)
        if as_json:
            print_json({"n_asked": self.request.n, **usage.pick(*EXPECTED)})
            return
        print_line(f"{self._describe(usage)}. Nothing was asked.")

    def _describe(self, usage: Usage) -> str:
        n_passages = len(self.request.passages)
        return (
            f"{write_count(self.request.n, 'question')} from {write_count(n_passages, 'passage')} of "
            f"{write_count(len(self.request.documents), 'document')}: "
            f"{describe_expected(self.request.settings.judge, usage)}, and up to four times as much where most "
            "candidates are turned down"
        )

    def make(self) -> MadeSet:
        """Make it and write it; raises FatalJudgeError when the judge cannot be asked."""
        if self.request.settings.judge != LEXICAL:
            print_notice(self._describe(estimate_set(self.request)))
        with show_run() as watch:
            outcome = make_set(self.request, watch)
        manifest = Manifest(
            source=self.request.source,
            passages=hash_passages(self.request.passages),
            asked={
                "n": self.request.n,
                "n_passages": len(self.request.passages),
                "kinds": dict(self.request.shares),
                "seed": self.request.seed,
                "references": "documents" if self.request.by_document else "passages",
            },
            judge=self.request.settings.judge,
        )
        questions = tuple(outcome.making.kept)
        new = [Change(id=question.id, change="new") for question in questions]
        warehouse = Warehouse(self.request.settings.warehouse)
        test_set = write_version(
            warehouse, outcome.run_id, self.path, TestSet(questions=questions, manifest=manifest), new
        )
        return MadeSet(path=self.path, request=self.request, outcome=outcome, test_set=test_set)


def plan_set(
    docs: str,
    path: Path,
    *,
    n: int,
    kinds: str | None,
    language: str | None,
    references: str | None,
    encoding: str | None,
    seed: int,
    force: bool,
    command: str,
    flags: Mapping[str, Any],
) -> SetPlan:
    """Read the documents and the settings; raises SettingsError or TestsetError for what cannot be used."""
    check_output(path)
    if path.exists() and not force:
        raise SettingsError(
            f"{path} is there already; --force replaces it, `evalhouse testset refresh` renews a set after an update"
        )
    shares = parse_shares(kinds) if kinds else dict(SHARES)
    notices: list[str] = []
    documents = read_documents(docs, encoding=encoding, note=notices.append)
    spoken = (passage.language for document in documents for passage in document.passages)
    settings = resolve_in_language(flags, language, spoken)
    if settings.judge == LEXICAL:
        notices.append(STAND_IN)
    is_folder = Path(docs).expanduser().is_dir() or name_kind(Path(docs)) is not None
    request = MakeRequest(
        settings=settings,
        documents=documents,
        n=n,
        shares=shares,
        seed=seed,
        by_document=(references or ("documents" if is_folder else "passages")) == "documents",
        source=docs,
        command=command,
        language=language,
    )
    return SetPlan(path=path, request=request, notices=tuple(notices))
