"""An application in Python, named `module:name`: a function, sync or async, or a LangChain Runnable.

A function gets the question's text, and the sample's metadata and id where its signature names `metadata` or
`sample_id`; where it names `contexts`, the texts it is to answer from, None when it is to look for them itself; where
it names `conversation`, the messages before the question. An async function runs in the event loop, any other in one of
a fixed number of threads. A thread cannot be stopped: one whose call does not return keeps its place, so that never
more calls run than were allowed; and it is a daemon, so that it cannot keep the process from ending.

Nothing of LangChain is imported: a Runnable is what has `ainvoke`. It gets the question as a text, unless its input
schema is an object: then the question is one member of that, and every other member it requires comes from the
sample's metadata under the same name. Whatever an application raises is the failure of one question.
"""

import asyncio
import contextvars
import functools
import importlib
import inspect
import os
import queue
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from pydantic.errors import PydanticUserError

from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.protocol import (
    Answer,
    Attempts,
    LateAnswer,
    PassingFailure,
    QuestionFailed,
    Response,
    TargetError,
    TargetQuestion,
    make_failed,
    read_returned,
)
from evalhouse.warehouse.messages import name_kind, redact, shorten

_EXTRAS = ("metadata", "sample_id", "contexts", "context_ids", "conversation")
_CALLED_WITH = f"it is called with the question, and by name with {', '.join(_EXTRAS)} where it names those"
# Names under which an input's question is looked for, the first that it has.
QUESTION_KEYS = ("question", "input", "query", "user_input", "prompt", "messages")
# The same for contexts that it is given to answer from.
_CONTEXT_KEYS = ("contexts", "context", "documents")
# The same for the messages before the question.
_CONVERSATION_KEYS = ("conversation", "chat_history", "history")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a call returned, or raised. As a value, for a future takes no StopIteration."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """A call that a thread is to make; `ended` is of the loop that waits for it."""

    function: Callable[[], object]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[Outcome]


class ThreadPool:
    """Calls functions in at most `n` threads, each for at most `timeout_s` seconds. Use within one event loop."""

    def __init__(self, n: int, *, timeout_s: float, name: str) -> None:
        self._n = n
        self._timeout_s = timeout_s
        self._name = name
        self._free = asyncio.Semaphore(n)
        self._stuck = False  # no thread came back for a whole timeout, and none has since
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._n_open = 0  # calls that have not ended, those nobody waits for any more too

    async def call(self, function: Callable[[], object]) -> Outcome:
        """What came of the call; raises QuestionFailed when it does not return in time, or cannot begin."""
        await self._wait_for_thread()
        self._n_open += 1
        if len(self._threads) < self._n_open:
            self._start_thread()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Outcome] = loop.create_future()
        self._jobs.put(_Job(function=function, context=contextvars.copy_context(), loop=loop, ended=ended))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await ended
        except TimeoutError:
            raise LateAnswer(self._timeout_s) from None

    def close(self) -> None:
        """Let every thread end, those in a call after it."""
        for _ in self._threads:
            self._jobs.put(None)

    async def _wait_for_thread(self) -> None:
        """All may be held by calls that are late; when nothing moves for long, nobody else waits for that."""
        if self._stuck:
            raise self._say_stuck()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._free.acquire()
        except TimeoutError:
            self._stuck = True
            raise self._say_stuck() from None

    def _say_stuck(self) -> QuestionFailed:
        return QuestionFailed(
            f"it was not called: all {self._n} calls at once that are allowed have not returned for more than "
            f"{self._timeout_s:g} s; look for what they wait for",
            unasked=True,
        )

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads) + 1}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                outcome = Outcome(value=job.context.run(job.function))
            except BaseException as error:  # a function of any maker may raise anything, SystemExit too
                outcome = Outcome(error=error)
            if not job.loop.is_closed():  # else nobody waits for it
                job.loop.call_soon_threadsafe(self._note_end, job.ended, outcome)

    def _note_end(self, ended: asyncio.Future[Outcome], outcome: Outcome) -> None:
        self._n_open -= 1
        self._stuck = False
        self._free.release()
        if not ended.done():
            ended.set_result(outcome)


class CallableTarget:
    """Asks a function, once a question unless it says itself that the connection failed."""

    def __init__(self, settings: TargetSettings) -> None:
        assert settings.callable is not None
        self.name = settings.callable
        self._function = _find_function(self.name)
        self._extras = _check_signature(self.name, self._function)
        self.takes_contexts = "contexts" in self._extras
        self.takes_conversation = "conversation" in self._extras
        self.names_conversation = "metadata" in self._extras
        self._is_async = _is_async(self._function)
        self._timeout_s = settings.timeout_s
        self._attempts = Attempts(settings)
        self._threads = ThreadPool(settings.concurrency, timeout_s=settings.timeout_s, name="evalhouse-target")

    async def ask(self, question: TargetQuestion) -> Response:
        """The response; an error of the function is its text."""
        offered = {
            "metadata": dict(question.metadata),
            "sample_id": question.sample_id,
            "contexts": None if question.contexts is None else list(question.contexts),
            "context_ids": None if question.context_ids is None else list(question.context_ids),
            "conversation": [dict(message) for message in question.conversation],
        }
        extras = {name: offered[name] for name in self._extras}
        return await self._attempts.ask(functools.partial(self._attempt, question.question, extras))

    async def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    async def _attempt(self, text: str, extras: dict[str, Any]) -> Answer:
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
            raise LateAnswer(timeout_s) from None
        raise translate_error(error) from error


def translate_error(error: BaseException) -> QuestionFailed:
    """What an application raised, as the failure of one question; a failed connection may work in a moment."""
    passing = isinstance(error, ConnectionError | TimeoutError)
    return (PassingFailure if passing else QuestionFailed)(describe_error(error))


def _find_function(name: str) -> Callable[..., Any]:
    function = find_object(name)
    if not callable(function):
        runnable = "; it is a LangChain Runnable: name it with `runnable`" if hasattr(function, "ainvoke") else ""
        raise TargetError(f"{name} is {name_kind(function)}, not a function{runnable}")
    return function


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


def find_object(name: str) -> object:
    """Import the module and take the object out of it; raises TargetError that says what is missing.

    The working directory is searched last, so that a file there cannot take the place of an installed module.
    """
    module_name, _, path = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        value: object = importlib.import_module(module_name)
    except ImportError as error:
        raise TargetError(
            f"cannot import {module_name!r} for {name!r}: {shorten(str(error))}; "
            "start where it is, or install it into this environment"
        ) from None
    except Exception as error:  # a module of any maker may raise anything
        raise TargetError(f"module {module_name!r} of {name!r} broke on import: {describe_error(error)}") from error
    for part in path.split("."):
        if not hasattr(value, part):
            raise TargetError(f"module {module_name!r} has no {path!r} (asked for by {name!r})")
        value = getattr(value, part)
    return value


def describe_error(error: BaseException) -> str:
    """Type and message of an error that is not ours, fit for a message."""
    text = shorten(redact(str(error)))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Runnable(Protocol):
    """The part of LangChain's Runnable that is used here."""

    async def ainvoke(self, input: Any) -> Any:  # noqa: ANN401  # LangChain's own names
        """Run it."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class InputShape:
    """What a Runnable takes: a text when `key` is None, else an object with the question under that name.

    `others` are the further members it requires, `contexts` the one for contexts that it is given, `conversation` the
    one for the messages before the question; under `messages` they stand before it. One that takes a list of messages
    in place of the text, as chat models do, `takes_messages`.
    """

    key: str | None
    others: tuple[str, ...] = ()
    contexts: str | None = None
    conversation: str | None = None
    takes_messages: bool = False

    @property
    def takes_conversation(self) -> bool:
        """Whether it is told what was said before."""
        return self.takes_messages or self.conversation is not None or self.key == "messages"

    def fill(self, question: TargetQuestion) -> Any:  # noqa: ANN401  # as LangChain takes it
        """The input for one question; raises QuestionFailed for what the sample does not have."""
        earlier = [dict(message) for message in question.conversation]
        as_messages = [*earlier, {"role": "user", "content": question.question}]
        if self.key is None:
            return as_messages if self.takes_messages and earlier else question.question
        given: dict[str, Any] = {}
        if self.contexts is not None and question.contexts is not None:
            given[self.contexts] = list(question.contexts)
        if self.conversation is not None and (earlier or self.conversation in self._list_unfilled(question)):
            given[self.conversation] = earlier
        offered = {**question.metadata, **given}
        if missing := [name for name in self.others if name not in offered]:
            raise QuestionFailed(
                f"it requires {', '.join(missing)} besides {self.key}, and this sample's metadata have none",
                unasked=True,
            )
        members = {name: offered[name] for name in self.others} | given
        return {**members, self.key: as_messages if self.key == "messages" else question.question}

    def _list_unfilled(self, question: TargetQuestion) -> list[str]:
        """The further members that the sample's metadata do not have."""
        return [name for name in self.others if name not in question.metadata]


