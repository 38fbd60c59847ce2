"""Runs against a provider that breaks: passing faults are waited out, lasting ones are named, all are recorded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import place_at, write_dataset
from cli_process import Finished, Place
from endpoint import Asked, Canned, Endpoint, Inject, Raw, running_endpoint
from endpoint_replies import ID_FAULTS, Fault

KEY = "sk-test-77d0c1be42"
CHAT = "/v1/chat/completions"
METRICS = ("answer_correctness", "context_recall", "context_precision", "faithfulness")

N_SAMPLES = 24
MANY_SAMPLES = 300
CONCURRENCY = 16
# What is recorded of each; a fence and prose are read as they come.
MESSAGES: Mapping[Fault, str | None] = {
    "rate_limit": "status 429: Rate limit reached.",
    "server_error": "status 500: The server had an error",
    "unavailable": "status 503: The engine is overloaded.",
    "reset": "ClientPayloadError",
    "hang": "no reply within",
    "truncated": "no complete JSON object",
    "fence": None,
    "prose": None,
    "missing_id": "no usable verdict for",
    "doubled_id": "came more than once",
    "invented_id": None,
    "unknown_label": "no usable verdict for",
    "empty": "the reply was empty",
    "length": "the reply was cut off at the model's output limit",
}
LOST: tuple[Fault, ...] = ("rate_limit", "server_error", "unavailable", "reset", "hang")  # nothing to keep of them


def make_rows(number: int) -> list[dict[str, Any]]:
    """Parcels of a made-up post office: two statements each side, five contexts, of which two help."""
    rows = []
    for place in range(1, number + 1):
        town, weight = f"Ostermoor{place}", place * 3 + 1
        rows.append(
            {
                "id": f"parcel-{place}",
                "question": f"Where does parcel {place} go, and what does it weigh?",
                "answer": f"Parcel {place} goes to {town}. It was weighed at {weight} grams by clerk Pell{place}.",
                "ground_truth": f"Parcel {place} goes to {town}. Its weight on the slip is {weight} grams.",
                "contexts": [
                    f"The book says that parcel {place} goes to {town}.",
                    "Stamps are sold at the second window.",
                    f"On the slip the weight of parcel {place} is {weight} grams.",
                    "The horses are fed at noon.",
                    f"Clerk Pell{place} works on Thursdays.",
                ],
            }
        )
    return rows


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(expected_key=KEY, models=("judge",), retry_after=0.05) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path, endpoint: Endpoint) -> Place:
    return place_at(tmp_path, prefect_home, endpoint.base_url, key=KEY)


def options_for(*more: str) -> tuple[str, ...]:
    return ("--judge", "openai:judge", "--metrics", ",".join(METRICS), "--concurrency", str(CONCURRENCY), *more)


def read(place: Place, sql: str, name: str = "evalhouse.duckdb") -> list[dict[str, Any]]:
    with duckdb.connect(str(place.folder / name), read_only=True) as connection:
        return connection.sql(sql).pl().to_dicts()


def count_missing(place: Place) -> list[dict[str, Any]]:
    """Scores that are neither a value nor a reason with words to it, and missing ones."""
    return read(
        place,
        f"""
        with expected as (
            select run_samples.run_id, sample_id, metric
            from run_samples cross join (select unnest({list(METRICS)}) as metric)
        )
        select expected.sample_id, expected.metric, unscored_reason, unscored.detail
        from expected
        left join scores using (run_id, sample_id, metric)
        left join unscored using (run_id, sample_id, metric)
        where value is null and (unscored_reason is distinct from 'judge_failed' or coalesce(unscored.detail, '') = '')
        """,
    )


def assert_every_request_is_on_record(place: Place, endpoint: Endpoint) -> None:
    """Check that the endpoint's counts and llm_calls agree, each with its error and what came."""
    calls = read(place, "select status, error, reply, request, attempts from llm_calls where status <> 'cached'")
    assert len(calls) == endpoint.stats.requests[CHAT]
    assert all(call["request"] and call["attempts"] >= 1 for call in calls)
    # The verdicts that a usable reply left out are recorded with it.
    left_out = {call["error"] for call in calls if call["status"] == "ok"} - {None}
    assert all("incomplete: " in message or message == MESSAGES["length"] for message in left_out)
    assert all(call["error"] for call in calls if call["status"] != "ok")
    n_lost = sum(call["reply"] is None for call in calls)
    assert n_lost == count_late(place, endpoint) + sum(endpoint.stats.faults[fault] for fault in LOST)
    assert endpoint.stats.duplicates_answered <= count_late(place, endpoint)


def count_late(place: Place, endpoint: Endpoint) -> int:
    """Answers that came too late without any hanging: none, but for a machine that stops for seconds."""
    (late,) = read(place, "select count(*) as n from llm_calls where error like 'no reply within%'")
    return int(late["n"]) - endpoint.stats.faults["hang"]


def assert_faults_are_named(place: Place, endpoint: Endpoint) -> None:
    """Each recorded error is one of the table's, and distinct messages came as often as their fault."""
    errors = Counter(row["error"] for row in read(place, "select error from llm_calls where error is not null"))
    known = [message for message in MESSAGES.values() if message]
    assert [error for error in errors if not any(message in error for message in known)] == []
    for fault in ("rate_limit", "server_error", "unavailable", "reset", "empty", "length"):
        message = MESSAGES[fault]
        assert message is not None
        n_named = sum(number for error, number in errors.items() if message in error)
        assert n_named == endpoint.stats.faults[fault], fault
    assert KEY not in str(errors)


