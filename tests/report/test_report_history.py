"""`evalhouse report --history`: what the page of a long series holds, against the warehouse it was made from."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_process import Finished, Place, call_here
from history_nights import METRICS, SUITE, Size, write_nights
from report_pages import Element, ReportPage
from rows import derive_after

from evalhouse.flows.report import charts
from evalhouse.warehouse.metric_files import load_metrics

Write = Callable[..., ReportPage]
SIZE = Size(nights=45, samples=40)
FEW = Size(nights=10, samples=6)
ATTACK = "</script><img src=x onerror=\"document.title='owned'\">"
MOST_BYTES_A_RUN = 6_000
NEWEST = f"(select max_by(run_id, started_at) from run_series where suite = '{SUITE}')"


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of 45 nights; read it."""
    path = tmp_path_factory.mktemp("nights") / "nights.duckdb"
    write_nights(path, SIZE)
    return path


@pytest.fixture(scope="module")
def con(nights: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The same rows in another file: a command cannot open one that this process holds otherwise."""
    with duckdb.connect(shutil.copy(nights, nights.with_name("beside.duckdb")), read_only=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of ten nights, to be copied."""
    path = tmp_path_factory.mktemp("few") / "few.duckdb"
    write_nights(path, FEW)
    return path


@pytest.fixture
def changed(few: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the ten nights after some statements."""

    def change(*statements: str) -> Path:
        path = Path(shutil.copy(few, tmp_path / "copy.duckdb"))
        with duckdb.connect(str(path)) as connection:
            for sql in statements:
                connection.execute(sql)
            derive_after(connection, *statements)
        return path

    return change


def ask_history(capsys: pytest.CaptureFixture[str], warehouse: Path, wanted: str, path: Path) -> Finished:
    return call_here(capsys, "report", "--history", wanted, "--warehouse", str(warehouse), "-o", str(path))


@pytest.fixture
def write(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Write:
    def write_history(warehouse: Path, wanted: str = SUITE) -> ReportPage:
        finished = ask_history(capsys, warehouse, wanted, tmp_path / "history.html")
        assert finished.status == 0, finished.stderr
        return ReportPage(tmp_path / "history.html")

    return write_history


@pytest.fixture(scope="module")
def page(nights: Path) -> ReportPage:
    """The page of the 45 nights."""
    path = nights.with_name("history.html")
    finished = Place(folder=nights.parent).call(
        "report", "--history", SUITE, "--warehouse", str(nights), "-o", str(path)
    )
    assert finished.status == 0, finished.stderr
    return ReportPage(path)


def select(con: duckdb.DuckDBPyConnection, sql: str, *values: object) -> list[tuple[Any, ...]]:
    return con.execute(sql, list(values)).fetchall()


def test_every_run_is_there_with_its_means_the_newest_first(page: ReportPage, con: duckdb.DuckDBPyConnection) -> None:
    runs = select(con, "select run_id, \"trigger\", gate from runs where kind = 'evaluation' order by started_at desc")
    rows = page.rows("runs")
    assert [row[0] for row in rows] == [run[0] for run in runs]
    assert [(row[1].split(", ")[1], row[2]) for row in rows] == [run[1:] for run in runs]
    headings = [heading.text for heading in page.find("th") if "mean" in str(heading.attributes.get("class"))]
    shown = dict(zip(headings, rows[3][-len(METRICS) :], strict=True))
    means = dict(select(con, "select metric, mean from run_scores where run_id = ?", runs[3][0]))
    assert shown == {metric: f"{mean:.3f}" for metric, mean in means.items()}
    assert {heading.text for heading in page.find("h3")} >= set(METRICS)


def test_requests_costs_and_coverage_are_those_of_the_night(page: ReportPage, con: duckdb.DuckDBPyConnection) -> None:
    rows = page.rows("runs")
    for row in (rows[0], rows[-1]):
        ((n_requests, cost),) = select(
            con, "select count(*), sum(cost_usd) from llm_calls where run_id = ? and status <> 'cached'", row[0]
        )
        ((coverage,),) = select(con, "select count(value) / count(*) from scores where run_id = ?", row[0])
        assert row[5] == str(n_requests)
        assert float(row[6].strip("$")) == pytest.approx(cost, rel=0.01)
        assert row[7] == f"{coverage:.1%}"


def test_an_unknown_price_is_not_counted_as_a_dollar(write: Write, changed: Callable[..., Path]) -> None:
    first = "(select min_by(run_id, started_at) from runs)"  # it asked everything
    page = write(changed(f"update llm_calls set cost_usd = null where run_id = {first} and step = 'classify'"))
    *later, oldest = [row[6] for row in page.rows("runs")]
    assert oldest == "unknown"
    assert all(cost.startswith("$") for cost in later)
    assert "cost unknown: calls in 1 of 10 runs have no known price; the others cost $" in page.source


def test_latency_is_drawn_and_is_in_the_table(page: ReportPage, write: Write, changed: Callable[..., Path]) -> None:
    assert not any("response" in heading.text for heading in page.find("h3")), "nothing was asked in these nights"
    timed = write(
        changed(
            "insert into responses (run_id, sample_id, status, latency_ms) select run_id, sample_id, 'ok', "
            f"if(run_id = {NEWEST}, 1048, 47) from run_samples"
        )
    )
    rows = timed.rows("runs")
    assert [row[7] for row in rows[:2]] == ["1,048 / 1,048", "47 / 47"]
    assert sum("to a response" in heading.text for heading in timed.find("h3")) == 2


def test_each_change_is_listed_with_its_night(page: ReportPage, con: duckdb.DuckDBPyConnection) -> None:
    nights = [
        f"{row[0]:%Y-%m-%d %H:%M}" for row in select(con, "select distinct started_at from run_series order by 1")
    ]
    changes = {(row[1], row[2]) for row in page.rows("changes") if "prompt" not in row[2]}
    assert changes == {
        (nights[27], "judge: openai:judge-small → openai:judge-large"),
        (nights[36], "formula of faithfulness: version 1 → 2"),
        (nights[20], "knowledge base: manual v0 → manual v1"),
        (nights[40], "knowledge base: manual v1 → manual v2"),
    }
    prompts = {(row[1], row[2]) for row in page.rows("changes") if "prompt" in row[2]}
    assert (nights[14], "prompt classify: version 1 → 2") in prompts
    assert {night for night, _ in prompts} == {nights[14]}


def test_each_change_is_a_mark_in_the_lines_it_is_about(page: ReportPage) -> None:
    marks = [mark for chart in page.charts("trend") for mark in chart["marks"]]
    tall, short = [mark for mark in marks if mark["is_break"]], [mark for mark in marks if not mark["is_break"]]
    assert len(tall) == 2 * len(METRICS) + 1, "judge and prompts in all, a formula in its own"
    assert len(short) == 2 * len(METRICS)
    assert len([mark for mark in marks if "formula of faithfulness" in mark["text"]]) == 1


def test_the_worst_are_those_that_fell_since_a_week_ago(page: ReportPage, con: duckdb.DuckDBPyConnection) -> None:
    runs = [row[0] for row in select(con, "select run_id from runs where kind = 'evaluation' order by started_at")]
    sql = "select sample_id, metric, value from scores where run_id = ?"
    before, after = (
        {(sample_id, metric): value for sample_id, metric, value in select(con, sql, run_id)}
        for run_id in (runs[-8], runs[-1])
    )
    fallen: dict[str, list[float]] = {}
    for (sample_id, metric), value in after.items():
        old = before[sample_id, metric]
        move = (
            0.0
            if value is None or old is None
            else (value - old) * (1 if load_metrics()[metric].better == "low" else -1)
        )
        if move > 1e-9:
            fallen.setdefault(sample_id, []).append(move)
    ranked = sorted(fallen, key=lambda one: (-max(fallen[one]), -round(sum(fallen[one]), 9), one))
    rows = page.rows("worse")
    assert [row[0] for row in rows] == ranked[:20]
    assert len(rows) > 3


def test_the_flakiest_moved_though_nothing_else_did(page: ReportPage, con: duckdb.DuckDBPyConnection) -> None:
    values: dict[tuple[str, ...], set[float]] = {}
    rows = select(
        con,
        """select sample_id, metric, metric_version, input_hash, judge, value from scores
        join run_samples using (run_id, sample_id)
        join (from runs where kind = 'evaluation' order by started_at desc limit 20) as runs using (run_id)
        where value is not null""",
    )
    for *key, value in rows:
        values.setdefault(tuple(key), set()).add(round(value, 9))
    wanted = sorted(((max(found) - min(found)) for found in values.values() if len(found) > 1), reverse=True)
    shown = [float(row[3]) - float(row[2]) for row in page.rows("flaky")]
    assert shown == pytest.approx(wanted[:20], abs=0.0011)
    assert shown


def test_causes_are_those_of_the_newest_run(page: ReportPage, con: duckdb.DuckDBPyConnection) -> None:
    ((newest,),) = select(con, "select max_by(run_id, started_at) from runs where kind = 'evaluation'")
    counted = sorted(n for (n,) in select(con, "select n_samples from run_causes where run_id = ?", newest) if n)
    shown = [(int(row[1]), row[0]) for row in page.rows("causes") if row[1] != "0"]
    assert sorted(n for n, _ in shown) == counted
    wrong = [n for n, name in shown if name not in ("not judged", "fine", "refused rightly")]
    assert wrong == sorted(wrong, reverse=True)
    assert [n for n, _ in shown][: len(wrong)] == wrong, "what is wrong comes first"


def test_a_dataset_outside_suites_has_a_history_too(write: Write, changed: Callable[..., Path]) -> None:
    path = changed("update runs set suite = null where run_id in (select run_id from runs order by started_at limit 9)")
    n_noise = 4  # every other one of the first nine was for the sake of noise
    assert len(write(path, "tides.jsonl").rows("runs")) == 9 - n_noise
    assert len(write(path, "dataset tides.jsonl").rows("runs")) == 9 - n_noise
    assert len(write(path, SUITE).rows("runs")) == FEW.nights - 9 + n_noise


def test_one_run_is_a_history_without_a_week_before(write: Write, changed: Callable[..., Path]) -> None:
    page = write(changed("delete from runs where run_id <> (select min(run_id) from runs)"))
    assert len(page.rows("runs")) == 1
    assert not [element for element in page.elements if element.attributes.get("id") == "worse"]


def test_a_run_without_scores_is_listed(write: Write, changed: Callable[..., Path]) -> None:
    newest = "(select max_by(run_id, started_at) from runs where kind = 'evaluation')"
    page = write(changed(f"delete from scores where run_id = {newest}"))
    assert page.rows("runs")[0][-len(METRICS) :] == ["–"] * len(METRICS)


def test_an_unknown_suite_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str], nights: Path, tmp_path: Path
) -> None:
    finished = ask_history(capsys, nights, "weekly", tmp_path / "history.html")
    assert finished.status == 2
    assert "of suite 'weekly'" in finished.stderr
    assert "known: suite nightly" in finished.stderr
    assert not (tmp_path / "history.html").exists()


def find_scripts(page: ReportPage) -> list[Element]:
    """Return the scripts that run; the data of charts are scripts to HTML only."""
    return [script for script in page.find("script") if "type" not in script.attributes]


def read_library() -> str:
    """Return the library that draws the charts, with its licence: the same in every page."""
    return (Path(charts.__file__).with_name("assets") / "plot.js").read_text(encoding="utf-8")


def test_texts_stay_texts(write: Write, changed: Callable[..., Path]) -> None:
    attack = ATTACK.replace("'", "''")
    page = write(
        changed(
            f"update runs set judge = '{attack}', problem = '{attack}', label = '{attack}', kb_version = '{attack}'",
            f"update samples set answer = '{attack}', question = '{attack}'",
        )
    )
    assert not page.find("img")
    assert len(find_scripts(page)) == 1
    assert ATTACK in {element.text for element in page.elements}


def test_the_page_allows_its_own_script_alone_and_loads_nothing(page: ReportPage) -> None:
    (script,), (meta,) = find_scripts(page), page.find("meta", **{"http-equiv": "Content-Security-Policy"})
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in str(meta.attributes["content"])
    assert not any(name in element.attributes for element in page.elements for name in ("src", "srcset", "style"))
    assert not re.search(r"https?://(?!www\.w3\.org/)", page.source.replace(read_library(), ""))


def test_size_grows_with_the_runs_and_not_with_their_samples(page: ReportPage, write: Write, tmp_path: Path) -> None:
    write_nights(tmp_path / "thin.duckdb", Size(nights=SIZE.nights, samples=2))
    thin = write(tmp_path / "thin.duckdb")
    n_library = len(read_library())
    assert len(page.source) - n_library < SIZE.nights * MOST_BYTES_A_RUN
    assert len(page.source) - n_library < (len(thin.source) - n_library) * 1.2
