"""Agreement of judge and people: against published examples, the libraries, and what is known of drawn verdicts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest

from evalhouse.tasks.comparing.agreement import (
    Agreement,
    Change,
    balance_accuracy,
    cohen_kappa,
    compare_changes,
    count_coincidences,
    krippendorff_alpha,
    list_moves,
    measure_judge,
    measure_people,
    share_agreeing,
)

# Krippendorff (2011), Computing Krippendorff's Alpha-Reliability, section C: four observers, twelve units, five values.
FOUR_OBSERVERS = (
    (1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None),
    (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3),
    (None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None),
    (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None),
)
# The same, sections A and B: two observers; ten units of two values, twelve units of five.
TWO_VALUES = ((0, 1, 0, 0, 0, 0, 0, 0, 1, 0), (1, 1, 1, 0, 0, 1, 0, 0, 0, 0))
FIVE_VALUES = ("aabbdcccedda", "babbbccceddd")


def library() -> Any:  # noqa: ANN401  # a module without types
    """scikit-learn's metrics: three seconds to import, which only these tests' worker need spend."""
    import sklearn.metrics  # noqa: PLC0415

    return sklearn.metrics


def frame_of(
    judge: Sequence[str],
    *people: Sequence[str | None],
    weight: Sequence[float | None] | None = None,
    samples: Sequence[str] | None = None,
    step: str = "attribute",
) -> pl.DataFrame:
    """One verdict per entry of `judge`; each further list has a reviewer's labels, None for a missing one."""
    rows = [
        {
            "run_id": "r",
            "sample_id": samples[place] if samples else f"s{place}",
            "step": step,
            "statement_id": f"A{place}",
            "context_rank": None,
            "judge_label": written,
            "label": labels[place],
            "reviewer": f"p{number}",
            "weight": weight[place] if weight else 1.0,
            "language": "en",
            "judge": "lexical",
        }
        for place, written in enumerate(judge)
        for number, labels in enumerate(people)
        if labels[place] is not None
    ]
    schema = {"context_rank": pl.Int64, "weight": pl.Float64}
    return pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)


def support(bits: Sequence[object]) -> list[str]:
    return ["supported" if bit else "unsupported" for bit in bits]


def count_values(observers: Sequence[Sequence[object]]) -> np.ndarray:
    values = sorted({str(value) for line in observers for value in line if value is not None})
    units = list(zip(*observers, strict=True))
    return np.array([[sum(str(one) == value for one in unit) for value in values] for unit in units], dtype=float)


def alpha_of(observers: Sequence[Sequence[object]]) -> float:
    counts = count_values(observers)
    pairable = counts[counts.sum(axis=1) > 1]
    return float(krippendorff_alpha(count_coincidences(pairable).sum(axis=0)))


def test_alpha_is_krippendorffs() -> None:
    assert alpha_of(FOUR_OBSERVERS) == pytest.approx(0.743, abs=5e-4)
    assert alpha_of(TWO_VALUES) == pytest.approx(0.095, abs=5e-4)
    assert alpha_of(FIVE_VALUES) == pytest.approx(0.692, abs=5e-4)
    assert np.isnan(alpha_of(((1, 1, 1), (1, 1, 1)))), "nothing varies"


def test_tables_give_what_the_library_gives() -> None:
    rng = np.random.default_rng(0)
    first, weight = rng.integers(0, 3, 200), rng.random(200) + 0.1
    second = np.where(rng.random(200) < 0.7, first, rng.integers(0, 3, 200))
    table = np.zeros((3, 3))
    np.add.at(table, (first, second), weight)
    assert cohen_kappa(table) == pytest.approx(library().cohen_kappa_score(first, second, sample_weight=weight))
    assert balance_accuracy(table) == pytest.approx(
        library().balanced_accuracy_score(second, first, sample_weight=weight)
    )
    assert share_agreeing(table) == pytest.approx(weight[first == second].sum() / weight.sum())


def test_values_and_confusion_of_a_judge() -> None:
    judge = support([1] * 20 + [1] * 5 + [0] * 10 + [0] * 15)
    person = support([1] * 20 + [0] * 5 + [1] * 10 + [0] * 15)
    found = measure_judge(frame_of(judge, person), "attribute")
    assert found.confusion == {
        "supported": {"supported": 20, "unsupported": 5},
        "unsupported": {"supported": 10, "unsupported": 15},
    }
    assert found.accuracy.value == pytest.approx(0.7)
    assert found.balanced_accuracy.value == pytest.approx((20 / 30 + 15 / 20) / 2)
    assert found.kappa.value == pytest.approx(0.4)
    assert found.alpha.value == pytest.approx(alpha_of((judge, person)))
    assert found.notes == ()
    assert (found.n_verdicts, found.n_labels, found.n_samples, found.n_effective) == (50, 50, 50, 50)


