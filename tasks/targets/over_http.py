"""An application at an address: a question becomes a request, the body of the response an answer.

A request's template is data before anything is filled in, so a question with quotes, braces or marks is one text in the
end and nothing else; in an address every character of it that could mean something is percent-encoded. JSONPaths (RFC
9535) find answer and contexts in a document, or in each event of a stream: server-sent events, or one JSON document a
line. Redirects are followed to the same host alone, since the request's headers are sent along and may hold a secret.
"""

import asyncio
import codecs
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

import aiohttp
import orjson
from yarl import URL

from evalhouse.tasks.asking.http_session import HttpSession, make_ssl_context
from evalhouse.tasks.datasets.json_path import JsonPath, PathError, compile_path
from evalhouse.tasks.datasets.rows import ALIASES, LIKELY, Field
from evalhouse.tasks.datasets.thoughts import find_thoughts
from evalhouse.tasks.datasets.values import MISSING, open_context, parse_json
from evalhouse.tasks.judge.protocol import parse_retry_after
from evalhouse.tasks.settings.environment import NamedValueError, describe_name, read_named
from evalhouse.tasks.settings.suite import (
    CONVERSATION,
    CONVERSATION_ID,
    GIVEN_MARKS,
    MARK,
    METADATA,
    VARIABLE,
    TargetSettings,
    find_texts,
    is_secret_header,
)
from evalhouse.tasks.targets.protocol import (
    Attempts,
    PassingFailure,
    QuestionFailed,
    Response,
    TargetError,
    TargetQuestion,
    check_no_error,
    make_answer,
)
from evalhouse.warehouse.messages import list_names, name_kind, note_secret, redact, shorten, spell_secret
from evalhouse.warehouse.rows.samples import CONVERSATION_NAMES

# --- filling a request


