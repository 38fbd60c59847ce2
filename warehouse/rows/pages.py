"""Reads of single pages of `evalhouse ui`: lists of runs, and samples that are searched for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.report import Rows
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

N_WORST: Final = 5


def read_worst(warehouse: Warehouse, run: RunRow, metrics: list[str]) -> Rows:
    """The worst samples of a run by the mean of some metrics, each with the statement that is most wrong."""
    parameters = {"run_id": run.run_id, "metrics": metrics, "most": N_WORST}
    return warehouse.read_rows(read_query("ui/worst"), parameters)


def read_values(warehouse: Warehouse, run: RunRow) -> dict[str, list[float]]:
    """All scores of a run by metric."""
    return dict(warehouse.read(read_query("ui/values"), {"run_id": run.run_id}).iter_rows())


def find_runs(warehouse: Warehouse, wanted: Mapping[str, str | None], *, order: str, start: int, most: int) -> Rows:
    """Runs of any kind that are looked for: a row each, with how many there are in all.

    `wanted` has a value, or None, for each parameter of the query, and `order` is one of its columns, with a way.
    """
    sql = read_query("ui/find_runs").replace("$order", order)
    return warehouse.read_rows(sql, {**wanted, "start": start, "most": most})


def read_cost_runs(warehouse: Warehouse, since: datetime | None) -> Rows:
    """The runs since then, oldest first, with what each sent by batch."""
    return warehouse.read_rows(read_query("ui/cost_runs"), {"since": since})


Scores = Mapping[tuple[str, str], Mapping[str, Any]]
"""By sample and metric: value, unscored_reason and change."""
_CONDITIONS = {"metric": pl.String, "is_change": pl.Boolean, "test": pl.String, "number": pl.Float64}
_TAGS = {"key": pl.String, "value": pl.String}


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What a sample's score of a metric must be, or with `is_change` the change of it since the base.

    `test` is one of <, <=, >, >=, =, and `unscored`, which has no number.
    """

    metric: str
    is_change: bool
    test: str
    number: float | None


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is looked for among the samples of a run; None and empty stand for all.

    `sort` is score or change (of `metric`), order or id; `base` the run that changes are counted from.
    """

    metric: str | None
    sort: str
    descending: bool
    conditions: Sequence[Condition] = ()
    cause: str | None = None
    verdicts: Sequence[str] = ()
    label: str | None = None
    language: str | None = None
    tags: Sequence[tuple[str, str]] = ()
    words: Sequence[str] = ()
    base: str | None = None


def find_samples(warehouse: Warehouse, run: RunRow, search: Search) -> list[str]:
    """The ids of the samples that fit, in their order."""
    frames = {
        "conditions": pl.DataFrame([vars(condition) for condition in search.conditions], schema=_CONDITIONS),
        "tags": pl.DataFrame(list(search.tags), schema=_TAGS, orient="row"),
    }
    names = ("metric", "sort", "descending", "cause", "label", "language", "base")
    parameters: dict[str, object] = {
        **{name: getattr(search, name) for name in names},
        "run_id": run.run_id,
        "run_language": run.language,
        "verdicts": list(search.verdicts),
        "words": [word.lower() for word in search.words],
        "reads_texts": bool(search.words or search.language or search.tags),
    }
    found = warehouse.read(read_query("ui/find_samples"), parameters, frames=frames)
    return found["sample_id"].to_list()


def read_found(warehouse: Warehouse, run: RunRow, sample_ids: Sequence[str]) -> Rows:
    """Texts, cause and counts of these samples of a run, in their order."""
    frames = {"slice": _lay_slice(sample_ids)}
    return warehouse.read(read_query("ui/found_samples"), {"run_id": run.run_id}, frames=frames).to_dicts()


def count_labelled(warehouse: Warehouse, run: RunRow, sample_ids: Sequence[str]) -> dict[str, int]:
    """How many verdicts of these samples have a person's label, by sample; those without are left out."""
    # Which contents are labelled takes hashes of all texts of the run, and most warehouses have no label.
    if warehouse.read("from reviews select 1 limit 1").is_empty():
        return {}
    return dict(_read_of(warehouse, "ui/found_labels", sample_ids, {"run_id": run.run_id}).iter_rows())


def read_found_scores(warehouse: Warehouse, run: RunRow, base: str | None, sample_ids: Sequence[str]) -> Scores:
    """The scores of these samples; `base` is what changes are counted from."""
    rows = _read_of(warehouse, "ui/found_scores", sample_ids, {"run_id": run.run_id, "base": base})
    return {(row["sample_id"], row["metric"]): row for row in rows.iter_rows(named=True)}


def read_sample_scores(warehouse: Warehouse, run: RunRow, sample_id: str, metrics: Sequence[str]) -> Rows:
    """The scores of one sample over the runs of a run's series, by metric in time order, as rows of `score_history`."""
    parameters = {"run_id": run.run_id, "sample_id": sample_id, "metrics": list(metrics)}
    return warehouse.read_rows(read_query("ui/sample_scores"), parameters)


def read_sample_answers(warehouse: Warehouse, run: RunRow, sample_id: str, *, most: int = 20) -> Rows:
    """The runs of a series in which a sample's answer was another than in the run before, the newest first."""
    parameters = {"run_id": run.run_id, "sample_id": sample_id, "most": most}
    return warehouse.read_rows(read_query("ui/sample_answers"), parameters)


def list_run_metrics(warehouse: Warehouse, run: RunRow) -> Rows:
    """The metrics of a run with which way is better and how many samples are scored, in no order."""
    return warehouse.read_rows(read_query("ui/run_metrics"), {"run_id": run.run_id})


def list_tags(warehouse: Warehouse, run: RunRow, *, most: int) -> dict[str, dict[str, int]]:
    """The metadata by which a run's samples can be told apart in groups: by key its values with how many have each.

    Keys with one value, or with more than `most`, are left out.
    """
    tags: dict[str, dict[str, int]] = {}
    for row in warehouse.read(read_query("ui/run_tags"), {"run_id": run.run_id, "most": most}).iter_rows(named=True):
        tags.setdefault(row["key"], {})[row["value"]] = row["n"]
    return tags


def _read_of(
    warehouse: Warehouse, query: str, sample_ids: Sequence[str], parameters: Mapping[str, object]
) -> pl.DataFrame:
    return warehouse.read(read_query(query), parameters, frames={"slice": _lay_slice(sample_ids)})


def _lay_slice(sample_ids: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame({"sample_id": list(sample_ids)}, schema={"sample_id": pl.String}).with_row_index("place")
