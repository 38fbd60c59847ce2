r"""The prompt of `evalhouse query`: in a real terminal as a person uses it, and piece by piece."""

from __future__ import annotations

import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import polars as pl
import pytest
from cli_house import House
from cli_process import Finished, Place, Terminal, in_terminal, show_in_terminal
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from evalhouse.flows.display.sql_prompt import find_history_file, hold_prompt, suggest_words
from evalhouse.warehouse.errors import QueryError
from evalhouse.warehouse.location import Location, parse_location
from evalhouse.warehouse.sandbox.catalog import Catalog, read_catalog
from evalhouse.warehouse.sandbox.query import run_query, split_statements

PROMPT = "evalhouse>"
RELEASED = "\x1b[?2004l"  # the prompt has let go of the terminal
ENDLESS = "select max(md5(i::varchar)) from range(1000000000000) numbers(i)"
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
Hold = Callable[[str], list[str]]


@pytest.fixture
def place(house: House, tmp_path: Path) -> Place:
    """The house's folder, with a state folder of its own and a terminal that answers no question about its cursor."""
    return house.place.with_variables(XDG_STATE_HOME=str(tmp_path / "state"), PROMPT_TOOLKIT_NO_CPR="1")


@pytest.fixture
def location(house: House) -> Location:
    return parse_location(str(house.path))


@pytest.fixture
def catalog(location: Location) -> Catalog:
    return read_catalog(location)


def read_screen(terminal: Terminal) -> str:
    """All that was written, without what only moves and colours."""
    return _SEQUENCE.sub("", terminal.screen)


def type_in(terminal: Terminal, keys: str, told: str) -> None:
    """Type, and wait until a new prompt stands below an output that has these words."""
    seen = len(read_screen(terminal))
    terminal.press(keys.encode())

    def is_answered() -> bool:
        fresh = read_screen(terminal)[seen:]
        return told in fresh and PROMPT in fresh[fresh.rindex(told) :]

    terminal.read_until(is_answered)


@contextmanager
def prompting(place: Place, *arguments: str) -> Iterator[Terminal]:
    with in_terminal(place, "query", *arguments) as terminal:
        terminal.read_until(lambda: PROMPT in read_screen(terminal))
        yield terminal


def test_a_session_from_the_first_statement_to_ctrl_d(place: Place, tmp_path: Path) -> None:
    with prompting(place) as terminal:
        type_in(terminal, "select count(*) as n from samples;\r", "1 row")
        type_in(terminal, "select 6\r * 7 as\r answer;\r", "42")
        type_in(terminal, "select nothing_such from runs;\r", "nothing_such")
        type_in(terminal, "delete from scores;\r", "read-only")
        terminal.press(b"select '\xff")  # no UTF-8
        type_in(terminal, "' as odd;\r", "1 row")
        type_in(terminal, "\\d run_scr\r", "did you mean run_scores")
        type_in(terminal, "\\d run_scores\r", "95 % interval")
        type_in(terminal, "\\d\r", "score_lineage")
        type_in(terminal, "\\?\r", "Ctrl-C stops a query")
        terminal.press(b"\x04")
        finished = terminal.finish()
    assert finished.status == 0
    assert "Traceback" not in finished.stdout
    history = tmp_path / "state" / "evalhouse" / "query_history"
    assert "+select count(*) as n from samples;" in history.read_text(encoding="utf-8")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_ctrl_c_stops_the_query_and_not_the_prompt(place: Place) -> None:
    with prompting(place) as terminal:
        terminal.press(f"{ENDLESS};\r".encode())
        terminal.read_until(lambda: RELEASED in terminal.screen)
        pressed_at = time.monotonic()  # before the query has begun, the key takes the statement back

        def is_stopped() -> bool:
            # The terminal makes a signal of the key a moment after it was released: until then the key is lost.
            nonlocal pressed_at
            if time.monotonic() > pressed_at + 1:
                terminal.press(b"\x03")
                pressed_at = time.monotonic()
            return "stopped" in read_screen(terminal)

        terminal.read_until(is_stopped)
        type_in(terminal, "select 'still here' as told;\r", "1 row")
        terminal.press(b"half a word\x03")
        type_in(terminal, "select 'a fresh line' as told;\r", "1 row")
        terminal.press(b"\\q\r")
        finished = terminal.finish()
    assert finished.status == 0
    assert "still here" in finished.stdout


