"""How long Prefect keeps its record of a served suite: the flow runs of its deployment and all that hangs on them.

With a flow run Prefect deletes its task runs and states and, a moment later, its logs. Artifacts and flow runs that
were started within it stay, and so are deleted here before it. Prefect's own vacuum takes everybody's flow runs alike,
and is left as the user has it. The age is `prefect` in the suite's `[retention]`. Nothing here imports Prefect.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from evalhouse.flows.display.output import write_count
from evalhouse.flows.server.api import TAG, PrefectApi, PrefectApiError, tag_run
from evalhouse.flows.serving.flow_runs import ENDED, ServedSuite, find_named_run, list_flow_runs
from evalhouse.tasks.settings.retention import NEVER, find_cutoff

# Flow runs a step, so that a run under way does not wait long for the database.
_A_STEP = 10
# As many as Prefect lists at once.
_PAGE = 200
_REST_S: Final = 86_400.0
_GONE = 404


class HistoryLimit:
    """Deletes what is older than each suite's age, a few flow runs a step, once a day until none is left."""

    def __init__(self, api: PrefectApi, suites: Sequence[tuple[ServedSuite, str]]) -> None:
        self._api = api
        self._suites = [(suite, age) for suite, age in suites if age != NEVER]
        self._n_deleted: Counter[str] = Counter()
        self._due = time.monotonic()

    def step(self) -> list[str]:
        """Do what is due; returns a line when the day's work is done, and one when something hinders it until then."""
        if not self._suites or time.monotonic() < self._due:
            return []
        try:
            if self._delete_some():
                return []
        except PrefectApiError as error:
            self._due = time.monotonic() + _REST_S
            return [f"Prefect's history is not cut before tomorrow: {' '.join(str(error).split())}"]
        self._due = time.monotonic() + _REST_S
        return self._report()

    def _delete_some(self) -> bool:
        for suite, age in self._suites:
            n_deleted = delete_old(self._api, suite, before=find_cutoff(age, datetime.now(UTC)))
            self._n_deleted[suite.name] += n_deleted
            if n_deleted:
                return True
        return False

    def _report(self) -> list[str]:
        counts = [
            f"{suite.name} {write_count(self._n_deleted[suite.name], 'flow run')} older than {age}"
            for suite, age in self._suites
            if self._n_deleted[suite.name]
        ]
        self._n_deleted.clear()
        return [f"deleted from Prefect's history: {', '.join(counts)}"] if counts else []


def delete_old(api: PrefectApi, suite: ServedSuite, *, before: datetime) -> int:
    """Delete some flow runs of a suite that ended before a time with a zone; returns how many, 0 when none is left."""
    ended = {"state": {"type": {"any_": ENDED}}, "end_time": {"before_": before.isoformat()}}
    flow_runs = list_flow_runs(api, suite, **ended)[:_A_STEP]
    for flow_run in flow_runs:
        run_id = find_named_run(flow_run, suite.name)
        # Parts in a work pool are flow runs of a deployment of their own.
        parts = _list_flow_runs(api, {"tags": {"all_": [TAG, tag_run(run_id)]}, **ended}) if run_id else []
        for root in [*parts, str(flow_run["id"])]:
            _delete_tree(api, root)
    return len(flow_runs)


def _delete_tree(api: PrefectApi, flow_run_id: str) -> None:
    """Delete a flow run, after what was started within it and its artifacts: what is broken off is found again."""
    children = {"parent_flow_run_id": {"any_": [flow_run_id]}, "deployment_id": {"is_null_": True}}
    # One of a deployment has a record of its own, which may be somebody else's.
    for child_id in _list_flow_runs(api, children):
        _delete_tree(api, child_id)
    for artifact_id in _list_ids(api, "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_run_id]}}}):
        _delete(api, f"/artifacts/{artifact_id}")
    _delete(api, f"/flow_runs/{flow_run_id}")


def _list_flow_runs(api: PrefectApi, conditions: Mapping[str, object]) -> list[str]:
    return _list_ids(api, "/flow_runs/filter", {"flow_runs": conditions})


def _list_ids(api: PrefectApi, path: str, conditions: Mapping[str, object]) -> list[str]:
    ids: list[str] = []
    while True:
        rows = api.post(path, {**conditions, "limit": _PAGE, "offset": len(ids)})
        ids += [str(row["id"]) for row in rows]
        if len(rows) < _PAGE:
            return ids


def _delete(api: PrefectApi, path: str) -> None:
    try:
        api.delete(path)
    except PrefectApiError as error:
        if error.status != _GONE:  # deleted by another hand, or by this request when it was sent before
            raise
