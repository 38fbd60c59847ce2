"""The changes of questions whose documents changed: each still holds, has another ground truth, or is void.

The judge is asked about questions whose spans are not found again word by word, and about questions that a new or
changed passage answers, in any words. For these, passages are ranked for each question by BM25, and by the cosine of
embeddings if a model makes them; the ranks are fused (reciprocal rank fusion; Cormack, Clarke and Büttcher, 2009). The
judge gets the nearest, many questions and passages in one request, and names the passages that answer a question. Each
of these is asked about alone then. A ground truth that the judge gives has to pass the same checks as a new question. A
question that only a person can decide on becomes a proposal, which has the question as it was and as it would be.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evalhouse.prompts import Item
from evalhouse.tasks.asking.embeddings import Embedder, refuse_vectors
from evalhouse.tasks.asking.usage import estimate_tokens
from evalhouse.tasks.asking.verdicts import gather_all, parse_object
from evalhouse.tasks.judge.protocol import BudgetExhausted, JudgeFailed, Question, UnusableReply
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
from evalhouse.tasks.testsets.checks import NEAR, Check, KnowledgeBase, answer, compare, extract, read_texts
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


class UpdatedBase(KnowledgeBase):
    """The present state of a knowledge base, and the part of it that a set does not know.

    `known` has the hashes of the passages in the set's manifest by id. `by_document` is true if the questions refer to
    documents, and not to passages. `changed` are the ids of passages with new or changed words.
    """

    def __init__(self, documents: Sequence[Document], known: Mapping[str, str], *, by_document: bool) -> None:
        super().__init__(documents)
        self.by_document = by_document
        passages, hashes = self.passages.items(), set(known.values())
        self.unchanged = frozenset(name for name, one in passages if known.get(name) == one.passage_hash)
        self.changed = frozenset(name for name, one in passages if one.passage_hash not in hashes)
        self._letters: dict[str, str] = {}

    def has_id(self, reference: str) -> bool:
        """Return whether there is a document or a passage of this id."""
        return find_owners([reference])[reference][-1] in self.by_form

    def list_names(self, passages: Iterable[Passage | Span]) -> list[str]:
        """Return the ids by which questions refer to these passages, or to the passages of these spans."""
        return list(dict.fromkeys(one.document_id if self.by_document else one.passage_id for one in passages))

    def find_verbatim(self, span: Span) -> Place | None:
        """Return the place of a span word by word: in its own passage, else in a passage that the update brought, if
        possible in the same document and under the same headings."""
        own = self.passages.get(span.passage_id)
        if own is not None and (place := _find_quote(span, own)):
            return place
        arrived = (passage for name, passage in self.passages.items() if name not in self.unchanged)
        places = (_find_quote(span, passage) for passage in self._list_holding(span, arrived))
        return next(filter(None, places), None)

    def find_similar(self, span: Span) -> Place | None:
        """Return the stretch that a span most probably became; None if nothing is similar.

        It is in the span's own document, else in passages that the update brought, else the span itself elsewhere.
        """
        near = self.near.find(span.text, _MAX_ALIGNED, exclude=self.unchanged)
        document = self.documents.get(span.document_id)
        own = document.passages if document else ()
        for passages in (own, near, self._list_holding(span, self.passages.values())):
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
    others = [base.passages[name] for name in question.reference_context_ids if name in base.changed]
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


def mark_returned(base: UpdatedBase, question: SetQuestion, places: Sequence[Place]) -> Ending:
    """Return the ending of a question that was void and whose spans are all found again word by word."""
    after = point_to(base, question, [place.span for place in places])
    return _keep(question, after, "returned", detail="its spans are there again")


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
        fields: dict[str, Any] = {**read_texts(reply, "reason", "ground_truth")}
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


NEAREST: Final = 8
"""The number of new and changed passages that the judge is asked about for a question."""
MAX_QUESTIONS: Final = 30
"""The number of questions that the judge is asked about for a passage."""
_MAX_ASKED, _MAX_PASSAGES = 60, 8  # questions and passages in one request
_RANKS_ADDED: Final = 60  # the constant k of reciprocal rank fusion, at its usual value


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The questions of a set, `n_passages` new and changed passages, and which of them are near to each other.

    `by_question` has the nearest passages of each question by its id, the nearest first; `by_passage` the questions
    that the judge is asked about for a passage, by its id. `model` is the embedding model, None without one;
    `n_without_vector` is the number of texts for which it gave no embedding, which words alone rank.
    """

    by_question: Mapping[str, tuple[Passage, ...]]
    by_passage: Mapping[str, frozenset[str]]
    n_passages: int
    model: str | None = None
    n_without_vector: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Return what was compared, and how much of it the judge is asked about, as JSON."""
        n_questions = len(self.by_question)
        return {
            "questions": n_questions,
            "passages": self.n_passages,
            "nearest": NEAREST,
            "pairs": sum(map(len, self.by_passage.values())),
            "possible_pairs": n_questions * self.n_passages,
            "ranked_by": "words" if self.model is None else f"words and {self.model}",
        }


def fuse_ranks(*scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fused score of each place by its rank in each list of scores; a score of 0 has no rank."""
    fused = np.zeros(len(scores[0]))
    for of_list in scores:
        places = np.argsort(-of_list, kind="stable")[: np.count_nonzero(of_list > 0)]
        fused[places] += 1 / (_RANKS_ADDED + 1 + np.arange(len(places)))
    return fused


