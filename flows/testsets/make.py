"""`testset make`: questions written from a knowledge base; the ones that pass all checks become a test set.

Each round asks for the missing questions of each kind and a few more, checks all of them, and keeps the good ones in
the order of their drafts. The last round is the one with enough questions, or the one after which the documents have no
more drafts or so many were turned down that more would not help. The requests depend on documents and settings alone:
the same command again finds every stored reply and resumes where it stopped.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from evalhouse.flows.errors import INCOMPLETE, SettingsError
from evalhouse.flows.results.output import (
    make_table,
    print_json,
    print_line,
    print_notice,
    print_section,
    print_table,
    write_count,
)
from evalhouse.flows.run.outcome import show_run
from evalhouse.flows.testsets.versions import (
    EXPECTED,
    PLAN,
    USED,
    begin_set_run,
    check_output,
    describe_expected,
    dump_json,
    list_check_rows,
    open_languages,
    print_calls,
    resolve_in_language,
    write_version,
)
from evalhouse.flows.trials.session import Session, estimate_usage, open_session
from evalhouse.tasks.asking.embeddings import Embedder
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.protocol import LEXICAL, BudgetExhausted, JudgeFailed
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.candidates import (
    SHARES,
    Candidate,
    Checked,
    Draft,
    Drafter,
    check_by_judge,
    check_words,
    parse_shares,
    share_out,
    write_candidates,
)
from evalhouse.tasks.testsets.documents import KINDS, load_documents
from evalhouse.tasks.testsets.near import NearPassages, QuestionIndex
from evalhouse.tasks.testsets.passages import Document, Passage
from evalhouse.tasks.testsets.questions import (
    UNANSWERABLE,
    Change,
    Manifest,
    QuestionKind,
    SetQuestion,
    TestSet,
    find_manifest,
    make_question_id,
)
from evalhouse.warehouse.steps import APART_PROMPTS
from evalhouse.warehouse.store import Warehouse

_BEYOND = 1.3  # requested in a round, as a share of the missing ones: some are always turned down
_MAX_TRIED = 4  # candidates for each requested question
_MAX_ROUNDS = 20


@dataclass(frozen=True, kw_only=True)
class MakeRequest:
    """The requested set: `n` questions, by `shares`, each kind from passages in an order that `seed` decides.

    Questions refer to the passages that they rest on, or with `by_document` to their documents. With `only`, the ids of
    some passages, they are written from these, and still checked against all, of which `near` is the index. `source` is
    the path of the documents, `command` the command that asks for the same again, `language` the language of the
    prompts if it was named.
    """

    settings: RunSettings
    documents: Sequence[Document]
    near: NearPassages
    n: int
    shares: Mapping[QuestionKind, float]
    seed: int
    by_document: bool
    only: frozenset[str] | None = None
    source: str = ""
    command: str = ""
    language: str | None = None

    @property
    def passages(self) -> list[Passage]:
        """The passages of all documents."""
        return [passage for document in self.documents for passage in document.passages]


@dataclass(kw_only=True)
class MakeState:
    """A set in the making: the questions that were kept, and the outcomes of all candidates.

    `others` are the questions that no further one may repeat: the kept ones and the ones of the set before.
    """

    embedder: Embedder
    others: QuestionIndex
    kept: list[SetQuestion] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    n_failed: int = 0
    last_failure: str = ""
    problem: str | None = None

    @property
    def by_kind(self) -> Counter[str]:
        """The number of kept questions of each kind."""
        return Counter(question.kind for question in self.kept)

    def note_failure(self, error: JudgeFailed) -> None:
        """Count a request without a usable reply; none follows once the budget is spent."""
        self.n_failed += 1
        self.last_failure = str(error)
        if isinstance(error, BudgetExhausted):
            self.problem = str(error)


async def make_questions(session: Session, request: MakeRequest, kept: Sequence[SetQuestion] = ()) -> MakeState:
    """Make questions as requested; none of them repeats another one or a question in `kept`."""
    sources = [one for one in request.passages if request.only is None or one.passage_id in request.only]
    runs = await open_languages(session, APART_PROMPTS, (one.language for one in sources), named=request.language)
    live_run, embedder = session.live_run, session.live_run.embedder
    assert embedder is not None
    drafter = Drafter(passages=sources, near=request.near, seed=request.seed)
    wanted = share_out(request.n, request.shares)
    making = MakeState(embedder=embedder, others=QuestionIndex(kept))
    session.expect(request.n, "questions")

    async def write(draft: Draft) -> list[Candidate]:
        try:
            return await write_candidates(runs[draft.passages[0].language], draft)
        except JudgeFailed as error:
            making.note_failure(error)
            return []

    async def check(checked: Checked) -> None:
        try:
            if await _note_twin(making, checked):
                language = checked.candidate.passages[0].language
                await check_by_judge(runs[language], checked, request.near)
        except JudgeFailed as error:
            checked.failure = str(error)
            making.note_failure(error)

    for number in range(1, _MAX_ROUNDS + 1):
        missing = {kind: n - making.by_kind[kind] for kind, n in wanted.items()}
        drafts = [draft for kind, n in missing.items() if n > 0 for draft in drafter.draw(kind, ceil(n * _BEYOND))]
        if not drafts or making.problem is not None or making.outcomes.total() >= _MAX_TRIED * request.n:
            break
        written = await gather_all([write(draft) for draft in drafts])
        candidates = [check_words(candidate) for of_draft in written for candidate in of_draft]
        await gather_all([check(candidate) for candidate in candidates if candidate.failed is None])
        # In the order of the drafts, so that the same documents and settings give the same set.
        rows = [await _settle(making, checked, wanted, by_document=request.by_document) for checked in candidates]
        session.live_run.progress.n_done = len(making.kept)
        if session.dry is not None:
            break
        checks = {checked.candidate.id: checked.checks for checked in candidates}
        tables = {
            "testset_candidates": [{"run_id": live_run.run_id, **row} for row in rows],
            "testset_checks": list_check_rows(live_run.run_id, checks),
        }
        key = f"{live_run.run_id}/testset/round {number}"
        await asyncio.to_thread(live_run.warehouse.append_rows, key, live_run.run_id, tables)
    return making


async def _note_twin(making: MakeState, checked: Checked) -> bool:
    """Record whether a kept question asks the same; return whether none does."""
    twin = await making.others.find_twin(to_question(checked), making.embedder)
    return checked.note("duplicate", twin is None, f"asks the same as {twin}" if twin else "no other asks the same")


async def _settle(
    making: MakeState, checked: Checked, wanted: Mapping[QuestionKind, int], *, by_document: bool
) -> dict[str, Any]:
    """Keep a candidate that passed all checks, as far as its kind is wanted and no other of its round asks the same.

    Returns its row of the warehouse.
    """
    candidate, failed = checked.candidate, checked.failed
    outcome, question = "failed" if checked.failure else "rejected", None
    if checked.failure is None and failed is None:
        if making.by_kind[candidate.kind] >= wanted.get(candidate.kind, 0):
            outcome = "surplus"
        elif await _note_twin(making, checked):
            outcome, question = "kept", to_question(checked, by_document=by_document)
            making.kept.append(question)
            making.others.add(question)
    making.outcomes[outcome] += 1
    failed = checked.failed
    if failed is not None:
        making.reasons[failed.name] += 1
    return {
        "candidate_id": candidate.id,
        "kind": candidate.kind,
        "language": candidate.passages[0].language,
        "passage_ids": [passage.passage_id for passage in candidate.passages],
        "question": candidate.question,
        "ground_truth": candidate.ground_truth,
        "conversation": dump_json([asdict(turn) for turn in candidate.conversation]),
        "spans": dump_json([asdict(span) for span in checked.spans]),
        "reference_ids": [passage.passage_id for passage in checked.references],
        "outcome": outcome,
        "reason": failed.name if failed else None,
        "detail": checked.failure or (failed.detail if failed else None),
        "question_id": question.id if question else None,
        "call_id": candidate.call_id,
    }


def to_question(checked: Checked, *, by_document: bool = False) -> SetQuestion:
    """Return a candidate as a question of a set."""
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


STAND_IN = (
    "The lexical judge writes cloze-like questions and compares words: a free stand-in that shows how everything "
    "works. For reliable questions name a model: --judge openai:MODEL."
)


@dataclass(frozen=True, kw_only=True)
class MadeSet:
    """A set that was written, and the outcomes of its candidates; `problem` is what ended the requests early."""

    path: Path
    request: MakeRequest
    run_id: str
    making: MakeState
    usage: Usage
    problem: str | None
    test_set: TestSet

    @property
    def status(self) -> int:
        """The command's exit status; there may be fewer questions than requested."""
        return 0 if len(self.making.kept) >= self.request.n else INCOMPLETE

    def to_plain(self) -> dict[str, Any]:
        """Return the set as JSON."""
        making = self.making
        return {
            "run_id": self.run_id,
            "path": str(self.path),
            "manifest": str(find_manifest(self.path)),
            "set_hash": self.test_set.set_hash,
            "n_asked": self.request.n,
            "n_questions": len(making.kept),
            "kinds": dict(making.by_kind),
            "languages": dict(Counter(question.language for question in making.kept)),
            "n_candidates": making.outcomes.total(),
            "outcomes": dict(making.outcomes),
            "turned_down": dict(making.reasons),
            "n_failed": making.n_failed,
            "problem": self.problem,
            "calls": self.usage.pick(*USED),
        }

    def print(self) -> None:
        """Print the set for a person."""
        making = self.making
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
        print_section("Turned down, by the check they failed", ["check", "#candidates"], turned_down)
        print_calls(self.usage)
        if self.status == INCOMPLETE and self.problem is not None:
            again = f"evalhouse resume {self.run_id}"
            print_notice(f"Stopped before all were made: {self.problem}; {again} resumes from here.")
        elif self.status == INCOMPLETE:
            missing = {kind: n - kept[kind] for kind, n in wanted.items()}
            kinds = ", ".join(f"{n} {kind}" for kind, n in missing.items() if n > 0)
            failed = f", {making.n_failed} without a usable reply ({making.last_failure})" if making.n_failed else ""
            print_notice(
                f"Fewer than asked for ({kinds} missing): the documents gave no more that pass all checks after "
                f"{making.outcomes.total():,} candidates{failed}. More documents, other --kinds or a stronger judge "
                "help."
            )
        if making.kept:
            print_line(f"next: evalhouse run {self.path} …   (or as the dataset of a suite that asks your bot)")
        begin = "     " if making.kept else "next:"
        print_line(
            f'{begin} evalhouse query "select reason, detail, question from testset_candidates '
            f"where run_id = '{self.run_id}' and outcome = 'rejected'\""
        )


