"""What there is to ask: tables and views with their columns and comments, and the words of DuckDB's SQL.

Read from DuckDB's own catalogue, so that it also tells of a metric's tables and of a file made by an older version.
Neighbours: `query`, which runs what is asked; the comments are those of the files in `views/`.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import duckdb

from evalhouse.warehouse.engine.connection import open_reader
from evalhouse.warehouse.errors import QueryError
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.metric_files import view_scripts

_LIST_RELATIONS = """
select table_name, 'table' as kind, comment from duckdb_tables() where not internal
union all
select view_name, 'view' as kind, comment from duckdb_views() where not internal
order by kind, table_name
"""
_LIST_COLUMNS = """
select table_name, column_name, data_type, comment
from duckdb_columns()
where not internal
order by table_name, column_index
"""
_LIST_KEYWORDS = "select distinct keyword_name from duckdb_keywords() where keyword_category = 'reserved' order by 1"
# Operators have names that are no words, and DuckDB's own begin with an underscore.
_LIST_FUNCTIONS = r"""
select distinct function_name
from duckdb_functions()
where function_type in ('scalar', 'aggregate', 'macro') and regexp_full_match(function_name, '[a-z]\w*')
order by 1
"""
# DuckDB counts these among the words that may also be names, and no query does without them.
_MORE_KEYWORDS = (
    "between", "by", "cross", "exists", "explain", "filter", "first", "full", "if", "inner", "is", "join", "last",
    "left", "like", "natural", "nulls", "over", "partition", "pivot", "positional", "recursive", "right", "rows",
    "set", "values", "with",
)  # fmt: skip

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
        """The table or view of that name, in whatever letters; raises QueryError that tells similar names."""
        by_name = {relation.name.lower(): relation for relation in self.relations}
        if found := by_name.get(name.lower()):
            return found
        close = difflib.get_close_matches(name.lower(), by_name, n=3, cutoff=0.5)
        advice = f"did you mean {' or '.join(close)}?" if close else "\\d lists what there is"
        raise QueryError(f"there is no table or view {name!r}; {advice}")


def read_catalog(location: Location) -> Catalog:
    """Read the catalogue; raises WarehouseMissing, WarehouseBusy, or WarehouseError for what is not a warehouse."""
    # A lake keeps no comments on the columns of its views; they are those of the files the views are laid from.
    written = {} if location.lake is None else _read_view_comments()
    with open_reader(location) as connection:
        columns: dict[str, list[Column]] = {}
        for table, name, kind, comment in connection.execute(_LIST_COLUMNS).fetchall():
            told = comment or written.get((table, name))
            columns.setdefault(table, []).append(Column(name=name, type=kind, comment=told))
        relations = tuple(
            Relation(name=name, kind=kind, comment=comment, columns=tuple(columns.get(name, ())))
            for name, kind, comment in connection.execute(_LIST_RELATIONS).fetchall()
        )
        keywords = {*_list_words(connection, _LIST_KEYWORDS), *_MORE_KEYWORDS}
        functions = _list_words(connection, _LIST_FUNCTIONS)
    return Catalog(relations=relations, keywords=tuple(sorted(keywords)), functions=tuple(functions))


def _read_view_comments() -> dict[tuple[str, str], str]:
    found = (match.groups() for script in view_scripts() for match in _VIEW_COMMENT.finditer(script.sql))
    return {(view, column): comment.replace("''", "'") for view, column, comment in found}


def _list_words(connection: duckdb.DuckDBPyConnection, sql: str) -> Sequence[str]:
    return [word for (word,) in connection.execute(sql).fetchall()]
