"""The one place that makes a sample of a trace's spans.

The spans of a trace are a tree. Its question and answer are those of the outermost span that has them: what a person
wrote, and not the prompt that was made of it. Its contexts are what the retrievers found, in the order in which they
were asked, or what a reranker chose of it. A trace of which nothing can be judged gives a reason in place of a sample.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from evalhouse.tasks.datasets.spans.span import Document, Kind, Span

Reason = Literal["no_question", "running", "error"]
REASONS: Final[dict[Reason, str]] = {
    "no_question": "no span has a question that a person asked",
    "running": "still running, or its outermost span is not there",
    "error": "ended with an error and no answer",
}
_ORDER: Final[tuple[Kind, ...]] = ("chain", "other", "retriever", "reranker", "llm")
_ANSWERING: Final[tuple[Kind, ...]] = ("chain", "other", "llm")
_DEEPEST: Final = 200  # parents of a span that are looked at; for a chain of all that were sent it would take minutes


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A trace that is not a sample."""

    trace_id: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A span, its depth in the trace, and whether a span around it is of its kind."""

    span: Span
    depth: int
    is_inner: bool


def make_row(spans: Sequence[Span]) -> dict[str, Any] | LeftOut:
    """Return a trace as a row of a dataset, with our column names; or why it is left out."""
    tree = _place(spans)
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
    # Of spans equally far out the one that ended last has the answer that the others contributed to.
    answering = [item for item in tree if item.span.answer is not None and item.span.kind in _ANSWERING]
    answering.sort(key=lambda item: (item.depth, _ANSWERING.index(item.span.kind), -(item.span.ended_at or 0.0)))
    row: dict[str, Any] = {
        "id": trace_id,
        "question": asking[0].span.question,
        "answer": answering[0].span.answer if answering else None,
        **_describe(tree, tops),
    }
    if asking[0].span.turns:
        row["conversation"] = list(asking[0].span.turns)
    documents = _find_documents(tree)
    if documents is None:
        return row
    if all(document.text is not None for document in documents):
        row["contexts"] = [
            {"text": document.text, "id": document.id, "score": document.score, "metadata": document.metadata}
            for document in documents
        ]
    elif all(document.id for document in documents):  # the tracer stored no texts
        row["context_ids"] = [document.id for document in documents]
    return row


def _place(spans: Sequence[Span]) -> list[_Placed]:
    """Return the spans of a trace, outermost first and each depth in order of time; a span that came twice once."""
    by_id = {span.span_id: span for span in spans}
    placed = []
    for span in by_id.values():
        around: list[Span] = []
        seen = {span.span_id}  # a broken export may go round in a circle
        outer = by_id.get(span.parent_id or "")
        while outer is not None and outer.span_id not in seen and len(around) < _DEEPEST:
            around.append(outer)
            seen.add(outer.span_id)
            outer = by_id.get(outer.parent_id or "")
        is_inner = any(outer.kind == span.kind for outer in around)
        placed.append(_Placed(span=span, depth=len(around), is_inner=is_inner))
    return sorted(placed, key=lambda item: (item.depth, item.span.started_at or 0.0))


def _find_documents(tree: Iterable[_Placed]) -> list[Document] | None:
    """Return what reached the model: the documents of the last reranker if there is one, else of all retrievers, each
    document once; of a trace without either what the outermost chain returned with its answer."""
    tree = list(tree)
    outer = [item.span for item in tree if item.span.documents is not None and not item.is_inner]
    outer.sort(key=lambda span: span.started_at or 0.0)
    rerankers = [span for span in outer if span.kind == "reranker"]
    chosen = [span.documents or () for span in rerankers[-1:] or outer]
    if not chosen:
        chosen = [item.span.passed_on for item in tree if item.span.passed_on is not None][:1]
    if not chosen:
        return None
    documents = {(document.id, document.text): document for listed in chosen for document in listed}
    return list(documents.values())


def _describe(tree: Sequence[_Placed], tops: Sequence[Span]) -> dict[str, Any]:
    """Return what else is known of a trace, for its sample's metadata."""

    def add(counts: Iterable[int | None]) -> int | None:
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    spans = [item.span for item in tree]
    models = [item.span for item in tree if item.span.kind == "llm" and not item.is_inner]
    tools = [span.tool_calls for span in spans if span.kind == "tool"]
    calls = [call for of_span in tools or [span.tool_calls for span in models] for call in of_span]
    started_at, ended_at = min(top.started_at or 0.0 for top in tops), max(top.ended_at or 0.0 for top in tops)
    metadata = {
        "conversation_id": next((span.session for span in spans if span.session), None),
        "service": next((span.service for span in spans if span.service), None),
        "trace_name": tops[0].name or None,
        "asked_at": started_at or None,
        # Where no end was recorded, it equals the beginning.
        "latency_ms": round((ended_at - started_at) * 1000, 3) if started_at and ended_at > started_at else None,
        "prompt_tokens": add(span.prompt_tokens for span in models),
        "completion_tokens": add(span.completion_tokens for span in models),
        "models": sorted({span.model for span in models if span.model}) or None,
        "tool_calls": calls or None,
        "n_spans": len(spans),
    }
    return {name: value for name, value in metadata.items() if value is not None}


def join_sessions(rows: Iterable[tuple[dict[str, Any], bool]]) -> Iterator[dict[str, Any]]:
    """Yield rows with the earlier turns of their session; those of a session follow each other in order of time.

    A row that is paired with True is a turn of its session and not a sample.
    """
    session, turns, n = None, list[dict[str, Any]](), 0
    for row, is_earlier in rows:
        own = row.get("conversation_id")
        if own is None or own != session:
            session, turns, n = own, [], 0
        n += 1
        if not is_earlier:
            earlier = {"conversation": list(turns)} if turns else {}
            yield {**row, **earlier, **({"turn": n} if own is not None else {})}
        turns.append({"role": "user", "text": row["question"]})
        if row["answer"] is not None:
            contexts = [context["text"] for context in row.get("contexts") or ()]
            turns.append({"role": "assistant", "text": row["answer"], **({"contexts": contexts} if contexts else {})})
