"""What happens, in which order, when: the flows, and the two doors to them (`cli`, `evaluate`)."""

from evalhouse.flows.evaluate import Evaluation, EvaluationError, evaluate

__all__ = ["Evaluation", "EvaluationError", "evaluate"]
