"""The handbook of a river port authority that does not exist, as data: its entities, their facts, and how these are
worded in documents and questions, English and Chinese. Texts are in `port/*.yaml`.

`find_claims` finds the facts in texts again, `port_base` writes the documents, `port_answers` answers from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import yaml

_VALUES: Mapping[tuple[str, Language], str] = {
    ("number", "en"): r"\d+(?:[.,:]\d+)*",
    ("number", "zh"): r"\d+(?:[.,:]\d+)*",
    ("date", "en"): r"\d{1,2}\s[A-Z][a-z]+(?:\s\d{4})?",
    ("date", "zh"): r"(?:\d{4}年)?\d{1,2}月\d{1,2}日",
    ("text", "en"): r"[^.;|?!]{1,80}?",
    ("text", "zh"): r"[^。；|？！，]{1,40}?",
}
_BOUNDARY = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*|\s*\n\s*\n\s*")
_STEP = re.compile(r"\s*\d{1,2}\.[ \t]+([^\n]+)")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A text states a fact at `spans`, from and to: in a sentence, in a row of a table and its header, or in the steps
    of an entity (`alder.steps`) with the sentence before them, a step a line of the value."""

    fact: str
    value: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The demand of a question: the values of `facts`, the steps of an entity among them (`alder.steps`); `compared`
    where it asks which of two is more."""

    facts: tuple[str, ...]
    compared: bool = False


def _match_names(entities: Iterable[Entity]) -> str:
    """A pattern for any of their names, the longest first."""
    return "|".join(sorted((_escape(entity.name) for entity in entities), key=len, reverse=True))


def _escape(text: str) -> str:
    """A pattern for the words of a text, however it is broken into lines."""
    return r"\s+".join(map(re.escape, text.split(" ")))


@cache
def _names() -> tuple[re.Pattern[str], dict[str, Entity]]:
    entities = [entity for book in map(load_handbook, LANGUAGES) for entity in book.entities.values()]
    return re.compile(_match_names(entities)), {entity.name: entity for entity in entities}


@cache
def _list_patterns(type_name: str, language: Language) -> list[tuple[Attribute, re.Pattern[str]]]:
    """Return patterns for the facts of a type, `{e}` being any of its names."""
    own = load_handbook(language).types[type_name]
    names = f"(?P<e>{_match_names(_list_of_type(own))})"
    return [
        (attribute, re.compile(_escape(wording).replace(r"\{e\}", names).replace(r"\{v\}", value)))
        for attribute in own.attributes.values()
        for value in [f"(?P<v>{_VALUES[attribute.value, own.language]})"]
        for wording in attribute.say
    ]


def _list_of_type(own: Type) -> list[Entity]:
    return [entity for entity in load_handbook(own.language).entities.values() if entity.type is own]


def find_claims(text: str) -> list[Claim]:
    """All facts that a text states in sentences or in rows of a table, in their order."""
    claims, start = [], 0
    for boundary in [*_BOUNDARY.finditer(text), None]:
        end = boundary.start() if boundary else len(text)
        for claim in _read_sentence(text[start:end]):
            spans = tuple((start + first, start + last) for first, last in claim.spans)
            claims.append(replace(claim, spans=spans))
        start = boundary.end() if boundary else end
    return claims


@lru_cache(maxsize=8192)
def _read_sentence(sentence: str) -> tuple[Claim, ...]:
    pattern, entities = _names()
    found = {" ".join(name.split()) for name in pattern.findall(sentence)}
    types = {entities[name].type.name: entities[name].type for name in found}
    if sentence.count("|") > 2:
        return tuple(_read_rows(sentence))
    return tuple(
        Claim(
            fact=f"{entities[' '.join(match['e'].split())].key}.{attribute.name}",
            value=" ".join(match["v"].split()),
            spans=(match.span(),),
        )
        for own in types.values()
        for attribute, wording in _list_patterns(own.name, own.language)
        for match in wording.finditer(sentence)
    )


def _read_rows(table: str) -> Iterator[Claim]:
    """Yield the claims of rows whose first cell is an entity, under a header of attributes."""
    _, entities = _names()
    header: list[str] = []
    head, start = (0, 0), 0
    for line in table.split("\n"):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        place = (start + len(line) - len(line.lstrip()), start + len(line.rstrip()))
        entity = entities.get(cells[0])
        if entity is None:
            if len(cells) > 1 and not header:
                header, head = cells, place
        else:
            labels = {attribute.label: attribute.name for attribute in entity.type.attributes.values()}
            for label, value in zip(header, cells, strict=False):
                if labels.get(label):
                    fact = f"{entity.key}.{labels[label]}"
                    yield Claim(fact=fact, value=value, spans=(head, place))
        start += len(line) + 1


def find_steps(text: str) -> list[Claim]:
    """The numbered steps behind the lead sentences of a text."""
    found = []
    for entity in _names()[1].values():
        lead = _fill_do(load_handbook(entity.language).steps, entity.type, entity.name)
        position = text.find(lead) if lead else -1
        if position < 0:
            continue
        lines: list[str] = []
        end = position + len(lead)
        while match := _STEP.match(text, end):
            lines.append(match[1].strip())
            end = match.end(1)
        if lines:
            found.append(Claim(fact=f"{entity.key}.steps", value="\n".join(lines), spans=((position, end),)))
    return found


def _fill_do(template: str, own: Type, name: str) -> str:
    """The sentence before the steps, or the question for them; nothing where the type has none."""
    return template.format(do=own.do.format(e=name)) if own.do else ""


@cache
def _list_questions(language: Language) -> list[tuple[Type, str, bool, re.Pattern[str]]]:
    """Type, attribute (`steps` too), whether two are compared, and the wording, for all that can be asked."""
    book = load_handbook(language)
    found = []
    for own in book.types.values():
        names = f"(?P<e>{_match_names(_list_of_type(own))}|{_escape(own.pronoun)})"
        pair = [f"(?P<{side}>{_match_names(_list_of_type(own))})" for side in "ab"]
        for attribute in own.attributes.values():
            for wording in attribute.ask:
                found.append((own, attribute.name, False, _compile(wording, {"e": names})))
            if attribute.more:
                slots = {"more": _escape(attribute.more), "a": pair[0], "b": pair[1]}
                found.append((own, attribute.name, True, _compile(book.more, slots)))
        if own.do:
            found.append((own, "steps", False, _compile(_fill_do(book.how, own, "{e}"), {"e": names})))
    return found


def _compile(wording: str, slots: Mapping[str, str]) -> re.Pattern[str]:
    pattern = _escape(wording.rstrip("?？"))
    for slot, filling in slots.items():
        pattern = pattern.replace(rf"\{{{slot}\}}", filling)
    return re.compile(pattern, re.IGNORECASE)


@lru_cache(maxsize=4096)
def read_question(question: str, conversation: str = "") -> Demand | None:
    """Return the demand of a question; None for one that is not about the handbook. Its "that quay" is the last
    quay of the conversation."""
    matches = sorted(
        (
            (match, own, attribute, compared)
            for language in LANGUAGES
            for own, attribute, compared, pattern in _list_questions(language)
            for match in pattern.finditer(question)
        ),
        key=lambda entry: entry[0].start(),
    )
    facts: dict[str, None] = {}
    for match, own, attribute, compared in matches:
        by_name = {entity.name.lower(): entity for entity in _list_of_type(own)}
        mentioned = ["", *re.findall(_match_names(_list_of_type(own)), conversation)]
        for name in (match["a"], match["b"]) if compared else (match["e"],):
            named = (" ".join(one.lower().split()) for one in (name, mentioned[-1]))
            entity = next((by_name[one] for one in named if one in by_name), None)
            if entity is None:
                return None
            facts[f"{entity.key}.{attribute}"] = None
    return Demand(facts=tuple(facts), compared=any(entry[3] for entry in matches)) if facts else None


def read_winner(statement: str) -> Entity | None:
    """The entity that a sentence says to have the greater figure."""
    for language in LANGUAGES:
        greater = load_handbook(language).greater.rstrip(".。")
        pattern = _escape(greater).replace(r"\{e\}", f"({_names()[0].pattern})")
        if match := re.search(pattern, statement):
            return _names()[1][match[1]]
    return None


def find_language(text: str) -> Language:
    """Chinese where any of its characters is."""
    return "zh" if re.search(r"[一-鿿]", text) else "en"


FOLDER = Path(__file__).with_name("port")
Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
ValueKind = Literal["number", "date", "text"]


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """An attribute of each entity of a type. `{e}` is the entity's name, `{v}` the value.

    All wordings of `say` mean the same, and so do all of `ask`; the last of several `say` is kept for rewording.
    """

    name: str
    value: ValueKind
    say: tuple[str, ...]
    ask: tuple[str, ...]
    more: str = ""  # of two numbers the one that is more, in words; empty where that makes no sense
    label: str = ""  # the head of its column where a table states it

    def state(self, entity: Entity, value: str, wording: int = 0) -> str:
        """The sentence that states a value."""
        return self.say[wording].format(e=entity.name, v=value)

    def pick_wording(self, entity: Entity) -> int:
        """The wording that the first version uses for this entity."""
        return draw(f"{entity.key}.{self.name}", max(1, len(self.say) - 1))


@dataclass(frozen=True, kw_only=True)
class Type:
    """A type of entities: their attributes, and the page that each has, if they have pages."""

    name: str
    language: Language
    pronoun: str
    attributes: Mapping[str, Attribute]
    do: str = ""  # what the steps of an entity are for
    path: str = ""
    page: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Entity:
    """A person or thing in the documents; `values` by attribute, as the first version states them."""

    key: str
    name: str
    type: Type
    values: Mapping[str, str]
    steps: tuple[str, ...] = ()
    since: int = 1  # the version from which on documents speak of it

    @property
    def language(self) -> Language:
        return self.type.language


@dataclass(frozen=True, kw_only=True)
class Handbook:
    """One language's half. The templates take `do` (steps, how), `more`, `a`, `b` (more) and `e` (greater)."""

    language: Language
    steps: str
    how: str
    more: str
    greater: str
    types: Mapping[str, Type]
    entities: Mapping[str, Entity]
    documents: Mapping[str, Mapping[str, Any]]


