"""Filling a request: marks in a JSON template or an address, variables of the environment in headers.

A template is data before anything is filled in, so a question with quotes, braces or marks of its own is one text in
the end and nothing else; in an address every character of it that could mean something is percent-encoded.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from evalhouse.tasks.settings.named_values import NamedValueError, describe_name, read_named
from evalhouse.tasks.settings.target import CONVERSATION, GIVEN_MARKS, MARK, METADATA, VARIABLE, is_secret_header
from evalhouse.tasks.targets.protocol import QuestionFailed, TargetError, TargetQuestion
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
