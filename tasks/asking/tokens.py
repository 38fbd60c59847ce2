"""Token estimates without a tokenizer, which would be fetched from the network on first use.

As a rule of thumb English comes to about four characters a token and Chinese to a little under
one token a character, which is three UTF-8 bytes; estimates are for splitting requests and for prices beforehand.
"""

from collections.abc import Sequence

from evalhouse.prompts import Item

_ASCII_PER_TOKEN = 4.0
_BYTES_PER_TOKEN = 3.5
ID_TOKENS = 4


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has; at least 1."""
    is_ascii = text.isascii()
    return estimate_size(len(text) if is_ascii else len(text.encode()), is_ascii=is_ascii)


def estimate_size(n_bytes: int, *, is_ascii: bool) -> int:
    """About how many tokens a text of so many UTF-8 bytes has; for texts that are put together bit by bit."""
    return max(1, round(n_bytes / (_ASCII_PER_TOKEN if is_ascii else _BYTES_PER_TOKEN)))


def estimate_items(items: Sequence[Item]) -> int:
    """About how many tokens items have in a request, ids included."""
    return sum(estimate_tokens(item.text) + ID_TOKENS for item in items)


def leave_room(most: int, *beside: str) -> int:
    """What is left of `most` tokens beside texts that go into every request whole; half of it at the very least."""
    return max(most - sum(estimate_tokens(text) for text in beside), most // 2)


def split_by_tokens(items: Sequence[Item], most: int) -> list[list[Item]]:
    """Items in order, in groups of at most `most` tokens; an item larger than that has a group of its own, whole.

    Items of the same id, which are parts of one, never meet in a group.
    """
    groups: list[list[Item]] = []
    filled = 0
    for item in items:
        size = estimate_items([item])
        if not groups or filled + size > most or item.id == groups[-1][-1].id:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += size
    return groups
