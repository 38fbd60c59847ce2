"""The questions of a test set: what one holds, and how it stands in a file that `evalhouse run` reads as it is."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args

import orjson

from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.datasets.rows import hash_json
from evalhouse.tasks.testsets.errors import refuse
from evalhouse.tasks.testsets.passages import Language, Passage, find_language
from evalhouse.warehouse.rows.samples import plain_turns

QuestionKind = Literal["fact", "number", "procedure", "several", "comparison", "conversational", "unanswerable"]
KINDS: Final[tuple[QuestionKind, ...]] = get_args(QuestionKind)
UNANSWERABLE: Final = "unanswerable"
# Sets of earlier versions have "mended" for "fixed"; it stays there, as it is part of a set's hash.
Decision = Literal["accepted", "fixed", "mended"]


@dataclass(frozen=True, kw_only=True)
class Span:
    """Words of a document that a ground truth rests on: `document.text[start : start + len(text)]`."""

    document_id: str
    passage_id: str
    text: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Something said before the question."""

    role: Literal["user", "assistant"]
    content: str


@dataclass(frozen=True, kw_only=True)
class SetQuestion:
    """A question of a test set. One that the documents do not answer has no ground truth and no spans.

    `reference_context_ids` are the documents, or the passages of a table, that a retriever should find. `decision` is
    what a person last said of it, with who and when (UTC); None for one that nobody has looked at.
    """

    id: str
    question: str
    ground_truth: str | None
    reference_context_ids: tuple[str, ...]
    kind: QuestionKind
    language: Language
    spans: tuple[Span, ...] = ()
    conversation: tuple[Turn, ...] = ()
    decision: Decision | None = None
    reviewer: str | None = None
    reviewed_at: str | None = None

    @cached_property
    def question_hash(self) -> str:
        """16 hex digits over all it holds but its id. Where in its document a span begins and how it is broken into
        lines does not count: it says the same."""
        spans = [[span.document_id, span.passage_id, "".join(span.text.split())] for span in self.spans]
        row = self.to_row() | ({"spans": spans} if spans else {})
        return hash_json([value for name, value in row.items() if name != "id"], 16)

    @property
    def undecided(self) -> "SetQuestion":
        """The same question before anybody decided on it."""
        return replace(self, decision=None, reviewer=None, reviewed_at=None)

    @property
    def content_hash(self) -> str:
        """The hash of what a person decides on."""
        return self.undecided.question_hash

    def to_row(self) -> dict[str, Any]:
        """The question as a line of a set's file; what it does not have is left out but for the ground truth."""
        row = asdict(self)
        optional = ("conversation", "spans", "reference_context_ids", "decision", "reviewer", "reviewed_at")
        return {name: value for name, value in row.items() if value or name not in optional}


_NAMES = frozenset(field.name for field in fields(SetQuestion))


def read_question(row: Mapping[str, Any]) -> SetQuestion:
    """A line of a set's file that evalhouse wrote; other keys are left out. KeyError, TypeError: it is none."""
    values = {name: value for name, value in row.items() if name in _NAMES}
    return SetQuestion(
        **values
        | {
            "reference_context_ids": tuple(values.get("reference_context_ids") or ()),
            "spans": tuple(Span(**span) for span in values.get("spans") or ()),
            "conversation": tuple(Turn(**turn) for turn in values.get("conversation") or ()),
        }
    )


def make_question_id(question: str, conversation: Sequence[Turn]) -> str:
    """The id of a new question, which it keeps whatever becomes of its ground truth."""
    return f"q-{hash_json([question, [turn.content for turn in conversation]], 10)}"


def show_passage(passage: Passage, words: str | None = None) -> str:
    """A passage, or some words of it, as it is put to a judge: under its headings, which are one line."""
    heading = " > ".join(passage.headings) or passage.document_id
    return f"{' '.join(heading.split())}\n{passage.text if words is None else words}"


def write_conversation(turns: Sequence[Turn]) -> str:
    """What was said before a question, a line each."""
    return "\n".join(f"{turn.role}: {' '.join(turn.content.split())}" for turn in turns)


def write_asked(question: str, conversation: Sequence[Turn]) -> str:
    """A question with what was said before it, where the two are asked as one."""
    before = write_conversation(conversation)
    return f"{before}\nuser: {question}" if before else question