class RunnableTarget:
    """Asks a LangChain Runnable, once a question unless it says itself that the connection failed."""

    def __init__(self, settings: TargetSettings) -> None:
        assert settings.runnable is not None
        self.name = settings.runnable
        self._runnable = _find_runnable(self.name)
        self._shape = read_shape(self.name, self._runnable)
        self.takes_contexts = self._shape.contexts is not None
        self.takes_conversation = self._shape.takes_conversation
        self.names_conversation = "conversation_id" in self._shape.others
        self._timeout_s = settings.timeout_s
        self._attempts = Attempts(settings)

    async def ask(self, question: TargetQuestion) -> Response:
        """The response; an error of the Runnable is its text."""
        try:
            given = self._shape.fill(question)
        except QuestionFailed as failure:
            return make_failed(str(failure), attempts=0)
        return await self._attempts.ask(functools.partial(self._attempt, given))

    async def close(self) -> None:
        """Nothing is held: the Runnable's connections are its own affair."""

    async def _attempt(self, given: object) -> Answer:
        return read_returned(await await_guarded(self._runnable.ainvoke(given), self._timeout_s))


def read_shape(name: str, runnable: object) -> InputShape:
    """What it takes, by its input schema; one that allows anything, or a text among others, gets the text.

    Raises TargetError when it cannot be told where the question belongs.
    """
    schema = _read_schema(name, runnable)
    if schema.get("type") != "object":
        kinds = schema.get("anyOf") or ()
        return InputShape(key=None, takes_messages=any(kind.get("type") == "array" for kind in kinds))
    members = tuple(schema.get("properties") or {})
    required = tuple(schema.get("required") or ())
    key = next((candidate for candidate in QUESTION_KEYS if candidate in members), None)
    if key is None and len(required or members) == 1:
        key = (required or members)[0]
    if key is None and members:
        raise TargetError(
            f"{name} takes {', '.join(members)}, and none of them is known to be the question "
            f"(known: {', '.join(QUESTION_KEYS)}); put a RunnableLambda before it that takes the text"
        )
    others = tuple(other for other in required if other != key)
    contexts = next((name for name in _CONTEXT_KEYS if name in members and name != key), None)
    earlier = next((name for name in _CONVERSATION_KEYS if name in members and name != key), None)
    return InputShape(key=key or QUESTION_KEYS[0], others=others, contexts=contexts, conversation=earlier)


