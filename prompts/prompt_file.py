"""Reads one prompt file and holds it to everything a prompt must be.

A prompt carries all about itself: its words, its variables, its labels, its worked examples and the schema of its
reply. They must agree with each other, and this module says where they do not: file, key, what came and what was
allowed. `loader` turns what is read here into prompts.
"""

import json
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from evalhouse.prompts.errors import PromptProblem, make_error, make_fault
from evalhouse.prompts.render import BLOCKS, CONVERSATION, TURN_PREFIX, BlockValue, Item
from evalhouse.prompts.replies import (
    VERDICTS,
    ExampleContent,
    Schema,
    find_row_fault,
    is_row_schema,
    list_ids,
    list_verdict_labels,
    pick_prefixes,
    pick_verdict_lists,
    unfold_row,
)
from evalhouse.prompts.rubric import RubricContent, build_reply_schema, find_rubric_faults

_KEYS: Final[dict[str, dict[str, Any]]] = {
    "object": {
        "properties": {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#"}},
        "required": {"type": "array"},
        "additionalProperties": {"const": False},
    },
    "array": {"items": {"$ref": "#"}},
    "string": {"enum": {"type": "array", "minItems": 1, "items": {"type": "string"}}},
    "integer": {"enum": {"type": "array", "minItems": 1, "items": {"type": "integer"}}},
    "number": {},
    "boolean": {},
}
"""By type the keys of a schema that every endpoint takes. All but `enum` are required."""
_RULES: Final = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"enum": list(_KEYS)}},
    "allOf": [
        {
            "if": {"required": ["type"], "properties": {"type": {"const": kind}}},
            "then": {
                "required": ["type", *(name for name in keys if name != "enum")],
                "properties": {"type": True, "description": True, **keys},
                "additionalProperties": False,
            },
        }
        for kind, keys in _KEYS.items()
    ],
}
"""The JSON schema of a reply schema."""


def find_value_faults(schema: Schema, value: object, *, key: str) -> Iterator[PromptProblem]:
    """Yield where a value departs from a schema."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415  # only what a user wrote is checked

    faults: dict[str, str] = {}
    for error in Draft202012Validator(schema).iter_errors(value):
        place = key + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        came = repr(error.instance)
        came = came if len(came) <= 60 else came[:57] + "…"
        match error.validator:
            case "type":
                message = f"must be of type {error.validator_value}, not {came}"
                if error.validator_value == "string" and isinstance(error.instance, bool | int | float):
                    message += "; YAML reads yes, no, on, off and numbers as such, so write it in quotes"
            case "enum":
                message = f"{came} is not allowed; allowed: {', '.join(map(str, error.validator_value))}"
            case "const":
                message = f"must be {json.dumps(error.validator_value)}"
            case "required" | "additionalProperties":
                required = error.schema.get("required", [])
                optional = [name for name in error.schema["properties"] if name not in required]
                keys = ", ".join(map(str, error.instance)) or "none"
                also = f"; also allowed: {', '.join(optional)}" if optional else ""
                message = f"has the keys {keys}; required: {', '.join(required)}{also}"
            case _:
                message = "must not be empty"
        faults.setdefault(place, message)
    yield from (make_fault(place, message) for place, message in faults.items())


def _find_schema_faults(schema: Any, *, key: str) -> Iterator[PromptProblem]:  # noqa: ANN401  # JSON
    """Yield what keeps a schema from being taken by every endpoint, or from asking for the reason before the label."""
    faults = list(find_value_faults(_RULES, schema, key=key))
    yield from faults
    if faults:
        return
    inner: dict[str, Any] = {}
    if schema["type"] == "object":
        inner = {f"{key}.properties.{name}": part for name, part in schema["properties"].items()}
        names = list(schema["properties"])
        # Models write keys in this order. `required` repeats it as a list, and so it is part of the prompt's hash.
        if schema["required"] != names:
            message = f"must list all properties in their order: [{', '.join(map(str, names))}]"
            yield make_fault(f"{key}.required", message)
        early = [name for name in names if name != "id"]
        if "reason" in early and early[0] != "reason":
            message = f"`reason` must come before {early[0]}, so that the judge gives its reason before its verdict"
            yield make_fault(f"{key}.properties", message)
    elif schema["type"] == "array":
        inner = {f"{key}.items": schema["items"]}
    for place, part in inner.items():
        yield from _find_schema_faults(part, key=place)


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


_MENTION = re.compile(r"<([a-z_]+)>")


class PromptContent(BaseModel):
    """A prompt as it stands in the file.

    `labels` has one entry for every id prefix the reply must give verdicts for, with the labels open to it; an empty
    list stands for verdicts without a label. A prompt with a section `rubric` has neither labels nor a schema.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    name: str = Field(min_length=1)
    version: int = Field(ge=1)
    language: str = Field(min_length=1)
    description: str = Field(min_length=1)
    variables: dict[str, Literal["text", "items"]] = Field(min_length=1)
    labels: dict[str, list[str]] = {}
    system: str = Field(min_length=1)
    examples: list[ExampleContent]
    reply_schema: dict[str, JsonValue] = {}
    rubric: RubricContent | None = None

    @property
    def schema_of_reply(self) -> dict[str, JsonValue]:
        """The schema as it stands in the file, or as it follows from the rubric's criteria."""
        return build_reply_schema(self.rubric) if self.rubric else self.reply_schema