@dataclass(frozen=True, kw_only=True)
class SetPlan:
    """A set that can be made: its input is valid."""

    path: Path
    request: MakeRequest
    notices: tuple[str, ...]

    def print_estimate(self, *, as_json: bool) -> None:
        """Print the cost of making it if every candidate is kept; nothing is asked."""
        usage, text = self._estimate()
        if as_json:
            print_json({"n_asked": self.request.n, **usage.pick(*EXPECTED)})
            return
        print_line(f"{text}. Nothing was asked.")

    def _estimate(self) -> tuple[Usage, str]:
        request = self.request
        usage = estimate_usage(request.settings, PLAN, partial(make_questions, request=request))
        return usage, (
            f"{write_count(request.n, 'question')} from {write_count(len(request.passages), 'passage')} of "
            f"{write_count(len(request.documents), 'document')}: {describe_expected(request.settings.judge, usage)}, "
            "and up to four times as much where most candidates are turned down"
        )

    def make(self) -> MadeSet:
        """Make the set and write it; raises FatalJudgeError when the judge cannot be asked."""
        request, settings = self.request, self.request.settings
        if settings.judge != LEXICAL:
            print_notice(self._estimate()[1])
        run = begin_set_run(settings, n_samples=request.n, source=request.source, command=request.command)
        with show_run() as watch, open_session(settings, PLAN, run=run) as session:
            making = session.carry_out(partial(make_questions, request=request), watch)
            session.has_failures = making.n_failed > 0 or making.problem is not None
            usage = session.usage
        manifest = Manifest(
            source=request.source,
            passages={passage.passage_id: passage.passage_hash for passage in request.passages},
            asked={
                "n": request.n,
                "n_passages": len(request.passages),
                "kinds": dict(request.shares),
                "seed": request.seed,
                "references": "documents" if request.by_document else "passages",
            },
            judge=settings.judge,
        )
        new = [Change(id=question.id, change="new") for question in making.kept]
        test_set = TestSet(questions=tuple(making.kept), manifest=manifest)
        return MadeSet(
            path=self.path,
            request=request,
            run_id=run.run_id,
            making=making,
            usage=usage,
            problem=session.problem or making.problem,
            test_set=write_version(Warehouse(settings.warehouse), run.run_id, self.path, test_set, new),
        )


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
            f"{path} exists already; --force replaces it, `evalhouse testset refresh` updates a set after its "
            "documents changed"
        )
    shares = parse_shares(kinds) if kinds else dict(SHARES)
    notices: list[str] = []
    documents = load_documents(docs, encoding=encoding, note=notices.append)
    passages = [passage for document in documents for passage in document.passages]
    settings = resolve_in_language(flags, language, (passage.language for passage in passages))
    if settings.judge == LEXICAL:
        notices.append(STAND_IN)
    is_folder = Path(docs).expanduser().is_dir() or Path(docs).suffix.lower() in KINDS
    request = MakeRequest(
        settings=settings,
        documents=documents,
        near=NearPassages(passages),
        n=n,
        shares=shares,
        seed=seed,
        by_document=(references or ("documents" if is_folder else "passages")) == "documents",
        source=docs,
        command=command,
        language=language,
    )
    return SetPlan(path=path, request=request, notices=tuple(notices))
