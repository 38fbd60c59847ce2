"""Runs whose process is gone: finding them, saying so, and going on with them.

A process that works on a flow run of a served suite holds a lock of the operating system on it, as on the run in the
warehouse (`evalhouse.warehouse.engine.locks`). Both locks die with the process, so what says "running" and is held by
nobody has crashed. Prefect notices by itself only when heartbeats stay out, and resumes nothing. Nothing here imports
Prefect.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from evalhouse.flows.server.api import PrefectApi, PrefectApiError
from evalhouse.flows.server.environment import prefect_home, read_user_settings
from evalhouse.flows.serving.flow_runs import ServedSuite, create_flow_run, find_named_run, list_flow_runs
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseMissing
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_runs, update_run
from evalhouse.warehouse.store import Warehouse

_GONE: Final = "its process ended before the run did"
_UNDER_WAY = ["RUNNING", "PENDING", "CANCELLING"]
_ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
# A run that kills its process each time (out of memory, say) is not tried for ever.
_MOST_RESUMES = 3


@contextmanager
def hold_flow_run(flow_run_id: str) -> Iterator[None]:
    """Let others see, for this block, that the process of a flow run is alive."""
    path = _find_lock(flow_run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, thread_local=False)
    with lock.acquire(timeout=10):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def sweep_crashed(api: PrefectApi, suites: Sequence[ServedSuite], *, alone: bool = False) -> list[str]:
    """Mark what has crashed, in Prefect and in the warehouse, and queue flow runs that go on with it.

    `alone` says that nobody else can be at work on these suites: what shows no sign of life is then dead. Returns a
    line for each thing found.
    """
    told = []
    for suite in suites:
        warehouse = Warehouse(suite.warehouse_url)
        under_way = list_flow_runs(api, suite, state={"type": {"any_": _UNDER_WAY}})
        dead = [one for one in under_way if _is_dead(str(one["id"]), alone=alone)]
        crashed = {run.run_id: run for run in _mark_runs(warehouse, suite.name)}
        for flow_run in dead:
            _mark_flow_run(api, str(flow_run["id"]))
            run = _find_run_of(warehouse, flow_run, suite.name)
            if run is None:
                told.append(_queue_again(api, suite, flow_run))
            elif run.status in ("failed", "cancelled"):
                crashed[run.run_id] = run
        for run in crashed.values():
            if run.flow_run_id is not None:
                _mark_flow_run(api, run.flow_run_id)
            told.append(f"{suite.name}: run {run.run_id} had crashed: {_go_on(api, suite, run)}")
    return told


def queue_resume(api: PrefectApi, suite: ServedSuite, run_id: str) -> bool:
    """Queue a flow run that resumes a run; False when that has been tried often enough."""
    tag = f"resume {run_id}"
    found = list_flow_runs(api, suite, tags={"all_": [tag]})
    if any(one["state_type"] == "SCHEDULED" for one in found):
        return True
    if len(found) >= _MOST_RESUMES:
        return False
    create_flow_run(api, suite, {"resume": run_id}, key=f"resume {run_id} {len(found) + 1}", tags=[tag])
    return True


def _is_dead(flow_run_id: str, *, alone: bool) -> bool:
    path = _find_lock(flow_run_id)
    if not path.exists():
        # It has not got as far as its lock, has just ended, or is another machine's.
        return alone
    try:
        with FileLock(path, thread_local=False).acquire(timeout=0):
            path.unlink(missing_ok=True)
    except Timeout:
        return False
    return True


def _mark_runs(warehouse: Warehouse, suite: str) -> list[RunRow]:
    """Runs of a suite that say "running" and are held by nobody: failed from now on. Those by hand are only marked."""
    try:
        runs = [run for run in list_runs(warehouse) if run.status == "running" and run.suite == suite]
    except WarehouseMissing:
        return []
    marked = [run for run in runs if _mark_run(warehouse, run)]
    return [run for run in marked if run.kind == "evaluation" and run.trigger != "manual"]


def _mark_run(warehouse: Warehouse, run: RunRow) -> bool:
    holder = run.run_id if run.kind != "noise" else run.parent_run_id or run.run_id
    try:
        with hold_run(warehouse.location, holder):
            if find_run(warehouse, run.run_id).status != "running":
                return False
            problem = f"{_GONE}; `evalhouse resume {run.run_id}` goes on with it"
            now = datetime.now(UTC).replace(tzinfo=None)
            update_run(warehouse, run.run_id, status="failed", problem=problem, finished_at=now)
    except WarehouseBusy:
        return False
    return True


def _mark_flow_run(api: PrefectApi, flow_run_id: str) -> None:
    """Say in Prefect that a flow run has crashed, unless it has ended there or never was there."""
    try:
        if api.get(f"/flow_runs/{flow_run_id}")["state_type"] in _ENDED:
            return
        state = {"type": "CRASHED", "name": "Crashed", "message": f"{_GONE}."}
        api.post(f"/flow_runs/{flow_run_id}/set_state", {"state": state, "force": True})
    except PrefectApiError as error:
        if error.status != 404:
            raise


def _find_run_of(warehouse: Warehouse, flow_run: Mapping[str, Any], suite: str) -> RunRow | None:
    run_id = find_named_run(flow_run, suite)
    if run_id is None:
        return None
    return next((run for run in list_runs(warehouse) if run.run_id == run_id), None)


def _queue_again(api: PrefectApi, suite: ServedSuite, flow_run: Mapping[str, Any]) -> str:
    create_flow_run(api, suite, flow_run["parameters"], key=f"again {flow_run['id']}", tags=flow_run["tags"])
    return f"{suite.name}: a run had crashed before it was on record: it is queued again"


def _go_on(api: PrefectApi, suite: ServedSuite, run: RunRow) -> str:
    if queue_resume(api, suite, run.run_id):
        return "it is resumed, and what was answered is not asked again"
    return f"it was resumed {_MOST_RESUMES} times already and is left; `evalhouse resume {run.run_id}` tries once more"


def _find_lock(flow_run_id: str) -> Path:
    home = read_user_settings().get("PREFECT_HOME")
    return (Path(home).expanduser() if home else prefect_home()) / "evalhouse-flow-runs" / f"{flow_run_id}.lock"
