"""A page of HTML as a layout: its headings, paragraphs, lists and tables without navigation and scripts.

Parsed by lxml, which python-docx brings along anyway and which is an order of magnitude faster than a parser in Python.
"""

import re
from collections.abc import Iterable
from typing import Final, Literal

from lxml import etree, html

from evalhouse.tasks.testsets.layout import Layout, LayoutWriter

_LEFT_OUT: Final = frozenset({
    "script", "style", "noscript", "template", "nav", "svg", "iframe", "object", "button", "select", "input",
    "textarea", "head", "dialog",
})  # fmt: skip
_ROLES_LEFT_OUT: Final = frozenset({"navigation", "search", "menu", "menubar", "contentinfo"})
_LISTS: Final = frozenset({"ul", "ol", "dl", "menu"})
_ITEMS: Final = frozenset({"li", "dt", "dd"})
_CELLS: Final = frozenset({"td", "th"})
_BLOCKS: Final = _ITEMS | _CELLS | {
    "address", "article", "aside", "blockquote", "body", "caption", "center", "details", "div", "fieldset",
    "figcaption", "figure", "footer", "form", "header", "hr", "html", "legend", "main", "p", "section", "summary",
    "tbody", "tfoot", "thead", "tr",
}  # fmt: skip
_HEADING = re.compile(r"h[1-6]")
_SPACES = re.compile(r"\s+")
_NOT_DATA: Final = "self::h1 or self::h2 or self::h3 or self::h4 or self::table"


def read_html(text: str) -> Layout:
    """The main part of a page where it says which that is, else all of it. The page's title stands for a missing h1."""
    parser = html.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True)
    root = html.document_fromstring(text.encode() or b"<html/>", parser=parser, ensure_head_body=True)
    return _PageReader().read(root)


def _find_main(root: html.HtmlElement) -> html.HtmlElement:
    for path in ("//main | //*[@role='main']", "//article"):
        found = root.xpath(path)
        if len(found) == 1:
            return found[0]
    return root.find("body")


class _PageReader:
    """Walks over a page. `_words` is the text that is not written yet, `_lines` what is gathered of the list or table
    that is open, `_cells` of its row."""

    def __init__(self) -> None:
        self._writer = LayoutWriter()
        self._words: list[str] = []
        self._lines: list[str] = []
        self._cells: list[str] = []
        self._counts: list[int | None] = []  # of each open list the number of its last item, None where without numbers
        self._marker = ""
        self._table: html.HtmlElement | None = None

    def read(self, root: html.HtmlElement) -> Layout:
        main = _find_main(root)
        title = root.findtext("head/title")
        if title and title.strip() and main.find(".//h1") is None:
            self._writer.add_heading(" ".join(title.split()), 0)
        walk = etree.iterwalk(main, events=("start", "end"))
        skipped = None
        for event, element in walk:
            if event == "start" and skipped is None:
                if _is_left_out(element, main):
                    skipped = element
                    walk.skip_subtree()
                elif element.tag == "pre":
                    self._add_code(element)
                    skipped = element
                    walk.skip_subtree()
                else:
                    self._open(element)
            elif event == "end":
                if skipped is None:
                    self._close(element)
                elif element is skipped:
                    skipped = None
                if element is not main:
                    self._say(element.tail)
        self._flush()
        return self._writer.finish()

    def _open(self, element: html.HtmlElement) -> None:
        tag = element.tag
        if tag == "br":
            self._words.append(" " if self._is_gathering else "\n")
        elif tag in _LISTS or tag in _BLOCKS or tag == "table" or _HEADING.fullmatch(tag):
            self._flush()
        if tag in _LISTS and self._table is None:
            self._counts.append(0 if tag == "ol" else None)
        elif tag in _ITEMS and self._counts:
            self._marker = self._number_item()
        elif tag == "table" and not self._is_gathering and _holds_data(element):
            self._table = element
        elif tag in _CELLS and self._table is not None:
            self._words = []
        self._say(element.text)

    def _close(self, element: html.HtmlElement) -> None:
        tag = element.tag
        if _HEADING.fullmatch(tag) and not self._is_gathering:
            title = " ".join(self._take_lines())
            if title:
                self._writer.add_heading(title, int(tag[1]))
        elif tag in _LISTS and self._table is None and self._counts:
            self._flush()
            self._counts.pop()
            if not self._counts:
                self._write("list")
        elif self._table is not None:
            self._close_in_table(element)
        elif tag in _BLOCKS or _HEADING.fullmatch(tag):
            self._flush()

    def _close_in_table(self, element: html.HtmlElement) -> None:
        if element is self._table:
            self._write("table")
            self._table, self._words = None, []
        elif element.tag in _CELLS:
            self._cells.append(" ".join(self._take_lines()))
        elif element.tag == "tr":
            if any(self._cells):
                self._lines.append(" | ".join(self._cells))
            self._cells = []
        elif element.tag == "caption":
            self._writer.add("text", self._take_lines())
        elif element.tag in _BLOCKS:
            self._words.append(" ")

    @property
    def _is_gathering(self) -> bool:
        return bool(self._counts) or self._table is not None

    def _say(self, text: str | None) -> None:
        if text:
            self._words.append(_SPACES.sub(" ", text))

    def _take_lines(self) -> list[str]:
        """The words so far, a line for each line break that was asked for."""
        lines = "".join(self._words).split("\n")
        self._words = []
        return [line for line in (" ".join(line.split()) for line in lines) if line]

    def _flush(self) -> None:
        """Write the words so far as a paragraph; within a list as an item, within a table as part of the cell."""
        if self._table is not None:
            self._words.append(" ")
            return
        lines = self._take_lines()
        if not lines:
            return
        if not self._counts:
            self._writer.add("text", lines)
            return
        self._lines.append(f"{self._marker}{' '.join(lines)}")
        self._marker = "  " * len(self._counts)  # what follows in the same item

    def _number_item(self) -> str:
        indent, count = "  " * (len(self._counts) - 1), self._counts[-1]
        if count is None:
            return f"{indent}- "
        self._counts[-1] = count + 1
        return f"{indent}{count + 1}. "

    def _add_code(self, element: html.HtmlElement) -> None:
        code = element.text_content()
        if self._is_gathering:
            self._say(f" {code} ")
            return
        self._flush()
        self._writer.add("code", [line.rstrip() for line in code.splitlines()])

    def _write(self, kind: Literal["list", "table"]) -> None:
        self._writer.add(kind, self._lines)
        self._lines = []


def _is_left_out(element: html.HtmlElement, main: html.HtmlElement) -> bool:
    if element.tag in _LEFT_OUT or element.get("hidden") is not None or element.get("role") in _ROLES_LEFT_OUT:
        return True
    return element.tag == "footer" and main.tag == "body" and element.getparent() is main


def _holds_data(table: html.HtmlElement) -> bool:
    """Whether a table has cells of text, and does not place the parts of a page."""
    found: Iterable[html.HtmlElement] = table.xpath(f"descendant::*[{_NOT_DATA}]")
    return not found
