"""`evalhouse receive`: OTLP over HTTP, from a request to spans, and events about them, on disk.

A request is answered when each of its spans or events is on disk. What an exporter should send again is answered with
429 or 503 and Retry-After; what it should not, with another status, as OTLP has it. Accepted spans are redacted and
wait in the journal of their table, from where a mover takes them to the warehouse, or, while it is not known whether
their trace is kept, in a separate journal.
"""

import asyncio
import base64
import hmac
import logging
import os
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from evalhouse.flows.preparing.suites import Problem, explain_error, load_suite_text
from evalhouse.flows.server.connections import find_token, listen, make_server, write_address
from evalhouse.tasks.datasets.otel import (
    Logged,
    Recorded,
    Unplaced,
    describe_unplaced,
    find_session,
    read_otlp,
    read_otlp_logs,
)
from evalhouse.tasks.datasets.received import Redactor, is_named, is_picked
from evalhouse.tasks.datasets.spans import Blame, Tree
from evalhouse.tasks.datasets.traces import to_row
from evalhouse.tasks.settings.suite import ReceiverSettings, Redaction, Sampling, TraceRetention, find_cutoff
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.messages import note_secret
from evalhouse.warehouse.mover import Journal, Mover, Segment, find_journal, find_orphans, take_in_orphans
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.upkeep.forget import Rule, forget_traces

Item = Recorded | Logged | Unplaced
Row = dict[str, Any]
Table = Literal["spans", "span_events"]

# --- accepted spans on their way into the warehouse

_WAITING: Final = "waiting"  # the folder of the journal of spans that wait for their trace
_KEPT_FOR: Final = 10  # times the wait that a trace is remembered as kept
_FORGET_S: Final = 3600.0
_FORGET_AGAIN_S: Final = 60.0
_logger: Final = logging.getLogger(__name__)
_MIN_TICK_S: Final = 0.05


def load_receiver(path: Path | None) -> ReceiverSettings:
    """Load and check a receiver's file; raises SettingsError with every problem, its line and its key."""
    if path is None:
        return ReceiverSettings()
    text = load_suite_text(path)
    try:
        return ReceiverSettings.model_validate_json(orjson.dumps(text.values))
    except ValidationError as error:
        tables: dict[str | int, type[BaseModel]] = {"sampling": Sampling, "redaction": Redaction}
        problems = []
        for problem in error.errors():
            path_of = tuple(part for part in problem["loc"] if part != "[key]")
            of_table = tables.get(path_of[0], TraceRetention) if len(path_of) > 1 else ReceiverSettings
            problems.append(Problem(path=path_of, text=explain_error(problem, path_of, of_table)))
        raise text.refuse(problems) from None


@dataclass(kw_only=True)
class _OpenTrace:
    """A trace that waits, until this time, for a span that keeps it."""

    until: float
    rows: list[Row] = field(default_factory=list)
    has_session: bool = False


@dataclass(kw_only=True)
class Counts:
    """The numbers of accepted items; `n_logged` of them are events about spans. `n_unplaced` events belong to no span,
    and are not accepted."""

    n_accepted: int = 0
    n_logged: int = 0
    n_unplaced: int = 0
    n_waiting: int = 0
    n_kept: int = 0
    n_dropped: int = 0
    n_moved: int = 0


