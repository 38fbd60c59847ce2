"""A knowledge base of sixty documents in two versions with forty known edits between them, made for test sets.

`write_base(folder, version=1)` writes it. Half of it is English, half Chinese; the pages of one type of entity share
their wording and differ in their facts. `EDITS` says what the second version changes, and `Edit.outcome` what is to
become of questions about it. `find_statements` says which document states which fact.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from port_handbook import (
    LANGUAGES,
    Entity,
    Handbook,
    Language,
    draw,
    find_attribute,
    find_claims,
    find_entity,
    load_handbook,
    read_question,
    read_yaml,
)


@dataclass(kw_only=True)
class Sentence:
    """A sentence, or a cell of a table; `fact` is the id of what it states, or None where it states none."""

    text: str
    fact: str | None = None
    value: str = ""


@dataclass(kw_only=True)
class Part:
    """A paragraph of sentences, or a list or table of them; `lead` is the sentence before numbered steps.

    A table has its header in `header` and `columns` cells a row.
    """

    kind: Literal["prose", "bullets", "steps", "table"] = "prose"
    sentences: list[Sentence] = field(default_factory=list)
    lead: str = ""
    header: tuple[str, ...] = ()

    @property
    def rows(self) -> Iterator[list[str]]:
        """The cells of a table, row by row."""
        width = len(self.header)
        for start in range(0, len(self.sentences), width):
            yield [sentence.text for sentence in self.sentences[start : start + width]]

    def quote(self, position: int) -> str:
        """The words of the file that hold a sentence: in a table its row."""
        if self.kind != "table":
            return self.sentences[position].text
        return _write_row(list(self.rows)[position // len(self.header)])


@dataclass(kw_only=True)
class Section:
    """A heading and the parts below it."""

    heading: str
    parts: list[Part]


@dataclass(kw_only=True)
class Document:
    """One file of the knowledge base; `loose` writes the same words with other white space."""

    path: str
    language: Language
    title: str
    sections: list[Section]
    loose: bool = False

    def list_sentences(self) -> Iterator[Sentence]:
        """Every sentence and cell, in order."""
        for section in self.sections:
            for part in section.parts:
                yield from part.sentences

    def find_section(self, heading: str) -> Section:
        """The section of that heading."""
        return next(section for section in self.sections if section.heading == heading)

    def write(self) -> str:
        """The text of the file."""
        blocks = [f"# {self.title}"]
        for section in self.sections:
            blocks.append(f"## {section.heading}")
            blocks += ["\n".join(_write_lines(part, self.language)) for part in section.parts]
        text = "\n\n".join(blocks) + "\n"
        return text.replace("\n\n", "  \n\n\n") + "\n\n" if self.loose else text


def _write_lines(part: Part, language: Language) -> Iterator[str]:
    match part.kind:
        case "prose":
            yield (" " if language == "en" else "").join(sentence.text for sentence in part.sentences)
        case "bullets":
            yield from (f"- {sentence.text}" for sentence in part.sentences)
        case "steps":
            yield from (part.lead, "")
            yield from (f"{number}. {sentence.text}" for number, sentence in enumerate(part.sentences, 1))
        case "table":
            yield from (_write_row(part.header), _write_row(["---"] * len(part.header)))
            yield from map(_write_row, part.rows)


def _write_row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


Outcome = Literal["same", "repointed", "still_true", "changed", "contradicted", "void", "new"]
"""The expected result of `refresh` for a question: nothing; point it to the new place; judge it and keep it; propose
another ground truth; report two documents that disagree; drop it. `new` is of facts that had no question before."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
EditKind = Literal[
    "moved_within", "moved_to", "renamed", "reworded", "number_changed", "deleted_sentence", "deleted_document",
    "added_sentence", "added_section", "added_document", "contradicted", "white_space", "order",
]  # fmt: skip
_OUTCOMES: Mapping[EditKind, Outcome] = {
    "moved_within": "repointed", "moved_to": "repointed", "renamed": "repointed", "reworded": "still_true",
    "number_changed": "changed", "deleted_sentence": "void", "deleted_document": "void", "added_sentence": "new",
    "added_section": "new", "added_document": "new", "contradicted": "contradicted", "white_space": "same",
    "order": "same",
}  # fmt: skip
Base = dict[str, Document]


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One difference between the versions. `facts` are the facts it touches, as `document` states them in the version
    that has it; `to` is the document that gets the moved, reworded or renamed text."""

    kind: EditKind
    document: str
    facts: tuple[str, ...]
    outcome: Outcome
    to: str = ""
    section: str = ""
    value: str = ""
    text: str = ""
    entity: str = ""

    @property
    def language(self) -> Language:
        return "en" if self.document.startswith("en/") else "zh"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A document states a fact; `text` is its sentence, or the row where a table states it."""

    fact: str
    value: str
    document: str
    text: str


