"""The prompts of a run: the built-in ones of a language, with a user's in place of some of them.

`prompts/<language>/<name>.yaml` are data and carry everything about themselves. The English built-in prompt of a name
fixes the data and the reply of a step: its variables, labels and reply schema. Another language or a user's file
changes the words alone. `checks` loads and checks the files of users.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

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
from evalhouse.prompts.replies import (
    ExampleContent,
    Schema,
    collect_words,
    list_row_reasons,
    name_ids,
    walk_texts,
)
from evalhouse.prompts.rubric import SAMPLE_COLUMNS, Rubric, RubricContent, build_reply_schema, make_rubric

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


def load_yaml(path: Path) -> tuple[str, dict[str, Any]]:
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
    raise PromptError(problems=[PromptProblem("", message, str(path))])


def list_rubric_columns(name: str, templates: Iterable[str] = ()) -> frozenset[str] | None:
    """Return the columns of a sample that a rubric gets, by its stored prompts' texts, else by the built-in one.

    An answer in place of contexts is `answer_as_contexts`. None for a rubric that is neither stored nor built in.
    """
    declared = [content for content in map(_parse_stored, templates) if content is not None]
    if not declared and name in list_built_in(REFERENCE_LANGUAGE):
        built_in = _parse_stored(load_built_in(REFERENCE_LANGUAGE, name).template)
        declared = [built_in] if built_in else []
    columns: set[str] = set()
    for content in declared:
        has_substitute = ["contexts", "answer"] in content["rubric"]["needs"]
        for variable in content["variables"]:
            is_stand_in = has_substitute and variable == "answer"
            columns.add("answer_as_contexts" if is_stand_in else SAMPLE_COLUMNS[variable])
    return frozenset(columns) or None


def list_rubric_metrics(template: str) -> list[str]:
    """Return the scores of a rubric, by the text of its stored prompt; none for a text that cannot be read."""
    content = _parse_stored(template)
    if content is None:
        return []
    return list(make_rubric(content["name"], RubricContent.model_validate(content["rubric"])).metrics)


@lru_cache(maxsize=64)  # a comparison of runs parses the prompt of every rubric
def _parse_stored(template: str) -> dict[str, Any] | None:
    """Return a rubric's prompt by its stored text; None for a text that another version or another tool wrote."""
    try:
        content: dict[str, Any] = yaml.load(template, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        RubricContent.model_validate(content["rubric"])
    except (yaml.YAMLError, TypeError, KeyError, ValidationError):
        return None
    return content if {"name", "variables"} <= content.keys() else None
