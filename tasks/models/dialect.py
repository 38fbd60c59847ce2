"""What an endpoint takes of what a request may hold, learned from its refusals and remembered for the run.

A request is written as OpenAI has it today. What is refused is left out from then on, or said in another way where
there is one: `max_tokens` for `max_completion_tokens`, fewer alternatives for log-probabilities, the system's words at
the head of the user's, and the form of the reply in steps from a schema that names the ids down to words alone.
Requests that were under way when it was found out are refused as well; they are written again, and change nothing more.

What a model says to itself before its reply is told apart from that. Endpoints give it in a field of its own, as a
content block, or between `<think>` and `</think>`, of which templates that begin the thoughts themselves leave the
closing mark alone, and a reply that breaks off the opening one. Within the reply the same words may stand for
themselves; there they stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from evalhouse.tasks.judge.errors import NOT_TAKEN, FatalJudgeError, JudgeError, RefusedRequest, UnsupportedOption
from evalhouse.tasks.judge.protocol import Dropped
from evalhouse.warehouse.names import name_setting

# In the order in which they are given up; each name is also how it is told from the others.
_IDS, _SCHEMA, _OBJECT, _WORDS = "ids", "schema", "json_object", "words"
FORMS: Final = (_IDS, _SCHEMA, _OBJECT, _WORDS)
_IN_WORDS: Final = {
    _IDS: "a schema that names the ids",
    _SCHEMA: "the schema of a prompt",
    _OBJECT: "json_object",
    _WORDS: "words alone",
}
# OpenAI gives twenty alternatives, most others that give any at least five.
_FEWER_LOGPROBS: Final = 5
_LOGPROBS: Final = ("logprobs", "top_logprobs")
_MAX_TOKENS: Final = ("max_completion_tokens", "max_tokens")  # its name since models think, and before


@dataclass(kw_only=True)
class Dialect:
    """What one endpoint is sent. `forms` are those of a reply that it may know, from FORMS and in their order.

    `max_tokens` is its name for the limit of a reply; `needs_temperature` says what for, where a run cannot do without
    one.
    """

    forms: Sequence[str] = FORMS
    max_tokens: str = _MAX_TOKENS[0]
    needs_temperature: str | None = None
    dropped: list[Dropped] = field(default_factory=list)
    _left_out: set[str] = field(default_factory=set)
    _top_logprobs: int | None = None
    _merges_system: bool = False

    @property
    def form(self) -> str:
        """The form of replies that is asked for now."""
        return self.forms[0]

    def write(self, payload: Mapping[str, object]) -> dict[str, object]:
        """A request as this endpoint takes it."""
        written = {name: value for name, value in payload.items() if name not in self._left_out}
        if "max_tokens" in written:
            written[self.max_tokens] = written.pop("max_tokens")
        if self._top_logprobs is not None and "top_logprobs" in written:
            written["top_logprobs"] = self._top_logprobs
        if self._merges_system:
            messages: Sequence[Mapping[str, str]] = payload["messages"]  # type: ignore[assignment]  # a chat's
            system = [message["content"] for message in messages if message["role"] == "system"]
            first, *others = [message for message in messages if message["role"] != "system"]
            head = "\n\n".join([*system, first["content"]])
            written["messages"] = [{"role": "user", "content": head}, *others]
        return written

    def write_form(self, name: str, schema: Mapping[str, object]) -> dict[str, object]:
        """The `response_format` for a reply of this schema; empty where the endpoint knows none."""
        if self.form in (_IDS, _SCHEMA):
            described = {"name": name, "strict": True, "schema": dict(schema)}
            return {"response_format": {"type": "json_schema", "json_schema": described}}
        return {"response_format": {"type": "json_object"}} if self.form == _OBJECT else {}

    @property
    def names_ids(self) -> bool:
        """True when schemas name the ids that are asked for."""
        return self.form == _IDS

    def note_refusal(self, error: UnsupportedOption, sent: Mapping[str, object]) -> JudgeError:
        """Learn from a refusal, and return UnsupportedOption where the request is to be sent again without the option.

        Returns FatalJudgeError where the run rests on the option or its value is refused, and RefusedRequest where no
        option that was sent is named, so that its name only happens to be in the message.
        """
        words, is_value = str(error), error.is_value
        messages = sent.get("messages")
        has_system = isinstance(messages, list) and any(message["role"] == "system" for message in messages)
        limit = next((name for name in _MAX_TOKENS if name in sent), None)
        for option in error.options:
            if option == "system" and has_system:
                self._merges_system = True
                return self._drop("system", words, instead="its words at the head of the user's")
            if option == "max_tokens" and limit == _MAX_TOKENS[0]:
                self.max_tokens = _MAX_TOKENS[1]
                return self._drop(limit, words, instead=_MAX_TOKENS[1])
            if option == "max_tokens" and limit:
                self._left_out.add("max_tokens")
                return self._drop(limit, words)
            if option not in sent:
                continue
            if option == "response_format":
                # The next simpler form, unless another request has led there already.
                refused = _find_form(sent["response_format"])
                later = FORMS[FORMS.index(refused) + 1 :]
                self.forms = [form for form in self.forms if form in later] or [_WORDS]
                return self._drop(_IN_WORDS[refused], words, instead=_IN_WORDS[self.form], field_name="response_format")
            n_asked = sent.get("top_logprobs")
            if option in _LOGPROBS and is_value and isinstance(n_asked, int) and n_asked > _FEWER_LOGPROBS:
                self._top_logprobs = _FEWER_LOGPROBS
                return self._drop(f"top_logprobs={n_asked}", words, instead=f"top_logprobs={_FEWER_LOGPROBS}")
            if option in _LOGPROBS:
                self._left_out |= set(_LOGPROBS)
                return self._drop("logprobs", words)
            if option == "temperature" and self.needs_temperature:
                return FatalJudgeError(
                    f"the endpoint does not take temperature ({words}), and {self.needs_temperature}"
                )
            if option == "reasoning_effort" and is_value:
                return FatalJudgeError(
                    f"the endpoint does not take {name_setting('reasoning_effort', str(sent[option]))}: {words}; name "
                    "another, or none at all"
                )
            self._left_out.add(option)
            return self._drop(option, words)
        return RefusedRequest(f"refused: {error}", unexplained=True)

    def _drop(self, option: str, words: str, *, instead: str | None = None, field_name: str = "") -> UnsupportedOption:
        if all(known.option != option for known in self.dropped):
            self.dropped.append(Dropped(option=option, instead=instead, words=words))
        named = f"{field_name} ({option})" if field_name else option
        return UnsupportedOption(f"{NOT_TAKEN}{named}: {words}", options=(option,))


def _find_form(response_format: object) -> str:
    """Return the form of replies that a request asked for."""
    if isinstance(response_format, Mapping) and response_format.get("type") == "json_object":
        return _OBJECT
    return _IDS if "maxItems" in str(response_format) else _SCHEMA


_MARKS: Final = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))
_ALONE: Final = "</think>"
# What may follow it there, rather than the rest of a sentence that speaks of it.
_AFTER: Final = ("", "\n", "\r", "{", "[", "`")
_FIELDS: Final = ("reasoning_content", "reasoning")
# Of longer ones the beginning is kept.
_MOST: Final = 100_000
# By the type of a content block the field that holds its text.
_BLOCKS: Final = {"thinking": "thinking", "reasoning": "reasoning"}


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """The text of a reply, and the model's thoughts that came with it or None."""

    text: str
    thoughts: str | None = None