class SpanKeeper:
    """Stores spans, and events about them, by the settings; safe to use from several threads.

    A trace that no rule has kept when it has waited long enough is dropped. What a killed receiver left waits in the
    next one. `secret` is for the names of redacted sessions. `close` before the process ends.
    """

    def __init__(self, warehouse: Warehouse, settings: ReceiverSettings, secret: str = "") -> None:
        self.counts = Counts()
        self._warehouse, self._settings = warehouse, settings
        self._redactor = Redactor(settings.redaction, secret)
        self._guard = threading.Lock()
        self._open: dict[str, _OpenTrace] = {}
        self._kept_until: dict[str, float] = {}
        self._dropped_until: dict[str, float] = {}
        self._movers: dict[Table, Mover] = {
            "spans": Mover(warehouse, "spans", moved=self._count_moved, is_lasting=True),
            "span_events": Mover(warehouse, "span_events", moved=self._count_moved, is_lasting=True),
        }
        folder = find_journal(warehouse.location, "spans") / _WAITING
        self._waiting = Journal(folder)
        until = time.monotonic() + settings.sampling.wait_s
        for segment in find_orphans(folder):  # of a receiver that was killed
            for row in segment.rows:
                self._waiting.append(row)
                trace = self._open.setdefault(str(row["trace_id"]), _OpenTrace(until=until))
                trace.rows.append(row)
                attributes = orjson.loads(str(row["attributes"]))
                trace.has_session = trace.has_session or find_session(attributes) is not None
                self.counts.n_waiting += 1
            segment.remove()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evalhouse-waiting-spans", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the moving into the warehouse, if any."""
        return next((mover.failure for mover in self._movers.values() if mover.failure is not None), None)

    @property
    def n_on_disk(self) -> int:
        """The number of rows that are on disk and not in the warehouse."""
        return self.counts.n_kept - self.counts.n_moved + self.counts.n_waiting

    def keep(self, items: Iterable[Item], blame: Blame) -> None:
        """Put items on disk unless their trace is dropped; raises OSError for a full disk. An item that no row can hold
        is reported to `blame`."""
        rows: list[tuple[Recorded | Logged, Row]] = []
        began_at, n_unplaced = now_utc(), 0
        for place, item in enumerate(items):  # before the lock is taken: much text takes seconds
            if isinstance(item, Unplaced):
                n_unplaced += 1
                continue
            # Rows have the order in which the items came, which their own times may not show.
            received_at = began_at + timedelta(microseconds=place)
            try:
                rows.append((item, to_row(self._redactor.redact(item), received_at, self._find_share(item))))
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                blame(f"span {item.span_id} of trace {item.trace_id} cannot be stored: {error}")
        with self._guard:
            self.counts.n_unplaced += n_unplaced
            for item, row in rows:
                self._sample(item, row)

    def _find_share(self, item: Recorded | Logged) -> bool | None:
        """Return whether the share has the session of a span, or else its trace; None without a share."""
        share = self._settings.sampling.share
        if isinstance(item, Logged) or share in (0, 1):
            return None
        return is_picked(item.trace_id if item.session is None else item.session, share)

    def _sample(self, item: Recorded | Logged, row: Row) -> None:
        """Store a row, or let it wait for an item that keeps its trace."""
        sampling, trace_id, now = self._settings.sampling, item.trace_id, time.monotonic()
        session = item.session if isinstance(item, Recorded) else None
        is_kept = sampling.share == 1 or trace_id in self._kept_until
        # A session is kept or dropped as a whole: a follow-up is judged after the turns before it.
        is_in_share = session is not None and is_picked(session, sampling.share) and trace_id not in self._dropped_until
        if not is_kept and isinstance(item, Recorded) and (is_in_share or is_named(item, sampling)):
            # The first item that keeps its trace: rows that waited for it are stored before it.
            self._keep_trace(trace_id, self._open.pop(trace_id, None), now)
            is_kept = True
        if is_kept:
            self._keep_row(row)
        else:
            self._waiting.append(row)
            trace = self._open.setdefault(trace_id, _OpenTrace(until=0.0))
            trace.until = now + sampling.wait_s
            trace.rows.append(row)
            trace.has_session = trace.has_session or session is not None
            self.counts.n_waiting += 1
        self.counts.n_accepted += 1
        self.counts.n_logged += isinstance(item, Logged)

    def _keep_trace(self, trace_id: str, waiting: _OpenTrace | None, now: float) -> None:
        """Store the rows of a trace that waited, and its later ones."""
        for row in waiting.rows if waiting else ():
            self._keep_row(row)
            self.counts.n_waiting -= 1
        self._kept_until[trace_id] = now + _KEPT_FOR * self._settings.sampling.wait_s

    def _keep_picked(self, trace_ids: Iterable[str]) -> None:
        """Store the traces without a session that are in the share."""
        for trace_id in trace_ids:
            if not self._open[trace_id].has_session and is_picked(trace_id, self._settings.sampling.share):
                self._keep_trace(trace_id, self._open.pop(trace_id), time.monotonic())

    def _keep_row(self, row: Row) -> None:
        # Rows of both tables wait for their trace together.
        self._movers["span_events" if "logged_at" in row else "spans"].keep(row)
        self.counts.n_kept += 1

    def _count_moved(self, segment: Segment) -> None:
        self.counts.n_moved += len(segment.rows)

    def _run(self) -> None:
        wait_s = max(_MIN_TICK_S, self._settings.sampling.wait_s / 2)
        age = self._settings.retention.traces
        forget_at = 0.0
        while True:
            if age is not None and time.monotonic() >= forget_at:
                rule = Rule(words=f'[retention] traces = "{age}"', before=find_cutoff(age, now_utc()))
                with self._tried_again("traces that are too old"):
                    forget_at = time.monotonic() + _FORGET_AGAIN_S
                    forget_traces(self._warehouse, rule)
                    forget_at = time.monotonic() + _FORGET_S
            if self._has_ended.wait(wait_s):
                return
            with self._tried_again("traces that no share keeps"):
                self.drop_old()

    @contextmanager
    def _tried_again(self, what: str) -> Iterator[None]:
        """Log an error of the block and continue: another program may hold the warehouse, or the disk be full."""
        try:
            yield
        except (WarehouseError, OSError) as error:
            _logger.warning("%s were not removed, which is tried again: %s", what, error)

    def drop_old(self) -> None:
        """Drop the traces that have waited long enough, and their bytes from the disk."""
        now = time.monotonic()
        with self._guard:
            old = [trace_id for trace_id, trace in self._open.items() if trace.until <= now]
            self._keep_picked(old)
            for trace_id in self._open.keys() & old:
                n_rows = len(self._open.pop(trace_id).rows)
                self.counts.n_dropped += n_rows
                self.counts.n_waiting -= n_rows
                # Of a trace that the share has dropped a part is not kept for the session that a late span names.
                self._dropped_until[trace_id] = now + _KEPT_FOR * self._settings.sampling.wait_s
            self._dropped_until = {name: until for name, until in self._dropped_until.items() if until > now}
            self._kept_until = {trace_id: until for trace_id, until in self._kept_until.items() if until > now}
            segments = self._waiting.rotate()
            if not segments:
                return
            for trace in self._open.values():  # on disk again before the files that hold them go
                for row in trace.rows:
                    self._waiting.append(row)
            for segment in segments:
                segment.remove()

    def close(self) -> None:
        """Move the stored rows into the warehouse; raises WarehouseBusy if it stays locked (nothing is lost)."""
        self._has_ended.set()
        self._thread.join()
        with self._guard:
            self._keep_picked(list(self._open))
        with ExitStack() as stack:
            stack.callback(self._waiting.close)
            for mover in self._movers.values():
                stack.callback(mover.close)


