"""The fields and the name of a model that a user's factory made: replies of another model are not reused for it."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Final

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel

# Fields of access, which change no reply.
_ACCESS: Final = re.compile(r"(?:key|token|secret|password|authorization|cookie|jwt)$", re.IGNORECASE)
_PLAIN: Final = (bool, int, float, complex, str, bytes, Decimal, PurePath)
_QUICK: Final = frozenset({bool, int, float, str, type(None)})
_MODEL_FIELDS = ("model", "model_name", "model_id", "deployment", "deployment_name", "repo_id", "model_path")


def hash_fields(made: object) -> str:
    """Return a hash of a model's fields, which is part of the key of its requests: they may change its replies.

    Numbers, texts, paths, arrays, and lists and dictionaries of them count by value, models and dataclasses by their
    fields, and other objects by their type: an object's text would have its address in it, and no recorded reply would
    be found again. Keys and tokens of access do not count, so that a new one asks nothing again.
    """
    digest = hashlib.sha256()
    seen: dict[int, object] = {}  # an object may hold itself
    left: list[object] = [made]
    while left:
        value = left.pop()
        digest.update(f"{type(value).__qualname__}\0".encode())
        if value is None or isinstance(value, _PLAIN):
            digest.update(f"{value!r}\0".encode(errors="surrogatepass"))
        elif isinstance(value, Enum):
            digest.update(f"{value.name}\0".encode(errors="surrogatepass"))
        elif isinstance(value, np.ndarray | np.generic):
            digest.update(f"{value.dtype} {value.shape}\0".encode())
            digest.update(b"" if value.dtype.hasobject else value.tobytes())
        elif isinstance(value, list | tuple) and _QUICK.issuperset(map(type, value)):  # word vectors have millions
            digest.update(f"{value!r}\0".encode(errors="surrogatepass"))
        elif isinstance(value, set | frozenset):
            digest.update(repr(sorted(repr(one) for one in value if isinstance(one, _PLAIN))).encode())
        elif id(value) not in seen:
            seen[id(value)] = value
            left += _list_inner(value)
    return digest.hexdigest()


def _list_inner(value: object) -> Iterable[object]:
    """Return what a container or a model holds, the last first, with the names of its members."""
    if isinstance(value, list | tuple):
        return (len(value), *value)[::-1]
    if isinstance(value, Mapping):
        members = value
    elif isinstance(value, BaseChatModel):
        # What every chat model has (tags, callbacks, a rate limiter) changes no reply.
        members = {name: field for name, field in _open(value).items() if name not in BaseChatModel.model_fields}
    elif isinstance(value, Embeddings | BaseModel) or is_dataclass(value):
        members = _open(value)
    else:
        return ()
    kept = [(name, member) for name, member in members.items() if not _ACCESS.search(str(name))]
    return [len(kept), *(part for pair in kept for part in pair)][::-1]


def find_model_name(made: object) -> str | None:
    """Return the name of the model that a factory made, or that a model within it has; None if no field has it."""
    seen: set[int] = set()
    left = [made]
    while left:
        value = left.pop()
        seen.add(id(value))
        members = _open(value)
        named = next((members[name] for name in _MODEL_FIELDS if isinstance(members.get(name), str)), None)
        if named:
            return str(named)
        left += [inner for inner in members.values() if isinstance(inner, Embeddings) and id(inner) not in seen]
    return None


def _open(made: object) -> Mapping[str, object]:
    """Return an object's fields; the name of its model may also be of its class, or a property."""
    opened, extra = dict(getattr(made, "__dict__", {})), getattr(made, "__pydantic_extra__", None)
    opened |= extra if isinstance(extra, dict) else {}
    if is_dataclass(made) and not opened:  # with slots
        opened = {field.name: getattr(made, field.name, None) for field in fields(made)}
    if not any(isinstance(opened.get(name), str) for name in _MODEL_FIELDS):
        for name in _MODEL_FIELDS:
            with suppress(Exception):  # a property is a user's code
                if isinstance(named := getattr(made, name), str):
                    opened[name] = named
    return opened
