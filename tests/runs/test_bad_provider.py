"""Runs against a provider that breaks: passing faults are waited out, lasting ones are named, all are recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import make_rows, place_at, write_dataset
from cli_process import Place
from endpoint import Asked, Canned, Endpoint, Inject, Raw, running_endpoint

KEY = "sk-test-77d0c1be42"
CHAT = "/v1/chat/completions"
METRICS = "answer_correctness,context_recall,context_precision,faithfulness"
CONCURRENCY = 16
OPTIONS = ("--judge", "openai:judge", "--metrics", METRICS, "--concurrency", str(CONCURRENCY))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(expected_key=KEY, models=("judge",), retry_after=0.05) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path, endpoint: Endpoint) -> Place:
    return place_at(tmp_path, prefect_home, endpoint.base_url, key=KEY)


def read(place: Place, sql: str, name: str = "evalhouse.duckdb") -> list[dict[str, Any]]:
    with duckdb.connect(str(place.folder / name), read_only=True) as connection:
        return connection.sql(sql).pl().to_dicts()


AZURE_FILTER = Raw(
    status=400,
    body={
        "error": {
            "message": "The response was filtered due to the prompt triggering the content management policy.",
            "type": None,
            "param": "prompt",
            "code": "content_filter",
            "status": 400,
            "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {}},
        }
    },
)
# By sample: the step that meets it, what it meets, the message, the metrics that rest on the step.
LASTING: Mapping[str, tuple[str, Canned, str, tuple[str, ...]]] = {
    "berth-2": ("classify", Inject(fault="refusal"), "the model refused: I cannot help", ("answer_correctness",)),
    "berth-4": ("rank", Inject(fault="content_filter"), "content filter stopped the reply", ("context_precision",)),
    "berth-5": ("attribute", AZURE_FILTER, "content filter: The response was", ("context_recall", "faithfulness")),
    "berth-7": ("rank", Inject(fault="context_length_exceeded"), "too long for the model", ("context_precision",)),
    "berth-9": ("classify", Raw(status=413, body="<html>413 Too Large</html>"), "too long", ("answer_correctness",)),
}


def test_what_lasts_of_one_sample_is_sent_once_named_and_leaves_the_others_alone(
    place: Place, endpoint: Endpoint
) -> None:
    write_dataset(place.folder, make_rows(12), "berths.jsonl")

    def break_for(asked: Asked) -> Canned:
        found = re.search(r"at berth (\d+)\?", asked.blocks.get("question", ""))
        step, canned, _, _ = LASTING.get(f"berth-{found[1]}" if found else "", ("", None, "", ()))
        return canned if step == asked.kind else None

    endpoint.configure(script=dict.fromkeys(("classify", "attribute", "rank"), break_for))
    ended = place.call("run", "berths.jsonl", *OPTIONS, "--json")
    assert (ended.status, ended.document["status"]) == (3, "incomplete"), ended.stdout + ended.stderr
    unscored = read(place, "select sample_id, metric, reason, detail from unscored order by all")
    expected = [(sample, metric) for sample, (_, _, _, metrics) in LASTING.items() for metric in metrics]
    assert [(row["sample_id"], row["metric"]) for row in unscored] == sorted(expected)
    assert {row["reason"] for row in unscored} == {"judge_failed"}
    assert all(LASTING[row["sample_id"]][2] in row["detail"] for row in unscored)
    refused = read(
        place, "select sample_id, step, attempts, error from llm_calls where status = 'refused' order by all"
    )
    steps = {"attribute": ("attribute_answer", "attribute_ground_truth")}
    assert [(row["sample_id"], row["step"], row["attempts"]) for row in refused] == [
        (sample, name, 1) for sample, (step, _, _, _) in LASTING.items() for name in steps.get(step, (step,))
    ]
    assert len(read(place, "select 1 from llm_calls where status <> 'cached'")) == endpoint.stats.requests[CHAT]
    assert read(place, "select count(*) as n from llm_calls where status = 'error'") == [{"n": 0}]


def test_a_stopped_run_reports_its_cause_once_and_resumes_when_it_is_fixed(place: Place, endpoint: Endpoint) -> None:
    """A quota that is used up, after which the same run completes."""
    write_dataset(place.folder, make_rows(20), "berths.jsonl")
    endpoint.configure(faults={"insufficient_quota": 1.0})
    quota = place.call("run", "berths.jsonl", *OPTIONS, "--warehouse", "quota.duckdb")
    assert quota.status == 3, quota.stderr
    _, line = quota.stderr.splitlines()  # after the line about the columns
    assert "says the quota for openai:judge is used up" in line
    assert "add credit or raise it there" in line
    found = re.search(r"^next: evalhouse resume (\S+).*   \(first correct that; ", quota.stdout, re.MULTILINE)
    assert found is not None, quota.stdout
    assert endpoint.stats.requests[CHAT] <= CONCURRENCY
    (failed,) = read(place, "select status from runs", "quota.duckdb")
    assert failed["status"] == "failed"
    assert {row["unscored_reason"] for row in read(place, "select unscored_reason from scores", "quota.duckdb")} <= {
        "cancelled",
        "judge_failed",
    }

    endpoint.configure(faults={})
    resumed = place.call("resume", found[1], "--warehouse", "quota.duckdb", "--json")
    assert (resumed.status, resumed.document["status"]) == (0, "completed"), resumed.stdout + resumed.stderr
    assert endpoint.stats.duplicates_answered == 0
    assert read(place, "select count(*) as n from scores where value is null", "quota.duckdb") == [{"n": 0}]
