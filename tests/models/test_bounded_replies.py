"""The limits of bodies, replies, statements and depth: anything larger fails quickly with a reason."""

from __future__ import annotations

import asyncio
import gzip
import time
from pathlib import Path

import orjson
import pytest
from endpoint import Raw, running_endpoint
from endpoint_wires import Handle, read_request, serving, write_answer
from live_runs import lay_out_run, make_settings, point_to, read_calls
from provider_calls import KEY, ask

from evalhouse.tasks.asking.verdicts import read_statements, read_verdicts
from evalhouse.tasks.judge.protocol import JudgeFailed, UnusableReply
from evalhouse.tasks.models.dialect import parse_error_body

pytestmark = pytest.mark.usefixtures("quick_backoff")
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


@pytest.mark.parametrize("status", [b"200 OK", b"500 Sorry"])
@pytest.mark.parametrize("embeds", [False, True])
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
