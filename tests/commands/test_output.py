"""Printed output: numbers as people read them, tables at every width, and texts that cannot control a terminal."""

from __future__ import annotations

import io
import json
import sys
from datetime import date, datetime
from decimal import Decimal
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from cli_house import HOSTILE, MARKUP
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rows import fill, open_rows

from evalhouse.flows.results.output import (
    Table,
    explain_support,
    make_table,
    name_support,
    print_json,
    print_line,
    print_notice,
    print_scores,
    print_table,
    print_text,
    write_count,
    write_dollars,
    write_interval,
    write_json,
    write_shared,
    write_value,
)
from evalhouse.flows.results.progress import describe_progress, shorten_number
from evalhouse.flows.results.run_facts import print_responses
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.pipeline.live_run import Progress
from evalhouse.warehouse.messages import clean_text, shorten
from evalhouse.warehouse.queries import read_query


def draw(table: Table, width: int) -> list[str]:
    console = Console(file=StringIO(), width=width, markup=False, emoji=False, highlight=False)
    console.print(table)
    written = console.file
    assert isinstance(written, StringIO)
    return written.getvalue().splitlines()


WRITTEN = (
    (write_value, None, "–"), (write_value, 0.12345, "0.123"), (write_value, 7, "7"), (write_value, True, "true"),
    (write_value, False, "false"), (write_value, datetime(2025, 3, 4, 5, 6, 7, 890), "2025-03-04 05:06:07"),
    (write_value, ("a", None, 0.5), "a, –, 0.500"), (write_value, [], ""),
    (write_value, "[bold]x[/bold]", "[bold]x[/bold]"),
    (write_dollars, None, "unknown"), (write_dollars, 0.0, "$0.00"), (write_dollars, 0.00042, "$0.0004"),
    (write_dollars, 0.5, "$0.5000"), (write_dollars, 12.345, "$12.35"), (write_dollars, 1234.5, "$1,234.50"),
    (shorten_number, 0, "0"), (shorten_number, 9999, "9999"), (shorten_number, 50_123, "50.1k"),
    (shorten_number, 999_949, "999.9k"), (shorten_number, 95_000_000, "95.0M"),
    (shorten, "a\n b\t c", "a b c"), (shorten, None, ""),
)  # fmt: skip


def test_values_are_written_for_people() -> None:
    for write, value, written in WRITTEN:
        assert write(value) == written, (write, value)
    assert write_interval(0.1, 0.25) == "0.100 to 0.250"
    assert write_interval(None, 0.25) == "–"
    assert shorten("x" * 100, 10) == "x" * 9 + "…"
    for n, counted in ((None, "no labels"), (0, "0 labels"), (1, "1 label"), (1200, "1,200 labels")):
        assert write_count(n, "label") == counted


def test_control_characters_are_written_out() -> None:
    cleaned = clean_text(HOSTILE)
    assert cleaned.isprintable()
    assert r"\x1b[31mred\x1b[0m" in cleaned
    assert r"\x07" in cleaned
    assert r"\x9b1m" in cleaned
    assert r"\u202e" in cleaned


@given(st.text())
def test_no_text_brings_a_control_character_through(text: str) -> None:
    cleaned = clean_text(text)
    assert not any(ord(character) < 32 and character not in "\n\t" for character in cleaned)
    assert not any(127 <= ord(character) < 160 for character in cleaned)


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "Z"], exclude_characters="\u2028\u2029")))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert clean_text(text) == text


def test_a_table_shows_markup_as_text_and_numbers_to_the_right() -> None:
    lines = draw(make_table(["name", "#n"], [[MARKUP, 5], [HOSTILE, 12345], [None, None]]), 200)
    assert lines[0].split() == ["name", "n"]
    assert MARKUP in lines[1]
    assert lines[1].endswith("    5")
    assert lines[2].endswith("12345")
    assert not any(ord(character) < 32 for line in lines for character in line)
    assert len(lines) == 4


def test_a_table_wraps_texts_and_never_numbers() -> None:
    table = make_table(["id", "#n", "text"], [["a-1", 1234567, "a word and another word " * 3], ["b", 1, "short"]])
    lines = draw(table, 40)
    assert all(cell_len(line) <= 40 for line in lines)
    assert sum("1234567" in line for line in lines) == 1
    assert " ".join(lines).count("another") == 3


