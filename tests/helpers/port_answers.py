"""Replies about the port authority's handbook as an honest and competent model would give them, from what a request
holds: `PortAnswers(...).compose` is an endpoint's `compose`, `port_endpoint` an endpoint that has it.

It writes, answers and renews questions of test sets and does the steps of a run. Where a request is about something
else, the endpoint's own rule replies. `spoil` may change the questions that it writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from endpoint import Asked, Endpoint, running_endpoint
from endpoint_replies import Kind, collect_content_words, compose_reply, share_words
from port_handbook import (
    LANGUAGES,
    Attribute,
    Demand,
    Entity,
    draw,
    find_attribute,
    find_claims,
    find_entity,
    find_language,
    find_steps,
    load_handbook,
    read_question,
    read_winner,
)


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


def find_stated(contexts: Mapping[str, str]) -> Iterator[Stated]:
    """All facts and steps that the contexts state, as often as they do."""
    for context_id, text in contexts.items():
        for claim in [*find_claims(text), *find_steps(text)]:
            quotes = tuple(Quote(context_id=context_id, text=text[start:end]) for start, end in claim.spans)
            yield Stated(fact=claim.fact, value=claim.value, quotes=quotes)


def list_stated(contexts: Mapping[str, str], salt: str = "") -> list[Stated]:
    """All facts that the contexts state, each once, in an order that follows from the facts and the salt alone."""
    stated: dict[str, Stated] = {}
    for one in find_stated(contexts):
        if not one.fact.endswith(".steps"):
            stated.setdefault(one.fact, one)
    return sorted(stated.values(), key=lambda one: draw(f"{one.fact}{salt}", 2**32))


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
    for one in find_stated(contexts):
        if one.fact.endswith(".steps"):
            entity = one.entity
            question = load_handbook(entity.language).how.format(do=entity.type.do.format(e=entity.name))
            truth = join_sentences(one.value.split("\n"))
            yield Written(question=question, ground_truth=truth, facts=(one.fact,), quotes=one.quotes)


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


KNOWN = frozenset(
    f"{entity.key}.size"
    for language in LANGUAGES
    for entity in load_handbook(language).entities.values()
    if entity.type.name == "unit"
)
"""The facts that this model knows without any document: the length of a mile."""
Spoil = Callable[[Sequence[Written], Mapping[str, str]], Iterable[Written]]
_INDENT = "\n    "
# Between two quotations of a passage; taken for a line break of the same length.
_GAP, _BREAK = " … ", " \n "
_ALIKE = 0.8  # share of the words of a statement about another subject that a text needs to support it


class PortAnswers:
    """A model that knows how to read. The same request gets the same questions again, as after a fault."""

    def __init__(self, *, spoil: Spoil | None = None) -> None:
        self.spoil = spoil
        self._written: dict[str, dict[str, Any]] = {}
        self._replies: Mapping[Kind, Callable[[Asked], dict[str, Any] | str]] = {
            "write_question": self._write, "answer_question": self._answer, "match_questions": _match,
            "renew_question": _renew, "classify": _classify, "attribute": _attribute, "rank": _rank,
        }  # fmt: skip

    def compose(self, asked: Asked) -> dict[str, Any] | str:
        """The reply to a request."""
        own = self._replies.get(asked.kind)
        return own(asked) if own else compose_reply(asked)

    def _write(self, asked: Asked) -> dict[str, Any]:
        request = asked.texts[-1]
        if request not in self._written:
            contexts, count = read_contexts(asked), int(asked.blocks["count"])
            written = write_questions(asked.blocks["question_kind"].strip(), count, contexts)
            shown = [
                {"question": one.question, "ground_truth": one.ground_truth, "quotes": _show_quotes(one.quotes),
                 "turns": list(one.turns)}
                for one in (self.spoil(written, contexts) if self.spoil else written)
            ]  # fmt: skip
            self._written[request] = {"reason": f"{len(written)} of {count} can be asked.", "questions": shown}
        return self._written[request]

    def _answer(self, asked: Asked) -> dict[str, Any]:
        question, conversation = asked.blocks.get("question", ""), asked.blocks.get("conversation", "")
        demand = read_question(question, conversation)
        found = look_up(demand, read_contexts(asked))
        if demand and all(found[fact] for fact in demand.facts):
            used = {one.quotes[0].context_id: None for fact in demand.facts for one in found[fact]}
            values = {fact: list(dict.fromkeys(one.value for one in found[fact])) for fact in demand.facts}
            answer = say_answer(demand, values)
            return {"reason": "They state it.", "basis": "contexts", "answer": answer, "used": list(used)}
        if demand and KNOWN.issuperset(demand.facts):
            values = {fact: [find_entity(fact).values[fact.partition(".")[2]]] for fact in demand.facts}
            answer = say_answer(demand, values)
            return {"reason": "Everybody knows it.", "basis": "knowledge", "answer": answer, "used": []}
        return {"reason": "Nothing says it.", "basis": "none", "answer": "", "used": []}


@contextlib.contextmanager
def port_endpoint(
    *,
    spoil: Spoil | None = None,
    **options: Any,  # noqa: ANN401
) -> Iterator[tuple[Endpoint, PortAnswers]]:
    """An endpoint that answers from the documents; `options` go to `running_endpoint`, faults too."""
    answers = PortAnswers(spoil=spoil)
    with running_endpoint(compose=answers.compose, **options) as endpoint:
        yield endpoint, answers


def read_contexts(asked: Asked, block: str = "contexts") -> dict[str, str]:
    """Return the texts of a block's items by id, as in their documents."""
    return {key: text.replace(_INDENT, "\n").replace(_GAP, _BREAK) for key, text in asked.items(block).items()}


