"""Traces as a dataset: its formats, the sample of each trace, and the spans that are stored in the warehouse.

Spans of one trace may be anywhere in a file. It is read twice: once to count the spans of each trace, and once to make
a sample of each trace when the last of its spans has come, so that only open traces are in memory.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import orjson

from evalhouse.tasks.datasets.chat import read_conversation
from evalhouse.tasks.datasets.conversations import MAX_TURNS
from evalhouse.tasks.datasets.formats import DatasetSource, open_text
from evalhouse.tasks.datasets.otel import (
    UNREADABLE,
    Logged,
    Recorded,
    Unplaced,
    describe_unplaced,
    join_logged,
    read_fields,
    read_flat,
    read_otlp,
    read_otlp_logs,
    read_span,
)
from evalhouse.tasks.datasets.rows import RawRow
from evalhouse.tasks.datasets.spans import Blame, Span, Tree
from evalhouse.tasks.datasets.trace_rows import (
    MIN_SENT,
    REASONS,
    LeftOut,
    Reason,
    SpanNames,
    list_span_names,
    make_row,
    split_by_question,
)
from evalhouse.tasks.datasets.values import Complain, ReadingStopped
from evalhouse.tasks.datasets.vendors import read_langfuse, read_langsmith
from evalhouse.tasks.settings.suite import TRACES, KeptBy, TraceFormat, TraceWindow
from evalhouse.warehouse.messages import describe_error, list_names, name_setting
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.rows.samples import Turn
from evalhouse.warehouse.rows.spans import fetch_trace_rows, find_forgotten_traces
from evalhouse.warehouse.store import Warehouse

_KEPT: Final[Mapping[KeptBy, str]] = {
    "share": "that only a rule of the receiver kept, not its share",
    "rule": "of a receiver's share, or of one without a share",
}
_MAX_LISTED: Final = 12  # names of spans in a message
_MAX_NAMED: Final = 3  # traces that are named of those left out for one reason
_MAX_DOCUMENT: Final = 2**28  # bytes of a file that is one JSON object

Item = Span | Logged | LeftOut
"""A part of a trace: a span, an event about one, or what makes the trace unreadable."""


def _leave_out(trace_id: str, error: Exception) -> LeftOut:
    return LeftOut(trace_id=trace_id, reason="unreadable", detail=describe_error(error))


# --- formats

_OTLP: Final = frozenset(
    {
        "resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "startTimeUnixNano", "start_time_unix_nano",
        "resourceLogs", "resource_logs", "scopeLogs", "scope_logs",
    }
)  # fmt: skip
"""Names of which a message of OTLP has one, as protobuf's JSON writes them."""
_SCOPES: Final = {"scopeSpans": "resourceSpans", "scopeLogs": "resourceLogs"}


def _read_otel(row: Tree, blame: Blame) -> Iterator[Item | Unplaced]:
    """Yield spans and log records of OTLP in JSON, or one that is a row."""
    fields = read_fields(row) if _OTLP.intersection(row) else {}
    if "startTimeUnixNano" in fields:  # a single span of OTLP, as Phoenix's API lists them
        fields = {"scopeSpans": [{"spans": [row]}]}
    # Of a file that is one request:
    fields = {resources: [fields] for scopes, resources in _SCOPES.items() if scopes in fields} or fields
    if fields:
        try:
            yield from map(_try_span, read_otlp(fields, blame))
            yield from read_otlp_logs(fields, blame)
        except (AttributeError, TypeError, KeyError) as error:
            blame(f"not OTLP: {error}")
    elif (item := read_flat(row, blame)) is not None:
        yield _try_span(item) if isinstance(item, Recorded) else item


def _try_span(recorded: Recorded) -> Span | LeftOut:
    try:
        return read_span(recorded)
    except UNREADABLE as error:
        return _leave_out(recorded.trace_id, error)


FORMATS: Final[Mapping[TraceFormat, Callable[[Tree, Blame], Iterator[Item | Unplaced]]]] = {
    "otel": _read_otel,
    "openinference": _read_otel,
    "langfuse": read_langfuse,
    "langsmith": read_langsmith,
    "phoenix": _read_otel,
}
"""The readers of the rows of an export, by the name of `--format`."""
_COLUMNS: Final[Mapping[str, TraceFormat]] = {
    "resourceSpans": "otel", "resourceLogs": "otel", "start_time_unix_nano": "otel", "run_type": "langsmith",
    "observations": "langfuse", "parentObservationId": "langfuse", "parent_observation_id": "langfuse",
    "context.trace_id": "phoenix", "span_id": "otel", "trace_id": "otel", "parent_id": "otel",
}  # fmt: skip
"""Columns by which an export is known when the user did not name its format."""