def test_weights_make_the_accuracy_that_of_the_run() -> None:
    """900 of 1,000 verdicts are easy, 95 % of these judged rightly; 20 of them and 80 of the others are picked."""
    easy = frame_of(support([1] * 20), support([1] * 19 + [0]), weight=[45.0] * 20)
    hard = frame_of(
        support([1] * 80), support([1] * 40 + [0] * 40), weight=[1.25] * 80, samples=[f"h{n}" for n in range(80)]
    )
    found = measure_judge(pl.concat([easy, hard]), "attribute")
    assert found.accuracy.value == pytest.approx((900 * 0.95 + 100 * 0.5) / 1000)
    assert found.n_effective == pytest.approx(1000**2 / (20 * 45**2 + 80 * 1.25**2))
    assert found.notes[0] == "too few verdicts: 25 by weight of 30"


def test_two_reviewers_share_the_weight_of_a_verdict() -> None:
    judge = support([1] * 20)
    found = measure_judge(frame_of(judge, support([1] * 20), [*support([0] * 10), *[None] * 10]), "attribute")
    # Ten verdicts are right by one of two, ten by the only one.
    assert found.accuracy.value == pytest.approx((10 * 0.5 + 10) / 20)
    assert (found.n_verdicts, found.n_labels, found.n_effective) == (20, 30, 20)


def test_verdicts_that_chance_did_not_pick_are_left_out_beside_those_it_did() -> None:
    frame = frame_of(support([1] * 50), support([1] * 40 + [0] * 10), weight=[1.0] * 40 + [None] * 10)
    found = measure_judge(frame, "attribute")
    assert found.accuracy.value == 1
    assert "10 labels of verdicts that were not picked by chance are left out" in found.notes
    alone = measure_judge(frame.with_columns(weight=pl.lit(None, dtype=pl.Float64)), "attribute")
    assert alone.accuracy.value == pytest.approx(0.8)
    assert alone.notes[0].startswith("not picked by chance")


@pytest.mark.parametrize(("n", "note"), [
    (29, "too few verdicts: 29"),
    (9, "too few samples"),
    (40, "rarely given by people: unsupported 2"),
])  # fmt: skip
def test_small_counts_are_noted(n: int, note: str) -> None:
    found = measure_judge(frame_of(support([1] * n), support([1] * (n - 2) + [0] * 2)), "attribute")
    assert any(text.startswith(note) for text in found.notes)


def test_a_judge_without_a_fault_keeps_a_width() -> None:
    """36 of 36: with a true share below 0.9026 that would be seen in fewer than one case of forty."""
    both = support([1] * 30 + [0] * 6)
    found = measure_judge(frame_of(both, both), "attribute")
    assert (found.accuracy.value, found.accuracy.ci_high) == (1, 1)
    assert found.accuracy.ci_low == pytest.approx(0.025 ** (1 / 36))
    assert (found.kappa.value, found.kappa.ci_low) == (1, None)


def test_one_label_leaves_kappa_and_alpha_undefined() -> None:
    same = support([1] * 40)
    found = measure_judge(frame_of(same, same), "attribute")
    assert (found.kappa.value, found.alpha.value) == (None, None)
    assert "people gave one label only: κ and α are undefined" in found.notes


def test_empty_reviews_leave_figures_undefined() -> None:
    empty = frame_of(support([1]), support([1])).clear()
    assert measure_judge(empty, "attribute").accuracy.value is None
    assert measure_people(empty, "attribute").alpha.value is None


