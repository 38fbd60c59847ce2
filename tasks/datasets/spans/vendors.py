"""Spans of the exports of Langfuse and LangSmith."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import orjson

from evalhouse.tasks.datasets.spans.otel import Recorded, flatten, read_span
from evalhouse.tasks.datasets.spans.span import (
    LANGFUSE_KINDS,
    Blame,
    Document,
    Kind,
    Span,
    Tree,
    count_tokens,
    find_documents,
    find_said,
    find_turns,
    make_call,
    open_value,
    read_calls,
    read_count,
    read_document,
    read_documents,
    read_found,
    read_list,
    read_name,
    read_score,
    read_time,
    read_tree,
    tell_reranker,
)

_ATTRIBUTES: Final = "attributes"
_RESOURCE: Final = "resourceAttributes"
_UNNAMED: Final = "unknown_service"  # OpenTelemetry's word for a service that has no name


def read_langfuse(row: Tree, blame: Blame) -> Iterator[Span]:
    """A trace with or without its observations, one observation, or an object that holds several of either.

    Names are read as the API writes them (traceId) and as exports to a bucket do (trace_id).
    """
    row = _rename(row)
    held = _list_held(row)
    if held is not None:
        for item in held:
            yield from read_langfuse(item, blame)
        return
    trace_id = read_name(row.get("trace_id"))
    if trace_id is not None and "type" in row:
        yield _read_observation(row, trace_id)
        return
    row = {**_rename(read_tree(row.get("trace"))), **row}  # the trace lists its observations as well, without texts
    an_id = read_name(row.get("id"))
    if why := _find_other(row, an_id, trace_id):
        blame(why)
    elif an_id is not None:
        yield from _read_trace(row, an_id)


def _rename(row: Tree) -> dict[str, Any]:
    return {_to_snake(name): value for name, value in row.items()}


@lru_cache(maxsize=1024)  # bounded: rows may have any names
def _to_snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _list_held(row: Tree) -> list[Tree] | None:
    """What an answer of the API, a session, or a download without its trace holds; None for any other object."""
    if isinstance(row.get("traces"), list):  # a session
        return [{"session_id": row.get("id"), **_rename(item)} for item in row["traces"] if isinstance(item, Mapping)]
    if row.keys() & {"id", "trace"}:
        return None
    held = read_list(row.get("data", row.get("observations")))
    return None if held is None else [item for item in held if isinstance(item, Mapping)]


def _find_other(row: Tree, an_id: str | None, trace_id: str | None) -> str | None:
    """What is wrong with a row that is neither an observation nor a trace; None for a trace."""
    if an_id is None:
        return "no id of a trace, and no traceId of an observation"
    if trace_id is None and {"type", "start_time"} <= row.keys():
        return "an observation that names no trace, as Log View writes them; take the download of the trace itself"
    if trace_id is not None:
        return "a score, not a trace or an observation; export traces or observations"
    if not row.keys() & {"timestamp", "input", "output", "observations"}:
        return "not a trace, which has a timestamp; of sessions only those are read that hold their traces"
    return None


def _read_trace(row: Tree, trace_id: str) -> Iterator[Span]:
    """The trace itself, which has input and output of its own and stands above its observations."""
    listed = read_list(row.get("observations")) or []
    inner = [_read_observation(_rename(item), trace_id) for item in listed if isinstance(item, Mapping)]
    whole = _read_whole(row, trace_id, inner)
    yield whole
    known = {span.span_id for span in inner}
    yield from (span if span.parent_id in known else replace(span, parent_id=whole.span_id) for span in inner)


def _read_whole(row: Tree, trace_id: str, inner: list[Span]) -> Span:
    given, made = _open(row.get("input")), _open(row.get("output"))
    started_at = read_time(row.get("timestamp"))
    latency = read_score(row.get("latency"))
    ends = [span.ended_at for span in inner]
    # Tracers leave observations open when all is over; a trace that has been answered is not running.
    is_running = None in ends and not made
    ended_at = max((end for end in ends if end), default=started_at)
    if started_at is not None and latency is not None:
        ended_at = started_at + latency
    failed = [span for span in inner if span.error and span.parent_id is None]
    return Span(
        trace_id=trace_id,
        span_id=f"trace {trace_id}",
        name=str(row.get("name") or ""),
        kind="chain",
        started_at=started_at,
        ended_at=None if is_running else ended_at,
        error=failed[0].error if failed and not made else None,
        question=find_said(given, "question"),
        turns=find_turns(given),
        answer=find_said(made, "answer"),
        passed_on=find_documents(made),
        session=read_name(row.get("session_id")),
        service=_find_service(_read_map(row.get("metadata"))),
    )


def _read_observation(row: Tree, trace_id: str) -> Span:
    """An observation by its own fields; by the attributes that it came with where these say more."""
    metadata = _read_map(row.get("metadata"))
    attributes = _read_attributes(metadata)
    recorded = read_span(Recorded(trace_id=trace_id, span_id="", attributes=attributes))
    given, made = _open(row.get("input")), _open(row.get("output"))
    kind = _find_kind(row, recorded, made)
    usage = _find_usage(row)
    is_llm = kind == "llm"
    started_at, ended_at = read_time(row.get("start_time")), read_time(row.get("end_time"))
    return Span(
        trace_id=trace_id,
        span_id=str(row.get("id") or ""),
        parent_id=read_name(row.get("parent_observation_id")),
        name=str(row.get("name") or ""),
        kind=kind,
        started_at=started_at,
        ended_at=started_at if row.get("type") == "EVENT" else ended_at,
        error=str(row.get("status_message") or "no reason was recorded") if row.get("level") == "ERROR" else None,
        question=find_said(given, "question") or recorded.question,
        turns=find_turns(given) or recorded.turns,
        answer=find_said(made, "answer") or recorded.answer,
        documents=_find_found(kind, made, recorded),
        passed_on=find_documents(made) if kind == "chain" else None,
        tool_calls=_find_calls(row, kind, recorded, given, made),
        prompt_tokens=_first(count_tokens(usage, "input"), recorded.prompt_tokens) if is_llm else None,
        completion_tokens=_first(count_tokens(usage, "output"), recorded.completion_tokens) if is_llm else None,
        model=read_name(row.get("model") or row.get("provided_model_name")) or recorded.model,
        session=read_name(row.get("session_id")) or recorded.session,
        service=_find_service(metadata),
    )


def _find_calls(row: Tree, kind: Kind, recorded: Span, given: object, made: object) -> tuple[Tree, ...]:
    """Calls by the tool's name in the attributes, where it stands there: an observation's name may say more than it."""
    if kind != "tool":
        return read_calls(kind, "", given, made)
    name = recorded.tool_calls[0]["name"] if recorded.tool_calls else str(row.get("name") or "")
    return recorded.tool_calls if given is None else (make_call(name, given),)


def _find_usage(row: Tree) -> Tree:
    """Tokens by kind; in older answers of the API two numbers beside the other fields, in downloads two sums."""
    usage = _read_map(row.get("usage_details")) or read_tree(row.get("usage"))
    if any(read_count(value) is not None for value in usage.values()):
        return usage
    sums = {"input": row.get("input_usage") or None, "output": row.get("output_usage") or None}
    return {**sums, "prompt_tokens": row.get("prompt_tokens"), "completion_tokens": row.get("completion_tokens")}


def _first(own: int | None, other: int | None) -> int | None:
    return other if own is None else own


def _find_kind(row: Tree, recorded: Span, made: object) -> Kind:
    """What an observation's type says; where that is no more than SPAN, what it came with, or what it gave out."""
    kind = LANGFUSE_KINDS.get(str(row.get("type") or "").lower(), "other")
    if kind in ("chain", "other"):
        found: Kind = "retriever" if _are_found(made) else kind
        kind = found if recorded.kind == "other" else recorded.kind
    return tell_reranker(kind, str(row.get("name") or ""))


