"""Vectors as text, which is what a reply is on record."""

import base64
import math
from array import array

import orjson

from evalhouse.tasks.judge.errors import UnusableReply


def pack_vector(vector: list[float]) -> str:
    """A vector as JSON with base64 of 32-bit floats, a quarter of the size of its digits."""
    return _name_packed(base64.b64encode(array("f", vector).tobytes()).decode())


def _name_packed(packed: str) -> str:
    return orjson.dumps({"embedding_float32_base64": packed}).decode()


def pack_embedding(embedding: object) -> str:
    """An endpoint's `embedding`, numbers or base64 of 32-bit floats; raises UnusableReply for what is neither."""
    if isinstance(embedding, str):
        return _name_packed(embedding)
    try:
        return pack_vector(embedding)  # type: ignore[arg-type]  # what is no list of numbers is refused by the array
    except (TypeError, OverflowError):
        raise UnusableReply(f"the embedding was not a list of numbers: {str(embedding)[:60]!r}") from None


def read_vector(text: str) -> "array[float]":
    """A packed vector; raises UnusableReply for an empty one or another text."""
    try:
        vector = array("f")
        vector.frombytes(base64.b64decode(orjson.loads(text)["embedding_float32_base64"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        raise UnusableReply("the reply was not a packed vector") from None
    if not vector or not all(map(math.isfinite, vector)):
        raise UnusableReply("the vector was empty or not finite")
    return vector
