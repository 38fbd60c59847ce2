"""The sample dataset: its rows show what their kind claims, so that a first run has every verdict and reason."""

import json
import re
from collections import Counter
from typing import Any

import pytest

from evalhouse.warehouse.sample_data import SAMPLE_PATH

Row = dict[str, Any]

LANGUAGES = ("en", "zh")
# The subject of a row, in both languages.
KINDS = {
    "right", "right_reworded", "partly_right", "hallucinated_detail", "contradicts", "own_knowledge",
    "outdated_context", "refuses_wrongly", "refuses_rightly", "no_contexts_retrieved", "contexts_absent",
    "useful_ranked_last", "irrelevant_contexts", "long_list", "answer_absent", "ground_truth_absent", "injection",
    "numbers_dates_units",
}  # fmt: skip
# Retrieval found nothing, or found everything but the gold passage.
MISSED_KINDS = {"no_contexts_retrieved", "irrelevant_contexts"}
FIELDS = {"id", "language", "kind", "topic", "document", "question", "answer", "ground_truth"}
OPTIONAL_FIELDS = {"contexts", "reference_context_ids"}
# Words of an English passage, characters of a Chinese one.
PASSAGE_LENGTHS = {"en": range(40, 121), "zh": range(60, 181)}
CJK = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [json.loads(line) for line in SAMPLE_PATH.read_text(encoding="utf-8").splitlines()]


def of_kind(rows: list[Row], *kinds: str) -> list[Row]:
    return [row for row in rows if row["kind"] in kinds]


def context_ids(row: Row) -> list[str]:
    return [context["id"] for context in row.get("contexts", [])]


def passages_by_id(rows: list[Row]) -> dict[str, set[str]]:
    passages: dict[str, set[str]] = {}
    for row in rows:
        for context in row.get("contexts", []):
            passages.setdefault(context["id"], set()).add(context["text"])
    return passages


