"""Traces as a dataset: its formats, the sample of each trace, and the spans that are stored in the warehouse.

Spans of one trace may be anywhere in a file. It is read twice: once to count the spans of each trace, and once to make
a sample of each trace when the last of its spans has come, so that only open traces are in memory.

The spans of a trace are a tree. Its question and answer are the ones of the outermost span that has them: what a person
wrote, and not the prompt that was made of it. Its contexts are the documents that the model was sent, as far as prompts
show it, else the ones of the retrievers, in the order in which they were asked, or of a reranker. A trace of which
nothing can be judged gives a reason in place of a sample.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

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
from evalhouse.tasks.datasets.sent import keep_sent, list_sent
from evalhouse.tasks.datasets.spans import Blame, Document, Kind, Placed, Span, Tree
from evalhouse.tasks.datasets.values import Complain, ReadingStopped
from evalhouse.tasks.datasets.vendors import read_langfuse, read_langsmith
from evalhouse.tasks.settings.suite import TRACES, TraceFormat, TraceWindow
from evalhouse.warehouse.messages import describe_error, name_setting
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.rows.samples import Turn
from evalhouse.warehouse.rows.spans import fetch_trace_rows, find_forgotten_traces
from evalhouse.warehouse.store import Warehouse

_SPAN_ID: Final = re.compile("[0-9a-f]{16}")  # of OpenTelemetry
_MAX_NAMED: Final = 3  # traces that are named of those left out for one reason
_MAX_DOCUMENT: Final = 2**28  # bytes of a file that is one JSON object

Reason = Literal["no_question", "running", "error", "unreadable", "several", "twice"]
REASONS: Final[dict[Reason, str]] = {
    "no_question": "no span has a question that a person asked",
    "running": "still running, or its outermost span is not there",
    "error": "ended with an error and no answer",
    "unreadable": "cannot be read",
    "several": "several questions or answers, of which it is not known which belong together",
    "twice": "a model's call alone that another trace has as a step: two instrumentors recorded it",
}


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A trace that is not a sample."""

    trace_id: str
    reason: Reason
    detail: str = ""


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


# --- the sample of a trace

_ORDER: Final[tuple[Kind, ...]] = ("chain", "other", "retriever", "reranker", "llm")
_ANSWERING: Final[tuple[Kind, ...]] = ("chain", "other", "llm")
_MAX_BESIDE: Final = 500  # steps beside each other of which one is picked: the time grows with the square
_MIN_SENT: Final = 20  # letters of a text that a prompt does not hold by chance, as it may hold "safe" or "no"
_MAX_DEPTH: Final = 200  # parents of a span that are looked at; a chain of all that were sent would take minutes


