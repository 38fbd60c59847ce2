"""What there is to ask: tables and views with their columns and comments, and the words of DuckDB's SQL.

Read from DuckDB's own catalogue, so that a metric's tables and those of an older version's file are in it too.
Neighbours: `query`, which runs what is asked; the comments are those of the files in `views/`.
"""

import re
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
