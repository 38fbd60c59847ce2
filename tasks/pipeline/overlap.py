"""Text overlap of an answer with its ground truth, without a judge: bleu, rouge_l, chrf, exact_match.

The formulas and tokenizers are sacrebleu's, the longest common subsequence is rapidfuzz's. A pair with Chinese in it is
split with sacrebleu's Chinese tokenizer (each character a token, words of other scripts whole), any other as mteval-13a
does. Values are shares from 0 to 1, where sacrebleu itself speaks of 0 to 100.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache

from rapidfuzz.distance import LCSseq
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

KINDS = ("bleu", "rouge_l", "chrf", "exact_match")
_CHINESE = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def measure_overlap(answer: str, ground_truth: str) -> Mapping[str, float]:
    """All four by name, each from 0 to 1.

    - bleu: sentence BLEU of up to four words, orders the shorter text is too short for left out, exponential smoothing
      (sacrebleu's `effective_order`). Papineni et al. 2002; Post 2018.
    - rouge_l: F1 of the longest common subsequence of lower-case tokens. Lin 2004.
    - chrf: F2 of character n-grams up to six. Popović 2015.
    - exact_match: 1 when both texts are equal but for white space around and between words.

    >>> measure_overlap("Paris", "Paris")["bleu"]
    1.0
    >>> round(measure_overlap("in Paris today", "in Paris")["rouge_l"], 2)
    0.8
    """
    is_chinese = bool(_CHINESE.search(answer) or _CHINESE.search(ground_truth))
    return {
        "bleu": _share(_bleu(is_chinese).sentence_score(answer, [ground_truth]).score),
        "rouge_l": _rouge_l(_split(answer, is_chinese=is_chinese), _split(ground_truth, is_chinese=is_chinese)),
        "chrf": _share(_chrf().sentence_score(answer, [ground_truth]).score),
        "exact_match": float(answer.split() == ground_truth.split()),
    }


def _share(percent: float) -> float:
    # Sums of logarithms come out a hair above 100 for equal texts.
    return min(1.0, round(percent / 100, 12))


def _rouge_l(answer: list[str], truth: list[str]) -> float:
    common = LCSseq.similarity(answer, truth)
    return 2 * common / (len(answer) + len(truth)) if common else 0.0


def _split(text: str, *, is_chinese: bool) -> list[str]:
    """Lower-case words, and Chinese characters; punctuation is no word."""
    tokens = _tokenizer(is_chinese)(text.lower()).split()
    return [token for token in tokens if any(char.isalnum() for char in token)]


@cache
def _tokenizer(is_chinese: bool) -> Callable[[str], str]:
    make: Callable[[], Callable[[str], str]] = TokenizerZh if is_chinese else Tokenizer13a
    return make()


@cache
def _bleu(is_chinese: bool) -> BLEU:
    return BLEU(effective_order=True, tokenize="zh" if is_chinese else "13a")


@cache
def _chrf() -> CHRF:
    return CHRF()
