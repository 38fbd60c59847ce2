"""Two texts side by side, with what is not in the other marked: word by word, and letter by letter where a script puts
no blanks between words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rapidfuzz.distance import LCSseq

_PIECES: Final = re.compile(r"[\u2e80-\uffdc\U00020000-\U0003ffff]|\w+|\s+|.", re.DOTALL)
_MOST_PIECES: Final = 4000
"""Comparing takes time in proportion to the product of both lengths; longer texts stand unmarked."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A stretch of a text; `is_other` where the other text does not have it there."""

    text: str
    is_other: bool


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both texts in pieces; None where there is no text."""

    base: Sequence[Piece] | None
    candidate: Sequence[Piece] | None
    differ: bool


def mark_changes(base: str | None, candidate: str | None) -> Sides:
    """The texts in pieces that are the same and pieces that are not."""
    if base is None or candidate is None or base == candidate:
        return Sides(base=_keep(base), candidate=_keep(candidate), differ=base != candidate)
    before, after = _PIECES.findall(base), _PIECES.findall(candidate)
    if max(len(before), len(after)) > _MOST_PIECES:
        return Sides(base=_keep(base), candidate=_keep(candidate), differ=True)
    sides: tuple[list[Piece], list[Piece]] = ([], [])
    for step in LCSseq.opcodes(before, after):
        is_other = step.tag != "equal"
        _add(sides[0], before[step.src_start : step.src_end], is_other)
        _add(sides[1], after[step.dest_start : step.dest_end], is_other)
    return Sides(base=sides[0], candidate=sides[1], differ=True)


def _add(side: list[Piece], pieces: Sequence[str], is_other: bool) -> None:
    text = "".join(pieces)
    if not text:
        return
    # A blank between two words that are others belongs to them.
    if not is_other and text.isspace() and side and side[-1].is_other:
        is_other = True
    if side and side[-1].is_other == is_other:
        text = side.pop().text + text
    side.append(Piece(text=text, is_other=is_other))


def _keep(text: str | None) -> list[Piece] | None:
    return None if text is None else [Piece(text=text, is_other=False)]
