"""The one error for a wrong setting, the exit statuses of `evalhouse`, and the messages of errors: one line for an
error that a person can fix, and for a bug one line with the file that has its traceback."""

import os
import sys
import tempfile
import traceback
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


def explain(error: BaseException) -> str | None:
    """Return the message of an error for a person; None for an unexpected one (`log_unexpected`)."""
    for path, name in _FOR_PEOPLE.items():
        module: Any = sys.modules.get(path)  # an error of a module that is not imported was not raised
        if module is not None and isinstance(error, getattr(module, name)):
            from evalhouse.warehouse.messages import clean_text  # noqa: PLC0415  # imports orjson, not needed for --help

            return clean_text(str(error))
    title = str(getattr(error, "title", ""))
    if title.endswith("Settings") and "prefect.settings" in sys.modules:  # a ValidationError of pydantic's
        items: list[dict[str, Any]] = getattr(error, "errors", list)()
        problems = [f"{title} {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in items]
        return (
            f"Prefect refuses its settings: {'; '.join(problems)}; correct the variable PREFECT_…, or its place in "
            ".env, prefect.toml, pyproject.toml or Prefect's profile"
        )
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None


def log_unexpected(error: BaseException) -> str:
    """Write an error's traceback, without secrets, to a file for this user alone, and return a sentence with both."""
    from evalhouse.warehouse.messages import redact, shorten  # noqa: PLC0415  # as above

    trace = "".join(traceback.format_exception(error))
    descriptor, path = tempfile.mkstemp(prefix="evalhouse-error-", suffix=".log")  # with mode 0600
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(redact(trace))
    reason = shorten(redact(f"{type(error).__name__}: {error}"), 200)
    return f"unexpected {reason.rstrip('.')}; its traceback, for a report, is in {path}"
