"""What people decide on the questions of a set: every line is checked before any counts, and nothing is overwritten.

A decision is about the content that was shown. Where the question has changed since, by a refresh or by an earlier
decision, the decision is left out and reported. Of several decisions on one content the latest counts; the others are
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
from evalhouse.tasks.testsets.changes import restore_question
from evalhouse.tasks.testsets.near import find_differences
from evalhouse.tasks.testsets.passages import Document, Passage
from evalhouse.tasks.testsets.questions import (
    UNANSWERABLE,
    Change,
    Decision,
    SetQuestion,
    TestSet,
    read_question,
    write_conversation,
)

LABELS: Final = ("keep", "fix", "drop")
"""The labels that a reviewer can give a question."""
_OLD_LABELS: Final = {"mend": "fix"}  # in files of earlier versions


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A question as it would be in the set when it is kept; `proposal` is the change that brings it, None for one that
    is in the set already."""

    question: SetQuestion
    proposal: Change | None = None

    @property
    def item_hash(self) -> str:
        """What tells whether a decision is about this very content."""
        return f"{self.question.id}-{self.question.content_hash}"

    @property
    def before(self) -> SetQuestion | None:
        """The question as it was before the proposal."""
        return read_question(self.proposal.before) if self.proposal else None


@dataclass(frozen=True, kw_only=True)
class AskedQuestions:
    """What people are asked about a set: `passages` are those of its documents by id, as far as they are at hand.

    `n_open` questions wait for a person, of which `subjects` are the first; `n_decided` have been decided on.
    """

    path: Path
    test_set: TestSet
    subjects: tuple[Subject, ...]
    passages: Mapping[str, Passage]
    n_open: int
    n_decided: int


def list_subjects(test_set: TestSet) -> Iterator[Subject]:
    """All that a person can decide on, proposals first."""
    for change in test_set.manifest.proposals:
        yield Subject(question=restore_question(change), proposal=change)
    for question in test_set.questions:
        yield Subject(question=question)


def pick_questions(
    path: Path, test_set: TestSet, documents: Sequence[Document], *, n: int, again: bool
) -> AskedQuestions:
    """The first `n` that wait for a person; with `again` also those that were decided on. ReviewError for none."""
    subjects = list(list_subjects(test_set))
    # A question of a proposal may have been accepted as it was before.
    open_ones = [one for one in subjects if again or one.proposal or one.question.decision is None]
    if not open_ones:
        raise ReviewError(f"all {len(subjects)} questions of {path} have been decided on; --again asks once more")
    return AskedQuestions(
        path=path,
        test_set=test_set,
        subjects=tuple(open_ones[:n]),
        passages={passage.passage_id: passage for document in documents for passage in document.passages},
        n_open=len(open_ones),
        n_decided=len(subjects) - sum(1 for one in subjects if one.proposal or one.question.decision is None),
    )


def list_question_rows(asked: AskedQuestions, *, reviewer: str) -> list[dict[str, Any]]:
    """What is asked as lines of a table; a reviewer who fixes a question writes into `question` and `ground_truth`."""
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
                "conversation": write_conversation(question.conversation) or None,
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


DECIDED: Final = {"keep": "accepted", "fix": "fixed", "drop": "dropped"}
"""The change that a decision makes, by its label."""
_NAMED: Final = ("set", "set_hash", "question_id", "item_hash")


@dataclass(frozen=True, kw_only=True)
class Said:
    """A line's decision; `question` and `ground_truth` are as the line has them, `is_timed` whether it says when."""

    place: str
    set_name: str
    question_id: str
    item_hash: str
    label: str
    question: str | None
    ground_truth: str | None
    reviewer: str
    reviewed_at: datetime
    is_timed: bool
    note: str | None

    @property
    def change(self) -> str:
        """The change that it makes."""
        return DECIDED[self.label]

    @property
    def time(self) -> str:
        """When it was decided, as the set's file and the record have it."""
        return self.reviewed_at.isoformat(timespec="milliseconds")


@dataclass(frozen=True, kw_only=True)
class OnRecord:
    """A decision that was taken in before; `before` and `after` as in `testset_changes`."""

    question_id: str
    change: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def time(self) -> str:
        """When it was decided."""
        return str(self.after["reviewed_at"])


