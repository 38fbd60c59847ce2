"""The prompts a run works with: the built-in ones of a language, with a user's own in place of some of them.

`prompts/<language>/<name>.yaml` are data and carry everything about themselves; `content.py` reads them strictly and
`render.py` writes the data of a request. What a step sends and gets back is fixed by the English built-in prompt of
its name: variables, labels and the shape of the reply. Another language or a user's file changes the words alone.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from evalhouse.prompts.errors import PromptError, PromptProblem
from evalhouse.prompts.prompt_file import PromptContent, PromptFile, build_block, is_rubric_file, read_prompt_file
from evalhouse.prompts.render import BLOCKS, BlockKind, BlockValue, Message, render_blocks
from evalhouse.prompts.rubric import Rubric, make_rubric
from evalhouse.prompts.schema import order_keys, strip_descriptions

_BUILT_IN = Path(__file__).parent
_REFERENCE_LANGUAGE = "en"
# What a language must have; the other prompts are missed only where a metric asks for them.
_ALWAYS_NEEDED = ("attribute", "classify", "extract", "rank")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of one language, ready to be sent.

    `labels` has one entry for every id prefix that needs verdicts, with the labels open to it (none where verdicts
    carry no label). `prompt_hash` is the sha256 of the canonical JSON of the content: comments and layout do not change
    it. `template` is the text of the file. `opening` begins every request: instructions and worked examples.
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
    opening: tuple[Message, ...]
    rubric: Rubric | None = None

    def render(self, data: Mapping[str, BlockValue], *, note: str = "") -> tuple[Message, ...]:
        """The messages of one request; equal data gives equal messages.

        `note` ends the instructions when something is asked again; it must be in our own words, for nothing in it is
        neutralised. PromptError: a block is missing, not declared or of the wrong kind, or an id is malformed.
        """
        content = render_blocks(tuple(self.variables), data)
        opening = self.opening
        if note:
            system = replace(opening[0], content=f"{opening[0].content}\n\n{note}")
            opening = (system, *opening[1:])
        return (*opening, Message(role="human", content=content))


def load_prompts(language: str = "en", folder: Path | None = None) -> dict[str, Prompt]:
    """All prompts of a language by name; a file in `folder` or `folder/<language>` takes the place of the built-in one.

    PromptError: names every problem of every file.
    """
    found = _collect(language, folder)
    if found.problems:
        _refuse(found.problems)
    return found.prompts


def check_prompts(folder: Path | None = None, language: str = "en") -> list[PromptProblem]:
    """Everything that `load_prompts` would refuse; an empty list when it would load."""
    return _collect(language, folder).problems


def list_languages() -> list[str]:
    """The languages with built-in prompts."""
    return sorted({path.parent.name for path in _BUILT_IN.glob("*/*.yaml")})


@dataclass(frozen=True, kw_only=True)
class _Collection:
    prompts: dict[str, Prompt]
    problems: list[PromptProblem]


def _refuse(problems: list[PromptProblem]) -> NoReturn:
    raise PromptError("\n".join(map(str, problems)), problems=problems)


def _collect(language: str, folder: Path | None) -> _Collection:
    prompts: dict[str, Prompt] = {}
    problems: list[PromptProblem] = []
    if language in list_languages():
        prompts |= _load_built_in(language)
    elif folder is None:
        message = f"unknown language; known: {', '.join(list_languages())}; or give a folder with prompts in it"
        problems.append(PromptProblem(file="language", key=language, message=message))
    if folder is not None:
        own = _collect_own(language, folder)
        prompts |= own.prompts
        problems += own.problems
    if not problems and (missing := sorted(set(_ALWAYS_NEEDED) - prompts.keys())):
        message = f"there are no built-in prompts in '{language}', so files are needed for: {', '.join(missing)}"
        problems.append(PromptProblem(file=str(folder), key="", message=message))
    return _Collection(prompts=prompts, problems=problems)


@cache
def _load_built_in(language: str) -> dict[str, Prompt]:
    paths = sorted((_BUILT_IN / language).glob("*.yaml"))
    return {path.stem: _build_prompt(read_prompt_file(path, language=language)) for path in paths}


def _collect_own(language: str, folder: Path) -> _Collection:
    """The prompts of a user's folder and everything wrong with it."""
    collection = _Collection(prompts={}, problems=[])
    paths = sorted(path for place in (folder, folder / language) for path in place.glob("*.y*ml") if path.is_file())
    if not paths:
        state = "has no prompt files" if folder.is_dir() else "is no folder"
        message = f"{state}; expected NAME.yaml in it or in {folder / language}"
        collection.problems.append(PromptProblem(file=str(folder), key="", message=message))
    for path in paths:
        try:
            prompt = _load_own(path, language, collection.prompts)
        except PromptError as error:
            collection.problems.extend(error.problems)
        else:
            collection.prompts[prompt.name] = prompt
    return collection


