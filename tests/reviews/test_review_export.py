"""`evalhouse review export`: the picked items, their record, the files, and refused exports."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cli_house import House
from cli_process import Finished, call_here
from review_rows import (
    ATTACK,
    REASON,
    VERDICTS_OF_SAMPLE,
    add_rows,
    add_run,
    build_warehouse,
    change,
    make_run,
    make_sample,
)

from evalhouse.tasks.reviews.export import collect_items, label_lexically
from evalhouse.warehouse.rows.reviews import fetch_items, fetch_statements, fetch_texts
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.steps import REVIEWED_PROMPTS
from evalhouse.warehouse.store import Warehouse

Call = Callable[..., Any]

N_ITEMS = 11 * (VERDICTS_OF_SAMPLE - 1) + 8
"""One sentence is in both texts of a sample and is asked about once; the attack is an answer of one statement."""


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    warehouse = build_warehouse(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALHOUSE_WAREHOUSE", str(warehouse.location.path))
    return warehouse


@pytest.fixture
def export(warehouse: Warehouse, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls the command; gives its document with --json."""

    def call(*arguments: str) -> Any:  # noqa: ANN401  # a document, or how it ended
        finished = call_here(capsys, "review", "export", "r1", *arguments)
        return finished.document if "--json" in arguments and finished.status == 0 else finished

    return call


def read_picks(warehouse: Warehouse) -> list[dict[str, Any]]:
    return warehouse.read_rows("from review_picks")


def test_what_is_picked_is_on_record_with_its_probability(warehouse: Warehouse, export: Call) -> None:
    result = export("-n", "30", "--seed", "4", "--json")
    picks = read_picks(warehouse)
    assert {pick["export_id"] for pick in picks} == {result["export_id"]}
    assert len(picks) == result["n_picked"] == 30
    assert result["n_items"] == N_ITEMS
    assert Counter(pick["step"] for pick in picks) == {"classify": 10, "attribute": 10, "rank": 10}
    assert len({pick["item_hash"] for pick in picks}) == 30
    for group in result["groups"]:
        same = [p for p in picks if (p["step"], p["stratum"]) == (group["step"], group["stratum"])]
        assert len(same) == group["picked"]
        assert {pick["probability"] for pick in same} == {group["picked"] / group["size"]}
    assert sum(group["size"] for group in result["groups"]) == N_ITEMS
    known = {(row["item_hash"], row["judge_label"]) for row in warehouse.read_rows("from review_items")}
    assert {(pick["item_hash"], pick["judge_label"]) for pick in picks} <= known


def test_the_lexical_judge_and_votes_point_at_verdicts(warehouse: Warehouse, export: Call) -> None:
    vote = {"run_id": "r1", "sample_id": "s05", "step": "rank", "item_id": "C1", "vote": 1, "verdict": "not_useful"}
    add_rows(warehouse, "votes", vote | {"agrees": False})
    change(warehouse, "update classifications set label = 'FP' where sample_id = 's07' and statement_id = 'A1'")
    result = export("-n", "1000", "--json")
    groups = {(group["step"], group["stratum"]): group for group in result["groups"]}
    assert groups["rank", "votes"]["size"] == groups["rank", "votes"]["picked"] == 1
    picks = {
        (pick["sample_id"], pick["step"], pick["statement_id"] or pick["context_rank"]): pick
        for pick in read_picks(warehouse)
    }
    assert picks["s07", "classify", "A1"]["stratum"] == "judges"
    assert picks["s05", "rank", 1]["stratum"] == "votes"


def test_the_lexical_judge_does_not_disagree_with_the_steps_that_are_its_own(
    warehouse: Warehouse, export: Call
) -> None:
    change(warehouse, "update classifications set label = 'FP' where statement_id = 'A1'")
    change(warehouse, "update attributions set supported = not supported, context_ranks = []")

    def find_disputed(judge: str) -> set[str]:
        change(warehouse, f"update runs set judge = '{judge}'")
        groups = export("-n", "99", "--json")["groups"]
        return {group["step"] for group in groups if group["stratum"] == "judges"}

    assert find_disputed("openai:m") >= {"attribute", "classify"}
    assert find_disputed("lexical,attribute=openai:m") == {"attribute"}
    assert find_disputed("openai:m,attribute=lexical") == find_disputed("openai:m") - {"attribute"}


