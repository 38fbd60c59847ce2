"""Running an evaluation from start to end in this process: server, dataset, live run, flow, and what came of it.

The order is for the person who waits. Our Prefect server needs some seconds to come up, so it is started first, and
everything that can be refused (settings, dataset, warehouse) is checked meanwhile; Prefect itself is imported only
after its settings are known, which is why the flow is imported inside a function.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from evalhouse.flows.pools.parts import is_spread
from evalhouse.flows.preparing.request import RunRequest, leave_out_judging, make_row, now_utc
from evalhouse.flows.preparing.triggers import BY_HAND, Trigger
from evalhouse.flows.server.environment import configure_prefect_environment, find_api_url
from evalhouse.flows.server.interrupts import Interrupts
from evalhouse.flows.server.local import LocalServer
from evalhouse.tasks.judge.errors import JudgeError, RunCancelled
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.calls import take_in_orphans
from evalhouse.warehouse.rows.responses import count_responses, take_in_lost_responses
from evalhouse.warehouse.rows.runs import RunKind, RunRow, RunStatus, find_run, insert_run, update_run
from evalhouse.warehouse.rows.samples import count_samples
from evalhouse.warehouse.rows.suite_lock import hold_suite
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.upkeep.free_space import check_room

if TYPE_CHECKING:
    import polars as pl

    from evalhouse.tasks.datasets.read import StagedDataset
    from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.flows.run.outcome import RunOutcome, Watch

# How long replies that are under way may still take after Ctrl-C.
_DRAIN_S = 3.0


def start_run(
    settings: RunSettings,
    *,
    frame: "pl.DataFrame | None" = None,
    trigger: Trigger = BY_HAND,
    watch: Watch | None = None,
    wait_s: float = 0.0,
) -> RunOutcome:
    """Evaluate a dataset, or the samples of a Polars frame, for which `settings.dataset` is then just a name.

    `trigger` says why and goes on record; `watch` gives a context manager that is open while samples are judged;
    `wait_s` is how long to wait for the end of another run of the same suite.

    Raises the errors of dataset, settings, warehouse, target and judge for whatever can be refused beforehand.
    """
    request = RunRequest(settings=settings, kind="evaluation", trigger=trigger)
    return _start(request, settings.dataset if frame is None else frame, watch, wait_s)


def start_collection(
    settings: RunSettings, *, trigger: Trigger = BY_HAND, watch: Watch | None = None, wait_s: float = 0.0
) -> RunOutcome:
    """Ask the target about every sample and judge nothing; otherwise as `start_run`."""
    request = RunRequest(settings=leave_out_judging(settings), kind="collection", trigger=trigger)
    return _start(request, settings.dataset, watch, wait_s)


def _start(request: RunRequest, source: "str | pl.DataFrame", watch: Watch | None, wait_s: float) -> RunOutcome:
    across_machines = find_api_url() is not None
    with (
        Interrupts() as interrupts,
        _hold_suite(request.settings, wait_s),
        _prefect_server() as wait_for_prefect,
    ):
        warehouse = _open_warehouse(request.settings)
        # Imported after the server was started: these take a second in which it comes up.
        from evalhouse.flows.preparing.collection import find_parent, make_asked_target, make_collection  # noqa: PLC0415
        from evalhouse.flows.preparing.live_run import make_tools  # noqa: PLC0415
        from evalhouse.tasks.datasets.read import stage_dataset  # noqa: PLC0415

        parent = find_parent(warehouse, request.settings)
        if parent is not None:
            request = replace(request, settings=request.settings.model_copy(update={"responses": parent.run_id}))
        settings = request.settings
        tools = make_tools(settings, request.kind)
        target = make_asked_target(settings)
        staged = stage_dataset(source, mapping=settings.mapping, limit=settings.limit)
        run = make_row(request, tools.plan, staged)
        with hold_run(warehouse.location, run.run_id):
            live_run = tools.make_live_run(run.run_id, warehouse)
            live_run.staged = staged
            live_run.progress.n_samples = staged.n_samples
            with _begun(live_run, interrupts):
                live_run.collection = make_collection(live_run, run, target, parent)
                insert_run(warehouse, run)
            outcome = _carry_out(live_run, run, watch, wait_for_prefect, interrupts, across_machines=across_machines)
            return _measure_noise(outcome, settings, watch, interrupts, across_machines=across_machines)


def resume_run(
    wanted: str, *, warehouse_url: str, changes: Mapping[str, object], watch: Watch | None = None, wait_s: float = 0.0
) -> RunOutcome:
    """Go on with a run where it stopped, with its own settings but for `changes`."""
    run = find_run(Warehouse(warehouse_url), wanted)
    if run.kind == "noise":
        raise WarehouseError(f"run {run.run_id} measured the noise of {run.parent_run_id}; the next run measures anew")
    if run.kind in ("prompts", "benchmark"):
        raise WarehouseError(
            f"run {run.run_id} is of kind {run.kind}; give its command again: what was answered is on record"
        )
    settings = RunSettings.model_validate_json(
        json.dumps({**run.config, **changes, "warehouse": warehouse_url}, ensure_ascii=False)
    )
    across_machines = find_api_url() is not None
    location = Warehouse(warehouse_url).location
    with (
        Interrupts() as interrupts,
        _hold_suite(settings, wait_s),
        hold_run(location, run.run_id),
        _prefect_server() as wait_for_prefect,
    ):
        warehouse = _open_warehouse(settings)
        from evalhouse.flows.preparing.collection import find_parent, make_asked_target, make_collection  # noqa: PLC0415
        from evalhouse.flows.preparing.live_run import make_tools  # noqa: PLC0415

        parent, target = find_parent(warehouse, settings), make_asked_target(settings)
        tools = make_tools(settings, run.kind)
        staged = None if count_samples(warehouse, run.run_id) else _stage_again(settings, run)
        live_run = tools.make_live_run(run.run_id, warehouse)
        live_run.resumed, live_run.staged = True, staged
        live_run.progress.n_samples = run.n_samples or 0
        with _begun(live_run, interrupts):
            live_run.collection = make_collection(live_run, run, target, parent)
            update_run(warehouse, run.run_id, status="running", finished_at=None, problem=None)
        outcome = _carry_out(live_run, run, watch, wait_for_prefect, interrupts, across_machines=across_machines)
        return _measure_noise(outcome, settings, watch, interrupts, across_machines=across_machines)


@contextmanager
def _hold_suite(settings: RunSettings, wait_s: float) -> Iterator[None]:
    """Keep other runs of the same suite away, where the run is of one."""
    if settings.suite is None:
        yield
        return
    with hold_suite(Warehouse(settings.warehouse), settings.suite, wait_s=wait_s):
        yield


def _stage_again(settings: RunSettings, run: RunRow) -> "StagedDataset":
    """Read the dataset of a run that stopped before it was loaded; it must not have changed since."""
    from evalhouse.tasks.datasets.read import stage_dataset  # noqa: PLC0415

    staged = stage_dataset(settings.dataset, mapping=settings.mapping, limit=settings.limit)
    if staged.content_hash != run.dataset_hash:
        staged.staging.discard()
        raise WarehouseError(
            f"run {run.run_id} stopped before its dataset was loaded, and {settings.dataset} has changed since; "
            "start a new run: what a judge already answered is on record and costs nothing"
        )
    return staged


def _open_warehouse(settings: RunSettings) -> Warehouse:
    warehouse = Warehouse(settings.warehouse)
    warehouse.migrate()
    check_room(warehouse)
    take_in_orphans(warehouse)
    take_in_lost_responses(warehouse)
    return warehouse


@contextmanager
def _prefect_server() -> Iterator[Callable[[], None]]:
    """A Prefect server for this block: the user's own where one is set, else one of ours that ends with it."""
    if find_api_url() is not None:
        configure_prefect_environment(None)
        yield lambda: None
        return
    server = LocalServer.start()
    configure_prefect_environment(server.api_url, auth_string=server.auth_string)
    try:
        yield server.wait_until_ready
    finally:
        server.stop()


