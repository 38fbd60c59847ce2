"""An HTTP application is asked as the settings say, again where that may help, and never without end; and a streamed
answer is the same however its bytes were cut."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rag_bot import RagBot, start_rag_bot
from target_house import TALL, TALL_ANSWER, ask_once, pose, write_documents
from target_server import Canned, Sent, answer_json, serving

from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.collection import make_target
from evalhouse.tasks.targets.over_http import compile_path, iterate_events
from evalhouse.tasks.targets.over_http import read_stream as read_pieces
from evalhouse.tasks.targets.protocol import QuestionFailed, Response, Target, TargetError

GOOD = answer_json({"answer": "Yes."})
pytestmark = pytest.mark.usefixtures("quick_backoff")


@pytest.fixture
def bot(tmp_path: Path) -> Iterator[RagBot]:
    with start_rag_bot(write_documents(tmp_path)) as bot:
        yield bot


@pytest.fixture
async def target(bot: RagBot) -> AsyncIterator[Target]:
    target = make_target(TargetSettings(url=bot.url, concurrency=3))
    yield target
    await target.close()


async def test_a_bot_answers_with_contexts_and_their_ids(bot: RagBot) -> None:
    response = await ask_once(url=bot.url)
    assert (response.answer, response.error, response.attempts) == (TALL_ANSWER, None, 1)
    assert (response.contexts, response.context_ids) == ((TALL_ANSWER,), ("paris.txt#2",))
    assert response.latency_ms is not None
    assert response.latency_ms > 0


async def test_get_puts_the_question_into_the_address(bot: RagBot) -> None:
    response = await ask_once("长城 & 全长=?", url=f"{bot.url}?question={{{{question}}}}", method="GET")
    assert response.answer == "长城全长超过两万公里。"
    assert bot.stats.questions == ["长城 & 全长=?"]


async def test_what_is_sent_is_the_template_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOT_TOKEN", "tok-123456")
    hostile = 'He wrote: "}, {{sample_id}} \\ {"question": "mine'
    with serving(GOOD) as server:
        await ask_once(
            pose(hostile, top=5, user="a b/ä"),
            url=f"{server.root_url}/u/{{{{metadata.user}}}}",
            method="PUT",
            headers={"Authorization": "Bearer ${BOT_TOKEN}", "X-Client": "evalhouse"},
            body={"messages": [{"content": "{{question}}"}], "k": "{{metadata.top}}", "tag": "id {{sample_id}}, 1"},
        )
    (sent,) = server.requests
    assert (sent.method, sent.path) == ("PUT", "/u/a%20b%2F%C3%A4")
    assert sent.body == {"messages": [{"content": hostile}], "k": 5, "tag": "id s1, 1"}
    assert (sent.headers["authorization"], sent.headers["x-client"]) == ("Bearer tok-123456", "evalhouse")
    assert (sent.headers["content-type"], sent.headers["accept"]) == ("application/json", "application/json")


async def test_headers_of_the_settings_replace_ours_in_any_case() -> None:
    with serving(GOOD) as server:
        await ask_once(url=server.url, headers={"content-type": "application/vnd.bot+json"})
    assert server.requests[0].headers["content-type"] == "application/vnd.bot+json"


async def test_metadata_the_sample_lacks_fails_the_question_unasked() -> None:
    with serving(GOOD) as server:
        response = await ask_once(
            pose(lang="en"), url=server.url, body={"q": "{{question}}", "user": "{{metadata.user}}"}
        )
    assert response.error == "this sample has no metadata 'user', which the request needs; it has: lang"
    assert (response.attempts, server.requests) == (0, [])


async def test_paths_find_answer_contexts_and_ids_anywhere() -> None:
    body = {
        "choices": [{"message": {"content": [{"type": "text", "text": "Two "}, {"type": "text", "text": "parts."}]}}],
        "hits": [{"source": {"body": "one"}, "key": 7}, {"source": {"body": "two"}, "key": "b"}],
    }
    with serving(answer_json(body)) as server:
        response = await ask_once(
            url=server.url,
            answer="$.choices[0].message.content[*].text",
            contexts="$.hits[*].source.body",
            context_ids="$.hits[*].key",
        )
    assert (response.answer, response.contexts, response.context_ids) == ("Two parts.", ("one", "two"), ("7", "b"))


@pytest.mark.parametrize(
    "trouble",
    [*({"fail_first": 2, "fail_status": status} for status in (408, 429, 500, 503)), {"hang_up_first": 2}],
    ids=str,
)
async def test_what_may_pass_is_asked_again(bot: RagBot, trouble: dict[str, int]) -> None:
    bot.configure(**trouble)
    response = await ask_once(url=bot.url)
    assert (response.answer, response.attempts) == (TALL_ANSWER, 3)


@pytest.mark.parametrize(
    ("status", "hint"),
    [(400, "body"), (401, "headers"), (403, "headers"), (404, "url"), (405, "method"), (422, "body")],
)
async def test_what_will_not_pass_is_asked_once(bot: RagBot, status: int, hint: str) -> None:
    bot.configure(fail_first=1, fail_status=status)
    response = await ask_once(url=bot.url)
    assert response.error is not None
    assert response.error.startswith(f'status {status}: {{"error":"the bot is out of order"}}; check')
    assert hint in response.error.rpartition(";")[2]
    assert (response.attempts, response.answer, response.latency_ms, bot.stats.n_requests) == (1, None, None, 1)


async def test_attempts_end(bot: RagBot) -> None:
    bot.configure(refuse="Tower")
    response = await ask_once(url=bot.url, attempts=4)
    assert response.error == 'status 503: {"error":"the bot is out of order"} (asked 4 times)'
    assert (response.attempts, bot.stats.n_requests) == (4, 4)


async def test_retry_after_is_waited_for(bot: RagBot) -> None:
    bot.configure(limit_first=1, retry_after="0.3")
    clock = time.monotonic()
    response = await ask_once(url=bot.url)
    assert (response.answer, response.attempts) == (TALL_ANSWER, 2)
    assert time.monotonic() - clock >= 0.3
    assert response.latency_ms is not None
    assert response.latency_ms < (time.monotonic() - clock) * 1000 - 300  # of the attempt that succeeded alone


@pytest.mark.parametrize("allowed_s", [300.0, 0.05])
async def test_a_rate_limit_of_a_bot_that_has_answered_is_waited_out(
    bot: RagBot, target: Target, monkeypatch: pytest.MonkeyPatch, allowed_s: float
) -> None:
    """One that names no time to come back failed a third of the questions, as its minute outlasts three attempts."""
    monkeypatch.setattr("evalhouse.tasks.targets.protocol._MAX_WAIT_S", allowed_s)
    assert (await target.ask(pose(TALL))).error is None
    bot.configure(fail_first=1 + (7 if allowed_s > 1 else 10_000), fail_status=429)
    response = await target.ask(pose(TALL))
    if allowed_s > 1:
        assert (response.answer, response.attempts) == (TALL_ANSWER, 8)
    else:
        assert response.error is not None
        assert response.error.endswith(f"(asked {response.attempts} times); set rpm in [target]")
        assert 3 < response.attempts < 50


async def test_long_retry_after_is_not_waited_for(bot: RagBot) -> None:
    bot.configure(limit_first=9, retry_after="86400")
    response = await ask_once(url=bot.url)
    assert response.error == (
        'status 429: {"error":"too many questions"}; it asks to come back in 86,400 s, which is too long to wait'
    )
    assert response.attempts == 1


async def test_a_slow_bot_is_given_up(bot: RagBot) -> None:
    bot.configure(hold_after=0)
    response = await ask_once(url=bot.url, timeout_s=0.2, attempts=2)
    assert response.error == ("no whole response within 0.2 s; raise timeout_s if it may take longer (asked 2 times)")
    assert bot.stats.n_requests == 2


async def test_the_timeout_is_over_the_whole_response() -> None:
    drops = [b"x"] * 1_000_000  # no single piece is late

    with serving(Canned(body=drops)) as server:
        response = await ask_once(url=server.url, stream="text", timeout_s=0.3, attempts=1)
    assert response.error == "no whole response within 0.3 s; raise timeout_s if it may take longer"


async def test_a_bot_that_dies_fails_its_questions_and_no_others(bot: RagBot, target: Target) -> None:
    bot.configure(hold_after=2)
    asked = [asyncio.create_task(target.ask(pose(sample_id=str(n)))) for n in range(6)]
    await asyncio.to_thread(bot.wait_for, 5)
    while sum(asking.done() for asking in asked) < 2:  # connections do not arrive in the order in which they are made
        await asyncio.sleep(0.01)
    await asyncio.to_thread(bot.stop)
    failed = [response for response in await asyncio.gather(*asked) if response.error is not None]
    assert len(failed) == 4
    for response in failed:
        assert response.error is not None
        assert response.error.startswith(f"no connection to {bot.url}: ")
        assert response.error.endswith("check that it runs there (asked 3 times)")


async def test_no_more_questions_are_in_flight_than_allowed(bot: RagBot, target: Target) -> None:
    bot.configure(hold_after=0)
    asked = [asyncio.create_task(target.ask(pose(sample_id=str(n)))) for n in range(40)]
    await asyncio.to_thread(bot.wait_for, 3)
    bot.configure(hold_after=None)
    responses = await asyncio.gather(*asked)
    assert {response.answer for response in responses} == {TALL_ANSWER}
    assert (bot.stats.max_in_flight, bot.stats.n_requests) == (3, 40)


async def test_no_more_questions_start_in_a_minute_than_allowed(bot: RagBot) -> None:
    target = make_target(TargetSettings(url=bot.url, rpm=1200))
    clock = time.monotonic()
    await asyncio.gather(*(target.ask(pose()) for _ in range(9)))
    await target.close()
    assert time.monotonic() - clock >= 8 * 60 / 1200


@pytest.mark.parametrize("status", [301, 308])
async def test_a_redirect_to_the_same_host_is_followed_with_the_question(status: int) -> None:
    there = Canned(status=status, headers={"Location": "/v2/ask?a=%2F"})
    with serving(there, GOOD) as server:
        response = await ask_once(url=server.url)
    assert response.answer == "Yes."
    assert [(sent.method, sent.path) for sent in server.requests] == [("POST", "/ask"), ("POST", "/v2/ask?a=%2F")]
    assert server.requests[1].body == {"question": TALL}


async def test_answer_at_another_address_is_fetched() -> None:
    with serving(Canned(status=303, headers={"Location": "/answers/7"}), GOOD) as server:
        response = await ask_once(url=server.url)
    assert response.answer == "Yes."
    assert [(sent.method, sent.content) for sent in server.requests][1] == ("GET", b"")


@pytest.mark.parametrize("location", ["http://localhost:1/ask", "//elsewhere.example/ask", "https://other.example/x"])
async def test_a_redirect_elsewhere_takes_no_secret_along(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOT_TOKEN", "tok-123456")
    with serving(Canned(status=307, headers={"Location": location})) as server:
        response = await ask_once(url=server.url, headers={"Authorization": "Bearer ${BOT_TOKEN}"})
    assert response.error is not None
    assert "is not followed; set url to the address that answers" in response.error
    assert (response.attempts, len(server.requests)) == (1, 1)


async def test_redirects_in_a_circle_end() -> None:
    with serving(Canned(status=307, headers={"Location": "/ask"})) as server:
        response = await ask_once(url=server.url)
    assert response.error == "it redirected more than 5 times; check url"
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("canned", "problem"),
    [
        (Canned(body=[b'{"answer": "It is']), "status 200, but the body is not valid JSON ("),
        (Canned(body=[b""]), "status 200, but the body is empty; the body begins: (empty)"),
        (Canned(body=[b'{"answer": NaN}']), "status 200, but the answer is null; the body begins: "),
        (Canned(body=[b'{"answer": "Yes.", "score": nan}']), "status 200, but the body is not valid JSON ("),
        (Canned(body=[b"\xff\xfe"]), "status 200, but the body is not valid JSON ("),
        (answer_json({"reply": "Yes."}), "answer = '$.answer' matches nothing; the body's members: reply; set answer"),
        (answer_json([1]), "answer = '$.answer' matches nothing; set answer to the path of the answer"),
        (answer_json({"answer": None}), "status 200, but the answer is null; the body begins: "),
        (answer_json({"answer": {"text": "Yes."}}), "the answer is an object, not text: {'text': 'Yes.'}"),
        (answer_json({"answer": "Yes.", "contexts": [{"score": 1}]}), "context 1 has no text; it has: score"),
        (answer_json({"answer": "Yes.", "contexts": [None]}), "context 1 is null"),
        (answer_json({"answer": "Yes.", "contexts": 3}), "contexts = '$.contexts' matches a number, not a list"),
        (Canned(status=418, body=[b"short and stout"]), "status 418: short and stout"),
        (Canned(status=204), "status 204, but the body is empty"),
        (Canned(headers={"Content-Type": "text/html"}, body=[b"<h1>Log in"]), "a page for people came; check url"),
        (answer_json({"answer": "", "error": "timeout"}), "the answer is empty, and error is 'timeout'"),
        (Canned(headers={"Content-Type": "text/event-stream"}, body=[b"data: {}\n\n"]), 'set stream = "sse"'),
    ],
)
async def test_a_response_that_cannot_be_read_says_why(canned: Canned, problem: str) -> None:
    with serving(canned) as server:
        response = await ask_once(url=server.url)
    assert response.error is not None
    assert problem in response.error
    assert (response.answer, response.attempts, len(server.requests)) == (None, 1, 1)


async def test_an_error_beside_an_empty_answer_is_seen_in_an_envelope() -> None:
    canned = answer_json({"code": 0, "error": None, "data": {"answer": "", "error": "the model timed out"}})
    with serving(canned) as server:
        response = await ask_once(url=server.url, answer="$.data.answer")
    assert response.error is not None
    assert "the answer is empty, and error is 'the model timed out'" in response.error


@pytest.mark.parametrize(
    ("body", "expected"),
    [({"answer": "", "contexts": []}, ("", (), None)), ({"answer": "Yes."}, ("Yes.", None, None))],
)
async def test_empty_answers_and_contexts_differ_from_missing_ones(
    body: dict[str, object], expected: tuple[object, ...]
) -> None:
    with serving(answer_json(body)) as server:
        response = await ask_once(url=server.url)
    assert response.error is None
    assert (response.answer, response.contexts, response.context_ids) == expected


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([b"one\ntwo\n" * 10_000], "one two one two"),
        ([b"x" * 1024**2] * 8, "the response is larger than 2 MiB"),
        ([b'{"answer": "Yes.", "contexts": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"], "not valid JSON"),
    ],
    ids=["long", "without end", "deep"],
)
async def test_a_body_of_any_size_and_depth_is_quoted_short_and_on_one_line(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], problem: str
) -> None:
    monkeypatch.setattr("evalhouse.tasks.targets.over_http._MAX_BYTES", 2 * 1024**2)
    with serving(Canned(body=pieces), answer_json({"a": {"b": {"c": "Yes."}}})) as server:
        response = await ask_once(url=server.url, answer="$..answer")
        assert problem in str(response.error)
        assert (len(str(response.error)) < 400, "\n" in str(response.error)) == (True, False)
        assert (await ask_once(url=server.url, answer="$..c")).answer == "Yes."


async def test_no_cookie_goes_from_one_question_to_the_next() -> None:
    with serving(answer_json({"answer": "Yes."}, headers={"Set-Cookie": "talk=1"})) as server:
        target = make_target(TargetSettings(url=server.url))
        await target.ask(pose())
        await target.ask(pose())
        await target.close()
    assert [sent.headers.get("cookie") for sent in server.requests] == [None, None]


@pytest.mark.parametrize(
    ("key", "path"),
    [("answer", "a["), ("contexts", ""), ("context_ids", "$.a | $.b"), ("answer", "$.a[?nothing(@.b)]")],
)
def test_invalid_path_is_refused_beforehand(key: str, path: str) -> None:
    with pytest.raises(TargetError, match=f"^{key} = .* is not a valid JSONPath: "):
        make_target(TargetSettings(url="http://localhost:1/ask", **{key: path}))


def test_the_name_shows_no_query() -> None:
    target = make_target(TargetSettings(url="https://bot.example:8443/ask?key=k-123"))
    assert target.name == "https://bot.example:8443/ask"


async def test_question_that_cannot_be_encoded_fails_alone() -> None:
    with serving(GOOD) as server:
        half = await ask_once("half \ud800", url=server.url)
        in_address = await ask_once("half \ud800", url=f"{server.url}?q={{{{question}}}}", method="GET")
    assert half.error is not None
    assert half.error.startswith("the question cannot be sent as JSON: ")
    assert in_address.error is not None
    assert in_address.error.startswith("the question cannot be sent: ")
    assert (half.attempts, in_address.attempts, server.requests) == (0, 0, [])


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


@pytest.mark.parametrize(
    ("body", "settings"),
    [
        ({"answer": "Yes.", "reasoning": "hm"}, {}),
        ({"to": [{"message": {"content": "Yes.", "reasoning_content": "hm"}}]}, {"answer": "$.to[0].message.content"}),
        ({"of": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes."}]}, {"answer": "$.of"}),
    ],
)
async def test_thoughts_beside_an_answer_come_before_it(body: dict[str, object], settings: dict[str, str]) -> None:
    with serving(answer_json(body)) as server:
        response = await ask_once(url=server.url, **settings)
    assert response.answer == "<think>\nhm\n</think>\n\nYes."


@pytest.mark.parametrize(
    ("body", "content_type", "answer"),
    [
        (b'{"answer": "Yes.", "contexts": ["One."], "score": NaN, "best": -Infinity}', "application/json", "Yes."),
        ('{"answer": "Über rot."}'.encode("latin-1"), "application/json; charset=iso-8859-1", "Über rot."),
        ('{"answer": "Ja."}'.encode("utf-16"), "application/json; charset=utf-16", "Ja."),
        (b'\xef\xbb\xbf{"answer": "Yes."}', "application/json", "Yes."),
        (b'{"body": "{\\"answer\\": \\"Yes.\\"}"}', "application/json", "Yes."),
    ],
)
async def test_body_is_read_in_its_encoding_and_with_what_python_writes(
    body: bytes, content_type: str, answer: str
) -> None:
    path = "$.body.answer" if b"body" in body else "$.answer"
    with serving(Canned(body=[body], headers={"Content-Type": content_type})) as server:
        response = await ask_once(url=server.url, answer=path)
    assert (response.answer, response.error) == (answer, None)


CHINESE = "长城全长多少？"
CHINESE_ANSWER = "长城全长超过两万公里。"


async def cut(content: bytes, sizes: tuple[int, ...]) -> AsyncIterator[bytes]:
    """Yield pieces of these sizes, then the rest at once."""
    at = 0
    for size in sizes:
        yield content[at : at + size]
        at += size
    yield content[at:]


def read_stream(
    content: bytes,
    *,
    sizes: tuple[int, ...] = (),
    stream: Literal["sse", "jsonl"] = "sse",
    answer: str = "$.answer",
    **paths: str,
) -> Response:
    """Return the answer of a stream that arrives in pieces of these sizes, the rest at once."""
    reading = read_pieces(
        cut(content, sizes),
        stream,
        answer=compile_path("answer", answer),
        contexts=compile_path("contexts", paths.get("contexts", "$.contexts")),
        context_ids=compile_path("context_ids", paths["context_ids"]) if "context_ids" in paths else None,
    )
    return asyncio.run(reading)


def write_sse(*events: object, end: str = "\n") -> bytes:
    texts = [event if isinstance(event, str) else orjson.dumps(event).decode() for event in events]
    return "".join(f"data: {text}{end}{end}" for text in texts).encode()


@pytest.mark.parametrize("stream", ["sse", "jsonl", "text"])
@pytest.mark.parametrize("chunk_bytes", [1, 7])
@pytest.mark.parametrize(("question", "answer"), [(TALL, TALL_ANSWER), (CHINESE, CHINESE_ANSWER)])
async def test_a_bot_that_streams_answers_like_one_that_does_not(
    bot: RagBot, stream: str, chunk_bytes: int, question: str, answer: str
) -> None:
    whole = await ask_once(question, url=bot.url)
    bot.configure(chunk_bytes=chunk_bytes)
    response = await ask_once(question, url=f"{bot.url}?stream={stream}", stream=stream)
    assert (response.answer, response.error) == (answer, None)
    if stream == "text":
        assert (response.contexts, response.context_ids) == (None, None)
    else:
        assert (response.contexts, response.context_ids) == (whole.contexts, whole.context_ids)


@given(
    st.lists(st.text(min_size=1, max_size=5), min_size=1),
    st.lists(st.integers(1, 9)),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_pieces_cut_anywhere_make_the_same_events(parts: list[str], sizes: list[int], end: str) -> None:
    # Longer parts may repeat the text before them, which then counts once.
    content = write_sse({"contexts": ["ein Käse", "一"]}, *({"answer": part} for part in parts), "[DONE]", end=end)
    streamed = read_stream(content, sizes=tuple(sizes))
    assert (streamed.answer, streamed.contexts) == ("".join(parts), ("ein Käse", "一"))


@given(st.lists(st.text(alphabet="ab\r\n长", max_size=6)), st.sampled_from(["utf-8", "utf-8-sig"]))
def test_lines_are_those_of_the_whole(pieces: list[str], encoding: str) -> None:
    whole = "".join(pieces)
    content = whole.encode(encoding)

    async def read() -> list[str]:
        return [event.data async for event in iterate_events(cut(content, (1,) * len(content)), "jsonl")]

    expected = whole.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert asyncio.run(read()) == [line for line in expected if line]


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (b'data: {"answer":\ndata:  "Two lines."}\n\n', "Two lines."),
        (b'data:{"answer":"No space."}\n\n', "No space."),
        (b'id: 7\nretry: 10\nevent: token\ndata: {"answer": "Other fields."}\n\n', "Other fields."),
        (b': keep alive\n\n\n\ndata: {"answer": "Comments."}\n\n: end\n\n', "Comments."),
        (b'event: ping\n\ndata: {"answer": "No data."}\n\n', "No data."),
        (b'data: {"answer": "No last line."}', "No last line."),
        (b'\xef\xbb\xbfdata: {"answer": "A mark first."}\r\n\r\n', "A mark first."),
        (b'data: {"answer": "Done."}\n\ndata: [DONE]\n\ndata: rubbish\n\n', "Done."),
        (b'data: {"answer": "a\xe2\x80\xa8b\x0c"}\n\n', None),  # a raw form feed is not valid JSON
        ('data: {"answer": "a\u2028b\u0085c"}\n\n'.encode(), "a\u2028b\u0085c"),  # these end no line
        (b'data: {"answer": null}\n\ndata: {"answer": "Null."}\n\ndata: {"usage": 3}\n\n', "Null."),
        (b'data: {"answer": 4}\n\ndata: {"answer": 2.5}\n\ndata: {"answer": true}\n\n', "42.5true"),
    ],
)
def test_server_sent_events_are_read_as_the_standard_has_them(content: bytes, answer: str | None) -> None:
    if answer is None:
        with pytest.raises(QuestionFailed, match="event 1 of the stream is not valid JSON"):
            read_stream(content)
    else:
        assert read_stream(content).answer == answer


def test_a_chat_protocol_is_read_by_its_path() -> None:
    deltas: list[Any] = [{"role": "assistant"}, {"content": "Hel"}, {"content": None}, {"content": "lo."}]
    content = write_sse(*({"choices": [{"delta": delta}]} for delta in deltas), {"choices": []}, "[DONE]")
    assert read_stream(content, answer="$.choices[*].delta.content").answer == "Hello."


def test_texts_themselves_may_be_events() -> None:
    assert read_stream(write_sse('"One "', '"two."'), answer="$").answer == "One two."


def test_contexts_come_from_any_event_that_has_them() -> None:
    one, two = {"id": "a#1", "text": "one"}, {"id": "a#2", "text": "two"}
    first = write_sse({"contexts": [one, two]}, {"answer": "Yes."})
    last = write_sse({"answer": "Yes."}, {"contexts": [one, two]})
    each = write_sse({"hit": one}, {"answer": "Yes."}, {"hit": two})
    repeated = write_sse({"contexts": [one, two], "answer": "Ye"}, {"contexts": [one, two], "answer": "s."})
    expected = Response(answer="Yes.", contexts=("one", "two"), context_ids=("a#1", "a#2"))
    assert read_stream(first) == read_stream(last) == read_stream(repeated) == expected
    assert read_stream(each, contexts="$.hit") == expected
    apart = write_sse({"contexts": ["one", "two"]}, {"answer": "Yes."}, {"ids": ["a#1", "a#2"]})
    assert read_stream(apart, context_ids="$.ids") == expected


def test_texts_have_the_addresses_beside_them() -> None:
    hits = [{"text": "one", "url": "a"}, {"text": "two"}, {"text": "three", "metadata": {"source": "c"}}]
    each = write_sse(*({"hits": [hit]} for hit in hits), {"answer": "Yes."})
    assert read_stream(each, contexts="$.hits[*].text").context_sources == (("a",), (), ("c",))
    twice = [{"text": "one", "url": "a"}, {"text": "one", "url": "b"}]
    repeated = write_sse({"hits": twice}, {"answer": "Yes.", "hits": [{"text": "one"}, {"text": "one"}]})
    assert read_stream(repeated, contexts="$.hits[*].text").context_sources == (("a",), ("b",))
    within = write_sse({"found": {"url": "a", "texts": ["one"]}, "answer": "Yes."})
    assert read_stream(within, contexts="$.found.texts").context_sources is None
    body = {"answer": "Yes.", "hits": hits}
    with serving(answer_json(body), answer_json({"answer": "Yes.", "url": "a", "text": "one"})) as server:
        asked = [
            asyncio.run(ask_once(url=server.url, contexts=path)).context_sources
            for path in ("$.hits[*].text", "$.text")
        ]
    assert asked == [(("a",), (), ("c",)), None]


def test_halves_of_a_character_are_joined_or_replaced() -> None:
    """Bots cut passages, and servers cut streams, within an emoji."""
    halves = rb'data: {"answer": "\ud83d"}' + b"\n\n" + rb'data: {"answer": "\ude00", "contexts": ["\ud83d"]}' + b"\n\n"
    response = read_stream(halves)
    assert (response.answer, response.contexts) == ("\U0001f600", ("\ufffd",))
    with serving(Canned(body=[rb'{"answer": "cut \ud83d"}'])) as server:
        assert asyncio.run(ask_once(url=server.url)).answer == "cut \ufffd"


def test_empty_retrieval_differs_from_missing_retrieval() -> None:
    assert read_stream(write_sse({"contexts": []}, {"answer": "Yes."})).contexts == ()
    assert read_stream(write_sse({"answer": "Yes."})).contexts is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no event came in the stream"),
        (b"data: [DONE]\n\n", "no event came in the stream"),
        (write_sse({"reply": "Yes."}), r"answer = '\$.answer' matches nothing in any of 1 events"),
        (write_sse({"answer": {"text": "Yes."}}), r"matches an object in event 1; write the path of its text"),
        (
            write_sse({"answer": "It is"}, '{"answer": " re'),
            r"event 2 of the stream is not valid JSON \(.*: '\{\"answer\": \" re'",
        ),
        (write_sse({"answer": "It is"}, {"error": "out of memory"}), "the stream reported an error: .*out of memory"),
        (write_sse({"answer": ""}, {"event": "error", "message": "Rate Limit"}), "reported an error: .*Rate Limit"),
        (write_sse({"answer": "It"}, {"type": "error", "errorText": "x"}), "the stream reported an error: "),
        (write_sse({"answer": "It"}, {"type": "response.failed"}), "the stream reported an error: "),
        (write_sse({"answer": "It"}, {"type": "RUN_ERROR", "message": "x"}), "the stream reported an error: "),
        (write_sse({"answer": "It"}, {"type": "abort"}), "the stream reported an error: "),
        (write_sse({"answer": "It"}, {"status": "failed", "message": "x"}), "the stream reported an error: "),
        (b'data: {"answer": "It"}\n\nevent: error\ndata: overloaded\n\n', "the stream reported an error: overloaded"),
        (b'data: {"answer": "It"}\n\nevent: conversation.chat.failed\ndata: {"code": 5}\n\n', "the stream reported an"),
        (b'data: {"answer": "\xff"}\n\n', "the stream is not UTF-8: invalid start byte"),
        (b'data: {"answer": "\xe9\x95', "the stream is not UTF-8: unexpected end of data"),
    ],
)
def test_a_stream_that_cannot_be_read_says_why(content: bytes, problem: str) -> None:
    with pytest.raises(QuestionFailed, match=problem):
        read_stream(content)


@pytest.mark.parametrize(
    "parts",
    [
        ["It", "It opens", "It opens at six."],
        ["It opens ", "at six.", "It opens at six."],
        ["It opens ", "It opens at six."],
        ["", "It opens", " at six", "."],
        ["It opens at six", ".", ""],
        [" It opens", " at six.\n", "It opens at six."],
    ],
)
def test_a_text_that_a_stream_repeats_counts_once(parts: list[str]) -> None:
    """Some servers send all of the text so far with each event, or once more at the end."""
    assert read_stream(write_sse(*({"answer": part} for part in parts))).answer == "It opens at six."
    assert read_stream(write_sse(*({"answer": part} for part in ["No", ".", ".", "."]))).answer == "No..."
    cited = "It opens [ID:0]. It closes [ID:1]."
    grown = [{"answer": text} for text in ("It", "It opens.", "It opens. It closes.", cited)]
    assert read_stream(write_sse(*grown)).answer == read_stream(write_sse(*grown[2:])).answer == cited
    torn = [{"answer": text} for text in ("It opens at", "It opens at six. [1", "It opens at six. [1]")]
    assert read_stream(write_sse(*torn)).answer == "It opens at six. [1]"
    short = [{"answer": text} for text in ("是的", "。", "是的。")]
    assert read_stream(write_sse(*short)).answer == "是的。"
    replaced = [{"event": "message", "answer": "A draft."}, {"event": "message_replace", "answer": "I cannot say."}]
    assert read_stream(write_sse(*replaced)).answer == "I cannot say."
    blank = [{"answer": text} for text in ("\n", "\nIt opens at six", " on Sundays.")]
    assert str(read_stream(write_sse(*blank)).answer).strip() == "It opens at six on Sundays."
    for cited in (["22", "22:40", "22:40.", "22:40 ##0$$."], ["Yes, ", "it does.", "Yes [1], it does."]):
        assert read_stream(write_sse(*({"answer": text} for text in cited))).answer == cited[-1]


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        (["No", "No, it", "No, it is not."], "No, it is not."),
        (["可以", "可以退", "可以退款"], "可以退款"),
        (["可以", "退款", "可以退款[1]"], "可以退款[1]"),
        (["It opens", "It opens at six.", "It opens at six.", "I cannot say."], "I cannot say."),
        (["It opens.", "It opens.", "It opens at six.", "It opens at six."], "It opens at six."),
        (["Old answer.", "Old answer.", "It opens at six.", "It opens at six."], "It opens at six."),
        (["It opens", " at six.", "It opens at six.", "Any", "thing ", "else?", "Anything else?"],
         "It opens at six.Anything else?"),
        (["2", "2", ":", "2", "2"], "22:22"),
        (["It opens", "It opens at six.\n", "It opens at six.\n"], "It opens at six.\n"),
        (["Closed", "\nClosed", "\nClosed"], "Closed\nClosed\nClosed"),
        (["可以可以，", "退款需要三天。", "退款需要三天。"], "可以可以，退款需要三天。退款需要三天。"),
        (["[1]", " [2]", " [3]"], "[1] [2] [3]"),
        (["---", "---", "---", "|"], "---------|"),
        (["Yes", "Yes", " it"], "YesYes it"),
    ],
)  # fmt: skip
def test_parts_may_be_states_of_the_text_or_several_messages(parts: list[str], answer: str) -> None:
    """Only one growing text was known, and a text that was repeated at the end."""
    assert read_stream(write_sse(*({"answer": part} for part in parts))).answer == answer


def test_of_a_graphs_states_the_last_one_counts() -> None:
    """The answer came once for each node after it, and the documents that a grader had left out were contexts."""
    documents = [{"id": f"d{number}", "text": f"Page {number}."} for number in range(4)]
    states: list[dict[str, object]] = [{"answer": "Old.", "contexts": documents[3:]}, {"contexts": documents}]
    states += [{"contexts": documents[1:2], "answer": "At six."}] * 3
    named = b"".join(b"event: values\n" + write_sse(state) for state in states)
    plain = write_sse(*states[1:])
    response = read_stream(named)
    assert (response.answer, response.context_ids) == ("At six.", ("d1",))
    response = read_stream(plain.replace(b'"At six."', b'"It opens at six."'))
    assert (response.answer, response.context_ids) == ("It opens at six.", ("d0", "d1", "d2", "d3"))
    saved = named + b"event: values\n" + write_sse({"answer": "", "contexts": []})
    assert (read_stream(saved).answer, read_stream(saved).context_ids) == ("At six.", ("d1",))
    messages = [
        {"type": "tool", "content": "Page 3."},
        {"type": "ai", "content": "At six."},
        {"type": "tool", "content": "Saved."},
    ]
    content = b"".join(b"event: messages/complete\n" + write_sse([message]) for message in messages)
    response = read_stream(content, answer="$[?@.type=='ai'].content", contexts="$[?@.type=='tool'].content")
    assert (response.answer, response.contexts) == ("At six.", ("Page 3.", "Saved."))
    assert read_stream(content, answer="$[0].content").answer == "At six."
    partial = [("partial", "Let me"), ("partial", "Let me look."), ("complete", "Let me look."), ("partial", "At"),
               ("partial", "At six."), ("partial", "")]  # fmt: skip
    content = b"".join(f"event: messages/{kind}\n".encode() + write_sse([{"content": text}]) for kind, text in partial)
    assert read_stream(content, answer="$[0].content").answer == "At six."


def test_a_list_of_contexts_that_grows_counts_once() -> None:
    """The list came once more for each token of the answer."""
    one, two = {"id": "a", "text": "one"}, {"id": "b", "text": "two"}
    lists = [[one], [one], [one, two], [one, two], [one, two]]
    grown = write_sse(*({"answer": "Yes. ", "contexts": items} for items in lists))
    assert read_stream(grown).context_ids == ("a", "b")
    apart = write_sse({"contexts": [one]}, {"contexts": [two]}, {"answer": "Yes."}, {"contexts": [one, two]})
    assert read_stream(apart).context_ids == ("a", "b")
    empty = write_sse(
        {"answer": "", "contexts": [one, two]}, *({"answer": word, "contexts": []} for word in ("Ye", "s."))
    )
    assert read_stream(empty).context_ids == ("a", "b")
    again = write_sse(
        {"contexts": ["one", "two"], "ids": ["a", "a"]}, {"answer": "Yes.", "ids": ["a", "a"]}, {"ids": ["a", "a"]}
    )
    assert read_stream(again, context_ids="$.ids").context_ids == ("a", "a")
    closing = write_sse({"contexts": ["one", "two"], "ids": ["a", "a"]}, {"answer": "Yes.", "contexts": ["one", "two"]})
    assert read_stream(closing, context_ids="$.ids").context_ids == ("a", "a")
    later = write_sse({"contexts": ["one"]}, {"contexts": ["one", "two"]}, {"answer": "Yes.", "ids": ["a", "a", "b"]})
    assert read_stream(later, context_ids="$.ids").contexts == ("one", "one", "two")
    each = write_sse(*({"contexts": [text], "ids": ["a"], "answer": "Yes. "} for text in ("one", "two", "one")))
    response = read_stream(each, context_ids="$.ids")
    assert (response.contexts, response.context_ids) == (("one", "two"), ("a", "a"))


def test_empty_events_end_marks_and_geminis_thoughts_are_no_answer() -> None:
    parts = [{"text": "They ask when.", "thought": True}, {"text": "At six."}]
    content = (
        write_sse(*({"parts": [part]} for part in parts), {"parts": [{"text": "[DONE]"}]}) + b"event: end\ndata:\n\n"
    )
    assert read_stream(content, answer="$.parts[*].text").answer == "<think>\nThey ask when.\n</think>\n\nAt six."


def test_of_messages_of_several_types_the_answers_count() -> None:
    """Documents and suggested questions were a part of the answer, which its closing message doubled."""
    messages = [
        ("knowledge", "Page 3: the office opens at six."), ("answer", "It opens"), ("answer", " at six."),
        ("answer", "It opens at six."), ("verbose", '{"msg_type": "finish"}'), ("follow_up", "When does it close?"),
    ]  # fmt: skip
    events = [{"role": "assistant", "type": kind, "content": text} for kind, text in messages]
    assert read_stream(write_sse(*events), answer="$.content").answer == "It opens at six."
    empty = [{"type": "answer", "content": ""}, *({"type": "delta", "content": text} for text in ("It ", "opens."))]
    assert read_stream(write_sse(*empty), answer="$.content").answer == "It opens."
    graph = [[{"type": kind, "content": text}] for kind, text in (("tool", "Page 3."), ("AIMessageChunk", "Yes."))]
    assert read_stream(write_sse(*graph), answer="$[0].content").answer == "Yes."


@pytest.mark.parametrize(
    "mark", ["[1, 2]", "[doc1]", "[^1]", "[1](https://harbour.test/times)", "【4:0†source】", "**"]
)
def test_a_closing_event_may_repeat_the_text_with_any_citation(mark: str) -> None:
    """Only `[1]` and two other forms were known: with others the answer was doubled."""
    closing = f"It opens at six{mark}. It closes at nine, and no guest may come along then."
    parts = ["It opens", " at six.", " It closes at nine, and no guest", " may come along then.", closing]
    assert read_stream(write_sse(*({"answer": part} for part in parts))).answer == closing
    whole = "It opens at six. It closes at nine. It opens at six on Sundays as well, if it does not rain."
    texts = [whole[:17], whole[17:36], whole[36:]]
    assert read_stream(write_sse(*({"answer": part} for part in texts))).answer == whole


def test_events_of_thoughts_and_tools_are_not_the_answer() -> None:
    """One path, such as `$.delta` of the AI SDK and of OpenAI's responses, finds their texts as well."""
    events = [
        {"type": "reasoning-delta", "answer": "They ask "},
        {"type": "response.reasoning_summary_text.delta", "answer": "when."},
        {"type": "response.function_call_arguments.delta", "answer": '{"query": '},
        {"type": "TOOL_CALL_ARGS", "answer": '{"query": '},
        {"type": "response.code_interpreter_call_code.delta", "answer": "print(6)"},
        {"type": "research_call.delta", "answer": "At "},
        {"type": "response.output_text.delta", "answer": "six."},
    ]
    assert read_stream(write_sse(*events)).answer == "<think>\nThey ask when.\n</think>\n\nAt six."


