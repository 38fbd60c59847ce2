r"""`evalhouse query` at a terminal without SQL: one statement after another, with history and completion.

The prompt holds nothing open: each statement is a query of its own, found by `find` in a thread so that Ctrl-C can
stop it, and shown by `show`; `flows/commands/query.py` hands both in. What Tab offers is a plain function of the text
and the warehouse's catalogue: it looks only at the words just before the cursor and at the tables that the statement
names, and need not understand SQL, because a person chooses.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from evalhouse.flows.display.output import clean_text, print_line, print_notice
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.sandbox.catalog import Catalog, Relation
from evalhouse.warehouse.sandbox.query import split_statements

_DESCRIBED_AT_END = re.compile(r"\A\s*\\d\s+\w*\Z")
_OWNER_AT_END = re.compile(r'(\w+|"[^"]+")\.\w*\Z')
_TABLE_AT_END = re.compile(r"\b(from|join|describe|summarize|table)\s+\w*\Z", re.IGNORECASE)
_NAMED = re.compile(r"(?:\b(?:from|join)|,)\s+(\w+)(?:\s+(?:as\s+)?(\w+))?", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[a-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A word for the place of the last `n_replaced` characters; `note` says what it is."""

    text: str
    n_replaced: int
    note: str


Find = Callable[[str, threading.Event], pl.DataFrame]
Show = Callable[[pl.DataFrame], None]

HELP = r"""End a statement with ; and Enter. Tab completes, up and Ctrl-R go back in history, Ctrl-C stops a query.
\d         list tables and views
\d NAME    list the columns of one
\?         this help
\q         leave; so does Ctrl-D"""
_PROMPT, _MORE = "evalhouse> ", "      ...> "


