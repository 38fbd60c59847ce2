"""What people are asked about verdicts and what they say: reads and the write of an export, and those of an import.

A verdict is asked about by its content: `review_items` gives each one a hash over what is judged and all it is judged
against, and verdicts of one hash, in whatever run, are one item. `tasks/reviews` decides which items to ask about.

Last come reads of what the labels say of a run: reviewed verdicts with what made them, and means corrected by them. The
views `reviewed_verdicts` and `corrected_scores` look at whole runs and are asked for one run at a time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import duckdb
import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse, enter_batch, insert_frame
from evalhouse.warehouse.tables import Batch, build_frame

Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Review:
    """One row for `reviews`; the time is that of the import where the file gives none, and `is_timed` is False."""

    run_id: str
    sample_id: str
    step: str
    statement_id: str | None
    context_rank: int | None
    label: str
    reviewer: str
    reviewed_at: datetime
    probability: float | None
    stratum: str | None
    item_hash: str
    question_hash: str
    first_label: str | None
    judge_label: str
    export_id: str | None
    note: str | None
    imported_at: datetime
    is_timed: bool

    @property
    def said(self) -> tuple[object, ...]:
        """What the person says, and whether a draw has asked for it: the answer to one is another thing than the same
        said unasked."""
        return (*self.content, self.export_id is not None)

    @property
    def content(self) -> tuple[object, ...]:
        """What the person says of the item."""
        return (self.label, self.first_label, self.note)


def read_items(warehouse: Warehouse, run_id: str, steps: Collection[str]) -> Rows:
    """Every verdict of these steps that can be reviewed, in the run's order.

    Beside the columns of review_items: n_beside, the verdicts that the sample's score counts together; votes_differ;
    is_reviewed, whether somebody has labelled this content.
    """
    return [row for row in warehouse.read_rows(read_query("reviews/items"), {"run_id": run_id}) if row["step"] in steps]


def read_texts(warehouse: Warehouse, run_id: str, sample_ids: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Question, answer, ground truth and contexts by sample."""
    rows = _read_of(warehouse, read_query("reviews/texts"), run_id, sample_ids)
    return {row["sample_id"]: row for row in rows}


def read_statements(warehouse: Warehouse, run_id: str, sample_ids: Collection[str]) -> dict[str, Rows]:
    """All statements of these samples, in the order of their texts, by sample."""
    statements: dict[str, Rows] = {}
    for row in _read_of(warehouse, read_query("reviews/statements"), run_id, sample_ids):
        statements.setdefault(row["sample_id"], []).append(row)
    return statements


def read_moved(warehouse: Warehouse, run_id: str) -> frozenset[tuple[str, str]] | None:
    """Samples with a score that is not what it was in the run before of the same series, with the steps it rests on.

    None when there is no run before.
    """
    previous = find_previous(warehouse, run_id)
    if previous is None:
        return None
    rows = warehouse.read(read_query("reviews/moved"), {"run_id": run_id, "previous": previous}).to_dicts()
    return frozenset((row["sample_id"], row["step"]) for row in rows)


def find_previous(warehouse: Warehouse, run_id: str) -> str | None:
    """The run before this one in its series; None for the first."""
    rows = warehouse.read_rows(read_query("reviews/previous"), {"run_id": run_id})
    return str(rows[0]["run_id"]) if rows else None


