"""The draw: known probabilities, every group represented, estimates right however the strata are weighted."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from statistics import mean

import pytest

from evalhouse.tasks.reviews.export import (
    Item,
    Stratum,
    StratumDraw,
    allocate,
    collect_items,
    draw,
    share_places,
    sort_into_strata,
)
from evalhouse.tasks.reviews.labels import find_label, list_labels

ITEM = Item(
    item_hash="h",
    question_hash="q",
    sample_id="s",
    step="classify",
    statement_id="A1",
    context_rank=None,
    source="answer",
    statement="So.",
    judge_label="TP",
    reason=None,
    n_beside=3,
    votes_differ=False,
    is_reviewed=False,
)


def make_items(n: int, letter: str = "h", **columns: object) -> list[Item]:
    return [replace(ITEM, item_hash=f"{letter}{place}", sample_id=f"{letter}{place}", **columns) for place in range(n)]  # type: ignore[arg-type]


def make_strata(**sizes: int) -> dict[Stratum, list[Item]]:
    return {name: make_items(n, name) for name, n in sizes.items()}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("n", "sizes", "shares"),
    [
        (9, {"a": 50, "b": 50, "c": 50}, {"a": 3, "b": 3, "c": 3}),
        (10, {"a": 50, "b": 2, "c": 50}, {"a": 4, "b": 2, "c": 4}),
        (99, {"a": 5, "b": 2}, {"a": 5, "b": 2}),
        (4, {"a": 9, "b": 9, "c": 9}, {"a": 1, "b": 1, "c": 2}),
        (5, {}, {}),
    ],
)
def test_equal_parts_as_far_as_there_is_something(n: int, sizes: dict[str, int], shares: dict[str, int]) -> None:
    assert share_places(n, sizes) == shares


@pytest.mark.parametrize("share_random", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n", [4, 37, 139, 500])
def test_all_places_are_used_and_no_group_is_without_one(n: int, share_random: float) -> None:
    sizes: dict[Stratum, int] = {"votes": 9, "judges": 30, "gate": 1, "rest": 100}
    places = allocate(sizes, max(n, 8), share_random=share_random)
    assert sum(places.values()) == min(max(n, 8), 140)
    assert all(min(2, sizes[name]) <= n_places <= sizes[name] for name, n_places in places.items())


def test_too_few_places_for_all_groups_are_drawn_from_as_one() -> None:
    drawn = draw(make_strata(votes=5, judges=5, rest=90), 5, share_random=0.5, generator=random.Random(1))
    assert [(one.stratum, one.size, len(one.picks)) for one in drawn] == [("rest", 100, 5)]
    assert {pick.probability for pick in drawn[0].picks} == {0.05}


def draw_often(times: int) -> list[list[StratumDraw]]:
    strata = make_strata(votes=6, judges=20, gate=10, rest=84)
    return [draw(strata, 30, share_random=0.5, generator=random.Random(seed)) for seed in range(times)]


def test_probabilities_are_how_often_items_come() -> None:
    times = 1000
    runs = draw_often(times)
    came = Counter(pick.item.item_hash for run in runs for one in run for pick in one.picks)
    word = {pick.item.item_hash: pick.probability for run in runs for one in run for pick in one.picks}
    assert len(word) == 120, "no item is out of reach"
    for item_hash, probability in word.items():
        # Five standard errors of a share of 1000 draws.
        bound = 5 * (probability * (1 - probability) / times) ** 0.5
        assert came[item_hash] / times == pytest.approx(probability, abs=bound + 1e-9)


def test_weights_make_estimates_right_where_a_plain_mean_is_not() -> None:
    # The judge is wrong on half of the items that are picked more often, and on no others.
    def is_wrong(item_hash: str) -> bool:
        return not item_hash.startswith("rest") and item_hash[-1] in "02468"

    truth = 18 / 120
    weighted, plain = [], []
    for run in draw_often(300):
        picks = [pick for one in run for pick in one.picks]
        weighted.append(sum(is_wrong(pick.item.item_hash) / pick.probability for pick in picks) / 120)
        plain.append(mean(is_wrong(pick.item.item_hash) for pick in picks))
    assert mean(weighted) == pytest.approx(truth, abs=0.007)
    assert mean(plain) > truth + 0.1


def test_the_same_seed_draws_the_same() -> None:
    strata = make_strata(votes=6, rest=84)
    first, again, other = (draw(strata, 20, share_random=0.5, generator=random.Random(seed)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_the_first_group_that_fits() -> None:
    items = [
        replace(ITEM, statement_id="A1", votes_differ=True),
        replace(ITEM, statement_id="A2"),
        replace(ITEM, statement_id="A3", sample_id="moved"),
        replace(ITEM, statement_id="A4", step="attribute", sample_id="moved", judge_label="supported"),
        replace(ITEM, statement_id="A5"),
    ]
    lexical = {("s", "classify", "A1"): "FP", ("s", "classify", "A2"): "FP", ("s", "classify", "A5"): "TP"}
    moved = {("moved", "classify"), ("moved", "attribute_ground_truth")}
    strata = sort_into_strata(items, lexical_labels=lexical, moved=moved)
    found = {name: [item.statement_id for item in same] for name, same in strata.items()}
    assert found == {"votes": ["A1"], "judges": ["A2"], "gate": ["A3"], "rest": ["A4", "A5"]}


def test_in_a_first_run_a_single_verdict_decides() -> None:
    alone, together = replace(ITEM, n_beside=1), replace(ITEM, n_beside=2)
    assert sort_into_strata([alone, together], lexical_labels={}, moved=None) == {"gate": [alone], "rest": [together]}


def test_verdicts_of_one_content_are_one_item() -> None:
    row = {name: getattr(ITEM, name) for name in Item.__dataclass_fields__}
    rows = [row, {**row, "statement_id": "A2", "votes_differ": True, "n_beside": 1}, {**row, "item_hash": "other"}]
    items = collect_items(rows)
    assert [(item.item_hash, item.statement_id, item.votes_differ, item.n_beside) for item in items] == [
        ("h", "A1", True, 1),
        ("other", "A1", False, 3),
    ]


def test_labels_depend_on_the_text_a_statement_is_from() -> None:
    assert list_labels("classify", "answer") == ("TP", "FP")
    assert list_labels("classify", "ground_truth") == ("TP", "FN")
    assert find_label("classify", "ground_truth", "fp") is None
    assert [find_label("rank", None, word) for word in (" Not Useful ", "not-useful", "TP")] == [
        *["not_useful"] * 2,
        None,
    ]
