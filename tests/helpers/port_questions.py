"""Writes questions about the port authority's handbook from passages of it, for `port_answers`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from port_handbook import Attribute, Entity, draw, find_attribute, find_entity, load_handbook
from port_reading import Claim, Demand, find_claims, find_language, find_steps


@dataclass(frozen=True, kw_only=True)
class Quote:
    """Words of a context, letter by letter."""

    context_id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Written:
    """A question with its ground truth and quotes; `facts` are the facts it asks for."""

    question: str
    ground_truth: str
    facts: tuple[str, ...]
    quotes: tuple[Quote, ...] = ()
    turns: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True if it asks for the value of one fact, and names its subject."""
        return len(self.facts) == 1 and not self.turns and not self.facts[0].endswith(".steps") and bool(self.quotes)


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A fact that a context states; of a table its header is quoted too, without which a row says little."""

    fact: str
    value: str
    quotes: tuple[Quote, ...]

    @property
    def entity(self) -> Entity:
        return find_entity(self.fact)

    @property
    def attribute(self) -> Attribute:
        return find_attribute(self.fact)


def list_stated(contexts: Mapping[str, str], salt: str = "") -> list[Stated]:
    """All facts that the contexts state, each once, in an order that follows from the facts and the salt alone."""
    stated: dict[str, Stated] = {}
    for context_id, text in contexts.items():
        for claim in find_claims(text):
            quotes = quote_claim(context_id, text, claim)
            stated.setdefault(claim.fact, Stated(fact=claim.fact, value=claim.value, quotes=quotes))
    return sorted(stated.values(), key=lambda one: draw(f"{one.fact}{salt}", 2**32))


def quote_claim(context_id: str, text: str, claim: Claim) -> tuple[Quote, ...]:
    """The words in which a context states a fact."""
    places = [claim.head, (claim.start, claim.end)]
    return tuple(Quote(context_id=context_id, text=text[place[0] : place[1]]) for place in places if place)


def write_questions(kind: str, count: int, contexts: Mapping[str, str]) -> list[Written]:
    """Up to `count` questions of a kind, as many as the contexts hold; KeyError for a kind that is not known."""
    written: dict[str, Written] = {}
    for question in _WRITERS[kind](contexts):
        if len(written) == count:
            break
        written.setdefault(question.question, question)
    return list(written.values())


def ask(one: Stated, wording: int | None = None) -> str:
    """The question for a fact; there is more than one wording."""
    return ask_for(one.entity, one.attribute, wording)


def ask_for(entity: Entity, attribute: Attribute, wording: int | None = None) -> str:
    """The question for an attribute of an entity."""
    n = len(attribute.ask)
    chosen = draw(f"{entity.key}?{attribute.name}", n) if wording is None else wording % n
    return attribute.ask[chosen].format(e=entity.name)


def say(one: Stated) -> str:
    """The ground truth of a fact: always in the same words, which may differ from the document's."""
    return one.attribute.state(one.entity, one.value)


def say_answer(demand: Demand, values: Mapping[str, Sequence[str]]) -> str:
    """The answer to what is asked for, with every value that was found."""
    sentences = []
    for fact in demand.facts:
        for value in values[fact]:
            steps = fact.endswith(".steps")
            sentences += value.split("\n") if steps else [find_attribute(fact).state(find_entity(fact), value)]
    winner = compare_values(demand.facts, {fact: values[fact][0] for fact in demand.facts}) if demand.compared else None
    if winner:
        sentences.append(load_handbook(winner.language).greater.format(e=winner.name))
    return join_sentences(sentences)


def join_sentences(sentences: Iterable[str]) -> str:
    """Sentences as one text of their language."""
    sentences = list(sentences)
    return ("" if find_language("".join(sentences)) == "zh" else " ").join(sentences)


def compare_values(facts: Sequence[str], values: Mapping[str, str]) -> Entity | None:
    """Return the entity with the greater figure of two facts; None for equal ones."""
    first, second = (float(values[fact].replace(",", "").replace(":", ".")) for fact in facts)
    return None if first == second else find_entity(facts[0] if first > second else facts[1])


