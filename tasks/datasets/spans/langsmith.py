"""Spans of LangSmith's exports: runs a row each, or nested."""

from collections.abc import Iterator, Mapping
from typing import Final

from evalhouse.tasks.datasets.spans.said import find_documents, find_said, find_turns, read_calls, read_documents
from evalhouse.tasks.datasets.spans.span import (
    Blame,
    Kind,
    Span,
    Tree,
    read_count,
    read_list,
    read_name,
    read_time,
    read_tree,
)

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
