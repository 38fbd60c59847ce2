"""Which passages a question of each kind is asked for from, so that all kinds and documents have their share."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, get_args

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.datasets.rows import hash_json
from evalhouse.tasks.judge.errors import UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import Extraction, LiveRun
from evalhouse.tasks.testsets.checks import Answered, Subject, answer, compare, extract, find_support
from evalhouse.tasks.testsets.errors import refuse
from evalhouse.tasks.testsets.near import NearPassages, find_quote, list_tokens, overlap
from evalhouse.tasks.testsets.passages import Passage, find_language, find_sentences
from evalhouse.tasks.testsets.questions import KINDS, UNANSWERABLE, QuestionKind, Span, Turn, show_passage

SHARES: Final[Mapping[QuestionKind, float]] = {
    "fact": 0.3, "number": 0.15, "procedure": 0.1, "several": 0.15, "comparison": 0.1, "conversational": 0.1,
    "unanswerable": 0.1,
}  # fmt: skip
"""How often each kind is asked for unless said otherwise."""
_NEAR, _ALIKE = 5, 0.6
_DIGIT = re.compile(r"\d|[一二三四五六七八九十百千]")
_ITEM = re.compile(r"^[ \t]*(?:\d{1,2}[.)、]|[-*•])\s?\S", re.MULTILINE)
_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A request for up to `count` questions of a kind from some passages."""

    kind: QuestionKind
    passages: tuple[Passage, ...]
    count: int = 1

    @property
    def name(self) -> str:
        """Ten hex digits that tell it from every other draft."""
        return hash_json([self.kind, [passage.passage_id for passage in self.passages], self.count], 10)


def parse_shares(text: str) -> dict[QuestionKind, float]:
    """Shares as `fact=3,number=1` has them; kinds that are not named have none. Raises TestsetError."""
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
    """How many of `n` each kind gets: whole numbers by the largest remainders."""
    total = sum(shares.values())
    exact = {kind: n * share / total for kind, share in shares.items()}
    counts = {kind: int(number) for kind, number in exact.items()}
    by_remainder = sorted(exact, key=lambda kind: (counts[kind] - exact[kind], KINDS.index(kind)))
    for kind in by_remainder[: n - sum(counts.values())]:
        counts[kind] += 1
    return counts


