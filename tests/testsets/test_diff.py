"""`testset diff`: files and versions on record, laid side by side."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import Finished
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.flows.testsets.versions import write_version
from evalhouse.tasks.testsets.questions import (
    Change,
    GivenQuestion,
    Manifest,
    SetQuestion,
    Span,
    TestSet,
    compare_sets,
    compare_words,
    write_set,
)
from evalhouse.warehouse.store import Warehouse

Ask = Callable[..., Finished]
MANIFEST = Manifest(source="docs", passages={}, asked={}, judge="lexical")


def make_question(number: int, truth: str, *, place: str = "a.md#x") -> SetQuestion:
    return SetQuestion(
        id=f"q{number}",
        question=f"What is number {number}?",
        ground_truth=truth,
        reference_context_ids=("a.md",),
        kind="fact",
        language="en",
        spans=(Span(document_id="a.md", passage_id=place, text=truth, start=0),),
    )


def test_each_question_is_new_gone_changed_repointed_or_the_same(ask: Ask, tmp_path: Path) -> None:
    old = [make_question(1, "It is one."), make_question(2, "It is two."), make_question(3, "It is three.")]
    old.append(make_question(4, "It is four."))
    new = [make_question(1, "It is one."), make_question(2, "It is now 22."), make_question(5, "It is five.")]
    new.insert(2, make_question(3, "It is three.", place="a.md#y"))
    for name, questions in (("old.jsonl", old), ("new.jsonl", new)):
        write_set(tmp_path / name, TestSet(questions=tuple(questions), manifest=MANIFEST))
    url = str(tmp_path / "none.duckdb")
    command = ("testset", "diff", str(tmp_path / "old.jsonl"), str(tmp_path / "new.jsonl"), "--warehouse", url)
    done = ask(*command)
    assert done.status == 0
    assert "1 new, 1 gone, 1 changed, 1 repointed, 1 the same" in done.stdout
    assert "It is [-two.-]{+now 22.+}" in done.stdout
    document = json.loads(ask(*command, "--json").stdout)
    fields = {
        one["id"]: (one["difference"], [field["field"] for field in one["fields"]]) for one in document["questions"]
    }
    assert fields == {
        "q5": ("new", []),
        "q4": ("gone", []),
        "q2": ("changed", ["ground_truth", "spans"]),
        "q3": ("repointed", ["spans"]),
    }
    assert document["after"]["set_hash"] == TestSet(questions=tuple(new), manifest=MANIFEST).set_hash
    assert not Path(url).exists()


def test_versions_on_record_are_named_by_how_their_hash_begins(ask: Ask, tmp_path: Path) -> None:
    url = f"duckdb:///{tmp_path / 'own.duckdb'}"
    warehouse = Warehouse(url)
    warehouse.make_ready()
    path = tmp_path / "q.jsonl"
    first = TestSet(questions=(make_question(1, "It is one."),), manifest=MANIFEST)
    first = write_version(warehouse, "r1", path, first, [Change(id="q1", change="new")])
    questions = (make_question(1, "It is one."), make_question(2, "It is two."))
    second = TestSet(questions=questions, manifest=first.manifest)
    write_version(warehouse, "r2", path, second, [Change(id="q2", change="new")])
    done = ask("testset", "diff", first.set_hash[:6], str(path), "--warehouse", url, "--json")
    document = json.loads(done.stdout)
    assert document["before"] == {"name": first.set_hash, "set_hash": first.set_hash, "n_questions": 1}
    assert document["counts"] == {"new": 1}
    # Without a first name it is the version before.
    assert json.loads(ask("testset", "diff", str(path), "--warehouse", url, "--json").stdout) == document
    refused = ask("testset", "diff", first.set_hash[:6], "--warehouse", url)
    assert refused.status == 2
    assert f"no version before {first.set_hash[:6]} is stored" in refused.stderr
    refused = ask("testset", "diff", "zz", str(path), "--warehouse", url)
    assert refused.status == 2
    assert "no such file, and no version of that hash on record" in refused.stderr
    refused = ask("testset", "diff", "", str(path), "--warehouse", url)
    assert "several versions" in refused.stderr


TEXTS = st.lists(st.sampled_from(["the", "pool", "9:00", "opens.", "游泳池", "开门"]), max_size=8).map(" ".join)


@given(TEXTS, TEXTS)
def test_a_word_diff_holds_both_texts(before: str, after: str) -> None:
    words = compare_words(before, after)
    old = re.sub(r"\{\+[^+]*\+\}", " ", words).replace("[-", " ").replace("-]", " ")
    new = re.sub(r"\[-[^-]*-\]", " ", words).replace("{+", " ").replace("+}", " ")
    for text, original in ((old, before), (new, after)):
        assert "".join(text.split()) == "".join(original.split())


@pytest.mark.parametrize(
    ("names", "text", "start", "differs"),
    [
        (("b", "a"), "It is x.", 0, False),
        (("a", "b"), "It  is\nx.", 70, False),
        (("a",), "It is x.", 0, True),
        (("a", "b"), "It was x.", 0, True),
    ],
    ids=["other order of references", "span moved and wrapped", "fewer references", "other words of the span"],
)
def test_places_differ_as_in_the_hash_of_a_set(names: tuple[str, ...], text: str, start: int, differs: bool) -> None:
    spans = [
        Span(document_id="a", passage_id="a#x", text=one, start=at) for one, at in (("It is x.", 0), (text, start))
    ]
    one = GivenQuestion(id="q", question="?", ground_truth="x", reference_context_ids=("a", "b"), spans=(spans[0],))
    other = replace(one, reference_context_ids=names, spans=(spans[1],))
    assert [found.difference for found in compare_sets([one], [other])] == ["repointed"] * differs
