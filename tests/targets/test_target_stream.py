"""A streamed answer is the same however its bytes were cut."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rag_bot import RagBot, start_rag_bot
from target_house import TALL, TALL_ANSWER, ask_once, write_documents
from target_server import Canned, serving

from evalhouse.tasks.targets.over_http import compile_path, iterate_events
from evalhouse.tasks.targets.over_http import read_stream as read_pieces
from evalhouse.tasks.targets.protocol import QuestionFailed, Response

CHINESE = "长城全长多少？"
CHINESE_ANSWER = "长城全长超过两万公里。"


@pytest.fixture
def bot(tmp_path: Path) -> Iterator[RagBot]:
    with start_rag_bot(write_documents(tmp_path)) as bot:
        yield bot


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


@given(st.lists(st.text(min_size=1), min_size=1), st.lists(st.integers(1, 9)), st.sampled_from(["\n", "\r\n", "\r"]))
def test_pieces_cut_anywhere_make_the_same_events(parts: list[str], sizes: list[int], end: str) -> None:
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
        (b'data: {"answer": "It"}\n\nevent: error\ndata: overloaded\n\n', "the stream reported an error: overloaded"),
        (b'data: {"answer": "\xff"}\n\n', "the stream is not UTF-8: invalid start byte"),
        (b'data: {"answer": "\xe9\x95', "the stream is not UTF-8: unexpected end of data"),
    ],
)
def test_a_stream_that_cannot_be_read_says_why(content: bytes, problem: str) -> None:
    with pytest.raises(QuestionFailed, match=problem):
        read_stream(content)


async def test_a_stream_that_breaks_off_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.tasks.asking.limits._BACKOFF_FIRST_S", 0.01)
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