@dataclass(kw_only=True)
class Drafter:
    """Draws drafts: never the same passages for the same kind twice, and from the least asked documents first.

    Its order is the seed's alone, so that the same documents give the same requests, which are then on record.
    """

    passages: Sequence[Passage]
    near: NearPassages
    seed: int = 0
    _drawn: set[tuple[QuestionKind, tuple[str, ...]]] = field(default_factory=set)
    _of_documents: Counter[str] = field(default_factory=Counter)
    _of_passages: Counter[str] = field(default_factory=Counter)
    _orders: dict[QuestionKind, list[Passage]] = field(default_factory=dict)
    _by_document: dict[str, list[Passage]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for passage in self.passages:
            self._by_document.setdefault(passage.document_id, []).append(passage)

    def draw(self, kind: QuestionKind, n: int) -> list[Draft]:
        """Up to `n` drafts of a kind; fewer, or none, where nothing fitting is left."""
        drafts: list[Draft] = []
        for _ in range(n):
            draft = next(self._list_open(kind), None)
            if draft is None:
                break
            self._drawn.add((kind, _name(draft.passages)))
            for passage in draft.passages:
                self._of_documents[passage.document_id] += 1
                self._of_passages[passage.passage_id] += 1
            drafts.append(draft)
        return drafts

    def _list_open(self, kind: QuestionKind) -> Iterator[Draft]:
        """What can still be drawn, the best first."""
        fits, group = _WAYS[kind]
        if kind not in self._orders:
            fitting = filter(fits, self.passages)
            self._orders[kind] = sorted(fitting, key=lambda one: hash_json([self.seed, kind, one.passage_id], 16))
        for passage in sorted(self._orders[kind], key=partial(self._rank, kind)):
            for passages in group(self, passage):
                if (kind, _name(passages)) not in self._drawn:
                    yield Draft(kind=kind, passages=passages)

    def _rank(self, kind: QuestionKind, passage: Passage) -> tuple[int, int, int]:
        """What was drawn least comes first, and where steps are wanted what looks like a list of them."""
        unlikely = int(kind == "procedure" and len(_ITEM.findall(passage.text)) < _STEPS)
        return unlikely, self._of_documents[passage.document_id], self._of_passages[passage.passage_id]

    def _alone(self, passage: Passage) -> Iterable[tuple[Passage, ...]]:
        yield (passage,)

    def _with_another(self, passage: Passage) -> Iterable[tuple[Passage, ...]]:
        """With each of the nearest passages that says something else, in the same language."""
        for found in self.near.find(passage.text, _NEAR, exclude={passage.passage_id}):
            if found.passage.language == passage.language and overlap(passage.text, found.passage.text) < _ALIKE:
                yield (passage, found.passage)

    def _with_surroundings(self, passage: Passage) -> Iterable[tuple[Passage, ...]]:
        """With what its document says beside, so that it is seen what is not said there."""
        beside = self._by_document[passage.document_id]
        yield tuple(one for one in beside if abs(one.ordinal - passage.ordinal) <= 1)


def _name(passages: Sequence[Passage]) -> tuple[str, ...]:
    return tuple(sorted(passage.passage_id for passage in passages))


def _has_text(passage: Passage) -> bool:
    return bool(passage.text.strip())


def _has_digits(passage: Passage) -> bool:
    return _DIGIT.search(passage.text) is not None


def _has_steps(passage: Passage) -> bool:
    return len(find_sentences(passage.text)) >= _STEPS or passage.text.count("\n") >= _STEPS


def _has_two(passage: Passage) -> bool:
    return len(find_sentences(passage.text)) > 1


_Group = Callable[[Drafter, Passage], Iterable[tuple[Passage, ...]]]
_WAYS: Mapping[QuestionKind, tuple[Callable[[Passage], bool], _Group]] = {
    "fact": (_has_text, Drafter._alone),
    "number": (_has_digits, Drafter._alone),
    "procedure": (_has_steps, Drafter._alone),
    "several": (_has_text, Drafter._with_another),
    "comparison": (_has_text, Drafter._with_another),
    "conversational": (_has_two, Drafter._alone),
    "unanswerable": (_has_text, Drafter._with_surroundings),
}


WRITE_STEP = "write_question"


@dataclass(frozen=True, kw_only=True)
class Quote:
    """Words that a reply says to have copied from a passage."""

    passage: Passage
    text: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A question as it was written. `candidate_id` is its draft's name and its place in the reply."""

    candidate_id: str
    kind: QuestionKind
    passages: tuple[Passage, ...]
    question: str
    ground_truth: str
    quotes: tuple[Quote, ...]
    conversation: tuple[Turn, ...]
    call_id: str


@dataclass(frozen=True, kw_only=True)
class _Written:
    """One question of a reply; quotes by the ids of the request."""

    question: str
    ground_truth: str
    quotes: Sequence[tuple[str, str]]
    turns: Sequence[str]


async def write_candidates(live_run: LiveRun, draft: Draft) -> list[Candidate]:
    """The questions that the judge writes for a draft; raises JudgeFailed."""
    by_id = {f"C{place}": passage for place, passage in enumerate(draft.passages, start=1)}
    question = Question(
        step=WRITE_STEP,
        sample_id=draft.name,
        prompt=live_run.prompts["write_question"],
        data={
            "question_kind": draft.kind,
            "count": str(draft.count),
            "contexts": [Item(id=name, text=show_passage(passage)) for name, passage in by_id.items()],
        },
    )
    answer = await live_run.asker.ask(question, lambda text: _read_written(text, by_id))
    return [
        Candidate(
            candidate_id=f"{draft.name}-{number}",
            kind=draft.kind,
            passages=draft.passages,
            question=written.question,
            ground_truth=written.ground_truth,
            quotes=tuple(Quote(passage=by_id[name], text=text) for name, text in written.quotes),
            conversation=tuple(
                Turn(role="assistant" if place % 2 else "user", content=text)
                for place, text in enumerate(written.turns)
            ),
            call_id=answer.call_id,
        )
        for number, written in enumerate(answer.value[: draft.count], start=1)
    ]


def _read_written(text: str, ids: "dict[str, Passage]") -> list[_Written]:
    questions = parse_object(text, "questions").get("questions")
    if not isinstance(questions, list):
        raise UnusableReply('the reply had no list under "questions"')
    return [_read_one(one, ids) for one in questions]


def _read_one(one: object, ids: "dict[str, Passage]") -> _Written:
    if not isinstance(one, dict):
        raise UnusableReply(f"a question is {one!r:.40}, not an object")
    turns = one.get("turns")
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise UnusableReply(f"turns of a question are {turns!r:.40}, not a list of texts")
    return _Written(
        question=_read_text(one, "question"),
        ground_truth=_read_text(one, "ground_truth"),
        quotes=read_quotes(one.get("quotes"), ids),
        turns=[" ".join(turn.split()) for turn in turns if turn.strip()],
    )


def _read_text(one: dict[str, object], name: str) -> str:
    value = one.get(name)
    if not isinstance(value, str):
        raise UnusableReply(f"{name} of a question is {value!r:.40}, not a text")
    return " ".join(value.split())


def read_quotes(quotes: object, ids: "dict[str, Passage]") -> list[tuple[str, str]]:
    """Quotes of a reply with the ids of their passages; raises UnusableReply."""
    if not isinstance(quotes, list) or not all(isinstance(quote, dict) for quote in quotes):
        raise UnusableReply(f"quotes are {quotes!r:.40}, not a list of objects")
    found = [(quote.get("id"), quote.get("quote")) for quote in quotes]
    for name, text in found:
        if name not in ids:
            raise UnusableReply(f"a quote is from {name!r:.20}, allowed: {', '.join(ids)}")
        if not isinstance(text, str):
            raise UnusableReply(f"a quote is {text!r:.40}, not a text")
    return [(str(name), str(text)) for name, text in found if str(text).strip()]


Reason = Literal[
    "form", "span", "leak", "duplicate", "unsupported", "unanswered", "wrong_answer", "without_spans", "contradicted",
    "answerable",
]  # fmt: skip
"""Why a question is turned down."""
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
NEAR: Final = 5
"""Passages elsewhere that a question is held against."""
NEAR_UNANSWERABLE: Final = 8
"""The same, of one that the documents do not answer."""
_SAME_WORDS = 0.5  # of a ground truth, in a passage that may bear it out as well
_LEAST_PASSAGES = {"several": 2}
# Words with which a question speaks of what it was made from, which nobody who asks has before them.
_POINTING = re.compile(
    r"\b(?:according to|in|from|by) (?:the|this) (?:above |following |given |provided )?"
    r"(?:passage|text|document|context|excerpt|article)\b"
    r"|\b(?:the|this) (?:passage|excerpt)\b|\bmentioned above\b|\[?C\d+\]"
    r"|文中|上文|这段话|段落[中里]|(?:根据|按照?|依据)(?:上述|该|本|这)?(?:文档|文章|段落|材料|文本)|以上(?:内容|材料)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of a candidate: how it ended, why, and the call that says so where one was needed."""

    name: Reason
    passed: bool
    detail: str
    call_id: str | None = None


@dataclass(kw_only=True)
class Checked:
    """A candidate with what was found of it.

    `references` are the passages that bear out its ground truth, its own first. `failure` says why it could not be
    checked to the end.
    """

    candidate: Candidate
    spans: tuple[Span, ...] = ()
    references: tuple[Passage, ...] = ()
    checks: list[Check] = field(default_factory=list)
    failure: str | None = None

    @property
    def failed(self) -> Check | None:
        """The check that it did not stand."""
        return next((check for check in self.checks if not check.passed), None)

    @property
    def reason(self) -> Reason | None:
        """Why it is turned down; None while nothing speaks against it."""
        return self.failed.name if self.failed else None

    def note(self, name: Reason, passed: bool, detail: str, call_id: str | None = None) -> bool:
        """Put a check on record; returns whether it was passed."""
        self.checks.append(Check(name=name, passed=passed, detail=detail, call_id=call_id))
        return passed


def check_words(candidate: Candidate) -> Checked:
    """The checks that need no judge: form, spans, leaks."""
    checked = Checked(candidate=candidate, spans=tuple(_find_spans(candidate)), references=candidate.passages)
    fault = next(_find_form_faults(candidate), None)
    if not checked.note("form", fault is None, fault or "a question of its kind, in the language of its passages"):
        return checked
    if candidate.kind == UNANSWERABLE:
        return checked
    lost = [quote.text for quote in candidate.quotes if find_quote(quote.text, quote.passage.text) is None]
    n_passages = len({span.passage_id for span in checked.spans})
    least = _LEAST_PASSAGES.get(candidate.kind, 1)
    if lost or n_passages < least:
        quoted = f"quotes from {n_passages} of {least} passages"
        checked.note("span", False, f"not verbatim in its passage: {lost[0]!r:.200}" if lost else quoted)
        return checked
    checked.note("span", True, f"{len(checked.spans)} verbatim")
    checked.references = tuple({quote.passage.passage_id: quote.passage for quote in candidate.quotes}.values())
    asked = " ".join((*(turn.content for turn in candidate.conversation), candidate.question))
    leaks = holds_answer(asked, candidate.ground_truth)
    checked.note("leak", not leaks, f"the question {'holds' if leaks else 'does not hold'} its answer")
    return checked


def _find_form_faults(candidate: Candidate) -> Iterator[str]:
    """What is wrong with how it is written."""
    if not candidate.question:
        yield "there is no question"
    if pointing := find_pointing(candidate.question):
        yield f"it speaks of what it was made from: {pointing!r}"
    languages = {passage.language for passage in candidate.passages}
    texts = filter(None, (candidate.question, candidate.ground_truth))
    if foreign := [language for text in texts if (language := find_language(text)) not in languages]:
        yield f"it is in {foreign[0]}, its passages are in {', '.join(sorted(languages))}"
    if candidate.kind == UNANSWERABLE:
        if candidate.ground_truth or candidate.quotes:
            yield "it was to have no answer, and has one"
        return
    if not candidate.ground_truth:
        yield "there is no ground truth"
    n_turns = len(candidate.conversation)
    if candidate.kind == "conversational" and (n_turns < 2 or n_turns % 2):
        yield f"{n_turns} turns stand before it; a question and its answer have to, or several"
    if candidate.kind != "conversational" and n_turns:
        yield f"{n_turns} turns stand before a question that has to be understood alone"


def find_pointing(question: str) -> str | None:
    """The words with which a question speaks of what it was made from, such as `in this passage`; None without any."""
    pointing = _POINTING.search(question)
    return pointing[0] if pointing else None


def _find_spans(candidate: Candidate) -> Iterator[Span]:
    """The quotes as they stand in their documents, each once; those that are nowhere are left out."""
    seen = set[tuple[str, int, str]]()
    for quote in candidate.quotes:
        place = find_quote(quote.text, quote.passage.text)
        if place is None:
            continue
        passage, words = quote.passage, quote.passage.text[place.start : place.end]
        if (key := (passage.passage_id, place.start, words)) not in seen:
            seen.add(key)
            yield Span(document_id=passage.document_id, passage_id=passage.passage_id, text=words,
                       start=passage.start + place.start)  # fmt: skip


def holds_answer(question: str, ground_truth: str) -> bool:
    """Whether a question says all that its ground truth says, word by word."""
    asked, said = set(list_tokens(question)), set(list_tokens(ground_truth))
    return bool(said) and said <= asked


async def check_by_judge(live_run: LiveRun, checked: Checked, near: NearPassages) -> None:
    """The checks that ask the judge, until one is not passed; raises JudgeFailed where it gives no usable reply."""
    subject = _name_subject(checked.candidate)
    if checked.candidate.kind == UNANSWERABLE:
        own = {passage.passage_id: passage for passage in checked.candidate.passages}
        found = near.find(subject.asked, NEAR_UNANSWERABLE, exclude=set(own))
        passages = [*own.values(), *(one.passage for one in found)]
        said = await answer(live_run, subject, [show_passage(passage) for passage in passages], step="answer_with")
        checked.references = ()
        detail = said.reason if said.basis == "none" else f"{name_used(said, passages)}: {said.answer}"
        checked.note("answerable", said.basis == "none", detail, said.call_id)
        return
    statements = await extract(live_run, subject)
    others = _find_others(checked, subject, near)
    if not await _check_support(live_run, checked, subject, statements, others):
        return
    if not await _check_answer(live_run, checked, subject, statements):
        return
    same = {passage.passage_id for passage in checked.references}
    rest = [passage for passage in others if passage.passage_id not in same]
    await _check_without(live_run, checked, subject, statements, rest)


async def check_support(live_run: LiveRun, checked: Checked, near: NearPassages) -> bool:
    """Whether the spans bear out the ground truth; raises JudgeFailed."""
    subject = _name_subject(checked.candidate)
    statements = await extract(live_run, subject)
    return await _check_support(live_run, checked, subject, statements, _find_others(checked, subject, near))


async def check_renewed(live_run: LiveRun, checked: Checked, near: NearPassages) -> bool:
    """Whether the spans bear out a ground truth that was written again, and their passages answer the question so;
    raises JudgeFailed."""
    if not await check_support(live_run, checked, near):
        return False
    subject = _name_subject(checked.candidate)
    return await _check_answer(live_run, checked, subject, await extract(live_run, subject))


def _name_subject(candidate: Candidate) -> Subject:
    return Subject(
        id=candidate.candidate_id,
        question=candidate.question,
        ground_truth=candidate.ground_truth or None,
        conversation=candidate.conversation,
    )


def _find_others(checked: Checked, subject: Subject, near: NearPassages) -> list[Passage]:
    own = {passage.passage_id for passage in checked.references}
    return [found.passage for found in near.find(f"{subject.asked} {subject.ground_truth}", NEAR, exclude=own)]


async def _check_support(
    live_run: LiveRun, checked: Checked, subject: Subject, statements: Extraction, others: Sequence[Passage]
) -> bool:
    """Whether the spans bear out every statement; passages elsewhere that do so as well become references.

    The spans are asked about by themselves: of statements that one passage elsewhere bears out alone, a judge does not
    say which ones of others do so together.
    """
    if not statements.items:
        return checked.note("unsupported", False, "the ground truth makes no statement", statements.call_id)
    spans = [
        show_passage(passage, " … ".join(span.text for span in checked.spans if span.passage_id == passage.passage_id))
        for passage in checked.references
    ]
    supported = await find_support(live_run, subject, statements, spans)
    for statement in supported:
        if not (statement.alone or statement.together):
            return checked.note("unsupported", False, f"{statement.text}: {statement.reason}", statement.call_id)
    checked.references += await _find_same(live_run, checked, subject, statements, others)
    return checked.note("unsupported", True, "its spans bear out every statement", supported[0].call_id)


async def _find_same(
    live_run: LiveRun, checked: Checked, subject: Subject, statements: Extraction, others: Sequence[Passage]
) -> tuple[Passage, ...]:
    """The passages elsewhere that bear out every statement by themselves; asked about where they have its words."""
    words = set(list_tokens(checked.candidate.ground_truth))
    likely = [other for other in others if len(words & set(list_tokens(other.text))) >= _SAME_WORDS * len(words)]
    if not likely:
        return ()
    supported = await find_support(live_run, subject, statements, [show_passage(other) for other in likely])
    everywhere = set.intersection(*(set(statement.alone) for statement in supported))
    return tuple(likely[place] for place in sorted(everywhere))


async def _check_answer(live_run: LiveRun, checked: Checked, subject: Subject, statements: Extraction) -> bool:
    """Whether its passages answer the question, and as the ground truth does."""
    own = [passage for passage in checked.references if passage.passage_id in {s.passage_id for s in checked.spans}]
    said = await answer(live_run, subject, [show_passage(passage) for passage in own], step="answer_with")
    if not checked.note("unanswered", said.basis == "contexts", said.reason, said.call_id):
        return False
    compared = await compare(live_run, subject, statements, said)
    detail = f"{said.answer}: {compared.reason}" if compared.missing else "the judge answers the same from its passages"
    return checked.note("wrong_answer", not compared.missing, detail, compared.call_id)


async def _check_without(
    live_run: LiveRun, checked: Checked, subject: Subject, statements: Extraction, others: Sequence[Passage]
) -> None:
    """Whether it can be answered without its passages, rightly from elsewhere or otherwise by what stands elsewhere."""
    said = await answer(live_run, subject, [show_passage(other) for other in others], step="answer_without")
    if said.basis == "none":
        checked.note("without_spans", True, said.reason, said.call_id)
        return
    compared = await compare(live_run, subject, statements, said)
    where = name_used(said, others)
    if not compared.missing:
        checked.note("without_spans", False, f"answered without its passages, {where}: {said.answer}", said.call_id)
        return
    checked.note("without_spans", True, said.reason, said.call_id)
    agrees = said.basis != "contexts"
    checked.note("contradicted", agrees, f"{where}: {said.answer}", compared.call_id)


def name_used(said: Answered, others: Sequence[Passage]) -> str:
    """Where an answer is from: the passages that it names."""
    if said.basis == "knowledge":
        return "from general knowledge"
    return f"from {', '.join(others[place].passage_id for place in said.used) or 'elsewhere'}"
