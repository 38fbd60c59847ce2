"""Pages that were made are kept for the next who ask for them, as long as nothing they show has changed.

While no run is under way a page holds until the file is another one (its time, its size). A run writes every second;
meanwhile the pages of runs that have ended hold until what is on record of ended runs changes (`State`), which is
looked at every few seconds and whenever a person has said something here; those of many runs hold for half a minute, if
none begins or ends, and those of a run under way for three seconds, or five times as long as it took to make them. A
page that is kept waits for no writer. What a person asks in SQL is never kept, and no page for longer than a minute.

While a run writes, or has just ended, nobody waits long for a page that was there a moment ago: what cannot be made
again at once is shown as it was, and goes on being made. Whatever may be older than it looks says as of when it is.
Pages that everybody asks for (`list_common`) are made as soon as the app is served.

No more pages are made at once than there are processors, first those that somebody waits for: twenty at once would all
take twenty times as long, and keep a run's writes out meanwhile. Each is made once for all who ask for it.
"""

import asyncio
import contextlib
import heapq
import itertools
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import parse_qsl, quote, unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evalhouse.flows.ui.pages import AS_OF_PLACE, write_as_of
from evalhouse.warehouse.engine.shared import one_reading
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse


class OneReading:
    """Stands before the app: what a page reads up to its first byte is of one state, and waits for a run's write once.

    What is read while a response goes on (events, a download) takes its turn by itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with one_reading() as end:

            async def send_after(message: Message) -> None:
                end()
                await send(message)

            await self._app(scope, receive, send_after)


class Turns:
    """So many at once; of those who wait the lowest rank comes first, and of equals the one that came first."""

    def __init__(self, n: int) -> None:
        self._n_free = n
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def take(self, rank: int) -> AsyncIterator[None]:
        """Wait for a turn and have it within this block."""
        if self._n_free:
            self._n_free -= 1
        else:
            await self._wait(rank)
        try:
            yield
        finally:
            self._hand_on()

    async def _wait(self, rank: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came in the moment in which nobody wanted it any more
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._n_free += 1


# While a run writes: how old may be what is known of the runs that have ended, and from when on it is looked at again.
_STALE_S: Final = 5.0
_FRESH_S: Final = 1.0
# And how old a page of many runs, and one of a run under way.
_MANY_S: Final = 30.0
_LIVE_S: Final = 3.0
_OF_RUN: Final = re.compile(r"/runs/([^/]+)(?:/.*)?")
_NAME_RUNS: Final = {"run", "base", "candidate", "against"}

Files = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Term:
    """How long a page holds: as long as this text is what the state has for it, and where that does not say all that
    the page shows, no longer than so many seconds."""

    stamp: str
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class State:
    """What the pages rest on: of the file as it was looked at, and of the runs in it."""

    files: Files
    stamp: str
    running: frozenset[str]
    stored: frozenset[str]
    read_at: float

    def find_term(self, path: str, query: str) -> Term:
        """How long a page at an address holds that is made in this state."""
        if not self.running:
            return Term(stamp=repr(self.files))
        named = list(_list_runs(path, query))
        if named and self.stored.issuperset(named):
            return Term(stamp=self.stamp)
        return Term(stamp=self.stamp, seconds=_LIVE_S if named else _MANY_S)


def _list_runs(path: str, query: str) -> Iterator[str]:
    if match := _OF_RUN.fullmatch(path):
        yield unquote(match[1])
    yield from (value for name, value in parse_qsl(query) if name in _NAME_RUNS)


class StateReader:
    """The state of one warehouse, kept as long as it may be."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._guard = threading.Lock()
        self._state: State | None = None

    @property
    def is_beside_run(self) -> bool:
        """Whether a run was under way when it was last looked at."""
        return self._state is not None and bool(self._state.running)

    def forget(self) -> None:
        """It is looked at again before it is used."""
        self._state = None

    def find(self) -> State | None:
        """What is known and may still be used; None where it has to be read first."""
        state = self._state
        if state is None or state.files == self._look():
            return state
        age = time.monotonic() - state.read_at
        if not state.running or age > _STALE_S:
            return None
        if age > _FRESH_S and not self._guard.locked():
            asyncio.get_running_loop().run_in_executor(None, self._read)
        return state

    async def read(self) -> State | None:
        """The state, read where it has to be; None of a lake, and where there is none to be had."""
        return self.find() or await run_in_threadpool(self._read)

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

    def _read(self) -> State | None:
        with self._guard:
            if self._state is None or self._state.files != self._look():
                try:
                    with one_reading():  # of its own: what waits for its turn to be made must keep no writer out
                        self._state = self._read_unchanged()
                except WarehouseError:  # the page itself says so
                    self._state = None
            return self._state

    def _read_unchanged(self) -> State | None:
        """Look at the file while it is kept from being written, which the first query sees to."""
        self._warehouse.read("select 1")
        files = self._look()
        if files is None:
            return None
        (row,) = self._warehouse.read_rows(read_query("ui/state"))
        if files != self._look():
            return None
        running, stored = (frozenset(cast("list[str]", row[name])) for name in ("running", "stored"))
        return State(files=files, stamp=str(row["stamp"]), running=running, stored=stored, read_at=time.monotonic())


