"""Rows in, rows out: an in-memory warehouse with every table and view, filled with literal rows.

A test says what the verdicts of a sample are and reads scores or views; nothing is mocked, the SQL is the project's
own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import orjson
import polars as pl

import evalhouse.warehouse
from evalhouse.warehouse.engine.connection import open_writer
from evalhouse.warehouse.metric_files import MetricFile, load_metrics, resolve_parameters, view_scripts
from evalhouse.warehouse.steps import GRADE_STEP, STEPS
from evalhouse.warehouse.store import RESTS_ON, Part, Warehouse, derive

Row = Mapping[str, object]
Labels = Sequence[str]
Support = Sequence[Sequence[int]]


class Together(tuple[int, ...]):
    """The ranks of contexts that support a statement only together, in a Support."""


_DERIVED: Mapping[Part, re.Pattern[str]] = {
    "scores": re.compile(r"\b(?:run_scores|score_history|score_chain|corrected_scores)\b"),
    "causes": re.compile(r"\b(?:run_causes|sample_causes)\b"),
    "costs": re.compile(r"\brun_costs\b"),
}
"""The views that read each derived part."""
# So many rows are read faster as text than as a frame.
_FEW = 6
_TO_COME = "a run whose row is yet to come"
_DEFAULTS: dict[str, Row] = {
    "runs": {"judge": "lexical", "trigger": "manual", "status": "completed", "started_at": datetime(2025, 1, 1),
     "kind": "evaluation"},
    "samples": {"question": "Where is it?"},
    "run_samples": {"ordinal": 1},
    "llm_calls": {"judge": "lexical", "request_hash": "h", "request_key": 1, "status": "ok", "attempts": 1,
     "started_at": datetime(2025, 1, 1)},
    "scores": {"metric_version": "1"},
    "similarities": {"kind": "answer_ground_truth"},
    "grades": {"scale_min": 0.0, "scale_max": 10.0},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Score:
    """One row that a metric's SQL gives."""

    value: float | None
    unscored_reason: str | None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The verdicts of one sample.

    Labels are in the order A1, A2, … and G1, G2, …; support holds for each the ranks of its contexts. Every step
    has an outcome without a reason unless `reasons` gives one; steps in `missing` have no outcome at all. `further` are
    other similarities by kind, `grades` ratings from 0 to 10 by rubric and criterion, `citations` the statement and the
    context of each, `turns` labels by the id of what was compared with earlier turns, `turn_support` by a
    statement's id the places of the turns that support it, beside its contexts.
    """

    sample_id: str = "s"
    answer: Labels = ()
    ground_truth: Labels = ()
    answer_support: Support = ()
    ground_truth_support: Support = ()
    useful: Sequence[bool] = ()
    turns: Mapping[str, str] = field(default_factory=dict)
    turn_support: Mapping[str, Sequence[int]] = field(default_factory=dict)
    similarity: float | None = None
    further: Mapping[str, float] = field(default_factory=dict)
    grades: Mapping[tuple[str, str], float] = field(default_factory=dict)
    contexts: Sequence[str] | None = None
    context_ids: Sequence[str | None] | None = None
    reference_ids: Sequence[str | None] | None = None
    citations: Sequence[tuple[str | None, int | None]] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    missing: Iterable[str] = ()


@cache
def read_metrics() -> dict[str, MetricFile]:
    """The built-in metrics, read once."""
    return load_metrics()


@cache
def list_steps() -> tuple[str, ...]:
    """All steps that a built-in metric can rest on."""
    named = {step for metric in read_metrics().values() for step in metric.needs}
    return (*STEPS, *sorted(named.difference(STEPS)))


def rate_everything(rating: float) -> dict[str, Mapping[Any, float]]:
    """The same for every rubric, and every measure, that a built-in metric rests on: `further` and `grades`."""
    rubrics = [step.removeprefix(GRADE_STEP) for step in list_steps() if step.startswith(GRADE_STEP)]
    found = {name: re.findall(r"criterion = '(\w+)'", file.sql) for name, file in read_metrics().items()}
    criteria = {(rubric, name) for rubric in rubrics for names in found.values() for name in names}
    measured = {("relevancy", "noncommittal"): 0.0}
    measured |= {(name, order): rating for name in ("tool_calls", "result_sets") for order in ("in_order", "any_order")}
    kinds = ("regenerated_question", "bleu", "rouge_l", "chrf", "squad_exact_match", "token_f1")
    return {"further": dict.fromkeys(kinds, rating / 10), "grades": dict.fromkeys(sorted(criteria), rating) | measured}


@cache
def _open_shared() -> duckdb.DuckDBPyConnection:
    migrations = sorted((Path(evalhouse.warehouse.__file__).parent / "migrations").glob("*.sql"))
    con = duckdb.connect(config={"threads": 1})
    con.execute("\n".join([*(path.read_text() for path in migrations), *(script.sql for script in view_scripts())]))
    return con


@contextmanager
def open_rows() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty warehouse in memory, empty again afterwards.

    One serves all tests and each of them is rolled back, because laying the views takes longer than a test.
    """
    con = _open_shared()
    con.begin()
    try:
        yield con
    finally:
        con.rollback()


