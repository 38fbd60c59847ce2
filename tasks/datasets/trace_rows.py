"""The sample of a trace: which of its spans have the question, the answer and the contexts.

The spans of a trace are a tree. Its question and answer are the ones of the outermost span that has them: what a person
wrote, and not the prompt that was made of it. Its contexts are the documents that the model was sent, as far as prompts
show it, else the ones of the retrievers, in the order in which they were asked, or of a reranker. A user may name the
spans of each (`SpanNames`). A trace of which nothing can be judged gives a reason in place of a sample.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

import orjson

from evalhouse.tasks.datasets.chat import has_roles
from evalhouse.tasks.datasets.sent import keep_sent, list_sent
from evalhouse.tasks.datasets.spans import Document, Kind, Placed, Span, read_documents
from evalhouse.tasks.datasets.values import open_value

_SPAN_ID: Final = re.compile("[0-9a-f]{16}")  # of OpenTelemetry

Reason = Literal["no_question", "running", "error", "unreadable", "several", "twice", "not_named"]
REASONS: Final[dict[Reason, str]] = {
    "no_question": "no span has a question that a person asked",
    "running": "still running, or its outermost span is not there",
    "error": "ended with an error and no answer",
    "unreadable": "cannot be read",
    "several": "several questions or answers, of which it is not known which belong together",
    "twice": "a model's call alone that another trace has as a step: two instrumentors recorded it",
    "not_named": "no span of the name that was given has a text",
}


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A trace that is not a sample."""

    trace_id: str
    reason: Reason
    detail: str = ""


_ORDER: Final[tuple[Kind, ...]] = ("chain", "other", "retriever", "reranker", "llm")
_ANSWERING: Final[tuple[Kind, ...]] = ("chain", "other", "llm")
_MAX_BESIDE: Final = 500  # steps beside each other of which one is picked: the time grows with the square
MIN_SENT: Final = 20
"""Letters of a text that a prompt does not hold by chance, as it may hold "safe" or "no"."""
_DEEPEST: Final = 3  # objects within each other in which a user's step may have its documents
_MAX_DEPTH: Final = 200  # parents of a span that are looked at; a chain of all that were sent would take minutes


@dataclass(frozen=True, kw_only=True)
class SpanNames:
    """The names of the spans that have each field, where a user gave them; a field without names is looked for."""

    question: Collection[str] = ()
    answer: Collection[str] = ()
    contexts: Collection[str] = ()

    def list_given(self) -> list[tuple[str, Collection[str]]]:
        """Return the fields that have names, with these."""
        return [(field.name, given) for field in fields(self) if (given := getattr(self, field.name))]


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


def make_row(spans: Sequence[Span], names: SpanNames = SpanNames()) -> dict[str, Any] | LeftOut:
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
    exchange = _find_exchange(tree, names)
    if isinstance(exchange, str):
        return LeftOut(trace_id=trace_id, reason=exchange)
    question, answer = exchange
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
    looked_up = _find_contexts(tree, question.question or "", answer, names)
    if looked_up is None:
        return row
    documents, row["contexts_from"] = looked_up
    if all(document.text is not None for document in documents):
        row["contexts"] = [
            {"text": document.text, "id": document.id, "score": document.score, "metadata": document.metadata}
            for document in documents
        ]
    elif all(document.id for document in documents):  # the tracer stored no texts
        row["context_ids"] = [document.id for document in documents]
    return row


def _find_exchange(tree: Sequence[Placed], names: SpanNames) -> tuple[Span, Span | None] | Reason:
    """Return the spans with the question and with the answer, or why it is not known which ones they are."""
    asking = [item for item in tree if item.span.question is not None and item.span.kind in _ORDER]
    asking.sort(key=lambda item: (item.depth, _ORDER.index(item.span.kind), item.span.started_at or 0.0))
    asked = asking[0].span if asking else None
    if names.question:
        named = [item.span for item in tree if item.span.name in names.question and item.span.question]
        asked = max(named, key=lambda span: span.started_at or 0.0, default=None)
    if asked is None:
        return "not_named" if names.question else "no_question"
    if names.answer:
        outermost = [
            item.span
            for item in tree
            if item.span.name in names.answer and all(outer.name not in names.answer for outer in item.around)
        ]
        texts = [_find_text(span, tree, tree) for span in outermost]
        answers = [span for span in texts if span is not None and span.answer]
        if not answers:
            return "not_named"
        return asked, max(answers, key=lambda span: span.started_at or 0.0)
    pair = _find_pair(asked, tree)
    if pair is None:
        return "several"
    return (asked, pair[1]) if names.question else pair


