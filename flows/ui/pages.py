"""Pages as HTML: templates with what they show, files that go with them, and addresses.

Whatever a template prints is escaped, and control characters and direction marks in it are shown as such, as in the
report. Templates and files of the report are at hand under their own names.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import jinja2
from fastapi import HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from evalhouse.flows.report.page import make_environment
from evalhouse.flows.server.environment import load_user_settings
from evalhouse.warehouse.messages import clean_text
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

T = TypeVar("T")
_MOST: Final = 64


class Kept:
    """The last things that were read, each with the state it is true of; safe to use from several threads."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        self._guard = threading.Lock()

    def find(self, key: Hashable, state: Hashable, read: Callable[[], T]) -> T:
        """Return what was read under this key in this state, or else what `read` returns.

        Where the state is None it is always read.
        """
        with self._guard:
            known, value = self._entries.get(key, (None, None))
        if state is not None and known == state:
            found: T = value
            return found
        made = read()
        with self._guard:
            self._entries[key] = (state, made)
            self._entries.move_to_end(key)
            while len(self._entries) > _MOST:
                self._entries.popitem(last=False)
        return made


def find_kept(request: Request) -> Kept:
    """Return what the app keeps."""
    kept: Kept = request.app.state.kept
    return kept


_FOLDERS: Final = (
    Path(__file__).with_name("assets"),
    Path(__file__).parents[1] / "report" / "assets",
)
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOREVER: Final = "public, max-age=31536000, immutable"


def render(request: Request, template: str, /, status: int = 200, **values: object) -> HTMLResponse:
    """A page by its template in `assets`, which also knows the warehouse's name and where in ui it is."""
    page = _load_templates().get_template(template)
    name = find_warehouse(request).location.name
    return HTMLResponse(page.render(path=request.url.path, warehouse=name, **values), status_code=status)


def find_warehouse(request: Request) -> Warehouse:
    """The warehouse that is shown."""
    warehouse: Warehouse = request.app.state.warehouse
    return warehouse


def link(path: str, /, **parameters: object) -> str:
    """An address in ui: the path's parts are quoted, and parameters that are None or empty are left out.

    Ids stand among the parameters wherever a person or a dataset gave them, since a path may not hold every text.
    """
    given = {name: value for name, value in parameters.items() if value not in (None, "", [])}
    return quote(path) + (f"?{urlencode(given, doseq=True)}" if given else "")


def check_choice(name: str, given: str, known: Collection[str]) -> None:
    """Raise HTTPException for a value of an address that is not one of the known ones; empty is allowed."""
    if given and given not in known:
        raise HTTPException(400, f"{name} is {given!r}; {suggest(given, list(known))}")


def find_flow_run_page(run: RunRow) -> str | None:
    """Prefect's page of the flow run, where its server's address is known."""
    settings = load_user_settings()
    address = settings.get("PREFECT_UI_URL") or settings.get("PREFECT_API_URL", "").removesuffix("/").removesuffix(
        "/api"
    )
    if not run.flow_run_id or not address.startswith(("http://", "https://")):
        return None
    return f"{address.rstrip('/')}/runs/flow-run/{run.flow_run_id}"


def find_asset(name: str) -> Response | None:
    """A style sheet or script as its own file; None where there is none of that name."""
    found = _read_asset(name)
    if found is None:
        return None
    return Response(found, media_type=_TYPES[Path(name).suffix], headers={"Cache-Control": _FOREVER})


@cache
def asset(name: str) -> str:
    """The address of a style sheet or script, another one whenever its text is."""
    found = _read_asset(name)
    if found is None:
        raise FileNotFoundError(name)
    return f"/assets/{name}?v={hashlib.sha256(found).hexdigest()[:12]}"


@cache
def _read_asset(name: str) -> bytes | None:
    paths = [path for folder in _FOLDERS for path in folder.iterdir() if path.suffix in _TYPES and path.name == name]
    return paths[0].read_bytes() if paths else None


@cache
def _load_templates() -> jinja2.Environment:
    environment = make_environment(*_FOLDERS)
    environment.globals.update(asset=asset, link=link)
    environment.filters["clean"] = clean_text  # before a text is marked up
    return environment
