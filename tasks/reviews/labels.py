"""The labels a person can give, by step: those of the judge, in words that say what they mean."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A label and what giving it says."""

    label: str
    meaning: str


_CHOICES: Final[dict[tuple[str, str | None], tuple[Choice, Choice]]] = {
    ("classify", "answer"): (
        Choice(label="TP", meaning="the ground truth says so"),
        Choice(label="FP", meaning="the ground truth does not say so"),
    ),
    ("classify", "ground_truth"): (
        Choice(label="TP", meaning="the answer says so"),
        Choice(label="FN", meaning="the answer does not say so"),
    ),
    ("attribute", None): (
        Choice(label="supported", meaning="at least one context says so"),
        Choice(label="unsupported", meaning="no context says so"),
    ),
    ("rank", None): (
        Choice(label="useful", meaning="it helps to reach the ground truth"),
        Choice(label="not_useful", meaning="it does not help to reach it"),
    ),
}


def list_choices(step: str, source: str | None) -> tuple[Choice, Choice]:
    """The labels of a step, the one that says yes first; in `classify` they depend on the statement's text."""
    return _CHOICES[step, source if step == "classify" else None]


def list_labels(step: str, source: str | None) -> tuple[str, str]:
    """Their names alone."""
    yes, no = list_choices(step, source)
    return (yes.label, no.label)


def find_label(step: str, source: str | None, said: str) -> str | None:
    """The label a person means by a word, whatever its case and whether it has blanks; None for another word."""
    folded = "_".join(said.casefold().replace("-", " ").replace("_", " ").split())
    return next((label for label in list_labels(step, source) if label.casefold() == folded), None)
