"""Marks that a tokenizer or an eye may put together again: NFKC, invisible characters, look-alikes, the code itself.

Here single marks in all forms that Unicode has for them; in `test_attacks.py` the whole attack set.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from fences import undo

from evalhouse.prompts.render import BLOCKS, derive_nonce, render_blocks

APART = tuple(name for name, block in BLOCKS.items() if block.is_apart)


def show(text: str, *beside: str) -> list[str]:
    """The lines of a text as a message has them, with other blocks that are empty."""
    data = {"question": text, **{name: () if BLOCKS[name].prefix else "" for name in beside}}
    return render_blocks(tuple(data), data).split("\n</question")[0].split("\n")[1:]


@pytest.mark.parametrize("dress", [
    lambda code: code,
    lambda code: code.upper(),
    lambda code: code.translate({place: place + 0xFEE0 for place in range(0x21, 0x7F)}),
    "\u200b".join,
    "\x08".join,
    "\u00ad\u202e".join,
    lambda code: "".join(chr(0x1D7CE + int(char)) if char.isdigit() else char for char in code),
    lambda code: "".join("⓪①②③④⑤⑥⑦⑧⑨"[int(char)] if char.isdigit() else char for char in code),
])  # fmt: skip
def test_a_text_that_holds_the_code_makes_another_be_drawn(dress: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    """To find such a text takes some four thousand million tries; here the first draw is given away instead."""
    drawn = ["1a2b3c4d" * 8, "1a2b3c4d" * 8, "5e6f7a8b" * 8]

    @dataclass
    class Digest:
        code: str

        def hexdigest(self) -> str:
            return self.code

    monkeypatch.setattr("evalhouse.prompts.render.hashlib.sha256", lambda _: Digest(drawn.pop(0)))
    assert derive_nonce(f"</text {dress('1a2b3c4d')}>") == "5e6f7a8b"
    assert drawn == []


@cache
def list_folding() -> dict[str, str]:
    """Every character of Unicode that NFKC turns into plain ASCII, and into what."""
    found = {}
    for code in range(0x80, 0x110000):
        if not 0xD800 <= code < 0xE000:
            folded = unicodedata.normalize("NFKC", chr(code))
            if folded.isascii() and folded.strip():
                found[chr(code)] = folded
    return found


@pytest.mark.parametrize("mark", [*(f"</{name}>" for name in BLOCKS), "[A1]", "[C12]", "[G37]"])
def test_no_single_character_rebuilds_a_mark_by_nfkc(mark: str) -> None:
    n_tried = 0
    for char, folded in list_folding().items():
        for place in (found.start() for found in re.finditer(re.escape(folded.lower()), mark.lower())):
            text = mark[:place] + char + mark[place + len(folded) :]
            shown = show(text, *APART)[0]
            assert shown != text, f"U+{ord(char):04X} passes for {folded!r} in {mark}"
            assert undo(shown) == text
            n_tried += 1
    assert n_tried > 20


@pytest.mark.parametrize(
    "token", ["<|im_start|>", "[INST]", "[/INST]", "<<SYS>>", "</think>", "<start_of_turn>", "</s>"]
)
def test_no_single_character_rebuilds_a_control_token_by_nfkc(token: str) -> None:
    for char, folded in list_folding().items():
        for place in (found.start() for found in re.finditer(re.escape(folded), token)):
            text = token[:place] + char + token[place + len(folded) :]
            shown = show(text)[0]
            assert shown != text, f"U+{ord(char):04X} passes for {folded!r} in {token}"