def _are_found(made: object) -> bool:
    """Whether a step gave out documents and nothing else: older SDKs had no type of their own for what retrieves."""
    return isinstance(made, list) and bool(made) and all(_is_found(item) for item in made)


def _is_found(item: object) -> bool:
    """Whether it is a document, and not a message or a part of one, which has a text too."""
    if not isinstance(item, Mapping) or item.keys() & {"role", "finish_reason", "tool_calls"}:
        return False
    document = read_document(item)
    of_documents = {"page_content", "pageContent", "metadata", "score", "node", "document"}
    return document is not None and document.text is not None and bool(of_documents & item.keys())


def _find_found(kind: Kind, made: object, recorded: Span) -> tuple[Document, ...] | None:
    """What a retriever found: in its output, or in the attributes that it came with."""
    if kind not in ("retriever", "reranker"):
        return None
    return recorded.documents or read_found(made)


def _open(value: object) -> object:
    """A recorded value as it was before it was written as JSON, once or more often.

    A text that reads as a number or a truth value in JSON comes as one; here it is text again.
    """
    while isinstance(value, str) and (value[:1] == '"' or value == "null"):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            break
    if isinstance(value, bool | int | float):
        return orjson.dumps(value).decode()
    return open_value(value)


def _read_map(value: object) -> Tree:
    """An object, or the pairs of key and value as which Parquet keeps one."""
    opened = open_value(value)
    pairs = opened if isinstance(opened, list) else []
    if pairs and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        return {str(key): inner for key, inner in pairs}
    return read_tree(opened)


