"""Derived rows of runs: stored when a run is scored and ends, and again where rows arrive late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import Sample, add_samples, fill, open_rows
from warehouse_runs import lay_warehouse, make_row, make_run

from evalhouse.warehouse.metric_files import load_metrics, view_scripts
from evalhouse.warehouse.rows.runs import insert_run, update_run
from evalhouse.warehouse.rows.samples import score_run
from evalhouse.warehouse.store import RESTS_ON, Batch, Warehouse, build_frame, derive, derive_again, list_later

VIEWS = ("run_scores", "sample_causes", "run_causes", "run_costs")
RANKS = st.lists(st.integers(1, 3), unique=True, max_size=2)
NIGHT = datetime(2026, 1, 1)


@st.composite
def draw_sample(draw: st.DrawFn) -> Sample:
    labels = draw(st.lists(st.sampled_from(["TP", "FP"]), max_size=3))
    truths = draw(st.lists(st.sampled_from(["TP", "FN"]), max_size=3))
    return Sample(
        answer=labels,
        ground_truth=truths,
        answer_support=[draw(RANKS) for _ in labels],
        ground_truth_support=[draw(RANKS) for _ in truths],
        useful=draw(st.lists(st.booleans(), min_size=3, max_size=3)),
        # Of few texts, so that some are as the night before and others are not.
        contexts=[draw(st.sampled_from("AB")) for _ in range(3)],
        missing=draw(st.sampled_from([(), (), ("classify",)])),
    )


def add_night(con: duckdb.DuckDBPyConnection, night: int, samples: list[Sample], values: list[float | None]) -> str:
    """A night of one suite with these samples, their scores and a call each."""
    run_id = f"r{night}"
    named = [replace(sample, sample_id=f"s{n}") for n, sample in enumerate(samples)]
    add_samples(con, *named, run_id=run_id)
    fill(con, "runs", {"run_id": run_id, "suite": "s", "language": "en", "started_at": NIGHT + timedelta(night)})
    keys = [{"run_id": run_id, "sample_id": sample.sample_id} for sample in named]
    fill(con, "scores", *({**key, "metric": "mrr", "value": v} for key, v in zip(keys, values, strict=False)))
    calls = [{"call_id": f"{run_id}-{n}", "step": "rank", "cost_usd": v} for n, v in enumerate(values)]
    fill(con, "llm_calls", *({**key, **call} for key, call in zip(keys, calls, strict=False)))
    return run_id


def repeat_night(con: duckdb.DuckDBPyConnection, n_nights: int) -> None:
    """The first night again on the nights after it, table by table: night by night takes two seconds."""
    sql = (
        "select table_name, list(column_name) as names from duckdb_columns() "
        "semi join duckdb_tables() using (table_name) group by all"
    )
    for table, names in con.sql(sql).fetchall():
        keys = sorted({"run_id", "input_hash", "call_id"}.intersection(names))
        changed = [f"replace({key}, 'r0', 'r' || place) as {key}" for key in keys]
        changed += ["started_at + to_days(place::int) as started_at"] if table == "runs" else []
        if changed:
            con.execute(
                f"insert into {table} by name select {table}.* replace ({', '.join(changed)}) "
                f"from {table}, range(1, {n_nights}) as nights (place)"
            )


def read_derived(con: duckdb.DuckDBPyConnection) -> dict[str, list[dict[str, object]]]:
    """All rows of the views, numbers to nine digits: sums come in any order."""
    shown = {view: con.sql(f"from {view} order by run_id, columns(*)::varchar").pl().to_dicts() for view in VIEWS}
    return {
        view: [
            {name: round(value, 9) if isinstance(value, float) else value for name, value in row.items()}
            for row in rows
        ]
        for view, rows in shown.items()
    }


@settings(deadline=None, max_examples=max(2, settings.default.max_examples // 40))
@given(data=st.data(), nights=st.integers(1, 4))
def test_runs_derived_together_are_as_each_alone(data: st.DataObject, nights: int) -> None:
    with open_rows() as con:
        n_samples = data.draw(st.integers(1, 4))
        values = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=n_samples, max_size=n_samples)
        samples = st.lists(draw_sample(), min_size=n_samples, max_size=n_samples)
        run_ids = [add_night(con, night, data.draw(samples), data.draw(values)) for night in range(nights)]
        derive(con, run_ids)
        together = read_derived(con)
        assert len(together["sample_causes"]) == nights * n_samples
        for run_id in data.draw(st.permutations(run_ids)):
            derive(con, [run_id])
        assert read_derived(con) == together


def test_later_runs_that_look_back_are_the_next_thirty(con: duckdb.DuckDBPyConnection) -> None:
    assert list_later(con, ["r5"]) == sorted(f"r{night}" for night in range(6, 36))
    assert list_later(con, ["r39"]) == []


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """Forty nights of one suite with one sample each, with what is derived of them."""
    sample = Sample(
        answer=["TP"], ground_truth=["TP", "FN"], answer_support=[[1]], ground_truth_support=[[1], []], useful=[True]
    )
    with open_rows() as filled:
        add_night(filled, 0, [sample], [0.5])
        repeat_night(filled, 40)
        derive(filled, [f"r{night}" for night in range(40)])
        yield filled


RESTING = {
    "statements": ("causes",),
    "kb_updates": ("causes",),
    "run_samples": ("causes", "scores"),
    "scores": ("scores",),
    "llm_calls": ("costs",),
    "responses": (),
}


def test_rows_that_rest_on_late_rows_are_derived_again(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("update runs set status = 'running' where run_id = 'r6'")
    con.execute("delete from stored_causes where run_id = 'r6'")
    for written, resting in RESTING.items():
        for part in RESTS_ON:
            con.execute(f"delete from stored_{part} where run_id = 'r5'")
        derive_again(con, "r5", {written})
        for part in RESTS_ON:
            stored = con.execute(f"select count(*) from stored_{part} where run_id = 'r5'").fetchall()
            assert stored == [(int(part in resting),)], (written, part)
        derive_again(con, "r6", {written})
        assert con.execute("select count(*) from stored_causes where run_id = 'r6'").fetchall() == [(0,)], written


def test_other_thresholds_hold_for_what_is_derived_then(con: duckdb.DuckDBPyConnection) -> None:
    causes = "select distinct cause from sample_causes"
    assert con.execute(causes).fetchall() == [("contexts_ignored",)]
    [script] = [script for script in view_scripts() if script.name == "cause_thresholds"]
    con.execute(script.sql.replace("('minor_share', 0.2", "('minor_share', 1.0"))
    derive(con, [f"r{night}" for night in range(40)], ["causes"])
    assert con.execute(causes).fetchall() == [("fine",)]


def make_batch(key: str, run_id: str, table: str, *rows: dict[str, object]) -> Batch:
    return Batch(key=key, run_id=run_id, tables={table: build_frame(table, [{"run_id": run_id, **r} for r in rows])})


def test_a_run_is_derived_as_it_is_scored_and_ends_and_again_by_late_batches(tmp_path: Path) -> None:
    warehouse: Warehouse = lay_warehouse(tmp_path / "w.duckdb")
    insert_run(warehouse, make_run("r"))
    samples = [{"sample_id": f"s{n}", "input_hash": "h", "ordinal": n} for n in range(2)]
    warehouse.append(make_batch("samples", "r", "run_samples", *samples))
    warehouse.append(make_batch("calls", "r", "llm_calls", make_row(1, run_id="r")))
    costs = "select n_calls from run_costs"
    counts = "select n_samples from run_causes where cause = 'not_judged'"
    assert warehouse.read(costs).to_series().to_list() == [1], "of a running run they are computed"
    assert warehouse.read(counts).to_series().to_list() == []
    assert warehouse.read("from stored_costs").height == 0
    score_run(warehouse, "r", list(load_metrics().values())[:1], {})
    assert warehouse.read(counts).to_series().to_list() == [2]
    assert warehouse.read("from run_scores").height == 1
    update_run(warehouse, "r", status="completed", finished_at=NIGHT)
    assert warehouse.read("from stored_costs").height == 1
    steps = ("classify", "attribute_answer", "attribute_ground_truth")
    warehouse.append(make_batch("late", "r", "outcomes", *({"sample_id": "s0", "step": step} for step in steps)))
    warehouse.append(make_batch("late calls", "r", "llm_calls", make_row(2, run_id="r")))
    assert warehouse.read(counts).to_series().to_list() == [1]
    assert warehouse.read(costs).to_series().to_list() == [2]
