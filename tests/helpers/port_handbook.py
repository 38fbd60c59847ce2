"""The handbook of a river port authority that does not exist, as data: its entities, their facts, and how these are
worded in documents and questions, English and Chinese. Texts are in `port/*.yaml`.

`port_base` writes the documents, `port_reading` finds the facts in texts again, `port_answers` answers from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import yaml

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

    @property
    def gap(self) -> str:
        """The text between two sentences of a paragraph."""
        return " " if self.language == "en" else ""


def draw(text: str, n: int) -> int:
    """A number below n that follows from the text alone."""
    return crc32(text.encode()) % n


@cache
def load_handbook(language: Language) -> Handbook:
    """One half of the handbook."""
    data = read_yaml(f"{language}.yaml")
    types = {name: _read_type(name, language, entry) for name, entry in data["types"].items()}
    entities = {
        key: _read_entity(key, types[name], dict(entry))
        for name, entries in data["entities"].items()
        for key, entry in entries.items()
    }
    words = {name: data[name] for name in ("steps", "how", "more", "greater")}
    return Handbook(language=language, types=types, entities=entities, documents=data["documents"], **words)


def read_yaml(name: str) -> Any:  # noqa: ANN401
    """A data file of the handbook."""
    return yaml.load((FOLDER / name).read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _read_type(name: str, language: Language, data: Mapping[str, Any]) -> Type:
    attributes = {
        key: Attribute(name=key, **{**entry, "say": tuple(entry["say"]), "ask": tuple(entry["ask"])})
        for key, entry in data["attributes"].items()
    }
    return Type(name=name, language=language, **{**data, "attributes": attributes})


def _read_entity(key: str, own: Type, data: dict[str, Any]) -> Entity:
    name, since, steps = data.pop("name"), data.pop("since", 1), tuple(data.pop("steps", ()))
    unknown = data.keys() - own.attributes.keys()
    assert not unknown, f"{key} has values for {sorted(unknown)}, which no {own.name} has"
    return Entity(key=key, name=name, type=own, values=data, steps=steps, since=since)


@cache
def find_entity(key: str) -> Entity:
    """The entity of a key, or of a fact's id (`alder.draught`)."""
    key = key.partition(".")[0]
    return next(book.entities[key] for book in map(load_handbook, LANGUAGES) if key in book.entities)


def find_attribute(fact: str) -> Attribute:
    """The attribute of a fact's id."""
    return find_entity(fact).type.attributes[fact.partition(".")[2]]


def list_entities() -> Iterator[Entity]:
    """All entities, the English ones first."""
    for language in LANGUAGES:
        yield from load_handbook(language).entities.values()
