"""A served suite that waits for a batch ends meanwhile, blocks no other run that its schedule starts, and is resumed
when the batch has come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_house import make_rows, write_dataset
from endpoint import Endpoint, running_endpoint
from serve_house import ServeHouse, open_serve_house, soon

pytestmark = pytest.mark.slow  # a suite leaves its batch after a minute, and looks for it two minutes later

SUITE = """\
dataset = "rows.jsonl"
judge = "openai:judge"
embeddings = "hashing"
metrics = ["faithfulness"]
batch = true
warehouse = "batched.duckdb"
[schedule]
cron = "0 0 1 1 *"
"""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(takes_s=None) as running:
        yield running


@pytest.fixture
def house(tmp_path: Path, endpoint: Endpoint) -> Iterator[ServeHouse]:
    with open_serve_house(tmp_path) as built:
        built.place = built.place.with_variables(OPENAI_BASE_URL=endpoint.base_url, OPENAI_API_KEY="sk-test")
        yield built


def test_a_suite_that_waits_for_its_batch_leaves_its_place_and_is_taken_up_again(
    house: ServeHouse, endpoint: Endpoint
) -> None:
    write_dataset(house.folder, make_rows(3), "rows.jsonl")
    batched = house.folder / "batched.toml"
    batched.write_text(SUITE, encoding="utf-8")
    quick = house.write_suite("quick", cron=soon(40))
    house.serve(batched, quick, parallel=1)
    (deployment,) = house.post("/deployments/filter", {"deployments": {"name": {"any_": ["batched"]}}})
    house.post(f"/deployments/{deployment['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
    house.wait_until(lambda: house.list_runs("batched") and house.list_runs("batched")[0]["status"] == "cancelled")
    (left,) = house.list_runs("batched")
    assert "batch" in left["problem"], "it says what it waits for"
    house.wait_until(lambda: [one for one in house.list_flow_runs("batched") if one["state_name"] == "WaitsForBatch"])
    assert house.count_waiting("batched") >= 1, "a flow run that resumes it is scheduled"
    # The only place is free meanwhile.
    (scheduled,) = house.wait_for_runs("quick", 1)
    assert scheduled["trigger"] == "schedule"
    assert [run["status"] for run in house.list_runs("batched")] == ["cancelled"]
    endpoint.takes_s = 0.0
    (ended,) = house.wait_for_runs("batched", 1)
    assert (ended["run_id"], ended["problem"]) == (left["run_id"], None)
    assert not endpoint.paid_twice
    scores = house.query("batched", "select count(value) as n from scores where metric = 'faithfulness'")
    assert scores == [{"n": 3}]
    assert {row["batch_id"] is None for row in house.query("batched", "select batch_id from llm_calls")} == {False}