def draw(text: str, n: int) -> int:
    """A number below n that follows from the text alone."""
    return crc32(text.encode()) % n


@cache
def load_handbook(language: Language) -> Handbook:
    """One half of the handbook."""
    data = read_yaml(f"{language}.yaml")
    types, entities = {}, {}
    for type_name, given in data["types"].items():
        attributes = {
            key: Attribute(name=key, **{**entry, "say": tuple(entry["say"]), "ask": tuple(entry["ask"])})
            for key, entry in given["attributes"].items()
        }
        types[type_name] = Type(name=type_name, language=language, **{**given, "attributes": attributes})
    for type_name, entries in data["entities"].items():
        for key, values in entries.items():
            name, since, steps = values.pop("name"), values.pop("since", 1), tuple(values.pop("steps", ()))
            entities[key] = Entity(key=key, name=name, type=types[type_name], values=values, steps=steps, since=since)
    words = {name: data[name] for name in ("steps", "how", "more", "greater")}
    return Handbook(language=language, types=types, entities=entities, documents=data["documents"], **words)


def read_yaml(name: str) -> Any:  # noqa: ANN401
    """A data file of the handbook."""
    return yaml.load((FOLDER / name).read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def find_entity(key: str) -> Entity:
    """The entity of a key, or of a fact's id (`alder.draught`)."""
    key = key.partition(".")[0]
    return next(book.entities[key] for book in map(load_handbook, LANGUAGES) if key in book.entities)


def find_attribute(fact: str) -> Attribute:
    """The attribute of a fact's id."""
    return find_entity(fact).type.attributes[fact.partition(".")[2]]