def split_by_question(spans: Sequence[Span]) -> list[Sequence[Span]] | LeftOut:
    """Return the spans of a trace, apart for each question where several chains without a question around them answered
    one: a session, or all that came with one trace id, may be one trace.

    Below a span without question and answer, such as a web server's, chains may be steps for one question. There they
    are apart only where each has a retriever and none was asked with another's answer. A trace with anything else
    beside such chains is left out: it is not known to which question that belongs.
    """
    by_id = {span.span_id: span for span in spans}
    # Some tracers put the next step below the one before, which has ended, or the next question's chain below one that
    # runs beside it.
    for span in sorted(spans, key=lambda span: span.started_at or 0.0):
        outer, n_around = by_id.get(span.parent_id or ""), 0
        while (
            outer is not None
            and (outer.is_root or outer.kind in ("retriever", "reranker"))
            and outer.ended_at is not None
            and (span.started_at or 0.0) >= outer.ended_at > (outer.started_at or 0.0)
            and n_around < _MAX_DEPTH
        ):
            by_id[span.span_id] = replace(by_id[span.span_id], parent_id=outer.parent_id)
            outer, n_around = by_id.get(outer.parent_id or ""), n_around + 1
    roots, with_steps = {}, {span.parent_id for span in by_id.values() if not span.is_root}
    for span in by_id.values():
        outer = by_id.get(span.parent_id or "")
        if outer is None or not (outer.is_root and span.is_root and outer.name == span.name):
            continue
        is_alike = (span.question, span.answer) == (outer.question, outer.answer)
        if not is_alike or outer.span_id in with_steps:  # else it is a function around its chain
            roots[span.span_id] = outer
    for span_id, outer in roots.items():
        first, n_around = outer, 0
        while first.span_id in roots and n_around < len(roots):
            first, n_around = roots[first.span_id], n_around + 1
        by_id[span_id] = replace(by_id[span_id], parent_id=first.parent_id)
    spans = list(by_id.values())
    tops = [span for span in by_id.values() if span.parent_id is None]
    # The parent of a lone outermost span may be in another service's traces.
    tops = tops or [span for span in by_id.values() if span.parent_id not in by_id][:2]
    around: dict[str, Span] = {}
    has_answer = False
    while len(tops) == 1 and tops[0].question is None and tops[0].ended_at is not None:
        around[tops[0].span_id] = tops[0]
        has_answer = has_answer or tops[0].answer is not None  # such as "done", or its last question's
        tops = [span for span in by_id.values() if span.parent_id == tops[0].span_id and span.span_id not in around]
    asking = [top for top in tops if top.kind == "chain" and top.question and (top.answer or top.error)]
    parts: dict[str, list[Span]] = {top.span_id: [] for top in sorted(asking, key=lambda top: top.started_at or 0.0)}
    others = []
    for span in by_id.values():
        outer, n_around = span, 0
        while outer.parent_id in by_id and outer.span_id not in parts and n_around < _MAX_DEPTH:
            outer, n_around = by_id[outer.parent_id], n_around + 1
        if outer.span_id in parts:
            parts[outer.span_id].append(span)
        elif span.kind != "embedding" and (span.question or span.answer or span.kind in ("llm", "retriever")):
            others.append(span)
    if around and not (roots and list(around) == [f"trace {spans[0].trace_id}"]):  # Langfuse's, of a batch
        retrieving = {key for key, part in parts.items() if any(span.kind == "retriever" for span in part)}
        questions = {by_id[key].question for key in retrieving}
        others += [top for top in asking if top.span_id not in retrieving]
    else:
        questions = {top.question for top in asking}
    if len(questions) < 2 and not (roots and len(asking) > 1):
        return [spans]
    answers = [top.answer for top in asking if top.answer]
    if others or has_answer or any(answer in (top.question or "") for top in asking for answer in answers):
        return LeftOut(trace_id=spans[0].trace_id, reason="several")
    session = next((span.session for span in around.values() if span.session), None)
    return [[replace(span, session=span.session or session) for span in part] for part in parts.values()]


