"""The SQL page: what is asked, how its result is shown, drawn and downloaded, and how a query that runs is ended."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import duckdb
import polars as pl
import pytest
from browser import Browser, find_barriers
from cli_house import House
from starlette.testclient import TestClient
from ui_house import make_client, serve_ui

from evalhouse.flows.ui import sql as sql_page
from evalhouse.flows.ui.sql import LONG, chart_result, lay_result, read_recipes
from evalhouse.warehouse.errors import WarehouseBusy
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.sandbox.query import answer_statement

Ask = Callable[..., Any]
KINDS = """
select null as nothing, '' as empty, 'NULL' as word, [1, 2] as list, {'a': 'b'} as struct, 7 as whole, 1.5 as part,
       timestamp '2025-01-02 03:04:05' as moment, true as flag, '<b>&' as markup, 'a' || chr(8238) || 'b' as turned
"""


def answer_here(location: Location, text: str, *, stop: threading.Event, most_rows: int | None = None) -> pl.DataFrame:
    """Answer like `answer_apart`, without a process: a third of a second less a query."""
    return answer_statement(location, text, timeout_s=20, most_rows=most_rows)


@pytest.fixture(scope="module")
def client(house: House) -> TestClient:
    """Without a file that is kept open: a query is answered here by a separate connection, in this process."""
    return make_client(str(house.path))


@pytest.fixture
def ask(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Asks for the page, or what else is named, of a query."""
    monkeypatch.setattr(sql_page, "answer_apart", answer_here)
    monkeypatch.setattr(sql_page, "_MOMENT_S", 60.0)  # a status is that of the result where the page waits for it
    return lambda q, path="/sql", **more: client.get(path, params={"q": q, **more})


def find_result(text: str) -> str:
    """Return the result of a page, with entities as the letters they mean."""
    return html.unescape(text[text.index('<section id="result"') :])


def find_cells(text: str) -> list[str]:
    """Return the content of the cells, as HTML without the spans around it."""
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text, re.DOTALL)
    return [re.sub(r'<span class="text">(.*?)</span>', r"\1", cell) for cell in cells]


def test_without_a_query_there_is_what_can_be_asked(client: TestClient) -> None:
    page = html.unescape(client.get("/sql").text)
    for recipe in read_recipes():
        assert recipe.title in page
    assert page.index("<code>run_scores</code>") < page.index("<code>llm_calls</code>"), "views come first"
    assert "One row per run and metric" in page
    assert "95 % interval" in page
    assert "<h2>Result</h2>" not in page


def test_every_kind_of_value_is_reported_from_the_others(ask: Ask) -> None:
    answer = ask(KINDS)
    assert answer.status_code == 200
    assert find_cells(answer.text) == [
        '<span class="null">NULL</span>',
        "",
        "NULL",
        "[1,2]",
        "{&#34;a&#34;:&#34;b&#34;}",
        "7",
        "1.5",
        "2025-01-02 03:04:05",
        "true",
        "&lt;b&gt;&amp;",
        "a\\u202eb",
    ]
    kinds = re.findall(r'<th scope="col"( class="number")?>.*?<span class="kind">(.*?)</span>', answer.text)
    assert [kind for _, kind in kinds] == [
        "whole number", "text", "text", "list", "struct", "whole number", "number", "time", "yes or no", "text", "text",
    ]  # fmt: skip
    assert [kind for number, kind in kinds if number] == ["whole number", "whole number", "number"]
    assert re.search(r"<b>1 row</b> in \d+\.\d\d s\.", answer.text)


def test_a_long_text_is_folded_and_there_as_a_whole(ask: Ask) -> None:
    (cell,) = find_cells(ask("select repeat('ab', 500) as long").text)
    assert cell.count("ab") == (LONG + 1000) / 2
    assert '<details class="long">' in cell


def test_a_page_has_room_for_so_many_long_texts() -> None:
    table = lay_result(pl.DataFrame({"text": ["x" * 450_000] * 4}))
    assert [(len(cell.text or ""), len(cell.whole or ""), cell.n) for (cell,) in table.rows] == [
        (LONG, 450_000, 450_000),
        (LONG, 450_000, 450_000),
        (LONG, 0, 450_000),
        (LONG, 0, 450_000),
    ]


def test_of_wide_rows_fewer_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_page, "MAX_CELLS", 300)
    wide = pl.DataFrame({f"column {place}": [1] * 10 for place in range(100)})
    assert len(lay_result(wide).rows) == 3
    assert len(lay_result(pl.DataFrame({str(place): [1, 2] for place in range(301)})).rows) == 1


