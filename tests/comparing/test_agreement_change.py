"""Before and after: what changed in agreement with people, and whether that is more than chance."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from evalhouse.tasks.comparing.agreement import ALL_STEPS, Change, compare_changes, list_moves


def frame_of(
    old: Sequence[bool],
    new: Sequence[bool],
    people: Sequence[bool],
    *,
    step: str = "rank",
    per_sample: int = 1,
    reviewer: str = "ann",
    weight: Sequence[float] | float = 1.0,
) -> pl.DataFrame:
    words = ("useful", "not_useful") if step == "rank" else ("supported", "unsupported")
    n = len(people)

    def say(bits: Sequence[bool]) -> list[str]:
        return [words[0] if bit else words[1] for bit in bits]

    return pl.DataFrame(
        {
            "run_id": ["r"] * n,
            "sample_id": [f"s{place // per_sample}" for place in range(n)],
            "step": [step] * n,
            "statement_id": [f"i{place}" for place in range(n)],
            "context_rank": pl.Series([None] * n, dtype=pl.Int64),
            "old_label": say(old),
            "new_label": say(new),
            "label": say(people),
            "reviewer": [reviewer] * n,
            "weight": [weight] * n if isinstance(weight, float) else weight,
        }
    )


def compare_one(frame: pl.DataFrame) -> Change:
    (change,) = compare_changes(frame)
    return change


def test_better_words_are_told_from_worse_ones() -> None:
    people = [place % 2 == 0 for place in range(60)]
    loose = [True] * 60
    better = compare_one(frame_of(loose, people, people))
    assert (better.accuracy_old.value, better.accuracy_new.value) == (0.5, 1.0)
    assert better.accuracy_difference.value == pytest.approx(0.5)
    assert (better.n_changed, better.n_better, better.n_worse) == (30, 30, 0)
    assert better.verdict == "better"
    assert (better.kappa_old and better.kappa_old.value, better.kappa_new and better.kappa_new.value) == (0, 1)
    assert compare_one(frame_of(people, loose, people)).verdict == "worse"


def test_same_verdicts_are_the_same() -> None:
    people = [True, False] * 20
    change = compare_one(frame_of([True] * 40, [True] * 40, people))
    assert (change.verdict, change.n_changed) == ("same", 0)
    assert (change.accuracy_difference.value, change.accuracy_difference.ci_low) == (0, None)


def test_changes_that_cancel_out_are_undecided() -> None:
    people = [True, False] * 20
    change = compare_one(frame_of([True] * 40, [False] * 40, people))
    assert (change.n_better, change.n_worse, change.verdict) == (20, 20, "undecided")
    assert change.accuracy_difference.ci_low is not None
    assert change.accuracy_difference.ci_low < 0 < (change.accuracy_difference.ci_high or 0)


def test_interval_is_of_the_paired_difference() -> None:
    """Half of all verdicts are wrong before and after: the same ones but for six. Each accuracy is far less known."""
    people = [True] * 100
    old = [place % 2 == 0 for place in range(100)]
    new = [bit or place < 12 for place, bit in enumerate(old)]
    change = compare_one(frame_of(old, new, people))
    assert change.accuracy_difference.value == pytest.approx(0.06)
    assert width(change.accuracy_difference.ci_low, change.accuracy_difference.ci_high) < 0.11
    assert width(change.accuracy_old.ci_low, change.accuracy_old.ci_high) > 0.17
    assert change.verdict == "better"


def width(low: float | None, high: float | None) -> float:
    assert low is not None
    assert high is not None
    return high - low


def test_verdicts_of_one_sample_are_drawn_together() -> None:
    people = [True] * 60
    old = [place % 20 < 10 for place in range(60)]
    apart = compare_one(frame_of(old, people, people))
    together = compare_one(frame_of(old, people, people, per_sample=10))
    assert width(together.accuracy_difference.ci_low, together.accuracy_difference.ci_high) > 1.5 * width(
        apart.accuracy_difference.ci_low, apart.accuracy_difference.ci_high
    )
    assert "too few samples: 6 of 10" in together.notes


def test_weights_and_reviewers_count_as_they_do_for_agreement() -> None:
    people = [True] * 40
    old, new = [True] * 20 + [False] * 20, [True] * 40
    weights = [3.0] * 20 + [1.0] * 20
    frame = frame_of(old, new, people, weight=weights)
    assert compare_one(frame).accuracy_old.value == pytest.approx(0.75)
    both = pl.concat([frame, frame_of(old, new, [False] * 40, weight=weights, reviewer="bob")])
    change = compare_one(both)
    assert change.n_verdicts == 40
    assert change.accuracy_old.value == pytest.approx(0.5)
    assert (change.n_changed, change.n_better, change.n_worse) == (20, 0, 0)


def test_several_steps_have_a_row_each_and_one_for_all_without_kappa() -> None:
    people = [True, False] * 20
    first = frame_of([True] * 40, people, people)
    second = frame_of(people, people, people, step="attribute")
    changes = compare_changes(pl.concat([first, second]))
    assert [change.step for change in changes] == ["attribute", "rank", ALL_STEPS]
    assert changes[-1].accuracy_old.value == pytest.approx(0.75)
    assert changes[-1].accuracy_new.value == 1
    assert changes[-1].kappa_difference is None


def test_moves_say_what_people_say() -> None:
    frame = frame_of([True, True], [False, True], [False, True])
    (move,) = list_moves(frame).to_dicts()
    assert (move["old_label"], move["new_label"], move["people"], move["moved"]) == (
        "useful", "not_useful", ["not_useful"], 1.0,
    )  # fmt: skip


def test_nothing_to_compare_is_an_empty_list() -> None:
    assert compare_changes(frame_of([True], [True], [True]).clear()) == []


@pytest.mark.parametrize("n_draws", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_luck_is_called_a_difference_about_as_seldom_as_it_says(n_draws: int) -> None:
    """Both words are right as often; what differs is luck: 5 %, and what so many draws may be off by."""
    rng = np.random.default_rng(3)
    called = 0
    for number in range(n_draws):
        people = [True] * 60
        old, new = (rng.random(60) < 0.8).tolist(), (rng.random(60) < 0.8).tolist()
        (change,) = compare_changes(frame_of(old, new, people), seed=number, resamples=400)
        called += change.verdict in ("better", "worse")
    assert called / n_draws <= 0.05 + 2.4 * np.sqrt(0.05 * 0.95 / n_draws)
