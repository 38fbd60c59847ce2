"""fact_lists: the statements behind the factual scores as lists, for readers who know a run by its label and link."""

from typing import Any

import duckdb
import pytest
from rows import Row, Sample, add_samples, fill, open_rows, read, score

FACTUAL = ("factual_precision", "factual_recall", "factual_f1")
NAMED: Row = {"label": "night 7", "href": "https://example.org/c/7", "tags": ["a", "b"]}


def read_lists(
    *samples: Sample, metrics: tuple[str, ...] = FACTUAL, run: Row | None = None
) -> dict[object, dict[str, Any]]:
    """The rows of the view by sample, with the scores that the metrics' own SQL gives."""
    with open_rows() as con:
        fill(con, "runs", {"run_id": "r", **(run or {})})
        add_samples(con, *samples)
        for metric in metrics:
            add_scores(con, metric)
        return {row["sample_id"]: row for row in read(con, "from fact_lists where run_id = 'r'")}


def add_scores(con: duckdb.DuckDBPyConnection, metric: str) -> None:
    for sample_id, found in score(con, metric).items():
        key = {"run_id": "r", "sample_id": sample_id, "metric": metric}
        fill(con, "scores", {**key, "value": found.value, "unscored_reason": found.unscored_reason})


def test_statements_are_listed_by_label_with_the_scores_that_follow_from_them() -> None:
    rows = read_lists(
        Sample(answer=["TP", "FP", "TP"], ground_truth=["FN", "TP", "FN"]),
        Sample(sample_id="twelve", answer=["TP"] * 12, ground_truth=["TP"]),
        Sample(sample_id="silent", ground_truth=["FN", "FN"]),
        run=NAMED,
    )
    row = rows["s"]
    # A ground-truth statement that was found does not count as a second TP.
    assert row["tp"] == ["Statement A1.", "Statement A3."]
    assert row["fp"] == ["Statement A2."]
    assert row["fn"] == ["Statement G1.", "Statement G3."]
    assert (row["n_tp"], row["n_fp"], row["n_fn"]) == (2, 1, 2)
    assert row["factual_precision"] == pytest.approx(2 / 3)
    assert row["factual_recall"] == pytest.approx(2 / 4)
    assert row["factual_f1"] == pytest.approx(2 / (2 + 0.5 * (1 + 2)))
    assert {name: row[name] for name in ("run_id", *NAMED)} == {"run_id": "r", **NAMED}
    # A10 comes after A9 and not after A1.
    assert rows["twelve"]["tp"] == [f"Statement A{n}." for n in range(1, 13)]
    silent = rows["silent"]
    assert (silent["tp"], silent["fp"], silent["fn"]) == ([], [], ["Statement G1.", "Statement G2."])
    assert (silent["factual_precision"], silent["factual_recall"], silent["factual_f1"]) == (None, 0, 0)


def test_nothing_listed_is_not_the_same_as_nothing_classified() -> None:
    rows = read_lists(
        Sample(sample_id="all right", answer=["TP"], ground_truth=["TP"]),
        Sample(sample_id="no answer", reasons={"classify": "no_answer"}),
        Sample(sample_id="broken", answer=["TP"], ground_truth=["FN"], reasons={"classify": "judge_failed"}),
        Sample(sample_id="stopped", missing=["classify"]),
    )
    shown = {name: (row["tp"], row["fp"], row["n_fn"], row["reason"]) for name, row in rows.items()}
    assert shown == {
        "all right": (["Statement A1."], [], 0, None),
        "no answer": (None, None, None, "no_answer"),
        "broken": (None, None, None, "judge_failed"),
        "stopped": (None, None, None, "cancelled"),
    }
    assert [rows["broken"][metric] for metric in FACTUAL] == [None] * 3
    without = read_lists(Sample(answer=["TP"], ground_truth=["TP"]), metrics=())["s"]
    assert (without["tp"], without["factual_f1"]) == (["Statement A1."], None)
