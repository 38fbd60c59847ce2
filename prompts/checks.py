"""Loading and checking prompt files of users: everything that a prompt must be, and all problems at once.

The parts of a file must agree with each other, and with the built-in prompt of the same name. Every problem has its
file, its key, the value found and the values allowed.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any, Final

from pydantic import JsonValue, ValidationError

from evalhouse.prompts.loader import (
    BUILT_IN,
    REFERENCE_LANGUAGE,
    VERDICTS,
    ExampleContent,
    Prompt,
    PromptContent,
    Schema,
    build_prompt,
    list_built_in,
    list_ids,
    list_languages,
    list_verdict_labels,
    load_built_in,
    load_yaml,
    pick_prefixes,
    pick_verdict_lists,
    unfold_row,
)
from evalhouse.prompts.render import BLOCKS, CONVERSATION, TURN_PREFIX, PromptError, PromptProblem
from evalhouse.prompts.rubric import SAMPLE_COLUMNS, Criterion, RubricContent

# A language must have these; the other prompts are only missed if a metric needs them.
_ALWAYS_NEEDED = ("attribute", "classify", "extract", "rank")
_ROW: Final[Schema] = {"type": "array", "items": {"type": "string"}}
_MENTION = re.compile(r"<([a-z_]+)>")
PAIR: tuple[str, ...] = ("first_answer", "second_answer")
"""The blocks of two answers of which one is preferred; the question, a ground truth and contexts may be beside them."""
_BESIDE_PAIR = ("question", "ground_truth", "contexts")
_RESERVED = ("relevancy", "result_sets", "tool_calls")  # the names of the grades of other steps
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NAME_RULE = "names are small letters, digits and underscores, beginning with a letter"


def load_folder(language: str, folder: Path | None) -> tuple[dict[str, Prompt], list[PromptProblem]]:
    """Return the prompts of a user's folder by name, and all problems with them."""
    names = list_built_in(language)
    prompts: dict[str, Prompt] = {}
    problems: list[PromptProblem] = []
    if not names and folder is None:
        message = f"unknown language; known: {', '.join(list_languages())}; or give a folder with prompts in it"
        problems.append(PromptProblem(language, message, "language"))
    if folder is not None:
        places = (folder, folder / language)
        paths = sorted(path for place in places for path in place.glob("*.y*ml") if path.is_file())
        if not paths:
            state = "has no prompt files" if folder.is_dir() else "is not a folder"
            message = f"{state}; expected NAME.yaml in it or in {folder / language}"
            problems.append(PromptProblem("", message, str(folder)))
        for path in paths:
            try:
                prompt = _load_file(path, language, prompts)
            except PromptError as error:
                problems.extend(error.problems)
            else:
                prompts[prompt.name] = prompt
    missing = sorted(set(_ALWAYS_NEEDED) - prompts.keys() - set(names))
    if missing and not problems:
        message = f"no prompts in '{language}' are built in, so files are needed for: {', '.join(missing)}"
        problems.append(PromptProblem("", message, str(folder)))
    return prompts, problems


@cache
def check_built_in(language: str) -> tuple[PromptProblem, ...]:
    """Return all problems of the built-in prompts of a language."""
    problems: list[PromptProblem] = []
    for name in list_built_in(language):
        path = BUILT_IN / language / f"{name}.yaml"
        try:
            _, parsed = load_yaml(path)
            parse_content(parsed, path, language)
        except PromptError as error:
            problems += error.problems
    return tuple(problems)


