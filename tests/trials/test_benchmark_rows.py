"""Labelled rows as `benchmark` reads them: which kind a set is, what is refused, and which rows are drawn."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmark_data import STRANGE, N, make_correctness, make_relevance, make_support, write_set, write_sets
from cli_process import call_here
from warehouse_runs import lay_warehouse

from evalhouse.tasks.datasets.values import DatasetError
from evalhouse.tasks.trials.label_agreement import explain_published, list_published, load_published
from evalhouse.tasks.trials.labelled import Part, pick_half, pick_rows, read_labelled


def read_one(folder: Path) -> Part:
    (part,) = read_labelled([folder]).parts
    return part


def test_the_kind_of_a_set_shows_in_its_columns(tmp_path: Path) -> None:
    found = read_labelled([write_sets(tmp_path)])
    kinds = {(part.name, part.language): part.kind for part in found.parts}
    assert kinds == {
        ("harbour_support", "en"): "support",
        ("harbour_support", "zh"): "support",
        ("harbour_correctness", "en"): "correctness",
        ("harbour_relevance", "en"): "relevance",
        ("harbour_decomposition", "en"): "decomposition",
        ("harbour_rubric", "en"): "rubric",
        ("harbour_pairwise", "en"): "pairwise",
    }
    assert found.passed_over == ()


def test_a_label_of_another_kind_leaves_its_row_out(tmp_path: Path) -> None:
    part = read_one(write_set(tmp_path / "s", make_support()))
    assert (len(part.rows), part.n_left_out) == (N + 1, 1)


def test_only_rows_of_a_language_are_taken_when_one_is_named(tmp_path: Path) -> None:
    folder = write_sets(tmp_path)
    (part,) = read_labelled([folder], language="zh").parts
    assert (part.name, part.language, len(part.rows)) == ("harbour_support", "zh", N)
    rows = [{key: value for key, value in row.items() if key != "lang"} for row in make_correctness()]
    without_language = write_set(tmp_path / "plain", rows)
    assert {part.language for part in read_labelled([without_language]).parts} == {"en"}
    assert {part.language for part in read_labelled([without_language], language="zh").parts} == {"zh"}


def test_a_set_may_be_named_by_its_folder_or_its_file_and_have_several_files(tmp_path: Path) -> None:
    rows = make_correctness()
    folder = write_set(tmp_path / "answers", rows[:4])
    write_set(folder, rows[4:], "test.jsonl")
    assert (read_one(folder).name, len(read_one(folder).rows)) == ("answers", N)
    assert (read_one(folder / "dev.jsonl").name, len(read_one(folder / "dev.jsonl").rows)) == ("answers", 4)
    assert read_one(folder / "test.jsonl").name == "test"


def test_sets_of_other_kinds_are_passed_over_in_a_folder_and_refused_by_name(tmp_path: Path) -> None:
    write_sets(tmp_path / "all", {"tools": STRANGE, "answers": make_correctness()})
    found = read_labelled([tmp_path / "all"])
    assert [part.name for part in found.parts] == ["answers"]
    assert found.passed_over == ("tools (columns accepted_calls, functions, id, question)",)
    with pytest.raises(DatasetError) as refused:
        read_labelled([tmp_path / "all" / "tools"])
    message = str(refused.value)
    assert "columns accepted_calls, functions, id, question" in message
    assert "support has statement, contexts, label" in message
    assert "pairwise has question, ground_truth, answer_a, answer_b, preference" in message


def test_nothing_to_judge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="does not exist"):
        read_labelled([tmp_path / "missing"])
    with pytest.raises(DatasetError, match="holds no labelled set"):
        read_labelled([tmp_path])
    write_sets(tmp_path, {"tools": STRANGE})
    with pytest.raises(DatasetError, match=r"holds no labelled set; passed over: tools"):
        read_labelled([tmp_path])
    answers = write_set(tmp_path / "answers", make_correctness())
    with pytest.raises(DatasetError, match="holds no labelled set in zh"):
        read_labelled([answers], language="zh")
    with pytest.raises(DatasetError, match="two sets are called answers"):
        read_labelled([answers, write_set(tmp_path / "more" / "answers", make_correctness())])


def test_every_problem_of_a_set_is_reported_with_its_line(tmp_path: Path) -> None:
    rows = make_support()
    rows[0] |= {"statement": " "}
    rows[1] |= {"contexts": []}
    rows[2] |= {"lang": "fr"}
    rows[3] |= {"id": rows[4]["id"]}
    with pytest.raises(DatasetError) as refused:
        read_labelled([write_set(tmp_path / "s", rows)])
    message = str(refused.value)
    assert "s, taken for support" in message
    assert "dev.jsonl line 1: statement is ' ', allowed: a text" in message
    assert "dev.jsonl line 2: contexts is [], allowed: a list of texts" in message
    assert "dev.jsonl line 3: lang is 'fr', allowed: en, zh" in message
    assert "dev.jsonl line 5: id 's5' came before" in message


@pytest.mark.parametrize(("column", "value", "message"), [
    ("contexts", [{"id": "0", "text": "x", "grade": "high"}], "has the grade 'high', allowed: a number"),
    ("contexts", ["no grade"], "has the grade 'nothing', allowed: a number"),
    ("grade_scale", 2, "grade_scale is 2, allowed: a text"),
])  # fmt: skip
def test_grades_are_numbers(tmp_path: Path, column: str, value: object, message: str) -> None:
    rows = make_relevance()
    rows[0] |= {column: value}
    with pytest.raises(DatasetError) as refused:
        read_labelled([write_set(tmp_path / "r", rows)])
    assert message in str(refused.value)


def test_halves_are_by_group_and_make_the_whole(tmp_path: Path) -> None:
    part = read_one(write_set(tmp_path / "answers", make_correctness(40)))
    chosen, reported = (pick_rows(part, half=half, limit=None, seed=0) for half in ("choose", "report"))
    assert chosen.rows
    assert reported.rows
    assert {row.id for row in chosen.rows} | {row.id for row in reported.rows} == {row.id for row in part.rows}
    assert not {row.group for row in chosen.rows} & {row.group for row in reported.rows}
    assert all(pick_half(row.group) == "choose" for row in chosen.rows)


def test_a_limit_draws_the_same_rows_for_a_seed_and_keeps_their_order(tmp_path: Path) -> None:
    part = read_one(write_set(tmp_path / "answers", make_correctness(40)))
    drawn = [row.id for row in pick_rows(part, half="all", limit=10, seed=1).rows]
    assert len(drawn) == 10
    assert drawn == [row.id for row in pick_rows(part, half="all", limit=10, seed=1).rows]
    assert drawn != [row.id for row in pick_rows(part, half="all", limit=10, seed=2).rows]
    assert drawn == [row.id for row in part.rows if row.id in set(drawn)]
    # More rows are those and others: what was paid for is asked about again.
    assert set(drawn) < {row.id for row in pick_rows(part, half="all", limit=20, seed=1).rows}


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


@pytest.mark.parametrize(("rows", "others", "expected"), [
    (make_rows(358, 111), 6, "Published figures: "),
    (make_rows(357, 111), 0, "Wice: 357 rows; published figures are for all 358 test rows of it, and are left out."),
    (make_rows(358, 110), 0, "published figures are for all 358 test rows"),
    (make_rows(12, 6, "Own"), 0, "Own: 12 rows; published figures are for no subset of this name"),
])  # fmt: skip
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
