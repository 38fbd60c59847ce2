"""The questions of a test set, the two files it is stored in, and the differences between two sets.

A set is a file of JSON Lines that `evalhouse run` takes as a dataset. The manifest beside it has the set's hash, its
versions with the changes of each, the passages that the questions rest on, the proposals that wait for a person, and
what the set was asked to be. Both files are replaced as a whole.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args

import orjson

from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.datasets.rows import hash_json
from evalhouse.tasks.testsets import refuse
from evalhouse.tasks.testsets.passages import Language, find_language
from evalhouse.warehouse.rows.samples import marks_unanswerable, plain_turns

QuestionKind = Literal["fact", "number", "procedure", "several", "comparison", "conversational", "unanswerable"]
KINDS: Final[tuple[QuestionKind, ...]] = get_args(QuestionKind)
UNANSWERABLE: Final = "unanswerable"
Decision = Literal["accepted", "fixed"]
_FORMAT: Final = 1
_FIELDS: Final = (
    "id", "question", "ground_truth", "reference_context_ids", "kind", "language", "spans", "conversation", "decision",
    "reviewer", "reviewed_at",
)  # fmt: skip
"""The columns of a set's file, in the order in which they are written and hashed."""
_ALWAYS_WRITTEN: Final = ("id", "question", "ground_truth", "kind", "language")


@dataclass(frozen=True, kw_only=True)
class Span:
    """Words of a document that a ground truth rests on: `document.text[start : start + len(text)]`."""

    document_id: str
    passage_id: str
    text: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A message before the question."""

    role: Literal["user", "assistant"]
    content: str


@dataclass(frozen=True, kw_only=True)
class PlainQuestion:
    """A question of any set or none, with its ground truth (None for none) and the words of documents it rests on."""

    id: str
    question: str
    ground_truth: str | None
    spans: tuple[Span, ...] = ()
    conversation: tuple[Turn, ...] = ()

    @property
    def conversation_text(self) -> str:
        """The messages before the question, one on a line."""
        return "\n".join(f"{turn.role}: {' '.join(turn.content.split())}" for turn in self.conversation)

    @property
    def asked(self) -> str:
        """The question after the messages before it, as one text."""
        return f"{self.conversation_text}\nuser: {self.question}" if self.conversation else self.question


@dataclass(frozen=True, kw_only=True)
class SetQuestion(PlainQuestion):
    """A question of a set that evalhouse made. One that the documents do not answer has no ground truth and no spans.

    `reference_context_ids` are the documents, or the passages of a table, that a retriever should find. `decision` is
    the last decision of a person on it, with the name and the time (UTC); None before the first.
    """

    reference_context_ids: tuple[str, ...]
    kind: QuestionKind
    language: Language
    decision: Decision | None = None
    reviewer: str | None = None
    reviewed_at: str | None = None

    @cached_property
    def question_hash(self) -> str:
        """16 hex digits over everything but the id, the starts of spans, and the white space in spans."""
        spans = [[span.document_id, span.passage_id, "".join(span.text.split())] for span in self.spans]
        row = self.to_row() | ({"spans": spans} if spans else {})
        return hash_json([value for name, value in row.items() if name != "id"], 16)

    @property
    def undecided(self) -> "SetQuestion":
        """The same question without a decision."""
        return replace(self, decision=None, reviewer=None, reviewed_at=None)

    def to_row(self) -> dict[str, Any]:
        """Return the question as a line of a set's file; optional fields without a value are left out."""
        row = asdict(self)
        return {name: row[name] for name in _FIELDS if row[name] or name in _ALWAYS_WRITTEN}


def parse_question(row: Mapping[str, Any]) -> SetQuestion:
    """Return the question in a line of a set's file. Raises KeyError or TypeError for a line of another kind."""
    values = {name: row[name] for name in _FIELDS if name in row}
    values["reference_context_ids"] = tuple(values.get("reference_context_ids") or ())
    values["spans"] = tuple(Span(**span) for span in values.get("spans") or ())
    values["conversation"] = tuple(Turn(**turn) for turn in values.get("conversation") or ())
    return SetQuestion(**values)


def make_question_id(question: str, conversation: Sequence[Turn]) -> str:
    """Return the id of a new question, which it keeps when its ground truth changes."""
    return f"q-{hash_json([question, [turn.content for turn in conversation]], 10)}"


