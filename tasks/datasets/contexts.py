"""Retrieved contexts, as datasets, bots and tracers write them: the one reader of all of these.

Contexts are a list in rank order, and one text or one object by itself is a list of one. A context is a text, or an
object that holds its text, its id and more. What may be read in two ways is refused: a text that is only part of a
list, and one that may be several texts joined by `|`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evalhouse.tasks.datasets.values import MISSING, Say, is_absent, is_empty, open_list, open_value, read_id
from evalhouse.warehouse.messages import list_names, name_kind, quote_value

_TEXTS: Final = ("text", "content", "page_content", "pageContent", "text_resource")
_IDS: Final = ("id", "id_", "document_id", "doc_id", "chunk_id", "node_id")
_INSIDE: Final = ("document", "node", "kwargs")  # members that hold the context, beside its score
_PREFIX: Final = "document."  # of the names that OpenInference gives a context's members
_PAGE: Final = "page_content"  # the attribute of LangChain's documents
# How a list begins that is cut off, or that NumPy or a library printed.
_TORN: Final = re.compile(r"\s*(?:\[\s*['\"{\[]|\[.*\]\s*\Z|array\()", re.DOTALL)
_JOINED: Final = re.compile(r"(?<!\|)\|(?!\|)")


@dataclass(frozen=True, kw_only=True)
class Context:
    """One context: its text and id, MISSING or None where it has none, and its other members."""

    text: object
    id: object
    rest: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class ContextList:
    """Contexts in rank order. `is_one_text`: a text by itself was read as the only one."""

    texts: list[str] | None
    ids: list[str] | None  # None when no context has one
    rest: list[dict[str, object]] | None  # other members of the contexts by rank; None when no context has any
    is_one_text: bool = False


def open_context(item: object) -> Context | None:
    """Return the parts of one context: a text, an object, a document of LangChain, or one of these with its score.

    The text of an object is among its members, or one level further inside, as are Bedrock's and LlamaIndex's; its id
    is among its members or in its metadata. None for a value of another kind.
    """
    if isinstance(item, str):
        return Context(text=item, id=None, rest={})
    if isinstance(item, list | tuple):
        if len(item) != 2 or not isinstance(item[1], int | float) or isinstance(item[1], bool):
            return None
        inner = open_context(item[0])
        return inner and Context(text=inner.text, id=inner.id, rest={"score": item[1], **inner.rest})
    if hasattr(item, _PAGE):
        item = {name: getattr(item, name, None) for name in (_PAGE, "id", "metadata")}
    if not isinstance(item, Mapping):
        return None
    members: dict[str, Any] = {str(key).removeprefix(_PREFIX): value for key, value in item.items()}
    for name in _INSIDE:
        if isinstance(members.get(name), Mapping) and not any(members.get(key) for key in _TEXTS):
            members |= members.pop(name)
    key = next((key for key in _TEXTS if members.get(key) is not None), None)
    text = MISSING if key is None else members.pop(key)
    if isinstance(text, Mapping) and "text" in text:
        text = text["text"]
    id_key = next((key for key in _IDS if not is_empty(members.get(key))), None)
    an_id = None if id_key is None else members.pop(id_key)
    inside = open_value(members.get("metadata"))
    if id_key is None and isinstance(inside, Mapping):
        id_key = next((key for key in _IDS if not is_empty(inside.get(key))), None)
        an_id = None if id_key is None else inside[id_key]
        members["metadata"] = {key: value for key, value in inside.items() if key != id_key} or None
    return Context(text=text, id=an_id, rest={key: value for key, value in members.items() if value is not None})


def list_contexts(value: object, say: Say, *, is_exact: bool = False) -> Sequence[object] | None:
    """Return the items of contexts, None for nothing; reports what is not a list, and not one context, to `say`.

    A text that holds a list or an object is that. Another text is one context, unless it may be meant for several;
    `is_exact` takes that as one too, where a JSONPath names the text.
    """
    if isinstance(value, list | tuple):
        return value
    if is_empty(value):
        return None
    opened = open_list(value)
    if isinstance(opened, list):
        return opened
    if isinstance(opened, Mapping) or hasattr(opened, _PAGE):
        return [opened]
    if not isinstance(opened, str):
        say("contexts", f"contexts are not a list but {name_kind(opened)}: {quote_value(opened)}")
        return None
    problem = ""
    if _TORN.match(opened):
        problem = "text that is a list neither in JSON nor in Python"
    elif _JOINED.search(opened) and not any(line.lstrip().startswith("|") for line in opened.splitlines()):
        problem = "text with | in it, which may be one context or several"
    if problem and not is_exact:
        say("contexts", f"contexts are not a list but {problem}: {quote_value(opened)}")
        return None
    return [opened]


def read_contexts(value: object, say: Say, *, is_exact: bool = False) -> ContextList:
    """Return the texts by rank, with the ids and the other members of each. An empty list stays an empty list."""
    items = list_contexts(value, say, is_exact=is_exact)
    if items is None:
        return ContextList(texts=None, ids=None, rest=None)
    if len(items) == 1 and isinstance(items[0], list) and open_context(items[0]) is None:
        items = items[0]  # as vector stores answer a batch of one query
    texts, ids, rest = [], [], []
    for rank, item in enumerate(items, start=1):
        context = open_context(item) or Context(text=item, id=None, rest={})
        text = context.text
        if isinstance(text, int | float) and not (isinstance(text, bool) or is_absent(text)):
            text = str(text)
        if text is MISSING:
            has = list(item) if isinstance(item, Mapping) else list(context.rest)
            say("contexts", f"context {rank} has no text; it has: {list_names(has, 10)}")
        elif is_absent(text):
            say("contexts", f"context {rank} is null")
        elif not isinstance(text, str):
            say("contexts", f"context {rank} is {name_kind(text)}, not text: {quote_value(text)}")
        texts.append(text if isinstance(text, str) else "")
        ids.append(read_id(context.id, f"the id of context {rank}", say) or "")
        rest.append(context.rest)
    return ContextList(
        texts=texts,
        ids=ids if any(ids) else None,
        rest=rest if any(rest) else None,
        is_one_text=isinstance(value, str) and items == [value],
    )
