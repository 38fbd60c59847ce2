"""Candidates for a test set: the passages a question of each kind is asked for from, and the checks of what is written.

Checks without a judge come first, then the others; the first that fails is the reason why a question is turned
down. Whether it asks the same as another one is checked by `flows/testsets/make.py`, which has all of them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.datasets.rows import hash_json
from evalhouse.tasks.judge.protocol import Question, UnusableReply
from evalhouse.tasks.pipeline.live_run import Extraction, LiveRun
from evalhouse.tasks.testsets import refuse
from evalhouse.tasks.testsets.checks import (
    NEAR,
    NEAR_UNANSWERABLE,
    Check,
    CheckList,
    answer,
    compare,
    extract,
    find_pointing,
    find_support,
    holds_answer,
)
from evalhouse.tasks.testsets.near import NearPassages, find_quote, list_tokens, overlap
from evalhouse.tasks.testsets.passages import Passage, find_language, find_sentences
from evalhouse.tasks.testsets.questions import KINDS, UNANSWERABLE, PlainQuestion, QuestionKind, Span, Turn

SHARES: Final[Mapping[QuestionKind, float]] = {
    "fact": 0.35, "number": 0.15, "procedure": 0.1, "several": 0.15, "comparison": 0.15, "unanswerable": 0.1,
}  # fmt: skip
"""The default share of each kind. Questions within a conversation need a bot that receives the messages before."""
_MAX_OVERLAP = 0.6  # of two passages that are asked about together
_DIGIT = re.compile(r"\d|[一二三四五六七八九十百千]")
_ITEM = re.compile(r"^[ \t]*(?:\d{1,2}[.)、]|[-*•])\s?\S", re.MULTILINE)
_MIN_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A request for a question of a kind from some passages."""

    kind: QuestionKind
    passages: tuple[Passage, ...]

    @property
    def name(self) -> str:
        """Ten hex digits that no other draft has."""
        return hash_json([self.kind, [passage.passage_id for passage in self.passages], 1], 10)


def parse_shares(text: str) -> dict[QuestionKind, float]:
    """Return the shares in a text such as `fact=3,number=1`; other kinds have none. Raises TestsetError."""
    shares: dict[QuestionKind, float] = {}
    allowed = f"KIND=SHARE,… with {', '.join(KINDS)}"
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.partition("=")
        kind = next((kind for kind in KINDS if kind == name.strip()), None)
        try:
            share = float(number)
        except ValueError:
            share = -1.0
        if kind is None or not 0 <= share < float("inf"):
            raise refuse(f"--kinds {part!r}", allowed=allowed, to_do="for example --kinds fact=3,number=1")
        shares[kind] = share
    if not sum(shares.values()):
        raise refuse(f"--kinds {text!r}", allowed=allowed, to_do="give at least one kind a share above 0")
    return shares


def share_out(n: int, shares: Mapping[QuestionKind, float]) -> dict[QuestionKind, int]:
    """Return the number of questions of each kind out of `n`: whole numbers by the largest remainders."""
    total = sum(shares.values())
    exact = {kind: n * share / total for kind, share in shares.items()}
    counts = {kind: int(number) for kind, number in exact.items()}
    by_remainder = sorted(exact, key=lambda kind: (counts[kind] - exact[kind], KINDS.index(kind)))
    for kind in by_remainder[: n - sum(counts.values())]:
        counts[kind] += 1
    return counts


