"""Labels found by content: what makes two verdicts the same question to a person, and whose word counts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from review_rows import VERDICTS_OF_SAMPLE, add_rows, add_run, build_warehouse, change, make_run, make_sample

from evalhouse.warehouse.store import Warehouse

NOON = datetime(2026, 2, 1, 12)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return build_warehouse(tmp_path, n_samples=2)


def read_items(warehouse: Warehouse, run_id: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Rows of review_items by sample, step and statement or rank."""
    rows = warehouse.read_rows("from review_items where run_id = $run_id", {"run_id": run_id})
    return {(row["sample_id"], row["step"], row["statement_id"] or f"C{row['context_rank']}"): row for row in rows}  # type: ignore[misc]


def add_label(warehouse: Warehouse, item: dict[str, Any], label: str, **columns: object) -> None:
    names = ("run_id", "sample_id", "step", "statement_id", "context_rank", "item_hash", "question_hash", "judge_label")
    row = {name: item[name] for name in names}
    given = {"label": label, "reviewer": "Ann", "reviewed_at": NOON, "imported_at": NOON}
    add_rows(warehouse, "reviews", row | given | columns)


def add_pick(warehouse: Warehouse, item: dict[str, Any], export_id: str, **columns: object) -> None:
    names = ("run_id", "sample_id", "step", "statement_id", "context_rank", "item_hash", "question_hash", "judge_label")
    row = {name: item[name] for name in names}
    add_rows(warehouse, "review_picks", row | {"export_id": export_id, "asked": True, "picked_at": NOON} | columns)


def read_reviewed(warehouse: Warehouse, run_id: str) -> list[dict[str, Any]]:
    return warehouse.read_rows(
        "from reviewed_verdicts where run_id = $run_id order by sample_id, step, statement_id, reviewer",
        {"run_id": run_id},
    )


def test_every_verdict_is_an_item_in_the_judges_words(warehouse: Warehouse) -> None:
    items = read_items(warehouse, "r1")
    assert len(items) == 2 * VERDICTS_OF_SAMPLE
    assert len({item["item_hash"] for item in items.values()}) == 2 * VERDICTS_OF_SAMPLE - 2
    same = {items["s01", "attribute", statement]["item_hash"] for statement in ("A1", "G1")}
    assert len(same) == 1, "one sentence in both texts is one question about the contexts"
    assert items["s01", "classify", "A1"]["item_hash"] != items["s01", "classify", "G1"]["item_hash"]
    labels = {key[1:]: item["judge_label"] for key, item in items.items() if key[0] == "s01"}
    assert labels["classify", "A2"] == "FP"
    assert labels["classify", "G2"] == "FN"
    assert labels["attribute", "A2"] == "unsupported"
    assert labels["rank", "C1"] == "useful"
    assert labels["rank", "C2"] == "not_useful"


ALL = {(step, f"{letter}{n}") for step in ("classify", "attribute") for letter in "AG" for n in (1, 2)} | {
    ("rank", "C1"),
    ("rank", "C2"),
}


CHANGES: tuple[tuple[dict[str, Any], set[tuple[str, str]]], ...] = (
    ({}, ALL),
    ({"question": "Another question?"}, set()),
    # The second statement of the answer differs, and so does the text that the ground truth's are compared with.
    (
        {"answer": "Lighthouse 1 is 31 metres high. It is red."},
        ALL - {("classify", "A2"), ("attribute", "A2"), ("classify", "G1"), ("classify", "G2")},
    ),
    (
        {"ground_truth": "Lighthouse 1 is 31 metres high. It is red."},
        {("classify", "G1"), *(("attribute", name) for name in ("A1", "A2", "G1"))},
    ),
    (
        {"contexts": ["Lighthouse 1 was built 31 metres high.", "Another gull."]},
        {(step, name) for step, name in ALL if step == "classify"} | {("rank", "C1")},
    ),
    # Two contexts in one are not two contexts.
    (
        {"contexts": ["Lighthouse 1 was built 31 metres high. Gull 1 nests on the pier."]},
        {(step, name) for step, name in ALL if step == "classify"},
    ),
)


