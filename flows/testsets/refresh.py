"""`testset refresh`: the questions of a set held against documents that changed, and new ones for what is new.

What can be seen without a judge is seen first: questions whose spans stand where they stood, and those whose spans were
moved. The judge is asked about the others, about questions that a new or changed passage is near to, and for new
questions from such passages. Nothing is written before all of that is done; what was answered is on record, so that the
same command goes on where it was stopped.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from evalhouse.flows.errors import INCOMPLETE, SettingsError
from evalhouse.flows.preparing.settings import find_variable
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
from evalhouse.flows.testsets.make import MakeRequest, Making, make_questions
from evalhouse.flows.testsets.versions import (
    PLAN,
    USED,
    Spoken,
    begin_set_run,
    check_output,
    describe_expected,
    list_check_rows,
    print_calls,
    record_quiet_run,
    resolve_in_language,
    speak,
    write_version,
)
from evalhouse.flows.trials.session import Session, open_session, rehearse
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.errors import BudgetExhausted, JudgeFailed
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.candidates import NEAR, NEAR_UNANSWERABLE, share_out
from evalhouse.tasks.testsets.changes import (
    PROPOSED,
    Ending,
    hold_against,
    join_endings,
    judge_again,
    restore_question,
    stay_pointed,
)
from evalhouse.tasks.testsets.documents import read_documents
from evalhouse.tasks.testsets.near import Base, Place, list_dead, list_groups
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.questions import (
    KINDS,
    UNANSWERABLE,
    Change,
    Manifest,
    QuestionKind,
    SetQuestion,
    TestSet,
    find_manifest,
    read_question,
    read_set,
    write_set,
)
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.rows.testsets import append_testset_rows
from evalhouse.warehouse.steps import APART_PROMPTS
from evalhouse.warehouse.store import Warehouse


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
        live_run = spoken.about(look.question.language)
        ending = look.ending
        if ending is None:
            return await judge_again(live_run, refreshing.request.base, look.question, look.places)
        for group in look.groups:
            if ending.question is not None:
                ending = join_endings(
                    look.question, ending, await hold_against(live_run, refreshing.request.base, ending.question, group)
                )
        return ending
    except JudgeFailed as error:
        refreshing.n_failed += 1
        refreshing.unsettled.update(passage.passage_id for group in look.groups for passage in group)
        if isinstance(error, BudgetExhausted):
            refreshing.problem = str(error)
        return look.ending or Ending(question=look.question)
    finally:
        session.note_done()


_LISTED = 20
_WORDS = ("same", "repointed", "still_true", "changed", "contradicted", "answerable", "void", "new")


@dataclass(frozen=True, kw_only=True)
class RefreshedSet:
    """A set as it is after a refresh; the same as before where that was stopped."""

    path: Path
    request: RefreshRequest
    outcome: RefreshOutcome
    test_set: TestSet

    @property
    def status(self) -> int:
        """The command's exit status; some of what was to be asked may not have been answered."""
        return INCOMPLETE if self.outcome.problem or self.outcome.refreshing.has_failures else 0

    @property
    def counts(self) -> dict[str, int]:
        """How many questions became what; `same` are those of the set that nothing happened to."""
        refreshing = self.outcome.refreshing
        counts = Counter(change.change for change in refreshing.changes)
        counts |= {"same": len(self.request.looks) - counts.total(), "new": len(refreshing.new)}
        return {word: counts[word] for word in _WORDS}

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        refreshing, versions = self.outcome.refreshing, self.test_set.manifest.versions
        return {
            "run_id": self.outcome.run_id,
            "path": str(self.path),
            "manifest": str(find_manifest(self.path)),
            "set_hash": self.test_set.set_hash,
            "parent_hash": self.request.test_set.set_hash,
            "n_versions": len(versions),
            "n_questions": len(self.test_set.questions),
            "n_asked_about": self.request.n_asked,
            "changes": self.counts,
            "proposals": [_show(change) for change in self.test_set.manifest.proposals],
            "void": [_show(change) for change in refreshing.changes if change.change == "void"],
            "dead_references": refreshing.dead,
            "n_new_wanted": refreshing.n_wanted,
            "n_failed": refreshing.n_failed + (refreshing.making.n_failed if refreshing.making else 0),
            "problem": self.outcome.problem,
            "calls": self.outcome.usage.pick(*USED),
        }

    def print(self) -> None:
        """As a person reads it."""
        if self.outcome.problem is not None:
            print_notice(
                f"Stopped: {self.outcome.problem}; {self.path} is as it was, and the same command goes on from here."
            )
            return
        before, after = self.request.test_set.set_hash, self.test_set.set_hash
        version = f"version {after}, made from {before}" if after != before else f"version {after} as before"
        print_line(f"{self.path}: {write_count(len(self.test_set.questions), 'question')}, {version}", bold=True)
        print_line()
        print_table(make_table(["became", "#questions"], [[word, n] for word, n in self.counts.items() if n]))
        changes = [change for change in self.outcome.refreshing.changes if change.change in (*PROPOSED, "void")]
        rows = [[change.change, change.id, change.before["question"], change.detail] for change in changes[:_LISTED]]
        print_section("Left the set, or to be decided on", ["became", "question", "text", "why"], rows)
        if len(changes) > _LISTED:
            print_line(f"and {len(changes) - _LISTED:,} more")
        dead = self.outcome.refreshing.dead
        if dead:
            print_line()
            print_line(f"No longer there, and taken out of the references: {list_names(list(dead), _LISTED)}")
        refreshing = self.outcome.refreshing
        print_calls(self.outcome.usage)
        if refreshing.n_failed:
            print_notice(
                f"{write_count(refreshing.n_failed, 'question')} without a usable reply stayed as they were; "
                "the same command asks about them again."
            )
        n_missing = refreshing.n_wanted - len(refreshing.new)
        if n_missing > 0:
            print_notice(
                f"{n_missing:,} fewer new ones than wanted: the new and changed passages gave no more that stand all "
                "checks. --coverage N after a later update asks for them again."
            )
        n_waiting = len(self.test_set.manifest.proposals)
        if n_waiting:
            print_notice(
                f"{write_count(n_waiting, 'proposal')} for a person: out of the set until decided on, and kept in "
                f"{find_manifest(self.path)}; `evalhouse review questions {self.path}` asks people, --accept takes all "
                "of them as they are."
            )
        proposed = [change for change in self.outcome.refreshing.changes if change.change in PROPOSED]
        n_taken = len(proposed) + len(self.request.pending)
        if self.request.accept and n_taken:
            print_notice(f"{write_count(n_taken, 'proposal')} taken as they are (--accept); nobody has looked at them.")
        if self.outcome.run_id is not None:
            print_line(
                'next: evalhouse query "select change, question_id, detail, before, after from testset_changes where '
                f"run_id = '{self.outcome.run_id}'\""
            )


