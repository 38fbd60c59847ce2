"""The view earlier_support and its causes: the earlier content of the knowledge base, and updates of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from rows import Sample, Together, add_stated, add_stated_runs, fill, open_rows, read

HELD = Sample(
    answer=["TP", "TP"],
    ground_truth=["TP", "TP"],
    answer_support=[[1], [2]],
    ground_truth_support=[[1], [2]],
    useful=[True, True],
    contexts=["Of ships.", "Of lamps."],
    context_ids=["ships.md#1", "lamps.md#2"],
)
TWICE = replace(
    HELD,
    ground_truth_support=[[1], [2, 3]],
    contexts=["Of ships.", "Of lamps.", "Of oil."],
    context_ids=["ships.md#1", "lamps.md#2", "oil.md"],
)
LOST = replace(
    HELD,
    answer=["TP"],
    answer_support=[[1]],
    ground_truth=["TP", "FN"],
    ground_truth_support=[[1], []],
    contexts=["Of ships.", "Of tides."],
    context_ids=["ships.md#1", "tides.md#1"],
)
FOUND = "1 of 2: G2; retrieved for it in run night 0, lamps.md#2"


@dataclass(frozen=True, kw_only=True)
class Night:
    """One run of a series: its sample, and what is set in its row of `runs`."""

    sample: Sample = LOST
    row: Mapping[str, Any] = field(default_factory=dict)


def make_update(version: str | None, *changed: str) -> Mapping[str, Any]:
    """The columns of a run that answers an update of the knowledge base."""
    return {"trigger": "event", "kb_name": "handbook", "kb_version": version, "kb_changed": list(changed) or None}


def diagnose_last(*histories: tuple[Night, ...]) -> list[dict[str, Any]]:
    """The cause that the sample has in the last run of each of these histories, which are separate series."""
    runs: dict[str, Sample] = {}
    with open_rows() as con:
        for place, nights in enumerate(histories):
            rows = []
            for n, night in enumerate(nights):
                run_id = f"{place}: night {n}"
                row = {"run_id": run_id, "suite": "shop", "started_at": datetime(2026, 1, 1) + timedelta(days=n)}
                row |= night.row
                rows.append(row | {"suite": f"{place}: {row['suite']}"})
                runs[run_id] = night.sample
            fill(con, "runs", *rows)
        add_stated_runs(con, {run_id: [sample] for run_id, sample in runs.items()})
        con.execute("update statements set text = replace(text, 'G2', 'g2 ') where run_id like '%: night 0'")
        con.execute("update statements set text = lower(text) || '  ' where run_id not like '%: night 0'")
        con.execute("update statements set text = replace(text, 'g2', 'g2 ') where run_id not like '%: night 0'")
        found = {row["run_id"]: row for row in read(con, "from sample_causes")}
    last = [found[f"{place}: night {len(nights) - 1}"] for place, nights in enumerate(histories)]
    return [
        row | {"evidence": row["evidence"].replace(f"run {place}: night", "run night")}
        for place, row in enumerate(last)
    ]


BEFORE = Night(sample=HELD)
TOGETHER = Night(sample=replace(HELD, ground_truth_support=[[1], Together((1, 2))]))
UNCHANGED = ("retrieval_missed", "retrieved_before", FOUND)
CHANGED = "1 of 2: G2; lamps.md supported it in run night 0, and version v2 (run night 1) changed it"
OUTDATED = ("ground_truth_outdated", "truth_outdated", CHANGED)
UNKNOWN = ("not_in_contexts", "nowhere", "1 of 2: G2")
HISTORIES = {
    "the run before held it": ((BEFORE, Night()), UNCHANGED),
    "a run long before held it": ((BEFORE, *[Night()] * 29, Night()), UNCHANGED),
    "a run beyond the limit held it": ((BEFORE, *[Night()] * 30, Night()), UNKNOWN),
    "no run ever held it": ((Night(), Night()), UNKNOWN),
    "another suite held it": ((replace(BEFORE, row={"suite": "other"}), Night()), UNKNOWN),
    "another judge found it": ((replace(BEFORE, row={"judge": "openai:m"}), Night()), UNKNOWN),
    "another language found it": ((replace(BEFORE, row={"language": "zh"}), Night()), UNKNOWN),
    "another purpose found it": ((replace(BEFORE, row={"kind": "noise"}), Night()), UNKNOWN),
    "an update changed its document": ((BEFORE, Night(row=make_update("v2", "tides.md", "lamps.md"))), OUTDATED),
    "an earlier update did": ((BEFORE, Night(row=make_update("v2", "lamps.md")), Night()), OUTDATED),
    "the update came before it was held": ((Night(), Night(row=make_update("v2", "lamps.md"), sample=HELD), Night()),
     ("retrieval_missed", "retrieved_before", FOUND.replace("night 0", "night 1"))),
    "an update changed another document": ((BEFORE, Night(row=make_update("v2", "lamp", "lamps.mdx"))), UNCHANGED),
    "an update did not say what it changed": ((BEFORE, Night(row=make_update("v2")), Night()), UNKNOWN),
    "an update without a version changed it": ((BEFORE, Night(row=make_update(None, "lamps.md#2"))),
     (*OUTDATED[:2], "1 of 2: G2; lamps.md#2 supported it in run night 0, and an update (run night 1) changed it")),
    "the same version was announced again": (
     (Night(sample=HELD, row=make_update("v2")), Night(row=make_update("v2", "lamps.md"))), UNCHANGED),
    "its contexts have no ids": ((Night(sample=replace(HELD, context_ids=None)), Night()),
     (*UNCHANGED[:2], "1 of 2: G2; retrieved for it in run night 0")),
    "its contexts have no ids, and there was an update": (
     (Night(sample=replace(HELD, context_ids=None)), Night(row=make_update("v2", "lamps.md"))), UNKNOWN),
    "the very context is there again": ((BEFORE, Night(sample=replace(LOST, contexts=["Of lamps.", "Of ships."]))),
     UNKNOWN),
    "one of two that were needed together is gone": ((TOGETHER, Night()),
     (*UNCHANGED[:2], "1 of 2: G2; retrieved for it in run night 0, ships.md#1, lamps.md#2")),
    "one of two that were needed together was changed": ((TOGETHER, Night(row=make_update("v2", "lamps.md"))),
     OUTDATED),
    "one of two that were each enough was changed": ((Night(sample=TWICE), Night(row=make_update("v2", "lamps.md"))),
     (*UNCHANGED[:2], "1 of 2: G2; retrieved for it in run night 0, oil.md")),
}  # fmt: skip


def test_stored_history_shows_where_the_fault_is() -> None:
    rows = diagnose_last(*(nights for nights, _ in HISTORIES.values()))
    found = {name: (row["cause"], row["rule"], row["evidence"]) for name, row in zip(HISTORIES, rows, strict=True)}
    assert found == {name: expected for name, (_, expected) in HISTORIES.items()}


def test_each_update_of_a_burst_is_named_by_its_version() -> None:
    night = Night(row=make_update("v3", "lamps.md", "ships.md"))
    with open_rows() as con:
        fill(con, "runs", {"run_id": "a", "started_at": datetime(2026, 1, 1)})
        fill(con, "runs", {"run_id": "b", "started_at": datetime(2026, 1, 2), **night.row})
        for version, document in (("v2", "lamps.md"), ("v3", "ships.md")):
            update = {"kb_name": "handbook", "kb_version": version, "kb_changed": [document], "run_id": "b"}
            fill(con, "kb_updates", update | {"event_id": version, "occurred_at": datetime(2026, 1, 2)})
        add_stated(con, HELD, run_id="a")
        add_stated(con, LOST, run_id="b")
        (row,) = read(con, "from earlier_support")
    assert (row["kb_version"], row["changed_document"], row["update_run_id"]) == ("v2", "lamps.md", "b")


def test_the_references_decide_before_what_was_there_earlier() -> None:
    missed = replace(LOST, reference_ids=["lamps.md#2", "ships.md#1"])
    brought = replace(LOST, reference_ids=["ships.md#1"])
    histories = ((BEFORE, Night(sample=missed)), (Night(), Night(sample=brought)), (BEFORE, Night(sample=brought)))
    rules = [row["rule"] for row in diagnose_last(*histories)]
    assert rules == ["reference_not_retrieved", "references_lack_it", "retrieved_before"]