def make_row(spans: Sequence[Span]) -> dict[str, Any] | LeftOut:
    """Return a trace as a row of a dataset, with our column names; or why it is left out."""
    by_id = {span.span_id: span for span in spans}  # a span that came twice once
    tree: list[Placed] = []
    for span in by_id.values():
        around: list[Span] = []
        seen = {span.span_id}  # a broken export may have a circle
        outer = by_id.get(span.parent_id or "")
        while outer is not None and outer.span_id not in seen and len(around) < _MAX_DEPTH:
            around.append(outer)
            seen.add(outer.span_id)
            outer = by_id.get(outer.parent_id or "")
        tree.append(Placed(span=span, around=around))
    tree.sort(key=lambda item: (item.depth, item.span.started_at or 0.0))
    trace_id = spans[0].trace_id
    tops = [placed.span for placed in tree if placed.depth == 0]
    has_outermost = len(tops) == 1 or any(top.parent_id is None for top in tops)
    if not has_outermost or any(top.ended_at is None for top in tops):
        return LeftOut(trace_id=trace_id, reason="running")
    failed = next((top for top in tops if top.error), None)
    if failed is not None and not any(top.answer for top in tops):
        return LeftOut(trace_id=trace_id, reason="error", detail=failed.error or "")
    asking = [item for item in tree if item.span.question is not None and item.span.kind in _ORDER]
    if not asking:
        return LeftOut(trace_id=trace_id, reason="no_question")
    asking.sort(key=lambda item: (item.depth, _ORDER.index(item.span.kind), item.span.started_at or 0.0))
    pair = _find_pair(asking[0].span, tree)
    if pair is None:
        return LeftOut(trace_id=trace_id, reason="several")
    question, answer = pair
    if answer is not None and answer.answer is None and answer.error:
        return LeftOut(trace_id=trace_id, reason="error", detail=answer.error)
    # What else is known about it is for the sample's metadata.
    placed = [item.span for item in tree]
    models = [item for item in tree if item.span.kind == "llm"]
    calls = [call for span in placed if span.kind == "tool" for call in span.tool_calls]
    outermost = [item.span for item in models if not any(span.kind == "llm" for span in item.around)]
    by_models = [call for span in outermost for call in span.tool_calls]
    if not calls or sorted(call["name"] for call in calls) == sorted(call["name"] for call in by_models):
        calls = by_models  # a tool's step may have its arguments as text
    # An outer call of a model may have no tokens; else the outermost step with tokens counts.
    counted = models if any(item.span.prompt_tokens is not None for item in models) else tree
    prompt_tokens = [item.span.prompt_tokens or 0 for item in counted if item.is_first_with("prompt_tokens")]
    reply_tokens = [item.span.completion_tokens or 0 for item in counted if item.is_first_with("completion_tokens")]
    started_at, ended_at = min(top.started_at or 0.0 for top in tops), max(top.ended_at or 0.0 for top in tops)
    metadata = {
        "conversation_id": next((span.session for span in placed if span.session), None),
        "service": next((span.service for span in placed if span.service), None),
        "trace_name": tops[0].name or None,
        "project_id": tops[0].project,
        "span_id": tops[0].span_id if _SPAN_ID.fullmatch(tops[0].span_id) else None,  # of OpenTelemetry
        "asked_at": started_at or None,
        # Where no end was recorded, it equals the beginning.
        "latency_ms": round((ended_at - started_at) * 1000, 3) if started_at and ended_at > started_at else None,
        "prompt_tokens": sum(prompt_tokens) if prompt_tokens else None,
        "completion_tokens": sum(reply_tokens) if reply_tokens else None,
        "models": sorted({str(item.span.model) for item in models if item.is_first_with("model")}) or None,
        "tool_calls": calls or None,
        "n_spans": len(placed),
    }
    row: dict[str, Any] = {
        "id": trace_id,
        "question": question.question,
        "answer": None if answer is None else answer.answer,
        **{name: value for name, value in metadata.items() if value is not None},
    }
    if question.turns:
        row["conversation"] = list(question.turns)
    # What reached the model: the documents of retrievers, or what rerankers chose of them, each document once; without
    # either, what the outermost chain returned with its answer; else what tools returned.
    before = _list_before_answer(tree, answer)
    with_documents = [item for item in before if item.is_first_with("documents")]
    with_documents.sort(key=lambda item: item.span.started_at or 0.0)
    chosen = [span.documents or () for span in _leave_out_reranked(with_documents)]
    if not chosen:
        chosen = [span.passed_on for span in placed if span.passed_on is not None][:1]
    if not chosen:
        tools_first = sorted(
            (item.span for item in before), key=lambda span: (span.kind != "tool", span.started_at or 0.0)
        )
        chosen = [span.returned for span in tools_first if span.returned is not None]
    documents: list[Document] = list({(item.id, item.text): item for listed in chosen for item in listed}.values())
    if chosen:
        documents = keep_sent(documents, tree, row["question"], row["answer"] or "")
    if chosen and all(document.text is not None for document in documents):
        row["contexts"] = [
            {"text": document.text, "id": document.id, "score": document.score, "metadata": document.metadata}
            for document in documents
        ]
    elif chosen and all(document.id for document in documents):  # the tracer stored no texts
        row["context_ids"] = [document.id for document in documents]
    return row


