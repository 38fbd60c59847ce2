"""`testset refresh`: the questions of a set compared with changed documents, and new ones for new passages.

Questions with unchanged spans, and questions whose spans were moved, need no judge. The judge is asked about the other
questions, about questions that a new or changed passage is near to, and for new questions from such passages. Nothing
is written before all of that is done; replies are stored, so that the same command resumes where it was stopped.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from evalhouse.flows.errors import INCOMPLETE, SettingsError
from evalhouse.flows.preparing.request import NO_JUDGE, find_variable
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
from evalhouse.flows.testsets.make import MakeRequest, MakeState, make_questions
from evalhouse.flows.testsets.versions import (
    PLAN,
    USED,
    begin_set_run,
    check_output,
    describe_expected,
    list_check_rows,
    open_languages,
    print_calls,
    resolve_in_language,
    write_version,
)
from evalhouse.flows.trials.session import Session, open_session, rehearse
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.protocol import LEXICAL, BudgetExhausted, JudgeFailed
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.candidates import share_out
from evalhouse.tasks.testsets.changes import (
    MAX_QUESTIONS,
    NEAREST,
    PROPOSED,
    Ending,
    MatchRequest,
    Pairs,
    Place,
    UpdatedBase,
    ask_by,
    join_endings,
    join_requests,
    judge_again,
    list_groups,
    mark_returned,
    match_questions,
    pair_up,
    stay_pointed,
)
from evalhouse.tasks.testsets.documents import load_documents
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.questions import (
    KINDS,
    Change,
    Manifest,
    QuestionKind,
    SetQuestion,
    TestSet,
    find_manifest,
    load_set,
    parse_question,
    write_set,
)
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.rows.runs import insert_run, now_utc
from evalhouse.warehouse.steps import APART_PROMPTS
from evalhouse.warehouse.store import Warehouse


@dataclass(frozen=True, kw_only=True)
class Look:
    """A question of the set as it was found in the documents without the judge.

    `ending` is its result if no passage answers it otherwise, None if a span is gone: then the judge decides. `places`
    are the places of its spans or of what they may have become.
    """

    question: SetQuestion
    ending: Ending | None
    places: tuple[Place | None, ...]


def look_at(base: UpdatedBase, question: SetQuestion) -> Look:
    """Return the place of a question in the present documents."""
    found = [base.find_verbatim(span) for span in question.spans]
    places = [place for place in found if place is not None]
    if len(places) < len(found):
        likely = [place or base.find_similar(span) for place, span in zip(found, question.spans, strict=True)]
        return Look(question=question, ending=None, places=tuple(likely))
    return Look(question=question, ending=stay_pointed(base, question, places), places=tuple(places))


@dataclass(frozen=True, kw_only=True)
class RefreshPlan:
    """A set that can be refreshed into the file `output`: its input is valid.

    `coverage` is the number of questions it should have, None for no new ones; `accept` takes proposals without a
    person, `accept_void` removes void questions however many they are; `source` is the path of the documents,
    `command` the command that asks for the same again, `language` the language of the prompts if it was named.
    `pending` are older proposals that still hold.
    """

    path: Path
    output: Path
    settings: RunSettings
    test_set: TestSet
    base: UpdatedBase
    coverage: int | None
    accept: bool
    accept_void: bool
    source: str
    command: str
    language: str | None
    looks: tuple[Look, ...]
    pending: tuple[Change, ...]
    notices: tuple[str, ...]

    @property
    def is_asking_about_present(self) -> bool:
        """True if the judge is asked about questions of the set."""
        return any(look.ending is None or self.base.changed for look in self.looks)

    @property
    def is_asking(self) -> bool:
        """True if the judge is asked anything."""
        before = [look.question for look in self.looks] + [change.restore_question() for change in self.pending]
        return self.is_asking_about_present or self.ask_for_new(before) is not None

    def ask_for_new(self, present: Sequence[SetQuestion]) -> MakeRequest | None:
        """Return the request for new questions beside the present ones; None if none are wanted or possible.

        Each kind gets the questions that it lacks of its share; proposals count as present.
        """
        asked = self.test_set.manifest.asked
        if self.coverage is None or not self.base.changed or self.coverage <= len(present):
            return None
        kinds = Counter(question.kind for question in present)
        shares: dict[QuestionKind, float] = {kind: asked["kinds"].get(kind, 0.0) for kind in KINDS}
        lacking = {kind: max(0, n - kinds[kind]) for kind, n in share_out(self.coverage, shares).items()}
        return MakeRequest(
            settings=self.settings,
            documents=tuple(self.base.documents.values()),
            near=self.base.near,
            n=self.coverage - len(present),
            shares={kind: float(n) for kind, n in lacking.items()},
            seed=asked["seed"],
            by_document=self.base.by_document,
            language=self.language,
            only=self.base.changed,
        )

    def print_estimate(self, *, as_json: bool) -> None:
        """Print the cost of a refresh; nothing is asked."""
        estimated, quiet = estimate_refresh(self), refresh_quietly(self)
        usage, n_asked = estimated.usage, estimated.n_asked
        n_repointed = sum(change.change == "repointed" for change in quiet.changes)
        if as_json:
            plain = {"n_questions": len(self.looks), "n_asked_about": n_asked}
            print_json(plain | {"repointed": n_repointed, "dead_references": quiet.dead, **usage.pick(*USED)})
            return
        print_line(
            f"{len(self.base.changed):,} of {write_count(len(self.base.passages), 'passage')} are new or changed;"
            f" of {write_count(len(self.looks), 'question')} {n_repointed:,} are pointed to the present place of "
            f"their spans and about {n_asked:,} asked about: {describe_expected(self.settings.judge, usage)}. "
            "Nothing was asked."
        )

    def refresh(self) -> "Refreshing":
        """Refresh the set and write it; raises FatalJudgeError when the judge cannot be asked."""
        before = self.test_set
        run = begin_set_run(self.settings, n_samples=len(self.looks), source=self.source, command=self.command)
        warehouse = Warehouse(self.settings.warehouse)
        if self.is_asking:
            with show_run() as watch, open_session(self.settings, PLAN, run=run) as session:
                refreshing = session.carry_out(partial(refresh_questions, plan=self), watch)
                session.has_failures = refreshing.has_failures or refreshing.problem is not None
                refreshing.usage = session.usage
            refreshing.run_id, refreshing.problem = run.run_id, session.problem or refreshing.problem
            if refreshing.problem is not None:
                return refreshing
        else:
            refreshing = refresh_quietly(self)
            if refreshing.changes or (self.accept and self.pending):
                # A run without requests, which needs neither a key nor a price.
                warehouse.make_ready()
                insert_run(warehouse, replace(run, judge=NO_JUDGE, status="completed", finished_at=now_utc()))
                refreshing.run_id = run.run_id
        # Decisions that people imported meanwhile are not overwritten, and half a folder of documents, such as a mount
        # that is missing, takes no questions away.
        current = load_set(self.path)
        n_void = sum(change.change == "void" for change in refreshing.changes)
        if current.set_hash != before.set_hash:
            refreshing.test_set = current
            refreshing.problem = (
                "the set was changed while it was refreshed, by an import of decisions or by hand, and is kept; "
                "refresh it again: what was answered is stored"
            )
        elif n_void >= _MANY_VOID and 2 * n_void > len(self.looks) and not self.accept_void:
            refreshing.problem = (
                f"{n_void:,} of {write_count(len(self.looks), 'question')} have no support in the documents any more, "
                f"so the set is kept; check that {self.source} is complete, and if it is: {self.command} --accept-void"
            )
        if refreshing.problem is not None:
            return refreshing
        asked, n = dict(before.manifest.asked), self.coverage
        if n is not None and n != _find_coverage(before.manifest, self.base):
            asked |= {"n": n, "n_passages": len(self.base.passages)}
        # A passage that a question could not be asked by stays unknown, so that the next refresh asks by it.
        manifest = replace(
            before.manifest,
            source=self.source,
            passages={
                name: passage.passage_hash
                for name, passage in self.base.passages.items()
                if name not in refreshing.unsettled
            },
            asked=asked,
            proposals=refreshing.proposals,
        )
        after = TestSet(questions=(*refreshing.kept, *refreshing.new), manifest=manifest)
        if refreshing.run_id is not None and after.set_hash != before.set_hash:
            changes = [change for change in refreshing.changes if self.accept or change.change not in PROPOSED]
            if self.accept:
                changes += [replace(change, change="accepted") for change in self.pending]
            changes += [Change(id=question.id, change="new") for question in refreshing.new]
            after = write_version(warehouse, refreshing.run_id, self.output, after, changes, source=self.path)
        elif after != before or self.output != self.path:
            write_set(self.output, after, source=self.path)
        refreshing.test_set = after
        return refreshing


_MAX_LISTED = 20
_MANY_VOID = 5  # questions that become void at once; if that is most of a set, its documents may be missing
_WORDS = ("same", "repointed", "still_true", "changed", "contradicted", "answerable", "void", "returned", "new")


@dataclass(kw_only=True)
class Refreshing:
    """The results for the questions so far, in their order, and the new ones, of which there should be `n_wanted`.

    `test_set` is the set afterwards, or unchanged if the refresh was stopped. `run_id` is None if nothing was asked or
    changed; `pairs` are the questions and passages that were compared, of which the judge was asked about `n_asked`
    questions one by one; `failed` are the questions without a usable reply, `unsettled` the passages that they should
    have been asked by; `problem` is what ended the requests early.
    """

    plan: RefreshPlan
    endings: dict[str, Ending]
    test_set: TestSet
    run_id: str | None = None
    usage: Usage = field(default_factory=Usage)
    pairs: Pairs | None = None
    n_asked: int = 0
    failed: set[str] = field(default_factory=set)
    unsettled: set[str] = field(default_factory=set)
    making: MakeState | None = None
    n_wanted: int = 0
    problem: str | None = None

    def note_failure(self, error: JudgeFailed, questions: Iterable[SetQuestion], passages: Iterable[Passage]) -> None:
        """Note that a request about these questions and passages got no usable reply."""
        self.failed.update(question.id for question in questions)
        self.unsettled.update(passage.passage_id for passage in passages)
        if isinstance(error, BudgetExhausted):
            self.problem = str(error)

    @property
    def changes(self) -> list[Change]:
        """The changes in the order of the questions, with proposals."""
        return [ending.change for ending in self.endings.values() if ending.change is not None]

    @property
    def proposals(self) -> tuple[Change, ...]:
        """The changes that wait for a person afterwards."""
        if self.plan.accept:
            return ()
        return (*self.plan.pending, *(change for change in self.changes if change.change in PROPOSED))

    @property
    def kept(self) -> list[SetQuestion]:
        """The questions of the set afterwards without the new ones."""
        questions = [ending.question for ending in self.endings.values()]
        if self.plan.accept:
            for place, ending in enumerate(self.endings.values()):
                if ending.change is not None and ending.change.change in PROPOSED:
                    questions[place] = ending.change.restore_question()
            questions += [change.restore_question() for change in self.plan.pending]
        return [question for question in questions if question is not None]

    @property
    def new(self) -> list[SetQuestion]:
        """The questions that were made."""
        return self.making.kept if self.making else []

    @property
    def has_failures(self) -> bool:
        """True if a request got no usable reply."""
        return bool(self.failed) or (self.making is not None and self.making.n_failed > 0)

    @property
    def dead(self) -> dict[str, list[str]]:
        """The questions that referred to a document or passage that is gone, by its id."""
        by_id: dict[str, list[str]] = {}
        for question in (look.question for look in self.plan.looks):
            for reference in question.reference_context_ids:
                if not self.plan.base.has_id(reference):
                    by_id.setdefault(reference, []).append(question.id)
        return by_id

    @property
    def translated(self) -> dict[str, str]:
        """The documents in the place of which one in another language is now, with that one's id.

        All questions of the document became void, and the one in its place has its id, or a similar one and is new.
        """
        documents = self.plan.base.documents
        changed = self.plan.base.changed
        arrived = [name for name, one in documents.items() if changed.issuperset(p.passage_id for p in one.passages)]
        void = {change.id for change in self.changes if change.change == "void"}
        kept = {span.document_id for question in self.kept for span in question.spans}
        translated: dict[str, str] = {}
        for question in (look.question for look in self.plan.looks if look.question.id in void):
            for name in {span.document_id for span in question.spans} - kept:
                for other in [name] if name in documents else get_close_matches(name, arrived):
                    if question.language not in {passage.language for passage in documents[other].passages}:
                        translated.setdefault(name, other)
        return translated

    @property
    def status(self) -> int:
        """The command's exit status; there may be requests without a usable reply."""
        return INCOMPLETE if self.problem or self.has_failures else 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of questions with each change; `same` are the questions of the set without one."""
        counts = Counter(change.change for change in self.changes)
        counts |= {"same": len(self.plan.looks) - counts.total(), "new": len(self.new)}
        return {word: counts[word] for word in _WORDS}

    def to_plain(self) -> dict[str, Any]:
        """Return the result as JSON."""
        manifest, path = self.test_set.manifest, self.plan.output
        void = [change for change in self.changes if change.change == "void"]
        listed: dict[str, list[dict[str, Any]]] = {"proposals": [], "void": []}
        for name, changes in (("proposals", manifest.proposals), ("void", void)):
            for row in map(asdict, changes):
                row.pop("call_id")
                listed[name].append(row)
        return {
            "run_id": self.run_id,
            "path": str(path),
            "manifest": str(find_manifest(path)),
            "set_hash": self.test_set.set_hash,
            "parent_hash": self.plan.test_set.set_hash,
            "n_versions": len(manifest.versions),
            "n_questions": len(self.test_set.questions),
            "compared": self.pairs.to_plain() if self.pairs else None,
            "n_asked_about": self.n_asked,
            "changes": self.counts,
            **listed,
            "dead_references": self.dead,
            "translated": self.translated,
            "n_new_wanted": self.n_wanted,
            "n_failed": len(self.failed) + (self.making.n_failed if self.making else 0),
            "problem": self.problem,
            "calls": self.usage.pick(*USED),
        }

    def print(self) -> None:
        """Print the result for a person."""
        plan, path = self.plan, self.plan.output
        if self.problem is not None:
            print_notice(f"Stopped: {self.problem}; {path} is unchanged, and the same command resumes from here.")
            return
        before, after = plan.test_set.set_hash, self.test_set.set_hash
        version = f"version {after}, made from {before}" if after != before else f"version {after} as before"
        print_line(f"{path}: {write_count(len(self.test_set.questions), 'question')}, {version}", bold=True)
        print_line()
        print_table(make_table(["became", "#questions"], [[word, n] for word, n in self.counts.items() if n]))
        changes = [change for change in self.changes if change.change in (*PROPOSED, "void")]
        rows = [
            [change.change, change.id, change.before["question"], change.detail] for change in changes[:_MAX_LISTED]
        ]
        print_section("Left the set, or to be decided on", ["became", "question", "text", "why"], rows)
        if len(changes) > _MAX_LISTED:
            print_line(f"and {len(changes) - _MAX_LISTED:,} more")
        if dead := self.dead:
            print_line()
            print_line(f"No longer there, and taken out of the references: {list_names(list(dead), _MAX_LISTED)}")
        if translated := self.translated:
            pairs = [name if name == other else f"{name} (now {other})" for name, other in translated.items()]
            print_notice(
                f"In another language now, as after a translation: {list_names(pairs, _MAX_LISTED)}; their questions "
                "are void because no document in their language supports them."
            )
        print_calls(self.usage)
        if self.pairs is not None and (compared := self.pairs.to_plain())["possible_pairs"]:
            print_line(
                f"compared {write_count(compared['questions'], 'question')} with {compared['passages']:,} new or "
                f"changed passages, by {compared['ranked_by']}: asked about the {NEAREST} nearest of each question, "
                f"at most {MAX_QUESTIONS} questions a passage ({compared['pairs']:,} of "
                f"{compared['possible_pairs']:,} pairs)"
            )
            if self.pairs.model is None and plan.settings.judge != LEXICAL:
                print_notice("Other wordings were found by shared words alone; --embeddings openai:MODEL finds more.")
            if self.pairs.n_without_vector:
                print_notice(
                    f"{plan.settings.embeddings} gave no usable vector for "
                    f"{write_count(self.pairs.n_without_vector, 'text')}; only words ranked them."
                )
        if self.failed:
            print_notice(
                f"{write_count(len(self.failed), 'question')} without a usable reply stayed unchanged; the same "
                "command asks about them again."
            )
        n_missing = self.n_wanted - len(self.new)
        if n_missing > 0:
            print_notice(
                f"{n_missing:,} fewer new ones than wanted: the new and changed passages gave no more that pass all "
                "checks. --coverage N after a later update asks for them again."
            )
        n_waiting = len(self.test_set.manifest.proposals)
        if n_waiting:
            print_notice(
                f"{write_count(n_waiting, 'proposal')} for a person: out of the set until decided on, and kept in "
                f"{find_manifest(path)}; `evalhouse review questions {path}` asks people, --accept takes all "
                "of them without a person."
            )
        n_taken = sum(change.change in PROPOSED for change in self.changes) + len(plan.pending)
        if plan.accept and n_taken:
            print_notice(f"{write_count(n_taken, 'proposal')} taken without a person's review (--accept).")
        if self.run_id is not None:
            print_line(
                'next: evalhouse query "select change, question_id, detail, before, after from testset_changes where '
                f"run_id = '{self.run_id}'\""
            )


def refresh_quietly(plan: RefreshPlan) -> Refreshing:
    """Return the results for the questions that the judge is not asked about."""
    endings = {look.question.id: look.ending or Ending(question=look.question) for look in plan.looks}
    return Refreshing(plan=plan, endings=endings, test_set=plan.test_set)


def estimate_refresh(plan: RefreshPlan) -> Refreshing:
    """Return a refresh with its usage beyond the stored replies; nothing is asked."""
    if not plan.is_asking:
        return refresh_quietly(plan)

    async def ask(session: Session) -> Refreshing:
        refreshing = await refresh_questions(session, plan)
        refreshing.usage = session.usage
        return refreshing

    return rehearse(plan.settings, PLAN, ask)


async def refresh_questions(session: Session, plan: RefreshPlan) -> Refreshing:
    """Ask about all questions that need the judge, then for new ones."""
    refreshing = refresh_quietly(plan)
    if plan.is_asking_about_present:
        await _ask_about_present(session, refreshing)
    present = [*refreshing.kept, *(change.restore_question() for change in refreshing.proposals)]
    new = plan.ask_for_new(present)
    if new is not None and refreshing.problem is None:
        refreshing.n_wanted = new.n
        refreshing.making = await make_questions(session, new, kept=[*present, *plan.test_set.dropped])
        refreshing.problem = refreshing.making.problem
    return refreshing


async def _ask_about_present(session: Session, refreshing: Refreshing) -> None:
    """Ask which new and changed passages answer a question of the set, then about each question that one answers, and
    each that lost a span. A question without a usable reply stays unchanged."""
    plan, base, live_run = refreshing.plan, refreshing.plan.base, session.live_run
    looks = {look.question.id: look for look in plan.looks}
    questions = {name: look.question for name, look in looks.items()}
    changed = [passage for name, passage in base.passages.items() if name in base.changed]
    languages = [*(question.language for question in questions.values()), *(passage.language for passage in changed)]
    runs = await open_languages(session, APART_PROMPTS, languages, named=plan.language)
    own = {name: {place.passage.passage_id for place in look.places if place} for name, look in looks.items()}
    assert live_run.embedder is not None
    try:
        pairs = await pair_up(questions, own, changed, base.near, live_run.embedder, is_dry=session.dry is not None)
    except JudgeFailed as error:
        refreshing.problem = str(error)
        return
    refreshing.pairs = pairs
    found = {name: question for name, question in questions.items() if looks[name].ending is not None}
    matches = join_requests(pairs.by_passage, found, base.passages, max_tokens=plan.settings.request_tokens)
    session.expect(len(matches), "requests about new and changed passages")

    async def match(one: MatchRequest) -> list[tuple[str, Passage]]:
        try:
            return await match_questions(runs[one.passages[0].language], one)
        except JudgeFailed as error:
            refreshing.note_failure(error, one.questions, one.passages)
            return []
        finally:
            session.note_done()

    answering: dict[str, list[Passage]] = {}
    for of_request in await gather_all([match(one) for one in matches]):
        for name, passage in of_request:
            answering.setdefault(name, []).append(passage)

    async def settle(look: Look, groups: Sequence[Sequence[Passage]]) -> Ending:
        question, ending = look.question, look.ending
        try:
            if ending is None:
                nearest = pairs.by_question[question.id]
                return await judge_again(runs[question.language], base, question, look.places, nearest)
            for group in groups:
                if ending.question is not None:
                    by_group = await ask_by(runs[question.language], base, ending.question, group)
                    ending = join_endings(question, ending, by_group)
            return ending
        except JudgeFailed as error:
            refreshing.note_failure(error, [question], chain.from_iterable(groups))
            return look.ending or Ending(question=question)
        finally:
            session.note_done()

    asked: list[tuple[Look, Sequence[Sequence[Passage]]]] = []
    for name, look in looks.items():
        places = [place for place in look.places if place is not None]
        groups = list_groups(base, look.question, places, answering.get(name, ())) if look.ending else []
        if groups or look.ending is None:
            asked.append((look, groups))
    refreshing.n_asked = len(asked)
    session.live_run.progress.n_done = 0
    session.expect(len(asked), "questions")
    endings = await gather_all([settle(look, groups) for look, groups in asked])
    refreshing.endings |= {look.question.id: ending for (look, _), ending in zip(asked, endings, strict=True)}
    if session.dry is None:
        checks = {question_id: ending.checks for question_id, ending in refreshing.endings.items()}
        rows = {"testset_checks": list_check_rows(live_run.run_id, checks)}
        live_run.warehouse.append_rows(f"{live_run.run_id}/testset/checks", live_run.run_id, rows)


def plan_refresh(
    path: Path,
    docs: str,
    output: Path,
    *,
    coverage: int | None,
    no_new: bool,
    accept: bool,
    accept_void: bool = False,
    encoding: str | None,
    language: str | None,
    command: str,
    flags: Mapping[str, Any],
) -> RefreshPlan:
    """Return the plan of a refresh; raises SettingsError or TestsetError for input that cannot be used."""
    check_output(output)
    if coverage is not None and no_new:
        raise SettingsError("--coverage sets the number of questions, and --no-new makes none; give one of them")
    test_set = load_set(path)
    manifest = test_set.manifest
    notices: list[str] = []
    documents = load_documents(docs, encoding=encoding, note=notices.append)
    base = UpdatedBase(documents, manifest.passages, by_document=manifest.asked.get("references") == "documents")
    # The judge that made the set, unless another one is named.
    judge = flags.get("judge") or (None if os.environ.get(find_variable("judge") or "") else manifest.judge)
    spoken = (passage.language for passage in base.passages.values())
    settings = resolve_in_language({**flags, "judge": judge}, language, spoken)
    # A proposal whose spans are gone is dropped, and the question before it looked at again.
    pending, reopened = [], []
    for change in manifest.proposals:
        spans = change.restore_question().spans
        if change.change == "contradicted":
            spans += parse_question(change.before).spans
        found = [(span, base.find_verbatim(span)) for span in spans]
        if all(place and place.span.passage_id == span.passage_id for span, place in found):
            pending.append(change)
        else:
            reopened.append(parse_question(change.before))
    looks = [look_at(base, question) for question in (*test_set.questions, *reopened)]
    known = {look.question.id for look in looks} | {change.id for change in pending}
    for question in test_set.void:  # whose document may have been missing for a while
        # The same sentence of another document may be about something else.
        found = [(span, base.find_verbatim(span)) for span in question.spans]
        places = [place for span, place in found if place and place.span.document_id == span.document_id]
        if question.id not in known and places and len(places) == len(found):
            returned = mark_returned(base, question, places)
            looks.append(Look(question=question, ending=returned, places=tuple(places)))
    return RefreshPlan(
        path=path,
        output=output,
        settings=settings,
        test_set=test_set,
        base=base,
        coverage=None if no_new else coverage or _find_coverage(manifest, base),
        accept=accept,
        accept_void=accept_void,
        source=docs,
        command=command,
        language=language,
        looks=tuple(looks),
        pending=tuple(pending),
        notices=tuple(notices),
    )


def _find_coverage(manifest: Manifest, base: UpdatedBase) -> int:
    """Return the number of questions that keeps the ratio to passages with which the set was made."""
    asked = manifest.asked
    per_passage: float = asked["n"] / max(1, asked.get("n_passages", len(manifest.passages)))
    return round(per_passage * len(base.passages))
