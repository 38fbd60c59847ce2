"""The sample of a trace: which of its spans have the question, the answer and the contexts.

The spans of a trace are a tree. Its question and answer are the ones of the outermost span that has them: what a person
wrote, and not the prompt that was made of it. Its contexts are the documents that the model was sent, as far as prompts
show it, else the ones of the retrievers, in the order in which they were asked, or of a reranker. A user may name the
spans of each (`SpanNames`). A trace of which nothing can be judged gives a reason in place of a sample.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import permutations
from typing import Any, Final, Literal

import orjson

from evalhouse.tasks.datasets.chat import has_roles
from evalhouse.tasks.datasets.sent import find_sent, keep_sent, list_sent
from evalhouse.tasks.datasets.spans import (
    Document,
    Field,
    Kind,
    Placed,
    Span,
    find_message,
    find_messages,
    is_question,
    read_documents,
    read_list,
)
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
_WRAPPERS: Final = ("inputs", "input", "outputs", "output", "kwargs")
_MAX_KEYS: Final = 3  # members of what a span returned that are named with it
_MAX_DEPTH: Final = 200  # parents of a span that are looked at; a chain of all that were sent would take minutes


@dataclass(frozen=True, kw_only=True)
class SpanNames:
    """The names of the spans that have each field, where a user gave them; a field without names is looked for.

    `NAME#KEY` names a member of what the span was given, for a question, or of what it returned. A member of a member
    is `NAME#KEY.KEY`.
    """

    question: Collection[str] = ()
    answer: Collection[str] = ()
    contexts: Collection[str] = ()

    def list_given(self) -> list[tuple[str, Collection[str]]]:
        """Return the fields that have names, with these."""
        return [(field.name, given) for field in fields(self) if (given := getattr(self, field.name))]


def _list_of_field(span: Span, field: str) -> dict[str, object]:
    """Return the members that may have a field. DSPy gives documents to the step that answers."""
    given = {} if field == "answer" else list_members(span.arguments)
    return given if field == "question" else {**given, **list_members(span.result)}


def list_values(span: Span, field: str, given: Collection[str]) -> list[tuple[str, object]] | None:
    """Return what a span has of a field, by the names that were given: all that it was given or returned under "", or
    members by their keys. None if it has no such name; [] if it has no such member."""
    if span.name in given:
        return [("", span.arguments if field == "question" else span.result)]
    keys = [name.removeprefix(f"{span.name}#") for name in given if name.startswith(f"{span.name}#")]
    members = _list_of_field(span, field) if keys else {}
    return [(key, members[key]) for key in keys if key in members] if keys else None


def list_members(value: object, path: str = "", depth: int = 0) -> dict[str, object]:
    """Return the members of an object, and theirs, by their keys joined by dots.

    What a tracer or a framework put around a value has no key: `outputs`, the arguments of a function by their names.
    Those without a name are `args.0`, `args.1`; the members of what a function returned as a tuple `0`, `1`.
    """
    tree = open_value(value)
    if isinstance(tree, list) and (
        path == "args" or (depth == 0 and len(tree) > 1 and any(isinstance(one, str | dict) for one in tree))
    ):
        tree = dict(enumerate(tree))
    found: dict[str, object] = {}
    for key, member in tree.items() if isinstance(tree, Mapping) and depth < _DEEPEST else ():
        name = f"{path}.{key}".lstrip(".")
        found.setdefault(name, member)
        for inner, one in list_members(member, "" if key in _WRAPPERS else name, depth + 1).items():
            found.setdefault(inner, one)
    return found


def list_span_names(span: Span, names: SpanNames) -> list[str]:
    """Return the names that a user can give for a span: its own, and of its members if a user named one."""
    found = [span.name]
    for field, given in names.list_given():
        if any(name.startswith(f"{span.name}#") for name in given):
            found += [f"{span.name}#{key}" for key in _list_of_field(span, field)]
    return list(dict.fromkeys(found))


def split_by_question(spans: Sequence[Span], names: SpanNames = SpanNames()) -> list[Sequence[Span]] | LeftOut:
    """Return the spans of a trace, apart for each question where several chains without a question around them answered
    one: a session, or all that came with one trace id, may be one trace.

    Below a span without question and answer, such as a web server's, chains may be steps for one question. There they
    are apart only where each has a retriever and none was asked with another's answer. A trace with anything else
    beside such chains is left out: it is not known to which question that belongs, unless a user named the spans with
    the answers.
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
        if names.answer:
            questions = {top.question for top in asking}
    else:
        questions = {top.question for top in asking}
    if len(questions) < 2 and not (roots and len(asking) > 1):
        return [spans]
    answers = [top.answer for top in asking if top.answer]
    listed = list(parts.values())
    if others or has_answer or any(answer in (top.question or "") for top in asking for answer in answers):
        # The turns of a session, of which some looked nothing up, or steps for one question: it depends on whether what
        # has the span that a user named answers a question that no step beside it was asked or wrote.
        named = [key for key, part in parts.items() if any(list_values(span, "answer", names.answer) for span in part)]
        apart = []
        for key in named[1:] if named[:1] == [*parts][:1] else named:
            question, beside = by_id[key].question or "", [by_id[other] for other in parts if other != key]
            is_step = any(question == other.question for other in beside) or any(
                other.answer
                and (question in other.answer or (len(other.answer) >= MIN_SENT and other.answer in question))
                for other in beside
            )
            apart.append(not is_step)
        if names.answer and not any(apart):
            return [spans]
        unknown = [other for other in others if other not in asking and other.span_id not in around]
        if not all(apart) or not named or unknown:
            return LeftOut(trace_id=spans[0].trace_id, reason="several")
    session = next((span.session for span in around.values() if span.session), None)
    return [[replace(span, session=span.session or session) for span in part] for part in listed]


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
    # The parent of a lone one may be in another service's traces; a step is exported before the span around it ends.
    is_alone = len(tops) == 1 and tops[0].kind not in ("retriever", "reranker", "tool", "embedding")
    has_outermost = is_alone or any(top.parent_id is None for top in tops)
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
    row["question_from"] = _name_source(question, "question")
    if answer is not None and answer.answer:
        row["answer_from"] = _name_source(answer, "answer")
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


