"""A written report as its reader's browser finds it: elements, attributes, and the packed data."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = ("meta", "input", "br", "wbr", "rect", "circle", "path")


@dataclass(frozen=True, kw_only=True)
class Element:
    """A tag with its attributes, the text directly in it, and all text within it."""

    tag: str
    attributes: dict[str, str | None]
    texts: list[str] = field(default_factory=list)
    all_texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)


class ReportPage(HTMLParser):
    """The elements of a report in their order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag=tag, attributes=dict(attrs))
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag=tag, attributes=dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while tag not in VOID and self._open and self._open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].texts.append(data)
        for element in self._open:
            element.all_texts.append(data)

    def find(self, tag: str, **attributes: str) -> list[Element]:
        return [
            element
            for element in self.elements
            if element.tag == tag and all(element.attributes.get(name) == value for name, value in attributes.items())
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
        start = next(
            at for at, element in enumerate(self.elements) if element.attributes.get("aria-labelledby") == section
        )
        rows: list[list[str]] = []
        is_body = False
        for element in self.elements[start + 1 :]:
            if element.tag == "section":
                break
            is_body = element.tag == "tbody" or (is_body and element.tag != "thead")
            if element.tag == "tr" and is_body:
                rows.append([])
            elif element.tag in ("td", "th") and is_body:
                rows[-1].append(element.text.strip() or " ".join(" ".join(element.all_texts).split()))
        return rows
