"""A judge per step, as a user names them: at the command line, in a suite, by a variable, from Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import make_rows, place_at, write_dataset
from cli_process import Place
from endpoint import Endpoint, running_endpoint

from evalhouse.flows.preparing.request import resolve_settings
from evalhouse.flows.preparing.suites import load_suite
from evalhouse.warehouse.messages import name_setting, settings_as_arguments

MIXED = "openai:judge,classify=openai:other,attribute=lexical"
METRICS = "factual_f1,faithfulness,context_precision"
ALL_LEXICAL = "openai:judge,extract=lexical,classify=lexical,attribute=lexical,rank=lexical"
SUITE = """
dataset = "berths.jsonl"
metrics = ["factual_f1", "faithfulness", "context_precision"]
[judges]
default = "openai:judge"
classify = "openai:other"
attribute = "lexical"
"""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(models=("judge", "other")) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path, endpoint: Endpoint) -> Place:
    (tmp_path / "berths.toml").write_text(SUITE)
    return place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=3)


def read(place: Place, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(place.folder / "evalhouse.duckdb"), read_only=True) as connection:
        return connection.sql(sql).fetchall()


@pytest.mark.slow  # some ten seconds
def test_a_step_with_another_judge_is_asked_alone_and_is_another_yardstick(place: Place, endpoint: Endpoint) -> None:
    chat = "/v1/chat/completions"
    base = place.call("run", "berths.jsonl", "--judge", "openai:judge", "--metrics", METRICS, "--json").document
    n_before = endpoint.stats.requests[chat]
    dry = place.call("run", "berths.toml", "--dry-run", "--json").document
    mixed = place.call("run", "berths.toml", "--json").document
    # Classifying is asked of the other one, attributing not at all; the rest is stored.
    assert (base["judge"], mixed["judge"]) == ("openai:judge", MIXED)
    assert endpoint.stats.requests[chat] - n_before == 3
    assert {name: usage["requests"] for name, usage in dry["judges"].items()} == {
        "openai:judge": 0, "openai:other": 3, "lexical": 3,
    }  # fmt: skip
    assert {(step["step"], step["judge"]) for step in dry["steps"]} >= {("classify", "openai:other")}
    asked = "select distinct step, judge, model, status from llm_calls where run_id = '{}' order by step"
    assert read(place, asked.format(mixed["run_id"])) == [
        ("attribute_answer", "lexical", "lexical-5", "ok"),
        ("classify", "openai:other", "other", "ok"),
        ("extract_answer", "openai:judge", "judge", "cached"),
        ("extract_ground_truth", "openai:judge", "judge", "cached"),
        ("rank", "openai:judge", "judge", "cached"),
    ]
    assert read(place, f"select judge, config ->> 'judge' from runs where run_id = '{mixed['run_id']}'") == [
        (MIXED, MIXED)
    ]
    # The same again, by a variable: every reply is stored already.
    again = place.with_variables(EVALHOUSE_JUDGE="attribute=lexical,openai:judge,classify=openai:other")
    assert again.call("run", "berths.jsonl", "--metrics", METRICS, "--json").document["judge"] == MIXED
    assert endpoint.stats.requests[chat] - n_before == 3
    check_yardsticks(place, base["run_id"], mixed["run_id"])


def check_yardsticks(place: Place, base: str, mixed: str) -> None:
    compared = place.call("compare", base, mixed, "--json").document
    assert compared["warnings"][0] == f"the runs differ in judge: openai:judge and {MIXED}"
    parts = {metric["metric"]: [part["name"] for part in metric["parts"]] for metric in compared["metrics"]}
    assert parts["context_precision"] == ["noise"]
    assert parts["factual_f1"] == parts["faithfulness"] == ["judge"]
    limits = ("--max-drop", "faithfulness=0.5", "--max-drop", "context_precision=0.5", "--against", base)
    gated = place.call("gate", mixed, *limits, "--json").document
    reasons = {check["metric"]: check["reason"] for check in gated["checks"] if check["kind"] == "max_drop"}
    assert reasons["faithfulness"] == "other_judge"
    assert reasons["context_precision"] != "other_judge"
    history = "select distinct judge, same_yardstick from score_history where metric = 'faithfulness' order by 1, 2"
    assert {("openai:judge", None), (MIXED, False)} <= set(read(place, history))
    assert f"judge {MIXED}" in place.call("show", mixed).stdout


def test_a_run_whose_judges_are_all_lexical_needs_no_key(tmp_path: Path, prefect_home: Path) -> None:
    write_dataset(tmp_path, make_rows(2), "berths.jsonl")
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    free = place.call("run", "berths.jsonl", "--judge", ALL_LEXICAL, "--metrics", METRICS, "--json")
    assert (free.status, free.document["calls"]["cost_usd"]) == (0, 0.0)
    needs_one = place.call("run", "berths.jsonl", "--judge", MIXED, "--metrics", METRICS)
    assert "OPENAI_API_KEY is not set" in needs_one.stderr


@pytest.mark.parametrize(("judge", "message"), [
    ("openai:a,clasify=lexical", "--judge: got 'openai:a,clasify=lexical'; unknown step 'clasify'"),
    ("openai:judge,classify=absent:make", "absent"),
])  # fmt: skip
def test_an_error_is_reported_before_anything_is_asked(
    place: Place, endpoint: Endpoint, judge: str, message: str
) -> None:
    refused = place.call("run", "berths.jsonl", "--judge", judge, "--metrics", METRICS)
    assert (refused.status, endpoint.stats.requests.total()) == (2, 0)
    assert message in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr


@pytest.mark.parametrize(("lines", "message"), [
    ('[judges]\nclasify = "lexical"', "line 2: judges: unknown step 'clasify'; did you mean classify?"),
    ('judge = "lexical"\n[judges]\nrank = "lexical"', "judges: there is a `judge` as well; write it as `default`"),
    ("[judges]\nrank = 3", "judges: no judge given for rank"),
    ('judges = "lexical"', "this is a table: write [judges] on a separate line"),
])  # fmt: skip
def test_a_suite_says_an_error_with_its_judges(place: Place, lines: str, message: str) -> None:
    (place.folder / "odd.toml").write_text(f'dataset = "berths.jsonl"\n{lines}\n')
    refused = place.call("run", "odd.toml")
    assert refused.status == 2
    assert message in refused.stderr


def test_a_default_that_is_named_above_replaces_the_judges_below(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite(place.folder / "berths.toml")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def resolve(judge: object, variable: str = "", *, suite: Any = suite) -> tuple[str, str]:  # noqa: ANN401
        monkeypatch.setenv("EVALHOUSE_JUDGE", variable)
        resolved = resolve_settings({"judge": judge, "dataset": "berths.jsonl"}, suite=suite)
        return resolved.settings.judge, resolved.origins["judge"]

    assert resolve(None) == (MIXED, "suite berths.toml")
    assert resolve("lexical") == ("lexical", "--judge")
    assert resolve({"rank": "m:f"}) == (f"{MIXED},rank=m:f", "--judge, suite berths.toml")
    assert resolve("attribute=openai:judge", "classify=m:f") == (
        "openai:judge,classify=m:f", "--judge, EVALHOUSE_JUDGE, suite berths.toml",
    )  # fmt: skip
    assert resolve("rank=m:f", suite=None) == (
        "lexical,rank=m:f", "default, because no OPENAI_API_KEY is set, --judge",
    )  # fmt: skip


def test_doctor_looks_at_every_judge(place: Place) -> None:
    found, known = (place.call("doctor", "--judge", names, "--json") for names in (f"{MIXED},rank=openai:gone", MIXED))
    judge, known_judge = (
        next(finding for finding in answer.document["findings"] if finding["what"].startswith("judge "))
        for answer in (found, known)
    )
    assert (found.status, judge["verdict"]) == (2, "wrong")
    assert "does not list 'gone'" in judge["detail"]
    assert known_judge["detail"].split("; ")[:3] == [
        "openai:judge: the endpoint lists it, with 1 others",
        "openai:other: the endpoint lists it, with 1 others",
        "lexical: built in: no model, no network, no key",
    ]


@pytest.mark.parametrize(("name", "value", "flag", "argument"), [
    ("judge", None, "--judge", "judge="),
    ("judge", "lexical", "--judge lexical", 'judge="lexical"'),
    ("judge", "grade=openai:MODEL", "--judge grade=openai:MODEL", 'judge="grade=openai:MODEL"'),
    ("mapping", "question=input.text", "--map question=input.text", 'mapping={"question": "input.text"}'),
    ("max_wait_s", None, "--max-wait", "max_wait_s="),
    ("budget_usd", None, "--budget", "budget_usd="),
    ("noise_share", "0.05", "--noise 0.05", 'noise_share="0.05"'),
])  # fmt: skip
def test_settings_are_written_as_their_caller_gives_them(
    name: str, value: str | None, flag: str, argument: str
) -> None:
    assert name_setting(name, value) == flag
    with settings_as_arguments():
        assert name_setting(name, value) == argument
    assert name_setting(name, value) == flag