def look_up(demand: Demand | None, contexts: Mapping[str, str]) -> dict[str, list[Stated]]:
    """Return the places in the contexts of each fact that is asked for."""
    found: dict[str, list[Stated]] = {fact: [] for fact in demand.facts} if demand else {}
    for one in find_stated(contexts):
        if one.fact in found:
            found[one.fact].append(one)
    return found


def _match(asked: Asked) -> dict[str, Any]:
    answered = []
    for key, text in asked.items("questions").items():
        *turns, question = text.replace(_INDENT, "\n").split("\n")
        demand = read_question(question.removeprefix("user: "), "\n".join(turns))
        found = look_up(demand, read_contexts(asked))
        used = dict.fromkeys(one.quotes[0].context_id for ones in found.values() for one in ones)
        if used:
            answered.append({"reason": f"{len(used)} state a part of it.", "question": key, "contexts": list(used)})
    return {"answered": answered}


def _show_quotes(quotes: Iterable[Quote]) -> list[dict[str, str]]:
    return [{"id": quote.context_id, "quote": quote.text} for quote in dict.fromkeys(quotes)]


def _renew(asked: Asked) -> dict[str, Any]:
    truth = asked.blocks.get("ground_truth", "")
    # A follow-up names nothing by itself, but its ground truth does.
    conversation = "\n".join((asked.blocks.get("conversation", ""), truth))
    demand = read_question(asked.blocks["question"], conversation)
    found = look_up(demand, read_contexts(asked))
    missing = not found or not all(found.values())
    if missing and truth.strip():
        return {"reason": "Nothing says it any more.", "verdict": "void", "ground_truth": "", "quotes": []}
    if missing or demand is None:
        return {"reason": "Nothing says it still.", "verdict": "still_true", "ground_truth": "", "quotes": []}
    kept = {fact: next((one for one in ones if _says(truth, fact, one.value)), None) for fact, ones in found.items()}
    ones = [one or found[fact][0] for fact, one in kept.items()]
    quotes = _show_quotes(quote for one in ones for quote in one.quotes)
    if all(kept.values()):
        return {"reason": "They say the same.", "verdict": "still_true", "ground_truth": truth, "quotes": quotes}
    renewed = say_answer(demand, {fact: [one.value] for fact, one in zip(kept, ones, strict=True)})
    return {"reason": "They say otherwise now.", "verdict": "changed", "ground_truth": renewed, "quotes": quotes}


