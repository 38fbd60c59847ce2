"""What may stand at the cursor of the SQL prompt: tables, views, columns, keywords and functions.

A plain function of the text and the warehouse's catalogue. It looks only at the words just before the cursor and at the
tables that the statement names; it need not understand SQL, because whoever types chooses. `query_prompt` shows it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalhouse.warehouse.sandbox.catalog import Catalog, Relation

_WORD_AT_END = re.compile(r"\w*\Z")
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


def suggest_words(before: str, after: str, catalog: Catalog) -> list[Suggestion]:
    """What may stand between the two texts, the likeliest first; each word once, in whatever letters it begins."""
    word = _find(_WORD_AT_END, before)
    found: dict[str, Suggestion] = {}
    for name, note in _list_candidates(before, after, catalog):
        if name.lower().startswith(word.lower()):
            text = _write_name(name, note, word, catalog)
            found.setdefault(text, Suggestion(text=text, n_replaced=len(word), note=note))
    return list(found.values())


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
    known = {relation.name.lower(): relation for relation in catalog.relations}
    named = []
    for match in _NAMED.finditer(text):
        if relation := known.get(match[1].lower()):
            named += [(name.lower(), relation) for name in match.groups() if name]
    return named


def _write_name(name: str, note: str, word: str, catalog: Catalog) -> str:
    if note == "keyword":
        return name.upper() if word.isupper() else name
    if note == "function" or (_PLAIN_NAME.fullmatch(name) and name not in catalog.keywords):
        return name
    return '"' + name.replace('"', '""') + '"'


def _find(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[0] if match else ""
