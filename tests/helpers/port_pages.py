"""A document of the port authority's handbook as parts, and how it is written as Markdown, plain text or HTML.

`port_base` makes these documents from the data and edits them.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from port_handbook import Language

WIDTH = 92  # of plain text; English is wrapped, Chinese is not
REWRAPPED = 64


@dataclass(kw_only=True)
class Sentence:
    """A sentence, or a cell of a table; `fact` is the id of what it states, or None where it states none."""

    text: str
    fact: str | None = None
    value: str = ""


@dataclass(kw_only=True)
class Part:
    """A paragraph of sentences, or a list or table of them; `lead` is the sentence before numbered steps.

    A table has its header in `header` and `columns` cells a row.
    """

    kind: Literal["prose", "bullets", "steps", "table"] = "prose"
    sentences: list[Sentence] = field(default_factory=list)
    lead: str = ""
    header: tuple[str, ...] = ()

    @property
    def rows(self) -> Iterator[list[str]]:
        """The cells of a table, row by row."""
        width = len(self.header)
        for start in range(0, len(self.sentences), width):
            yield [sentence.text for sentence in self.sentences[start : start + width]]

    def quote(self, position: int) -> str:
        """The words of the file that hold a sentence: in a table its row."""
        if self.kind != "table":
            return self.sentences[position].text
        return _write_row(list(self.rows)[position // len(self.header)])


@dataclass(kw_only=True)
class Section:
    """A heading and the parts below it."""

    heading: str
    parts: list[Part]


@dataclass(kw_only=True)
class Document:
    """One file of the knowledge base; `loose` writes the same words with other white space."""

    path: str
    language: Language
    title: str
    sections: list[Section]
    loose: bool = False

    def list_sentences(self) -> Iterator[Sentence]:
        """Every sentence and cell, in order."""
        for section in self.sections:
            for part in section.parts:
                yield from part.sentences

    def find_section(self, heading: str) -> Section:
        """The section of that heading."""
        return next(section for section in self.sections if section.heading == heading)

    def write(self) -> str:
        """The text of the file."""
        match self.path.rpartition(".")[2]:
            case "html":
                return _write_html(self)
            case "txt":
                return _write_plain(self)
            case _:
                return _write_markdown(self)


def _join(part: Part, language: Language) -> str:
    return (" " if language == "en" else "").join(sentence.text for sentence in part.sentences)


def _write_markdown(document: Document) -> str:
    blocks = [f"# {document.title}"]
    for section in document.sections:
        blocks.append(f"## {section.heading}")
        blocks += ["\n".join(_write_lines(part, document.language)) for part in section.parts]
    text = "\n\n".join(blocks) + "\n"
    return text.replace("\n\n", "  \n\n\n") + "\n\n" if document.loose else text


def _write_lines(part: Part, language: Language) -> Iterator[str]:
    match part.kind:
        case "prose":
            yield _join(part, language)
        case "bullets":
            yield from (f"- {sentence.text}" for sentence in part.sentences)
        case "steps":
            yield from (part.lead, "")
            yield from (f"{number}. {sentence.text}" for number, sentence in enumerate(part.sentences, 1))
        case "table":
            yield from (_write_row(part.header), _write_row(["---"] * len(part.header)))
            yield from map(_write_row, part.rows)


def _write_row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _write_plain(document: Document) -> str:
    width = REWRAPPED if document.loose else WIDTH
    blocks = [f"{document.title}\n{'=' * 40}"]
    for section in document.sections:
        blocks.append(f"{section.heading}\n{'-' * 40}")
        for part in section.parts:
            lines = list(_write_lines(part, document.language))
            if document.language == "en":
                lines = [wrapped for line in lines for wrapped in textwrap.wrap(line, width, break_on_hyphens=False)]
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _write_html(document: Document) -> str:
    title = html.escape(document.title)
    lines = [
        "<!DOCTYPE html>",
        f'<html lang="{document.language}">',
        f'<head><meta charset="utf-8"><title>{title}</title>',
    ]
    lines += ["</head>", "<body>", f"<h1>{title}</h1>"]
    for section in document.sections:
        lines.append(f"<h2>{html.escape(section.heading)}</h2>")
        lines += [f"<p>{html.escape(_join(part, document.language))}</p>" for part in section.parts]
    return "\n".join([*lines, "</body>", "</html>", ""])
