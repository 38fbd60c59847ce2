"""Secrets of this process, which stand in nothing that is stored, whoever repeats them: a judge's reply, an error, an
answer of the application under test.

What is known to be one is noted where it is read (`note_secret`); keys, tokens and passwords of the environment are
found by the names of their variables. Rows lose them where rows are made (`tables`, `mover`), messages in
`warehouse/messages.py`. A secret is found as it is and as JSON, an address, a page or base64 would spell it.
"""

import base64
import functools
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import orjson

SHOWN = "[key]"
# A shorter value is no secret, and taking it out would take out parts of words.
_SHORTEST = 8
# A value without a digit is often a word that stands where a local endpoint wants no key.
_SHORTEST_WITHOUT_DIGIT = 12
_NAME_ENDS = ("API_KEY", "ACCESS_KEY", "SECRET_KEY", "PRIVATE_KEY", "TOKEN", "SECRET", "PASSWORD", "AUTH_STRING")
# Any ASCII character but quote and backslash may stand in JSON like this.
_ESCAPED = re.compile(r"\\u00((?!22|5[cC])[2-7][0-9a-fA-F])")

_noted: set[str] = set()


def note_secret(value: str) -> None:
    """Take this out of whatever is stored from now on."""
    if len(value) >= _SHORTEST and value.isprintable():
        _noted.add(value)


def note_environment(environ: Mapping[str, str] | None = None) -> None:
    """Note the keys, tokens and passwords of the environment."""
    for name, value in (os.environ if environ is None else environ).items():
        has_digit = any(character.isdigit() for character in value)
        is_long = len(value) >= (_SHORTEST if has_digit else _SHORTEST_WITHOUT_DIGIT)
        if name.upper().endswith(_NAME_ENDS) and is_long:
            note_secret(value)


def hide_secrets(text: str) -> str:
    """The text without any secret. Costs some microseconds for what has none."""
    if not _noted:
        return text
    spellings = _spell_all(frozenset(_noted))
    if "\\u00" in text:
        plain = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
        text = plain if any(spelling in plain for spelling in spellings) else text
    for spelling in spellings:
        if spelling in text:
            text = text.replace(spelling, SHOWN)
    return text


def hide_in(value: object) -> object:
    """A column's value without any secret: a text, a list of texts, or whatever else it is."""
    if isinstance(value, str):
        return hide_secrets(value)
    return [hide_in(item) for item in value] if isinstance(value, list | tuple) and _noted else value


def hide_in_rows(rows: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
    """Rows whose values have lost every secret; the very same rows where none is known."""
    return [{name: hide_in(value) for name, value in row.items()} for row in rows] if _noted else rows


@functools.lru_cache(maxsize=4)
def _spell_all(secrets: frozenset[str]) -> tuple[str, ...]:
    """All spellings, the longest first, so that of two of which one holds the other nothing is left."""
    spellings = {spelling for secret in secrets for spelling in spell_secret(secret)}
    return tuple(sorted(spellings, key=lambda spelling: (-len(spelling), spelling)))


def spell_secret(value: str) -> set[str]:
    """A value as it is and as JSON, an address, a page, Python or base64 would have it."""
    plain, escaped = orjson.dumps(value).decode()[1:-1], json.dumps(value)[1:-1]
    slashed = {spelling.replace("/", "\\/") for spelling in (plain, escaped)}
    coded = {quote(value, safe=""), quote(value), html.escape(value), repr(value)[1:-1]}
    packed = base64.b64encode(value.encode()).decode().rstrip("=")
    return {value, plain, escaped, packed, *slashed, *coded}
