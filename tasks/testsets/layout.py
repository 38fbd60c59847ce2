"""What a reader makes of a file: its text, and the blocks that stand in it.

Every kind of file comes to the same: one text, in which headings, paragraphs, lists and tables are stretches. So it is
cut into passages in one place (`passages`), and whatever is quoted from a document stands in it letter by letter.
"""

from dataclasses import dataclass
from typing import Literal

BlockKind = Literal["heading", "text", "list", "table", "code"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A stretch of the document's text, from `start` to before `end`.

    `cuts` are the places in it where a new item, row or line of code begins: where it may be cut when it is too long.
    A text is cut between its sentences. A heading has a `level` from 1 (0: the title of the document) and its words
    without markup in `title`; one of a `name` but no title begins a section that nobody named, such as a page.
    """

    start: int
    end: int
    kind: BlockKind
    cuts: tuple[int, ...] = ()
    level: int = 0
    title: str = ""
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A document's text with its blocks in order; they do not overlap, and what is in none is not part of a passage."""

    text: str
    blocks: tuple[Block, ...]


class LayoutWriter:
    """Makes the text of a document that has none of its own, block by block, and remembers where each stands."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._blocks: list[Block] = []
        self._length = 0

    def add_heading(self, title: str, level: int) -> None:
        start = self._add([title])
        self._blocks.append(Block(start=start, end=start + len(title), kind="heading", level=level, title=title))

    def add_section(self, name: str) -> None:
        """Begin a section without words of its own, of the uppermost level."""
        self._blocks.append(Block(start=self._length, end=self._length, kind="heading", level=1, name=name))

    def add(self, kind: BlockKind, lines: list[str]) -> None:
        """A paragraph, list or table; its lines are the items or rows of the latter two. Empty ones are left out."""
        kept = [line for line in lines if line.strip()]
        if not kept:
            return
        start = place = self._add(kept)
        cuts: list[int] = []
        for line in kept[:-1]:
            place += len(line) + 1
            cuts.append(place)
        end = place + len(kept[-1])
        self._blocks.append(Block(start=start, end=end, kind=kind, cuts=() if kind == "text" else tuple(cuts)))

    def finish(self) -> Layout:
        return Layout(text="".join(self._parts), blocks=tuple(self._blocks))

    def _add(self, lines: list[str]) -> int:
        """Write lines after an empty one; where they begin."""
        if self._length:
            self._write("\n\n")
        start = self._length
        self._write("\n".join(lines))
        return start

    def _write(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)
