"""Runs: the list of all, and one as a whole."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from evalhouse.flows.ui.pages import find_warehouse, render
from evalhouse.warehouse.rows.runs import find_run, list_runs

router = APIRouter()
_MOST: int = 200


@router.get("/runs")
def show_runs(request: Request) -> Response:
    """The newest runs."""
    return render(request, "runs.html", runs=list_runs(find_warehouse(request), limit=_MOST))


@router.get("/runs/{run}")
def show_run(request: Request, run: str) -> Response:
    """One run; `run` is whatever the commands take for one."""
    return render(request, "run.html", run=find_run(find_warehouse(request), run))
