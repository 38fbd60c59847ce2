"""The steps that give verdicts: what each is called, what it rests on, asks with and writes. One record per step.

A record is all that a run, a dry run, `compare`, `lineage` and the reviews know of a step; its file in `tasks/` does
the work. Each rubric is a step as well (`grade_` and the rubric's name), whose record `find_step` makes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

ColumnType = Literal["text", "integer", "number", "boolean", "integers"]
GRADE_STEP: Final = "grade_"
"""How the steps of rubrics begin; the rubric's name follows."""
SAMPLE_TEXTS: Final = ("question", "answer", "ground_truth", "contexts")


@dataclass(frozen=True, kw_only=True)
class VerdictTable:
    """A table of verdicts: its columns beside run_id and sample_id, which come first, and call_id, which comes last."""

    name: str
    columns: Mapping[str, ColumnType]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step. `name` stands in `outcomes` and in the `needs` of metric files, `task` is its file in `tasks/`.

    - `calls`: its requests as `llm_calls` names them; none where no model is asked.
    - `prompt`: the prompt file it asks with; `lexical` where the built-in judge knows it.
    - `after`: the steps whose verdicts it needs.
    - `inputs`: the columns of a sample that can move its verdicts; None where it may be any.
    - `settings`: the settings of a run that shape its replies, beside those that shape all.
    - `labels`: by the first letter of an item's id the labels a verdict may have, the one that says yes first, each
      with what it says; `reviewed` where people can label its verdicts too.
    - `optional`: may be marked `?` in `needs`: spared for a sample whose ids decide what is relevant.
    - `version` is part of every request's key: raise it when the step starts to read the same reply differently.
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
    tables: tuple[VerdictTable, ...] = ()

    @property
    def columns_read(self) -> tuple[str, ...]:
        """Further columns of a dataset that it reads, beside question, answer, ground truth and contexts."""
        return tuple(name for name in self.inputs or () if name not in SAMPLE_TEXTS)


_STATEMENTS = VerdictTable(
    name="statements", columns={"statement_id": "text", "source": "text", "ordinal": "integer", "text": "text"}
)
_CLASSIFICATIONS = VerdictTable(
    name="classifications", columns={"statement_id": "text", "label": "text", "reason": "text"}
)
_ATTRIBUTIONS = VerdictTable(
    name="attributions",
    columns={"statement_id": "text", "supported": "boolean", "context_ranks": "integers", "reason": "text"},
)
_CONTEXT_VERDICTS = VerdictTable(
    name="context_verdicts", columns={"context_rank": "integer", "useful": "boolean", "reason": "text"}
)
_VOTES = VerdictTable(
    name="votes",
    columns={
        "step": "text", "item_id": "text", "vote": "integer", "verdict": "text", "agrees": "boolean", "reason": "text",
    },
)  # fmt: skip
_SIMILARITIES = VerdictTable(name="similarities", columns={"kind": "text", "value": "number", "text": "text"})
_GRADES = VerdictTable(
    name="grades",
    columns={
        "rubric": "text", "criterion": "text", "rating": "number", "scale_min": "number", "scale_max": "number",
        "said": "number", "rule": "text", "reason": "text",
    },
)  # fmt: skip
_SUPPORT = {"supported": "at least one context says so", "unsupported": "no context says so"}
_STEPS = (
    Step(
        name="extract_answer",
        task="extract",
        calls=("extract_answer",),
        prompt="extract",
        lexical=True,
        inputs=("question", "answer"),
        tables=(_STATEMENTS,),
    ),
    Step(
        name="extract_ground_truth",
        task="extract",
        calls=("extract_ground_truth",),
        prompt="extract",
        lexical=True,
        inputs=("question", "ground_truth"),
        tables=(_STATEMENTS,),
    ),
    Step(
        name="classify",
        task="classify",
        calls=("classify",),
        prompt="classify",
        lexical=True,
        after=("extract_answer", "extract_ground_truth"),
        inputs=("question", "answer", "ground_truth"),
        settings=("votes",),
        labels={
            "A": {"TP": "the ground truth says so", "FP": "the ground truth does not say so"},
            "G": {"TP": "the answer says so", "FN": "the answer does not say so"},
        },
        reviewed=True,
        tables=(_CLASSIFICATIONS, _VOTES),
    ),
    Step(
        name="attribute_answer",
        task="attribute",
        calls=("attribute",),
        prompt="attribute",
        lexical=True,
        after=("extract_answer",),
        inputs=("question", "answer", "contexts"),
        settings=("votes", "contexts_alone"),
        labels={"A": _SUPPORT},
        reviewed=True,
        tables=(_ATTRIBUTIONS, _VOTES),
    ),
    Step(
        name="attribute_ground_truth",
        task="attribute",
        calls=("attribute",),
        prompt="attribute",
        lexical=True,
        after=("extract_ground_truth",),
        inputs=("question", "ground_truth", "contexts"),
        settings=("votes", "contexts_alone"),
        labels={"G": _SUPPORT},
        reviewed=True,
        tables=(_ATTRIBUTIONS, _VOTES),
    ),
    Step(
        name="rank",
        task="rank",
        calls=("rank",),
        prompt="rank",
        lexical=True,
        inputs=("question", "ground_truth", "contexts"),
        settings=("votes", "contexts_alone"),
        labels={"C": {"useful": "it helps to reach the ground truth", "not_useful": "it does not help to reach it"}},
        reviewed=True,
        optional=True,
        tables=(_CONTEXT_VERDICTS, _VOTES),
    ),
    Step(
        name="similarity",
        task="similarity",
        calls=("similarity",),
        inputs=("answer", "ground_truth"),
        tables=(_SIMILARITIES,),
    ),
    Step(
        name="relevancy",
        task="relevancy",
        calls=("relevancy", "similarity"),
        prompt="questions",
        inputs=("question", "answer"),
        settings=("regenerated_questions",),
        tables=(_GRADES, _SIMILARITIES),
    ),
    Step(name="overlap", task="measure", inputs=("answer", "ground_truth"), tables=(_SIMILARITIES,)),
    Step(name="tool_calls", task="measure", inputs=("expected_tool_calls", "tool_calls"), tables=(_GRADES,)),
    Step(
        name="result_sets",
        task="measure",
        inputs=("answer", "ground_truth", "setup", "tables", "expected_rows", "rows"),
        tables=(_GRADES,),
    ),
)
STEPS: Final[Mapping[str, Step]] = {step.name: step for step in _STEPS}