def hold_prompt(catalog: Catalog, *, find: Find, show: Show) -> None:
    r"""Ask for statements and answer them until `\q` or Ctrl-D.

    `find` runs one statement (or `\d`) and stops when the event is set; what is wrong with one, a WarehouseError, is
    shown, and the prompt goes on.
    """
    print_line(r"SQL ends with ;   \d lists tables and views, \d NAME columns, \? helps, \q leaves")
    session: PromptSession[str] = PromptSession(
        _PROMPT,
        history=_open_history(),
        completer=_CatalogCompleter(catalog),
        complete_while_typing=False,
        # Enter ends the input only when there is nothing left to type.
        multiline=Condition(lambda: not _is_finished(get_app().current_buffer.text)),
        prompt_continuation=_MORE,
    )
    while True:
        try:
            text = _replace_bytes(session.prompt()).strip()
            if text.rstrip("; \t\n") == r"\q":
                return
            _answer(text, find, show)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def find_history_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this user's statements are kept; raises RuntimeError where no home folder is known."""
    if sys.platform == "darwin":
        state = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        state = Path(environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        # A relative path is to be ignored, says the XDG Base Directory Specification.
        named = Path(environ.get("XDG_STATE_HOME", ""))
        state = named if named.is_absolute() else Path.home() / ".local" / "state"
    return state / "evalhouse" / "query_history"


def _answer(text: str, find: Find, show: Show) -> None:
    """Answer what was typed, statement by statement, up to the first that fails."""
    if text == r"\?":
        print_line(HELP)
        return
    try:
        for statement in [text] if text.startswith("\\") else split_statements(text):
            if statement:
                show(_find_stoppably(find, statement))
    except WarehouseError as error:
        print_notice(f"Error: {error}")
    except KeyboardInterrupt:
        print_notice("stopped")


def _find_stoppably(find: Find, statement: str) -> pl.DataFrame:
    """What `find` returns. DuckDB does not come back to Python, and so to Ctrl-C, before it is done: it works in
    another thread, and this one stops it."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="evalhouse-query") as pool:
        try:
            future = pool.submit(find, statement, stop)
            while True:
                try:
                    return future.result()
                except KeyboardInterrupt:
                    stop.set()
        finally:  # Ctrl-C may come at any line; the thread must not be waited for in vain
            stop.set()


def _is_finished(text: str) -> bool:
    """Whether Enter ends the input: a command, nothing at all, or statements of which each has its `;`."""
    text = _replace_bytes(text)
    return text.lstrip().startswith("\\") or not text.strip() or (";" in text and not split_statements(text)[-1])


def _replace_bytes(text: str) -> str:
    """The text with a question mark for what is not UTF-8: a terminal may send any byte."""
    return text.encode(errors="replace").decode()


class _CatalogCompleter(Completer):
    """Hands the prompt what `suggest_words` finds."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """What may stand at the cursor."""
        for word in suggest_words(document.text_before_cursor, document.text_after_cursor, self._catalog):
            yield Completion(
                word.text,
                start_position=-word.n_replaced,
                display=clean_text(word.text),
                display_meta=clean_text(word.note),
            )


class _KeptHistory(FileHistory):
    """History in a file; when it cannot be written any more, that is said once and the prompt goes on."""

    _failed = False

    def store_string(self, string: str) -> None:
        """Write a statement behind the others."""
        if self._failed:
            return
        try:
            super().store_string(_replace_bytes(string))
        except OSError as error:
            self._failed = True
            print_notice(f"history is not kept any more: {self.filename!s}: {error.strerror or error}")


def _open_history() -> History:
    """The history in the user's state folder, for their eyes only; in memory, which is said, where that cannot be."""
    try:
        path = find_history_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    except (OSError, RuntimeError) as error:
        print_notice(f"history is not kept: {error}")
        return InMemoryHistory()
    return _KeptHistory(path)


def suggest_words(before: str, after: str, catalog: Catalog) -> list[Suggestion]:
    """What may stand between the two texts, the likeliest first; each word once, in whatever letters it begins."""
    word = re.split(r"\W", before)[-1]
    suggestions: dict[str, Suggestion] = {}
    for name, note in _list_candidates(before, after, catalog):
        if name.lower().startswith(word.lower()):
            text = _write_name(name, note, word, catalog)
            suggestions.setdefault(text, Suggestion(text=text, n_replaced=len(word), note=note))
    return list(suggestions.values())


def _list_candidates(before: str, after: str, catalog: Catalog) -> Iterator[tuple[str, str]]:
    relations = [(relation.name, relation.kind) for relation in catalog.relations]
    named = _find_named(f"{before} {after}", catalog)
    if owner := _OWNER_AT_END.search(before):
        yield from _list_columns([relation for name, relation in named if name == owner[1].strip('"').lower()])
    elif _DESCRIBED_AT_END.match(before) or _TABLE_AT_END.search(before):
        yield from relations
    else:
        yield from _list_columns([relation for _, relation in named] or catalog.relations)
        yield from ((word, "keyword") for word in catalog.keywords)
        yield from relations
        yield from ((name, "function") for name in catalog.functions)


def _list_columns(relations: Sequence[Relation]) -> Iterator[tuple[str, str]]:
    for relation in relations:
        for column in relation.columns:
            yield column.name, f"{relation.name}, {column.type.lower()}"


def _find_named(text: str, catalog: Catalog) -> list[tuple[str, Relation]]:
    """The tables and views that the text names, by their own names and by what they are called there."""
    relations = {relation.name.lower(): relation for relation in catalog.relations}
    named = []
    for match in _NAMED.finditer(text):
        if relation := relations.get(match[1].lower()):
            named += [(name.lower(), relation) for name in match.groups() if name]
    return named


def _write_name(name: str, note: str, word: str, catalog: Catalog) -> str:
    if note == "keyword":
        return name.upper() if word.isupper() else name
    if note == "function" or (_PLAIN_NAME.fullmatch(name) and name not in catalog.keywords):
        return name
    return '"' + name.replace('"', '""') + '"'
