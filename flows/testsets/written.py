"""What is put on disk and on record of a test set: a version with its two files, its questions and what changed; checks
that questions were put to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from evalhouse.tasks.testsets.filters import Check
from evalhouse.tasks.testsets.findings import SetCheck
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.questions import SetQuestion
from evalhouse.tasks.testsets.sets import Change, TestSet, write_set
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.rows.testsets import append_testset_rows
from evalhouse.warehouse.store import Warehouse


def hash_passages(passages: Iterable[Passage]) -> dict[str, str]:
    """The hash of each passage by its id."""
    return {passage.passage_id: passage.passage_hash for passage in passages}


def write_version(
    warehouse: Warehouse, run_id: str, path: Path, test_set: TestSet, changes: Sequence[Change]
) -> TestSet:
    """Write a set as a new version and put it on record; returns it with its version."""
    made_at = now_utc()
    versioned = test_set.add_version(run_id=run_id, made_at=made_at.isoformat(timespec="seconds"), changes=changes)
    versions = versioned.manifest.versions
    is_new = len(versions) > len(test_set.manifest.versions)
    row = {
        "set_hash": versioned.set_hash,
        "parent_hash": versions[-1].parent,
        "run_id": run_id,
        "path": str(path.resolve()),
        "source": versioned.manifest.source,
        "n_questions": len(versioned.questions),
        "n_passages": len(versioned.manifest.passages),
        "made_at": made_at,
    }
    noted = [_to_change_row(versioned.set_hash, run_id, change) for change in (*changes, *versioned.manifest.proposals)]
    questions = [_to_question_row(versioned.set_hash, question) for question in versioned.questions] if is_new else []
    tables = {"testset_versions": [row], "testset_questions": questions, "testset_changes": noted}
    append_testset_rows(warehouse, run_id, "version", tables)
    write_set(path, versioned)
    return versioned


def list_check_rows(run_id: str, checks: Mapping[str, Sequence[Check | SetCheck]]) -> list[dict[str, Any]]:
    """What candidates, or questions of a set, were put to, by their ids, as rows of the warehouse."""
    return [
        {
            "run_id": run_id,
            "candidate_id": candidate_id,
            "ordinal": ordinal,
            "name": check.name,
            "passed": check.passed,
            "detail": check.detail,
            "call_id": check.call_id,
        }
        for candidate_id, of_one in checks.items()
        for ordinal, check in enumerate(of_one, start=1)
    ]


def dump_json(value: Sequence[Any] | Mapping[str, Any]) -> str | None:
    """A list or a mapping as JSON; None for an empty one."""
    return orjson.dumps(value).decode() if value else None


def _to_change_row(set_hash: str, run_id: str, change: Change) -> dict[str, Any]:
    return {
        "set_hash": set_hash,
        "run_id": run_id,
        "question_id": change.id,
        "change": change.change,
        "detail": change.detail,
        "before": dump_json(change.before),
        "after": dump_json(change.after),
        "call_id": change.call_id,
    }


def _to_question_row(set_hash: str, question: SetQuestion) -> dict[str, Any]:
    return {
        "set_hash": set_hash,
        "question_id": question.id,
        "question_hash": question.question_hash,
        "kind": question.kind,
        "language": question.language,
        "question": question.question,
        "ground_truth": question.ground_truth,
        "conversation": dump_json([asdict(turn) for turn in question.conversation]),
        "spans": dump_json([asdict(span) for span in question.spans]),
        "reference_ids": list(question.reference_context_ids),
    }
