"""Places of a statement in a text of a report."""

from __future__ import annotations

import re

import pytest

from evalhouse.flows.report.samples import find_span

BRIDGE = "The bridge at Vellmar, which opened in 1931, is 412 metres long. It carries trams."


def found_in(statement: str, text: str) -> str | None:
    span = find_span(statement, text)
    return None if span is None else text[span.start : span.end]


@pytest.mark.parametrize(("statement", "text", "found"), [
    ("It carries trams.", BRIDGE, "It carries trams"),
    ("it carries TRAMS", BRIDGE, "It carries trams"),
    ("灯塔高四十二米。", "这座灯塔高四十二米，位于海湾的北端。", "灯塔高四十二米"),
    ("The lamp is green", "🌊🌊 The lamp is green. 🌊", "The lamp is green"),
    ("The lamp is green", "İİİ the LAMP is green", None),
    ("Gulls nest on the pier.", BRIDGE, None),
    ("...", BRIDGE, None),
    ("It carries trams.", "", None),
])  # fmt: skip
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
