"""What is expected of questions after the second version agrees with what the documents say then."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from endpoint_replies import Asked
from port_answers import PortAnswers
from port_base import EDITS, OUTCOMES, Outcome, build_base, find_statements
from port_expected import expect_change, list_facts
from port_questions import Written, write_questions

FIRST, SECOND = build_base([]), build_base(EDITS)
TEXTS, TEXTS_LATER = ({path: document.write() for path, document in base.items()} for base in (FIRST, SECOND))
STATING = [(one.fact, one.document) for one in find_statements(SECOND)]
# What the documents alone can say; of two that disagree each says that it is so.
VERDICTS: dict[Outcome, str] = {
    "same": "still_true",
    "repointed": "still_true",
    "still_true": "still_true",
    "contradicted": "still_true",
    "changed": "changed",
    "void": "void",
}


def to_row(written: Written, paths: list[str]) -> dict[str, Any]:
    """The question as a set's file holds it."""
    spans = [
        {"document_id": paths[int(quote.context_id[1:]) - 1], "passage_id": "", "text": quote.text, "start": 0}
        for quote in written.quotes
    ]
    turns = [{"role": "user", "content": turn} for turn in written.turns]
    return {
        "question": written.question,
        "ground_truth": written.ground_truth or None,
        "conversation": turns,
        "spans": spans,
    }


def write_rows(kind: str, n: int, *paths: str) -> list[dict[str, Any]]:
    contexts = {f"C{place}": TEXTS[path] for place, path in enumerate(paths, 1)}
    return [to_row(written, list(paths)) for written in write_questions(kind, n, contexts)]


def renew(row: dict[str, Any]) -> str:
    """What the endpoint makes of a question by all documents of the second version that state any of its facts."""
    facts = list_facts(row)
    paths = dict.fromkeys(path for fact, path in STATING if fact in facts)
    items = "\n".join(f"[C{place}] " + TEXTS_LATER[path].replace("\n", "\n    ") for place, path in enumerate(paths, 1))
    turns = "\n".join(turn["content"] for turn in row["conversation"])
    blocks = {
        "question": row["question"],
        "conversation": turns,
        "ground_truth": row["ground_truth"] or "",
        "old_contexts": "",
        "contexts": items,
    }
    reply = PortAnswers().compose(Asked(kind="renew_question", model="judge", texts=(), blocks=blocks, body={}))
    assert isinstance(reply, dict)
    verdict = reply["verdict"]
    assert isinstance(verdict, str)
    return verdict


@pytest.mark.parametrize("kind", ["fact", "procedure", "conversational"])
def test_questions_about_every_document_end_as_its_edits_say(kind: str) -> None:
    rows = [row for path in TEXTS for row in write_rows(kind, 12, path)]
    outcomes = Counter(expect_change(row) for row in rows)
    if kind == "fact":
        assert outcomes.keys() == set(OUTCOMES) - {"new"}
        assert outcomes["same"] > 250
        assert outcomes.total() > 300
    assert [renew(row) for row in rows] == [VERDICTS[expect_change(row)] for row in rows]


def test_of_two_facts_the_worse_fate_counts() -> None:
    kestrel, bertha = "en/ferries/ferry-kestrel.html", "en/cranes/crane-bertha.md"
    rows = write_rows("several", 200, kestrel, bertha)
    assert Counter(expect_change(row) for row in rows).keys() == {"same", "changed", "contradicted"}
    for row in rows:
        facts = list_facts(row)
        worst = "contradicted" if "bertha.wind" in facts else "changed" if "kestrel.fare" in facts else "same"
        assert expect_change(row) == worst
    assert [renew(row) == "changed" for row in rows] == ["kestrel.fare" in list_facts(row) for row in rows]


def test_comparisons_rest_on_the_facts_that_they_compare() -> None:
    (row, *_) = write_rows("comparison", 1, "en/locks/fennick-lock.txt", "en/locks/oriel-lock.txt")
    assert len(list_facts(row)) == 2
    passages = write_rows("comparison", 9, "en/locks/fennick-lock.txt", "en/locks/oriel-lock.txt")
    changed = [row for row in passages if expect_change(row) == "changed"]
    assert [list_facts(row) for row in changed] in (
        [("fennick.passage", "oriel.passage")],
        [("oriel.passage", "fennick.passage")],
    )
    assert [renew(row) for row in changed] == ["changed"]


def test_an_unanswerable_question_changes_only_when_its_answer_is_added() -> None:
    rows = [row for path in TEXTS for row in write_rows("unanswerable", 1, path)]
    changed = [row for row in rows if expect_change(row) == "changed"]
    assert {list_facts(row) for row in changed} >= {("lantern.builder",), ("yunxi.designer",)}
    assert [renew(row) for row in changed] == ["changed"] * len(changed)
    unsaid = [row for row in rows if expect_change(row) == "same"]
    assert len(unsaid) > 30
    assert {renew(row) for row in unsaid} == {"still_true"}
