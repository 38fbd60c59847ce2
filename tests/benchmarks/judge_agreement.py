"""How far the lexical judge agrees with people: `judge_agreement.py FOLDER [--json] [--half a|b]`.

FOLDER holds one sub-folder per set with a `README.md` that names its `kind: support|correctness|relevance` and a
`dev.jsonl`; every other kind is passed over. Rows by kind:

- support: `statement`, `contexts` [{id, text}], `label` supported | partial | unsupported (others are left out).
  Score: the best support score of any context; verdict: the one that `attribute` gives. Positive: supported.
  `AUC` counts partial as a no, `clear` leaves rows labelled partial out; likewise for correctness.
- correctness: `question`, `ground_truth`, `answer`, `label` correct | partial | incorrect.
  Score: F2 of soft precision and soft recall, i.e. of the mean support scores of the statements that the judge itself
  extracts from the answer and from the ground truth, compared as `classify` compares them; recall weighs twice as much
  because people forgive additions sooner than omissions. Verdict: score >= the judge's threshold. Positive: correct.
  The printed `f1` is the AUC of factual_f1 from the hard verdicts, as the warehouse computes it.
- relevance: `question`, `contexts` [{id, text, grade}], maybe `ground_truth`.
  Score: the usefulness that `rank` thresholds. nDCG = DCG / best DCG over all contexts of a question, DCG = sum of
  grade / log2(rank + 1) with rank from 1, equal scores in the order given; mean over questions with a grade above 0.
  AUC and balanced accuracy are over single contexts. Positive: grade above 0.

The naive judge beside it is the share of the statement's (ground truth's, question's) stemmed words that the text
holds; its verdict is a share of one half or more. `--half` takes one half of the rows by hash of `group`. The weights
of the support score were first fitted on half a; the penalties, every later change, the relevance mix and the F2 above
were picked with both halves in view. So no half is unseen: b beside a shows how far the choices carry over to other
rows of the same sets, not to other sets.
"""

import argparse
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tasks.lexical_relevance import USEFUL_THRESHOLD, rate_contexts
from tasks.lexical_split import split_statements
from tasks.lexical_support import SUPPORT_THRESHOLD, Comparison, compare_statements, score_contexts
from tasks.lexical_words import stem_word

KINDS = ("support", "correctness", "relevance")
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One labelled decision: the judge's and the naive judge's score, and whether people said yes, or `partial`."""

    positive: bool
    score: float
    naive: float
    partial: bool = False
    f1: float | None = None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The figures of one set in one language; n counts decisions, n_questions is only given for relevance.

    `clear_*` is read with the rows labelled partial left out, everything else with partial as a no.
    """

    set: str
    kind: str
    language: str
    n: int
    n_positive: int
    balanced_accuracy: float | None
    auc: float | None
    naive_balanced_accuracy: float | None
    naive_auc: float | None
    clear_auc: float | None
    clear_naive_auc: float | None
    f1_auc: float | None = None
    n_questions: int | None = None
    ndcg: float | None = None
    naive_ndcg: float | None = None


def pick_half(group: str) -> str:
    """`a` or `b`, the same for all rows of a group in all sets."""
    return "ab"[hashlib.sha256(group.encode()).digest()[-1] % 2]


def read_words(text: str) -> set[str]:
    """The naive judge's words: stems of Latin words and numbers, pairs of Chinese characters."""
    words = {stem_word(word) for word in re.findall(r"[a-z0-9]+", text.lower())}
    for run in re.findall(r"[\u3400-\u9fff]+", text):
        words |= {run[i : i + 2] for i in range(max(len(run) - 1, 1))}
    return words


def overlap(wanted: str, text: str) -> float:
    words = read_words(wanted)
    return len(words & read_words(text)) / len(words) if words else 0.0