def _write_facts(contexts: Mapping[str, str], values: Sequence[str]) -> Iterator[Written]:
    for one in list_stated(contexts, salt=values[0]):
        if one.attribute.value in values:
            yield Written(question=ask(one), ground_truth=say(one), facts=(one.fact,), quotes=one.quotes)


def _write_procedures(contexts: Mapping[str, str]) -> Iterator[Written]:
    for context_id, text in contexts.items():
        for steps in find_steps(text):
            entity = find_entity(steps.fact)
            question = load_handbook(entity.language).how.format(do=entity.type.do.format(e=entity.name))
            quote = Quote(context_id=context_id, text=text[steps.start : steps.end])
            truth = join_sentences(steps.lines)
            yield Written(question=question, ground_truth=truth, facts=(steps.fact,), quotes=(quote,))


def _pair(contexts: Mapping[str, str], fits: Callable[[Stated, Stated], bool]) -> Iterator[tuple[Stated, Stated]]:
    for first, second in combinations(list_stated(contexts), 2):
        if first.entity.language == second.entity.language and fits(first, second):
            yield first, second


def _write_several(contexts: Mapping[str, str]) -> Iterator[Written]:
    for pair in _pair(contexts, lambda one, other: one.quotes[0].context_id != other.quotes[0].context_id):
        first, second = map(ask, pair)
        if pair[0].entity.language == "en":
            question = f"{first.rstrip('?')}, and {second[0].lower()}{second[1:]}"
        else:
            question = f"{first.rstrip('？')}，{second}"
        yield _write_pair(question, pair)


def _write_pair(question: str, pair: tuple[Stated, Stated], *more: str) -> Written:
    truth = join_sentences([*map(say, pair), *more])
    quotes = tuple(dict.fromkeys(quote for one in pair for quote in one.quotes))
    return Written(question=question, ground_truth=truth, facts=tuple(one.fact for one in pair), quotes=quotes)


def _write_comparisons(contexts: Mapping[str, str]) -> Iterator[Written]:
    for pair in _pair(contexts, lambda one, other: one.attribute is other.attribute and bool(one.attribute.more)):
        book = load_handbook(pair[0].entity.language)
        winner = compare_values([one.fact for one in pair], {one.fact: one.value for one in pair})
        if winner:
            names = {"a": pair[0].entity.name, "b": pair[1].entity.name}
            question = book.more.format(more=pair[0].attribute.more, **names)
            yield _write_pair(question, pair, book.greater.format(e=winner.name))


def _write_conversations(contexts: Mapping[str, str]) -> Iterator[Written]:
    """After a question about one thing, one about something else that names it no more."""
    for first, second in _pair(contexts, lambda one, other: one.entity is other.entity):
        own = second.entity
        question = ask(second).replace(own.name, own.type.pronoun)
        question = question[0].upper() + question[1:]
        quotes = second.quotes
        turns = (ask(first), say(first))
        yield Written(question=question, ground_truth=say(second), facts=(second.fact,), quotes=quotes, turns=turns)


def _write_unanswerable(contexts: Mapping[str, str]) -> Iterator[Written]:
    """Ask for facts that these contexts do not have about their subjects; others may have them."""
    stated = list_stated(contexts)
    known = {one.fact for one in stated}
    entities = {one.entity.key: one.entity for one in stated}.values()
    missing = ((one, attribute) for one in entities for attribute in one.type.attributes.values())
    # What no document says has one wording only.
    for entity, attribute in sorted(
        missing, key=lambda pair: (len(pair[1].say) > 1, draw(f"{pair[0].key}{pair[1].name}", 2**32))
    ):
        fact = f"{entity.key}.{attribute.name}"
        if fact not in known:
            yield Written(question=ask_for(entity, attribute), ground_truth="", facts=(fact,))


_WRITERS: Mapping[str, Callable[[Mapping[str, str]], Iterator[Written]]] = {
    "fact": lambda contexts: _write_facts(contexts, ("text", "number", "date")),
    "number": lambda contexts: _write_facts(contexts, ("number", "date")),
    "procedure": _write_procedures,
    "several": _write_several,
    "comparison": _write_comparisons,
    "conversational": _write_conversations,
    "unanswerable": _write_unanswerable,
}