def test_tab_completes_and_an_evaluation_can_write_while_the_prompt_is_open(place: Place, house: House) -> None:
    with prompting(place) as terminal:
        terminal.press(b"select count(*) as n from run_sco\t")
        terminal.read_until(lambda: "run_scores" in read_screen(terminal))
        type_in(terminal, ";\r", "1 row")
        terminal.press(b"from sample_s\t")
        terminal.read_until(lambda: "sample_statement_counts" in read_screen(terminal))
        assert "sample_steps" in read_screen(terminal), "where more than one fits there is a choice"
        with duckdb.connect(str(house.path)) as writer:  # fails where anybody has the file open
            assert writer.execute("select count(*) from runs").fetchone() == (2,)
        terminal.press(b"\x03\x04")
        assert terminal.finish().status == 0


def test_history_comes_back_in_the_next_session(place: Place) -> None:
    for keys in ("select 40 + 2 as answer;\r", "\x1b[A\r"):
        with prompting(place) as terminal:
            type_in(terminal, keys, "42")
            terminal.press(b"\x04")
            assert terminal.finish().status == 0


def test_formats_and_hostile_texts_are_as_without_a_prompt(place: Place) -> None:
    with prompting(place, "--format", "json") as terminal:
        type_in(terminal, "select chr(27) || ']0;owned' as title;\r", "owned")
        terminal.press(b"\x04")
        finished = terminal.finish()
    assert '"title"' in finished.stdout
    assert "\x1b]0;" not in finished.stdout


def test_no_place_for_history_is_told_and_no_obstacle(place: Place, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    with prompting(place) as terminal:
        type_in(terminal, "select 42 as answer;\r", "1 row")
        terminal.press(b"\x04")
        finished = terminal.finish()
    assert finished.status == 0
    assert "history is not kept: " in finished.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--warehouse", "nowhere.duckdb"), "there is no warehouse at"),
        (("-o", "rows.csv"), "--output takes the result of one query"),
    ],
)
def test_a_prompt_that_cannot_be_is_refused(place: Place, arguments: tuple[str, ...], told: str) -> None:
    finished = show_in_terminal(place, "query", *arguments)
    assert finished.status == 2
    assert told in finished.stdout
    assert PROMPT not in finished.stdout


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