def compute_auc(positives: Sequence[float], negatives: Sequence[float]) -> float | None:
    """Chance that a positive scores above a negative, ties half; None when one side is empty."""
    if not positives or not negatives:
        return None
    ranked = sorted([(score, True) for score in positives] + [(score, False) for score in negatives])
    rank_sum, i = 0.0, 0
    while i < len(ranked):
        j = i
        while j < len(ranked) and ranked[j][0] == ranked[i][0]:
            j += 1
        rank_sum += (i + j + 1) / 2 * sum(positive for _, positive in ranked[i:j])
        i = j
    n, m = len(positives), len(negatives)
    return (rank_sum - n * (n + 1) / 2) / (n * m)


def compute_balanced_accuracy(yes_of_positives: Sequence[bool], yes_of_negatives: Sequence[bool]) -> float | None:
    if not yes_of_positives or not yes_of_negatives:
        return None
    hit = sum(yes_of_positives) / len(yes_of_positives)
    return (hit + 1 - sum(yes_of_negatives) / len(yes_of_negatives)) / 2


def compute_ndcg(grades: Sequence[float], scores: Sequence[float]) -> float | None:
    """Definition at the top of this file; None when no context has a grade above 0."""
    order = sorted(range(len(grades)), key=lambda i: -scores[i])
    best = sum(grade / math.log2(rank + 1) for rank, grade in enumerate(sorted(grades, reverse=True), 1))
    gained = sum(grades[i] / math.log2(rank + 1) for rank, i in enumerate(order, 1))
    return gained / best if best else None


def judge_support(row: Row) -> Judged | None:
    if row["label"] not in {"supported", "partial", "unsupported"}:
        return None
    texts = [context["text"] for context in row["contexts"]]
    return Judged(
        positive=row["label"] == "supported",
        partial=row["label"] == "partial",
        score=max(one.score for one in score_contexts([row["statement"]], texts, row.get("question") or "")[0]),
        naive=max(overlap(row["statement"], text) for text in texts),
    )


def score_answer(compared: Comparison) -> float:
    """F2 of the soft precision and recall."""
    precision, recall = compared.soft_precision, compared.soft_recall
    return 5 * precision * recall / (4 * precision + recall) if precision and recall else 0.0


def compute_f1(compared: Comparison) -> float:
    """factual_f1 from the verdicts."""
    n_true = sum(support.supported for support in compared.answer)
    n_false = len(compared.answer) - n_true
    n_missed = sum(not support.supported for support in compared.ground_truth)
    return n_true / (n_true + 0.5 * (n_false + n_missed)) if n_true else 0.0


def judge_correctness(row: Row) -> Judged:
    question, answer, truth = row["question"], row["answer"], row["ground_truth"]
    compared = compare_statements(question, split_statements(answer), split_statements(truth))
    return Judged(
        positive=row["label"] == "correct",
        partial=row["label"] == "partial",
        score=score_answer(compared),
        naive=overlap(truth, answer),
        f1=compute_f1(compared),
    )


def read_rows(path: Path, half: str) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row: Row = json.loads(line)
            if half == "all" or pick_half(row["group"]) == half:
                yield row


def measure_decisions(judged: Sequence[Judged], threshold: float) -> dict[str, Any]:
    """The figures that all kinds share."""
    yes = [one for one in judged if one.positive]
    no = [one for one in judged if not one.positive]
    clear = [one for one in no if not one.partial]
    return {
        "n": len(judged),
        "n_positive": len(yes),
        "auc": compute_auc([one.score for one in yes], [one.score for one in no]),
        "naive_auc": compute_auc([one.naive for one in yes], [one.naive for one in no]),
        "clear_auc": compute_auc([one.score for one in yes], [one.score for one in clear]),
        "clear_naive_auc": compute_auc([one.naive for one in yes], [one.naive for one in clear]),
        "balanced_accuracy": compute_balanced_accuracy(
            [one.score >= threshold for one in yes], [one.score >= threshold for one in no]
        ),
        "naive_balanced_accuracy": compute_balanced_accuracy(
            [one.naive >= 0.5 for one in yes], [one.naive >= 0.5 for one in no]
        ),
    }


