"""A run against a Prefect server that ran before: the run in Prefect, and what the warehouse stores of Prefect."""

from __future__ import annotations

import json
import time
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import pytest
from cli_house import N_JUDGED, House, write_metric
from cli_process import Finished, Place
from prefect_holder import find_server

METRICS = "factual_recall,answer_correctness,answer_length"


@dataclass(frozen=True, kw_only=True)
class Server:
    """A Prefect server on this machine: its PREFECT_API_URL and its PREFECT_API_AUTH_STRING."""

    url: str
    auth: str

    def post(self, path: str, **body: object) -> Any:  # noqa: ANN401  # Prefect's JSON
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Basic {b64encode(self.auth.encode()).decode()}",
        }
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as response:
            return json.loads(response.read())


@dataclass(frozen=True, kw_only=True)
class Served:
    """A run against that server."""

    server: Server
    place: Place
    finished: Finished

    def read(self, sql: str) -> list[dict[str, Any]]:
        return self.place.read(sql, "served.duckdb")


@pytest.fixture(scope="module")
def server() -> Server:
    """The one of the session."""
    variables = find_server()
    return Server(url=variables["PREFECT_API_URL"], auth=variables["PREFECT_API_AUTH_STRING"])


@pytest.fixture(scope="module")
def served(server: Server, house: House) -> Served:
    """A third run over the same warehouse in which every setting differs."""
    place = house.place
    own = write_metric(place.folder)
    finished = place.call_process(
        "run", "harbour.jsonl", "--map", "answer=bot_reply", "--limit", str(N_JUDGED), "--json", "--fresh",
        "--judge", "lexical", "--language", "zh", "--metrics", METRICS, "--metric-files", str(own),
        "--set", "answer_length.per=10", "--set", "answer_correctness.factual_weight=1",
        "--set", "answer_correctness.similarity_weight=0", "--warehouse", "served.duckdb",
    )  # fmt: skip
    assert finished.status == 0, finished.stderr
    return Served(server=server, place=place, finished=finished)


def test_prefect_stays_silent(served: Served) -> None:
    assert served.finished.stderr.startswith("columns: question, answer = bot_reply ")
    assert served.finished.stderr.count("\n") == 1
    assert served.finished.document["status"] == "completed"


def test_the_flow_run_and_its_named_task_runs_are_in_the_server(served: Served) -> None:
    run_id = served.finished.document["run_id"]
    (flow_run,) = served.server.post("/flow_runs/filter", flow_runs={"name": {"any_": [run_id]}})
    assert flow_run["state_type"] == "COMPLETED"
    wanted = {"id": {"any_": [flow_run["id"]]}}
    deadline = time.monotonic() + 30
    names: set[str] = set()
    while time.monotonic() < deadline and f"publish {run_id}" not in names:
        task_runs = served.server.post("/task_runs/filter", flow_runs=wanted, limit=200)
        names = {task_run["name"] for task_run in task_runs}
        time.sleep(0.2)
    steps = {f"{step} shard 0" for step in ("extract", "classify", "write")}
    assert {f"load {run_id}", f"score {run_id}", f"publish {run_id}"} | steps <= names
    assert served.read("select flow_run_id from runs") == [{"flow_run_id": flow_run["id"]}]


def test_the_scores_are_a_table_artifact(served: Served) -> None:
    document = served.finished.document
    artifacts = served.server.post("/artifacts/filter", artifacts={"type": {"any_": ["table"]}})
    (artifact,) = [item for item in artifacts if document["run_id"] in str(item["description"])]
    assert artifact["key"] == "scores-harbour"
    table = json.loads(artifact["data"])
    assert {row["metric"]: row["n_scored"] for row in table} == {
        name: metric["n_scored"] for name, metric in document["metrics"].items()
    }


def test_each_call_names_which_flow_run_and_task_run_made_it(served: Served) -> None:
    calls = served.read("select distinct step, flow_run_id, task_run_id from llm_calls")
    (flow_run_id,) = {call["flow_run_id"] for call in calls}
    assert served.read("select flow_run_id from runs") == [{"flow_run_id": flow_run_id}]
    by_task = {call["task_run_id"]: call["step"].split("_")[0] for call in calls}
    task_runs = served.server.post("/task_runs/filter", task_runs={"id": {"any_": list(by_task)}})
    assert {run["id"]: run["name"].split()[0] for run in task_runs} == by_task


def test_parameters_are_used_and_are_part_of_the_version(served: Served) -> None:
    rows = served.read("select metric, value, metric_version from scores where sample_id = 'tide-1'")
    scores = {row["metric"]: row for row in rows}
    lengths = served.read("select length(answer) / 10 as length from samples where sample_id = 'tide-1'")
    assert scores["answer_length"]["value"] == pytest.approx(lengths[0]["length"])
    assert scores["answer_length"]["metric_version"] == "3;per=10"
    assert scores["answer_correctness"]["metric_version"].endswith(";factual_weight=1;similarity_weight=0")


def test_doctor_finds_the_server(served: Served) -> None:
    report = served.place.call("doctor", "--json").document
    (finding,) = [finding for finding in report["findings"] if finding["what"] == "prefect"]
    assert finding["verdict"] == "ok"
    assert served.server.url in finding["detail"]


@pytest.mark.parametrize(("more", "status", "message"), [
    ("[gate.max]\nfactual_recall = 0.0\n", 1, "gate failed: 1 failed, 0 undecided, 0 passed: factual_recall: mean at"),
    ('[target]\nurl = "http://127.0.0.1:9/ask"\nattempts = 1\n', 3, ""),
    ("[gate.min]\nfactual_recall = 0\n", 0, None),
], ids=["a gate that failed", "an application that does not answer", "a gate that passed"])  # fmt: skip
def test_a_run_by_hand_is_red_where_a_person_should_look_and_has_its_suites_name(
    server: Server, house: House, more: str, status: int, message: str | None
) -> None:
    name = f"hand-{status}"
    (house.place.folder / "hand.toml").write_text(
        f'name = "{name}"\ndataset = "harbour.jsonl"\njudge = "lexical"\nmetrics = ["factual_recall"]\n'
        f'tags = ["blue"]\nwarehouse = "hand.duckdb"\n[limits]\nlimit = 2\n[map]\nanswer = "bot_reply"\n{more}'
    )
    done = house.place.call("run", "hand.toml", "--json")
    assert done.status == status, done.stderr
    run_id = done.document["run_id"]
    (flow_run,) = server.post("/flow_runs/filter", flow_runs={"name": {"any_": [f"{name} {run_id}"]}})
    if message is None:
        assert flow_run["state_type"] == "COMPLETED"
    else:
        assert flow_run["state_type"] == "FAILED"
        assert message in flow_run["state"]["message"]
    dataset = house.place.folder / "harbour.jsonl"
    assert set(flow_run["tags"]) == {name, "judge: lexical", f"dataset: {dataset}", "blue"}