def test_verdicts_of_one_sample_are_drawn_together() -> None:
    """Ten samples of ten verdicts that are all right or all wrong tell as much as ten verdicts."""
    bits = [place // 10 % 2 for place in range(100)]
    judge, person = support([1] * 100), support(bits)
    together = measure_judge(frame_of(judge, person, samples=[f"s{place // 10}" for place in range(100)]), "attribute")
    apart = measure_judge(frame_of(judge, person), "attribute")
    assert width(together) > 2.5 * width(apart)


def width(found: Agreement) -> float:
    assert found.accuracy.ci_low is not None
    assert found.accuracy.ci_high is not None
    return found.accuracy.ci_high - found.accuracy.ci_low


def test_people_with_each_other() -> None:
    first = support([1] * 30 + [0] * 10)
    second = [*support([1] * 25 + [0] * 5 + [0] * 5), *[None] * 5]
    found = measure_people(frame_of(support([1] * 40), first, second), "attribute")
    assert (found.n_verdicts, found.n_labels, found.n_reviewers) == (35, 70, 2)
    assert found.agreeing.value == pytest.approx(30 / 35)
    assert found.alpha.value == pytest.approx(alpha_of((first, second)))
    (pair,) = found.pairs
    assert pair.reviewers == ("p0", "p1")
    assert pair.agreement.kappa.value == pytest.approx(library().cohen_kappa_score(first[:35], second[:35]))


def make_change_frame(
    old: Sequence[bool],
    new: Sequence[bool],
    people: Sequence[bool],
    *,
    step: str = "rank",
) -> pl.DataFrame:
    words = ("useful", "not_useful") if step == "rank" else ("supported", "unsupported")
    n = len(people)

    def say(bits: Sequence[bool]) -> list[str]:
        return [words[0] if bit else words[1] for bit in bits]

    return pl.DataFrame(
        {
            "run_id": ["r"] * n,
            "sample_id": [f"s{place}" for place in range(n)],
            "step": [step] * n,
            "statement_id": [f"i{place}" for place in range(n)],
            "context_rank": pl.Series([None] * n, dtype=pl.Int64),
            "old_label": say(old),
            "new_label": say(new),
            "label": say(people),
            "reviewer": ["ann"] * n,
            "weight": [1.0] * n,
        }
    )


def compare_one(frame: pl.DataFrame) -> Change:
    (change,) = compare_changes(frame)
    return change


def test_better_and_worse_prompts_are_distinguished() -> None:
    people = [place % 2 == 0 for place in range(60)]
    loose = [True] * 60
    better = compare_one(make_change_frame(loose, people, people))
    assert (better.accuracy_old.value, better.accuracy_new.value) == (0.5, 1.0)
    assert better.accuracy_difference.value == pytest.approx(0.5)
    assert (better.n_changed, better.n_better, better.n_worse) == (30, 30, 0)
    assert better.verdict == "better"
    assert (better.kappa_old and better.kappa_old.value, better.kappa_new and better.kappa_new.value) == (0, 1)
    assert compare_one(make_change_frame(people, loose, people)).verdict == "worse"


def test_same_verdicts_are_the_same() -> None:
    people = [True, False] * 20
    change = compare_one(make_change_frame([True] * 40, [True] * 40, people))
    assert (change.verdict, change.n_changed) == ("same", 0)
    cancelled = compare_one(make_change_frame([True] * 40, [False] * 40, people))
    assert (cancelled.n_better, cancelled.n_worse, cancelled.verdict) == (20, 20, "undecided")
    assert (change.accuracy_difference.value, change.accuracy_difference.ci_low) == (0, None)


def test_interval_is_of_the_paired_difference() -> None:
    """Half of all verdicts are wrong before and after: the same ones but for six. Each accuracy is far less known."""
    people = [True] * 100
    old = [place % 2 == 0 for place in range(100)]
    new = [bit or place < 12 for place, bit in enumerate(old)]
    change = compare_one(make_change_frame(old, new, people))
    assert change.accuracy_difference.value == pytest.approx(0.06)
    assert change_width(change.accuracy_difference.ci_low, change.accuracy_difference.ci_high) < 0.11
    assert change_width(change.accuracy_old.ci_low, change.accuracy_old.ci_high) > 0.17
    assert change.verdict == "better"


def change_width(low: float | None, high: float | None) -> float:
    assert low is not None
    assert high is not None
    return high - low


def test_moves_say_what_people_say() -> None:
    frame = make_change_frame([True, True], [False, True], [False, True])
    (move,) = list_moves(frame).to_dicts()
    assert (move["old_label"], move["new_label"], move["people"], move["moved"]) == (
        "useful", "not_useful", ["not_useful"], 1.0,
    )  # fmt: skip


def test_equal_prompts_are_seldom_called_different() -> None:
    """Both prompts are right as often; luck alone differs: 5 %, and the error of so many draws."""
    rng, n_draws = np.random.default_rng(3), 50
    called = 0
    for number in range(n_draws):
        people = [True] * 60
        old, new = (rng.random(60) < 0.8).tolist(), (rng.random(60) < 0.8).tolist()
        (change,) = compare_changes(make_change_frame(old, new, people), seed=number, resamples=400)
        called += change.verdict in ("better", "worse")
    assert called / n_draws <= 0.05 + 2.4 * np.sqrt(0.05 * 0.95 / n_draws)