def guess_format(columns: Collection[str]) -> TraceFormat | None:
    """Return the tool whose traces a file with these columns may hold."""
    return next((form for name, form in _COLUMNS.items() if name in columns), None)


# --- the samples


def _make_rows(items: Sequence[Item], names: SpanNames) -> list[dict[str, Any] | LeftOut]:
    """Return the rows of a trace: one, or one for each of several questions."""
    unreadable = next((item for item in items if isinstance(item, LeftOut)), None)
    if unreadable is not None:
        return [unreadable]
    try:
        spans = join_logged(item for item in items if not isinstance(item, LeftOut))
        parts = split_by_question(spans, names)
        if isinstance(parts, LeftOut):
            return [parts]
        rows = [make_row(part, names) for part in parts]
    except UNREADABLE as error:
        return [_leave_out(items[0].trace_id, error)]
    for place, row in enumerate(rows, start=1):
        if len(rows) > 1 and not isinstance(row, LeftOut):
            row["id"] += f"/{place}"
    return rows


def join_sessions(rows: Iterable[tuple[dict[str, Any], bool]]) -> Iterator[dict[str, Any]]:
    """Yield rows with the earlier turns of their session; the rows of a session follow each other in order of time.

    A row that is paired with True is a turn of its session and not a sample. The traces may be a share of all, and a
    request may have the last turns alone: from the first one that it has, its turns take the place of the traces.
    """
    session, turns, n = None, list[Turn](), 0
    for row, is_earlier in rows:
        own = row.get("conversation_id")
        if own is None or own != session:
            session, turns, n = own, [], 0
        n += 1
        if own is not None and (asked := read_conversation(row.get("conversation"), lambda *_: None)[0]):
            known = {(turn.role, turn.text): turn for turn in turns}  # with contexts
            start = next(start for start in range(len(turns) + 1) if _has_turns(asked, turns[start:]))
            turns = [*turns[:start], *(known.get((turn.role, turn.text), turn) for turn in asked)]
            n = max(n, 1 + sum(turn.role == "user" for turn in turns))
        if not is_earlier:
            earlier = {"conversation": turns[-MAX_TURNS:]} if turns else {}
            yield {**row, **earlier, **({"turn": n} if own is not None else {})}
        given: list[dict[str, Any]] = [{"role": "user", "text": row["question"]}]
        if row["answer"] is not None:
            contexts = [context["text"] for context in row.get("contexts") or ()]
            given.append({"role": "assistant", "text": row["answer"], **({"contexts": contexts} if contexts else {})})
        # Each is read once; an assistant that only thought has no turn.
        turns = [*turns[2 - MAX_TURNS :], *(read_conversation(given, lambda *_: None)[0] or ())]


def _has_turns(asked: Sequence[Turn], turns: Sequence[Turn]) -> bool:
    """Return True if the turns of a request have these questions in this order; a prompt has its question in it."""
    left = iter(turn.text for turn in asked if turn.role == "user")
    questions = [turn.text for turn in turns if turn.role == "user"]
    is_turn = not turns or turns[0].role == "user"
    return is_turn and all(
        any(text == question or (len(question) >= MIN_SENT and question in text) for text in left)
        for question in questions
    )


# --- the traces of a dataset


