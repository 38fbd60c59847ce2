"""A version of a test set by what a person calls it: a file, or the hash of one on record."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from evalhouse.tasks.testsets.errors import refuse
from evalhouse.tasks.testsets.given import GivenQuestion, read_given, take_given
from evalhouse.tasks.testsets.sets import find_manifest, read_set
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.rows.testsets import find_versions, read_questions
from evalhouse.warehouse.store import Warehouse

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
