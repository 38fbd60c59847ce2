"""A suite that another flow's asset starts, and whose scores are an asset themselves, on the open-source server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from serve_house import DOCUMENTS, QUESTIONS, ServeHouse, open_serve_house

pytestmark = pytest.mark.slow

SUITE, ASSET = "after", "s3://kb/handbook"
SCORES = f"evalhouse://suite/{SUITE}/scores"
FLOW = f"""
from prefect import flow
from prefect.assets import add_asset_metadata, materialize

@materialize("s3://kb/other")
def write_other():
    pass

@materialize("{ASSET}")
def write_handbook(version):
    add_asset_metadata("{ASSET}", {{"version": version, "changed": ["lamp.txt#1"]}})

@flow
def index():
    write_other()
    for version in ("v7", "v8"):
        write_handbook(version)

index()
"""


@dataclass(frozen=True, kw_only=True)
class Materialized:
    """The house when another flow has materialized the asset, and the run that this started."""

    house: ServeHouse
    run: dict[str, Any]


@pytest.fixture(scope="module")
def materialized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Materialized]:
    with open_serve_house(tmp_path_factory.mktemp("assets")) as house:
        path = house.write_suite(SUITE)
        path.write_text(f'{path.read_text()}[trigger]\nasset = "{ASSET}"\ndebounce_s = 10\n')
        house.serve(path)
        house.write_document("lamp.txt", DOCUMENTS["lamp.txt"].replace("green", "red"))
        environment = house.client.environment()
        subprocess.run([sys.executable, "-c", FLOW], cwd=house.folder, env=environment, check=True, timeout=120)
        (run,) = house.wait_for_runs(SUITE, 1)
        yield Materialized(house=house, run=run)


def test_a_flow_that_materializes_the_asset_starts_one_run(materialized: Materialized) -> None:
    run = materialized.run
    assert (run["trigger"], run["kb_name"], run["kb_version"]) == ("event", ASSET, "v8")
    assert run["kb_changed"] == ["lamp.txt#1"]
    answered = materialized.house.query(SUITE, "from kb_updates order by occurred_at")
    assert [(row["kb_name"], row["kb_version"], row["run_id"]) for row in answered] == [
        (ASSET, "v7", run["run_id"]),
        (ASSET, "v8", run["run_id"]),
    ]


def test_introduction_names_the_asset_and_no_command_to_announce(materialized: Materialized) -> None:
    expected = materialized.house.output
    assert f"after updates  of asset {ASSET}, when none has followed for 10 s" in expected
    assert "kb-updated" not in expected
    assert f"because {ASSET} was updated to version v8" in expected


def test_the_scores_are_an_asset_made_from_the_dataset_and_the_knowledge_base(materialized: Materialized) -> None:
    house, run = materialized.house, materialized.run
    asked = {
        "filter": {
            "event": {"name": ["prefect.asset.materialization.succeeded"]},
            "resource": {"id": [SCORES]},
        }
    }
    house.wait_until(lambda: house.post("/events/filter", asked)["events"])
    (event,) = house.post("/events/filter", asked)["events"]
    upstream = {one["prefect.resource.id"] for one in event["related"] if one["prefect.resource.role"] == "asset"}
    assert upstream == {ASSET, f"file://{house.folder}/questions.jsonl"}
    payload = event["payload"]
    assert (payload["run_id"], payload["dataset_hash"]) == (run["run_id"], run["dataset_hash"])
    rows = house.query(SUITE, "from run_scores")
    assert payload["means"] == {row["metric"]: pytest.approx(row["mean"]) for row in rows}
    assert payload["coverage"].keys() == payload["means"].keys()
    assert all(0 <= share <= 1 for share in payload["coverage"].values())
    assert payload["n_samples"] == len(QUESTIONS)
