"""A prompt where a conversation came before the question: one more block, and what is to be done with it.

Prompt files know nothing of conversations, so that a question without one is asked as it always was. What goes with the
block stands in `conversation.yaml`, and follows the system part, which is then the same for all such questions.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import yaml

BLOCK: Final = "conversation"
PREFIX: Final = "T"
"""How the ids of turns begin."""
_WORDS: Final = Path(__file__).with_name("conversation.yaml")
_FALLBACK: Final = "en"


def describe_conversation(name: str, language: str) -> str:
    """What a prompt of this name says of the block, in its language where it is known and in English otherwise."""
    words = _read_words()
    of_language = words.get(language, words[_FALLBACK])
    return f"{of_language['all'].strip()}\n{of_language.get(name, of_language['rubric']).strip()}"


@cache
def _read_words() -> Mapping[str, Mapping[str, str]]:
    words: Mapping[str, Mapping[str, str]] = yaml.load(
        _WORDS.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return words
