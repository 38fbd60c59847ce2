"""Which passages a question of each kind is asked for from, so that all kinds and documents have their share."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.datasets.rows import hash_json
from evalhouse.tasks.judge.errors import UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.testsets.errors import refuse
from evalhouse.tasks.testsets.near import NearPassages, overlap
from evalhouse.tasks.testsets.passages import Passage, find_sentences
from evalhouse.tasks.testsets.questions import KINDS, QuestionKind, Turn, show_passage

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
