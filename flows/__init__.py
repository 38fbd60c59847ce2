"""The flows, in the order of a run, and their two entry points: the command line (`cli`) and Python (`evaluate`)."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if sys.platform == "win32":
    unsupported = "evalhouse runs on Linux and macOS, and not on Windows; install and start it within WSL"
    # The command imports this module before it can catch an error, so its sentence is printed here, alone.
    if Path("".join(sys.argv[:1])).stem == "evalhouse":
        sys.stderr.write(f"{unsupported}\n")
        sys.exit(2)
    raise ImportError(unsupported)

if TYPE_CHECKING:
    from evalhouse.flows.start import Evaluation, EvaluationError, evaluate
    from evalhouse.warehouse.metric_files import metric

__all__ = ["Evaluation", "EvaluationError", "evaluate", "metric"]


def __getattr__(name: str) -> object:
    """Import what a Python program uses when it uses it: the command and Prefect's server need none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = "evalhouse.warehouse.metric_files" if name == "metric" else "evalhouse.flows.start"
    return getattr(importlib.import_module(place), name)
