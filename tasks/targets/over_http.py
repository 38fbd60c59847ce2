"""An application behind an HTTP address: a request is filled in, sent, and its response is read.

Everything of the settings is checked when the target is made. `templates` fills the request and `streams` finds the
answer; here it is sent and decided what a failure means. Redirects are followed to the same host alone, since the
request's headers go along and may hold a secret.
"""

import asyncio
import codecs
import contextlib
import functools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import orjson
from yarl import URL

from evalhouse.tasks.asking.http_session import HttpSession, make_ssl_context
from evalhouse.tasks.judge.errors import parse_retry_after
from evalhouse.tasks.settings.named_values import NamedValueError, describe_name, read_named
from evalhouse.tasks.settings.target import (
    CONVERSATION,
    GIVEN_MARKS,
    MARK,
    METADATA,
    VARIABLE,
    TargetSettings,
    find_texts,
    is_secret_header,
)
from evalhouse.tasks.targets.protocol import (
    Answer,
    Attempts,
    PassingFailure,
    QuestionFailed,
    Response,
    TargetError,
    TargetQuestion,
    make_answer,
    make_failed,
)
from evalhouse.tasks.targets.streams import JsonLines, Path, SseEvents, StreamedAnswer, compile_path
from evalhouse.warehouse.messages import list_names, note_secret, redact, shorten, spell_secret

# A shorter value is no secret, and taking it out would take out parts of words.
_SHORTEST_SECRET = 4
_SHORTEST_SECRET_IN_ANSWERS = 8
# Where a message was cut.
_CUT = re.compile(r"(\s?…)")


def fill_json(template: object, question: TargetQuestion) -> Any:  # noqa: ANN401  # JSON
    """The template with the sample's values; raises QuestionFailed for metadata that the sample does not have.

    A member that stands for contexts is left out where none are given, so that one template serves both ways of asking.
    An item that stands for the conversation is all of its messages, so that others may stand before and after them.
    """
    if isinstance(template, dict):
        filled = {name: member for name, member in template.items() if not _is_left_out(member, question)}
        return {_fill_text(name, question): fill_json(member, question) for name, member in filled.items()}
    if isinstance(template, list):
        return [filled for item in template for filled in _fill_item(item, question)]
    if not isinstance(template, str):
        return template
    if alone := MARK.fullmatch(template):
        return _find_value(alone[1], question)
    return _fill_text(template, question)


def _fill_item(item: object, question: TargetQuestion) -> list[Any]:
    alone = MARK.fullmatch(item) if isinstance(item, str) else None
    if alone is not None and alone[1] == CONVERSATION:
        return [dict(message) for message in question.conversation]
    return [] if _is_left_out(item, question) else [fill_json(item, question)]


def _is_left_out(member: object, question: TargetQuestion) -> bool:
    alone = MARK.fullmatch(member) if isinstance(member, str) else None
    return alone is not None and alone[1] in GIVEN_MARKS and getattr(question, alone[1]) is None


def fill_url(template: str, question: TargetQuestion) -> str:
    """The address with the sample's values percent-encoded."""
    return MARK.sub(lambda mark: _encode(_find_text(mark[1], question)), template)


def _fill_text(template: str, question: TargetQuestion) -> str:
    return MARK.sub(lambda mark: _find_text(mark[1], question), template)


def _encode(text: str) -> str:
    try:
        encoded = quote(text, safe="")
    except UnicodeEncodeError as error:
        raise QuestionFailed(f"the question cannot be sent: {error}", unasked=True) from None
    # A segment of dots alone would be taken as a step up.
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def _find_text(name: str, question: TargetQuestion) -> str:
    value = _find_value(name, question)
    if isinstance(value, str):
        return value
    if value is None:
        raise QuestionFailed(f"this sample's {name} is null, and a request wants it within a text", unasked=True)
    return orjson.dumps(value).decode()


