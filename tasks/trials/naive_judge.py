"""The naive judge beside every other one: the share of a text's words that another text holds, and nothing else.

It shows what agreement a set gives away for nothing: where a judge is not clearly above it, the set does not tell
judges apart.
"""

import re
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from evalhouse.tasks.lexical.words import stem_word
from evalhouse.tasks.trials.labelled_sets import Part, Row

NAIVE_FROM = 0.5
"""The share from which the naive judge says yes."""
_LATIN = re.compile(r"[a-z0-9]+")
_HAN = re.compile(r"[\u3400-\u9fff]+")


def read_words(text: str) -> frozenset[str]:
    """Stems of Latin words and numbers, pairs of Chinese characters."""
    words = {stem_word(word) for word in _LATIN.findall(text.lower())}
    for run in _HAN.findall(text):
        words |= {run[i : i + 2] for i in range(max(len(run) - 1, 1))}
    return frozenset(words)


def share_words(wanted: str, text: str) -> float:
    """The share of the words of `wanted` that `text` holds; 0 without any."""
    words = read_words(wanted)
    return len(words & read_words(text)) / len(words) if words else 0.0


def score_naively(part: Part, row: Row) -> list[float]:
    """The naive judge's score of each decision of a row: one, or one a context where contexts are judged.

    Of an answer it is the share of the ground truth's words; of a pair how far b is ahead.
    """
    data = row.data
    match part.kind:
        case "support":
            return [max(share_words(str(data["statement"]), text) for text in row.contexts)]
        case "relevance":
            wanted = f"{row.question} {row.ground_truth}"
            return [share_words(wanted, text) for text in row.contexts]
        case "pairwise":
            held = [share_words(row.ground_truth, str(data[name])) for name in ("answer_a", "answer_b")]
            return [held[1] - held[0]]
        case _:
            return [share_words(row.ground_truth or row.question, str(data.get("answer") or ""))]


def match_statements(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """How alike two splits of a text are, 0 to 1: F1 of the best one-to-one match.

    Two statements are as alike as their words: 2·common / (words of one + words of the other).
    """
    if not ours or not theirs:
        return 0.0
    left, right = ([read_words(one) for one in side] for side in (ours, theirs))
    alike = np.array([[2 * len(a & b) / max(len(a) + len(b), 1) for b in right] for a in left])
    rows, columns = linear_sum_assignment(alike, maximize=True)
    matched = float(alike[rows, columns].sum())
    return 2 * matched / (len(ours) + len(theirs))