def test_chinese_texts_keep_their_columns() -> None:
    table = make_table(["id", "text", "#n"], [["一", "灯塔高四十二米，建于一八九〇年。" * 3, 1], ["二", "短", 2]])
    lines = draw(table, 40)
    assert all(cell_len(line) <= 40 for line in lines)
    assert cell_len(lines[1].rstrip()) == cell_len(lines[-1].rstrip()) == 40


def test_a_table_too_wide_becomes_a_record_per_row() -> None:
    columns = [f"column_{number}" for number in range(12)]
    lines = draw(make_table(columns, [["x" * 30] * 12, ["y"] * 12]), 60)
    assert lines[0] == f"column_0   {'x' * 30}"
    assert lines[12] == ""
    assert lines[13] == "column_0   y"
    assert len(lines) == 25


def test_a_text_that_would_fill_the_screen_is_cut() -> None:
    lines = draw(make_table(["id", "text"], [["a", "word " * 1000]]), 60)
    assert len(lines) <= 9
    assert lines[-1].endswith("…")


@given(
    st.lists(st.text(alphabet=" ab一二", max_size=300), min_size=1, max_size=3), st.integers(min_value=20, max_value=60)
)
def test_wrapped_lines_fit_and_lose_nothing(texts: list[str], width: int) -> None:
    lines = draw(make_table(["text"], [[text] for text in texts]), width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines[1:]).split()) == "".join("".join(texts).split())


def test_metrics_are_in_the_order_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"mean": 0.5, "ci_low": None, "ci_high": None, "n_scored": 1, "n_unscored": 0, "better": "high"}
    rows = [{"metric": name, **row} for name in ("zeta", "alpha", "beta", "gone")]
    print_scores(rows, ("beta", "zeta"), ("gone",), "note: gone scored nothing")
    _, *lines, note = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [[name, "0.500", "–", "1", "0"] for name in ("beta", "zeta", "alpha")]
    assert note == "note: gone scored nothing"


def test_json_of_what_json_has_no_form_for() -> None:
    value = {
        "n": 2**70, "d": Decimal("1.50"), "whole": Decimal(10**30), "b": b"\x01", "on": date(2025, 1, 2),
        "nan": float("nan"),
    }  # fmt: skip
    assert json.loads(write_json(value)) == {
        "n": str(2**70), "d": 1.5, "whole": str(10**30), "b": "01", "on": "2025-01-02", "nan": None,
    }  # fmt: skip
    assert write_json({"a": [1]}, indent=False) == '{"a":[1]}'


def test_each_stream_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("a line", bold=True)
    print_json({"a": "\x1b"})
    print_text("raw \x1b[31m into a pipe\n")
    print_table(make_table(["a"], [["b" * 500]]))
    print_notice("noted \x1b[31m aside")
    written = capsys.readouterr()
    assert written.out.startswith("a line\n")
    assert '"\\u001b"' in written.out
    assert "raw \x1b[31m into a pipe" in written.out
    assert "b" * 500 in written.out, "in a pipe nothing is wrapped"
    assert written.err == "noted \\x1b[31m aside\n"


def describe(**counts: Any) -> str:  # noqa: ANN401  # the fields of Usage
    live_run: Any = SimpleNamespace(
        progress=Progress(n_samples=10_000, n_done=1234),
        asker=SimpleNamespace(counts=Usage(**counts)),
        askers=[],
        batch_queues=[],
        collection=None,
    )
    return describe_progress(live_run)


def test_progress_says_what_is_known_and_fits_beside_the_bar() -> None:
    assert describe(requests=5, reused=2) == "1,234/10,000 samples\n5 calls, 2 reused"
    known = describe(requests=50_123, reused=12_345, failed=321, prompt_tokens=94_000_000, spent_usd=123.456)
    assert known.endswith("50.1k calls, 12.3k reused, 321 failed, 94.0M tokens, $123.46")
    unpriced = describe(requests=5, prompt_tokens=900, completion_tokens=100, unpriced=5)
    assert unpriced.endswith("5 calls, 0 reused, 1000 tokens, $?")
    assert all(len(line) <= 65 for line in known.splitlines())


