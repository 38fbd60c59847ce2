"""The app of `evalhouse ui`: its pages, and what is shown where one cannot be."""

from functools import partial
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.ui import (
    costs,
    documents,
    judge,
    labels,
    live,
    review,
    run_list,
    runs,
    sample,
    samples,
    series,
    testsets,
)
from evalhouse.flows.ui.common import list_common
from evalhouse.flows.ui.guard import HEADERS, Access, Guard
from evalhouse.flows.ui.kept import Kept
from evalhouse.flows.ui.kept_pages import KeptPages
from evalhouse.flows.ui.pages import find_asset, render
from evalhouse.flows.ui.pair import flips as pair_flips
from evalhouse.flows.ui.pair import page as pair
from evalhouse.flows.ui.pair import sample as pair_sample
from evalhouse.flows.ui.pair import samples as pair_samples
from evalhouse.flows.ui.sql import page as sql
from evalhouse.flows.ui.turns import OneReading
from evalhouse.warehouse.errors import QueryError, WarehouseBusy, WarehouseError, WarehouseMissing
from evalhouse.warehouse.store import Warehouse

_PAGES: Final = (
    series,
    live,
    run_list,
    runs,
    costs,
    sample,
    samples,
    judge,
    labels,
    review,
    documents,
    testsets,
    pair,
    pair_flips,
    pair_sample,
    pair_samples,
    sql,
)
_AGAIN_S: Final = 2
"""Seconds after which a page is asked for again where a run is writing."""


def create_app(warehouse: Warehouse, access: Access) -> FastAPI:
    """The app over one warehouse, for those whom `access` lets in."""
    app = FastAPI(title="evalhouse ui", openapi_url=None)
    app.state.warehouse = warehouse
    app.state.kept = Kept()
    app.state.live = live.LiveReader(warehouse)
    app.add_middleware(KeptPages, warehouse=warehouse, list_common=partial(list_common, warehouse))
    app.add_middleware(OneReading)
    app.add_middleware(Guard, access=access)
    for page in _PAGES:
        app.include_router(page.router)
    app.get("/assets/{name}")(_send_asset)
    app.exception_handler(HTTPException)(_show_status)
    app.exception_handler(RequestValidationError)(_show_invalid)
    for known in (WarehouseError, SettingsError):
        app.exception_handler(known)(_show_failure)
    app.exception_handler(Exception)(_show_fault)
    return app


def _send_asset(name: str) -> Response:
    found = find_asset(name)
    if found is None:
        raise HTTPException(404, f"there is no file {name!r}")
    return found


def _show_failure(request: Request, error: Exception) -> Response:
    return show_error(request, _find_status(error), str(error))


def _show_fault(request: Request, error: Exception) -> Response:
    """A mistake of ours; this handler stands before the guard, and what is wrong is written where ui was started."""
    text = f"this page failed ({type(error).__name__}); the terminal in which `evalhouse ui` runs says more"
    response = show_error(request, HTTPStatus.INTERNAL_SERVER_ERROR, text)
    response.headers.update(HEADERS)
    return response


def _find_status(error: Exception) -> int:
    if isinstance(error, WarehouseBusy | WarehouseMissing):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.BAD_REQUEST if isinstance(error, QueryError) else HTTPStatus.NOT_FOUND


def _show_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = error.detail if error.status_code != HTTPStatus.NOT_FOUND or error.detail != "Not Found" else ""
    return show_error(request, error.status_code, text or f"there is no page {request.url.path!r}")


def _show_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{one['loc'][-1]} is {one.get('input')!r}: {one['msg']}" for one in error.errors())
    return show_error(request, HTTPStatus.BAD_REQUEST, said)


def show_error(request: Request, status: int, text: str) -> Response:
    """A page in place of the one that was asked for, or for a script what it says; one that may be there in a moment is
    asked for again."""
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse({"problem": text}, status_code=status)
    again = _AGAIN_S if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    title = HTTPStatus(status).phrase.capitalize()
    response = render(request, "error.html", status, title=title, text=text, again=again)
    if again:
        response.headers["Retry-After"] = str(again)
    return response
