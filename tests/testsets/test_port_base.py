"""The knowledge base that test sets are tested with: two versions, and forty edits and nothing else between them."""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from port_base import (
    EDITS,
    Edit,
    Statement,
    build_base,
    expect_outcome,
    find_statements,
    render_base,
    write_base,
)
from port_handbook import LANGUAGES, find_attribute, find_entity, list_entities, load_handbook
from port_reading import find_claims, find_steps

from evalhouse.tasks.testsets.documents import load_documents

FIRST, SECOND = render_base(version=1), render_base(version=2)
TOUCHES = {"white_space", "order"}


def name_edit(edit: Edit) -> str:
    return f"{edit.kind} {edit.document}"


def state(edits: list[Edit]) -> list[Statement]:
    return find_statements(build_base(edits))


STATED, STATED_LATER = state([]), state(list(EDITS))


def count_words(path: str, text: str) -> int:
    return len(text.split()) if path.startswith("en/") else len(re.findall(r"[一-鿿]", text))


def test_sixty_documents_half_of_them_chinese(tmp_path: Path) -> None:
    for version, texts, md in ((1, FIRST, 38), (2, SECOND, 39)):
        folder = tmp_path / str(version)
        paths = write_base(folder, version=1 if version == 1 else 2)
        assert {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths} == texts
        assert Counter(path[:2] for path in texts) == {"en": 30, "zh": 30}
        assert Counter(path.rpartition(".")[2] for path in texts) == {"md": md, "txt": 12, "html": 48 - md}


@pytest.mark.parametrize("texts", [FIRST, SECOND], ids=["first", "second"])
def test_documents_are_a_page_long_and_say_what_is_no_fact_too(texts: dict[str, str]) -> None:
    lengths = [count_words(path, text) for path, text in texts.items()]
    assert min(lengths) >= 150
    assert max(lengths) <= 500
    base = build_base(EDITS if texts is SECOND else [])
    plain = [sum(sentence.fact is None for sentence in document.list_sentences()) for document in base.values()]
    assert min(plain) >= 5


@pytest.mark.parametrize("language", LANGUAGES)
def test_pages_of_one_type_share_most_of_their_words(language: str) -> None:
    pages = [text for path, text in FIRST.items() if re.match(f"{language}/(locks|船闸)/", path)]
    likeness = [
        SequenceMatcher(None, one, other, autojunk=False).ratio()
        for at, one in enumerate(pages)
        for other in pages[at + 1 :]
    ]
    assert len(likeness) == 10
    assert min(likeness) > 0.5
    assert max(likeness) < 1


def test_forty_edits_twenty_a_language_of_every_kind() -> None:
    assert len(EDITS) == 40
    kinds = Counter((edit.kind, edit.language) for edit in EDITS)
    assert len(kinds) == 26
    assert all(kinds[kind, "en"] == kinds[kind, "zh"] for kind, _ in kinds)
    assert len(set(EDITS)) == 40


def test_no_two_edits_touch_the_same_fact_of_the_same_document() -> None:
    places = Counter((fact, edit.document) for edit in EDITS for fact in edit.facts)
    assert set(places.values()) == {1}


def test_only_the_documents_that_edits_name_are_different() -> None:
    named = frozenset[str]().union(*(edit.changed_documents for edit in EDITS))
    paths = FIRST.keys() | SECOND.keys()
    assert {path for path in paths if FIRST.get(path) != SECOND.get(path)} == named
    assert len(FIRST.keys() - named) >= 20


@pytest.mark.parametrize("edit", EDITS, ids=name_edit)
def test_each_edit_alone_changes_its_documents_and_its_facts_only(edit: Edit) -> None:
    base = build_base([edit])
    texts = {path: document.write() for path, document in base.items()}
    paths = FIRST.keys() | texts.keys()
    assert {path for path in paths if FIRST.get(path) != texts.get(path)} == edit.changed_documents
    before, after = set(STATED), set(find_statements(base))
    assert {one.fact for one in before ^ after} == (set() if edit.kind in TOUCHES else set(edit.facts))