def _read_schema(name: str, runnable: object) -> Mapping[str, Any]:
    describe = getattr(runnable, "get_input_jsonschema", None)
    if describe is None:
        raise TargetError(f"{name} does not tell what it takes: it has no get_input_jsonschema, as a Runnable has")
    try:
        schema = cast(Mapping[str, Any], describe())
    except PydanticUserError as error:
        raise TargetError(
            f"the input schema of {name} cannot be read: {describe_error(error)}; "
            "say what it takes with .with_types(input_type=str)"
        ) from None
    reference = str(schema.get("$ref", ""))
    return cast(Mapping[str, Any], schema["$defs"][reference.rpartition("/")[2]]) if reference else schema


def _find_runnable(name: str) -> _Runnable:
    value = find_object(name)
    if not inspect.isclass(value) and hasattr(value, "ainvoke"):
        return cast(_Runnable, value)
    if not callable(value):
        raise TargetError(f"{name} is {name_kind(value)}; a runnable has `ainvoke`, or is a function that makes one")
    try:
        made: object = value()
    except Exception as error:  # a factory of any maker may raise anything
        raise TargetError(f"{name}() failed with {describe_error(error)}") from error
    if not hasattr(made, "ainvoke"):
        if inspect.iscoroutine(made):
            made.close()
        raise TargetError(f"{name}() returned {name_kind(made)}, which has no `ainvoke`; return a LangChain Runnable")
    return cast(_Runnable, made)
