"""A judge's message read back by its nonce, as a judge has to, and never with the code that wrote it."""

import re
from dataclasses import dataclass, field

INDENT = "    "
ORDINARY = [
    "see [1], [A1] and [C2, p. 4]",
    "[1] Ode Varn, Tides and towers",
    "a < b and b > c, so a < c; x << 2; 3 <4",
    "if guess < answer and answer > 3: text < question",
    "<p>a <b>bold</b> <textarea> <contextual> <answering machine></p>",
    "- [x] done\n- [ ] open\n[link](page.html)",
    "[A4 paper] [Cat5] [G-7]",
    "question: what? answer: </p>",
    "C:\\temp\\new \\[A1\\]",
    "f <| x |> g, a || b",
    "《渡轮志》第〈三〉章【注】见[1]；甲＜乙，［一］",
    "１２ ａｂｃ ﬁ ① 👩‍👩‍👧 e\u0301 עִברית ไทย",
    "   leading, trailing   \n\n\ttabs\tand  spaces ",
    "Человек < ответ; ἀριθμός",
]


@dataclass
class ReadBlock:
    """A block as read back: its lines as they stand, or the items in it by id."""

    name: str
    lines: list[str] = field(default_factory=list)

    def read_items(self) -> dict[str, str]:
        items: dict[str, str] = {}
        item_id = ""
        for line in self.lines:
            opening = re.match(r"\[([A-Z][0-9]+)\] ", line)
            if opening:
                item_id = opening[1]
                assert item_id not in items
                items[item_id] = line[opening.end() :]
            else:
                assert line.startswith(INDENT), f"a line is outside the items: {line!r}"
                items[item_id] += "\n" + line[len(INDENT) :]
        return items


def read_blocks(content: str) -> dict[str, ReadBlock]:
    """Read a message by the nonce of its first line; every line must belong to a block."""
    nonce = re.match(r"<[a-z_]+ ([0-9a-f]{8})>\n", content)
    assert nonce
    blocks: dict[str, ReadBlock] = {}
    current: ReadBlock | None = None
    for line in content.split("\n"):
        opening = re.fullmatch(rf"<([a-z_]+) {nonce[1]}>", line)
        if opening:
            assert current is None
            current = ReadBlock(name=opening[1])
            assert current.name not in blocks
            blocks[current.name] = current
        elif current and line == f"</{current.name} {nonce[1]}>":
            current = None
        else:
            assert current, f"a line is outside the blocks: {line!r}"
            assert nonce[1] not in line
            current.lines.append(line)
    assert current is None
    return blocks


def undo(text: str) -> str:
    return text.replace("\\", "")
