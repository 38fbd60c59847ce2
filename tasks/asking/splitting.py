"""Texts and items in parts that fit into a request, with nothing lost.

Cuts fall between paragraphs where they can, else between sentences, else at commas, between words and at last between
characters as a reader sees them, each with its accents and vowel signs. A code fence, a table, a list, and a heading
or a line that ends in a colon with the text behind it are kept together as long as one request holds them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from evalhouse.prompts import Item
from evalhouse.tasks.asking.usage import ID_TOKENS, estimate_items, estimate_size, estimate_tokens
from evalhouse.tasks.judge.protocol import TooLong
from evalhouse.tasks.lexical.split import split_sentences

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_FENCE = re.compile(r"\s*(```|~~~)")
CODE = re.compile(r"(?:```|~~~).*?(?:```|~~~|\Z)", re.DOTALL)
# A heading, or words that announce a list: no statement.
HEADING = re.compile(r"^\s*#{1,6}\s|[:：][\s*_]*$")
_HEADING = re.compile(r"\s*(?:#{1,6}\s|\*\*[^*\n]+\*\*\s*$)")
_BULLET = re.compile(
    r"\s*(?:[-*+]\s|[•●▪◦]|[（(]?(?:\d{1,3}|[A-Za-z])[.)]\s|[（(]?(?:\d{1,3}|[一二三四五六七八九十]{1,3})[）、])"
)
_ROW = re.compile(r"\s*(?:[|>#]|```|~~~)")
_BREAK = re.compile(r"(?<=\S)[ \t]*(?:\r\n|\r|\n)(?=[ \t]*\S)")
# Marks that end a sentence in other scripts: Armenian, Arabic, Urdu, Syriac, Indic, Tibetan, Burmese, Ethiopic, Khmer,
# and the full stops of Japanese in full and in half width.
_OTHER_ENDS = (
    "\u0589\u061d-\u061f\u06d4\u0700-\u0702\u0964\u0965\u0f0d\u0f0e\u104b\u1362\u1367\u1368\u17d4\u17d5\uff0e\uff61"
)
_ENDS = re.compile(rf"[.!?。！？…:：;；|{_OTHER_ENDS}]\Z")
_CLOSERS = "\"'”’」』)）*_ \t"
_WRAPPED = 60  # characters from which a line that ends no sentence is taken for a wrapped one
_OTHER_SENTENCE = re.compile(rf".+?(?:[{_OTHER_ENDS}]++[{re.escape(_CLOSERS)}\s]*+|\Z)", re.DOTALL)
_CLAUSE = re.compile(r".+?(?:[,;:](?=\s)|[，；：،؛၊፣፤]|\n|\Z)", re.DOTALL)
_SPACED_WORD = re.compile(r"[\s、]*[^\s、]+[\s、]*|[\s、]+")

# Beside parts smaller than this it is the instructions, or the question, that the window does not hold.
_MIN_PART = 64


def leave_room(max_tokens: int, *beside: str) -> int:
    """Return what is left of a request's tokens beside texts that go into each one whole; at least half of them."""
    return max(max_tokens - sum(estimate_tokens(text) for text in beside), max_tokens // 2)


def shrink_room(room: int, error: TooLong) -> int:
    """Return half of a request's room, which the model's window did not hold.

    Raises the error for parts so small that their length cannot be the reason.
    """
    if room // 2 < _MIN_PART:
        raise error
    return room // 2


def split_by_tokens(items: Sequence[Item], max_tokens: int) -> list[list[Item]]:
    """Return items in order, in groups of so many tokens; an item larger than that has a separate group, whole.

    Items of the same id, which are parts of one, never meet in a group.
    """
    groups: list[list[Item]] = []
    filled = 0
    for item in items:
        size = estimate_items([item])
        if not groups or filled + size > max_tokens or item.id == groups[-1][-1].id:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += size
    return groups


def split_items(items: Sequence[Item], max_tokens: int) -> list[list[Item]]:
    """Return items in order, in groups of so many tokens, for items that may be judged in parts.

    The text of an item that is larger than a group is split over several groups, under the same id in each.
    """
    room = max(max_tokens - ID_TOKENS, 1)
    pieces = [Item(id=item.id, text=part) for item in items for part in split_to_judge(item.text, room)]
    return split_by_tokens(pieces, max_tokens)


def set_apart(items: Sequence[Item], *, alone: bool) -> list[Sequence[Item]]:
    """Return items that are judged together as groups: one for all of them, or one for each that is judged alone."""
    return [[item] for item in items] if alone else [items]


def split_text(text: str, max_tokens: int) -> list[str]:
    """Return a text in parts of at most `max_tokens` (at least 1) estimated tokens; joined they are the text again."""
    if estimate_tokens(text) <= max_tokens:
        return [text]
    parts: list[str] = []
    part: list[str] = []
    n_bytes, is_ascii = 0, True
    for unit in _cut(text, max_tokens, _CUTS):
        unit_bytes, both_ascii = len(unit.encode()), is_ascii and unit.isascii()
        if part and estimate_size(n_bytes + unit_bytes, is_ascii=both_ascii) > max_tokens:
            parts.append("".join(part))
            part, n_bytes, both_ascii = [], 0, unit.isascii()
        part.append(unit)
        n_bytes, is_ascii = n_bytes + unit_bytes, both_ascii
    return [*parts, "".join(part)]


def split_to_judge(text: str, max_tokens: int) -> list[str]:
    """Return the parts of a text that hold more than blanks; a text that fits is one part, with any content."""
    parts = split_text(text, max_tokens)
    return parts if len(parts) == 1 else [part for part in parts if part.strip()] or parts[:1]


def _cut(text: str, max_tokens: int, cuts: "Sequence[Callable[[str], Iterable[str]]]") -> Iterator[str]:
    """Yield the largest units of a text that fit, in order."""
    if not cuts or estimate_tokens(text) <= max_tokens:
        yield text
        return
    for piece in cuts[0](text):
        yield from _cut(piece, max_tokens, cuts[1:])


def _cut_at_blank_lines(text: str, *, keeps_whole: bool) -> Iterator[str]:
    """Yield paragraphs with the blank lines behind them; with `keeps_whole` those within a fence or a list as one."""
    block: list[str] = []
    fence, last = "", ""  # the mark that opened a fence, and the last line that is not blank
    for line in _LINE.findall(text):
        if block and line.strip() and not block[-1].strip():
            # A heading, or a line that ends in a colon, is worth little without the text behind it.
            leads_on = _HEADING.match(last) or last.rstrip().rstrip(_CLOSERS).endswith((":", "："))
            # Behind a blank line a list continues with another item, or with more of the last one.
            is_listed = keeps_whole and (line[0] in " \t" or _BULLET.match(line)) and any(map(_BULLET.match, block))
            if not (leads_on or fence or is_listed):
                yield "".join(block)
                block = []
        mark = _FENCE.match(line) if keeps_whole else None
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        block.append(line)
        last = line if line.strip() else last
    if block:
        yield "".join(block)


def _cut_sentences(text: str) -> Iterator[str]:
    """Yield sentences with the space behind them; a line break ends one unless the text was merely wrapped there."""

    def unwrap(match: re.Match[str]) -> str:
        """Replace a line break in the middle of a sentence by as many blanks."""
        start, end = match.start(), match.end()
        line = text[max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1 : start]
        if _ENDS.search(line.rstrip(_CLOSERS)) or _BULLET.match(text, end) or _ROW.match(text, end):
            return match[0]
        following = text[end : end + _WRAPPED].lstrip(" \t")[:1]
        is_wrapped = following.islower() or line[-1] in ",，、" or len(line) >= _WRAPPED
        return " " * len(match[0]) if is_wrapped else match[0]

    unwrapped = _BREAK.sub(unwrap, text)
    start = end = 0
    for sentence in split_sentences(unwrapped):
        begin = unwrapped.index(sentence, end)
        end = begin + len(sentence)
        if start < begin and text[start:begin].strip():
            yield text[start:begin]
            start = begin
    yield text[start:]


def _cut_characters(text: str) -> list[str]:
    """Return what a reader sees as one character each: a letter with its marks, an emoji with its modifiers, a flag."""
    import regex  # noqa: PLC0415  # few texts have a word that is longer than a request

    characters: list[str] = regex.findall(r"\X", text)
    return characters


# From the largest units to the smallest: blocks, paragraphs, sentences, clauses, words, characters, and code points
# where a character has more marks than a request holds.
_CUTS: tuple[Callable[[str], Iterable[str]], ...] = (
    partial(_cut_at_blank_lines, keeps_whole=True),
    partial(_cut_at_blank_lines, keeps_whole=False),
    _cut_sentences,
    _OTHER_SENTENCE.findall,
    _CLAUSE.findall,
    _SPACED_WORD.findall,
    _cut_characters,
    list,
)