def _read_attributes(metadata: Tree) -> dict[str, Any]:
    """The attributes of OpenTelemetry that an observation came with: in an object, or each by its own name."""
    named = {name: value for name, value in metadata.items() if name.startswith(f"{_ATTRIBUTES}.")}
    beside = {name.removeprefix(f"{_ATTRIBUTES}."): value for name, value in named.items()}
    return {**beside, **flatten(read_tree(metadata.get(_ATTRIBUTES)))}


def _find_service(metadata: Tree) -> str | None:
    of_resource = read_tree(metadata.get(_RESOURCE)).get("service.name")
    service = read_name(of_resource or metadata.get(f"{_RESOURCE}.service.name"))
    return None if service is None or service.startswith(_UNNAMED) else service


_RUNS: Final[Mapping[str, Kind]] = {
    "llm": "llm", "retriever": "retriever", "tool": "tool", "embedding": "embedding", "chain": "chain",
}  # fmt: skip
_THREADS: Final = ("session_id", "thread_id", "conversation_id")
_PENDING: Final = "pending"


def read_langsmith(row: Tree, blame: Blame) -> Iterator[Span]:
    """A run, and those inside it where the export nests them as `child_runs`."""
    run_id = read_name(row.get("id") or row.get("run_id"))
    trace_id = read_name(row.get("trace_id")) or (run_id if not row.get("parent_run_id") else None)
    if run_id is None or trace_id is None:
        blame("no id and trace_id, which every run has")
        return
    yield _read_run(row, run_id, trace_id)
    for child in read_list(row.get("child_runs")) or []:
        if isinstance(child, Mapping):
            yield from read_langsmith({"trace_id": trace_id, "parent_run_id": run_id, **child}, blame)


def _read_run(row: Tree, run_id: str, trace_id: str) -> Span:
    kind = _RUNS.get(str(row.get("run_type") or ""), "other")
    given, made = read_tree(row.get("inputs")), read_tree(row.get("outputs"))
    name, error = str(row.get("name") or ""), read_name(row.get("error"))
    is_pending = row.get("status") == _PENDING
    # Of the run's own columns `session_id` is the project; a conversation is named in its metadata.
    metadata = {**read_tree(read_tree(row.get("extra")).get("metadata")), **read_tree(row.get("metadata"))}
    usage = read_tree(made.get("usage_metadata"))
    is_llm = kind == "llm"
    return Span(
        trace_id=trace_id,
        span_id=run_id,
        parent_id=read_name(row.get("parent_run_id")),
        name=name,
        kind=kind,
        started_at=read_time(row.get("start_time")),
        ended_at=None if is_pending else read_time(row.get("end_time")),
        error=error or ("no reason was recorded" if row.get("status") == "error" else None),
        question=find_said(given, "question"),
        turns=find_turns(given),
        answer=find_said(made, "answer"),
        documents=read_documents(made) if kind == "retriever" else None,
        passed_on=find_documents(made) if kind == "chain" else None,
        tool_calls=read_calls(kind, name, given.get("input", given), _find_reply(made)),
        prompt_tokens=read_count(row.get("prompt_tokens") or usage.get("input_tokens")) if is_llm else None,
        completion_tokens=read_count(row.get("completion_tokens") or usage.get("output_tokens")) if is_llm else None,
        model=read_name(metadata.get("ls_model_name")) if is_llm else None,
        session=next((named for key in _THREADS if (named := read_name(metadata.get(key)))), None),
    )


def _find_reply(made: Tree) -> object:
    """The messages of a model's reply: in `generations`, lists of lists, where LangChain's callbacks write them."""
    value: object = made.get("generations", made.get("messages", made))
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return value
