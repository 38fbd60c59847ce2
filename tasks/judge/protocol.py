"""What a judge is: something that answers one question about one sample with a text.

A judge is a protocol of two steps: `prepare` says exactly what would be asked (so that it can be keyed and put
on record) and `reply` asks it. The chat models and the lexical judge are equal implementations; the call path in
`asking` knows neither.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
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


_ID_LENGTH = 32


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """What one batch may hold: requests, and bytes of the file they are sent in."""

    requests: int
    size: int


@dataclass(frozen=True, kw_only=True)
class BatchState:
    """What the provider says of a batch; `status` is its own word.

    Once it `is_over` nothing more comes of it. `problem` is why none of it was asked; `is_too_much` says that this was
    for its size, so that less at once may go.
    """

    provider_id: str
    status: str
    is_over: bool = False
    n_done: int = 0
    problem: Exception | None = None
    is_too_much: bool = False


@dataclass(frozen=True, kw_only=True)
class BatchLine:
    """What came of one request, as the provider sent it; `status` is an HTTP status, None where it was never asked."""

    custom_id: str
    status: int | None
    body: bytes = b""


class BatchService(Protocol):
    """A provider's batches. All but `limits`, `write_line` and `read_line` raise JudgeError."""

    @property
    def limits(self) -> BatchLimits:
        """Of one batch."""

    def write_line(self, custom_id: str, request: ModelRequest) -> bytes:
        """A request as it stands in a batch's file, a line of JSON."""

    def read_line(self, line: BatchLine, request: ModelRequest) -> ModelReply:
        """The reply in a line of the results; raises what the judge would raise for it."""

    async def create(self, file: Path, tag: str) -> BatchState:
        """Send a file of lines as a batch that bears `tag`."""

    async def find(self, tag: str, *, since: float, custom_ids: Collection[str]) -> BatchState | None:
        """The batch with this tag that was created after `since` (seconds of the epoch); None when there is none.

        `custom_ids` are those of its requests, for providers that take no tag.
        """

    async def look(self, provider_id: str) -> BatchState:
        """How far a batch is."""

    def fetch(self, provider_id: str) -> AsyncIterator[BatchLine]:
        """The results of a batch that is over, in whatever order they come."""

    async def cancel(self, provider_id: str) -> None:
        """Have the provider end a batch soon; what it has answered until then can be fetched."""

    async def close(self) -> None:
        """Give connections back."""


@contextmanager
def translated(kind: type[Exception], translate: Callable[[Exception], Exception]) -> Iterator[None]:
    """Within the block errors of a provider's client, all of one `kind`, are raised as ours."""
    try:
        yield
    except kind as error:
        raise translate(error) from None


def describe_lost(provider_id: str) -> BatchState:
    """Of a batch that the provider no longer has: nothing more comes of it."""
    return BatchState(provider_id=provider_id, status="not found", is_over=True)


def find_batches(judge: Judge) -> BatchService | None:
    """A judge's batches, where it has been made to go by them."""
    service: BatchService | None = getattr(judge, "batches", None)
    return service


def make_custom_id(request_hash: str) -> str:
    """By what a request is known in its batch."""
    return request_hash[:_ID_LENGTH]


class RepeatedJudge:
    """A judge whose every request counts as one that was never asked, for a noise run.

    The key of a request is made of the judge's own and of the run. So no reply on record answers it, and its reply
    answers no later run: an unchanged sample would otherwise change its verdict after the night on which it was judged
    twice.
    """

    def __init__(self, judge: Judge, run_id: str) -> None:
        self._judge, self._run_id = judge, run_id
        self.name, self.model, self.endpoint, self.tasks = judge.name, judge.model, judge.endpoint, judge.tasks
        self.batches = find_batches(judge)

    @property
    def window(self) -> int | None:
        """The judge's."""
        return find_window(self._judge)

    def prepare(self, question: Question) -> ModelRequest:
        """The judge's request under a key of this run's own."""
        request = self._judge.prepare(question)
        own_key = hashlib.sha256(f"{self._run_id}/{request.request_hash}".encode()).hexdigest()
        return replace(request, request_hash=own_key)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """What the judge says."""
        return await self._judge.reply(request)

    async def close(self) -> None:
        """Close the judge's connections."""
        await self._judge.close()
