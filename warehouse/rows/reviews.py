"""Labels that people give to verdicts: exports that ask for them, imports, and verdicts and means corrected by them.

A verdict is asked about by its content: `review_items` gives each one a hash over what is judged and all it is judged
against, and verdicts of one hash, in any run, are one item. `tasks/reviews` decides which items to ask about. The views
`reviewed_verdicts` and `corrected_scores` look at whole runs and are asked for one run at a time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from evalhouse.warehouse.engine.connection import lending, to_frame
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.samples import StoredSample, find_previous, load_turns
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse, build_frame, enter_batch, insert_frame

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


def fetch_items(warehouse: Warehouse, run_id: str, steps: Collection[str]) -> Rows:
    """Return every verdict of these steps that can be reviewed, in the run's order.

    Beside the columns of review_items: n_beside, the verdicts that the sample's score counts together; votes_differ;
    is_reviewed, true where a reviewer has labelled this content.
    """
    return [row for row in warehouse.fetch_rows("reviews/items", run_id=run_id) if row["step"] in steps]


def fetch_texts(warehouse: Warehouse, run_id: str, sample_ids: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Return question, answer, ground truth, contexts and the turns before the question by sample.

    Of several accepted answers `ground_truth` is the one that counts; `accepted` has all, one a line.
    """
    rows = warehouse.fetch_rows("reviews/texts", {"sample_id": sorted(sample_ids)}, run_id=run_id)
    return {row["sample_id"]: {**row, "conversation": load_turns(row["conversation"])} for row in rows}


def fetch_statements(warehouse: Warehouse, run_id: str, sample_ids: Collection[str]) -> dict[str, Rows]:
    """Return all statements of these samples, in the order of their texts, by sample."""
    statements: dict[str, Rows] = {}
    for row in warehouse.fetch_rows("reviews/statements", {"sample_id": sorted(sample_ids)}, run_id=run_id):
        statements.setdefault(row["sample_id"], []).append(row)
    return statements


def fetch_moved(warehouse: Warehouse, run_id: str) -> frozenset[tuple[str, str]] | None:
    """Return the samples with a score that differs from the run before of the same series, with the steps it rests on.

    None for the first run.
    """
    previous = find_previous(warehouse, run_id)
    if previous is None:
        return None
    rows = warehouse.fetch_rows("reviews/moved", run_id=run_id, previous=previous)
    return frozenset((row["sample_id"], row["step"]) for row in rows)


def add_reviews(warehouse: Warehouse, files: Mapping[str, Sequence[Review]]) -> list[Review]:
    """Write the new labels in one transaction, and return them. `files` are the labels of each file by its hash.

    A file that was imported before adds nothing. Otherwise a label is known when the reviewer gave the same one at that
    time, or, where the file gives no time, when it is the reviewer's latest label of the item. An answer to an export
    counts as another label than the same one given unasked.
    """
    fresh: list[Review] = []
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S) as connection:
        for digest, reviews in files.items():
            if not enter_batch(connection, f"reviews {digest}", None):
                continue
            keys = [(review.item_hash, review.reviewer) for review in reviews]
            schema = {"item_hash": pl.String, "reviewer": pl.String}
            incoming = pl.DataFrame(keys, schema=schema, orient="row").unique()
            with lending(connection, {"incoming_keys": incoming}):
                rows = to_frame(connection.sql(read_query("reviews/known"))).to_dicts()
            ever: set[tuple[object, ...]] = set()
            last: dict[tuple[str, str], tuple[object, ...]] = {}
            for row in rows:
                content = (row["label"], row["first_label"], row["note"])
                ever.add((row["item_hash"], row["reviewer"], row["reviewed_at"], *content))
                last[row["item_hash"], row["reviewer"]] = (*content, row["is_answer"])
            added = []
            for review in reviews:
                content = (review.label, review.first_label, review.note)
                if review.is_timed:
                    is_known = (review.item_hash, review.reviewer, review.reviewed_at, *content) in ever
                else:
                    same = ((*content, True), (*content, review.export_id is not None))
                    is_known = last.get((review.item_hash, review.reviewer)) in same
                if not is_known:
                    added.append(review)
            columns = [{name: value for name, value in vars(item).items() if name != "is_timed"} for item in added]
            insert_frame(connection, "reviews", build_frame("reviews", columns))
            fresh += added
    return fresh


def remove_answer(warehouse: Warehouse, *, export_id: str, item_hash: str, reviewer: str) -> int:
    """Remove the labels with which a reviewer answered an item of an export, and return how many these were."""
    named = {"export_id": export_id, "item_hash": item_hash, "reviewer": reviewer}
    sql = "delete from reviews where export_id = $export_id and item_hash = $item_hash and reviewer = $reviewer"
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S) as connection:
        return int(connection.execute(sql, named).fetchall()[0][0])


@dataclass(frozen=True, kw_only=True)
class JudgedTexts:
    """A sample of a run and the rows of its statements in their order, by source; a row with a reason has none."""

    sample: StoredSample
    splits: Sequence[Mapping[str, Any]]


def fetch_reviewed(warehouse: Warehouse, run_ids: Sequence[str]) -> pl.DataFrame:
    """Return one row per reviewed verdict of these runs and reviewer.

    `weight` is the number of verdicts it represents, NULL where chance did not pick it; `prompt_version` is version and
    hash of the prompt, NULL where no request was needed; `language` is that of the question.
    """
    # One run at a time: then a filter on it reaches every table below the views.
    return pl.concat(warehouse.fetch("corrected_means/reviewed", run_id=run_id) for run_id in run_ids or [""])


def fetch_corrected(warehouse: Warehouse, run_id: str) -> Rows:
    """Return the rows of `corrected_scores` of a run: none where no verdict was reviewed."""
    # The view takes half a second to find nothing.
    if warehouse.read("select 1 from reviews limit 1").is_empty():
        return []
    return warehouse.fetch_rows("corrected_means/corrected", run_id=run_id)


def fetch_judged_texts(warehouse: Warehouse, run_id: str, sample_ids: Sequence[str]) -> list[JudgedTexts]:
    """Return the texts that the judge was given of these samples of a run, in the run's order."""
    wanted = {"sample_id": sample_ids}
    splits: dict[str, Rows] = {}
    for row in warehouse.fetch_rows("corrected_means/splits", wanted, run_id=run_id):
        splits.setdefault(row["sample_id"], []).append(row)
    rows = warehouse.fetch_rows("corrected_means/samples", wanted, run_id=run_id)
    return [JudgedTexts(sample=StoredSample(**row), splits=splits.get(row["sample_id"], [])) for row in rows]