def write_picks(warehouse: Warehouse, run_id: str, export_id: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Put on record what an export asks; rows as in `review_picks`."""
    batch = Batch(key=f"review {export_id}", run_id=run_id, tables={"review_picks": build_frame("review_picks", rows)})
    warehouse.append_now(batch, patience_s=FLUSH_PATIENCE_S)


def read_picks(warehouse: Warehouse, export_ids: Collection[str]) -> Rows:
    """What these exports put on record; none for an unknown one."""
    return warehouse.read_rows(read_query("reviews/picks"), {"export_ids": sorted(export_ids)})


def list_exports(warehouse: Warehouse, run_id: str) -> Rows:
    """The exports that ask about verdicts of a run, newest first, with how many were answered and by whom."""
    return warehouse.read_rows(read_query("reviews/exports"), {"run_id": run_id})


def read_answers(warehouse: Warehouse, export_id: str, reviewer: str) -> dict[str, Mapping[str, Any]]:
    """What a reviewer has said last to an export, by item_hash."""
    rows = warehouse.read_rows(read_query("reviews/answers"), {"export_id": export_id, "reviewer": reviewer})
    return {str(row["item_hash"]): row for row in rows}


def read_reviewable(warehouse: Warehouse, run_id: str) -> Rows:
    """Every verdict of a run that can be reviewed, with stratum and probability where an export has asked for it."""
    return warehouse.read(read_query("reviews/verdicts"), {"run_id": run_id}).to_dicts()


def read_sample_items(warehouse: Warehouse, run_id: str, sample_id: str) -> Rows:
    """Every verdict of a sample that can be reviewed, with `labels`, the latest of each reviewer, and without a design:
    for a person who chooses what to label."""
    return warehouse.read_rows(read_query("reviews/sample_items"), {"run_id": run_id, "sample_id": sample_id})


def add_reviews(warehouse: Warehouse, files: Mapping[str, Sequence[Review]]) -> list[Review]:
    """Write what is new, in one transaction, and return it. `files` are the labels of each file by its hash.

    A file that was taken in before adds nothing. Otherwise a label is known when the person said just this at that
    time, or, where the file gives no time, when it is the person's latest word on the item.
    """
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S) as connection:
        fresh: list[Review] = []
        for digest, reviews in files.items():
            if not enter_batch(connection, f"reviews {digest}", None):
                continue
            added = _pick_new(connection, reviews)
            insert_frame(connection, "reviews", _build_reviews(added))
            fresh += added
    return fresh


def _pick_new(connection: duckdb.DuckDBPyConnection, reviews: Sequence[Review]) -> list[Review]:
    keys = pl.DataFrame(
        [(review.item_hash, review.reviewer) for review in reviews],
        schema={"item_hash": pl.String, "reviewer": pl.String},
        orient="row",
    )
    connection.register("incoming_keys", keys.unique().to_arrow())
    rows = connection.sql(read_query("reviews/known")).pl().to_dicts()
    connection.unregister("incoming_keys")
    ever: set[tuple[object, ...]] = set()
    last: dict[tuple[str, str], tuple[object, ...]] = {}
    for row in rows:
        content = (row["label"], row["first_label"], row["note"])
        ever.add((row["item_hash"], row["reviewer"], row["reviewed_at"], *content))
        last[row["item_hash"], row["reviewer"]] = (*content, row["is_answer"])
    return [
        review
        for review in reviews
        if (
            (review.item_hash, review.reviewer, review.reviewed_at, *review.content) not in ever
            if review.is_timed
            else last.get((review.item_hash, review.reviewer)) not in ((*review.content, True), review.said)
        )
    ]


def _build_reviews(reviews: Sequence[Review]) -> pl.DataFrame:
    names = [field.name for field in fields(Review) if field.name != "is_timed"]
    return build_frame("reviews", [{name: getattr(review, name) for name in names} for review in reviews])


def _read_of(warehouse: Warehouse, sql: str, run_id: str, sample_ids: Collection[str]) -> Rows:
    wanted = pl.DataFrame({"sample_id": sorted(sample_ids)}, schema={"sample_id": pl.String})
    return warehouse.read(sql, {"run_id": run_id}, frames={"wanted": wanted}).to_dicts()


@dataclass(frozen=True, kw_only=True)
class JudgedTexts:
    """A sample of a run and the rows of its statements in their order, by source; a row with a reason says why none."""

    sample: StoredSample
    splits: Sequence[Mapping[str, Any]]


def read_reviewed(warehouse: Warehouse, run_ids: Sequence[str]) -> pl.DataFrame:
    """One row per reviewed verdict of these runs and reviewer.

    `weight` is how many verdicts it stands for, NULL where chance did not pick it; `prompt_version` is version and
    hash of the prompt, NULL where no request was needed; `language` is that of the question.
    """
    # One run at a time: then a filter on it reaches every table below the views.
    frames = [warehouse.read(read_query("corrected_means/reviewed"), {"run_id": run_id}) for run_id in run_ids]
    return pl.concat(frames) if frames else warehouse.read(read_query("corrected_means/reviewed"), {"run_id": ""})


def list_reviewed_runs(warehouse: Warehouse) -> list[str]:
    """Ids of the runs whose verdicts were reviewed, oldest first."""
    return [str(row["run_id"]) for row in warehouse.read_rows(read_query("reviews/runs"))]


def read_corrected(warehouse: Warehouse, run_id: str) -> Rows:
    """The rows of `corrected_scores` of a run: none when nobody has reviewed any of its verdicts."""
    # The view takes half a second to find nothing.
    if not warehouse.read_rows("select 1 from reviews limit 1"):
        return []
    return warehouse.read_rows(read_query("corrected_means/corrected"), {"run_id": run_id})


def read_judged_texts(warehouse: Warehouse, run_id: str, sample_ids: Sequence[str]) -> list[JudgedTexts]:
    """What the judge was given of these samples of a run, in the run's order."""
    frames = {"wanted": pl.DataFrame({"sample_id": list(sample_ids)}, schema={"sample_id": pl.String})}
    samples = warehouse.read(read_query("corrected_means/samples"), {"run_id": run_id}, frames=frames).to_dicts()
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for row in warehouse.read(read_query("corrected_means/splits"), {"run_id": run_id}, frames=frames).to_dicts():
        splits.setdefault(row["sample_id"], []).append(row)
    return [JudgedTexts(sample=StoredSample(**row), splits=splits.get(row["sample_id"], [])) for row in samples]


def find_prompts(warehouse: Warehouse, wanted: str, language: str) -> Rows:
    """Prompts on record whose hash begins so, or of that version: prompt_hash, prompt, version, template."""
    return warehouse.read_rows(read_query("corrected_means/prompts"), {"wanted": wanted, "language": language})
