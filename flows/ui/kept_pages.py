"""Pages that were made are kept for the next who ask for them, as long as nothing they show has changed.

While no run is under way a page holds until the file is another one (its time, its size). A run writes every second;
meanwhile the pages of runs that have ended hold until what is on record of ended runs changes (`ui/state`), which is
looked at every few seconds and whenever a person has said something here; those of many runs hold for half a minute, if
none begins or ends, and those of a run under way for three seconds. A page that is kept waits for no writer. What a
person asks in SQL and how far a run is are never kept, and no page for longer than a minute.

No more pages are made at once than there are processors, in the order in which they are asked for: twenty at once would
all take twenty times as long, and keep a run's writes out meanwhile.
"""

import asyncio
import contextlib
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import parse_qsl, unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evalhouse.warehouse.engine.shared import one_reading
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

_MOST_BYTES: Final = 64 * 2**20
_LARGEST: Final = 2**20
_KEPT_S: Final = 60.0
# While a run writes: how old may be what is known of the runs that have ended, and from when on it is looked at again.
_STALE_S: Final = 5.0
_FRESH_S: Final = 1.0
# And how old a page of many runs, and one of a run under way.
_MANY_S: Final = 30.0
_LIVE_S: Final = 3.0
_AT_ONCE: Final = max(2, os.cpu_count() or 1)
_NEVER: Final = re.compile(r"/(assets|sql|live)\b|/live$|\.csv$|\.parquet$")
_OF_RUN: Final = re.compile(r"/runs/([^/]+)(?:/.*)?")
_NAME_RUNS: Final = {"run", "base", "candidate", "against"}

Files = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class _State:
    """What the pages rest on: of the file as it was looked at, and of the runs in it."""

    files: Files
    stamp: str
    running: frozenset[str]
    stored: frozenset[str]
    read_at: float

    def name(self, path: str, query: str) -> str:
        """What a page at an address holds for, as a text."""
        if not self.running:
            return repr(self.files)
        named = list(_list_runs(path, query))
        if named and self.stored.issuperset(named):
            return self.stamp
        seconds = _LIVE_S if named else _MANY_S
        return f"{self.stamp} {time.monotonic() // seconds:.0f} of {seconds:g} s"


@dataclass(frozen=True, kw_only=True)
class _Page:
    headers: list[tuple[bytes, bytes]]
    body: bytes
    until: float


_Key = tuple[str, str, str, str]


class KeptPages:
    """Stands before the app, behind what turns strangers away."""

    def __init__(self, app: ASGIApp, warehouse: Warehouse) -> None:
        self._app, self._warehouse = app, warehouse
        self._pages: OrderedDict[_Key, _Page] = OrderedDict()
        self._n_bytes = 0
        self._making: dict[_Key, asyncio.Event] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._guard = threading.Lock()
        self._state: _State | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or _NEVER.search(scope["path"]):
            await self._app(scope, receive, send)
            return
        key = await self._find_key(scope)
        while key is not None and (making := self._making.get(key)) is not None:
            await making.wait()  # somebody has asked for the same page
        if key is not None and (page := self._find(key)) is not None:
            await _send_page(page, send)
            return
        made = asyncio.Event()
        if key is not None:
            self._making[key] = made
        try:
            async with self._turns:
                await self._make(key, scope, receive, send)
        finally:
            if key is not None:
                self._making.pop(key)
            made.set()
            if scope["method"] == "POST":
                self._forget()

    def _forget(self) -> None:
        """A person has said something, which is to be seen at once."""
        self._state, self._n_bytes = None, 0
        self._pages.clear()

    async def _find_key(self, scope: Scope) -> _Key | None:
        if scope["method"] != "GET" or (state := await self._find_state()) is None:
            return None
        query = scope["query_string"].decode("latin-1")
        return (scope["path"], query, _read_cookies(Request(scope)), state.name(scope["path"], query))

    async def _find_state(self) -> _State | None:
        state = self._state
        if state is None:
            return await run_in_threadpool(self._read_state)
        if state.files == self._look():
            return state
        age = time.monotonic() - state.read_at
        if not state.running or age > _STALE_S:
            return await run_in_threadpool(self._read_state)
        if age > _FRESH_S and not self._guard.locked():
            asyncio.get_running_loop().run_in_executor(None, self._read_state)
        return state

    def _look(self) -> Files | None:
        """The file and its log as they are; None for a lake, and where there is nothing yet."""
        location = self._warehouse.location
        if location.lake is not None:
            return None
        try:
            found = [os.stat(location.path)]
        except OSError:
            return None
        with contextlib.suppress(OSError):
            found.append(os.stat(f"{location.path}.wal"))
        return tuple((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size) for status in found)

    def _read_state(self) -> _State | None:
        with self._guard:
            if self._state is None or self._state.files != self._look():
                try:
                    with one_reading():  # of its own: what waits for its turn to be made must keep no writer out
                        self._state = self._read_unchanged()
                except WarehouseError:  # the page itself says so
                    self._state = None
            return self._state

    def _read_unchanged(self) -> _State | None:
        """Look at the file while it is kept from being written, which the first query sees to."""
        self._warehouse.read("select 1")
        files = self._look()
        if files is None:
            return None
        (row,) = self._warehouse.read_rows(read_query("ui/state"))
        if files != self._look():
            return None
        running, stored = (frozenset(cast("list[str]", row[name])) for name in ("running", "stored"))
        return _State(files=files, stamp=str(row["stamp"]), running=running, stored=stored, read_at=time.monotonic())

    def _find(self, key: _Key) -> _Page | None:
        page = self._pages.get(key)
        if page is None or time.monotonic() > page.until:
            return None
        self._pages.move_to_end(key)
        return page

    async def _make(self, key: _Key | None, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {}
        body = bytearray()

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif len(body) <= _LARGEST:
                body.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_and_note)
        headers = list(start.get("headers", []))
        if (
            key is not None
            and start.get("status") == 200
            and len(body) <= _LARGEST
            and b"set-cookie" not in dict(headers)
        ):
            self._keep(key, _Page(headers=headers, body=bytes(body), until=time.monotonic() + _KEPT_S))

    def _keep(self, key: _Key, page: _Page) -> None:
        if (earlier := self._pages.pop(key, None)) is not None:
            self._n_bytes -= len(earlier.body)
        self._pages[key] = page
        self._n_bytes += len(page.body)
        while self._n_bytes > _MOST_BYTES:
            _, oldest = self._pages.popitem(last=False)
            self._n_bytes -= len(oldest.body)


async def _send_page(page: _Page, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(page.headers)})
    await send({"type": "http.response.body", "body": page.body})


def _list_runs(path: str, query: str) -> Iterator[str]:
    if match := _OF_RUN.fullmatch(path):
        yield unquote(match[1])
    yield from (value for name, value in parse_qsl(query) if name in _NAME_RUNS)


def _read_cookies(request: Request) -> str:
    """What a page may depend on beside its address: the cookies but the token's."""
    kept = {name: value for name, value in request.cookies.items() if not name.startswith("evalhouse_ui_")}
    return repr(sorted(kept.items()))