def _says(text: str, fact: str, value: str) -> bool:
    """Return whether a text states a fact with this value."""
    if fact.endswith(".steps"):
        return all(_squeeze(line) in _squeeze(text) for line in value.split("\n"))
    return any(claim.fact == fact and claim.value == value for claim in find_claims(text))


def _squeeze(text: str) -> str:
    return " ".join(text.split()).casefold()


def _attribute(asked: Asked) -> dict[str, Any]:
    contexts = read_contexts(asked)
    demand = read_question(asked.blocks.get("question", ""))
    verdicts = []
    statements = read_contexts(asked, "answer_statements") | read_contexts(asked, "ground_truth_statements")
    for key, statement in statements.items():
        alone = [context_id for context_id, text in contexts.items() if _supports(statement, [text], demand)]
        together: list[str] = []
        if not alone and _supports(statement, list(contexts.values()), demand):
            needed = dict(contexts)
            for context_id in reversed(contexts):
                if _supports(statement, [text for other, text in needed.items() if other != context_id], demand):
                    del needed[context_id]
            together = list(needed)
        reason = f"{len(alone)} contexts say it, {len(together)} do together."
        verdicts.append({"id": key, "reason": reason, "contexts": alone, "together": together})
    return {"verdicts": verdicts}


def _supports(statement: str, texts: Sequence[str], demand: Demand | None) -> bool:
    """Return whether texts support a statement; one without a fact is matched by the question or by its words."""
    claims = find_claims(statement)
    if claims:
        return all(any(_says(text, claim.fact, claim.value) for text in texts) for claim in claims)
    if winner := read_winner(statement):
        stated = {claim.fact: claim.value for text in texts for claim in find_claims(text)}
        facts = demand.facts if demand and demand.compared else ()
        return len(facts) == 2 and set(facts) <= stated.keys() and compare_values(facts, stated) is winner
    if demand and any(fact.endswith(".steps") for fact in demand.facts):
        listed = [steps.value for text in texts for steps in find_steps(text) if steps.fact in demand.facts]
        return any(_squeeze(statement) in _squeeze(steps) for steps in listed)
    words = collect_content_words(statement)
    return any(share_words(words, collect_content_words(text)) >= _ALIKE for text in texts)


def _classify(asked: Asked) -> dict[str, Any]:
    sides = ("answer_statements", "ground_truth_statements")
    answer, truth = (read_contexts(asked, side) for side in sides)
    lists: dict[str, list[dict[str, str]]] = {side: [] for side in sides}
    for side, own, others, miss in ((sides[0], answer, truth, "FP"), (sides[1], truth, answer, "FN")):
        text = join_sentences(others.values())
        for key, statement in own.items():
            label = "TP" if _implies(text, statement) else miss
            lists[side].append({"id": key, "reason": "By what the other side says.", "label": label})
    return lists


def _implies(text: str, statement: str) -> bool:
    """Return whether a text has all that a statement has, and no other values of the same facts."""
    stated, own = ({(claim.fact, claim.value) for claim in find_claims(one)} for one in (text, statement))
    if own:
        facts = {fact for fact, _ in own}
        return {one for one in stated if one[0] in facts} == own
    if winner := read_winner(statement):
        return read_winner(text) is winner
    words = collect_content_words(statement)
    return _squeeze(statement) in _squeeze(text) or share_words(words, collect_content_words(text)) >= _ALIKE


def _rank(asked: Asked) -> dict[str, Any] | str:
    demand = read_question(asked.blocks.get("question", ""), asked.blocks.get("ground_truth", ""))
    if demand is None:
        return compose_reply(asked)
    verdicts = []
    for context_id, text in read_contexts(asked).items():
        label = "useful" if any(look_up(demand, {context_id: text}).values()) else "not_useful"
        verdicts.append({"id": context_id, "reason": "By what it states.", "label": label})
    return {"verdicts": verdicts}