def _find_value(name: str, question: TargetQuestion) -> Any:  # noqa: ANN401  # JSON
    if name == "question":
        return question.question
    if name == "sample_id":
        return question.sample_id
    if name == CONVERSATION:
        return [dict(message) for message in question.conversation]
    if name in GIVEN_MARKS:
        return list(getattr(question, name))
    key = name.removeprefix(METADATA)
    if key in question.metadata:
        return question.metadata[key]
    value: Any = question.metadata
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            has = list_names([str(column) for column in question.metadata], 8)
            raise QuestionFailed(
                f"this sample has no metadata {key!r}, which a request wants; it has: {has}", unasked=True
            )
        value = value[part]
    return value


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Headers:
    """Headers as they are sent, and what of them must be seen nowhere: `hidden` by variable name."""

    sent: Mapping[str, str]
    hidden: Mapping[str, str]
    secret: frozenset[str]  # names of variables that stand in headers for secrets

    def redact_error(self, text: str) -> str:
        """A text for a message, without any value that came from the environment, however it is spelt."""
        for name, value in _longest_first(self.hidden):
            if len(value) >= _SHORTEST_SECRET:
                text = _take_out(value, f"[{name}]", text)
        return redact(text)

    def redact_answer(self, text: str) -> str:
        """What an application said, without the secrets it was sent; other values may be in an answer by right."""
        for name, value in _longest_first(self.hidden):
            if name in self.secret and len(value) >= _SHORTEST_SECRET_IN_ANSWERS:
                text = text.replace(value, f"[{name}]")
        return text

    def quote_body(self, body: bytes) -> str:
        """The first characters of a body, fit for a message."""
        return shorten(self.redact_error(body.decode(errors="replace")), 200) or "(empty)"


def fill_headers(headers: Mapping[str, str]) -> Headers:
    """The headers with the environment's values; raises TargetError that names header and variable, and no value."""
    sent: dict[str, str] = {}
    hidden: dict[str, str] = {}
    secret: set[str] = set()
    for header, template in headers.items():
        values = {name: _read_variable(name, header) for name in VARIABLE.findall(template)}
        hidden |= values
        sent[header] = _fill_variables(template, values)
        if is_secret_header(header):
            secret |= set(values)
            for value in values.values():
                note_secret(value)
    return Headers(sent=sent, hidden=hidden, secret=frozenset(secret))


def _fill_variables(template: str, values: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda match: values[match[1]], template)


def _read_variable(name: str, header: str) -> str:
    wanted = f"header {header} wants {describe_name(name)}"
    try:
        value = read_named(name)
    except NamedValueError as error:
        raise TargetError(f"{wanted}: {error}") from None
    if value is None:
        raise TargetError(f"{wanted}, which is not set; set it")
    if any(character in value for character in "\r\n\0"):
        raise TargetError(f"{wanted}, which has a line break in it; take that out")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TargetError(f"{wanted}, which is not UTF-8") from None
    return value


def _longest_first(hidden: Mapping[str, str]) -> list[tuple[str, str]]:
    """So that of two values of which one holds the other nothing is left."""
    return sorted(hidden.items(), key=lambda item: -len(item[1]))


def _take_out(value: str, shown: str, text: str) -> str:
    """The text without a value, whole or cut off, as it is and as JSON, Python, an address or a page would have it."""
    spellings = sorted(spell_secret(value), key=len, reverse=True)
    for spelling in spellings:
        text = text.replace(spelling, shown)
    for spelling in spellings:
        text = _take_out_beginning(spelling, shown, text)
    return text


def _take_out_beginning(value: str, shown: str, text: str) -> str:
    """The text without the beginning of a value wherever the text was cut."""
    pieces = _CUT.split(text)
    for at in range(0, len(pieces) - 1, 2):  # every other piece is what stood at a cut
        pieces[at] = _drop_beginning(value, shown, pieces[at])
    return "".join(pieces)


def _drop_beginning(value: str, shown: str, text: str) -> str:
    longest = min(len(value) - 1, len(text))
    length = next((n for n in range(longest, _SHORTEST_SECRET - 1, -1) if text.endswith(value[:n])), 0)
    return text[: len(text) - length] + shown if length else text


_PASSING = (408, 425, 429)
# Bytes of a stream that are kept for messages.
_MOST_SHOWN = 4096
_MOST_BYTES = 32 * 1024 * 1024
_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_DEFAULT_BODY = {"question": "{{question}}"}
_ACCEPTED = {"sse": "text/event-stream", "jsonl": "application/x-ndjson, application/json", "text": "text/plain, */*"}
_HINTS = {
    400: "check that body is what the application wants",
    401: "check the headers, and the environment's values in them",
    403: "check the headers, and the environment's values in them",
    404: "check url",
    405: "check method",
    413: "the question is too long for it",
    415: "check the header Content-Type",
    422: "check that body is what the application wants",
}
_STREAM_HINTS = {
    "text/event-stream": 'a stream came; set stream = "sse"',
    "application/x-ndjson": 'a stream came; set stream = "jsonl"',
    "application/jsonl": 'a stream came; set stream = "jsonl"',
    "text/html": "a page for people came; check url",
    "text/plain": 'set stream = "text" if all of it is the answer',
}


class _Unreadable(QuestionFailed):
    """A body of another kind than was expected."""