def test_a_step_that_fails_does_not_fail_the_answer() -> None:
    steps = [
        {"type": "tool-output-error", "errorText": "no such page"},
        {"type": "response.mcp_call.failed"},
        {"type": "thread.run.step.failed"},
        {"type": "tool", "status": "error"},
    ]
    assert read_stream(write_sse(*steps, {"answer": "Yes."})).answer == "Yes."


async def test_a_stream_that_breaks_off_is_asked_for_again() -> None:
    broken = Canned(body=[write_sse({"answer": "It is "})], broken=True)
    whole = Canned(body=[write_sse({"answer": "It is "}, {"answer": "red."})])
    with serving(broken, whole) as server:
        response = await ask_once(url=server.url, stream="sse")
    assert (response.answer, response.attempts) == ("It is red.", 2)


async def test_a_failure_within_a_stream_shows_status_and_beginning() -> None:
    with serving(Canned(status=201, body=[write_sse({"reply": "Yes."})])) as server:
        response = await ask_once(url=server.url, stream="sse")
    assert response.error == (
        "status 201, but answer = '$.answer' matches nothing in any of 1 events; "
        'the body begins: data: {"reply":"Yes."}'
    )
    assert server.requests[0].headers["accept"] == "text/event-stream"


async def test_what_follows_the_end_is_not_waited_for() -> None:
    endless = [write_sse({"answer": "Yes."}, "[DONE]"), *[b": still here\n\n"] * 2_000_000]
    with serving(Canned(body=endless)) as server:
        response = await ask_once(url=server.url, stream="sse", attempts=1)
    assert response.answer == "Yes."


@pytest.mark.parametrize(
    ("canned", "answer", "problem"),
    [
        (Canned(headers={"Content-Type": "text/plain; charset=gb18030"}, body=["长城".encode("gb18030")]), "长城", ""),
        (Canned(body=["长".encode()[:2]]), None, "the response is not utf-8: unexpected end of data at byte 0"),
        (
            Canned(headers={"Content-Type": "text/plain; charset=klingon"}, body=[b"nuqneH"]),
            None,
            "not a known encoding",
        ),
        (Canned(body=[b" \n"]), " \n", ""),
    ],
)
async def test_plain_text_is_decoded_as_it_says(canned: Canned, answer: str | None, problem: str) -> None:
    with serving(canned) as server:
        response = await ask_once(url=server.url, stream="text")
    assert response.answer == answer
    assert problem in (response.error or "")


def test_thoughts_of_a_stream_come_before_its_answer() -> None:
    deltas = [{"reasoning_content": "h"}, {"reasoning_content": "m"}, {"content": "Y"}, {"content": "es."}]
    content = write_sse(*({"choices": [{"delta": delta}]} for delta in deltas))
    assert read_stream(content, answer="$.choices[*].delta.content").answer == "<think>\nhm\n</think>\n\nYes."