@cache
def _read_schema(table: str) -> pl.Schema:
    return _open_shared().sql(f"select * from {table} limit 0").pl().schema


def fill(con: duckdb.DuckDBPyConnection, table: str, *rows: Row) -> None:
    """Append rows; columns left out get a default where the table needs one, else NULL."""
    if not rows:
        return
    schema = _read_schema(table)
    given = [{**_DEFAULTS.get(table, {}), **row} for row in rows]
    if table == "scores":  # the better direction is that of the metric's file
        ways = {name: metric.better for name, metric in read_metrics().items()}
        given = [{"better": ways.get(str(row.get("metric"))), **row} for row in given]
    assert not {name for row in given for name in row} - set(schema)
    if table == "runs":
        ids = ", ".join(_write(row["run_id"]) for row in given)
        con.execute(f"delete from runs where dataset = {_write(_TO_COME)} and run_id in ({ids})")
    if len(given) <= _FEW:
        names = sorted({name for row in given for name in row})
        rows_text = ", ".join(f"({', '.join(_write(row.get(name)) for name in names)})" for row in given)
        con.execute(f"insert into {table} ({', '.join(names)}) values {rows_text}")
    else:
        con.register("given_rows", pl.DataFrame(given, schema=schema).to_arrow())
        con.execute(f"insert into {table} by name select * from given_rows")
        con.unregister("given_rows")
    if table in ("run_samples", "scores", "llm_calls"):
        missing = con.sql(f"select distinct run_id from {table} anti join runs using (run_id)").fetchall()
        # Of no series, as a run was not yet spoken of.
        fill(con, "runs", *({"run_id": run_id, "kind": "noise", "dataset": _TO_COME} for (run_id,) in missing))


def _write(value: object) -> str:
    """A value as SQL has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"'{value}'::double"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_write, value))}]"
    text = orjson.dumps(value).decode() if isinstance(value, dict) else str(value)
    return "'" + text.replace("'", "''") + "'"


class RowsToCome:
    """Rows for a warehouse file that are written together, when `write` is called: opening the file costs most."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, tuple[Row, ...]]] = []

    def add(self, table: str, *rows: Row) -> None:
        self._rows.append((table, rows))

    def write(self, warehouse: Warehouse) -> Warehouse:
        """Write what has come since the last time, and return the warehouse."""
        if self._rows:
            with open_writer(warehouse.location, patience_s=5.0) as connection:
                connection.begin()
                for table, rows in self._rows:
                    fill(connection, table, *rows)
                # Without any of the rows that a part is computed from there is nothing to derive.
                written = {table for table, _ in self._rows} - {"run_samples"}
                if parts := [part for part, tables in RESTS_ON.items() if not tables.isdisjoint(written)]:
                    derive_all(connection, parts)
                connection.commit()
            self._rows.clear()
        return warehouse


