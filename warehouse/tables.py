"""A batch of rows that are written together or not at all, and the columns of its tables as Polars types.

The migrations are the truth; a test holds this page to them. It exists so that a batch has the right types
before any DuckDB file is open, even when a column is all NULL or the batch goes to the spool. The tables of verdicts
stand with the steps that write them (`steps`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from evalhouse.warehouse import steps
from evalhouse.warehouse.steps import ColumnType

_TEXTS = pl.List(pl.String)
_TIME = pl.Datetime("us")

TABLES: dict[str, dict[str, pl.DataType | type[pl.DataType]]] = {
    "run_samples": {
        "run_id": pl.String, "sample_id": pl.String, "input_hash": pl.String, "ordinal": pl.Int64,
        "metadata": pl.String,
    },
    "llm_calls": {
        "call_id": pl.String, "run_id": pl.String, "sample_id": pl.String, "step": pl.String, "prompt": pl.String,
        "prompt_hash": pl.String, "judge": pl.String, "model": pl.String, "request_hash": pl.String,
        "request_key": pl.UInt64, "request": pl.String, "reply": pl.String, "logprobs": pl.String,
        "status": pl.String, "error": pl.String,
        "attempts": pl.Int32, "prompt_tokens": pl.Int64, "cached_tokens": pl.Int64, "completion_tokens": pl.Int64,
        "cost_usd": pl.Float64, "latency_ms": pl.Float64, "reused_call_id": pl.String, "flow_run_id": pl.String,
        "task_run_id": pl.String, "started_at": _TIME,
    },
    "prompts": {
        "prompt_hash": pl.String, "prompt": pl.String, "version": pl.String, "language": pl.String,
        "template": pl.String,
    },
    "responses": {
        "run_id": pl.String, "sample_id": pl.String, "answer": pl.String, "contexts": _TEXTS, "context_ids": _TEXTS,
        "latency_ms": pl.Float64, "status": pl.String, "error": pl.String, "attempts": pl.Int32,
        "reused_run_id": pl.String, "asked_at": _TIME,
    },
    "kb_updates": {
        "event_id": pl.String, "kb_name": pl.String, "kb_version": pl.String, "kb_changed": _TEXTS,
        "occurred_at": _TIME, "run_id": pl.String,
    },
    "noise": {
        "run_id": pl.String, "noise_run_id": pl.String, "metric": pl.String, "n_samples": pl.Int64,
        "n_changed": pl.Int64, "mean_difference": pl.Float64, "sd_difference": pl.Float64,
    },
    "review_picks": {
        "export_id": pl.String, "run_id": pl.String, "sample_id": pl.String, "step": pl.String,
        "statement_id": pl.String, "context_rank": pl.Int32, "item_hash": pl.String, "question_hash": pl.String,
        "judge_label": pl.String, "stratum": pl.String, "probability": pl.Float64, "asked": pl.Boolean,
        "picked_at": _TIME,
    },
    "reviews": {
        "run_id": pl.String, "sample_id": pl.String, "step": pl.String, "statement_id": pl.String,
        "context_rank": pl.Int32, "label": pl.String, "reviewer": pl.String, "reviewed_at": _TIME,
        "probability": pl.Float64, "stratum": pl.String, "item_hash": pl.String, "question_hash": pl.String,
        "first_label": pl.String, "judge_label": pl.String, "export_id": pl.String, "note": pl.String,
        "imported_at": _TIME,
    },
    "outcomes": {
        "run_id": pl.String, "sample_id": pl.String, "step": pl.String, "reason": pl.String, "detail": pl.String,
    },
    # Rows on their way into samples and run_samples: see `rows/samples.py`.
    "staged_samples": {
        "ordinal": pl.Int64, "given_id": pl.String, "sample_id": pl.String, "input_hash": pl.String,
        "question": pl.String, "answer": pl.String, "ground_truth": pl.String, "contexts": _TEXTS,
        "context_ids": _TEXTS, "reference_context_ids": _TEXTS, "metadata": pl.String,
    },
}  # fmt: skip

_TYPES: Mapping[ColumnType, pl.DataType | type[pl.DataType]] = {
    "text": pl.String, "integer": pl.Int32, "number": pl.Float64, "boolean": pl.Boolean, "integers": pl.List(pl.Int32),
}  # fmt: skip
for _table in steps.VERDICT_TABLES:
    _columns = {name: _TYPES[kind] for name, kind in _table.columns.items()}
    TABLES[_table.name] = {"run_id": pl.String, "sample_id": pl.String, **_columns, "call_id": pl.String}
VERDICT_TABLES = (*(table.name for table in steps.VERDICT_TABLES), "outcomes")
"""The tables that the steps write, a shard's rows at a time."""


Frames = Mapping[str, pl.DataFrame]
"""Rows by table."""


def build_frame(table: str, rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Rows as a frame with the table's columns; keys that are no column of the table are refused."""
    columns = TABLES[table]
    for row in rows:
        if not row.keys() <= columns.keys():
            raise KeyError(f"{table} has no column {', '.join(sorted(row.keys() - columns.keys()))}")
    return pl.DataFrame(
        {name: pl.Series(name, [row.get(name) for row in rows], dtype=dtype) for name, dtype in columns.items()}
    )


def build_verdict_frames(run_id: str, rows: Sequence[Mapping[str, Sequence[Mapping[str, object]]]]) -> Frames:
    """A frame for each of VERDICT_TABLES; `rows` has those of each sample by table."""
    return {
        table: build_frame(table, [{"run_id": run_id, **row} for of_sample in rows for row in of_sample[table]])
        for table in VERDICT_TABLES
    }


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Frames by table name under a key that makes a second writing harmless.

    `replaces` names samples of the run whose verdicts are deleted in the same transaction, for a resumed shard.
    """

    key: str
    run_id: str
    tables: Frames = field(default_factory=dict)
    replaces: tuple[str, ...] = ()