@dataclass(kw_only=True)
class Tally:
    """Counts what the traces of a dataset became; `forgotten` states which were deleted, and `n_unplaced` events belong
    to no trace. `texts_from` counts samples by where their question and their answer are from, `contexts_from` by the
    names of the spans that had their contexts, and `n_others` the traces that `kept_by` leaves out."""

    n_spans: int = 0
    n_traces: int = 0
    n_samples: int = 0
    n_unplaced: int = 0
    n_others: int = 0
    kept_by: KeptBy = "all"
    forgotten: str | None = None
    texts_from: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    contexts_from: Counter[tuple[str, ...]] = field(default_factory=Counter)
    left_out: dict[Reason, list[LeftOut]] = field(default_factory=dict)
    _n: Counter[Reason] = field(default_factory=Counter)

    def begin(self) -> None:
        """Count from zero: a dataset may be read more than once."""
        self.n_spans = self.n_traces = self.n_samples = self.n_unplaced = self.n_others = 0
        self.left_out, self._n = {}, Counter()
        self.texts_from, self.contexts_from = Counter(), Counter()

    def count(self, n_spans: int, rows: Iterable[dict[str, Any] | LeftOut]) -> None:
        """Count a trace, and what it became."""
        self.n_spans += n_spans
        self.n_traces += 1
        for row in rows:
            if isinstance(row, LeftOut):
                self._note(row)
            else:
                self.n_samples += 1
                self.texts_from[row["question_from"], row.get("answer_from")] += 1
                self.contexts_from[tuple(row.get("contexts_from", ()))] += 1

    def leave_out(self, row: RawRow, problem: str) -> None:
        """Count a trace that became a sample as left out: for a problem of its row."""
        self.n_samples -= 1
        self._note(LeftOut(trace_id=str(row.values["id"]), reason="unreadable", detail=problem))

    @property
    def n_failed(self) -> int:
        """The traces that ended with an error and no answer."""
        return self._n["error"]

    def _note(self, left_out: LeftOut) -> None:
        self._n[left_out.reason] += 1
        listed = self.left_out.setdefault(left_out.reason, [])
        if len(listed) < _MAX_NAMED:
            listed.append(left_out)

    def describe(self) -> str:
        """Return all of it in a line."""
        reasons = []
        for reason, listed in self.left_out.items():
            names = [f"{item.trace_id}: {item.detail}" if item.detail else item.trace_id for item in listed]
            named = (
                f"; {name_setting('mapping', 'answer=SPAN')} names its span, SPAN#KEY a member; question=SPAN likewise"
            )
            to_do = named if reason == "several" else ""
            reasons.append(f"{self._n[reason]:,} {REASONS[reason]} ({', '.join(names)}){to_do}")
        counts = f"traces: {self.n_traces:,} of {self.n_spans:,} spans, {self.n_samples:,} became samples"
        if self.n_others:
            reasons.append(f'{self.n_others:,} {_KEPT[self.kept_by]} (kept_by = "{self.kept_by}" in [traces])')
        left_out = f"left out: {'; '.join(reasons)}" if reasons else ""
        return "; ".join(filter(None, (counts, left_out, describe_unplaced(self.n_unplaced), self.forgotten)))

    def describe_texts(self) -> str:
        """Return from which spans the samples have their questions and answers, in a line."""
        listed = [
            f"{question!r}, {'none' if answer is None else repr(answer)} {n:,}"
            for (question, answer), n in self.texts_from.most_common()
        ]
        named = f"{name_setting('mapping', 'question=SPAN#KEY')} and {name_setting('mapping', 'answer=SPAN#KEY')}"
        return f"question and answer by span, in samples: {list_names(listed, _MAX_LISTED)}; {named} name others"

    def describe_contexts(self) -> str:
        """Return from which spans the samples have their contexts, in a line."""
        named = name_setting("mapping", "contexts=SPAN")
        if self.contexts_from[()] == self.n_samples:
            return f"no sample has contexts; {named} names the spans that have them"
        by_most = sorted(self.contexts_from.items(), key=lambda item: (not item[0], -item[1]))
        listed = [f"{' + '.join(map(repr, names)) or 'none'} {n:,}" for names, n in by_most]
        return f"contexts by span, in samples: {list_names(listed, _MAX_LISTED)}; {named} names others"


def read_traces(source: DatasetSource, form: TraceFormat, tally: Tally, names: SpanNames) -> DatasetSource:
    """Return a source of spans as one of samples, a row a trace; the tally counts what the traces became."""

    def read_items(complain: Complain) -> Iterator[Item | Unplaced]:
        # A file that is a single JSON object, such as a downloaded trace, is one row or has them.
        document: object = None
        if source.file is not None and source.place == "element":
            with open_text(source.file) as opened:
                start = opened.read(2**16)
                text = start + opened.read(_MAX_DOCUMENT) if start.lstrip().startswith(b"{") else b""
            with suppress(orjson.JSONDecodeError):  # the reader of rows reports where it is broken
                document = orjson.loads(text)
        rows: Iterable[RawRow] = source.read(complain)
        if isinstance(document, dict):
            data = document.get("data")
            items = data if isinstance(data, list) else [document]
            rows = [RawRow(row=number, values=item) for number, item in enumerate(items, start=1)]
        for raw in rows:
            if not isinstance(raw.values, dict):
                complain(raw.row, "not_an_object", f"{raw.values!r:.40}, not a JSON object")
                continue

            def blame(text: str, row: int = raw.row) -> None:
                complain(row, "no_span", f"{text} ({name_setting('format', form)})")

            try:
                yield from FORMATS[form](raw.values, blame)
            except UNREADABLE as error:
                blame(f"it cannot be read: {describe_error(error)}")

    def read_whole_traces(n_missing: Counter[int]) -> Iterator[list[Item]]:
        """Yield the items of each trace together, once the last of them has come."""
        open_traces = dict[str, list[Item]]()
        for item in read_items(lambda _row, _kind, _text: None):  # the first reading reported all problems
            if isinstance(item, Unplaced):
                tally.n_unplaced += 1
                continue
            key = hash(item.trace_id)
            open_traces.setdefault(item.trace_id, []).append(item)
            n_missing[key] -= 1
            if n_missing[key] == 0:
                yield open_traces.pop(item.trace_id)
        yield from open_traces.values()  # of two traces whose ids share a hash

    def read(complain: Complain) -> Iterator[RawRow]:
        n_items, calls = Counter[int](), dict[int, list[tuple[float, float]]]()
        for item in read_items(complain):
            if isinstance(item, Unplaced):
                continue
            n_items[hash(item.trace_id)] += 1
            if isinstance(item, Span) and item.kind == "llm" and item.parent_id and (reply := _hash_reply(item)):
                calls.setdefault(reply, []).append((item.started_at or 0.0, item.ended_at or 0.0))
        traces = ((items, False) for items in read_whole_traces(n_items))
        return make_samples(traces, tally, names, are_in_order=False, calls=calls)

    return replace(source, tabular=False, read=read, leave_out=tally.leave_out)