# By built-in rubric: the inputs that can move its grades. A rubric that is not here may be moved by any.
_RUBRIC_INPUTS: Final[Mapping[str, tuple[str, ...]]] = {
    "accuracy": ("question", "answer", "ground_truth"),
    "accuracy_3": ("question", "answer", "ground_truth"),
    "accuracy_5": ("question", "answer", "ground_truth"),
    "accuracy_binary": ("question", "answer", "ground_truth"),
    "answer_validity": ("question", "answer"),
    "contexts_usefulness": ("question", "contexts"),
    "passage_precision": ("question", "ground_truth", "contexts"),
    "passage_recall": ("question", "ground_truth", "contexts"),
    "relevance": ("question", "answer", "contexts", "contexts_role"),
    "sql_equivalence": ("question", "answer", "ground_truth", "schema", "setup", "tables"),
}
_GRADE_SETTINGS = ("contexts_role", "logprobs")
_EVERYWHERE = ("temperature", "max_tokens", "request_tokens")

TASKS: Final = (*dict.fromkeys(step.task for step in _STEPS), "grade")
"""The files in `tasks/` that take steps, in the order in which they stand in this one."""
REPLY_VERSIONS: Final[Mapping[str, int]] = {step.prompt: step.version for step in _STEPS if step.prompt}
"""By prompt the version of the code that reads its replies; of a rubric's it is 1."""
LEXICAL_PROMPTS: Final = frozenset(step.prompt for step in _STEPS if step.lexical)
JUDGE_SETTINGS: Final = tuple(
    dict.fromkeys((*_EVERYWHERE, *(name for step in _STEPS for name in step.settings), *_GRADE_SETTINGS))
)
"""All settings of a run that shape a judge's replies."""
VERDICT_TABLES: Final = tuple({table.name: table for step in _STEPS for table in step.tables}.values())
"""The tables that steps write to, beside `outcomes`, which all do."""


def find_step(name: str) -> Step:
    """The record of a step, a rubric's included; one that is not listed asks under its own name, and rests on all."""
    if name in STEPS:
        return STEPS[name]
    rubric = name.removeprefix(GRADE_STEP)
    if rubric == name:
        return Step(name=name, task="", calls=(name,))
    return Step(
        name=name,
        task="grade",
        calls=(name,),
        prompt=rubric,
        inputs=_RUBRIC_INPUTS.get(rubric),
        settings=_GRADE_SETTINGS,
        tables=(_GRADES,),
    )


def add_earlier(names: Iterable[str]) -> frozenset[str]:
    """Steps with those they rest on, and those that these rest on."""
    steps = set(names)
    for name in tuple(steps):
        steps |= add_earlier(find_step(name).after)
    return frozenset(steps)


def list_tasks(names: Collection[str]) -> tuple[str, ...]:
    """The files in `tasks/` that take these steps, in the order of TASKS."""
    needed = {find_step(name).task for name in names}
    return tuple(task for task in TASKS if task in needed)


def list_calls(names: Iterable[str]) -> frozenset[str]:
    """The requests that these steps send, as `llm_calls` names them."""
    return frozenset(call for name in names for call in find_step(name).calls)


def list_model_steps(names: Iterable[str]) -> frozenset[str]:
    """Those of these steps that ask what the built-in lexical judge cannot answer."""
    return frozenset(name for name in names if (step := find_step(name)).prompt is not None and not step.lexical)


def list_prompts(names: Iterable[str]) -> list[str]:
    """The names of the prompts that these steps ask with, sorted."""
    return sorted({prompt for name in names if (prompt := find_step(name).prompt) is not None})


def find_asking_steps(prompt: str) -> list[str]:
    """The steps that ask with a prompt; of a rubric's prompt the step that grades by it."""
    return [step.name for step in _STEPS if step.prompt == prompt] or [f"{GRADE_STEP}{prompt}"]


def reaches(setting: str, call: str) -> bool:
    """Whether a setting shapes the replies to requests of this name."""
    if setting in _EVERYWHERE:
        return True
    return any(setting in step.settings for step in (*_STEPS, find_step(call)) if call in step.calls[:1])


def collect_labels(call: str) -> dict[str, Mapping[str, str]]:
    """The labels of the verdicts that requests of this name give, as in Step."""
    return {letter: labels for step in _STEPS if call in step.calls for letter, labels in step.labels.items()}


REVIEWED_CALLS: Final = tuple(dict.fromkeys(step.calls[0] for step in _STEPS if step.reviewed))
"""The requests, as `llm_calls` names them, whose verdicts people review; each asks with the prompt of its name."""
