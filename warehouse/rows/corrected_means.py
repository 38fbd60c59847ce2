"""What people's labels say of a run: reviewed verdicts with what made them, and means corrected by them.

The views `reviewed_verdicts` and `corrected_scores` look at whole runs and are asked for one run at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse

_REVIEWED_RUNS = "select run_id from runs where run_id in (select run_id from reviews) order by started_at, run_id"

_CORRECTED = "from corrected_scores where run_id = $run_id order by metric"


@dataclass(frozen=True, kw_only=True)
class JudgedTexts:
    """A sample of a run and the rows of its statements in their order, by source; a row with a reason says why none."""

    sample: StoredSample
    splits: Sequence[Mapping[str, Any]]


def read_reviewed(warehouse: Warehouse, run_ids: Sequence[str]) -> pl.DataFrame:
    """One row per reviewed verdict of these runs and reviewer.

    `weight` is how many verdicts it stands for, NULL where chance did not pick it; `prompt_version` is version and
    hash of the prompt, NULL where no request was needed; `language` is that of the question.
    """
    # One run at a time: then a filter on it reaches every table below the views.
    frames = [warehouse.read(read_query("corrected_means/reviewed"), {"run_id": run_id}) for run_id in run_ids]
    return pl.concat(frames) if frames else warehouse.read(read_query("corrected_means/reviewed"), {"run_id": ""})


def list_reviewed_runs(warehouse: Warehouse) -> list[str]:
    """Ids of the runs whose verdicts were reviewed, oldest first."""
    return [str(row["run_id"]) for row in warehouse.read_rows(_REVIEWED_RUNS)]


def read_corrected(warehouse: Warehouse, run_id: str) -> list[dict[str, Any]]:
    """The rows of `corrected_scores` of a run: none when nobody has reviewed any of its verdicts."""
    return warehouse.read_rows(_CORRECTED, {"run_id": run_id})


def read_judged_texts(warehouse: Warehouse, run_id: str, sample_ids: Sequence[str]) -> list[JudgedTexts]:
    """What the judge was given of these samples of a run, in the run's order."""
    frames = {"wanted": pl.DataFrame({"sample_id": list(sample_ids)}, schema={"sample_id": pl.String})}
    samples = warehouse.read(read_query("corrected_means/samples"), {"run_id": run_id}, frames=frames).to_dicts()
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for row in warehouse.read(read_query("corrected_means/splits"), {"run_id": run_id}, frames=frames).to_dicts():
        splits.setdefault(row["sample_id"], []).append(row)
    return [JudgedTexts(sample=StoredSample(**row), splits=splits.get(row["sample_id"], [])) for row in samples]


def find_prompts(warehouse: Warehouse, wanted: str, language: str) -> list[dict[str, Any]]:
    """Prompts on record whose hash begins so, or of that version: prompt_hash, prompt, version, template."""
    return warehouse.read_rows(read_query("corrected_means/prompts"), {"wanted": wanted, "language": language})
