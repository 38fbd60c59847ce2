"""The flow `evaluate` as a deployment: registered from `flows/prefect.yaml`, started with the parameters that a form or
a command gives, and tried again as Prefect's UI does it. What runs it is what a worker starts, each time a process of
its own, that is forked from one in which all has been imported: that takes longer than all they do."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_process import ROOT, Place
from endpoint import Endpoint, running_endpoint
from prefect_holder import find_server

from evalhouse.flows.server.api import PrefectApi

KEY = "sk-right"
# For each line, a module to run, its arguments and variables: a process that does so; answered when that has ended.
FORKING = """
import json, os, runpy, sys
import evalhouse.flows.evaluation, evalhouse.flows.preparing.live_run
import langchain_openai
import prefect.cli, prefect.flow_engine
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    module, arguments, variables = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.update(variables)
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    print(os.waitpid(child, 0)[1], file=answers, flush=True)
"""

# A flow that evaluates in its process, and one that has it done by another process.
COMPOSED = """
import asyncio, json, sys
from prefect import flow
from evalhouse.flows import evaluate
from evalhouse.flows.evaluation import evaluate_run

TEXT = "Tea is sold."
SAMPLE = {"question": "What is sold?", "answer": TEXT, "ground_truth": TEXT, "contexts": [TEXT]}
SETTINGS = {"judge": "lexical", "metrics": ["faithfulness"], "warehouse": "own.duckdb"}

@flow
async def compose_flows():
    result = await evaluate_run(limit=2, **SETTINGS)
    return {**vars(result), "mean": result.means["faithfulness"]}

@flow
def compose_processes():
    result = evaluate([SAMPLE], **SETTINGS)
    return {"run_id": result.run_id, "status": result.status, "gate": None, "mean": result.mean("faithfulness")}

if __name__ == "__main__":
    result = compose_processes() if "processes" in sys.argv else asyncio.run(compose_flows())
    with open("composed.json", "w") as file:
        json.dump(result, file)
"""


@dataclass(kw_only=True)
class Python:
    """Run `python -m` in a place, one process after the other."""

    process: subprocess.Popen[str]
    log: Path

    def call(self, module: str, *arguments: str, **variables: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([module, arguments, variables]), file=self.process.stdin, flush=True)
        assert self.process.stdout.readline(), self.log.read_text()


@contextlib.contextmanager
def forking(place: Place) -> Iterator[Python]:
    log = place.folder / "processes.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-c", FORKING],
            cwd=place.folder,
            env=place.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        ) as process,
    ):
        yield Python(process=process, log=log)


@dataclass(kw_only=True)
class Deployed:
    """The deployment on the session's server, and a folder with a dataset and a warehouse."""

    place: Place
    api: PrefectApi
    row: dict[str, Any]
    endpoint: Endpoint
    python: Python

    def queue(self, **parameters: object) -> str:
        """A flow run with these parameters; returns its id."""
        given = {"warehouse": str(self.place.folder / "own.duckdb"), **parameters}
        body = {"parameters": given, "state": {"type": "SCHEDULED"}}
        return str(self.api.post(f"/deployments/{self.row['id']}/create_flow_run", body)["id"])

    def work(self, flow_run_id: str, key: str = KEY) -> dict[str, Any]:
        """Run it as a worker does, and return what Prefect says of it then."""
        given = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": self.endpoint.base_url, "EVALHOUSE_SHARD_SIZE": "2"}
        self.python.call("prefect.engine", PREFECT__FLOW_RUN_ID=flow_run_id, **given)
        return self.read(flow_run_id)

    def read(self, flow_run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"/flow_runs/{flow_run_id}")
        return found

    def set_state(self, flow_run_id: str, **state: object) -> None:
        assert self.api.post(f"/flow_runs/{flow_run_id}/set_state", {"state": state})["status"] == "ACCEPT"

    def retry(self, flow_run_id: str) -> None:
        """The button in the UI."""
        self.set_state(flow_run_id, type="SCHEDULED", name="AwaitingRetry", message="Retry from the UI")

    def query(self, sql: str) -> list[dict[str, Any]]:
        with duckdb.connect(str(self.place.folder / "own.duckdb"), read_only=True) as connection:
            found: list[dict[str, Any]] = connection.sql(sql).pl().to_dicts()
            return found


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Iterator[Deployed]:
    variables = {"PREFECT_HOME": str(prefect_home)}
    place = Place(folder=tmp_path_factory.mktemp("deployed"), variables=variables, reports_tasks=True)
    api = PrefectApi(find_server())
    if not api.post("/work_pools/filter", {"work_pools": {"name": {"any_": ["evalhouse"]}}}):
        api.post("/work_pools/", {"name": "evalhouse", "type": "process"})
    with forking(place) as python, running_endpoint(expected_key=KEY) as endpoint:
        given = ("--no-prompt", "deploy", "--name", "evaluate", "--prefect-file", str(ROOT / "flows" / "prefect.yaml"))
        python.call("prefect", *given)
        found = api.post("/deployments/filter", {"deployments": {"name": {"any_": ["evaluate"]}}})
        assert found, python.log.read_text()
        yield Deployed(place=place, api=api, row=found[0], endpoint=endpoint, python=python)


