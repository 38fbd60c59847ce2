"""Replies by their tokens, each with its alternatives, as an endpoint with `logprobs` lists them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# A token with its alternatives, the token itself first; a text alone has probability 1.
Token = str | Mapping[str, float]
RATED: tuple[Token, ...] = ('{"accuracy": {"reason": "The year', ' agrees.", "rating": ')
SEVEN = (*RATED, {"7": 0.6, "8": 0.3, '"': 0.1}, "}}")
SEVEN_MEAN = (7 * 0.6 + 8 * 0.3) / 0.9


def list_tokens(*tokens: Token) -> list[dict[str, Any]]:
    """Tokens as an endpoint lists them under `content`."""
    listed = []
    for token in tokens:
        top = {token: 1.0} if isinstance(token, str) else token
        entries = [
            {"token": one, "logprob": math.log(share) if share else -9999.0, "bytes": list(one.encode())}
            for one, share in top.items()
        ]
        listed.append({**entries[0], "top_logprobs": sorted(entries, key=lambda entry: -float(str(entry["logprob"])))})
    return listed


def write_text(*tokens: Token) -> str:
    return "".join(token if isinstance(token, str) else next(iter(token)) for token in tokens)


def build_body(*tokens: Token, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # the choice's own fields
    choice = {
        "message": {"role": "assistant", "content": write_text(*tokens)},
        "logprobs": {"content": list_tokens(*tokens)},
        "finish_reason": "stop",
    }
    return {"choices": [choice | changes], "model": "judge"}
