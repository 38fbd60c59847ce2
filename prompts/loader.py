"""The prompts of a run: the built-in ones of a language, with a user's in place of some of them.

`prompts/<language>/<name>.yaml` are data and carry everything about themselves. The English built-in prompt of a name
fixes the data and the reply of a step: its variables, labels and reply schema. Another language or a user's file
changes the words alone. `checks` loads and checks the files of users.

A fused prompt asks so much in one request that the names of keys would be most of its reply. Its verdicts are rows:

    ["A1", "G1", "TP", "C1 C2"]                               a statement: id, evidence, label, support
    ["A2", "G2 says 30 km.", "FP", "none: C1 says 30 km."]
    ["C5", "About another cape.", "not_useful"]               a context: id, evidence, label

Evidence comes before the label that rests on it: a model that does not think before it writes looks for it while it
writes. Ids are enough evidence for a verdict in favour and are stored as its reason; a verdict against is explained.
The last cell names contexts that support the statement: separate ids support it alone ("C1 C2"), joined ids support it
together ("C1+C2"), or it is "none", with a reason after a colon. A cell that was not requested is "-".
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from evalhouse.prompts.render import (
    BLOCKS,
    CONVERSATION,
    BlockKind,
    BlockValue,
    Item,
    Message,
    PromptError,
    PromptProblem,
    describe_conversation,
    list_texts,
    render_blocks,
)
from evalhouse.prompts.rubric import SAMPLE_COLUMNS, Rubric, RubricContent, build_reply_schema, make_rubric

NOT_REQUESTED: Final = "-"
_MIN_CELLS, _MAX_CELLS = 3, 4
_NONE = re.compile(r"none\b", re.IGNORECASE)
_ID = r"\[?[A-Z][1-9][0-9]*\]?"
_IDS = re.compile(rf"{_ID}(?:[\s,;+、，；]+{_ID})*", re.ASCII)
_ONE_ID = re.compile(r"[A-Z][1-9][0-9]*", re.ASCII)
_JOINED = re.compile(rf"{_ID}(?:\s*\+\s*{_ID})+", re.ASCII)
_COLON = re.compile("[:：]")

Schema = Mapping[str, Any]

VERDICTS = "verdicts"
"""The key of a single list of verdicts; lists for each block of items have the blocks' names."""
VERDICT_LISTS = (VERDICTS, "answer_statements", "ground_truth_statements")
"""The keys of a reply's verdicts."""
_SUPPORTS = "supports"


def pick_verdict_lists(reply: Mapping[str, Any], variables: Iterable[str]) -> dict[str, Any]:
    """Return by name the parts of a reply, or of its schema, that are lists of verdicts."""
    names = {VERDICTS, *(name for name in variables if name in BLOCKS and BLOCKS[name].prefix)}
    return {name: part for name, part in reply.items() if name in names}


def pick_prefixes(name: str, labels: Mapping[str, Sequence[str]]) -> Collection[str]:
    """Return the prefixes of the ids that a list of verdicts is about."""
    return labels if name == VERDICTS else BLOCKS[name].prefix


def name_support(item_id: str) -> str:
    """Return the name of the verdict on an item's support, beside the verdict that has the item's id."""
    return f"{_SUPPORTS} {item_id}"


