"""An application that is a Python function, sync or async, named `module:function`.

It gets the question's text, and the sample's metadata and id where its signature names `metadata` or `sample_id`. An
async function runs in the event loop, any other in a thread; whatever it raises is the failure of one question.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from evalhouse.tasks.messages import name_kind
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.answers import Said, read_returned
from evalhouse.tasks.targets.attempts import Attempts
from evalhouse.tasks.targets.errors import PassingFailure, QuestionFailed, TargetError
from evalhouse.tasks.targets.imports import describe_error, find_object
from evalhouse.tasks.targets.protocol import Response, TargetQuestion
from evalhouse.tasks.targets.threads import Threads

_EXTRAS = ("metadata", "sample_id")
_CALLED_WITH = "it is called with the question, and by name with metadata and sample_id where it names those"


class CallableTarget:
    """Asks a function, once a question unless it says itself that the connection failed."""

    def __init__(self, settings: TargetSettings) -> None:
        assert settings.callable is not None
        self.name = settings.callable
        self._function = _find_function(self.name)
        self._extras = _check_signature(self.name, self._function)
        self._is_async = _is_async(self._function)
        self._timeout_s = settings.timeout_s
        self._attempts = Attempts(settings)
        self._threads = Threads(settings.concurrency, timeout_s=settings.timeout_s, name="evalhouse-target")

    async def ask(self, question: TargetQuestion) -> Response:
        """The response; an error of the function is its text."""
        known = {"metadata": dict(question.metadata), "sample_id": question.sample_id}
        extras = {name: known[name] for name in self._extras}
        return await self._attempts.ask(functools.partial(self._attempt, question.question, extras))

    async def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    async def _attempt(self, text: str, extras: dict[str, Any]) -> Said:
        if self._is_async:
            return read_returned(await await_guarded(self._function(text, **extras), self._timeout_s))
        outcome = await self._threads.call(functools.partial(self._function, text, **extras))
        if outcome.error is not None:
            raise translate_error(outcome.error) from outcome.error
        if inspect.isawaitable(outcome.value):  # a plain function around an async one
            return read_returned(await await_guarded(outcome.value, self._timeout_s))
        return read_returned(outcome.value)


async def await_guarded(awaitable: Awaitable[Any], timeout_s: float) -> Any:  # noqa: ANN401
    """What an application's coroutine returns within so many seconds; raises QuestionFailed for whatever it raises."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # it is the run that was cancelled, and not something within the application
        raise translate_error(error) from error
    except (Exception, SystemExit) as error:  # an application of any maker may raise anything
        if limit.expired():
            raise QuestionFailed(
                f"it did not return within {timeout_s:g} s; raise timeout_s if it may take longer"
            ) from None
        raise translate_error(error) from error


def translate_error(error: BaseException) -> QuestionFailed:
    """What an application raised, as the failure of one question; a failed connection may work in a moment."""
    passing = isinstance(error, ConnectionError | TimeoutError)
    return (PassingFailure if passing else QuestionFailed)(describe_error(error))


def _find_function(name: str) -> Callable[..., Any]:
    found = find_object(name)
    if not callable(found):
        runnable = "; it is a LangChain Runnable: name it with `runnable`" if hasattr(found, "ainvoke") else ""
        raise TargetError(f"{name} is {name_kind(found)} and no function{runnable}")
    return found


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _check_signature(name: str, function: Callable[..., Any]) -> tuple[str, ...]:
    """Which of the extras it takes; raises TargetError when it cannot be called as it will be."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TargetError(f"{name} yields its answer in parts; write a function that joins and returns them")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C tell nothing of themselves
        return ()
    extras = tuple(extra for extra in _EXTRAS if extra in signature.parameters)
    try:
        signature.bind("question", **dict.fromkeys(extras))
    except TypeError as error:
        raise TargetError(f"{name}{signature} cannot be called ({error}): {_CALLED_WITH}") from None
    return extras