@dataclass(frozen=True, kw_only=True)
class PromptFile:
    """One prompt file: its text, what YAML made of it, and that once more in types."""

    text: str
    parsed: dict[str, Any]
    content: PromptContent


class _Strict(yaml.constructor.SafeConstructor):
    """YAML without its traps: a key given twice is an error, and a date is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it so
        first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key_node.value}' is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


class _StrictLoader(_Strict, yaml.SafeLoader):
    """Slow, and says best what is wrong."""


class _QuickLoader(_Strict, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same by libyaml, where PyYAML was built with it."""


def read_prompt_file(path: Path, *, language: str, checks: bool = True) -> PromptFile:
    """Read one file and check that its parts agree. PromptError: with all its problems, as far as they show."""
    text, parsed = _load_yaml(path)
    try:
        content = PromptContent.model_validate(parsed)
    except ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            location = detail["loc"]
            model = ExampleContent if location[0] == "examples" and len(location) > 2 else PromptContent
            keys = ", ".join(model.model_fields)
            if location[0] == "rubric" and len(location) > 1:
                keys = "as the section `rubric` of a built-in rubric has it"
            if detail["type"] == "extra_forbidden":
                message = f"unknown key; allowed: {keys}"
            elif detail["type"] == "missing":
                message = f"missing; required: {keys}"
            else:
                message = f"{detail['msg']}, not {detail['input']!r:.60}"
            problems.append(PromptProblem(file=str(path), key=".".join(map(str, location)), message=message))
        raise make_error(problems) from None
    problems = [replace(fault, file=str(path)) for fault in _find_faults(path, content, language)] if checks else []
    if problems:
        raise make_error(problems)
    return PromptFile(text=text, parsed=parsed, content=content)


def is_rubric_file(path: Path) -> bool:
    """Return whether a file has a section `rubric`, whatever else is wrong. PromptError: it is not a YAML mapping."""
    return "rubric" in _load_yaml(path)[1]


def _load_yaml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a file, and the mapping in it. PromptError: it cannot be read, or is not a YAML mapping."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        try:
            parsed = yaml.load(text, _QuickLoader)
        except yaml.YAMLError:
            parsed = yaml.load(text, _StrictLoader)
        if isinstance(parsed, dict):
            return text, parsed
        message = f"must be a mapping with the keys {', '.join(PromptContent.model_fields)}"
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 (byte {error.start}); save it as UTF-8"
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}" if error.problem_mark else "some line"
        message = f"is not valid YAML at {line}: {error.problem}"
    except yaml.YAMLError as error:
        message = f"is not valid YAML: {error}"
    raise make_error([PromptProblem(file=str(path), key="", message=message)])


