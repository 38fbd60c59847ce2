"""How strongly a text supports a statement: the evidence that `lexical_match` finds, combined with fixed weights into a
score from 0 to 1, and the threshold from which the score is a yes. `lexical_judge` gives the verdicts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasks.lexical_match import Evidence, weigh_evidence
from tasks.lexical_sentences import read_alternatives
from tasks.lexical_text import AnalysedText, analyse_text, join_texts

SUPPORT_THRESHOLD = 0.5
# Fitted offline by logistic regression on half (by hash of the row's group) of five sets with human labels of support,
# every set and label of equal weight, then rounded. `tests/benchmarks/judge_agreement.py --half b` shows the rest.
_BIAS, _COVER, _RARE, _NEW = -2.4, 1.5, 2.0, 1.0
_FOREIGN_NUMBER, _FOREIGN_NAME = 0.8, 0.4  # for each of the first two that stand nowhere in the text
_NEGATION, _OPPOSITE, _REPLACED = 0.5, 1.8, 0.4
_PERSONAL, _ASKS = 1.5, 1.5
# In a comparison of answer and ground truth: the weight of what the question already says.
_GIVEN_SHARE = 0.2
_NOTHING = AnalysedText(text="", sentences=())


@dataclass(frozen=True, kw_only=True)
class Support:
    """A score from 0 (nothing found) to 1 (stated) and the evidence it was computed from.

    `conveys` turns the evidence around: the answer statement holds a whole ground-truth statement, whatever it adds.
    """

    score: float
    evidence: Evidence | None
    conveys: bool = False

    @property
    def supported(self) -> bool:
        return self.score >= SUPPORT_THRESHOLD


def score_support(statement: str, text: str, question: str = "") -> Support:
    """The support of one context for one statement; of several spellings of a gold answer the best counts."""
    asked, held = analyse_text(question), analyse_text(text)
    spellings = [analyse_text(spelling) for spelling in read_alternatives(statement)]
    return max(
        [_score(spelling, held, asked, 1.0, _rate_talk(spelling, held)) for spelling in spellings], key=_by_score
    )


def _rate_talk(statement: AnalysedText, text: AnalysedText) -> float:
    """The penalty for a statement that is talk: a question, or of its speaker and hearer where the text is not."""
    asks = _ASKS if statement.text.rstrip().endswith(("?", "？")) else 0.0
    return asks + (0.0 if statement.personal <= text.personal else _PERSONAL)


def rate_support(statement: AnalysedText, text: AnalysedText, question: AnalysedText | None = None) -> float:
    """The score alone, of texts analysed already; what the question says hardly counts."""
    if question is None:
        return _score(statement, text, _NOTHING, 1.0).score
    return _score(statement, text, question, _GIVEN_SHARE).score


def _score(
    statement: AnalysedText, text: AnalysedText, question: AnalysedText, given_share: float, penalty: float = 0.0
) -> Support:
    evidence = weigh_evidence(statement, text, question, given_share=given_share)
    return Support(score=0.0 if evidence is None else combine(evidence, penalty), evidence=evidence)


def combine(evidence: Evidence, penalty: float = 0.0) -> float:
    """The score of the evidence: a logistic combination with the fixed weights above."""
    z = _BIAS - penalty + _COVER * evidence.cover + _RARE * evidence.cover_rare + _NEW * evidence.cover_new
    z -= _FOREIGN_NUMBER * min(evidence.foreign_numbers, 2) + _FOREIGN_NAME * min(evidence.foreign_names, 2)
    z -= _NEGATION * bool(evidence.negation_mismatch) + _OPPOSITE * bool(evidence.opposites)
    z -= _REPLACED * min(len(evidence.replaced), 2)
    return 1.0 / (1.0 + math.exp(-z))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Support for each answer statement by the ground truth, and for each ground-truth statement by the answer."""

    answer: tuple[Support, ...]
    ground_truth: tuple[Support, ...]

    @property
    def soft_precision(self) -> float:
        """Mean score of the answer statements; 0 without any."""
        return sum(support.score for support in self.answer) / max(len(self.answer), 1)

    @property
    def soft_recall(self) -> float:
        """Mean score of the ground-truth statements; 0 without any."""
        return sum(support.score for support in self.ground_truth) / max(len(self.ground_truth), 1)


def compare_statements(question: str, answer: Sequence[str], ground_truth: Sequence[str]) -> Comparison:
    """Both texts' statements against each other. What the question already says hardly counts here.

    An answer statement is supported when the ground truth supports it, or when it alone conveys a whole ground-truth
    statement, with whatever it adds. Each statement sees all statements of the other text.
    """
    asked = analyse_text(question)
    answers = [analyse_text(statement) for statement in answer]
    truths = [[analyse_text(spelling) for spelling in read_alternatives(statement)] for statement in ground_truth]
    if not answers or not truths:
        nothing = Support(score=0.0, evidence=None)
        return Comparison(answer=(nothing,) * len(answers), ground_truth=(nothing,) * len(truths))
    whole_answer = join_texts(answers)
    whole_truth = join_texts([spelling for spellings in truths for spelling in spellings])
    conveyed = [_best(spellings, whole_answer, asked) for spellings in truths]
    reached = [spellings for spellings, support in zip(truths, conveyed, strict=True) if support.supported]
    given: list[Support] = []
    for statement in answers:
        support = _score(statement, whole_truth, asked, _GIVEN_SHARE)
        if not support.supported:
            alone = max((_best(spellings, statement, asked) for spellings in reached), key=_by_score, default=support)
            support = replace(alone, conveys=True) if alone.supported else support
        given.append(support)
    return Comparison(answer=tuple(given), ground_truth=tuple(conveyed))


def _by_score(support: Support) -> float:
    return support.score


def _best(spellings: Sequence[AnalysedText], text: AnalysedText, question: AnalysedText) -> Support:
    return max((_score(spelling, text, question, _GIVEN_SHARE) for spelling in spellings), key=_by_score)