def _load_file(path: Path, language: str, loaded: Mapping[str, Prompt]) -> Prompt:
    """Return a prompt of a user. PromptError: it is invalid, or not usable beside or in place of the built-in ones."""
    names = list_built_in(REFERENCE_LANGUAGE)
    fault = ""
    if path.suffix != ".yaml":
        fault = f"must end in .yaml: rename it to {path.stem}.yaml"
    elif path.stem not in names and "rubric" not in load_yaml(path)[1]:
        fault = f"'{path.stem}' is not a prompt; known: {', '.join(names)}; your own one needs a section `rubric`"
    elif path.stem in loaded:
        fault = f"'{path.stem}' is in the folder and in its subfolder '{language}'; keep one of them"
    if fault:
        raise PromptError(problems=[PromptProblem("", fault, str(path))])
    text, parsed = load_yaml(path)
    content = parse_content(parsed, path, language)
    prompt = build_prompt(text, parsed, content)
    faults: dict[str, str] = {}
    if path.stem not in names:
        assert prompt.rubric is not None
        built_in = (load_built_in(REFERENCE_LANGUAGE, name).rubric for name in names)
        taken = sorted(
            prompt.rubric.metrics.keys() & {metric for rubric in built_in if rubric for metric in rubric.metrics}
        )
        if taken:
            faults["rubric"] = f"gives the score '{taken[0]}', which is built in; give it another name"
    else:
        step = load_built_in(REFERENCE_LANGUAGE, path.stem)
        if prompt.rubric and step.rubric and prompt.rubric != step.rubric:
            same = "must be as in the built-in one, for a score's name must mean one thing"
            faults["rubric"] = f"{same}; else give yours another name"
        else:
            labels = {prefix: list(of_prefix) for prefix, of_prefix in step.labels.items()}
            schema, needed_schema = _strip_descriptions(content.schema_of_reply), _strip_descriptions(step.reply_schema)
            for key, value, needed in (
                ("variables", content.variables, step.variables),
                ("labels", content.labels, labels),
                ("reply_schema", schema, needed_schema),
            ):
                if value != needed:
                    shown = json.dumps(needed, ensure_ascii=False)
                    faults[key] = f"must be as the step '{step.name}' needs it: {shown}"
    if faults:
        raise PromptError(problems=[PromptProblem(key, message, str(path)) for key, message in faults.items()])
    return prompt