@contextmanager
def _begun(live_run: "LiveRun", interrupts: Interrupts) -> Iterator[None]:
    """The block puts the run on record. It is not broken off: whoever interrupts a run on record is told its id."""
    from evalhouse.flows.preparing.live_run import keep_prompts  # noqa: PLC0415

    with interrupts.noted():
        try:
            keep_prompts(live_run)
            yield
        except BaseException:
            _close_records(live_run)
            _put_away(live_run)
            raise
        interrupts.note_on_record(live_run.run_id)


def _carry_out(
    live_run: "LiveRun",
    run: RunRow,
    watch: Watch | None,
    wait_for_prefect: Callable[[], None],
    interrupts: Interrupts,
    *,
    across_machines: bool,
) -> RunOutcome:
    """Run the flow to its end and put on record how it ended.

    Limits are shared with all processes of this machine, or of all that use the same Prefect server.
    """
    from evalhouse.tasks.pipeline.live_run import register_live_run  # noqa: PLC0415

    register_live_run(live_run)
    try:
        interrupts.raise_if_taken()
        import evalhouse.flows.evaluation  # noqa: F401, PLC0415  # Prefect, imported while its server comes up

        wait_for_prefect()
        watch = watch or (lambda _: nullcontext())
        problem = asyncio.run(_run_flow(live_run, run.kind, watch, interrupts, across_machines=across_machines))
    except KeyboardInterrupt:
        problem = RunCancelled(f"stopped by {interrupts.taken}")
    except BaseException as error:  # whatever ends the run, the journal is emptied and the end is on record
        _conclude(live_run, run, error, interrupts)
        raise
    return _conclude(live_run, run, problem, interrupts)


