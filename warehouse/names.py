"""What to say of a name that there is not: those that are like it, else what there is."""

import difflib
from collections.abc import Collection
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
