"""A RAG bot whose retrieval got worse: what its answers lost is told as what retrieval lost."""

from __future__ import annotations

import numpy as np
import pytest

from evalhouse.flows.results.comparison import write_also
from evalhouse.tasks.comparing.changes import (
    INPUTS,
    Flags,
    MetricMoves,
    find_retrieval,
    join_inputs,
    list_inputs,
    split_difference,
)
from evalhouse.warehouse.metric_files import load_metrics

N = 40


def flag(first: int, last: int) -> Flags:
    """True for the samples from first up to and without last."""
    return (np.arange(N) >= first) & (np.arange(N) < last)


def move(metric: str, by: float, there: Flags, verdict: str = "worse") -> MetricMoves:
    rests_on = frozenset(INPUTS[name] for name in list_inputs(load_metrics()[metric].needs))
    return MetricMoves(metric=metric, rests_on=rests_on, moves=np.where(there, by, 0.0), verdict=verdict)


ANSWERS, CONTEXTS = flag(0, 31), flag(3, 33)


def test_an_answer_metric_that_fell_with_its_contexts_is_put_down_to_retrieval() -> None:
    metrics = [move("factual_f1", -0.5, CONTEXTS), move("context_recall", -0.8, CONTEXTS), move("mrr", 0, ANSWERS)]
    (found,) = find_retrieval(metrics, answers=ANSWERS, contexts=CONTEXTS)
    assert (found.metric, found.n_answers, found.n_contexts) == ("factual_f1", 31, 28)
    assert found.value == pytest.approx(-0.5 * 28 / N)
    assert found.difference == pytest.approx(-0.5 * 30 / N)
    assert (found.retrieval_metric, found.retrieval_value) == ("context_recall", pytest.approx(-0.8))
    assert found.describe() == (
        "factual_f1 is worse, and it looks like retrieval: of 31 samples with another answer 28 also had other "
        "contexts, which add -0.350 to the -0.375; context_recall moved by -0.800 on these"
    )


@pytest.mark.parametrize(
    "metrics",
    [
        # Most of the fall is where the contexts are the same.
        [move("factual_f1", -0.5, flag(0, 3)), move("context_recall", -0.8, CONTEXTS)],
        # Retrieval is no worse, or better.
        [move("factual_f1", -0.5, CONTEXTS), move("context_recall", -0.8, CONTEXTS, "undecided")],
        [move("factual_f1", -0.5, CONTEXTS), move("context_recall", 0.8, CONTEXTS, "better")],
        # Retrieval is worse elsewhere.
        [move("factual_f1", -0.5, CONTEXTS), move("context_recall", -0.8, flag(35, 40))],
        # Nothing is known to have moved; and faithfulness rests on the contexts itself.
        [move("factual_f1", -0.5, CONTEXTS, "undecided"), move("context_recall", -0.8, CONTEXTS)],
        [move("faithfulness", -0.5, CONTEXTS), move("context_recall", -0.8, CONTEXTS)],
    ],
)
def test_without_both_nothing_is_said(metrics: list[MetricMoves]) -> None:
    assert list(find_retrieval(metrics, answers=ANSWERS, contexts=CONTEXTS)) == []


def test_a_part_says_what_else_changed_in_its_samples() -> None:
    inputs = join_inputs({"answer": ANSWERS, "contexts": CONTEXTS, "context_ids": flag(0, 1)})
    everywhere = np.ones(N, dtype=bool)
    names = ["answer" if is_changed else "noise" for is_changed in ANSWERS]
    answer, noise = split_difference(
        base=np.ones(N),
        candidate=np.where(ANSWERS, 0.5, 1.0),
        in_base=everywhere,
        in_candidate=everywhere,
        changed=names,
        inputs=inputs,
    )
    assert (answer.n, answer.also) == (31, {"contexts": 29})
    assert write_also(answer.also) == "29 also had other contexts"
    assert (noise.n, noise.also) == (9, {"contexts": 2})
    assert write_also({}) == ""