def derive_all(con: duckdb.DuckDBPyConnection, parts: Collection[Part] = tuple(RESTS_ON)) -> None:
    """Compute means, causes and costs of all runs, as the runs themselves do when they end. The causes take longest."""
    derive(con, [run_id for (run_id,) in con.execute("select run_id from runs").fetchall()], parts)


def derive_after(con: duckdb.DuckDBPyConnection, *statements: str) -> None:
    """Compute again, for all runs, the parts that rest on a table which these statements name."""
    named = set(re.findall(r"\w+", " ".join(statements)))
    if parts := [part for part, tables in RESTS_ON.items() if not tables.isdisjoint(named)]:
        derive_all(con, parts)


def add_samples(con: duckdb.DuckDBPyConnection, *samples: Sample, run_id: str = "r") -> None:
    """Write everything that is known about these samples of one run."""
    add_runs(con, {run_id: samples})


def add_runs(con: duckdb.DuckDBPyConnection, runs: Mapping[str, Iterable[Sample]]) -> None:
    """Write everything that is known about the samples of several runs, which takes little longer than for one."""
    tables: dict[str, list[Row]] = {}
    for run_id, samples in runs.items():
        for sample in samples:
            for table, row in _list_rows(sample, run_id):
                tables.setdefault(table, []).append({"sample_id": sample.sample_id, **row})
    for table, rows in tables.items():
        fill(con, table, *rows)


def _list_rows(sample: Sample, run_id: str) -> Iterable[tuple[str, Row]]:
    run: Row = {"run_id": run_id}
    input_hash = f"{run_id}-{sample.sample_id}"
    ids = {"context_ids": sample.context_ids, "reference_context_ids": sample.reference_ids}
    yield "samples", {"input_hash": input_hash, "contexts": sample.contexts, **ids}
    yield "run_samples", {**run, "input_hash": input_hash}
    for step in list_steps():
        if step not in tuple(sample.missing):
            yield "outcomes", {**run, "step": step, "reason": sample.reasons.get(step)}
    sources = (
        ("answer", "A", sample.answer, sample.answer_support),
        ("ground_truth", "G", sample.ground_truth, sample.ground_truth_support),
    )
    for source, letter, labels, support in sources:
        for n, label in enumerate(labels, start=1):
            key = {**run, "statement_id": f"{letter}{n}"}
            yield "statements", {**key, "source": source, "ordinal": n, "text": f"Statement {letter}{n}."}
            yield "classifications", {**key, "label": label, "reason": "as read"}
        for n, ranks in enumerate(support, start=1):
            key = {**run, "statement_id": f"{letter}{n}"}
            alone, joint = ([], list(ranks)) if isinstance(ranks, Together) else (list(ranks), [])
            turns = list(sample.turn_support.get(f"{letter}{n}", ()))
            found = {"supported": bool(ranks) or bool(turns), "context_ranks": alone, "joint_ranks": joint}
            yield "attributions", {**key, **found, "turn_ranks": turns if sample.turn_support else None}
    for statement_id, label in sample.turns.items():
        yield "turn_verdicts", {**run, "statement_id": statement_id, "label": label}
    for rank, useful in enumerate(sample.useful, start=1):
        yield "context_verdicts", {**run, "context_rank": rank, "useful": useful}
    for ordinal, (statement_id, rank) in enumerate(sample.citations, start=1):
        where = {"ordinal": ordinal, "marker": f"[{rank}]", "text_start": ordinal, "text_end": ordinal + 3}
        yield "citations", {**run, **where, "statement_id": statement_id, "context_rank": rank}
    if sample.similarity is not None:
        yield "similarities", {**run, "value": sample.similarity}
    for kind, value in sample.further.items():
        yield "similarities", {**run, "kind": kind, "value": value}
    for (rubric, criterion), rating in sample.grades.items():
        yield "grades", {**run, "rubric": rubric, "criterion": criterion, "rating": rating}


