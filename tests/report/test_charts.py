"""Charts: what they are drawn from, and how they look in a real Chromium under the policy of the pages."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page, find_barriers, find_clipped

from evalhouse.flows.report import charts
from evalhouse.flows.report.charts import (
    N_BINS,
    Chart,
    Mark,
    draw_amounts,
    draw_distribution,
    draw_interval,
    draw_parts,
    draw_result,
    draw_shares,
    draw_spark,
    draw_trend,
)
from evalhouse.tasks.comparing.changes import Part

ASSETS = Path(charts.__file__).with_name("assets")
ATTACK = "</script><img src=x onerror=\"document.title='owned'\"> \x1b[31m"


def history(*means: float | None, other_from: int | None = None, **columns: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    return [
        {
            "run_id": f"run-{number}", "started_at": datetime(2026, 1, 1) + timedelta(days=number), "mean": mean,
            "ci_low": None if mean is None else mean - 0.1, "ci_high": None if mean is None else mean + 0.1,
            "n_scored": 9, "judge": "lexical", "same_yardstick": None if number == 0 else number != other_from,
            **columns,
        }
        for number, mean in enumerate(means)
    ]  # fmt: skip


def read(chart: Chart) -> dict[str, Any]:
    """Return the data of a chart as the script reads them from the page."""
    (block,) = re.findall(r"<script type=\"application/json\">(.*?)</script>", chart.__html__())
    found: dict[str, Any] = json.loads(block)
    return found


def test_a_history_has_each_run_and_a_line_for_each_yardstick() -> None:
    data = read(draw_trend(history(0.5, 0.6, 0.7, 0.8, other_from=2), "Mean of mrr"))
    assert data["runs"] == [f"run-{n}" for n in range(4)]
    assert data["mean"] == [0.5, 0.6, 0.7, 0.8]
    assert data["lines"] == [0, 0, 1, 1]
    assert data["y"] == [0, 1]
    assert data["label"] == "Mean of mrr over 4 runs, from run-0 to run-3"
    assert read(draw_trend(history(3.0, 5.0), "Mean of mrr"))["y"] == [0, 5.1], "scores off the usual scale stretch it"


def test_runs_of_one_day_are_named_by_the_hour() -> None:
    rows = [
        row | {"started_at": datetime(2026, 1, 1, hour)} for row, hour in zip(history(0.5, 0.6), (3, 15), strict=True)
    ]
    assert read(draw_trend(rows, "Mean of mrr"))["ticks"] == [[0, "03:00"], [1, "15:00"]]


def test_points_have_their_date_label_and_gate_and_failed_nights_are_marked() -> None:
    rows = [row | {"started_at": datetime(2026, 1, 1 + day, 3)} for day, row in enumerate(history(*[0.5] * 9))]
    rows[4] |= {"label": "v2", "gate": "failed"}
    data = read(draw_trend(rows, "Mean of mrr"))
    assert [text for _, text in data["ticks"]] == ["2026-01-01", "01-03", "01-05", "01-07", "2026-01-09"]
    assert data["known"][4] == "2026-01-05 03:00 · v2 · gate failed"
    assert data["failed"] == [place == 4 for place in range(9)]


def test_a_distribution_counts_every_score_once() -> None:
    values = [0.0, 0.04, 0.05, 0.5, 0.999, 1.0, 1.0]
    data = read(draw_distribution(values))
    assert (data["low"], data["high"], data["counts"][0], data["counts"][-1]) == (0, 1, 2, 3)
    assert (len(data["counts"]), sum(data["counts"])) == (N_BINS, len(values))
    data = read(draw_distribution([-2.0, 0.0, 8.0]))
    assert (data["low"], data["high"], data["counts"][0], data["counts"][-1]) == (-2, 8, 1, 1)


def test_an_interval_states_its_mean_and_the_other_run_s() -> None:
    row = history(0.5)[0]
    assert draw_interval(row, 0.7).label == "mean 0.500, 95 % interval 0.400 to 0.600, base 0.700"
    assert draw_interval(row | {"ci_low": None, "ci_high": None}, None).label == "mean 0.500"


def test_a_text_in_a_chart_neither_ends_its_element_nor_hides() -> None:
    chart = draw_trend(history(0.5, 0.6, judge=ATTACK), ATTACK, marks=[Mark(place=1, text=ATTACK, is_break=True)])
    written = chart.__html__()
    assert re.findall(r"<(\w+)", written) == ["div", "script", "p"]
    assert "\x1b" not in written
    assert read(chart)["judges"] == [ATTACK.replace("\x1b", "\\x1b")]


def test_the_library_is_the_one_its_head_names() -> None:
    head, code = (ASSETS / "plot.js").read_text(encoding="utf-8").split("*/\n", 1)
    (digest,) = re.findall(r"sha256 of what follows this comment: (\w+)", head)
    assert hashlib.sha256(code.encode()).hexdigest() == digest
    assert "Permission to use, copy, modify" in head


# In Chromium

N_DAYS = 60
PARTS = [Part(name=name, n=9, n_moved=3, value=value) for name, value in (("answer+contexts", 0.04), ("noise", -0.02))]


def list_charts() -> dict[str, Chart]:
    """A chart of every kind, each with what is hardest to draw."""
    few = history(0.5, 0.6, None, 0.7, 0.8, other_from=3)
    many = history(*[0.5 + n / 400 for n in range(N_DAYS)], other_from=30)
    marks = [Mark(place=3, text="judge: a → b", is_break=True), Mark(place=1, text="another suite", is_break=False)]
    days = [datetime(2026, 1, 1) + timedelta(days=n) for n in range(30)]
    over_time = {"day": days, "cost": [n / 7 for n in range(30)], "samples": [3000 - n for n in range(30)]}
    by_name = {"day": days[:10] * 2, "metric": ["a"] * 10 + ["b"] * 10, "mean": [n / 20 for n in range(20)]}
    texts = {"metric": [f"a metric with quite a long name {n}" for n in range(12)], "mean": [*range(-2, 10)]}
    return {
        "trend-few": draw_trend(few, "faithfulness", marks=marks, is_zoomed=True, link="#run/"),
        "trend-many": draw_trend(many, "mrr", marks=marks, is_zoomed=True),
        "history": draw_trend(history(0.2), "Mean of mrr"),
        "distribution": draw_distribution([0.0, 0.04, 0.5, 1.0]),
        "interval": draw_interval(few[0], 0.7),
        "amounts": draw_amounts(few, [1234567, 2, None, 0, 9], what="Requests", form="{:,.0f}"),
        "shares": draw_shares(few, {"fine": [0.5, 0.2, 1, 0, 1], "not in the contexts": [0.5, 0.8, 0, 1, 0]}),
        "parts": draw_parts(PARTS, sign=1),
        "spark": draw_spark(many),
        "result-time": draw_result(over_time, over="time"),
        "result-by": draw_result(by_name, over="time", by="metric"),
        "result-text": draw_result(texts, over="text"),
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of charts under the policy that pages have, with one far below what is seen first."""
    style = (ASSETS / "report.css").read_text(encoding="utf-8") + "#far { margin-top: 5000px; }"
    ready = "document.documentElement.dataset.ready = 'yes';"
    script = "".join((ASSETS / name).read_text(encoding="utf-8") for name in ("plot.js", "charts.js")) + ready
    script_hash, style_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)
    )
    policy = (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    figures = "".join(f'<figure class="chart" id="{name}">{chart.__html__()}</figure>'
                      for name, chart in list_charts().items())  # fmt: skip
    far = f'<figure class="chart" id="far">{draw_trend(history(0.5, 0.6), "Mean of mrr").__html__()}</figure>'
    path = tmp_path_factory.mktemp("charts") / "charts.html"
    path.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Charts</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f'<body><main><h1>Charts</h1><div class="charts">{figures}</div>{far}</main>'
        f"<script>{script}</script></body></html>",
        encoding="utf-8",
    )
    return path


