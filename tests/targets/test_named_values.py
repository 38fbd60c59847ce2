"""Headers, webhooks and keys that name Prefect's Secret blocks and variables: filled in, not stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import Place
from endpoint import running_endpoint
from in_process import prefect_here
from kept_open import let_go
from target_server import answer_json, serving

from evalhouse.tasks.models.providers import read_key_variable
from evalhouse.tasks.settings.environment import nothing_looked_up

VALUE = "t0ken-of-the-block"


@pytest.fixture(scope="module")
def variables(prefect_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a server that has a block and a variable."""
    from prefect.blocks.system import Secret  # noqa: PLC0415  # a second, for some tests only
    from prefect.variables import Variable  # noqa: PLC0415

    variables = {"PREFECT_HOME": str(prefect_home)}
    folder = tmp_path_factory.mktemp("saving")
    with prefect_here(folder, Place(folder=folder, variables=variables).environment()):
        Secret(value=VALUE).save("bot-token", overwrite=True)
        Variable.set("tenant", "north", overwrite=True)
    return variables


@pytest.fixture
def place(tmp_path: Path, variables: dict[str, str]) -> Place:
    """A folder with one question, on that server."""
    (tmp_path / "questions.jsonl").write_text('{"id": "q1", "question": "When?", "ground_truth": "At six."}\n')
    return Place(folder=tmp_path, variables=variables)


def write_suite(place: Place, url: str, authorization: str, *, more: str = "") -> None:
    (place.folder / "bot.toml").write_text(
        f'dataset = "questions.jsonl"\njudge = "lexical"\nmetrics = ["factual_f1"]\nwarehouse = "own.duckdb"\n'
        f'[target]\nurl = "{url}"\nattempts = 1\n'
        f'headers = {{ Authorization = "{authorization}", X-Tenant = "${{variable:tenant}}" }}\n{more}'
    )


def test_block_and_variable_are_sent_and_the_secret_is_not_stored(place: Place) -> None:
    with serving(answer_json({"answer": "At six."})) as bot:
        hook = f'[notify]\nwebhook = "{bot.root_url}/${{secret:bot-token}}"\non = ["completed"]\n'
        write_suite(place, bot.url, "Bearer ${secret:bot-token}", more=hook)
        done = place.call("run", "bot.toml", "--json")
    assert done.status == 0, done.stderr
    asked, notified = bot.requests
    assert (asked.headers["authorization"], asked.headers["x-tenant"]) == (f"Bearer {VALUE}", "north")
    assert notified.path == f"/{VALUE}"
    assert VALUE not in done.stdout + done.stderr
    let_go()
    kept = [path for path in place.folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if VALUE.encode() in path.read_bytes()]


def test_a_block_that_is_not_there_is_named(place: Place) -> None:
    write_suite(place, "http://127.0.0.1:9/ask", "Bearer ${secret:missing}")
    done = place.call("run", "bot.toml")
    assert done.status == 2
    assert "header Authorization needs Prefect's Secret block 'missing', which is not set; set it" in done.stderr
    assert "Traceback" not in done.stderr


def test_judges_key_may_be_a_block_and_is_not_stored(place: Place) -> None:
    write_suite(place, "http://127.0.0.1:9/ask", "Bearer x")
    with running_endpoint(expected_key=VALUE) as endpoint:
        named = {"OPENAI_API_KEY": "${secret:bot-token}", "OPENAI_BASE_URL": endpoint.base_url}
        keyed = place.with_variables(**named)
        judged = ("--judge", "openai:gpt-4.1-mini", "--embeddings", "openai:text-embedding-3-small", "--limit", "2")
        command = (
            "run",
            "sample",
            *judged,
            "--metrics",
            "semantic_similarity,faithfulness",
            "--warehouse",
            "own.duckdb",
        )
        away = keyed.with_variables(PREFECT_API_URL="http://127.0.0.1:9/api")
        dry = away.call(*command, "--dry-run")
        done = keyed.call(*command)
        refused = keyed.with_variables(OPENAI_API_KEY="${secret:missing}").call(*command)
    assert (dry.status, done.status) == (0, 0), dry.stderr + done.stderr
    assert VALUE not in done.stdout + done.stderr
    let_go()
    kept = [path for path in place.folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if VALUE.encode() in path.read_bytes()]
    assert refused.status == 2
    assert "OPENAI_API_KEY requires Prefect's Secret block 'missing', which is not set; set it" in refused.stderr


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "OPENAI_EMBEDDINGS_API_KEY", "ANTHROPIC_API_KEY"])
def test_a_key_is_read_from_the_server_once_and_others_are_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("evalhouse.tasks.settings.environment.read_named", lambda key: asked.append(key) or "sk-kept")
    for value in ("${HOME}", "sk-plain", "x${secret:part}"):
        monkeypatch.setenv(name, value)
        assert read_key_variable(name) == value
    monkeypatch.setenv(name, "${variable:team-key}")
    with nothing_looked_up():
        assert read_key_variable(name) == "${variable:team-key}"
    assert [read_key_variable(name), read_key_variable(name)] == ["sk-kept", "sk-kept"]
    assert asked == ["variable:team-key"]
