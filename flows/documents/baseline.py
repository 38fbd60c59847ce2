"""What a run is held against: the baseline a gate was told to take, the nights of a trend, and the record of both.

A baseline is named by one word of `tasks/settings/suite` or as any run is. None of those words means a run that its
gate refused, but for `previous_any`, which says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalhouse.tasks.settings.suite import MEAN_OF_PASSED, PASSED, PREVIOUS_ANY
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.gates import Acceptance, Decision, Night, Origin, list_acceptances
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_runs
from evalhouse.warehouse.store import Warehouse

NAMES = (PASSED, MEAN_OF_PASSED, PREVIOUS_ANY)
# Undecided drops that say nothing of how much worse a run is.
_OTHER_YARDSTICKS = ("other_judge", "other_formula")


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What drops are measured against. `against` is as it was named, None where nothing is; `runs` are several where
    their mean is meant, newest last; `missing` says why there is none although one was named."""

    against: str | None = None
    runs: tuple[RunRow, ...] = ()
    accepted: Acceptance | None = None
    missing: str | None = None

    def describe(self) -> dict[str, Any]:
        """As a gate's --json has it."""
        accepted = None if self.accepted is None else vars(self.accepted)
        return {"against": self.against, "run_ids": [run.run_id for run in self.runs], "accepted": accepted}


def find_baseline(warehouse: Warehouse, run: RunRow, against: str, *, k: int, nights: Sequence[Night]) -> Baseline:
    """The baseline that `against` names for this run; `nights` are those that count as good (`list_nights`)."""
    if against in (PASSED, MEAN_OF_PASSED):
        good = [night for night in nights if night.is_baseline][-(k if against == MEAN_OF_PASSED else 1) :]
        accepted = next((night.accepted for night in good if night.accepted), None)
        missing = None if good else explain_none(run)
        return Baseline(against=against, runs=tuple(night.run for night in good), accepted=accepted, missing=missing)
    if against == PREVIOUS_ANY:
        base = find_previous(warehouse, run)
        message = f"there is no earlier completed run of {name_series(run)} to compare with"
    else:
        base, message = _find_named(warehouse, run, against)
    if base is None:
        return Baseline(against=against, missing=message)
    acceptances = list_acceptances(warehouse, base.run_id)
    return Baseline(against=against, runs=(base,), accepted=acceptances[-1] if acceptances else None)


def _find_named(warehouse: Warehouse, run: RunRow, name: str) -> tuple[RunRow | None, str]:
    try:
        base = find_run(warehouse, name)
    except WarehouseError as error:
        return None, f"the baseline is not to be found: {error}"
    return (None, f"the baseline {name!r} is this run itself") if base.run_id == run.run_id else (base, "")


def explain_none(run: RunRow) -> str:
    """Why there is no baseline yet, and how there comes to be one."""
    return (
        f"no earlier run of {name_series(run)} has passed its gate, so there is nothing to compare with; the first "
        "that passes is the baseline, or one that `evalhouse gate --accept RUN` accepts"
    )


def name_series(run: RunRow) -> str:
    """What a run's history is the history of."""
    return f"suite {run.suite}" if run.suite else f"dataset {run.dataset}"


def find_previous(warehouse: Warehouse, run: RunRow) -> RunRow | None:
    """The last completed evaluation of the same series that was started before this one."""
    completed = (
        other
        for other in list_runs(warehouse, kinds=("evaluation",))
        if name_series(other) == name_series(run) and other.status == "completed"
    )
    begun = (run.started_at, run.run_id)
    # They come newest first.
    return next((other for other in completed if (other.started_at, other.run_id) < begun), None)


def describe_acceptance(accepted: Mapping[str, Any]) -> str:
    """Who took which run for the baseline, when and why, in a sentence."""
    return (
        f"run {accepted['run_id']} was accepted as the baseline by {accepted['accepted_by']} on "
        f"{accepted['accepted_at']:%Y-%m-%d %H:%M} UTC: {accepted['why']}"
    )


def make_decision(document: Mapping[str, Any], origin: Origin) -> Decision:
    """What goes on record of a gate's document.

    A run becomes a baseline when it passed and no drop that was left undecided is a worsening beyond chance (its whole
    interval): such a one may keep its limit and is let through, but what comes after is held against the level before.
    """
    doubted = any(
        check["kind"] == "max_drop" and check["outcome"] == "undecided" and (check["ci_low"] or 0.0) > 0
        for check in document["checks"]
        if check["reason"] not in _OTHER_YARDSTICKS
    )
    baseline = document["baseline"]
    return Decision(
        run_id=document["run"]["run_id"],
        origin=origin,
        outcome=document["outcome"],
        is_baseline=document["outcome"] == "passed" and not doubted,
        undecided=document["undecided"],
        against=baseline["against"],
        base_run_ids=baseline["run_ids"],
        checks=document["checks"],
    )
