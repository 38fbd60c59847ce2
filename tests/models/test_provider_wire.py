"""Unusual or missing answers on the wire: readable replies are read, others are recorded and asked for again.

Below HTTP a server of plain bytes takes the endpoint's place: connections that end at the wrong moment, bodies that are
zipped or marked, untrusted certificates, invalid addresses.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
import subprocess
import time
from pathlib import Path

import orjson
import pytest
from endpoint import Endpoint, Raw, running_endpoint
from endpoint_wires import Handle, read_request, serving, write_answer, write_completion
from live_runs import lay_out_run, make_settings, point_to, read_calls
from provider_calls import GOOD, KEY, ask, make_question

from evalhouse.tasks.asking.verdicts import read_statements, read_verdicts
from evalhouse.tasks.judge.protocol import FatalJudgeError, JudgeFailed, UnusableReply
from evalhouse.tasks.models.dialect import parse_error_body
from evalhouse.tasks.models.providers import find_access

pytestmark = pytest.mark.usefixtures("quick_backoff")


@pytest.mark.parametrize("content", [
    '\ufeff{"statements": ["It is red.", "Its number is 1."]}',
    '\n\n\n{"statements": ["It is red.", "Its number is 1."]}\n',
])  # fmt: skip
async def test_odd_contents_are_read(endpoint: Endpoint, tmp_path: Path, content: str) -> None:
    endpoint.configure(script={"extract": [content]})
    assert await ask(tmp_path) == [GOOD]
    assert [call["reply"] for call in read_calls(tmp_path)] == [content]


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


@pytest.mark.parametrize("broken", [
    write_answer(b"this is not zipped", "Content-Encoding: gzip"),
    write_answer(write_completion("a"))[:-20],
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\x00\x80",
])  # fmt: skip
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


@pytest.mark.parametrize(("address", "expected"), [
    ("http://no-such-host.invalid/v1", "no-such-host.invalid"),
    ("http://127.0.0.1:9/v1", "127.0.0.1:9"),
    ("https://plain", "SSL"),
])  # fmt: skip
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


MEGABYTE = 1024**2


def nest(depth: int) -> str:
    return '{"verdicts": [{"id": "A1", "label": ' + "[" * depth + "]" * depth + "}]}"


TOO_MUCH = {
    "statements": (orjson.dumps({"statements": [f"s{n}" for n in range(10_000)]}).decode(), "into 10,000 statements"),
    "one statement": (orjson.dumps({"statements": ["x" * 500_000]}).decode(), "a text of 500,000 characters"),
    "deep": (nest(900), "nested deeper than 32 levels"),
    "deeper than any parser goes": (nest(100_000), "no complete JSON object"),
    "a number of 5,000 digits": ('So: {"statements": [' + "1" * 5000 + "]}", "no complete JSON object"),
    "brackets": ("{" * 900_000, "no complete JSON object"),
    "broken brackets": ("So: " + '{"a": [' * 99 + "1, " * 300_000, "no complete JSON object"),
    "verdicts without ids": ('{"verdicts": [' + "{}, " * 200_000 + "{}]}", "more of the kind"),
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_a_reply_that_holds_too_much_is_unusable_with_a_short_reason_at_once(kind: str) -> None:
    text, expected = TOO_MUCH[kind]
    reasons = []
    started = time.process_time()
    for read in (read_statements, lambda text: read_verdicts(text, {"A1": ["TP"]})):
        with pytest.raises(UnusableReply) as caught:
            read(text)
        reasons.append(str(caught.value))
    assert expected in " ".join(reasons)
    assert max(map(len, reasons)) < 1000
    assert time.process_time() - started < 2


def test_as_many_statements_as_a_long_text_has_are_read() -> None:
    statements = [f"Line {number} is {number} m long." for number in range(2000)]
    assert read_statements(orjson.dumps({"statements": statements}).decode()) == statements


async def test_reply_of_megabytes_fails_its_sample_and_its_beginning_is_recorded(tmp_path: Path) -> None:
    with running_endpoint(
        script={"extract": lambda _: '{"statements": ["' + "red " * (MEGABYTE // 2) + '"]}'}
    ) as endpoint:
        point_to(endpoint.base_url, KEY)
        (error,) = await ask(tmp_path, attempts=2)
    assert isinstance(error, JudgeFailed)
    assert "the reply had 2,097,172 characters; 1,000,000 are allowed" in str(error)
    calls = read_calls(tmp_path)
    assert [call["status"] for call in calls] == ["error", "error"]
    assert {len(call["reply"]) for call in calls} == {30_000}
    assert all(call["completion_tokens"] for call in calls)  # they are paid for


@pytest.mark.parametrize(("status", "embeds"), [(b"200 OK", False), (b"200 OK", True), (b"500 Sorry", False)])
async def test_a_body_without_end_is_not_read_to_its_end(tmp_path: Path, status: bytes, embeds: bool) -> None:
    n_sent = 0

    async def answer(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(b"x" * MEGABYTE)
            await writer.drain()
            n_sent += 1

    (error,) = await _ask_raw(tmp_path, answer, embeds=embeds)
    assert isinstance(error, JudgeFailed)
    assert n_sent < 200
    assert ("more than 32 MB" if status.startswith(b"200") else "status 500: xxx") in str(error)


async def test_a_small_body_that_unpacks_to_a_gigabyte_is_not_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(b" " * 100 * MEGABYTE, compresslevel=1)

    async def answer(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(write_answer(bomb, "Content-Encoding: gzip"))
        await writer.drain()

    (error,) = await _ask_raw(tmp_path, answer)
    assert isinstance(error, JudgeFailed)
    assert "more than 32 MB" in str(error)


async def _ask_raw(folder: Path, answer: Handle, *, embeds: bool = False) -> list[object]:
    async with serving(answer) as port:
        point_to(f"http://127.0.0.1:{port}/v1", KEY)
        if not embeds:
            return await ask(folder, attempts=1)
        async with lay_out_run(folder, make_settings(embeddings="openai:embedder", attempts=1)) as live_run:
            assert live_run.embedder is not None
            return await asyncio.gather(live_run.embedder.compare("s1", "a", "b"), return_exceptions=True)


PAGES = ["<script ", "<", "<!--", "<a>b", "<h1"]


@pytest.mark.parametrize("piece", PAGES)
def test_any_error_page_is_read_in_a_time_in_proportion_to_its_length(piece: str) -> None:
    def measure(size: int) -> float:
        body = f"<p>Sorry.{piece * (size // len(piece))}".encode()
        started = time.process_time()
        assert parse_error_body(body).message.startswith("Sorry.")
        return time.process_time() - started

    once, twice = (min(measure(size) for _ in range(3)) for size in (100_000, 200_000))
    assert twice < 3 * once + 0.05
    assert twice < 0.4


async def test_heading_of_an_error_page_is_its_message(tmp_path: Path) -> None:
    page = (
        "<html><head><title>502</title><style>p > a {}</style></head><body><!-- <p>not this</p> --><script>if (a<b) {}"
        "</script ><h1>Bad</h1> <p class='x'>gateway</p></body></html>"
    )
    with running_endpoint(script={"extract": lambda _: Raw(status=502, body=page)}) as endpoint:
        point_to(endpoint.base_url, KEY)
        (error,) = await ask(tmp_path, attempts=1)
    assert "status 502: Bad" in str(error)
