"""Readers that make Markdown of HTML, Word and PDF; their packages come with the extra `documents`. A child process
imports this module: see `limited`.

markdownify writes the Markdown, of pages and of what mammoth makes of Word documents. Emphasis, links and pictures are
left out, so that a quotation has the words that a person sees. A title that is not a heading becomes front matter.
"""

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unicodedata import east_asian_width, normalize
from xml.parsers.expat import ExpatError
from zipfile import BadZipFile, ZipFile

import mammoth
from bs4 import BeautifulSoup, Tag
from lxml import etree
from markdownify import ATX, MarkdownConverter
from pypdf import PdfReader
from pypdf.errors import PyPdfError
from pypdf.generic import DecodedStreamObject, NameObject

from evalhouse.tasks.testsets import UnreadableFile
from evalhouse.warehouse.messages import list_names

_NOT_TEXT: Final = (
    "script, style, noscript, template, nav, svg, iframe, object, button, select, input, textarea, dialog, [hidden], "
    "[role=navigation], [role=search], [role=menu], [role=menubar], [role=contentinfo]"
)
_INLINE: Final = ["a", "b", "strong", "em", "i", "del", "s", "img"]
_TOO_DEEP: Final = ("its elements are nested too deeply", "save it again as Markdown or plain text")
_EMPTY_LINES: Final = re.compile(r"\n{3,}")
_WIDE_CELL: Final = re.compile(r"\s*\d{3,}\s*")
_SOFT_HYPHEN: Final = "\u00ad"


def read_document(path: Path, kind: str, text: str) -> Iterator[str]:
    """Yield the Markdown of a file, and then what the user should know about it; `text` is that of a page.

    Raises UnreadableFile.
    """
    if kind == "html":
        yield convert_html(text)
    elif kind == "word":
        yield load_word(path)
    else:
        notes: list[str] = []
        yield load_pdf(path, notes.append)
        yield from notes


