"""What a target is: it takes a question and returns a response. What can go wrong, by what has to be done about it:

TargetError        no question can get past this: a module that is missing, a variable that is not set
QuestionFailed     this question has failed; its response says why
├── LateAnswer     code in this process did not return in time; it cannot be stopped, so it is not asked again
└── PassingFailure the same question may be answered in a moment: 429, 5xx, no connection, no answer in time
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetQuestion:
    """What is asked, and what else the sample has that a request may want.

    `contexts` are there where the application is to answer from these instead of looking for its own; `context_ids`
    are theirs, as far as they are known. `conversation` are the messages before the question, the oldest first, as
    OpenAI's chat API has them.
    """

    sample_id: str
    question: str
    metadata: Mapping[str, Any]
    contexts: tuple[str, ...] | None = None
    context_ids: tuple[str, ...] | None = None
    conversation: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """What came of one question; `error` is None when it was answered; an empty `answer` is one.

    `contexts` are None when the application told none, `context_ids` when none of them has an id ("" stands for one
    without). `latency_ms` is of the attempt that succeeded, from its start to the last byte, None when none did.
    `attempts` counts the times the application was asked, 0 when the question could not even be put. `lasts` says of a
    failure that no waiting would mend it: the question was refused, its response has another shape, nobody is there.
    """

    answer: str | None
    contexts: tuple[str, ...] | None
    context_ids: tuple[str, ...] | None
    latency_ms: float | None
    attempts: int
    error: str | None
    lasts: bool = False


class Target(Protocol):
    """An application that can be asked. Use one within one event loop, and close it there.

    `takes_contexts`: it can be given the contexts that it is to answer from. `takes_conversation`: it is told what was
    said before; `names_conversation`: it is told which conversation a question belongs to, so that it can remember.
    """

    name: str
    takes_contexts: bool
    takes_conversation: bool
    names_conversation: bool

    async def ask(self, question: TargetQuestion) -> Response:
        """The response, failed or not, after the target's own attempts and within its own limits.

        Raises TargetError alone, for what no question can get past.
        """
        ...

    async def close(self) -> None:
        """Give back what is held: connections, threads."""
        ...


class TargetError(Exception):
    """The target cannot be asked at all until a person changes something. Texts hold no secret."""


class QuestionFailed(Exception):
    """One question was not answered, and asking again would not help. Texts hold no secret.

    `unasked`: the application never heard of it.
    """

    def __init__(self, message: str, *, unasked: bool = False) -> None:
        super().__init__(message)
        self.unasked = unasked


class LateAnswer(QuestionFailed):
    """A function or a Runnable did not return in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"it did not return within {timeout_s:g} s; raise timeout_s if it may take longer")


class PassingFailure(QuestionFailed):
    """The same question may be answered in a moment, in `retry_after_s` if that was told.

    `rate_limited`: it was asked too much, so the others had better wait as well. `unreached`: nobody was there.
    """

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, rate_limited: bool = False, unreached: bool = False
    ) -> None:
        super().__init__(message)
        self.unreached = unreached
        self.retry_after_s = retry_after_s
        self.rate_limited = rate_limited
