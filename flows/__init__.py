"""The flows, in the order of a run, and their two entry points: the command line (`cli`) and Python (`evaluate`)."""

from evalhouse.flows.evaluate import Evaluation, EvaluationError, evaluate

__all__ = ["Evaluation", "EvaluationError", "evaluate"]