def convert_html(text: str) -> str:
    """Return the Markdown of a page: of its main part if it marks one, else of everything but navigation and footer.

    Raises UnreadableFile.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Beautiful Soup warns about pages that begin as XML or look like a file's name
        page = BeautifulSoup(text.replace("&shy;", ""), "lxml")
    main = page.body
    if main is None:
        return ""
    for candidates in (page.select("main, [role=main]"), page.select("article")):
        if len(candidates) == 1:
            main = candidates[0]
            break
    left_out = main.select(_NOT_TEXT)
    if main is page.body:
        left_out += main.find_all("footer", recursive=False)
    for element in left_out:
        element.decompose()
    title = "" if main.find("h1") or page.title is None else page.title.get_text()
    return _write_markdown(main, title)


def _write_markdown(main: Tag, title: str) -> str:
    for caption in main.find_all("caption"):
        caption.name = "p"  # as the first child of its table it keeps markdownify from seeing the row of headings
        if (table := caption.find_parent("table")) is not None:
            table.insert_before(caption.extract())
    for table in main.find_all("table"):
        if table.find(["h1", "h2", "h3", "h4", "table"]):
            # markdownify makes one row of a table that only arranges a page, as old intranets and mails have them.
            for element in [*table.find_all(["thead", "tbody", "tfoot", "tr", "td", "th"]), table]:
                element.name = "div"
    for cell in main.select("[colspan]"):
        if _WIDE_CELL.fullmatch(str(cell["colspan"])):
            del cell["colspan"]  # markdownify writes that many empty cells, a thousand for a colspan of 1000
    converter = MarkdownConverter(
        heading_style=ATX,
        bullets="-",
        strip=_INLINE,
        escape_asterisks=False,
        escape_underscores=False,
        table_infer_header=True,
    )
    try:
        text = converter.convert_soup(main)
    except RecursionError:
        raise UnreadableFile(*_TOO_DEEP) from None
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    text = _EMPTY_LINES.sub("\n\n", text).strip("\n")
    title = " ".join(title.split())
    return f"---\ntitle: {title}\n---\n{text}" if title else text


_WORD: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_WITH_BOXES: Final = ("word/document.xml", "word/footnotes.xml", "word/endnotes.xml")
_BODY_LEVEL: Final = 9  # the outline level of text
_OLE: Final = b"\xd0\xcf\x11\xe0"  # the first bytes of files with a password and of files of old Word
_BROKEN_WORD: Final = (OSError, ExpatError, etree.LxmlError, LookupError, ValueError, AttributeError, EOFError)


def load_word(path: Path) -> str:
    """Return the Markdown of a .docx file with all changes accepted. Raises UnreadableFile."""
    content = path.read_bytes()
    if content.startswith(_OLE):
        raise UnreadableFile("locked with a password, or of Word before 2007", "save it as .docx without a password")
    try:
        page = mammoth.convert_to_html(
            BytesIO(_move_text_boxes(content)),
            style_map="\n".join(_list_style_rules(content)),
            convert_image=mammoth.images.img_element(lambda _image: {}),
        ).value
    except BadZipFile as error:
        why = "cannot be read as .docx: it is not a ZIP archive, as these are"
        raise UnreadableFile(why, "save it again as .docx") from error
    except RecursionError:
        raise UnreadableFile(*_TOO_DEEP) from None
    except _BROKEN_WORD as error:
        raise UnreadableFile(f"cannot be read as .docx: {error}", "save it again as .docx") from error
    main = BeautifulSoup(page.replace(_SOFT_HYPHEN, ""), "lxml").body
    if main is None:
        return ""
    for link_back in main.select("a[href^='#footnote-ref'], a[href^='#endnote-ref']"):
        link_back.decompose()
    # A note follows the paragraph, list or table that refers to it; mammoth lists all notes at the end of the document.
    last: dict[int, Tag] = {}  # note of a block
    for link in main.select("a[href^='#footnote-'], a[href^='#endnote-']"):
        note = main.find("li", id=str(link["href"])[1:])
        *_, block = (element for element in link.parents if element.parent is main)
        if isinstance(note, Tag):
            note.name = "div"
            (note.find("p") or note).insert(0, link.get_text())
            last.get(id(block), block).insert_after(note.extract())
            last[id(block)] = note
    titles = main.select("p.title")
    for title in titles[:1]:
        title.extract()
    return _write_markdown(main, titles[0].get_text() if titles else "")


def _move_text_boxes(content: bytes) -> bytes:
    """Return a .docx file with its text boxes of DrawingML as paragraphs behind the one they hang on.

    mammoth reads the VML that Word writes beside each of these as a fallback; other programs do not write it.
    """
    with ZipFile(BytesIO(content)) as archive:
        parts = {entry: archive.read(entry) for entry in archive.infolist() if entry.filename in _WITH_BOXES}
        if not any(b"txbx>" in part for part in parts.values()):
            return content
        others = {entry: archive.read(entry) for entry in archive.infolist() if entry not in parts}
    for entry, part in parts.items():
        root = etree.fromstring(part)
        for box in list(root.iter("{*}txbx")):
            for choices in box.iterancestors("{*}AlternateContent"):
                for fallback in choices.findall("{*}Fallback"):
                    choices.remove(fallback)
            paragraph = next(box.iterancestors(f"{_WORD}p"))
            for inside in reversed(box.findall(f"{_WORD}txbxContent/*")):
                paragraph.addnext(inside)
        parts[entry] = etree.tostring(root)
    moved = BytesIO()
    with ZipFile(moved, "w") as archive:
        for entry, part in (others | parts).items():
            archive.writestr(entry, part)
    return moved.getvalue()


def _list_style_rules(content: bytes) -> Iterator[str]:
    """Yield mammoth's rules for tables of contents, titles and headings.

    mammoth recognises a heading by the name of its style. Templates of companies have styles such as "Acme heading"
    that are based on "Heading 2", and Chinese ones have styles with an outline level and any name.
    """
    yield from (f"p[style-name='toc {level}'] => !" for level in range(1, 10))
    with ZipFile(BytesIO(content)) as archive:
        if "word/styles.xml" not in archive.namelist():
            return
        styles = etree.fromstring(archive.read("word/styles.xml")).findall(f"{_WORD}style")
    by_id = {style.get(f"{_WORD}styleId"): style for style in styles}

    def find_value(style: Any, path: str) -> str:  # noqa: ANN401  # lxml has no types
        element = style.find("/".join(f"{_WORD}{part}" for part in path.split("/")))
        return "" if element is None else element.get(f"{_WORD}val", "")

    for style in styles:
        level, base, left = None, style, len(styles)
        while level is None and base is not None and left:  # styles may be based on each other in a circle
            name, outline = find_value(base, "name").lower(), find_value(base, "pPr/outlineLvl")
            if name == "title":
                level = 0
            elif outline.isdecimal():
                level = int(outline) + 1
            elif name.startswith("heading ") and name[8:].isdecimal():
                level = int(name[8:])
            base, left = by_id.get(find_value(base, "basedOn")), left - 1
        if level is not None and level <= _BODY_LEVEL:
            name = find_value(style, "name").replace("\\", "\\\\").replace("'", "\\'")
            yield f"p[style-name='{name}'] => {f'h{min(level, 6)}' if level else 'p.title'}:fresh"


# The errors that pypdf raises for broken files.
_BROKEN_PDF: Final = (PyPdfError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
                      NotImplementedError)  # fmt: skip
_NEARLY_FULL: Final = 0.6  # of the width of a full line
_EDGE_LINES: Final = 2
# The number of a page, and what browsers print at the edges: date and title, address and page.
_EDGE: Final = re.compile(
    r"\W*(?:page|p\.|seite|第)\s*\d{1,4}\W*?页?(?:\s*(?:/|of|von|[,，]?\s*共)\s*\d{1,4}\s*页?)?\W*|\W*\d{1,4}\s*(?:/|of)\s*\d{1,4}\W*"
    r"|\d{1,4}[./年-]\d{1,2}[./月-]\d{1,4}日?,?\s\d{1,2}:\d\d.*|(?:https?|file)://\S+\s\d+/\d+",
    re.IGNORECASE,
)
# The space that browsers draw for a soft hyphen within a line.
_DRAWN_HYPHEN: Final = re.compile(rb"(?<=/ActualText)\s*<FEFF00AD>\s*>>\s*BDC(.*?)EMC", re.DOTALL | re.IGNORECASE)
_SHOWN: Final = re.compile(rb"(?:<[^<>]*>|\[[^\[\]]*\])\s*TJ", re.IGNORECASE)
_PART: Final = re.compile(r"[^\W_]+")
_COMPOUND: Final = re.compile(r"(?<![^\W_])[^\W_]++(?:[-‐][^\W_]++)+")
_DIVIDED: Final = re.compile(r"(?<![^\W_])([^\W_]++) ?[-‐\u00ad]$")  # the word that a line divides
_WITHIN: Final = re.compile(r"\u00ad(?!$)")
_BEHIND_STEMS: Final = ("and", "or", "to", "und", "oder", "bis")
_SHORTEST: Final = 4  # letters of a word that is seen as a part of a compound, if both parts are words of the document
_DIGITS: Final = re.compile(r"\d+")
_BULLET: Final = re.compile(r"(?:[-*–](?=\s)|[•●○▪‣·\uf0b7\uf0a7])\s*")
_NUMBER: Final = re.compile(r"\d{1,3}(?:[.)](?!\d)|、)|[（(]\d{1,2}[)）]")
_MARKDOWN_ITEM: Final = re.compile(r"(?:-|\d{1,3}[.)])\s")
_HAN: Final = "[\u3400-\u9fff\uf900-\ufaff\u3001-\u303f\uff00-\uffef]"
_GAP: Final = re.compile(f"(?<={_HAN})[^\\S\\n]++(?={_HAN})")
_SENTENCE_END: Final = re.compile(r"[.!?。！？:：；;…][\"'”’」』)）\]]*+$")
_MARKDOWN_MARK: Final = re.compile(r"#{1,6}\s|>|```|~~~|<[!/?a-zA-Z]")
# Ligatures and radicals that fonts put in the place of letters and characters; codes that are not letters at all.
_PLAIN: Final[dict[int, str | None]] = {
    **{code: normalize("NFKC", chr(code)) for code in (*range(0xFB00, 0xFB07), *range(0x2E80, 0x2FD6))},
    **dict.fromkeys((*range(9), *range(0xD800, 0xE000), 0xFFFD)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A line of a PDF; `page` counts from 0, `width` is in letters, of which a Chinese character takes two."""

    text: str
    page: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Title:
    """An entry of a PDF's outline."""

    text: str
    page: int
    level: int