@dataclass(kw_only=True)
class Taken:
    """A set as people's decisions leave it. `outdated` are decisions on what is not in it any more; `n_known` were on
    record; `n_superseded` of the changes count for nothing, as a later decision was taken in before."""

    test_set: TestSet
    changes: list[Change] = field(default_factory=list)
    outdated: list[Said] = field(default_factory=list)
    n_known: int = 0
    n_superseded: int = 0


def is_decision(line: Line) -> bool:
    """Whether a line is about a question of a set, and not about a verdict of a run."""
    return bool(line.get("question_id") and line.get("set"))


def list_sets(files: Sequence[LabelFile]) -> list[str]:
    """The files of the sets that lines name, each once."""
    return list(dict.fromkeys(name for file in files for line in file.lines if (name := line.get("set"))))


def read_decisions(files: Sequence[LabelFile], reviewer: str | None, now: datetime) -> list[Said]:
    """The decisions of all files, oldest first; ReviewError with every problem of every file.

    `reviewer` is whose they are where a line does not say, `now` when they were made where a line does not say.
    """
    problems = [problem for file in files for problem in file.problems]
    decisions: list[Said] = []
    first: dict[tuple[str, str], str] = {}
    for line in (line for file in files for line in file.lines if line.get("label")):
        try:
            missing = [name for name in _NAMED if not line.get(name)]
            if missing:
                raise LineError(f"has no {', '.join(missing)}; leave these columns as they were written")
            label = (line.get("label") or "").casefold()
            label = _OLD_LABELS.get(label, label)
            if label not in LABELS:
                raise LineError(f"label is {line.get('label')!r}; it must be one of {', '.join(LABELS)}")
            name = line.get("reviewer") or reviewer
            if not name:
                raise LineError("says no reviewer; fill in the column, or give --reviewer NAME")
            check_person(name, line.get("note"))
            reviewed_at = read_time(line, now)
            said = Said(
                place=line.place,
                set_name=line.get("set") or "",
                question_id=line.get("question_id") or "",
                item_hash=line.get("item_hash") or "",
                label=label,
                question=_read_text(line, "question"),
                ground_truth=_read_text(line, "ground_truth"),
                reviewer=name,
                reviewed_at=reviewed_at or now,
                is_timed=reviewed_at is not None,
                note=line.get("note"),
            )
        except LineError as error:
            problems.append(f"{line.place}: {error}")
            continue
        place = first.setdefault((said.item_hash, said.reviewer), line.place)
        if place != line.place:
            problems.append(f"{line.place}: {said.reviewer!r} has decided on this in {place} already; keep one")
        decisions.append(said)
    if problems:
        raise list_problems(f"nothing was imported: {len(problems)} problem{'s' * (len(problems) > 1)}", problems)
    return sorted(decisions, key=lambda said: said.reviewed_at)


def _read_text(line: Line, name: str) -> str | None:
    """A text; what keeps a spreadsheet from taking it for a formula is no part of it."""
    text = line.get(name)
    return text[1:] if text and text[0] == "'" and text[1:2] in tuple("=+-@") else text


def take_decisions(test_set: TestSet, decisions: Sequence[Said], record: Sequence[OnRecord]) -> Taken:
    """Apply decisions, oldest first. Raises ReviewError for what cannot be: nothing is changed then."""
    deciding = _Deciding(test_set, record)
    problems = []
    for said in decisions:
        try:
            deciding.take(said)
        except LineError as error:
            problems.append(f"{said.place}: {error}")
    if problems:
        raise list_problems(f"nothing was imported: {len(problems)} problem{'s' * (len(problems) > 1)}", problems)
    return deciding.finish()