@dataclass(kw_only=True)
class Drafter:
    """Draws drafts: never the same passages twice for a kind, and from the documents with the fewest drafts first.

    The order depends on the seed alone: the same documents give the same requests, whose replies are then stored.
    """

    passages: Sequence[Passage]
    near: NearPassages
    seed: int = 0
    _drawn: set[tuple[QuestionKind, frozenset[str]]] = field(default_factory=set)
    _n_by_document: Counter[str] = field(default_factory=Counter)
    _n_by_passage: Counter[str] = field(default_factory=Counter)
    _orders: dict[QuestionKind, list[Passage]] = field(default_factory=dict)

    def draw(self, kind: QuestionKind, n: int) -> list[Draft]:
        """Return up to `n` drafts of a kind; fewer, or none, when no suitable passages are left."""
        drafts: list[Draft] = []
        for _ in range(n):
            draft = next(self._list_open(kind), None)
            if draft is None:
                break
            self._drawn.add((kind, frozenset(passage.passage_id for passage in draft.passages)))
            for passage in draft.passages:
                self._n_by_document[passage.document_id] += 1
                self._n_by_passage[passage.passage_id] += 1
            drafts.append(draft)
        return drafts

    def _list_open(self, kind: QuestionKind) -> Iterator[Draft]:
        """Yield the drafts that were not drawn yet, the best first: from what was drawn least."""
        if kind not in self._orders:
            suitable: list[Passage] = []
            for passage in self.passages:
                n_sentences, n_lines = len(find_sentences(passage.text)), passage.text.count("\n")
                is_suitable = bool(passage.text.strip())
                if kind == "number":
                    is_suitable = _DIGIT.search(passage.text) is not None
                elif kind == "procedure":
                    is_suitable = max(n_sentences, n_lines) >= _MIN_STEPS
                elif kind == "conversational":
                    is_suitable = n_sentences > 1
                if is_suitable:
                    suitable.append(passage)
            self._orders[kind] = sorted(suitable, key=lambda one: hash_json([self.seed, kind, one.passage_id], 16))
        ranked = sorted(self._orders[kind], key=lambda one: self._n_by_passage[one.passage_id])
        ranked.sort(key=lambda one: self._n_by_document[one.document_id])
        if kind == "procedure":  # lists first
            ranked.sort(key=lambda one: len(_ITEM.findall(one.text)) < _MIN_STEPS)
        for passage in ranked:
            groups: list[tuple[Passage, ...]] = [(passage,)]
            if kind in ("several", "comparison"):
                # With each of the nearest passages that has other words, in the same language.
                near = self.near.find(passage.text, NEAR, exclude={passage.passage_id})
                alike = [other for other in near if other.language == passage.language]
                groups = [(passage, other) for other in alike if overlap(passage.text, other.text) < _MAX_OVERLAP]
            elif kind == UNANSWERABLE:
                # With its neighbours, which show what the document does not answer.
                same = [one for one in self.passages if one.document_id == passage.document_id]
                groups = [tuple(one for one in same if abs(one.ordinal - passage.ordinal) <= 1)]
            for passages in groups:
                if (kind, frozenset(one.passage_id for one in passages)) not in self._drawn:
                    yield Draft(kind=kind, passages=passages)


@dataclass(frozen=True, kw_only=True)
class Quote:
    """Words that a reply quotes from a passage."""

    passage: Passage
    text: str


@dataclass(frozen=True, kw_only=True)
class Candidate(PlainQuestion):
    """A question as it was written. Its id is its draft's name and its place in the reply."""

    kind: QuestionKind
    passages: tuple[Passage, ...]
    quotes: tuple[Quote, ...]
    call_id: str


async def write_candidates(live_run: LiveRun, draft: Draft) -> list[Candidate]:
    """Return the questions that the judge writes for a draft; raises JudgeFailed."""
    by_id = {f"C{place}": passage for place, passage in enumerate(draft.passages, start=1)}

    def parse(text: str) -> list[dict[str, Any]]:
        rows = parse_object(text, "questions").get("questions")
        if not isinstance(rows, list):
            raise UnusableReply('the reply had no list under "questions"')
        questions: list[dict[str, Any]] = []
        for row in rows:
            if not isinstance(row, dict):
                raise UnusableReply(f"a question is {row!r:.40}, not an object")
            turns = row.get("turns")
            if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
                raise UnusableReply(f"turns of a question are {turns!r:.40}, not a list of texts")
            for name in ("question", "ground_truth"):
                if not isinstance(row.get(name), str):
                    raise UnusableReply(f"{name} of a question is {row.get(name)!r:.40}, not a text")
            spoken = [" ".join(turn.split()) for turn in turns if turn.strip()]
            questions.append(
                {
                    "question": " ".join(row["question"].split()),
                    "ground_truth": " ".join(row["ground_truth"].split()) or None,
                    "quotes": parse_quotes(row.get("quotes"), by_id),
                    "conversation": tuple(
                        Turn(role="assistant" if place % 2 else "user", content=content)
                        for place, content in enumerate(spoken)
                    ),
                }
            )
        return questions

    request = Question(
        step="write_question",
        sample_id=draft.name,
        prompt=live_run.prompts["write_question"],
        data={
            "question_kind": draft.kind,
            "count": "1",
            "contexts": [Item(id=name, text=passage.as_context()) for name, passage in by_id.items()],
        },
    )
    reply = await live_run.asker.ask(request, parse)
    return [
        Candidate(
            id=f"{draft.name}-{number}",
            kind=draft.kind,
            passages=draft.passages,
            call_id=reply.call_id,
            **fields,
        )
        for number, fields in enumerate(reply.value[:1], start=1)
    ]