@pytest.fixture
def page(browser: Browser, path: Path) -> Iterator[Page]:
    """The page, in which nothing may have been refused by its policy."""
    page = browser.open_page()
    page.show_as()
    page.open(path)
    page.wait_for("document.querySelector('#trend-few .plot')")
    yield page
    assert page.problems == []
    page.send("Page.close")


def count(page: Page, selector: str) -> int:
    n: int = page.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")
    return n


def test_every_value_is_a_mark(page: Page) -> None:
    page.evaluate("charts.drawAll()")
    for selector, n in {
        "#trend-few .dot circle": 4,
        "#trend-few .ci line": 4,
        "#trend-few .line path": 2,
        "#trend-few .mark-break line": 1,
        "#trend-few .mark-tick line": 1,
        "#trend-few .band": 0,
        "#trend-many .band path": 2,
        "#trend-many .dot": 0,
        "#history .dot circle": 1,
        "#distribution .rect rect": 3,
        "#interval .dot circle": 1,
        "#interval .base circle": 1,
        "#amounts .rect rect": 4,
        "#shares .share rect": 7,
        "#parts .part-up rect": 1,
        "#parts .part-down rect": 1,
        "#parts .part-all rect": 1,
        "#spark .line path": 2,
        "#result-time .line path": 2,
        "#result-by .line path": 2,
        "#result-text .rect rect": 12,
    }.items():
        assert (selector, count(page, selector)) == (selector, n)