def load_pdf(path: Path, note: Callable[[str], None]) -> str:
    """Return the Markdown of a PDF: paragraphs under the titles of its outline, or page by page without one.

    pypdf gives lines. markitdown, with 80 MB of onnxruntime, does too: it left a sentence split by the foot and head of
    two pages, words divided ("cus- tomer"), spaces within Chinese, and gave tables column by column.

    `note` gets a line if some pages have no text. Raises UnreadableFile.
    """
    logger = logging.getLogger("pypdf")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it logs faults of files that it can still read
    pages: list[list[_Line]] = []
    try:
        reader = PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableFile("locked with a password", "save it without a password")
        for number, page in enumerate(reader.pages):
            contents = page.get_contents()
            drawn = b"" if contents is None else contents.get_data()
            if _DRAWN_HYPHEN.search(drawn):
                shown = DecodedStreamObject()
                shown.set_data(_DRAWN_HYPHEN.sub(lambda span: _SHOWN.sub(b"", span[0]), drawn))
                page[NameObject("/Contents")] = shown
            text = _GAP.sub("", page.extract_text().translate(_PLAIN))
            words = [" ".join(line.split()) for line in text.splitlines()]
            pages.append([_Line(text=line, page=number, width=sum(map(_measure, line))) for line in words if line])
        titles = list(_list_titles(reader, reader.outline, 1))
    except _BROKEN_PDF as error:
        raise UnreadableFile(f"cannot be read as PDF: {error}", "save or download it again") from error
    finally:
        logger.setLevel(level)
    blank = [str(number) for number, lines in enumerate(pages, start=1) if not lines]
    if len(blank) == len(pages):
        raise UnreadableFile("no text, only pictures of it", "have the text of scanned pages recognised (OCR) first")
    if blank:
        note(f"no text on page {list_names(blank, 5)}")
    n_pages = len(pages) - len(blank)
    # The lines at the top or bottom of most pages are left out; they may differ in numbers. Of two pages only the first
    # and the last, since both may begin with a heading.
    n_edges = _EDGE_LINES if n_pages > _EDGE_LINES else 1
    n_by_edge = Counter(
        edge
        for lines in pages
        for edge in {_DIGITS.sub("#", line.text) for line in (*lines[:n_edges], *lines[-n_edges:])}
    )
    repeated = {edge for edge, n in n_by_edge.items() if n > max(n_pages / 2, 1)}
    for number, lines in enumerate(pages):
        edges = (*lines[:_EDGE_LINES], *lines[-_EDGE_LINES:])
        pages[number] = [
            line
            for line in lines
            if line not in edges
            or not (
                _DIGITS.sub("#", line.text) in repeated
                or _EDGE.fullmatch(line.text)
                or line.text.strip("-–—|· ") == str(number + 1)
            )
        ]
    pieces: list[_Line | _Title] = []
    for number, lines in enumerate(pages):
        place = 0
        for title in titles:
            if title.page == number:
                found = _find_title(title, lines, place)
                if found is not None:
                    pieces += lines[place : found.start]
                    place = found.stop
                pieces.append(title)
        pieces += lines[place:]
    return _write_paragraphs(pieces, by_page=not titles)