_MOST_BYTES: Final = 64 * 2**20
_LARGEST: Final = 2**20
_KEPT_S: Final = 60.0
_TIMES_MAKING: Final = 5
"""A page that holds for some seconds holds for so many times as long as it took to make: a fifth of a processor."""
_PATIENCE_S: Final = 0.3
"""For so long anybody waits for a page to be made that could be shown as it was, but not if that is older than this."""
_EARLIER_S: Final = 120.0
_NOW_S: Final = 10.0
"""How far a run is may have been read so long ago, where reading it takes its time."""
_YOUNG_S: Final = 2.0
"""What is older says as of when it is, where it may be another by now."""
_AT_ONCE: Final = max(2, os.cpu_count() or 1)
_WAITED_FOR, _ASIDE, _NOBODY_WAITS = range(3)
_NEVER: Final = re.compile(r"^/(assets|sql)/|\.(csv|parquet)$")
_OF_NOW: Final = re.compile(r"(/.*)?/live")

ListPages = Callable[[], Sequence[str]]
"""Gives addresses of pages; raises WarehouseError."""


@dataclass(frozen=True, kw_only=True)
class _Address:
    """What a page is asked for by: of the cookies those that it may depend on."""

    path: str
    query: str
    cookies: str = repr([])

    @property
    def is_of_now(self) -> bool:
        """Whether it says how far runs are."""
        return bool(_OF_NOW.fullmatch(self.path))

    def find_term(self, state: State) -> Term:
        """How long what it shows in this state holds."""
        return Term(stamp=state.stamp, seconds=0.0) if self.is_of_now else state.find_term(self.path, self.query)