def write_base(folder: Path, *, version: Literal[1, 2]) -> None:
    """Write all documents of a version into a folder, which need not exist; no file in it is removed."""
    for path, text in render_base(version=version).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def render_base(*, version: Literal[1, 2]) -> dict[str, str]:
    """The texts of all documents of a version by path."""
    return {path: document.write() for path, document in build_base(EDITS if version == 2 else ()).items()}


def build_base(edits: Iterable[Edit]) -> Base:
    """The first version with these edits applied, in their order."""
    base = pickle.loads(_pack_first())
    for edit in edits:
        _apply(base, edit)
    return base


@cache
def _pack_first() -> bytes:
    """Build the first version; a copy is unpacked in a tenth of the time that `copy.deepcopy` takes."""
    base: Base = {}
    for book in map(load_handbook, LANGUAGES):
        for path, data in book.documents.items():
            base[path] = _build_document(book, path, data["title"], data["sections"])
        for entity in book.entities.values():
            if entity.type.path and entity.since == 1:
                page = _build_page(book, entity)
                base[page.path] = page
    return pickle.dumps(base)


def find_statements(base: Mapping[str, Document]) -> list[Statement]:
    """Return the statements of all documents, in order."""
    return [
        Statement(fact=sentence.fact, value=sentence.value, document=path, text=part.quote(position))
        for path, document in base.items()
        for section in document.sections
        for part in section.parts
        for position, sentence in enumerate(part.sentences)
        if sentence.fact
    ]


def _build_page(book: Handbook, entity: Entity) -> Document:
    path = entity.type.path.format(slug=entity.name.lower().replace(" ", "-"))
    return _build_document(book, path, entity.name, entity.type.page, entity)


def _build_document(
    book: Handbook, path: str, title: str, sections: Mapping[str, Sequence[Any]], entity: Entity | None = None
) -> Document:
    parts = {heading: [_build_part(book, entry, entity) for entry in entries] for heading, entries in sections.items()}
    built = [Section(heading=heading, parts=listed) for heading, listed in parts.items()]
    return Document(path=path, language=book.language, title=title, sections=built)


def _build_part(book: Handbook, entry: Any, entity: Entity | None) -> Part:  # noqa: ANN401
    if isinstance(entry, list):
        sentences = (_build_sentence(item, entity) for item in entry)
        return Part(sentences=[sentence for sentence in sentences if sentence])
    if "bullets" in entry:
        return Part(kind="bullets", sentences=[Sentence(text=text) for text in entry["bullets"]])
    if "steps" in entry:
        doing = entity or book.entities[entry["steps"]]
        lead = book.steps.format(do=doing.type.do.format(e=doing.name))
        steps = [Sentence(text=text, fact=f"{doing.key}.steps", value=text) for text in doing.steps]
        return Part(kind="steps", lead=lead, sentences=steps)
    data = entry["table"]
    own = book.types[data["type"]]
    cells = []
    for listed in (one for one in book.entities.values() if one.type is own and one.since == 1):
        cells.append(Sentence(text=listed.name))
        for column in data["columns"]:
            value = listed.values[column]
            cells.append(Sentence(text=value, fact=f"{listed.key}.{column}", value=value))
    head = "Name" if book.language == "en" else "名称"
    labels = (own.attributes[column].label for column in data["columns"])
    return Part(kind="table", sentences=cells, header=(head, *labels))


def _build_sentence(item: Any, entity: Entity | None) -> Sentence | None:  # noqa: ANN401
    if isinstance(item, dict):
        return state_fact(item["fact"], item["value"])
    if not item.startswith("$"):
        wordings = item.split("||")
        text = wordings[draw(f"{entity.key}{item}", len(wordings)) if entity else 0].strip()
        return Sentence(text=text)
    fact = item[1:] if "." in item else f"{entity.key if entity else ''}.{item[1:]}"
    value = find_entity(fact).values.get(fact.partition(".")[2])
    return state_fact(fact, value) if value is not None else None