def test_moved_scores_point_at_verdicts(warehouse: Warehouse, export: Call) -> None:
    change(warehouse, "update runs set judge = 'lexical'")
    insert_run(warehouse, make_run("r0", 0))
    for run_id, value in (("r0", 1.0), ("r1", 0.5)):
        for sample_id, here in (("s01", value), ("s02", 1.0)):
            sql = "insert into scores (run_id, sample_id, metric, value, metric_version) values (?, ?, ?, ?, '1')"
            change(warehouse, sql, run_id, sample_id, "faithfulness", here)
    result = export("-n", "1000", "--json")
    gate = [group for group in result["groups"] if group["stratum"] == "gate"]
    assert [(group["step"], group["size"]) for group in gate] == [("attribute", 2)]
    picks = [pick for pick in read_picks(warehouse) if pick["stratum"] == "gate"]
    assert {(pick["sample_id"], pick["statement_id"]) for pick in picks} == {("s01", "A1"), ("s01", "A2")}
    assert not any(group["stratum"] == "judges" for group in result["groups"]), "a judge agrees with itself"


def test_more_than_there_is_takes_all_and_says_so(warehouse: Warehouse, export: Call) -> None:
    finished = export("-n", "1000")
    assert f"-n 1000 is more than there is: all {N_ITEMS} are in it" in finished.stdout
    picks = read_picks(warehouse)
    assert len(picks) == N_ITEMS
    assert {pick["probability"] for pick in picks} == {1.0}