def test_what_is_judged_and_all_it_is_judged_against_make_an_item(warehouse: Warehouse) -> None:
    """Verdicts of a sample keep their hash in a second run, where the texts have these differences."""
    others = [make_sample(1, sample_id=f"v{number}", **texts) for number, (texts, _) in enumerate(CHANGES)]
    add_run(warehouse, make_run("r2", 2), others)
    before, after = read_items(warehouse, "r1"), read_items(warehouse, "r2")
    hashes = {key[1:]: item["item_hash"] for key, item in before.items() if key[0] == "s01"}
    same: dict[str, set[tuple[str, str]]] = {f"v{number}": set() for number in range(len(CHANGES))}
    for (sample_id, *place), item in after.items():
        if hashes.get(tuple(place)) == item["item_hash"]:  # type: ignore[call-overload]  # step and name
            same[sample_id].add(tuple(place))  # type: ignore[arg-type]
    assert same == {f"v{number}": expected for number, (_, expected) in enumerate(CHANGES)}


def test_a_context_keeps_its_label_at_another_rank(warehouse: Warehouse) -> None:
    add_label(warehouse, read_items(warehouse, "r1")["s01", "rank", "C2"], "useful")
    turned = list(reversed(make_sample(1)["contexts"]))
    add_run(warehouse, make_run("r2", 2), [make_sample(1, contexts=turned)])
    (found,) = read_reviewed(warehouse, "r2")
    assert (found["context_rank"], found["judge_label"], found["label"]) == (1, "useful", "useful")


def test_a_later_run_uses_the_label_again(warehouse: Warehouse) -> None:
    add_label(warehouse, read_items(warehouse, "r1")["s01", "classify", "A2"], "TP", note="look again")
    add_run(warehouse, make_run("r2", 2), [make_sample(1, sample_id="renamed")])
    (found,) = read_reviewed(warehouse, "r2")
    assert (found["sample_id"], found["statement_id"]) == ("renamed", "A2")
    assert (found["judge_label"], found["label"], found["reviewer"]) == ("FP", "TP", "Ann")
    assert (found["review_run_id"], found["probability"], found["stratum"]) == ("r1", None, None)
    change(warehouse, "update classifications set label = 'TP' where run_id = 'r2' and statement_id = 'A2'")
    assert read_reviewed(warehouse, "r2")[0]["judge_label"] == "TP"
    assert read_reviewed(warehouse, "r1")[0]["judge_label"] == "FP"


def test_of_each_reviewer_the_latest_label_counts(warehouse: Warehouse) -> None:
    item = read_items(warehouse, "r1")["s01", "classify", "A1"]
    add_label(warehouse, item, "FP", reviewed_at=datetime(2026, 2, 3))
    add_label(warehouse, item, "TP", reviewed_at=datetime(2026, 2, 2))
    add_label(warehouse, item, "TP", reviewer="Bo", first_label="FP")
    found = read_reviewed(warehouse, "r1")
    assert [(row["reviewer"], row["label"], row["first_label"]) for row in found] == [
        ("Ann", "FP", None),
        ("Bo", "TP", "FP"),
    ]


def test_the_design_is_that_of_the_last_answered_export_of_the_run(warehouse: Warehouse) -> None:
    items = read_items(warehouse, "r1")
    one, two = items["s01", "classify", "A1"], items["s01", "classify", "A2"]
    add_pick(warehouse, one, "first", stratum="rest", probability=0.1)
    add_label(warehouse, one, "TP", export_id="first")
    # The second export has no answers yet: it changes nothing.
    later = datetime(2026, 2, 2)
    add_pick(warehouse, one, "second", stratum="reviewed", probability=1.0, asked=False, picked_at=later)
    add_pick(warehouse, two, "second", stratum="votes", probability=0.5, picked_at=later)
    assert [(row["stratum"], row["probability"]) for row in read_reviewed(warehouse, "r1")] == [("rest", 0.1)]
    add_label(warehouse, two, "FP", export_id="second")
    designs = [(row["stratum"], row["probability"]) for row in read_reviewed(warehouse, "r1")]
    assert designs == [("reviewed", 1.0), ("votes", 0.5)]
    # An export of another run has no say in this one, and what it alone has asked counts where there is nothing nearer.
    add_run(warehouse, make_run("r2", 2), [make_sample(1)])
    other = read_items(warehouse, "r2")["s01", "classify", "A1"]
    add_pick(warehouse, other, "third", stratum="gate", probability=0.9, picked_at=datetime(2026, 2, 3))
    add_label(warehouse, other, "TP", export_id="third", reviewed_at=datetime(2026, 2, 3))
    assert [row["stratum"] for row in read_reviewed(warehouse, "r1")] == ["reviewed", "votes"]
    assert [(row["stratum"], row["review_run_id"]) for row in read_reviewed(warehouse, "r2")] == [
        ("gate", "r2"),
        ("votes", "r1"),
    ]
