"""The changes of questions whose documents changed: each still holds, has another ground truth, or is void.

The judge is asked about questions whose spans are not found again word by word, and about questions that a new or
changed passage answers by the judge's selection in `matching`. A ground truth that it gives has to pass the same checks
as a new question. A question that only a person can decide on becomes a proposal, which has the question as it was and
as it would be.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.judge.protocol import Question, UnusableReply
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.testsets.candidates import (
    Candidate,
    Checked,
    Quote,
    check_answer,
    check_support,
    check_words,
    parse_quotes,
)
from evalhouse.tasks.testsets.checks import NEAR, Check, answer, compare, extract
from evalhouse.tasks.testsets.near import NearPassages, align, find_quote, squeeze
from evalhouse.tasks.testsets.passages import Document, Passage
from evalhouse.tasks.testsets.questions import UNANSWERABLE, Change, QuestionKind, SetQuestion, Span, find_differences
from evalhouse.warehouse.rows.samples import find_owners

PROPOSED = ("changed", "contradicted", "answerable")
"""Changes that a person decides on."""
_VERDICTS: Final = ("still_true", "changed", "void")
_MIN_SCORE: Final = 0.6
"""The similarity by `near.align` from which on a stretch of a newer text is taken for what a span became."""
_MAX_ALIGNED = 20


@dataclass(frozen=True, kw_only=True)
class Place:
    """A stretch of a passage: its text from `start` to before `end`; `score` is its similarity to a span, 0 to 1."""

    passage: Passage
    start: int
    end: int
    score: float

    @property
    def span(self) -> Span:
        """The stretch as a span."""
        return Span(
            document_id=self.passage.document_id,
            passage_id=self.passage.passage_id,
            text=self.passage.text[self.start : self.end],
            start=self.passage.start + self.start,
        )


class UpdatedBase:
    """The present state of a knowledge base, and the part of it that a set does not know.

    `known` has the hashes of the passages in the set's manifest by id. `by_document` is true if the questions refer to
    documents, and not to passages. `changed` are the ids of passages with new or changed words.
    """

    def __init__(self, documents: Sequence[Document], known: Mapping[str, str], *, by_document: bool) -> None:
        self.documents = tuple(documents)
        self.passages = tuple(passage for document in documents for passage in document.passages)
        self.by_document = by_document
        self.near = NearPassages(self.passages)
        self.by_id = {passage.passage_id: passage for passage in self.passages}
        self._by_document = {document.document_id: document.passages for document in documents}
        hashes = set(known.values())
        same = (one for one in self.passages if known.get(one.passage_id) == one.passage_hash)
        self.unchanged = frozenset(passage.passage_id for passage in same)
        self.changed = frozenset(one.passage_id for one in self.passages if one.passage_hash not in hashes)
        self._letters: dict[str, str] = {}
        self._forms = {owners[-1] for owners in find_owners({*self.by_id, *self._by_document}).values()}

    def has_id(self, reference: str) -> bool:
        """Return whether there is a document or a passage of this id."""
        return find_owners([reference])[reference][-1] in self._forms

    def list_names(self, passages: Iterable[Passage | Span]) -> list[str]:
        """Return the ids by which questions refer to these passages, or to the passages of these spans."""
        return list(dict.fromkeys(one.document_id if self.by_document else one.passage_id for one in passages))

    def find_verbatim(self, span: Span) -> Place | None:
        """Return the place of a span word by word: in its own passage, else in a passage that the update brought, if
        possible in the same document and under the same headings."""
        own = self.by_id.get(span.passage_id)
        if own is not None and (place := _find_quote(span, own)):
            return place
        arrived = (passage for passage in self.passages if passage.passage_id not in self.unchanged)
        places = (_find_quote(span, passage) for passage in self._list_holding(span, arrived))
        return next(filter(None, places), None)

    def find_similar(self, span: Span) -> Place | None:
        """Return the stretch that a span most probably became; None if nothing is similar.

        It is in the span's own document, else in passages that the update brought, else the span itself elsewhere.
        """
        near = self.near.find(span.text, _MAX_ALIGNED, exclude=self.unchanged)
        own = self._by_document.get(span.document_id, ())
        for passages in (own, near, self._list_holding(span, self.passages)):
            places = []
            for passage in passages:
                found = align(span.text, passage.text)
                if found is not None and found.score >= _MIN_SCORE:
                    places.append(Place(passage=passage, start=found.start, end=found.end, score=found.score))
            if places:
                return max(places, key=lambda place: place.score)
        return None

    def _list_holding(self, span: Span, passages: Iterable[Passage]) -> list[Passage]:
        """Return the passages with the letters of a span, first the ones in its document and under its headings."""
        letters, _ = squeeze(span.text)
        holding = []
        for passage in passages:
            if passage.passage_id not in self._letters:
                self._letters[passage.passage_id], _ = squeeze(passage.text)
            if letters in self._letters[passage.passage_id]:
                holding.append(passage)
        section = _name_section(span.passage_id)
        holding.sort(key=lambda passage: _name_section(passage.passage_id) != section)
        return sorted(holding, key=lambda passage: passage.document_id != span.document_id)


def _find_quote(span: Span, passage: Passage) -> Place | None:
    found = find_quote(span.text, passage.text)
    return Place(passage=passage, start=found.start, end=found.end, score=1.0) if found else None


def _name_section(passage_id: str) -> str:
    """Return the part of a passage's id that is made from its headings."""
    section = passage_id.partition("#")[2]
    name, _, number = section.rpartition("-")
    return name if number.isdecimal() else section