def label_some(warehouse: Warehouse, export: Call, capsys: pytest.CaptureFixture[str], n: int) -> list[str]:
    """Export and label `n` verdicts; gives their hashes."""
    result = export("-n", str(n), "-o", f"labels-{n}.jsonl", "--json")
    rows = [json.loads(line) for line in Path(result["file"]).read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["label"] = row["labels"].split(" or ")[0]
    Path("filled.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert call_here(capsys, "review", "import", "filled.jsonl", "--reviewer", "Ann").status == 0
    return [row["item_hash"] for row in rows]


def test_labelled_items_are_left_out_with_probability_one(
    warehouse: Warehouse, export: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(label_some(warehouse, export, capsys, 30))
    result = export("-n", "20", "--json")
    assert (result["n_items"], result["n_reviewed_before"]) == (N_ITEMS - 30, 30)
    picks = [pick for pick in read_picks(warehouse) if pick["export_id"] == result["export_id"]]
    asked = {pick["item_hash"] for pick in picks if pick["asked"]}
    assert len(asked) == 20
    assert not asked & before
    rest = [pick for pick in picks if not pick["asked"]]
    assert {(pick["stratum"], pick["probability"]) for pick in rest} == {("reviewed", 1.0)}
    assert {pick["item_hash"] for pick in rest} == before
    # Weighted, asked and known together are all there is.
    assert sum(1 / pick["probability"] for pick in picks) == pytest.approx(N_ITEMS)


def test_again_asks_about_all(warehouse: Warehouse, export: Call, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(label_some(warehouse, export, capsys, 1000))
    finished = export("-n", "10")
    assert finished.status == 2
    assert f"all {N_ITEMS} verdicts of run r1 have been reviewed; --again" in finished.stderr
    result = export("-n", "10", "--again", "--json")
    asked = [p for p in read_picks(warehouse) if p["export_id"] == result["export_id"] and p["asked"]]
    assert len(asked) == 10
    assert {pick["item_hash"] for pick in asked} <= before
    assert {(pick["stratum"], pick["probability"]) for pick in asked} == {("reviewed", 1.0)}


def read_table(path: Path) -> list[dict[str, str]]:
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))


def test_files_hold_the_question_and_not_the_judges_verdict(warehouse: Warehouse, export: Call) -> None:
    export("-n", "1000", "-o", "v.csv", "--reviewer", "Ann")
    rows = read_table(Path("v.csv"))
    assert len(rows) == N_ITEMS
    assert REASON not in Path("v.csv").read_text(encoding="utf-8")
    assert {row["label"] for row in rows} == {""}
    assert {row["reviewer"] for row in rows} == {"Ann"}
    by_place = {(row["sample_id"], row["step"], row["statement_id"] or row["context_rank"]): row for row in rows}
    sample = make_sample(2)
    answer = by_place["s02", "classify", "A2"]
    assert (answer["labels"], answer["statement"]) == ("TP or FP", "Keeper 2 lives on the island.")
    assert (answer["ground_truth"], answer["answer"], answer["contexts"]) == (sample["ground_truth"], "", "")
    truth = by_place["s02", "classify", "G2"]
    assert (truth["labels"], truth["answer"], truth["ground_truth"]) == ("TP or FN", sample["answer"], "")
    support = by_place["s02", "attribute", "A2"]
    assert support["contexts"] == "\n\n".join(f"[C{n}] {text}" for n, text in enumerate(sample["contexts"], start=1))
    assert (support["answer"], support["ground_truth"]) == ("", "")
    rank = by_place["s02", "rank", "2"]
    assert (rank["context"], rank["ground_truth"]) == (sample["contexts"][1], sample["ground_truth"])
    attack = by_place["s03", "rank", "1"]
    assert attack["question"] == f"'=1+1 {ATTACK}", "a spreadsheet would take it for a formula"


def add_accepted(warehouse: Warehouse, run_id: str, others: list[str], counted: str) -> dict[str, Any]:
    """A run of one sample with several accepted answers, of which `counted` counts, and two turns; gives the sample."""
    accepted = [make_sample(1)["ground_truth"], *others]
    turns = [
        {"role": "user", "text": "Which lighthouses are there?"},
        {"role": "assistant", "text": f"By {run_id}: 1."},
    ]
    sample = make_sample(
        1,
        metadata=json.dumps({"ground_truths": accepted}),
        conversation=json.dumps(turns if "turn" in run_id else None),
    )
    add_run(warehouse, make_run(run_id, 2), [sample])
    row = {"run_id": run_id, "sample_id": "s01", "kind": "accepted_answer", "value": 1.0, "text": counted}
    add_rows(warehouse, "similarities", row)
    return sample


def test_several_accepted_answers_and_turns_are_shown_as_they_were_judged(
    warehouse: Warehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = add_accepted(warehouse, "turn1", ["It is a dwarf.", "It is 31 metres."], "It is 31 metres.")
    assert call_here(capsys, "review", "export", "turn1", "-n", "50", "-o", "v.jsonl").status == 0
    rows = [json.loads(line) for line in Path("v.jsonl").read_text(encoding="utf-8").splitlines()]
    by_place = {(row["step"], row["statement_id"] or row["context_rank"]): row for row in rows}
    assert by_place["classify", "A1"]["ground_truth"] == "It is 31 metres."
    assert by_place["rank", 1]["ground_truth"] == f"{sample['ground_truth']}\nIt is a dwarf.\nIt is 31 metres."
    assert {row["conversation"] for row in rows} == {"user: Which lighthouses are there?\nassistant: By turn1: 1."}


def test_a_label_counts_only_against_the_same_accepted_answers_and_turns(warehouse: Warehouse) -> None:
    high, low = "It is 31 metres.", "It is a dwarf."
    add_accepted(warehouse, "one", [low, high], high)
    add_accepted(warehouse, "same", [low, high], high)
    add_accepted(warehouse, "counted", [low, high], low)
    add_accepted(warehouse, "listed", [high], high)
    add_accepted(warehouse, "turn1", [low, high], high)
    add_accepted(warehouse, "turn2", [low, high], high)

    def find_shared(run_id: str, like: str = "one") -> set[str]:
        base, rows = (fetch_items(warehouse, run, REVIEWED_PROMPTS) for run in (like, run_id))
        known = {row["item_hash"] for row in base}
        return {f"{row['step']} {row['source']}" for row in rows if row["item_hash"] in known}

    every = {"classify answer", "classify ground_truth", "attribute answer", "attribute ground_truth", "rank None"}
    assert find_shared("same") == every
    assert find_shared("counted") == every - {"classify answer"}
    assert find_shared("listed") == every - {"rank None"}
    # The contexts alone are to support the ground truth, as in context_recall.
    assert find_shared("turn1") == find_shared("turn2", like="turn1") == {"attribute ground_truth"}


def test_support_by_earlier_turns_counts_as_in_the_metrics(warehouse: Warehouse) -> None:
    """The corrected mean of context_recall was that of faithfulness."""
    add_accepted(warehouse, "turn1", [], "")
    change(
        warehouse, "update attributions set supported = true, context_ranks = [], joint_ranks = [], turn_ranks = [2]"
    )
    rows = fetch_items(warehouse, "turn1", ["attribute"])
    labels = {row["statement_id"]: row["judge_label"] for row in rows}
    assert labels == {"A1": "supported", "A2": "supported", "G1": "unsupported", "G2": "unsupported"}


def test_labels_from_before_turns_and_other_accepted_answers_counted_keep_their_items(warehouse: Warehouse) -> None:
    sample = add_accepted(warehouse, "turn1", ["It is a dwarf."], "It is a dwarf.")
    digest = lambda *texts: hashlib.sha256(" ".join(texts).encode()).hexdigest()  # noqa: E731
    question, truth = digest(sample["question"]), digest(sample["ground_truth"])
    former = {
        ("classify", "A1", None): ("classify answer", "Lighthouse 1 is 31 metres high.", truth),
        ("rank", None, 1): ("rank", sample["contexts"][0], truth),
    }
    for (step, statement, rank), (kind, text, against) in former.items():
        item_hash = digest(kind, question, digest(text), against)
        key = {"run_id": "turn1", "sample_id": "s01", "step": step, "statement_id": statement, "context_rank": rank}
        drawn = {"export_id": "e", "judge_label": "TP", "stratum": "rest", "probability": 1.0, "asked": True}
        pick = key | drawn | {"item_hash": item_hash, "question_hash": question, "picked_at": datetime(2026, 11, 2)}
        add_rows(warehouse, "review_picks", pick)
        found = [row for row in fetch_items(warehouse, "turn1", [step]) if row["item_hash"] == item_hash]
        assert [(row["statement_id"], row["context_rank"]) for row in found] == [(statement, rank)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "rank,score"), "--steps is 'rank,score'; it must name some of classify, attribute, rank"),
        (("--steps", ","), "it must name some of"),
        (("-n", "2"), "-n 2 is less than one verdict for each of classify, attribute, rank; name fewer --steps"),
        (("-o", "v.xlsx"), "v.xlsx ends in .xlsx; name a file in html, csv, jsonl"),
        (("--with-verdicts",), "the page shows a verdict once the person has decided"),
        (("-o", "there.csv"), "there.csv exists and may hold labels"),
        (("-o", "no/such/folder.csv"), "no/such/folder.csv: No such file or directory"),
    ],
)
def test_wishes_that_cannot_be_met(
    warehouse: Warehouse, export: Call, arguments: tuple[str, ...], message: str
) -> None:
    Path("there.csv").write_text("other labels")
    finished: Finished = export(*arguments)
    assert finished.status == 2
    assert message in finished.stderr
    assert Path("there.csv").read_text() == "other labels"


