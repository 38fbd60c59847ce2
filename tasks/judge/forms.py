"""Forms of question that a chat model was made for: does this document support this claim, yes or no?

A judge named FORM+JUDGE, such as `minicheck+openai:bespoke-minicheck`, is asked pair by pair in the words the model was
trained on, which stand in forms.toml. Nothing marks off the texts there: what an answer or a context says can be taken
for a part of the question, which our own prompts rule out.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

from evalhouse.prompts import BlockValue, Message, Prompt
from evalhouse.tasks.judge.errors import FatalJudgeError, UnusableReply

JOIN: Final = "+"
_PLACES = re.compile(r"(\{document\}|\{claim\})")
_SCORE = re.compile(r"<score>\s*(yes|no)\b", re.IGNORECASE)
_WORD = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_SHOWN_OF_REPLY: Final = 60


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a pair is asked: messages and fields of the body with {document} and {claim}, and what a yes means."""

    name: str
    source: str
    yes: Literal["supported", "unsupported"]
    messages: tuple[Message, ...]
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def denial(self) -> str:
        """The reply that a claim is not supported, after which most is asked."""
        return "no" if self.yes == "supported" else "yes"

    def fill(self, pair: Mapping[str, BlockValue]) -> tuple[Message, ...]:
        """The messages about a pair."""
        return tuple(Message(role=item.role, content=_fill(item.content, pair)) for item in self.messages)

    def fill_body(self, pair: Mapping[str, BlockValue]) -> dict[str, Any]:
        """The fields about a pair that stand beside the messages."""
        return {name: _fill_deep(value, pair) for name, value in self.body.items()}

    def read(self, text: str) -> bool:
        """Whether a reply says that the claim is supported; raises UnusableReply for one that says neither."""
        said = text.rpartition("</think>")[2]
        match = _SCORE.search(said) or _WORD.match(said)
        if match is None:
            raise UnusableReply(f"the reply was neither yes nor no: {said.strip()[:_SHOWN_OF_REPLY]!r}")
        return (match[1].lower() == "yes") == (self.yes == "supported")


@dataclass(frozen=True, kw_only=True)
class FormPrompt(Prompt):
    """A form in the place of a step's prompt. A note behind it would make it another question than the trained one."""

    form: Form

    def render(self, data: Mapping[str, BlockValue], *, note: str = "") -> tuple[Message, ...]:
        """The form's messages about the pair in `data`."""
        return self.form.fill(data)


def find_form(judge: str) -> Form | None:
    """The form in a judge's name; None where it names none. Raises FatalJudgeError for one that is not known."""
    kind = judge.partition(":")[0]
    if JOIN not in kind:
        return None
    name = kind.partition(JOIN)[0]
    forms = _read_forms()
    if name not in forms:
        raise FatalJudgeError(f"{judge!r} names the form {name!r}; known: {', '.join(forms)}")
    return forms[name]


def list_forms() -> tuple[str, ...]:
    """The names of all forms."""
    return tuple(_read_forms())


@cache
def _read_forms() -> dict[str, Form]:
    table = tomllib.loads(files("evalhouse.tasks.asking").joinpath("forms.toml").read_text(encoding="utf-8"))
    return {name: _make_form(name, row) for name, row in table.items()}


def _make_form(name: str, row: Mapping[str, Any]) -> Form:
    messages = tuple(Message(**message) for message in row["messages"])
    return Form(name=name, **{**row, "messages": messages})


def _fill(text: str, pair: Mapping[str, BlockValue]) -> str:
    """One pass, so that a text that says {claim} is not filled in once more."""
    return "".join(str(pair[part[1:-1]]) if _PLACES.fullmatch(part) else part for part in _PLACES.split(text))


def _fill_deep(value: Any, pair: Mapping[str, BlockValue]) -> Any:  # noqa: ANN401  # any JSON
    if isinstance(value, str):
        return _fill(value, pair)
    if isinstance(value, list):
        return [_fill_deep(item, pair) for item in value]
    return {key: _fill_deep(item, pair) for key, item in value.items()} if isinstance(value, dict) else value