async def pair_up(
    questions: Mapping[str, SetQuestion],
    own: Mapping[str, AbstractSet[str]],
    passages: Sequence[Passage],
    near: NearPassages,
    embedder: Embedder,
    *,
    is_dry: bool = False,
) -> Pairs:
    """Pair questions with the passages nearest to them, of which `own` has the ids of passages they rest on already.

    Raises BudgetExhausted, and JudgeFailed for embeddings of different lengths.
    """
    if not passages:
        return Pairs(by_question=dict.fromkeys(questions, ()), by_passage={}, n_passages=0)
    texts = {name: f"{question.asked} {question.ground_truth or ''}".strip() for name, question in questions.items()}
    vectors: dict[str, NDArray[np.float64]] = {}

    async def embed(key: str, text: str) -> None:
        try:
            vector = await embedder.embed(key, text)
        except BudgetExhausted:
            raise
        except JudgeFailed:
            return
        if vector is not None:
            values = np.asarray(vector, float)
            vectors[key] = values / (np.linalg.norm(values) or 1.0)

    asks_model = embedder.asker is not None and bool(questions)
    if asks_model:
        contexts = {passage.passage_id: passage.as_context() for passage in passages}
        await gather_all([embed(key, text) for key, text in (texts | contexts).items()])
        if len({len(vector) for vector in vectors.values()}) > 1:
            if not is_dry:
                raise refuse_vectors(f"{embedder.name} gave vectors of different lengths")
            vectors.clear()  # recorded ones beside the substitutes of a dry run
    none = np.zeros(len(next(iter(vectors.values()), ())))
    matrix = np.array([vectors.get(passage.passage_id, none) for passage in passages])
    places = near.list_places(passages)
    numbers = {passage.passage_id: number for number, passage in enumerate(passages)}
    nearest: dict[str, tuple[Passage, ...]] = {}
    found: dict[int, list[tuple[str, float, float]]] = {}
    for name, question in questions.items():
        # Each span by itself as well: a passage about only one of several spans is not near to the whole question.
        parts = (texts[name], *(span.text for span in question.spans))
        by_words = np.max([near.rate(text)[places] for text in parts], axis=0)
        by_meaning = matrix @ vectors[name] if name in vectors else np.zeros(len(passages))
        excluded = [numbers[passage_id] for passage_id in own[name] if passage_id in numbers]
        by_words[excluded] = by_meaning[excluded] = 0.0
        fused = fuse_ranks(by_words, by_meaning)
        best = [place for place in np.argsort(-fused, kind="stable")[:NEAREST] if fused[place] > 0]
        nearest[name] = tuple(passages[place] for place in best)
        for place in best:
            found.setdefault(place, []).append((name, by_words[place], by_meaning[place]))
    by_passage = {}
    for place, near_questions in sorted(found.items()):
        fused = fuse_ranks(*(np.array([one[column] for one in near_questions]) for column in (1, 2)))
        kept = np.argsort(-fused, kind="stable")[:MAX_QUESTIONS]
        by_passage[passages[place].passage_id] = frozenset(near_questions[number][0] for number in kept)
    return Pairs(
        by_question=nearest,
        by_passage=by_passage,
        n_passages=len(passages),
        model=embedder.name if asks_model else None,
        n_without_vector=len(questions) + len(passages) - len(vectors) if asks_model and not is_dry else 0,
    )


