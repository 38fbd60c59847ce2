"""Made-up sets of labelled rows, one of each kind that `benchmark` knows, about a harbour and its lamps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]

N = 12


def number_rows(letter: str, rows: Rows, lang: str = "en") -> Rows:
    """The rows with ids, each in a separate group unless it names one."""
    return [{"id": f"{letter}{n}", "lang": lang, "group": f"g{n}", **row} for n, row in enumerate(rows, start=1)]


def make_support(n: int = N) -> Rows:
    """Every other statement is in its context; one row is partial, one has a label of another kind."""
    rows: Rows = []
    for place in range(1, n + 1):
        berth = place if place % 2 else place + 100
        rows.append(
            {
                "question": None,
                "statement": f"The ship Corva {place} lies at berth {berth}.",
                "contexts": [
                    {"id": "0", "text": f"Ropes are sold in shop {place + 500}."},
                    {"id": "1", "text": f"The ship Corva {place} lies at berth {place}."},
                ],
                "label": "supported" if place % 2 else "unsupported",
            }
        )
    rows = number_rows("s", rows)
    partly = {"id": "partly", "group": "partly", "statement": "The ship Corva 2 lies at berth 950.", "label": "partial"}
    rows.append({**rows[1], **partly})
    rows.append({**rows[0], "id": "talk", "group": "talk", "label": "generic"})
    return rows


def make_support_zh(n: int = N) -> Rows:
    rows = [
        {
            "statement": f"灯塔高{place + 20}米。" if place % 2 else f"渔村有{place + 300}名木匠。",
            "contexts": [f"这座灯塔高{place + 20}米，位于海湾北端。"],
            "label": "supported" if place % 2 else "unsupported",
        }
        for place in range(1, n + 1)
    ]
    return number_rows("z", rows, "zh")


def make_correctness(n: int = N) -> Rows:
    """Rows by two people, who disagree about the second one, with the replies of two judges."""
    rows: Rows = []
    for place in range(1, n + 1):
        right = bool(place % 2)
        rows.append(
            {
                "group": f"g{(place + 1) // 2}",
                "question": f"Who keeps lamp {place}?",
                "ground_truth": f"Maud Tregarthen keeps lamp {place}.",
                "answer": f"Maud Tregarthen keeps lamp {place}." if right else "No one has heard of such a thing.",
                "label": "correct" if right else "incorrect",
                "annotators": ["Yes", "Yes"] if right else ["No", "No"],
                "llm_judges": {"model-a": "Yes, it is right.", "model-b": "Yes." if right else "No, it is not."},
            }
        )
    rows[1]["annotators"] = ["Yes", "No", "No"]
    rows[2]["llm_judges"]["model-b"] = "I cannot tell."
    return number_rows("c", rows)


def make_relevance(n: int = N) -> Rows:
    rows = [
        {
            "question": f"When does ferry {place} leave for Quillon?",
            "ground_truth": f"Ferry {place} leaves for Quillon at {place + 5} o'clock.",
            "contexts": [
                {"id": "0", "text": "Gulls nest on the pier in spring.", "grade": 0},
                {"id": "1", "text": f"Ferry {place} leaves for Quillon at {place + 5} o'clock.", "grade": 2},
                {"id": "2", "text": "Ropes and nets are sold beside the chapel.", "grade": None},
                {"id": "3", "text": "The chapel has a green door.", "grade": 0},
            ],
            "grade_scale": "2 answers it, 0 does not",
        }
        for place in range(1, n + 1)
    ]
    return number_rows("r", rows)


def make_decomposition(n: int = N) -> Rows:
    rows = [
        {
            "text": f"Lamp {place} is green. It was lit in {1800 + place}.",
            "statements": [f"Lamp {place} is green.", f"It was lit in {1800 + place}."],
            "llm_statements": [f"Lamp {place} is green. It was lit in {1800 + place}."],
            "labels": ["S", "S"],
            "source": "human",
        }
        for place in range(1, n + 1)
    ]
    return number_rows("d", rows)


def make_rubric(n: int = N) -> Rows:
    """The more of an answer is in the context, the better people find it; the last row has no contexts."""
    rows: Rows = []
    for place in range(1, n + 1):
        facts = [f"Lamp {place} is green.", f"Maud keeps lamp {place}.", f"Lamp {place} burns whale oil."]
        good = place % 4
        invented = ["Bananas ripen quickly.", "Trains were late today.", "Violins cost plenty."]
        answer = " ".join(facts[:good] + invented[good:])
        rows.append(
            {
                "question": f"What is known of lamp {place}?",
                "answer": answer,
                "ground_truth": " ".join(facts),
                "contexts": [{"id": "0", "text": " ".join(facts)}] if place < n else [],
                "scores": {"faithfulness": [good + 1.0, good + 1.0], "completeness": [good + 1.0], "tone": [3.0, 2.0]},
                "judges": {"RougeL": good / 4, "other": None},
            }
        )
    return number_rows("m", rows)


def make_pairwise(n: int = N) -> Rows:
    """Left and right in turn; the last pair is of two equal answers."""
    rows: Rows = []
    for place in range(1, n + 1):
        good, bad = f"Maud Tregarthen keeps lamp {place}.", "No one has heard of such a thing."
        ahead = "a" if place % 2 else "b"
        lead = -2 if ahead == "a" else 2
        rows.append(
            {
                "question": f"Who keeps lamp {place}?",
                "ground_truth": good,
                "answer_a": good if ahead == "a" else bad,
                "answer_b": bad if ahead == "a" else good,
                "preference": ahead,
                "annotators": {"overall": [lead, lead // 2]},
                "judge_old": {"a": {"overall_label": 0.1}, "b": {"overall_label": 0.9}},
            }
        )
    rows[-1] |= {"answer_a": rows[-1]["answer_b"], "preference": "tie", "annotators": {"overall": [0, 0]}}
    return number_rows("p", rows)


EVERY_KIND: Mapping[str, Rows] = {
    "harbour_support": make_support() + make_support_zh(),
    "harbour_correctness": make_correctness(),
    "harbour_relevance": make_relevance(),
    "harbour_decomposition": make_decomposition(),
    "harbour_rubric": make_rubric(),
    "harbour_pairwise": make_pairwise(),
}
STRANGE: Rows = [{"id": "q1", "question": "Which tool?", "functions": [], "accepted_calls": []}]


def write_set(folder: Path, rows: Sequence[Mapping[str, Any]], name: str = "dev.jsonl") -> Path:
    """A set's folder with its rows."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def write_sets(folder: Path, sets: Mapping[str, Sequence[Mapping[str, Any]]] = EVERY_KIND) -> Path:
    """A folder of sets."""
    for name, rows in sets.items():
        write_set(folder / name, rows)
    return folder
