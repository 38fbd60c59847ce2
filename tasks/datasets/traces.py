"""Where tools that record what a bot is asked and answers keep the text: in an object, or in a list of messages.

Langfuse, LangSmith and their like store input and output as the bot had them: `{"messages": [{"role": "user",
"content": "…"}]}`, `{"question": "…"}`, one message. Only what cannot be anything else is read; a conversation with
several questions, or an object with several texts, is left to the person, who names the place with --map.
"""

from collections.abc import Iterator, Mapping
from typing import Final

Steps = tuple[str | int, ...]

COLUMNS: Final = frozenset(
    {"input", "inputs", "output", "outputs", "expected_output", "expectedOutput", "expected", "reference_outputs"}
)
"""The columns that such tools write objects to, some of them as JSON text."""
_ROLES: Final[Mapping[str, tuple[str, ...]]] = {"question": ("user", "human")}
_ANSWERING = ("assistant", "ai")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {"question": ("question", "user_input", "input", "query", "prompt")}
_DEEPEST = 8
_ANSWER_KEYS = ("answer", "response", "output", "expected_output", "ground_truth", "reference")


def is_recorded(value: object) -> bool:
    """Whether a value is an object, or a list of them, and not a text or a list of texts."""
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def find_text(value: object, field: str, depth: int = 0) -> Steps | None:
    """The steps to the one text of an object or list that is this field's; None where there is not exactly one."""
    if isinstance(value, str):
        return ()
    if isinstance(value, list):
        return _find_message(value, field, depth)
    if not isinstance(value, dict) or depth > _DEEPEST:
        return None
    if "messages" in value:
        return _go_into(value, "messages", field, depth)
    keys = [key for key in _KEYS.get(field, _ANSWER_KEYS) if key in value] or (list(value) if len(value) == 1 else [])
    if "role" in value or "type" in value:
        keys = ["content"] if "content" in value else []
    return _go_into(value, keys[0], field, depth) if len(keys) == 1 else None


def _go_into(value: Mapping[str, object], key: str, field: str, depth: int) -> Steps | None:
    inner = find_text(value[key], field, depth + 1)
    return None if inner is None else (key, *inner)


def _find_message(messages: list[object], field: str, depth: int) -> Steps | None:
    """The only message of the user, or the assistant's where it is the last; the text where it is the only part."""
    if len(messages) == 1 and isinstance(messages[0], dict) and messages[0].get("type") == "text":
        return (0, "text")
    roles = [item.get("role") or item.get("type") if isinstance(item, dict) else None for item in messages]
    if field in _ROLES:
        places = [place for place, role in enumerate(roles) if role in _ROLES[field]]
    else:
        places = [len(roles) - 1] if roles and roles[-1] in _ANSWERING else []
    if len(places) != 1:
        return None
    inner = find_text(messages[places[0]], field, depth + 1)
    return None if inner is None else (places[0], *inner)


def list_texts(value: object, name: str, depth: int = 0) -> Iterator[str]:
    """The places of all texts inside a value, as --map names them; `name` is that of the value."""
    if isinstance(value, str):
        yield name
    elif isinstance(value, dict) and depth <= _DEEPEST:
        for key, member in value.items():
            if key not in ("role", "type"):
                yield from list_texts(member, f"{name}.{key}", depth + 1)
    elif isinstance(value, list) and depth <= _DEEPEST:
        for place, item in enumerate(value):
            yield from list_texts(item, f"{name}[{place}]", depth + 1)
