"""Pages as HTML: templates with their values, the style sheets and scripts beside them, addresses, and a small cache.

Every text that a template prints is escaped, and control characters and direction marks in it are shown as escapes, as
in the report. Templates and files of the report can be used under their own names.
"""

import hashlib
from collections.abc import Callable, Collection, Hashable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote, urlencode

from fastapi import HTTPException, Query, Request
from fastapi.responses import HTMLResponse

from evalhouse.flows.server.environment import load_user_settings
from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

T = TypeVar("T")
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]
_MAX_CACHED: Final = 64
FOLDERS: Final = (
    Path(__file__).with_name("assets"),
    Path(__file__).parents[1] / "report" / "assets",
)
ASSET_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def use_cached(request: Request, key: Hashable, state: Hashable, read: Callable[[], T]) -> T:
    """Return the value stored under this key if it was read in the same state, else read and store it.

    A comparison of thousands of samples takes most of a second, so pages that show the same one share it. The oldest
    entries are dropped. With the state None the value is always read.
    """
    cached: dict[Hashable, tuple[Hashable, Any]] = request.app.state.cached
    cached_state, value = cached.get(key, (None, None))
    if state is None or cached_state != state:
        value = read()
        cached.pop(key, None)
        cached[key] = (state, value)
        for oldest in list(cached)[:-_MAX_CACHED]:
            cached.pop(oldest, None)
    result: T = value
    return result


def render(request: Request, template: str, /, status: int = 200, **values: object) -> HTMLResponse:
    """Render a page by its template in `assets`, which also gets the warehouse's name and the path in ui."""
    page = request.app.state.templates.get_template(template)
    name = find_warehouse(request).location.name
    return HTMLResponse(page.render(path=request.url.path, warehouse=name, **values), status_code=status)


def find_warehouse(request: Request) -> Warehouse:
    """Return the warehouse that is shown."""
    warehouse: Warehouse = request.app.state.warehouse
    return warehouse


def is_from_elsewhere(request: Request) -> bool:
    """Return whether a page of another site made the browser send this."""
    return request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


def link(path: str, /, **parameters: object) -> str:
    """Return an address in ui: the path's parts are quoted, and parameters that are None or empty are left out.

    Ids that a person or a dataset gave are parameters, since a path cannot hold every text.
    """
    given = {name: value for name, value in parameters.items() if value not in (None, "", [])}
    return quote(path) + (f"?{urlencode(given, doseq=True)}" if given else "")


def check_choice(name: str, given: str, known: Collection[str]) -> None:
    """Raise HTTPException for a value of an address that is not one of the known ones; empty is allowed."""
    if given and given not in known:
        raise HTTPException(400, f"{name} is {given!r}; {suggest(given, list(known))}")


def find_flow_run_page(run: RunRow) -> str | None:
    """Return the address of Prefect's page of the flow run, if its server's address is known."""
    settings = load_user_settings()
    address = settings.get("PREFECT_UI_URL") or settings.get("PREFECT_API_URL", "").removesuffix("/").removesuffix(
        "/api"
    )
    if not run.flow_run_id or not address.startswith(("http://", "https://")):
        return None
    return f"{address.rstrip('/')}/runs/flow-run/{run.flow_run_id}"


@cache
def load_assets() -> dict[str, bytes]:
    """Load the style sheets, scripts and pictures by name."""
    return {
        path.name: path.read_bytes()
        for folder in reversed(FOLDERS)
        for path in folder.iterdir()
        if path.suffix in ASSET_TYPES
    }


@cache
def asset(name: str) -> str:
    """Return the address of a style sheet or script, which changes with its text."""
    return f"/assets/{name}?v={hashlib.sha256(load_assets()[name]).hexdigest()[:12]}"