@dataclass(frozen=True, kw_only=True)
class _Page:
    """A page as it is sent; `term` is None where there is nothing by which to see whether it still holds.

    `read_at` and `until` are on `time.monotonic`: from when on it was read, and how long it holds at the most.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    term: Term | None
    is_beside_run: bool
    read_at: float
    until: float
    as_of: datetime

    def holds(self, term: Term | None) -> bool:
        """Whether it is still what would be made where this is the term for it."""
        stamp = None if self.term is None else self.term.stamp
        return term is not None and stamp == term.stamp and time.monotonic() < self.until

    @property
    def is_kept(self) -> bool:
        """Whether the next who asks may have it."""
        return (
            self.term is not None
            and self.status == HTTPStatus.OK
            and len(self.body) <= _LARGEST
            and b"set-cookie" not in dict(self.headers)
        )

    @property
    def age(self) -> float:
        """Seconds since it was read."""
        return time.monotonic() - self.read_at

    def mark(self) -> "_Page":
        """The page with as of when it is, which its headers say of what is no page."""
        body = self.body.replace(AS_OF_PLACE, write_as_of(self.as_of), 1)
        length = str(len(body)).encode()
        headers = [(name, length if name == b"content-length" else value) for name, value in self.headers]
        return replace(self, headers=[*headers, (b"age", b"%d" % self.age)], body=body)


@dataclass(frozen=True, kw_only=True)
class _Making:
    """A page that is being made, and since when."""

    task: "asyncio.Task[_Page]"
    began_at: float


class KeptPages:
    """Stands before the app, behind what turns strangers away.

    `list_common` gives the addresses of pages that are made as soon as the app is served, before anybody asks.
    """

    def __init__(self, app: ASGIApp, warehouse: Warehouse, list_common: ListPages) -> None:
        self._app, self._list_common = app, list_common
        self._states = StateReader(warehouse)
        self._pages: OrderedDict[_Address, _Page] = OrderedDict()
        self._n_bytes = 0
        self._making: dict[_Address, _Making] = {}
        self._turns = Turns(_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._warm_while(scope, receive, send)
        elif scope["type"] != "http" or _is_for_one(scope):
            await self._app(scope, receive, send)
        elif scope["method"] == "GET":
            await _send_page(await self._find(scope), send)
        else:
            try:
                async with self._turns.take(_WAITED_FOR):
                    await self._app(scope, receive, send)
            finally:
                if scope["method"] == "POST":
                    self._forget()

    def _forget(self) -> None:
        """A person has said something, which is to be seen at once, and not in what was begun before."""
        self._states.forget()
        self._n_bytes = 0
        self._pages.clear()
        self._making.clear()

    async def _find(self, scope: Scope) -> _Page:
        """The page that is kept, or that is made now, or was there a moment ago."""
        query = scope["query_string"].decode("latin-1")
        address = _Address(path=scope["path"], query=query, cookies=_read_cookies(Request(scope)))
        asked_at = time.monotonic()
        while True:
            if (page := self._find_kept(address)) is not None:
                return page
            earlier, making = self._find_earlier(address), self._making.get(address)
            is_begun_before = making is not None
            if making is None:
                making = self._begin(address, scope, _WAITED_FOR if earlier is None else _ASIDE)
            if earlier is not None:
                await asyncio.wait({making.task}, timeout=max(0.0, making.began_at + _PATIENCE_S - time.monotonic()))
                if not making.task.done() and self._find_earlier(address) is earlier:
                    return earlier.mark()
            page = await asyncio.shield(making.task)
            # What was begun before somebody asked may lack what they have seen happen.
            if not is_begun_before or page.read_at >= asked_at:
                return page

    def _find_kept(self, address: _Address) -> _Page | None:
        """The page where it still holds, as far as is known without waiting."""
        page, state = self._pages.get(address), self._states.find()
        if page is None or state is None:
            return None
        term = address.find_term(state)
        if not page.holds(term):
            return None
        self._pages.move_to_end(address)
        return page.mark() if term.seconds is not None and page.age > _YOUNG_S else page

    def _find_earlier(self, address: _Address) -> _Page | None:
        """The page as it was a moment ago, beside a run."""
        page = self._pages.get(address)
        if page is None or page.age > (_NOW_S if address.is_of_now else _EARLIER_S):
            return None
        if not (address.is_of_now or AS_OF_PLACE in page.body):
            return None
        return page if page.is_beside_run or self._states.is_beside_run else None

    def _begin(self, address: _Address, scope: Scope, rank: int) -> _Making:
        """Make a page for all who ask for it meanwhile, and however many of them go away."""
        making = _Making(task=asyncio.create_task(self._make(address, dict(scope), rank)), began_at=time.monotonic())
        self._making[address] = making

        def end(task: "asyncio.Task[_Page]") -> None:
            if self._making.get(address) is making:
                del self._making[address]
            if not task.cancelled():
                task.exception()  # raised where somebody still waits for the page

        making.task.add_done_callback(end)
        return making

    async def _make(self, address: _Address, scope: Scope, rank: int) -> _Page:
        state = await self._states.read()
        if (kept := self._find_kept(address)) is not None:
            return kept
        async with contextlib.nullcontext() if address.is_of_now else self._turns.take(rank):
            state = self._states.find() or state  # it may be another since
            term = address.find_term(state) if state else None
            read_at, as_of = time.monotonic(), datetime.now(UTC)
            start, body = await self._ask(scope)
        page = _Page(
            status=start["status"],
            headers=list(start.get("headers", [])),
            body=body,
            term=term,
            is_beside_run=state is not None and bool(state.running),
            read_at=read_at,
            until=read_at + _find_seconds(term, time.monotonic() - read_at),
            as_of=as_of,
        )
        making = self._making.get(address)
        if page.is_kept and making is not None and making.task is asyncio.current_task():
            self._keep(address, page)
        return page

    async def _ask(self, scope: Scope) -> tuple[Message, bytes]:
        """The start of the app's response, and its body."""
        start: Message = {}
        body = bytearray()
        with one_reading() as end:

            async def note(message: Message) -> None:
                end()
                if message["type"] == "http.response.start":
                    start.update(message)
                else:
                    body.extend(message.get("body", b""))

            await self._app(scope, _say_nothing_more(), note)
        return start, bytes(body)

    def _keep(self, address: _Address, page: _Page) -> None:
        if (earlier := self._pages.pop(address, None)) is not None:
            self._n_bytes -= len(earlier.body)
        self._pages[address] = page
        self._n_bytes += len(page.body)
        while self._n_bytes > _MOST_BYTES:
            _, oldest = self._pages.popitem(last=False)
            self._n_bytes -= len(oldest.body)

    async def _warm_while(self, scope: Scope, receive: Receive, send: Send) -> None:
        """While the app is served: make what everybody asks for, one page after the other."""
        warming = asyncio.create_task(self._warm(scope["app"]))
        try:
            await self._app(scope, receive, send)
        finally:
            warming.cancel()

    async def _warm(self, app: ASGIApp) -> None:
        with contextlib.suppress(WarehouseError):  # whoever opens the page sees it
            for address in await run_in_threadpool(self._list_common):
                while self._making:  # for somebody, who would wait longer
                    await asyncio.wait({making.task for making in self._making.values()})
                path, _, query = address.partition("?")
                asked = _Address(path=unquote(path), query=query)
                if asked not in self._pages:
                    await asyncio.wait({self._begin(asked, _make_scope(app, asked), _NOBODY_WAITS).task})


