"""The flows, in the order of a run, and their two entry points: the command line (`cli`) and Python (`evaluate`)."""

import sys

if sys.platform == "win32":
    sys.stderr.write("evalhouse runs on Linux and macOS, and not on Windows; install and start it within WSL\n")
    sys.exit(2)

from evalhouse.flows.evaluate import Evaluation, EvaluationError, evaluate
from evalhouse.warehouse.metric_files import metric

__all__ = ["Evaluation", "EvaluationError", "evaluate", "metric"]