@pytest.mark.parametrize(
    ("n", "message", "n_shown"),
    [
        (0, "<b>0 rows</b>", 0),
        (1001, "the first 1,000 are shown, all are in the downloads", 1000),
        (10_001, "<b>More than 10,000 rows</b>", 1000),
    ],
)
def test_what_is_cut_is_reported(ask: Ask, n: int, message: str, n_shown: int) -> None:
    page = ask(f"select 'x' as x from range({n})").text
    assert message in page
    assert len(find_cells(page)) == n_shown
    assert ("are shown" in page) == (n > 1000)


def test_runs_and_samples_lead_to_their_pages(ask: Ask, house: House) -> None:
    q = "select run_id, sample_id, run_id as base_run_id from run_samples order by all limit 1"
    run, sample, base = find_cells(ask(q).text)
    assert run.startswith('<a class="text" href="/runs/')
    assert re.match(r'<a class="text" href="/runs/[^/"]+/sample\?id=[^"]+">', sample)
    assert base == run
    for q in ("select '../x' as run_id, 'a' as sample_id", "select 'a' as sample_id", "select 1 as run_id"):
        assert "<a" not in "".join(find_cells(ask(q).text))


@pytest.mark.parametrize(
    ("q", "message", "place"),
    [
        ("select metric,\n  mean2 from run_scores", "Line 2, character 3", 17),
        ("select '灯😀' as x, nothing_such from runs", "Line 1, character 19", 19),
        ("delete from runs", "read-only", None),
        ("select * from read_csv('/etc/passwd')", "disabled", 14),
        ("select 1; select 2", "exactly one SELECT", None),
        ("\\d nothing_such", "unknown table or view 'nothing_such'", None),
    ],
)
def test_a_mistake_is_reported_with_its_place(ask: Ask, q: str, message: str, place: int | None) -> None:
    answer = ask(q)
    assert answer.status_code == 400
    result = find_result(answer.text)
    assert message in result
    found = re.search(r'data-place="(\d+)"', result)
    assert (int(found[1]) if found else None) == place
    assert ask(q, "/sql.csv").status_code == 400


def test_descriptions_and_plans_are_shown_too(ask: Ask) -> None:
    assert "One row per run and metric" in find_result(ask("\\d").text)
    assert find_cells(ask("\\d run_scores").text)[:2] == ["run_id", "VARCHAR"]
    assert "┌─" in find_result(ask("explain select 1").text)


def test_runs_have_names(ask: Ask) -> None:
    names = ("latest", "previous")
    cells = [find_cells(ask(f"select run_id from runs where run_id = getvariable('{name}')").text) for name in names]
    assert [len(found) for found in cells] == [1, 1]
    assert cells[0] != cells[1]


def test_lines_of_a_form_and_hostile_queries_stay_what_they_are(ask: Ask) -> None:
    page = ask("select 1 as a,\r\n\r\n2 as b").text
    assert "<textarea" in page
    assert "select 1 as a,\n\n2 as b</textarea>" in page
    q = 'select 1 as "</textarea><script>alert(1)</script>" -- <!--result--> \'"'
    page = ask(q).text
    assert "<script>alert" not in page
    assert page.count('<section id="result"') == 1
    assert html.unescape(re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)[1]) == q  # type: ignore[index]


def test_what_is_too_long_for_an_address_is_reported(ask: Ask) -> None:
    answer = ask(f"select '{'x' * 40_000}'")
    assert answer.status_code == 414
    assert "30,000 are allowed" in answer.text
    assert "evalhouse query --file" in answer.text