# --- requests

PORT: Final = 4318
TOKEN_VARIABLE: Final = "EVALHOUSE_RECEIVE_TOKEN"
INSTALL: Final = "pip install 'evalhouse[traces]'"
_JSON: Final = "application/json"
_PROTOBUF: Final = "application/x-protobuf"
_MIB: Final = 2**20
_LARGE: Final = _MIB
_RETRY_AFTER_S: Final = 5
_MAX_REQUESTS: Final = 64  # requests that are read or written at the same time
_LEAVE_S: Final = 5
_GZIP: Final = 31  # zlib's number for it


class Refused(Exception):
    """A request that is refused: with which status, and why."""

    def __init__(self, status: int, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.status, self.again = status, again


@dataclass(frozen=True, kw_only=True)
class _Signal:
    """A kind of request: the name of its message, the field that counts rejected items in an answer, and its reader for
    JSON."""

    message: str
    rejected: str
    read_json: Callable[[Tree, Blame], Iterator[Item]]


_TRACES: Final = _Signal(message="ExportTraceServiceRequest", rejected="rejectedSpans", read_json=read_otlp)
_LOGS: Final = _Signal(message="ExportLogsServiceRequest", rejected="rejectedLogRecords", read_json=read_otlp_logs)
_PATHS: Final = {
    "/v1/traces": _TRACES,
    "/v1/logs": _LOGS,
    "/api/public/otel/v1/traces": _TRACES,  # which Langfuse's SDKs add to the address that they are given
}


def has_protobuf() -> bool:
    """Return True if the extra that reads protobuf is installed."""
    try:
        import opentelemetry.proto.collector.trace.v1.trace_service_pb2  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


@dataclass(kw_only=True)
class Receiver:
    """Answers requests. `n_open` are being read or written."""

    keeper: SpanKeeper
    settings: ReceiverSettings
    token: str = field(repr=False)
    n_open: int = 0
    _large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(max(1, (os.cpu_count() or 1) // 2)))

    async def receive(self, signal: _Signal, request: Request) -> Response:
        """Store the items of one request, and answer in its encoding."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.n_open += 1
        try:
            self._check(request, kind)
            body = await self._read_body(request)
            # Large ones take seconds and must not occupy all threads: small ones are stored beside them.
            turn: AbstractAsyncContextManager[object] = self._large if len(body) > _LARGE else nullcontext()
            async with turn:
                problems = await asyncio.to_thread(self._store, signal, body, kind)
        except Refused as refused:
            headers = {"retry-after": str(_RETRY_AFTER_S)} if refused.again else {}
            headers |= {"www-authenticate": "Bearer"} if refused.status == 401 else {}
            # A message of type google.rpc.Status.
            if kind == _PROTOBUF:
                return Response(_write_text(2, str(refused)), refused.status, headers, media_type=_PROTOBUF)
            return Response(orjson.dumps({"message": str(refused)}), refused.status, headers, media_type=_JSON)
        finally:
            self.n_open -= 1
        # All were stored, or, as OTLP's partial success, how many were not, and why the first.
        if kind == _JSON:
            partial_success = {signal.rejected: str(len(problems)), "errorMessage": problems[0] if problems else ""}
            answer = orjson.dumps({"partialSuccess": partial_success} if problems else {})
        else:
            inner = b"\x08" + _write_varint(len(problems)) + _write_text(2, problems[0]) if problems else b""
            answer = b"\x0a" + _write_varint(len(inner)) + inner if problems else b""
        return Response(answer, media_type=kind)

    def _check(self, request: Request, kind: str) -> None:
        """Refuse a request that need not be read for that.

        The token comes in a Bearer header, or as the password of a Basic one, where Langfuse's SDKs send their secret
        key.
        """
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            try:
                decoded = base64.b64decode(given, validate=True).decode() if scheme.lower() == "basic" else ""
            except ValueError:
                decoded = ""
            given = decoded.partition(":")[2]
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise Refused(401, "send the header `authorization: Bearer TOKEN`, with the token of this receiver")
        if kind not in (_JSON, _PROTOBUF):
            raise Refused(415, f"content-type {kind!r}; allowed: {_PROTOBUF}, {_JSON}")
        if kind == _PROTOBUF and not has_protobuf():
            raise Refused(415, f"this receiver reads JSON alone: {INSTALL}, or set the protocol http/json")
        if request.headers.get("content-encoding", "identity") not in ("identity", "gzip", ""):
            raise Refused(415, f"content-encoding {request.headers['content-encoding']!r}; allowed: gzip")
        if self.keeper.failure is not None:
            raise Refused(503, f"spans cannot be stored: {self.keeper.failure}", again=True)
        if self.n_open > _MAX_REQUESTS or self.keeper.n_on_disk >= self.settings.waiting_spans:
            raise Refused(429, "more spans wait on disk, or requests at once, than this receiver takes", again=True)

    async def _read_body(self, request: Request) -> bytes:
        """Return the body, unpacked; reads no more of it than is allowed."""
        max_size = int(self.settings.body_mb * _MIB)
        unpack = zlib.decompressobj(_GZIP) if request.headers.get("content-encoding") == "gzip" else None
        parts, size = [], 0
        async for chunk in request.stream():
            try:
                part = unpack.decompress(chunk, max_size - size + 1) if unpack and chunk else chunk
            except zlib.error as error:
                raise Refused(400, f"the body is not gzip: {error}") from None
            size += len(part)
            if size > max_size or (unpack and unpack.unconsumed_tail):
                raise Refused(413, f"more than {self.settings.body_mb:g} MiB unpacked; send fewer spans at once")
            if unpack and unpack.unused_data:
                raise Refused(400, "bytes follow the end of the gzip data; send one gzip member")
            parts.append(part)
        if unpack and not unpack.eof:
            raise Refused(400, "the body is not gzip: it ends too early")
        return b"".join(parts)

    def _store(self, signal: _Signal, body: bytes, kind: str) -> list[str]:
        """Put the items of a body on disk; returns the problem of each that was rejected."""
        problems: list[str] = []
        if kind == _JSON:
            try:
                items = list(signal.read_json(orjson.loads(body), problems.append))
            except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
                raise Refused(400, f"not an {signal.message} in JSON: {error}") from None
        else:
            # An extra, and only what the signal needs.
            from google.protobuf.json_format import MessageToDict  # noqa: PLC0415
            from google.protobuf.message import DecodeError, Message  # noqa: PLC0415

            try:
                if signal is _TRACES:
                    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: PLC0415

                    message: Message = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
                else:
                    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2  # noqa: PLC0415

                    message = logs_service_pb2.ExportLogsServiceRequest.FromString(body)
                items = list(signal.read_json(MessageToDict(message), problems.append))
            except DecodeError as error:
                raise Refused(400, f"not an {signal.message} in protobuf: {error}") from None
        try:
            self.keeper.keep(items, problems.append)
        except OSError as error:
            raise Refused(503, f"spans cannot be stored: {error.strerror or error}", again=True) from None
        return problems


def _write_text(number: int, text: str) -> bytes:
    """Return a field of text in protobuf: answers are so small that they need no library."""
    data = text.encode()
    return bytes([number << 3 | 2]) + _write_varint(len(data)) + data


def _write_varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


# --- the server


def make_app(receiver: Receiver, report: Callable[[str], None]) -> Starlette:
    """Return the app; when it ends the received spans are moved into the warehouse, and counted in a line."""

    @asynccontextmanager
    async def close_at_end(_: Starlette) -> AsyncIterator[None]:
        yield
        keeper = receiver.keeper
        with suppress(WarehouseBusy):
            await asyncio.to_thread(keeper.close)
        counts, n_waiting = keeper.counts, keeper.n_on_disk
        waiting = f", {n_waiting:,} wait on disk for the next receiver or run" if n_waiting else ""
        unplaced = f"; {describe_unplaced(counts.n_unplaced)}" if counts.n_unplaced else ""
        spans = f"{counts.n_accepted - counts.n_logged:,} spans"
        events = f" and {counts.n_logged:,} events about them" if counts.n_logged else ""
        report(f"{spans}{events} received, {counts.n_kept:,} kept, {counts.n_dropped:,} not sampled{waiting}{unplaced}")

    routes = [Route(path, partial(receiver.receive, signal), methods=["POST"]) for path, signal in _PATHS.items()]
    return Starlette(routes=routes, lifespan=close_at_end)


def serve_receiver(
    warehouse: Warehouse, settings: ReceiverSettings, *, host: str, port: int | None, report: Callable[[str], None]
) -> None:
    """Receive until Ctrl-C or SIGTERM; raises SettingsError for an address that is not available."""
    listening = listen(host, port, PORT)
    is_given = TOKEN_VARIABLE in os.environ
    token = find_token(TOKEN_VARIABLE)
    note_secret(token)
    with listening:
        warehouse.make_ready()
        take_in_orphans(warehouse)
        receiver = Receiver(keeper=SpanKeeper(warehouse, settings, token), settings=settings, token=token)
        address = f"{write_address(host, listening)}v1/traces"
        sampling, redaction = settings.sampling, settings.redaction
        rules = f"{sampling.share:.4g} of all traces, by session"
        if is_by_rule := bool(sampling.errors or sampling.slower_than_ms is not None or sampling.attributes):
            rules += ", and traces that a rule names"
        patterns = [*redaction.patterns, *(f"/{item.pattern}/" for item in redaction.own)]
        header = f"Bearer%20${TOKEN_VARIABLE}" if is_given else quote(f"Bearer {token}")
        report(f"evalhouse receive takes traces for {warehouse.location.name} at {address}; Ctrl-C ends it")
        report(f"kept: {'all traces' if sampling.share == 1 else rules}; redacted: {', '.join(patterns) or 'nothing'}")
        if is_by_rule and 0 < sampling.share < 1:
            report("suites judge the traces of the share, so that means are of all traffic; kept_by names others")
        report("settings for an application, with http/protobuf or http/json:")
        report(f"  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT={address}")
        report(f"  OTEL_EXPORTER_OTLP_TRACES_HEADERS=authorization={header}")
        logs = f"{address.removesuffix('traces')}logs"
        report(f"one that captures content as events: both for LOGS as well, with {logs}")
        if not has_protobuf():
            report(f"this receiver accepts only JSON; {INSTALL} accepts protobuf, the exporters' default")
        with suppress(KeyboardInterrupt):
            make_server(make_app(receiver, report), leave_s=_LEAVE_S).run(sockets=[listening])