@dataclass(frozen=True, kw_only=True)
class MatchRequest:
    """Passages of one language, and the questions that one request asks about for them."""

    passages: tuple[Passage, ...]
    questions: tuple[SetQuestion, ...]


def join_requests(
    by_passage: Mapping[str, AbstractSet[str]],
    questions: Mapping[str, SetQuestion],
    passages: Mapping[str, Passage],
    *,
    max_tokens: int,
) -> list[MatchRequest]:
    """Join passages and their questions to requests: neighbours share many questions, so they go together."""
    requests: list[MatchRequest] = []
    asked = [passages[name] for name, of_passage in by_passage.items() if not of_passage.isdisjoint(questions)]
    for passage in sorted(asked, key=lambda one: (one.language, one.ordinal)):
        own = by_passage[passage.passage_id]
        near_questions = tuple(question for name, question in questions.items() if name in own)
        joined = MatchRequest(passages=(passage,), questions=near_questions)
        if requests and requests[-1].passages[0].language == passage.language:
            last = requests[-1]
            known = {question.id for question in last.questions}
            further = (*last.questions, *(question for question in joined.questions if question.id not in known))
            both = MatchRequest(passages=(*last.passages, passage), questions=further)
            texts = [*(one.as_context() for one in both.passages), *(question.asked for question in further)]
            n_tokens = sum(map(estimate_tokens, texts))
            if len(further) <= _MAX_ASKED and len(both.passages) <= _MAX_PASSAGES and n_tokens <= max_tokens:
                requests.pop()
                joined = both
        requests.append(joined)
    return requests


async def match_questions(live_run: LiveRun, request: MatchRequest) -> list[tuple[str, Passage]]:
    """Return the ids of questions with the passages that answer them, or may, by the judge. Raises JudgeFailed."""
    contexts = {f"C{place}": passage for place, passage in enumerate(request.passages, start=1)}
    asked = {f"Q{place}": question for place, question in enumerate(request.questions, start=1)}

    def parse(text: str) -> list[tuple[str, Passage]]:
        rows = parse_object(text, "answered").get("answered")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UnusableReply('the reply had no list of objects under "answered"')
        pairs: list[tuple[str, Passage]] = []
        for row in rows:
            name, used = row.get("question"), row.get("contexts")
            if name not in asked:
                raise UnusableReply(f"question is {name!r:.20}, allowed: {', '.join(asked)}")
            if not isinstance(used, list) or not used or not {str(context) for context in used} <= contexts.keys():
                raise UnusableReply(f"contexts of {name} are {used!r:.40}, allowed: a list of {', '.join(contexts)}")
            pairs += [(asked[name].id, contexts[context]) for context in dict.fromkeys(map(str, used))]
        return pairs

    data: dict[str, Any] = {
        "contexts": [Item(id=name, text=passage.as_context()) for name, passage in contexts.items()],
        "questions": [Item(id=name, text=question.asked) for name, question in asked.items()],
    }
    prompt = live_run.prompts["match_questions"]
    question = Question(step="match_questions", sample_id=None, prompt=prompt, data=data)
    return (await live_run.asker.ask(question, parse)).value
