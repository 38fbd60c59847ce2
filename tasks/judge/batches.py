"""Batches: requests that a provider takes by the thousand, answers within a day, and charges half for.

A `BatchService` is a provider's way to take them, with its requests and replies in the provider's own shape; what
becomes of the replies is the call path's affair (`asking/parking.py`). Each batch bears a tag of ours, by which it is
found again when its creation was not answered.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evalhouse.tasks.judge.errors import JudgeError
from evalhouse.tasks.judge.protocol import Judge, ModelReply, ModelRequest

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
    problem: JudgeError | None = None
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
def translated(kind: type[Exception], translate: Callable[[Exception], JudgeError]) -> Iterator[None]:
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
