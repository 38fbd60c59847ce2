"""What may follow at the cursor while a person types SQL.

A plain function of the text and the catalogue: it looks only at the words just before the cursor and at the tables that
the statement names, and need not understand SQL, because a person chooses.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb

from evalhouse.warehouse.sandbox.catalog import Catalog, Relation

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
    if _is_quoted(before, word):
        return []
    suggestions: dict[str, Suggestion] = {}
    for candidate in _list_candidates(before, after, catalog):
        if candidate.name.lower().startswith(word.lower()):
            text = _write(candidate, word, catalog)
            suggestion = Suggestion(text=text, n_replaced=len(word), note=candidate.note, comment=candidate.comment)
            suggestions.setdefault(text, suggestion)
    return list(suggestions.values())


def _is_quoted(before: str, word: str) -> bool:
    """Whether a letter typed behind the text would be a part of no word: DuckDB splits off no string that is open, and
    no comment."""
    if _DESCRIBED_AT_END.match(before):
        return False
    tokens = duckdb.tokenize(f"{before}x")
    return not tokens or tokens[-1][0] < len(before.encode()) - len(word.encode())


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


def _write(candidate: _Candidate, word: str, catalog: Catalog) -> str:
    if candidate.note == "keyword":
        return candidate.name.upper() if word.isupper() else candidate.name
    return candidate.name if candidate.note == "function" else write_name(candidate.name, catalog)
