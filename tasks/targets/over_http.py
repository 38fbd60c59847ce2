"""An application behind an address: a question becomes a request, the body of the response an answer.

A request's template is data before anything is filled in, so a question with quotes, braces or marks is one text in the
end and nothing else; in an address every character of it that could mean something is percent-encoded. Where the answer
is in a body, `streams` finds. Redirects are followed to the same host alone, since the request's headers are sent along
and may hold a secret.
"""

import asyncio
import codecs
import contextlib
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
from evalhouse.tasks.settings.target import (
    CONVERSATION,
    GIVEN_MARKS,
    MARK,
    METADATA,
    VARIABLE,
    NamedValueError,
    TargetSettings,
    describe_name,
    find_texts,
    is_secret_header,
    read_named,
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
from evalhouse.tasks.targets.streams import StreamedAnswer, compile_path
from evalhouse.warehouse.messages import list_names, note_secret, redact, shorten, spell_secret

# --- filling a request


def fill_json(template: object, question: TargetQuestion) -> Any:  # noqa: ANN401  # JSON
    """Return the template with the sample's values; raises QuestionFailed for metadata that the sample does not have.

    A member that stands for contexts is left out where none are given, so that one template serves both ways of asking.
    An item that stands for the conversation is all of its messages, so that others may come before and after them.
    """
    if isinstance(template, str):
        alone = MARK.fullmatch(template)
        return _find_value(alone[1], question) if alone else _fill_text(template, question)
    if isinstance(template, dict):
        return {
            _fill_text(name, question): fill_json(member, question)
            for name, member in template.items()
            if not _is_left_out(member, question)
        }
    if not isinstance(template, list):
        return template
    filled: list[Any] = []
    for item in template:
        alone = MARK.fullmatch(item) if isinstance(item, str) else None
        if alone is not None and alone[1] == CONVERSATION:
            filled += [dict(message) for message in question.conversation]
        elif not _is_left_out(item, question):
            filled.append(fill_json(item, question))
    return filled


def _is_left_out(member: object, question: TargetQuestion) -> bool:
    alone = MARK.fullmatch(member) if isinstance(member, str) else None
    return alone is not None and alone[1] in GIVEN_MARKS and getattr(question, alone[1]) is None


def fill_url(template: str, question: TargetQuestion) -> str:
    """Return the address with the sample's values percent-encoded."""

    def encode(mark: re.Match[str]) -> str:
        try:
            encoded = quote(_find_text(mark[1], question), safe="")
        except UnicodeEncodeError as error:
            raise QuestionFailed(f"the question cannot be sent: {error}", unasked=True) from None
        # A segment of dots alone would be read as a step up.
        return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded

    return MARK.sub(encode, template)


def _fill_text(template: str, question: TargetQuestion) -> str:
    return MARK.sub(lambda mark: _find_text(mark[1], question), template)


def _find_text(name: str, question: TargetQuestion) -> str:
    value = _find_value(name, question)
    if value is None:
        raise QuestionFailed(f"this sample's {name} is null, and a request wants it within a text", unasked=True)
    return value if isinstance(value, str) else orjson.dumps(value).decode()


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
            text = f"this sample has no metadata {key!r}, which a request wants; it has: {has}"
            raise QuestionFailed(text, unasked=True)
        value = value[part]
    return value


# --- headers and their secrets

# A shorter value is not a secret, and taking it out would take out parts of words.
_MIN_SECRET = 4
_MIN_SECRET_IN_ANSWERS = 8
# Where a message was cut.
_CUT = re.compile(r"(\s?…)")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Headers:
    """Headers as they are sent, and their values that must not be shown: `hidden` by variable name."""

    sent: Mapping[str, str]
    hidden: Mapping[str, str]
    secret: frozenset[str]  # names of variables that headers use for secrets

    def redact_error(self, text: str) -> str:
        """Return a text for a message, without any value that came from the environment, however it is spelt: whole or
        cut off, as it is and as JSON, Python, an address or a page would have it."""
        for name, value in self._list_longest_first():
            if len(value) < _MIN_SECRET:
                continue
            spellings = sorted(spell_secret(value), key=len, reverse=True)
            for spelling in spellings:
                text = text.replace(spelling, f"[{name}]")
            for spelling in spellings:
                pieces = _CUT.split(text)
                for at in range(0, len(pieces) - 1, 2):  # every other piece is the text before a cut
                    piece = pieces[at]
                    longest = min(len(spelling) - 1, len(piece))
                    lengths = range(longest, _MIN_SECRET - 1, -1)
                    if length := next((n for n in lengths if piece.endswith(spelling[:n])), 0):
                        pieces[at] = f"{piece[: len(piece) - length]}[{name}]"
                text = "".join(pieces)
        return redact(text)

    def redact_answer(self, text: str) -> str:
        """Return an application's text without the secrets it was sent; other values may be in an answer by right."""
        for name, value in self._list_longest_first():
            if name in self.secret and len(value) >= _MIN_SECRET_IN_ANSWERS:
                text = text.replace(value, f"[{name}]")
        return text

    def _list_longest_first(self) -> list[tuple[str, str]]:
        """Return names and values in the order of replacement: of two values one may hold the other."""
        return sorted(self.hidden.items(), key=lambda item: -len(item[1]))

    def quote_body(self, body: bytes) -> str:
        """Return the first characters of a body, fit for a message."""
        return shorten(self.redact_error(body.decode(errors="replace")), 200) or "(empty)"


def fill_headers(headers: Mapping[str, str]) -> Headers:
    """Return the headers with the environment's values; raises TargetError that names header and variable, and no
    value."""
    sent: dict[str, str] = {}
    hidden: dict[str, str] = {}
    secret: set[str] = set()
    for header, template in headers.items():
        values: dict[str, str] = {}
        for name in VARIABLE.findall(template):
            wanted = f"header {header} wants {describe_name(name)}"
            try:
                value = read_named(name)
                (value or "").encode()
            except NamedValueError as error:
                raise TargetError(f"{wanted}: {error}") from None
            except UnicodeEncodeError:
                raise TargetError(f"{wanted}, which is not UTF-8") from None
            if value is None:
                raise TargetError(f"{wanted}, which is not set; set it")
            if any(character in value for character in "\r\n\0"):
                raise TargetError(f"{wanted}, which has a line break in it; take that out")
            values[name] = value
        hidden |= values

        def fill(match: re.Match[str], values: Mapping[str, str] = values) -> str:
            return values[match[1]]

        sent[header] = VARIABLE.sub(fill, template)
        if is_secret_header(header):
            secret |= set(values)
            for value in values.values():
                note_secret(value)
    return Headers(sent=sent, hidden=hidden, secret=frozenset(secret))


# --- asking

_PASSING = (408, 425, 429)
_MAX_SHOWN = 4096  # bytes of a stream that are remembered for messages
_MAX_BYTES = 32 * 1024 * 1024
_MAX_REDIRECTS = 5
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
        contexts, context_ids = settings.contexts, settings.context_ids
        self._contexts = None if contexts is None else compile_path("contexts", contexts)
        self._context_ids = None if context_ids is None else compile_path("context_ids", context_ids)
        self._headers = fill_headers(settings.headers)
        self._attempts = Attempts(settings)
        self._session = TargetSession(
            method=settings.method,
            headers=self._headers.sent,
            accept=_ACCEPTED.get(settings.stream or "", "application/json"),
        )

    async def ask(self, question: TargetQuestion) -> Response:
        """Return the response; no text of it holds a value of the environment."""
        try:
            url = fill_url(self._url, question)
            content = None if self._body is None else orjson.dumps(fill_json(self._body, question))
        except QuestionFailed as failure:
            return make_failed(str(failure), attempts=0)
        except orjson.JSONEncodeError as error:
            return make_failed(f"the question cannot be sent as JSON: {error}", attempts=0)
        response = await self._attempts.ask(lambda: self._attempt(url, content))
        if response.error is not None:
            return replace(response, error=self._headers.redact_error(response.error))
        clean = self._headers.redact_answer
        return replace(
            response,
            answer=None if response.answer is None else clean(response.answer),
            contexts=None if response.contexts is None else tuple(map(clean, response.contexts)),
            context_ids=None if response.context_ids is None else tuple(map(clean, response.context_ids)),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _attempt(self, url: str, content: bytes | None) -> Answer:
        try:
            async with asyncio.timeout(self._timeout_s), self._session.send(url, content) as response:
                if 200 <= response.status < 300:
                    return await self._read(response)
                body = b"".join([piece async for piece in _iterate_body(response)])
                status = response.status
                message = f"status {status}: {self._headers.quote_body(body)}"
                if status in _PASSING or status >= 500:
                    wait_s = parse_retry_after(response.headers)
                    raise PassingFailure(message, retry_after_s=wait_s, rate_limited=status in (425, 429))
                raise QuestionFailed(f"{message}; {_HINTS[status]}" if status in _HINTS else message)
        except TimeoutError:
            raise PassingFailure(
                f"no whole response within {self._timeout_s:g} s; raise timeout_s if it may take longer"
            ) from None
        except aiohttp.ClientError as error:
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            text = shorten(self._headers.redact_error(str(cause))) or "it was closed"
            if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
                raise QuestionFailed(
                    f"no safe connection to {self.name}: {text}; check url, or name a file with the certificates to "
                    "trust in SSL_CERT_FILE"
                ) from None
            if isinstance(error, aiohttp.InvalidURL):
                text = f"the address is not valid once it is filled in: {text}; check url"
                raise QuestionFailed(text, unasked=True) from None
            if isinstance(error, aiohttp.ClientConnectorError):
                text = f"no connection to {self.name}: {text}; check that it runs there"
                raise PassingFailure(text, unreached=True) from None
            raise PassingFailure(f"the connection broke: {type(error).__name__}: {text}") from None

    async def _read(self, response: aiohttp.ClientResponse) -> Answer:
        """Return the answer of a successful response; a failure quotes how its body begins, as far as it was read."""
        body = bytearray()
        try:
            async with contextlib.aclosing(_iterate_body(response)) as pieces:
                if self._stream in ("sse", "jsonl"):
                    return await self._read_stream(pieces, body)
                async for piece in pieces:
                    body += piece
            if self._stream != "text":
                return self._read_json(body)
            charset = response.charset or "utf-8"
            try:
                return make_answer(body.decode(charset), None)
            except LookupError:
                text = f"the response says it is in {charset!r}, which is not a known encoding"
                raise QuestionFailed(text) from None
            except UnicodeDecodeError as error:
                text = f"the response is not {charset}: {error.reason} at byte {error.start}"
                raise QuestionFailed(text) from None
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
            stream="sse" if self._stream == "sse" else "jsonl",
        )
        async for piece in pieces:
            if len(shown) < _MAX_SHOWN:
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
            text = f"the body is not valid JSON ({error})" if body.strip() else "the body is empty"
            raise _Unreadable(text) from None
        matches = self._answer.find(document)
        if not matches:
            has = f"the body's members: {list_names(list(document), 8)}; " if isinstance(document, dict) else ""
            raise QuestionFailed(
                f"answer = {self._answer.text!r} matches nothing; {has}set answer to where the answer stands"
            )
        answer: object = matches[0] if len(matches) == 1 else matches
        if len(matches) > 1 and all(isinstance(part, str) for part in matches):
            answer = "".join(map(str, matches))  # parts of one answer
        contexts = None if self._contexts is None else self._contexts.find_items(document)
        ids = None if self._context_ids is None else self._context_ids.find_items(document)
        if ids is None and self._context_ids is not None and contexts:
            text = f"context_ids = {self._context_ids.text!r} matches nothing, although there are contexts"
            raise QuestionFailed(text)
        return make_answer(answer, contexts, ids)


class TargetSession:
    """Sends requests with the same headers; use within one event loop, and `close` it there."""

    def __init__(self, *, method: str, headers: Mapping[str, str], accept: str) -> None:
        self._method = method
        given = {name.lower() for name in headers}
        ours = {"Accept": accept, "Content-Type": "application/json"}
        self._headers = {name: value for name, value in ours.items() if name.lower() not in given} | dict(headers)
        self._untyped = {name: value for name, value in self._headers.items() if name.lower() != "content-type"}
        # Certificates are read beforehand, since that takes as long as many an answer. Cookies are dropped: the answer
        # to one question must not change the next.
        self._session = HttpSession(certificates=make_ssl_context(), keeps_cookies=False)

    @asynccontextmanager
    async def send(self, url: str, content: bytes | None) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response's head, its body still to be read; raises QuestionFailed, or what aiohttp raises."""
        method, target, body = self._method, URL(url, encoded=True), content
        for _ in range(_MAX_REDIRECTS + 1):
            headers = self._headers if body is not None else self._untyped
            async with await self._session.send(method, target, content=body, headers=headers) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or not location:
                    yield response
                    return
                target = _follow(target, location, response.status)
                if response.status == 303:  # the answer is to be fetched there
                    method, body = "GET", None
        raise QuestionFailed(f"it redirected more than {_MAX_REDIRECTS} times; check url")

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


async def _iterate_body(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield the body in pieces as they come; raises QuestionFailed when it does not end."""
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > _MAX_BYTES:
            raise QuestionFailed(f"the response is larger than {_MAX_BYTES // 1024**2} MiB")
        yield piece


def _follow(source: URL, location: str, status: int) -> URL:
    """Return where a redirect leads, if that is the same host, which may have become a safer one."""
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
