"""The ends of runs in Prefect: by a time limit, and with pages about what moved and links to more."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, Place
from endpoint import running_endpoint
from prefect_holder import find_server

from evalhouse.flows.errors import INCOMPLETE
from evalhouse.flows.server.api import PrefectApi
from evalhouse.warehouse.store import Warehouse

WHERE = ("--warehouse", "own.duckdb", "--json")


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path) -> Place:
    return Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)}, reports_tasks=True)


def read_flow_run(place: Place, run_id: str) -> dict[str, Any]:
    """The flow run of a run, and what its page has."""
    sql = "select flow_run_id from runs where run_id = $run_id"
    row = Warehouse(str(place.folder / "own.duckdb")).read_rows(sql, {"run_id": run_id})[0]
    api = PrefectApi(find_server())
    wanted = {"flow_runs": {"id": {"any_": [row["flow_run_id"]]}}}
    flow_run: dict[str, Any] = api.get(f"/flow_runs/{row['flow_run_id']}")
    tasks = {task["name"]: task["state_name"] for task in api.post("/task_runs/filter", wanted)}
    pages = {page["key"]: page for page in api.post("/artifacts/filter", wanted)}
    return {**flow_run, "tasks": tasks, "pages": pages}


def wait_for_timeout(place: Place, run_id: str, *, of_task: bool) -> None:
    """Wait until the server has this state for the flow run, or for a task run, which it records a moment later."""
    deadline = time.monotonic() + 60
    states: list[str] = []
    while "TimedOut" not in states:
        assert time.monotonic() < deadline, states
        flow_run = read_flow_run(place, run_id)
        states = list(flow_run["tasks"].values()) if of_task else [flow_run["state_name"]]


@pytest.mark.parametrize(
    ("option", "name"),
    [("--run-timeout", "run_timeout_s"), ("--task-timeout", "task_timeout_s")],
)
@pytest.mark.slow
def test_run_over_its_time_limit_is_ended_by_prefect_and_can_be_resumed(place: Place, option: str, name: str) -> None:
    with running_endpoint(latency=60.0) as endpoint:
        own = place.with_variables(OPENAI_API_KEY="sk-any", OPENAI_BASE_URL=endpoint.base_url)
        judged = ("--judge", "openai:gpt-4.1-mini", "--embeddings", "hashing", "--limit", "2", option, "3")
        ended = own.call("run", "sample", *judged, "--metrics", "faithfulness", *WHERE)
        assert ended.status == INCOMPLETE, ended.stderr
        assert ended.document["status"] == "failed"
        assert f"took longer than 3 seconds ({name}) and was ended" in ended.document["problem"]
        wait_for_timeout(place, ended.document["run_id"], of_task=option == "--task-timeout")
        endpoint.options = replace(endpoint.options, latency=0.0)
        resumed = own.call("resume", ended.document["run_id"], option, "100", "--warehouse", "own.duckdb", "--json")
    assert (resumed.status, resumed.document["status"]) == (0, "completed"), resumed.document


def evaluate(place: Place, *answers: str) -> Finished:
    """A run over as many questions about one text as there are answers."""
    contexts = ["The Quillon ferry leaves at six in the morning. It costs 14 crowns."]
    truths = ("It leaves at six in the morning.", "It costs 14 crowns.", "It costs 14 crowns.")[: len(answers)]
    rows = [
        {"id": f"q{place}", "question": f"What of it, {place}?", "answer": answer, "ground_truth": truth,
         "contexts": contexts}
        for place, (answer, truth) in enumerate(zip(answers, truths, strict=True), start=1)
    ]  # fmt: skip
    (place.folder / "ferry.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    done = place.call("run", "ferry.jsonl", "--judge", "lexical", *WHERE)
    assert done.status == 0, done.stderr
    return done


def test_the_end_says_what_moved_and_why_and_links_to_report_and_ui(place: Place) -> None:
    own = place.with_variables(EVALHOUSE_UI_URL="http://house:4210/", EVALHOUSE_REPORTS="reports")
    first = evaluate(own, "It leaves at six in the morning.", "It costs 14 crowns.").document["run_id"]
    free = "It is <b>free</b> for dogs."
    second = evaluate(own, "It leaves at six in the morning.", free, free).document["run_id"]
    pages = {run_id: read_flow_run(place, run_id)["pages"] for run_id in (first, second)}
    assert "moved-ferry" not in pages[first]
    report = place.folder / "reports" / f"{second}.html"
    assert pages[second]["report-ferry"]["data"] == f"[{second}.html]({report.as_uri()})"
    assert "<!doctype html>" in report.read_text(encoding="utf-8").lower()[:200]
    assert f"(http://house:4210/runs/{second})" in pages[second]["ui-ferry"]["data"]
    moved = pages[second]["moved-ferry"]["data"]
    assert f"## Against run `{first}` of " in moved
    assert "| factual\\_f1 | 0.333 | -0.500 | 2 samples |" in moved
    assert "q2, " in moved
    assert "its answer or contexts changed" in moved
    causes = moved.partition("Causes, then → now:")[2]
    assert "0 → 1" in causes, "of the questions that both runs judged"
    assert "0 → 2" not in causes
    assert "<b>" not in moved


def test_an_address_with_a_token_is_refused(place: Place) -> None:
    own = place.with_variables(EVALHOUSE_UI_URL="http://house:4210/?token=abc")
    refused = own.call("run", "sample", "--judge", "lexical", *WHERE)
    assert (refused.status, "EVALHOUSE_UI_URL" in refused.stderr) == (2, True)
