"""Which statements of an answer a citation belongs to: those that were split from the words that it closes.

The answer is cut into pieces, its sentences, and a sentence with marks at several places behind each of them. A mark
belongs to the piece before it, also when it stands behind the full stop, and one that opens a line to what follows.
What stands in a sentence behind its last mark, or before its only one, is in one piece with it.

The judge writes statements in its own words, so each is looked for: it is compared with every piece by the words that
they share (as the lexical judge does, here without its contrasts), and the statements are laid over the pieces so that
the sum is greatest. Judges list statements in the order of the text and leave little out, so going back costs something
and so does every piece that is passed over; that decides where pieces are alike, and where a pronoun hides the words.
A statement that its piece has nothing of has no place, and no citations. One that tells all that another piece of its
sentence says, and much that its own does not, has that one's citations as well.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from evalhouse.tasks.lexical.match import rate_support, read_claim
from evalhouse.tasks.lexical.split import split_sentences
from evalhouse.tasks.lexical.texts import analyse_text, analyse_texts
from evalhouse.tasks.pipeline.citations import CitedText, remove_spans

_NEAR: Final = 0.1  # the least a piece has to have of a statement that was split from it
_BACK: Final = 0.1  # what it costs to go back in the answer
_SKIP: Final = 0.05  # what it costs to pass a piece over
_MORE: Final = 0.4  # the least share of a further piece's words that a statement has beside those of its own piece
_TOLD: Final = 0.8  # and the least share that it has at all
_LONGEST_OPENING: Final = 1_000  # characters of a line without a letter, behind which a mark may still open it
_MOST_PIECES: Final = 2_000  # of an answer; the way from each to each is weighed
_MOST_PAIRS: Final = 500_000  # of pieces and statements, each of which takes some microseconds


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """What an answer says up to its next marks. `sentence` is the place of its sentence, `ordinals` are those of the
    marks among the answer's citations."""

    text: str
    sentence: int
    ordinals: tuple[int, ...]


def place_citations(answer: str, cited: CitedText, statements: Mapping[str, str]) -> dict[int, list[str]] | None:
    """By citation, its place among the answer's from 0, the ids of the statements it belongs to, in their order.

    None for an answer of too many sentences, or of too many for so many statements, to be compared each with each.
    """
    if not cited.citations:
        return {}
    pieces = list(islice(_read_pieces(answer, cited), _MOST_PIECES + 1))
    if len(pieces) > _MOST_PIECES or len(pieces) * len(statements) > _MOST_PAIRS:
        return None
    placed: dict[int, list[str]] = {ordinal: [] for ordinal in range(len(cited.citations))}
    keys = [text.keys for text in analyse_texts([piece.text for piece in pieces])]
    found = find_pieces(list(statements.values()), [piece.text for piece in pieces])
    for (statement_id, text), place in zip(statements.items(), found, strict=True):
        if place is not None:
            for ordinal in _pick_marks(analyse_text(text).keys, pieces, keys, place):
                placed[ordinal].append(statement_id)
    return placed


def find_pieces(
    statements: Sequence[str], pieces: Sequence[str], *, back: float = _BACK, skip: float = _SKIP
) -> list[int | None]:
    """The place of the piece that each statement was split from; None where its own has nothing of it."""
    if not pieces or not statements:
        return [None] * len(statements)
    told = analyse_texts(pieces)
    rates = np.array([[rate_support(read_claim(one), text) for text in told] for one in analyse_texts(statements)])
    places = np.arange(len(pieces))
    steps = places[None, :] - places[:, None]
    costs = np.where(steps < 0, back, skip * np.maximum(steps - 1, 0))
    sums, ways = rates[0] - skip * places, []
    for of_statement in rates[1:]:
        reached = sums[:, None] - costs
        ways.append(reached.argmax(axis=0))
        sums = reached.max(axis=0) + of_statement
    path = [int((sums - skip * places[::-1]).argmax())]
    for way in reversed(ways):
        path.append(int(way[path[-1]]))
    return [
        place if of_statement[place] >= _NEAR else None
        for of_statement, place in zip(rates, reversed(path), strict=True)
    ]


def _read_pieces(answer: str, cited: CitedText) -> Iterator[_Piece]:
    """The answer's pieces in order, without the marks that close them."""
    spans = {(one.start, one.end, one.text): None for one in cited.citations}
    hidden = {(*span, ""): None for span in cited.hidden}
    order = sorted([*spans, *hidden])
    text, ends = remove_spans(answer, order)
    places = dict(zip(order, ends, strict=True))
    marks = [places[one.start, one.end, one.text] for one in cited.citations]
    bounds = list(islice(_find_bounds(text), _MOST_PIECES + 1))
    closed: dict[int, list[int]] = {place: [] for place in range(len(bounds))}
    for ordinal, mark in enumerate(marks):
        if bounds:
            closed[_find_owner(text, bounds, mark)].append(ordinal)
    for place, (start, end) in enumerate(bounds):
        for piece, ordinals in _cut(text, start, end, closed[place], marks):
            yield _Piece(text=piece, sentence=place, ordinals=ordinals)


def _find_bounds(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for sentence in split_sentences(text):
        start = text.index(sentence, begin)
        begin = start + len(sentence)
        if _says_something(sentence):
            yield start, begin


def _find_owner(text: str, bounds: Sequence[tuple[int, int]], mark: int) -> int:
    """The sentence that a mark closes: the last that begins before it, unless it opens a line with one of its own."""
    before = max((place for place, (start, _) in enumerate(bounds) if start < mark), default=0)
    line_start, line_end = text.rfind("\n", 0, mark) + 1, text.find("\n", mark)
    after = before + 1 if bounds[before][0] < mark else before
    opens = not _says_something(text[max(line_start, mark - _LONGEST_OPENING) : mark])
    has_own = after < len(bounds) and (line_end < 0 or bounds[after][0] < line_end)
    return after if opens and has_own else before


def _cut(
    text: str, start: int, end: int, ordinals: Sequence[int], marks: Sequence[int]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A sentence's pieces, each with the marks that close it; what follows the last marks belongs to them as well."""
    closing: dict[int, list[int]] = {}
    last = seen = start
    has_said = False  # between these two
    for ordinal in ordinals:
        stop = min(max(marks[ordinal], start), end)
        has_said, seen = has_said or _says_something(text[seen:stop]), stop
        # A full stop between two marks makes no piece.
        if not closing or has_said:
            last, has_said = stop, False
        closing.setdefault(last, []).append(ordinal)
    stops = [start, *list(closing)[:-1], end]
    for place, closed in enumerate(closing.values() or [[]]):
        yield text[stops[place] : stops[place + 1]], tuple(closed)


def _says_something(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _pick_marks(said: Set[str], pieces: Sequence[_Piece], keys: Sequence[Set[str]], place: int) -> Iterator[int]:
    """The citations of the piece that a statement was split from, and of others of its sentence that it tells too."""
    left = said - keys[place]
    for other, piece in enumerate(pieces):
        brings, has = len(left & keys[other]), len(said & keys[other])
        is_told = brings >= _MORE * len(keys[other]) and has >= _TOLD * len(keys[other]) and brings > 0
        if other == place or (piece.sentence == pieces[place].sentence and is_told):
            yield from piece.ordinals
