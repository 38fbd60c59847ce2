"""A written report as its reader's browser finds it: elements, attributes, and the packed data."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lxml import etree, html


@dataclass(frozen=True)
class Element:
    """A tag with its attributes, the text directly in it, and all text within it."""

    node: html.HtmlElement

    @property
    def tag(self) -> str:
        return str(self.node.tag)

    @property
    def attributes(self) -> dict[str, str | None]:
        return dict(self.node.attrib)

    @property
    def text(self) -> str:
        return "".join(self.node.xpath("text()"))

    @property
    def all_texts(self) -> list[str]:
        return list(self.node.itertext())


class ReportPage:
    """The elements of a report in their order."""

    def __init__(self, path: Path) -> None:
        self.source = path.read_text(encoding="utf-8")
        self._root = html.document_fromstring(self.source)
        etree.strip_tags(self._root, "wbr")  # of HTML 5, which lxml reads as an element with content
        self.elements = [Element(node) for node in self._root.iter("*")]

    def find(self, tag: str, **attributes: str) -> list[Element]:
        return [
            element
            for element in self.elements
            if element.tag == tag and attributes.items() <= element.attributes.items()
        ]

    def unpack(self, name: str) -> Any:  # noqa: ANN401  # any JSON of the block
        (block,) = self.find("script", id=name)
        return json.loads(gzip.decompress(base64.b64decode(block.text)))

    @property
    def index(self) -> dict[str, Any]:
        found: dict[str, Any] = self.unpack("index")
        return found

    @property
    def samples(self) -> list[dict[str, Any]]:
        """All samples of all blocks."""
        names = [str(block.attributes["id"]) for block in self.find("script", type="application/gzip")]
        return [sample for name in names if name.startswith("block-") for sample in self.unpack(name)]

    def sample(self, sample_id: str) -> dict[str, Any]:
        (found,) = [sample for sample in self.samples if sample["sample_id"] == sample_id]
        return found

    def charts(self, kind: str) -> list[dict[str, Any]]:
        """Data of the charts of a kind."""
        blocks = [json.loads(block.text) for block in self.find("script", type="application/json")]
        return [block for block in blocks if block["kind"] == kind]

    def rows(self, section: str) -> list[list[str]]:
        """The bodies of the tables in a section, cell by cell: the text directly in a cell, else all text within it."""
        found, *_ = self._root.xpath("//*[@aria-labelledby=$section]", section=section)
        return [
            [cell.text.strip() or " ".join(" ".join(cell.all_texts).split()) for cell in map(Element, row)]
            for row in found.xpath(".//tbody/tr")
        ]