def score(con: duckdb.DuckDBPyConnection, metric: str, run_id: str = "r", **settings: float) -> dict[str, Score]:
    """Return the rows of the metric's SQL for the run, by sample; fails when a sample has two."""
    file = read_metrics()[metric]
    parameters = {"run_id": run_id, **resolve_parameters(file, settings)}
    found = con.execute(file.sql, parameters).fetchall()
    scores = {row[1]: Score(value=row[2], unscored_reason=row[3]) for row in found}
    assert len(scores) == len(found), "a sample has more than one row"
    assert all(row[0] == run_id for row in found)
    return scores


def score_sample(metric: str, sample: Sample, **settings: float) -> Score:
    """The score of a run that holds this sample alone."""
    with open_rows() as con:
        add_samples(con, sample)
        return score(con, metric, "r", **settings)[sample.sample_id]


def score_together(metric: str, *samples: Sample, **settings: float) -> list[Score]:
    """The scores of these samples in one run, in their order: to score many takes as long as to score one."""
    with open_rows() as con:
        add_samples(con, *(replace(sample, sample_id=f"s{n}") for n, sample in enumerate(samples)))
        found = score(con, metric, "r", **settings)
    return [found[f"s{n}"] for n in range(len(samples))]


def value_of(metric: str, sample: Sample, **settings: float) -> float:
    """The value of a sample that must be scored."""
    found = score_sample(metric, sample, **settings)
    assert found.unscored_reason is None
    assert found.value is not None
    return found.value


def read(con: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, object]]:
    """Rows of a query as dictionaries, after what it reads has been derived."""
    if parts := [part for part, views in _DERIVED.items() if views.search(sql)]:
        derive_all(con, parts)
    return con.sql(sql).pl().to_dicts()


FACT = "The lighthouse of Brankmouth is forty-two metres high."


def add_stated(con: duckdb.DuckDBPyConnection, *samples: Sample, run_id: str = "r") -> None:
    """Write the samples of one run."""
    add_stated_runs(con, {run_id: samples})


def add_stated_runs(con: duckdb.DuckDBPyConnection, runs: Mapping[str, Iterable[Sample]]) -> None:
    """Write the samples of several runs."""
    add_runs(con, runs)
    con.execute(
        "update statements set text = concat($start, statement_id, ' of sample ', sample_id)"
        " where list_contains($run_ids, run_id)",
        {"start": "The statement ", "run_ids": list(runs)},
    )


def rate_doubts(signals: Sequence[float]) -> list[float]:
    """The largest distance of a score from its signal."""
    return [math.sqrt(max(one * (1 - one), 0.01)) for one in signals]


def put_run(
    con: duckdb.DuckDBPyConnection,
    run_id: str,
    picked: Collection[int],
    *,
    probabilities: Sequence[float],
    signals: Sequence[float],
    values: Sequence[float | None],
) -> None:
    """A run with a budget that picked these places of a dataset and scored them by these values."""
    n = len(values)
    columns = {"sample_id": [f"s{place}" for place in range(n)], "ordinal": range(n), "probability": probabilities}
    given = pl.DataFrame(
        {**columns, "picked": [place in picked for place in range(n)], "signal": signals, "value": values},
        schema_overrides={"value": pl.Float64, "probability": pl.Float64},
    ).with_columns(run_id=pl.lit(run_id), metric=pl.lit("faithfulness"), origin=pl.lit("lexical"))
    con.register("given", given)
    con.execute("insert into sample_picks by name select run_id, sample_id, ordinal, probability, picked from given")
    con.execute("insert into sample_signals by name select run_id, sample_id, metric, signal, origin from given")
    con.execute(
        "insert into scores by name select run_id, sample_id, metric, value, '1' as metric_version from given "
        "where picked"
    )
    con.unregister("given")
    fill(con, "runs", {"run_id": run_id})
    derive(con, [run_id], ["scores"])