def _find_faults(path: Path, content: PromptContent, language: str) -> Iterator[PromptProblem]:
    """Yield what does not agree within a file, in the order in which a reader would fix it."""
    if content.name != path.stem:
        yield make_fault("name", f"'{content.name}' is in a file named {path.name}; name and file must be the same")
    if content.language != language:
        message = f"'{content.language}' where prompts in '{language}' are read; give each language its own folder"
        yield make_fault("language", message)
    basics = list(_find_declaration_faults(path, content))
    yield from basics
    # A variable is used when the instructions name its block as `<name>`; a label when they name it at all.
    mentioned = set(_MENTION.findall(content.system))
    for name in sorted(mentioned - content.variables.keys()):
        message = f"names <{name}>, which is not a variable of this prompt; declared: {', '.join(content.variables)}"
        yield make_fault("system", message)
    for name in content.variables:
        if name not in mentioned:
            yield make_fault(f"variables.{name}", f"is never used: the system text must say what <{name}> holds")
    for label in list_verdict_labels(VERDICTS, content.labels):
        if label not in content.system:
            yield make_fault("labels", f"the label {label} is never explained in the system text")
    for name in content.rubric.criteria if content.rubric else ():
        if name not in content.system:
            yield make_fault("rubric.criteria", f"the criterion {name} is never explained in the system text")
    # A faulty schema says nothing about the examples, nor do variables that do not exist.
    if not basics:
        yield from _find_verdict_faults(content)
        for position, example in enumerate(content.examples):
            yield from _find_example_faults(f"examples[{position}]", content, example)


def _find_declaration_faults(path: Path, content: PromptContent) -> Iterator[PromptProblem]:
    """Yield what is wrong with the variables, the labels, and the schema or rubric."""
    for name, kind in content.variables.items():
        if name not in BLOCKS:
            yield make_fault(f"variables.{name}", f"unknown block; allowed: {', '.join(BLOCKS)}")
        elif kind != BLOCKS[name].kind and name != CONVERSATION:
            message = f"'{kind}' is not what this block holds; allowed: {BLOCKS[name].kind}"
            yield make_fault(f"variables.{name}", message)
    prefixes = [BLOCKS[name].prefix for name in content.variables if name in BLOCKS and BLOCKS[name].prefix]
    for prefix, labels in content.labels.items():
        if prefix not in prefixes:
            message = f"no variable has ids with this prefix; allowed: {', '.join(prefixes) or 'none'}"
            yield make_fault(f"labels.{prefix}", message)
        if len(set(labels)) != len(labels) or "" in labels:
            yield make_fault(f"labels.{prefix}", f"{labels} has an empty label or one twice")
    if content.rubric is None:
        for key in ("labels", "reply_schema"):
            if key not in content.model_fields_set:
                message = f"missing; required: {', '.join(PromptContent.model_fields)} (`rubric` only for a rubric)"
                yield make_fault(key, message)
        yield from _find_schema_faults(content.reply_schema, key="reply_schema")
        return
    for key, section in (("labels", content.labels), ("reply_schema", content.reply_schema)):
        if section:
            yield make_fault(key, "must be left out of a rubric: it follows from the criteria")
    yield from find_rubric_faults(content.rubric, variables=content.variables, file=path.name)


def _find_verdict_faults(content: PromptContent) -> Iterator[PromptProblem]:
    """Where labels and reply schema disagree: both say what a verdict is."""
    properties: Any = content.schema_of_reply["properties"]
    lists = pick_verdict_lists(properties, content.variables)
    if bool(lists) != bool(content.labels):
        message = "must name the id prefixes that verdicts are given for"
        yield make_fault("labels", message if lists else "must be empty ({}) where the reply has no `verdicts`")
    for name, schema in lists.items():
        key = f"reply_schema.properties.{name}"
        if is_row_schema(schema.get("items", {})):
            if fault := find_row_fault(schema["items"]):
                yield make_fault(f"{key}.items", fault)
            continue
        verdict = schema.get("items", {}).get("properties", {})
        if "id" not in verdict or "reason" not in verdict:
            yield make_fault(key, "must be an array of objects with at least `id` and `reason`")
        labels = list_verdict_labels(name, content.labels)
        if sorted(verdict.get("label", {}).get("enum", [])) != sorted(labels):
            message = f"must be the labels declared under `labels`: [{', '.join(labels)}]"
            yield make_fault(f"{key}.items.properties.label.enum", message)