def parse_quotes(quotes: object, passages: Mapping[str, Passage]) -> tuple[Quote, ...]:
    """Return the quotes of a reply, given the passages by the ids of the request; raises UnusableReply."""
    if not isinstance(quotes, list) or not all(isinstance(quote, dict) for quote in quotes):
        raise UnusableReply(f"quotes are {quotes!r:.40}, not a list of objects")
    parsed = []
    for quote in quotes:
        name, text = quote.get("id"), quote.get("quote")
        if name not in passages:
            raise UnusableReply(f"a quote is from {name!r:.20}, allowed: {', '.join(passages)}")
        if not isinstance(text, str):
            raise UnusableReply(f"a quote is {text!r:.40}, not a text")
        if text.strip():
            parsed.append(Quote(passage=passages[name], text=text))
    return tuple(parsed)


_SAME_WORDS = 0.5  # of a ground truth, in a passage that may support it as well


@dataclass(kw_only=True)
class Checked(CheckList):
    """A candidate with its checks.

    `references` are the passages that support its ground truth, its own first; `statements` are the statements of
    its ground truth, and `others` the near passages, once they are known.
    """

    candidate: Candidate
    spans: tuple[Span, ...] = ()
    references: tuple[Passage, ...] = ()
    statements: Extraction = field(default_factory=Extraction)
    others: Sequence[Passage] = ()

    @property
    def failed(self) -> Check | None:
        """The check that it did not pass."""
        return next(iter(self.findings), None)


def check_words(candidate: Candidate) -> Checked:
    """Return a candidate with the checks that need no judge: form, spans, leaks."""
    spans: dict[tuple[str, int, str], Span] = {}
    missing: list[str] = []
    for quote in candidate.quotes:
        place, passage = find_quote(quote.text, quote.passage.text), quote.passage
        if place is None:
            missing.append(quote.text)
            continue
        words = passage.text[place.start : place.end]
        spans[passage.passage_id, place.start, words] = Span(
            document_id=passage.document_id,
            passage_id=passage.passage_id,
            text=words,
            start=passage.start + place.start,
        )
    checked = Checked(candidate=candidate, spans=tuple(spans.values()), references=candidate.passages)
    fault = next(_find_form_faults(candidate), None)
    if not checked.note("form", fault is None, fault or "a question of its kind, in the language of its passages"):
        return checked
    if candidate.kind == UNANSWERABLE:
        return checked
    n_passages = len({span.passage_id for span in checked.spans})
    min_passages = 2 if candidate.kind == "several" else 1
    if missing or n_passages < min_passages:
        quoted = f"quotes from {n_passages} of {min_passages} passages"
        checked.note("span", False, f"not verbatim in its passage: {missing[0]!r:.200}" if missing else quoted)
        return checked
    checked.note("span", True, f"{len(checked.spans)} verbatim")
    checked.references = tuple({quote.passage.passage_id: quote.passage for quote in candidate.quotes}.values())
    leaks = holds_answer(candidate)
    checked.note("leak", not leaks, f"the question {'holds' if leaks else 'does not hold'} its answer")
    return checked


def _find_form_faults(candidate: Candidate) -> Iterator[str]:
    """Yield faults of the form: pointing words, a wrong language, a missing or extra ground truth or conversation."""
    if not candidate.question:
        yield "there is no question"
    if pointing := find_pointing(candidate.question):
        yield f"it refers to the text it was made from: {pointing!r}"
    languages = {passage.language for passage in candidate.passages}
    texts = filter(None, (candidate.question, candidate.ground_truth))
    if foreign := [language for text in texts if (language := find_language(text)) not in languages]:
        yield f"it is in {foreign[0]}, its passages are in {', '.join(sorted(languages))}"
    if candidate.kind == UNANSWERABLE:
        if candidate.ground_truth or candidate.quotes:
            yield "it should have no answer, and has one"
        return
    if not candidate.ground_truth:
        yield "there is no ground truth"
    n_turns = len(candidate.conversation)
    if candidate.kind == "conversational" and (n_turns < 2 or n_turns % 2):
        yield f"{n_turns} messages come before it; a question and its answer have to, or several"
    if candidate.kind != "conversational" and n_turns:
        yield f"{n_turns} messages come before a question that has to be understood alone"


