"""What the local endpoint says to a stranger: a reply of the shape that was asked for, filled with plain words.

Neighbour of `endpoint_replies.py`, which knows our own prompts. Other evaluators, run beside us by
`benchmarks/price.py`, send the shape they want along, as `response_format` or within the prompt; what they then make
of the contents is of no matter to a count of requests and seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Lists of this length stand for the statements, questions or verdicts of an answer of some five sentences.
_ITEMS = 4
_WORDS = "The keeper of the lighthouse wrote the weather into the log."
_ANNOUNCEMENT = "specified in JSON Schema:"
_EXAMPLE = "Example JSON:"
_DEPTH = 12


def compose_for_stranger(body: Mapping[str, Any], texts: tuple[str, ...]) -> Any:  # noqa: ANN401  # any JSON value
    """What the request asks its reply to look like, filled: a schema, or an example of a JSON object; else None."""
    wanted = (body.get("response_format") or {}).get("json_schema") or {}
    last = texts[-1] if texts else ""
    schema = wanted.get("schema") or _read_json_after(_ANNOUNCEMENT, last)
    return fill_schema(schema) if isinstance(schema, dict) else _read_json_after(_EXAMPLE, last)


def fill_schema(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON value
    """A value that fits a schema: the first of an enum, true, 1, one sentence, lists of four."""
    return _fill(schema, schema, _DEPTH)


def _fill(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:  # noqa: ANN401
    if depth == 0:
        return None
    inner = next((schema[choices][0] for choices in ("anyOf", "oneOf", "allOf") if choices in schema), None)
    if "$ref" in schema:
        inner = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    if inner is not None:
        return _fill(inner, root, depth - 1)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    if schema.get("type") == "object":
        return {name: _fill(part, root, depth - 1) for name, part in schema.get("properties", {}).items()}
    if schema.get("type") == "array":
        return [_fill(schema.get("items", {}), root, depth - 1)] * _ITEMS
    return {"integer": 1, "number": 1, "boolean": True}.get(schema.get("type", ""), _WORDS)


def _read_json_after(words: str, text: str) -> Any:  # noqa: ANN401
    _, announced, rest = text.rpartition(words)
    if not announced:
        return None
    try:
        return json.JSONDecoder().raw_decode(rest.lstrip("* \n"))[0]
    except json.JSONDecodeError:
        return None
