"""Where the spans of a question stand in documents that changed after they were quoted. No judge is asked.

A span is found again by its words: in its own passage, or in a passage that the update brought, wherever that is. The
same words in a passage that was there before are not the span, which was deleted: `Open from 9 to 17.` may well stand
on many pages, and be about something else on each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from evalhouse.tasks.testsets.near import NearPassages, align, find_quote, squeeze
from evalhouse.tasks.testsets.passages import Document, Passage
from evalhouse.tasks.testsets.questions import SetQuestion, Span, write_asked

RECOGNISED: Final = 0.6
"""How like a span a stretch of a newer text has to be, by `near.align`, to be taken for what it became."""
TOUCHING: Final = 0.5
"""Share of what a question or a span is about that a passage has to speak of for the question to be held against it."""
_WORTH_ALIGNING = 20


@dataclass(frozen=True, kw_only=True)
class Place:
    """A stretch of a passage: its text from `start` to before `end`; `score` is how like a span it is, 0 to 1."""

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


class Base:
    """A knowledge base as it is now, and which of it a set does not know: `known` has the passages that its manifest
    names, with their hashes. `by_document` says that its questions refer to documents, and not to passages."""

    def __init__(self, documents: Sequence[Document], known: Mapping[str, str], *, by_document: bool) -> None:
        self.documents = tuple(documents)
        self.passages = tuple(passage for document in documents for passage in document.passages)
        self.by_document = by_document
        self.near = NearPassages(self.passages)
        self.by_id = {passage.passage_id: passage for passage in self.passages}
        self._of_document = {document.document_id: document.passages for document in documents}
        self._stayed = {passage.passage_id for passage in self.passages if _stays(passage, known)}
        hashes = set(known.values())
        self.changed = frozenset(one.passage_id for one in self.passages if one.passage_hash not in hashes)
        """Ids of the passages whose words are new or changed, wherever they stand."""

    @cached_property
    def _arrived(self) -> list[tuple[Passage, str]]:
        """The passages that were not there before, or not as they are now, with the letters that quotations share."""
        return [(one, squeeze(one.text)) for one in self.passages if one.passage_id not in self._stayed]

    @cached_property
    def _all(self) -> list[tuple[Passage, str]]:
        return [(one, squeeze(one.text)) for one in self.passages]

    def has_id(self, reference: str) -> bool:
        """Whether a document or a passage of this id is there."""
        return reference in self.by_id or reference in self._of_document

    def has_stayed(self, passage_id: str) -> bool:
        """Whether a passage was there before, and as it is now."""
        return passage_id in self._stayed

    def name(self, span: Span) -> str:
        """The id by which questions refer to where a span stands."""
        return span.document_id if self.by_document else span.passage_id

    def find_verbatim(self, span: Span) -> Place | None:
        """Where a span is word by word: in its own passage, else where the update brought it, preferably in the same
        document and under the same headings."""
        own = self.by_id.get(span.passage_id)
        if own is not None and (place := _quote(span, own)):
            return place
        letters = squeeze(span.text)
        places = (_quote(span, passage) for passage, held in self._arrived if letters in held)
        return min(filter(None, places), key=lambda place: _rank(span, place.passage), default=None)

    def recognise(self, span: Span) -> Place | None:
        """The stretch that a span most probably became: of its own document, else of passages that the update brought,
        else itself where it stood elsewhere all the time. None where nothing is like it."""
        near = [found.passage for found in self.near.find(span.text, _WORTH_ALIGNING, exclude=self._stayed)]
        letters = squeeze(span.text)
        for passages in (self._of_document.get(span.document_id, ()), near):
            if (place := _find_most_like(span, passages)) is not None:
                return place
        stood = [passage for passage, held in self._all if letters in held]
        return _find_most_like(span, sorted(stood, key=lambda passage: _rank(span, passage)))


def _stays(passage: Passage, known: Mapping[str, str]) -> bool:
    return known.get(passage.passage_id) == passage.passage_hash


def _quote(span: Span, passage: Passage) -> Place | None:
    found = find_quote(span.text, passage.text)
    return Place(passage=passage, start=found.start, end=found.end, score=1.0) if found else None


def _rank(span: Span, passage: Passage) -> tuple[bool, bool, int]:
    is_elsewhere = passage.document_id != span.document_id
    return is_elsewhere, _name_section(passage.passage_id) != _name_section(span.passage_id), passage.ordinal


def _name_section(passage_id: str) -> str:
    """What names the headings in the id of a folder's passage."""
    section = passage_id.partition("#")[2]
    name, _, number = section.rpartition("-")
    return name if number.isdecimal() else section