def _name_source(span: Span, field: Field) -> str:
    """Return where a question or an answer is from: a span, with the member that has it of what was recorded."""
    text = getattr(span, field)
    members = list_members(span.arguments if field == "question" else span.result)
    key = next((key for key, member in members.items() if member == text), None)
    return span.name if key is None else f"{span.name}#{key}"


def _find_exchange(tree: Sequence[Placed], names: SpanNames) -> tuple[Span, Span | None] | Reason:
    """Return the spans with the question and with the answer, or why it is not known which ones they are."""
    asking = [item for item in tree if item.span.question is not None and item.span.kind in _ORDER]
    asking.sort(key=lambda item: (item.depth, _ORDER.index(item.span.kind), item.span.started_at or 0.0))
    asked = asking[0].span if asking else None
    if names.question:
        named = _list_texts(tree, "question", names.question)
        asked = max(named, key=lambda span: span.started_at or 0.0, default=None)
    if asked is None:
        return "not_named" if names.question else "no_question"
    if names.answer:
        answers = _list_texts(tree, "answer", names.answer)
        if not answers:
            return "not_named"
        answer = max(answers, key=lambda span: span.started_at or 0.0)
        person = asked if names.question else _leave_query(asked, answer, tree)
        pair = (person, answer) if person is not None else _find_pair(asked, tree)
        return "several" if pair is None else (pair[0], answer)
    pair = _find_pair(asked, tree)
    if pair is None:
        return "several"
    if names.question:
        return asked, pair[1]
    # An outer step was given, or returned, other texts of unknown names: a query that a model wrote in place of the
    # question, a draft in place of what a guard let pass.
    if _has_other_texts(pair[0], "question", tree) or (
        pair[1] is not None and _has_other_texts(pair[1], "answer", tree)
    ):
        return "several"
    return pair


