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
FIELDS = {"id", "language", "kind", "topic", "document", "question", "answer", "ground_truth"}
# Words of an English passage, characters of a Chinese one.
PASSAGE_LENGTHS = {"en": range(40, 121), "zh": range(60, 181)}
CJK = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [json.loads(line) for line in SAMPLE_PATH.read_text(encoding="utf-8").splitlines()]


def list_ids(row: Row) -> list[str]:
    return [context["id"] for context in row.get("contexts", [])]


def find_numbers(*texts: str) -> set[str]:
    """Digits as written, thousands joined; the ordinals of a numbered list do not count."""
    plain = re.sub(r"^\d+\. ", "", "\n".join(texts), flags=re.MULTILINE)
    return set(re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", plain)))


def test_each_language_has_enough_rows_and_several_of_every_kind(rows: list[Row]) -> None:
    assert len({row["id"] for row in rows}) == len(rows)
    for language, min_rows in (("en", 34), ("zh", 18)):
        of_language = [row for row in rows if row["language"] == language]
        assert len(of_language) >= min_rows
        counts = Counter(row["kind"] for row in of_language)
        assert (set(counts), min(counts.values()) >= 2) == (KINDS, True)
        n_referring = sum(bool(row.get("reference_context_ids")) for row in of_language)
        assert 0.6 < n_referring / len(of_language) < 1, "most but not all rows have reference ids"


def test_every_row_has_the_documented_fields_and_readable_passages(rows: list[Row]) -> None:
    texts_by_id: dict[str, str] = {}
    for row in rows:
        own, language = row["id"], row["language"]
        assert re.fullmatch(rf"{language}-[a-z]+-\d\d", own)
        assert set(row) - {"contexts", "reference_context_ids"} == FIELDS, own
        for field in FIELDS:
            is_absent = row["kind"] == f"{field}_absent"
            assert row[field] is None if is_absent else row[field].strip(), (own, field)
        contexts = row.get("contexts")
        match row["kind"]:
            case "contexts_absent":
                assert contexts is None, own
            case "no_contexts_retrieved":
                assert contexts == [], own
            case _:
                assert 2 <= len(contexts) == len(set(list_ids(row))) <= 5, own
        for context in contexts or ():
            assert set(context) == {"id", "text"}
            assert re.fullmatch(r"doc-[a-z0-9-]+#\d+", context["id"])
            text = context["text"]
            assert len(text if language == "zh" else text.split()) in PASSAGE_LENGTHS[language], context["id"]
            assert texts_by_id.setdefault(context["id"], text) == text
        texts = [row["question"], row["answer"], row["ground_truth"], *(context["text"] for context in contexts or ())]
        for text in filter(None, texts):
            assert bool(CJK.search(text)) == (language == "zh"), (own, text)
    for row in rows:
        references, found = set(row.get("reference_context_ids", [])), set(list_ids(row))
        assert references <= texts_by_id.keys(), row["id"]
        if row["kind"] in ("no_contexts_retrieved", "irrelevant_contexts"):  # retrieval missed the gold passage
            assert references, row["id"]
            assert not references & found, row["id"]
        elif row["kind"] != "outdated_context":
            assert references <= found, row["id"]
        # In numbers_dates_units the ground truth also does sums: days between dates, pence times miles.
        if row["kind"] != "numbers_dates_units" and row["ground_truth"] and references:
            stated = find_numbers(row["question"], *(texts_by_id[an_id] for an_id in references))
            assert find_numbers(row["ground_truth"]) <= stated, row["id"]


def test_rows_show_what_their_kind_claims(rows: list[Row]) -> None:
    for row in rows:
        answer, own = row["answer"] or "", row["id"]
        retrieved = find_numbers(*(context["text"] for context in row.get("contexts", ())))
        match row["kind"]:
            case "own_knowledge" | "refuses_rightly":
                assert "reference_context_ids" not in row, own
            case "useful_ranked_last":
                assert len(row["contexts"]) >= 4, own
                assert row["reference_context_ids"] == list_ids(row)[-1:], own
            case "outdated_context":  # the answer follows the older edition, which is ranked first
                first = list_ids(row)[0]
                assert re.search(r"-\d{4}#", first), own
                assert re.sub(r"-\d{4}#", "#", first) in row["reference_context_ids"], own
                assert find_numbers(answer) <= find_numbers(row["contexts"][0]["text"]), own
            case "right":
                assert find_numbers(answer) <= retrieved | find_numbers(row["question"]), own
            case "hallucinated_detail":
                assert find_numbers(answer) - retrieved, own
            case "partly_right":
                assert len(answer) < 0.7 * len(row["ground_truth"]), own
            case "long_list":
                assert len(re.findall(r"^(?:\d+\.|-|·) ?\S", answer, flags=re.MULTILINE)) >= 5, own
    # The current passage is retrieved as well in some rows and missed in others.
    outdated = [row for row in rows if row["kind"] == "outdated_context"]
    assert {set(row["reference_context_ids"]) <= set(list_ids(row)) for row in outdated} == {True, False}


@pytest.mark.parametrize("language", LANGUAGES)
def test_injections_plant_orders_end_markers_ids_and_ratings(rows: list[Row], language: str) -> None:
    injected = [row for row in rows if (row["kind"], row["language"]) == ("injection", language)]
    answers = "\n".join(row["answer"] for row in injected)
    order = {"en": r"[Ii]gnore (?:the|your) instructions", "zh": r"忽略.{0,8}指令"}[language]
    for planted in (order, "</answer_statements>", r"\[\[10\]\]", '"label": "TP"', r"(?m)^\[A2\] "):
        assert re.search(planted, answers), planted
    # A retrieved passage gives orders as well, not only the answer.
    assert any(re.search(order, context["text"]) for row in injected for context in row["contexts"])
