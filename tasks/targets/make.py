"""The application under test, as everything else here sees it: a question goes in, a response comes out.

A question that fails is a response with an error, so that one bad answer never ends a night's work; what no question
can get past is raised. What is asked, and how, is in `target_http` (an address), `target_callable` (a function) and
`target_runnable` (a LangChain Runnable); their common patience, pace and clock are in `target_attempts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.errors import TargetError

__all__ = ["Response", "Target", "TargetError", "TargetQuestion", "make_target"]


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


def make_target(settings: TargetSettings) -> Target:
    """The target of the settings; raises TargetError for what would make every question fail."""
    if settings.url is not None:
        from evalhouse.tasks.targets.over_http import HttpTarget  # noqa: PLC0415  # each target imports only what it needs

        return HttpTarget(settings)
    if settings.runnable is not None:
        from evalhouse.tasks.targets.runnables import RunnableTarget  # noqa: PLC0415

        return RunnableTarget(settings)
    from evalhouse.tasks.targets.callables import CallableTarget  # noqa: PLC0415

    return CallableTarget(settings)
