"""A document cut into passages: the pieces of a knowledge base that questions are made from.

The cut follows the structure. A passage never reaches over a heading; within a section, paragraphs, lists and tables
are put together until there is enough to ask about, and one that is too long is divided between its sentences, items or
rows. It is a matter of the section alone, so that an edit changes the passages around it and no others. A passage is a
stretch of its document, letter by letter; the headings it stands under are kept beside it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import Final, Literal

from evalhouse.tasks.datasets.rows import hash_json
from evalhouse.tasks.lexical.split import split_sentences
from evalhouse.tasks.testsets.layout import Block, Layout

Language = Literal["en", "zh"]

SHORTEST: Final = 200  # letters; less is put to what stands before it in the section
ENOUGH: Final = 400  # letters from which on a passage is not made longer
LONGEST: Final = 1200
_HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_WORD = re.compile(r"[^\W\d_\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_CHINESE_SHARE: Final = 0.3  # of the words, of which Chinese has one in two characters
_ITEM = re.compile(r"\s*+(?:[-*+•>]|\d{1,3}[.)])\s")
_BETWEEN_WORDS = re.compile(r"[\W_]+")
_LONGEST_SLUG = 60
_UNNAMED: Final = "text"


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A piece of a document: `text` is `document.text[start : start + len(text)]`.

    `passage_id` names it for good as long as its section keeps its headings; `ordinal` is its place among all passages
    of the source, from 1; `headings` are those of the sections that it stands in, the outermost first.
    """

    passage_id: str
    document_id: str
    ordinal: int
    headings: tuple[str, ...]
    text: str
    start: int
    language: Language

    @cached_property
    def passage_hash(self) -> str:
        """16 hex digits of SHA-256 over headings and text; how the text is broken into lines does not matter."""
        return hash_json([self.headings, " ".join(self.text.split())], 16)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document of the knowledge base: its text as read, and the passages it was cut into, in order."""

    document_id: str
    text: str
    passages: tuple[Passage, ...]

    @cached_property
    def document_hash(self) -> str:
        """16 hex digits that change when a passage does, comes, goes or moves."""
        return hash_json([passage.passage_hash for passage in self.passages], 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Section:
    headings: tuple[str, ...]
    slug: str
    blocks: list[Block]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stretch:
    start: int
    end: int


def cut_document(document_id: str, layout: Layout, *, n_before: int = 0) -> Document:
    """A document with its passages; `n_before` passages of the source stand before it."""
    text, taken = layout.text, set[str]()
    passages: list[Passage] = []
    for section in _cut_sections(layout.blocks):
        for stretch in _pack(text, section.blocks):
            words = text[stretch.start : stretch.end]
            passages.append(
                Passage(
                    passage_id=f"{document_id}#{_number(section.slug, taken)}",
                    document_id=document_id,
                    ordinal=n_before + len(passages) + 1,
                    headings=section.headings,
                    text=words,
                    start=stretch.start,
                    language=find_language(words),
                )
            )
    return Document(document_id=document_id, text=text, passages=tuple(passages))


def find_language(text: str) -> Language:
    """Chinese where a good part of the words is; else English."""
    n_chinese = len(_HAN.findall(text)) / 2
    return "zh" if n_chinese and n_chinese >= _CHINESE_SHARE * (n_chinese + len(_WORD.findall(text))) else "en"


@dataclass(frozen=True, kw_only=True, slots=True)
class SentenceSpan:
    """Where a sentence stands: from `start` to before `end`."""

    start: int
    end: int


def find_sentences(text: str) -> list[SentenceSpan]:
    """Where the sentences of a text stand. A line break ends one only where an item or a row of a table begins or ends:
    the lines of a paragraph may be wrapped."""
    spans: list[SentenceSpan] = []
    end = 0
    unwrapped = _unwrap(text)
    for sentence in split_sentences(unwrapped):
        start = unwrapped.index(sentence, end)
        end = start + len(sentence)
        spans.append(SentenceSpan(start=start, end=end))
    return spans


def _unwrap(text: str) -> str:
    """The text with a space for each line break inside of a paragraph; as long as before."""
    before, *lines = text.split("\n")
    parts = [before]
    for line in lines:
        stays = not before.strip() or not line.strip() or "|" in before or "|" in line or _ITEM.match(line)
        parts += ["\n" if stays else " ", line]
        before = line
    return "".join(parts)


def _cut_sections(blocks: Iterable[Block]) -> Iterator[_Section]:
    """The blocks under each heading, with the headings above it."""
    above: list[Block] = []
    section = _Section(headings=(), slug=_UNNAMED, blocks=[])
    for block in blocks:
        if block.kind != "heading":
            section.blocks.append(block)
            continue
        yield section
        above = [heading for heading in above if heading.level < block.level] + [block]
        slug = "/".join(filter(None, (_make_slug(heading.title or heading.name) for heading in above)))
        headings = tuple(heading.title for heading in above if heading.title)
        section = _Section(headings=headings, slug=slug or _UNNAMED, blocks=[])
    yield section


def _make_slug(title: str) -> str:
    """Words of a heading as part of an id: `Sizes & colours` as `sizes-colours`."""
    return _BETWEEN_WORDS.sub("-", title.casefold()).strip("-")[:_LONGEST_SLUG].strip("-")


def _number(slug: str, taken: set[str]) -> str:
    """The slug, or the first of `slug-2`, `slug-3`, … that is free."""
    name, number = slug, 1
    while name in taken:
        number += 1
        name = f"{slug}-{number}"
    taken.add(name)
    return name


def _pack(text: str, blocks: Sequence[Block]) -> list[_Stretch]:
    """The passages of a section."""
    packed: list[_Stretch] = []
    is_open = False
    for block in blocks:
        pieces = _divide(text, block)
        for piece in pieces:
            if not (is_open and _join(text, packed, piece)):
                packed.append(piece)
            # A lead-in such as `You need:` belongs to what follows it.
            is_lead = len(pieces) == 1 and text[piece.end - 1] in ":："
            is_open = is_lead or packed[-1].end - packed[-1].start < ENOUGH
    if len(packed) > 1 and packed[-1].end - packed[-1].start < SHORTEST:
        last = packed.pop()
        if not _join(text, packed, last):
            packed.append(last)
    return packed


def _join(text: str, packed: list[_Stretch], piece: _Stretch) -> bool:
    """Make the last passage longer by a piece; False where it would be too long, or where something that is not part of
    any passage lies between: a rule, a comment."""
    open_one = packed[-1]
    if piece.end - open_one.start > LONGEST or text[open_one.end : piece.start].strip():
        return False
    packed[-1] = _Stretch(start=open_one.start, end=piece.end)
    return True


def _divide(text: str, block: Block) -> list[_Stretch]:
    """A block in as many pieces of like length as are needed for none to be too long."""
    whole = _trim(text, block.start, block.end)
    length = whole.end - whole.start
    if length <= LONGEST:
        return [whole] if length else []
    parts = list(_list_parts(text, whole, block))
    wanted = length / ceil(length / LONGEST)
    pieces = [parts[0]]
    for part in parts[1:]:
        open_length = pieces[-1].end - pieces[-1].start
        if part.end - pieces[-1].start <= LONGEST and open_length < wanted:
            pieces[-1] = _Stretch(start=pieces[-1].start, end=part.end)
        else:
            pieces.append(part)
    return pieces


def _list_parts(text: str, whole: _Stretch, block: Block) -> Iterator[_Stretch]:
    """The smallest parts of a block that is too long: items, rows or sentences; of these, where one alone is too long,
    sentences, lines and at last words."""
    if block.kind != "text":
        places = [whole.start, *(cut for cut in block.cuts if whole.start < cut < whole.end), whole.end]
        parts = [_trim(text, start, end) for start, end in pairwise(places)]
    else:
        parts = [whole]
    for part in parts:
        if part.end - part.start <= LONGEST:
            yield from [part] if part.end > part.start else []
            continue
        for sentence in find_sentences(text[part.start : part.end]):
            yield from _cut_words(text, _Stretch(start=part.start + sentence.start, end=part.start + sentence.end))


def _cut_words(text: str, sentence: _Stretch) -> Iterator[_Stretch]:
    """A sentence that is too long, cut at the last line break, else the last space, that leaves each part short
    enough; anywhere where there is none."""
    start = sentence.start
    while sentence.end - start > LONGEST:
        limit = start + LONGEST
        places = [text.rfind(mark, start + SHORTEST, limit) for mark in ("\n", " ")]
        piece = _trim(text, start, next((place for place in places if place > 0), limit))
        yield piece
        start = _trim(text, piece.end, sentence.end).start
    yield _Stretch(start=start, end=sentence.end)


def _trim(text: str, start: int, end: int) -> _Stretch:
    """The same stretch without white space at its ends."""
    words = text[start:end]
    before = len(words) - len(words.lstrip())
    return _Stretch(start=start + before, end=max(start + before, start + len(words.rstrip())))
