"""Cutting a document into passages, the pieces of a knowledge base that questions are made from.

The cut follows the structure: a passage never crosses a heading; within a section, paragraphs, lists and tables are
joined until there is enough to ask about, and a block that is too long is divided between its sentences, items or rows.
It depends on the section alone, so that an edit changes the passages around it and no others. A passage is a stretch of
its document, character by character; the headings above it are stored beside it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import ceil
from typing import Final, Literal

from markdown_it import MarkdownIt

from evalhouse.tasks.datasets.rows import hash_json
from evalhouse.tasks.lexical.split import split_sentences, strip_markup, unwrap_lines

Language = Literal["en", "zh"]

SHORTEST: Final = 200  # characters; a shorter passage is joined to the one before it in the section
ENOUGH: Final = 400  # characters; a passage of this length is not extended
LONGEST: Final = 1200
_HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_KANA = re.compile("[\u3041-\u30fa]")
_WORD = re.compile(r"[^\W\d_\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_CHINESE_SHARE: Final = 0.3  # of the words
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_MIN_PROSE: Final = 4  # words of a passage beside its code, from which on they decide its language
_BETWEEN_WORDS = re.compile(r"[\W_]+")
_LONGEST_SLUG = 60
_UNNAMED: Final = "text"
_KINDS: Final[dict[str, Literal["text", "list", "table", "code"]]] = {
    "paragraph_open": "text",
    "blockquote_open": "text",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "table_open": "table",
    "fence": "code",
    "code_block": "code",
    "html_block": "text",
}
_FRONT_MARKS: Final = {"---": ("---", "..."), "+++": ("+++",)}
_MEMBER = re.compile(r"[\w-]++\s*+[:=]")
_TITLE = re.compile(r"title\s*[:=]\s*(\S.*)")
_TAG = re.compile(r"<[^<>]*+>")
_LETTER = re.compile(r"[^\W_]")
_ANCHOR = re.compile(r"\{\s?[#.][^{}]*+\}$")
_PAGE = re.compile(r"<!-- PDF (page \d+) -->")  # written by the reader of PDF
_PARAGRAPH_BREAK = re.compile(r"\n[^\S\n]*+\n")


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A piece of a document: `text` is `document.text[start : start + len(text)]`.

    `passage_id` stays the same as long as its section keeps its headings; `ordinal` is its place among all passages of
    the source, from 1; `headings` are the headings above it, the outermost first.
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
        """16 hex digits of SHA-256 over the text; neither the headings above it nor its line breaks matter."""
        return hash_json(" ".join(self.text.split()), 16)

    def as_context(self, words: str | None = None) -> str:
        """Return the passage, or some words of it, as a judge gets it: under its headings, which are one line."""
        heading = " > ".join(self.headings) or self.document_id
        return f"{' '.join(heading.split())}\n{self.text if words is None else words}"


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document of the knowledge base: its text, and the passages it was cut into, in order."""

    document_id: str
    text: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A stretch of a document's text, from `start` to before `end`.

    `cuts` are the places where it may be cut when it is too long: the starts of items, rows or lines of code. A text
    is cut between its sentences. A heading has a `level` from 1 (0: the title of the document) and its words without
    markup in `title`; one with a `name` but no title begins a section that has no heading, such as a page of a PDF.
    """

    start: int
    end: int
    kind: Literal["heading", "text", "list", "table", "code"]
    cuts: tuple[int, ...] = ()
    level: int = 0
    title: str = ""
    name: str = ""


def cut_markdown(document_id: str, text: str, *, n_before: int = 0) -> Document:
    """Return a document with its passages; `n_before` passages of the source come before it.

    Front matter is not part of the text, but a title in it that no heading repeats is the heading above all others.
    """
    title = ""
    first_line, _, rest = text.partition("\n")
    closing = _FRONT_MARKS.get(first_line.rstrip(), ())
    lines = rest.split("\n")
    last = next((place for place, line in enumerate(lines) if line.rstrip() in closing), None)
    first_entry = next((line for line in lines if line.strip()), "")
    if last is not None and _MEMBER.match(first_entry):  # else a rule above a text
        title = next((match[1] for line in lines[:last] if (match := _TITLE.match(line))), "")
        title = title.strip().strip("\"'").strip()
        text = "\n".join(lines[last + 1 :])
    blocks = list(find_blocks(text))
    if title and not any(block.title == title for block in blocks):
        blocks.insert(0, Block(start=0, end=0, kind="heading", level=0, title=title))
    return _cut(document_id, text, blocks, n_before)


def cut_plain(document_id: str, text: str, *, n_before: int = 0) -> Document:
    """Return a document of plain text, in which empty lines separate paragraphs."""
    places = [0, *(match.start() for match in _PARAGRAPH_BREAK.finditer(text)), len(text)]
    blocks = [Block(start=start, end=end, kind="text") for start, end in pairwise(places) if text[start:end].strip()]
    return _cut(document_id, text, blocks, n_before)


def _cut(document_id: str, text: str, blocks: Sequence[Block], n_before: int) -> Document:
    """Return the document with the passages that its blocks, section by section, are joined or divided to."""
    taken = set[str]()
    passages: list[Passage] = []
    prose = _CODE.sub(lambda code: " " * len(code[0]), text)  # as long as the text
    for block in blocks:
        if block.kind == "code":
            prose = prose[: block.start] + " " * (block.end - block.start) + prose[block.end :]
    language = find_language(prose if _LETTER.search(prose) else text)
    for headings, name, inside in _list_sections(blocks):
        stretches: list[range] = []
        is_open = False
        for block in inside:
            pieces = _divide(text, block)
            for piece in pieces:
                if not (is_open and _join(text, stretches, piece)):
                    stretches.append(piece)
                # A lead-in such as `You need:` belongs to the block after it.
                is_lead = len(pieces) == 1 and text[piece.stop - 1] in ":："
                is_open = is_lead or len(stretches[-1]) < ENOUGH
        if len(stretches) > 1 and len(stretches[-1]) < SHORTEST:
            last = stretches.pop()
            if not _join(text, stretches, last):
                stretches.append(last)
        for stretch in stretches:
            words, own = text[stretch.start : stretch.stop], prose[stretch.start : stretch.stop]
            number, slug = 1, name
            while slug in taken:
                number += 1
                slug = f"{name}-{number}"
            taken.add(slug)
            passages.append(
                Passage(
                    passage_id=f"{document_id}#{slug}",
                    document_id=document_id,
                    ordinal=n_before + len(passages) + 1,
                    headings=headings,
                    text=words,
                    start=stretch.start,
                    language=find_language(own) if count_words(own) >= _MIN_PROSE else language,
                )
            )
    return Document(document_id=document_id, text=text, passages=tuple(passages))


def find_blocks(text: str) -> Iterator[Block]:
    """Yield the outermost blocks of Markdown; a heading inside a quotation or a list is part of that block.

    Comments, link definitions and rules are left out.
    """
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])  # the insides of blocks are not needed
    tokens = parser.parse(text)
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    for place, token in enumerate(tokens):
        if token.level or token.map is None:
            continue
        first, after = token.map
        last = max(first, after - 1)
        start, end = starts[first], starts[last] + len(lines[last])
        kind = _KINDS.get(token.type)
        if token.type == "heading_open":
            title = _ANCHOR.sub("", strip_markup(tokens[place + 1].content.strip())).strip()
            yield Block(start=start, end=end, kind="heading", level=int(token.tag[1]), title=title)
        elif token.type == "html_block" and (page := _PAGE.match(text[start:end])):
            yield Block(start=start, end=start, kind="heading", level=1, name=page[1])
        elif (token.type == "html_block" and text[start:end].lstrip().startswith("<!--")) or (
            token.type == "html_block" and not _LETTER.search(_TAG.sub("", text[start:end]))
        ):
            continue
        elif kind == "code":
            yield Block(start=start, end=end, kind=kind, cuts=tuple(starts[first + 1 : after]))
        elif kind is not None:
            # An item of this list or a row of this table; the items of lists within belong to them.
            parts = ("tr_open",) if kind == "table" else ("list_item_open",)
            level = token.level + (2 if kind == "table" else 1)
            end_of_block = next(
                (later for later in range(place + 1, len(tokens)) if tokens[later].level == token.level), len(tokens)
            )
            cuts = [
                starts[part.map[0]]
                for part in tokens[place + 1 : end_of_block]
                if part.type in parts and part.level == level and part.map
            ]
            yield Block(start=start, end=end, kind=kind, cuts=tuple(cuts))


def find_language(text: str) -> Language:
    """Return Chinese for a text with a good share of Chinese words, else English, for any language."""
    n_chinese = len(_HAN.findall(text)) / 2
    is_japanese = len(_KANA.findall(text)) > n_chinese
    return "zh" if n_chinese and not is_japanese and n_chinese >= _CHINESE_SHARE * count_words(text) else "en"


def count_words(text: str) -> float:
    """Return the number of words of a text, of which Chinese has one in two characters."""
    return len(_HAN.findall(text)) / 2 + len(_WORD.findall(text))


def find_sentences(text: str) -> list[range]:
    """Return the places of the sentences of a text, whose paragraphs may be wrapped."""
    unwrapped = unwrap_lines(text)
    spans: list[range] = []
    end = 0
    for sentence in split_sentences(unwrapped):
        start = unwrapped.index(sentence, end)
        end = start + len(sentence)
        spans.append(range(start, end))
    return spans


def _list_sections(blocks: Iterable[Block]) -> Iterator[tuple[tuple[str, ...], str, list[Block]]]:
    """Yield the headings of each section, from the outermost on, its name in ids, and the blocks under them."""
    above: list[Block] = []
    headings: tuple[str, ...] = ()
    slug, inside = _UNNAMED, list[Block]()
    for block in blocks:
        if block.kind != "heading":
            inside.append(block)
            continue
        yield headings, slug, inside
        above = [heading for heading in above if heading.level < block.level] + [block]
        # `Sizes & colours` becomes `sizes-colours`.
        words = (_BETWEEN_WORDS.sub("-", (heading.title or heading.name).casefold()) for heading in above)
        slug = "/".join(filter(None, (word.strip("-")[:_LONGEST_SLUG].strip("-") for word in words))) or _UNNAMED
        headings, inside = tuple(heading.title for heading in above if heading.title), []
    yield headings, slug, inside


def _join(text: str, stretches: list[range], piece: range) -> bool:
    """Extend the last stretch by a piece; return False if it would be too long or if text without a passage, such as a
    rule or a comment, lies between the two."""
    last = stretches[-1]
    if piece.stop - last.start > LONGEST or text[last.stop : piece.start].strip():
        return False
    stretches[-1] = range(last.start, piece.stop)
    return True


def _divide(text: str, block: Block) -> list[range]:
    """Return a block in as many pieces of similar length as are needed for none to be too long.

    It is cut between items, rows or sentences; an item or row that is too long alone, between its sentences; a sentence
    at the last line break, else the last space, that leaves each piece short enough.
    """
    whole = _trim(text, block.start, block.end)
    if len(whole) <= LONGEST:
        return [whole] if whole else []
    places = [whole.start, *(cut for cut in block.cuts if whole.start < cut < whole.stop), whole.stop]
    parts: list[range] = []
    for part in (_trim(text, start, end) for start, end in pairwise(places)):
        if len(part) <= LONGEST:
            parts += [part] if part else []
            continue
        for sentence in find_sentences(text[part.start : part.stop]):
            start, end = part.start + sentence.start, part.start + sentence.stop
            while end - start > LONGEST:
                limit = start + LONGEST
                breaks = [text.rfind(mark, start + SHORTEST, limit) for mark in ("\n", " ")]
                parts.append(_trim(text, start, next((place for place in breaks if place > 0), limit)))
                start = _trim(text, parts[-1].stop, end).start
            parts.append(range(start, end))
    target = len(whole) / ceil(len(whole) / LONGEST)
    pieces = [parts[0]]
    for part in parts[1:]:
        if part.stop - pieces[-1].start <= LONGEST and len(pieces[-1]) < target:
            pieces[-1] = range(pieces[-1].start, part.stop)
        else:
            pieces.append(part)
    return pieces


def _trim(text: str, start: int, end: int) -> range:
    """Return the stretch without white space at its ends."""
    words = text[start:end]
    before = len(words) - len(words.lstrip())
    return range(start + before, max(start + before, start + len(words.rstrip())))
