"""A PDF as a layout: its lines put together to paragraphs, under the titles of its outline where it has one, else page
by page.

pypdf reads the lines; a PDF knows no paragraphs. So a line goes on in the next where it is nearly as long as the
longest or ends in the middle of a sentence, also over the end of a page; and what stands at the edge of most pages is
not part of the text.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unicodedata import east_asian_width, normalize

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from evalhouse.tasks.testsets.errors import Note, UnreadableFile
from evalhouse.tasks.testsets.layout import Layout, LayoutWriter
from evalhouse.warehouse.messages import list_names

# A file that is broken may break the reader in any of these ways.
_BROKEN: Final = (PyPdfError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
                  NotImplementedError)  # fmt: skip
_GOES_ON: Final = 0.6  # of the width of a full line
_EDGE_LINES: Final = 2
_LEAST_PAGES: Final = 3  # from which on lines at the edges are compared
_DIGITS = re.compile(r"\d+")
_ITEM = re.compile(r"(?:[-*•●○▪‣·–]|\d{1,3}[.)、]|[（(]\d{1,2}[)）])\s*")
_HAN = "[\u3400-\u9fff\uf900-\ufaff\u3001-\u303f\uff00-\uffef]"
_GAP = re.compile(f"(?<={_HAN})[^\\S\\n]++(?={_HAN})")
_ENDS = re.compile(r"[.!?。！？:：；;…][\"'”’」』)）\]]*+$")
# Ligatures and radicals that fonts put in the place of letters and characters; codes that are no letters at all.
_PLAIN: Final[dict[int, str | None]] = {
    **{code: normalize("NFKC", chr(code)) for code in (*range(0xFB00, 0xFB07), *range(0x2E80, 0x2FD6))},
    **dict.fromkeys((*range(9), *range(0xD800, 0xE000), 0xFFFD)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    text: str
    page: int  # from 0
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Title:
    """An entry of the outline."""

    text: str
    page: int
    level: int


def read_pdf(path: Path, note: Note) -> Layout:
    """The layout of a PDF; `note` is given a line where some pages have no text. Raises UnreadableFile."""
    try:
        with _quiet():
            reader = PdfReader(path)
            if reader.is_encrypted and not reader.decrypt(""):
                raise UnreadableFile("locked with a password", "save it without a password")
            pages = [_read_lines(page.extract_text(), number) for number, page in enumerate(reader.pages)]
            titles = list(_list_titles(reader, reader.outline, 1))
    except _BROKEN as error:
        raise UnreadableFile(f"cannot be read as PDF: {error}", "save or download it again") from error
    blank = [str(number) for number, lines in enumerate(pages, start=1) if not lines]
    if len(blank) == len(pages):
        raise UnreadableFile("no text, only pictures of it", "have the text of scanned pages recognised (OCR) first")
    if blank:
        note(f"no text on page {list_names(blank, 5)}")
    return _Assembly(_drop_edges(pages), titles).assemble()


@contextmanager
def _quiet() -> Iterator[None]:
    """pypdf logs what it can cope with."""
    logger = logging.getLogger("pypdf")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _read_lines(text: str, page: int) -> list[_Line]:
    plain = _GAP.sub("", text.translate(_PLAIN))
    lines = (" ".join(line.split()) for line in plain.splitlines())
    return [_Line(text=line, page=page, width=_measure(line)) for line in lines if line]


def _measure(text: str) -> int:
    """The width of a line in letters; a Chinese character takes that of two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _list_titles(reader: PdfReader, entries: Sequence[Any], level: int) -> Iterator[_Title]:
    for entry in entries:
        if isinstance(entry, list):
            yield from _list_titles(reader, entry, level + 1)
            continue
        page, title = reader.get_destination_page_number(entry), " ".join(str(entry.title or "").split())
        if title and page is not None and page >= 0:
            yield _Title(text=title, page=page, level=level)