def _is_for_one(scope: Scope) -> bool:
    """Whether it is for nobody but who asks: a query, or a download."""
    path = scope["path"]
    return _NEVER.search(path) is not None or (path == "/sql" and bool(scope["query_string"]))


def _find_seconds(term: Term | None, took_s: float) -> float:
    """How long a page holds at the most that took so long to make."""
    if term is None or not term.seconds:
        return _KEPT_S if term is None or term.seconds is None else 0.0
    return min(_KEPT_S, max(term.seconds, _TIMES_MAKING * took_s))


def _say_nothing_more() -> Receive:
    """What a page receives that goes on being made after whoever asked has gone."""
    is_said = False

    async def receive() -> Message:
        nonlocal is_said
        if is_said:
            await asyncio.Event().wait()
        is_said = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive


def _make_scope(app: ASGIApp, address: _Address) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "root_path": "",
        "path": address.path,
        "raw_path": quote(address.path).encode(),
        "query_string": address.query.encode("latin-1"),
        "headers": [],
        "app": app,
    }


async def _send_page(page: _Page, send: Send) -> None:
    await send({"type": "http.response.start", "status": page.status, "headers": list(page.headers)})
    await send({"type": "http.response.body", "body": page.body})


def _read_cookies(request: Request) -> str:
    """What a page may depend on beside its address: the cookies but the token's."""
    kept = {name: value for name, value in request.cookies.items() if not name.startswith("evalhouse_ui_")}
    return repr(sorted(kept.items()))
