"""What a model says to itself before its reply, told apart from the reply.

Endpoints give it in a field of its own, as a content block, or as it comes: between `<think>` and `</think>`, of which
templates that begin the thoughts themselves leave the closing mark alone, and a reply that breaks off the opening one.
Within the reply the same words may stand for themselves, as in a judgement on a text about them; there they stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

_MARKS: Final = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))
_ALONE: Final = "</think>"
# What may follow it there, rather than the rest of a sentence that speaks of it.
_AFTER: Final = ("", "\n", "\r", "{", "[", "`")
_FIELDS: Final = ("reasoning_content", "reasoning")
# Of longer ones the beginning is kept.
_MOST: Final = 100_000
# By the type of a content block the field that holds its text.
_BLOCKS: Final = {"thinking": "thinking", "reasoning": "reasoning"}


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """A reply's text without the thoughts before it, and these; None where there are none."""

    text: str
    thoughts: str | None = None


def part_thoughts(text: str, apart: str = "") -> Spoken:
    """The text of a reply without thoughts that stand in it; `apart` are those that came in a field of their own."""
    within, reply = _cut_thoughts(text)
    thoughts = "\n\n".join(part for part in (apart.strip(), within.strip()) if part)
    return Spoken(text=reply, thoughts=thoughts[:_MOST] or None)


def read_thoughts(message: Mapping[str, object]) -> str:
    """The thoughts in a field or in content blocks of a message; "" for none."""
    of_field = next((read_text(message[name]) for name in _FIELDS if message.get(name)), "")
    return of_field or read_blocks(message.get("content"))


def read_blocks(content: object) -> str:
    """The thoughts among the blocks of a content."""
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    texts = [block.get(_BLOCKS.get(str(block.get("type")), "")) for block in blocks]
    return "\n\n".join(part for text in texts if (part := read_text(text)))


def read_text(content: object) -> str:
    """A text, or the texts of its parts, as some endpoints give it."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _cut_thoughts(text: str) -> tuple[str, str]:
    begun = text.lstrip()
    opening, closing = next((marks for marks in _MARKS if begun.startswith(marks[0])), ("", _ALONE))
    before, mark, after = begun.partition(closing)
    if opening and not mark:
        return begun.removeprefix(opening), ""
    if not mark or (not opening and (after[:1] not in _AFTER or _is_json(text))):
        return "", text
    if closing in after and not _is_json(after):
        # A mark that the thoughts quote, or one more stretch of them.
        before, _, after = begun.rpartition(closing)
    if opening and after.lstrip().startswith(opening):
        before, after = before + after, ""
    return before.removeprefix(opening), after.strip()


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
