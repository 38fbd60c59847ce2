"""Text overlap of an answer with its ground truth, without a judge: bleu, rouge_l, chrf, exact match, token F1.

The formulas and tokenizers are sacrebleu's, the longest common subsequence is rapidfuzz's. A pair with Chinese in it is
split with sacrebleu's Chinese tokenizer (each character a token, words of other scripts whole), any other as mteval-13a
does. Values are shares from 0 to 1, where sacrebleu itself uses 0 to 100.

Exact match and token F1 follow SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250), whose official script no library here
has: small letters, no punctuation, no articles, and the rest split at white space. Beyond that script, which knows
English alone, punctuation is that of any script and each Chinese character is a token. All five compare texts in the
Unicode form of `unify_forms`, in which full-width letters, ligatures and decomposed accents are equal to plain ones.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache

from rapidfuzz.distance import LCSseq
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

from evalhouse.tasks.lexical.split import unify_forms

# The name `exact_match` is that of earlier versions, which ignored white space alone.
KINDS = ("bleu", "rouge_l", "chrf", "squad_exact_match", "token_f1")
_CHINESE = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_ARTICLES = ("a", "an", "the")
_PUNCTUATION = re.compile(r"[^\w\s\x00-\x7f]")


def measure_overlap(answer: str, ground_truth: str) -> Mapping[str, float]:
    """Return all five by name, each from 0 to 1.

    - bleu: sentence BLEU of up to four words, orders the shorter text is too short for left out, exponential smoothing
      (sacrebleu's `effective_order`). Papineni et al. 2002; Post 2018.
    - rouge_l: F1 of the longest common subsequence of lower-case tokens. Lin 2004.
    - chrf: F2 of character n-grams up to six. Popović 2015.
    - squad_exact_match: 1 when both texts have the same tokens in the same order.
    - token_f1: F1 of the tokens that both texts have, each as often as both have it.

    >>> measure_overlap("Paris", "Paris")["bleu"]
    1.0
    >>> round(measure_overlap("in Paris today", "in Paris")["rouge_l"], 2)
    0.8
    >>> round(measure_overlap("The Eiffel Tower, in Paris.", "Paris")["token_f1"], 2)
    0.4
    """
    answer, ground_truth = unify_forms(answer), unify_forms(ground_truth)
    bleu, chrf, tokenize = _load_scorers(bool(_CHINESE.search(answer) or _CHINESE.search(ground_truth)))
    # Lower-case words, and Chinese characters, without punctuation. The tokenizers know the punctuation of ASCII alone.
    words = [
        [
            token.strip("'")
            for token in tokenize(_PUNCTUATION.sub(_spell_mark, text.lower())).split()
            if any(char.isalnum() for char in token)
        ]
        for text in (answer, ground_truth)
    ]
    tokens: list[list[str]] = []
    for text in (answer, ground_truth):
        # The tokens that SQuAD compares; of a text of only articles, such as the answer "A.", these.
        kept = "".join(
            letter
            for letter in text.lower()
            if letter not in string.punctuation and not unicodedata.category(letter).startswith("P")
        )
        spaced = _CHINESE.sub(lambda match: f" {match[0]} ", kept).split()
        tokens.append([word for word in spaced if word not in _ARTICLES] or spaced or text.split())
    n_common = {
        "rouge_l": (LCSseq.similarity(*words), words),
        "token_f1": ((Counter(tokens[0]) & Counter(tokens[1])).total(), tokens),
    }
    f1 = {name: 2 * n / (len(ours) + len(theirs)) if n else 0.0 for name, (n, (ours, theirs)) in n_common.items()}
    # Sums of logarithms are a hair above 100 for equal texts.
    shares = [min(1.0, round(scorer.sentence_score(answer, [ground_truth]).score / 100, 12)) for scorer in (bleu, chrf)]
    return {
        "bleu": shares[0],
        "rouge_l": f1["rouge_l"],
        "chrf": shares[1],
        "squad_exact_match": float(tokens[0] == tokens[1]),
        "token_f1": f1["token_f1"],
    }


def _spell_mark(match: re.Match[str]) -> str:
    """Return a mark beyond ASCII as the one that the tokenizers know, another one of punctuation as a space."""
    mark = match[0]
    if mark in "\u2018\u2019\u02bc":  # apostrophes
        return "'"
    if mark in "\u2010\u2011":  # hyphens
        return "-"
    return " " if unicodedata.category(mark).startswith("P") else mark


@cache
def _load_scorers(is_chinese: bool) -> tuple[BLEU, CHRF, Callable[[str], str]]:
    make: Callable[[], Callable[[str], str]] = TokenizerZh if is_chinese else Tokenizer13a
    return BLEU(effective_order=True, tokenize="zh" if is_chinese else "13a"), CHRF(), make()
