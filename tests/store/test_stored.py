"""What is stored of runs that have ended: it is what the views compute, and gone as soon as it might not be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from rows import Sample, add_samples, fill, open_rows, read
from warehouse_runs import lay_warehouse, make_run

from evalhouse.warehouse.metric_files import view_scripts
from evalhouse.warehouse.rows import told
from evalhouse.warehouse.rows.runs import end_run, insert_run, store_ended
from evalhouse.warehouse.store import CHUNK_SAMPLES, FEW_SAMPLES, RESTS_ON, Warehouse, forget, store, store_open
from evalhouse.warehouse.tables import Batch, build_frame

VIEWS = ("run_scores", "sample_causes", "run_causes", "run_costs")
VIEW_OF = {"scores": "run_scores", "causes": "run_causes", "costs": "run_costs"}
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
        changed = [f"replace({key}, 'r0', 'r' || night) as {key}" for key in keys]
        changed += ["started_at + to_days(night::int) as started_at"] if table == "runs" else []
        if changed:
            con.execute(
                f"insert into {table} by name select {table}.* replace ({', '.join(changed)}) "
                f"from {table}, range(1, {n_nights}) as nights (night)"
            )


def read_views(con: duckdb.DuckDBPyConnection) -> dict[str, list[dict[str, object]]]:
    """All rows of the views, numbers to nine digits: sums come in any order."""
    shown = {view: read(con, f"from {view} order by run_id, columns(*)::varchar") for view in VIEWS}
    return {
        view: [
            {name: round(value, 9) if isinstance(value, float) else value for name, value in row.items()}
            for row in rows
        ]
        for view, rows in shown.items()
    }


@settings(deadline=None, max_examples=max(2, settings.default.max_examples // 40))
@given(data=st.data(), nights=st.integers(1, 4))
def test_what_is_stored_is_what_the_views_reckon(data: st.DataObject, nights: int) -> None:
    with open_rows() as con:
        n_samples = data.draw(st.integers(1, 4))
        values = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=n_samples, max_size=n_samples)
        samples = st.lists(draw_sample(), min_size=n_samples, max_size=n_samples)
        run_ids = [add_night(con, night, data.draw(samples), data.draw(values)) for night in range(nights)]
        computed = read_views(con)
        store(con, data.draw(st.lists(st.sampled_from(run_ids), unique=True)), list(RESTS_ON))
        assert read_views(con) == computed
        store(con, run_ids, list(RESTS_ON))
        assert read_views(con) == computed
        assert len(read(con, "from stored_causes")) == nights * n_samples


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """Forty nights of one suite with one sample each, stored."""
    sample = Sample(
        answer=["TP"], ground_truth=["TP", "FN"], answer_support=[[1]], ground_truth_support=[[1], []], useful=[True]
    )
    with open_rows() as filled:
        add_night(filled, 0, [sample], [0.5])
        repeat_night(filled, 40)
        store(filled, [f"r{night}" for night in range(40)], list(RESTS_ON))
        yield filled


def list_stored(con: duckdb.DuckDBPyConnection, part: str) -> set[str]:
    return {str(row["run_id"]) for row in read(con, f"select run_id from stored_runs where part = '{part}'")}


def test_stored_rows_are_read_and_not_reckoned(con: duckdb.DuckDBPyConnection) -> None:
    for table in ("scores", "statements", "llm_calls"):
        con.execute(f"delete from {table}")
    assert {view: len(rows) for view, rows in read_views(con).items()} == {
        "run_scores": 40, "sample_causes": 40, "run_causes": 720, "run_costs": 40,
    }  # fmt: skip
    assert {row["rule"] for row in read(con, "from sample_causes")} == {"passed_over"}


STALE: dict[str, dict[str, range | list[int]]] = {
    "statements": {"causes": range(5, 36)},  # the run and the thirty that look back at it
    "kb_updates": {"causes": range(5, 36)},
    "run_samples": {"causes": range(5, 36), "scores": [5]},
    "scores": {"scores": [5]},
    "llm_calls": {"costs": [5]},
    "responses": {},
}


def test_what_rests_on_rows_that_are_written_is_stale(con: duckdb.DuckDBPyConnection) -> None:
    everything = {f"r{night}" for night in range(40)}
    con.execute("create temp table noted as from stored_parts")
    for written, stale in STALE.items():
        forget(con, "r5", {written})
        for part in RESTS_ON:
            expected = everything - {f"r{night}" for night in stale.get(part, ())}
            assert list_stored(con, part) == expected, (written, part)
        con.execute("delete from stored_parts; insert into stored_parts from noted")


def test_other_thresholds_decide_all_causes_anew(con: duckdb.DuckDBPyConnection) -> None:
    assert {row["cause"] for row in read(con, "from sample_causes")} == {"contexts_ignored"}
    [script] = [script for script in view_scripts() if script.name == "cause_thresholds"]
    con.execute(script.sql.replace("('minor_share', 0.2", "('minor_share', 1.0"))
    assert {row["cause"] for row in read(con, "from sample_causes")} == {"fine"}
    assert list_stored(con, "scores")


def test_small_runs_are_stored_together_when_they_are_worth_it() -> None:
    with open_rows() as filled:
        for night in range(FEW_SAMPLES - 1):
            add_night(filled, night, [Sample()], [0.5])
        assert store_open(filled) == 0
        assert list_stored(filled, "scores") == set()
        add_night(filled, FEW_SAMPLES, [Sample()], [0.5])
        filled.execute("update runs set status = 'running' where run_id = 'r0'")
        assert (store_open(filled), list_stored(filled, "scores")) == (0, set())
        assert store_open(filled, "r0") == 0
        for part in RESTS_ON:
            assert len(list_stored(filled, part)) == FEW_SAMPLES


def test_a_transaction_stores_no_more_than_fits_into_it_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.warehouse.store.CHUNK_SAMPLES", FEW_SAMPLES)
    assert CHUNK_SAMPLES > FEW_SAMPLES
    with open_rows() as filled:
        for night in range(FEW_SAMPLES + 5):
            add_night(filled, night, [Sample()], [0.5])
        assert store_open(filled) == 5
        assert list_stored(filled, "causes") == {f"r{night}" for night in range(5, FEW_SAMPLES + 5)}


def make_batch(key: str, run_id: str, table: str, *rows: dict[str, object]) -> Batch:
    return Batch(key=key, run_id=run_id, tables={table: build_frame(table, [{"run_id": run_id, **r} for r in rows])})


def test_a_run_is_stored_with_its_end_and_a_batch_that_comes_late_is_seen(tmp_path: Path) -> None:
    warehouse: Warehouse = lay_warehouse(tmp_path / "w.duckdb")
    insert_run(warehouse, make_run("r"))
    names = [f"s{n}" for n in range(FEW_SAMPLES)]
    samples = [{"sample_id": name, "input_hash": "h", "ordinal": n} for n, name in enumerate(names)]
    warehouse.append(make_batch("samples", "r", "run_samples", *samples))
    end_run(warehouse, "r", status="completed", finished_at=NIGHT)
    counts = "select cause, n_samples from run_causes where run_id = 'r' and n_samples > 0"
    stored = "select part from stored_runs order by part"
    assert warehouse.read(stored)["part"].to_list() == ["causes", "costs", "scores"]
    assert warehouse.read_rows(counts) == [{"cause": "not_judged", "n_samples": FEW_SAMPLES}]
    steps = ("classify", "attribute_answer", "attribute_ground_truth")
    ended = [{"sample_id": "s0", "step": step} for step in steps]
    warehouse.append(make_batch("late", "r", "outcomes", *ended))
    assert warehouse.read(stored)["part"].to_list() == ["costs", "scores"]
    assert {"cause": "not_judged", "n_samples": FEW_SAMPLES - 1} in warehouse.read_rows(counts)
    store_ended(warehouse)
    assert warehouse.read(stored)["part"].to_list() == ["causes", "costs", "scores"]
    assert {"cause": "not_judged", "n_samples": FEW_SAMPLES - 1} in warehouse.read_rows(counts)


@pytest.mark.parametrize("part", ["scores", "causes", "costs"])
def test_what_an_update_made_stale_is_computed_of_the_wanted_runs_alone_and_not_of_many_at_once(
    part: told.Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = lay_warehouse(tmp_path / "w.duckdb")
    with duckdb.connect(str(tmp_path / "w.duckdb")) as con:
        add_night(con, 0, [Sample(ground_truth=["FN"], ground_truth_support=[[1]])], [0.5])
        repeat_night(con, 12)
        con.execute("update runs set n_samples = 10")
        store(con, ["r0", "r1", "r2"], list(RESTS_ON))
    monkeypatch.setattr(told, "CHUNK_SAMPLES", 40)
    asked: list[list[str]] = []

    def read_noted(sql: str, parameters: object = None, *, frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        asked.extend(frame["run_id"].to_list() for name, frame in frames.items() if name == "open_runs")
        return Warehouse.read(warehouse, sql, parameters, frames=frames)  # type: ignore[arg-type]

    monkeypatch.setattr(warehouse, "read", read_noted)
    wanted = [f"r{night}" for night in range(1, 10)]
    rows = told.read_told(warehouse, part, wanted)
    monkeypatch.undo()
    assert asked == [["r3", "r4", "r5", "r6"], ["r7", "r8", "r9"]]
    of_view = f"from {VIEW_OF[part]} where run_id in (select run_id from wanted)"
    expected = warehouse.read(of_view, frames={"wanted": pl.DataFrame({"run_id": wanted})})
    assert rows.height == expected.height > 0
    assert_frame_equal(rows, expected.select(rows.columns), check_row_order=False)