def _write_paragraphs(pieces: Sequence[_Line | _Title], *, by_page: bool) -> str:
    """Join lines to paragraphs and list items; with `by_page`, mark where a paragraph begins on a new page."""
    # A soft hyphen within a line shows nothing where the document has other hyphens; else it is what shows them.
    mark = "" if any(isinstance(piece, _Line) and _COMPOUND.search(piece.text) for piece in pieces) else "-"
    pieces = [replace(one, text=_WITHIN.sub(mark, one.text)) if isinstance(one, _Line) else one for one in pieces]
    words = _Words.read([piece.text for piece in pieces if isinstance(piece, _Line)])
    widths = sorted(piece.width for piece in pieces if isinstance(piece, _Line))
    full_width = widths[int(len(widths) * 0.9)] if widths else 0
    paragraphs: list[list[_Line] | _Title] = []
    for piece in pieces:
        last = paragraphs[-1] if paragraphs else None
        if isinstance(piece, _Title):
            paragraphs.append(piece)
            continue
        if isinstance(last, list) and not (_BULLET.match(piece.text) or _NUMBER.match(piece.text)):
            # A paragraph continues after a line of nearly the full width; at the end of a page, or before a small
            # letter, it does unless the line ends a sentence.
            line = last[-1]
            is_open = _SENTENCE_END.search(line.text) is None
            if (is_open and (line.page != piece.page or piece.text[0].islower())) or (
                line.page == piece.page and line.width >= _NEARLY_FULL * full_width
            ):
                last.append(piece)
                continue
        paragraphs.append([piece])
    parts: list[str] = []
    page, follows_item = -1, False
    for paragraph in paragraphs:
        if isinstance(paragraph, _Title):
            parts.append(f"\n\n{'#' * min(paragraph.level, 6)} {paragraph.text}")
            follows_item = False
            continue
        if by_page and paragraph[0].page != page:
            page, follows_item = paragraph[0].page, False
            parts.append(f"\n\n<!-- PDF page {page + 1} -->")
        text = paragraph[0].text
        for added in (line.text for line in paragraph[1:]):
            text = words.join(text, added)
        if bullet := _BULLET.match(text):
            text = f"- {text[bullet.end() :]}"
        elif _NUMBER.match(text) and not _MARKDOWN_ITEM.match(text):
            text = f"- {text}"
        elif _MARKDOWN_MARK.match(text):
            text = f"\\{text}"
        is_item = _MARKDOWN_ITEM.match(text) is not None
        parts.append(f"\n{text}" if is_item and follows_item else f"\n\n{text}")
        follows_item = is_item
    return "".join(parts).lstrip("\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Words:
    """The words of a PDF that no line divides, in small letters, and the neighbouring parts of its compounds."""

    whole: frozenset[str]
    compounds: frozenset[tuple[str, str]]

    @classmethod
    def read(cls, lines: Sequence[str]) -> "_Words":
        whole, compounds = set[str](), set[tuple[str, str]]()
        for before, line in pairwise(["", *lines]):
            undivided = _DIVIDED.sub("", line).casefold()
            if _DIVIDED.search(before):
                undivided = undivided.partition(" ")[2]
            whole.update(_PART.findall(undivided))
            for compound in _COMPOUND.findall(undivided):
                compounds.update(pairwise(_PART.findall(compound)))
        return cls(whole=frozenset(whole), compounds=frozenset(compounds))

    def join(self, text: str, added: str) -> str:
        """Return two lines as one: a divided word without its hyphen, a compound with it, Chinese without a space."""
        parts = _DIVIDED.search(text), _PART.match(added)
        if parts[0] is None or parts[1] is None or parts[1][0] in _BEHIND_STEMS:  # `pre- and post-war`
            return f"{text}{'' if _measure(text[-1]) == _measure(added[0]) == 2 else ' '}{added}"
        before, after = parts[0][1], parts[1][0]
        left, right = before.casefold(), after.casefold()
        is_compound = (left, right) in self.compounds or not (before[-1].islower() and after[0].islower())
        if min(len(left), len(right)) >= _SHORTEST and left + right not in self.whole:
            is_compound = is_compound or {left, right} <= self.whole
        return f"{text[: parts[0].end(1)]}{'-' if is_compound else ''}{added}"


def _measure(letter: str) -> int:
    return 2 if east_asian_width(letter) in "WF" else 1


def _list_titles(reader: PdfReader, entries: Sequence[Any], level: int) -> Iterator[_Title]:
    for entry in entries:
        if isinstance(entry, list):
            yield from _list_titles(reader, entry, level + 1)
            continue
        page, title = reader.get_destination_page_number(entry), " ".join(str(entry.title or "").split())
        if title and page is not None and page >= 0:
            yield _Title(text=title, page=page, level=level)


def _find_title(title: _Title, lines: Sequence[_Line], place: int) -> range | None:
    """Return the lines, from `place` on, that are this title (up to three); None if the page has other words."""
    wanted = "".join(title.text.split()).casefold()
    for start in range(place, len(lines)):
        words = ""
        for stop in range(start, min(start + 3, len(lines))):
            words += "".join(lines[stop].text.split()).casefold()
            # The outline often lacks the number that the page has before a title.
            if words == wanted or (words.endswith(wanted) and words[: -len(wanted)].replace(".", "").isdecimal()):
                return range(start, stop + 1)
    return None