def _hash_reply(call: Span) -> int:
    """Return a number for a model's text, or else for the tools that it called; 0 for neither."""
    if call.answer or not call.tool_calls:
        return hash(call.answer) if call.answer else 0
    return hash(orjson.dumps(call.tool_calls, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS))


def make_samples(
    traces: Iterable[tuple[list[Item], bool]],
    tally: Tally,
    names: SpanNames,
    *,
    are_in_order: bool,
    calls: Mapping[int, Sequence[tuple[float, float]]] | None = None,
) -> Iterator[RawRow]:
    """Yield a row for each trace that can be judged. Raises ReadingStopped if there are traces and none can, or none
    has a span of a name that was given.

    A trace that is paired with True is an earlier turn of a session and not a sample. Unless they are in order already,
    session by session, the rows of sessions come last: a trace may end after later ones of its session. `calls` has by
    the hash of a model's reply when such steps of other traces began and ended.
    """

    def is_known(items: Sequence[Item]) -> bool:
        """Return True for a trace of one call of a model, made within one of another trace that has the same reply."""
        spans = [item for item in items if isinstance(item, Span)]
        call = next((span for span in spans if span.parent_id is None), None)
        if calls is None or call is None or call.kind != "llm":
            return False
        if any(span.kind != "other" for span in spans if span is not call):  # such as its HTTP request
            return False
        began, ended = call.started_at or 0.0, call.ended_at or 0.0
        return any(start <= began and ended <= end for start, end in calls.get(_hash_reply(call), ()))

    seen_names = Counter[str]()

    def make_rows() -> Iterator[tuple[dict[str, Any], bool]]:
        tally.begin()
        seen_names.clear()
        of_sessions = []
        for items, is_earlier in traces:
            if names.list_given():
                spans = [item for item in items if isinstance(item, Span)]
                seen_names.update(list(dict.fromkeys(name for span in spans for name in list_span_names(span, names))))
            known = LeftOut(trace_id=items[0].trace_id, reason="twice")
            rows = [known] if is_known(items) else _make_rows(items, names)
            if not is_earlier:
                tally.count(sum(not isinstance(item, Logged) for item in items), rows)
            for row in rows:
                if isinstance(row, LeftOut):
                    continue
                if are_in_order or "conversation_id" not in row:
                    yield row, is_earlier
                else:
                    of_sessions.append((row, is_earlier))
        yield from sorted(of_sessions, key=lambda row: (row[0]["conversation_id"], row[0].get("asked_at", 0.0)))

    for number, row in enumerate(join_sessions(make_rows()), start=1):
        yield RawRow(row=number, values=row)
    for field_name, given in names.list_given():
        if tally.n_traces and not any(name in seen_names for name in given):
            named = name_setting("mapping", f"{field_name}={','.join(given)}")
            listed = list_names([name for name, _ in seen_names.most_common(_MAX_LISTED)])
            raise ReadingStopped(None, "span_names", f"no span for {named}; names of spans: {listed}")
    if (tally.n_traces or tally.n_unplaced) and not tally.n_samples:
        raise ReadingStopped(None, "no_rows", tally.describe())


# --- rows of the warehouse


_IN_SHARE: Final = "evalhouse.in_share"  # the attribute of a span that a receiver with a share stored


