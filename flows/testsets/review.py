"""`review import` and `testset diff`: decisions of reviewers become a new version; a version is found by its name."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from evalhouse.flows.preparing.request import NO_JUDGE, begin_run
from evalhouse.flows.preparing.settings import resolve_settings
from evalhouse.flows.testsets.set_run import write_version
from evalhouse.tasks.reviews.labels import LabelFile, ReviewError
from evalhouse.tasks.testsets.decisions import (
    OnRecord,
    Said,
    Taken,
    is_decision,
    list_sets,
    read_decisions,
    take_decisions,
)
from evalhouse.tasks.testsets.errors import refuse
from evalhouse.tasks.testsets.questions import GivenQuestion, read_given, take_given
from evalhouse.tasks.testsets.sets import find_manifest, read_set
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.rows.runs import insert_run, now_utc
from evalhouse.warehouse.rows.testsets import find_versions, read_questions
from evalhouse.warehouse.rows.testsets import read_decisions as read_record
from evalhouse.warehouse.store import Warehouse


@dataclass(frozen=True, kw_only=True)
class DecidedSet:
    """A set after an import: `taken` has what was decided; `run_id` is None when nothing of it was new."""

    path: Path
    taken: Taken
    run_id: str | None
    set_hash: str

    @property
    def counts(self) -> Counter[str]:
        """New decisions by their change."""
        return Counter(change.change for change in self.taken.changes)


@dataclass(frozen=True, kw_only=True)
class ImportedDecisions:
    """How an import went: `n_undecided` lines said nothing."""

    sets: tuple[DecidedSet, ...]
    n_undecided: int


def holds_decisions(files: Sequence[LabelFile]) -> bool:
    """Whether the files are about questions of sets; ReviewError where some are and others about verdicts."""
    about = {is_decision(line) for file in files for line in file.lines}
    if len(about) > 1:
        raise ReviewError("some lines are about questions of a set and others about verdicts; import them apart")
    return about == {True}


def import_decisions(
    warehouse: Warehouse, files: Sequence[LabelFile], reviewer: str | None, set_path: Path | None
) -> ImportedDecisions:
    """Take decisions in; `set_path` is where the set is, where not where the lines say.

    Raises ReviewError with every problem, and TestsetError for a set that cannot be read: nothing is written then.
    """
    now = now_utc()
    names = list_sets(files)
    if set_path is not None and len(names) > 1:
        raise ReviewError(f"--set names one set, and the lines are about {', '.join(names)}; import them apart")
    decisions = read_decisions(files, reviewer, now)
    paths = {name: set_path or Path(name) for name in names}
    missing = [str(path) for path in paths.values() if not path.is_file()]
    if missing:
        raise ReviewError(f"the set {', '.join(missing)} is not there; say where it is with --set FILE")
    taken = {path: _take(warehouse, path, decisions, name) for name, path in paths.items()}
    n_undecided = sum(not line.get("label") for file in files for line in file.lines)
    sets = tuple(_write(warehouse, path, of_set) for path, of_set in taken.items())
    return ImportedDecisions(sets=sets, n_undecided=n_undecided)


def _take(warehouse: Warehouse, path: Path, decisions: Sequence[Said], name: str) -> Taken:
    test_set = read_set(path)
    warehouse.make_ready()
    hashes = [version.hash for version in test_set.manifest.versions]
    record = [
        OnRecord(
            question_id=row["question_id"],
            change=row["change"],
            before=orjson.loads(row["before"] or "{}"),
            after=orjson.loads(row["after"]),
        )
        for row in read_record(warehouse, hashes)
    ]
    return take_decisions(test_set, [said for said in decisions if said.set_name == name], record)


def _write(warehouse: Warehouse, path: Path, taken: Taken) -> DecidedSet:
    """The new version; the import is a run of its own, in which nobody was asked."""
    if not taken.changes:
        return DecidedSet(path=path, taken=taken, run_id=None, set_hash=taken.test_set.set_hash)
    settings = resolve_settings({"warehouse": warehouse.location.url}).settings
    run = replace(
        begin_run("testset", settings, n_samples=len(taken.changes)),
        judge=NO_JUDGE,
        status="completed",
        finished_at=now_utc(),
    )
    insert_run(warehouse, run)
    written = write_version(warehouse, run.run_id, path, taken.test_set, taken.changes)
    return DecidedSet(path=path, taken=taken, run_id=run.run_id, set_hash=written.set_hash)


_ALLOWED: Final = "a file of questions, or the hash (or how it begins) of a version on record"


@dataclass(frozen=True, kw_only=True)
class SetVersion:
    """The questions of a version; `set_hash` is None for a file that evalhouse did not write."""

    name: str
    set_hash: str | None
    questions: list[GivenQuestion]


def read_version(warehouse: Warehouse, name: str, mapping: Mapping[str, str]) -> SetVersion:
    """The version that is meant; raises TestsetError, or DatasetError for a file that cannot be read."""
    path = Path(name).expanduser()
    if path.is_file():
        questions, _ = read_given(name, mapping=mapping)
        is_own = find_manifest(path).is_file()
        return SetVersion(name=name, set_hash=read_set(path).set_hash if is_own else None, questions=questions)
    versions = find_versions(warehouse, name) if warehouse.location.path.exists() else []
    if len(versions) != 1:
        came = f"{name}: no such file, and {_count(versions)} on record in {warehouse.location.path.name}"
        raise refuse(came, allowed=_ALLOWED, to_do='`evalhouse query "from testset_versions"` lists them')
    rows = read_questions(warehouse, versions[0])
    return SetVersion(name=versions[0], set_hash=versions[0], questions=[_to_given(row) for row in rows])


def _count(versions: list[str]) -> str:
    return f"several versions ({list_names(versions, 5)})" if versions else "no version of that hash"


def _to_given(row: Mapping[str, Any]) -> GivenQuestion:
    beside = {name: orjson.loads(row[name] or "[]") for name in ("spans", "conversation")}
    return take_given(
        sample_id=row["question_id"],
        question=row["question"],
        ground_truth=row["ground_truth"],
        reference_context_ids=row["reference_ids"],
        beside={**beside, "kind": row["kind"]},
    )
