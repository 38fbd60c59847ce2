"""Decisions of gates and acceptances by people, and the runs that later ones are compared with.

A decision is never overwritten. A run counts as good when the latest decision on it is that it passed, or when a person
accepted it; an acceptance counts from the moment it was made, so that its level is the baseline until a later run
passes.
"""

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from evalhouse.warehouse.rows.runs import RunRow, list_runs, make_run_id, now_utc
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse, build_frame, insert_frame

Origin = Literal["suite", "hand"]


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """One row of `gate_acceptances`."""

    run_id: str
    why: str
    accepted_by: str
    accepted_at: datetime


@dataclass(frozen=True, kw_only=True)
class Night:
    """A run that counts as good. `is_baseline` is False when it passed its gate with a drop beyond chance that may be
    within its limit: it is part of a trend, but no run is compared with it."""

    run: RunRow
    is_baseline: bool
    accepted: Acceptance | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision of a gate on a run, with a row for each check; see the columns of `gate_decisions`."""

    run_id: str
    origin: Origin
    outcome: str
    is_baseline: bool
    undecided: str
    against: str | None
    base_run_ids: Sequence[str]
    checks: Sequence[Mapping[str, Any]]


def record_decision(warehouse: Warehouse, decision: Decision, *, patience_s: float = FLUSH_PATIENCE_S) -> None:
    """Write a decision, for a suite's gate also into `gate` of its run; raises WarehouseError."""
    now = now_utc()
    decision_id = make_run_id(now)
    head = {name: value for name, value in vars(decision).items() if name != "checks"}
    head |= {"decision_id": decision_id, "decided_by": find_user(), "decided_at": now}
    checks = [
        {**{name: value for name, value in check.items() if name != "limit"}, "limit_value": check["limit"]}
        | {"decision_id": decision_id, "run_id": decision.run_id}
        for check in decision.checks
    ]
    with warehouse.writing(patience_s=patience_s, run_id=decision.run_id) as connection:
        insert_frame(connection, "gate_decisions", build_frame("gate_decisions", [head]))
        insert_frame(connection, "gate_checks", build_frame("gate_checks", checks))
        if decision.origin == "suite":
            connection.execute("update runs set gate = ? where run_id = ?", [decision.outcome, decision.run_id])


def accept_run(warehouse: Warehouse, run_id: str, *, accepted_by: str, why: str) -> Acceptance:
    """Record that a person accepts this run as the baseline of its series."""
    acceptance = Acceptance(run_id=run_id, why=why, accepted_by=accepted_by, accepted_at=now_utc())
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        insert_frame(connection, "gate_acceptances", build_frame("gate_acceptances", [vars(acceptance)]))
    return acceptance


def list_acceptances(warehouse: Warehouse, run_id: str) -> list[Acceptance]:
    """Return the acceptances of a run, oldest first."""
    rows: list[dict[str, Any]] = warehouse.fetch_rows("gate/acceptances", run_id=run_id)
    return [Acceptance(**row) for row in rows]


def list_nights(warehouse: Warehouse, run: RunRow) -> list[Night]:
    """Return the earlier runs of a run's series that count as good, from the last accepted one on."""
    rows: list[dict[str, Any]] = warehouse.fetch_rows("gate/nights", run_id=run.run_id)
    accepted = [place for place, row in enumerate(rows) if row["accepted_at"] is not None]
    rows = rows[accepted[-1] :] if accepted else rows
    runs = {other.run_id: other for other in list_runs(warehouse)} if rows else {}
    nights = []
    for row in rows:
        given = {name: row[name] for name in ("run_id", "why", "accepted_by", "accepted_at")}
        acceptance = Acceptance(**given) if row["accepted_at"] is not None else None
        nights.append(Night(run=runs[row["run_id"]], is_baseline=bool(row["is_baseline"]), accepted=acceptance))
    return nights


def find_user() -> str:
    """Return the name of the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
