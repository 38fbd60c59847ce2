"""The catalogue that queries are written against: tables and views, their columns and comments, and completion by it.

It is read from DuckDB's own catalogue, so that it holds a metric's tables and those of an older version's file too.
"""

import re
from collections.abc import Sequence
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
        """Return the table or view of that name, in any case; raises QueryError that names similar ones."""
        by_name = {relation.name.lower(): relation for relation in self.relations}
        if relation := by_name.get(name.lower()):
            return relation
        raise QueryError(f"there is no table or view {name!r}; {suggest(name, by_name)} (\\d lists what there is)")


def read_catalog(location: Location) -> Catalog:
    """Read the catalogue; raises WarehouseMissing, WarehouseBusy, or WarehouseError for what is not a warehouse."""
    # A lake keeps no comments on the columns of its views; they are those of the files the views are laid from.
    written = {}
    if location.lake is not None:
        for script in view_scripts():
            for view, name, comment in _VIEW_COMMENT.findall(script.sql):
                written[view, name] = comment.replace("''", "'")
    with open_reader(location) as connection:
        columns: dict[str, list[Column]] = {}
        for table, name, kind, comment in connection.execute(read_query("catalog/columns")).fetchall():
            column = Column(name=name, type=kind, comment=comment or written.get((table, name)))
            columns.setdefault(table, []).append(column)
        relations = tuple(
            Relation(name=name, kind=kind, comment=comment, columns=tuple(columns.get(name, ())))
            for name, kind, comment in connection.execute(read_query("catalog/relations")).fetchall()
        )
        keywords, functions = (
            tuple(word for (word,) in connection.execute(read_query(query)).fetchall())
            for query in ("catalog/keywords", "catalog/functions")
        )
    return Catalog(relations=relations, keywords=keywords, functions=functions)


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


def suggest_words(before: str, after: str, catalog: Catalog) -> list[Suggestion]:
    """Return what may come between the two texts, the likeliest first; each word once, in any case of its letters.

    Within a string or a comment that is nothing.
    """
    word = re.split(r"\W", before)[-1]
    if not _DESCRIBED_AT_END.match(before):
        # DuckDB makes no token of a string that is open, nor of a comment: a letter typed there is part of no word.
        tokens = duckdb.tokenize(f"{before}x")
        if not tokens or tokens[-1][0] < len(before.encode()) - len(word.encode()):
            return []
    # The tables and views that the text names, by their own names and by their aliases.
    by_name = {relation.name.lower(): relation for relation in catalog.relations}
    named: list[tuple[str, Relation]] = []
    for match in _NAMED.finditer(f"{before} {after}"):
        if relation := by_name.get(match[1].lower()):
            named += [(name.lower(), relation) for name in match.groups() if name]
    relations = [(relation.name, relation.kind, relation.comment) for relation in catalog.relations]
    # Each candidate is a name, a note on what it is, and a comment.
    candidates: list[tuple[str, str, str | None]] = []
    owners: Sequence[Relation] = [relation for _, relation in named] or catalog.relations
    owner = _OWNER_AT_END.search(before)
    if owner:
        owners = [relation for name, relation in named if name == owner[1].strip('"').lower()]
    if not owner and (_DESCRIBED_AT_END.match(before) or _TABLE_AT_END.search(before)):
        candidates += relations
    else:
        for relation in owners:
            candidates += [
                (column.name, f"{relation.name}, {column.type.lower()}", column.comment) for column in relation.columns
            ]
        if not owner:
            candidates += [(keyword, "keyword", None) for keyword in catalog.keywords]
            candidates += relations
            candidates += [(name, "function", None) for name in catalog.functions]
    suggestions: dict[str, Suggestion] = {}
    for name, note, comment in candidates:
        if name.lower().startswith(word.lower()):
            if note == "keyword":
                text = name.upper() if word.isupper() else name
            else:
                text = name if note == "function" else write_name(name, catalog)
            suggestions.setdefault(text, Suggestion(text=text, n_replaced=len(word), note=note, comment=comment))
    return list(suggestions.values())


def write_name(name: str, catalog: Catalog) -> str:
    """Return the name of a table, view or column as it is written in SQL, in quotes where it needs them."""
    if _PLAIN_NAME.fullmatch(name) and name not in catalog.keywords:
        return name
    return '"' + name.replace('"', '""') + '"'
