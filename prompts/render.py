r"""Writes the data of a request into the blocks of the wire shape.

The last message of a request holds the data and nothing else: one block per variable, each tag alone on its line, with
a nonce that no text could know. Lists have one item after the other, the id in front; a line after the first of an item
is indented, so that nothing but an id of ours ever stands in brackets at the start of a line:

    <question 1a2b3c4d>
    How long does the crossing take?
    </question 1a2b3c4d>
    <contexts 1a2b3c4d>
    [C1] Crossing: 40 minutes.
        In winter: 55 minutes.
    </contexts 1a2b3c4d>

Texts pass through `neutralise.py` first. `loader.py` puts the instructions and the worked examples in front.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evalhouse.prompts.errors import PromptError
from evalhouse.prompts.neutralise import Neutraliser, fold_text

BlockKind = Literal["text", "items"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """What a block of one name holds: a text, or items whose ids begin with `prefix` (empty for a text)."""

    kind: BlockKind
    prefix: str = ""


# All blocks there are, in the order in which they are written.
BLOCKS: dict[str, Block] = {
    "question": Block(kind="text"),
    "answer": Block(kind="text"),
    "ground_truth": Block(kind="text"),
    "contexts": Block(kind="items", prefix="C"),
    "answer_statements": Block(kind="items", prefix="A"),
    "ground_truth_statements": Block(kind="items", prefix="G"),
    "text": Block(kind="text"),
    "count": Block(kind="text"),
    "contexts_role": Block(kind="text"),
    "schema": Block(kind="text"),
    "expected_sql": Block(kind="text"),
    "sql": Block(kind="text"),
}
INDENT = "    "


@dataclass(frozen=True, kw_only=True)
class Item:
    """One text of a list with the short id under which the judge answers for it: A1, G1, C1 and so on."""

    id: str
    text: str


BlockValue = str | Sequence[Item]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a chat request."""

    role: Literal["system", "human", "ai"]
    content: str


_ID = re.compile(r"[A-Z][1-9][0-9]*", re.ASCII)
_NEUTRALISER = Neutraliser(names=BLOCKS, prefixes=[block.prefix for block in BLOCKS.values() if block.prefix])


def render_blocks(variables: Sequence[str], data: Mapping[str, BlockValue]) -> str:
    """The text of a message that holds `data`, whose keys are exactly `variables` (names out of BLOCKS, in its order).

    Equal data gives an equal text. PromptError: a block is missing, one too many or of the wrong kind, an id is
    malformed or comes twice.
    """
    if data.keys() != set(variables):
        raise PromptError(_describe_blocks(variables, data))
    bodies = [_render_body(name, data[name]) for name in variables]
    nonce = derive_nonce("\n".join(bodies))
    parts = [f"<{name} {nonce}>\n{body}</{name} {nonce}>" for name, body in zip(variables, bodies, strict=True)]
    return "\n".join(parts)


def _describe_blocks(variables: Sequence[str], data: Mapping[str, BlockValue]) -> str:
    missing = ", ".join(sorted(set(variables) - data.keys())) or "none"
    extra = ", ".join(sorted(data.keys() - set(variables))) or "none"
    return f"wrong blocks: missing {missing}; not declared {extra}; the prompt takes exactly {', '.join(variables)}"


def _render_body(name: str, value: BlockValue) -> str:
    """The lines between the tags, each with its line break; nothing at all for an empty text or list."""
    block = BLOCKS[name]
    if isinstance(value, str):
        if block.kind == "items":
            raise PromptError(f"block '{name}' is a text; it must be a list of items with ids like {block.prefix}1")
        return "".join([line + "\n" for line in _NEUTRALISER.neutralise_lines(value)])
    if block.kind == "text":
        raise PromptError(f"block '{name}' is {type(value).__name__}; it must be a text")
    _check_ids(name, block.prefix, [item.id for item in value])
    return "".join([_render_item(item) for item in value])


def _render_item(item: Item) -> str:
    lines = _NEUTRALISER.neutralise_lines(item.text)
    return f"[{item.id}] " + f"\n{INDENT}".join(lines) + "\n"


def _check_ids(name: str, prefix: str, ids: Sequence[str]) -> None:
    """Ids are the one thing written unchanged, and each must be answerable on its own."""
    for item_id in ids:
        if not _ID.fullmatch(item_id) or item_id[0] != prefix:
            raise PromptError(f"block '{name}' has the id {item_id!r}; ids there are {prefix}1, {prefix}2, …")
    if len(set(ids)) != len(ids):
        twice = ", ".join(sorted({item_id for item_id in ids if ids.count(item_id) > 1}))
        raise PromptError(f"block '{name}' has more than one item with the id {twice}; each id stands once")


def derive_nonce(body: str) -> str:
    """Eight hex digits that follow from the data and occur nowhere in it, in no other dress either."""
    content, plain = body.encode(), fold_text(body)
    nonce = hashlib.sha256(content).hexdigest()[:8]
    counter = 0
    while nonce in body or nonce in plain:
        counter += 1
        nonce = hashlib.sha256(b"%d\n" % counter + content).hexdigest()[:8]
    return nonce