def measure_rows(rows: Sequence[Row], kind: str) -> dict[str, Any]:
    if kind == "relevance":
        return measure_relevance(rows)
    judge: Callable[[Row], Judged | None] = judge_support if kind == "support" else judge_correctness
    judged = [one for one in map(judge, rows) if one is not None]
    figures = measure_decisions(judged, SUPPORT_THRESHOLD)
    if kind == "correctness":
        f1_yes = [one.f1 for one in judged if one.positive and one.f1 is not None]
        f1_no = [one.f1 for one in judged if not one.positive and one.f1 is not None]
        figures["f1_auc"] = compute_auc(f1_yes, f1_no)
    return figures


def measure_relevance(rows: Sequence[Row]) -> dict[str, Any]:
    judged: list[Judged] = []
    ndcgs: list[float] = []
    naive_ndcgs: list[float] = []
    for row in rows:
        texts = [context["text"] for context in row["contexts"]]
        grades = [float(context["grade"] or 0) for context in row["contexts"]]
        truth = row.get("ground_truth") or ""
        scores = [rated.score for rated in rate_contexts(row["question"], truth, texts)]
        naive = [overlap(f"{row['question']} {truth}", text) for text in texts]
        judged += [Judged(positive=g > 0, score=s, naive=v) for g, s, v in zip(grades, scores, naive, strict=True)]
        ndcg, naive_ndcg = compute_ndcg(grades, scores), compute_ndcg(grades, naive)
        if ndcg is not None and naive_ndcg is not None:
            ndcgs.append(ndcg)
            naive_ndcgs.append(naive_ndcg)
    figures = measure_decisions(judged, USEFUL_THRESHOLD)
    n = len(ndcgs)
    means = {"ndcg": sum(ndcgs) / n, "naive_ndcg": sum(naive_ndcgs) / n} if n else {}
    return figures | {"n_questions": n} | means


def read_kind(readme: Path) -> str | None:
    """The first of KINDS on the `kind:` line of a set's description."""
    found = re.search(r"^- kind:\s*([\w+]+)", readme.read_text(encoding="utf-8"), re.MULTILINE)
    return next((kind for kind in (found[1].split("+") if found else ()) if kind in KINDS), None)


def measure_folder(folder: Path, half: str) -> list[Agreement]:
    """One Agreement per set of a known kind and language, in order of name."""
    measured: list[Agreement] = []
    for readme in sorted(folder.glob("*/README.md")):
        kind, data = read_kind(readme), readme.with_name("dev.jsonl")
        if kind is None or not data.exists():
            continue
        rows = list(read_rows(data, half))
        for language in sorted({row["lang"] for row in rows}):
            figures = measure_rows([row for row in rows if row["lang"] == language], kind)
            measured.append(Agreement(set=readme.parent.name, kind=kind, language=language, **figures))
    return measured


def _show(value: float | None) -> str:
    return "  –  " if value is None else f"{value:.3f}"


def print_table(measured: Sequence[Agreement]) -> None:
    print(f"{'set':30s} {'kind':11s} lang     n   yes  bal.acc naive    AUC naive  clear naive  f1 AUC   nDCG naive")
    for one in measured:
        print(
            f"{one.set:30s} {one.kind:11s} {one.language:4s} {one.n:5d} {one.n_positive:5d}"
            f"    {_show(one.balanced_accuracy)} {_show(one.naive_balanced_accuracy)}"
            f"  {_show(one.auc)} {_show(one.naive_auc)}"
            f"  {_show(one.clear_auc)} {_show(one.clear_naive_auc)}   {_show(one.f1_auc)}"
            f"  {_show(one.ndcg)} {_show(one.naive_ndcg)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Agreement of the lexical judge with human labels.")
    parser.add_argument("folder", type=Path, help="a folder of sets, each with README.md and dev.jsonl")
    parser.add_argument("--half", choices=("a", "b", "all"), default="all", help="rows by hash of their group")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is no folder; give one that holds a folder for each set")
    measured = measure_folder(options.folder, options.half)
    if not measured:
        parser.error(f"{options.folder} holds no set of kind {', '.join(KINDS)} with README.md and dev.jsonl")
    if options.json:
        print(json.dumps([asdict(one) for one in measured], indent=2))
    else:
        print_table(measured)


if __name__ == "__main__":
    main()
