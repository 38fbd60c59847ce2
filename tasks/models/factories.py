"""The fields and the name of a model that a user's factory made: replies of another model are not reused for it."""

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import partial
from pathlib import PurePath
from typing import Final

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel

# Fields of access, which change no reply.
_ACCESS: Final = re.compile(r"(?:^|_)(?:key|token|secret|password|authorization)$", re.IGNORECASE)
_MAX_DEPTH: Final = 8
_MODEL_FIELDS = ("model", "model_name", "model_id", "deployment", "deployment_name", "repo_id", "model_path")


def list_fields(made: object, *, depth: int = 0) -> object:
    """Return the fields of a model, which are part of the key of its requests, for they may change its replies.

    Numbers, texts, paths, and lists and dictionaries of them count by value, a model or a dataclass by its fields, and
    other objects by their type: an object's text would have its address in it, and no recorded reply would be found
    again. An API key does not count, so that a new one asks nothing again.
    """
    if made is None or isinstance(made, bool | int | float | str | PurePath):
        return repr(made)
    kind = type(made).__qualname__
    if depth == _MAX_DEPTH:  # an object may hold itself
        return kind
    inner = partial(list_fields, depth=depth + 1)
    if isinstance(made, Mapping):
        return {repr(name): inner(value) for name, value in made.items() if not _ACCESS.search(str(name))}
    if isinstance(made, list | tuple):
        return [inner(value) for value in made]
    if not (isinstance(made, Embeddings | BaseChatModel) or is_dataclass(made)):
        return kind
    # What every chat model has (tags, callbacks, a rate limiter) changes no reply.
    of_all = BaseChatModel.model_fields if isinstance(made, BaseChatModel) else {}
    return [kind, inner({name: value for name, value in _open(made).items() if name not in of_all})]


def find_model_name(made: object, *, depth: int = 0) -> str | None:
    """Return the name of the model that a factory made, None if no field has it."""
    fields = _open(made)
    if depth == _MAX_DEPTH:
        return None
    if named := next((fields[name] for name in _MODEL_FIELDS if isinstance(fields.get(name), str)), None):
        return str(named)
    inner = (find_model_name(value, depth=depth + 1) for value in fields.values() if isinstance(value, Embeddings))
    return next((name for name in inner if name), None)


def _open(made: object) -> Mapping[str, object]:
    return getattr(made, "__dict__", {})
