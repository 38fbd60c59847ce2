"""Spans of the exports of Langfuse and LangSmith."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from evalhouse.tasks.datasets.spans.said import (
    find_documents,
    find_said,
    find_turns,
    list_tool_calls,
    make_call,
    read_documents,
)
from evalhouse.tasks.datasets.spans.span import (
    Blame,
    Kind,
    Span,
    Tree,
    read_count,
    read_list,
    read_name,
    read_score,
    read_time,
    read_tree,
)

_OBSERVATIONS: Final[Mapping[str, Kind]] = {
    "GENERATION": "llm", "RETRIEVER": "retriever", "TOOL": "tool", "EMBEDDING": "embedding", "CHAIN": "chain",
    "AGENT": "chain", "SPAN": "chain",
}  # fmt: skip
_RUNS: Final[Mapping[str, Kind]] = {
    "llm": "llm", "retriever": "retriever", "tool": "tool", "embedding": "embedding", "chain": "chain",
}  # fmt: skip
_THREADS: Final = ("session_id", "thread_id", "conversation_id")
_PENDING: Final = "pending"


def read_langfuse(row: Tree, blame: Blame) -> Iterator[Span]:
    """A trace with its observations, or an observation of an export that has one a row.

    Names are read as the API writes them (traceId) and as exports to a bucket do (trace_id).
    """
    row = {_to_snake(name): value for name, value in row.items()}
    observations = read_list(row.get("observations"))
    trace_id = read_name(row.get("trace_id"))
    if trace_id is not None and "type" in row:
        yield _read_observation(row, trace_id)
        return
    trace_id = read_name(read_tree(row.get("trace")).get("id")) or read_name(row.get("id"))
    if trace_id is None:
        blame("no id of a trace, and no traceId of an observation")
        return
    row = {**row, **{_to_snake(name): value for name, value in read_tree(row.get("trace")).items()}}
    inner = [
        _read_observation({_to_snake(name): value for name, value in item.items()}, trace_id)
        for item in observations or []
        if isinstance(item, Mapping)
    ]
    whole = _read_langfuse_trace(row, trace_id, inner)
    yield whole
    yield from (replace(span, parent_id=span.parent_id or whole.span_id) for span in inner)


def _to_snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _read_langfuse_trace(row: Tree, trace_id: str, inner: list[Span]) -> Span:
    """The trace itself, which has input and output of its own and stands above its observations."""
    started_at = read_time(row.get("timestamp"))
    latency = read_score(row.get("latency"))
    ends = [span.ended_at for span in inner]
    is_running = bool(ends) and None in ends
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
        error=failed[0].error if failed and not row.get("output") else None,
        question=find_said(row.get("input"), "question"),
        turns=find_turns(row.get("input")),
        answer=find_said(row.get("output"), "answer"),
        passed_on=find_documents(row.get("output")),
        session=read_name(row.get("session_id")),
    )


def _read_observation(row: Tree, trace_id: str) -> Span:
    kind = _OBSERVATIONS.get(str(row.get("type") or "").upper(), "other")
    given, made = row.get("input"), row.get("output")
    usage = {**read_tree(row.get("usage")), **read_tree(row.get("usage_details"))}
    started_at, ended_at = read_time(row.get("start_time")), read_time(row.get("end_time"))
    is_event = str(row.get("type") or "").upper() == "EVENT"
    name = str(row.get("name") or "")
    return Span(
        trace_id=trace_id,
        span_id=str(row.get("id") or ""),
        parent_id=read_name(row.get("parent_observation_id")) or None,
        name=name,
        kind=kind,
        started_at=started_at,
        ended_at=started_at if is_event else ended_at,
        error=str(row.get("status_message") or "no reason was recorded") if row.get("level") == "ERROR" else None,
        question=find_said(given, "question"),
        turns=find_turns(given),
        answer=find_said(made, "answer"),
        documents=read_documents(made) if kind == "retriever" else None,
        passed_on=find_documents(made) if kind == "chain" else None,
        tool_calls=_read_calls(kind, name, given, made),
        prompt_tokens=_count(usage, ("input", "prompt_tokens", "promptTokens")) if kind == "llm" else None,
        completion_tokens=_count(usage, ("output", "completion_tokens", "completionTokens")) if kind == "llm" else None,
        model=read_name(row.get("model") or row.get("provided_model_name")),
        session=read_name(row.get("session_id")),
    )


def _count(tree: Tree, names: tuple[str, ...]) -> int | None:
    return next((count for name in names if (count := read_count(tree.get(name))) is not None), None)


def _read_calls(kind: Kind, name: str, given: object, made: object) -> tuple[Tree, ...]:
    if kind == "tool":
        return (make_call(name, given),) if name else ()
    messages = read_list(made)
    return tuple(list_tool_calls(messages if messages is not None else [read_tree(made)])) if kind == "llm" else ()


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
        tool_calls=_read_calls(kind, name, given.get("input", given), _find_reply(made)),
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