_RULES: Final[tuple[tuple[QuestionKind, re.Pattern[str]], ...]] = (
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
class GivenQuestion:
    """A question as it stands in a set; `given_kind` is one of evalhouse's kinds where the set says it."""

    id: str
    question: str
    ground_truth: str | None
    reference_context_ids: tuple[str, ...] = ()
    given_kind: QuestionKind | None = None
    marked_unanswerable: bool = False
    spans: tuple[Span, ...] = ()
    conversation: tuple[Turn, ...] = ()

    @property
    def is_unanswerable(self) -> bool:
        """Whether the set says that nothing answers it."""
        return self.marked_unanswerable or self.given_kind == UNANSWERABLE

    @property
    def kind(self) -> QuestionKind:
        """As the set says, else by its words: a rule of thumb."""
        return self.given_kind or self._guess_kind()

    @property
    def language(self) -> Language:
        """By its letters."""
        return find_language(self.question)

    def _guess_kind(self) -> QuestionKind:
        if self.is_unanswerable:
            return UNANSWERABLE
        if self.conversation:
            return "conversational"
        kind = next((kind for kind, words in _RULES if words.search(self.question)), None)
        if kind is None and len(set(self.reference_context_ids)) > 1:
            return "several"
        return kind or "fact"


def read_given(
    source: str, *, mapping: Mapping[str, str], encoding: str | None = None
) -> tuple[list[GivenQuestion], str]:
    """The questions of a set in its order, and the hash of its content; raises DatasetError."""
    staged = stage_dataset(source, mapping=mapping, limit=None, encoding=encoding)
    try:
        samples = staged.staging.read_between(1, staged.n_samples)
    finally:
        staged.staging.discard()
    questions = [
        take_given(
            sample_id=sample.sample_id,
            question=sample.question,
            ground_truth=sample.ground_truth,
            reference_context_ids=sample.reference_context_ids,
            beside={**sample.metadata, "conversation": plain_turns(sample.conversation)},
        )
        for sample in samples
    ]
    return questions, staged.content_hash


def take_given(
    *,
    sample_id: str,
    question: str,
    ground_truth: str | None,
    reference_context_ids: Sequence[str] | None,
    beside: Mapping[str, Any],
) -> GivenQuestion:
    """A question from the columns of a dataset and what stands beside them."""
    kind = beside.get("kind")
    return GivenQuestion(
        id=sample_id,
        question=question,
        ground_truth=ground_truth if (ground_truth or "").strip() else None,
        reference_context_ids=tuple(reference_context_ids or ()),
        given_kind=next((known for known in KINDS if known == kind), None),
        marked_unanswerable=beside.get("answerable") is False,
        spans=tuple(_read_spans(beside.get("spans"))),
        conversation=tuple(_read_turns(beside.get("conversation"))),
    )


def _read_spans(value: object) -> Iterator[Span]:
    """Spans as evalhouse writes them; what has another shape is another column of that name."""
    for one in value if isinstance(value, list) else ():
        if isinstance(one, dict) and isinstance(one.get("text"), str) and isinstance(one.get("passage_id"), str):
            start: Any = one.get("start")
            yield Span(
                document_id=str(one.get("document_id") or ""),
                passage_id=one["passage_id"],
                text=one["text"],
                start=start if isinstance(start, int) else 0,
            )


def _read_turns(value: object) -> Iterator[Turn]:
    for one in value if isinstance(value, list) else ():
        content = one.get("content", one.get("text")) if isinstance(one, dict) else None
        if isinstance(content, str) and one["role"] in ("user", "assistant"):
            yield Turn(role=one["role"], content=content)


FORMAT: Final = 1
_SUFFIX = ".testset.json"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What became of a question from one version to the next, in a word and, where there is more to say, a sentence.

    `before` and `after` have the fields that differ; `call_id` is the call that says so, None where none was needed.
    """

    id: str
    change: str
    detail: str | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    call_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of a set: its hash, its parent's, when and by which run it was made, and the changes since."""

    hash: str
    parent: str | None
    run_id: str | None
    made_at: str
    n_questions: int
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is known of a set beside its questions.

    `source` is where the documents were read, `passages` has the hash of each by id, `asked` what the set was asked to
    be, and `proposals` are changes that wait for a person, whose questions are not in the set meanwhile.
    """

    source: str
    passages: Mapping[str, str]
    asked: Mapping[str, Any]
    judge: str
    versions: tuple[Version, ...] = ()
    proposals: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """Questions, and their manifest; None for a set that a person wrote."""

    __test__ = False  # pytest takes a class for a test by its name

    questions: tuple[SetQuestion, ...]
    manifest: Manifest

    @property
    def set_hash(self) -> str:
        """16 hex digits over all questions, in whatever order they stand."""
        return hash_questions(self.questions)

    @property
    def dropped(self) -> list[SetQuestion]:
        """Questions that people took out of the set, as they were; no other is made that asks the same."""
        decided = {change.id: change for version in self.manifest.versions for change in version.changes}
        there = {question.id for question in self.questions}
        return [
            read_question(change.before)
            for change in decided.values()
            if change.change == "dropped" and change.before and change.id not in there
        ]

    def add_version(self, *, run_id: str | None, made_at: str, changes: Iterable[Change]) -> "TestSet":
        """The same set with its state as its newest version; as it is where nothing changed."""
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


def hash_questions(questions: Iterable[SetQuestion]) -> str:
    """The hash of a set of these questions."""
    return hash_json(sorted(f"{question.id} {question.question_hash}" for question in questions), 16)


def find_manifest(path: Path) -> Path:
    """Where the manifest of a set's file lies: `questions.testset.json` beside `questions.jsonl`."""
    return path.with_name(path.stem + _SUFFIX)


def write_set(path: Path, test_set: TestSet) -> None:
    """Write both files, each replaced as a whole. Questions that people accepted come first, so that a run with a limit
    takes those."""
    path.parent.mkdir(parents=True, exist_ok=True)
    questions = sorted(test_set.questions, key=lambda question: question.decision is None)
    lines = b"".join(orjson.dumps(question.to_row()) + b"\n" for question in questions)
    manifest = {"format": FORMAT, "hash": test_set.set_hash, **asdict(test_set.manifest)}
    # The questions last: where only the manifest was replaced, its hash says that the two do not belong together.
    _replace(find_manifest(path), orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n")
    _replace(path, lines)


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(path)


def read_set(path: Path) -> TestSet:
    """A set that evalhouse made; raises TestsetError for a file that is none."""
    manifest_path = find_manifest(path)
    allowed = "a set that `evalhouse testset make` wrote, with its manifest beside it"
    if not path.is_file():
        raise refuse(f"{path}: no such file", allowed=allowed, to_do="check the path")
    if not manifest_path.is_file():
        raise refuse(f"{path} has no manifest {manifest_path.name}", allowed=allowed, to_do="put it beside the set")
    try:
        questions = tuple(read_question(orjson.loads(line)) for line in path.read_bytes().splitlines() if line.strip())
        document = orjson.loads(manifest_path.read_bytes())
        if document.pop("format") != FORMAT:
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
