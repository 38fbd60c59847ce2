"""The one error for a wrong setting, the exit statuses of `evalhouse`, and the messages of errors: one line for an
error that a person can fix, a traceback for a bug."""

import sys
from typing import Any


class SettingsError(Exception):
    """A setting has a value that is not allowed; says which one, where it came from, and what is."""


GATE_FAILED, BAD_INPUT, INCOMPLETE, INTERRUPTED = 1, 2, 3, 130


_FOR_PEOPLE: dict[str, str] = {
    "evalhouse.flows.server.environment": "LocalServerError",
    "evalhouse.flows.errors": "SettingsError",
    "evalhouse.flows.serving.notify": "NotifyError",
    "evalhouse.prompts.render": "PromptError",
    "evalhouse.tasks.comparing.runs": "ComparisonError",
    "evalhouse.tasks.datasets.values": "DatasetError",
    "evalhouse.tasks.judge.protocol": "JudgeError",
    "evalhouse.warehouse.metric_files": "UnknownMetric",
    "evalhouse.tasks.reviews.labels": "ReviewError",
    "evalhouse.tasks.targets.protocol": "TargetError",
    "evalhouse.tasks.testsets": "TestsetError",
    "evalhouse.warehouse.errors": "WarehouseError",
}
"""The errors whose text is meant for the person at the terminal, by the module that defines them."""


def explain(error: Exception) -> str | None:
    """Return the message of an error for a person; None for an unexpected one, whose traceback is shown."""
    for path, name in _FOR_PEOPLE.items():
        module: Any = sys.modules.get(path)  # an error of a module that is not imported was not raised
        if module is not None and isinstance(error, getattr(module, name)):
            from evalhouse.warehouse.messages import clean_text  # noqa: PLC0415  # imports orjson, not needed for --help

            return clean_text(str(error))
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None