def _list_before_answer(tree: Sequence[Placed], answer: Span | None) -> Sequence[Placed]:
    """Return the spans that began before the answer was written: what is looked up for its links, or to check it, did
    not reach the model. All spans count where no model's text is the answer, or a later one's was not recorded."""
    text = "" if answer is None else answer.answer or ""
    models = [item.span for item in tree if item.span.kind == "llm" and item.span.ended_at]
    wrote = [
        span
        for span in models
        if span is answer
        or (text and text in (span.answer or ""))
        or (len(span.answer or "") >= _MIN_SENT and (span.answer or "") in text)
    ]
    if sum(len(span.answer or "") for span in wrote) < len(text) / 2:
        return tree  # a part alone is found, such as a word before a lookup
    at = max((span.ended_at or 0.0 for span in wrote), default=0.0)
    is_whole = any(span is answer or text in (span.answer or "") for span in wrote)
    if not wrote or (not is_whole and any(span.answer is None and (span.started_at or 0.0) >= at for span in models)):
        return tree
    before = [item for item in tree if (item.span.started_at or 0.0) <= at]
    # Traces that are written afterwards have times in the order of writing.
    has_lookup = any(item.span.documents is not None or item.span.returned is not None for item in before)
    return before if has_lookup else tree


def _leave_out_reranked(lookups: Sequence[Placed]) -> list[Span]:
    """Return retrievers and rerankers, in order of time, without those whose documents a reranker was given.

    It was given what was looked up within it; else, of the lookups within the innermost span around it that has any
    before it, the retrievers with one of its documents, or the reranker that has all of them. Where its input was not
    recorded, these are the retrievers since the reranker before it.
    """
    names = {item.span.span_id: {doc.text or doc.id for doc in item.span.documents or ()} for item in lookups}
    kept = list[Placed]()
    for item in lookups:
        if any(outer.kind == "reranker" and outer.documents is not None for outer in item.around):
            continue
        if item.span.kind == "reranker":
            pools = ([one for one in kept if _is_within(one, outer)] for outer in item.around)
            pool = next(filter(None, pools), kept)
            given = {doc.text or doc.id for doc in item.span.given}
            is_known = any(given & names[one.span.span_id] for one in pool)
            given = given if is_known else names[item.span.span_id]
            since = max((place for place, one in enumerate(pool, 1) if one.span.kind == "reranker"), default=0)
            retrievers = [
                one
                for place, one in enumerate(pool)
                if one.span.kind == "retriever"
                and (given & names[one.span.span_id] or (not is_known and place >= since))
            ]
            rerankers = [one for one in pool if one.span.kind == "reranker" and given <= names[one.span.span_id]]
            replaced = [one.span.span_id for one in retrievers or rerankers]
            kept = [one for one in kept if one.span.span_id not in replaced]
        kept.append(item)
    return [item.span for item in kept]


