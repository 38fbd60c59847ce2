"""`evalhouse report RUN --against BASE`: parts that add up, and the verdicts that are others, side by side."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import duckdb
import polars as pl
import pytest
from cli_house import House
from cli_process import Ask, Place, call_here
from history_nights import Size, write_nights
from report_pages import ReportPage
from rows import derive_all

from evalhouse.flows.report.charts import draw_parts
from evalhouse.flows.report.page import build_page
from evalhouse.tasks.comparing.changes import Part
from evalhouse.warehouse.engine import connection
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows import pages
from evalhouse.warehouse.rows.pages import Row, SampleSlice, reading_slices
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nights") / "nights.duckdb"
    write_nights(path, Size(nights=4, samples=30))
    return path


def report_against(capsys: pytest.CaptureFixture[str], warehouse: Path, folder: Path) -> ReportPage:
    path = folder / "report.html"
    arguments = ("latest", "--against", "previous", "--warehouse", str(warehouse), "-o", str(path))
    finished = call_here(capsys, "report", *arguments)
    assert finished.status == 0, finished.stderr
    return ReportPage(path)


@pytest.fixture(scope="module")
def page(nights: Path) -> ReportPage:
    """The last night against the one before."""
    place = Place(folder=nights.parent)
    finished = place.call("report", "latest", "--against", "previous", "--warehouse", nights.name, "-o", "report.html")
    assert finished.status == 0, finished.stderr
    return ReportPage(place.folder / "report.html")


def test_the_parts_of_every_metric_add_up_to_its_change(
    capsys: pytest.CaptureFixture[str], nights: Path, page: ReportPage
) -> None:
    document = call_here(capsys, "compare", "previous", "latest", "--json", "--warehouse", str(nights)).document
    titles = [str(title.attributes["data-metric"]) for title in page.find("span", **{"class": "metric"})]
    moved = sorted((one for one in document["metrics"] if one["change"]), key=lambda one: titles.index(one["metric"]))
    rows = [row for row in page.rows("parts") if row[0] != "because of"]
    sums = [row for row in rows if row[0] == "all together"]
    assert [row[3] for row in sums] == [
        f"{one['change']:+.3f}" if abs(one["change"]) >= 0.0005 else "±0.000" for one in moved
    ]
    groups: list[list[float]] = [[]]
    for row in rows:
        if row[0] == "all together":
            groups.append([])
        else:
            groups[-1].append(float(row[3].replace("±", "")))
    for parts, one in zip(groups, moved, strict=False):
        assert sum(parts) == pytest.approx(one["change"], abs=0.0006 * (len(parts) + 1))
    assert "answer changed" in {row[0] for row in rows}


def test_no_reader_stays_open_beside_the_samples(nights: Path) -> None:
    """DuckDB keeps hundreds of megabytes of a large run until the last reader of the file closes."""
    warehouse = Warehouse(str(nights))
    run, base = find_run(warehouse, "latest"), find_run(warehouse, "previous")

    def read(slices: Iterator[SampleSlice]) -> Iterator[SampleSlice]:
        for rows in slices:
            kept = connection._kept.get()
            assert kept is not None
            assert kept._connection is None
            yield rows

    with one_reader(), reading_slices(warehouse, run, base, with_calls=True) as slices, TemporaryFile() as spool:
        assert list(build_page(warehouse, run, base, read(slices), spool, with_calls=True))


def test_calls_are_read_by_their_number(monkeypatch: pytest.MonkeyPatch, nights: Path) -> None:
    """A sample that was asked about while the judge was down has ten times the calls of the others."""
    warehouse = Warehouse(str(nights))
    run = find_run(warehouse, "latest")

    def fetch_calls() -> list[Row]:
        with reading_slices(warehouse, run, None, with_calls=True) as slices:
            return [row for rows in slices for row in rows.calls if row["sample_id"] is not None]

    calls, read, sizes = fetch_calls(), Warehouse.read, list[int]()
    most_of_a_sample = max(Counter(row["sample_id"] for row in calls).values())

    def note_size(self: Warehouse, sql: str, *parameters: object, frames: dict[str, pl.DataFrame]) -> pl.DataFrame:
        found = read(self, sql, *parameters, frames=frames)
        if sql == read_query("report/slice_calls"):
            sizes.append(found["sample_id"].count())
        return found

    monkeypatch.setattr(Warehouse, "read", note_size)
    monkeypatch.setattr(pages, "_CALLS_TOGETHER", 10)
    assert Counter(map(str, fetch_calls())) == Counter(map(str, calls))
    assert sum(sizes) == len(calls)
    assert max(sizes) < 10 + most_of_a_sample < len(calls)


def draw(*values: float, sign: int = 1) -> list[tuple[str, float, float]]:
    """The bars of a waterfall as what they mean, left and right."""
    names = ("answer", "contexts", "noise", "added")
    parts = [Part(name=name, n=9, n_moved=3, value=value) for name, value in zip(names, values, strict=False)]
    data = draw_parts(parts, sign=sign).data
    return [(way, *sorted(ends)) for way, *ends in zip(data["ways"], data["from"], data["to"], strict=True)]


def test_bars_may_cross_zero_and_a_fault_s_rise_is_bad() -> None:
    first, second, whole = draw(0.02, -0.05, sign=-1)
    assert [first[0], second[0]] == ["down", "up"]
    assert second[1] < first[1] < first[2]
    assert (whole[1], whole[2]) == (second[1], first[1])


def test_nothing_is_split_where_nothing_moved(house: House, ask: Ask, tmp_path: Path) -> None:
    second = next(
        line for line in house.second.stdout.split() if re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", line.strip(",:"))
    )
    path = tmp_path / "report.html"
    assert ask("report", second.strip(",:"), "--against", house.run_id, "-o", str(path)).status == 0
    page = ReportPage(path)
    assert not [element for element in page.elements if element.attributes.get("id") == "parts"]
    assert all(sample["flips"] == [] for sample in page.samples)


def test_both_words_of_a_flipped_statement_stand_side_by_side(
    capsys: pytest.CaptureFixture[str], nights: Path, page: ReportPage, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(nights, tmp_path / "copy.duckdb"))
    newest = "(select max_by(run_id, started_at) from runs where kind = 'evaluation')"
    of_one = f"where run_id = {newest} and sample_id = 'tide-1' and statement_id = 'A1'"
    with duckdb.connect(str(copy)) as connection:
        ((label,),) = connection.execute(f"select label from classifications {of_one}").fetchall()
        other = "FP" if label == "TP" else "TP"
        connection.execute(f"update classifications set label = '{other}', reason = 'Thought again.' {of_one}")
        connection.execute(f"delete from statements {of_one.replace('A1', 'A2')}")
        derive_all(connection)
    changed = report_against(capsys, copy, tmp_path)
    flips = changed.sample("tide-1")["flips"]
    assert len(flips) == len(page.sample("tide-1")["flips"]) + 2
    (flipped,) = [
        flip for flip in flips if flip["candidate"] and "Thought again." in (flip["candidate"]["reason"] or "")
    ]
    assert flipped["change"] == "flipped"
    assert flipped["base"]["text"] == flipped["candidate"]["text"]
    assert flipped["base"]["verdict"].startswith(label)
    assert flipped["candidate"]["verdict"].startswith(other)
    assert "as read in night" in flipped["base"]["reason"]
    assert [flip["change"] for flip in flips if flip["candidate"] is None] == ["vanished"]
    index = changed.index
    assert index["verdicts_changed"][index["ids"].index("tide-1")] == len(flips)


def test_a_metric_that_only_the_base_has_is_left_out(
    capsys: pytest.CaptureFixture[str], nights: Path, tmp_path: Path
) -> None:
    """The report ended with an internal error after a metric had been taken out of the suite."""
    copy = Path(shutil.copy(nights, tmp_path / "copy.duckdb"))
    newest = "(select max_by(run_id, started_at) from runs where kind = 'evaluation')"
    with duckdb.connect(str(copy)) as connection:
        connection.execute(f"delete from scores where metric = 'faithfulness' and run_id = {newest}")
        connection.execute(
            f"update runs set metrics = list_filter(metrics, lambda name: name <> 'faithfulness') "
            f"where run_id = {newest}"
        )
        derive_all(connection)
    assert report_against(capsys, copy, tmp_path).index["ids"]


@pytest.mark.parametrize("values", [
    (-0.325,), (0.04, -0.03, 0.05), (1e-7, -3e-8), (5.0, -12.0, 3.0),
])  # fmt: skip
def test_the_axis_ends_at_round_numbers_and_behind_every_bar(values: tuple[float, ...]) -> None:
    names = ("answer", "contexts", "noise")
    parts = [Part(name=name, n=9, n_moved=3, value=value) for name, value in zip(names, values, strict=False)]
    labels = [label for _, label in draw_parts(parts, sign=1).data["x"]]
    ends = [round(sum(values[:n]), 9) for n in range(len(values) + 1)]
    shown = [float(label) for label in labels]
    assert min(shown) <= min(ends) <= max(ends) <= max(shown)
    digits = [label.lstrip("+-0.").partition("e")[0].replace(".", "").strip("0") for label in labels]
    assert all(len(one) <= 2 for one in digits), f"{labels} are not round"