def test_nothing_keeps_people_from_using_them(page: Page) -> None:
    page.evaluate("charts.drawAll(); document.querySelectorAll('.numbers').forEach((one) => { one.open = true; })")
    page.wait_for("document.querySelectorAll('.numbers table').length === document.querySelectorAll('.numbers').length")
    assert find_barriers(page) == []
    page.show_as(width=390, dark=True)
    assert find_barriers(page) + find_clipped(page) == []


def test_marks_stand_where_their_values_say(page: Page) -> None:
    page.evaluate("charts.drawAll()")
    places = """(name) => [...document.querySelectorAll(name)].map((one) => {
      const box = one.getBoundingClientRect();
      return [box.left, box.right, box.top, box.bottom];
    })"""
    dots = page.evaluate(f"({places})('#trend-few .dot circle')")
    x, y = [(left + right) / 2 for left, right, *_ in dots], [(top + bottom) / 2 for *_, top, bottom in dots]
    assert (x[2] - x[0]) / (x[1] - x[0]) == pytest.approx(3, abs=0.02), "a run without a mean keeps its place"
    assert y[0] > y[1] > y[2] > y[3]
    assert (y[0] - y[3]) / (y[0] - y[1]) == pytest.approx(3, abs=0.05)
    whiskers = page.evaluate(f"({places})('#trend-few .ci line')")
    assert all(top < at < bottom for at, (*_, top, bottom) in zip(y, whiskers, strict=True))
    ((_, end, *_),), ((begin, up, *_),) = (
        page.evaluate(f"({places})('#parts .part-{way} rect')") for way in ("down", "all")
    )
    ((start, top, *_),) = page.evaluate(f"({places})('#parts .part-up rect')")
    assert (start, top) == pytest.approx((begin, end), abs=0.5), "each begins where the one above ends"
    assert (top - start) / (up - begin) == pytest.approx(2, abs=0.02)


def test_a_chart_is_drawn_when_it_comes_into_view_and_for_paper(page: Page, path: Path) -> None:
    assert count(page, "#far .plot") == 0
    assert page.evaluate("getComputedStyle(document.querySelector('#far .undrawn')).visibility") == "hidden"
    page.evaluate("document.getElementById('far').scrollIntoView()")
    page.wait_for("document.querySelector('#far .plot')")
    page.open(path)
    assert count(page, "#far .plot") == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert count(page, ".plot") == count(page, ".drawing")


