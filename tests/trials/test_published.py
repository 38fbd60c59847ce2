"""Published figures of judges: printed beside a subset of LLM-AggreFact that is whole, and beside nothing else."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_process import call_here
from warehouse_runs import lay_warehouse

from evalhouse.tasks.datasets.values import DatasetError
from evalhouse.tasks.trials.label_agreement import explain_published, list_published, load_published
from evalhouse.tasks.trials.labelled import pick_rows, read_labelled


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "test.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def make_rows(n: int, n_supported: int, subset: str = "Wice") -> list[dict[str, Any]]:
    return [
        {
            "dataset": subset,
            "doc": f"The ship Corva {place // 2} lies at berth {place // 2}.",
            "claim": f"The ship Corva {place // 2} lies at berth {place // 2 + (0 if place < n_supported else 500)}.",
            "label": int(place < n_supported),
            "contamination_identifier": "x",
        }
        for place in range(n)
    ]


@pytest.mark.parametrize(
    ("rows", "others", "expected"),
    [
        (make_rows(358, 111), 6, "Published figures: "),
        (
            make_rows(357, 111),
            0,
            "Wice: 357 rows; published figures are for all 358 test rows of it, and are left out.",
        ),
        (make_rows(358, 110), 0, "published figures are for all 358 test rows"),
        (make_rows(12, 6, "Own"), 0, "Own: 12 rows; published figures are for no subset of this name"),
    ],
)
def test_published_figures_are_shown_beside_the_same_rows_only(
    rows: list[dict[str, Any]], others: int, expected: str, tmp_path: Path
) -> None:
    (part,) = read_labelled([write_rows(tmp_path, rows)]).parts
    assert len(list_published(part)) == others
    assert expected in " ".join(explain_published([part]))
    half = pick_rows(part, half="choose", limit=None, seed=0)
    assert list_published(half) == []
    assert len({row.group for row in part.rows}) == (len(rows) + 1) // 2


def test_benchmark_prints_them_with_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lay_warehouse(tmp_path / "evalhouse.duckdb")
    write_rows(tmp_path, make_rows(358, 111))
    measure = partial(call_here, capsys, "benchmark", "--judge", "lexical", "--data", "test.jsonl")
    (measured,) = measure("--json").document["sets"]
    by_judge = {other["who"]: other["figures"] for other in measured["others"]}
    assert by_judge["published: Bespoke-MiniCheck-7B"] == {
        "balanced_accuracy": {"value": 0.819, "ci_low": None, "ci_high": None}
    }
    assert "Published figures: the data file of llm-aggrefact.github.io" in measure().stdout


def test_the_table_has_a_figure_of_every_judge_for_every_subset() -> None:
    (record,) = load_published().values()
    assert sum(record["rows"].values()) == 29_320
    assert all(figures.keys() == record["rows"].keys() for figures in record["judges"].values())
    assert record["supported"].keys() < record["rows"].keys()


def test_subsets_are_separate_sets_and_a_bad_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    rows = [*make_rows(3, 1), *make_rows(2, 1, "RAGTruth")]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    parts = read_labelled([path]).parts
    assert [(part.name, len(part.rows)) for part in parts] == [("Wice", 3), ("RAGTruth", 2)]
    path.write_text(json.dumps(rows[0] | {"label": "yes"}), encoding="utf-8")
    with pytest.raises(DatasetError, match="line 1: LLM-AggreFact has texts in dataset, doc and claim, and the label"):
        read_labelled([path])
