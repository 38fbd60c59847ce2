"""The fields and the name of a model that a user's factory made: replies of another model are not reused for it."""

import re
from collections.abc import Mapping
from typing import Final

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel

# Fields of access, which change no reply.
_ACCESS: Final = re.compile(r"(?:^|_)(?:key|token|secret|password|authorization)$", re.IGNORECASE)
_MODEL_FIELDS = ("model", "model_name", "model_id", "deployment", "deployment_name", "repo_id", "model_path")


def list_fields(made: object) -> object:
    """Return the fields of a model, which are part of the key of its requests, for they may change its replies.

    Numbers, texts, and lists and dictionaries of them count by value, an embedding model within another by its fields,
    and other objects by their type: an object's text would have its address in it, and no recorded reply would be found
    again. An API key does not count, so that a new one asks nothing again.
    """
    if made is None or isinstance(made, bool | int | float | str):
        return repr(made)
    if isinstance(made, Mapping):
        return {repr(name): list_fields(value) for name, value in made.items() if not _ACCESS.search(str(name))}
    if isinstance(made, list | tuple):
        return [list_fields(value) for value in made]
    kind = type(made).__qualname__
    if not isinstance(made, Embeddings | BaseChatModel):
        return kind
    # What every chat model has (tags, callbacks, a rate limiter) changes no reply.
    of_all = BaseChatModel.model_fields if isinstance(made, BaseChatModel) else {}
    return [kind, list_fields({name: value for name, value in _open(made).items() if name not in of_all})]


def find_model_name(made: object) -> str | None:
    """Return the name of the model that a factory made, None if no field has it."""
    fields = _open(made)
    if named := next((fields[name] for name in _MODEL_FIELDS if isinstance(fields.get(name), str)), None):
        return str(named)
    inner = (find_model_name(value) for value in fields.values() if isinstance(value, Embeddings))
    return next((name for name in inner if name), None)


def _open(made: object) -> Mapping[str, object]:
    return getattr(made, "__dict__", {})