def test_without_a_script_a_chart_s_place_states_what_it_would_show(page: Page, path: Path) -> None:
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.send("Page.navigate", url=path.as_uri())
    page.wait_for("document.readyState === 'complete' && !document.documentElement.dataset.ready")
    assert count(page, ".plot") == 0
    shown = page.evaluate("document.querySelector('#distribution .undrawn').innerText")
    assert shown.endswith("Distribution of 4 samples by score from 0 to 1")


def test_a_chart_that_cannot_be_drawn_states_what_it_would_show_and_the_others_are_there(page: Page) -> None:
    page.evaluate("""
        document.querySelector('#far script').remove();
        const far = document.getElementById('far');
        far.parentElement.prepend(far);
        charts.drawAll();
    """)
    shown = "document.querySelector('#{} .undrawn')?.checkVisibility({{ visibilityProperty: true }})"
    assert page.evaluate(shown.format("far")) is True
    assert count(page, ".plot") == count(page, ".drawing") - 1, "all but one"
    assert page.problems.pop().find("TypeError") >= 0


def read_derived(page: Page) -> str:
    """Return the text of the tooltip, empty when it is hidden."""
    text: str = page.evaluate("document.querySelector('.tip').hidden ? '' : document.querySelector('.tip').textContent")
    return text


def test_the_mouse_and_the_keyboard_say_what_a_point_is_and_lead_to_its_run(page: Page) -> None:
    x, y = page.evaluate("""
        (({ left, top }) => [left + 3, top + 9])(
          document.querySelector('#trend-few .dot circle').getBoundingClientRect())
    """)
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert read_derived(page) == "run-0\n2026-01-01 00:00\n0.500 (0.400 to 0.600), n 9\njudged by lexical"
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert read_derived(page) == ""
    page.evaluate("document.querySelector('#trend-few .plot').focus()")
    for key in ("End", "ArrowLeft"):
        page.press(key)
    wanted = "run-3\n2026-01-04 00:00\n0.700 (0.600 to 0.800), n 9\njudged by lexical\njudge: a → b"
    assert read_derived(page) == wanted
    assert page.evaluate("document.querySelector('[role=status]').textContent") == wanted
    page.press("Enter")
    assert page.evaluate("location.hash") == "#run/run-3"
    page.press("Escape")
    assert read_derived(page) == ""
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    for kind in ("mousePressed", "mouseReleased"):
        page.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    assert page.evaluate("location.hash") == "#run/run-0"


def test_a_finger_s_first_touch_states_what_a_point_is_and_the_second_goes_there(page: Page) -> None:
    x, y = page.evaluate("""
        (({ left, top }) => [left + 3, top + 3])(
          document.querySelector('#trend-few .dot circle').getBoundingClientRect())
    """)
    page.evaluate("location.hash = ''")
    addresses = []
    for _ in range(2):
        page.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        page.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        page.evaluate("new Promise((done) => setTimeout(done, 50))")
        assert read_derived(page).startswith("run-0\n")
        addresses.append(page.evaluate("location.hash"))
    assert addresses == ["", "#run/run-0"]


def test_the_numbers_are_in_a_table_when_asked_for(page: Page) -> None:
    assert count(page, ".numbers table") == 0
    page.evaluate("document.querySelector('#trend-few .numbers').open = true")
    page.wait_for("document.querySelector('#trend-few .numbers table')")
    cells = page.evaluate("""
        [...document.querySelectorAll('#trend-few .numbers tr')]
          .map((row) => [...row.cells].map((one) => one.textContent))
    """)
    assert cells[:2] == [
        ["run", "mean", "95 % interval", "n", "judge"],
        ["run-0", "0.500", "0.400 to 0.600", "9", "lexical"],
    ]
    assert len(cells) == 5
    assert page.evaluate("document.querySelector('#trend-few .numbers a').hash") == "#run/run-0"