async def _run_flow(
    live_run: "LiveRun", kind: RunKind, watch: Watch, interrupts: Interrupts, *, across_machines: bool
) -> Exception | None:
    """The flow, with the terminal's signals turned into an orderly stop; returns what it ended with."""
    from prefect.exceptions import TerminationSignal  # noqa: PLC0415

    from evalhouse.flows.evaluation import collect_run, evaluate_run  # noqa: PLC0415
    from evalhouse.tasks.asking.shared_limit import share_limits  # noqa: PLC0415

    if is_spread(live_run.settings):
        from evalhouse.flows.part import judge_part  # noqa: PLC0415
        from evalhouse.flows.pools.coordinate import judge_elsewhere  # noqa: PLC0415

        live_run.judge_elsewhere = partial(judge_elsewhere, live_run, judge_part)
    shared = share_limits(
        live_run.shared_limits, concurrency=live_run.settings.concurrency, across_machines=across_machines
    )
    loop = asyncio.get_running_loop()

    def stop(name: str) -> None:
        loop.call_soon_threadsafe(partial(live_run.stop, RunCancelled(f"stopped by {name}"), drain_s=_DRAIN_S))

    try:
        with interrupts.answered_by(stop):
            async with shared:
                with watch(live_run):
                    await (collect_run if kind == "collection" else evaluate_run)(live_run.run_id)
    except (JudgeError, WarehouseError) as error:
        return error
    except TerminationSignal:  # Prefect's, in the moment before the flow has taken the signals back
        return RunCancelled("stopped by SIGTERM")
    finally:
        interrupts.note_only()
        await live_run.close()
    return None


def _conclude(live_run: "LiveRun", run: RunRow, problem: BaseException | None, interrupts: Interrupts) -> RunOutcome:
    """Empty the journal and write how the run ended; when that cannot be written it is only told."""
    interrupts.note_only()
    try:
        _close_records(live_run)
        _write_end(live_run, run.kind, problem)
        run = find_run(live_run.warehouse, live_run.run_id)
    except WarehouseError as error:
        # Replies are in the journal and the verdicts follow from them: there is a run to resume.
        problem = problem or error
        run = replace(run, status=_name_end(live_run, problem))
    finally:
        _put_away(live_run)
    return RunOutcome(
        run=run, status=run.status, counts=live_run.asker.counts, problem=_describe_end(live_run, problem)
    )


def _measure_noise(
    outcome: RunOutcome, settings: RunSettings, watch: Watch | None, interrupts: Interrupts, *, across_machines: bool
) -> RunOutcome:
    """Judge some samples again where the settings ask for it, and tell what came of it with the run."""
    if not settings.noise_share or interrupts.taken is not None:
        return outcome
    from evalhouse.flows.run.noise import measure_noise  # noqa: PLC0415

    def judge_again(live_run: "LiveRun", run: RunRow) -> RunOutcome:
        return _carry_out(live_run, run, watch, lambda: None, interrupts, across_machines=across_machines)

    noise = measure_noise(outcome.run, settings, Warehouse(settings.warehouse), judge_again)
    return replace(outcome, noise=noise)


def _close_records(live_run: "LiveRun") -> None:
    """Bring calls and responses into the warehouse; what cannot be moved now is on disk."""
    try:
        live_run.asker.record.close()
    finally:
        if live_run.collection is not None:
            live_run.collection.record.close()


def _write_end(live_run: "LiveRun", kind: RunKind, problem: BaseException | None) -> None:
    """Write the run's status; an evaluation that was stopped is scored as far as it came."""
    if kind == "collection":
        live_run.progress.n_failed = count_responses(live_run.warehouse, live_run.run_id)["n_failed"]
    elif problem is not None and count_samples(live_run.warehouse, live_run.run_id):
        from evalhouse.tasks.score import score_verdicts  # noqa: PLC0415

        score_verdicts(live_run)
    told = _describe_end(live_run, problem)
    update_run(
        live_run.warehouse, live_run.run_id, status=_name_end(live_run, problem), finished_at=now_utc(), problem=told
    )


def _name_end(live_run: "LiveRun", problem: BaseException | None) -> RunStatus:
    if problem is None:
        return "incomplete" if live_run.progress.n_failed else "completed"
    return "cancelled" if isinstance(problem, RunCancelled) else "failed"


def _describe_end(live_run: "LiveRun", problem: BaseException | None) -> str | None:
    from evalhouse.tasks.asking.record import CallRecord  # noqa: PLC0415

    record = live_run.asker.record
    n_lost = record.n_lost if isinstance(record, CallRecord) else 0
    lost = f"; {n_lost} replies came that could not be kept, and will be asked for again" if n_lost else ""
    return f"{problem}{lost}" if problem else None


def _put_away(live_run: "LiveRun") -> None:
    from evalhouse.tasks.pipeline.live_run import forget_live_run  # noqa: PLC0415

    forget_live_run(live_run.run_id)
    if live_run.staged is not None:
        live_run.staged.staging.discard()
