"""The report's page in a real Chromium: what a reader does with it, by mouse and keyboard, and what never happens."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import duckdb
import polars as pl
import pytest
from browser import Browser, Page, find_barriers, find_clipped
from cli_house import HOSTILE_ID, ROWS, House, store_all
from history_nights import Size, write_nights
from rows import derive_all

from evalhouse.warehouse.metric_files import load_metrics

N_COPIES = 60
ATTACK = "</script><img src=x onerror=\"document.title='owned'\"><svg/onload=\"document.title='owned'\">"
OPENED = "document.querySelector('.opened article')"


@pytest.fixture
def blank(browser: Browser) -> Iterator[Page]:
    """An empty page, which at the end must have had no problem and asked for nothing but files that were opened."""
    page = browser.open_page()
    page.show_as()
    yield page
    page.evaluate("new Promise((done) => setTimeout(done, 50))")  # errors arrive a moment later
    assert page.problems == []
    assert {re.sub(r"^file://.*/|#.*", "", url) for url in page.requests} <= {"report.html", "about:blank"}
    page.send("Page.close")


@pytest.fixture(scope="module")
def report(house: House, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a report, each but once."""

    @cache
    def write_report(*arguments: str) -> Path:
        path = tmp_path_factory.mktemp("report") / "report.html"
        finished = house.place.call("report", *arguments, "-o", str(path))
        assert finished.status == 0, finished.stderr
        return path

    return write_report