def _find_pair(asked: Span, tree: Sequence[Placed]) -> tuple[Span, Span | None] | None:
    """Return the spans with the question and with the answer; None where it is not known which of several steps beside
    each other gave the answer. `asked` is the outermost span with a question."""
    # Steps within a retriever or a tool work for that alone, unless it is around everything.
    placed = [
        item
        for item in tree
        if item.span.kind in _ANSWERING and all(outer.kind in _ANSWERING for outer in item.around[:-1])
    ]
    of_models = {outer.span_id for item in tree if item.span.kind == "llm" for outer in (item.span, *item.around)}
    speaking = {
        outer.span_id
        for item in tree
        if item.span.kind == "llm" and len((item.span.answer or "").split()) > 1
        for outer in item.around
    }
    answering = []
    for item in placed:
        # A passage that is handed on does not answer, nor does a flag around a model's text.
        is_handed_on = item.span.kind != "llm" and item.span.answer == item.span.question
        is_flag = item.span.is_flag and item.span.span_id in speaking
        is_stream = item.span.is_printed and item.span.span_id in of_models
        if is_stream or (item.span.answer is not None and not is_handed_on and not is_flag):
            answering.append(item)
    # A model's call without a text may be the one that answers, unless a step within it has the text.
    around = {outer.span_id for item in answering for outer in item.around}
    answering += [item for item in placed if item.is_silent and item.span.span_id not in around]
    found = {item.span.span_id for item in answering}
    steps = [item for item in answering if not any(outer.span_id in found for outer in item.around)]
    if not steps:
        return asked, None
    steps.sort(key=lambda item: item.span.started_at or 0.0)
    step = steps[0]
    if len(steps) > 1 or step.depth:
        documents = [document.text for item in tree for document in item.span.documents or () if document.text]
        picked = _pick_step(steps, answering, tree, documents)
        if picked is None:
            return None
        step = picked
        if step.span.question and all(outer.span_id != asked.span_id for outer in step.around):
            asked = _pick_question(asked, step.span, steps, documents)
    if step.span.is_printed:
        # A stream is recorded as an object: its text is that of the last model, unless that is from before a lookup and
        # the text of a later one is missing. Steps in between cut texts.
        models = [item for item in answering if item.span.kind == "llm" and _is_within(item, step.span)]
        models.sort(key=lambda item: (item.span.ended_at or 0.0, item.span.started_at or 0.0))
        texts = [item.span for item in models if not item.is_silent]
        last_at = (texts[-1].started_at or 0.0) if texts else 0.0
        missing = [item.span for item in models if item.is_silent and (item.span.started_at or 0.0) >= last_at]
        missing = [span for span in missing if not span.tool_calls]
        lookups = [item.span for item in tree if item.span.kind in ("retriever", "reranker")]
        if missing and any((span.started_at or 0.0) >= last_at for span in lookups):
            texts = missing
        return asked, texts[-1] if texts else None
    return asked, step.span


def _is_within(item: Placed, outer: Span) -> bool:
    return item.span is outer or any(span.span_id == outer.span_id for span in item.around)


def _pick_step(
    steps: Sequence[Placed], answering: Sequence[Placed], tree: Sequence[Placed], documents: Sequence[str]
) -> Placed | None:
    """Return the step that gave the answer, of these in order of time; None where it is not known.

    A step before the end of the first retrieval prepares, unless it is an earlier turn of the chat, has another
    question, or was sent on. After the last retrieval there must be one step: of several chains, or calls of models,
    any may have written what the person read: a question that the next one was asked, an answer of which it made a
    title, a draft. A call whose text is in a chain's answer is a part of that. One without a text counts as the others
    do, unless a later one tried again: the answer is missing then. A step between two retrievals may be anything.
    """
    calls = [item for item in answering if item.span.kind == "llm"]
    last_at = steps[-1].span.ended_at or 0.0
    lookups = [item for item in tree if item.span.kind in ("retriever", "reranker")]
    lookups = lookups or [
        item for item in tree if item.span.kind in ("tool", "embedding") and (item.span.started_at or 0.0) <= last_at
    ]
    last_lookup_at = max((item.span.ended_at or item.span.started_at or 0.0 for item in lookups), default=0.0)
    steps = [step for step in steps if not step.is_silent or (step.span.started_at or 0.0) >= last_lookup_at]
    # Two services' clocks may differ by the moment between a lookup's end and the call; a lone call came after if it
    # began after it.
    is_lone = len(steps) == 1 and steps[0].span.kind == "llm"
    looked_at = [((not is_lone and item.span.ended_at) or item.span.started_at or 0.0, item) for item in lookups]
    queries = {item.span.question for item in lookups if item.span.question}
    if len(steps) > _MAX_BESIDE:
        return None
    earlier, others = list[Placed](), list[Placed]()
    for step in steps:
        ended = (step.span.started_at if step.span.kind == "llm" else step.span.ended_at) or 0.0
        later = [call.span for call in calls if (call.span.started_at or 0.0) >= ended and call is not step]
        text = step.span.answer or ""
        is_sent = any(_holds(call, text) for call in later)
        if step.span.kind != "llm" and later and not any(_is_within(call, step.span) for call in calls):
            # A step without a model, before one: documents, or a prompt of them or of the question, do not answer.
            question = step.span.question
            has_question = bool(question and question in text)
            if not is_sent or has_question or text in queries or any(document in text for document in documents):
                continue
        beside = [at for at, item in looked_at if not _is_within(item, step.span)]
        if not beside or ended >= max(beside):
            others.append(step)
        elif not step.span.tool_calls:
            is_query = any(query in text or text in query for query in queries)
            if ended >= min(at for at, _ in looked_at) or (is_sent and not is_query and len(text) >= _MIN_SENT):
                return None
            earlier.append(step)
    others = [step for step in others if not _is_made_up_for(step, others, documents)]
    chains = [step for step in others if step.span.kind != "llm"]
    models = [step for step in others if step.span.kind == "llm"]
    if chains:
        models = [step for step in models if (step.span.answer or "") not in (chains[0].span.answer or "")]
    if len({chain.span.answer or chain.span.span_id for chain in chains}) + len(models) != 1:
        return None
    picked = (chains or models)[0]
    final = picked.span.question or ""
    for span in (step.span for step in earlier):
        asked, answer = span.question or "", span.answer or ""
        is_apart = span.kind != "llm" and asked not in final and final not in asked
        if _holds(picked.span, answer, only_turns=True) or (is_apart and answer not in queries and answer not in final):
            return None
    return picked