def mix(share: float, *, slow: float = 1.0) -> dict[Fault, float]:
    """Return all faults alike, but `slow` for a refused rate and a hang, for which all requests wait."""
    weights = {fault: slow if fault in ("rate_limit", "hang") else 1.0 for fault in MESSAGES}
    return {fault: share * weight / sum(weights.values()) for fault, weight in weights.items()}


@pytest.mark.slow
def test_with_one_fault_in_twenty_requests_every_sample_is_scored(place: Place, endpoint: Endpoint) -> None:
    write_dataset(place.folder, make_rows(MANY_SAMPLES), "parcels.jsonl")
    endpoint.configure(faults=mix(0.05), seed=5)
    ended = place.call("run", "parcels.jsonl", *options_for("--timeout", "3", "--json"))
    assert ended.status == 0, ended.stdout + ended.stderr
    assert ended.document["status"] == "completed"
    means = ended.document["metrics"]
    assert {name: (means[name]["n_scored"], means[name]["n_unscored"]) for name in METRICS} == dict.fromkeys(
        METRICS, (MANY_SAMPLES, 0)
    )
    assert set(MESSAGES) - set(endpoint.stats.faults) <= ID_FAULTS, "faults that any request can show came up"
    assert set(endpoint.stats.faults) & ID_FAULTS
    assert_every_request_is_on_record(place, endpoint)
    assert_faults_are_named(place, endpoint)


def test_with_faults_in_two_of_five_requests_every_sample_is_scored_or_has_a_reason(
    place: Place, endpoint: Endpoint
) -> None:
    write_dataset(place.folder, make_rows(N_SAMPLES), "parcels.jsonl")
    endpoint.configure(faults=mix(0.4, slow=0.25), seed=6)
    ended = place.call("run", "parcels.jsonl", *options_for("--timeout", "2", "--attempts", "2", "--json"))
    unscored = read(place, "select distinct sample_id from scores where value is null")
    assert unscored, "two attempts are too few for all of them"
    assert len(unscored) < N_SAMPLES / 3
    assert (ended.status, ended.document["status"]) == (3, "incomplete"), ended.stdout + ended.stderr
    assert count_missing(place) == []
    assert_every_request_is_on_record(place, endpoint)
    assert_faults_are_named(place, endpoint)

    endpoint.configure(faults={})
    resumed = place.call("resume", ended.document["run_id"], "--json")
    assert (resumed.status, resumed.document["status"]) == (0, "completed"), resumed.stdout + resumed.stderr
    assert read(place, "select count(*) as n from scores where value is null") == [{"n": 0}]


# What lasts, of one sample


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
    "parcel-2": ("classify", Inject(fault="refusal"), "the model refused: I cannot help", ("answer_correctness",)),
    "parcel-4": ("rank", Inject(fault="content_filter"), "content filter stopped the reply", ("context_precision",)),
    "parcel-5": ("attribute", AZURE_FILTER, "content filter: The response was", ("context_recall", "faithfulness")),
    "parcel-7": ("rank", Inject(fault="context_length_exceeded"), "too long for the model", ("context_precision",)),
    "parcel-9": ("classify", Raw(status=413, body="<html>413 Too Large</html>"), "too long", ("answer_correctness",)),
}


def test_what_lasts_of_one_sample_is_sent_once_named_and_leaves_the_others_alone(
    place: Place, endpoint: Endpoint
) -> None:
    write_dataset(place.folder, make_rows(12), "parcels.jsonl")

    def break_for(asked: Asked) -> Canned:
        found = re.search(r"parcel (\d+) go", asked.blocks.get("question", ""))
        step, canned, _, _ = LASTING.get(f"parcel-{found[1]}" if found else "", ("", None, "", ()))
        return canned if step == asked.kind else None

    endpoint.configure(script=dict.fromkeys(("classify", "attribute", "rank"), break_for))
    ended = place.call("run", "parcels.jsonl", *options_for("--json"))
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


# What lasts, of all


def assert_stopped(ended: Finished, message: str, hint: str) -> str:
    """Check for one message with the fix and how to resume; return the run's id."""
    assert ended.status == 3, ended.stderr
    _, line = ended.stderr.splitlines()  # after the line about the columns
    assert message in line
    assert hint in line
    assert "Traceback" not in ended.stdout
    found = re.search(r"^next: evalhouse resume (\S+).*   \(first correct that; ", ended.stdout, re.MULTILINE)
    assert found is not None, ended.stdout
    return found[1]


def test_a_stopped_run_reports_its_cause_once_and_resumes_when_it_is_fixed(place: Place, endpoint: Endpoint) -> None:
    """A quota that is used up, after which the same run completes."""
    write_dataset(place.folder, make_rows(20), "parcels.jsonl")
    endpoint.configure(faults={"insufficient_quota": 1.0})
    quota = place.call("run", "parcels.jsonl", *options_for("--warehouse", "quota.duckdb"))
    run_id = assert_stopped(quota, "says the quota for openai:judge is used up", "add credit or raise it there")
    assert endpoint.stats.requests[CHAT] <= CONCURRENCY
    (failed,) = read(place, "select status from runs", "quota.duckdb")
    assert failed["status"] == "failed"
    assert {row["unscored_reason"] for row in read(place, "select unscored_reason from scores", "quota.duckdb")} <= {
        "cancelled",
        "judge_failed",
    }

    endpoint.configure(faults={})
    resumed = place.call("resume", run_id, "--warehouse", "quota.duckdb", "--json")
    assert (resumed.status, resumed.document["status"]) == (0, "completed"), resumed.stdout + resumed.stderr
    assert endpoint.stats.duplicates_answered == 0
    assert read(place, "select count(*) as n from scores where value is null", "quota.duckdb") == [{"n": 0}]
