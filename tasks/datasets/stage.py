"""Staging: read a dataset whole and refuse it whole when anything is wrong, before any model is asked."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
import polars as pl

from evalhouse.tasks.datasets.read import read_samples
from evalhouse.tasks.datasets.rows import SampleRow
from evalhouse.warehouse.rows.samples import Staging
from evalhouse.warehouse.sample_data import SAMPLE_PATH


@dataclass(frozen=True, kw_only=True)
class StagedDataset:
    """A dataset that was read whole without a problem. `content_hash` changes when any sample does.

    `n_answered` is how many samples it brings an answer or contexts for.
    """

    staging: Staging
    n_samples: int
    content_hash: str
    n_answered: int = 0


def stage_dataset(source: str | pl.DataFrame, *, mapping: Mapping[str, str], limit: int | None) -> StagedDataset:
    """Read a dataset (`sample` is the one that ships with evalhouse) or a frame into staging; raises DatasetError."""
    staging = Staging()
    digest, n_answered = hashlib.sha256(), 0
    try:
        source = resolve_source(source) if isinstance(source, str) else source
        for rows in read_samples(source, mapping=mapping, limit=limit):
            staging.add([_to_staged(row) for row in rows])
            n_answered += sum(row.answer is not None or row.contexts is not None for row in rows)
            for row in rows:
                digest.update(f"{row.sample_id}\n{row.input_hash}\n".encode())
    except BaseException:
        staging.discard()
        raise
    return StagedDataset(
        staging=staging,
        n_samples=staging.n_rows,
        content_hash=digest.hexdigest()[:32],
        n_answered=n_answered,
    )


def resolve_source(source: str) -> str:
    """The path behind a dataset's name; a file called `sample` goes before the built-in one."""
    return str(SAMPLE_PATH) if source == "sample" and not Path(source).exists() else source


def _to_staged(row: SampleRow) -> dict[str, object]:
    return {
        "ordinal": row.ordinal,
        "given_id": row.given_id,
        "sample_id": row.sample_id,
        "input_hash": row.input_hash,
        "question": row.question,
        "answer": row.answer,
        "ground_truth": row.ground_truth,
        "contexts": row.contexts,
        "context_ids": row.context_ids,
        "reference_context_ids": row.reference_context_ids,
        "metadata": orjson.dumps(row.metadata).decode() if row.metadata else None,
    }