def _is_made_up_for(silent: Placed, steps: Sequence[Placed], documents: Sequence[str]) -> bool:
    """Return True for a call without a text that a step beside it recorded, or a later one continued or repeated.

    A title may be asked for with the same question, but by other instructions.
    """
    if not silent.is_silent:
        return False
    began, ended = silent.span.started_at or 0.0, silent.span.ended_at or 0.0
    for step in (step.span for step in steps if not step.is_silent):
        if silent.span.question is None and (step.started_at or 0.0) <= ended and (step.ended_at or 0.0) >= began:
            return True  # two tracers recorded one call, one of them without texts
        is_same = all(getattr(step, name) == getattr(silent.span, name) for name in ("question", "turns", "beside"))
        is_next = bool(silent.span.tool_calls) and step.question in (silent.span.question, None)
        has_documents = any(_holds(step, document) for document in documents)
        if (step.started_at or 0.0) >= began and (is_same or is_next or has_documents):
            return True
    return False


def _holds(call: Span, text: str | None, *, only_turns: bool = False) -> bool:
    """Return True if a text is in the messages that a model was sent before its reply, or before the last question."""
    sent = [str(turn["text"]) for turn in call.turns] if only_turns else list_sent(call)
    return any((text or "") in one for one in sent)


def _pick_question(found: Span, answer: Span, steps: Sequence[Placed], documents: Sequence[str]) -> Span:
    """Return the span with the question that a person asked: the one `found` first, or the step that answered, unless
    it was given a prompt, which has the question or what was retrieved in it, or what a step beside it has written."""
    beside = [step.span for step in steps if step.span is not answer]
    if found.kind == "retriever":  # a model beside may have written its query
        written = (step for step in beside if step.question and (found.question or "") in (step.answer or ""))
        found = next(written, found)
    asked = answer.question or ""
    is_prompt = asked != found.question and (
        (found.question or "") in asked or any(document in asked for document in documents)
    )
    is_written = any(step.answer == asked for step in beside)
    return found if is_prompt or is_written else answer


def _make_rows(items: Sequence[Item]) -> list[dict[str, Any] | LeftOut]:
    """Return the rows of a trace: one, or one for each of several questions."""
    unreadable = next((item for item in items if isinstance(item, LeftOut)), None)
    if unreadable is not None:
        return [unreadable]
    try:
        parts = split_by_question(join_logged(item for item in items if not isinstance(item, LeftOut)))
        if isinstance(parts, LeftOut):
            return [parts]
        rows = [make_row(spans) for spans in parts]
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
        any(text == question or (len(question) >= _MIN_SENT and question in text) for text in left)
        for question in questions
    )


# --- the traces of a dataset


