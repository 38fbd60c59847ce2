"""Chat models that are asked pair by pair in the form they were made for: what is sent, what a yes means, that each
pair is a separate recorded call, and that a text cannot be filled in for another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmark_data import make_support, write_set
from cli_process import call_here
from endpoint import Asked, Endpoint, running_endpoint
from live_runs import lay_out_run, make_sample, make_settings, read_calls
from warehouse_runs import lay_warehouse

from evalhouse.prompts import Item
from evalhouse.tasks.asking.pairs import find_form, load_forms
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.attribute import attribute_statements
from evalhouse.tasks.classify import classify_statements
from evalhouse.tasks.judge.protocol import FatalJudgeError, UnusableReply
from evalhouse.tasks.models.make import check_judge_name, make_judge
from evalhouse.tasks.pipeline.live_run import Extraction, make_work
from evalhouse.tasks.rank import rank_contexts
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.store import Warehouse


def answer(asked: Asked) -> str:
    """Answer as such a model: the document contains the claim, or not. Guardians answer yes to ungrounded claims."""
    documents = asked.body.get("documents")
    if documents is None:
        document, _, claim = asked.texts[-1].removeprefix("Document: ").partition("\nClaim: ")
        return "Yes" if claim in document else "No"
    claim = next(message["content"] for message in asked.body["messages"] if message["role"] == "assistant")
    grounded = claim in documents[0]["text"]
    return f"<think>\n</think>\n<score> {'no' if grounded else 'yes'} </score>"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Endpoint]:
    monkeypatch.chdir(tmp_path)
    lay_warehouse(tmp_path / "evalhouse.duckdb")
    write_set(tmp_path / "ships", make_support())
    with running_endpoint(models=("guard",), keep_bodies=True, script={"other": answer}) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        yield running


@pytest.mark.parametrize("form", load_forms())
def test_each_pair_is_a_request_in_the_models_own_words(
    form: str, endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = partial(call_here, capsys, "benchmark", "--judge", f"{form}+openai:guard", "--data", "ships", "--json")
    estimate = measure("--dry-run").document
    document = measure().document
    (measured,) = document["sets"]
    assert measured["judge"]["figures"]["accuracy"]["value"] == 1.0
    # 13 rows of one statement with two contexts; where none supports it, both together are a third pair
    n_unsupported = sum(row["label"] != "supported" for row in make_support() if row["label"] != "generic")
    assert document["calls"]["requests"] == 26 + n_unsupported
    assert estimate["calls"]["requests"] == 26 + 13  # at most
    body = endpoint.stats.bodies[-1]
    assert "response_format" not in body
    asked = " ".join(message["content"] for message in body["messages"])
    assert ("documents" in body) == form.startswith("granite")
    assert ("chat_template_kwargs" in body) == (form == "granite-guardian-3.3")
    assert "{claim}" not in asked
    warehouse = Warehouse(parse_location("evalhouse.duckdb").url)
    calls = warehouse.read("select count(*) as n, count(distinct request_hash) as hashes from llm_calls")
    assert calls.row(0) == (26 + n_unsupported, 26 + n_unsupported)
    again = measure().document
    assert (again["calls"]["requests"], again["calls"]["reused"]) == (0, 26 + n_unsupported)


@pytest.mark.parametrize(("form", "reply", "supported"), [
    ("minicheck", "Yes", True),
    ("minicheck", " no.", False),
    ("granite-guardian", "<think>\n</think>\n<score> yes </score>", False),
    ("granite-guardian", "<think>yes, or no?</think><score>no</score>", True),
    ("granite-guardian-3.3", "<score> no </score>", True),
    ("minicheck", "Yesterday", None),
    ("minicheck", "", None),
    ("granite-guardian", "<think>yes</think>", None),
])  # fmt: skip
def test_what_a_reply_means(form: str, reply: str, supported: bool | None) -> None:
    chosen = find_form(f"{form}+openai:x")
    assert chosen is not None
    if supported is None:
        with pytest.raises(UnusableReply, match="neither yes nor no"):
            chosen.read(reply)
    else:
        assert chosen.read(reply) is supported


async def test_every_step_gets_verdicts_with_the_call_that_decided_them(endpoint: Endpoint, tmp_path: Path) -> None:
    sample = make_sample(
        answer="The ship lies at berth 4.",
        ground_truth="The ship lies at berth 4.",
        contexts=["The ship lies at berth 4. When? The ship lies at berth 4.", "Ropes."],
        question="When?",
    )
    settings = make_settings(judge="minicheck+openai:guard")
    work = make_work(sample)
    async with lay_out_run(tmp_path / "run", settings, judge=make_judge(settings)) as live_run:
        for source, letter in (("answer", "A"), ("ground_truth", "G")):
            items = (Item(id=f"{letter}1", text="The ship lies at berth 4."),)
            work.hand_over(source, Extraction(items=items))
        await gather_all([step(live_run, work) for step in (classify_statements, attribute_statements, rank_contexts)])
    assert [row["label"] for row in work.rows["classifications"]] == ["TP", "TP"]
    supports = [(row["context_ranks"], row["reason"]) for row in work.rows["attributions"]]
    assert supports == [([1], "supported in words 1–13 of C1")] * 2
    assert [row["useful"] for row in work.rows["context_verdicts"]] == [True, False]
    calls = {call["call_id"]: call for call in read_calls(tmp_path / "run")}
    # Equal pairs at once are one request, and the second call says which one it is.
    replies = {key: calls[call["reused_call_id"] or key]["reply"] for key, call in calls.items()}
    decided = [
        row["call_id"] for table in ("classifications", "attributions", "context_verdicts") for row in work.rows[table]
    ]
    assert [replies[call_id] for call_id in decided] == ["Yes"] * 5 + ["No"]


def test_a_text_that_names_a_place_is_not_filled_in_again() -> None:
    form = find_form("minicheck+openai:x")
    assert form is not None
    expected = form.fill({"document": "Here is {claim}.", "claim": "{document}"})[-1].content
    assert expected == "Document: Here is {claim}.\nClaim: {document}"


@pytest.mark.parametrize(("name", "expected"), [
    ("minichek+openai:x", "known: minicheck"),
    ("minicheck+lexical", "name a chat model behind it"),
    ("minicheck+local:factcg", "name a chat model behind it"),
    ("minicheck+minicheck+openai:x", "name a chat model behind it"),
    ("granite-guardian+module:make", "takes an openai:MODEL"),
    ("minicheck+", "unknown judge"),
])  # fmt: skip
def test_form_before_an_unsuitable_judge_is_refused(name: str, expected: str) -> None:
    with pytest.raises(FatalJudgeError) as error:
        check_judge_name(name)
    assert expected in str(error.value)


def test_unanswerable_step_of_a_form_is_reported_before_asking(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    finished: Any = call_here(capsys, "run", "sample", "--judge", "minicheck+openai:guard", "--limit", "1")
    assert (finished.status, "cannot take the step extract" in finished.stderr) == (2, True)
    assert endpoint.stats.bodies == []