def _load_own(path: Path, language: str, loaded: Mapping[str, Prompt]) -> Prompt:
    reference = _load_built_in(_REFERENCE_LANGUAGE)
    fault = ""
    if path.suffix != ".yaml":
        fault = f"must end in .yaml: rename it to {path.stem}.yaml"
    elif path.stem not in reference and not is_rubric_file(path):
        known = ", ".join(sorted(reference))
        fault = f"'{path.stem}' is no prompt; known: {known}; one of your own needs a section `rubric`"
    elif path.stem in loaded:
        fault = f"'{path.stem}' stands in the folder and in its subfolder '{language}'; keep one of them"
    if fault:
        _refuse([PromptProblem(file=str(path), key="", message=fault)])
    prompt_file = read_prompt_file(path, language=language)
    if path.stem in reference:
        problems = _find_contract_faults(str(path), prompt_file.content, reference[path.stem])
    else:
        problems = _find_newcomer_faults(str(path), prompt_file.content, reference)
    if problems:
        _refuse(problems)
    return _build_prompt(prompt_file)


def _find_contract_faults(file: str, content: PromptContent, reference: Prompt) -> list[PromptProblem]:
    """Where a prompt asks for other data or another reply than its step sends and reads."""
    labels = {prefix: list(labels) for prefix, labels in reference.labels.items()}
    pairs = {
        "variables": (content.variables, reference.variables),
        "labels": (content.labels, labels),
        "reply_schema": (strip_descriptions(content.schema_of_reply), strip_descriptions(reference.reply_schema)),
    }
    if content.rubric and reference.rubric and make_rubric(content.name, content.rubric) != reference.rubric:
        message = "must be as in the built-in one, for a score's name must mean one thing; else give yours another name"
        return [PromptProblem(file=file, key="rubric", message=message)]
    return [
        PromptProblem(file=file, key=key, message=f"must be as the step '{reference.name}' needs it: {_dump(needed)}")
        for key, (given, needed) in pairs.items()
        if given != needed
    ]


def _find_newcomer_faults(file: str, content: PromptContent, reference: Mapping[str, Prompt]) -> list[PromptProblem]:
    """What keeps a rubric of the user's own from standing beside ours."""
    assert content.rubric is not None
    built_in = {metric for prompt in reference.values() if prompt.rubric for metric in prompt.rubric.metrics}
    taken = sorted(make_rubric(content.name, content.rubric).metrics.keys() & built_in)
    if not taken:
        return []
    message = f"gives the score '{taken[0]}', which is built in; give it another name"
    return [PromptProblem(file=file, key="rubric", message=message)]


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _build_prompt(prompt_file: PromptFile) -> Prompt:
    content = prompt_file.content
    variables: dict[str, BlockKind] = {name: content.variables[name] for name in BLOCKS if name in content.variables}
    opening = [Message(role="system", content=content.system.strip())]
    for example in content.examples:
        data = {name: build_block(value) for name, value in example.data.items()}
        reply = order_keys(content.schema_of_reply, example.reply)
        opening.append(Message(role="human", content=render_blocks(tuple(variables), data)))
        opening.append(Message(role="ai", content=_dump(reply)))
    return Prompt(
        name=content.name,
        version=str(content.version),
        language=content.language,
        description=content.description.strip(),
        variables=variables,
        labels={prefix: tuple(labels) for prefix, labels in content.labels.items()},
        reply_schema=content.schema_of_reply,
        prompt_hash=_hash_content(prompt_file.parsed),
        template=prompt_file.text,
        opening=tuple(opening),
        rubric=make_rubric(content.name, content.rubric) if content.rubric else None,
    )


def _hash_content(parsed: Mapping[str, Any]) -> str:
    canonical = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