def to_row(item: Recorded | Logged, received_at: datetime, is_in_share: bool | None = None) -> dict[str, Any]:
    """Return a recorded span as a row of `spans`, or an event about one as a row of `span_events`.

    Times are microseconds of the epoch, as the journal stores them. `is_in_share` becomes an attribute: whether the
    share that a receiver keeps has the session of the span, or else its trace.
    """
    write = partial(orjson.dumps, default=str, option=orjson.OPT_NON_STR_KEYS)
    received_us = int(received_at.replace(tzinfo=UTC).timestamp() * 1e6)
    row: dict[str, Any] = {"trace_id": item.trace_id, "span_id": item.span_id, "service": item.service}
    if isinstance(item, Logged):
        row |= {
            "name": item.name,
            "logged_at": received_us if item.logged_at is None else round(item.logged_at * 1e6),
        }
    else:
        row |= {
            "parent_id": item.parent_id,
            "name": item.name or None,
            "session_id": item.session,
            "started_at": received_us if item.started_at is None else round(item.started_at * 1e6),
            "duration_ms": item.duration_ms,
            "status": item.status,
            "message": item.message,
            "events": write(item.events).decode() if item.events else None,
        }
    attributes = item.attributes if is_in_share is None else {**item.attributes, _IN_SHARE: is_in_share}
    return row | {"attributes": write(attributes).decode(), "received_at": received_us}


def _is_in_share(spans: Sequence[Mapping[str, Any]]) -> bool:
    """Return False if only a rule kept the trace of these rows, and not the receiver's share.

    Traces that a rule kept are not a random sample: a mean over them and the share's ones is not about all traffic.
    """
    # Of a trace with a session, the spans that have it decide.
    for deciding in ([row for row in spans if row["session_id"] is not None], spans):
        if marks := [row["attributes"] for row in deciding if f'"{_IN_SHARE}":' in row["attributes"]]:
            return any(f'"{_IN_SHARE}":true' in attributes for attributes in marks)
    return True


def from_row(row: dict[str, Any]) -> Item:
    """Return the span of a row of `spans`, or the event of a row of `span_events`; why its trace is left out if it
    cannot be read."""
    common = {name: row[name] for name in ("trace_id", "span_id", "service")}
    try:
        attributes, events = orjson.loads(row["attributes"]), orjson.loads(row.get("events") or "[]")
    except orjson.JSONDecodeError as error:  # nested too deep
        return _leave_out(row["trace_id"], error)
    if "logged_at" in row:
        logged_at = row["logged_at"].replace(tzinfo=UTC).timestamp()
        return Logged(**common, name=row["name"], logged_at=logged_at, attributes=attributes)
    started_at = row["started_at"].replace(tzinfo=UTC)
    ended_at = None if row["duration_ms"] is None else started_at + timedelta(milliseconds=row["duration_ms"])
    recorded = Recorded(
        **common,
        parent_id=row["parent_id"],
        name=row["name"] or "",
        started_at=started_at.timestamp(),
        ended_at=None if ended_at is None else ended_at.timestamp(),
        status=row["status"],
        message=row["message"],
        attributes=attributes,
        events=tuple(events),
    )
    return _try_span(recorded)


def open_stored(warehouse: Warehouse, window: TraceWindow, tally: Tally, names: SpanNames) -> DatasetSource:
    """Return the traces of a window as a dataset; the tally counts what they became."""
    since, until = window.find_bounds(now_utc())
    tally.kept_by = window.kept_by

    def read_whole_traces() -> Iterator[tuple[list[Item], bool]]:
        for rows in fetch_trace_rows(warehouse, since, until, window.service):
            is_other = window.kept_by != "all" and _is_in_share(rows.spans) is not (window.kept_by == "share")
            tally.n_others += is_other and not rows.is_earlier
            # One that is left out is a turn of its session still.
            yield list(map(from_row, (*rows.spans, *rows.events))), rows.is_earlier or is_other

    def read(_: Complain) -> Iterator[RawRow]:
        forgotten = find_forgotten_traces(warehouse, since, until)
        tally.forgotten = None if forgotten is None else forgotten.words
        yield from make_samples(read_whole_traces(), tally, names, are_in_order=True)
        if not tally.n_traces:
            of_service = f" of service {window.service!r}" if window.service else ""
            bounds = f"from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC (last = {window.last!r})"
            others = f", but {tally.n_others:,} {_KEPT[window.kept_by]}" if tally.n_others else ""
            text = f"no traces{of_service} {bounds}{others}"
            raise ReadingStopped(None, "no_traces", f"{text}; {tally.forgotten}" if tally.forgotten else text)

    return DatasetSource(name=TRACES, place="row", tabular=False, read=read, leave_out=tally.leave_out)
