"""The one error for a setting given wrongly, the exit statuses of `evalhouse`, and what it says of an error: one
line for one that a person can fix, a traceback for one that should not be."""

import sys
from typing import Any


class SettingsError(Exception):
    """A setting has a value that is not allowed; says which one, where it came from, and what is."""


GATE_FAILED, BAD_INPUT, INCOMPLETE, INTERRUPTED = 1, 2, 3, 130


def explain(error: Exception) -> str | None:
    """Return the message of an error for a person; None for an unexpected one, whose traceback is shown."""
    if isinstance(error, _known_errors()):
        from evalhouse.warehouse.messages import clean_text  # noqa: PLC0415  # imports orjson, which --help does without

        return clean_text(str(error))
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None


def _known_errors() -> tuple[type[Exception], ...]:
    """The errors whose text is meant for the person at the terminal; none of a module that nobody has imported yet."""
    names = {
        "evalhouse.flows.server.environment": "LocalServerError",
        "evalhouse.flows.errors": "SettingsError",
        "evalhouse.flows.serving.notify": "NotifyError",
        "evalhouse.prompts.render": "PromptError",
        "evalhouse.tasks.comparing.runs": "ComparisonError",
        "evalhouse.tasks.datasets.errors": "DatasetError",
        "evalhouse.tasks.judge.errors": "JudgeError",
        "evalhouse.warehouse.metric_files": "UnknownMetric",
        "evalhouse.tasks.reviews.labels": "ReviewError",
        "evalhouse.tasks.targets.protocol": "TargetError",
        "evalhouse.tasks.testsets": "TestsetError",
        "evalhouse.warehouse.errors": "WarehouseError",
    }
    modules: dict[str, Any] = {module: sys.modules[module] for module in names if module in sys.modules}
    return tuple(getattr(module, names[path]) for path, module in modules.items())
