"""Which words of a reply a small model has copied from a prompt's worked examples, in place of an answer.

A short reason that fits any data may well be that of an example. One that speaks of what stands in the example's data
and not in those it was asked about does not come from them.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from evalhouse.prompts.prompt_file import VERDICTS, ExampleContent
from evalhouse.prompts.render import BlockValue, list_texts
from evalhouse.prompts.verdict_rows import list_ids, unfold_row

_SHORTEST = 8
_WORD = re.compile(r"[^\W\d_\u3000-\u9fff]{4,}|[\u4e00-\u9fff]+|\d{2,}")


def collect_said(examples: Iterable[ExampleContent]) -> dict[str, frozenset[str]]:
    """By text of an example's reply those of its words that its own data have; texts without one are left out."""
    said: dict[str, frozenset[str]] = {}
    for example in examples:
        known = collect_words(_walk_texts(example.data))
        for text in [*_walk_texts(example.reply), *list_row_reasons(example.reply)]:
            # Ids, labels and single words are no copies of anything.
            is_word = len(text) < _SHORTEST or (text.isascii() and " " not in text)
            if not is_word and (telling := collect_words([text]) & known):
                said[text.strip()] = telling
    return said


def list_row_reasons(reply: Mapping[str, Any]) -> list[str]:
    """What the rows of a reply say in words; ids are none."""
    rows = [row for row in reply.get(VERDICTS) or () if isinstance(row, list)]
    reasons = [str(verdict["reason"]) for row in rows for verdict in unfold_row(row)]
    return [reason for reason in reasons if not list_ids(reason)]


def list_copied(
    texts: Iterable[str], said: Mapping[str, frozenset[str]], data: Mapping[str, BlockValue]
) -> Collection[str]:
    """Those of the texts that are word for word an example's, and not about these data."""
    alike = [text for text in texts if text.strip() in said]
    if not alike:
        return ()
    known = collect_words(text for value in data.values() for text in list_texts(value))
    return {text for text in alike if said[text.strip()] - known}


def collect_words(texts: Iterable[str]) -> frozenset[str]:
    """Telling words: of four letters and more, numbers of more than one digit, and pairs of Chinese characters."""
    words: set[str] = set()
    for text in texts:
        for word in _WORD.findall(text.lower()):
            chinese = "\u4e00" <= word[0] <= "\u9fff"
            words.update((word[place : place + 2] for place in range(len(word) - 1)) if chinese else [word])
    return frozenset(words)


def _walk_texts(value: Any) -> Iterator[str]:  # noqa: ANN401  # JSON
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _walk_texts(part)
