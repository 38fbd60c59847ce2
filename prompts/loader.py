"""The prompts a run works with: the built-in ones of a language, with a user's in place of some of them.

`prompts/<language>/<name>.yaml` are data and carry everything about themselves; `prompt_file` reads them strictly and
`render` writes the data of a request. What a step sends and gets back is fixed by the English built-in prompt of
its name: variables, labels and the shape of the reply. Another language or a user's file changes the words alone.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from evalhouse.prompts.errors import PromptError, PromptProblem, make_error
from evalhouse.prompts.prompt_file import (
    PromptFile,
    build_block,
    is_rubric_file,
    order_keys,
    read_prompt_file,
    strip_descriptions,
)
from evalhouse.prompts.render import (
    BLOCKS,
    CONVERSATION,
    BlockKind,
    BlockValue,
    Item,
    Message,
    describe_conversation,
    render_blocks,
)
from evalhouse.prompts.replies import ExampleContent, collect_said, list_copied, name_ids
from evalhouse.prompts.rubric import Rubric, RubricContent, list_columns, make_rubric

_BUILT_IN = Path(__file__).parent
_REFERENCE_LANGUAGE = "en"
# What a language must have; the other prompts are missed only where a metric asks for them.
_ALWAYS_NEEDED = ("attribute", "classify", "extract", "rank")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of one language, ready to be sent.

    `labels` has one entry for every id prefix that needs verdicts, with the labels open to it (none where verdicts
    carry no label). `prompt_hash` is the sha256 of the canonical JSON of the content: comments and layout do not change
    it. `template` is the text of the file, `system` the instructions in it.
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
        """The prompt for a question that earlier turns came before: with their block, and words that go with it."""
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
        """The prompt for a question that these turns came before, if there are any."""
        return self.in_conversation if turns else self

    @cached_property
    def opening(self) -> tuple[Message, ...]:
        """What begins every request: instructions and worked examples."""
        opening = [Message(role="system", content=self.system)]
        for example in self.examples:
            data = {name: build_block(value) for name, value in example.data.items()}
            reply = order_keys(self.reply_schema, example.reply)
            blocks = [block for block in self.variables if block in data]
            opening.append(Message(role="human", content=render_blocks(blocks, data)))
            opening.append(Message(role="ai", content=_dump(reply)))
        return tuple(opening)

    def render(self, data: Mapping[str, BlockValue], *, note: str = "") -> tuple[Message, ...]:
        """The messages of one request; equal data gives equal messages.

        `note` stands behind the data when something is asked again, where models look last and what a provider has
        cached of the messages before it stays of use; it must be in our own words, for nothing in it is neutralised.
        PromptError: a block is missing, not declared or of the wrong kind, or an id is malformed.
        """
        content = render_blocks(tuple(self.variables), data)
        return (*self.opening, Message(role="human", content=f"{content}\n\n{note}" if note else content))

    @cached_property
    def _said(self) -> dict[str, frozenset[str]]:
        return collect_said(self.examples)

    def list_copied(self, texts: Iterable[str], data: Mapping[str, BlockValue]) -> Collection[str]:
        """Those texts of a reply that a worked example says word for word, and that are not about these data."""
        return list_copied(texts, self._said, data)

    def build_schema(self, data: Mapping[str, BlockValue], only: Collection[str] = ()) -> dict[str, Any]:
        """The schema of the reply to one request, which names the ids that are asked for; all of the data's or `only`.

        A model that is held to it can neither forget an id nor invent one.
        """
        return name_ids(self.reply_schema, self.labels, data, only)


class Prompts(Mapping[str, Prompt]):
    """Prompts by name, each read when it is first asked for."""

    def __init__(self, names: Iterable[str], read: Callable[[str], Prompt]) -> None:
        self._names = dict.fromkeys(names)
        self._read = cache(read)

    def find_missing(self, names: Iterable[str]) -> list[str]:
        """Those of these names that are none of a prompt."""
        return [name for name in names if name not in self._names]

    def __getitem__(self, name: str) -> Prompt:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load_prompts(language: str = "en", folder: Path | None = None) -> Prompts:
    """All prompts of a language by name; a file in `folder` or `folder/<language>` takes the place of the built-in one.

    The folder's files are read and checked at once; of the built-in ones each when it is asked for. PromptError: names
    every problem of every file of the folder.
    """
    collection = _collect(language, folder)
    if collection.problems:
        raise make_error(collection.problems)
    own = collection.prompts
    names = [*_list_built_in(language), *own]
    return Prompts(names, lambda name: own[name] if name in own else _load_built_in(language, name))


def check_prompts(folder: Path | None = None, language: str = "en") -> list[PromptProblem]:
    """Everything wrong with the prompts of a folder and the built-in ones of the language; empty when all are sound."""
    problems = _collect(language, folder).problems
    for name in _list_built_in(language):
        try:
            read_prompt_file(_BUILT_IN / language / f"{name}.yaml", language=language)
        except PromptError as error:
            problems.extend(error.problems)
    return problems


def list_rubric_columns(name: str, templates: Iterable[str] = ()) -> frozenset[str] | None:
    """The columns of a sample that a rubric is given, by the texts of its prompts on record, else by the built-in one.

    An answer that only stands in for contexts is `answer_as_contexts`. None for a rubric that is neither on record nor
    built in.
    """
    read = [_read_recorded(template) for template in templates]
    declared = [content for content in read if content is not None]
    if not declared and name in _list_built_in(_REFERENCE_LANGUAGE):
        declared = [_read_yaml(_load_built_in(_REFERENCE_LANGUAGE, name).template)]
    columns = [column for one in declared for column in list_columns(one["variables"], one["rubric"]["needs"])]
    return frozenset(columns) or None


def list_rubric_metrics(template: str) -> list[str]:
    """The scores that a rubric gives, by the text of its prompt on record; none by a text that cannot be read."""
    content = _read_recorded(template)
    if content is None:
        return []
    return list(make_rubric(content["name"], RubricContent.model_validate(content["rubric"])).metrics)


def _read_recorded(template: str) -> dict[str, Any] | None:
    """A rubric's prompt as it stands on record; None for what another version of evalhouse, or another tool, wrote."""
    try:
        content = _read_yaml(template)
        RubricContent.model_validate(content["rubric"])
    except (yaml.YAMLError, TypeError, KeyError, ValidationError):
        return None
    return content if {"name", "variables"} <= content.keys() else None