def part_thoughts(text: str, apart: str = "") -> Spoken:
    """Return the text of a reply without the thoughts before it; `apart` are those that came in a separate field."""
    begun, within, reply = text.lstrip(), "", text
    opening, closing = next((marks for marks in _MARKS if begun.startswith(marks[0])), ("", _ALONE))
    before, mark, after = begun.partition(closing)
    if opening and not mark:
        within, reply = begun.removeprefix(opening), ""
    elif mark and (opening or (after[:1] in _AFTER and not _is_json(text))):
        if closing in after and not _is_json(after):
            # A mark that the thoughts quote, or one more stretch of them.
            before, _, after = begun.rpartition(closing)
        if opening and after.lstrip().startswith(opening):
            before, after = before + after, ""
        within, reply = before.removeprefix(opening), after.strip()
    thoughts = "\n\n".join(part for part in (apart.strip(), within.strip()) if part)
    return Spoken(text=reply, thoughts=thoughts[:_MOST] or None)


def read_thoughts(message: Mapping[str, object]) -> str:
    """Return the thoughts in a field or in content blocks of a message; "" for none."""
    for name in _FIELDS:
        if message.get(name) and (text := read_text(message[name])):
            return text
    return read_blocks(message.get("content"))


def read_blocks(content: object) -> str:
    """Return the thoughts among the blocks of a content."""
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    texts = [block.get(_BLOCKS.get(str(block.get("type")), "")) for block in blocks]
    return "\n\n".join(part for text in texts if (part := read_text(text)))


def read_text(content: object) -> str:
    """Return a text, or the joined texts of its parts, as some endpoints give it."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