def test_a_busy_warehouse_is_reported_on_the_page(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def be_busy(*_: object, **__: object) -> pl.DataFrame:
        raise WarehouseBusy("two queries are running")

    monkeypatch.setattr(sql_page, "answer_apart", be_busy)
    answer = ask("select 1")
    assert answer.status_code == 503
    assert "two queries are running" in find_result(answer.text)
    assert "select 1</textarea>" in answer.text
    assert ask("select 1", "/sql.csv").status_code == 503


def test_csv_is_harmless_in_a_spreadsheet_and_whole(ask: Ask) -> None:
    q = """
    -- Scores: all of them/2025
    select '=1+1' as "=x", '+1' as plus, '-1' as minus, '@a' as at, chr(9) || 'x' as tab, -1 as number, null as nothing,
           '' as empty, '=e'::enum('=e') as e, ['=1'] as list, 'fine =1' as fine
    """
    answer = ask(q, "/sql.csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="scores-all-of-them-2025.csv"'
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.content.startswith(b"\xef\xbb\xbf")
    header, row = csv.reader(io.StringIO(answer.content.decode("utf-8-sig")))
    assert header[0] == "'=x"
    assert row == ["'=1+1", "'+1", "'-1", "'@a", "'\tx", "-1", "", "", "'=e", '["=1"]', "fine =1"]
    assert answer.content.rstrip().endswith(b',,"",\'=e,"[""=1""]",fine =1'), "NULL and an empty text differ"
    assert len(ask("from range(20000)", "/sql.csv").text.splitlines()) == 20_001


def test_parquet_has_every_row_as_it_is(ask: Ask, tmp_path: Path) -> None:
    answer = ask("select range as n, [range] as list from range(20000)", "/sql.parquet")
    assert answer.headers["content-disposition"] == 'attachment; filename="query.parquet"'
    (tmp_path / "query.parquet").write_bytes(answer.content)
    found = duckdb.sql(
        f"select count(*), sum(n), any_value(typeof(list)) from '{tmp_path / 'query.parquet'}'"
    ).fetchall()
    assert found == [(20_000, 199_990_000, "BIGINT[]")]
    assert ask(" ", "/sql.parquet").status_code == 400


TIMES = pl.DataFrame({"t": ["2025-01-01", "2025-01-02"], "n": [1, 2], "m": [0.5, 0.7]}).with_columns(
    pl.col("t").str.to_date()
)
BY_NAME = pl.DataFrame({"t": ["2025-01-01"] * 2 + ["2025-01-02"] * 2, "run": ["a", "a", "b", "b"],
                        "metric": ["f", "g"] * 2, "mean": [0.1, 0.2, 0.3, 0.4], "n": [3, 3, 3, 3]}).with_columns(
    pl.col("t").str.to_datetime()
)  # fmt: skip
CAUSES = pl.DataFrame({"run": [*"rrrq"], "cause": [*"xyzx"], "n": [4, 2, 1, 3]})
NAMES = pl.DataFrame({"run": ["r", "r"], "metric": ["f", "g"], "mean": [0.1, 0.2]})


@pytest.mark.parametrize(
    ("frame", "x", "y", "drawn"),
    [
        (TIMES, "", "", {"kind": "query", "over": "time", "x": "t", "ys": ["n", "m"], "by": None}),
        (TIMES, "", "m", {"over": "time", "ys": ["m"]}),
        (TIMES, "n", "m", {"over": "number", "x": "n", "ys": ["m"]}),
        (TIMES, "-", "n", {"kind": "distribution", "of": "n", "unit": "row"}),
        (BY_NAME, "", "", {"over": "time", "ys": ["mean"], "by": "metric"}),
        (NAMES, "", "", {"over": "text", "x": "metric", "ys": ["mean"]}),
        (NAMES.select("run", "metric"), "", "", None),
        (NAMES.head(0), "", "", None),
        (NAMES.select("mean").with_columns(ok=pl.col("mean") > 0.1), "", "", {"kind": "distribution", "of": "mean"}),
        (NAMES.with_columns(mean=pl.lit(None, pl.Float64)), "", "", None),
        (pl.DataFrame({"a": ["x", "y"], "h": [10**30, 1]}, schema={"a": pl.String, "h": pl.Int128}), "", "",
         {"over": "text", "ys": ["h"]}),
        (TIMES.with_columns(change=pl.col("m") / 100, n_of=pl.col("n") * 50), "", "", {"ys": ["n", "m"]}),
        (NAMES.with_columns(metric=pl.Series(["f" * 1_000_000, "g"])), "", "",
         {"columns": {"metric": ["f" * LONG, "g"], "mean": [0.1, 0.2]}}),
        (CAUSES, "", "", {"x": "cause", "columns": {"cause": ["x · r", "y · r", "z · r", "x · q"], "n": [4, 2, 1, 3]}}),
    ],
)  # fmt: skip
def test_a_chart_is_chosen_by_types_or_by_the_address(
    frame: pl.DataFrame, x: str, y: str, drawn: dict[str, object] | None
) -> None:
    result = chart_result(frame, x, y)
    if drawn is None:
        assert result is None
        return
    assert result is not None
    assert result.chart is not None
    data: dict[str, Any] = json.loads(re.search(r">(\{.*?\})</script>", result.chart.__html__())[1])  # type: ignore[index]
    assert {name: data[name] for name in drawn} == drawn


def test_the_chart_is_in_the_page_with_the_columns_of_its_address(ask: Ask) -> None:
    q = "select metric, mean, n_scored from run_scores where run_id = getvariable('latest')"
    page = ask(q, x="metric", y="n_scored").text
    assert re.search(r'<option value="n_scored" selected>', page)
    assert '"ys":["n_scored"]' in page
    page = ask(q, x="nothing_such").text
    assert "unknown column 'nothing_such', so nothing is drawn by it" in html.unescape(page)
    assert '"over":"text"' in page
    many = ask("select 'n' || range as name, range as n from range(100)").text
    assert "Drawn: the first 40 rows." in many


def test_words_come_with_what_they_mean(client: TestClient) -> None:
    words = client.get("/sql/words", params={"before": "select me", "after": " from run_scores"}).json()
    assert words[0] == {"text": "metric", "replaced": 2, "note": "run_scores, varchar", "comment": "Metric."}
    assert client.get("/sql/words", params={"before": "select 'me"}).json() == []


class Endless:
    """A query that ends only when it is stopped."""

    def __init__(self) -> None:
        self.begun, self.stopped = threading.Event(), threading.Event()

    def __call__(self, location: Location, text: str, *, stop: threading.Event, **_: object) -> pl.DataFrame:
        self.begun.set()
        assert stop.wait(30)
        self.stopped.set()
        return pl.DataFrame()


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Endless:
    made = Endless()
    monkeypatch.setattr(sql_page, "answer_apart", made)
    return made


@pytest.fixture(scope="module")
def address(house: House) -> Iterator[str]:
    with serve_ui(house.path) as address:
        yield address


@pytest.mark.parametrize("path", ["/sql", "/sql.csv"])
def test_who_leaves_ends_the_query(address: str, endless: Endless, path: str) -> None:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port)) as browser:
        browser.sendall(f"GET {path}?q=select+1 HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        assert endless.begun.wait(20)
        if path == "/sql":
            page = b""
            while b"Running" not in page:
                page += browser.recv(65_536)
            assert page.startswith(b"HTTP/1.1 200")
            assert not endless.stopped.is_set()
    assert endless.stopped.wait(20)


async def test_a_server_that_ends_does_not_wait_for_a_query() -> None:
    answer = sql_page._Answer(lambda stop: stop.wait(30))
    waiting = asyncio.create_task(answer.wait(None))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await answer.wait(20)
    assert answer.future.result() is True


@pytest.mark.slow
def test_by_keyboard_alone_a_query_is_written_run_and_stopped(
    address: str, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with browser.opened_page() as page:
        page.show_as()
        page.visit(f"{address}/sql")
        shown = "!document.getElementById('words').hidden"
        while page.evaluate("document.activeElement.id") != "q":
            page.press("Tab")
        page.type("select * from run_sco")
        page.wait_for(shown)
        assert "One row per run and metric" in page.evaluate("document.getElementById('word').textContent")
        page.press("Tab")
        page.type(" where me")
        page.wait_for(f"{shown} && document.getElementById('word').textContent.startsWith('metric')")
        page.press("ArrowDown")
        assert page.evaluate("document.getElementById('word').textContent").startswith("mean")
        page.press("Enter")
        page.type(" > 0.5 and 'x.")
        assert page.evaluate(shown) is False, "nothing is offered in a string"
        page.type("' > ''")
        assert page.evaluate("document.getElementById('q').value") == (
            "select * from run_scores where mean > 0.5 and 'x.' > ''"
        )
        page.press("Enter", with_ctrl=True)
        page.wait_for("location.search.includes('run_scores') && document.querySelector('.rows td')")
        page.evaluate("document.querySelector('.to-chart').click()")
        page.wait_for("document.querySelector('.drawn svg')")
        assert page.evaluate("document.getElementById('stop').hidden") is True

        page.visit(f"{address}/sql?q={quote('select a,' + chr(10) + ' b from (select 1 as a)')}")
        page.wait_for("document.activeElement.id === 'q' && document.activeElement.selectionStart === 11")
        assert find_barriers(page) == []

        monkeypatch.setattr(sql_page, "answer_apart", endless := Endless())
        page.send("Page.navigate", url=f"{address}/sql?q=select+1")
        page.wait_for("document.querySelector('.running')?.checkVisibility()")
        page.wait_for("document.getElementById('stop').checkVisibility()")
        page.evaluate("document.getElementById('stop').focus()")
        page.press("Enter")
        page.wait_for("document.querySelector('.running').textContent === 'Stopped.'")
        assert endless.stopped.wait(20)
        assert [problem for problem in page.problems if "status of 400" not in problem] == []