def point_to(base: UpdatedBase, question: SetQuestion, spans: Sequence[Span], also: Sequence[str] = ()) -> SetQuestion:
    """Return a question with the places of its spans now, and the references that follow from them.

    Other references are kept if they still exist; `also` are further ones.
    """
    before, now = base.list_names(question.spans), base.list_names(spans)
    kept = [name for name in question.reference_context_ids if base.has_id(name)]
    if set(before) != set(now):
        kept = [*now, *(name for name in kept if name not in before)]
    return replace(question, spans=tuple(spans), reference_context_ids=tuple(dict.fromkeys((*kept, *also))))


def list_groups(
    base: UpdatedBase, question: SetQuestion, places: Sequence[Place], answering: Iterable[Passage]
) -> list[tuple[Passage, ...]]:
    """Return groups of passages by which a question whose spans are found at these places is asked again, each alone.

    A group has passages that answer the question by the judge's selection, or that the question refers to and that
    changed; they take the place of the own passage whose span they have most words of, and the other own passages go
    with them. The last group has the own passages if they changed around their spans.
    """
    own = {place.passage.passage_id: place.passage for place in places}
    others = [base.by_id[name] for name in question.reference_context_ids if name in base.changed]
    others = list({one.passage_id: one for one in (*others, *answering) if one.passage_id not in own}.values())
    ratings = [(place.passage.passage_id, base.near.rate(place.span.text)) for place in places if others]
    by_replaced: dict[str | None, list[Passage]] = {}
    for passage, number in zip(others, base.near.list_places(others), strict=True):
        best = max(ratings, key=lambda one: one[1][number], default=None)
        by_replaced.setdefault(best[0] if best else None, []).append(passage)
    groups = [
        (*passages, *(passage for name, passage in own.items() if name != replaced))
        for replaced, passages in by_replaced.items()
    ]
    if base.changed & {span.passage_id for span in question.spans} & own.keys():
        groups.append(tuple(own.values()))
    return groups


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The result for a question: itself as it stays in the set, None if it leaves it, and the change, None without one.
    `checks` are the ones it was put to."""

    question: SetQuestion | None
    change: Change | None = None
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """The judge's verdict on a ground truth by the present documents."""

    verdict: str
    ground_truth: str
    quotes: tuple[Quote, ...]
    reason: str
    call_id: str


def stay_pointed(base: UpdatedBase, question: SetQuestion, places: Sequence[Place]) -> Ending:
    """Return the ending of a question whose spans are all found again word by word; nothing is asked."""
    after = point_to(base, question, [place.span for place in places])
    if after.question_hash == question.question_hash:
        return Ending(question=after)
    moved = [
        f"{span.passage_id} is now {place.passage.passage_id}"
        for span, place in zip(question.spans, places, strict=True)
        if span.passage_id != place.passage.passage_id
    ]
    return _keep(question, after, "repointed", detail="; ".join(dict.fromkeys(moved)) or None)


def join_endings(question: SetQuestion, first: Ending, second: Ending) -> Ending:
    """Return two endings of a question, one after the other, as one."""
    checks = first.checks + second.checks
    if second.question is None or second.change is None or first.change is None:
        return replace(second, change=second.change or first.change, checks=checks)
    detail = "; ".join(filter(None, (first.change.detail, second.change.detail)))
    call_id = second.change.call_id or first.change.call_id
    return _keep(question, second.question, second.change.change, detail=detail, call_id=call_id, checks=checks)


