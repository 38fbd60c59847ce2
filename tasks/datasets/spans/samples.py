"""The one place that makes a sample of a trace's spans.

The spans of a trace are a tree. Its question and answer are those of the outermost span that has them: what a person
wrote, and not the prompt that was made of it. Its contexts are what the retrievers found, in the order in which they
were asked, or what a reranker left of it. A trace of which nothing can be judged gives a reason in place of a sample.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from evalhouse.tasks.datasets.spans.span import Document, Kind, Span

Reason = Literal["no_question", "running", "error"]
REASONS: Final[dict[Reason, str]] = {
    "no_question": "no span has a question that a person asked",
    "running": "still running, or its outermost span is not there",
    "error": "ended with an error and no answer",
}
_ORDER: Final[tuple[Kind, ...]] = ("chain", "other", "retriever", "reranker", "llm")
_DEEPEST: Final = 200  # so many spans around one are looked at; for a chain of all that were sent it would take minutes
_ANSWERING: Final[tuple[Kind, ...]] = ("chain", "other", "llm")


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A trace that is no sample."""

    trace_id: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A span, how deep it is in its trace, and whether a span around it is of its kind."""

    span: Span
    depth: int
    is_inner: bool


def make_row(spans: Sequence[Span]) -> dict[str, Any] | LeftOut:
    """A trace as a row of a dataset, with the columns of ours; or why it is none."""
    tree = _place(spans)
    trace_id = spans[0].trace_id
    tops = [placed.span for placed in tree if placed.depth == 0]
    has_outermost = len(tops) == 1 or any(top.parent_id is None for top in tops)
    if not has_outermost or any(top.ended_at is None for top in tops):
        return LeftOut(trace_id=trace_id, reason="running")
    asking = _find_asking(tree)
    answer = _find_answer(tree)
    failed = next((top for top in tops if top.error), None)
    if failed is not None and not any(top.answer for top in tops):
        return LeftOut(trace_id=trace_id, reason="error", detail=failed.error or "")
    if asking is None:
        return LeftOut(trace_id=trace_id, reason="no_question")
    documents = _find_documents(tree)
    row: dict[str, Any] = {"id": trace_id, "question": asking.question, "answer": answer, **_describe(tree, tops)}
    if asking.turns:
        row["conversation"] = list(asking.turns)
    return row | _write_contexts(documents) if documents is not None else row


def _place(spans: Sequence[Span]) -> list[_Placed]:
    """The spans of a trace, outermost first and each depth in the order in time; a span that came twice once."""
    by_id = {span.span_id: span for span in spans}
    placed = []
    for span in by_id.values():
        around = list(islice(_list_around(span, by_id), _DEEPEST))
        is_inner = any(outer.kind == span.kind for outer in around)
        placed.append(_Placed(span=span, depth=len(around), is_inner=is_inner))
    return sorted(placed, key=lambda item: (item.depth, item.span.started_at or 0.0))


def _list_around(span: Span, by_id: dict[str, Span]) -> Iterator[Span]:
    """The spans around one, from within; none twice, though a broken export may go round in a circle."""
    seen = {span.span_id}
    outer = by_id.get(span.parent_id or "")
    while outer is not None and outer.span_id not in seen:
        yield outer
        seen.add(outer.span_id)
        outer = by_id.get(outer.parent_id or "")


def _find_asking(tree: Iterable[_Placed]) -> Span | None:
    asking = [item for item in tree if item.span.question is not None and item.span.kind in _ORDER]
    asking.sort(key=lambda item: (item.depth, _ORDER.index(item.span.kind), item.span.started_at or 0.0))
    return asking[0].span if asking else None


def _find_answer(tree: Iterable[_Placed]) -> str | None:
    """Of spans equally far out the one that ended last, in which the others went in."""
    answering = [item for item in tree if item.span.answer is not None and item.span.kind in _ANSWERING]
    answering.sort(key=lambda item: (item.depth, _ANSWERING.index(item.span.kind), -(item.span.ended_at or 0.0)))
    return answering[0].span.answer if answering else None


def _find_documents(tree: Iterable[_Placed]) -> list[Document] | None:
    """What reached the model: of the last reranker where there is one, else of all retrievers, each document once. Of a
    trace without either what the outermost chain gave out with its answer."""
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


def _write_contexts(documents: Sequence[Document]) -> dict[str, Any]:
    """Contexts with what stands beside their texts; ids alone where the tracer kept no texts."""
    if any(document.text is None for document in documents):
        return {"context_ids": [document.id or "" for document in documents]} if all(d.id for d in documents) else {}
    return {
        "contexts": [
            {"text": document.text, "id": document.id, "score": document.score, "metadata": document.metadata}
            for document in documents
        ]
    }


def _describe(tree: Sequence[_Placed], tops: Sequence[Span]) -> dict[str, Any]:
    """What else is known of a trace, for its sample's metadata."""
    spans = [item.span for item in tree]
    models = [item.span for item in tree if item.span.kind == "llm" and not item.is_inner]
    tools = [span.tool_calls for span in spans if span.kind == "tool"]
    calls = [call for of_span in tools or [span.tool_calls for span in models] for call in of_span]
    started_at, ended_at = min(top.started_at or 0.0 for top in tops), max(top.ended_at or 0.0 for top in tops)
    told = {
        "conversation_id": next((span.session for span in spans if span.session), None),
        "service": next((span.service for span in spans if span.service), None),
        "trace_name": tops[0].name or None,
        "asked_at": started_at or None,
        # Where nothing says when it ended, the end is the beginning.
        "latency_ms": round((ended_at - started_at) * 1000, 3) if started_at and ended_at > started_at else None,
        "prompt_tokens": _add(span.prompt_tokens for span in models),
        "completion_tokens": _add(span.completion_tokens for span in models),
        "models": sorted({span.model for span in models if span.model}) or None,
        "tool_calls": calls or None,
        "n_spans": len(spans),
    }
    return {name: value for name, value in told.items() if value is not None}


def _add(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def join_sessions(rows: Iterable[tuple[dict[str, Any], bool]]) -> Iterator[dict[str, Any]]:
    """Rows with what was said before in their session; those of a session follow each other in the order in time.

    A row that is paired with True is a turn of its session and no sample.
    """
    session, turns, n = None, list[dict[str, Any]](), 0
    for row, is_earlier in rows:
        own = row.get("conversation_id")
        if own is None or own != session:
            session, turns, n = own, [], 0
        n += 1
        if not is_earlier:
            told = {"conversation": list(turns)} if turns else {}
            yield {**row, **told, **({"turn": n} if own is not None else {})}
        turns += _write_turns(row)


def _write_turns(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "user", "text": row["question"]}
    if row["answer"] is not None:
        contexts = [context["text"] for context in row.get("contexts") or ()]
        yield {"role": "assistant", "text": row["answer"], **({"contexts": contexts} if contexts else {})}
