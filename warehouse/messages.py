"""Safe and short texts for the warehouse and for messages: secrets hidden, texts cut, names listed, values quoted.

Secrets of this process are not stored, no matter which text repeats them: a judge's reply, an error, an answer of
the application under test. What is known to be one is noted where it is read (`note_secret`); keys, tokens and
passwords of the environment are found by the names of their variables. Rows lose them where rows are made (`store`,
`mover`). A secret is found in plain form and as JSON, an address, a page or base64 would spell it.
"""

import base64
import difflib
import functools
import html
import json
import os
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal
from urllib.parse import quote, urlsplit, urlunsplit

SHOWN = "[key]"
# A shorter value is unlikely to be a secret, and hiding it would hide parts of words.
_SHORTEST = 8
# A value without a digit is often a placeholder for a local endpoint that needs no key.
_SHORTEST_WITHOUT_DIGIT = 12
_NAME_ENDS = ("API_KEY", "ACCESS_KEY", "SECRET_KEY", "PRIVATE_KEY", "TOKEN", "SECRET", "PASSWORD", "AUTH_STRING")
# Any ASCII character but quote and backslash may be written in JSON like this.
_ESCAPED = re.compile(r"\\u00((?!22|5[cC])[2-7][0-9a-fA-F])")

noted: set[str] = set()
"""The known secrets; where the set is empty no text has to be searched."""


def note_secret(value: str) -> None:
    """Hide this value in all rows that are stored from now on."""
    if len(value) >= _SHORTEST and value.isprintable():
        noted.add(value)


def note_environment(environ: Mapping[str, str] | None = None) -> None:
    """Note the keys, tokens and passwords of the environment."""
    for name, value in (os.environ if environ is None else environ).items():
        has_digit = any(character.isdigit() for character in value)
        is_long = len(value) >= (_SHORTEST if has_digit else _SHORTEST_WITHOUT_DIGIT)
        if name.upper().endswith(_NAME_ENDS) and is_long:
            note_secret(value)


def hide_secrets(text: str) -> str:
    """Return the text without any secret, within some microseconds where it has none."""
    if not noted:
        return text
    spellings = _spell_all(frozenset(noted))
    if "\\u00" in text:
        plain = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
        text = plain if any(spelling in plain for spelling in spellings) else text
    for spelling in spellings:
        if spelling in text:
            text = text.replace(spelling, SHOWN)
    return text


def hide_in(value: object) -> object:
    """Return a column's value without any secret, be it a text, a list of texts, or another value."""
    if isinstance(value, str):
        return hide_secrets(value)
    return [hide_in(item) for item in value] if isinstance(value, list | tuple) and noted else value


