"""`testset refresh`: the questions of a set held against documents that changed, and new ones for what is new.

What can be seen without a judge is seen first: questions whose spans stand where they stood, and those whose spans were
moved. The judge is asked about the others, about questions that a new or changed passage is near to, and for new
questions from such passages. Nothing is written before all of that is done; what was answered is on record, so that the
same command goes on where it was stopped.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from evalhouse.flows.run.outcome import Watch
from evalhouse.flows.testsets.asking import PLAN, Spoken, begin_set_run, record_quiet_run, speak
from evalhouse.flows.testsets.make import MakeRequest, Making, make_questions
from evalhouse.flows.testsets.written import list_check_rows
from evalhouse.flows.trials.session import Session, open_session, rehearse
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.errors import BudgetExhausted, JudgeFailed
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.changes import (
    PROPOSED,
    Ending,
    hold_against,
    join_endings,
    judge_again,
    restore_question,
    stay_pointed,
)
from evalhouse.tasks.testsets.drafts import share_out
from evalhouse.tasks.testsets.filters import NEAR, NEAR_UNANSWERABLE
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.places import Base, Place, list_dead, list_groups
from evalhouse.tasks.testsets.questions import KINDS, UNANSWERABLE, QuestionKind, SetQuestion, read_question
from evalhouse.tasks.testsets.sets import Change, TestSet
from evalhouse.warehouse.rows.testsets import append_testset_rows
from evalhouse.warehouse.steps import APART_PROMPTS


@dataclass(frozen=True, kw_only=True)
class Look:
    """A question of the set as it was found in the documents without asking anybody.

    `ending` is what becomes of it, None where a span is gone, which only the judge can say more about: `places` are
    then those of its spans. `groups` are passages that it is to be asked by again.
    """

    question: SetQuestion
    ending: Ending | None
    places: tuple[Place | None, ...]
    groups: tuple[tuple[Passage, ...], ...] = ()

    @property
    def is_asked(self) -> bool:
        """Whether the judge is asked about it."""
        return self.ending is None or bool(self.groups)


def look_at(base: Base, question: SetQuestion) -> Look:
    """How a question is found in the documents as they are now."""
    found = [base.find_verbatim(span) for span in question.spans]
    places = [place for place in found if place is not None]
    if len(places) < len(found):
        likely = [place or base.recognise(span) for place, span in zip(found, question.spans, strict=True)]
        return Look(question=question, ending=None, places=tuple(likely))
    ending = stay_pointed(base, question, places)
    n = NEAR_UNANSWERABLE if question.kind == UNANSWERABLE else NEAR
    groups = list_groups(base, question, places, n)
    return Look(question=question, ending=ending, places=tuple(places), groups=tuple(groups))


@dataclass(frozen=True, kw_only=True)
class RefreshRequest:
    """A set to be refreshed. `coverage` is how many questions it is to have, None for none that are new; `accept` says
    that proposals are taken as they are; `source` is where the documents were read, `command` how a person asks for the
    same again, `language` that of the prompts where it was named."""

    settings: RunSettings
    test_set: TestSet
    base: Base
    coverage: int | None
    accept: bool
    source: str
    command: str
    language: str | None
    looks: tuple[Look, ...]
    pending: tuple[Change, ...]

    @property
    def n_asked(self) -> int:
        """How many questions the judge is asked about."""
        return sum(look.is_asked for look in self.looks)

    def ask_for_new(self, before: Sequence[SetQuestion]) -> MakeRequest | None:
        """The request for new questions beside those that are there; None where none are wanted or can be had.

        Each kind gets what it lacks of its share; proposals count as being there.
        """
        asked = self.test_set.manifest.asked
        if self.coverage is None or not self.base.changed or self.coverage <= len(before):
            return None
        kinds = Counter(question.kind for question in before)
        shares: dict[QuestionKind, float] = {kind: asked["kinds"].get(kind, 0.0) for kind in KINDS}
        lacking = {kind: max(0, n - kinds[kind]) for kind, n in share_out(self.coverage, shares).items()}
        return MakeRequest(
            settings=self.settings,
            documents=self.base.documents,
            n=self.coverage - len(before),
            shares={kind: float(n) for kind, n in lacking.items()},
            seed=asked["seed"],
            by_document=self.base.by_document,
            language=self.language,
            only=self.base.changed,
            indexed=self.base.near,
        )


def look_at_all(base: Base, test_set: TestSet) -> tuple[tuple[Look, ...], tuple[Change, ...]]:
    """How all questions are found, and the proposals that still stand; of the others the question as it was is looked
    at again."""
    pending = tuple(change for change in test_set.manifest.proposals if _stands(base, change))
    reopened = [read_question(change.before) for change in test_set.manifest.proposals if change not in pending]
    return tuple(look_at(base, question) for question in (*test_set.questions, *reopened)), pending


def _stands(base: Base, change: Change) -> bool:
    """Whether what a proposal rests on is still where it was."""
    spans = restore_question(change).spans
    if change.change == "contradicted":
        spans += read_question(change.before).spans
    places = [base.find_verbatim(span) for span in spans]
    return all(place and place.span.passage_id == span.passage_id for place, span in zip(places, spans, strict=True))


@dataclass(kw_only=True)
class Refreshing:
    """What became of the questions so far, in their order, and the new ones, of which there should be `n_wanted`."""

    request: RefreshRequest
    endings: dict[str, Ending] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)
    making: Making | None = None
    n_wanted: int = 0
    n_failed: int = 0
    problem: str | None = None

    @property
    def changes(self) -> list[Change]:
        """What changed, in the order of the questions; proposals too."""
        return [ending.change for ending in self.endings.values() if ending.change is not None]

    @property
    def proposals(self) -> tuple[Change, ...]:
        """What waits for a person afterwards."""
        if self.request.accept:
            return ()
        return (*self.request.pending, *(change for change in self.changes if change.change in PROPOSED))

    @property
    def kept(self) -> list[SetQuestion]:
        """The questions of the set afterwards, but for the new ones."""
        staying = [(ending.question, ending.change) for ending in self.endings.values()]
        questions = [
            restore_question(change) if change and change.change in PROPOSED and self.request.accept else question
            for question, change in staying
        ]
        accepted = [restore_question(change) for change in self.request.pending] if self.request.accept else []
        return [question for question in (*questions, *accepted) if question is not None]

    @property
    def settled_changes(self) -> list[Change]:
        """What the new version says of itself: no proposal that waits, and those that were taken."""
        if not self.request.accept:
            own = [change for change in self.changes if change.change not in PROPOSED]
        else:
            accepted = [replace(change, change="accepted") for change in self.request.pending]
            own = [*self.changes, *accepted]
        return [*own, *(Change(id=question.id, change="new") for question in self.new)]

    @property
    def new(self) -> list[SetQuestion]:
        """The questions that were made."""
        return self.making.kept if self.making else []

    @property
    def has_failures(self) -> bool:
        """Whether something was left without a usable reply."""
        return self.n_failed > 0 or (self.making is not None and self.making.n_failed > 0)

    @property
    def dead(self) -> dict[str, list[str]]:
        """By id of a document or passage that is not there any more the questions that referred to it."""
        by_id: dict[str, list[str]] = {}
        for look in self.request.looks:
            for reference in list_dead(self.request.base, look.question):
                by_id.setdefault(reference, []).append(look.question.id)
        return by_id

    @property
    def known(self) -> dict[str, str]:
        """The hashes of the passages that the set has been held against. One that a question without a usable reply
        was to be held against is left out, so that the next time it is."""
        return {
            passage.passage_id: passage.passage_hash
            for passage in self.request.base.passages
            if passage.passage_id not in self.unsettled
        }


@dataclass(frozen=True, kw_only=True)
class RefreshOutcome:
    """What came of it; `run_id` is None where nobody had to be asked and nothing changed, `problem` says what ended the
    asking early."""

    run_id: str | None
    refreshing: Refreshing
    usage: Usage
    problem: str | None


def is_asking(request: RefreshRequest) -> bool:
    """Whether there is anything to ask."""
    before = [look.question for look in request.looks] + [restore_question(change) for change in request.pending]
    return request.n_asked > 0 or request.ask_for_new(before) is not None


def has_changes(request: RefreshRequest) -> bool:
    """Whether any question changes by what nobody has to be asked about."""
    return bool(refresh_quietly(request).changes) or (request.accept and bool(request.pending))


def refresh_quietly(request: RefreshRequest) -> Refreshing:
    """What becomes of the questions that nobody has to be asked about."""
    found = {look.question.id: look.ending or Ending(question=look.question) for look in request.looks}
    return Refreshing(request=request, endings=found)


def refresh_set(request: RefreshRequest, watch: Watch) -> RefreshOutcome:
    """Refresh a set; raises FatalJudgeError when the judge cannot be asked at all."""
    run = begin_set_run(request.settings, n_samples=len(request.looks), source=request.source, command=request.command)
    if not is_asking(request):
        run_id = record_quiet_run(request.settings, run) if has_changes(request) else None
        return RefreshOutcome(run_id=run_id, refreshing=refresh_quietly(request), usage=Usage(), problem=None)
    with open_session(request.settings, PLAN, run=run) as session:
        refreshing = session.carry_out(partial(refresh_questions, request=request), watch)
        session.has_failures = refreshing.has_failures or refreshing.problem is not None
        usage = session.usage
    problem = session.problem or refreshing.problem
    return RefreshOutcome(run_id=run.run_id, refreshing=refreshing, usage=usage, problem=problem)


def estimate_refresh(request: RefreshRequest) -> Usage:
    """What refreshing would take, less what is on record; nothing is asked."""

    async def ask(session: Session) -> Usage:
        await refresh_questions(session, request)
        return session.usage

    return rehearse(request.settings, PLAN, ask) if is_asking(request) else Usage()


async def refresh_questions(session: Session, request: RefreshRequest) -> Refreshing:
    """Ask about all questions that have to be asked about, then for new ones."""
    refreshing = refresh_quietly(request)
    asked = [look for look in request.looks if look.is_asked]
    if asked:
        languages = (look.question.language for look in asked)
        spoken = await speak(session, APART_PROMPTS, languages, named=request.language)
        live_run = spoken.own
        session.expect(len(asked), "questions")
        endings = await gather_all([_settle(session, spoken, refreshing, look) for look in asked])
        refreshing.endings |= {look.question.id: ending for look, ending in zip(asked, endings, strict=True)}
        if session.dry is None:
            checks = {question_id: ending.checks for question_id, ending in refreshing.endings.items()}
            rows = {"testset_checks": list_check_rows(live_run.run_id, checks)}
            append_testset_rows(live_run.warehouse, live_run.run_id, "checks", rows)
    waiting = [restore_question(change) for change in refreshing.proposals]
    new = request.ask_for_new([*refreshing.kept, *waiting])
    if new is not None and refreshing.problem is None:
        refreshing.n_wanted = new.n
        refreshing.making = await make_questions(
            session, new, kept=[*refreshing.kept, *waiting, *request.test_set.dropped]
        )
        refreshing.problem = refreshing.making.problem
    return refreshing


async def _settle(session: Session, spoken: Spoken, refreshing: Refreshing, look: Look) -> Ending:
    """What becomes of a question; it stays as it was where the judge gives no usable reply."""
    try:
        return await _ask_about(spoken.about(look.question.language), refreshing.request.base, look)
    except JudgeFailed as error:
        refreshing.n_failed += 1
        refreshing.unsettled.update(passage.passage_id for group in look.groups for passage in group)
        if isinstance(error, BudgetExhausted):
            refreshing.problem = str(error)
        return look.ending or Ending(question=look.question)
    finally:
        session.note_done()


async def _ask_about(live_run: LiveRun, base: Base, look: Look) -> Ending:
    ending = look.ending
    if ending is None:
        return await judge_again(live_run, base, look.question, look.places)
    for group in look.groups:
        if ending.question is not None:
            ending = join_endings(look.question, ending, await hold_against(live_run, base, ending.question, group))
    return ending
