"""How strongly a text supports a statement: the evidence that `lexical_match` finds, combined with fixed weights into a
score from 0 to 1, and the threshold from which the score is a yes. `lexical_judge` gives the verdicts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalhouse.tasks.lexical.match import Claim, Evidence, read_claim, weigh_evidence
from evalhouse.tasks.lexical.sentences import read_alternatives
from evalhouse.tasks.lexical.texts import AnalysedText, analyse_text, join_texts

SUPPORT_THRESHOLD = 0.5
# The first four were fitted by logistic regression on half (by hash of the row's group) of five sets with human labels
# of support, every set and label of equal weight, then rounded. The rest was set afterwards with all rows in view, as
# was _SAME_QUESTION. `evalhouse benchmark` measures what comes of it.
_BIAS, _COVER, _RARE, _NEW = -2.4, 1.5, 2.0, 1.0
_FOREIGN_NUMBER, _FOREIGN_NAME = 1.2, 0.6  # for each of the first two that stand nowhere in the text
_SPREAD, _SHORT, _LONG = 4.0, 8.0, 20.0  # a long statement may be found all over a text; lengths in token weight
_NEGATION, _OPPOSITE, _REPLACED, _RIVAL = 0.7, 1.8, 0.2, 1.0
_PERSONAL, _ASKS = 1.5, 1.5
# In a comparison of answer and ground truth: the weight of what the question already says.
_GIVEN_SHARE = 0.2
_SAME_QUESTION = 0.6  # two texts that answer one question agree with fewer shared words than a passage and a claim


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
    """The support of one text for one statement."""
    return score_contexts([statement], [text], question)[0][0]


def score_contexts(statements: Sequence[str], texts: Sequence[str], question: str = "") -> list[list[Support]]:
    """For each statement the support of each of the texts, which were retrieved together.

    Of several spellings of a gold answer the best counts.
    """
    asked, held = analyse_text(question), [analyse_text(text) for text in texts]
    elsewhere = frozenset().union(*[text.keys for text in held]) if len(held) > 1 else frozenset[str]()
    scored: list[list[Support]] = []
    for statement in statements:
        claims = [read_claim(analyse_text(spelling), asked) for spelling in read_alternatives(statement)]
        scored.append([_score_best(claims, text, elsewhere) for text in held])
    return scored


def _score_best(claims: Sequence[Claim], text: AnalysedText, elsewhere: frozenset[str]) -> Support:
    scores = [_score(claim, text, elsewhere, _rate_talk(claim.statement, text)) for claim in claims]
    return max(scores, key=_by_score)


def _rate_talk(statement: AnalysedText, text: AnalysedText) -> float:
    """The penalty for a statement that is talk: a question, or of its speaker and hearer where the text is not."""
    asks = _ASKS if statement.text.rstrip().endswith(("?", "？")) else 0.0
    return asks + (0.0 if statement.personal <= text.personal else _PERSONAL)


def read_answer(statement: AnalysedText, question: AnalysedText) -> Claim:
    """A statement of an answer or ground truth as a claim of which the question's part hardly counts."""
    return read_claim(statement, question, given_share=_GIVEN_SHARE)


def rate_support(claim: Claim, text: AnalysedText) -> float:
    """The score alone, of texts analysed already."""
    return _score(claim, text).score


def _score(claim: Claim, text: AnalysedText, elsewhere: frozenset[str] = frozenset(), penalty: float = 0.0) -> Support:
    evidence = weigh_evidence(claim, text, elsewhere)
    return Support(score=0.0 if evidence is None else combine(evidence, penalty), evidence=evidence)


def combine(evidence: Evidence, penalty: float = 0.0) -> float:
    """The score of the evidence: a logistic combination with the fixed weights above."""
    z = _BIAS - penalty + _COVER * evidence.cover + _RARE * evidence.cover_rare + _NEW * evidence.cover_new
    z += _SPREAD * _rate_length(evidence.claim.total) * (evidence.cover_text - evidence.cover)
    z -= _FOREIGN_NUMBER * min(evidence.foreign_numbers, 2) + _FOREIGN_NAME * min(evidence.foreign_names, 2)
    z -= _NEGATION * bool(evidence.negation_mismatch) + _OPPOSITE * bool(evidence.opposites)
    z -= _REPLACED * min(len(evidence.replaced), 2) + _RIVAL * min(len(evidence.rivals), 2)
    return 1.0 / (1.0 + math.exp(-z))


def _rate_length(weight: float) -> float:
    """0 for a statement of _SHORT content or less, 1 from _LONG on: how far its parts may stand apart in a text."""
    return min(max((weight - _SHORT) / (_LONG - _SHORT), 0.0), 1.0)


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
    wanted = [[read_answer(spelling, asked) for spelling in spellings] for spellings in truths]
    conveyed = [_best(claims, whole_answer) for claims in wanted]
    reached = [claims for claims, support in zip(wanted, conveyed, strict=True) if support.supported]
    given: list[Support] = []
    for statement in answers:
        support = _best([read_answer(statement, asked)], whole_truth)
        if not support.supported:
            alone = max((_best(claims, statement) for claims in reached), key=_by_score, default=support)
            support = replace(alone, conveys=True) if alone.supported else support
        given.append(support)
    return Comparison(answer=tuple(given), ground_truth=tuple(conveyed))


def _by_score(support: Support) -> float:
    return support.score


def _best(claims: Sequence[Claim], text: AnalysedText) -> Support:
    return max([_score(claim, text, penalty=-_SAME_QUESTION) for claim in claims], key=_by_score)
