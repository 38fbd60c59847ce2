"""How far a run is, on its page in Prefect: a progress artifact that is renewed every few seconds, a line in its log
where it waits, and a link to what is evaluated."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

import httpx
from prefect.artifacts import acreate_link_artifact, acreate_progress_artifact, aupdate_progress_artifact
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from evalhouse.flows.results.progress import count_all_steps, count_steps, describe_progress

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun
from collections.abc import Iterator
from pathlib import Path

from evalhouse.flows.results.baseline import read_moves, write_moves
from evalhouse.flows.results.output import print_notice
from evalhouse.flows.server.api import PrefectApiError, find_api
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

_EVERY_S: Final = 5.0
_BETWEEN_WAITS_S: Final = 60.0


@asynccontextmanager
async def progress_shown(live_run: "LiveRun") -> AsyncIterator[None]:
    """Show the progress within the block; the run is the same where the server does not take it."""
    showing = asyncio.create_task(_show(live_run))
    try:
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def _show(live_run: "LiveRun") -> None:
    key, last = f"evalhouse-{live_run.run_id.lower()}", ""
    try:
        if href := live_run.settings.href:
            await acreate_link_artifact(link=href, link_text="what is evaluated", key=f"{key}-link")
        artifact_id = await acreate_progress_artifact(progress=0.0, key=f"{key}-progress", description="begun")
        try:
            logged_at = -_BETWEEN_WAITS_S
            while True:
                await asyncio.sleep(_EVERY_S)
                text = describe_progress(live_run).replace("\n", ", ")
                if text != last:
                    await _update(live_run, artifact_id, text)
                if time.monotonic() - logged_at >= _BETWEEN_WAITS_S and (waiting := describe_waiting(live_run)):
                    logged_at = time.monotonic()
                    get_run_logger().info("Waiting: %s.", waiting)
                last = text
        finally:
            await _update(live_run, artifact_id, describe_progress(live_run).replace("\n", ", "))
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("Prefect's page of this run lacks its progress: %s", error)


async def _update(live_run: "LiveRun", artifact_id: UUID, text: str) -> None:
    n_all = count_all_steps(live_run)
    progress = 100.0 * count_steps(live_run) / n_all if n_all else 0.0
    await aupdate_progress_artifact(artifact_id, progress=min(progress, 100.0), description=text)


def describe_waiting(live_run: "LiveRun") -> str | None:
    """What the run's requests wait for, where they wait for their endpoint or a batch."""
    batches = [said for queue in live_run.batch_queues if (said := queue.describe())]
    waits = [said for asker in live_run.askers if (said := asker.limit.describe_wait(time.monotonic()))]
    return "; ".join([*batches, *waits]) or None


def write_report(warehouse: Warehouse, run: RunRow, settings: RunSettings) -> Path | None:
    """Write the report of a run that has scores into the folder for reports; None without one."""
    if settings.reports is None or run.kind != "evaluation" or run.status not in ("completed", "incomplete"):
        return None
    from evalhouse.flows.report.page import build_page  # noqa: PLC0415  # imports SciPy
    from evalhouse.warehouse.rows.report import reading_slices  # noqa: PLC0415

    path = Path(settings.reports).expanduser().absolute() / f"{run.run_id}.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with reading_slices(warehouse, run, None, with_calls=True) as slices:
            page = build_page(warehouse, run, None, slices, with_calls=True)
        path.write_text(page, encoding="utf-8")
    except (OSError, WarehouseError) as error:
        print_notice(f"the report was not written: {error}")
        return None
    return path


def publish_end(warehouse: Warehouse, run: RunRow, settings: RunSettings, report: Path | None) -> None:
    """Put what moved, and the links, on the page of the run's flow run."""
    if run.kind != "evaluation" or run.flow_run_id is None:
        return
    try:
        api = find_api("what moved cannot be shown")
        for key, text, description in list_pages(warehouse, run, settings, report):
            body = {"key": f"evalhouse-{run.run_id.lower()}-{key}", "type": "markdown", "data": text}
            api.post("/artifacts/", {**body, "description": description, "flow_run_id": run.flow_run_id})
    except (PrefectApiError, WarehouseError) as error:
        print_notice(f"Prefect's page of the run lacks what moved, and links: {error}")


def list_pages(
    warehouse: Warehouse, run: RunRow, settings: RunSettings, report: Path | None
) -> Iterator[tuple[str, str, str]]:
    """The end of each artifact's key, its text, and what it is."""
    if settings.ui_url is not None:
        address = f"{settings.ui_url.rstrip('/')}/runs/{run.run_id}"
        yield "ui", f"[run {run.run_id} in evalhouse ui]({address})", "The run with every sample and verdict"
    if report is not None:
        yield "report", f"[{report.name}]({report.as_uri()})", f"The report, on the machine that ran it: {report}"
    if run.status in ("completed", "incomplete") and (moves := read_moves(warehouse, run)) is not None:
        yield "moved", "\n".join(write_moves(moves)), f"What moved in run {run.run_id}, and why"