def test_the_form_offers_closed_sets_as_choices_and_has_no_field_for_a_secret(deployed: Deployed) -> None:
    fields = deployed.row["parameter_openapi_schema"]["properties"]
    assert fields["language"]["anyOf"][0]["examples"] == ["auto", "en", "zh"]  # others have a folder of prompts
    assert fields["limit"]["anyOf"][0]["minimum"] == 1
    assert fields["plan"]["anyOf"][0]["enum"] == ["separate", "fused"]
    assert "faithfulness" in fields["metrics"]["items"]["enum"]
    assert all(field["description"] for field in fields.values())
    assert deployed.row["enforce_parameter_schema"] is True  # so that unknown parameters are refused
    assert not [name for name in fields if "key" in name or "secret" in name or "webhook" in name]


@pytest.mark.slow
def test_retried_flow_run_resumes_its_run(deployed: Deployed) -> None:
    flow_run_id = deployed.queue(judge="openai:gpt-4.1-mini", metrics=["faithfulness"], limit=2, tags=["blue"])
    failed = deployed.work(flow_run_id, key="sk-wrong")
    assert failed["state_type"] == "FAILED"
    assert "sk-wrong" not in json.dumps(failed)
    (begun,) = deployed.query("from runs")
    assert (begun["status"], begun["flow_run_id"]) == ("failed", flow_run_id)
    assert failed["name"] == begun["run_id"]
    assert failed["parameters"]["run_id"] == begun["run_id"]

    deployed.retry(flow_run_id)
    ended = deployed.work(flow_run_id)
    assert ended["state_type"] == "COMPLETED", ended["state"]
    (run,) = deployed.query("from runs")
    assert (run["run_id"], run["status"], run["metrics"]) == (begun["run_id"], "completed", ["faithfulness"])
    assert run["run_id"] in ended["state"]["message"]
    # A copy of a completed flow run starts a new run.
    assert "run_id" not in ended["parameters"]
    assert {"judge: openai:gpt-4.1-mini", "dataset: sample", "blue", "evalhouse"} <= set(ended["tags"])

    logs = deployed.api.post("/logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run_id]}}})
    printed = [row["message"] for row in logs]
    assert any(line.startswith("extract shard 0: 2 of 2 samples in ") for line in printed), printed
    assert f"Resuming run {begun['run_id']}, which was failed." in printed
    keys = {"key": {"any_": ["progress-sample"]}, "flow_run_id": {"any_": [flow_run_id]}}
    progress = deployed.api.post("/artifacts/filter", {"artifacts": keys})
    assert max(artifact["data"] for artifact in progress) == 100.0
    tasks = deployed.api.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run_id]}}})
    assert all({"judge: openai:gpt-4.1-mini", "blue"} <= set(task["tags"]) for task in tasks)

    deployed.retry(flow_run_id)
    again = deployed.work(flow_run_id)
    assert (again["state_type"], again["state_name"]) == ("COMPLETED", "NothingNew")
    assert len(deployed.query("from runs")) == 1


@contextlib.contextmanager
def being_judged(deployed: Deployed, label: str, metric: str) -> Iterator[tuple[str, Future[dict[str, Any]]]]:
    """Yield a flow run in the middle of its eight shards, and its end."""
    flow_run_id = deployed.queue(judge="openai:gpt-4.1-mini", metrics=[metric], limit=16, concurrency=1, label=label)
    deployed.endpoint.reset()
    deployed.endpoint.configure(latency=0.2)
    with ThreadPoolExecutor() as threads:
        working = threads.submit(deployed.work, flow_run_id)
        _wait_until(lambda: deployed.endpoint.stats.requests.total() > 2)
        yield flow_run_id, working
    deployed.endpoint.configure(latency=0.0)


