"""What `evalhouse serve` says: first what is served, then one line for each run that starts or ends. That is read from
the warehouse, which says it however the run was started."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime

from evalhouse.flows.preparing.address import hide_credentials
from evalhouse.flows.preparing.cron import list_fires
from evalhouse.flows.preparing.suites import Suite
from evalhouse.flows.server.environment import API_URL, prefect_home
from evalhouse.flows.serving.flow_runs import ServedSuite
from evalhouse.flows.serving.page import describe_trigger
from evalhouse.flows.serving.server import ServerUse
from evalhouse.warehouse.errors import WarehouseMissing
from evalhouse.warehouse.rows.runs import RunRow, list_runs
from evalhouse.warehouse.store import Warehouse

# Newest runs of a warehouse that are looked at: more do not start between two looks.
_NEWEST = 50


class RunLines:
    """Looks at the warehouses of some suites; `read_news` gives what has changed since the look before."""

    def __init__(self, suites: Sequence[ServedSuite]) -> None:
        self._names = {suite.name for suite in suites}
        self._urls = sorted({suite.warehouse_url for suite in suites})
        self._seen: dict[str, RunRow] = {}
        self._seen = {run.run_id: run for run in self._list_runs()}

    def list_under_way(self) -> list[RunRow]:
        """The runs that were under way at the last look."""
        return [run for run in self._seen.values() if run.status == "running"]

    def read_news(self) -> list[str]:
        """A line for each run that has started, ended or gone on, oldest first."""
        lines = []
        for run in sorted(self._list_runs(), key=lambda run: run.started_at):
            before = self._seen.get(run.run_id)
            if before is None or (before.status != "running" and run.status == "running"):
                lines.append(_tell_start(run, is_resumed=before is not None))
            if run.status != "running" and (before is None or before.status == "running"):
                lines.append(_tell_end(run))
            self._seen[run.run_id] = run
        return lines

    def _list_runs(self) -> list[RunRow]:
        found = []
        for url in self._urls:
            try:
                found += list_runs(Warehouse(url), limit=_NEWEST)
            except WarehouseMissing:
                continue
        return [run for run in found if run.suite in self._names and run.kind != "noise"]


def _tell_start(run: RunRow, *, is_resumed: bool) -> str:
    what = "goes on" if is_resumed else f"has started {describe_trigger(run)}"
    return f"{_now()} {run.suite}: run {run.run_id} {what}"


def _tell_end(run: RunRow) -> str:
    seconds = (run.finished_at - run.started_at).total_seconds() if run.finished_at else 0.0
    problem = f": {' '.join(run.problem.split())}" if run.problem else ""
    command = f"evalhouse {'show' if run.status == 'completed' else 'resume'} {run.run_id}"
    told = f"{run.suite}: run {run.run_id} {run.status} after {seconds:.0f} s, {run.n_samples or 0} samples{problem}"
    return f"{_now()} {told}" if command in told else f"{_now()} {told}; {command}"


def _now() -> str:
    return f"{datetime.now():%H:%M:%S}"


def introduce_serving(suites: Sequence[Suite], server: ServerUse, *, parallel: int) -> list[str]:
    """What a person reads when serving begins: where to look, when what runs, how to announce an update."""
    kept = f"; it ends with this process, its data stays in {prefect_home()}" if server.own else ""
    lines = [f"Prefect server {hide_credentials(server.api_url)}{kept}"]
    lines += [f"in a browser   {hide_credentials(server.ui_url)}", ""]
    for suite in suites:
        lines += [f"{suite.name} ({suite.path})", *_introduce_schedule(suite), *_introduce_trigger(suite), ""]
    triggered = [suite.trigger.knowledge_base for suite in suites if suite.trigger]
    if triggered:
        lines += ["To announce an update, from any folder:"]
        lines += [f"  export {API_URL}={hide_credentials(server.api_url)}"]
        lines += [f"  evalhouse kb-updated {shlex.quote(name)} --version V --changed ID" for name in triggered]
        lines += [""]
    at_once = "one run at a time" if parallel == 1 else f"at most {parallel} runs at a time, of a suite one"
    return [*lines, f"Serving {len(suites)} suite{'s' if len(suites) != 1 else ''}, {at_once}. Ctrl-C ends it."]


def _introduce_schedule(suite: Suite) -> list[str]:
    if suite.schedule is None:
        return []
    cron, timezone = suite.schedule.cron, suite.schedule.timezone
    fires = [f"{at:%Y-%m-%d %H:%M}" for at in list_fires(cron, timezone, n=3, after=datetime.now(UTC))]
    return [f"  on schedule    {cron} in {timezone}: next {', '.join(fires)}"]


def _introduce_trigger(suite: Suite) -> list[str]:
    if suite.trigger is None:
        return []
    quiet = f"{suite.trigger.debounce_s:g} s"
    return [f"  after updates  of {suite.trigger.knowledge_base}, when none has followed for {quiet}"]