def _list_texts(tree: Sequence[Placed], field: Field, given: Collection[str]) -> list[Span]:
    """Return the spans with the texts of a field, by the names that were given: of spans within each other the
    outermost that has one."""
    found: dict[str, Span] = {}
    for item in tree:  # by depth
        values = list_values(item.span, field, given)
        if not values or any(outer.span_id in found for outer in item.around):
            continue
        if [key for key, _ in values] == [""]:
            span = item.span if field == "question" else _find_text(item.span, tree, tree)
        else:
            text = next(filter(None, (find_message(value, field) for _, value in values)), None)
            span = replace(item.span, question=text) if field == "question" else replace(item.span, answer=text)
        if span is not None and getattr(span, field):
            found[item.span.span_id] = span
    return list(found.values())


def _has_other_texts(span: Span, field: Field, tree: Sequence[Placed]) -> bool:
    """Return True if the outermost chain around a span has no text of that field that is known, but others than the
    span's. What a model was sent does not answer."""
    around = next((item.around for item in tree if item.span.span_id == span.span_id), ())
    recorded = [
        one.arguments if field == "question" else one.result
        for one in around
        if one.kind == "chain" and getattr(one, field) is None
    ]
    members = next((found for value in reversed(recorded) if (found := list_members(value))), {})
    texts = [
        text
        for key, text in members.items()
        if isinstance(text, str) and find_message(text, field) and not key.startswith(("headers", "request.headers"))
    ]
    texts = [text for text in texts if len(text) >= MIN_SENT and " " in text.strip()]
    if field == "answer":
        sent = [one for item in tree if item.span.kind == "llm" for one in list_sent(item.span)]
        texts = [text for text in texts if not any(text in one for one in sent)]
    own = getattr(span, field) or ""
    return bool(texts) and not any(text in own or own in text for text in texts)


def _find_contexts(
    tree: Sequence[Placed], question: str, answer: Span | None, names: SpanNames
) -> tuple[list[Document], list[str]] | None:
    """Return the documents that the model was sent, and the names of their spans; None if no span looked any up.

    They are the ones of retrievers, or what rerankers chose of them, each document once; without either, what the
    outermost chain returned with its answer; else what tools returned. Prompts decide which of them count.
    """
    chosen: Sequence[tuple[str, Sequence[Document]]]
    text = "" if answer is None else answer.answer or ""
    if names.contexts:
        chosen = _list_named(tree, (question, text), names.contexts)
    else:
        before = _list_before_answer(tree, answer)
        with_documents = [item for item in before if item.is_first_with("documents")]
        with_documents.sort(key=lambda item: item.span.started_at or 0.0)
        chosen = [(span.name, span.documents or ()) for span in _leave_out_reranked(with_documents)]
        if not chosen:
            spans = [item.span for item in tree]
            chosen = [(span.name, span.passed_on) for span in spans if span.passed_on is not None][:1]
            # Names of files, or addresses, beside an answer are not what the model was sent.
            texts = [document.text or "" for _, many in chosen for document in many if document.is_plain]
            wrote = (span for span in spans if span.kind == "llm" and span.answer and span.answer in text)
            if texts and any(any(list_sent(span)) for span in wrote) and not find_sent(texts, tree, question, text):
                chosen = []
        if not chosen:
            spans = sorted(
                (item.span for item in before), key=lambda span: (span.kind != "tool", span.started_at or 0.0)
            )
            chosen = [(span.name, span.returned) for span in spans if span.returned is not None]
    if not chosen:
        return None
    documents = list({(item.id, item.text): item for _, listed in chosen for item in listed}.values())
    if not names.contexts:
        documents = keep_sent(documents, tree, question, text, is_ranked=len(chosen) == 1)
    spans = [item.span for item in tree]
    made = ((span.name, many) for span in spans for many in (span.kept, span.passed_on, span.returned) if many)
    sources = [*chosen, *made]
    having = [next((name for name, many in sources if document in many), None) for document in documents]
    of_names = [name for name in having if name is not None] or [name for name, _ in chosen]
    return documents, list(dict.fromkeys(of_names))


@dataclass(frozen=True, kw_only=True)
class _Member:
    """A member of what a named step returned: its key, and its documents or texts. `is_text` for a lone text,
    `is_object` for objects without a text, such as the title and address of a source."""

    key: str
    documents: Sequence[Document]
    is_text: bool = False
    is_object: bool = False

    @property
    def texts(self) -> list[str]:
        """The texts of its documents."""
        return [document.text or "" for document in self.documents]


