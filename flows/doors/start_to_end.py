"""Running an evaluation from start to end in this process: server, dataset, live run, flow, and what came of it.

The order is for the person who waits. Our Prefect server needs some seconds to come up, so it is started first, and
everything that can be refused (settings, dataset, warehouse) is checked meanwhile; Prefect itself is imported only
after its settings are known, which is why the flow is imported inside a function.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from evalhouse.flows.preparing.request import BY_HAND, RunRequest, Trigger, leave_out_judging
from evalhouse.flows.run.outcome import Finish, RunOutcome, Watch
from evalhouse.flows.run.process import FlowCall, find_unfinished, go_on, open_process, start
from evalhouse.tasks.settings.run import RunSettings

if TYPE_CHECKING:
    import polars as pl


def start_run(
    settings: RunSettings,
    *,
    source: "str | pl.DataFrame | None" = None,
    trigger: Trigger = BY_HAND,
    watch: Watch | None = None,
    finish: Finish | None = None,
    wait_s: float = 0.0,
) -> RunOutcome:
    """Evaluate a dataset, or the samples of a `source`, for which `settings.dataset` is then just a name.

    `trigger` says why and goes on record; `watch` gives a context manager that is open while samples are judged;
    `finish` is called when the run has ended, and what it returns is why it is red in Prefect; `wait_s` is how long
    to wait for the end of another run of the same suite.

    Raises the errors of dataset, settings, warehouse, target and judge for whatever can be refused beforehand.
    """
    request = RunRequest(settings=settings, kind="evaluation", trigger=trigger)
    return _start(request, settings.dataset if source is None else source, watch, wait_s, finish)


def start_collection(
    settings: RunSettings, *, trigger: Trigger = BY_HAND, watch: Watch | None = None, wait_s: float = 0.0
) -> RunOutcome:
    """Ask the target about every sample and judge nothing; otherwise as `start_run`."""
    request = RunRequest(settings=leave_out_judging(settings), kind="collection", trigger=trigger)
    return _start(request, settings.dataset, watch, wait_s)


def _start(
    request: RunRequest,
    source: "str | pl.DataFrame",
    watch: Watch | None,
    wait_s: float,
    finish: Finish | None = None,
) -> RunOutcome:
    # A trigger that knows its flow run is that of a served suite.
    is_served = request.trigger.flow_run_id is not None
    with open_process(
        request.settings, watch, wait_s, finish=finish, find_flow=find_flow, is_served=is_served
    ) as process:
        return asyncio.run(start(process, request, source))


def resume_run(
    wanted: str,
    *,
    warehouse_url: str,
    changes: Mapping[str, object],
    watch: Watch | None = None,
    finish: Finish | None = None,
    wait_s: float = 0.0,
    is_served: bool = False,
) -> RunOutcome:
    """Go on with a run where it stopped, with its own settings but for `changes`; otherwise as `start_run`.

    `is_served` says that a served suite does so, which takes a run up again that an outage has broken off."""
    unfinished = find_unfinished(wanted, warehouse_url=warehouse_url, changes=changes)
    run_id, settings = unfinished.run.run_id, unfinished.settings
    with open_process(
        settings, watch, wait_s, run_id=run_id, finish=finish, find_flow=find_flow, is_served=is_served
    ) as process:
        return asyncio.run(go_on(process, unfinished.run, settings))


def find_flow() -> FlowCall:
    """What takes a live run to its end as a flow run of its own; imports Prefect."""
    from evalhouse.flows.evaluation import call_as_flow  # noqa: PLC0415

    return call_as_flow