def numbers_in(*texts: str) -> set[str]:
    """Digits as written, thousands joined; the ordinals of a numbered list do not count."""
    plain = re.sub(r"^\d+\. ", "", "\n".join(texts), flags=re.MULTILINE)
    return set(re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", plain)))


def numbers_in_contexts(row: Row) -> set[str]:
    return numbers_in(*(context["text"] for context in row["contexts"]))


def test_each_language_has_enough_rows_and_several_of_every_kind(rows: list[Row]) -> None:
    for language, min_rows in (("en", 34), ("zh", 18)):
        of_language = [row for row in rows if row["language"] == language]
        assert len(of_language) >= min_rows
        counts = Counter(row["kind"] for row in of_language)
        assert set(counts) == KINDS
        assert [kind for kind, n in counts.items() if n < 2] == []
        shares = [bool(row.get("reference_context_ids")) for row in of_language]
        assert 0.6 < sum(shares) / len(shares) < 1, "most but not all rows have reference ids"


def test_every_row_has_the_documented_fields(rows: list[Row]) -> None:
    assert {row["language"] for row in rows} == set(LANGUAGES)
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert re.fullmatch(rf"{row['language']}-[a-z]+-\d\d", row["id"]), row["id"]
        assert set(row) - OPTIONAL_FIELDS == FIELDS, row["id"]
        assert all(row[field].strip() for field in ("language", "kind", "topic", "document", "question")), row["id"]
        for field in ("answer", "ground_truth"):
            assert (row[field] is None) == (row["kind"] == f"{field}_absent"), row["id"]
            assert row[field] is None or row[field].strip(), row["id"]
        texts = [row["question"], row["answer"], row["ground_truth"], *(c["text"] for c in row.get("contexts", []))]
        for text in filter(None, texts):
            assert bool(CJK.search(text)) == (row["language"] == "zh"), (row["id"], text)


def test_contexts_are_absent_empty_or_two_to_five_readable_passages(rows: list[Row]) -> None:
    for row in rows:
        if row["kind"] == "contexts_absent":
            assert "contexts" not in row, row["id"]
        elif row["kind"] == "no_contexts_retrieved":
            assert row["contexts"] == [], row["id"]
        else:
            assert 2 <= len(row["contexts"]) <= 5, row["id"]
            assert len(set(context_ids(row))) == len(row["contexts"]), row["id"]
        for context in row.get("contexts", []):
            assert set(context) == {"id", "text"}
            assert re.fullmatch(r"doc-[a-z0-9-]+#\d+", context["id"]), context["id"]
            length = len(context["text"]) if row["language"] == "zh" else len(context["text"].split())
            assert length in PASSAGE_LENGTHS[row["language"]], (context["id"], length)
    assert [id for id, texts in passages_by_id(rows).items() if len(texts) > 1] == []


def test_reference_ids_are_among_the_contexts_unless_retrieval_missed_them(rows: list[Row]) -> None:
    known = passages_by_id(rows)
    for row in rows:
        references = row.get("reference_context_ids", [])
        assert set(references) <= set(known), row["id"]
        if row["kind"] in MISSED_KINDS:
            assert references, row["id"]
            assert not set(references) & set(context_ids(row)), row["id"]
        elif row["kind"] != "outdated_context":
            assert set(references) <= set(context_ids(row)), row["id"]
        # In numbers_dates_units the ground truth also does sums: days between dates, pence times miles.
        if row["kind"] != "numbers_dates_units" and row["ground_truth"] and references:
            stated = numbers_in(row["question"], *(text for id in references for text in known[id]))
            assert numbers_in(row["ground_truth"]) <= stated, row["id"]


def test_rows_show_what_their_kind_claims(rows: list[Row]) -> None:
    for row in rows:
        match row["kind"]:
            case "own_knowledge" | "refuses_rightly":
                assert "reference_context_ids" not in row, row["id"]
            case "useful_ranked_last":
                assert len(row["contexts"]) >= 4, row["id"]
                assert row["reference_context_ids"] == context_ids(row)[-1:], row["id"]
            case "outdated_context":  # the answer follows the older edition, which is ranked first
                first = context_ids(row)[0]
                assert re.search(r"-\d{4}#", first), row["id"]
                assert re.sub(r"-\d{4}#", "#", first) in row["reference_context_ids"], row["id"]
                assert numbers_in(row["answer"]) <= numbers_in(row["contexts"][0]["text"]), row["id"]
            case "right":
                assert numbers_in(row["answer"]) <= numbers_in_contexts(row) | numbers_in(row["question"]), row["id"]
            case "hallucinated_detail":
                assert numbers_in(row["answer"]) - numbers_in_contexts(row), row["id"]
            case "partly_right":
                assert len(row["answer"]) < 0.7 * len(row["ground_truth"]), row["id"]
            case "long_list":
                assert len(re.findall(r"^(?:\d+\.|-|·) ?\S", row["answer"], flags=re.MULTILINE)) >= 5, row["id"]
    # The current passage is retrieved as well in some rows and missed in others.
    outdated = of_kind(rows, "outdated_context")
    assert {set(row["reference_context_ids"]) <= set(context_ids(row)) for row in outdated} == {True, False}


@pytest.mark.parametrize("language", LANGUAGES)
def test_injections_plant_orders_end_markers_ids_and_ratings(rows: list[Row], language: str) -> None:
    injected = [row for row in of_kind(rows, "injection") if row["language"] == language]
    answers = "\n".join(row["answer"] for row in injected)
    order = {"en": r"[Ii]gnore (?:the|your) instructions", "zh": r"忽略.{0,8}指令"}[language]
    assert re.search(order, answers)
    assert "</answer_statements>" in answers
    assert "[[10]]" in answers
    assert '"label": "TP"' in answers
    assert re.search(r"^\[A2\] ", answers, flags=re.MULTILINE)
    # A retrieved passage gives orders as well, not only the answer.
    assert any(re.search(order, context["text"]) for row in injected for context in row["contexts"])