def _keep(
    before: SetQuestion,
    after: SetQuestion,
    change: str,
    *,
    detail: str | None,
    call_id: str | None = None,
    checks: Sequence[Check] = (),
) -> Ending:
    """Return the ending of a question that stays in the set with a change."""
    old, new = find_differences(before, after)
    made = Change(id=before.id, change=change, detail=detail, before=old, after=new, call_id=call_id)
    return Ending(question=after, change=made, checks=tuple(checks))


async def judge_again(
    live_run: LiveRun,
    base: UpdatedBase,
    question: SetQuestion,
    places: Sequence[Place | None],
    nearest: Sequence[Passage],
) -> Ending:
    """Return the ending of a question that has lost a span; raises JudgeFailed.

    `places` are the places of its spans or of what they may have become, None for a span that nothing is similar to;
    `nearest` are the new and changed passages nearest to the question.
    """
    known = [place for place in places if place is not None]
    if len(known) == len(places):
        quotes = tuple(Quote(passage=place.passage, text=place.span.text) for place in known)
        checked = _quote(question, quotes, question.ground_truth, [place.passage for place in known])
        if checked.failed is None and await check_support(live_run, checked, base.near):
            return _stay_true(base, question, checked, "the spans have other words, and still support it")
    likely = [*(place.passage for place in known), *nearest]
    likely += base.near.find(f"{question.asked} {question.ground_truth}", NEAR)
    passages = list({passage.passage_id: passage for passage in likely}.values())
    renewed = await renew(live_run, question, passages)
    truth = renewed.ground_truth if renewed.verdict == "changed" else question.ground_truth
    detail = renewed.reason
    checks: Sequence[Check] = ()
    if renewed.verdict != "void":
        checked = _quote(question, renewed.quotes, truth, passages, renewed.call_id)
        if checked.failed is None and await check_support(live_run, checked, base.near):
            await check_answer(live_run, checked)
        if checked.failed is None and truth == question.ground_truth:
            return _stay_true(base, question, checked, detail)
        if checked.failed is None:
            return _propose(base, question, checked, "changed", detail)
        checks = checked.checks
        detail += f" But: {checked.failed.name}: {checked.failed.detail}"
    void = Change(id=question.id, change="void", detail=detail, before=question.to_row(), call_id=renewed.call_id)
    return Ending(question=None, change=void, checks=tuple(checks))


async def ask_by(live_run: LiveRun, base: UpdatedBase, question: SetQuestion, passages: Sequence[Passage]) -> Ending:
    """Return the ending of a question that has its spans, asked by one of the groups of `list_groups` alone.

    Raises JudgeFailed.
    """
    own = {span.passage_id for span in question.spans}
    contexts = [passage.as_context() for passage in passages]
    answered = await answer(live_run, question, contexts, step="answer_without")
    if answered.basis != "contexts":
        # A passage with the same content that changed and does not answer any more is not a reference any more.
        gone = {passage.passage_id for passage in passages} - own
        kept = tuple(name for name in question.reference_context_ids if name not in gone)
        if kept == question.reference_context_ids:
            return Ending(question=question)
        after = replace(question, reference_context_ids=kept)
        return _keep(question, after, "repointed", detail=f"{', '.join(sorted(gone))} does not answer it any more")
    if question.kind != UNANSWERABLE:
        compared = await compare(live_run, question, await extract(live_run, question), answered)
        if not compared.missing:
            # Passages elsewhere with the same answer become further references.
            used = [passages[place] for place in answered.used]
            after = point_to(base, question, question.spans, base.list_names(used))
            is_same = after.question_hash == question.question_hash
            if is_same or any(passage.passage_id in own for passage in passages):
                return Ending(question=question)
            detail = f"{', '.join(passage.passage_id for passage in used)} has the same answer"
            return _keep(question, after, "repointed", detail=detail, call_id=answered.call_id)
    renewed = await renew(live_run, question, passages)
    if renewed.verdict != "changed":
        return Ending(question=question)
    checked = _quote(question, renewed.quotes, renewed.ground_truth, passages, renewed.call_id)
    is_sound = checked.failed is None and await check_support(live_run, checked, base.near)
    if not is_sound or not await check_answer(live_run, checked):
        return Ending(question=question, checks=tuple(checked.checks))
    here = ", ".join(dict.fromkeys(span.passage_id for span in checked.spans))
    there = ", ".join(dict.fromkeys(span.passage_id for span in question.spans))
    if question.kind == UNANSWERABLE:
        return _propose(base, question, checked, "answerable", f"{here} answers it: {answered.answer}")
    detail = f"{here} has another answer than {there}: {answered.answer}"
    return _propose(base, question, checked, "contradicted", detail)


