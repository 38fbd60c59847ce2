"""The flows, in the order of a run, and their two entry points: the command line (`cli`) and Python (`evaluate`)."""

from evalhouse.flows.evaluate import Evaluation, EvaluationError, evaluate
from evalhouse.warehouse.metric_files import metric

__all__ = ["Evaluation", "EvaluationError", "evaluate", "metric"]