def _find_most_like(span: Span, passages: Sequence[Passage]) -> Place | None:
    best: Place | None = None
    for passage in passages:
        found = align(span.text, passage.text)
        if found is not None and found.score >= RECOGNISED and (best is None or found.score > best.score):
            best = Place(passage=passage, start=found.start, end=found.end, score=found.score)
    return best


def point_to(base: Base, question: SetQuestion, spans: Sequence[Span], also: Sequence[str] = ()) -> SetQuestion:
    """A question with its spans where they are now and the references that follow from them.

    Other references are kept as far as they are there; `also` are further ones.
    """
    before, now = ({base.name(span): None for span in of_one} for of_one in (question.spans, spans))
    kept = [one for one in question.reference_context_ids if base.has_id(one)]
    if before.keys() != now.keys():
        kept = [*now, *(one for one in kept if one not in before)]
    return replace(question, spans=tuple(spans), reference_context_ids=tuple(dict.fromkeys((*kept, *also))))


def list_dead(base: Base, question: SetQuestion) -> list[str]:
    """The references of a question that no document and no passage has any more."""
    return [one for one in question.reference_context_ids if not base.has_id(one)]


def find_differences(before: SetQuestion, after: SetQuestion) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields in which two versions of a question differ, as they were and as they are."""
    old, new = before.to_row(), after.to_row()
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    return {name: old.get(name) for name in names}, {name: new.get(name) for name in names}


def list_groups(base: Base, question: SetQuestion, places: Sequence[Place], n: int) -> list[tuple[Passage, ...]]:
    """Groups of passages by which a question whose spans are found at these places is to be asked again, each by
    itself.

    A group has new and changed passages elsewhere that it refers to or, of the `n` nearest, is near to, in place of the
    one of its own that they are about; with them go the others of a question that rests on several. The last has its
    own ones, where they changed around spans that stayed.
    """
    own = {place.passage.passage_id: place.passage for place in places}
    asked = write_asked(question.question, question.conversation)
    texts = [asked, *(place.span.text for place in places)]
    about = [base.near.find_about(text, TOUCHING) for text in texts]
    touching = frozenset[str]().union(*about) & base.changed - own.keys()
    others = [base.by_id[name] for name in question.reference_context_ids if name in base.changed - own.keys()]
    if touching:
        # Each span by itself as well: what only one of several is about is not near to all of the question.
        wanted = [f"{asked} {question.ground_truth or ''}", *texts[1:]]
        near = {found.passage.passage_id: found.passage for text in wanted for found in base.near.find(text, n, own)}
        others += [passage for name, passage in near.items() if name in touching and passage not in others]
    of_spans = [(place.passage.passage_id, shares) for place, shares in zip(places, about[1:], strict=True)]
    by_replaced: dict[str | None, list[Passage]] = {}
    for passage in others:
        by_replaced.setdefault(_find_replaced(of_spans, passage.passage_id), []).append(passage)
    groups = [
        (*passages, *(passage for name, passage in own.items() if name != replaced))
        for replaced, passages in by_replaced.items()
    ]
    if base.changed & {span.passage_id for span in question.spans} & own.keys():
        groups.append(tuple(own.values()))
    return groups


def _find_replaced(of_spans: Sequence[tuple[str, Mapping[str, float]]], passage_id: str) -> str | None:
    """Of a question's passages that whose span another passage speaks of most; each with what speaks of it."""
    best = max(of_spans, key=lambda one: one[1].get(passage_id, 0.0), default=None)
    return best[0] if best else None
