"""Every fault and refusal of the local endpoint, as it arrives at a client."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import openai
import pytest
from endpoint import Asked, Endpoint, Inject, Raw, running_endpoint
from endpoint_replies import FAULTS, Fault
from test_endpoint import (
    ATTRIBUTE,
    CLASSIFY,
    EXTRACT,
    RANK,
    ask_openai,
    ask_reply,
    embed_openai,
    label_by_id,
    make_body,
    number_bodies,
    open_client,
    post_all,
)

IDS = ["A1", "A2", "G1", "G2"]


def send_raw(endpoint: Endpoint, body: dict[str, Any]) -> socket.socket:
    """A connection on which the request has been written and nothing read."""
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", int(endpoint.root_url.rpartition(":")[2])), timeout=5)
    connection.sendall(head.encode() + content)
    return connection


def read_until_reset(endpoint: Endpoint, body: dict[str, Any]) -> bytes:
    received = b""
    with send_raw(endpoint, body) as connection:
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except ConnectionResetError:
            return received
    raise AssertionError("the connection was closed in order")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "not within 5 s"
        time.sleep(0.01)


# Faults on the wire


@pytest.mark.parametrize(
    ("fault", "error", "code", "retry_after"),
    [
        ("rate_limit", openai.RateLimitError, "rate_limit_exceeded", "2"),
        ("insufficient_quota", openai.RateLimitError, "insufficient_quota", None),
        ("server_error", openai.InternalServerError, None, None),
        ("unavailable", openai.InternalServerError, None, "2"),
        ("context_length_exceeded", openai.BadRequestError, "context_length_exceeded", None),
    ],
)
def test_faults_with_a_status(
    fault: Fault, error: type[openai.APIStatusError], code: str | None, retry_after: str | None
) -> None:
    statuses = {"server_error": 500, "unavailable": 503, "context_length_exceeded": 400}
    with running_endpoint(faults={fault: 1}, retry_after=2) as endpoint:
        with pytest.raises(error) as caught:
            ask_openai(endpoint, make_body(CLASSIFY))
        with pytest.raises(error):
            embed_openai(endpoint, input="text")
        assert endpoint.stats.faults == {fault: 2}
        assert endpoint.stats.statuses == {statuses.get(fault, 429): 2}
        assert endpoint.stats.prompt_tokens == 0
    assert caught.value.code == code
    assert caught.value.response.headers.get("retry-after") == retry_after


def test_reset_sends_half_of_the_body_and_then_a_reset() -> None:
    with running_endpoint(faults={"reset": 1}) as endpoint:
        received = read_until_reset(endpoint, make_body(CLASSIFY))
        head, _, half = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = int(
            next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split()[1]
        )
        assert len(half) == length // 2
        with pytest.raises(openai.APIConnectionError):
            ask_openai(endpoint, make_body(CLASSIFY))
        with pytest.raises(openai.APIConnectionError):
            embed_openai(endpoint, input="text")
        assert endpoint.stats.faults == {"reset": 3}
        assert (endpoint.stats.duplicates_answered, endpoint.stats.in_flight) == (0, 0)
        assert endpoint.stats.prompt_tokens == 0
        endpoint.configure(faults={})
        assert ask_reply(endpoint, make_body(CLASSIFY))


def test_hang_lasts_until_the_client_closes() -> None:
    with running_endpoint(faults={"hang": 1}) as endpoint:
        with send_raw(endpoint, make_body(CLASSIFY)) as connection:
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            assert (endpoint.stats.in_flight, endpoint.stats.statuses) == (1, {})
        wait_until(lambda: endpoint.stats.in_flight == 0)
        assert endpoint.stats.statuses == {499: 1}
        assert endpoint.stats.faults == {"hang": 1}


def test_stopping_ends_hanging_requests_and_waits_for_none() -> None:
    with running_endpoint(faults={"hang": 1}) as endpoint:
        connections = [send_raw(endpoint, body) for body in number_bodies(5)]
        wait_until(lambda: endpoint.stats.in_flight == 5)
        started = time.monotonic()
    assert time.monotonic() - started < 2
    for connection in connections:
        assert connection.recv(1) == b""
        connection.close()


async def test_a_client_that_gives_up_during_the_latency_is_counted() -> None:
    with running_endpoint(latency=5) as endpoint:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await post_all(endpoint, number_bodies(3))
        await asyncio.to_thread(wait_until, lambda: endpoint.stats.in_flight == 0)
        assert endpoint.stats.statuses == {499: 3}


# Faults of content


@pytest.mark.parametrize("fault", ["truncated", "length"])
def test_cut_content(fault: Fault) -> None:
    with running_endpoint() as endpoint:
        whole = ask_openai(endpoint, make_body(CLASSIFY)).choices[0]
        endpoint.configure(faults={fault: 1})
        cut = ask_openai(endpoint, make_body(CLASSIFY)).choices[0]
        assert endpoint.stats.faults == {fault: 1}
    assert whole.finish_reason == "stop"
    assert whole.message.content.startswith(cut.message.content)
    assert 0 < len(cut.message.content) < len(whole.message.content)
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut.message.content)
    assert cut.finish_reason == ("length" if fault == "length" else "stop")


@pytest.mark.parametrize("blocks", [EXTRACT, CLASSIFY])
def test_content_wrapped_in_a_fence_or_after_prose(blocks: dict[str, str]) -> None:
    with running_endpoint() as endpoint:
        whole = ask_openai(endpoint, make_body(blocks)).choices[0].message.content
        endpoint.configure(faults={"fence": 1})
        assert ask_openai(endpoint, make_body(blocks)).choices[0].message.content == f"```json\n{whole}\n```"
        endpoint.configure(faults={"prose": 1})
        prose = ask_openai(endpoint, make_body(blocks)).choices[0].message.content
    assert prose.endswith(whole)
    assert "{" not in prose.removesuffix(whole).strip()
    assert prose != whole


def test_empty_refusal_and_content_filter() -> None:
    with running_endpoint(faults={"empty": 1}) as endpoint:
        empty = ask_openai(endpoint, make_body(CLASSIFY)).choices[0]
        assert (empty.message.content, empty.finish_reason) == ("", "stop")
        endpoint.configure(faults={"refusal": 1})
        refused = ask_openai(endpoint, make_body(CLASSIFY)).choices[0].message
        assert refused.content is None
        assert refused.refusal
        endpoint.configure(faults={"content_filter": 1})
        filtered = ask_openai(endpoint, make_body(CLASSIFY)).choices[0]
        assert (filtered.message.content, filtered.finish_reason) == ("", "content_filter")
        assert endpoint.stats.faults == {"empty": 1, "refusal": 1, "content_filter": 1}
        assert endpoint.stats.duplicates_answered == 0


def ask_ids(fault: Fault, blocks: dict[str, str]) -> list[str]:
    with running_endpoint(faults={fault: 1}) as endpoint:
        ids = [verdict["id"] for verdict in ask_reply(endpoint, make_body(blocks))["verdicts"]]
        assert endpoint.stats.faults == {fault: 1}
    return ids


def test_ids_missing_doubled_and_invented() -> None:
    assert ask_ids("missing_id", CLASSIFY) == IDS[1:]
    assert ask_ids("doubled_id", CLASSIFY) == ["A1", *IDS]
    assert ask_ids("invented_id", CLASSIFY) == [*IDS, "A999"]
    assert ask_ids("missing_id", RANK) == ["C2"]
    assert ask_ids("invented_id", ATTRIBUTE) == ["A1", "G1", "A999"]


def test_unknown_labels_and_unknown_contexts() -> None:
    with running_endpoint(faults={"unknown_label": 1}) as endpoint:
        labels = label_by_id(ask_reply(endpoint, make_body(CLASSIFY)))
        assert labels["A1"] not in {"TP", "FP", "FN"}
        assert [labels[item_id] for item_id in IDS[1:]] == ["FP", "TP", "FN"]
        assert label_by_id(ask_reply(endpoint, make_body(RANK)))["C1"] not in {"useful", "not_useful"}
        assert label_by_id(ask_reply(endpoint, make_body(ATTRIBUTE))) == {"A1": ["C999"], "G1": []}


def test_faults_that_cannot_show_are_left_out_and_not_counted() -> None:
    with running_endpoint(faults={"missing_id": 1}) as endpoint:
        assert ask_reply(endpoint, make_body(EXTRACT))["statements"]
        assert ask_reply(endpoint, make_body({"answer_statements": "", "ground_truth_statements": ""})) == {
            "verdicts": []
        }
        endpoint.configure(faults={"fence": 1})
        assert embed_openai(endpoint, input="text")
        assert endpoint.stats.faults == {}
        assert endpoint.stats.statuses == {200: 3}


# Chance and script


async def collect_outcomes(seed: int, count: int = 300) -> list[str]:
    """One word per request in order of arrival, with three faults at 10 % each."""
    with running_endpoint(seed=seed, faults={"rate_limit": 0.1, "empty": 0.1, "server_error": 0.1}) as endpoint:
        outcomes = []
        async with aiohttp.ClientSession(endpoint.root_url) as session:
            for body in number_bodies(count):
                async with session.post("/v1/chat/completions", json=body) as response:
                    reply = await response.json()
                    empty = response.status == 200 and not reply["choices"][0]["message"]["content"]
                    outcomes.append("empty" if empty else str(response.status))
        seen = {"rate_limit": outcomes.count("429"), "empty": outcomes.count("empty")}
        assert endpoint.stats.faults == seen | {"server_error": outcomes.count("500")}
    return outcomes


async def test_faults_come_by_seed_and_ordinal_at_their_probability() -> None:
    first = await collect_outcomes(1)
    assert await collect_outcomes(1) == first
    assert await collect_outcomes(2) != first
    assert all(15 <= first.count(outcome) <= 50 for outcome in ("429", "empty", "500"))


async def test_reset_of_the_counters_starts_chance_and_script_anew() -> None:
    with running_endpoint(seed=4, faults={"server_error": 0.5}, script={"extract": [{}]}) as endpoint:

        async def ask() -> list[int]:
            return [(await post_all(endpoint, [body]))[0].status for body in number_bodies(12)]

        first = await ask()
        assert len(set(first)) == 2
        endpoint.reset()
        assert await ask() == first


@pytest.mark.parametrize("fault", sorted(FAULTS - {"hang", "reset"}))
async def test_every_fault_can_be_scripted(fault: Fault) -> None:
    with running_endpoint(script={"classify": [Inject(fault=fault), None]}) as endpoint:
        spoiled, good = [(await post_all(endpoint, [make_body(CLASSIFY)]))[0] for _ in range(2)]
        assert endpoint.stats.faults == {fault: 1}
        assert (endpoint.stats.duplicates, endpoint.stats.duplicates_answered) == (1, 0)
    assert good.status == 200
    assert spoiled.body != good.body


async def test_a_script_is_used_in_turn_and_then_the_own_reply() -> None:
    script = {
        "extract": [
            "not JSON",
            {"statements": ["Canned."]},
            Inject(fault="unavailable"),
            None,
            Raw(status=502, body="<p>"),
        ]
    }
    with running_endpoint(script=script) as endpoint:
        answers = [(await post_all(endpoint, [body]))[0] for body in number_bodies(6)]
        await post_all(endpoint, [make_body(CLASSIFY)])
        assert endpoint.stats.faults == {"unavailable": 1}
    assert [raw.status for raw in answers] == [200, 200, 503, 200, 502, 200]
    contents = [json.loads(str(raw.body))["choices"][0]["message"]["content"] for raw in answers if raw.status == 200]
    assert contents == [
        "not JSON",
        '{"statements":["Canned."]}',
        '{"statements":["Text 3."]}',
        '{"statements":["Text 5."]}',
    ]
    assert answers[4].body == "<p>"


async def test_a_script_may_be_a_function_of_what_was_asked() -> None:
    def reply(asked: Asked) -> dict[str, Any] | None:
        wanted = list(asked.items("answer_statements"))
        return {"seen": wanted} if asked.blocks["question"] == "Mine?" else None

    with running_endpoint(script={"classify": reply, "embeddings": [{"data": []}]}) as endpoint:
        assert ask_reply(endpoint, make_body(CLASSIFY | {"question": "Mine?"})) == {"seen": ["A1", "A2"]}
        assert "verdicts" in ask_reply(endpoint, make_body(CLASSIFY))
        embedded = await post_all(endpoint, [{"model": "e", "input": "x"}] * 2, "/embeddings")
    assert sorted(len(json.loads(str(raw.body))["data"]) for raw in embedded) == [0, 1]


# Refusals


def test_a_wrong_key_is_401_everywhere() -> None:
    with running_endpoint(expected_key="right") as endpoint:
        with pytest.raises(openai.AuthenticationError) as caught:
            ask_openai(endpoint, make_body(CLASSIFY), key="wrong")
        assert caught.value.code == "invalid_api_key"
        assert "wrong" not in str(caught.value)
        with open_client(endpoint, key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
            with pytest.raises(openai.AuthenticationError):
                client.embeddings.create(model="e", input="text")
        assert ask_openai(endpoint, make_body(CLASSIFY), key="right").choices
        assert endpoint.stats.statuses == {401: 3, 200: 1}


def test_an_unknown_model_is_404() -> None:
    with running_endpoint(models=("other",)) as endpoint:
        with pytest.raises(openai.NotFoundError) as caught:
            ask_openai(endpoint, make_body(CLASSIFY))
        assert caught.value.code == "model_not_found"
        assert ask_openai(endpoint, make_body(CLASSIFY) | {"model": "other"}).model == "other"


def test_json_schema_can_be_unsupported() -> None:
    with running_endpoint(no_json_schema=True) as endpoint:
        with pytest.raises(openai.BadRequestError, match="response_format") as caught:
            ask_openai(endpoint, make_body(CLASSIFY, "classify"))
        assert caught.value.param == "response_format"
        assert ask_reply(endpoint, make_body(CLASSIFY) | {"response_format": {"type": "json_object"}})
        assert ask_reply(endpoint, make_body(CLASSIFY))


def test_temperature_can_be_unsupported() -> None:
    with running_endpoint(no_temperature=True) as endpoint:
        with pytest.raises(openai.BadRequestError, match="temperature") as caught:
            ask_openai(endpoint, make_body(CLASSIFY) | {"temperature": 0})
        assert (caught.value.param, caught.value.code) == ("temperature", "unsupported_value")
        assert ask_reply(endpoint, make_body(CLASSIFY) | {"temperature": 1})


def test_a_prompt_above_the_context_limit_is_refused() -> None:
    long = make_body(EXTRACT | {"text": "word " * 400}, "extract")
    with running_endpoint(context_limit=200) as endpoint:
        with pytest.raises(openai.BadRequestError) as caught:
            ask_openai(endpoint, long)
        assert caught.value.code == "context_length_exceeded"
        assert ask_reply(endpoint, make_body(EXTRACT, "extract"))
        assert endpoint.stats.faults == {}


async def test_what_cannot_be_read_or_is_not_served_is_said() -> None:
    with running_endpoint() as endpoint:
        assert [raw.status for raw in await post_all(endpoint, [{"model": "m"}, {"messages": []}])] == [400, 400]
        streamed = (await post_all(endpoint, [make_body(CLASSIFY) | {"stream": True}]))[0]
        async with aiohttp.ClientSession(endpoint.root_url) as session:
            broken = await session.post("/v1/chat/completions", data=b"{")
            nowhere = await session.get("/v1/completions")
            assert (broken.status, nowhere.status) == (400, 404)
            assert "POST /v1/chat/completions" in (await nowhere.json())["error"]["message"]
        assert streamed.status == 400
        assert endpoint.stats.requests == {"/v1/chat/completions": 4}