class _Deciding:
    """The questions while decisions are applied: each with what a person can decide on, None for one that was
    dropped."""

    def __init__(self, test_set: TestSet, record: Sequence[OnRecord]) -> None:
        self._taken = Taken(test_set=test_set)
        self._record = record
        self._latest = self._find_latest(record)
        self._subjects = {subject.question.id: subject for subject in list_subjects(test_set)}
        self._staying = {subject.question.id for subject in self._subjects.values() if subject.proposal is None}
        # What a person dropped can be taken back in.
        for change in self._latest.values():
            if change.change == "dropped" and change.question_id not in self._subjects:
                self._subjects[change.question_id] = Subject(question=read_question(change.before))

    @staticmethod
    def _find_latest(record: Sequence[OnRecord]) -> dict[str, OnRecord]:
        return {change.question_id: change for change in sorted(record, key=lambda change: change.time)}

    def take(self, said: Said) -> None:
        """Apply one."""
        subject = self._subjects.get(said.question_id)
        if self._is_known(said, subject):
            self._taken.n_known += 1
            return
        if subject is None or subject.item_hash != said.item_hash:
            self._taken.outdated.append(said)
            return
        after = _decide(subject, said)
        # A decision as it goes on record: what differs, who said so and when
        by = {"reviewer": said.reviewer, "reviewed_at": said.time} | ({"note": said.note} if said.note else {})
        before, now = find_differences(subject.question, after) if after else (subject.question.to_row(), {})
        detail = f"{said.change} by {said.reviewer}{f': {said.note}' if said.note else ''}"
        self._taken.changes.append(
            Change(id=said.question_id, change=said.change, detail=detail, before=before, after=now | by)
        )
        latest = self._latest.get(said.question_id)
        if latest is not None and latest.time > said.time:
            self._taken.n_superseded += 1
            return
        if after is None:
            self._staying.discard(said.question_id)
            # What it was stays at hand for somebody who decides otherwise later.
            self._subjects[said.question_id] = Subject(question=subject.question)
        else:
            self._staying.add(said.question_id)
            self._subjects[said.question_id] = Subject(question=after)

    def finish(self) -> Taken:
        """The set afterwards: what was decided on is no proposal any more."""
        manifest = self._taken.test_set.manifest
        waiting = tuple(
            change
            for change in manifest.proposals
            if (subject := self._subjects.get(change.id)) is not None and subject.proposal is not None
        )
        questions = tuple(
            subject.question for question_id, subject in self._subjects.items() if question_id in self._staying
        )
        self._taken.test_set = TestSet(questions=questions, manifest=replace(manifest, proposals=waiting))
        return self._taken

    def _is_known(self, said: Said, subject: Subject | None) -> bool:
        own = [
            change
            for change in self._record
            if change.question_id == said.question_id and change.after["reviewer"] == said.reviewer
        ]
        if said.is_timed:
            return any((change.change, change.time) == (said.change, said.time) for change in own)
        if not own or max(own, key=lambda change: change.time).change != said.change:
            return False
        if said.label == "drop":
            return said.question_id not in self._staying
        now = subject.question if subject and subject.proposal is None else None
        return now is not None and (now.question, now.ground_truth) == (said.question, said.ground_truth)


def _decide(subject: Subject, said: Said) -> SetQuestion | None:
    """The question as it is from now on; None when it leaves the set."""
    if said.label == "drop":
        return None
    question = subject.question
    differs = (said.question or question.question, said.ground_truth or question.ground_truth) != (
        question.question,
        question.ground_truth,
    )
    word: Decision = "accepted"
    if said.label == "fix":
        question, word = _fix(subject, said, differs=differs), "fixed"
    elif differs:
        raise LineError("is marked keep, but its question or ground_truth was edited; mark it fix")
    return replace(question, decision=word, reviewer=said.reviewer, reviewed_at=said.time)


def _fix(subject: Subject, said: Said, *, differs: bool) -> SetQuestion:
    question = subject.question
    if not differs:
        raise LineError("is marked fix, but nothing was edited; mark it keep, or edit question or ground_truth")
    if question.kind == UNANSWERABLE and said.ground_truth:
        raise LineError("gives a ground truth to a question that the documents do not answer; leave it empty")
    before = subject.before
    if before and (said.question, said.ground_truth) == (before.question, before.ground_truth):
        return before  # it rests on what it rested on before
    return replace(
        question,
        question=said.question or question.question,
        ground_truth=said.ground_truth or question.ground_truth,
    )
