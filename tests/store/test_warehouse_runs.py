"""Runs on record, and finding the one a person means."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.warehouse.errors import WarehouseError, WarehouseMissing
from evalhouse.warehouse.rows.runs import RunStatus, find_run, insert_run, list_runs, pick_run, update_run
from evalhouse.warehouse.sandbox.query import run_query
from evalhouse.warehouse.store import Warehouse


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Four runs, the third with a label that the second has as well. To be read."""
    warehouse = make_warehouse(tmp_path_factory.mktemp("nights"))
    for minute, (run_id, label) in enumerate(
        [("20260101-aa", None), ("20260102-ab", "nightly"), ("20260103-bb", "nightly"), ("20260104-cc", "2026010")]
    ):
        insert_run(warehouse, make_run(run_id, minute=minute, label=label))
    return warehouse


@pytest.fixture
def own_nights(nights: Warehouse, tmp_path: Path) -> Warehouse:
    """The same, to be written to."""
    path = tmp_path / "w.duckdb"
    path.write_bytes(nights.location.path.read_bytes())
    return Warehouse(str(path))


def test_a_run_comes_back_as_it_went(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    run = make_run(
        "r",
        suite="nightly",
        label="with 文 and 'quotes'",
        href="https://example.org/ci/1",
        tags=("a", "b"),
        embeddings="hashed",
        trigger="event",
        kb_name="kb",
        kb_version="7",
        flow_run_id="f",
        status="completed",
        finished_at=datetime(2026, 1, 2, 3, 4, 5, 6),
        n_samples=3,
        config={"weights": {"factual_f1": 0.5}, "names": ["文"], "none": None},
    )
    insert_run(warehouse, run)
    assert list_runs(warehouse) == [run]


def test_runs_are_listed_newest_first(nights: Warehouse) -> None:
    ids = [run.run_id for run in list_runs(nights)]
    assert ids == ["20260104-cc", "20260103-bb", "20260102-ab", "20260101-aa"]
    assert [run.run_id for run in list_runs(nights, limit=2)] == ids[:2]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("20260102-ab", "20260102-ab"),
        ("20260101", "20260101-aa"),
        ("latest", "20260104-cc"),
        ("previous", "20260103-bb"),
        ("nightly", "20260103-bb"),  # the newest with that label
        ("2026010", "20260104-cc"),  # begins every id, but is a label
    ],
)
def test_a_run_is_found_by_what_people_write(nights: Warehouse, wanted: str, expected: str) -> None:
    assert find_run(nights, wanted).run_id == expected


def test_an_id_that_begins_another_is_still_that_run(own_nights: Warehouse) -> None:
    insert_run(own_nights, make_run("20260104-c", minute=9))
    assert find_run(own_nights, "20260104-c").run_id == "20260104-c"
    assert pick_run(list_runs(own_nights), "20260104-c").run_id == "20260104-c"


def test_a_start_of_several_ids_asks_for_more_of_it(nights: Warehouse) -> None:
    with pytest.raises(WarehouseError, match=r"4 runs begin with '202601'; the newest are 20260104-cc \(.*write more"):
        find_run(nights, "202601")


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        ("x", r"the newest are 20260104-cc \("),
        ("", r"the newest are 20260104-cc \("),
        ("%", r"the newest are 20260104-cc \("),
        ("Nightly", r"did you mean nightly\?"),
        ("20260101-aaa", "did you mean 20260101-aa or "),
        ("lates", r"did you mean latest or latest:\w+ or latest-completed|did you mean latest"),
    ],
)
def test_what_fits_nothing_names_like_or_the_newest_runs(nights: Warehouse, wanted: str, advice: str) -> None:
    with pytest.raises(WarehouseError, match=f"no run fits {wanted!r} .*{advice}.*`evalhouse runs` lists all"):
        find_run(nights, wanted)


def test_without_runs_it_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match=r"has no runs yet.*evalhouse run"):
        find_run(make_warehouse(tmp_path), "latest")
    with pytest.raises(WarehouseMissing):
        find_run(Warehouse(str(tmp_path / "none.duckdb")), "latest")