def _find_contexts(
    tree: Sequence[Placed], question: str, answer: Span | None, names: SpanNames
) -> tuple[list[Document], list[str]] | None:
    """Return the documents that the model was sent, and the names of their spans; None if no span looked any up.

    They are the ones of retrievers, or what rerankers chose of them, each document once; without either, what the
    outermost chain returned with its answer; else what tools returned. Prompts decide which of them count.
    """
    chosen: Sequence[tuple[Span, Sequence[Document]]]
    if names.contexts:
        named = [item.span for item in tree if item.span.name in names.contexts]
        named.sort(key=lambda span: span.started_at or 0.0)
        chosen = [(span, documents) for span in named if (documents := _list_documents(span, question)) is not None]
    else:
        before = _list_before_answer(tree, answer)
        with_documents = [item for item in before if item.is_first_with("documents")]
        with_documents.sort(key=lambda item: item.span.started_at or 0.0)
        chosen = [(span, span.documents or ()) for span in _leave_out_reranked(with_documents)]
        if not chosen:
            spans = [item.span for item in tree]
            chosen = [(span, span.passed_on) for span in spans if span.passed_on is not None][:1]
        if not chosen:
            spans = sorted(
                (item.span for item in before), key=lambda span: (span.kind != "tool", span.started_at or 0.0)
            )
            chosen = [(span, span.returned) for span in spans if span.returned is not None]
    if not chosen:
        return None
    documents = list({(item.id, item.text): item for _, listed in chosen for item in listed}.values())
    if not names.contexts:
        text = "" if answer is None else answer.answer or ""
        documents = keep_sent(documents, tree, question, text, is_ranked=len(chosen) == 1)
    made = ((item.span, many) for item in tree for many in (item.span.kept, item.span.passed_on, item.span.returned))
    sources = [*chosen, *((span, many) for span, many in made if many)]
    having = [next((span for span, many in sources if document in many), None) for document in documents]
    of_names = [span.name for span in having if span is not None] or [span.name for span, _ in chosen]
    return documents, list(dict.fromkeys(of_names))


def _list_documents(span: Span, question: str) -> Sequence[Document] | None:
    """Return the documents of a span that a user named, else the texts that it returned; None if nothing was recorded.

    The reply of a model is not one of them: it would support itself.
    """
    recorded = [many for many in (span.documents, span.kept, span.returned, span.passed_on) if many is not None]
    with_texts = (many for many in recorded if many and all(document.text for document in many))
    known: Sequence[Document] | None = next(with_texts, None)
    if known is None and span.kind != "llm":
        known = _read_returned(span.result, question)
    return known or next(filter(None, recorded), () if recorded else known)


def _read_returned(value: object, question: str, depth: int = 0) -> Sequence[Document] | None:
    """Return the documents in any value that a step returned, or its texts; None for nothing.

    A list is one of documents, of texts, or of other objects, each unchanged. Of an object the lists count, else
    the texts, else all of it. A state's question, its messages and short texts, such as the names of steps, do not.
    """
    opened = open_value(value)
    if opened is None or opened == question or (depth and isinstance(opened, bool | int | float)):
        return None
    documents = read_documents(opened)
    if documents is not None and all(document.text for document in documents):
        return documents
    if isinstance(opened, list | tuple):
        return None if has_roles(opened) else [_make_plain(item) for item in opened]
    if isinstance(opened, Mapping):
        members = [(item, _read_returned(item, question, depth + 1)) for item in opened.values() if depth < _DEEPEST]
        lists = [found for item, found in members if found is not None and not isinstance(item, str)]
        listed = [one for found in lists for one in found if not one.is_plain or len(one.text or "") >= MIN_SENT]
        texts = [
            one for item, found in members if isinstance(item, str) and len(item) >= MIN_SENT for one in found or ()
        ]
        if listed or texts:
            return listed or texts
        if lists and not any(lists):
            return ()
    return [_make_plain(value)] if isinstance(value, str) or not depth else None


def _make_plain(value: object) -> Document:
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    return Document(text=text, is_plain=True)


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
        or (len(span.answer or "") >= MIN_SENT and (span.answer or "") in text)
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
    return asked, _find_text(step.span, answering, tree)


def _find_text(step: Span, answering: Sequence[Placed], tree: Sequence[Placed]) -> Span | None:
    """Return the span with the text of a step's answer; None where it was not recorded.

    A stream is recorded as an object: its text is that of the last model, unless that is from before a lookup and the
    text of a later one is missing. Steps in between cut texts.
    """
    if not step.is_printed:
        return step
    models = [item for item in answering if item.span.kind == "llm" and _is_within(item, step)]
    models.sort(key=lambda item: (item.span.ended_at or 0.0, item.span.started_at or 0.0))
    texts = [item.span for item in models if not item.is_silent]
    last_at = (texts[-1].started_at or 0.0) if texts else 0.0
    missing = [item.span for item in models if item.is_silent and (item.span.started_at or 0.0) >= last_at]
    missing = [span for span in missing if not span.tool_calls]
    lookups = [item.span for item in tree if item.span.kind in ("retriever", "reranker")]
    if missing and any((span.started_at or 0.0) >= last_at for span in lookups):
        texts = missing
    return texts[-1] if texts else None


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
            if ended >= min(at for at, _ in looked_at) or (is_sent and not is_query and len(text) >= MIN_SENT):
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
