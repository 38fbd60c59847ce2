"""The judge's noise on record: which samples may be judged again, what a noise run came to, and what two runs share.

A noise run is a row of `runs` of kind noise with calls, verdicts and scores of its own over some samples of its parent.
The table `noise` follows the scores: whenever parent or noise run are scored, `note_noise` writes their rows again.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse


def note_no_noise(warehouse: Warehouse, run_id: str) -> None:
    """Put on record that a run's judge says the same each time: rows of `noise` that name the run itself."""
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        connection.execute("delete from noise where noise_run_id = ?", [run_id])
        connection.execute(read_query("noise/write_none"), {"run_id": run_id})


def list_scored(warehouse: Warehouse, run_id: str) -> list[str]:
    """The samples of a run with a score in any metric, in their order."""
    return _list(warehouse, read_query("noise/scored"), {"run_id": run_id})


def find_previous(warehouse: Warehouse, run_id: str) -> str | None:
    """The evaluation before this one in its series that came to an end."""
    run_ids = _list(warehouse, read_query("noise/previous"), {"run_id": run_id})
    return run_ids[0] if run_ids else None


def list_equal_inputs(warehouse: Warehouse, *, base: str, candidate: str) -> list[str]:
    """The samples with the same texts in both runs."""
    return _list(warehouse, read_query("noise/equal_inputs"), {"base": base, "candidate": candidate})


def copy_samples(warehouse: Warehouse, *, run_id: str, noise_run_id: str, sample_ids: Collection[str]) -> None:
    """Give a noise run these samples of its parent."""
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=noise_run_id) as connection:
        connection.register("picked_samples", pl.DataFrame({"sample_id": list(sample_ids)}).to_arrow())
        connection.execute(read_query("noise/copy"), {"run_id": run_id, "noise_run_id": noise_run_id})
        connection.unregister("picked_samples")


def has_noise_run(warehouse: Warehouse, run_id: str) -> bool:
    """Whether the noise of a run was measured to the end."""
    sql = (
        "select run_id from runs where kind = 'noise' and parent_run_id = $run_id "
        "and status in ('completed', 'incomplete')"
    )
    return bool(_list(warehouse, sql, {"run_id": run_id}))


def count_changed(warehouse: Warehouse, noise_run_id: str) -> int:
    """How many samples of a noise run have another score than in its parent, in any metric."""
    (row,) = warehouse.read_rows(read_query("noise/changed_samples"), {"run_id": noise_run_id})
    return int(str(row["n"]))


def read_judged_anew(warehouse: Warehouse, *, base: str, candidate: str) -> pl.DataFrame:
    """One row per sample and step of a call for which the runs do not rest on the very same replies."""
    return warehouse.read(read_query("noise/judged_anew"), {"base": base, "candidate": candidate})


def list_noise_runs(warehouse: Warehouse, run_id: str) -> list[str]:
    """The noise runs of a run's series: those up to the run first, each time the nearest first."""
    return _list(warehouse, read_query("noise/noise_runs"), {"run_id": run_id})


def read_noise(warehouse: Warehouse, noise_run_ids: Sequence[str]) -> pl.DataFrame:
    """The rows of `noise` of these runs that have a sample, with the version of the metric they are by."""
    return _read_of(warehouse, read_query("noise/noise_rows"), noise_run_ids)


def read_asked(warehouse: Warehouse, run_ids: Sequence[str]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """By run and step of its calls: `judges`, each with the hash of its prompt, and the `models` that answered."""
    by_run: dict[str, dict[str, Mapping[str, Any]]] = {run_id: {} for run_id in run_ids}
    for row in _read_of(warehouse, read_query("noise/asked"), run_ids).to_dicts():
        by_run[row["run_id"]][row["step"]] = row
    return by_run


def read_flips(warehouse: Warehouse, noise_run_ids: Sequence[str]) -> list[dict[str, object]]:
    """One row per step over these noise runs: `n_items` judged twice, `n_flipped` of them otherwise, `flip_rate`.

    Statements are matched by their text; of a split, what flips is a statement that only one of the two has.
    """
    return _read_of(warehouse, read_query("noise/flips"), noise_run_ids).to_dicts()


def _read_of(warehouse: Warehouse, sql: str, run_ids: Sequence[str]) -> pl.DataFrame:
    wanted = pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
    return warehouse.read(sql, frames={"wanted": wanted})


def _list(warehouse: Warehouse, sql: str, parameters: Mapping[str, object]) -> list[str]:
    return [str(value) for value in warehouse.read(sql, parameters).to_series(0)]