def _drop_edges(pages: list[list[_Line]]) -> list[list[_Line]]:
    """The pages without lines that stand at the top or bottom of most of them, save for their numbers."""
    edges = Counter(key for lines in pages for key in {_blur(line) for line in _list_edges(lines)})
    n_pages = sum(1 for lines in pages if lines)
    if n_pages < _LEAST_PAGES:
        return pages
    repeated = {key for key, n in edges.items() if n > n_pages / 2}
    return [
        [line for line in lines if _blur(line) not in repeated or line not in _list_edges(lines)] for lines in pages
    ]


def _list_edges(lines: list[_Line]) -> list[_Line]:
    return [*lines[:_EDGE_LINES], *lines[-_EDGE_LINES:]]


def _blur(line: _Line) -> str:
    return _DIGITS.sub("#", line.text)


class _Assembly:
    """Puts lines together to paragraphs, and these under titles or pages."""

    def __init__(self, pages: list[list[_Line]], titles: list[_Title]) -> None:
        self._pages = pages
        self._titles = titles
        self._writer = LayoutWriter()
        self._paragraph: list[_Line] = []
        self._items: list[str] = []
        self._page = -1
        widths = sorted(line.width for lines in pages for line in lines)
        self._full = widths[int(len(widths) * 0.9)] if widths else 0

    def assemble(self) -> Layout:
        for number, lines in enumerate(self._pages):
            titles = [title for title in self._titles if title.page == number]
            place = 0
            for title in titles:
                found = _find_title(title, lines, place)
                if found is not None:
                    self._add_lines(lines[place : found.start])
                    place = found.stop
                self._close()
                self._writer.add_heading(title.text, title.level)
            self._add_lines(lines[place:])
        self._close()
        return self._writer.finish()

    def _add_lines(self, lines: Sequence[_Line]) -> None:
        for line in lines:
            if self._paragraph and not self._goes_on(self._paragraph[-1], line):
                self._end_paragraph()
            self._paragraph.append(line)

    def _goes_on(self, line: _Line, following: _Line) -> bool:
        """Whether the paragraph of a line goes on in the one after it."""
        if _ITEM.match(following.text):
            return False
        is_open = not _ENDS.search(line.text)
        if is_open and (line.page != following.page or following.text[0].islower()):
            return True
        return line.page == following.page and line.width >= _GOES_ON * self._full

    def _end_paragraph(self) -> None:
        if not self._paragraph:
            return
        first = self._paragraph[0]
        if not self._titles and first.page != self._page:
            self._close_list()
            self._page = first.page
            self._writer.add_section(f"page {first.page + 1}")
        text = _unwrap([line.text for line in self._paragraph])
        self._paragraph = []
        if _ITEM.match(text):
            self._items.append(text)
            return
        self._close_list()
        self._writer.add("text", [text])

    def _close_list(self) -> None:
        self._writer.add("list", self._items)
        self._items = []

    def _close(self) -> None:
        self._end_paragraph()
        self._close_list()


def _find_title(title: _Title, lines: Sequence[_Line], place: int) -> range | None:
    """The lines, from `place` on, that are this title, which may run over three; None where the page words it
    otherwise."""
    wanted = _squeeze(title.text)
    for start in range(place, len(lines)):
        words = ""
        for stop in range(start, min(start + 3, len(lines))):
            words += _squeeze(lines[stop].text)
            if words == wanted or (words.endswith(wanted) and words[: -len(wanted)].replace(".", "").isdecimal()):
                return range(start, stop + 1)
    return None


def _squeeze(text: str) -> str:
    return "".join(text.split()).casefold()


def _unwrap(lines: Sequence[str]) -> str:
    """The lines of a paragraph as one: words that were divided are joined, and nothing goes between Chinese ones."""
    text = lines[0]
    for line in lines[1:]:
        if text[-1] == "\u00ad" or (text[-1] in "-‐" and text[-2:-1].islower() and line[0].islower()):
            text = f"{text[:-1]}{line}"
        else:
            gap = "" if _measure(text[-1]) == _measure(line[0]) == 2 else " "
            text = f"{text}{gap}{line}"
    return text
