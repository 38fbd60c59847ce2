"""A warehouse with two nights of a bot whose retriever has begun to bring other contexts for most questions.

The verdicts are literal; scores are what the project's own metrics make of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from rows import Row, RowsToCome
from warehouse_runs import lay_warehouse, make_run

from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.rows.samples import score_run
from evalhouse.warehouse.store import Warehouse

METRICS = ("answer_correctness", "factual_f1", "faithfulness", "context_recall", "context_precision", "mrr")
SCORED = tuple(name for name in METRICS if name != "answer_correctness")
N = 24
BASE, CANDIDATE = "20260101-020000-aaaa", "20260102-020000-bbbb"


def is_misled(number: int, run_id: str) -> bool:
    """Return whether the retriever found the wrong page: two of three in the second night."""
    return run_id == CANDIDATE and number % 3 != 0


def list_rows(number: int, run_id: str) -> Iterator[tuple[str, Row]]:
    """One sample of a run with its verdicts; a retriever that is wrong misleads the answer."""
    misled = is_misled(number, run_id)
    key: Mapping[str, object] = {"run_id": run_id, "sample_id": f"ship-{number:02d}"}
    found, other = f"Ship {number} lies at berth {number}.", f"Ship {number} lies at berth {number + 1}."
    contexts = ["Ropes are sold here.", other] if misled else [found, "Ropes are sold here."]
    input_hash = f"{number}-{misled}"
    answer = f"{other} It came at dawn." if misled else f"{found} It came at dawn."
    if not (run_id == CANDIDATE and not misled):  # the content is stored once
        yield (
            "samples",
            {
                "sample_id": key["sample_id"], "input_hash": input_hash, "question": f"Where does ship {number} lie?",
                "answer": answer, "ground_truth": found, "contexts": contexts,
                "context_ids": ["ropes", f"page-{number + 1}"] if misled else [f"page-{number}", "ropes"],
                "reference_context_ids": [f"page-{number}"],
            },
        )  # fmt: skip
    yield "run_samples", {**key, "input_hash": input_hash, "ordinal": number}
    for step in ("extract_answer", "extract_ground_truth", "classify", "attribute_answer", "attribute_ground_truth"):
        yield "outcomes", {**key, "step": step}
    yield "outcomes", {**key, "step": "rank"}
    # The second statement is the same in both nights, and no context contains it.
    texts = {"A1": other if misled else found, "A2": "It came at dawn.", "G1": found}
    for name, text in texts.items():
        of_answer = name.startswith("A")
        label = "FP" if of_answer and (misled or name == "A2") else "FN" if misled else "TP"
        supported = name == "A1" or (name == "G1" and not misled)
        rank = (2 if misled else 1) if supported else None
        given = {**key, "statement_id": name}
        source = "answer" if of_answer else "ground_truth"
        yield "statements", {**given, "source": source, "ordinal": int(name[1]), "text": text}
        yield "classifications", {**given, "label": label, "reason": f"{label} by the ground truth"}
        yield (
            "attributions",
            {**given, "supported": supported, "context_ranks": [rank] if rank else [], "joint_ranks": [],
             "reason": f"as context {rank} has it" if rank else "no context says so"},
        )  # fmt: skip
    for rank, useful in enumerate((False, False) if misled else (True, False), start=1):
        yield "context_verdicts", {**key, "context_rank": rank, "useful": useful, "reason": "as read"}
    yield (
        "llm_calls",
        {**key, "call_id": f"{run_id}-{number}", "step": "classify", "judge": "openai:m", "prompt_hash": "p1"},
    )


def make_pair(folder: Path) -> Warehouse:
    """The warehouse, scored; a copy of one that is made once."""
    path = folder / "pair.duckdb"
    path.write_bytes(_make_template())
    return Warehouse(str(path))


@cache
def _make_template() -> bytes:
    with TemporaryDirectory() as folder:
        return _fill(Path(folder) / "pair.duckdb").location.path.read_bytes()


def _fill(path: Path) -> Warehouse:
    warehouse, rows = lay_warehouse(path), RowsToCome()
    for minute, (run_id, label) in enumerate({BASE: "before", CANDIDATE: "after"}.items()):
        settings = {"temperature": 0.0, "votes": 1, "max_contexts": minute + 1}
        run = make_run(run_id, minute=minute, label=label, suite="harbour", judge="openai:m", metrics=SCORED,
                       status="completed", n_samples=N, config=settings, kb_version=f"v{minute}")  # fmt: skip
        insert_run(warehouse, run)
        for number in range(1, N + 1):
            for table, row in list_rows(number, run_id):
                rows.add(table, row)
    rows.write(warehouse)
    files = load_metrics()
    for run_id in (BASE, CANDIDATE):
        score_run(warehouse, run_id, [files[name] for name in SCORED], {})
    return warehouse
