"""The judges that `--judge` names: the default, and the judges of single steps.

Written as `openai:gpt-4.1-mini,attribute=lexical`: an item with `=` names a step, by its file in `tasks/`, and its
judge; the item without is the default. They are stored that way in `runs.judge`: two runs are judged alike when they
have the same text there. The row of each call has the judge that was asked.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.steps import GRADE_STEP, JUDGED_TASKS, PLANS, STEPS, TASKS, find_step, find_task

DEFAULT: Final = "default"
"""The name of the default judge where judges are listed by name, as in a suite's `[judges]`."""
LEXICAL: Final = "lexical"
"""The built-in judge, which asks no model."""
LOCAL: Final = "local"
"""The beginning of a classifier's name, before the colon."""
LOCAL_TASKS: Final = frozenset(("classify", "attribute", "rank"))
"""The steps that a classifier of document-claim support can judge."""
# The name of a judge may hold `=`, but only behind its colon.
_ITEM: Final = re.compile(r"([^:=]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JudgeNames:
    """The default judge, None where it is named elsewhere, and the judges of steps by task."""

    default: str | None = None
    of_tasks: Mapping[str, str] = field(default_factory=dict)

    def find(self, task: str) -> str | None:
        """Return the judge of a step."""
        return self.of_tasks.get(task, self.default)

    def lay_over(self, below: "JudgeNames") -> "JudgeNames":
        """Return these, with the names below where these have no default: a default is for all steps not named."""
        if self.default is not None:
            return self
        return JudgeNames(default=below.default, of_tasks={**below.of_tasks, **self.of_tasks})

    def __str__(self) -> str:
        """Return the text that names them, the same for the same judges: a step with the default's judge has none."""
        named = [f"{task}={name}" for task in JUDGED_TASKS if (name := self.find(task)) not in (None, self.default)]
        return ",".join([*([self.default] if self.default is not None else []), *named])


def parse_judges(given: str | Mapping[str, object]) -> JudgeNames:
    """Return the judges in a text, or by name as a suite's table has them; raises ValueError with the problem."""
    pairs = _split(given) if isinstance(given, str) else given.items()
    judges: dict[str, str] = {}
    for task, name in pairs:
        if not isinstance(name, str) or name.strip().lower() in ("", "none"):
            raise ValueError(f"no judge given for {task}; write JUDGE, or STEP=JUDGE, with commas between them")
        if task != DEFAULT and task not in JUDGED_TASKS:
            owner = find_step(task).task if task in STEPS or task.startswith(GRADE_STEP) else task
            if owner != task and owner in JUDGED_TASKS:
                raise ValueError(f"{task!r} is part of the step {owner!r}; name its judge as {owner}=JUDGE")
            if task in STEPS or task in TASKS:
                raise ValueError(f"the step {task!r} asks no judge; steps that do: {', '.join(JUDGED_TASKS)}")
            raise ValueError(f"there is no step {task!r}; {suggest(task, JUDGED_TASKS, otherwise='known')}")
        if task in judges and task == DEFAULT:
            raise ValueError(
                f"there are two default judges, {judges[task]!r} and {name!r}; name a step's judge as STEP=JUDGE"
            )
        if task in judges:
            raise ValueError(f"the step {task!r} has two judges, {judges[task]!r} and {name!r}; name one")
        judges[task] = name.strip()
    return JudgeNames(default=judges.pop(DEFAULT, None), of_tasks=judges)


def is_fixed(name: str) -> bool:
    """Return whether a judge is deterministic, so that asking it again changes nothing."""
    return name == LEXICAL or name.startswith(f"{LOCAL}:")


def find_judge(text: str, call: str) -> str:
    """Return the judge that a stored text names for a call, as `llm_calls` has its step."""
    judges = dict(_split(text))
    asking = PLANS[call].joins[0] if call in PLANS else call
    task = asking if asking in TASKS else find_task(asking)
    return judges.get(task, judges.get(DEFAULT, text))


def list_judges(text: str) -> list[str]:
    """Return the names of all judges in a stored text, each once."""
    return list(dict.fromkeys(name for _, name in _split(text)))


def _split(text: str) -> Iterator[tuple[str, str]]:
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        yield (match[1].strip(), match[2].strip()) if match else (DEFAULT, item.strip())
