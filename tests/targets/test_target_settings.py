"""Invalid settings of a target are refused when they are read, before anything is asked."""

from typing import Any

import pytest
from pydantic import ValidationError

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


def test_a_body_of_text_is_json() -> None:
    settings = TargetSettings(url=URL, body='{"q": "{{question}}", "k": 3}')
    assert settings.body == {"q": "{{question}}", "k": 3}


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000/ask",
        "bot.example/ask",
        "ftp://bot.example/ask",
        "http://",
        "http://bot:http/ask",
        "http://[::1/",
        "",
    ],
)
def test_address_without_scheme_or_host_is_invalid(url: str) -> None:
    assert find_problem(url=url) == f"url: {url!r} is not an address; write it like http://localhost:8000/ask"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, ": give exactly one of url, callable and runnable; got none of them"),
        ({"url": URL, "callable": "a:b"}, ": give exactly one of url, callable and runnable; got url and callable"),
        ({"url": "http://me:pw@bot.example/"}, "url: a user and a password in the address would be kept on record"),
        ({"url": "http://bot.example/a b"}, "url: 'http://bot.example/a b' has white space in it"),
        ({"url": "http://{{metadata.host}}/ask"}, "url: the host of the address may not contain a mark"),
        ({"url": URL + "?q={{questoin}}"}, "url: unknown mark {{questoin}}; did you mean {{question}}?"),
        ({"url": URL + "?q={{wxyz}}"}, "unknown mark {{wxyz}}; known: {{question}}, {{sample_id}}, {{metadata.NAME}}"),
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
