"""Where in a text a statement stands: what a report highlights.

A statement is in the judge's words, not always in those of the text it was split from or of the context that supports
it. Where the words are the same the place is exact; else it is the stretch of text that is most alike, from
rapidfuzz's alignment, if it is alike enough. A place is a help to the eye and no verdict: where none is found, the
statement still stands in its list.
"""

from dataclasses import dataclass

from rapidfuzz import fuzz

_ALIKE = 62.0  # of 100; below this the stretch found in a context about something else is mostly chance
_LEAST_LETTERS = 3
_MOST_LETTERS = 20_000  # aligning takes time in proportion to both lengths


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of a text, in characters (code points) from 0; `end` is the first one after it."""

    start: int
    end: int


def find_span(statement: str, text: str) -> Span | None:
    """The stretch of `text` that says the statement; None when nothing there is alike enough."""
    wanted, there = _fold(statement.strip().rstrip(".。!！?？")), _fold(text)
    if len(wanted) < _LEAST_LETTERS or not there:
        return None
    start = there.find(wanted)
    if start >= 0:
        return Span(start=start, end=start + len(wanted))
    if max(len(wanted), len(there)) > _MOST_LETTERS:
        return None
    found = fuzz.partial_ratio_alignment(wanted, there, score_cutoff=_ALIKE)
    if found is None or len(wanted) > len(there):
        # Of a text shorter than the statement the alignment tells where in the statement it stands.
        return None if found is None else Span(start=0, end=len(text))
    return _widen(text, found.dest_start, found.dest_end)


def _fold(text: str) -> str:
    """The text in small letters, unless that moves its characters (İ becomes two)."""
    folded = text.lower()
    return folded if len(folded) == len(text) else text


def _widen(text: str, start: int, end: int) -> Span | None:
    """To whole words, where words have ends that can be seen, and without blanks around them."""
    while start > 0 and _is_word(text[start - 1]) and _is_word(text[start]):
        start -= 1
    while end < len(text) and _is_word(text[end - 1]) and _is_word(text[end]):
        end += 1
    stretch = text[start:end]
    start += len(stretch) - len(stretch.lstrip())
    end -= len(stretch) - len(stretch.rstrip())
    return Span(start=start, end=end) if start < end else None


def _is_word(character: str) -> bool:
    """Letters of scripts that put blanks between words; Chinese would widen to the whole sentence."""
    return character.isalnum() and character < "\u2e80"
