"""The steps that give verdicts: what each is called, what it rests on, asks with and writes. One record per step.

The records are in `steps.toml`; the record of a rubric, which is a step as well (`grade_` and its name), is made by
`find_step`. They are all that a run, a dry run, `compare`, `lineage` and the reviews know of a step; its file in
`tasks/` does the work.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Literal

ColumnType = Literal["text", "integer", "long", "hash", "number", "boolean", "integers", "texts", "time"]
GRADE_STEP: Final = "grade_"
"""The start of a rubric's step; the rubric's name follows."""


@dataclass(frozen=True, kw_only=True)
class VerdictTable:
    """A table of verdicts: its columns beside run_id and sample_id, which come first, and call_id, which comes last."""

    name: str
    columns: Mapping[str, ColumnType]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step. `name` is used in `outcomes` and in the `needs` of metric files, `task` is its file in `tasks/`.

    - `calls`: its requests as `llm_calls` names them; none where no model is asked.
    - `prompt`: the prompt file it asks with; `lexical` where the built-in judge knows it.
    - `after`: the steps whose verdicts it needs.
    - `inputs`: the columns of a sample that can move its verdicts; None where it may be any. Of a rubric only those
      beside the blocks of its prompt, which this room does not know: see `list_rubric_columns` of the prompts.
    - `settings`: the settings of a run that shape its replies, beside the ones that shape all.
    - `labels`: by the first letter of an item's id the labels a verdict may have, the one that says yes first, each
      with what it says; `reviewed` where people can label its verdicts too.
    - `optional`: may be marked `?` in `needs`, by a metric that reads what the step would, and never has it asked.
    - `version` is part of every request's key: raise it when the step starts to read the same reply differently.
    - `joins`: of a plan, which is not itself a step, the steps whose verdicts it asks for in one request.
    - `extract_prompt`: of a plan, the prompt with which both texts of a sample are split in one request.
    """

    name: str
    task: str
    calls: tuple[str, ...] = ()
    prompt: str | None = None
    lexical: bool = False
    after: tuple[str, ...] = ()
    inputs: tuple[str, ...] | None = None
    settings: tuple[str, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    reviewed: bool = False
    optional: bool = False
    version: int = 1
    joins: tuple[str, ...] = ()
    extract_prompt: str | None = None
    tables: tuple[VerdictTable, ...] = ()


def _make_step(name: str, record: Mapping[str, Any]) -> Step:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    values["tables"] = tuple(_TABLES[table] for table in record["tables"])
    return Step(name=name, **values)


_RECORDS: Final = tomllib.loads(files("evalhouse.warehouse").joinpath("steps.toml").read_text(encoding="utf-8"))
_TABLES: Final = {name: VerdictTable(name=name, columns=columns) for name, columns in _RECORDS["tables"].items()}
STEPS: Final[Mapping[str, Step]] = {name: _make_step(name, record) for name, record in _RECORDS["steps"].items()}
PLANS: Final[Mapping[str, Step]] = {name: _make_step(name, record) for name, record in _RECORDS["plans"].items()}
"""Other ways to ask what steps ask, by the name of the plan; without one each step asks by itself."""
SEPARATE: Final = "separate"
APART_PROMPTS: Final = tuple(_RECORDS["apart"]["prompts"])
"""The prompts that test sets are made and kept true with. No step asks with them; the lexical judge knows them."""
_STEPS: Final = tuple(STEPS.values())
_ASKING: Final = (*_STEPS, *PLANS.values())
_EXTRACT_STEPS: Final = tuple(step.name for step in _STEPS if step.task == "extract")
_EXTRACT_PROMPTS: Final = tuple(plan.extract_prompt for plan in PLANS.values() if plan.extract_prompt is not None)
_GRADE_SETTINGS = ("contexts_role", "logprobs")
_OF_MODELS = ("temperature", "reasoning_effort", "max_tokens", "context_window")
_EVERYWHERE = (*_OF_MODELS, "request_tokens")

TASKS: Final = (*dict.fromkeys(step.task for step in _ASKING), "grade")
"""The files in `tasks/` that take steps, in the order of `steps.toml`."""
JUDGED_TASKS: Final = tuple(
    task for task in TASKS if task == "grade" or any(step.prompt is not None for step in _STEPS if step.task == task)
)
"""The ones of TASKS that ask a separate judge; a plan asks the judge of the steps it joins."""
LEXICAL_TASKS: Final = frozenset(step.task for step in _ASKING if step.lexical)
"""The ones of TASKS that the built-in lexical judge can answer."""
REPLY_VERSIONS: Final[Mapping[str, int]] = {
    **dict.fromkeys((*APART_PROMPTS, *_EXTRACT_PROMPTS), 1),
    **{step.prompt: step.version for step in _ASKING if step.prompt},
}  # fmt: skip
"""The version of the code that reads replies, by prompt; for a rubric's it is 1."""
LEXICAL_PROMPTS: Final = frozenset(
    (*APART_PROMPTS, *_EXTRACT_PROMPTS, *(step.prompt for step in _ASKING if step.lexical and step.prompt))
)
JUDGE_SETTINGS: Final = tuple(
    dict.fromkeys((*_EVERYWHERE, *(name for step in _STEPS for name in step.settings), *_GRADE_SETTINGS))
)
"""All settings of a run that shape a judge's replies."""
LEXICAL_SETTINGS: Final = tuple(name for name in JUDGE_SETTINGS if name not in _OF_MODELS)
"""The ones of JUDGE_SETTINGS that the lexical judge knows."""
VERDICT_TABLES: Final = tuple({table.name: table for step in _STEPS for table in step.tables}.values())
"""The tables that steps write to, beside `outcomes`, which all do."""


def find_step(name: str) -> Step:
    """Return the record of a step or a rubric; an unlisted one asks under its name, and rests on all inputs."""
    if name in STEPS or name in PLANS:
        return STEPS[name] if name in STEPS else PLANS[name]
    rubric = name.removeprefix(GRADE_STEP)
    if rubric == name:
        return Step(name=name, task="", calls=(name,))
    return Step(
        name=name,
        task="grade",
        calls=(name,),
        prompt=rubric,
        inputs=("conversation", *_RECORDS["proof_inputs"].get(rubric, ())),
        settings=_GRADE_SETTINGS,
        tables=(_TABLES["grades"],),
    )


def find_task(call: str) -> str:
    """Return the file in `tasks/` whose step sends a request of this name; the name itself where it is such a file."""
    return find_step(call).task or call


def add_earlier(names: Iterable[str]) -> frozenset[str]:
    """Return steps with all that they rest on, directly or through other steps."""
    steps = set(names)
    for name in tuple(steps):
        steps |= add_earlier(find_step(name).after)
    return frozenset(steps)


def arrange_steps(names: Collection[str], plan: str) -> frozenset[str]:
    """Return the steps that ask for these verdicts, with a plan in place of the steps of two or more tasks it joins.

    Every step asks by itself where there is nothing to join.
    """
    joined = frozenset(PLANS[plan].joins).intersection(names) if plan in PLANS else frozenset()
    if len({find_step(name).task for name in joined}) < 2:
        return frozenset(names)
    return frozenset(names) - joined | {plan}


def list_tasks(names: Collection[str]) -> tuple[str, ...]:
    """Return the files in `tasks/` that take these steps, in the order of TASKS."""
    needed = {find_step(name).task for name in names}
    return tuple(task for task in TASKS if task in needed)


def list_earlier_tasks(task: str, names: Collection[str]) -> frozenset[str]:
    """Return the tasks whose verdicts a task needs, where it takes its share of these steps."""
    taken = [find_step(name) for name in names if find_step(name).task == task]
    joined = [find_step(name) for step in taken for name in step.joins]
    return frozenset(find_step(name).task for step in (*taken, *joined) for name in step.after)


def list_calls(names: Iterable[str]) -> frozenset[str]:
    """Return the requests that these steps send, as `llm_calls` names them."""
    return frozenset(call for name in names for call in find_step(name).calls)


def list_possible_calls(name: str) -> tuple[str, ...]:
    """Return the requests that a step's verdicts may come from: its own, or a request of a plan that joins it."""
    return (*find_step(name).calls, *(call for plan in PLANS.values() if name in plan.joins for call in plan.calls))


def list_prompts(names: Iterable[str]) -> list[str]:
    """Return the names of the prompts that these steps ask with, sorted."""
    steps = [find_step(name) for name in names]
    return sorted({prompt for step in steps for prompt in (step.prompt, step.extract_prompt) if prompt is not None})


def find_extract_prompt(names: Collection[str], plan: str) -> str | None:
    """Return the prompt that splits both texts of a sample at once where a plan takes these steps; None without one."""
    is_joined = plan in arrange_steps(names, plan) and set(_EXTRACT_STEPS) <= set(names)
    return PLANS[plan].extract_prompt if is_joined else None


def list_replaced_prompts(names: Collection[str], plan: str) -> list[str]:
    """Return the prompts of these steps that a plan replaces, sorted."""
    replaced = set(list_prompts(names)) - set(list_prompts(arrange_steps(names, plan)))
    split_apart = _EXTRACT_STEPS if find_extract_prompt(names, plan) is not None else ()
    return sorted(replaced.union(list_prompts(split_apart)))


def find_asking_steps(prompt: str) -> list[str]:
    """Return the steps that ask with a prompt; for a rubric's prompt the step that grades by it."""
    if prompt in _EXTRACT_PROMPTS:
        return list(_EXTRACT_STEPS)
    joined = [name for plan in PLANS.values() if plan.prompt == prompt for name in plan.joins]
    return joined or [step.name for step in _STEPS if step.prompt == prompt] or [f"{GRADE_STEP}{prompt}"]


def reaches(setting: str, call: str) -> bool:
    """Return whether a setting shapes the replies to requests of this name."""
    if setting in _EVERYWHERE:
        return True
    return any(setting in step.settings for step in (*_ASKING, find_step(call)) if call in step.calls[:1])


def collect_labels(prompt: str) -> dict[str, Mapping[str, str]]:
    """Return the labels of the verdicts that are asked for with a prompt, as in Step."""
    return {letter: labels for step in _STEPS if step.prompt == prompt for letter, labels in step.labels.items()}


REVIEWED_PROMPTS: Final = tuple(dict.fromkeys(step.prompt for step in _STEPS if step.reviewed and step.prompt))
"""The prompts whose verdicts people review; reviews call them steps."""
