"""Values of the environment in a request are seen by the application alone."""

import json

import orjson
import pytest
from target_house import ask_once, pose
from target_server import Canned, Sent, answer_json, serving

from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.collection import make_target
from evalhouse.tasks.targets.protocol import TargetError


def _echo(sent: Sent) -> Canned:
    """The headers three times over, as different servers spell them."""
    escaped = json.dumps(sent.headers).replace("/", "\\/").encode()
    return Canned(status=400, body=[escaped, orjson.dumps(sent.headers), repr(sent.headers).encode()])


@pytest.mark.parametrize("secret", ["tok-123456-abcdef", 'q"uo\\te/d+sec ret&<x>', "密钥密钥密钥密钥", "s" * 3000])
async def test_values_of_the_environment_are_in_no_error(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOT_TOKEN", secret)
    monkeypatch.setenv("TENANT", "acme-corporation")
    headers = {"X-Session": "${TENANT}", "Authorization": "Token ${BOT_TOKEN}"}
    with serving(_echo, answer_json({"answer": {"t": f"your token {secret}"}})) as server:
        target = make_target(TargetSettings(url=server.url, headers=headers, attempts=1))
        responses = [await target.ask(pose()) for _ in range(2)]
        await target.close()
    for response in responses:
        assert response.error is not None
        for shown in (secret, secret[:12], json.dumps(secret)[1:-1][:12], repr(secret)[1:-1][:12], "acme-corp"):
            assert shown not in response.error
    assert server.requests[0].headers["authorization"] == f"Token {secret}"


async def test_a_secret_that_the_bot_repeats_is_not_in_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOT_TOKEN", "tok-123456-abcdef")
    monkeypatch.setenv("TENANT", "acme-corporation")
    body_found = {"answer": "acme-corporation uses tok-123456-abcdef.", "contexts": ["tok-123456-abcdef"]}
    with serving(answer_json(body_found)) as server:
        response = await ask_once(
            url=server.url, headers={"X-Tenant": "${TENANT}", "Authorization": "Bearer ${BOT_TOKEN}"}
        )
    assert (response.answer, response.contexts) == ("acme-corporation uses [BOT_TOKEN].", ("[BOT_TOKEN]",))


def test_a_variable_that_is_not_set_is_named_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TargetSettings(url="http://localhost:1/ask", headers={"X-Key": "${BOT_KEY}"})
    monkeypatch.delenv("BOT_KEY", raising=False)
    with pytest.raises(TargetError, match=r"header X-Key needs the environment's BOT_KEY, which is not set; set it"):
        make_target(settings)
    monkeypatch.setenv("BOT_KEY", "secret\nX-Admin: 1")
    with pytest.raises(TargetError, match="BOT_KEY, which has a line break in it") as caught:
        make_target(settings)
    assert "secret" not in str(caught.value)
