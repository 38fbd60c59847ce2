"""What is found of two runs, kept in memory until a score of either is another.

A comparison of thousands of samples takes the better part of a second, and so do the verdicts that flipped, most of it
to read rows that never change again. What is under way is found anew each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from fastapi import Request

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.ui.kept import find_kept
from evalhouse.flows.ui.pages import find_warehouse
from evalhouse.tasks.comparing.runs import Comparison, ComparisonSettings, compare_runs
from evalhouse.tasks.comparing.verdict_flips import list_verdict_flips
from evalhouse.tasks.reviews.corrected_means import CorrectedPair, pair_corrected
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, list_runs, pick_run
from evalhouse.warehouse.rows.scores import read_flips


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A comparison, how often the judge contradicts itself by step, and the means that people's labels correct."""

    comparison: Comparison
    noise_steps: list[dict[str, Any]]
    corrected: list[CorrectedPair]


def find_pair(request: Request, base: str, candidate: str, runs: Sequence[RunRow] | None = None) -> RunPair:
    """The two runs; raises WarehouseError for one that is not there, SettingsError where both are the same."""
    runs = list_runs(find_warehouse(request)) if runs is None else runs
    if not runs:
        raise WarehouseError("No run is on record yet: two runs of `evalhouse run` can be compared here.")
    if not (base and candidate):
        raise SettingsError("There is no run yet to hold this one against; name two runs.")
    before, after = (pick_run(runs, wanted) for wanted in (base, candidate))
    if before.run_id == after.run_id:
        raise SettingsError(f"both are run {after.run_id}; name two runs")
    return RunPair(find_warehouse(request), before, after)


def compare_kept(request: Request, pair: RunPair) -> Compared:
    """The comparison of two runs as `evalhouse compare` makes it."""
    return find_kept(request).find(("compared", *_name(pair)), _find_state(pair), lambda: _compare(pair))


def list_flips_kept(request: Request, pair: RunPair) -> pl.DataFrame:
    """The verdicts that flipped, as `list_verdict_flips` gives them."""
    return find_kept(request).find(("flips", *_name(pair)), _find_state(pair), lambda: list_verdict_flips(pair))


def _name(pair: RunPair) -> tuple[str, str]:
    return pair.base.run_id, pair.candidate.run_id


def _find_state(pair: RunPair) -> tuple[object, ...] | None:
    """None while one of the runs is under way."""
    return None if "running" in (pair.base.status, pair.candidate.status) else pair.read_state()


def _compare(pair: RunPair) -> Compared:
    comparison = compare_runs(pair, ComparisonSettings())
    run_ids = comparison.noise_run_ids
    return Compared(
        comparison=comparison,
        noise_steps=read_flips(pair.warehouse, run_ids) if run_ids else [],
        corrected=pair_corrected(pair.warehouse, pair.base.run_id, pair.candidate.run_id),
    )
