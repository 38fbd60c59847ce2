"""A Word document as a layout: its headings by their styles, paragraphs, lists and tables.

python-docx opens it. The text is taken from the elements themselves, because what it calls the text of a paragraph
lacks insertions that nobody has accepted yet, and its paragraphs lack those in content controls.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

from docx import Document as open_document
from docx.opc.exceptions import OpcError, PackageNotFoundError
from docx.oxml.ns import qn
from lxml.etree import LxmlError

from evalhouse.tasks.testsets.errors import UnreadableFile
from evalhouse.tasks.testsets.layout import Layout, LayoutWriter

_BROKEN: Final = (OpcError, LxmlError, KeyError, ValueError, EOFError)
_NO_ARCHIVE: Final = "cannot be read as .docx: it is not a ZIP archive, as these are"
_OLE: Final = b"\xd0\xcf\x11\xe0"  # how files begin that Word has locked with a password, and those of old Word
_PARAGRAPH, _TABLE, _CONTROL = qn("w:p"), qn("w:tbl"), qn("w:sdt")
_TEXT, _SPACES, _BREAKS = qn("w:t"), frozenset({qn("w:tab")}), frozenset({qn("w:br"), qn("w:cr")})
_HYPHEN: Final = qn("w:noBreakHyphen")
_NOT_SAID: Final = ("w:moveFrom", "w:del", "w:txbxContent", "w:pPr")
_VALUE: Final = qn("w:val")
_BODY_LEVEL: Final = 9  # outline level of what is not a heading
Element = Any  # lxml's, without types


def read_word(path: Path) -> Layout:
    """The layout of a .docx file. Raises UnreadableFile."""
    with path.open("rb") as opened:
        if opened.read(4) == _OLE:
            raise UnreadableFile(
                "locked with a password, or of Word before 2007", "save it as .docx without a password"
            )
    try:
        document = open_document(str(path))
        return _WordReader(document).read()
    except (PackageNotFoundError, BadZipFile) as error:
        raise UnreadableFile(_NO_ARCHIVE, "save it again as .docx") from error
    except _BROKEN as error:
        raise UnreadableFile(f"cannot be read as .docx: {error}", "save it again as .docx") from error


class _WordReader:
    """`_items` is what is gathered of the list that is open."""

    def __init__(self, document: Any) -> None:  # noqa: ANN401  # python-docx's
        self._body = document.element.body
        self._styles = _read_styles(document.styles.element)
        self._writer = LayoutWriter()
        self._items: list[str] = []

    def read(self) -> Layout:
        for element in _list_blocks(self._body):
            if element.tag == _TABLE:
                self._close_list()
                self._writer.add("table", [line for row in _list_own(element, "w:tr") if (line := _join_cells(row))])
            else:
                self._add_paragraph(element)
        self._close_list()
        return self._writer.finish()

    def _add_paragraph(self, paragraph: Element) -> None:
        lines = [line for line in (" ".join(line.split()) for line in _read_text(paragraph).split("\n")) if line]
        if not lines:
            return
        style = self._styles.get(_get_value(paragraph, "w:pPr/w:pStyle") or "", _Style())
        level = style.level if (own := _get_value(paragraph, "w:pPr/w:outlineLvl")) is None else _read_level(own)
        is_item = style.is_item or paragraph.find("w:pPr/w:numPr", paragraph.nsmap) is not None
        if style.is_contents:
            return
        if level is None and is_item:
            depth = int(_get_value(paragraph, "w:pPr/w:numPr/w:ilvl") or 0)
            self._items.append(f"{'  ' * depth}- {' '.join(lines)}")
            return
        self._close_list()
        if level is None:
            self._writer.add("text", lines)
        else:
            self._writer.add_heading(" ".join(lines), level)

    def _close_list(self) -> None:
        self._writer.add("list", self._items)
        self._items = []


class _Style:
    """What a paragraph of this style is: a heading of a level (0 for the title), an item, a line of the contents."""

    level: int | None = None
    is_item: bool = False
    is_contents: bool = False


def _read_styles(styles: Element) -> dict[str, _Style]:
    """What each style makes of a paragraph, by its id; what a style does not say is that of the one it is based on."""
    elements = {element.get(qn("w:styleId")): element for element in styles.findall(qn("w:style"))}
    return {style_id: _read_style(style_id, elements) for style_id in elements}


def _read_style(style_id: str | None, elements: dict[str, Element]) -> _Style:
    style, seen = _Style(), set[str]()
    while style_id in elements and style_id not in seen:
        seen.add(style_id)
        element = elements[style_id]
        name = (_get_value(element, "w:name") or "").lower()
        level = _get_value(element, "w:pPr/w:outlineLvl")
        if style.level is None and name == "title":
            style.level = 0
        elif style.level is None and level is not None:
            style.level = _read_level(level)
        elif style.level is None and name.startswith("heading ") and name[8:].isdecimal():
            style.level = int(name[8:])
        style.is_item |= name.startswith("list") or element.find("w:pPr/w:numPr", element.nsmap) is not None
        style.is_contents |= name.startswith("toc ")
        style_id = _get_value(element, "w:basedOn")
    return style


def _read_level(value: str) -> int | None:
    return int(value) + 1 if int(value) < _BODY_LEVEL else None


def _get_value(element: Element, path: str) -> str | None:
    found = element.find(path, element.nsmap)
    return None if found is None else found.get(_VALUE)


def _list_blocks(parent: Element) -> Iterator[Element]:
    """Paragraphs and tables in order, those in content controls too; a table of contents is left out."""
    for child in parent.iterchildren(_PARAGRAPH, _TABLE, _CONTROL, qn("w:ins")):
        if child.tag in (_PARAGRAPH, _TABLE):
            yield child
            continue
        gallery = _get_value(child, "w:sdtPr/w:docPartObj/w:docPartGallery")
        content = child.find("w:sdtContent", child.nsmap)
        if gallery != "Table of Contents" and content is not None:
            yield from _list_blocks(content)


def _list_own(parent: Element, name: str) -> Iterator[Element]:
    """Rows of a table, or cells of a row, but not those of a table within; also in content controls."""
    for child in parent.iterchildren(qn(name), _CONTROL):
        if child.tag != _CONTROL:
            yield child
        elif (content := child.find("w:sdtContent", child.nsmap)) is not None:
            yield from _list_own(content, name)


def _join_cells(row: Element) -> str:
    cells = [
        " ".join(" ".join(_read_text(p) for p in cell.iter(_PARAGRAPH)).split()) for cell in _list_own(row, "w:tc")
    ]
    return " | ".join(cells) if any(cells) else ""


def _read_text(paragraph: Element) -> str:
    """The text of a paragraph as it reads with all changes accepted, with `\\n` for a line break."""
    left_out = {element for name in _NOT_SAID for element in paragraph.iter(qn(name))}
    parts: list[str] = []
    for element in paragraph.iter(_TEXT, _HYPHEN, *_SPACES, *_BREAKS):
        if left_out and not left_out.isdisjoint(element.iterancestors()):
            continue
        if element.tag == _TEXT:
            parts.append(element.text or "")
        else:
            parts.append("-" if element.tag == _HYPHEN else " " if element.tag in _SPACES else "\n")
    return "".join(parts)
