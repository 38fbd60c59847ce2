"""All series: what is evaluated again and again, and how it stands."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from evalhouse.flows.ui.pages import find_warehouse, render
from evalhouse.warehouse.queries import read_query

router = APIRouter()


@router.get("/")
def show_all_series(request: Request) -> Response:
    """A row for each series, the newest first."""
    rows = find_warehouse(request).read_rows(read_query("ui/series"))
    return render(request, "series.html", series=rows)
