"""Errors and replies in the shapes that providers, gateways and proxies really send, each met alone; and unusual or
missing answers on the wire: readable replies are read, others are recorded and asked for again.

Which of them does what is from their documentation and from what their users report: OpenRouter's errors within a
status 200, Gemini's errors in a list and waits in words, FastAPI's `detail`, Ollama's errors as a text, Azure's filter,
Groq's misfits, reasoning models that only think, proxies that answer with a page. Below HTTP a server of plain bytes
takes the endpoint's place: connections that end at the wrong moment, bodies that are zipped or marked, untrusted
certificates, invalid addresses.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Asked, Canned, Endpoint, Inject, Raw
from endpoint_wires import Handle, read_request, serving, write_answer, write_completion
from live_runs import lay_out_run, make_settings, point_to, read_calls
from provider_calls import GOOD, KEY, ask, make_question

from evalhouse.tasks.asking.verdicts import read_statements, read_verdicts
from evalhouse.tasks.judge.protocol import FatalJudgeError, JudgeFailed, Question, UnusableReply
from evalhouse.tasks.models.dialect import parse_error_body, translate_error
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


def sending(*answers: bytes) -> Handle:
    """Answer the n-th connection with the n-th of these, and all others with the last."""

    async def answer(ordinal: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answers[min(ordinal, len(answers)) - 1])
        await writer.drain()

    return answer


async def ask_raw(
    folder: Path,
    answer: Handle,
    *questions: Question,
    embeds: bool = False,
    **settings: Any,  # noqa: ANN401
) -> list[object]:
    async with serving(answer) as port:
        point_to(f"http://127.0.0.1:{port}/v1", KEY)
        if not embeds:
            return await ask(folder, *questions, **settings)
        async with lay_out_run(folder, make_settings(embeddings="openai:embedder", **settings)) as live_run:
            assert live_run.embedder is not None
            return await asyncio.gather(live_run.embedder.compare("s1", "a", "b"), return_exceptions=True)


@pytest.mark.parametrize("status", [200, 201, 203])
async def test_usage_and_status_may_be_odd(tmp_path: Path, status: int) -> None:
    usage = {"prompt_tokens": "12", "completion_tokens": None, "prompt_tokens_details": [1]}
    body = orjson.dumps({**orjson.loads(write_completion("a")), "usage": usage, "model": 7})
    assert await ask_raw(tmp_path, sending(write_answer(body).replace(b"200 OK", b"%d Fine" % status))) == [["a"]]
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

    results = await ask_raw(tmp_path, answer, *(make_question(number) for number in range(4)), attempts=1)
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

    assert await ask_raw(tmp_path, answer) == [["a"]]
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

    questions = (make_question(number) for number in range(3))
    assert await ask_raw(tmp_path, answer, *questions) == [["a"], ["b"], ["c"]]


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
    assert await ask_raw(tmp_path, sending(broken, write_answer(write_completion("a")))) == [["a"]]
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
    "verdicts without ids": ('{"verdicts": [' + "{}, " * 60_000 + "{}]}", "more of the kind"),
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


async def test_reply_of_megabytes_fails_its_sample_and_its_beginning_is_recorded(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.configure(script={"extract": lambda _: '{"statements": ["' + "red " * (MEGABYTE // 2) + '"]}'})
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

    (error,) = await ask_raw(tmp_path, answer, embeds=embeds, attempts=1)
    assert isinstance(error, JudgeFailed)
    assert n_sent < 200
    assert ("more than 32 MB" if status.startswith(b"200") else "status 500: xxx") in str(error)


async def test_a_small_body_that_unpacks_to_a_gigabyte_is_not_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(b" " * 100 * MEGABYTE, compresslevel=1)
    (error,) = await ask_raw(tmp_path, sending(write_answer(bomb, "Content-Encoding: gzip")), attempts=1)
    assert isinstance(error, JudgeFailed)
    assert "more than 32 MB" in str(error)


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


async def test_heading_of_an_error_page_is_its_message(endpoint: Endpoint, tmp_path: Path) -> None:
    page = (
        "<html><head><title>502</title><style>p > a {}</style></head><body><!-- <p>not this</p> --><script>if (a<b) {}"
        "</script ><h1>Bad</h1> <p class='x'>gateway</p></body></html>"
    )
    endpoint.configure(script={"extract": lambda _: Raw(status=502, body=page)})
    (error,) = await ask(tmp_path, attempts=1)
    assert "status 502: Bad" in str(error)


CHAT = "/v1/chat/completions"
PAGE = "<!DOCTYPE html><html><head><title>x</title><style>p {}</style></head><body><h1>{}</h1><hr>nginx</body></html>"


def complete(message: object, finish: str = "stop", **more: object) -> Raw:
    return Raw(body={"choices": [{"message": message, "finish_reason": finish, **more}]})


def fail(status: int, message: str, **members: object) -> Raw:
    """Return an error as OpenAI words it, also one within a status 200."""
    return Raw(status=status, body={"error": {"message": message, **members}})


def write_page(title: str, status: int) -> Raw:
    return Raw(status=status, body=PAGE.replace("{}", title), headers={"Content-Type": "text/html; charset=utf-8"})


EXCEEDED = "You exceeded your current quota, please check your plan and billing details. Please retry in 0.05s."
GEMINIS = orjson.dumps([{"error": {"code": 429, "message": EXCEEDED, "status": "RESOURCE_EXHAUSTED"}}]).decode()
PASSING: list[tuple[Canned, str]] = [
    (Inject(fault="truncated"), "no complete JSON object"),
    (Inject(fault="length"), "cut off at the model's output limit"),
    (Inject(fault="reset"), ""),
    (Raw(status=429, body=GEMINIS), f"status 429: {EXCEEDED}"),
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
    (Raw(body='{"choices": [], "logprobs": NaN}'), "sent what is not a completion"),
    (Raw(body='data: {"choices": []}\n\ndata: [DONE]\n\n', headers={"Content-Type": "text/event-stream"}),
     "sent a stream, which was not asked for: 'data:"),
    (complete("It is red."), "the reply was empty"),
    (complete(None), "the reply was empty"),
]  # fmt: skip


async def test_what_passes_is_asked_again(endpoint: Endpoint, tmp_path: Path) -> None:
    """Each in a separate run, all in one warehouse; with a note where a reply came."""
    notes: list[list[bool]] = []
    for number, (answer, expected) in enumerate(PASSING, 1):
        endpoint.reset()
        endpoint.configure(script={"extract": [answer]})
        (value,) = await ask(tmp_path, make_question(number), run_id=f"run-{number}")
        assert value == ["It is red.", f"Its number is {number}."], expected
        assert endpoint.stats.requests[CHAT] == 2, expected
        notes.append(["could not be used" in body["messages"][-1]["content"] for body in endpoint.stats.bodies])
    calls = read_calls(tmp_path)
    for number, (_, expected) in enumerate(PASSING, 1):
        first, second = (call for call in calls if call["run_id"] == f"run-{number}")
        assert [(call["status"], call["attempts"]) for call in (first, second)] == [("error", 1), ("ok", 2)], expected
        assert (expected in first["error"], bool(first["error"])) == (True, True), expected
        is_reply = first["reply"] is not None or "fit the schema" in expected
        assert notes[number - 1] == [False, is_reply], expected


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


async def test_an_option_refused_in_fastapis_words_is_left_out(endpoint: Endpoint, tmp_path: Path) -> None:
    detail = [{"type": "extra_forbidden", "loc": ["body", "response_format"], "msg": "Extra inputs are not permitted"}]

    def refuse(asked: Asked) -> Raw | None:
        return Raw(status=422, body={"detail": detail}) if "response_format" in asked.body else None

    endpoint.configure(script={"extract": refuse})
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


async def test_an_endpoint_that_sends_no_completion_is_asked_no_more_and_its_tokens_count(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """Such as a gateway that filters, or always streams: each request was paid fifteen times."""
    answer = Raw(body={"choices": [], "usage": {"prompt_tokens": 900, "completion_tokens": 90}})
    endpoint.configure(script={"extract": lambda _: answer}, latency=0.02)
    async with lay_out_run(tmp_path, make_settings(concurrency=4)) as live_run:
        asked = [live_run.asker.ask(make_question(number), read_statements) for number in range(60)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert live_run.asker.counts.prompt_tokens == 900 * live_run.asker.counts.requests
    assert any("none of the first 20 replies" in str(result) for result in results)
    assert endpoint.stats.requests[CHAT] < 30


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