def test_the_first_run_has_no_previous(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    insert_run(warehouse, make_run("r"))
    assert find_run(warehouse, "latest").run_id == "r"
    with pytest.raises(WarehouseError, match="is the first of its series"):
        find_run(warehouse, "previous")
    with pytest.raises(WarehouseError, match="no run has completed yet"):
        find_run(warehouse, "latest-completed")


# Of each run its suite, its dataset, and how it ended.
SERIES: dict[str, tuple[str | None, str, RunStatus]] = {
    "a1": (None, "a", "completed"), "n1": ("nightly", "a", "completed"), "a2": (None, "a", "completed"),
    "b1": (None, "b", "completed"), "n2": ("nightly", "b", "completed"), "n3": ("nightly", "b", "completed"),
    "a3": (None, "a", "completed"), "s1": ("shop", "c", "failed"), "s2": ("shop", "c", "completed"),
    "s3": ("shop", "c", "completed"), "s4": ("shop", "c", "incomplete"), "s5": ("shop", "c", "cancelled"),
}  # fmt: skip


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    warehouse = make_warehouse(tmp_path_factory.mktemp("series"))
    for minute, (run_id, (suite, dataset, status)) in enumerate(SERIES.items()):
        insert_run(warehouse, make_run(run_id, minute=minute, suite=suite, dataset=dataset, status=status))
    return warehouse


@pytest.mark.parametrize(
    ("wanted", "beside", "found"),
    [
        ("latest", None, "s5"),
        ("previous", None, "s4"),
        ("previous", "a3", "a2"),
        ("previous", "a2", "a1"),
        ("previous", "n3", "n2"),
        ("previous", "a1", None),
        ("previous", "b1", None),
        ("previous-completed", "n2", "n1"),
        ("previous:nightly", None, "n2"),
        ("previous:nightly", "n2", "n1"),
        ("previous:nightly", "a3", "n2"),
        ("latest:nightly", "a3", "n3"),
        ("latest", "b1", "s5"),
        ("latest-completed", None, "s3"),
        ("latest completed", None, "s3"),
        ("latest-completed:shop", None, "s3"),
        ("previous-completed", None, "s2"),
        ("previous-completed", "s2", None),
    ],
)
def test_previous_stays_in_the_series_of_the_other_run_and_passes_over_on_demand(
    series: Warehouse, wanted: str, beside: str | None, found: str | None
) -> None:
    warehouse = series
    other = find_run(warehouse, beside) if beside else None
    if found is None:
        with pytest.raises(
            WarehouseError, match=f"run {beside} is the first of its series .*`evalhouse runs` lists all"
        ):
            find_run(warehouse, wanted, beside=other)
    else:
        assert find_run(warehouse, wanted, beside=other).run_id == found


def test_latest_and_previous_are_variables_of_a_query(series: Warehouse) -> None:
    in_sql = run_query(series.location, "select getvariable('latest') as latest, getvariable('previous') as previous")
    assert in_sql.to_dicts() == [{"latest": "s5", "previous": "s4"}]


def test_columns_of_one_run_are_set(own_nights: Warehouse) -> None:
    finished_at = datetime(2026, 2, 1)
    update_run(own_nights, "20260102-ab", status="completed", finished_at=finished_at)
    changed = find_run(own_nights, "20260102-ab")
    assert (changed.status, changed.finished_at, changed.label) == ("completed", finished_at, "nightly")
    assert [run.status for run in list_runs(own_nights)].count("running") == 3
    update_run(own_nights, "20260102-ab", status="running", finished_at=None)
    assert find_run(own_nights, "20260102-ab").finished_at is None


def test_run_does_not_end_before_it_begins_where_the_clock_is_set_back(own_nights: Warehouse) -> None:
    begin = find_run(own_nights, "20260102-ab").started_at
    update_run(own_nights, "20260102-ab", status="completed", finished_at=begin - timedelta(hours=1))
    assert find_run(own_nights, "20260102-ab").finished_at == begin


def test_a_column_or_run_that_is_none_is_refused(nights: Warehouse) -> None:
    with pytest.raises(KeyError, match="cannot set finished of a run"):
        update_run(nights, "20260102-ab", finished=True)
    with pytest.raises(WarehouseError, match="has no run 20270101"):
        update_run(nights, "20270101", status="failed")


def test_run_of_a_clock_that_was_ahead_is_not_the_latest(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    for run_id, minute in (("old", 0), ("ahead", 60 * 24 * 365 * 50), ("new", 1)):
        insert_run(warehouse, make_run(run_id, minute=minute))
    assert find_run(warehouse, "latest").run_id == "new"
    assert find_run(warehouse, "previous").run_id == "old"
    assert run_query(warehouse.location, "select getvariable('latest')").item() == "new"