class HttpTarget:
    """Asks an address. The name leaves out the query, which may hold a key."""

    def __init__(self, settings: TargetSettings) -> None:
        assert settings.url is not None
        parts = urlsplit(settings.url)
        self.name = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._url = settings.url
        no_body = settings.method == "GET" and settings.body is None
        self._body = None if no_body else _DEFAULT_BODY if settings.body is None else settings.body
        marks = {mark for text in (settings.url, *find_texts(self._body)) for mark in MARK.findall(text)}
        self.takes_contexts = "contexts" in marks
        self.takes_conversation = CONVERSATION in marks
        self.names_conversation = f"{METADATA}conversation_id" in marks
        self._stream = settings.stream
        self._timeout_s = settings.timeout_s
        self._answer = compile_path("answer", settings.answer)
        self._contexts = _compile_given("contexts", settings.contexts)
        self._context_ids = _compile_given("context_ids", settings.context_ids)
        self._headers = fill_headers(settings.headers)
        self._attempts = Attempts(settings)
        self._session = TargetSession(
            method=settings.method,
            headers=self._headers.sent,
            accept=_ACCEPTED.get(settings.stream or "", "application/json"),
        )

    async def ask(self, question: TargetQuestion) -> Response:
        """The response; what came from the environment is in none of its texts."""
        try:
            url = fill_url(self._url, question)
            content = None if self._body is None else _dump(fill_json(self._body, question))
        except QuestionFailed as failure:
            return make_failed(str(failure), attempts=0)
        response = await self._attempts.ask(functools.partial(self._attempt, url, content))
        if response.error is not None:
            return replace(response, error=self._headers.redact_error(response.error))
        redact = self._headers.redact_answer
        return replace(
            response,
            answer=None if response.answer is None else redact(response.answer),
            contexts=None if response.contexts is None else tuple(map(redact, response.contexts)),
            context_ids=None if response.context_ids is None else tuple(map(redact, response.context_ids)),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _attempt(self, url: str, content: bytes | None) -> Answer:
        try:
            async with asyncio.timeout(self._timeout_s), self._session.send(url, content) as response:
                if not 200 <= response.status < 300:
                    raise self._make_failure(response, await read_body(response))
                return await self._read(response)
        except TimeoutError:
            raise PassingFailure(
                f"no whole response within {self._timeout_s:g} s; raise timeout_s if it may take longer"
            ) from None
        except aiohttp.ClientError as error:
            raise self._translate(error) from None

    async def _read(self, response: aiohttp.ClientResponse) -> Answer:
        """What a good response says; a failure tells how its body begins, as far as that was read."""
        body = bytearray()
        try:
            async with contextlib.aclosing(iterate_body(response)) as pieces:
                if self._stream in ("sse", "jsonl"):
                    return await self._read_stream(pieces, body)
                async for piece in pieces:
                    body += piece
            if self._stream == "text":
                return make_answer(_decode(body, response.charset or "utf-8"), None)
            return self._read_json(body)
        except QuestionFailed as failure:
            begins = self._headers.quote_body(bytes(body))
            hint = _STREAM_HINTS.get(response.content_type) if isinstance(failure, _Unreadable) and body else None
            message = f"status {response.status}, but {failure}; the body begins: {begins}"
            raise QuestionFailed(f"{message}; {hint}" if hint else message) from None

    async def _read_stream(self, pieces: AsyncIterator[bytes], shown: bytearray) -> Answer:
        streamed = StreamedAnswer(
            answer=self._answer,
            contexts=self._contexts,
            context_ids=self._context_ids,
            events=SseEvents() if self._stream == "sse" else JsonLines(),
        )
        async for piece in pieces:
            if len(shown) < _MOST_SHOWN:
                shown += piece
            streamed.feed(piece)
            if streamed.done:
                break
        streamed.feed(b"", last=True)
        return streamed.read()

    def _read_json(self, body: bytearray) -> Answer:
        try:
            document = orjson.loads(bytes(body).removeprefix(codecs.BOM_UTF8))
        except orjson.JSONDecodeError as error:
            raise _Unreadable(
                f"the body is not valid JSON ({error})" if body.strip() else "the body is empty"
            ) from None
        return make_answer(self._find_answer(document), _find_items(self._contexts, document), self._find_ids(document))

    def _find_answer(self, document: object) -> object:
        """What the path matches; several texts are parts of one answer."""
        matches = self._answer.find(document)
        if not matches:
            has = f"the body's members: {list_names(list(document), 8)}; " if isinstance(document, dict) else ""
            raise QuestionFailed(
                f"answer = {self._answer.text!r} matches nothing; {has}set answer to where the answer stands"
            )
        if len(matches) > 1 and all(isinstance(part, str) for part in matches):
            return "".join(map(str, matches))
        return matches[0] if len(matches) == 1 else matches

    def _find_ids(self, document: object) -> object:
        """The ids; a path of its own that matches nothing is as wrong as one that matches too few."""
        ids = _find_items(self._context_ids, document)
        if ids is None and self._context_ids is not None and _find_items(self._contexts, document):
            raise QuestionFailed(
                f"context_ids = {self._context_ids.text!r} matches nothing, although there are contexts"
            )
        return ids

    def _make_failure(self, response: aiohttp.ClientResponse, body: bytes) -> QuestionFailed:
        """The error of a status that is not a success."""
        status = response.status
        message = f"status {status}: {self._headers.quote_body(body)}"
        if status in _PASSING or status >= 500:
            return PassingFailure(
                message, retry_after_s=parse_retry_after(response.headers), rate_limited=status in (425, 429)
            )
        return QuestionFailed(f"{message}; {_HINTS[status]}" if status in _HINTS else message)

    def _translate(self, error: aiohttp.ClientError) -> QuestionFailed:
        """A connection that was not made, or broke."""
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        text = shorten(self._headers.redact_error(str(cause))) or "it was closed"
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            return QuestionFailed(
                f"no safe connection to {self.name}: {text}; check url, or name a file with the certificates to trust "
                "in SSL_CERT_FILE"
            )
        if isinstance(error, aiohttp.InvalidURL):
            return QuestionFailed(f"the address is not valid once it is filled in: {text}; check url", unasked=True)
        if isinstance(error, aiohttp.ClientConnectorError):
            return PassingFailure(f"no connection to {self.name}: {text}; check that it runs there", unreached=True)
        return PassingFailure(f"the connection broke: {type(error).__name__}: {text}")


def _compile_given(key: str, text: str | None) -> Path | None:
    return None if text is None else compile_path(key, text)


def _find_items(path: Path | None, document: object) -> list[object] | None:
    return None if path is None else path.find_items(document)


def _dump(body: Any) -> bytes:  # noqa: ANN401  # JSON
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        raise QuestionFailed(f"the question cannot be sent as JSON: {error}") from None


def _decode(body: bytearray, charset: str) -> str:
    try:
        return body.decode(charset)
    except LookupError:
        raise QuestionFailed(f"the response says it is in {charset!r}, which is not a known encoding") from None
    except UnicodeDecodeError as error:
        raise QuestionFailed(f"the response is not {charset}: {error.reason} at byte {error.start}") from None


class TargetSession:
    """Sends requests with the same headers; use within one event loop, and `close` it there."""

    def __init__(self, *, method: str, headers: Mapping[str, str], accept: str) -> None:
        self._method = method
        given = {name.lower() for name in headers}
        ours = {"Accept": accept, "Content-Type": "application/json"}
        self._headers = {name: value for name, value in ours.items() if name.lower() not in given} | dict(headers)
        self._untyped = {name: value for name, value in self._headers.items() if name.lower() != "content-type"}
        # Certificates are read beforehand, since that takes as long as many an answer. No cookie is kept: what was
        # answered to one question is no business of the next.
        self._session = HttpSession(certificates=make_ssl_context(), keeps_cookies=False)

    @asynccontextmanager
    async def send(self, url: str, content: bytes | None) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer's head, its body still to be read; raises QuestionFailed, or what aiohttp raises on the way."""
        method, target, body = self._method, URL(url, encoded=True), content
        for _ in range(_MOST_REDIRECTS + 1):
            headers = self._headers if body is not None else self._untyped
            async with await self._session.send(method, target, content=body, headers=headers) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or not location:
                    yield response
                    return
                target = _follow(target, location, response.status)
                if response.status == 303:  # the answer is to be fetched there
                    method, body = "GET", None
        raise QuestionFailed(f"it redirected more than {_MOST_REDIRECTS} times; check url")

    async def close(self) -> None:
        """Give the connections back."""
        await self._session.close()


async def iterate_body(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The body in pieces as they come; raises QuestionFailed when it does not end."""
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > _MOST_BYTES:
            raise QuestionFailed(f"the response is larger than {_MOST_BYTES // 1024**2} MiB")
        yield piece


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """The whole body."""
    return b"".join([piece async for piece in iterate_body(response)])


def _follow(source: URL, location: str, status: int) -> URL:
    """Where a redirect leads, if that is the same host, which may have become a safer one."""
    try:
        target = source.join(URL(location, encoded=True))
        same = target.host == source.host and (target.scheme, target.port) in (
            (source.scheme, source.port),
            ("https", 443),
        )
    except ValueError:
        target, same = URL("/"), False
    if not same:
        place = f"{target.scheme}://{target.host}" if target.host else "an invalid address"
        raise QuestionFailed(
            f"status {status}: it redirects to {place}, which is not followed; set url to the address that answers"
        )
    return target
