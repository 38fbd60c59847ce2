"""Which contexts help to reach the ground truth: how much of what the ground truth says, and of what the question asks
about, a context holds close together, and how far it is ahead of those retrieved with it. Words that few of these hold
count more; how strongly a context supports the ground truth as a statement comes from `lexical_support`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalhouse.tasks.lexical.match import read_claim
from evalhouse.tasks.lexical.support import rate_support, read_answer
from evalhouse.tasks.lexical.texts import AnalysedText, analyse_text

# These two were chosen together on one half (by hash of the row's group) of four sets with graded contexts.
USEFUL_THRESHOLD = 0.45
_AHEAD = 0.5  # of the distance to the mean of the contexts retrieved together: words of the subject are in all of them
# Picked with all rows of five sets with graded contexts in view; any share from 0.6 to 0.8 ranks about as well.
_GROUND_TRUTH_SHARE = 0.7
_ONE_SENTENCE = 0.8  # what a context is worth that states one sentence of the ground truth and nothing of the rest


@dataclass(frozen=True, kw_only=True)
class Relevance:
    """How useful one context is, 0 to 1, and what of it comes from the ground truth (None without any) and question."""

    score: float
    ground_truth_share: float | None
    question_share: float

    @property
    def useful(self) -> bool:
        return self.score >= USEFUL_THRESHOLD


def _weigh_keys(wanted: AnalysedText, contexts: Sequence[AnalysedText]) -> dict[str, float]:
    """Key to weight: the token's own, more for keys that few contexts hold (a smoothed inverse document frequency)."""
    n = len(contexts)
    held = [context.places for context in contexts]
    return {
        key: weight * math.log(1 + (n + 0.5) / (sum([key in places for places in held]) + 0.5))
        for key, weight in wanted.weights.items()
    }


def _share_found(weights: dict[str, float], context: AnalysedText) -> float:
    """Share of the weighted keys in the context: half for those anywhere, half for those in the best sentence."""
    total = sum(weights.values())
    if not total:
        return 0.0
    anywhere, singles = 0.0, [0.0] * len(context.sentences)
    for key in weights.keys() & context.keys:
        anywhere += weights[key]
        for position in context.read_positions(key):
            singles[position] += weights[key]
    best = max(singles, default=0.0)
    return 0.5 * (anywhere + best) / total


def rate_contexts(question: str, ground_truth: str, contexts: Sequence[str]) -> list[Relevance]:
    """The usefulness of each context, in the order given; with an empty ground truth by the question alone."""
    texts = [analyse_text(context) for context in contexts]
    asked, truth = analyse_text(question), analyse_text(ground_truth)
    question_weights = _weigh_keys(asked, texts)
    truth_weights = {key: weight for key, weight in _weigh_keys(truth, texts).items() if key not in asked.keys}
    if not truth_weights:  # the ground truth is in the question: a choice, or yes and no
        truth_weights = _weigh_keys(truth, texts)
    truth_parts = [AnalysedText(text=truth.text, sentences=(sentence,)) for sentence in truth.sentences]
    claims = [read_answer(part, asked) for part in truth_parts] if len(truth_parts) > 1 else []
    asked_claim, truth_claim = read_claim(asked), read_answer(truth, asked)
    rated: list[Relevance] = []
    for text in texts:
        question_share = 0.5 * (_share_found(question_weights, text) + rate_support(asked_claim, text))
        if truth.weights:
            whole = 0.5 * (_share_found(truth_weights, text) + rate_support(truth_claim, text))
            truth_share = whole
            if whole < _ONE_SENTENCE:
                one = max((rate_support(claim, text) for claim in claims), default=0.0)
                truth_share = max(whole, _ONE_SENTENCE * one)
            score = _GROUND_TRUTH_SHARE * truth_share + (1 - _GROUND_TRUTH_SHARE) * question_share
            rated.append(Relevance(score=score, ground_truth_share=truth_share, question_share=question_share))
        else:
            rated.append(Relevance(score=question_share, ground_truth_share=None, question_share=question_share))
    return _set_apart(rated)


def _set_apart(rated: Sequence[Relevance]) -> list[Relevance]:
    """The scores with their distance to the mean made larger; one context alone keeps its own."""
    mean = sum([one.score for one in rated]) / max(len(rated), 1)
    return [replace(one, score=min(max(one.score + _AHEAD * (one.score - mean), 0.0), 1.0)) for one in rated]