def _quote(
    question: SetQuestion,
    quotes: tuple[Quote, ...],
    ground_truth: str | None,
    passages: Sequence[Passage],
    call_id: str = "",
) -> Checked:
    """Return a ground truth with quotes as a candidate for this question, after the checks of its words."""
    candidate = Candidate(
        id=question.id,
        # Of several passages one may be left; a question that was good from both is good from one.
        kind="conversational" if question.conversation else "fact",
        passages=tuple(passages),
        question=question.question,
        ground_truth=ground_truth,
        quotes=quotes,
        conversation=question.conversation,
        call_id=call_id,
    )
    return check_words(candidate)


def _stay_true(base: UpdatedBase, question: SetQuestion, checked: Checked, detail: str) -> Ending:
    """Return the ending of a question that still holds by the spans that were found for it."""
    was_there = all(span.passage_id in base.unchanged for span in checked.spans)
    change = "repointed" if was_there else "still_true"
    after = _point(base, question, checked)
    return _keep(question, after, change, detail=detail, call_id=checked.checks[-1].call_id, checks=checked.checks)


def _point(base: UpdatedBase, question: SetQuestion, checked: Checked) -> SetQuestion:
    """Return the question with the spans and references that were found for it."""
    own = {span.passage_id for span in checked.spans}
    further = [passage for passage in checked.references if passage.passage_id not in own]
    return point_to(base, question, checked.spans, base.list_names(further))


def _propose(base: UpdatedBase, question: SetQuestion, checked: Checked, change: str, detail: str) -> Ending:
    """Return a proposal: the question leaves the set until a person decides on it."""
    kind: QuestionKind = "fact" if question.kind == UNANSWERABLE else question.kind
    pointed = _point(base, question, checked).undecided
    _, new = find_differences(question, replace(pointed, ground_truth=checked.candidate.ground_truth, kind=kind))
    call_id = checked.candidate.call_id
    proposal = Change(
        id=question.id, change=change, detail=detail, before=question.to_row(), after=new, call_id=call_id
    )
    return Ending(question=None, change=proposal, checks=tuple(checked.checks))


async def renew(live_run: LiveRun, question: SetQuestion, passages: Sequence[Passage]) -> Renewed:
    """Ask the judge for the ground truth of a question by these passages; raises JudgeFailed."""
    by_id = {f"C{place}": passage for place, passage in enumerate(passages, start=1)}

    def parse(text: str) -> dict[str, Any]:
        reply = parse_object(text, "verdict")
        fields: dict[str, Any] = {name: reply.get(name) for name in ("reason", "ground_truth")}
        if not all(isinstance(value, str) for value in fields.values()):
            raise UnusableReply("the reply lacks reason or ground_truth as a text")
        fields = {name: " ".join(value.split()) for name, value in fields.items()}
        verdict = reply.get("verdict")
        if verdict not in _VERDICTS:
            raise UnusableReply(f"verdict is {verdict!r:.40}, allowed: {', '.join(_VERDICTS)}")
        quotes = parse_quotes(reply.get("quotes"), by_id)
        if verdict == "changed" and not (fields["ground_truth"] and quotes):
            raise UnusableReply("verdict is changed, and the ground truth or its quotes are missing")
        return fields | {"verdict": verdict, "quotes": quotes}

    request = Question(
        step="renew_question",
        sample_id=question.id,
        prompt=live_run.prompts["renew_question"],
        data={
            "question": question.question,
            "conversation": question.conversation_text,
            "ground_truth": question.ground_truth or "",
            "old_contexts": [
                Item(id=f"O{place}", text=span.text) for place, span in enumerate(question.spans, start=1)
            ],
            "contexts": [Item(id=name, text=passage.as_context()) for name, passage in by_id.items()],
        },
    )
    reply = await live_run.asker.ask(request, parse)
    return Renewed(**reply.value, call_id=reply.call_id)
