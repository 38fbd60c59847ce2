"""The catalogue that queries are written against: tables and views, their columns and comments, and completion by it.

It is read from DuckDB's own catalogue, so that it holds a metric's tables and those of an older version's file too.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import duckdb

from evalhouse.warehouse.engine.connection import open_reader
from evalhouse.warehouse.errors import QueryError
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.metric_files import view_scripts
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.queries import read_query

_VIEW_COMMENT = re.compile(r"^comment on column (\w+)\.(\w+) is '(.*)';$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column; `comment` is None where nothing was written about it."""

    name: str
    type: str
    comment: str | None


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A table or a view, with its columns in their order."""

    name: str
    kind: Literal["table", "view"]
    comment: str | None
    columns: tuple[Column, ...]


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """All tables, then all views, by name; and the keywords and functions of this DuckDB."""

    relations: tuple[Relation, ...]
    keywords: tuple[str, ...]
    functions: tuple[str, ...]

    def find(self, name: str) -> Relation:
        """The table or view of that name, in whatever letters; raises QueryError that names similar ones."""
        by_name = {relation.name.lower(): relation for relation in self.relations}
        if relation := by_name.get(name.lower()):
            return relation
        raise QueryError(f"there is no table or view {name!r}; {suggest(name, by_name)} (\\d lists what there is)")


def read_catalog(location: Location) -> Catalog:
    """Read the catalogue; raises WarehouseMissing, WarehouseBusy, or WarehouseError for what is not a warehouse."""
    # A lake keeps no comments on the columns of its views; they are those of the files the views are laid from.
    written = {} if location.lake is None else _read_view_comments()
    with open_reader(location) as connection:
        columns: dict[str, list[Column]] = {}
        for table, name, kind, comment in connection.execute(read_query("catalog/columns")).fetchall():
            column = Column(name=name, type=kind, comment=comment or written.get((table, name)))
            columns.setdefault(table, []).append(column)
        relations = tuple(
            Relation(name=name, kind=kind, comment=comment, columns=tuple(columns.get(name, ())))
            for name, kind, comment in connection.execute(read_query("catalog/relations")).fetchall()
        )
        keywords = _list_words(connection, read_query("catalog/keywords"))
        functions = _list_words(connection, read_query("catalog/functions"))
    return Catalog(relations=relations, keywords=keywords, functions=functions)


def _read_view_comments() -> dict[tuple[str, str], str]:
    comments = (match.groups() for script in view_scripts() for match in _VIEW_COMMENT.finditer(script.sql))
    return {(view, column): comment.replace("''", "'") for view, column, comment in comments}


def _list_words(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[str, ...]:
    return tuple(word for (word,) in connection.execute(sql).fetchall())


_DESCRIBED_AT_END = re.compile(r"\A\s*\\d\s+\w*\Z")
_OWNER_AT_END = re.compile(r'(\w+|"[^"]+")\.\w*\Z')
_TABLE_AT_END = re.compile(r"\b(from|join|describe|summarize|table)\s+\w*\Z", re.IGNORECASE)
_NAMED = re.compile(r"(?:\b(?:from|join)|,)\s+(\w+)(?:\s+(?:as\s+)?(\w+))?", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[a-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A word for the place of the last `n_replaced` characters; `note` says what it is, `comment` what it means."""

    text: str
    n_replaced: int
    note: str
    comment: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    name: str
    note: str
    comment: str | None = None


def suggest_words(before: str, after: str, catalog: Catalog) -> list[Suggestion]:
    """What may stand between the two texts, the likeliest first; each word once, in whatever letters it begins.

    Within a string or a comment that is nothing.
    """
    word = re.split(r"\W", before)[-1]
    # Whether a letter typed behind the text would be a part of no word: DuckDB splits off no string that is open, and
    # no comment.
    if _DESCRIBED_AT_END.match(before):
        quoted = False
    else:
        tokens = duckdb.tokenize(f"{before}x")
        quoted = not tokens or tokens[-1][0] < len(before.encode()) - len(word.encode())
    if quoted:
        return []
    suggestions: dict[str, Suggestion] = {}
    for candidate in _list_candidates(before, after, catalog):
        if candidate.name.lower().startswith(word.lower()):
            if candidate.note == "keyword":
                text = candidate.name.upper() if word.isupper() else candidate.name
            else:
                text = candidate.name if candidate.note == "function" else write_name(candidate.name, catalog)
            suggestion = Suggestion(text=text, n_replaced=len(word), note=candidate.note, comment=candidate.comment)
            suggestions.setdefault(text, suggestion)
    return list(suggestions.values())


def _list_candidates(before: str, after: str, catalog: Catalog) -> Iterator[_Candidate]:
    relations = [_Candidate(name=one.name, note=one.kind, comment=one.comment) for one in catalog.relations]
    named = _find_named(f"{before} {after}", catalog)
    if owner := _OWNER_AT_END.search(before):
        yield from _list_columns([relation for name, relation in named if name == owner[1].strip('"').lower()])
    elif _DESCRIBED_AT_END.match(before) or _TABLE_AT_END.search(before):
        yield from relations
    else:
        yield from _list_columns([relation for _, relation in named] or catalog.relations)
        yield from (_Candidate(name=word, note="keyword") for word in catalog.keywords)
        yield from relations
        yield from (_Candidate(name=name, note="function") for name in catalog.functions)


def _list_columns(relations: Sequence[Relation]) -> Iterator[_Candidate]:
    for relation in relations:
        for column in relation.columns:
            note = f"{relation.name}, {column.type.lower()}"
            yield _Candidate(name=column.name, note=note, comment=column.comment)


def _find_named(text: str, catalog: Catalog) -> list[tuple[str, Relation]]:
    """The tables and views that the text names, by their own names and by what they are called there."""
    relations = {relation.name.lower(): relation for relation in catalog.relations}
    named = []
    for match in _NAMED.finditer(text):
        if relation := relations.get(match[1].lower()):
            named += [(name.lower(), relation) for name in match.groups() if name]
    return named


def write_name(name: str, catalog: Catalog) -> str:
    """The name of a table, view or column as it stands in SQL, in quotes where it needs them."""
    if _PLAIN_NAME.fullmatch(name) and name not in catalog.keywords:
        return name
    return '"' + name.replace('"', '""') + '"'