def _list_named(
    tree: Sequence[Placed], exchange: tuple[str, str], given: Collection[str]
) -> list[tuple[str, Sequence[Document]]]:
    """Return what the spans that a user named returned, in order of time, with the names of spans and members.

    A model's reply does not count: it would support itself. What recorded nothing is left out.
    """
    found: list[tuple[str, Sequence[Document]]] = []
    for span in sorted((item.span for item in tree), key=lambda span: span.started_at or 0.0):
        recorded = [many for many in (span.documents, span.returned, span.kept, span.passed_on) if many is not None]
        for key, value in list_values(span, "contexts", given) or ():
            direct = span.documents or span.returned or ()
            if not key and direct and all(document.text for document in direct):
                found.append((span.name, direct))
            elif value is None:
                found += [(span.name, many) for many in recorded[:1]]
            elif (members := _pick_members(value, key, span, tree, exchange)) is None:
                found.append((span.name, recorded[0] if recorded else [_make_plain(value)]))
            elif len(members) > _MAX_KEYS:
                found.append((span.name, [document for member in members for document in member.documents]))
            else:
                found += [(f"{span.name}#{member.key}".rstrip("#"), member.documents) for member in members]
    without = [(name, [document for document in many if document.text != exchange[1]]) for name, many in found]
    return [now for now, (_, many) in zip(without, found, strict=True) if now[1] or not many]


def _read_members(value: object, question: str, key: str = "", depth: int = 0) -> Iterator[_Member]:
    """Yield the lists and texts of a value, also of the objects within it, without the question and numbers. Of
    messages the results of tools count."""
    opened = open_value(value)
    if opened == question or (depth and isinstance(opened, bool | int | float)):
        return
    if depth and key.lower().endswith(("query", "queries", "question", "questions")):
        return
    if isinstance(opened, Mapping) and opened and read_list(opened) is None:
        for name, item in opened.items() if depth < _DEEPEST else ():
            yield from _read_members(item, question, f"{key}.{name}".lstrip("."), depth + 1)
        return
    if opened in (None, "", "None", "null") or opened == {}:
        yield _Member(key=key, documents=())
        return
    documents, is_object = read_documents(opened), False
    if isinstance(opened, list) and documents is None and not depth and any(isinstance(one, list) for one in opened):
        for place, item in enumerate(opened):  # a tuple: documents beside their scores, ids or a query
            if isinstance(item, str) or any(isinstance(one, dict | list) for one in read_list(item) or ()):
                yield from _read_members(item, question, str(place), depth + 1)
        return
    if isinstance(opened, list | tuple) and opened and has_roles(opened):
        results = [message for message in find_messages(opened) if message.role == "tool"]
        listed = [
            read_documents(one.contexts) or [_make_plain(one.text)] for one in results if one.text or one.contexts
        ]
        documents = tuple(document for many in listed for document in many)
        if not documents:
            return
    elif documents is None or any(document.text is None for document in documents):
        items = list(opened) if isinstance(opened, list | tuple) else [value]
        is_object = isinstance(opened, list | tuple)
        if documents is not None and isinstance(items[0], str):  # printed documents, whose ids are read elsewhere
            return
        documents = tuple(map(_make_plain, items))
    if all(document.text for document in documents):
        yield _Member(key=key, documents=documents, is_text=isinstance(opened, str), is_object=is_object)


