"""The local endpoint made to reply and to count as a hosted model does, for tests of what a run costs.

Its own replies give reasons of a few words and its usage is a quarter of the characters. Here reasons are sentences as
models write them, and tokens are counted by a separate rule, which knows nothing of `tasks/asking/usage.py`: the
pieces into which OpenAI's tokenizers first cut a text, long ones counting twice. Over the sample dataset's requests it
comes to within 5 % of what o200k_base counts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import orjson
from endpoint import Asked, Raw
from endpoint_replies import Choice, build_completion, compose_reply

REASONS = (
    "G1 gives the same number of years.",
    "No item on the other side mentions the registration.",
    "A2 says 60 days and the ground truth says 30 days, so it contradicts it.",
    "C2 names the fee, and C3 repeats it.",
    "It is implied by G3, which names the app.",
    "Nothing in the contexts says when the office opens.",
    "The passage states the price that the ground truth asks for.",
)
_PIECE = re.compile(r"[一-鿿]{1,2}|[　-〿＀-￯]| ?[A-Za-z]+|\d{1,3}| ?[^\s\w]+|\n+|[^\W\d_]| (?=\d)")
_LONG = 11


def count_pieces(text: str) -> int:
    """Tokens of a text."""
    pieces: list[str] = _PIECE.findall(text)
    n_pairs = sum(len(piece) == 2 and "一" <= piece[0] <= "鿿" for piece in pieces)
    n_long = sum(len(piece.strip()) >= _LONG for piece in pieces)
    return len(pieces) + n_pairs // 2 + n_long


def make_script(*, usage: bool = True) -> dict[str, Callable[[Asked], Raw]]:
    """The endpoint's `script`; without `usage` it says nothing of tokens, as some servers do."""
    reasons = itertools.cycle(REASONS)

    def answer(asked: Asked) -> Raw:
        reply: Any = compose_reply(asked)
        for verdict in reply.get("verdicts", ()):
            verdict["reason"] = next(reasons)
        content = orjson.dumps(reply).decode()
        body = build_completion(asked, Choice(content=content), 1, 0)
        if not usage:
            del body["usage"]
            return Raw(body=body)
        prompt_tokens = 3 + sum(count_pieces(text) + 4 for text in asked.texts)
        completion_tokens = count_pieces(content)
        body["usage"] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        return Raw(body=body)

    return dict.fromkeys(("extract", "classify", "attribute", "rank"), answer)
