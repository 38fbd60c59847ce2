"""The expected results for questions of a set made from the first version when the second one comes.

A question is taken as a line of a set's file has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from port_base import EDITS, Outcome, build_base, expect_outcome, find_statements
from port_reading import find_claims, read_question


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
        return "changed" if facts and _list_later().issuperset(facts) else "same"
    return expect_outcome(facts, {span["document_id"] for span in row["spans"]})


@cache
def _list_later() -> frozenset[str]:
    """The facts that the second version states."""
    return frozenset(one.fact for one in find_statements(build_base(EDITS)))
