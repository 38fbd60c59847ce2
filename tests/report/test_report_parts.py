"""What a report is made of, piece by piece: places of statements in texts, and charts."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from evalhouse.flows.report.charts import N_BINS, draw_distribution, draw_history, draw_interval
from evalhouse.flows.report.samples import find_span

BRIDGE = "The bridge at Vellmar, which opened in 1931, is 412 metres long. It carries trams."


def found_in(statement: str, text: str) -> str | None:
    span = find_span(statement, text)
    return None if span is None else text[span.start : span.end]


@pytest.mark.parametrize(
    ("statement", "text", "found"),
    [
        ("It carries trams.", BRIDGE, "It carries trams"),
        ("it carries TRAMS", BRIDGE, "It carries trams"),
        ("灯塔高四十二米。", "这座灯塔高四十二米，位于海湾的北端。", "灯塔高四十二米"),
        ("The lamp is green", "🌊🌊 The lamp is green. 🌊", "The lamp is green"),
        ("The lamp is green", "İİİ the LAMP is green", None),
        ("Gulls nest on the pier.", BRIDGE, None),
        ("...", BRIDGE, None),
        ("It carries trams.", "", None),
    ],
)
def test_a_place_is_found_by_the_words(statement: str, text: str, found: str | None) -> None:
    if "İ" in text:
        assert found_in(statement, text) is not None, "letters that grow when made small move nothing"
        assert found_in(statement, text) in text
    else:
        assert found_in(statement, text) == found


def test_a_paraphrase_is_found_where_it_is_most_alike() -> None:
    found = found_in("The Vellmar bridge opened in 1931.", BRIDGE)
    assert found is not None
    assert "opened in 1931" in found
    assert not re.match(r"\w", BRIDGE[BRIDGE.index(found) + len(found) :]), "whole words"


def test_a_text_that_is_part_of_the_statement_is_marked_whole() -> None:
    assert found_in("The bridge at Vellmar is 412 metres long.", "412 metres long") == "412 metres long"


def test_texts_without_end_take_no_time() -> None:
    assert found_in("The lamp is green", "nothing here " * 5000 + "THE lamp is green") == "THE lamp is green"
    assert found_in("The lamp was greenish", "nothing here " * 5000) is None


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


def parse(chart: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(str(chart).replace('xmlns="http://www.w3.org/2000/svg"', ""))


def titles(chart: Markup) -> list[str]:
    return [title.text or "" for title in parse(chart).iter("title")]


def lines(chart: Markup) -> list[str]:
    return [path.get("d", "") for path in parse(chart).iter("path") if path.get("class") == "line"]


def test_a_history_tells_of_each_run() -> None:
    chart = draw_history(history(0.5, 0.6, 0.55))
    assert titles(chart) == [
        f"run-{n}: {mean}, n 9, judged by lexical" for n, mean in enumerate(("0.500", "0.600", "0.550"))
    ]
    (line,) = lines(chart)
    heights = [float(pair.split()[-1]) for pair in re.findall(r"[\d.]+ [\d.]+", line)]
    assert heights[0] > heights[2] > heights[1], "SVG counts from the top"
    texts = [text.text for text in parse(chart).iter("text") if text.text]
    assert texts == ["0", "0.5", "1", "2026-01-01", "2026-01-03"]


def test_a_line_ends_where_another_judge_begins() -> None:
    assert len(lines(draw_history(history(0.5, 0.6, 0.7, 0.8, other_from=2)))) == 2


def test_a_long_history_is_a_line_without_dots() -> None:
    chart = draw_history(history(*[0.5 + n / 1000 for n in range(200)]))
    assert titles(chart) == []
    assert len(lines(chart)) == 1
    assert "200 runs, from run-0 to run-199" in str(parse(chart).get("aria-label"))


def test_runs_of_one_day_are_told_by_the_hour() -> None:
    rows = [
        row | {"started_at": datetime(2026, 1, 1, hour)} for row, hour in zip(history(0.5, 0.6), (3, 15), strict=True)
    ]
    assert [text.text for text in parse(draw_history(rows)).iter("text")][-2:] == ["03:00", "15:00"]


def test_a_distribution_counts_every_score_once() -> None:
    values = [0.0, 0.04, 0.05, 0.5, 0.999, 1.0, 1.0]
    told = titles(draw_distribution(values))
    assert told[0] == "2 samples from 0.00 to 0.05"
    assert told[-1] == "3 samples from 0.95 to 1.00"
    assert sum(int(text.split()[0]) for text in told) == len(values)


def test_scores_off_the_usual_scale_stretch_it() -> None:
    told = titles(draw_distribution([-2.0, 0.0, 8.0]))
    assert told[0].endswith("from -2.00 to -1.50")
    assert told[-1].endswith("to 8.00")
    assert N_BINS * 0.5 == 10
    assert len(lines(draw_history(history(3.0, 5.0)))) == 1


def test_an_interval_has_its_mean_and_the_other_run_s() -> None:
    row = history(0.5)[0]
    assert titles(draw_interval(row, 0.7)) == ["mean 0.500, 95 % interval 0.400 to 0.600", "base 0.700"]
    assert titles(draw_interval(row | {"ci_low": None, "ci_high": None}, None)) == ["mean 0.500"]


def test_a_chart_is_drawing_alone() -> None:
    attack = "</title><script>alert(1)</script> \x1b[31m"
    for chart in (
        draw_history(history(0.5, 0.6, judge=attack)),
        draw_distribution([0.5]),
        draw_interval(history(0.5)[0], 0.1),
    ):
        tags = {element.tag for element in parse(chart).iter()}
        assert tags <= {"svg", "g", "rect", "path", "text", "circle", "title"}
        assert not any("style" in element.attrib or "id" in element.attrib for element in parse(chart).iter())
    assert "&lt;/title&gt;&lt;script&gt;" in draw_history(history(0.5, 0.6, judge=attack))
