"""The judges that `--judge` names: the default, and those of steps that have one of their own.

Written as `openai:gpt-4.1-mini,attribute=lexical`: an item with `=` names a step, by its file in `tasks/`, and its
judge; the item without is the default. So they stand on record as well, in `runs.judge`: two runs have one yardstick
when they have the same text there. What each call was asked of stands with the call.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.steps import GRADE_STEP, JUDGED_TASKS, PLANS, STEPS, TASKS, find_step, find_task

DEFAULT: Final = "default"
"""What the default judge is called where judges are listed by name, as in a suite's `[judges]`."""
LEXICAL: Final = "lexical"
"""The built-in judge, which asks no model."""
LOCAL: Final = "local"
LOCAL_TASKS: Final = frozenset(("classify", "attribute", "rank"))
"""The steps that a classifier of document-claim support can judge."""
"""What stands before the colon of a classifier's name."""
# The name of a judge may hold `=`, but only behind its colon.
_ITEM: Final = re.compile(r"([^:=]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JudgeNames:
    """The default judge, None where it is named elsewhere, and the judges of steps by task."""

    default: str | None = None
    of_tasks: Mapping[str, str] = field(default_factory=dict)

    def find(self, task: str) -> str | None:
        """The judge of a step."""
        return self.of_tasks.get(task, self.default)

    def lay_over(self, below: "JudgeNames") -> "JudgeNames":
        """These, and where they name no default those below too: a default is that of all that is not named with it."""
        if self.default is not None:
            return self
        return JudgeNames(default=below.default, of_tasks={**below.of_tasks, **self.of_tasks})

    def __str__(self) -> str:
        """The text that names them, always the same for the same judges: a step with the default's judge has none."""
        named = [f"{task}={name}" for task in JUDGED_TASKS if (name := self.find(task)) not in (None, self.default)]
        return ",".join([*([self.default] if self.default is not None else []), *named])


def parse_judges(given: str | Mapping[str, object]) -> JudgeNames:
    """The judges in a text, or by name as a suite's table has them; raises ValueError that says what is wrong."""
    pairs = _split(given) if isinstance(given, str) else given.items()
    judges: dict[str, str] = {}
    for task, name in pairs:
        if not isinstance(name, str) or name.strip().lower() in ("", "none"):
            raise ValueError(f"{task} names no judge; write JUDGE, or STEP=JUDGE, with commas between them")
        if task != DEFAULT and task not in JUDGED_TASKS:
            raise ValueError(_explain_unknown(task))
        if task in judges:
            raise ValueError(_explain_repeated(task, judges[task], name))
        judges[task] = name.strip()
    return JudgeNames(default=judges.pop(DEFAULT, None), of_tasks=judges)


def is_fixed(name: str) -> bool:
    """Whether a judge says the same each time it is asked, so that asking it again says nothing."""
    return name == LEXICAL or name.startswith(f"{LOCAL}:")


def find_judge(text: str, call: str) -> str:
    """The judge that a text on record names for a call, as `llm_calls` has its step."""
    judges = dict(_split(text))
    asking = PLANS[call].joins[0] if call in PLANS else call
    task = asking if asking in TASKS else find_task(asking)
    return judges.get(task, judges.get(DEFAULT, text))


def list_judges(text: str) -> list[str]:
    """The names of all judges in a text on record, each once."""
    return list(dict.fromkeys(name for _, name in _split(text)))


def _split(text: str) -> Iterator[tuple[str, str]]:
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        yield (match[1].strip(), match[2].strip()) if match else (DEFAULT, item.strip())


def _explain_unknown(task: str) -> str:
    owner = find_step(task).task if task in STEPS or task.startswith(GRADE_STEP) else task
    if owner != task and owner in JUDGED_TASKS:
        return f"{task!r} is part of the step {owner!r}; name its judge as {owner}=JUDGE"
    if task in STEPS or task in TASKS:
        return f"the step {task!r} asks no judge; those that do: {', '.join(JUDGED_TASKS)}"
    return f"there is no step {task!r}; {suggest(task, JUDGED_TASKS, otherwise='known')}"


def _explain_repeated(task: str, first: str, second: str) -> str:
    if task == DEFAULT:
        return f"there are two default judges, {first!r} and {second!r}; name a step's judge as STEP=JUDGE"
    return f"the step {task!r} has two judges, {first!r} and {second!r}; name one"
