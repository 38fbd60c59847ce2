"""Texts and items in parts that fit into a request, with nothing lost.

Cuts fall between paragraphs where they can, else between sentences, else at commas, between words and at last between
characters. What belongs together (a code fence, a table, a list, a heading or a line that ends in a colon with what
follows it) stays together as long as one request holds it.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from evalhouse.prompts import Item
from evalhouse.tasks.asking.usage import ID_TOKENS, estimate_items, estimate_size, estimate_tokens
from evalhouse.tasks.judge.errors import TooLong
from evalhouse.tasks.lexical.split import split_sentences

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_FENCE = re.compile(r"\s*(```|~~~)")
_HEADING = re.compile(r"\s*(?:#{1,6}\s|\*\*[^*\n]+\*\*\s*$)")
_BULLET = re.compile(
    r"\s*(?:[-*+]\s|[•●▪◦]|[（(]?(?:\d{1,3}|[A-Za-z])[.)]\s|[（(]?(?:\d{1,3}|[一二三四五六七八九十]{1,3})[）、])"
)
_ROW = re.compile(r"\s*(?:[|>#]|```|~~~)")
_BREAK = re.compile(r"(?<=\S)[ \t]*(?:\r\n|\r|\n)(?=[ \t]*\S)")
_ENDS = tuple(".!?。！？…:：;；|")
_CLOSERS = "\"'”’」』)）*_ \t"
_WRAPPED = 60  # characters from which a line that ends no sentence is taken for a wrapped one
_CLAUSE = re.compile(r".+?(?:[,;:](?=\s)|[，；：]|\n|\Z)", re.DOTALL)
_SPACED_WORD = re.compile(r"[\s、]*[^\s、]+[\s、]*|[\s、]+")

# Beside parts smaller than this it is the instructions, or the question, that the window does not hold.
_LEAST_PART = 64

_Cut = Callable[[str], Iterable[str]]
T = TypeVar("T")


def leave_room(most: int, *beside: str) -> int:
    """What is left of `most` tokens beside texts that go into every request whole; half of it at the very least."""
    return max(most - sum(estimate_tokens(text) for text in beside), most // 2)


def split_by_tokens(items: Sequence[Item], most: int) -> list[list[Item]]:
    """Items in order, in groups of at most `most` tokens; an item larger than that has a group of its own, whole.

    Items of the same id, which are parts of one, never meet in a group.
    """
    groups: list[list[Item]] = []
    filled = 0
    for item in items:
        size = estimate_items([item])
        if not groups or filled + size > most or item.id == groups[-1][-1].id:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += size
    return groups


def split_text(text: str, most: int) -> list[str]:
    """A text in parts of at most `most` (at least 1) estimated tokens; joined they are the text again."""
    if estimate_tokens(text) <= most:
        return [text]
    parts: list[str] = []
    part: list[str] = []
    n_bytes, is_ascii = 0, True
    for unit in _cut(text, most, _CUTS):
        unit_bytes, both_ascii = len(unit.encode()), is_ascii and unit.isascii()
        if part and estimate_size(n_bytes + unit_bytes, is_ascii=both_ascii) > most:
            parts.append("".join(part))
            part, n_bytes, both_ascii = [], 0, unit.isascii()
        part.append(unit)
        n_bytes, is_ascii = n_bytes + unit_bytes, both_ascii
    return [*parts, "".join(part)]


def split_to_judge(text: str, most: int) -> list[str]:
    """The parts of a text that hold more than blanks; a text that fits is one part, whatever it holds."""
    parts = split_text(text, most)
    return parts if len(parts) == 1 else [part for part in parts if part.strip()] or parts[:1]


async def ask_in_parts(most: int, ask: Callable[[int], Awaitable[T]]) -> T:
    """What `ask` gives of parts of at most `most` tokens, or of smaller ones where the model's window holds no such.

    Raises TooLong where parts so small are refused that their own length cannot be the reason.
    """
    while True:
        try:
            return await ask(most)
        except TooLong:
            most //= 2
            if most < _LEAST_PART:
                raise


def set_apart(items: Sequence[Item], *, alone: bool) -> list[Sequence[Item]]:
    """Items that are judged together, as groups: one for all of them, or one for each where they are judged alone."""
    return [[item] for item in items] if alone else [items]


def split_items(items: Sequence[Item], most: int) -> list[list[Item]]:
    """Items in order, in groups of at most `most` tokens, for items that may be judged in parts.

    The text of an item that is larger than a group is split over several groups, under the same id in each.
    """
    room = max(most - ID_TOKENS, 1)
    pieces = [Item(id=item.id, text=part) for item in items for part in split_to_judge(item.text, room)]
    return split_by_tokens(pieces, most)


def _cut(text: str, most: int, cuts: Sequence[_Cut]) -> Iterator[str]:
    """The largest units of a text that fit, in order."""
    if not cuts or estimate_tokens(text) <= most:
        yield text
        return
    for piece in cuts[0](text):
        yield from _cut(piece, most, cuts[1:])


def _cut_blocks(text: str) -> Iterator[str]:
    return _cut_at_blank_lines(text, keeps_whole=True)


def _cut_paragraphs(text: str) -> Iterator[str]:
    return _cut_at_blank_lines(text, keeps_whole=False)


def _cut_at_blank_lines(text: str, *, keeps_whole: bool) -> Iterator[str]:
    """Paragraphs with the blank lines behind them; `keeps_whole` is for those within a fence or a list."""
    block: list[str] = []
    fence, last = "", ""  # the mark that opened a fence, and the last line that is not blank
    for line in _LINE.findall(text):
        begins = bool(block) and bool(line.strip()) and not block[-1].strip()
        if begins and not (_leads_on(last) or fence or (keeps_whole and _goes_on_with_list(block, line))):
            yield "".join(block)
            block = []
        mark = _FENCE.match(line) if keeps_whole else None
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        block.append(line)
        last = line if line.strip() else last
    if block:
        yield "".join(block)


def _leads_on(line: str) -> bool:
    """Whether a line is worth little without what follows it."""
    return _HEADING.match(line) is not None or line.rstrip().rstrip(_CLOSERS).endswith((":", "："))


def _goes_on_with_list(block: Sequence[str], line: str) -> bool:
    """Whether a line behind a blank one belongs to the list before it: another item, or more of the last one."""
    return (line[0] in " \t" or _BULLET.match(line) is not None) and any(_BULLET.match(before) for before in block)


def _cut_sentences(text: str) -> Iterator[str]:
    """Sentences with the space behind them; a line break ends one unless the text was merely wrapped there."""
    unwrapped = _BREAK.sub(_unwrap, text)
    start = end = 0
    for sentence in split_sentences(unwrapped):
        begin = unwrapped.index(sentence, end)
        end = begin + len(sentence)
        if start < begin and text[start:begin].strip():
            yield text[start:begin]
            start = begin
    yield text[start:]


def _unwrap(found: re.Match[str]) -> str:
    """As many blanks in place of a line break in the middle of a sentence; elsewhere the line break."""
    text, start, end = found.string, found.start(), found.end()
    line = text[max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1 : start]
    if line.rstrip(_CLOSERS).endswith(_ENDS) or _BULLET.match(text, end) or _ROW.match(text, end):
        return found[0]
    following = text[end : end + _WRAPPED].lstrip(" \t")[:1]
    is_wrapped = following.islower() or line[-1] in ",，、" or len(line) >= _WRAPPED
    return " " * len(found[0]) if is_wrapped else found[0]


def _cut_clauses(text: str) -> Iterator[str]:
    return (found[0] for found in _CLAUSE.finditer(text))


def _cut_words(text: str) -> Iterator[str]:
    return (found[0] for found in _SPACED_WORD.finditer(text))


_CUTS: tuple[_Cut, ...] = (_cut_blocks, _cut_paragraphs, _cut_sentences, _cut_clauses, _cut_words, list)
