"""The output about a judge that refuses something, thinks aloud, or changes its model under one name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_house import place_at, write_dataset
from cli_process import Place
from endpoint import Asked, Endpoint, running_endpoint
from endpoint_replies import compose_reply

TEXT = "Ode built it."
ROW = {"id": "r1", "question": "Who?", "answer": TEXT, "ground_truth": TEXT, "contexts": [TEXT]}
RUN = ("run", "one.jsonl", "--judge", "openai:judge", "--metrics", "context_precision")


def think(asked: Asked) -> str:

    return f"<think>Ode it is, I suppose.</think>{json.dumps(compose_reply(asked))}"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(script={"rank": think}) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path, endpoint: Endpoint) -> Place:
    write_dataset(tmp_path, [ROW], "one.jsonl")
    return place_at(tmp_path, prefect_home, endpoint.base_url)


def test_refused_options_are_reported_and_thoughts_are_shown(place: Place, endpoint: Endpoint) -> None:
    endpoint.configure(no_temperature=True)
    run = place.call(*RUN, "--temperature", "0.3", "--label", "warm")
    assert run.status == 0, run.stderr
    hint = "openai:judge was asked without what its endpoint does not take: temperature: Unsupported value"
    assert hint in " ".join(run.stdout.split())
    assert hint in " ".join(place.call("show", "warm").stdout.split())
    lineage = place.call("lineage", "warm", "r1").stdout
    assert "thoughts: Ode it is, I suppose." in lineage
    assert "<think>" not in lineage


def test_an_unknown_effort_is_refused_with_the_known_ones(place: Place) -> None:
    refused = place.call(*RUN, "--reasoning-effort", "huge")
    assert refused.status != 0
    assert "--reasoning-effort: got 'huge'" in refused.stderr
    assert "'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'" in refused.stderr


def test_another_model_under_a_name_is_asked_again_and_earlier_replies_are_used(
    place: Place, endpoint: Endpoint
) -> None:
    """Before anybody asked a server which model it has, nothing on record output whose a reply is."""

    def run() -> tuple[int, int, str]:
        ended = place.call(*RUN, "--json")
        assert ended.status == 0, ended.stderr
        calls = ended.document["calls"]
        return calls["requests"], calls["reused"], " ".join(ended.stderr.split())

    assert run()[:2] == (2, 0)
    endpoint.configure(model_fields={"root": "/models/one"})
    requests, reused, output = run()
    assert (requests, reused) == (0, 2)
    assert "says that 'judge' is root /models/one, which is kept from this run on" in output
    assert "by their name alone" not in output
    assert "on record are from before: they are taken for this model's" in output
    endpoint.configure(model_fields={"root": "/models/two"})
    requests, reused, output = run()
    assert (requests, reused) == (2, 0)
    assert "has another model as 'judge' than in the last run: root /models/two, before root /models/one" in output
    (compared,) = place.call("compare", "previous", "latest", "--json").document["metrics"]
    assert [part["name"] for part in compared["parts"]] == ["judge"], "the two are not of one judge"
