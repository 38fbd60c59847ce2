"""Spoils a share of the questions that `port_answers` writes, each in one way, so that filters have something to find.

What is spoilt, and how, follows from the seed and the question alone: the same requests are spoilt in the same way
however they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, get_args

from port_handbook import draw, find_entity
from port_questions import Quote, Stated, Written, ask, ask_for, join_sentences, list_stated, say
from port_reading import find_language

Way = Literal[
    "empty", "other_language", "names_the_passage", "not_verbatim", "leak", "duplicate", "reworded_duplicate",
    "unsupported", "unanswered", "wrong_answer", "answerable",
]  # fmt: skip
WAYS: tuple[Way, ...] = get_args(Way)
FILTERS: Mapping[Way, str] = MappingProxyType(
    {
        "empty": "form",
        "other_language": "form",
        "names_the_passage": "form",
        "not_verbatim": "span",
        "leak": "leak",
        "duplicate": "duplicate",
        "reworded_duplicate": "duplicate",
        "unsupported": "unsupported",
        "unanswered": "unanswered",
        "wrong_answer": "wrong_answer",
        "answerable": "answerable",
    }
)
"""The filter that has to turn each down, unless one before it does: a question that was asked before is a duplicate
first. What the handbook itself does: `contradicted` by the one date of each language that two documents state
differently, `without_spans` by what everybody knows, `answerable` by what another document says."""
_WHOLE = 10**6


@dataclass(frozen=True, kw_only=True)
class Spoilt:
    """One question that was spoilt, as it was sent.

    All three texts together tell it from good ones, but for a duplicate, which is equal to what it repeats.
    """

    way: Way
    question: str
    ground_truth: str
    turns: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mischief:
    """Shares of the questions by way, at most 1 in all. A question that a way does not fit stays unchanged."""

    seed: int = 0
    shares: Mapping[Way, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.shares) - set(WAYS))
        assert not unknown, f"unknown ways {unknown}; known: {', '.join(WAYS)}"
        assert sum(self.shares.values()) <= 1 + 1e-9, f"the shares are {dict(self.shares)}; give at most 1 in all"

    def spoil(
        self, written: Sequence[Written], contexts: Mapping[str, str], asked: dict[str, str]
    ) -> tuple[list[Written], list[Spoilt]]:
        """The questions of one reply, some of them spoilt, and which these are.

        `asked` has the questions about one fact that were written before, by fact; the good ones are added.
        """
        questions: list[Written] = []
        spoilt: list[Spoilt] = []
        for question in written:
            way = self._draw(question)
            bad = _SPOIL[way](question, _Surroundings(contexts=contexts, asked=asked)) if way else None
            if way and bad:
                texts = {"question": bad.question, "ground_truth": bad.ground_truth, "turns": bad.turns}
                spoilt.append(Spoilt(way=way, **texts))
            elif question.is_plain:
                asked.setdefault(question.facts[0], question.question)
            questions.append(bad or question)
        return questions, spoilt

    def _draw(self, question: Written) -> Way | None:
        chance = draw(f"{self.seed}\n{question.question}\n{question.turns}", _WHOLE) / _WHOLE
        bound = 0.0
        for way, share in self.shares.items():
            bound += share
            if chance < bound:
                return way
        return None


@dataclass(frozen=True, kw_only=True)
class _Surroundings:
    contexts: Mapping[str, str]
    asked: Mapping[str, str]

    def find_other(self, question: Written) -> Stated | None:
        """A fact that the contexts state, other than those asked for and in other words."""
        quoted = {quote.text for quote in question.quotes}
        others = (one for one in list_stated(self.contexts) if one.fact not in question.facts)
        return next((one for one in others if one.quotes[-1].text not in quoted), None)


def _is_chinese(question: Written) -> bool:
    return find_language(question.question) == "zh"


def _translate(question: Written, _: _Surroundings) -> Written:
    name = find_entity(question.facts[0]).name
    asked = (
        f"What is it that the people who wrote this have to say of {name}?"
        if _is_chinese(question)
        else f"关于{name}，这里是怎么规定的？"
    )
    return replace(question, question=asked)


def _name_passage(question: Written, _: _Surroundings) -> Written:
    start = "根据上述段落，" if _is_chinese(question) else "According to the passage above: "
    return replace(question, question=start + question.question)


def _misquote(question: Written, _: _Surroundings) -> Written | None:
    if not question.quotes:
        return None
    first, *rest = question.quotes
    middle = len(first.text) // 2
    words = "（大致）" if _is_chinese(question) else " (more or less) "
    bad = Quote(context_id=first.context_id, text=f"{first.text[:middle]}{words}{first.text[middle:]}")
    return replace(question, quotes=(bad, *rest))


def _leak(question: Written, _: _Surroundings) -> Written | None:
    if not question.ground_truth:
        return None
    leaked = f"{question.ground_truth}那么，" if _is_chinese(question) else f"{question.ground_truth} So: "
    return replace(question, question=leaked + question.question)


def _repeat(question: Written, around: _Surroundings, *, reworded: bool = False) -> Written | None:
    """A question that was asked before, about a fact that these contexts state as well."""
    before = [one for one in list_stated(around.contexts) if one.fact in around.asked]
    if not before or not question.ground_truth:
        return None
    again = before[draw(question.question, len(before))]
    asked = around.asked[again.fact]
    wordings = (ask(again, wording) for wording in range(len(again.attribute.ask)))
    wording = next((wording for wording in wordings if wording != asked), asked) if reworded else asked
    return Written(question=wording, ground_truth=say(again), facts=(again.fact,), quotes=again.quotes)


def _embroider(question: Written, _: _Surroundings) -> Written | None:
    if not question.ground_truth:
        return None
    more = "市长曾两次到那里合影留念。" if _is_chinese(question) else "The mayor had two photographs taken there."
    return replace(question, ground_truth=join_sentences([question.ground_truth, more]))


def _ask_otherwise(question: Written, _: _Surroundings) -> Written | None:
    """Something that no document says, with the ground truth and the quotes of what was asked."""
    entity = find_entity(question.facts[0])
    unknown = next((one for one in entity.type.attributes.values() if one.name not in entity.values), None)
    if not (unknown and question.is_plain):
        return None
    return replace(question, question=ask_for(entity, unknown))


def _answer_otherwise(question: Written, around: _Surroundings) -> Written | None:
    """Another fact that is quoted as well, with the ground truth of what was asked."""
    other = around.find_other(question)
    if not (other and question.is_plain):
        return None
    return replace(question, question=ask(other), quotes=(*question.quotes, *other.quotes))


def _make_answerable(question: Written, around: _Surroundings) -> Written | None:
    other = around.find_other(question)
    if question.ground_truth or other is None:
        return None
    return replace(question, question=ask(other), facts=(other.fact,))


_SPOIL: Mapping[Way, Callable[[Written, _Surroundings], Written | None]] = {
    "empty": lambda question, _: replace(question, question=""),
    "other_language": _translate,
    "names_the_passage": _name_passage,
    "not_verbatim": _misquote,
    "leak": _leak,
    "duplicate": _repeat,
    "reworded_duplicate": lambda question, around: _repeat(question, around, reworded=True),
    "unsupported": _embroider,
    "unanswered": _ask_otherwise,
    "wrong_answer": _answer_otherwise,
    "answerable": _make_answerable,
}