def _find_example_faults(key: str, content: PromptContent, example: ExampleContent) -> Iterator[PromptProblem]:
    """Yield where an example does not do as the judge is asked: each id once, in its list, only ids that were sent."""
    if example.data.keys() != content.variables.keys():
        message = f"has the blocks {', '.join(example.data) or 'none'}; required: {', '.join(content.variables)}"
        yield make_fault(f"{key}.data", message)
        return
    data: dict[str, Any] = example.data
    faults = []
    for name, value in data.items():
        if not _fits_block(name, value):
            prefix = BLOCKS[name].prefix
            items = f"must be a list of {{id: {prefix}1, text: …}}, each id once"
            faults.append(make_fault(f"{key}.data.{name}", items if prefix else "must be a text"))
    key = f"{key}.reply"
    faults += find_value_faults(content.schema_of_reply, example.reply, key=key)
    yield from faults
    if faults:
        return
    sent = {name: [item["id"] for item in data[name]] for name in content.variables if BLOCKS[name].prefix}
    lists: Any = pick_verdict_lists(example.reply, content.variables)
    for list_name, verdicts in lists.items():
        prefixes = pick_prefixes(list_name, content.labels)
        came = [next(iter(verdict), "") if isinstance(verdict, list) else verdict["id"] for verdict in verdicts]
        own = [item_id for ids in sent.values() for item_id in ids if item_id[0] in prefixes]
        if sorted(came) != sorted(own):
            message = f"has verdicts for {', '.join(came) or 'none'}; each of {', '.join(own)} must come exactly once"
            yield make_fault(key, message)
            return
        for verdict in verdicts:
            if isinstance(verdict, list):
                yield from _find_row_faults(key, content, verdict, sent)
                continue
            for name in sent.keys() & verdict.keys():
                yield from _find_invented(key, verdict["id"], verdict[name], sent[name])


def _fits_block(name: str, value: JsonValue) -> bool:
    is_turns = name == CONVERSATION and not isinstance(value, str)
    if BLOCKS[name].kind == "text" and not is_turns:
        return isinstance(value, str)
    if not isinstance(value, list):
        return False
    ids = [
        item["id"]
        for item in value
        if isinstance(item, dict) and item.keys() == {"id", "text"} and isinstance(item["text"], str)
    ]
    pattern = re.compile((TURN_PREFIX if is_turns else BLOCKS[name].prefix) + "[1-9][0-9]*")
    return len(ids) == len(value) == len(set(map(str, ids))) and all(pattern.fullmatch(str(item_id)) for item_id in ids)


def build_block(value: Any) -> BlockValue:  # noqa: ANN401 - a value that _fits_block let pass
    """A block of an example's data as the renderer takes it."""
    return value if isinstance(value, str) else [Item(id=item["id"], text=item["text"]) for item in value]


def _find_invented(key: str, item_id: str, cited: Iterable[str], sent: Collection[str]) -> Iterator[PromptProblem]:
    invented = [cited_id for cited_id in cited if cited_id not in sent]
    if invented:
        yield make_fault(key, f"{item_id} cites {', '.join(invented)}; sent were {', '.join(sent)}")


def _find_row_faults(
    key: str, content: PromptContent, row: Sequence[str], sent: Mapping[str, Sequence[str]]
) -> Iterator[PromptProblem]:
    """What keeps a row of an example from being read, or from being a verdict on its item."""
    try:
        verdicts: Any = unfold_row(row)
    except ValueError as error:
        yield make_fault(key, f"{row[0]}: {error}")
        return
    labels, all_sent = content.labels.get(row[0][0], []), [item_id for ids in sent.values() for item_id in ids]
    for verdict in verdicts:
        if not verdict["reason"]:
            yield make_fault(key, f"{row[0]} has neither evidence nor a reason")
        if "label" in verdict and verdict["label"] not in labels:
            yield make_fault(key, f"{row[0]} has the label {verdict['label']}; allowed: {', '.join(labels)}")
        if verdict.get("contexts", ()) is None:
            yield make_fault(key, f"{row[0]}: {row[-1]!r} names no contexts; it must begin with ids or with none")
            continue
        cited = [*list_ids(verdict["reason"]), *verdict.get("contexts", ()), *verdict.get("together", ())]
        yield from _find_invented(key, row[0], cited, all_sent)
