"""Token estimates without a tokenizer, which would be fetched from the network on first use.

As a rule of thumb English comes to about four characters a token and Chinese to a little under
one token a character, which is three UTF-8 bytes; estimates are for splitting requests and for prices beforehand.
"""

from collections.abc import Sequence

from prompts import Item

_ASCII_PER_TOKEN = 4.0
_BYTES_PER_TOKEN = 3.5
_ID_TOKENS = 4


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has; at least 1."""
    if text.isascii():
        return max(1, round(len(text) / _ASCII_PER_TOKEN))
    return max(1, round(len(text.encode()) / _BYTES_PER_TOKEN))


def estimate_items(items: Sequence[Item]) -> int:
    """About how many tokens items have in a request, ids included."""
    return sum(estimate_tokens(item.text) + _ID_TOKENS for item in items)


def split_by_tokens(items: Sequence[Item], most: int) -> list[list[Item]]:
    """Items in order, in groups of at most `most` tokens; an item larger than that has a group of its own, whole."""
    groups: list[list[Item]] = []
    filled = 0
    for item in items:
        size = estimate_items([item])
        if not groups or filled + size > most:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += size
    return groups
