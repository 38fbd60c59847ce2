"""The part of JSON Schema that a prompt's reply may be described with, and a check of a value against it.

Endpoints differ in what they accept as a schema; this part works on all of them in their strict mode: objects whose
keys are all required and no others allowed, arrays, and plain values with or without an enum. `content.py` holds the
prompt files to it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from evalhouse.prompts.errors import PromptProblem

Schema = Mapping[str, Any]

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}
_KEYS = {
    "object": {"type", "description", "properties", "required", "additionalProperties"},
    "array": {"type", "description", "items"},
    "string": {"type", "description", "enum"},
    "integer": {"type", "description", "enum"},
    "number": {"type", "description"},
    "boolean": {"type", "description"},
}


def find_schema_faults(schema: object, *, file: str, key: str) -> Iterator[PromptProblem]:
    """What keeps a schema from being taken by every endpoint, or from asking for the reason before the label."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not isinstance(kind, str) or kind not in _KEYS:
        message = f"needs a `type`; allowed: {', '.join(_KEYS)}"
        yield PromptProblem(file=file, key=key, message=message)
        return
    for unknown in sorted(schema.keys() - _KEYS[kind], key=str):
        message = f"unknown key for a schema of type {kind}; allowed: {', '.join(sorted(_KEYS[kind]))}"
        yield PromptProblem(file=file, key=f"{key}.{unknown}", message=message)
    if kind == "object":
        yield from _find_object_faults(schema, file=file, key=key)
    elif kind == "array":
        yield from find_schema_faults(schema.get("items"), file=file, key=f"{key}.items")
    elif "enum" in schema:
        yield from _find_enum_faults(schema, file=file, key=f"{key}.enum")


def _find_object_faults(schema: Schema, *, file: str, key: str) -> Iterator[PromptProblem]:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        yield PromptProblem(file=file, key=f"{key}.properties", message="must be a mapping with at least one key")
        return
    # Models write keys in this order. `required` repeats it as a list, and so it is part of the prompt's hash.
    if schema.get("required") != list(properties):
        message = f"must list all properties in their order: [{', '.join(map(str, properties))}]"
        yield PromptProblem(file=file, key=f"{key}.required", message=message)
    if schema.get("additionalProperties") is not False:
        yield PromptProblem(file=file, key=f"{key}.additionalProperties", message="must be false")
    early = [name for name in properties if name != "id"]
    if "reason" in early and early[0] != "reason":
        message = f"`reason` must come before {early[0]}, so that the judge gives its reason before its verdict"
        yield PromptProblem(file=file, key=f"{key}.properties", message=message)
    for name, inner in properties.items():
        yield from find_schema_faults(inner, file=file, key=f"{key}.properties.{name}")


def _find_enum_faults(schema: Schema, *, file: str, key: str) -> Iterator[PromptProblem]:
    enum = schema["enum"]
    if not isinstance(enum, list) or not enum or not all(_has_type(value, schema["type"]) for value in enum):
        message = f"must be a list of at least one {schema['type']}; YAML reads yes, no, on, off and numbers as such"
        yield PromptProblem(file=file, key=key, message=message)


def _has_type(value: object, kind: str) -> bool:
    # To Python, True is an integer.
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def find_value_faults(schema: Schema, value: object, *, file: str, key: str) -> Iterator[PromptProblem]:
    """Where a value departs from a schema in which `find_schema_faults` found nothing."""
    kind = schema["type"]
    if not _has_type(value, kind):
        message = f"must be of type {kind}, not {_shorten(value)}"
        yield PromptProblem(file=file, key=key, message=message)
    elif "enum" in schema and value not in schema["enum"]:
        message = f"{_shorten(value)} is not allowed; allowed: {', '.join(map(str, schema['enum']))}"
        yield PromptProblem(file=file, key=key, message=message)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from find_value_faults(schema["items"], inner, file=file, key=f"{key}[{position}]")
    elif isinstance(value, dict):
        properties = schema["properties"]
        if value.keys() != properties.keys():
            message = f"has the keys {', '.join(map(str, value)) or 'none'}; required: {', '.join(properties)}"
            yield PromptProblem(file=file, key=key, message=message)
        for name in properties.keys() & value.keys():
            yield from find_value_faults(properties[name], value[name], file=file, key=f"{key}.{name}")


def order_keys(schema: Schema, value: object) -> object:
    """The same value with the keys of every object in the order of the schema, the order a model is asked for."""
    if isinstance(value, dict):
        return {name: order_keys(inner, value[name]) for name, inner in schema["properties"].items()}
    if isinstance(value, list):
        return [order_keys(schema["items"], inner) for inner in value]
    return value


def strip_descriptions(schema: object) -> object:
    """The schema without its words: two that are equal then ask for the same shape of reply."""
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: strip_descriptions(inner) for key, inner in schema.items() if key not in {"description", "properties"}
    }
    if "properties" in schema:
        # Under `properties` every key is a name, `description` too.
        plain["properties"] = {name: strip_descriptions(inner) for name, inner in schema["properties"].items()}
    return plain


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
