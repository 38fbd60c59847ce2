"""`evalhouse review import`: every line is checked before any is written, nothing is lost, nothing comes twice."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, Place, call_here
from review_rows import add_run, build_warehouse, change, make_run, make_sample

from evalhouse.warehouse.store import Warehouse

Rows = list[dict[str, Any]]
Call = Callable[..., Finished]


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    warehouse = build_warehouse(tmp_path, n_samples=3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALHOUSE_WAREHOUSE", str(warehouse.location.path))
    return warehouse


@pytest.fixture
def call(warehouse: Warehouse, capsys: pytest.CaptureFixture[str]) -> Call:
    return lambda *arguments: call_here(capsys, "review", *arguments)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a warehouse and everything in it exported to a file of this name, each but once."""

    @cache
    def export_all(name: str) -> Path:
        place = Place(folder=tmp_path_factory.mktemp("export"))
        build_warehouse(place.folder, n_samples=3)
        finished = place.call("review", "export", "r1", "-n", "1000", "-o", name, "--warehouse", "reviewed.duckdb")
        assert finished.status == 0, finished.stderr
        return place.folder

    return export_all


@pytest.fixture
def exported(warehouse: Warehouse, export: Callable[[str], Path]) -> Rows:
    """The rows of an export of everything, to label: the label yes is first in `labels`."""
    folder = export("all.jsonl")
    shutil.copy(folder / "reviewed.duckdb", warehouse.location.path)
    return read_lines(folder / "all.jsonl")


