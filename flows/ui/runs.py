"""One run as a whole."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from evalhouse.flows.display.output import write_json
from evalhouse.flows.documents.gate import name_check, write_amount
from evalhouse.flows.documents.run_origin import HEADLINE
from evalhouse.flows.report.sections import describe_about, describe_run, draw_charts
from evalhouse.flows.ui.live import describe_live, find_live
from evalhouse.flows.ui.pages import find_flow_run_page, find_warehouse, link, render
from evalhouse.flows.ui.pair.kept import compare_kept
from evalhouse.warehouse.rows.report import Row, read_summary
from evalhouse.warehouse.rows.run_pages import read_checks, read_values, read_worst
from evalhouse.warehouse.rows.runs import RunRow, find_run

router = APIRouter()


@router.get("/runs/{run}")
def show_run(request: Request, run: str) -> Response:
    """One run as a whole; `run` is whatever the commands take for one."""
    warehouse = find_warehouse(request)
    row = find_run(warehouse, run)
    if row.status == "running":
        return _show_running(request, row)
    summary = read_summary(warehouse, row)
    names = [str(metric["metric"]) for metric in summary.metrics]
    worst = read_worst(warehouse, row, [name for name in names if name in HEADLINE] or names)
    return render(
        request,
        "run.html",
        worst=[_describe_worst(sample) for sample in worst],
        charts=draw_charts(read_values(warehouse, row), summary.history, link="/runs/"),
        checks=[_describe_check(check) for check in read_checks(warehouse, row.run_id)],
        settings=_list_settings(row),
        series=row.series,
        prefect=find_flow_run_page(row),
        samples_address=link(f"/runs/{row.run_id}/samples"),
        **describe_run(warehouse, row, None, summary, compare=lambda pair: compare_kept(request, pair).comparison),
    )


def _show_running(request: Request, run: RunRow) -> Response:
    """A run under way: its page fills until there is all that stands on that of a run that has ended."""
    return render(request, "running.html", live=describe_live(find_live(request), run), **describe_about(run))


def _describe_check(check: Row) -> dict[str, Any]:
    return {**check, "name": name_check(check), "found": write_amount(check["kind"], check["value"])}


def _list_settings(run: RunRow) -> list[tuple[str, str]]:
    """What a run was made with, by name; what was left as it is by default has no value of its own."""
    given = {name: value for name, value in sorted(run.config.items()) if value not in (None, "", [], {})}
    versions = {"code_version": run.code_version, "suite_hash": run.suite_hash, "dataset_hash": run.dataset_hash}
    shown = {**given, **{name: value for name, value in versions.items() if value}}
    return [
        (name, value if isinstance(value, str) else write_json(value, indent=False)) for name, value in shown.items()
    ]


def _describe_worst(sample: Row) -> dict[str, Any]:
    """A sample with what is wrong with its statement, in words; the colours are those of labels."""
    if sample["label"] == "FN":
        return {**sample, "tag": "is-fn", "wrong": "left out"}
    if sample["label"] == "FP":
        return {**sample, "tag": "is-fp", "wrong": "wrong" if sample["supported"] else "wrong, and without support"}
    return {**sample, "tag": "is-fp", "wrong": "without support"}
