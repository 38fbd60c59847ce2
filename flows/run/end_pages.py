"""What Prefect's page of a run has when the run has ended: what moved and why, and links to its report and to
`evalhouse ui`. Only on a server of the user's, and after the end is on record, where all of it is read from what is
stored. A server that does not take it is reported and no more.
"""

from collections.abc import Iterator
from pathlib import Path

from evalhouse.flows.results.baseline import read_moves, write_moves
from evalhouse.flows.results.output import print_notice
from evalhouse.flows.server.api import PrefectApiError, find_api
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse


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