@pytest.mark.parametrize("edit", EDITS, ids=name_edit)
def test_what_an_edit_says_of_its_facts_is_so_in_the_second_version(edit: Edit) -> None:
    for fact in edit.facts:
        before = {one.document: one for one in STATED if one.fact == fact}
        after = {one.document: one for one in STATED_LATER if one.fact == fact}
        values = {one.value for one in after.values()}
        match edit.outcome:
            case "same":
                assert after[edit.document].text == before[edit.document].text
            case "repointed":
                assert before[edit.document].value in values
                assert edit.kind == "moved_within" or edit.document not in after
            case "still_true":
                assert after[edit.document].value == before[edit.document].value
                assert after[edit.document].text != before[edit.document].text
            case "changed":
                assert values == {edit.value}
                assert before[edit.document].value != edit.value
            case "void":
                assert not after
            case "contradicted":
                assert values == {before[edit.document].value, edit.value}
                assert len(values) == 2
                assert after[edit.document].text == before[edit.document].text
            case "new":
                assert not before
                assert after


def test_touches_leave_every_word_and_every_sentence_in_place() -> None:
    for edit in (edit for edit in EDITS if edit.kind in TOUCHES):
        before, after = FIRST[edit.document], SECOND[edit.document]
        assert before != after
        assert sorted(before.split()) == sorted(after.split())
        assert (before.split() == after.split()) == (edit.kind == "white_space")


def test_what_a_question_should_become_follows_from_its_facts_and_their_places() -> None:
    alder, salter = "en/quays/alder-quay.md", "en/quays/salter-quay.md"
    assert expect_outcome(["alder.draught"], [alder]) == "same"
    assert expect_outcome(["alder.warden"], [alder]) == "repointed"
    assert expect_outcome(["alder.warden", "tug.price"], [alder, "en/overview/charges.md"]) == "changed"
    assert expect_outcome(["salter.draught"], [salter]) == "repointed"
    assert expect_outcome(["salter.draught"], ["en/overview/quays-at-a-glance.md"]) == "same"
    assert expect_outcome(["lantern.builder"], ["en/quays/lantern-quay.md"]) == "same", "it was not stated before"


def test_a_few_facts_stand_twice_and_one_of_each_language_says_otherwise() -> None:
    said: dict[str, set[str]] = {}
    places: Counter[str] = Counter()
    for one in STATED:
        if not one.fact.endswith(".steps"):
            said.setdefault(one.fact, set()).add(one.value)
            places[one.fact] += 1
    assert {fact for fact, values in said.items() if len(values) > 1} == {"pewter.closing", "yinhe.closing"}
    assert sum(n == 2 for n in places.values()) == 26
    assert len(places) > 300


def test_something_can_be_asked_of_every_page_that_no_document_says() -> None:
    stated = {one.fact for one in STATED}
    for entity in list_entities():
        if entity.type.path:
            assert {f"{entity.key}.{name}" for name in entity.type.attributes} - stated


def test_wordings_of_one_attribute_differ_and_name_the_entity() -> None:
    for language in LANGUAGES:
        for own in load_handbook(language).types.values():
            for attribute in own.attributes.values():
                wordings = [*attribute.say, *attribute.ask]
                assert len(set(wordings)) == len(wordings)
                assert all("{e}" in wording for wording in wordings)


def test_a_reworded_sentence_has_a_wording_that_the_first_version_does_not_use() -> None:
    for edit in (edit for edit in EDITS if edit.kind == "reworded"):
        attribute = find_attribute(edit.facts[0])
        assert len(attribute.say) == 3
        alike = [one for one in STATED if one.fact.endswith(f".{attribute.name}")]
        assert len(alike) > 1
        assert not any(one.text == attribute.state(find_entity(one.fact), one.value, -1) for one in alike)


def find_passages(folder: Path, *, later: bool) -> dict[tuple[str, str], str]:
    """The passage in which each fact stands, by fact and document, as the base is read by evalhouse."""
    write_base(folder, version=2 if later else 1)
    passages = [passage for document in load_documents(folder) for passage in document.passages]
    assert all(passage.document_id.startswith(passage.language) for passage in passages)
    return {
        (one.fact, passage.document_id): passage.passage_id
        for passage in passages
        for one in [*find_claims(passage.text), *find_steps(passage.text)]
    }


def test_every_fact_is_read_from_a_passage_and_stays_there_unless_an_edit_moves_it(tmp_path: Path) -> None:
    first, second = find_passages(tmp_path / "1", later=False), find_passages(tmp_path / "2", later=True)
    assert first.keys() == {(one.fact, one.document) for one in STATED}
    assert second.keys() == {(one.fact, one.document) for one in STATED_LATER}
    moved = {place for place in first.keys() & second.keys() if first[place] != second[place]}
    assert moved == {(edit.facts[0], edit.document) for edit in EDITS if edit.kind == "moved_within"}
