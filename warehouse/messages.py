"""How a message to a person is made short and safe: credentials hidden, texts cut, names listed, values quoted."""

import re
from collections.abc import Sequence
from decimal import Decimal
from urllib.parse import urlsplit, urlunsplit

from evalhouse.warehouse.secrets import SHOWN, hide_secrets, note_environment

_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk)-[\w*.\-]{4,}|[Bb]earer\s+\S+|(?<=://)[^\s/@]+@")


def redact(text: str) -> str:
    """Take everything that is a key, or looks like one, out of a text."""
    note_environment()
    return _KEY_LIKE.sub(SHOWN, hide_secrets(text))


def shorten(text: str | None, most: int = 400) -> str:
    """A text on one line, cut with an ellipsis where it has more letters than that; nothing for None."""
    return cut(" ".join((text or "").split()), most)


def cut(text: str, most: int) -> str:
    """A text as it is, cut with an ellipsis where it has more letters than that."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def list_names(names: Sequence[str], at_most: int = 30) -> str:
    """Names for a message: `a, b, c`, cut short with a count after `at_most`."""
    if not names:
        return "(none)"
    left = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {left} more" if left > 0 else "")


def name_kind(value: object) -> str:
    """What a value is, in words of the file rather than of Python."""
    kinds = {str: "text", bool: "true or false", list: "a list", dict: "an object", bytes: "binary data"}
    if value is None:
        return "null"
    return kinds.get(type(value), "a number" if isinstance(value, int | float | Decimal) else type(value).__name__)


def quote_value(value: object, at_most: int = 60) -> str:
    """A value for a message, on one line and cut short."""
    return cut(repr(value), at_most)


def hide_credentials(address: str) -> str:
    """An address without user, password and query, which may hold a key."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "an address that cannot be read"
    if not parts.netloc:
        return address
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1], query="", fragment=""))
