"""Errors and replies in the shapes that providers, gateways and proxies really send, each met alone.

Which of them does what is from their documentation and from what their users report: OpenRouter's errors within a
status 200, Gemini's errors in a list and waits in words, FastAPI's `detail`, Ollama's errors as a text, Azure's filter,
Groq's misfits, reasoning models that only think, proxies that answer with a page.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Asked, Endpoint, Raw, running_endpoint
from live_runs import lay_out_run, make_settings, point_to, read_calls
from provider_calls import GOOD, KEY, ask, make_question

from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import FatalJudgeError, JudgeFailed
from evalhouse.tasks.models.dialect import translate_error

CHAT = "/v1/chat/completions"
PAGE = "<!DOCTYPE html><html><head><title>x</title><style>p {}</style></head><body><h1>{}</h1><hr>nginx</body></html>"


def complete(message: object, finish: str = "stop", **more: object) -> Raw:
    return Raw(body={"choices": [{"message": message, "finish_reason": finish, **more}]})


def fail(status: int, message: str, **members: object) -> Raw:
    """Return an error as OpenAI words it, also one within a status 200."""
    return Raw(status=status, body={"error": {"message": message, **members}})


def write_page(title: str, status: int) -> Raw:
    return Raw(status=status, body=PAGE.replace("{}", title), headers={"Content-Type": "text/html; charset=utf-8"})


PASSING: list[tuple[Raw, str]] = [
    (write_page("502 Bad Gateway", 502), "status 502: 502 Bad Gateway"),
    (Raw(status=500), "status 500: (no message)"),
    (Raw(status=500, body={"error": "llama runner process has ended"}), "status 500: llama runner process"),
    (fail(408, "timed out", code=408), "status 408: timed out"),
    (Raw(status=499, body="client closed"), "status 499: client closed"),
    (Raw(status=529, body={"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
     "status 529: Overloaded"),
    (Raw(body={"error": {"message": "Upstream is busy", "code": 502}, "id": "g"}), "status 502: Upstream is busy"),
    (Raw(body={"choices": None, "error": {"message": "Sorry", "code": 429}}), "status 429: Sorry"),
    (fail(200, "Sorry", code="odd"), "status 500: Sorry"),
    (fail(200, "Provider returned error", code=503, metadata={"raw": "no GPU"}),
     "status 503: Provider returned error: no GPU"),
    (complete({"content": ""}, "error", error={"code": 502, "message": "Idle"}), "status 502: Idle"),
    (complete({"content": '{"statements": []'}, "error"), "broke the reply off with an error"),
    (fail(400, "Failed to generate JSON.", code="json_validate_failed"),
     "did not fit the schema: Failed to generate JSON."),
    (Raw(body=PAGE), "sent what is not valid JSON: '<!DOCTYPE html>"),
    (Raw(body={"choices": []}), "sent what is not a completion"),
    (Raw(body={"choices": [None]}), "sent what is not a completion"),
    (Raw(body={"choices": [{}]}), "the reply was empty"),
    (Raw(body="null"), "sent what is not a completion"),
    (complete({"content": 7}), "the reply was empty"),
    (Raw(status=429, body={"error": "slow down"}, headers={"Retry-After": "0.01"}), "status 429: slow down"),
    (Raw(status=429, body={"error": {"message": "soon"}}, headers={"retry-after-ms": "10"}), "status 429: soon"),
    (Raw(body=""), "sent what is not valid JSON: ''"),
    (Raw(body='data: {"choices": []}\n\ndata: [DONE]\n\n', headers={"Content-Type": "text/event-stream"}),
     "sent a stream, which was not asked for: 'data:"),
    (complete("It is red."), "the reply was empty"),
    (complete(None), "the reply was empty"),
]  # fmt: skip


@pytest.mark.usefixtures("quick_backoff")
async def test_what_passes_is_asked_again(endpoint: Endpoint, tmp_path: Path) -> None:
    """Each in a separate run, all in one warehouse."""
    for number, (answer, expected) in enumerate(PASSING, 1):
        endpoint.reset()
        endpoint.configure(script={"extract": [answer]})
        (value,) = await ask(tmp_path, make_question(number), run_id=f"run-{number}")
        assert value == ["It is red.", f"Its number is {number}."], expected
        assert endpoint.stats.requests[CHAT] == 2, expected
    calls = read_calls(tmp_path)
    for number, (_, expected) in enumerate(PASSING, 1):
        first, second = (call for call in calls if call["run_id"] == f"run-{number}")
        assert (first["status"], second["status"]) == ("error", "ok"), expected
        assert expected in first["error"]


@pytest.mark.parametrize(("body", "headers", "wait_s"), [
    ({"error": {"message": "Rate limit. Please try again in 80ms."}}, {}, 0.08),
    ({"error": {"message": "Limit reached. Please try again in 1m2.5s. Visit us."}}, {}, 62.5),
    ({"error": {"message": "Please try again in 6h0m0s."}}, {}, 21600.0),
    ({"error": {"message": "Please retry in 34.07s."}}, {"retry-after": "2"}, 2.0),
    ({"error": {"message": "Please retry later."}},
     {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:27:30 GMT"}, 30.0),
    ({"error": {"message": "Please retry later."}}, {"retry-after": "soon"}, None),
    ({"error": {"message": "Please retry later."}}, {"retry-after": "inf"}, None),
    ({"error": {"message": "Please retry later."}}, {"retry-after": "-5"}, 0.0),
    ({"error": {"message": "Please retry later."}},
     {"x-ratelimit-remaining": "9" * 500, "x-ratelimit-reset": "ms" * 99}, None),
    ({"error": {"message": "Please retry after 26 seconds."}}, {}, 26.0),
    ({"error": {"message": "Rate limit reached, please wait 2 minutes 5 seconds"}}, {"retry-after": "nan"}, 125.0),
])  # fmt: skip
def test_a_wait_is_read_from_the_header_or_else_from_the_words(
    body: dict[str, Any], headers: dict[str, str], wait_s: float | None
) -> None:
    error = RuntimeError("limited")
    error.status_code, error.headers = 429, headers  # type: ignore[attr-defined]  # as the errors of clients have them
    error.message = body["error"]["message"]  # type: ignore[attr-defined]
    translated = translate_error(error, name="openai:judge", endpoint="http://x/v1")
    assert getattr(translated, "retry_after_s", "no") == (None if wait_s is None else pytest.approx(wait_s))


@pytest.mark.usefixtures("quick_backoff")
async def test_geminis_list_of_errors_is_a_rate_limit_with_its_wait(endpoint: Endpoint, tmp_path: Path) -> None:
    message = "You exceeded your current quota, please check your plan and billing details. Please retry in 0.05s."
    body = orjson.dumps([{"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED"}}]).decode()
    endpoint.configure(script={"extract": [Raw(status=429, body=body)]})
    assert await ask(tmp_path) == [GOOD]
    assert message in read_calls(tmp_path)[0]["error"]


LASTING: list[tuple[Raw, str]] = [
    (write_page("413 Request Entity Too Large", 413), "too long for the model: 413 Request Entity Too Large"),
    (fail(429, "Request too large for gpt on tokens per min (TPM): Limit 9"),
     "too long for the endpoint's limit of tokens a minute"),
    (fail(400, "the request exceeds the available context size"), "too long for the model"),
    (Raw(status=400, body={"object": "error", "message": "longer than the maximum model length of 9", "code": 400}),
     "too long for the model"),
    (fail(403, "Your input was flagged by moderation", code=403), "content filter: Your input was flagged"),
    (fail(200, "requires moderation", code=403), "content filter: requires moderation"),
    (fail(400, "bad", code="content_filter"), "content filter: bad"),
    (fail(400, "no such field"), "status 400: no such field"),
    (write_page("Attention Required!", 403), "status 403: Attention Required!"),
    (Raw(status=422, body={"detail": [{"loc": ["body", "messages"], "msg": "bad"}]}), 'status 422: [{"loc":'),
]  # fmt: skip


async def test_what_lasts_fails_the_question_with_its_reason_and_is_sent_once(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """Each in a separate run, all in one warehouse."""
    for number, (answer, expected) in enumerate(LASTING, 1):
        endpoint.reset()
        endpoint.configure(script={"extract": [answer]})
        questions = (make_question(2 * number), make_question(2 * number + 1))
        error, good = await ask(tmp_path, *questions, run_id=f"run-{number}")
        assert isinstance(error, JudgeFailed), expected
        assert expected in str(error)
        assert good == ["It is red.", f"Its number is {2 * number + 1}."], expected
    calls = read_calls(tmp_path)
    for number, (_, expected) in enumerate(LASTING, 1):
        statuses = [call["status"] for call in calls if call["run_id"] == f"run-{number}"]
        assert statuses == ["refused", "ok"], expected


async def test_an_option_refused_in_fastapis_words_is_left_out(tmp_path: Path) -> None:
    detail = [{"type": "extra_forbidden", "loc": ["body", "response_format"], "msg": "Extra inputs are not permitted"}]

    def refuse(asked: Asked) -> Raw | None:
        return Raw(status=422, body={"detail": detail}) if "response_format" in asked.body else None

    with running_endpoint(script={"extract": refuse}) as endpoint:
        point_to(endpoint.base_url, KEY)
        assert await ask(tmp_path, make_question(1), make_question(2)) == [GOOD, ["It is red.", "Its number is 2."]]
    assert [call["status"] for call in read_calls(tmp_path)] == ["error", "error", "error", "ok", "ok"]


HOPELESS: list[tuple[Raw, str, str]] = [
    (fail(429, "You exceeded it", type="insufficient_quota", code=None),
     "quota for openai:judge is used up (status 429)", "add credit"),
    (fail(400, "Hard limit", code="billing_hard_limit_reached"),
     "quota for openai:judge is used up (status 400): Hard limit", "add credit"),
    (fail(429, "Too poor", type="exceeded_current_quota_error"), "used up (status 429): Too poor", "add credit"),
    (fail(400, "Your account is in good standing?", code="Arrearage"), "used up (status 400)", "add credit"),
    (Raw(status=403, body={"code": 30001, "message": "Sorry, insufficient account balance"}), "used up (status 403)",
     "add credit"),
    (fail(200, "No credits", code=402), "requires payment", "add credit"),
    (fail(400, "x is not a valid model ID"), "does not know", "evalhouse doctor"),
    (Raw(status=401, body={"detail": "Unauthorized"}), "refused the key", "check OPENAI_API_KEY"),
    (fail(403, "Project has no access to it"), "refused the key", "check OPENAI_API_KEY"),
    (Raw(status=404, body={"error": "model 'judge' not found, try pulling it first"}), "does not know openai:judge",
     "evalhouse doctor"),
    (fail(404, "It does not exist.", code="DeploymentNotFound"), "does not know openai:judge", "evalhouse doctor"),
    (write_page("404 Not Found", 404), "answers no chat requests (status 404): 404 Not", "check OPENAI_BASE_URL"),
    (Raw(status=404, body={"detail": "Not Found"}), "(status 404): Not Found", "which usually ends in /v1"),
    (Raw(status=301, headers={"Location": "https://models.example/v1/chat/completions"}),
     "redirects to https://models.example/v1/chat/completions (status 301)", "set OPENAI_BASE_URL"),
    (Raw(status=307, headers={"Location": "/v2/chat/completions"}), "/v2/chat/completions (status 307)",
     "set OPENAI_BASE_URL"),
]  # fmt: skip


async def test_what_can_never_work_stops_the_run_with_what_to_do(endpoint: Endpoint, tmp_path: Path) -> None:
    """Each in a separate run, all in one warehouse."""
    for number, (answer, expected, hint) in enumerate(HOPELESS, 1):
        endpoint.reset()
        endpoint.configure(script={"extract": lambda _, answer=answer: answer}, latency=0.02)
        async with lay_out_run(tmp_path, make_settings(concurrency=4), run_id=f"run-{number}") as live_run:
            asked = [live_run.asker.ask(make_question(place), read_statements) for place in range(30)]
            results = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(result) for result in results} == {FatalJudgeError}, expected
        (message,) = {str(result) for result in results}
        assert expected in message
        assert hint in message
        assert KEY not in message
        n_sent = endpoint.stats.requests[CHAT]
        assert n_sent <= 4, expected
        assert sum(call["run_id"] == f"run-{number}" for call in read_calls(tmp_path)) == n_sent, expected


async def test_an_endpoint_that_refuses_the_first_requests_all_alike_is_asked_no_more(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """Such as a model that only streams, or an unknown required option."""
    answer = fail(400, "This model only supports stream mode")
    endpoint.configure(script={"extract": lambda _: answer}, latency=0.02)
    async with lay_out_run(tmp_path, make_settings(concurrency=4)) as live_run:
        asked = [live_run.asker.ask(make_question(number), read_statements) for number in range(60)]
        results = await asyncio.gather(*asked, return_exceptions=True)
    fatal = {str(result) for result in results if isinstance(result, FatalJudgeError)}
    assert len(fatal) == 1
    assert "answered none of the first 8 requests; the last: status 400: This model only supports" in fatal.pop()
    assert endpoint.stats.requests[CHAT] < 20


async def test_an_endpoint_that_has_answered_may_refuse_as_often_as_it_likes(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    def refuse_later(asked: Asked) -> Raw | None:
        return None if asked.blocks["question"] == "Number 0?" else write_page("Attention Required!", 403)

    endpoint.configure(script={"extract": refuse_later})
    results = await ask(tmp_path, *(make_question(number) for number in range(14)))
    assert [isinstance(result, JudgeFailed) for result in results] == [False] + [True] * 13