@pytest.mark.slow
def test_paused_flow_run_begins_no_further_shard_until_it_is_resumed(deployed: Deployed) -> None:
    n_before = -1
    with being_judged(deployed, "paused", "faithfulness") as (flow_run_id, working):
        counts = deployed.endpoint.stats.requests
        deployed.set_state(flow_run_id, type="PAUSED", name="Paused")
        while n_before != counts.total():  # the shards in progress are judged to their end
            n_before = counts.total()
            time.sleep(3)
        assert not working.done()
        deployed.set_state(flow_run_id, type="RUNNING", name="Running")
        assert working.result()["state_type"] == "COMPLETED"
    assert counts.total() > n_before
    (run,) = deployed.query("from runs where label = 'paused'")
    assert (run["status"], run["n_samples"]) == ("completed", 16)


@pytest.mark.slow
def test_suspended_flow_run_ends_at_the_next_shard_and_resumes_its_run(deployed: Deployed) -> None:
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    details = {"pause_timeout": until, "pause_reschedule": True, "pause_key": "by hand"}
    with being_judged(deployed, "suspended", "factual_f1") as (flow_run_id, working):
        deployed.set_state(flow_run_id, type="PAUSED", name="Suspended", state_details=details)
        assert working.result()["state_name"] == "Suspended"
    (run,) = deployed.query("from runs where label = 'suspended'")
    assert (run["status"], run["problem"][:20]) == ("cancelled", "suspended in Prefect")
    n_before = deployed.endpoint.stats.requests.total()

    assert deployed.api.post(f"/flow_runs/{flow_run_id}/resume", {})["status"] == "ACCEPT"
    ended = deployed.work(flow_run_id)
    assert ended["state_type"] == "COMPLETED", ended["state"]
    (again,) = deployed.query("from runs where label = 'suspended'")
    assert (again["run_id"], again["status"], again["n_samples"]) == (run["run_id"], "completed", 16)
    (asked,) = deployed.query(f"select count(*) as n from llm_calls where run_id = '{run['run_id']}' and status = 'ok'")
    assert n_before < deployed.endpoint.stats.requests.total() == asked["n"]  # no request was sent twice


def _wait_until(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_refused_parameters_are_the_message_of_the_flow_run(deployed: Deployed) -> None:
    failed = deployed.work(deployed.queue(dataset="missing.jsonl"))
    assert failed["state_type"] == "FAILED"
    assert "missing.jsonl" in failed["state"]["message"]
    assert "Traceback" not in failed["state"]["message"]


@pytest.mark.slow
def test_graph_of_a_run_leads_from_its_samples_to_its_scores(deployed: Deployed) -> None:
    ended = deployed.work(deployed.queue(judge="lexical", limit=2))
    assert ended["state_type"] == "COMPLETED", ended["state"]
    labels: dict[str, str] = {}
    deadline = time.monotonic() + 20
    while "publish" not in labels.values():  # Prefect writes task runs from their events, the last ones after the run
        assert time.monotonic() < deadline
        nodes = dict(deployed.api.get(f"/flow_runs/{ended['id']}/graph-v2")["nodes"])
        labels = {node_id: node["label"].split()[0] for node_id, node in nodes.items()}
    edges = {
        (labels[parent["id"]], labels[node_id]) for node_id, node in nodes.items() for parent in node["parents"] or ()
    }
    steps = {"extract", "classify", "attribute", "rank", "similarity"}
    after_extract = {"classify", "attribute", "rank"}
    assert edges == {
        *(("load", step) for step in steps - after_extract),
        *(("extract", step) for step in after_extract),
        *((step, "write") for step in steps),
        ("write", "score"),
        ("score", "publish"),
    }
    tasks = deployed.api.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [ended["id"]]}}})
    assert len({task["task_key"] for task in tasks}) == len(steps) + 4


@pytest.mark.slow
@pytest.mark.parametrize("way", ["flows", "processes"])
def test_an_evaluation_within_a_flow_is_its_child_and_returns_its_result(deployed: Deployed, way: str) -> None:
    script = deployed.place.folder / "composed.py"
    script.write_text(COMPOSED)
    environment = deployed.place.environment()
    subprocess.run([sys.executable, script, way], cwd=script.parent, env=environment, check=True, timeout=300)
    result = json.loads((deployed.place.folder / "composed.json").read_text())
    assert (result["status"], result["gate"]) == ("completed", None)
    (row,) = deployed.query(f"from run_scores join runs using (run_id) where run_id = '{result['run_id']}'")
    assert result["mean"] == row["mean"]
    flows = {"name": {"any_": [f"compose-{way}"]}}
    (outer,) = deployed.api.post("/flow_runs/filter", {"flows": flows})
    ((child_id, child),) = deployed.api.get(f"/flow_runs/{outer['id']}/graph-v2")["nodes"]
    assert (child["kind"], child_id, child["state_type"]) == ("flow-run", row["flow_run_id"], "COMPLETED")
