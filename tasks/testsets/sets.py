"""A test set on disk: its questions in a file of JSON Lines, and beside it a manifest with where they come from.

The manifest has the set's hash, that of the version it was made from, what changed in each version, the passages it
rests on, what a person still has to decide on, and what it was asked to be. Both files are replaced as a whole.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from evalhouse.tasks.datasets.rows import hash_json
from evalhouse.tasks.testsets.errors import refuse
from evalhouse.tasks.testsets.questions import SetQuestion, read_question

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
