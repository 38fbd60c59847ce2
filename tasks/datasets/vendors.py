"""Spans of the exports of Langfuse and LangSmith.

Langfuse's are downloads of a trace, exports of its tables and to a bucket, and answers of its API. Input and output
come as objects, as JSON text, or as JSON text of JSON text, depending on the way they took. What reached Langfuse by
OpenTelemetry and has no field there is in the metadata, by its attribute's name.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from evalhouse.tasks.datasets.chat import find_returned, has_roles
from evalhouse.tasks.datasets.otel import Recorded, flatten, read_span
from evalhouse.tasks.datasets.spans import (
    LANGFUSE_KINDS,
    Blame,
    Kind,
    Span,
    Tree,
    count_tokens,
    read_count,
    read_documents,
    read_exchange,
    read_list,
    read_name,
    read_retrieved,
    read_score,
    read_time,
    read_tree,
    refine_kind,
)
from evalhouse.tasks.datasets.values import open_text, open_value

_CAPITAL: Final = re.compile("([A-Z])")
_ATTRIBUTES: Final = "attributes"
_RESOURCE: Final = "resourceAttributes"
_UNNAMED: Final = "unknown_service"  # OpenTelemetry's name of a service without one
_NO_REASON: Final = "no reason was recorded"


# --- Langfuse


def read_langfuse(row: Tree, blame: Blame) -> Iterator[Span]:
    """Yield the spans of a trace with or without its observations, of one observation, or of an object that holds
    several of either.

    Names are read as the API writes them (traceId) and as exports to a bucket do (trace_id).
    """
    row = _rename(row)
    held = None
    if isinstance(row.get("traces"), list):  # a session
        held = [{"session_id": row.get("id"), **_rename(item)} for item in row["traces"] if isinstance(item, Mapping)]
    elif not row.keys() & {"id", "trace"}:  # an answer of the API, or a download without its trace
        held = read_list(row.get("data", row.get("observations")))
    if held is not None:
        for item in held:
            if isinstance(item, Mapping):
                yield from read_langfuse(item, blame)
        return
    trace_id = read_name(row.get("trace_id"))
    if trace_id is not None and "type" in row:
        yield _read_observation(row, trace_id)
        return
    row = {**_rename(read_tree(row.get("trace"))), **row}  # the trace lists its observations as well, without texts
    an_id = read_name(row.get("id"))
    if an_id is None:
        blame("no id of a trace, and no traceId of an observation")
    elif trace_id is None and {"type", "start_time"} <= row.keys():
        blame("an observation that names no trace, as Log View writes them; take the download of the trace itself")
    elif trace_id is not None:
        blame("a score, not a trace or an observation; export traces or observations")
    elif not row.keys() & {"timestamp", "input", "output", "observations"}:
        blame("not a trace, which has a timestamp; of sessions only those are read that hold their traces")
    else:
        # The trace itself, which has an input and an output and is above its observations, and these.
        listed = read_list(row.get("observations")) or []
        inner = [_read_observation(_rename(item), an_id) for item in listed if isinstance(item, Mapping)]
        given, made = _open(row.get("input"), is_given=True), _open(row.get("output"))
        started_at = read_time(row.get("timestamp"))
        latency = read_score(row.get("latency"))
        ends = [span.ended_at for span in inner]
        ended_at = max((end for end in ends if end), default=started_at)
        if started_at is not None and latency is not None:
            ended_at = started_at + latency
        known = {span.span_id for span in inner}
        tops = [span for span in inner if span.parent_id not in known]
        failed = [span for span in inner if span.error and span.parent_id is None]
        exchange = read_exchange("chain", "", given, made)
        if [(top.question, top.answer) for top in tops] == [(exchange["question"], exchange["answer"])]:
            exchange = {}  # Langfuse copied them from the outermost observation, which may be one question's of several
        whole = Span(
            trace_id=an_id,
            span_id=f"trace {an_id}",
            name=str(row.get("name") or ""),
            kind="chain",
            started_at=started_at,
            # Tracers leave observations open when all is over; a trace with an answer is not running.
            ended_at=None if None in ends and not made else ended_at,
            error=failed[0].error if failed and not made else None,
            **exchange,
            session=read_name(row.get("session_id")),
            service=_find_service(read_tree(row.get("metadata"))),
        )
        yield whole
        yield from (span if span.parent_id in known else replace(span, parent_id=whole.span_id) for span in inner)


def _rename(row: Tree) -> dict[str, Any]:
    """Return a row with names such as `traceId` as `trace_id`."""
    return {_CAPITAL.sub(r"_\1", name).lstrip("_").lower(): value for name, value in row.items()}


def _read_observation(row: Tree, trace_id: str) -> Span:
    """Return an observation by its fields; by the attributes that it came with where these state more."""
    metadata = read_tree(row.get("metadata"))
    prefix = f"{_ATTRIBUTES}."
    named = {name.removeprefix(prefix): value for name, value in metadata.items() if name.startswith(prefix)}
    attributes = {**named, **flatten(read_tree(metadata.get(_ATTRIBUTES)))}
    recorded = read_span(Recorded(trace_id=trace_id, span_id="", attributes=attributes))
    given, made = _open(row.get("input"), is_given=True), _open(row.get("output"))
    name = str(row.get("name") or "")
    # The kind of its type; for a mere SPAN, that of its attributes, or of its output: a step that returned documents
    # and nothing else is a retriever, for which older SDKs had no type. A message has a text too and is not a document.
    kind = LANGFUSE_KINDS.get(str(row.get("type") or "").lower(), "other")
    if kind in ("chain", "other"):
        if recorded.kind != "other":
            kind = recorded.kind
        elif isinstance(made, list) and not has_roles(made) and find_returned(made) is not None:
            kind = "retriever"
    kind = refine_kind(kind, name)
    # An observation's name may hold more than the tool's.
    exchange = read_exchange(kind, recorded.tool_calls[0]["name"] if recorded.tool_calls else name, given, made)
    stated = {field: value or getattr(recorded, field) for field, value in exchange.items()}
    # An empty list of documents states that none was found or kept.
    stated |= {field: exchange[field] for field in ("kept", "passed_on", "returned") if exchange[field] is not None}
    if kind == "tool" and given is None:
        stated["tool_calls"] = recorded.tool_calls
    usage = read_tree(row.get("usage_details")) or read_tree(row.get("usage"))
    if not any(read_count(value) is not None for value in usage.values()):
        # In older answers of the API tokens are two other fields, in downloads two sums.
        sums = {"input": row.get("input_usage") or None, "output": row.get("output_usage") or None}
        usage = {**sums, "prompt_tokens": row.get("prompt_tokens"), "completion_tokens": row.get("completion_tokens")}
    started_at, ended_at = read_time(row.get("start_time")), read_time(row.get("end_time"))
    counts = {"prompt_tokens": count_tokens(usage, "input"), "completion_tokens": count_tokens(usage, "output")}
    if kind == "llm":
        stated |= {field: getattr(recorded, field) if n is None else n for field, n in counts.items()}
    return Span(
        trace_id=trace_id,
        span_id=str(row.get("id") or ""),
        parent_id=read_name(row.get("parent_observation_id")),
        name=name,
        kind=kind,
        started_at=started_at,
        ended_at=started_at if row.get("type") == "EVENT" else ended_at,
        error=str(row.get("status_message") or _NO_REASON) if row.get("level") == "ERROR" else None,
        **stated,
        documents=(recorded.documents or read_retrieved(made)) if kind in ("retriever", "reranker") else None,
        model=read_name(row.get("model") or row.get("provided_model_name")) or recorded.model,
        session=read_name(row.get("session_id")) or recorded.session,
        service=_find_service(metadata),
        is_root=str(metadata.get("is_langchain_root")).lower() == "true",
    )


def _open(value: object, *, is_given: bool = False) -> object:
    """Return a recorded value as it was before it was written as JSON, once or more often.

    A text that reads as a number or a truth value in JSON comes as one; here it is text again. A text that was given to
    a step may be what a person typed, and stays a text.
    """
    value = open_text(value)
    if value == "null":
        return None
    if isinstance(value, bool | int | float):
        return orjson.dumps(value).decode()
    return value if is_given else open_value(value)


def _find_service(metadata: Tree) -> str | None:
    of_resource = read_tree(metadata.get(_RESOURCE)).get("service.name")
    service = read_name(of_resource or metadata.get(f"{_RESOURCE}.service.name"))
    return None if service is None or service.startswith(_UNNAMED) else service


# --- LangSmith

_RUNS: Final[Mapping[str, Kind]] = {
    "llm": "llm", "retriever": "retriever", "tool": "tool", "embedding": "embedding", "chain": "chain",
}  # fmt: skip
_THREADS: Final = ("session_id", "thread_id", "conversation_id")


def read_langsmith(row: Tree, blame: Blame) -> Iterator[Span]:
    """Yield a run, and those inside it if the export nests them as `child_runs`."""
    run_id = read_name(row.get("id") or row.get("run_id"))
    trace_id = read_name(row.get("trace_id")) or (run_id if not row.get("parent_run_id") else None)
    if run_id is None or trace_id is None:
        blame("no id and trace_id, which every run has")
        return
    kind = refine_kind(_RUNS.get(str(row.get("run_type") or ""), "other"), str(row.get("name") or ""))
    given, made = read_tree(row.get("inputs")), read_tree(row.get("outputs"))
    name, error = str(row.get("name") or ""), read_name(row.get("error"))
    # The run's column `session_id` is the project; a conversation is named in its metadata.
    metadata = {**read_tree(read_tree(row.get("extra")).get("metadata")), **read_tree(row.get("metadata"))}
    usage = read_tree(made.get("usage_metadata"))
    is_llm = kind == "llm"
    exchanged: tuple[object, object] = (given, made)
    if kind == "tool":  # its SDK puts what a function returned into `output`
        exchanged = (given.get("input", given), made["output"] if [*made] == ["output"] else made)
    yield Span(
        trace_id=trace_id,
        span_id=run_id,
        parent_id=read_name(row.get("parent_run_id")),
        name=name,
        kind=kind,
        started_at=read_time(row.get("start_time")),
        ended_at=None if row.get("status") == "pending" else read_time(row.get("end_time")),
        error=error or (_NO_REASON if row.get("status") == "error" else None),
        **read_exchange(kind, name, *exchanged),
        documents=read_documents(made) if kind in ("retriever", "reranker") else None,
        prompt_tokens=read_count(row.get("prompt_tokens") or usage.get("input_tokens")) if is_llm else None,
        completion_tokens=read_count(row.get("completion_tokens") or usage.get("output_tokens")) if is_llm else None,
        model=read_name(metadata.get("ls_model_name")) if is_llm else None,
        session=next((named for key in _THREADS if (named := read_name(metadata.get(key)))), None),
        project=read_name(row.get("session_id")),
    )
    for child in read_list(row.get("child_runs")) or []:
        if isinstance(child, Mapping):
            yield from read_langsmith({"trace_id": trace_id, "parent_run_id": run_id, **child}, blame)
