"""Candidates for a test set: questions as a judge wrote them, before anything is known of their worth."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.judge.errors import UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.testsets.drafts import Draft
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.questions import QuestionKind, Turn, show_passage

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
            conversation=_take_turns(written.turns),
            call_id=answer.call_id,
        )
        for number, written in enumerate(answer.value[: draft.count], start=1)
    ]


def _take_turns(turns: Sequence[str]) -> tuple[Turn, ...]:
    return tuple(Turn(role="assistant" if place % 2 else "user", content=text) for place, text in enumerate(turns))


def _read_written(text: str, ids: "dict[str, Passage]") -> list[_Written]:
    questions = parse_object(text, "questions").get("questions")
    if not isinstance(questions, list):
        raise UnusableReply('the reply had no list under "questions"')
    return [_read_one(one, ids) for one in questions]


def _read_one(one: object, ids: "dict[str, Passage]") -> _Written:
    if not isinstance(one, dict):
        raise UnusableReply(f"a question is {one!r:.40}, not an object")
    return _Written(
        question=_read_text(one, "question"),
        ground_truth=_read_text(one, "ground_truth"),
        quotes=read_quotes(one.get("quotes"), ids),
        turns=_read_turns(one.get("turns")),
    )


def _read_text(one: dict[str, object], name: str) -> str:
    value = one.get(name)
    if not isinstance(value, str):
        raise UnusableReply(f"{name} of a question is {value!r:.40}, not a text")
    return " ".join(value.split())


def _read_turns(turns: object) -> list[str]:
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise UnusableReply(f"turns of a question are {turns!r:.40}, not a list of texts")
    return [" ".join(turn.split()) for turn in turns if turn.strip()]


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
