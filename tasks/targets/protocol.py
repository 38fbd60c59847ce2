"""What a target is: it takes a question and returns a response."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetQuestion:
    """What is asked, and what else the sample has that a request may want."""

    sample_id: str
    question: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """What came of one question; `error` is None when it was answered, and `answer` is then not empty.

    `contexts` are None when the application told none, `context_ids` when none of them has an id ("" stands for one
    without). `latency_ms` is of the attempt that succeeded, from its start to the last byte, None when none did.
    `attempts` counts the times the application was asked, 0 when the question could not even be put.
    """

    answer: str | None
    contexts: tuple[str, ...] | None
    context_ids: tuple[str, ...] | None
    latency_ms: float | None
    attempts: int
    error: str | None


class Target(Protocol):
    """An application that can be asked. Use one within one event loop, and close it there."""

    name: str

    async def ask(self, question: TargetQuestion) -> Response:
        """The response, failed or not, after the target's own attempts and within its own limits.

        Raises TargetError alone, for what no question can get past.
        """
        ...

    async def close(self) -> None:
        """Give back what is held: connections, threads."""
        ...
