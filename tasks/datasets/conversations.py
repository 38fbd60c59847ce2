"""What was said before a question: turns as this project writes them, or messages as chat APIs do.

    {"role": "user", "text": "…"}
    {"role": "assistant", "text": "…", "contexts": ["…"], "context_ids": ["…"]}
    {"role": "assistant", "content": "…"}

The last turn is the one before the question. Instructions of a system are no turn: they are left out, and counted, so
that the person who loads the file learns of it.
"""

from dataclasses import dataclass
from typing import Final, cast

from evalhouse.tasks.datasets.values import Say, is_absent, is_empty, open_list, read_contexts, read_ids, read_text
from evalhouse.warehouse.messages import list_names, name_kind, quote_value
from evalhouse.warehouse.rows.samples import Role, Turn

_ROLES: Final[dict[str, Role]] = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}
_SYSTEM: Final = frozenset({"system", "developer"})
_TEXTS: Final = ("text", "content")
_ALLOWED: Final = "user (or human), assistant (or ai), and system, which is left out"


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """The turns of a row, None where there are none, and how many instructions of a system stood between them."""

    turns: list[Turn] | None = None
    n_system: int = 0


def read_conversation(value: object, say: Say, *, tabular: bool) -> Conversation:
    """The earlier turns, the oldest first. What is no turn is reported to `say`."""
    items = open_list(value) if tabular else value
    if is_absent(items) or (tabular and is_empty(items)):
        return Conversation()
    if not isinstance(items, list):
        say("conversation", f"conversation is not a list of turns but {name_kind(items)}: {quote_value(items)}")
        return Conversation()
    spoken = [(place, item) for place, item in enumerate(items, start=1) if not _is_system(item)]
    turns = [turn for place, item in spoken if (turn := _read_turn(item, place, say, tabular=tabular)) is not None]
    return Conversation(turns=turns or None, n_system=len(items) - len(spoken))


def _is_system(item: object) -> bool:
    return isinstance(item, dict) and item.get("role") in _SYSTEM


def _read_turn(item: object, place: int, say: Say, *, tabular: bool) -> Turn | None:
    def complain(_: object, text: str) -> None:
        say("conversation", f"turn {place} of the conversation: {text}")

    if not isinstance(item, dict):
        complain(None, f"it is {name_kind(item)}, not an object: {quote_value(item)}")
        return None
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        came = f"has the role {quote_value(item['role'])}" if "role" in item else "has no role"
        complain(None, f"it {came}; allowed: {_ALLOWED}")
        return None
    text = _read_words(item, complain)
    contexts = read_contexts(item.get("contexts"), complain, tabular=tabular)
    given_ids = read_ids(item.get("context_ids"), "context_ids", complain, tabular=tabular)
    ids = contexts.ids if given_ids is None else given_ids
    if role == "user" and not (contexts.texts is None and ids is None):
        complain(None, "it is the user's and has contexts; only an assistant's turn rests on some")
    if ids is not None and len(ids) != len(contexts.texts or ()):
        complain(None, f"it has {len(ids)} context_ids for {len(contexts.texts or ())} contexts")
    return Turn(role=role, text=text, contexts=contexts.texts, context_ids=ids)


def _read_words(item: dict[str, object], complain: Say) -> str:
    """What was said; "" after a complaint. The parts of a message that has several are one text."""
    value = next((item[key] for key in _TEXTS if not is_absent(item.get(key))), None)
    if isinstance(value, list) and all(_is_text_part(part) for part in value):
        value = "\n".join(cast(str, part["text"]) for part in value)
    text = read_text(value, "its text", complain)
    if text is None and (is_empty(value) or value is None):
        complain("conversation", f"it has no text; it has: {list_names(list(item), 8)}")
    return text or ""


def _is_text_part(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