def find_differences(before: SetQuestion, after: SetQuestion) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields in which two versions of a question differ, with the old values and with the new ones."""
    old, new = before.to_row(), after.to_row()
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    return {name: old.get(name) for name in names}, {name: new.get(name) for name in names}


_KIND_RULES: Final[tuple[tuple[QuestionKind, re.Pattern[str]], ...]] = (
    (
        "comparison",
        re.compile(
            r"\b(?:compare|compared|comparison|differ|differs|difference|differences|versus|vs|than)\b"
            r"|\bwhich (?:of|one)\b|区别|不同|相比|比较|哪一?[个种]更|更[大小多少高低长短早晚快慢]",
            re.IGNORECASE,
        ),
    ),
    (
        "procedure",
        re.compile(
            r"\bhow (?:do|can|should|to|does one)\b|\b(?:steps?|procedure)\b|如何|怎样|怎么|步骤|流程", re.IGNORECASE
        ),
    ),
    (
        "number",
        re.compile(
            r"\bhow (?:many|much|long|often|far|old|big|high|deep|wide|fast)\b|\bwhen\b|\bwhat (?:time|year|date)\b"
            r"|\bat what\b|几|多少|多久|多长|多大|多高|何时|什么时候|哪[一]?[年天日月]",
            re.IGNORECASE,
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class GivenQuestion(PlainQuestion):
    """A question of a set that may come from anywhere; `given_kind` is one of evalhouse's kinds if the set has one."""

    reference_context_ids: tuple[str, ...] = ()
    given_kind: QuestionKind | None = None
    marked_unanswerable: bool = False

    @property
    def is_unanswerable(self) -> bool:
        """True if the set marks the question as one without an answer."""
        return self.marked_unanswerable or self.given_kind == UNANSWERABLE

    @property
    def kind(self) -> QuestionKind:
        """The kind that the set has, else a guess by the question's words."""
        if self.given_kind:
            return self.given_kind
        if self.is_unanswerable:
            return UNANSWERABLE
        if self.conversation:
            return "conversational"
        by_words = next((kind for kind, words in _KIND_RULES if words.search(self.question)), None)
        if by_words is None and len(set(self.reference_context_ids)) > 1:
            return "several"
        return by_words or "fact"

    @property
    def language(self) -> Language:
        """The language of the question, by its letters."""
        return find_language(self.question)


def load_given(
    source: str, *, mapping: Mapping[str, str], encoding: str | None = None
) -> tuple[list[GivenQuestion], str]:
    """Return the questions of any dataset in its order, and the hash of its content. Raises DatasetError."""
    staged = stage_dataset(source, mapping=mapping, limit=None, encoding=encoding)
    try:
        samples = staged.staging.read_between(1, staged.n_samples)
    finally:
        staged.staging.discard()
    questions = [
        make_given(
            sample_id=sample.sample_id,
            question=sample.question,
            ground_truth=sample.ground_truth,
            reference_context_ids=sample.reference_context_ids,
            columns={**sample.metadata, "conversation": plain_turns(sample.conversation)},
        )
        for sample in samples
    ]
    return questions, staged.content_hash


