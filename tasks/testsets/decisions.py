"""Decisions of people on the questions of a set: every line is checked before any counts, and nothing is overwritten.

A decision is about the content that was shown. If the question has changed since, by a refresh or by another person's
edit, the decision is left out and reported. Of several decisions on one content the latest counts; the others are
stored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from evalhouse.tasks.reviews.labels import (
    LabelFile,
    Line,
    LineError,
    ReviewError,
    check_person,
    list_problems,
    read_time,
)
from evalhouse.tasks.testsets.passages import Document, Passage
from evalhouse.tasks.testsets.questions import (
    UNANSWERABLE,
    Change,
    Decision,
    SetQuestion,
    TestSet,
    find_differences,
    parse_question,
)

LABELS: Final = ("keep", "fix", "drop")
"""The labels that a reviewer can give a question."""
_CHANGES: Final = {"keep": "accepted", "fix": "fixed", "drop": "dropped"}
_NAMED: Final = ("set", "set_hash", "question_id", "item_hash")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A question as it would be in the set if it is kept; `proposal` is the change that brings it, None for a question
    that is in the set already."""

    question: SetQuestion
    proposal: Change | None = None

    @property
    def item_hash(self) -> str:
        """The hash of the content that a person decides on."""
        return f"{self.question.id}-{self.question.undecided.question_hash}"

    @property
    def before(self) -> SetQuestion | None:
        """The question before the proposal."""
        return parse_question(self.proposal.before) if self.proposal else None


@dataclass(frozen=True, kw_only=True)
class AskedQuestions:
    """The questions that people are asked about; `passages` are the passages of the set's documents by id.

    `n_open` questions wait for a person, of which `subjects` are the first; `n_decided` have been decided on.
    """

    path: Path
    test_set: TestSet
    subjects: tuple[Subject, ...]
    passages: Mapping[str, Passage]
    n_open: int
    n_decided: int


def list_subjects(test_set: TestSet) -> Iterator[Subject]:
    """Yield everything that a person can decide on, proposals first."""
    for change in test_set.manifest.proposals:
        yield Subject(question=change.restore_question(), proposal=change)
    for question in test_set.questions:
        yield Subject(question=question)


def pick_questions(
    path: Path, test_set: TestSet, documents: Sequence[Document], *, n: int, again: bool
) -> AskedQuestions:
    """Return the first `n` questions that wait for a person, with `again` also decided ones.

    Raises ReviewError for none.
    """
    subjects = list(list_subjects(test_set))
    # A question of a proposal may have been accepted before it.
    waiting = [one for one in subjects if one.proposal or one.question.decision is None]
    picked = subjects if again else waiting
    if not picked:
        raise ReviewError(f"all {len(subjects)} questions of {path} have been decided on; --again asks once more")
    return AskedQuestions(
        path=path,
        test_set=test_set,
        subjects=tuple(picked[:n]),
        passages={passage.passage_id: passage for document in documents for passage in document.passages},
        n_open=len(picked),
        n_decided=len(subjects) - len(waiting),
    )


