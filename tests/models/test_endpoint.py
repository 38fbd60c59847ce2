"""The local endpoint met by real clients, in what other tests rest on: replies, counters, limits and faults."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import openai
import pytest
from endpoint import Asked, Endpoint, Inject, Raw, running_endpoint
from endpoint_replies import Fault

CLASSIFY = {
    "question": "Who built the bridge, and when?",
    "answer_statements": "[A1] The bridge was built by Ada Korr.\n[A2] It opened on a Sunday.",
    "ground_truth_statements": "[G1] Ada Korr built the bridge.\n[G2] 大桥在一九零三年建成。",
}
ATTRIBUTE = {
    "question": "Who built the bridge?",
    "contexts": "[C1] In 1903 the engineer Ada Korr built the iron bridge.\n[C2] Herons nest on the bank.",
    "answer_statements": "[A1] Ada Korr built the bridge.",
    "ground_truth_statements": "[G1] The bridge is painted green.",
}
RANK = {
    "question": "大桥是谁建的？",
    "ground_truth": "大桥由工程师柯尔建造。",
    "contexts": "[C1] 河边有很多鹭鸟。\n[C2] 工程师柯尔在河上建造了大桥。",
}
EXTRACT = {"question": "What about the bridge?", "text": "Ada built it. It is 3.5 km long! 它很长。很美？"}


def make_body(blocks: Mapping[str, str], schema: str = "", nonce: str = "0a1b2c") -> dict[str, Any]:
    """A chat request with an instruction, one worked example and the blocks; without a schema when it has no name."""
    data = "\n".join(f"<{name} {nonce}>\n{text}\n</{name} {nonce}>" for name, text in blocks.items())
    messages = [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": "<text ff00>\nAn example. Of two sentences.\n</text ff00>"},
        {"role": "assistant", "content": "{}"},
        {"role": "user", "content": data},
    ]
    schema_format = {"type": "json_schema", "json_schema": {"name": schema, "schema": {"type": "object"}}}
    return {"model": "judge", "messages": messages} | ({"response_format": schema_format} if schema else {})


def open_client(endpoint: Endpoint, key: str = "k") -> openai.OpenAI:
    """OpenAI's own client, without its retries and, for speed, without the certificates of the system."""
    http_client = openai.DefaultHttpxClient(verify=False)
    return openai.OpenAI(base_url=endpoint.base_url, api_key=key, max_retries=0, timeout=5, http_client=http_client)


def ask_openai(endpoint: Endpoint, body: Mapping[str, Any], key: str = "k") -> Any:  # noqa: ANN401  # a ChatCompletion
    with open_client(endpoint, key) as client:
        return client.chat.completions.create(**body)


def ask_reply(endpoint: Endpoint, body: Mapping[str, Any]) -> dict[str, Any]:
    content = ask_openai(endpoint, body).choices[0].message.content
    reply: dict[str, Any] = json.loads(content)
    return reply


def embed_openai(endpoint: Endpoint, **request: Any) -> list[list[float]]:  # noqa: ANN401
    with open_client(endpoint) as client:
        return [item.embedding for item in client.embeddings.create(model="embedder", **request).data]


