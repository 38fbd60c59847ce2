"""Unusual or missing answers on the wire: readable replies are read, others are recorded and asked for again.

Below HTTP a server of plain bytes takes the endpoint's place: connections that end at the wrong moment, bodies that are
zipped or marked, untrusted certificates, invalid addresses.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
import subprocess
from pathlib import Path

import orjson
import pytest
from endpoint import Endpoint
from endpoint_wires import read_request, serving, write_answer, write_completion
from live_runs import point_to, read_calls
from provider_calls import GOOD, KEY, ask, make_question

from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.models.providers import find_access

# Replies in odd dress are read at once


@pytest.mark.parametrize(
    "content",
    [
        '\ufeff{"statements": ["It is red.", "Its number is 1."]}',
        '\n\n\n{"statements": ["It is red.", "Its number is 1."]}\n',
    ],
)
async def test_odd_contents_are_read(endpoint: Endpoint, tmp_path: Path, content: str) -> None:
    endpoint.configure(script={"extract": [content]})
    assert await ask(tmp_path) == [GOOD]
    assert [call["reply"] for call in read_calls(tmp_path)] == [content]


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize(
    "content",
    [
        '<think>Maybe {"statements": ["no"]}?</think>{"statements": ["It is re',
        'First {"statements": ["no"]}, but then: {"statements": ["It is re',
    ],
)
async def test_a_draft_is_never_taken_for_an_answer_that_was_cut_off(
    endpoint: Endpoint, tmp_path: Path, content: str
) -> None:
    endpoint.configure(script={"extract": [content]})
    assert await ask(tmp_path) == [GOOD]
    assert "no complete JSON object" in read_calls(tmp_path)[0]["error"]


async def test_marks_of_thoughts_within_a_text_under_test_spoil_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    texts = ["The tag </think> ends it.", "The tag <think> begins it."]
    whole = orjson.dumps({"statements": texts}).decode()
    endpoint.configure(script={"extract": [whole, f"```json\n{whole}\n```"]})
    assert await ask(tmp_path, make_question(1), make_question(2)) == [texts, texts]


@pytest.mark.parametrize("status", [200, 201, 203])
async def test_usage_and_status_may_be_odd(tmp_path: Path, status: int) -> None:
    usage = {"prompt_tokens": "12", "completion_tokens": None, "prompt_tokens_details": [1]}
    body = {**orjson.loads(write_completion("a")), "usage": usage, "model": 7}

    async def answer(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(write_answer(orjson.dumps(body)).replace(b"200 OK", b"%d Fine" % status))
        await writer.drain()

    async with serving(answer) as port:
        point_to(f"http://127.0.0.1:{port}/v1", KEY)
        assert await ask(tmp_path) == [["a"]]
    (call,) = read_calls(tmp_path)
    assert (call["prompt_tokens"], call["completion_tokens"], call["cached_tokens"]) == (None, None, None)
    assert call["model"] == "judge"


# The wire


async def test_a_connection_that_was_closed_while_idle_costs_nothing(tmp_path: Path) -> None:
    """The server answers once and closes the connection in the moment in which the next request comes on it."""
    n_requests = 0

    async def answer(ordinal: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_requests
        await read_request(reader)
        n_requests += 1
        writer.write(write_answer(write_completion(f"Connection {ordinal}.")))
        await writer.drain()
        await read_request(reader)

    async with serving(answer) as port:
        point_to(f"http://127.0.0.1:{port}/v1", KEY)
        results = await ask(tmp_path, *(make_question(number) for number in range(4)), attempts=1)
    assert results == [[f"Connection {number}."] for number in range(1, 5)]
    assert n_requests == 4
    assert [call["status"] for call in read_calls(tmp_path)] == ["ok"] * 4


@pytest.mark.usefixtures("quick_backoff")
async def test_a_server_that_closes_before_it_answers_is_asked_again_and_that_is_on_record(tmp_path: Path) -> None:
    n_requests = 0

    async def answer(ordinal: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_requests
        await read_request(reader)
        n_requests += 1
        if ordinal > 2:
            writer.write(write_answer(write_completion("a")))
            await writer.drain()

    async with serving(answer) as port:
        point_to(f"http://127.0.0.1:{port}/v1", KEY)
        assert await ask(tmp_path) == [["a"]]
    calls = read_calls(tmp_path)
    assert [call["status"] for call in calls] == ["error", "error", "ok"]
    assert "ServerDisconnectedError" in calls[0]["error"]
    assert n_requests == len(calls)


async def test_bodies_may_be_zipped_and_marked(tmp_path: Path) -> None:
    bodies = [
        write_answer(gzip.compress(write_completion("a")), "Content-Encoding: gzip"),
        write_answer(b"\xef\xbb\xbf" + write_completion("b")),
        write_answer(b"\n  \n" + write_completion("c"), "Content-Type: text/plain"),
    ]

    async def answer(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body in bodies:
            await read_request(reader)
            writer.write(body)
            await writer.drain()

    async with serving(answer) as port:
        point_to(f"http://127.0.0.1:{port}/v1", KEY)
        assert await ask(tmp_path, *(make_question(number) for number in range(3))) == [["a"], ["b"], ["c"]]


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize(
    "broken",
    [
        write_answer(b"this is not zipped", "Content-Encoding: gzip"),
        write_answer(write_completion("a"))[:-20],
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    ],
)
async def test_bytes_that_no_client_can_read_are_asked_for_again(tmp_path: Path, broken: bytes) -> None:
    async def answer(ordinal: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(broken if ordinal == 1 else write_answer(write_completion("a")))
        await writer.drain()

    async with serving(answer) as port:
        point_to(f"http://127.0.0.1:{port}/v1", KEY)
        assert await ask(tmp_path) == [["a"]]
    first, _ = read_calls(tmp_path)
    assert first["status"] == "error"
    assert first["error"]


def make_certificate(folder: Path) -> ssl.SSLContext:
    """Make a server's side of TLS with an unsigned certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def test_a_certificate_that_is_not_trusted_stops_the_run_at_once(tmp_path: Path) -> None:
    async def answer(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("no request gets this far")

    async with serving(answer, context=make_certificate(tmp_path)) as port:
        point_to(f"https://127.0.0.1:{port}/v1", KEY)
        (error,) = await ask(tmp_path)
    assert isinstance(error, FatalJudgeError)
    assert f"the certificate of https://127.0.0.1:{port}/v1 is not trusted" in str(error)
    assert "SSL_CERT_FILE" in str(error)
    assert len(read_calls(tmp_path)) == 1


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://no-such-host.invalid/v1", "no-such-host.invalid"),
        ("http://127.0.0.1:9/v1", "127.0.0.1:9"),
        ("https://plain", "SSL"),
    ],
)
async def test_unreachable_address_stops_the_run(
    endpoint: Endpoint, tmp_path: Path, address: str, expected: str
) -> None:
    # TLS spoken to a server that speaks none.
    point_to(address.replace("https://plain", endpoint.base_url.replace("http:", "https:")), KEY)
    (error,) = await ask(tmp_path, attempts=2)
    assert isinstance(error, FatalJudgeError)
    assert "openai:judge cannot be reached" in str(error)
    assert expected in str(error)


@pytest.mark.parametrize("address", ["localhost:8000/v1", "foo", "http://", "http://h:x/v1", "ftp://me:pw-99@host/v1"])
def test_invalid_address_is_refused_before_asking(address: str) -> None:
    point_to(address, KEY)
    complaint = "which is not an address; write it like http://localhost:8000/v1"
    with pytest.raises(FatalJudgeError, match=complaint) as refused:
        find_access()
    assert "pw-99" not in str(refused.value)
