"""What it takes to go on with a run of kind testset: its command, its settings, and what it left undone."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.settings import check_resumable
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.errors import TestsetError
from evalhouse.tasks.testsets.sets import read_set
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.rows.runs import RunRow, now_utc, update_run
from evalhouse.warehouse.rows.testsets import list_written
from evalhouse.warehouse.store import Warehouse

_FILES: Final = ("path", "docs")
# Asking anew what was asked a moment ago would pay for it twice.
_LEFT_OUT: Final = ("fresh", "warehouse")


def find_command(run: RunRow) -> list[str]:
    """The words of the command that made a run; raises SettingsError where it has none."""
    command = (run.config.get("testset") or {}).get("command")
    if not command:
        raise SettingsError(f"run {run.run_id} has no command on record; give it again: what was answered is on record")
    return shlex.split(command)


def find_kept(
    warehouse: Warehouse, run: RunRow, params: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters of a run's command that are as its settings have them, but for `changes`.

    Raises SettingsError where there is nothing to go on with, where a file that it needs is gone, and where nothing is
    left of its budget.
    """
    check_resumable(run, changes, params.keys())
    for name in _FILES:
        _check_file(run, params.get(name))
    settings = {name: run.config.get(name) for name in params if name in RunSettings.model_fields}
    kept = {name: value for name, value in settings.items() if value is not None and name not in _LEFT_OUT}
    kept |= {name: value for name, value in changes.items() if name in params} | {"fresh": None}
    if kept.get("budget_usd") is not None:
        kept["budget_usd"] = _find_left(warehouse, run, float(kept["budget_usd"]))
    if "force" in params and _has_written(warehouse, run, Path(params["output"])):
        kept["force"] = True
    return kept


def _check_file(run: RunRow, name: str | None) -> None:
    if name is None:
        return
    if not any(Path(place).expanduser().exists() for place in (name, name.rpartition("#")[0] or name)):
        raise SettingsError(
            f"run {run.run_id} cannot be gone on with: {name}, which its command names, is not there (seen from "
            f"{Path.cwd()}); bring it back, or call this from the folder in which the run was started"
        )


def _find_left(warehouse: Warehouse, run: RunRow, budget_usd: float) -> float:
    """What is left of a budget that is for a run and all that goes on with it."""
    spent_usd = sum_cost(warehouse, run.run_id)
    if spent_usd >= budget_usd:
        raise SettingsError(
            f"run {run.run_id} has spent {spent_usd:.4g} dollars and its budget is {budget_usd:g}, so nothing was "
            f"asked; go on with a higher one: evalhouse resume {run.run_id} --budget USD"
        )
    return budget_usd - spent_usd


def _has_written(warehouse: Warehouse, run: RunRow, path: Path) -> bool:
    """Whether the set that lies there is what the run wrote as far as it came, and so may be replaced."""
    try:
        return read_set(path).set_hash in list_written(warehouse, run.run_id)
    except TestsetError:
        return False


def note_gone_on(warehouse: Warehouse, run: RunRow) -> None:
    """Put an end on record to a run that was killed before it could write one."""
    if run.status == "running":
        problem = "its process ended before it did; another run went on with it"
        update_run(warehouse, run.run_id, status="cancelled", finished_at=now_utc(), problem=problem)