def state_fact(fact: str, value: str, wording: int | None = None) -> Sentence:
    """A sentence that states a fact, in the first version's wording unless another one is asked for."""
    attribute, entity = find_attribute(fact), find_entity(fact)
    wording = attribute.pick_wording(entity) if wording is None else wording
    return Sentence(text=attribute.state(entity, value, wording), fact=fact, value=value)


def _take(base: Base, edit: Edit) -> Sentence:
    """The sentence that states the edit's fact, taken out of its document."""
    for section in base[edit.document].sections:
        for part in section.parts:
            for sentence in part.sentences:
                if sentence.fact in edit.facts:
                    part.sentences.remove(sentence)
                    return sentence
    raise LookupError(f"{edit.document} does not state {edit.facts}")


def _put(base: Base, edit: Edit, sentence: Sentence) -> None:
    """Behind the first sentence of the section's first paragraph that has one to stand behind."""
    parts = base[edit.to or edit.document].find_section(edit.section).parts
    part = next(part for part in parts if part.kind == "prose")
    part.sentences.insert(1, sentence)


def _apply(base: Base, edit: Edit) -> None:
    """Change the documents by one edit."""
    match edit.kind:
        case "moved_within" | "moved_to":
            _put(base, edit, _take(base, edit))
        case "renamed":
            document = base.pop(edit.document)
            document.path = edit.to
            base[edit.to] = document
        case "reworded" | "number_changed":
            sentence = next(one for one in base[edit.document].list_sentences() if one.fact in edit.facts)
            if edit.kind == "reworded":
                sentence.text = state_fact(edit.facts[0], sentence.value, -1).text
            else:
                sentence.text = sentence.text.replace(sentence.value, edit.value)
                sentence.value = edit.value
        case "deleted_sentence":
            _take(base, edit)
        case "deleted_document":
            del base[edit.document]
        case "added_sentence" | "contradicted":
            _put(base, edit, state_fact(edit.facts[0], edit.value))
        case "added_section":
            sentences = [Sentence(text=edit.text), state_fact(edit.facts[0], edit.value)]
            base[edit.document].sections.append(Section(heading=edit.section, parts=[Part(sentences=sentences)]))
        case "added_document":
            base[edit.document] = _build_page(load_handbook(edit.language), find_entity(edit.entity))
        case "white_space":
            base[edit.document].loose = True
        case "order":
            parts = base[edit.document].find_section(edit.section).parts
            parts[0], parts[1] = parts[1], parts[0]


def _read_edit(data: dict[str, Any]) -> Edit:
    facts = data.pop("facts", None)
    if facts is None:  # the edit touches all that the document states
        entity = find_entity(data["entity"]) if "entity" in data else None
        document = _build_page(load_handbook(entity.language), entity) if entity else build_base(())[data["document"]]
        facts = dict.fromkeys(sentence.fact for sentence in document.list_sentences() if sentence.fact)
    return Edit(**{"outcome": _OUTCOMES[data["kind"]], **data, "facts": tuple(facts)})


EDITS: tuple[Edit, ...] = tuple(map(_read_edit, read_yaml("edits.yaml")))


def list_facts(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the facts in the ground truth of a question, else the facts it asks for."""
    truth = row["ground_truth"] or ""
    stated = dict.fromkeys(claim.fact for claim in find_claims(truth))
    if stated:
        return tuple(stated)
    turns = "\n".join(turn["content"] for turn in row.get("conversation") or ())
    demand = read_question(row["question"], turns)
    return demand.facts if demand else ()


def expect_change(row: Mapping[str, Any]) -> Outcome:
    """Return the expected result of `refresh` for a question.

    Where a document says now what an unanswerable question asks for, it is `changed`: it has a ground truth.
    """
    facts = list_facts(row)
    if not row["ground_truth"]:
        later = {one.fact for one in find_statements(build_base(EDITS))}
        return "changed" if facts and later.issuperset(facts) else "same"
    places = {(fact, span["document_id"]) for fact in facts for span in row["spans"]}
    outcomes = {edit.outcome for edit in EDITS if any((fact, edit.document) in places for fact in edit.facts)}
    return max(outcomes - {"new"}, key=OUTCOMES.index, default="same")