@lru_cache(maxsize=64)
def _read_yaml(text: str) -> Any:  # noqa: ANN401  # whatever stands there; to be read alone
    """A prompt's text as YAML; a comparison of runs reads every rubric's."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def list_languages() -> list[str]:
    """The languages with built-in prompts."""
    return sorted({path.parent.name for path in _BUILT_IN.glob("*/*.yaml")})


@dataclass(frozen=True, kw_only=True)
class _Collection:
    """The prompts of a user's folder and everything wrong with it."""

    prompts: dict[str, Prompt]
    problems: list[PromptProblem]


def _collect(language: str, folder: Path | None) -> _Collection:
    names = _list_built_in(language)
    collection = _Collection(prompts={}, problems=[])
    if not names and folder is None:
        message = f"unknown language; known: {', '.join(list_languages())}; or give a folder with prompts in it"
        collection.problems.append(PromptProblem(file="language", key=language, message=message))
    if folder is not None:
        places = (folder, folder / language)
        paths = sorted(path for place in places for path in place.glob("*.y*ml") if path.is_file())
        if not paths:
            state = "has no prompt files" if folder.is_dir() else "is not a folder"
            message = f"{state}; expected NAME.yaml in it or in {folder / language}"
            collection.problems.append(PromptProblem(file=str(folder), key="", message=message))
        for path in paths:
            try:
                prompt = _load_own(path, language, collection.prompts)
            except PromptError as error:
                collection.problems.extend(error.problems)
            else:
                collection.prompts[prompt.name] = prompt
    missing = sorted(set(_ALWAYS_NEEDED) - collection.prompts.keys() - set(names))
    if missing and not collection.problems:
        message = f"there are no built-in prompts in '{language}', so files are needed for: {', '.join(missing)}"
        collection.problems.append(PromptProblem(file=str(folder), key="", message=message))
    return collection


@cache
def _list_built_in(language: str) -> tuple[str, ...]:
    if language not in list_languages():
        return ()
    return tuple(sorted([path.stem for path in (_BUILT_IN / language).glob("*.yaml")]))


@cache
def _load_built_in(language: str, name: str) -> Prompt:
    """A prompt that ships with evalhouse; whether its parts agree is for `check_prompts` and the tests to say."""
    return _build_prompt(read_prompt_file(_BUILT_IN / language / f"{name}.yaml", language=language, checks=False))


def _load_own(path: Path, language: str, loaded: Mapping[str, Prompt]) -> Prompt:
    """Return a prompt of a user; raises PromptError where it cannot stand beside or in place of ours."""
    names = _list_built_in(_REFERENCE_LANGUAGE)
    fault = ""
    if path.suffix != ".yaml":
        fault = f"must end in .yaml: rename it to {path.stem}.yaml"
    elif path.stem not in names and not is_rubric_file(path):
        fault = f"'{path.stem}' is not a prompt; known: {', '.join(names)}; your own one needs a section `rubric`"
    elif path.stem in loaded:
        fault = f"'{path.stem}' is in the folder and in its subfolder '{language}'; keep one of them"
    if fault:
        raise make_error([PromptProblem(file=str(path), key="", message=fault)])
    prompt_file = read_prompt_file(path, language=language)
    content = prompt_file.content
    rubric = make_rubric(content.name, content.rubric) if content.rubric else None
    faults: dict[str, str] = {}
    if path.stem not in names:
        assert rubric is not None
        built_in = (_load_built_in(_REFERENCE_LANGUAGE, name) for name in names)
        ours = {metric for prompt in built_in if prompt.rubric for metric in prompt.rubric.metrics}
        taken = sorted(rubric.metrics.keys() & ours)
        if taken:
            faults["rubric"] = f"gives the score '{taken[0]}', which is built in; give it another name"
    else:
        step = _load_built_in(_REFERENCE_LANGUAGE, path.stem)
        if rubric and step.rubric and rubric != step.rubric:
            same = "must be as in the built-in one, for a score's name must mean one thing"
            faults["rubric"] = f"{same}; else give yours another name"
        else:
            labels = {prefix: list(of_prefix) for prefix, of_prefix in step.labels.items()}
            own_schema, schema = strip_descriptions(content.schema_of_reply), strip_descriptions(step.reply_schema)
            for key, own, needed in (
                ("variables", content.variables, step.variables),
                ("labels", content.labels, labels),
                ("reply_schema", own_schema, schema),
            ):
                if own != needed:
                    faults[key] = f"must be as the step '{step.name}' needs it: {_dump(needed)}"
    if faults:
        problems = [PromptProblem(file=str(path), key=key, message=message) for key, message in faults.items()]
        raise make_error(problems)
    return _build_prompt(prompt_file)


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _build_prompt(prompt_file: PromptFile) -> Prompt:
    content = prompt_file.content
    canonical = json.dumps(prompt_file.parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
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
        template=prompt_file.text,
        system=content.system.strip(),
        examples=tuple(content.examples),
        rubric=make_rubric(content.name, content.rubric) if content.rubric else None,
    )
