"""What people decide on the questions of a set: every line is checked before any counts, and nothing is overwritten.

A decision is about the content that was shown. Where the question has changed since, by a refresh or by somebody else's
mending, the decision is left out and said to be. Of several decisions on one content the latest counts; the others are
on record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from evalhouse.tasks.reviews.label_files import LabelFile, Line, list_problems
from evalhouse.tasks.reviews.take_in import LineError, check_person, read_time
from evalhouse.tasks.testsets.asked import LABELS, Subject, list_subjects
from evalhouse.tasks.testsets.places import find_differences
from evalhouse.tasks.testsets.questions import UNANSWERABLE, Decision, SetQuestion, read_question
from evalhouse.tasks.testsets.sets import Change, TestSet

DECIDED: Final = {"keep": "accepted", "mend": "mended", "drop": "dropped"}
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
            said = _read_line(line, reviewer, now)
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


def _read_line(line: Line, reviewer: str | None, now: datetime) -> Said:
    missing = [name for name in _NAMED if not line.get(name)]
    if missing:
        raise LineError(f"has no {', '.join(missing)}; leave these columns as they were written")
    label = (line.get("label") or "").casefold()
    if label not in LABELS:
        raise LineError(f"label is {line.get('label')!r}; it must be one of {', '.join(LABELS)}")
    name = line.get("reviewer") or reviewer
    if not name:
        raise LineError("says no reviewer; fill in the column, or give --reviewer NAME")
    check_person(name, line.get("note"))
    reviewed_at = read_time(line, now)
    return Said(
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
        self._taken.changes.append(_describe(subject, said, after))
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
    if said.label == "mend":
        question, word = _mend(subject, said, differs=differs), "mended"
    elif differs:
        raise LineError("says keep, and question or ground_truth is another than it was; write mend")
    return replace(question, decision=word, reviewer=said.reviewer, reviewed_at=said.time)


def _mend(subject: Subject, said: Said, *, differs: bool) -> SetQuestion:
    question = subject.question
    if not differs:
        raise LineError("says mend, and question and ground_truth are as they were; write keep, or change one of them")
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


def _describe(subject: Subject, said: Said, after: SetQuestion | None) -> Change:
    """A decision as it goes on record: what differs, who said so and when."""
    by = {"reviewer": said.reviewer, "reviewed_at": said.time} | ({"note": said.note} if said.note else {})
    before, now = find_differences(subject.question, after) if after else (subject.question.to_row(), {})
    detail = f"{said.change} by {said.reviewer}{f': {said.note}' if said.note else ''}"
    return Change(id=said.question_id, change=said.change, detail=detail, before=before, after=now | by)