@pytest.fixture(scope="module")
def long_run(house: House, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A copy of the house's warehouse whose first run has its samples many times over, and attacks in some of them."""
    url = str(shutil.copy(house.path, tmp_path_factory.mktemp("long") / "copy.duckdb"))
    tables = ("run_samples", "scores", "statements", "classifications", "attributions", "context_verdicts", "outcomes")
    with duckdb.connect(url) as connection:
        for table in tables:
            ordinal = ", ordinal + 4 * n as ordinal" if table == "run_samples" else ""
            connection.execute(f"""
                insert into {table} by name
                select {table}.* replace (sample_id || '#' || n as sample_id{ordinal})
                from {table}, range(1, {N_COPIES}) as copies (n) where run_id = '{house.run_id}'
            """)
        connection.execute(f"""
            insert into samples select samples.* replace (sample_id || '#' || n as sample_id)
            from samples, range(1, {N_COPIES}) as copies (n)
        """)
        connection.execute("update samples set answer = $1, contexts = [$1] where sample_id = 'zh-1#7'", [ATTACK])
        for table, column in (("statements", "text"), ("classifications", "reason"), ("attributions", "reason")):
            connection.execute(f"update {table} set {column} = $1 where sample_id = 'zh-1#7'", [ATTACK])
    store_all(url)
    return url


@pytest.fixture
def page(blank: Page, report: Callable[..., Path], house: House) -> Page:
    """The report of the first run."""
    blank.open(report(house.run_id))
    return blank


@pytest.fixture
def long_page(blank: Page, report: Callable[..., Path], house: House, long_run: str) -> Page:
    """The report of the run of many samples."""
    blank.open(report(house.run_id, "--warehouse", long_run))
    return blank


def list_shown(page: Page) -> list[str]:
    found: list[str] = page.evaluate("[...document.querySelectorAll('#rows .open')].map((one) => one.textContent)")
    return found


def search(page: Page, words: str) -> None:
    """Types into the search field, and waits until the table has followed."""
    before = page.evaluate(
        "document.getElementById('rows').firstChild?.id + document.getElementById('found').textContent"
    )
    page.evaluate("document.getElementById('find-words').value = ''; document.getElementById('find-words').focus()")
    page.send("Input.insertText", text=words)
    page.wait_for(
        "document.getElementById('rows').firstChild?.id + document.getElementById('found').textContent"
        f" !== {json.dumps(before)}"
    )


def choose(page: Page, field: str, value: str) -> None:
    page.evaluate(f"""
        (() => {{
          const field = document.getElementById('find-{field}');
          field.value = {json.dumps(value)};
          for (const name of ['input', 'change']) field.dispatchEvent(new Event(name, {{ bubbles: true }}));
          return new Promise((done) => setTimeout(done, 300));
        }})()
    """)


def open_sample(page: Page, sample_id: str) -> None:
    page.evaluate(f"""
        [...document.querySelectorAll('#rows .open')].find((one) => one.textContent === {json.dumps(sample_id)}).click()
    """)
    page.wait_for(OPENED)


def test_the_worst_come_first_and_headings_sort(page: Page) -> None:
    scores = "[...document.querySelectorAll('#rows tr')].map((row) => row.cells[3].textContent)"
    shown = page.evaluate(scores)
    assert shown == sorted(shown), "the sample without a score, a dash, is last"
    assert shown[-1] == "–"
    page.evaluate("document.querySelector('th[data-sort=score] button').click()")
    assert page.evaluate(scores) == [*sorted(shown[:-1], reverse=True), "–"]
    assert page.evaluate("document.querySelector('th[data-sort=score]').ariaSort") == "descending"
    page.evaluate("document.querySelector('th[data-sort=place] button').click()")
    assert list_shown(page) == ["tide-1", HOSTILE_ID, "zh-1", "silent-1"]


def test_search_looks_into_ids_and_texts(page: Page) -> None:
    for words, found in (
        ("HARBOUR tide", ["tide-1"]),
        ("灯塔", ["zh-1"]),
        ("odd", [HOSTILE_ID]),
        ("tregarthen", ["silent-1"]),
        ("nothing has this", []),
    ):
        search(page, words)
        assert list_shown(page) == found
        assert page.evaluate("document.getElementById('found').textContent").startswith(f"{len(found)} of 4 samples")
        page.evaluate("document.getElementById('show-all').click()")
        assert len(list_shown(page)) == 4


@pytest.mark.slow
def test_filters_by_verdict_metric_and_score(page: Page) -> None:
    index = page.evaluate("store.index")
    for name in ("fp", "fn", "unsupported"):
        choose(page, "verdict", name)
        wanted = {one for one, n in zip(index["ids"], index[name], strict=True) if n}
        assert set(list_shown(page)) == wanted
    choose(page, "verdict", "unscored")
    choose(page, "metric", str(index["metrics"].index("faithfulness")))
    assert list_shown(page) == ["silent-1"]
    choose(page, "verdict", "all")
    choose(page, "low", "0.4")
    scores = index["scores"][index["metrics"].index("faithfulness")]
    wanted = {one for one, score in zip(index["ids"], scores, strict=True) if score is not None and score >= 0.4}
    assert set(list_shown(page)) == wanted
    assert page.evaluate("document.getElementById('score-name').textContent") == "faithfulness"


def test_an_opened_sample_shows_its_statements_in_its_texts(page: Page) -> None:
    open_sample(page, "tide-1")
    marks = page.evaluate("""
        [...document.querySelectorAll('.pair section:first-child .box mark')]
          .map((one) => [one.className, one.textContent])
    """)
    assert marks == [
        ["is-tp", "High tide at Brankmouth is at 6 in the morning"],
        ["is-fp is-unsupported", "The harbour is closed on Mondays"],
    ]
    text = page.evaluate(f"{OPENED}.textContent")
    for wanted in (ROWS[0]["question"], ROWS[0]["contexts"][1], "not useful", "Raw calls", '"harbour": "Brankmouth"'):
        assert wanted in text
    evidence = page.evaluate("document.querySelector('ol .box mark').textContent")
    assert evidence == "high tide at Brankmouth is at 6 in the morning"
    page.evaluate("document.querySelector('#rows .open[aria-expanded=true]').click()")
    assert page.evaluate(OPENED) is None


def test_a_statement_leads_to_its_context_and_its_raw_call(page: Page) -> None:
    open_sample(page, "tide-1")
    page.evaluate("document.querySelector('.statement a[href$=\"-C1\"]').click()")
    page.wait_for("document.activeElement.id === 'sample-0-C1'")
    assert page.evaluate("document.querySelector(':target').id") == "sample-0-C1"
    page.evaluate("document.querySelector('#sample-0-C1 a[href$=\"-A1\"]').click()")
    page.wait_for("document.activeElement.id === 'sample-0-A1'")
    page.evaluate(
        "[...document.querySelectorAll('#sample-0-A1 a')].find((one) => one.textContent === 'classify').click()"
    )
    page.wait_for("document.querySelector('details.call[open]')")
    assert page.evaluate("document.querySelector('details.call[open] b').textContent") == "classify"
    request, reply = page.evaluate(
        "[...document.querySelectorAll('details.call[open] > pre')].map((one) => one.textContent)"
    )
    assert ROWS[0]["question"] in request
    assert {verdict["id"] for verdict in json.loads(reply)["verdicts"]} == {"A1", "A2", "G1"}


def test_reasons_are_reported_on_hover_and_on_focus(page: Page) -> None:
    open_sample(page, "tide-1")
    reason = page.evaluate("(async () => (await store.sample(0)).statements[1].label_reason)()")
    message = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    page.evaluate("document.querySelector('mark.is-fp').focus()")
    page.wait_for(f"({message}).includes('FP')")
    assert f"FP, the ground truth does not support it: {reason}" in page.evaluate(message)
    page.press("Escape")
    assert page.evaluate(message) == ""
    box = page.evaluate("""
        (({ x, y, width, height }) => [x + width / 2, y + height / 2])(
          document.querySelector('mark.is-tp').getBoundingClientRect())
    """)
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    page.wait_for(f"({message}).includes('TP')")
    assert "Supported by C1" in page.evaluate(message)


def test_the_keyboard_is_enough(page: Page) -> None:
    page.press("/", text="/")
    assert page.evaluate("document.activeElement.id") == "find-words"
    page.send("Input.insertText", text="tide-1")
    page.wait_for("document.querySelectorAll('#rows .open').length === 1")
    for _ in range(20):
        page.press("Tab")
        if page.evaluate("document.activeElement.className") == "open":
            break
    page.press("Enter")
    page.wait_for(OPENED)
    page.press("Tab")
    assert page.evaluate("document.activeElement.textContent").endswith("more scores")
    page.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "MARK"


def test_many_samples_come_in_pages(long_page: Page) -> None:
    assert (
        long_page.evaluate("document.getElementById('found').textContent")
        == f"{4 * N_COPIES} of {4 * N_COPIES} samples, 1 to 25 shown"
    )
    first = list_shown(long_page)
    assert long_page.evaluate("document.getElementById('before').disabled")
    long_page.evaluate("document.getElementById('next').click()")
    second = list_shown(long_page)
    assert len(first) == len(second) == 25
    assert not set(first) & set(second)
    assert long_page.evaluate("store.unpacked.size") == 0, "no sample is unpacked before one is opened"
    search(long_page, f"tide-1#{N_COPIES - 1}")
    open_sample(long_page, f"tide-1#{N_COPIES - 1}")
    assert long_page.evaluate("store.unpacked.size") == 1
    assert long_page.evaluate("document.querySelector('.pair mark').textContent").startswith("High tide")


def test_a_link_opens_a_sample_wherever_it_is(
    blank: Page, report: Callable[..., Path], house: House, long_run: str
) -> None:
    place = 4 * (N_COPIES - 1)
    blank.open(report(house.run_id, "--warehouse", long_run), f"#sample-{place}-C1")
    blank.wait_for(f"document.activeElement.id === 'sample-{place}-C1'")
    assert blank.evaluate(f"document.querySelector('#sample-{place} .open').textContent") == f"tide-1#{N_COPIES - 1}"
    blank.evaluate("location.hash = '#sample-99999'; location.hash = '#sample-x'; location.hash = '#%E0'")


def read_address(page: Page, wanted: str) -> str:
    """The fragment, once it says this: it follows a moment after what is chosen."""
    page.wait_for(f"decodeURIComponent(location.hash).includes({json.dumps(wanted)})")
    fragment: str = page.evaluate("location.hash")
    return fragment


def test_a_cause_leads_to_its_samples(page: Page) -> None:
    index = page.evaluate("store.index")
    links = page.evaluate(
        "[...document.querySelectorAll('#causes ~ table a')].map((one) => [one.hash, one.textContent])"
    )
    assert len(links) == len(set(filter(None, index["causes"])))
    for place, (fragment, n) in enumerate(links):
        page.evaluate(f"document.querySelectorAll('#causes ~ table a')[{place}].click()")
        page.wait_for(f"document.getElementById('find-cause').value === '{fragment.split('=')[1]}'")
        wanted = {
            one for one, cause in zip(index["ids"], index["causes"], strict=True) if fragment.endswith(f"={cause}")
        }
        assert set(list_shown(page)) == wanted
        assert len(wanted) == int(n)
    assert page.evaluate("document.getElementById('samples-title').getBoundingClientRect().top") < 900


@pytest.mark.slow
def test_what_is_shown_is_in_the_address_and_comes_back_from_it(
    blank: Page, browser: Browser, report: Callable[..., Path], house: House, long_run: str
) -> None:
    path = report(house.run_id, "--warehouse", long_run)
    blank.open(path)
    assert blank.evaluate("location.hash") == ""
    choose(blank, "metric", str(blank.evaluate("store.index.metrics.indexOf('hallucination')")))
    choose(blank, "verdict", "fp")
    choose(blank, "low", "0.1")
    search(blank, "tide-1#")
    blank.evaluate("document.querySelector('th[data-sort=sample] button').click()")
    blank.evaluate("document.getElementById('next').click()")
    open_sample(blank, list_shown(blank)[3])
    shown = list_shown(blank)
    fragment = read_address(blank, f"open={shown[3]}")
    other = browser.open_page()
    other.open(path, fragment)
    other.wait_for(OPENED)
    assert list_shown(other) == shown
    assert other.evaluate("document.querySelector('.open[aria-expanded=true]').textContent") == shown[3]
    assert other.evaluate("document.getElementById('find-metric').selectedOptions[0].text") == "hallucination"
    assert other.evaluate("location.hash") == fragment
    other.evaluate("document.getElementById('show-all').click()")
    other.wait_for("location.hash === ''")
    assert other.problems == []
    other.send("Page.close")


def test_an_address_that_names_what_is_not_there_shows_what_is(
    blank: Page, report: Callable[..., Path], house: House
) -> None:
    for fragment in (
        "cause=no-such&metric=none&sort=__proto__&page=99&open=stranger&metadata.x=1",
        "page=-3&descending=perhaps&low=much",
        "%E0&=&words",
    ):
        blank.open(report(house.run_id), f"#samples?{fragment}")
        assert len(list_shown(blank)) == 4


def test_samples_are_found_by_their_metadata(
    blank: Page, report: Callable[..., Path], house: House, tmp_path: Path
) -> None:
    url = str(shutil.copy(house.path, tmp_path / "copy.duckdb"))
    with duckdb.connect(url) as connection:
        for place, topic in ((1, "rain"), (2, ATTACK), (3, "rain")):
            metadata = json.dumps({"topic": topic, "number": place, "nested": {"x": 1}, "same": "all"})
            connection.execute("update run_samples set metadata = $1 where ordinal = $2", [metadata, place])
    blank.open(report(house.run_id, "--warehouse", url))
    keys = blank.evaluate("[...document.querySelectorAll('#metadata select')].map((one) => one.dataset.key)")
    assert keys == ["topic", "same"], "no key that has as many values as there are samples, and none that is nested"
    choose(blank, "metadata-0", "rain")
    assert sorted(list_shown(blank)) == ["tide-1", "zh-1"]
    assert read_address(blank, "metadata.topic=rain").startswith("#samples?")
    choose(blank, "metadata-0", ATTACK)
    assert list_shown(blank) == [HOSTILE_ID]
    assert ATTACK in blank.evaluate("document.querySelector('#rows .label').textContent")


def test_keys_go_from_sample_to_sample_over_the_pages(long_page: Page) -> None:
    wanted = long_page.evaluate("view.order.slice(0, 27).map((place) => store.index.ids[place])")
    opened = "[...document.querySelectorAll('.open[aria-expanded=true]')].map((one) => one.textContent)"
    for sample_id in wanted:
        long_page.press("j", text="j")
        long_page.wait_for(f"({opened})[0] === {json.dumps(sample_id)} && {OPENED}")
        assert long_page.evaluate(opened) == [sample_id], "what was open is closed"
    long_page.press("k", text="k")
    long_page.wait_for(f"({opened})[0] === {json.dumps(wanted[-2])}")
    long_page.evaluate("document.querySelector('.opened .pager button:last-child').click()")
    long_page.wait_for(f"({opened})[0] === {json.dumps(wanted[-1])}")
    long_page.evaluate("control('words').focus()")
    long_page.press("j", text="j")
    assert long_page.evaluate("control('words').value") == "j", "a letter that is typed is a letter"


def test_the_table_is_saved_as_it_is_shown(
    blank: Page, report: Callable[..., Path], house: House, tmp_path: Path
) -> None:
    blank.open(report("latest", "--against", house.run_id))
    blank.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    index = blank.evaluate("store.index")
    choose(blank, "verdict", "fn")
    blank.evaluate("document.getElementById('save').click()")
    deadline = time.monotonic() + 20
    while not (files := list(tmp_path.glob("samples-*.csv"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    rows = pl.read_csv(files[0], infer_schema=False)
    assert rows["sample_id"].to_list() == list_shown(blank)
    assert rows.columns[:4] == ["sample_id", "question", "answer", "ground_truth"]
    assert {*index["metrics"], *(f"base.{name}" for name in index["metrics"])} <= set(rows.columns)
    for row in rows.iter_rows(named=True):
        place = index["ids"].index(row["sample_id"])
        assert row["question"] == index["questions"][place]
        score = index["scores"][index["metrics"].index("factual_f1")][place]
        assert (None if row["factual_f1"] is None else float(row["factual_f1"])) == score


def test_no_text_is_a_formula_in_a_spreadsheet(page: Page) -> None:
    cells = {
        "=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@x": "'@x", "\tx": "'\tx", 'a "b"': '"a ""b"""', "a,b": '"a,b"',
        "a\nb": '"a\nb"', '=a,"b"': '"\'=a,""b"""', "plain": "plain", None: "", -0.5: "-0.5",
    }  # fmt: skip
    assert page.evaluate(f"{json.dumps(list(cells))}.map(writeCell)") == list(cells.values())


def test_what_a_metric_means_is_reported_where_its_name_is(page: Page) -> None:
    page.evaluate("""
        (() => {
          const name = document.querySelector('h3 .metric');
          name.scrollIntoView();
          name.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }));
        })()
    """)
    message = page.evaluate("document.getElementById('tip').textContent")
    assert message == load_metrics()[page.evaluate("document.querySelector('h3 .metric').textContent")].meaning
    page.show_as(width=390)
    meanings = "[...document.querySelectorAll('section > .scores .meaning')]"
    shown = page.evaluate(f"{meanings}.every((one) => one.checkVisibility())")
    assert shown, "a phone has no pointer to rest on a name"


def test_the_contents_lead_to_every_section(blank: Page, report: Callable[..., Path], house: House) -> None:
    blank.open(report("latest", "--against", house.run_id))
    headings = blank.evaluate("[...document.querySelectorAll('main h2')].map((one) => one.id)")
    assert blank.evaluate("[...document.querySelectorAll('.contents a')].map((one) => one.hash.slice(1))") == headings


def test_attacks_in_texts_stay_texts(long_page: Page) -> None:
    title = long_page.evaluate("document.title")
    search(long_page, "zh-1#7 onerror")
    open_sample(long_page, "zh-1#7")
    assert ATTACK in long_page.evaluate(f"{OPENED}.textContent")
    long_page.evaluate("document.querySelector('.pair mark').focus()")
    assert ATTACK in long_page.evaluate("document.getElementById('tip').textContent")
    assert long_page.evaluate(f"{OPENED}.querySelectorAll('img, svg, script').length") == 0
    assert long_page.evaluate("document.title") == title


WIDTHS = (390, 1280, *(pytest.param(width, marks=pytest.mark.slow) for width in (320, 961)))


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nights of many metrics and causes, whose names are of long words."""
    path = tmp_path_factory.mktemp("nights") / "nights.duckdb"
    write_nights(path, Size(nights=4, samples=30))
    word = "Mustereintragsverzeichnis" * 5
    with duckdb.connect(str(path)) as connection:
        for column in ("label", "dataset", "judge", "problem", "kb_version"):
            connection.execute(f"update runs set {column} = $1", [word])
        connection.execute("update scores set metric = 'a_metric_of_my_own_with_a_long_name' where metric = 'mrr'")
        tables = """select table_name from duckdb_tables() join duckdb_columns() using (table_name)
                    where column_name = 'sample_id'"""
        for (table,) in connection.execute(tables).fetchall():
            connection.execute(f"update {table} set sample_id = sample_id || $1 where sample_id like '%7'", [word])
        derive_all(connection)
    return str(path)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("against", [(), ("--against", "previous")])
def test_nothing_is_clipped(
    blank: Page, report: Callable[..., Path], nights: str, against: tuple[str, ...], width: int
) -> None:
    blank.show_as(width=width)
    blank.open(report("latest", *against, "--warehouse", nights))
    blank.evaluate("charts.drawAll(); document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    blank.evaluate("toggle(view.order[0], true)")
    assert find_clipped(blank) == []


def test_in_the_dark_texts_can_be_read_by_all(blank: Page, report: Callable[..., Path], house: House) -> None:
    blank.show_as(dark=True)
    blank.open(report(house.run_id))
    open_sample(blank, "tide-1")
    assert find_barriers(blank) == []
    background = blank.evaluate("getComputedStyle(document.body).backgroundColor")
    assert int(re.findall(r"\d+", background)[0]) < 80


def test_on_paper_controls_are_hidden(blank: Page, report: Callable[..., Path], house: House) -> None:
    blank.show_as(media="print", dark=True)
    blank.open(report(house.run_id))
    open_sample(blank, "tide-1")
    shown = "(name) => document.querySelector(name).checkVisibility()"
    assert not blank.evaluate(f"['.controls', '.pager', '.skip'].some({shown})")
    assert blank.evaluate(f"['.scores', '.charts', '.samples', '.opened'].every({shown})")
    assert blank.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