def fill_json(template: object, question: TargetQuestion) -> Any:  # noqa: ANN401  # JSON
    """Return the template with the sample's values; raises QuestionFailed for metadata that the sample does not have.

    A member that is the mark of contexts is left out if none are given, so that one template serves both kinds of run.
    An item that is the mark of the conversation becomes all of its messages, so that others may come before and after.
    """
    find_text = partial(_find_text, question=question)
    if isinstance(template, str):
        alone = MARK.fullmatch(template)
        return _find_value(alone[1], question) if alone else MARK.sub(find_text, template)
    if isinstance(template, dict):
        return {
            MARK.sub(find_text, name): fill_json(member, question)
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


def _find_text(mark: re.Match[str], question: TargetQuestion) -> str:
    value = _find_value(mark[1], question)
    if value is None:
        raise QuestionFailed(f"this sample's {mark[1]} is null but is used inside a text", unasked=True)
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _find_value(name: str, question: TargetQuestion) -> Any:  # noqa: ANN401  # JSON
    if name == "question":
        return question.question
    if name in ("sample_id", CONVERSATION_ID):
        return getattr(question, name)
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
            text = f"this sample has no metadata {key!r}, which the request needs; it has: {has}"
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
    """Headers with their values filled in, and values that must not be shown: `hidden` by variable name.

    The longest is first, as one value may contain another.
    """

    sent: Mapping[str, str]
    hidden: Mapping[str, str]
    secret: frozenset[str]  # names of variables that headers use for secrets

    def redact_error(self, text: str) -> str:
        """Return a text for a message, without any value of the environment in any spelling: whole or cut off, plain
        or as in JSON, Python, an address or a page."""
        for name, value in self.hidden.items():
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
        for name, value in self.hidden.items():
            if name in self.secret and len(value) >= _MIN_SECRET_IN_ANSWERS:
                text = text.replace(value, f"[{name}]")
        return text

    def quote_body(self, body: bytes) -> str:
        """Return the first characters of a body, fit for a message."""
        return shorten(self.redact_error(body.decode(errors="replace")), 200) or "(empty)"


def fill_headers(headers: Mapping[str, str]) -> Headers:
    """Return the headers with the environment's values; raises TargetError that names header and variable, not the
    value."""
    sent: dict[str, str] = {}
    hidden: dict[str, str] = {}
    secret: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        return hidden[match[1]]

    for header, template in headers.items():
        values: dict[str, str] = {}
        for name in VARIABLE.findall(template):
            needed = f"header {header} needs {describe_name(name)}"
            try:
                value = read_named(name)
                (value or "").encode()
            except NamedValueError as error:
                raise TargetError(f"{needed}: {error}") from None
            except UnicodeEncodeError:
                raise TargetError(f"{needed}, which is not UTF-8") from None
            if value is None:
                raise TargetError(f"{needed}, which is not set; set it")
            if any(character in value for character in "\r\n\0"):
                raise TargetError(f"{needed}, which has a line break in it; take that out")
            values[name] = value
        hidden |= values

        sent[header] = VARIABLE.sub(fill, template)
        if is_secret_header(header):
            secret |= set(values)
            for value in values.values():
                note_secret(value)
    longest_first = dict(sorted(hidden.items(), key=lambda item: -len(item[1])))
    return Headers(sent=sent, hidden=longest_first, secret=frozenset(secret))


# --- streams

_DONE = "[DONE]"
_LINE_ENDS = re.compile(r"\r\n|\n|\r")
Stream = Literal["sse", "jsonl"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event: its name ("" if it has none) and its data."""

    kind: str = ""
    data: str


async def iterate_events(pieces: AsyncIterator[bytes], stream: Stream) -> AsyncGenerator[Event, None]:
    """Yield the events of a stream from bytes that arrive cut anywhere. Raises QuestionFailed for bytes not UTF-8.

    Server-sent events are read as the HTML standard has them, except that an event without its closing blank line
    counts: many servers leave that out, and half an event is not valid JSON anyway.
    """
    kind, data = "", list[str]()
    async for line in _iterate_lines(pieces):
        if stream == "jsonl":
            if line.strip():
                yield Event(data=line)
            continue
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif name == "event":
            kind = value.removeprefix(" ")
        elif not line:
            if data:
                yield Event(kind=kind, data="\n".join(data))
            kind, data = "", []
    if data:
        yield Event(kind=kind, data="\n".join(data))


async def _iterate_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines of a stream, the unfinished last one too; a line may end with LF, CRLF or CR."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("strict")
    unfinished: list[str] = []  # the parts of the line that is not complete
    cr = ""  # a CR at the end of the last piece, which may be the first half of a line end
    try:
        async for piece in pieces:
            text = cr + decoder.decode(piece)
            cr = "\r" if text.endswith("\r") else ""
            *lines, rest = _LINE_ENDS.split(text.removesuffix("\r") if cr else text)
            for line in lines:
                yield "".join([*unfinished, line])
                unfinished = []
            unfinished.append(rest)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise QuestionFailed(f"the stream is not UTF-8: {error.reason}") from None
    yield "".join(unfinished)


_Lists = dict[str, list[object]]
"""The contexts and the context ids that events have, by the key of their path."""
_TOOL: Final = re.compile(r"tool|(?:^|\.)(?:function|mcp|code_interpreter|web_search|file_search|computer|shell)_call")
# The events of LangGraph's server that have the whole state, or message, so far.
_STATES: Final = frozenset({"values", "messages/partial", "messages/complete"})


async def read_stream(
    pieces: AsyncIterator[bytes],
    stream: Stream,
    *,
    answer: JsonPath,
    contexts: JsonPath | None,
    context_ids: JsonPath | None,
) -> Response:
    """Return the answer, its parts joined, and the contexts of the events that had any.

    Where each part begins with all of the text so far, or the last one repeats it, it counts once, and of the states of
    a graph the last one alone. Raises QuestionFailed for an event that is not valid JSON or reports an error, and for a
    stream without an answer.
    """
    n_events = 0
    texts, thoughts = list[str](), list[str]()
    found = list[_Lists]()
    members_by_text = dict[str, list[object]]()
    async with contextlib.aclosing(iterate_events(pieces, stream)) as events:
        async for event in events:
            if stream == "sse" and event.data.strip() == _DONE:
                break
            n_events += 1
            if not event.data.strip():
                continue
            shown = shorten(event.data, 200)
            if _is_failure(event.kind):
                raise QuestionFailed(f"the stream reported an error: {shown}")
            try:
                document: Any = parse_json(event.data, keeps_halves=True)
            except ValueError as error:
                problem = f"event {n_events} of the stream is not valid JSON ({error}): {shown!r}"
                raise QuestionFailed(problem) from None
            parts = [part for part in answer.find(document) if part is not None and part != _DONE]
            for part in parts:
                if isinstance(part, dict | list):
                    place = f"answer = {answer.text!r} matches {name_kind(part)} in event {n_events}"
                    raise QuestionFailed(f"{place}; write the path of its text")
            members = document if isinstance(document, dict) else {}
            kind = str(members.get("event") or members.get("type") or event.kind).casefold()
            is_tool = _TOOL.search(kind) is not None
            is_state = event.kind.partition("|")[0] in _STATES
            failures = (
                members.get("error"),
                members.get("errorText"),
                *map(_is_failure, (kind, members.get("status"))),
            )
            if any(failures) and not is_tool:
                raise QuestionFailed(f"the stream reported an error: {shown}")
            thoughts += filter(None, [_find_thoughts(answer, document)])
            # Thoughts, or the arguments of a tool's call, may come in events of the same shape, as `reasoning-delta`.
            listed = thoughts if any(part in kind for part in ("reason", "think", "thought")) else texts
            # So may documents and suggested questions, as messages of another type.
            beside = answer.find_beside(document) if parts else []
            if len(beside) == len(parts):  # of Gemini, whose thoughts are parts too
                is_thought = [isinstance(one, Mapping) and one.get("thought") is True for one in beside]
                thoughts += [str(part) for part, is_one in zip(parts, is_thought, strict=True) if is_one]
                parts = [part for part, is_one in zip(parts, is_thought, strict=True) if not is_one]
            types = [str(one.get("type")).casefold() for one in beside if isinstance(one, Mapping)]
            if not is_tool and not any(part in one for one in types for part in _BESIDE_ANSWERS):
                if (kind.endswith("replace") and parts) or (is_state and any(parts)):
                    texts.clear()  # a guard's text, or the state after the next node, in place of what came
                listed += [one if isinstance(one, str) else orjson.dumps(one).decode() for one in parts]
            items = {path.key: path.find_items(document) for path in (contexts, context_ids) if path is not None}
            came = {key: of_key for key, of_key in items.items() if of_key is not None}
            beside_texts = contexts.list_members_beside(document) if contexts and came.get(contexts.key) else []
            for text, beside_text in zip(came.get("contexts", ()), beside_texts, strict=False):
                known = members_by_text.setdefault(str(text), [])
                known += [beside_text] if beside_text and beside_text not in known else []
            if event.kind == "values" and any(came.values()):  # of a whole graph; a message has its own contexts alone
                found = [came]
            elif came and came not in found[-1:]:
                found.append(came)
    if not n_events:
        raise QuestionFailed("no event came in the stream; check how it is framed, and whether it is one")
    if not texts:
        raise QuestionFailed(f"answer = {answer.text!r} matches nothing in any of {n_events} events")
    of_stream = "".join(thoughts) or None
    lists = _join_lists(found)
    joined, ids = lists.get("contexts"), lists.get("context_ids")
    # Of equal texts each has one of the addresses, in their order.
    of_texts = [members_by_text.get(str(text)) or [None] for text in joined or ()]
    return make_answer(
        _join_parts(texts),
        joined,
        ids,
        beside=[known.pop(0) if len(known) > 1 else known[0] for known in of_texts],
        thoughts=of_stream,
    )


def _join_lists(found: Sequence[_Lists]) -> _Lists:
    """Return the contexts, and their ids, that events had: each once, in the order in which it came first.

    Events may have one context each, a list that grows, or the same list with each token. Contexts that come with ids
    differ by both. An empty list counts only where every one is empty.
    """
    with_items = [{key: items for key, items in lists.items() if items} for lists in found]
    by_key = {key: [lists[key] for lists in with_items if key in lists] for lists in found for key in lists}
    if len(by_key) == 1:
        return {key: _join_items(lists) for key, lists in by_key.items()}
    both = [lists for lists in with_items if len(lists) == 2 and len(lists["contexts"]) == len(lists["context_ids"])]
    pairs = _join_items([[*zip(lists["contexts"], lists["context_ids"], strict=True)] for lists in both])
    joined: _Lists = (
        {"contexts": [text for text, _ in pairs], "context_ids": [name for _, name in pairs]} if pairs else {}
    )
    others = [(key, items) for lists in with_items if lists not in both for key, items in lists.items()]
    if joined and all(item in joined[key] for key, items in others for item in items):
        return joined
    # Contexts in some events, and ids in others: a list that repeats all that came adds nothing.
    joined = {key: [] for key in by_key}
    for key, lists in by_key.items():
        for items in lists:
            joined[key] += items if items != joined[key] else []
    return joined


def _join_items(lists: Sequence[Sequence[object]]) -> list[Any]:
    """Return the items of lists, each as often as the list has it that has it most."""
    joined = list[object]()
    for items in lists:
        left = list(joined)
        for item in items:
            if item in left:
                left.remove(item)
            else:
                joined.append(item)
    return joined


_CITED: Final = re.compile(r"\s+|\[(?:ID:)?\d+\]|##\d+\$\$")  # usual citations that a closing event adds


def _join_parts(texts: Sequence[str]) -> str:
    """Return the text of a stream: all parts, or the last one if it repeats them or each has all of the text so far.

    A closing event may repeat the text with citations of any kind within it, or with other spaces and marks; of several
    messages each may have one.
    """
    parts = [text for text in texts if text] or [""]
    if _has_states(parts):
        return parts[-1]
    *before, last = parts
    complete, message, length = list[str](), list[str](), 0
    for part in before:
        if len(message) > 1 and len(part) >= length >= _MIN_REPEATED and part.startswith("".join(message)):
            complete.append(part)
            message, length = [], 0
        else:
            message.append(part)
            length += len(part)
    whole = before[-1] if _has_states(before) else "".join([*complete, *message])
    bare = _CITED.sub("", whole)
    is_same = last == whole or (bare and _CITED.sub("", last) == bare)  # of a short answer
    if _repeats(last, whole) or (len(before) > 1 and is_same):
        return last
    return "".join([*complete, last]) if _repeats(last, "".join(message)) else whole + last


def _has_states(parts: Sequence[str]) -> bool:
    """Return whether each part of a stream has all of the text so far. Another text may begin, as the revision of a
    draft."""
    pairs = list(pairwise(parts))
    grown = [after.startswith(before) for before, after in pairs]
    # Where no text grows, a line or a word that comes twice is a part of an answer.
    if all(before == after for (before, after), is_grown in zip(pairs, grown, strict=True) if is_grown):
        grown = [is_grown and before == before.strip() for (before, _), is_grown in zip(pairs, grown, strict=True)]
    long = [sum(map(str.isalnum, part)) >= _MIN_REPEATED for part in parts[:-1]]
    if len(grown) > 1 and all(grown) and (long[0] or len(parts[-1]) > len(parts[0])):
        return True
    return 3 <= len(grown) <= 2 * sum(map(all, zip(grown, long, strict=True)))


def _repeats(closing: str, text: str) -> bool:
    """Return whether a closing event has the text so far again, with citations or other spaces and marks."""
    bare = _CITED.sub("", text)
    if len(bare) >= _MIN_REPEATED and (closing.startswith(text) or _CITED.sub("", closing).startswith(bare)):
        return True
    letters, of_closing = ("".join(filter(str.isalnum, part.casefold())) for part in (text, closing))
    following = iter(of_closing)
    is_as_long = len(letters) >= _MIN_SPREAD and len(of_closing) <= 3 * len(letters)
    return is_as_long and all(letter in following for letter in letters)


def _is_failure(kind: object) -> bool:
    """Return whether the kind of an event says that the answer failed, not a step that the bot gets over."""
    name = str(kind or "").casefold()
    is_error = name in ("error", "failed", "abort") or name.endswith((".error", ".failed", "_error", "_failed"))
    return is_error and not any(part in name for part in ("tool", "step", "_call", "retriev"))


def _find_thoughts(answer: JsonPath, document: object) -> str | None:
    """Return the bot's thoughts beside its answer, such as `reasoning_content` beside `content`."""
    found = [find_thoughts(members) for members in answer.find_beside(document)]
    return "\n\n".join(filter(None, found)) or None


# --- asking

_PASSING = (408, 425, 429)
# Parts of the types of messages beside the answer, of Coze and LangGraph.
_BESIDE_ANSWERS = ("tool", "function", "knowledge", "verbose", "follow_up", "human")
_MIN_REPEATED = 6  # letters with which a part of a stream does not begin by chance
_MIN_SPREAD = 12  # letters that it does not have in their order, among at most three times as many
_MAX_SHOWN = 4096  # bytes of a stream that are kept for messages
_MAX_BYTES = 32 * 1024 * 1024
_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_DEFAULT_BODY = {"question": "{{question}}"}
_ACCEPTED = {"sse": "text/event-stream", "jsonl": "application/x-ndjson, application/json", "text": "text/plain, */*"}
_HINTS = {
    400: "check that body is what the application expects",
    401: "check the headers, and the environment's values in them",
    403: "check the headers, and the environment's values in them",
    404: "check url",
    405: "check method",
    413: "the question is too long for it",
    415: "check the header Content-Type",
    422: "check that body is what the application expects",
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
        self._method = settings.method
        no_body = settings.method == "GET" and settings.body is None
        self._body = None if no_body else _DEFAULT_BODY if settings.body is None else settings.body
        marks = {mark for text in (settings.url, *find_texts(self._body)) for mark in MARK.findall(text)}
        self.takes_contexts = "contexts" in marks
        self.takes_conversation = CONVERSATION in marks
        ids = {CONVERSATION_ID, *(f"{METADATA}{name}" for name in CONVERSATION_NAMES)}
        self.names_conversation = not ids.isdisjoint(marks)
        self._stream = settings.stream
        self._timeout_s = settings.timeout_s
        contexts, context_ids = settings.contexts, settings.context_ids
        try:
            self._answer = compile_path("answer", settings.answer)
            self._contexts = None if contexts is None else compile_path("contexts", contexts)
            self._context_ids = None if context_ids is None else compile_path("context_ids", context_ids)
        except PathError as error:
            raise TargetError(str(error)) from None
        self._secrets = fill_headers(settings.headers)
        given = {name.lower() for name in self._secrets.sent}
        ours = {"Accept": _ACCEPTED.get(settings.stream or "", "application/json"), "Content-Type": "application/json"}
        self._headers = {name: value for name, value in ours.items() if name.lower() not in given}
        self._headers |= self._secrets.sent
        self._attempts = Attempts(settings)
        # Cookies are dropped: the answer to one question must not change the next.
        self._session = HttpSession(certificates=make_ssl_context(), keeps_cookies=False)

    async def ask(self, question: TargetQuestion) -> Response:
        """Return the response; no text of it holds a value of the environment."""

        def encode(mark: re.Match[str]) -> str:
            try:
                encoded = quote(_find_text(mark, question), safe="")
            except UnicodeEncodeError as error:
                raise QuestionFailed(f"the question cannot be sent: {error}", unasked=True) from None
            # A segment of dots alone would be read as a step up.
            return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded

        try:
            url = MARK.sub(encode, self._url)
            content = None if self._body is None else orjson.dumps(fill_json(self._body, question))
        except QuestionFailed as failure:
            return Response(error=str(failure))
        except orjson.JSONEncodeError as error:
            return Response(error=f"the question cannot be sent as JSON: {error}")
        response = await self._attempts.ask(lambda: self._attempt(url, content))
        if response.error is not None:
            return replace(response, error=self._secrets.redact_error(response.error))
        clean = self._secrets.redact_answer
        return replace(
            response,
            answer=None if response.answer is None else clean(response.answer),
            contexts=None if response.contexts is None else tuple(map(clean, response.contexts)),
            context_ids=None if response.context_ids is None else tuple(map(clean, response.context_ids)),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _attempt(self, url: str, content: bytes | None) -> Response:
        """Ask once; raises QuestionFailed."""
        try:
            async with asyncio.timeout(self._timeout_s), self._send(url, content) as response:
                if 200 <= response.status < 300:
                    return await self._read(response)
                body = b"".join([piece async for piece in _iterate_body(response)])
                status = response.status
                message = f"status {status}: {self._secrets.quote_body(body)}"
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
            text = shorten(self._secrets.redact_error(str(cause))) or "it was closed"
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

    @asynccontextmanager
    async def _send(self, url: str, content: bytes | None) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response's head, its body still to be read; raises QuestionFailed, or an aiohttp error.

        A redirect is followed to the same host, by the same or a safer protocol.
        """
        method, target, body = self._method, URL(url, encoded=True), content
        for _ in range(_MAX_REDIRECTS + 1):
            headers = self._headers
            if body is None:
                headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
            async with await self._session.send(method, target, content=body, headers=headers) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or not location:
                    yield response
                    return
                try:
                    there = target.join(URL(location, encoded=True))
                    ports = ((target.scheme, target.port), ("https", 443))
                    is_same = there.host == target.host and (there.scheme, there.port) in ports
                except ValueError:
                    there, is_same = URL("/"), False
                if not is_same:
                    place = f"{there.scheme}://{there.host}" if there.host else "an invalid address"
                    raise QuestionFailed(
                        f"status {response.status}: it redirects to {place}, which is not followed; "
                        "set url to the address that answers"
                    )
                target = there
                if response.status == 303:  # the answer is to be fetched there
                    method, body = "GET", None
        raise QuestionFailed(f"it redirected more than {_MAX_REDIRECTS} times; check url")

    async def _read(self, response: aiohttp.ClientResponse) -> Response:
        """Return the answer of a successful response; a failure quotes how its body begins, as far as it was read."""
        body = bytearray()

        async def keep_beginning(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
            async for piece in pieces:
                if len(body) < _MAX_SHOWN:
                    body.extend(piece)
                yield piece

        try:
            async with contextlib.aclosing(_iterate_body(response)) as pieces:
                if self._stream is not None and self._stream != "text":
                    return await read_stream(
                        keep_beginning(pieces),
                        self._stream,
                        answer=self._answer,
                        contexts=self._contexts,
                        context_ids=self._context_ids,
                    )
                async for piece in pieces:
                    body += piece
            if self._stream != "text":
                try:
                    document = parse_json(_decode(bytes(body), response).removeprefix("\ufeff"), keeps_halves=True)
                except (ValueError, QuestionFailed) as error:
                    text = f"the body is not valid JSON ({error})" if body.strip() else "the body is empty"
                    raise _Unreadable(text) from None
                matches = self._answer.find(document)
                if not matches:
                    has = f"the body's members: {list_names(list(document), 8)}; " if isinstance(document, dict) else ""
                    raise QuestionFailed(
                        f"answer = {self._answer.text!r} matches nothing; {has}set answer to the path of the answer"
                        f"{_propose_paths(document)}"
                    )
                answer: object = matches[0] if len(matches) == 1 else matches
                if len(matches) > 1 and all(isinstance(part, str) for part in matches):
                    answer = "".join(map(str, matches))  # parts of one answer
                check_no_error(answer, document, *self._answer.find_beside(document))
                contexts = None if self._contexts is None else self._contexts.find_items(document)
                ids = None if self._context_ids is None else self._context_ids.find_items(document)
                if ids is None and self._context_ids is not None and contexts:
                    text = f"context_ids = {self._context_ids.text!r} matches nothing, although there are contexts"
                    raise QuestionFailed(text)
                return make_answer(
                    answer,
                    contexts,
                    ids,
                    beside=self._contexts.list_members_beside(document) if self._contexts else [],
                    thoughts=_find_thoughts(self._answer, document),
                )
            return make_answer(_decode(bytes(body), response), None)
        except (QuestionFailed, PathError) as failure:
            begins = self._secrets.quote_body(bytes(body))
            hint = _STREAM_HINTS.get(response.content_type) if isinstance(failure, _Unreadable) and body else None
            message = f"status {response.status}, but {failure}; the body begins: {begins}"
            raise QuestionFailed(f"{message}; {hint}" if hint else message) from None


def _propose_paths(document: object) -> str:
    """Return the likely places of answer and contexts in a response, as a question; "" where none is known."""
    proposals = []
    members = document if isinstance(document, dict) else {}
    places: tuple[tuple[Field, type], ...] = (("answer", str), ("contexts", list))
    for field, kinds in places:
        names = (*ALIASES[field], *LIKELY[field])
        name = next((name for name in names if members.get(name) and isinstance(members[name], kinds)), None)
        if name is None:
            continue
        path, first = f"$.{name}", members[name][0]
        context = open_context(first)
        if isinstance(first, dict) and context is not None and context.text is MISSING:
            texts = [key for key, member in first.items() if isinstance(member, str) and " " in member]
            path = f"{path}[*].{texts[0]}" if texts else path
        proposals.append(f"{field} = {path!r}")
    return f"; is it {' and '.join(proposals)}?" if proposals else ""


def _decode(body: bytes, response: aiohttp.ClientResponse) -> str:
    """Return a body's text in the encoding that the response names, UTF-8 without one; raises QuestionFailed."""
    charset = response.charset or "utf-8"
    try:
        return body.decode(charset)
    except LookupError:
        text = f"the response names the encoding {charset!r}, which is not a known encoding"
        raise QuestionFailed(text) from None
    except UnicodeDecodeError as error:
        text = f"the response is not {charset}: {error.reason} at byte {error.start}"
        raise QuestionFailed(text) from None


async def _iterate_body(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield the body in pieces as they come; raises QuestionFailed when it does not end."""
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > _MAX_BYTES:
            raise QuestionFailed(f"the response is larger than {_MAX_BYTES // 1024**2} MiB")
        yield piece