def _pick_members(
    value: object, key: str, span: Span, tree: Sequence[Placed], exchange: tuple[str, str]
) -> list[_Member] | None:
    """Return the members of what a step returned that are its contexts; None if it has none but short texts, such as
    the names of steps and numbers.

    A graph's node may return its whole state, a function a text beside its sources. So the members count that the model
    was sent; if none was, documents before texts, and these before other objects. Of several the step made some and
    was given the others; a model wrote queries and plans; and a text of the same documents is there twice.
    """
    question, answer = exchange
    members = [member for member in _read_members(value, question, key) if member.texts != [answer]]
    if [member.key for member in members] == [key]:
        return members
    long = [member for member in members if any(map(_is_long, member.documents))]
    opened = open_value(value)
    others = [open_value(item) for item in opened.values()] if isinstance(opened, Mapping) else []
    others = [None if item in ("", "None", "null") else item for item in others if item != question]
    # An empty list of documents beside names of steps; or null, and nothing but lists beside it.
    is_nothing = [] in others or (None in others and all(item is None or isinstance(item, list) for item in others))
    empty = [member for member in members if is_nothing and not member.documents][:1]
    if not long:
        return empty or None
    sent = find_sent({text for member in long for text in member.texts}, tree, question, answer)
    given = [member.texts for member in _read_members(span.arguments, question)]
    calls = [item.span for item in tree if item.span.kind == "llm"]
    replies = [call.answer for call in calls if call.answer and (call.ended_at or 0.0) <= (span.ended_at or 0.0)]
    written = [member for member in long if all(any(text in reply for reply in replies) for text in member.texts)]
    if empty and [] in others and len(written) == len(long) and not sent:
        return empty

    def prefer(is_fit: Callable[[_Member], bool]) -> list[_Member]:
        return list(filter(is_fit, chosen)) or chosen

    chosen = long
    chosen = prefer(lambda member: not sent.isdisjoint(member.texts))
    chosen = prefer(lambda member: not member.is_object)
    if not sent:
        chosen = prefer(lambda member: any(not document.is_plain for document in member.documents))
        chosen = prefer(lambda member: not member.is_text)
    chosen = prefer(lambda member: member.texts not in given)
    chosen = prefer(lambda member: member not in written)
    for member, other in permutations(chosen, 2):
        are_both_left = member in chosen and other in chosen
        if are_both_left and len(member.texts) == 1 and all(text in member.texts[0] for text in other.texts):
            is_joined = 4 * sum(map(len, other.texts)) >= len(member.texts[0])  # else these are its titles
            chosen = [one for one in chosen if one is not (member if is_joined else other)]
    return chosen


def _is_long(document: Document) -> bool:
    """Return True for a document or a text of several words, and not an address or a name."""
    text = document.text or ""
    return not document.is_plain or (len(text) >= MIN_SENT and (" " in text.strip() or not text.isascii()))


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
    if asked.kind == "retriever" and (steps[0].depth == 0 or len(steps) == 1):
        models = [item.span for item in tree if item.span.kind == "llm" and item.span.question]
        later = [span for span in models if (span.ended_at or 0.0) > (asked.started_at or 0.0)]
        person = _leave_query(asked, max(later, key=lambda span: span.started_at or 0.0, default=None), tree)
        if person is None:
            return None
        asked = person
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


def _leave_query(asked: Span, answering: Span | None, tree: Sequence[Placed]) -> Span | None:
    """Return the span with the person's question: of a retriever whose query a model wrote it is the one that answered.
    None where that was sent the documents with the question."""
    written = [
        item.span.answer or ""
        for item in tree
        if item.span.kind == "llm" and (item.span.ended_at or 0.0) <= (asked.started_at or 0.0)
    ]
    if asked.kind != "retriever" or not any((asked.question or "") in text for text in written):
        return asked
    question = "" if answering is None else answering.question or ""
    texts = [text for item in tree for document in item.span.documents or () if (text := document.text)]
    return answering if question and not any(text in question for text in texts) else None


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
    if not texts:
        return None
    thought, _, text = (texts[-1].answer or "").partition("\nAnswer:")
    is_thought = text and thought.lstrip().startswith("Thought:")  # as LlamaIndex's agent asks for it
    return replace(texts[-1], answer=text.strip()) if is_thought else texts[-1]


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
    query, asked = found.question or "", answer.question or ""
    if found.kind == "retriever":  # a model beside may have written its query, as a reply or for a tool
        texts = ((step, [step.answer, *(str(call["arguments"]) for call in step.tool_calls)]) for step in beside)
        written = (step for step, made in texts if step.question and any(query in (text or "") for text in made))
        found = next(written, found)
    # Keywords are a part of a question too.
    is_part = query in asked and ("\n" in asked.strip() or not is_question(asked) or "?" in query)
    is_prompt = asked != found.question and (is_part or any(document in asked for document in documents))
    is_written = any(step.answer == asked for step in beside)
    return found if is_prompt or is_written else answer