def read_lines(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def write_lines(rows: Sequence[Mapping[str, Any]], name: str = "labels.jsonl") -> str:
    Path(name).write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    return name


def write_table(rows: Sequence[Mapping[str, Any]], name: str, delimiter: str, encoding: str = "utf-8") -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    Path(name).write_bytes(text.getvalue().encode(encoding))
    return name


def label(row: Mapping[str, Any], place: int = 0, **changes: object) -> dict[str, Any]:
    return {**row, "label": row["labels"].split(" or ")[place], "reviewer": "Ann", **changes}


def read_reviews(warehouse: Warehouse) -> Rows:
    return warehouse.read_rows("from reviews order by reviewed_at, imported_at, item_hash")


def pick(rows: Rows, step: str, sample_id: str = "s01", statement_id: str | None = None) -> dict[str, Any]:
    return next(
        row
        for row in rows
        if (row["step"], row["sample_id"]) == (step, sample_id) and statement_id in (None, row["statement_id"])
    )


def test_labels_come_in_with_all_that_is_known_of_them(warehouse: Warehouse, call: Call, exported: Rows) -> None:
    changes = {"first_label": "TP", "reviewed_at": "2026-03-01T10:00:00+02:00", "note": "灯塔", "stratum": "mine"}
    row = label(pick(exported, "classify", statement_id="A2"), 1, **changes, probability=0.001)
    finished = call("import", write_lines([row]))
    assert finished.status == 0, finished.stderr
    (found,) = read_reviews(warehouse)
    (picked,) = warehouse.read_rows("from review_picks where item_hash = $item_hash", {"item_hash": row["item_hash"]})
    same = ("export_id", "run_id", "sample_id", "step", "statement_id", "item_hash", "question_hash", "judge_label",
            "stratum", "probability")  # fmt: skip
    assert {name: found[name] for name in same} == {name: picked[name] for name in same}
    assert (found["label"], found["first_label"], found["reviewer"], found["note"]) == ("FP", "TP", "Ann", "灯塔")
    assert str(found["reviewed_at"]) == "2026-03-01 08:00:00"
    assert "1 new label, 0 stored before, 0 lines without one" in finished.stdout


def test_new_agreeing_and_differing_labels_are_counted(call: Call, exported: Rows) -> None:
    ranks = [label(row) for row in exported if row["step"] == "rank" and row["sample_id"] != "s03"]
    unlabelled = [row for row in exported if row["step"] == "attribute"]
    result = call("import", write_lines([*ranks, *unlabelled]), "--json").document
    assert result == {
        "new": 4,
        "known": 0,
        "unlabelled": len(unlabelled),
        "agree": 2,
        "differ": 2,
        "groups": [{"step": "rank", "reviewer": "Ann", "new": 4, "agree": 2, "differ": 2}],
    }


@pytest.mark.parametrize(("delimiter", "encoding"), [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "utf-8")])
def test_a_table_that_went_through_a_spreadsheet(
    warehouse: Warehouse, call: Call, export: Callable[[str], Path], delimiter: str, encoding: str
) -> None:
    folder = export("v.csv")
    shutil.copy(folder / "reviewed.duckdb", warehouse.location.path)
    with (folder / "v.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[:7]:
        row["label"] = f" {row['labels'].split(' or ')[0].replace('_', ' ').upper()} "
    name = write_table(rows, "back.csv", delimiter, encoding)
    result = call("import", name, "--reviewer", "Ann", "--json").document
    assert (result["new"], result["unlabelled"]) == (7, len(rows) - 7)
    assert {row["reviewer"] for row in read_reviews(warehouse)} == {"Ann"}
    assert {row["item_hash"] for row in read_reviews(warehouse)} == {row["item_hash"] for row in rows[:7]}


def test_a_later_download_adds_what_is_new_in_it_and_the_same_file_nothing(
    warehouse: Warehouse, call: Call, exported: Rows
) -> None:
    timed = [label(row, reviewed_at=f"2026-03-01T10:00:{n:02}Z") for n, row in enumerate(exported[:8])]
    untimed = [{**row, "reviewed_at": None} for row in timed]  # is known when it is the reviewer's latest word
    for name, rows, new, known in (
        ("five.jsonl", timed[:5], 5, 0), ("five.jsonl", timed[:5], 0, 5), ("eight.jsonl", timed, 3, 5),
        ("untimed.jsonl", untimed, 0, 8), ("others.jsonl", [label(row) for row in exported[8:11]], 3, 0),
        ("others.jsonl", [label(row) for row in exported[8:11]], 0, 3),
    ):  # fmt: skip
        result = call("import", write_lines(rows, name), "--json").document
        assert (result["new"], result["known"]) == (new, known), name
    assert len(read_reviews(warehouse)) == 11


def test_changed_label_and_second_reviewer_are_separate_rows(warehouse: Warehouse, call: Call, exported: Rows) -> None:
    row = pick(exported, "classify", statement_id="A1")
    call("import", write_lines([label(row, 0)], "one.jsonl"))
    call("import", write_lines([label(row, 1)], "two.jsonl"))
    call("import", write_lines([label(row, 0, reviewer="Bo")], "three.jsonl"))
    assert [(one["reviewer"], one["label"]) for one in read_reviews(warehouse)] == [
        ("Ann", "TP"),
        ("Ann", "FP"),
        ("Bo", "TP"),
    ]
    counted = warehouse.read_rows("select reviewer, label from reviewed_verdicts where run_id = 'r1' order by all")
    assert counted == [{"reviewer": "Ann", "label": "FP"}, {"reviewer": "Bo", "label": "TP"}]
    # A file from before does not turn the mind back.
    call("import", "one.jsonl")
    assert len(read_reviews(warehouse)) == 3


def test_labels_that_no_export_has_asked_for(warehouse: Warehouse, call: Call) -> None:
    key = {"run_id": "r1", "sample_id": "s01", "label": "supported"}
    name = write_table(
        [
            {**key, "step": "attribute", "statement_id": "A1", "context_rank": ""},
            {**key, "step": "rank", "statement_id": "", "context_rank": "2", "label": "useful"},
        ],
        "elsewhere.csv",
        ",",
    )
    assert call("import", name, "--reviewer", "crowd").status == 0
    found = read_reviews(warehouse)
    assert {(row["step"], row["judge_label"], row["probability"], row["export_id"]) for row in found} == {
        ("attribute", "supported", None, None),
        ("rank", "not_useful", None, None),
    }


def test_labels_by_name_have_the_design_of_the_export_that_asked(
    warehouse: Warehouse, call: Call, exported: Rows
) -> None:
    row = label(pick(exported, "rank"))
    del row["export_id"], row["item_hash"]
    assert call("import", write_lines([row])).status == 0
    (found,) = read_reviews(warehouse)
    assert (found["probability"], found["export_id"]) == (1.0, exported[0]["export_id"])


def test_what_was_shown_is_what_was_labelled(warehouse: Warehouse, call: Call, exported: Rows) -> None:
    """A resumed run may have another statement under the same id."""
    row = label(pick(exported, "classify", statement_id="A2"))
    change(warehouse, "update statements set text = 'Another.' where sample_id = 's01' and statement_id = 'A2'")
    assert call("import", write_lines([row])).status == 0
    assert warehouse.read_rows("from reviewed_verdicts where run_id = 'r1'") == []
    by_name = {name: value for name, value in row.items() if name != "export_id"}
    finished = call("import", write_lines([by_name], "by-name.jsonl"))
    assert "the labelled text is not the run's" in finished.stderr
    add_run(warehouse, make_run("r2", 2), [make_sample(1)])
    assert len(warehouse.read_rows("from reviewed_verdicts where run_id = 'r2'")) == 1


def test_all_problems_in_one_message_and_nothing_written(warehouse: Warehouse, call: Call, exported: Rows) -> None:
    good = pick(exported, "rank")
    key = {"run_id": "r1", "sample_id": "s01", "reviewer": "Ann", "label": "TP"}
    rows: list[tuple[Any, str]] = [
        (label(good), ""),
        (label(good, 1), "'Ann' has labelled this in bad.jsonl line 1 already; keep one"),
        (label(good, label="TP", reviewer="Bo"), "label is 'TP'; for rank on"),
        (label(good, first_label="maybe", reviewer="Cy"), "first_label is 'maybe'"),
        ({**label(good), "reviewer": " "}, "has no reviewer; fill in the column, or give --reviewer NAME"),
        (label(good, export_id="20200101-000000-aaaa"), "export 20200101-000000-aaaa is not in this warehouse"),
        (label(good, item_hash="f" * 64), "item ffffffffffff… is not one of export"),
        (label(good, reviewed_at="yesterday", reviewer="Di"), "reviewed_at is 'yesterday'; write it like"),
        (label(good, reviewed_at="2999-01-01", reviewer="Ed"), "which is in the future"),
        ({**key, "step": "classify"}, "does not name its verdict; name it by export_id and item_hash, or"),
        ({**key, "step": "score", "statement_id": "A1"}, "step is 'score'; it must be one of classify, attribute"),
        ({**key, "step": "classify", "statement_id": "A9"}, "run r1 has no verdict of classify on A9 of sample 's01'"),
        ({**key, "run_id": "r9", "step": "classify", "statement_id": "A1"}, "run r9 is not in this warehouse"),
        ({**key, "step": "classify", "statement_id": "G1", "label": "FP"}, "must be TP or FN"),
    ]
    name = write_lines([row for row, _ in rows], "bad.jsonl")
    with Path(name).open("a", encoding="utf-8") as file:
        file.write("{broken\n[1]\n")
    finished = call("import", name)
    assert finished.status == 2
    assert read_reviews(warehouse) == []
    result = finished.stderr.splitlines()
    expected = [message for _, message in rows[1:]]
    assert result[0] == f"Error: nothing was imported: {len(expected) + 2} problems"
    for number, message in enumerate(expected, start=2):
        assert any(line.startswith(f"  bad.jsonl line {number}: ") and message in line for line in result), message
    assert any("bad.jsonl line 15: is not valid JSON" in line for line in result)
    assert any("bad.jsonl line 16: is not a JSON object" in line for line in result)


def test_line_numbers_count_lines_and_not_rows(call: Call, exported: Rows) -> None:
    assert "gone.jsonl: No such file or directory" in call("import", "gone.jsonl").stderr
    long = {"note": "two\nlines", "contexts": "long " * 100_000}
    rows = [label(pick(exported, "rank")) | long, label(exported[1], label="?")]
    finished = call("import", write_table(rows, "v.csv", ","))
    assert "v.csv line 4: label is '?'" in finished.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("page.html", b"<!doctype html>", "is the page itself; import the .jsonl file that its Download button writes"),
        ("empty.csv", b" \n", "empty.csv is empty"),
        ("old.csv", "label\nnützlich".encode("latin-1"), "is not UTF-8 (byte 7); save it as CSV UTF-8"),
        ("other.csv", b"name,verdict\nx,y\n", "has no column label; it has name, verdict"),
        ("wide.csv", b"label,run_id\nTP,r1,more\n", "wide.csv line 2: has 3 cells, but there are 2 columns"),
        ("quote.csv", b'label,run_id\n"TP,"r1\n', "does not name its verdict"),
    ],
)
def test_files_that_hold_no_labels(call: Call, name: str, content: bytes, message: str) -> None:
    Path(name).write_bytes(content)
    finished = call("import", name)
    assert finished.status == 2
    assert message in finished.stderr


def test_a_device_is_not_read_to_its_end(call: Call) -> None:
    finished = call("import", "/dev/zero")
    assert finished.status == 2
    assert "/dev/zero is a device, not a file of labels" in finished.stderr
