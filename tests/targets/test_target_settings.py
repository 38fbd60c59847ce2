"""Settings of a target: invalid ones are refused when they are read; values may be in blocks and variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import Place
from endpoint import running_endpoint
from in_process import prefect_here
from kept_open import let_go
from pydantic import ValidationError
from target_server import answer_json, serving

from evalhouse.tasks.models.providers import read_key_variable
from evalhouse.tasks.settings.environment import nothing_looked_up
from evalhouse.tasks.settings.suite import TargetSettings

URL = "http://localhost:8000/ask"


def find_problem(**values: Any) -> str:  # noqa: ANN401
    """The one problem with these settings, after the name of its key."""
    with pytest.raises(ValidationError) as caught:
        TargetSettings(**values)
    (problem,) = caught.value.errors()
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


@pytest.mark.parametrize(
    "values",
    [
        {"url": URL},
        {"url": "https://bot.example/v1/{{sample_id}}?q={{ question }}&u={{metadata.user.name}}"},
        {"url": "http://[::1]:8000/ask"},
        {"url": URL + "?q={{question}}", "method": "GET"},
        {"url": URL, "method": "GET", "body": {"q": "{{question}}"}},
        {"url": URL, "body": '{"q": "{{question}}", "k": 3}'},
        {"url": URL, "body": {"q": ["a", {"b": "x {{question}} y"}], "price": "$5 {one}"}},
        {"url": URL, "headers": {"Authorization": "Bearer ${BOT_TOKEN}", "X-Client": "evalhouse $1"}},
        {"url": URL, "stream": "sse", "answer": "$.delta"},
        {"url": URL, "stream": "text"},
        {"callable": "bots.search:ask"},
        {"callable": "bot:Bot.ask", "concurrency": 8, "timeout_s": 5.0},
        {"runnable": "bot:chain"},
    ],
)
def test_sound_settings_are_taken_and_survive_being_kept(values: dict[str, Any]) -> None:
    settings = TargetSettings(**values)
    assert TargetSettings.model_validate_json(settings.model_dump_json()) == settings
    assert settings.body is None or "{{question}}" in str(settings.body.values()), "a text that is JSON is read"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, ": give exactly one of url, callable and runnable; got none of them"),
        ({"url": URL, "callable": "a:b"}, ": give exactly one of url, callable and runnable; got url and callable"),
        *(({"url": url}, f"url: {url!r} is not an address; write it like http://localhost:8000/ask") for url in (
            "localhost:8000/ask", "ftp://bot.example/ask", "http://", "http://bot:http/ask", "http://[::1/", "")),
        ({"url": "http://me:pw@bot.example/"}, "url: a user and a password in the address would be kept on record"),
        ({"url": "http://bot.example/a b"}, "url: 'http://bot.example/a b' has white space in it"),
        ({"url": "http://{{metadata.host}}/ask"}, "url: the host of the address may not contain a mark"),
        ({"url": URL + "?q={{questoin}}"}, "url: unknown mark {{questoin}}; did you mean {{question}}?"),
        ({"url": URL + "?q={{wxyz}}"}, "unknown mark {{wxyz}}; known: {{question}}, {{sample_id}}, "),
        ({"url": URL + "?key=${BOT_KEY}&q={{question}}"}, "names a variable of the environment, and those go"),
        ({"url": URL, "body": {"q": "{{question}}", "t": "{{top_k}}"}}, "body: unknown mark {{top_k}}; known: "),
        ({"url": URL, "body": {"q": "{{question}}", "m": "{{metadata.}}"}}, "body: unknown mark {{metadata.}}"),
        ({"url": URL, "body": {"q": "{{question}}", "{{x}}": 1}}, "body: unknown mark {{x}}"),
        ({"url": URL, "body": {"q": "{{question}}", "key": "${BOT_KEY}"}}, "body: '${BOT_KEY}' names a variable"),
        ({"url": URL, "body": "{{question}}"}, "body: a body that is text has to be JSON, with its marks"),
        ({"url": URL, "body": '{"q": {{question}}}'}, "body: a body that is text has to be JSON, with its marks"),
        ({"url": URL, "body": {"q": "the question"}}, "no request would hold its question; put the mark"),
        ({"url": URL, "method": "GET"}, "mark for it, {{question}}, into the url"),
        ({"url": URL, "headers": {"Authorization": "Bearer sk-123"}}, "header Authorization: its value would be"),
        ({"url": URL, "headers": {"x-api-key": "123"}}, "headers: header x-api-key: its value would be kept on record"),
        ({"url": URL, "headers": {"X-Token": "$BOT_TOKEN"}}, "write ${NAME} for a variable of the environment"),
        ({"url": URL, "headers": {"X-A": "${1}"}}, "headers: header X-A: ${1} names no variable of the environment"),
        ({"url": URL, "headers": {"X-A": "{{question}}"}}, "headers: header X-A: marks belong into body and url"),
        ({"url": URL, "headers": {"X-A": "1\r\nX-B: 2"}}, "headers: header X-A has a line break in it"),
        ({"url": URL, "headers": {"X A": "1"}}, "headers: 'X A' is not the name of a header"),
        ({"callable": "bot.ask"}, "callable: write it as module:name, like bots.search:ask"),
        ({"runnable": "bot:"}, "runnable: write it as module:name"),
        ({"callable": "bot:ask", "body": {"q": "{{question}}"}}, ": body would not be used with callable; leave it"),
        ({"runnable": "bot:chain", "answer": "$.x", "stream": "sse"}, "answer, stream would not be used with runnable"),
        ({"url": URL, "stream": "text", "answer": "$.x"}, ": answer would not be used with stream = 'text'"),
        ({"url": URL, "method": "DELETE"}, "method: Input should be 'GET', 'POST', 'PUT' or 'PATCH'"),
        ({"url": URL, "timeout_s": 0.0}, "timeout_s: Input should be greater than 0"),
        ({"url": URL, "attempts": 0}, "attempts: Input should be greater than or equal to 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(values: dict[str, Any], problem: str) -> None:
    assert problem in find_problem(**values)


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


@pytest.mark.slow
def test_judges_key_may_be_a_block_and_is_not_stored(place: Place) -> None:
    write_suite(place, "http://127.0.0.1:9/ask", "Bearer x")
    with running_endpoint(expected_key=VALUE) as endpoint:
        named = {"OPENAI_API_KEY": "${secret:bot-token}", "OPENAI_BASE_URL": endpoint.base_url}
        keyed = place.with_variables(**named)
        judged = ("--judge", "openai:gpt-4.1-mini", "--embeddings", "openai:text-embedding-3-small", "--limit", "2")
        metrics = ("--metrics", "semantic_similarity,faithfulness")
        command = ("run", "sample", *judged, *metrics, "--warehouse", "own.duckdb")
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
