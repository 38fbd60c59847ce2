"""A warehouse file with runs to review: lighthouses, two statements a text, two contexts a sample, a made-up judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import warehouse_runs
from warehouse_runs import lay_warehouse

from evalhouse.warehouse.rows.runs import RunRow, insert_run
from evalhouse.warehouse.store import TABLES, Warehouse, build_frame, insert_frame

ATTACK = "</script><img src=x onerror=\"document.title='owned'\"><svg/onload=\"document.title='owned'\">"
REASON = "as the keeper of the judge read it"
VERDICTS_OF_SAMPLE = 10
"""Four statements labelled, four attributed, two contexts ranked."""


def make_run(run_id: str, night: int, status: str = "completed") -> RunRow:
    own: Any = {"dataset": "lighthouses", "judge": "openai:made-up", "metrics": ("faithfulness",)}
    return warehouse_runs.make_run(run_id, minute=night * 1440, status=status, **own)


def make_sample(number: int, **texts: object) -> dict[str, Any]:
    sample: dict[str, Any] = {
        "sample_id": f"s{number:02}",
        "question": f"How high is lighthouse {number}, and who keeps it?",
        "answer": f"Lighthouse {number} is {number + 30} metres high. Keeper {number} lives on the island.",
        "ground_truth": f"Lighthouse {number} is {number + 30} metres high. Nobody keeps lighthouse {number}.",
        "contexts": [f"Lighthouse {number} was built {number + 30} metres high.", f"Gull {number} nests on the pier."],
    }
    return sample | texts


def add_run(warehouse: Warehouse, run: RunRow, samples: Sequence[Mapping[str, Any]]) -> None:
    """A run in which the judge finds the first statement of each text and the first context good, and no other."""
    insert_run(warehouse, run)
    tables: dict[str, list[dict[str, Any]]] = {}
    stored = []
    for ordinal, sample in enumerate(samples, start=1):
        key = {"run_id": run.run_id, "sample_id": sample["sample_id"]}
        input_hash = f"{run.run_id}-{sample['sample_id']}"
        stored.append({**sample, "input_hash": input_hash})
        tables.setdefault("run_samples", []).append({**key, "input_hash": input_hash, "ordinal": ordinal})
        texts = [(source, *listed) for source in ("answer", "ground_truth")
                 for listed in enumerate(str(sample[source]).split(". "), start=1)]  # fmt: skip
        for source, place, text in texts:
            named = {**key, "statement_id": f"{'A' if source == 'answer' else 'G'}{place}"}
            is_good = place == 1
            bad = "FP" if source == "answer" else "FN"
            statement = {**named, "source": source, "ordinal": place, "text": text.rstrip(".") + "."}
            label = {**named, "label": "TP" if is_good else bad, "reason": REASON}
            support = {**named, "supported": is_good, "context_ranks": [1] if is_good else [], "reason": REASON}
            rows = (("statements", statement), ("classifications", label), ("attributions", support))
            for table, row in rows:
                tables.setdefault(table, []).append(row)
        for rank in range(1, len(sample["contexts"]) + 1):
            verdict = {**key, "context_rank": rank, "useful": rank == 1, "reason": REASON}
            tables.setdefault("context_verdicts", []).append(verdict)
    columns = {name: kind for name, kind in TABLES["staged_samples"].items() if name not in ("ordinal", "given_id")}
    with warehouse.writing() as connection:
        insert_frame(connection, "samples", pl.DataFrame(stored, schema=columns))
        for table, found in tables.items():
            insert_frame(connection, table, build_frame(table, found))


def change(warehouse: Warehouse, sql: str, *values: object) -> None:
    with warehouse.writing() as connection:
        connection.execute(sql, list(values))


def add_rows(warehouse: Warehouse, table: str, *rows: Mapping[str, object]) -> None:
    with warehouse.writing() as connection:
        insert_frame(connection, table, build_frame(table, rows))


def build_warehouse(folder: Path, *, n_samples: int = 12) -> Warehouse:
    """One run, `r1`, of so many samples; the third has an attack in its texts and in the judge's words."""
    path = folder / "reviewed.duckdb"
    path.write_bytes(_make_template(n_samples))
    return Warehouse(str(path))


@cache
def _make_template(n_samples: int) -> bytes:
    samples = [make_sample(number) for number in range(1, n_samples + 1)]
    if n_samples > 2:
        samples[2] |= {"question": f"=1+1 {ATTACK}", "answer": ATTACK, "contexts": [ATTACK, "Gull 3 nests."]}
    with TemporaryDirectory() as folder:
        warehouse = lay_warehouse(Path(folder) / "template.duckdb")
        add_run(warehouse, make_run("r1", 1), samples)
        return warehouse.location.path.read_bytes()
