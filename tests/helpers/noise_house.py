"""A warehouse of literal rows: two runs of a series, and noise runs that judged samples of some run again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import Row, RowsToCome
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.tasks.comparing.runs import Comparison, ComparisonSettings, MetricComparison, compare_runs
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.rows.samples import write_noise
from evalhouse.warehouse.store import Warehouse

JUDGE = "openai:judge"
METRIC = "factual_f1"  # rests on the splits and on classify
CONFIG = {"temperature": 0.0, "votes": 1}
BASE, CANDIDATE = "base", "candidate"


class NoiseHouse:
    """`base` and `candidate`, each with a call of step classify for every sample and scores of one metric.

    Rows are collected and written together when the warehouse is first read: opening the file costs most.
    """

    def __init__(self, folder: Path, *, n: int = 40, **columns: object) -> None:
        self._warehouse, self._rows = make_warehouse(folder), RowsToCome()
        self._unwritten: list[RunRow] = []
        self._unnoted: list[str] = []
        self._values: dict[str, Sequence[float | None]] = {}
        self.ids = [f"s{number:03d}" for number in range(n)]
        self.runs: dict[str, RunRow] = {}
        self.add_run(BASE, minute=0)
        self.add_run(CANDIDATE, minute=60, **columns)

    @property
    def warehouse(self) -> Warehouse:
        runs, self._unwritten = self._unwritten, []
        for run in runs:
            self._rows.add("runs", {**vars(run), "config": json.dumps(run.config)})
        warehouse = self._rows.write(self._warehouse)
        noted, self._unnoted = self._unnoted, []
        if noted:
            with warehouse.writing() as connection:
                for run_id in noted:
                    write_noise(connection, run_id)
        return warehouse

    def add(self, table: str, *rows: Row) -> None:
        self._rows.add(table, *rows)

    def add_run(self, run_id: str, *, minute: int, **columns: object) -> None:
        values = {"judge": JUDGE, "status": "completed", "config": CONFIG, **columns}
        self.runs[run_id] = make_run(run_id, minute=minute, **values)
        self._unwritten.append(self.runs[run_id])

    def judge(self, run_id: str, values: Sequence[float | None], *, reused: int = 0, **call: object) -> None:
        """Score the first samples of a run; the first `reused` of their calls take replies of `base`."""
        self._values[run_id] = values
        ids = self.ids[: len(values)]
        self.add(
            "run_samples",
            *({"run_id": run_id, "sample_id": one, "input_hash": one, "ordinal": n} for n, one in enumerate(ids, 1)),
        )
        self.score(run_id, values)
        self.add(
            "llm_calls",
            *(
                {
                    "run_id": run_id, "call_id": f"{run_id}-{one}", "sample_id": one, "step": "classify",
                    "judge": JUDGE, "prompt_hash": "p1", "model": "judge-2026",
                    "status": "cached" if place < reused else "ok",
                    "reused_call_id": f"{BASE}-{one}" if place < reused else None,
                    **call,
                }
                for place, one in enumerate(ids)
            ),
        )  # fmt: skip

    def score(self, run_id: str, values: Sequence[float | None], metric: str = METRIC, version: str = "1") -> None:
        self.add(
            "scores",
            *(
                {
                    "run_id": run_id, "sample_id": one, "metric": metric, "value": value, "metric_version": version,
                    "unscored_reason": "no_answer" if value is None else None,
                }
                for one, value in zip(self.ids, values, strict=False)
            ),
        )  # fmt: skip

    def measure(
        self,
        run_id: str,
        differences: Sequence[float],
        *,
        parent: str = CANDIDATE,
        call: Mapping[str, Any] | None = None,
        **columns: object,
    ) -> None:
        """Add a noise run over the parent's first samples, whose scores differ by so much."""
        values = {"kind": "noise", "parent_run_id": parent, "minute": 90, **columns}
        self.add_run(run_id, **values)  # type: ignore[arg-type]  # minute is among the values
        before = self._values[parent]
        self.judge(run_id, [(one or 0.0) + by for one, by in zip(before, differences, strict=False)], **(call or {}))
        self.note(run_id)

    def note(self, run_id: str) -> None:
        """Write the rows of `noise` for a run again, with all other rows."""
        self._unnoted.append(run_id)

    def compare(self, metric: str = METRIC) -> MetricComparison:
        (found,) = (one for one in self.compare_all().metrics if one.metric == metric)
        return found

    def compare_all(self) -> Comparison:
        pair = RunPair(self.warehouse, self.runs[BASE], self.runs[CANDIDATE])
        return compare_runs(pair, ComparisonSettings(resamples=1000))