async def check_by_judge(live_run: LiveRun, checked: Checked, near: NearPassages) -> None:
    """Add the checks that ask the judge, until one fails; raises JudgeFailed when it gives no usable reply."""
    candidate = checked.candidate
    if candidate.kind == UNANSWERABLE:
        own = {passage.passage_id: passage for passage in candidate.passages}
        passages = [*own.values(), *near.find(candidate.asked, NEAR_UNANSWERABLE, exclude=own)]
        contexts = [passage.as_context() for passage in passages]
        answered = await answer(live_run, candidate, contexts, step="answer_with")
        checked.references = ()
        is_open = answered.basis == "none"
        detail = answered.reason if is_open else f"{answered.name_source(passages)}: {answered.answer}"
        checked.note("answerable", is_open, detail, answered.call_id)
        return
    if not await check_support(live_run, checked, near) or not await check_answer(live_run, checked):
        return
    # Without its passages, it should be answered neither correctly, nor in another way by passages elsewhere.
    same = {passage.passage_id for passage in checked.references}
    rest = [passage for passage in checked.others if passage.passage_id not in same]
    answered = await answer(live_run, candidate, [one.as_context() for one in rest], step="answer_without")
    if answered.basis == "none":
        checked.note("without_spans", True, answered.reason, answered.call_id)
        return
    compared = await compare(live_run, candidate, checked.statements, answered)
    source = answered.name_source(rest)
    if not compared.missing:
        detail = f"answered without its passages, {source}: {answered.answer}"
        checked.note("without_spans", False, detail, answered.call_id)
        return
    checked.note("without_spans", True, answered.reason, answered.call_id)
    checked.note("contradicted", answered.basis != "contexts", f"{source}: {answered.answer}", compared.call_id)


async def check_support(live_run: LiveRun, checked: Checked, near: NearPassages) -> bool:
    """Check that the spans support every statement; passages elsewhere that do so too become references.

    The spans are asked about alone: of statements that one passage elsewhere supports alone, a judge does not report
    the passages that support it together. Raises JudgeFailed.
    """
    candidate = checked.candidate
    checked.statements = statements = await extract(live_run, candidate)
    own = {passage.passage_id for passage in checked.references}
    checked.others = near.find(f"{candidate.asked} {candidate.ground_truth}", NEAR, exclude=own)
    if not statements.items:
        return checked.note("unsupported", False, "the ground truth makes no statement", statements.call_id)
    contexts = []
    for passage in checked.references:
        spans = [span.text for span in checked.spans if span.passage_id == passage.passage_id]
        contexts.append(passage.as_context(" … ".join(spans)))
    supported = await find_support(live_run, candidate, statements, contexts)
    for statement in supported:
        if not (statement.alone or statement.together):
            return checked.note("unsupported", False, f"{statement.text}: {statement.reason}", statement.call_id)
    # Passages elsewhere are asked about if they have many of its words.
    words = set(list_tokens(candidate.ground_truth or ""))
    likely = [one for one in checked.others if len(words & set(list_tokens(one.text))) >= _SAME_WORDS * len(words)]
    if likely:
        by_others = await find_support(live_run, candidate, statements, [one.as_context() for one in likely])
        everywhere = set.intersection(*(set(statement.alone) for statement in by_others))
        checked.references += tuple(likely[place] for place in sorted(everywhere))
    return checked.note("unsupported", True, "its spans support every statement", supported[0].call_id)


async def check_answer(live_run: LiveRun, checked: Checked) -> bool:
    """Check that its passages answer the question, and with the ground truth. Raises JudgeFailed."""
    quoted = {span.passage_id for span in checked.spans}
    contexts = [passage.as_context() for passage in checked.references if passage.passage_id in quoted]
    answered = await answer(live_run, checked.candidate, contexts, step="answer_with")
    if not checked.note("unanswered", answered.basis == "contexts", answered.reason, answered.call_id):
        return False
    compared = await compare(live_run, checked.candidate, checked.statements, answered)
    detail = "the judge answers the same from its passages"
    if compared.missing:
        detail = f"{answered.answer}: {compared.reason}"
    return checked.note("wrong_answer", not compared.missing, detail, compared.call_id)