def list_question_rows(asked: AskedQuestions, *, reviewer: str) -> list[dict[str, Any]]:
    """Return the questions as lines of a table, in which a person can also edit `question` and `ground_truth`."""
    rows = []
    for subject in asked.subjects:
        question, before = subject.question, subject.before
        rows.append(
            {
                "label": None,
                "labels": ", ".join(LABELS),
                "note": None,
                "reviewer": reviewer or None,
                "kind": question.kind,
                "conversation": question.conversation_text or None,
                "question": question.question,
                "ground_truth": question.ground_truth,
                "ground_truth_before": before.ground_truth if before else None,
                "why": subject.proposal.detail if subject.proposal else None,
                "spans": [span.text for span in question.spans],
                "set": str(asked.path),
                "set_hash": asked.test_set.set_hash,
                "question_id": question.id,
                "item_hash": subject.item_hash,
            }
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class LineDecision:
    """The decision in a line, with its `question` and `ground_truth`, and the `change` that it makes.

    `time` is written as in the set's file; `is_timed` is true if the line has it.
    """

    place: str
    set_name: str
    question_id: str
    item_hash: str
    label: str
    change: str
    question: str | None
    ground_truth: str | None
    reviewer: str
    time: str
    is_timed: bool
    note: str | None


@dataclass(kw_only=True)
class AppliedDecisions:
    """A set in the file `path` after people's decisions; `run_id` is their import's, None if none of them was new.

    `outdated` are decisions on content that is not in it any more; `n_known` were imported before; `n_superseded` of
    the changes do not count, as a later decision was imported before.
    """

    path: Path
    test_set: TestSet
    run_id: str | None = None
    changes: list[Change] = field(default_factory=list)
    outdated: list[LineDecision] = field(default_factory=list)
    n_known: int = 0
    n_superseded: int = 0


def parse_decisions(files: Sequence[LabelFile], reviewer: str | None, now: datetime) -> list[LineDecision]:
    """Return the decisions of all files, oldest first. Raises ReviewError with every problem of every file.

    `reviewer` and `now` are the reviewer and the time of lines that have none.
    """
    problems = [problem for file in files for problem in file.problems]
    decisions: list[LineDecision] = []
    first: dict[tuple[str, str], str] = {}
    for line in (line for file in files for line in file.lines if line.get("label")):
        try:
            missing = [name for name in _NAMED if not line.get(name)]
            if missing:
                raise LineError(f"has no {', '.join(missing)}; leave these columns as they were written")
            label = (line.get("label") or "").casefold()
            if label not in LABELS:
                raise LineError(f"label is {line.get('label')!r}; it must be one of {', '.join(LABELS)}")
            name = line.get("reviewer") or reviewer
            if not name:
                raise LineError("has no reviewer; fill in the column, or give --reviewer NAME")
            check_person(name, line.get("note"))
            reviewed_at = read_time(line, now)
            decision = LineDecision(
                place=line.place,
                set_name=line.get("set") or "",
                question_id=line.get("question_id") or "",
                item_hash=line.get("item_hash") or "",
                label=label,
                change=_CHANGES[label],
                question=_get_text(line, "question"),
                ground_truth=_get_text(line, "ground_truth"),
                reviewer=name,
                time=(reviewed_at or now).isoformat(timespec="milliseconds"),
                is_timed=reviewed_at is not None,
                note=line.get("note"),
            )
        except LineError as error:
            problems.append(f"{line.place}: {error}")
            continue
        place = first.setdefault((decision.item_hash, decision.reviewer), line.place)
        if place != line.place:
            problems.append(f"{line.place}: {decision.reviewer!r} has decided on this in {place} already; keep one")
        decisions.append(decision)
    if problems:
        raise list_problems(f"nothing was imported: {len(problems)} problem{'s' * (len(problems) > 1)}", problems)
    return sorted(decisions, key=lambda decision: datetime.fromisoformat(decision.time))


def _get_text(line: Line, name: str) -> str | None:
    """Return a text without the apostrophe that keeps a spreadsheet from reading it as a formula."""
    text = line.get(name)
    return text[1:] if text and text[0] == "'" and text[1:2] in tuple("=+-@") else text


def apply_decisions(
    path: Path, test_set: TestSet, decisions: Sequence[LineDecision], stored: Sequence[Change]
) -> AppliedDecisions:
    """Return the set after the decisions, oldest first; `stored` are the ones that were imported before.

    Raises ReviewError for invalid ones; nothing changes then.
    """
    applied = AppliedDecisions(path=path, test_set=test_set)
    subjects = {subject.question.id: subject for subject in list_subjects(test_set)}
    present = {subject.question.id for subject in subjects.values() if subject.proposal is None}
    latest = {one.id: one for one in sorted(stored, key=lambda one: str(one.after["reviewed_at"]))}
    for earlier in latest.values():
        if earlier.change == "dropped":  # a person can take it back
            subjects.setdefault(earlier.id, Subject(question=parse_question(earlier.before)))
    problems = []
    for decision in decisions:
        question_id = decision.question_id
        subject = subjects.get(question_id)
        if _is_stored(decision, subject, stored, is_present=question_id in present):
            applied.n_known += 1
            continue
        if subject is None or subject.item_hash != decision.item_hash:
            applied.outdated.append(decision)
            continue
        try:
            after = _decide(subject, decision)
        except LineError as error:
            problems.append(f"{decision.place}: {error}")
            continue
        before, now = find_differences(subject.question, after) if after else (subject.question.to_row(), {})
        now |= {"reviewer": decision.reviewer, "reviewed_at": decision.time}
        detail = f"{decision.change} by {decision.reviewer}"
        if decision.note:
            now["note"] = decision.note
            detail += f": {decision.note}"
        applied.changes.append(Change(id=question_id, change=decision.change, detail=detail, before=before, after=now))
        if question_id in latest and str(latest[question_id].after["reviewed_at"]) > decision.time:
            applied.n_superseded += 1
            continue
        # A dropped question stays available for a person who decides otherwise later.
        subjects[question_id] = Subject(question=after or subject.question)
        if after is None:
            present.discard(question_id)
        else:
            present.add(question_id)
    if problems:
        raise list_problems(f"nothing was imported: {len(problems)} problem{'s' * (len(problems) > 1)}", problems)
    waiting = {question_id for question_id, subject in subjects.items() if subject.proposal is not None}
    proposals = tuple(change for change in test_set.manifest.proposals if change.id in waiting)
    applied.test_set = TestSet(
        questions=tuple(subject.question for question_id, subject in subjects.items() if question_id in present),
        manifest=replace(test_set.manifest, proposals=proposals),
    )
    return applied


def _is_stored(decision: LineDecision, subject: Subject | None, stored: Sequence[Change], *, is_present: bool) -> bool:
    """Return whether a decision was imported before: by its time, or without one by its reviewer's last decision."""
    own = [
        earlier
        for earlier in stored
        if earlier.id == decision.question_id and earlier.after["reviewer"] == decision.reviewer
    ]
    if decision.is_timed:
        return any(one.change == decision.change and one.after["reviewed_at"] == decision.time for one in own)
    if not own or max(own, key=lambda one: str(one.after["reviewed_at"])).change != decision.change:
        return False
    if decision.label == "drop":
        return not is_present
    if subject is None or subject.proposal is not None:
        return False
    return (subject.question.question, subject.question.ground_truth) == (decision.question, decision.ground_truth)


def _decide(subject: Subject, decision: LineDecision) -> SetQuestion | None:
    """Return the question after a decision; None if it leaves the set. Raises LineError."""
    if decision.label == "drop":
        return None
    question, before = subject.question, subject.before
    text = decision.question or question.question
    ground_truth = decision.ground_truth or question.ground_truth
    is_edited = (text, ground_truth) != (question.question, question.ground_truth)
    made: Decision = "accepted"
    if decision.label == "keep" and is_edited:
        raise LineError("is marked keep, but its question or ground_truth was edited; mark it fix")
    if decision.label == "fix":
        made = "fixed"
        if not is_edited:
            raise LineError("is marked fix, but nothing was edited; mark it keep, or edit question or ground_truth")
        if question.kind == UNANSWERABLE and decision.ground_truth:
            raise LineError("gives a ground truth to a question that the documents do not answer; leave it empty")
        if before and (decision.question, decision.ground_truth) == (before.question, before.ground_truth):
            question = before  # it rests on the spans it had before
        else:
            question = replace(question, question=text, ground_truth=ground_truth)
    return replace(question, decision=made, reviewer=decision.reviewer, reviewed_at=decision.time)