def hide_in_rows(rows: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
    """Return rows without any secret in their values."""
    return [{name: hide_in(value) for name, value in row.items()} for row in rows]


@functools.lru_cache(maxsize=4)
def _spell_all(secrets: frozenset[str]) -> tuple[str, ...]:
    """Return all spellings, the longest first, so that no part of a longer one is left."""
    spellings = {spelling for secret in secrets for spelling in spell_secret(secret)}
    return tuple(sorted(spellings, key=lambda spelling: (-len(spelling), spelling)))


def spell_secret(value: str) -> set[str]:
    """Return a value in plain form and as JSON, an address, a page, Python or base64 would spell it."""
    import orjson  # noqa: PLC0415  # --help does without

    plain, escaped = orjson.dumps(value).decode()[1:-1], json.dumps(value)[1:-1]
    slashed = {spelling.replace("/", "\\/") for spelling in (plain, escaped)}
    coded = {quote(value, safe=""), quote(value), html.escape(value), repr(value)[1:-1]}
    packed = set[str]()
    for n_before in range(3):  # in a longer text it begins at any byte of the groups of three that base64 encodes
        digits = base64.b64encode(bytes(n_before) + value.encode()).decode()[-(-n_before * 4 // 3) :]
        packed.add(digits.rstrip("="))
        if digits.endswith("="):  # the last digit depends on what follows
            packed.add(digits.rstrip("=")[:-1])
    packed |= {digits.replace("+", "-").replace("/", "_") for digits in packed}
    return {value, plain, escaped, *packed, *slashed, *coded}


_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk)-[\w*.\-]{4,}|[Bb]earer\s+\S+|(?<=://)[^\s/@]+@", re.ASCII)


def redact(text: str) -> str:
    """Take everything that is a key, or looks like one, out of a text."""
    note_environment()
    return _KEY_LIKE.sub(SHOWN, hide_secrets(text))


def describe_error(error: BaseException) -> str:
    """Return type and message of an error that code of a user's own raised, fit for a message."""
    text = shorten(redact(write_error(error)))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def write_error(error: BaseException) -> str:
    """Return the text of an error of any maker; empty if its `__str__` fails itself."""
    try:
        return join_surrogates(str(error))
    except Exception:  # as a user's code may raise anything
        return ""


def join_surrogates(text: str) -> str:
    """Return a text in which half a surrogate pair, which UTF-8 cannot have, is U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_readable_name(name: str) -> bool:
    """Return whether a name of a file is UTF-8: Python has half surrogate pairs for other bytes."""
    return join_surrogates(name) == name


Verdict = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check, of what was looked at."""

    what: str
    verdict: Verdict
    detail: str


def clean_text(text: str) -> str:
    """Return a text with control characters and direction marks written out as escapes; newlines and tabs stay."""
    if text.isprintable():
        return text
    # Cc are control characters, of which ESC and U+009B begin terminal sequences; direction marks turn a text around.
    direction_marks = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    cleaned = []
    for character in text:
        is_control = unicodedata.category(character) == "Cc" and character not in "\n\t"
        is_escaped = is_control or character in direction_marks
        cleaned.append(character.encode("unicode_escape").decode() if is_escaped else character)
    return "".join(cleaned)


def shorten(text: str | None, max_length: int = 400) -> str:
    """Return a text on one line, cut with an ellipsis after `max_length` characters; empty for None."""
    return cut(" ".join((text or "").split()), max_length)


def cut(text: str, max_length: int) -> str:
    """Return a text, cut with an ellipsis after `max_length` characters."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def write_span(seconds: float) -> str:
    """Format a time to wait: `45 s`, `9:58 min`, `2:00:00 h`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,}:{minutes:02d}:{rest:02d} h"
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"


def list_names(names: Sequence[str], at_most: int = 30) -> str:
    """Return names for a message: `a, b, c`, cut short with a count after `at_most`."""
    if not names:
        return "(none)"
    left = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {left} more" if left > 0 else "")


def name_kind(value: object) -> str:
    """Return the kind of a value, in words of the file rather than of Python."""
    kinds = {str: "text", bool: "true or false", list: "a list", dict: "an object", bytes: "binary data"}
    if value is None:
        return "null"
    return kinds.get(type(value), "a number" if isinstance(value, int | float | Decimal) else type(value).__name__)


def quote_value(value: object, at_most: int = 60) -> str:
    """Return a value for a message, on one line and cut short."""
    return cut(repr(value), at_most)


def hide_credentials(address: str) -> str:
    """Return an address without user, password and query, which may hold a key."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "an address that cannot be read"
    if not parts.netloc:
        return address
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1], query="", fragment=""))


_MOST_CLOSE: Final = 3
_MOST_KNOWN: Final = 12
_LIKENESS: Final = 0.6
"""Share of letters in common from which two names are like each other, as difflib counts it."""


def suggest(name: str, known: Collection[str], *, otherwise: str = "known") -> str:
    """Return `did you mean a or b?`, else `known: a, b, …`: the first dozen, and the number of others."""
    by_small = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), by_small, n=_MOST_CLOSE, cutoff=_LIKENESS)
    if close:
        return f"did you mean {' or '.join(by_small[small] for small in close)}?"
    more = f" and {len(known) - _MOST_KNOWN} more" if len(known) > _MOST_KNOWN else ""
    return f"{otherwise}: {', '.join(list(known)[:_MOST_KNOWN]) or 'none'}{more}"


# The settings whose flags have other names.
_FLAGS: Final = {"mapping": "map", "metric_settings": "set", "noise_share": "noise", "tags": "tag"}
_are_arguments: ContextVar[bool] = ContextVar("settings_are_arguments", default=False)


@contextmanager
def settings_as_arguments() -> Iterator[None]:
    """Write settings within this block as arguments of `evaluate`, which they are for its caller, and not as flags."""
    token = _are_arguments.set(True)
    try:
        yield
    finally:
        _are_arguments.reset(token)


def name_flag(name: str) -> str:
    """Return the flag of a setting: `--timeout` of `timeout_s`."""
    if name == "dataset":
        return "DATASET"
    return f"--{_FLAGS.get(name) or re.sub('_(s|usd)$', '', name).replace('_', '-')}"


def name_setting(name: str, value: str | None = None) -> str:
    """Return how the caller writes a setting, with a value where one is to be given.

    It is `--judge lexical` at the command line and `judge="lexical"` in a call from Python. A value of `mapping` is a
    pair, such as `question=COLUMN`.
    """
    if not _are_arguments.get():
        return name_flag(name) if value is None else f"{name_flag(name)} {value}"
    if value is None:
        return f"{name}="
    ours, _, theirs = value.partition("=")
    return f'{name}={{"{ours}": "{theirs}"}}' if name == "mapping" else f'{name}="{value}"'