def list_verdict_labels(name: str, labels: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the labels that the verdicts of a list can have, each once, in the order of the file."""
    prefixes = pick_prefixes(name, labels)
    return list(dict.fromkeys(label for prefix in prefixes for label in labels.get(prefix, ())))


class ExampleContent(BaseModel):
    """A worked example of a prompt file: the data of a request and the reply it should get."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    data: dict[str, JsonValue]
    reply: dict[str, JsonValue]


def list_ids(text: str) -> list[str]:
    """Return the ids in a cell that has nothing else; none for any other text."""
    return _ONE_ID.findall(text) if _IDS.fullmatch(text.strip()) else []


def unfold_row(cells: Sequence[object]) -> list[dict[str, object]]:
    """Return the verdicts of a row as objects, as in other replies: with `label`, and with `contexts` and `together`.

    `contexts` is None for a cell with neither ids nor "none", which the check of the verdict reports. A cell that was
    not requested gives no verdict. ValueError: the row cannot be read.
    """
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    if len(texts) < len(cells) or not _MIN_CELLS <= len(texts) <= _MAX_CELLS:
        raise ValueError(f"a row has {_MIN_CELLS} cells for a context, {_MAX_CELLS} for a statement, all of them texts")
    item_id, evidence, label = texts[:_MIN_CELLS]
    evidence = "" if evidence == NOT_REQUESTED else evidence
    verdicts: list[dict[str, object]] = []
    if label != NOT_REQUESTED:
        verdicts.append({"id": item_id, "reason": ", ".join(list_ids(evidence)) or evidence, "label": label})
    if len(texts) == _MAX_CELLS and texts[-1] != NOT_REQUESTED:
        named, reason = _split_at_colon(texts[-1])
        support: dict[str, object] = {"reason": reason, "contexts": [], "together": []}
        if not _NONE.fullmatch(named) and not _IDS.fullmatch(named):
            support = {"reason": texts[-1], "contexts": None, "together": []}
        elif not _NONE.fullmatch(named):
            joined = [_ONE_ID.findall(group) for group in _JOINED.findall(named)]
            together = joined[0] if joined else []
            alone = _ONE_ID.findall(_JOINED.sub(" ", named))
            reason = reason or ", ".join(alone) or " + ".join(together)
            support = {"reason": reason, "contexts": alone, "together": together}
        verdicts.append({"id": item_id, **support})
    return verdicts


def word_row(row: Sequence[str], *, in_favour: bool, reasons: Iterator[str]) -> list[str]:
    """Return the row with ids as evidence in favour, and the next of these reasons for each verdict against."""
    item_id, _, label = row[:_MIN_CELLS]
    evidence = ("A1" if item_id.startswith("G") else "G1") if in_favour else next(reasons)
    named = [_split_at_colon(cell)[0] for cell in row[_MIN_CELLS:]]
    return [item_id, evidence, label, *(f"none: {next(reasons)}" if _NONE.fullmatch(cell) else cell for cell in named)]


def _split_at_colon(cell: str) -> tuple[str, str]:
    """Return the texts before and after the first colon; without one the second is empty."""
    before, *behind = _COLON.split(cell, maxsplit=1)
    return before.strip(), behind[0].strip() if behind else ""


_MAX_IDS = 64  # longer schemas make grammars that some servers take long over, or refuse
# Every statement takes at least one word of the text; a script without spaces counts by its characters.
_UNIT = re.compile(r"[A-Za-z0-9]+|[^\x00-\x7f]")
_MIN_TEXTS = 8


def name_ids(
    schema: dict[str, Any], labels: Mapping[str, Sequence[str]], data: Mapping[str, BlockValue], only: Collection[str]
) -> dict[str, Any]:
    """Return the schema for these data, or unchanged if the reply has more verdicts than a schema should name.

    Lists of texts have at most as many items as the data have words. Each list of verdicts is about ids with certain
    prefixes; the verdicts may cite all other ids. A list without any requested id is left out.
    """
    ids = [item.id for value in data.values() if not isinstance(value, str) for item in value]
    lists = pick_verdict_lists(schema["properties"], data)
    if not lists:
        words = sum(len(_UNIT.findall(value)) for value in data.values() if isinstance(value, str))
        bound = {"maxItems": max(_MIN_TEXTS, words)}
        bounded = {
            name: part | bound if part.get("items") == {"type": "string"} else part
            for name, part in schema["properties"].items()
        }
        return schema | {"properties": bounded}
    # In the order in which the prompt asks for them, which for one list of all is the order of the labels.
    own = {
        name: [item_id for prefix in pick_prefixes(name, labels) for item_id in ids if item_id[0] == prefix]
        for name in lists
    }
    requested = {
        name: [item_id for item_id in judged if not only or {item_id, name_support(item_id)} & {*only}]
        for name, judged in own.items()
    }
    if not 0 < sum(map(len, requested.values())) <= _MAX_IDS:
        return schema
    text, not_requested = {"type": "string"}, {"type": "string", "enum": [NOT_REQUESTED]}
    named: dict[str, Schema] = {}
    for name, judged in requested.items():
        if not judged:
            continue
        verdict = lists[name]["items"]
        cited = [item_id for item_id in ids if item_id not in own[name]]
        parts: list[Schema] = []  # of each id a row, or an object
        for item_id in judged:
            allowed = list(labels[item_id[0]])
            if verdict.get("type") == "array":
                has_label = not only or item_id in only
                cells: list[Schema] = [
                    {"type": "string", "enum": [item_id]},
                    text if has_label else not_requested,
                    {"type": "string", "enum": allowed} if has_label else not_requested,
                ]
                if not item_id.startswith("C"):
                    cells.append(text if not only or name_support(item_id) in only else not_requested)
                parts.append({"type": "array", "prefixItems": cells, "minItems": len(cells), "maxItems": len(cells)})
                continue
            properties = dict(verdict["properties"])
            for key, part in properties.items():
                if key == "id":
                    properties[key] = part | {"enum": [item_id]}
                elif key == "label" and allowed:
                    properties[key] = part | {"enum": allowed}
                elif part["type"] == "array" and cited:
                    properties[key] = part | {"items": part["items"] | {"enum": cited}, "maxItems": len(cited)}
            parts.append({**verdict, "properties": properties})
        named[name] = {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    kept = [name for name in schema["properties"] if name in named or name not in lists]
    properties = {name: named.get(name, schema["properties"][name]) for name in kept}
    return schema | {"properties": properties, "required": list(properties)}


_WORD = re.compile(r"[^\W\d_\u3000-\u9fff]{4,}|[\u4e00-\u9fff]+|\d{2,}")


def list_row_reasons(reply: Mapping[str, Any]) -> list[str]:
    """Return the reasons in the rows of a reply that have words, and not only ids."""
    rows = [row for row in reply.get(VERDICTS) or () if isinstance(row, list)]
    reasons = [str(verdict["reason"]) for row in rows for verdict in unfold_row(row)]
    return [reason for reason in reasons if not list_ids(reason)]


def collect_words(texts: Iterable[str]) -> frozenset[str]:
    """Return words of four letters and more, numbers of two digits and more, and pairs of Chinese characters."""
    words: set[str] = set()
    for text in texts:
        for word in _WORD.findall(text.lower()):
            chinese = "\u4e00" <= word[0] <= "\u9fff"
            words.update((word[place : place + 2] for place in range(len(word) - 1)) if chinese else [word])
    return frozenset(words)


def walk_texts(value: Any) -> Iterator[str]:  # noqa: ANN401  # JSON
    """Yield the texts in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from walk_texts(part)


BUILT_IN = Path(__file__).parent
REFERENCE_LANGUAGE = "en"
_MIN_COPIED = 8  # letters of a text of a reply that counts as a copy of an example's


class PromptContent(BaseModel):
    """The content of a prompt file.

    `labels` has one entry for every id prefix that the reply must give verdicts for, with the allowed labels; an empty
    list means verdicts without a label. A prompt with a section `rubric` has neither labels nor a schema.
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
        """The schema in the file, or the one that follows from the rubric's criteria."""
        return build_reply_schema(self.rubric) if self.rubric else self.reply_schema


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of one language, ready to be sent.

    `labels` has one entry for every id prefix that needs verdicts, with the allowed labels (none for verdicts without a
    label). `prompt_hash` is the sha256 of the canonical JSON of the content: comments and layout do not change it.
    `template` is the text of the file, `system` the instructions in it.
    """

    name: str
    version: str
    language: str
    description: str
    variables: dict[str, BlockKind]
    labels: dict[str, tuple[str, ...]]
    reply_schema: dict[str, Any]
    prompt_hash: str
    template: str
    system: str
    examples: tuple[ExampleContent, ...]
    rubric: Rubric | None = None

    @cached_property
    def in_conversation(self) -> "Prompt":
        """The prompt for a question after earlier turns: with their block, and the words about it."""
        if not self.system or CONVERSATION in self.variables:
            return self  # for a judge that reads no words, or about turns anyhow
        words = describe_conversation(self.name, self.language)
        lines = ("What follows the system part where a conversation came before:", *words.splitlines())
        noted = "".join(f"# {line}\n" for line in lines)
        return replace(
            self,
            variables={CONVERSATION: "items", **self.variables},
            prompt_hash=hashlib.sha256(f"{self.prompt_hash}\n{words}".encode()).hexdigest(),
            template=f"{self.template.rstrip()}\n\n{noted}",
            system=f"{self.system}\n\n{words}",
        )

    def after(self, turns: Sequence[Item]) -> "Prompt":
        """Return the prompt for a question after these turns, if there are any."""
        return self.in_conversation if turns else self

    @cached_property
    def opening(self) -> tuple[Message, ...]:
        """The messages at the start of every request: instructions and worked examples."""
        opening = [Message(role="system", content=self.system)]
        for example in self.examples:
            data = {name: build_block(value) for name, value in example.data.items()}
            reply = _order_keys(self.reply_schema, example.reply)
            blocks = [block for block in self.variables if block in data]
            opening.append(Message(role="human", content=render_blocks(blocks, data)))
            opening.append(Message(role="ai", content=json.dumps(reply, ensure_ascii=False)))
        return tuple(opening)

    def render(self, data: Mapping[str, BlockValue], *, note: str = "") -> tuple[Message, ...]:
        """Return the messages of one request; equal data gives equal messages.

        `note` comes after the data when something is asked again: models look there last, and the messages before it
        stay in the provider's cache. It must be in our words, since it is not neutralised. PromptError: a block is
        missing, not declared or of the wrong kind, or an id is malformed.
        """
        content = render_blocks(tuple(self.variables), data)
        return (*self.opening, Message(role="human", content=f"{content}\n\n{note}" if note else content))

    @cached_property
    def _example_words(self) -> dict[str, frozenset[str]]:
        """The words of each text of a worked example's reply that the example's data have too; texts without one are
        left out, and so are ids, labels and single words, which are not copies."""
        words_of: dict[str, frozenset[str]] = {}
        for example in self.examples:
            known = collect_words(walk_texts(example.data))
            for text in [*walk_texts(example.reply), *list_row_reasons(example.reply)]:
                is_word = len(text) < _MIN_COPIED or (text.isascii() and " " not in text)
                if not is_word and (words := collect_words([text]) & known):
                    words_of[text.strip()] = words
        return words_of

    def list_copied(self, texts: Iterable[str], data: Mapping[str, BlockValue]) -> Collection[str]:
        """Return the texts of a reply that are word for word in a worked example, and not about these data."""
        same = [text for text in texts if text.strip() in self._example_words]
        if not same:
            return ()
        known = collect_words(text for value in data.values() for text in list_texts(value))
        return {text for text in same if self._example_words[text.strip()] - known}

    def build_schema(self, data: Mapping[str, BlockValue], only: Collection[str] = ()) -> dict[str, Any]:
        """Return the schema of the reply to one request with the requested ids: all of the data's, or `only`.

        A model with constrained output can neither forget an id nor invent one.
        """
        return name_ids(self.reply_schema, self.labels, data, only)


def build_block(value: Any) -> BlockValue:  # noqa: ANN401  # a valid value of an example
    """Return a block of an example's data as the renderer takes it."""
    return value if isinstance(value, str) else [Item(id=item["id"], text=item["text"]) for item in value]


def _order_keys(schema: Schema, value: object) -> object:
    """Return the value with the keys of every object in the order of the schema, in which a model should write them."""
    if isinstance(value, dict):
        return {name: _order_keys(inner, value[name]) for name, inner in schema["properties"].items()}
    if isinstance(value, list):
        return [_order_keys(schema["items"], inner) for inner in value]
    return value


class Prompts(Mapping[str, Prompt]):
    """Prompts by name, each loaded at its first use."""

    def __init__(self, names: Iterable[str], load: Callable[[str], Prompt]) -> None:
        self._names = dict.fromkeys(names)
        self._load = cache(load)

    def __getitem__(self, name: str) -> Prompt:
        if name not in self._names:
            raise KeyError(name)
        return self._load(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def list_languages() -> list[str]:
    """Return the languages with built-in prompts."""
    return sorted({path.parent.name for path in BUILT_IN.glob("*/*.yaml")})


@cache
def list_built_in(language: str) -> tuple[str, ...]:
    """Return the names of the built-in prompts of a language."""
    return tuple(sorted([path.stem for path in BUILT_IN.glob("*/*.yaml") if path.parent.name == language]))


@cache
def load_built_in(language: str, name: str) -> Prompt:
    """Return a built-in prompt; only `check_prompts` and the tests check that its parts agree."""
    text, parsed = load_yaml(BUILT_IN / language / f"{name}.yaml")
    return build_prompt(text, parsed, PromptContent.model_validate(parsed))


def build_prompt(text: str, parsed: object, content: PromptContent) -> Prompt:
    """Return a prompt from its file's text, the YAML in it, and the same in types."""
    canonical = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    variables: dict[str, BlockKind] = {name: content.variables[name] for name in BLOCKS if name in content.variables}
    return Prompt(
        name=content.name,
        version=str(content.version),
        language=content.language,
        description=content.description.strip(),
        variables=variables,
        labels={prefix: tuple(labels) for prefix, labels in content.labels.items()},
        reply_schema=content.schema_of_reply,
        prompt_hash=hashlib.sha256(canonical.encode()).hexdigest(),
        template=text,
        system=content.system.strip(),
        examples=tuple(content.examples),
        rubric=make_rubric(content.name, content.rubric) if content.rubric else None,
    )


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
    """Slow, with the best error messages."""


class _QuickLoader(_Strict, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same by libyaml, if PyYAML was built with it."""


_MAX_VALUES: Final = 20_000


def load_yaml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a file, and the mapping in it. PromptError: it cannot be read, or is not a YAML mapping."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        try:
            parsed = yaml.load(text, _QuickLoader)
        except yaml.YAMLError:
            parsed = yaml.load(text, _StrictLoader)
        # An alias is a few letters for as much as its anchor holds, and may be within another, or itself.
        n_values, waiting = 0, [parsed]
        while waiting and n_values <= _MAX_VALUES:
            value = waiting.pop()
            n_values += 1
            waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if n_values > _MAX_VALUES:
            message = f"holds more than {_MAX_VALUES:,} values with its aliases unfolded; write them out"
            raise PromptError(problems=[PromptProblem("", message, str(path))])
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
    raise PromptError(problems=[PromptProblem("", message, str(path))])


def list_rubric_columns(name: str, templates: Iterable[str] = ()) -> frozenset[str] | None:
    """Return the columns of a sample that a rubric gets, by its stored prompts' texts, else by the built-in one; None
    for a rubric that is neither stored nor built in."""
    declared = [content for content in map(_parse_stored, templates) if content is not None]
    if not declared and name in list_built_in(REFERENCE_LANGUAGE):
        built_in = _parse_stored(load_built_in(REFERENCE_LANGUAGE, name).template)
        declared = [built_in] if built_in else []
    columns = {SAMPLE_COLUMNS[variable] for content in declared for variable in content["variables"]}
    return frozenset(columns) or None


def read_stored_rubric(template: str) -> Rubric | None:
    """Return a rubric by the text of its stored prompt; None for a text that cannot be read."""
    content = _parse_stored(template)
    return make_rubric(content["name"], RubricContent.model_validate(content["rubric"])) if content else None


@lru_cache(maxsize=64)  # a comparison of runs parses the prompt of every rubric
def _parse_stored(template: str) -> dict[str, Any] | None:
    """Return a rubric's prompt by its stored text; None for a text that another version or another tool wrote."""
    try:
        content: dict[str, Any] = yaml.load(template, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        RubricContent.model_validate(content["rubric"])
    except (yaml.YAMLError, TypeError, KeyError, ValidationError):
        return None
    return content if {"name", "variables"} <= content.keys() else None