def make_given(
    *,
    sample_id: str,
    question: str,
    ground_truth: str | None,
    reference_context_ids: Sequence[str] | None,
    columns: Mapping[str, Any],
) -> GivenQuestion:
    """Return a question of a dataset; a column of spans or turns in another shape than ours is ignored."""
    spans, turns = (value if isinstance(value := columns.get(name), list) else [] for name in ("spans", "conversation"))
    kind = columns.get("kind")
    return GivenQuestion(
        id=sample_id,
        question=question,
        ground_truth=ground_truth if (ground_truth or "").strip() else None,
        reference_context_ids=tuple(reference_context_ids or ()),
        given_kind=next((known for known in KINDS if known == kind), None),
        marked_unanswerable=marks_unanswerable(columns),
        spans=tuple(
            Span(
                document_id=str(span.get("document_id") or ""),
                passage_id=span["passage_id"],
                text=span["text"],
                start=span["start"] if isinstance(span.get("start"), int) else 0,
            )
            for span in spans
            if isinstance(span, dict) and isinstance(span.get("text"), str) and isinstance(span.get("passage_id"), str)
        ),
        conversation=tuple(
            Turn(role=turn["role"], content=content)
            for turn in turns
            if isinstance(turn, dict)
            and isinstance(content := turn.get("content", turn.get("text")), str)
            and turn["role"] in ("user", "assistant")
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Change:
    """The change of a question from one version to the next: a word and, where needed, a sentence.

    `before` and `after` have the fields that differ; `call_id` is the judge's call that led to it, None without one.
    """

    id: str
    change: str
    detail: str | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    call_id: str | None = None

    def restore_question(self) -> SetQuestion:
        """Return the question of a proposal as it would be, or of a change that removed it as it was."""
        return parse_question({**self.before, **self.after})


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of a set: its hash, its parent's, the time and the run that made it, and the changes since."""

    hash: str
    parent: str | None
    run_id: str | None
    made_at: str
    n_questions: int
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The facts about a set beside its questions.

    `source` is the path of the documents, `passages` has the hash of each passage by id, `asked` is what the set was
    asked to be, and `proposals` are changes that wait for a person, whose questions are out of the set meanwhile.
    """

    source: str
    passages: Mapping[str, str]
    asked: Mapping[str, Any]
    judge: str
    versions: tuple[Version, ...] = ()
    proposals: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """Questions with their manifest."""

    __test__ = False  # pytest takes a class for a test by its name

    questions: tuple[SetQuestion, ...]
    manifest: Manifest

    @property
    def set_hash(self) -> str:
        """16 hex digits over all questions, in any order."""
        return hash_json(sorted(f"{question.id} {question.question_hash}" for question in self.questions), 16)

    @property
    def dropped(self) -> list[SetQuestion]:
        """Questions that people took out of the set; no new question may ask the same."""
        return self._list_gone("dropped")

    @property
    def void(self) -> list[SetQuestion]:
        """Questions that left the set because nothing in the documents answered them any more."""
        return self._list_gone("void")

    def _list_gone(self, change_to: str) -> list[SetQuestion]:
        """Return the questions whose last change is this one, and that are not in the set."""
        latest = {change.id: change for version in self.manifest.versions for change in version.changes}
        present = {question.id for question in self.questions}
        return [
            parse_question(change.before)
            for change in latest.values()
            if change.change == change_to and change.before and change.id not in present
        ]

    def add_version(self, *, run_id: str | None, made_at: str, changes: Iterable[Change]) -> "TestSet":
        """Return the set with its present state as its newest version, or unchanged if it equals the last one."""
        versions = self.manifest.versions
        parent = versions[-1].hash if versions else None
        if parent == self.set_hash:
            return self
        version = Version(
            hash=self.set_hash,
            parent=parent,
            run_id=run_id,
            made_at=made_at,
            n_questions=len(self.questions),
            changes=tuple(changes),
        )
        return replace(self, manifest=replace(self.manifest, versions=(*versions, version)))


def find_manifest(path: Path) -> Path:
    """Return the path of a set's manifest: `questions.testset.json` beside `questions.jsonl`."""
    return path.with_name(f"{path.stem}.testset.json")


def write_set(path: Path, test_set: TestSet, *, source: Path | None = None) -> None:
    """Write both files. Questions that people accepted come first, so that a run with a limit takes those.

    Columns that people added to the file, or to the `source` of a new version, stay with their questions.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    added = _read_added(source or path)
    questions = sorted(test_set.questions, key=lambda question: question.decision is None)
    manifest = {"format": _FORMAT, "hash": test_set.set_hash, **asdict(test_set.manifest)}
    contents = {
        find_manifest(path): orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n",
        path: b"".join(
            orjson.dumps({**question.to_row(), **added.get(question.id, {})}) + b"\n" for question in questions
        ),
    }
    unfinished = {target: target.with_name(f".{target.name}.{os.getpid()}") for target in contents}
    try:
        # Both are on disk before one is replaced: a full disk must not leave the manifest of one set with the questions
        # of another.
        for target, content in contents.items():
            with unfinished[target].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for target, written in unfinished.items():
            written.replace(target)
    finally:
        for written in unfinished.values():
            written.unlink(missing_ok=True)


def _read_added(path: Path) -> dict[str, dict[str, Any]]:
    """Return by question the members that are not of a set's question; {} for a file that is not a set."""
    try:
        rows = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        return {row["id"]: {name: row[name] for name in row if name not in _FIELDS} for row in rows}
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return {}


def load_set(path: Path) -> TestSet:
    """Return a set that evalhouse made. Raises TestsetError for any other file."""
    manifest_path = find_manifest(path)
    allowed = "a set that `evalhouse testset make` wrote, with its manifest beside it"
    if not path.is_file():
        raise refuse(f"{path}: no such file", allowed=allowed, to_do="check the path")
    if not manifest_path.is_file():
        raise refuse(f"{path} has no manifest {manifest_path.name}", allowed=allowed, to_do="put it beside the set")
    try:
        questions = tuple(parse_question(orjson.loads(line)) for line in path.read_bytes().splitlines() if line.strip())
        document = orjson.loads(manifest_path.read_bytes())
        if document.pop("format") != _FORMAT:
            raise TypeError("a newer evalhouse wrote it")
        document.pop("hash")
        versions = tuple(
            Version(**version | {"changes": tuple(Change(**change) for change in version["changes"])})
            for version in document.pop("versions")
        )
        proposals = tuple(Change(**change) for change in document.pop("proposals"))
        manifest = Manifest(**document, versions=versions, proposals=proposals)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise refuse(f"{path}: not a set of evalhouse's ({error})", allowed=allowed, to_do="make it again") from None
    return TestSet(questions=questions, manifest=manifest)


Difference = Literal["new", "gone", "changed", "repointed"]
_CONTENT: Final = ("question", "ground_truth", "kind", "conversation")
_PLACES: Final = ("reference_context_ids", "spans")
# Words with the white space behind them, and Chinese characters one by one.
_PIECE = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]\s*|[^\s\u3400-\u9fff\uf900-\ufaff]+\s*")


@dataclass(frozen=True, kw_only=True)
class FieldDifference:
    """A field with two values; `words` show the changes of a text as `the pool opens at [-9:00-]{+11:00+}`."""

    field: str
    before: Any
    after: Any
    words: str | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionDifference:
    """A question that differs between two sets. A new or gone one has no fields."""

    id: str
    difference: Difference
    question: str
    fields: tuple[FieldDifference, ...] = ()


def compare_sets(before: Sequence[GivenQuestion], after: Sequence[GivenQuestion]) -> list[QuestionDifference]:
    """Return the questions that differ: new, gone, changed, then re-pointed ones, each kind in the order of its set.

    Questions are matched by id.
    """
    old, new = {question.id: question for question in before}, {question.id: question for question in after}
    found: dict[Difference, list[QuestionDifference]] = {"new": [], "gone": [], "changed": [], "repointed": []}
    for question in (*after, *(question for question in before if question.id not in new)):
        difference: Difference = "new" if question.id not in old else "gone"
        fields: list[FieldDifference] = []
        if question.id in old and question.id in new:
            first, second = _show(old[question.id]), _show(question)
            for name in (*_CONTENT, *_PLACES):
                was, now = first[name], second[name]
                if was != now:
                    words = compare_words(was, now) if name != "kind" and {type(was), type(now)} == {str} else None
                    fields.append(FieldDifference(field=name, before=was, after=now, words=words))
            if not fields:
                continue
            difference = "changed" if any(one.field in _CONTENT for one in fields) else "repointed"
        found[difference].append(
            QuestionDifference(id=question.id, difference=difference, question=question.question, fields=tuple(fields))
        )
    return [difference for of_kind in found.values() for difference in of_kind]


def _show(question: GivenQuestion) -> dict[str, Any]:
    """Return the compared fields as JSON has them; the order of references does not matter."""
    return {
        "question": question.question,
        "ground_truth": question.ground_truth,
        "kind": question.given_kind,
        "conversation": [asdict(turn) for turn in question.conversation],
        "reference_context_ids": sorted(set(question.reference_context_ids)),
        # Neither the start of a span nor its white space is part of a set's hash: edits elsewhere move them.
        "spans": [asdict(replace(span, start=0, text=" ".join(span.text.split()))) for span in question.spans],
    }


def compare_words(before: str, after: str) -> str:
    """Return the newer text with removed words as `[-…-]` and added ones as `{+…+}`."""
    old, new = _PIECE.findall(before), _PIECE.findall(after)
    matcher = SequenceMatcher(None, [piece.strip() for piece in old], [piece.strip() for piece in new], autojunk=False)
    parts = []
    for kind, start, end, new_start, new_end in matcher.get_opcodes():
        removed, added = "".join(old[start:end]), "".join(new[new_start:new_end])
        if kind == "equal":
            parts.append(added)
            continue
        if removed.strip():
            parts.append(f"[-{removed.strip()}-]")
        if added.strip():
            parts.append(f"{{+{added.strip()}+}}")
        if (added or removed).endswith(" "):
            parts.append(" ")
    return "".join(parts).strip()
