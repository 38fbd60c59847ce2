"""`evalhouse doctor` and `evalhouse prompts`: what is configured, from where, and what is wrong with it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from cli_house import write_metric
from cli_process import Ask, Finished
from endpoint import running_endpoint
from prompt_files import ALL_NAMES, read_content, write_prompt

KEY = "sk-doctor-55b1f0c2"


def find(finished: Finished, what: str) -> dict[str, Any]:
    (finding,) = [item for item in finished.document["findings"] if item["what"].startswith(what)]
    return dict(finding)


def test_a_fresh_machine_is_well(ask: Ask) -> None:
    finished = ask("doctor")
    assert finished.status == 0
    assert finished.lines[0] == "Findings"  # what is wrong comes first, and defaults come when they are asked for
    assert "wrong" not in finished.stdout
    settings = finished.lines[finished.lines.index("Settings") :]
    judge = next(line for line in settings if line.startswith("judge "))
    assert judge.split()[1] == "lexical"
    assert "default, because no OPENAI_API_KEY is set" in judge
    assert "timeout_s" not in finished.stdout
    whole = ask("doctor", "--all")
    assert all(word in whole.stdout for word in ("timeout_s", "SSL_CERT_FILE", "duckdb"))


def test_where_each_value_came_from(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALHOUSE_TEMPERATURE", "none")
    monkeypatch.setenv("EVALHOUSE_TIMEOUT", "7.5")
    finished = ask("doctor", "--judge", "lexical", "--json")
    settings = finished.document["settings"]
    assert settings["judge"] == {"value": "lexical", "from": "--judge", "variable": "EVALHOUSE_JUDGE"}
    assert settings["temperature"] == {
        "value": None, "from": "EVALHOUSE_TEMPERATURE", "variable": "EVALHOUSE_TEMPERATURE",
    }  # fmt: skip
    assert settings["timeout_s"]["value"] == 7.5
    assert settings["concurrency"] == {"value": 16, "from": "default", "variable": "EVALHOUSE_CONCURRENCY"}
    assert "timeout_s" in ask("doctor").stdout


@pytest.mark.parametrize(("variable", "value", "what", "message"), [
    ("EVALHOUSE_WAREHOUSE", "harbour.jsonl", "warehouse", "harbour.jsonl"),
    ("EVALHOUSE_WAREHOUSE", "harbour.jsonl/x.duckdb", "warehouse", "harbour.jsonl"),
    ("EVALHOUSE_WAREHOUSE", "mysql://x", "warehouse", "names no warehouse"),
    ("EVALHOUSE_JUDGE", "gpt", "judge", "unknown judge 'gpt'"),
    ("EVALHOUSE_JUDGE", "openai:gpt", "judge", "OPENAI_API_KEY is not set"),
    ("EVALHOUSE_JUDGE", "no_such_module:make", "judge", "cannot import"),
    ("EVALHOUSE_EMBEDDINGS", "word2vec", "embeddings", "unknown embeddings"),
    ("EVALHOUSE_LANGUAGE", "fr", "prompts", "unknown language"),
    ("EVALHOUSE_PROMPTS", "absent", "prompts", "is not a folder"),
    ("EVALHOUSE_METRICS", "factual_f2", "metrics", "'factual_f2'"),
    ("EVALHOUSE_METRIC_FILES", "absent", "metrics", "no folder of metric files"),
    ("EVALHOUSE_PRICES", "absent.yaml", "prices", "cannot read the price file"),
    ("EVALHOUSE_JUGDE", "lexical", "variables", "did you mean EVALHOUSE_JUDGE?"),
    ("PREFECT_API_URL", "http://127.0.0.1:9/api", "prefect", "does not answer"),
    ("PREFECT_API_URL", "nonsense", "prefect", "does not answer"),
])  # fmt: skip
def test_an_error_is_found(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, *, variable: str, value: str, what: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    finished = ask("doctor", "--json")
    assert finished.status == 2
    finding = find(finished, what)
    assert finding["verdict"] == "wrong"
    assert message in finding["detail"]
    others = [item for item in finished.document["findings"] if item["what"] != finding["what"]]
    assert all(item["verdict"] != "wrong" for item in others)


def test_an_endpoint_is_asked_for_its_models(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with running_endpoint(expected_key=KEY, models=("judge", "other")) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
        well = ask("doctor", "--judge", "openai:judge", "--json")
        assert (well.status, find(well, "judge")["verdict"]) == (0, "ok")
        assert find(well, "prices")["verdict"] == "note", "no price is known for it"
        unknown = ask("doctor", "--judge", "openai:unknown", "--json")
        assert unknown.status == 2
        assert "unknown" in find(unknown, "judge")["detail"]
        endpoint.configure(expected_key="another")
        refused = ask("doctor", "--judge", "openai:judge", "--json")
        assert refused.status == 2
        assert "OPENAI_API_KEY" in find(refused, "judge")["detail"]
        assert (endpoint.stats.looked_at.keys(), endpoint.stats.requests) == ({"/v1/models"}, {}), "nothing that costs"
    for finished in (well, unknown, refused):
        assert KEY not in finished.stdout + finished.stderr
        assert finished.document["environment"]["OPENAI_API_KEY"] == "set"


def test_an_endpoint_is_tried_when_asked_to_and_the_price_is_reported_first(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("priced: [1000, 2000]\n", encoding="utf-8")
    monkeypatch.setenv("EVALHOUSE_PRICES", str(prices))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with running_endpoint(expected_key=KEY) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
        rehearsed = ask("doctor", "--judge", "openai:priced", "--try", "--dry-run", "--json")
        assert rehearsed.document["try"]["cost_usd"] > 0.1
        assert "cost $" in rehearsed.stderr
        assert "/v1/chat/completions" not in endpoint.stats.requests
        tried = ask("doctor", "--judge", "openai:unknown", "--try")
        assert "4 small requests to openai:unknown" in tried.stderr
        assert "cost unknown" in tried.stderr
        for words in ("Tried openai:unknown", "schema that names ids", "What a run will do"):
            assert words in tried.stdout
        assert endpoint.stats.requests["/v1/chat/completions"] == 4
        endpoint.configure(expected_key="another")
        refused = ask("doctor", "--judge", "openai:priced", "--try", "--json")
    assert refused.status == 2
    assert "OPENAI_API_KEY" in refused.document["try"][0]["problem"]
    assert KEY not in refused.stdout + refused.stderr + tried.stdout


def test_an_endpoint_that_is_down_is_reported(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    finished = ask("doctor", "--judge", "openai:judge", "--json")
    assert finished.status == 2
    assert find(finished, "judge")["verdict"] == "wrong"


def test_something_else_at_prefects_address_is_found(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_endpoint() as endpoint:
        monkeypatch.setenv("PREFECT_API_URL", endpoint.root_url)
        assert "status 404" in find(ask("doctor", "--json"), "prefect")["detail"]
        monkeypatch.setenv("PREFECT_API_URL", f"{endpoint.base_url}/models?")
        assert "not Prefect's API" in find(ask("doctor", "--json"), "prefect")["detail"]


def test_addresses_are_shown_without_their_credentials(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://someone:hunter2@proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://models.example/v1?api-key=hunter2")
    finished = ask("doctor", "--judge", "lexical", "--json")
    environment = finished.document["environment"]
    assert environment["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert environment["OPENAI_BASE_URL"] == "https://models.example/v1"
    assert environment["NO_PROXY"] == "127.0.0.1,localhost"
    assert "hunter2" not in finished.stdout + ask("doctor", "--judge", "lexical").stdout


def test_a_prompt_of_the_user_takes_the_place_of_ours(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = read_content("rank")
    content["description"] = "Whether a context is worth its place."
    write_prompt(tmp_path, content)
    assert "worth its place" in ask("prompts", "list", "--prompts", str(tmp_path)).stdout
    monkeypatch.setenv("EVALHOUSE_PROMPTS", str(tmp_path))
    assert "worth its place" in ask("prompts", "list").stdout
    checked = ask("prompts", "check", str(tmp_path))
    assert checked.status == 0
    assert checked.lines == [
        f"{len(ALL_NAMES)} prompts in en are sound: {', '.join(ALL_NAMES)}",
        f"in {tmp_path}: rank replaces the built-in one",
    ]


def test_own_metrics_are_tried(ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write_metric(tmp_path)
    monkeypatch.setenv("EVALHOUSE_METRIC_FILES", str(folder))
    assert find(ask("doctor", "--json"), "metrics")["verdict"] == "ok"
    path = folder / "answer_length.sql"
    path.write_text(path.read_text(encoding="utf-8").replace(" as value", " as valeu"), encoding="utf-8")
    finding = find(ask("doctor", "--json"), "metrics")
    assert finding["verdict"] == "wrong"
    assert finding["detail"].startswith(f"{path}: Binder Error: ")