def test_support_is_named_once() -> None:
    for alone, together, name in (
        ([1, 3], [], "C1, C3"), ([], [2, 4], "C2 + C4"), ([], [], ""), ([2], None, "C2"), (None, None, ""),
    ):  # fmt: skip
        assert name_support({"context_ranks": alone, "joint_ranks": together}) == name
    # A reason that only repeats these names is left out.
    for supported, reason, shown in (
        (True, "C1", None), (True, "C1, T2", None), (True, "C1 + C3", None), (True, "C1 says 30 km.", "C1 says 30 km."),
        (False, "C1", "C1"), (None, "G1", "G1"), (True, None, None),
    ):  # fmt: skip
        assert explain_support({"supported": supported}, reason) == shown, (supported, reason)


def test_a_run_without_any_answer_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for n_ok, n_reused, is_empty in ((0, 0, True), (1, 0, False), (0, 1, False)):
        print_responses({"n_ok": n_ok, "n_failed": 3, "n_reused": n_reused, "latency_p50_ms": None, "errors": []})
        assert ("no question was answered" in capsys.readouterr().out) is is_empty


@pytest.mark.parametrize(("columns", "width"), [(None, 100), ("60", 60), ("0", 100), ("wide", 100), ("5000", 5000)])
def test_a_table_in_a_pipe_is_as_wide_as_columns_or_100(
    columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    print_table(make_table(["sample", "#value", "answer"], [["tide-1", 0.5, "word " * 100]]))
    widest = max(map(cell_len, capsys.readouterr().out.splitlines()))
    assert widest <= width
    assert widest > width - 10 or width == 5000


def test_a_notice_breaks_no_word_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "the built-in lexical judge compares words and sentences and understands none of them"
    print_notice(text)
    assert capsys.readouterr().err == f"{text}\n"
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    print_notice(text)
    lines = capsys.readouterr().err.splitlines()
    assert " ".join(lines) == text
    assert len(lines) > 1
    assert max(map(len, lines)) <= 30


def test_errors_that_differ_in_numbers_or_ids_alone_are_one() -> None:
    errors = {
        "a": "received 20 of 605 bytes", "b": "received 20 of 1,642.5 bytes", "c": "status 401", "d": "status 500",
        "e": "status 401, but why?", "f": None,
        "g": 'status 503: {"id":"req_0ce4976a-75ae-4120-85fe-9fcb73ce9447","at":"2026-11-24T14:40:36Z"}',
        "h": 'status 503: {"id":"req_ea401d91-1644-418d-b0a1-66a28e5a6cfb","at":"2026-11-24T14:41:07Z"}',
        "i": 'status 502: {"id":"req_ea401d91-1644-418d-b0a1-66a28e5a6cfb","at":"2026-11-24T14:41:07Z"}',
    }  # fmt: skip
    with open_rows() as con:
        fill(con, "responses", *({"run_id": "r", "sample_id": name, "status": "failed" if text else "ok", "error": text}
                                 for name, text in errors.items()))  # fmt: skip
        found = con.execute(read_query("responses/errors"), {"run_id": "r"}).fetchall()
    assert found == [
        ("received 20 of 605 bytes", 2, "a"), (errors["g"], 2, "g"), ("status 401", 1, "c"),
        ("status 401, but why?", 1, "e"), ("status 500", 1, "d"), (errors["i"], 1, "i"),
    ]  # fmt: skip


def test_a_notice_without_a_reader_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    monkeypatch.setattr(sys, "stderr", Broken())
    print_notice("the run waits")


def test_a_change_names_its_number_of_samples_if_some_are_missing() -> None:
    assert write_shared({"n_shared": 3000, "previous_n_scored": 3000, "n_scored": 3000}) == ""
    assert write_shared({"n_shared": None, "previous_n_scored": None, "n_scored": 3}) == ""
    row = {"n_shared": 2980, "previous_n_scored": 2991, "n_scored": 2989}
    assert write_shared(row) == "2,980 shared of 2,991 and 2,989"
    assert write_shared({"n_shared": 2, "previous_n_scored": 3, "n_scored": 3}) == "2 shared of 3 and 3"