def _show(change: Change) -> dict[str, Any]:
    return {
        "id": change.id,
        "change": change.change,
        "detail": change.detail,
        "before": dict(change.before),
        "after": dict(change.after),
    }


@dataclass(frozen=True, kw_only=True)
class RefreshPlan:
    """A set that can be refreshed: everything that can be refused has been looked at."""

    path: Path
    output: Path
    request: RefreshRequest
    notices: tuple[str, ...]

    def print_estimate(self, *, as_json: bool) -> None:
        """What refreshing would take; nothing is asked."""
        usage = estimate_refresh(self.request)
        quiet = refresh_quietly(self.request)
        repointed = sum(change.change == "repointed" for change in quiet.changes)
        if as_json:
            plain = {"n_questions": len(self.request.looks), "n_asked_about": self.request.n_asked}
            print_json(plain | {"repointed": repointed, "dead_references": quiet.dead, **usage.pick(*USED)})
            return
        print_line(f"{self._describe(usage, repointed)}. Nothing was asked.")

    def _describe(self, usage: Usage, repointed: int) -> str:
        base = self.request.base
        return (
            f"{len(base.changed):,} of {write_count(len(base.passages), 'passage')} are new or changed; of "
            f"{write_count(len(self.request.looks), 'question')} {repointed:,} are pointed to where their spans are "
            f"now and {self.request.n_asked:,} asked about: {describe_expected(self.request.settings.judge, usage)}"
        )

    def refresh(self) -> RefreshedSet:
        """Refresh it and write it; raises FatalJudgeError when the judge cannot be asked."""
        with show_run() as watch:
            outcome = refresh_set(self.request, watch)
        refreshing, before = outcome.refreshing, self.request.test_set
        if outcome.problem is not None:
            return RefreshedSet(path=self.output, request=self.request, outcome=outcome, test_set=before)
        manifest = self._renew_manifest(refreshing.known)
        after = TestSet(
            questions=(*refreshing.kept, *refreshing.new), manifest=replace(manifest, proposals=refreshing.proposals)
        )
        if outcome.run_id is not None and after.set_hash != before.set_hash:
            warehouse = Warehouse(self.request.settings.warehouse)
            after = write_version(warehouse, outcome.run_id, self.output, after, refreshing.settled_changes)
        elif after != before or self.output != self.path:
            write_set(self.output, after)
        return RefreshedSet(path=self.output, request=self.request, outcome=outcome, test_set=after)

    def _renew_manifest(self, known: Mapping[str, str]) -> Manifest:
        """As before, with what the set knows now and what it was asked to be this time."""
        manifest, n = self.request.test_set.manifest, self.request.coverage
        asked = dict(manifest.asked)
        if n is not None and n != _find_coverage(manifest, self.request.base):
            asked |= {"n": n, "n_passages": len(self.request.base.passages)}
        return replace(manifest, source=self.request.source, passages=known, asked=asked)


def plan_refresh(
    path: Path,
    docs: str,
    output: Path,
    *,
    coverage: int | None,
    no_new: bool,
    accept: bool,
    encoding: str | None,
    language: str | None,
    command: str,
    flags: Mapping[str, Any],
) -> RefreshPlan:
    """Read set, documents and settings; raises SettingsError or TestsetError for what cannot be used."""
    check_output(output)
    if coverage is not None and no_new:
        raise SettingsError("--coverage says how many questions the set is to have, --no-new that none are made")
    test_set = read_set(path)
    manifest = test_set.manifest
    notices: list[str] = []
    documents = read_documents(docs, encoding=encoding, note=notices.append)
    base = Base(documents, manifest.passages, by_document=manifest.asked.get("references") == "documents")
    # Who made the set keeps it, unless somebody else is named.
    judge = flags.get("judge") or (None if os.environ.get(find_variable("judge") or "") else manifest.judge)
    spoken = (passage.language for passage in base.passages)
    looks, pending = look_at_all(base, test_set)
    request = RefreshRequest(
        settings=resolve_in_language({**flags, "judge": judge}, language, spoken),
        test_set=test_set,
        base=base,
        coverage=None if no_new else coverage or _find_coverage(manifest, base),
        accept=accept,
        source=docs,
        command=command,
        language=language,
        looks=looks,
        pending=pending,
    )
    return RefreshPlan(path=path, output=output, request=request, notices=tuple(notices))


def _find_coverage(manifest: Manifest, base: Base) -> int:
    """As many questions a passage as the set was asked to have when it was made."""
    asked = manifest.asked
    a_passage: float = asked["n"] / max(1, asked.get("n_passages", len(manifest.passages)))
    return round(a_passage * len(base.passages))