def parse_content(parsed: Mapping[str, Any], path: Path, language: str) -> PromptContent:
    """Return the content of a file. PromptError: has all its problems, as far as they can be found together."""
    problems = []
    try:
        content = PromptContent.model_validate(parsed)
    except ValidationError as error:
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
            problems.append(PromptProblem(".".join(map(str, location)), message, str(path)))
        raise PromptError(problems=problems) from None
    problems = [replace(fault, file=str(path)) for fault in _find_faults(path, content, language)]
    if problems:
        raise PromptError(problems=problems)
    return content


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
"""The keys of a schema that every endpoint takes, by type. All but `enum` are required."""
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
    """Yield the faults of a value by a schema."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415  # only files of users are checked

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
    yield from (PromptProblem(place, message) for place, message in faults.items())


def _find_schema_faults(schema: Any, *, key: str) -> Iterator[PromptProblem]:  # noqa: ANN401  # JSON
    """Yield the faults of a schema that some endpoints refuse, or that asks for the label before the reason."""
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
            yield PromptProblem(f"{key}.required", message)
        early = [name for name in names if name != "id"]
        if "reason" in early and early[0] != "reason":
            message = f"`reason` must come before {early[0]}, so that the judge gives its reason before its verdict"
            yield PromptProblem(f"{key}.properties", message)
    elif schema["type"] == "array":
        inner = {f"{key}.items": schema["items"]}
    for place, part in inner.items():
        yield from _find_schema_faults(part, key=place)


def _strip_descriptions(schema: object) -> object:
    """Return the schema without its words: two equal ones ask for the same shape of reply."""
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: _strip_descriptions(inner) for key, inner in schema.items() if key not in {"description", "properties"}
    }
    if "properties" in schema:
        # Under `properties` every key is a name, `description` too.
        plain["properties"] = {name: _strip_descriptions(inner) for name, inner in schema["properties"].items()}
    return plain


def _find_faults(path: Path, content: PromptContent, language: str) -> Iterator[PromptProblem]:
    """Yield disagreements within a file, in the order in which a reader would fix them."""
    if content.name != path.stem:
        yield PromptProblem("name", f"'{content.name}' is in a file named {path.name}; name and file must be the same")
    if content.language != language:
        message = f"'{content.language}' where prompts in '{language}' are read; give each language its own folder"
        yield PromptProblem("language", message)
    basics = list(_find_declaration_faults(path, content))
    yield from basics
    # A variable is used when the instructions name its block as `<name>`; a label when they name it at all.
    mentioned = set(_MENTION.findall(content.system))
    for name in sorted(mentioned - content.variables.keys()):
        message = f"names <{name}>, which is not a variable of this prompt; declared: {', '.join(content.variables)}"
        yield PromptProblem("system", message)
    for name in content.variables:
        if name not in mentioned:
            yield PromptProblem(f"variables.{name}", f"is never used: the system text must say what <{name}> holds")
    for label in list_verdict_labels(VERDICTS, content.labels):
        if label not in content.system:
            yield PromptProblem("labels", f"the label {label} is never explained in the system text")
    for name in content.rubric.criteria if content.rubric else ():
        if name not in content.system:
            yield PromptProblem("rubric.criteria", f"the criterion {name} is never explained in the system text")
    # A faulty schema says nothing about the examples, nor do variables that do not exist.
    if not basics:
        # Labels and reply schema both define the verdicts.
        properties: Any = content.schema_of_reply["properties"]
        lists = pick_verdict_lists(properties, content.variables)
        if bool(lists) != bool(content.labels):
            message = "must name the id prefixes that verdicts are given for"
            yield PromptProblem("labels", message if lists else "must be empty ({}) where the reply has no `verdicts`")
        for name, schema in lists.items():
            key = f"reply_schema.properties.{name}"
            if schema.get("items", {}).get("type") == "array":
                if schema["items"] != _ROW:
                    message = "must be an array of texts, the cells of a row, where verdicts are rows"
                    yield PromptProblem(f"{key}.items", message)
                continue
            verdict = schema.get("items", {}).get("properties", {})
            if "id" not in verdict or "reason" not in verdict:
                yield PromptProblem(key, "must be an array of objects with at least `id` and `reason`")
            labels = list_verdict_labels(name, content.labels)
            if sorted(verdict.get("label", {}).get("enum", [])) != sorted(labels):
                message = f"must be the labels declared under `labels`: [{', '.join(labels)}]"
                yield PromptProblem(f"{key}.items.properties.label.enum", message)
        for position, example in enumerate(content.examples):
            yield from _find_example_faults(f"examples[{position}]", content, example)


def _find_declaration_faults(path: Path, content: PromptContent) -> Iterator[PromptProblem]:
    """Yield the faults of the variables, the labels, and the schema or rubric."""
    for name, kind in content.variables.items():
        if name not in BLOCKS:
            yield PromptProblem(f"variables.{name}", f"unknown block; allowed: {', '.join(BLOCKS)}")
        elif kind != BLOCKS[name].kind and name != CONVERSATION:
            message = f"'{kind}' is not what this block holds; allowed: {BLOCKS[name].kind}"
            yield PromptProblem(f"variables.{name}", message)
    prefixes = [BLOCKS[name].prefix for name in content.variables if name in BLOCKS and BLOCKS[name].prefix]
    for prefix, labels in content.labels.items():
        if prefix not in prefixes:
            message = f"no variable has ids with this prefix; allowed: {', '.join(prefixes) or 'none'}"
            yield PromptProblem(f"labels.{prefix}", message)
        if len(set(labels)) != len(labels) or "" in labels:
            yield PromptProblem(f"labels.{prefix}", f"{labels} has an empty label or one twice")
    if content.rubric is None:
        for key in ("labels", "reply_schema"):
            if key not in content.model_fields_set:
                message = f"missing; required: {', '.join(PromptContent.model_fields)} (`rubric` only for a rubric)"
                yield PromptProblem(key, message)
        yield from _find_schema_faults(content.reply_schema, key="reply_schema")
        return
    for key, section in (("labels", content.labels), ("reply_schema", content.reply_schema)):
        if section:
            yield PromptProblem(key, "must be left out of a rubric: it follows from the criteria")
    yield from find_rubric_faults(content.rubric, variables=content.variables, file=path.name)


def _find_example_faults(key: str, content: PromptContent, example: ExampleContent) -> Iterator[PromptProblem]:
    """Yield the faults of an example: each id must be in its list once, and only ids that were sent."""
    if example.data.keys() != content.variables.keys():
        message = f"has the blocks {', '.join(example.data) or 'none'}; required: {', '.join(content.variables)}"
        yield PromptProblem(f"{key}.data", message)
        return
    data: dict[str, Any] = example.data
    faults = []
    for name, value in data.items():
        if not _fits_block(name, value):
            prefix = BLOCKS[name].prefix
            items = f"must be a list of {{id: {prefix}1, text: …}}, each id once"
            faults.append(PromptProblem(f"{key}.data.{name}", items if prefix else "must be a text"))
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
            yield PromptProblem(key, message)
            return
        for verdict in verdicts:
            if not isinstance(verdict, list):
                for name in sent.keys() & verdict.keys():
                    yield from _find_invented(key, verdict["id"], verdict[name], sent[name])
                continue
            # A row has to be readable, and a verdict on its item.
            unfolded: Any = []
            try:
                unfolded = unfold_row(verdict)
            except ValueError as error:
                yield PromptProblem(key, f"{verdict[0]}: {error}")
            for part in unfolded:
                item_id, labels = verdict[0], content.labels.get(verdict[0][0], [])
                if not part["reason"]:
                    yield PromptProblem(key, f"{item_id} has neither evidence nor a reason")
                if "label" in part and part["label"] not in labels:
                    yield PromptProblem(key, f"{item_id} has the label {part['label']}; allowed: {', '.join(labels)}")
                if part.get("contexts", ()) is None:
                    message = f"{item_id}: {verdict[-1]!r} names no contexts; it must begin with ids or with none"
                    yield PromptProblem(key, message)
                    continue
                cited = [*list_ids(part["reason"]), *part.get("contexts", ()), *part.get("together", ())]
                yield from _find_invented(key, item_id, cited, [one for ids in sent.values() for one in ids])


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


def _find_invented(key: str, item_id: str, cited: Iterable[str], sent: Collection[str]) -> Iterator[PromptProblem]:
    invented = [cited_id for cited_id in cited if cited_id not in sent]
    if invented:
        yield PromptProblem(key, f"{item_id} cites {', '.join(invented)}; sent were {', '.join(sent)}")


def find_rubric_faults(content: RubricContent, *, variables: Mapping[str, str], file: str) -> Iterator[PromptProblem]:
    """Yield disagreements within the section: names, scales, anchors, rules and totals, needed blocks."""
    rubric = PurePath(file).stem
    if rubric in _RESERVED:
        yield PromptProblem("name", f"'{rubric}' is the name of a built-in step; give the rubric another one")
    scores = content.name_scores(rubric)
    for key, names in {
        "name": [rubric],
        "rubric.criteria": content.criteria,
        "rubric.totals": content.totals,
        "rubric": scores.values(),
    }.items():
        # They become names of metrics, also in SQL.
        for odd in (name for name in names if not _NAME.fullmatch(name)):
            yield PromptProblem(key, f"'{odd}' cannot be a name; {_NAME_RULE}")
    for name in content.criteria.keys() & content.totals.keys():
        yield PromptProblem(f"rubric.totals.{name}", "is a criterion; give the total another name")
    for metric, times in Counter(scores.values()).items():
        if times > 1:
            yield PromptProblem("rubric", f"the score '{metric}' is given {times} times; give each a separate `metric`")
    for name, criterion in content.criteria.items():
        key = f"rubric.criteria.{name}"
        if criterion.kind == "flag" and (criterion.min, criterion.max) != (0, 1):
            yield PromptProblem(key, "a flag is 0 or 1; leave `min` and `max` out")
        if criterion.kind == "preference" and criterion != Criterion(kind="preference"):
            yield PromptProblem(key, "a preference has neither a scale nor a metric; give its `kind` alone")
        if criterion.min >= criterion.max:
            yield PromptProblem(key, f"min {criterion.min} must be below max {criterion.max}")
        outside = [anchor for anchor in criterion.anchors if not criterion.min <= anchor <= criterion.max]
        if outside:
            message = f"anchor {outside[0]} is not on the scale from {criterion.min} to {criterion.max}"
            yield PromptProblem(f"{key}.anchors", message)
    if content.is_of_pairs:
        if len(content.criteria) > 1 or content.rules or content.totals:
            yield PromptProblem(
                "rubric", "prefers one of two answers by one criterion; leave out the others, rules and totals"
            )
        for name in PAIR:
            if name not in variables:
                yield PromptProblem(
                    "variables", f"'{name}' is missing: a preference is asked for between {' and '.join(PAIR)}"
                )
    allowed = (*_BESIDE_PAIR, *PAIR) if content.is_of_pairs else tuple(SAMPLE_COLUMNS)
    for name in variables:
        if name not in allowed:
            whose = "a rubric of two answers" if content.is_of_pairs else "a rubric"
            message = f"is not a block that {whose} is given; allowed: {', '.join(allowed)}"
            yield PromptProblem(f"variables.{name}", message)
    given = {SAMPLE_COLUMNS.get(name) for name in variables}
    for need in content.needs:
        if need not in given:
            yield PromptProblem(
                "rubric.needs", f"'{need}' is needed but no variable: declare its block under `variables`"
            )
    for position, rule in enumerate(content.rules):
        key, when = f"rubric.rules[{position}]", rule.when
        asked = [when.no_contexts is not None, when.at_most is not None, when.is_true is not None]
        if sum(asked) != 1 or (when.criterion is None) != (when.no_contexts is not None):
            message = "must be {no_contexts: true}, {criterion: NAME, at_most: NUMBER} or {criterion: NAME, is: true}"
            yield PromptProblem(f"{key}.when", message)
        if not rule.set and not rule.cap:
            yield PromptProblem(key, "does nothing; give it `set` or `cap` with a number by criterion")
        concerned = [*([when.criterion] if when.criterion else []), *rule.set, *rule.cap]
        yield from _find_name_faults(content, concerned, key=key)
        asked_of = content.criteria.get(when.criterion or "")
        if asked_of and when.is_true is not None and asked_of.kind != "flag":
            yield PromptProblem(f"{key}.when", f"{when.criterion} is not a flag; ask whether it is `at_most` a number")
        compared = [(when.criterion, when.at_most)] if when.criterion and when.at_most is not None else []
        for name, number in (*compared, *rule.set.items(), *rule.cap.items()):
            rated = content.criteria.get(name)
            if rated and not rated.min <= number <= rated.max:
                yield PromptProblem(key, f"{name}: {number} is not on its scale from {rated.min} to {rated.max}")
    for name, total in content.totals.items():
        key = f"rubric.totals.{name}"
        yield from _find_name_faults(content, total.sum, key=f"{key}.sum")
        most = sum(content.criteria[name].max for name in total.sum if name in content.criteria)
        if most > total.over:
            yield PromptProblem(
                f"{key}.over", f"{total.over} is less than the sum can be ({most}), and a score is at most 1"
            )


def _find_name_faults(content: RubricContent, names: list[str], *, key: str) -> Iterator[PromptProblem]:
    for name in names:
        if name not in content.criteria:
            yield PromptProblem(key, f"'{name}' is not a criterion; there are {', '.join(content.criteria)}")
