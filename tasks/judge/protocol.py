"""What a judge is: something that answers one question about one sample with a text.

A judge is a protocol of two steps: `prepare` says exactly what would be asked (so that it can be keyed and put
on record) and `reply` asks it. The chat models and the lexical judge are equal implementations; the call path in
`asking` knows neither.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from evalhouse.prompts import BlockValue, Prompt

# No reply and no context window comes near it, and the sum of billions of such counts still fits a BIGINT.
MAX_COUNT: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question for the judge.

    `vote` numbers, from 1, the times the same thing is asked to let a majority decide, and is 0 where it is asked once;
    `number` counts the times this sample's step has asked, and `only` names the ids it wants when that is not all of
    the data; both belong to the question. `note` says to the model that its last reply was of no use, and `n_unusable`
    how many were, which does not make it another question; `logprobs` wants to know how likely each token of the reply
    was. Embeddings are asked for without a prompt, several at once as `parts`: a question each, of which every one has
    its sample, and all together have none.
    """

    step: str
    sample_id: str | None
    prompt: Prompt | None
    data: Mapping[str, BlockValue]
    vote: int = 0
    number: int = 1
    only: tuple[str, ...] = ()
    note: str = ""
    n_unusable: int = 0
    logprobs: bool = False
    parts: "Sequence[Question]" = ()

    @property
    def n_repeats(self) -> int:
        """How often the same was asked before, with nothing but the note of the second time to tell them apart."""
        return max(0, self.n_unusable - 1)

    @property
    def instruction(self) -> str:
        """What is said behind the data of this question; in our own words alone."""
        narrowed = f"Give verdicts for these ids only: {', '.join(self.only)}." if self.only else ""
        return " ".join(part for part in (narrowed, self.note) if part)


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A request ready to be sent: its key and what goes on record as `request`."""

    request_hash: str
    payload: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class ModelReply:
    """What came back: the raw text and what the endpoint says of it. Token counts are None where it does not say.

    `cached_tokens` are those of the prompt that the provider still had from an earlier request, and are part of it;
    so are `written_tokens`, which it keeps for later ones.
    `thoughts` are what the model said to itself before, which is no part of the text and paid for with it. `is_cut`
    says that the model's output limit ended the reply. `logprobs` are packed as `tasks/judge/logprobs.py` does, None
    where the endpoint gives none or was not asked. `parts` are the replies to the parts of a question, in their order;
    `text` is then empty.
    """

    text: str
    thoughts: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    written_tokens: int = 0
    logprobs: str | None = None
    is_cut: bool = False
    parts: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What an endpoint refused in these `words` and is not sent any more; `instead` is what it gets in its place."""

    option: str
    instead: str | None
    words: str


def require_prompt(question: Question) -> Prompt:
    """The question's prompt; raises ValueError for a question that has none and needs one."""
    if question.prompt is None:
        raise ValueError(f"the step {question.step!r} asked a judge without a prompt")
    return question.prompt


class Judge(Protocol):
    """Answers questions. `name` is what users write after `--judge` and what stands on every number."""

    @property
    def name(self) -> str:
        """For example `openai:gpt-4.1-mini` or `lexical`."""

    @property
    def model(self) -> str:
        """The model asked for, as prices know it."""

    @property
    def tasks(self) -> frozenset[str] | None:
        """The steps that it can answer, by their files in `tasks/`; None where these are all."""

    @property
    def endpoint(self) -> str | None:
        """Where the model is asked, for limits that are shared; None when asking costs nobody anything."""

    def prepare(self, question: Question) -> ModelRequest:
        """Say what would be sent, without sending it."""

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send a prepared request; raises the errors of `judge_errors`."""

    async def close(self) -> None:
        """Give connections back."""


def find_window(judge: Judge | None) -> int | None:
    """How many tokens a judge's model reads at once; None for one that has no model, or of which nobody says it."""
    return getattr(judge, "window", None)


def parse_count(value: object) -> int | None:
    """Return a count that an endpoint reports, or None for anything that cannot be one.

    A whole number from 0 to MAX_COUNT is a count. What lies above it does not fit a column of the warehouse, and
    comes of arithmetic below zero at the endpoint, as 2**64 - 1 does.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        return None
    return int(value) if value == int(value) else None


def hash_canonical(value: object) -> str:
    """SHA-256 of canonical JSON (sorted keys, no spaces, non-ASCII kept), as hex."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def plain_data(data: Mapping[str, BlockValue]) -> dict[str, object]:
    """A question's data with items as dictionaries, as JSON has it."""
    return {
        name: value if isinstance(value, str) else [{"id": item.id, "text": item.text} for item in value]
        for name, value in data.items()
    }