def test_runs_that_cannot_be_reviewed(warehouse: Warehouse, capsys: pytest.CaptureFixture[str]) -> None:
    insert_run(warehouse, make_run("busy", 2, status="running"))
    insert_run(warehouse, make_run("empty", 3))
    add_run(warehouse, make_run("partly", 4, status="incomplete"), [make_sample(1)])
    change(warehouse, "delete from context_verdicts where run_id = 'partly'")

    def tell(*arguments: str) -> str:
        return call_here(capsys, "review", "export", *arguments).stderr

    assert "run busy is not finished" in tell("busy")
    assert "run empty has no verdict of classify, attribute, rank to review" in tell("empty")
    assert "run partly has no verdict of rank" in tell("partly", "--steps", "rank,classify")
    assert "run partly is incomplete" in tell("partly", "--steps", "classify")
    assert "no run fits 'r9'" in tell("r9")
    assert len({pick["run_id"] for pick in read_picks(warehouse)}) == 1


def test_the_lexical_judge_is_asked_as_a_run_asks_it(house: House) -> None:
    """The judge repeats every verdict of its run, except statements labelled by rule."""
    store = Warehouse(str(house.path))
    rows = fetch_items(store, house.run_id, REVIEWED_PROMPTS)
    sample_ids = {row["sample_id"] for row in rows}
    texts = fetch_texts(store, house.run_id, sample_ids)
    found = label_lexically(texts, fetch_statements(store, house.run_id, sample_ids), REVIEWED_PROMPTS)
    judged = {item.verdict_key: item.judge_label for item in collect_items(rows)}
    assert {key: found[key] for key in judged} == judged
    assert {key[1] for key in judged} == set(REVIEWED_PROMPTS)
