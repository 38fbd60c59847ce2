"""Texts in two languages are each asked about with prompts of their language, unless one is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, call_here
from live_runs import point_to
from port_answers import port_endpoint
from port_base import write_base

from evalhouse.warehouse.store import Warehouse

ASKED = """
select distinct texts.language as spoken, prompts.language as asked
from llm_calls
inner join prompts on prompts.prompt_hash = llm_calls.prompt_hash
inner join texts on texts.id = llm_calls.sample_id
where llm_calls.run_id = $run_id
"""
CANDIDATES = f"with texts as (select candidate_id as id, language from testset_candidates) {ASKED}"
QUESTIONS = f"with texts as (select distinct question_id as id, language from testset_questions) {ASKED}"
OWN = {("en", "en"), ("zh", "zh")}
ENGLISH = {("en", "en"), ("zh", "en")}


class House:
    """A folder with the documents and a warehouse, and the commands on both."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.docs, self.path, self._url = folder / "docs", folder / "set.jsonl", f"duckdb:///{folder / 'own.duckdb'}"
        self._capsys = capsys

    def call(self, *command: str) -> Finished:
        done = call_here(self._capsys, "testset", *command, "--warehouse", self._url, "--json")
        assert done.status in (0, 1, 3), done.stderr
        return done

    def read_asked(self, sql: str, done: Finished) -> set[tuple[Any, Any]]:
        rows = Warehouse(self._url).read_rows(sql, {"run_id": done.document["run_id"]})
        return {(row["spoken"], row["asked"]) for row in rows}


@pytest.fixture
def house(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[House]:
    with port_endpoint() as (endpoint, _):
        point_to(endpoint.base_url)
        yield House(tmp_path, capsys)


@pytest.mark.parametrize(("named", "expected"), [((), OWN), (("--language", "en"), ENGLISH)])
def test_requests_are_in_the_language_of_their_text(
    house: House, named: tuple[str, ...], expected: set[tuple[str, str]]
) -> None:
    options = ("--judge", "openai:judge", "--embeddings", "hashing", *named)
    write_base(house.docs, version=1)
    made = house.call("make", str(house.docs), "-n", "10", "-o", str(house.path), *options)
    assert house.read_asked(CANDIDATES, made) == expected
    checked = house.call("check", str(house.path), str(house.docs), *options)
    assert house.read_asked(QUESTIONS, checked) == expected
    write_base(house.docs, version=2)
    refreshed = house.call("refresh", str(house.path), str(house.docs), "--no-new", *options)
    assert house.read_asked(QUESTIONS, refreshed) <= expected
