"""The noise floor of two runs on record: which samples were judged anew, and what is known of the judge.

`noise` has the formula; here its numbers are found. What is known of the judge's noise comes from the noise runs of the
candidate's series that were judged as the candidate was: by the same judge, model, settings, prompts and formula.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.bootstrap import Floats, Integers
from evalhouse.tasks.comparing.noise import POOLED_RUNS, Noise, find_floor, pool_noise, sum_squares
from evalhouse.tasks.comparing.parts import Flags, list_call_steps
from evalhouse.tasks.comparing.same_judge import is_changed_everywhere
from evalhouse.warehouse.rows.noise import list_noise_runs, read_asked, read_judged_anew, read_noise
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, list_runs

_OTHER_YARDSTICKS = frozenset(("judge", "formula"))


@dataclass(frozen=True, kw_only=True)
class MetricNoise:
    """The judge's noise in the change of one metric.

    Of the samples that both runs scored `n_anew` do not rest on the very same replies. `measured` is what is known of
    the judge. `floor` is None where a change may be noise and nobody knows how much: then `is_unknown`, or where the
    runs are not measured by one yardstick.
    """

    n_anew: int
    measured: Noise | None
    floor: float | None
    is_unknown: bool = False


class PairNoise:
    """What is on record of the judge's noise for a pair of runs; read once, asked for each metric."""

    def __init__(self, pair: RunPair) -> None:
        self._pair = pair
        self._anew = read_judged_anew(pair.warehouse, base=pair.base.run_id, candidate=pair.candidate.run_id)
        self._used: dict[str, None] = {}

    @property
    def run_ids(self) -> list[str]:
        """The noise runs that some metric's floor rests on, the nearest first."""
        return [run.run_id for run in self._noise_runs if run.run_id in self._used]

    def list_anew(self, steps: Collection[str]) -> list[str]:
        """The samples whose score, by a metric that rests on these steps, does not rest on the very same replies.

        Of a metric whose steps are not known, every step counts.
        """
        anew = self._anew
        if steps:
            anew = anew.filter(pl.col("step").is_in(list_call_steps(steps)))
        ids: list[str] = anew["sample_id"].unique().to_list()
        return ids

    def find(
        self,
        metric: str,
        *,
        steps: Collection[str],
        version: str | None,
        values: Floats,
        anew: Flags,
        clusters: Integers,
        changed: Collection[str],
    ) -> MetricNoise:
        """The noise in a metric's change over the samples that both runs scored.

        By sample: `values`, both runs' scores; whether it was judged `anew`; its cluster; the names of what changed.
        """
        n_anew = int(anew.sum())
        if any(_OTHER_YARDSTICKS.intersection(name.split("+")) for name in changed):
            return MetricNoise(n_anew=n_anew, measured=None, floor=None)
        if not n_anew:
            return MetricNoise(n_anew=0, measured=None, floor=0.0 if len(anew) else None)
        measured = self._pool(metric, steps, version)
        if measured is None:
            return MetricNoise(n_anew=n_anew, measured=None, floor=None, is_unknown=True)
        floor = find_floor(
            measured, n=len(anew), anew=np.bincount(clusters[anew]).astype(np.int64), scale=_find_scale(values)
        )
        return MetricNoise(n_anew=n_anew, measured=measured, floor=floor)

    def _pool(self, metric: str, steps: Collection[str], version: str | None) -> Noise | None:
        rows = [
            row
            for row in self._rows.get(metric, [])
            if row["metric_version"] == version and self._is_judged_alike(row["noise_run_id"], steps)
        ]
        self._used |= dict.fromkeys(row["noise_run_id"] for row in rows)
        return pool_noise(_to_noise(row) for row in rows)

    def _is_judged_alike(self, noise_run_id: str, steps: Collection[str]) -> bool:
        (run,) = (run for run in self._noise_runs if run.run_id == noise_run_id)
        candidate = self._pair.candidate
        theirs, ours = self._asked[noise_run_id], self._asked[candidate.run_id]
        return not any(
            is_changed_everywhere(run, candidate, step) or _is_asked_otherwise(theirs.get(step), ours.get(step))
            for step in (list_call_steps(steps) if steps else ours)
        )

    @cached_property
    def _noise_runs(self) -> list[RunRow]:
        warehouse = self._pair.warehouse
        wanted = list_noise_runs(warehouse, self._pair.candidate.run_id)[:POOLED_RUNS]
        runs = {run.run_id: run for run in list_runs(warehouse)} if wanted else {}
        return [runs[run_id] for run_id in wanted]

    @cached_property
    def _rows(self) -> Mapping[str, list[dict[str, Any]]]:
        found = read_noise(self._pair.warehouse, [run.run_id for run in self._noise_runs])
        return {str(key[0]): rows.to_dicts() for key, rows in found.partition_by("metric", as_dict=True).items()}

    @cached_property
    def _asked(self) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        return read_asked(
            self._pair.warehouse, [self._pair.candidate.run_id, *(run.run_id for run in self._noise_runs)]
        )


def _to_noise(row: Mapping[str, Any]) -> Noise:
    return Noise(
        n_pairs=row["n_samples"],
        n_changed=row["n_changed"],
        sum_squares=sum_squares(n=row["n_samples"], mean=row["mean_difference"], sd=row["sd_difference"]),
    )


def _is_asked_otherwise(theirs: Mapping[str, Any] | None, ours: Mapping[str, Any] | None) -> bool:
    """Whether one step was asked with another prompt, or answered by another model as far as both heard from one."""
    if theirs is None or ours is None:
        return False
    models = [set(asked["models"] or ()) for asked in (theirs, ours)]
    return bool(theirs["judges"] != ours["judges"] or (all(models) and not models[0] & models[1]))


def _find_scale(values: Floats) -> float:
    """How far two scores can be apart: 1 where they are shares, else as far as those of both runs are."""
    low, high = float(values.min()), float(values.max())
    return 1.0 if low >= 0 and high <= 1 else high - low