@pytest.fixture
def hold(keyboard: PipeInput, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    """Holds a prompt in this process, with these keys and Ctrl-D pressed; returns the statements that were found."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(keys: str) -> list[str]:
        found: list[str] = []

        def find(statement: str, stop: threading.Event) -> pl.DataFrame:
            found.append(statement)
            if statement == "wrong":
                raise QueryError("that was wrong")
            return pl.DataFrame({"n": [len(found)]})

        keyboard.send_text(keys + "\x04")
        hold_prompt(catalog, find=find, show=lambda frame: None)
        return found

    return run


@pytest.mark.parametrize(
    ("keys", "statements"),
    [
        ("select 1;\r", ["select 1"]),
        ("select 1; select 2;\r", ["select 1", "select 2"]),
        ("select 1; wrong; select 2;\r", ["select 1", "wrong"]),
        ("select ';'\r;\r", ["select ';'"]),
        ("select 1 -- no end;\r;\r", ["select 1 -- no end;"]),
        ("select $$a;\rb$$;\r", ["select $$a;\nb$$"]),
        ("\r\r  \r;;\r", []),
        ("\\d\r\\d runs\r", ["\\d", "\\d runs"]),
        ("\\q\rselect 1;\r", []),
        ("select '灯塔；';\r", ["select '灯塔；'"]),
        ("\x1b[200~select 1\n, 2;\nselect 3;\x1b[201~\r", ["select 1\n, 2", "select 3"]),
        ("fr\x15select 1;\r", ["select 1"]),
    ],
)
def test_what_was_typed_is_taken_apart(hold: Hold, keys: str, statements: list[str]) -> None:
    found = [re.sub(r"\n +", "\n", statement) for statement in hold(keys)]
    assert found == statements


def test_an_error_is_told_and_the_prompt_goes_on(hold: Hold, capsys: pytest.CaptureFixture[str]) -> None:
    assert hold("wrong;\rselect 1;\r") == ["wrong", "select 1"]
    assert capsys.readouterr().err == "Error: that was wrong\n"


def test_history_that_cannot_be_written_any_more_is_told_once(
    keyboard: PipeInput,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found: list[str] = []

    def find(statement: str, stop: threading.Event) -> pl.DataFrame:
        if not found:
            find_history_file().unlink()
            find_history_file().mkdir()
        found.append(statement)
        return pl.DataFrame()

    keyboard.send_text("select 1;\rselect 2;\rselect 3;\r\x04")
    hold_prompt(catalog, find=find, show=lambda frame: None)
    assert found == ["select 1", "select 2", "select 3"]
    assert capsys.readouterr().err.count("history is not kept any more") == 1


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"XDG_STATE_HOME": "/var/mine"}, "/var/mine/evalhouse/query_history"),
        ({"XDG_STATE_HOME": "relative"}, "~/.local/state/evalhouse/query_history"),
        ({}, "~/.local/state/evalhouse/query_history"),
    ],
)
def test_history_lies_in_the_users_state_folder(
    environ: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert find_history_file(environ) == Path(told).expanduser()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert find_history_file(environ) == Path.home() / "Library/Application Support/evalhouse/query_history"
    monkeypatch.setattr(sys, "platform", "win32")
    assert find_history_file({"LOCALAPPDATA": "/app"}) == Path("/app/evalhouse/query_history")


def offer(catalog: Catalog, before: str, after: str = "") -> list[str]:
    return [word.text for word in suggest_words(before, after, catalog)]


def test_tables_and_views_are_offered_where_one_must_stand(catalog: Catalog) -> None:
    assert offer(catalog, "select 1 from run_s") == ["run_samples", "run_scores", "run_series"]
    assert offer(catalog, "from runs join sample_h") == ["sample_history"]
    assert offer(catalog, "\\d unsc") == ["unscored", "unscored_reasons"]
    assert set(offer(catalog, "from ")) == {relation.name for relation in catalog.relations}


def test_columns_of_the_named_tables_come_first(catalog: Catalog) -> None:
    assert offer(catalog, "select me", " from run_scores")[:2] == ["metric", "mean"]
    assert offer(catalog, "select * from run_scores where n_") == ["n_scored", "n_unscored", "n_clusters"]
    assert offer(catalog, "select s.la", " from statements x join statement_verdicts as s") == ["label", "label_reason"]
    assert offer(catalog, "select runs.kb", " from scores, runs") == ["kb_name", "kb_version", "kb_changed"]
    assert offer(catalog, "select nothing.kb", " from runs") == []


def test_keywords_and_functions_follow_in_the_letters_that_were_begun(catalog: Catalog) -> None:
    assert "where" in offer(catalog, "from runs wh")
    assert offer(catalog, "from runs WHER") == ["WHERE"]
    assert "regexp_matches" in offer(catalog, "select regexp_m", " from runs")
    assert offer(catalog, "select zzz_nothing") == []


def test_names_that_are_no_plain_words_are_quoted(tmp_path: Path) -> None:
    path = tmp_path / "odd.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute('create table "my table" ("order" int, "a ""b""" int, Größe int)')
        connection.execute('comment on column "my table"."order" is \'which one\'')
    catalog = read_catalog(parse_location(str(path)))
    assert offer(catalog, "from my") == ['"my table"']
    assert '"order"' in offer(catalog, "select ord")
    assert '"a ""b"""' in offer(catalog, "select a")
    assert [column.comment for column in catalog.find("MY TABLE").columns] == ["which one", None, None]


def test_a_query_that_is_stopped_says_so_and_lets_the_file_go(location: Location) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(QueryError, match=r"the query was stopped$"):
        run_query(location, ENDLESS, stop=stop)
    stop = threading.Event()
    stop.set()
    with pytest.raises(QueryError, match=r"the query was stopped$"):
        run_query(location, ENDLESS, stop=stop)
    assert run_query(location, "select 1 as one").height == 1


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", [""]),
        ("select 1", ["select 1"]),
        ("select 1;", ["select 1", ""]),
        ("select 1; -- the end", ["select 1", ""]),
        ("a;b;c", ["a", "b", "c"]),
        ("select 'x;y', \"p;q\", /* ; */ $$;$$", ["select 'x;y', \"p;q\", /* ; */ $$;$$"]),
        ("select 'open;", ["select 'open;"]),
        ("select '灯；塔'; select 'é'", ["select '灯；塔'", "select 'é'"]),
    ],
)
def test_statements_are_split_where_sql_ends_them(text: str, pieces: list[str]) -> None:
    assert split_statements(text) == pieces


def test_sql_on_standard_input_opens_no_prompt(house: House) -> None:
    finished: Finished = house.place.call_process("query", "--format", "csv", stdin="select 42 as answer")
    assert (finished.status, finished.stdout) == (0, "answer\n42\n")
    nothing = house.place.call("query", stdin="")
    assert nothing.status == 2
    assert "the SQL is empty" in nothing.stderr
