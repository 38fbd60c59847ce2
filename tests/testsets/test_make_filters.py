"""`testset make` with a model that answers from the documents and spoils a share of what it writes: what is spoilt is
turned down by the check that it is made for, and what is kept can be answered from its spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import call_here
from live_runs import point_to
from port_answers import port_endpoint
from port_base import write_base
from port_expected import list_facts
from port_mischief import FILTERS, WAYS, Mischief
from port_reading import find_claims, find_steps

from evalhouse.tasks.testsets.questions import load_set
from evalhouse.warehouse.store import Warehouse

N = 40
SHARES = "fact=3,number=2,several=2,comparison=1,conversational=2,unanswerable=2"
CANDIDATES = """
select kind, question, coalesce(ground_truth, '') as ground_truth, outcome, reason, detail from testset_candidates
"""
# Checks before the expected one; a question that was asked already is a duplicate first.
EARLIER = {"duplicate", "contradicted"}


def test_spoilt_questions_are_turned_down_and_kept_ones_are_good(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    docs, path, url = tmp_path / "docs", tmp_path / "questions.jsonl", f"duckdb:///{tmp_path / 'own.duckdb'}"
    write_base(docs, version=1)
    mischief = Mischief(shares=dict.fromkeys(WAYS, 0.04))
    command = (
        "testset",
        "make",
        str(docs),
        "-n",
        str(N),
        "--kinds",
        SHARES,
        "-o",
        str(path),
        "--warehouse",
        url,
        "--json",
    )
    with port_endpoint(mischief=mischief) as (endpoint, answers):
        point_to(endpoint.base_url)
        done = call_here(capsys, *command, "--judge", "openai:judge", "--embeddings", "hashing")
        assert done.status in (0, 3), done.stderr
        assert endpoint.stats.duplicates_answered == 0
    made = done.document
    assert made["n_questions"] > N * 0.8
    assert (done.status == 0) == (made["n_questions"] == N)
    spoilt = {(squeeze(one.question), squeeze(one.ground_truth)): one.way for one in answers.spoilt}
    rows = Warehouse(url).read_rows(CANDIDATES)
    reasons = {way: set[Any]() for way in WAYS}
    for row in rows:
        way = spoilt.get((row["question"], row["ground_truth"]))
        if way is not None:
            reasons[way].add(row["reason"])
    for way, found in reasons.items():
        # Of two that ask the same one may stay.
        assert found <= {FILTERS[way], *EARLIER} | ({None} if FILTERS[way] == "duplicate" else set()), way
    assert sum(FILTERS[way] in found for way, found in reasons.items()) >= 5
    test_set = load_set(path)
    for question in test_set.questions:
        assert list_facts(question.to_row())
        spans = "\n".join(span.text for span in question.spans)
        assert state(question.ground_truth or "") <= state(spans)
        assert (question.ground_truth is None) == (not state(spans))
    rested_on = {fact for question in test_set.questions if question.spans for fact in list_facts(question.to_row())}
    assert len(rested_on) > N / 2
    assert not {"pewter.closing", "yinhe.closing"} & rested_on, "documents disagree about these"


def state(text: str) -> set[tuple[str, str]]:
    """Return the facts of a text with their values, and for steps the entity they are for."""
    return {(one.fact, one.value) for one in find_claims(text)} | {(one.fact, "") for one in find_steps(text)}


def squeeze(text: str) -> str:
    return " ".join(text.split())
