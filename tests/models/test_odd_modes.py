"""An endpoint that misbehaves in every way that was met: a run against it ends with a reason, keeps its key, and stays
small."""

from __future__ import annotations

import gzip
import resource
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Inject, Raw, running_endpoint
from endpoint_wires import serving
from live_runs import lay_out_run, make_sample, make_settings, point_to, read_calls, read_outcomes

from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.extract import extract_statements
from evalhouse.tasks.judge.protocol import JudgeError
from evalhouse.tasks.pipeline.live_run import make_work

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_backoff")]
KEY = "sk-odd-0123456789-abcdef"


def complete(content: object, **others: Any) -> Raw:  # noqa: ANN401
    return Raw(body={"choices": [{"message": {"content": content}, "finish_reason": "stop", **others}]})


MODES: dict[str, Any] = {
    **{f"status {code}": Raw(status=code, body=f"no, {KEY}") for code in (301, 400, 401, 404, 413)},
    **{f"status {code}": Raw(status=code, body="<html>" + "<script " * 100_000) for code in (418, 503)},
    "refused for ten minutes": Raw(status=429, headers={"Retry-After": "600"}),
    "refused till tomorrow": Raw(status=429, headers={"Retry-After": "Tue, 01 Jan 2999 00:00:00 GMT"}),
    "refused without end": Raw(status=429, headers={"Retry-After": "inf"}),
    "refused till yesterday": Raw(status=503, headers={"Retry-After": "-5"}),
    "limits of nothing": Raw(
        status=429, headers={"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "9d"}
    ),
    "headers of nonsense": Raw(
        status=429, headers={"x-ratelimit-remaining": "9" * 500, "x-ratelimit-reset": "ms" * 99}
    ),
    "no body": Raw(body=""),
    "null": Raw(body="null"),
    "a list": Raw(body="[]"),
    "not JSON": Raw(body="{" * 1_000_000),
    "no choices": Raw(body={"choices": []}),
    "choices of null": Raw(body={"choices": [None]}),
    "no message": Raw(body={"choices": [{}]}),
    "content of null": complete(None),
    "content of a number": complete(7),
    "content in odd parts": complete([{"text": None}, 7, {"type": "image"}]),
    "a refusal": Raw(body={"choices": [{"message": {"refusal": f"no {KEY}", "content": None}}]}),
    "an error as a success": Raw(body={"error": {"message": f"no {KEY}", "code": 503}}),
    "cut off": complete('{"statements": ["It', finish_reason="length"),
    "filtered": complete("", finish_reason="content_filter"),
    "thoughts alone": complete("<think>" + "hm " * 1000),
    "ten thousand statements": complete(orjson.dumps({"statements": [f"s{n}" for n in range(10_000)]}).decode()),
    "one statement of megabytes": complete(orjson.dumps({"statements": ["x" * 5_000_000]}).decode()),
    "nested deep": complete('{"statements": ' + "[" * 900 + "]" * 900 + "}"),
    "half a character": complete('{"statements": ["\\ud800"]}'),
    "a number of 5,000 digits": complete('so {"verdicts": [' + "1" * 5000 + "]}"),
    "the key repeated": complete(orjson.dumps({"statements": [f"The key is {KEY}."]}).decode()),
    "verdicts of an unknown statement": complete('{"verdicts": [{"id": "Z9", "label": "TP", "reason": ""}]}'),
    "usage of nonsense": Raw(body={"choices": [{"message": {"content": "{}"}}], "usage": [1], "model": {"a": 1}}),
    "a redirect": Raw(status=302, headers={"Location": f"http://example.invalid/?key={KEY}"}),
    "cookies": Raw(body="{}", headers={"Set-Cookie": f"key={KEY}"}),
    "reset": Inject(fault="reset"),
    "hang": Inject(fault="hang"),
}
WIRE: dict[str, bytes] = {
    "nothing": b"",
    "not HTTP": b"hello\r\n\r\n",
    "a head and no end": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
    "less than promised": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
    "a length below zero": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    "broken chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    "not gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    "a bomb": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n",
    "not UTF-8": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\x00\x80",
}  # fmt: skip
# Made when it is sent: this takes a second.
BODIES = {"a bomb": lambda: gzip.compress(bytes(300_000_000), 1)}


async def judge(folder: Path) -> str:
    """Return how two samples ended, in one text; any exception must be a JudgeError."""
    settings = make_settings(attempts=2, timeout_s=1.0, max_wait_s=1.0, concurrency=4)
    async with lay_out_run(folder, settings) as live_run:
        try:
            works = [make_work(make_sample(number)) for number in (1, 2)]
            # This step waits for no other one, so that a stopped run cannot keep it waiting.
            await gather_all([extract_statements(live_run, work) for work in works])
        except JudgeError as error:
            return f"stopped: {error}"
        ends = [read_outcomes(work) for work in works]
    assert all(end["extract_answer"] in (None, "judge_failed") for end in ends)
    return str([row["detail"] for work in works for row in work.rows["outcomes"]])


def check(folder: Path, expected: str, started: float, rss_before: int) -> None:
    calls = read_calls(folder)
    assert calls
    assert all(call["error"] or call["status"] in ("ok", "cached") for call in calls)
    assert KEY not in expected + str(calls)
    assert time.monotonic() - started < 60
    scale = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss_before) * scale < 600 * 1024**2


@pytest.mark.parametrize("mode", MODES)
async def test_an_odd_answer_ends_with_a_reason(tmp_path: Path, mode: str) -> None:
    started, rss = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    script = dict.fromkeys(("extract", "classify", "attribute", "rank"), lambda _: MODES[mode])
    with running_endpoint(script=script) as endpoint:
        point_to(endpoint.base_url, KEY)
        check(tmp_path, await judge(tmp_path), started, rss)


@pytest.mark.parametrize("mode", WIRE)
async def test_odd_bytes_end_with_a_reason(tmp_path: Path, mode: str) -> None:
    started, rss = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def answer(_: int, reader: Any, writer: Any) -> None:  # noqa: ANN401
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WIRE[mode] + BODIES.get(mode, bytes)())
        await writer.drain()

    async with serving(answer) as port:
        point_to(f"http://127.0.0.1:{port}/v1", KEY)
        check(tmp_path, await judge(tmp_path), started, rss)
