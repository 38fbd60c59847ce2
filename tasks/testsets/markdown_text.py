"""Markdown and plain text as a layout. Of Markdown the blocks are markdown-it's, by CommonMark with tables; the text
stays as it was written, marks included, so that a person finds a quotation in the file."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from evalhouse.tasks.lexical.split import strip_markup
from evalhouse.tasks.testsets.layout import Block, BlockKind, Layout

_KINDS: Final[dict[str, BlockKind]] = {
    "paragraph_open": "text",
    "blockquote_open": "text",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "table_open": "table",
    "fence": "code",
    "code_block": "code",
    "html_block": "text",
}
_PARTS = frozenset({"list_item_open", "tr_open"})
_FRONT_MARKS: Final = {"---": ("---", "..."), "+++": ("+++",)}
_MEMBER = re.compile(r"[\w-]++\s*+[:=]")
_TITLE = re.compile(r"title\s*[:=]\s*(\S.*)")
_TAG = re.compile(r"<[^<>]*+>")
_LETTER = re.compile(r"[^\W_]")
_ANCHOR = re.compile(r"\{\s?[#.][^{}]*+\}$")
_PARAGRAPH_BREAK = re.compile(r"\n[^\S\n]*+\n")


@cache
def _make_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])  # what stands inside a block is not looked at
    return parser


def read_markdown(text: str) -> Layout:
    """Its headings, paragraphs, lists, tables and code. Front matter is left out, save for a title that no heading
    repeats; so are comments, link definitions and rules."""
    title, text = _cut_front_matter(text)
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    ends = [start + len(line) for start, line in zip(starts, lines, strict=False)]
    blocks = list(_read_blocks(_make_parser().parse(text), text, starts, ends))
    if title and not any(block.title == title for block in blocks):
        blocks.insert(0, Block(start=0, end=0, kind="heading", level=0, title=title))
    return Layout(text=text, blocks=tuple(blocks))


def read_plain(text: str) -> Layout:
    """The paragraphs of a text without marks: what stands between empty lines."""
    borders = [match.start() for match in _PARAGRAPH_BREAK.finditer(text)]
    places = [0, *borders, len(text)]
    stretches = [(start, end) for start, end in pairwise(places) if text[start:end].strip()]
    return Layout(text=text, blocks=tuple(Block(start=start, end=end, kind="text") for start, end in stretches))


def _read_blocks(tokens: Sequence[Token], text: str, starts: list[int], ends: list[int]) -> Iterator[Block]:
    """The outermost blocks; headings inside of quotations and lists are words of these."""
    for place, token in enumerate(tokens):
        if token.level or token.map is None:
            continue
        first, after = token.map
        start, end = starts[first], ends[max(first, after - 1)]
        if token.type == "heading_open":
            title = _ANCHOR.sub("", strip_markup(tokens[place + 1].content.strip())).strip()
            yield Block(start=start, end=end, kind="heading", level=int(token.tag[1]), title=title)
            continue
        kind = _KINDS.get(token.type)
        if kind is None or (token.type == "html_block" and not _says_something(text[start:end])):
            continue
        if kind == "code":
            cuts = starts[first + 1 : after]
        else:
            cuts = [starts[part.map[0]] for part in _list_parts(tokens, place) if part.map]
        yield Block(start=start, end=end, kind=kind, cuts=tuple(cuts))


def _says_something(markup: str) -> bool:
    """Whether a block of HTML is more than tags or a comment."""
    is_comment = markup.lstrip().startswith("<!--")
    return not is_comment and _LETTER.search(_TAG.sub("", markup)) is not None


def _list_parts(tokens: Sequence[Token], opening: int) -> Iterator[Token]:
    """The items of the list, or the rows of the table, that opens there."""
    level = tokens[opening].level
    for token in tokens[opening + 1 :]:
        if token.level == level:
            return
        if token.type in _PARTS and (token.type == "tr_open" or token.level == level + 1):
            yield token


def _cut_front_matter(text: str) -> tuple[str, str]:
    """The title in the metadata before a text, "" for none, and the text after them."""
    first, _, rest = text.partition("\n")
    closing = _FRONT_MARKS.get(first.rstrip())
    if closing is None:
        return "", text
    lines = rest.split("\n")
    if not _MEMBER.match(next((line for line in lines if line.strip()), "")):
        return "", text  # a rule above a text
    last = next((place for place, line in enumerate(lines) if line.rstrip() in closing), None)
    if last is None:
        return "", text
    found = next((match[1] for line in lines[:last] if (match := _TITLE.match(line))), "")
    return found.strip().strip("\"'").strip(), "\n".join(lines[last + 1 :])
