"""The flows, in the order of a run, and their two entry points: the command line (`cli`) and Python (`evaluate`)."""

import sys
from pathlib import Path

if sys.platform == "win32":
    unsupported = "evalhouse runs on Linux and macOS, and not on Windows; install and start it within WSL"
    # The command imports this module before it can catch an error, so its sentence is printed here, alone.
    if Path("".join(sys.argv[:1])).stem == "evalhouse":
        sys.stderr.write(f"{unsupported}\n")
        sys.exit(2)
    raise ImportError(unsupported)

from evalhouse.flows.evaluate import Evaluation, EvaluationError, evaluate
from evalhouse.warehouse.metric_files import metric

__all__ = ["Evaluation", "EvaluationError", "evaluate", "metric"]