@dataclass(kw_only=True)
class Tally:
    """Counts what the traces of a dataset became; `forgotten` states which were deleted, and `n_unplaced` events belong
    to no trace."""

    n_spans: int = 0
    n_traces: int = 0
    n_samples: int = 0
    n_unplaced: int = 0
    forgotten: str | None = None
    left_out: dict[Reason, list[LeftOut]] = field(default_factory=dict)
    _n: Counter[Reason] = field(default_factory=Counter)

    def begin(self) -> None:
        """Count from zero: a dataset may be read more than once."""
        self.n_spans = self.n_traces = self.n_samples = self.n_unplaced = 0
        self.left_out, self._n = {}, Counter()

    def count(self, n_spans: int, rows: Iterable[object]) -> None:
        """Count a trace, and what it became."""
        self.n_spans += n_spans
        self.n_traces += 1
        for row in rows:
            if isinstance(row, LeftOut):
                self._note(row)
            else:
                self.n_samples += 1

    def leave_out(self, row: RawRow, problem: str) -> None:
        """Count a trace that became a sample as left out: for a problem of its row."""
        self.n_samples -= 1
        self._note(LeftOut(trace_id=str(row.values["id"]), reason="unreadable", detail=problem))

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
            reasons.append(f"{self._n[reason]:,} {REASONS[reason]} ({', '.join(names)})")
        counts = f"traces: {self.n_traces:,} of {self.n_spans:,} spans, {self.n_samples:,} became samples"
        left_out = f"left out: {'; '.join(reasons)}" if reasons else ""
        return "; ".join(filter(None, (counts, left_out, describe_unplaced(self.n_unplaced), self.forgotten)))


def read_traces(source: DatasetSource, form: TraceFormat, tally: Tally) -> DatasetSource:
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
        return make_samples(traces, tally, are_in_order=False, calls=calls)

    return replace(source, tabular=False, read=read, leave_out=tally.leave_out)


def _hash_reply(call: Span) -> int:
    """Return a number for a model's text, or else for the tools that it called; 0 for neither."""
    if call.answer or not call.tool_calls:
        return hash(call.answer) if call.answer else 0
    return hash(orjson.dumps(call.tool_calls, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS))


def make_samples(
    traces: Iterable[tuple[list[Item], bool]],
    tally: Tally,
    *,
    are_in_order: bool,
    calls: Mapping[int, Sequence[tuple[float, float]]] | None = None,
) -> Iterator[RawRow]:
    """Yield a row for each trace that can be judged. Raises ReadingStopped if there are traces and none can.

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

    def make_rows() -> Iterator[tuple[dict[str, Any], bool]]:
        tally.begin()
        of_sessions = []
        for items, is_earlier in traces:
            known = LeftOut(trace_id=items[0].trace_id, reason="twice")
            rows = [known] if is_known(items) else _make_rows(items)
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
    if (tally.n_traces or tally.n_unplaced) and not tally.n_samples:
        raise ReadingStopped(None, "no_rows", tally.describe())


# --- rows of the warehouse


def to_row(item: Recorded | Logged, received_at: datetime) -> dict[str, Any]:
    """Return a recorded span as a row of `spans`, or an event about one as a row of `span_events`.

    Times are microseconds of the epoch, as the journal stores them.
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
    return row | {"attributes": write(item.attributes).decode(), "received_at": received_us}


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


def open_stored(warehouse: Warehouse, window: TraceWindow, tally: Tally) -> DatasetSource:
    """Return the traces of a window as a dataset; the tally counts what they became."""
    since, until = window.find_bounds(now_utc())

    def read(_: Complain) -> Iterator[RawRow]:
        forgotten = find_forgotten_traces(warehouse, since, until)
        tally.forgotten = None if forgotten is None else forgotten.words
        traces = (
            (list(map(from_row, (*rows.spans, *rows.events))), rows.is_earlier)
            for rows in fetch_trace_rows(warehouse, since, until, window.service)
        )
        yield from make_samples(traces, tally, are_in_order=True)
        if not tally.n_traces:
            of_service = f" of service {window.service!r}" if window.service else ""
            bounds = f"from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC (last = {window.last!r})"
            text = f"no traces{of_service} {bounds}"
            raise ReadingStopped(None, "no_traces", f"{text}; {tally.forgotten}" if tally.forgotten else text)

    return DatasetSource(name=TRACES, place="row", tabular=False, read=read, leave_out=tally.leave_out)