async def post_all(endpoint: Endpoint, bodies: list[dict[str, Any]], path: str = "/chat/completions") -> list[Raw]:
    """All bodies at once over HTTP; the answers in the order of the bodies."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(body: dict[str, Any]) -> Raw:
            async with session.post(endpoint.base_url + path, json=body) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Raw(status=response.status, body=await response.text(), headers=headers)

        return await asyncio.gather(*map(post, bodies))


def label_by_id(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {verdict["id"]: verdict.get("label", verdict.get("contexts")) for verdict in reply["verdicts"]}


def number_bodies(count: int) -> list[dict[str, Any]]:
    return [make_body({"question": f"Number {i}?", "text": f"Text {i}."}, "extract") for i in range(count)]


# Replies


@pytest.mark.parametrize("by_schema", [True, False])
def test_each_prompt_gets_its_reply_shape(by_schema: bool) -> None:
    def body(kind: str, blocks: Mapping[str, str]) -> dict[str, Any]:
        return make_body(blocks, kind if by_schema else "")

    with running_endpoint() as endpoint:
        sentences = ["Ada built it.", "It is 3.5 km long!", "它很长。", "很美？"]
        assert ask_reply(endpoint, body("extract", EXTRACT)) == {"statements": sentences}
        classified = label_by_id(ask_reply(endpoint, body("classify", CLASSIFY)))
        assert classified == {"A1": "TP", "A2": "FP", "G1": "TP", "G2": "FN"}
        assert label_by_id(ask_reply(endpoint, body("attribute", ATTRIBUTE))) == {"A1": ["C1"], "G1": []}
        assert label_by_id(ask_reply(endpoint, body("rank", RANK))) == {"C1": "not_useful", "C2": "useful"}
        assert endpoint.stats.kinds == {"extract": 1, "classify": 1, "attribute": 1, "rank": 1}


def test_schema_name_wins_over_block_names_and_other_requests_get_text() -> None:
    with running_endpoint() as endpoint:
        assert "statements" in ask_reply(endpoint, make_body(EXTRACT | {"contexts": "[C1] x"}, "extract"))
        message = {"model": "bot", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello there"}]}]}
        assert "Hello there" in ask_openai(endpoint, message).choices[0].message.content
        assert endpoint.stats.kinds == {"extract": 1, "other": 1}


def test_empty_blocks_give_empty_replies() -> None:
    empty = {"question": "Q?", "answer_statements": "", "ground_truth_statements": ""}
    with running_endpoint() as endpoint:
        assert ask_reply(endpoint, make_body(empty)) == {"verdicts": []}
        assert ask_reply(endpoint, make_body(empty | {"contexts": ""})) == {"verdicts": []}
        assert ask_reply(endpoint, make_body({"question": "Q?", "text": ""})) == {"statements": []}


# Embeddings and models


def test_models_are_listed() -> None:
    with running_endpoint(models=("a", "b")) as endpoint, open_client(endpoint) as client:
        assert [model.id for model in client.models.list()] == ["a", "b"]
        assert endpoint.stats.looked_at == {"/v1/models": 1}


# Counters


async def test_requests_tokens_and_times_are_counted_exactly() -> None:
    body = make_body(EXTRACT, "extract")
    before = time.time()
    with running_endpoint(keep_bodies=True) as endpoint:
        usages = [json.loads(str((await post_all(endpoint, [body]))[0].body))["usage"] for _ in range(3)]
        await post_all(endpoint, [{"model": "e", "input": "abcdefgh"}], "/embeddings")
        stats = endpoint.stats
    assert stats.requests == {"/v1/chat/completions": 3, "/v1/embeddings": 1}
    assert stats.statuses == {200: 4}
    assert (stats.duplicates, stats.duplicates_answered) == (2, 2)
    characters = [len(message["content"]) for message in body["messages"]]
    assert usages[0]["prompt_tokens"] == math.ceil(sum(characters) / 4)
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [
        0,
        math.ceil(sum(characters[:-1]) / 4),
        math.ceil(sum(characters[:-1]) / 4),
    ]
    assert stats.prompt_tokens == sum(usage["prompt_tokens"] for usage in usages) + 2
    assert stats.completion_tokens == sum(usage["completion_tokens"] for usage in usages) > 0
    assert stats.cached_tokens == 2 * math.ceil(sum(characters[:-1]) / 4)
    assert before <= (stats.first_request_at or 0) < (stats.last_request_at or 0) <= time.time()
    assert stats.bodies == [body, body, body, {"model": "e", "input": "abcdefgh"}]


async def test_repeated_prefix_is_cached_for_one_model_only() -> None:
    first, second = number_bodies(2)
    with running_endpoint() as endpoint:
        await post_all(endpoint, [first, second | {"model": "another"}])
        assert endpoint.stats.cached_tokens == 0
        await post_all(endpoint, [second])
        assert endpoint.stats.cached_tokens > 0


async def test_equal_requests_in_flight_at_once_are_paid_twice() -> None:
    with running_endpoint(latency=0.1) as endpoint:
        answers = await post_all(endpoint, number_bodies(1) * 3)
        assert (endpoint.stats.duplicates, endpoint.stats.duplicates_answered) == (2, 2)
    assert len({json.loads(str(raw.body))["id"] for raw in answers}) == 3
    assert len({raw.headers["x-request-id"] for raw in answers}) == 3


async def test_in_flight_is_counted_and_bodies_are_kept_on_request_only() -> None:
    with running_endpoint(latency=0.6) as endpoint:
        asking = asyncio.create_task(post_all(endpoint, number_bodies(20)))
        await asyncio.sleep(0.3)
        assert endpoint.stats.in_flight == 20
        await asking
        assert (endpoint.stats.in_flight, endpoint.stats.max_in_flight) == (0, 20)
        assert (endpoint.stats.duplicates, endpoint.stats.bodies) == (0, [])


# Latency and limits


async def test_in_flight_limit_answers_429_to_what_is_above_it() -> None:
    with running_endpoint(latency=0.5, max_in_flight=3, retry_after=0.25) as endpoint:
        answers = await post_all(endpoint, number_bodies(10))
        refused = [raw for raw in answers if raw.status == 429]
        assert len(refused) == 7
        assert {raw.headers["retry-after"] for raw in refused} == {"0.25"}
        assert json.loads(str(refused[0].body))["error"]["code"] == "rate_limit_exceeded"
        assert endpoint.stats.statuses == {200: 3, 429: 7}
        assert (endpoint.stats.max_in_flight, endpoint.stats.faults) == (3, {})


async def test_requests_per_minute_open_again_after_the_time_named() -> None:
    with running_endpoint(rpm=2, rpm_window_s=0.4) as endpoint:
        answers = [(await post_all(endpoint, [body]))[0] for body in number_bodies(3)]
        assert [raw.status for raw in answers] == [200, 200, 429]
        assert answers[2].headers["retry-after"] == "1"
        await asyncio.sleep(0.41)
        assert (await post_all(endpoint, number_bodies(1)))[0].status == 200


# Faults on the wire


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
