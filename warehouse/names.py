"""How messages write names: those that are like an unknown one, and settings in the way that the caller gives them."""

import difflib
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_MOST_CLOSE: Final = 3
_MOST_KNOWN: Final = 12
_LIKENESS: Final = 0.6
"""Share of letters in common from which two names are like each other, as difflib counts it."""


def suggest(name: str, known: Collection[str], *, otherwise: str = "known") -> str:
    """`did you mean a or b?`, else `known: a, b, …`: the first dozen, and how many more there are."""
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
