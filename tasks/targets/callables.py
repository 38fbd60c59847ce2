"""An application in Python, named `module:name`: a function, sync or async, or a LangChain Runnable.

A function gets the question's text, and the sample's metadata and id if its signature names `metadata` or `sample_id`;
if it names `contexts`, the texts it should answer from, None when it should look for them itself; if it names
`conversation`, the messages before the question. An async function runs in the event loop, any other in a thread.

Nothing of LangChain is imported: a Runnable is an object with `ainvoke`. It gets the question as a text, unless its
input schema is an object: then the question is one member of that, and every other member it requires comes from the
sample's metadata under the same name. An exception of the application is the failure of one question.
"""

import asyncio
import contextvars
import functools
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from pydantic.errors import PydanticUserError

from evalhouse.tasks.settings.environment import UserCodeError, import_object
from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.protocol import (
    Attempts,
    LateAnswer,
    PassingFailure,
    QuestionFailed,
    Response,
    TargetError,
    TargetQuestion,
    read_returned,
)
from evalhouse.warehouse.messages import describe_error, name_kind
from evalhouse.warehouse.rows.samples import CONVERSATION_NAMES

_EXTRAS = ("metadata", "sample_id", "contexts", "context_ids", "conversation")
_CALLED_WITH = f"it is called with the question, and by name with {', '.join(_EXTRAS)} where it names those"
# Names under which an input's question is looked for, the first that it has.
QUESTION_KEYS = ("question", "input", "query", "user_input", "prompt", "messages")
# The same for contexts that it should answer from.
_CONTEXT_KEYS = ("contexts", "context", "documents")
# The same for the messages before the question.
_CONVERSATION_KEYS = ("conversation", "chat_history", "history")


def _find_object(name: str) -> object:
    try:
        return import_object(name)
    except UserCodeError as error:
        raise TargetError(str(error)) from error.__cause__


def _translate_error(error: BaseException) -> QuestionFailed:
    """Return an application's error as the failure of one question; a failed connection may work in a moment."""
    passing = isinstance(error, ConnectionError | TimeoutError)
    return (PassingFailure if passing else QuestionFailed)(describe_error(error))


async def _await_guarded(awaitable: Awaitable[Any], timeout_s: float) -> Any:  # noqa: ANN401
    """Return what an application's coroutine returns within the time; raises QuestionFailed for any exception."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the run was cancelled, not something within the application
        raise _translate_error(error) from error
    except (Exception, SystemExit) as error:  # an application of any maker may raise anything
        if limit.expired():
            raise LateAnswer(timeout_s) from None
        raise _translate_error(error) from error


# --- functions


class ThreadPool:
    """Calls functions in at most `n` threads, each for at most `timeout_s` seconds. Use within one event loop.

    A thread cannot be stopped: one whose call does not return keeps its place, so that never more calls run than were
    allowed. Its threads are daemons: Python joins a ThreadPoolExecutor's threads when it ends, so that a function that
    hangs would keep the command from ending.
    """

    def __init__(self, n: int, *, timeout_s: float) -> None:
        self._n = n
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(n)
        self._is_stuck = False  # no call has returned for a whole timeout
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._n_threads = 0
        self._n_open = 0  # calls that have not ended, late ones included

    async def call(self, function: Callable[[], object]) -> object:
        """Return the result of the call; raises QuestionFailed when it fails, is late, or cannot begin."""
        if not self._is_stuck:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._free.acquire()
            except TimeoutError:
                self._is_stuck = True
        if self._is_stuck:
            raise QuestionFailed(
                f"it was not called: all {self._n} calls at once that are allowed have not returned for more than "
                f"{self._timeout_s:g} s; look for what they wait for",
                unasked=True,
            )
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
        context = contextvars.copy_context()

        def run() -> None:
            result, failure = None, None
            try:
                result = context.run(function)
            except BaseException as error:  # a function of any maker may raise anything, SystemExit too
                failure = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(end, result, failure)

        def end(result: object, failure: BaseException | None) -> None:
            self._n_open -= 1
            self._is_stuck = False
            self._free.release()
            if not ended.done():
                ended.set_result((result, failure))  # as a pair, for a future takes no StopIteration

        self._n_open += 1
        if self._n_threads < self._n_open:
            self._n_threads += 1
            name = f"evalhouse-target-{self._n_threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put(run)
        try:
            async with asyncio.timeout(self._timeout_s):
                result, failure = await ended
        except TimeoutError:
            raise LateAnswer(self._timeout_s) from None
        if failure is not None:
            raise _translate_error(failure) from failure
        return result

    def _work(self) -> None:
        while (run := self._jobs.get()) is not None:
            run()

    def close(self) -> None:
        """Let every thread end, after its call if it is in one."""
        for _ in range(self._n_threads):
            self._jobs.put(None)


class CallableTarget:
    """Asks a function, once for each question unless its error states that the connection failed."""

    def __init__(self, settings: TargetSettings) -> None:
        assert settings.callable is not None
        self.name = settings.callable
        function = _find_object(self.name)
        if not callable(function):
            hint = "; it is a LangChain Runnable: name it with `runnable`" if hasattr(function, "ainvoke") else ""
            raise TargetError(f"{self.name} is {name_kind(function)}, not a function{hint}")
        self._function = function
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TargetError(f"{self.name} yields its answer in parts; write a function that joins and returns them")
        self._extras: tuple[str, ...] = ()
        with suppress(ValueError):  # some functions written in C have no signature
            signature = inspect.signature(function)
            self._extras = tuple(extra for extra in _EXTRAS if extra in signature.parameters)
            try:
                signature.bind("question", **dict.fromkeys(self._extras))
            except TypeError as error:
                raise TargetError(f"{self.name}{signature} cannot be called ({error}): {_CALLED_WITH}") from None
        self.takes_contexts = "contexts" in self._extras
        self.takes_conversation = "conversation" in self._extras
        self.names_conversation = "metadata" in self._extras
        # An object may be called too.
        self._is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        self._timeout_s = settings.timeout_s
        self._attempts = Attempts(settings)
        self._threads = ThreadPool(settings.concurrency, timeout_s=settings.timeout_s)

    async def ask(self, question: TargetQuestion) -> Response:
        """Return the response; an error of the function is its text."""
        offered = {
            "metadata": dict(question.metadata),
            "sample_id": question.sample_id,
            "contexts": None if question.contexts is None else list(question.contexts),
            "context_ids": None if question.context_ids is None else list(question.context_ids),
            "conversation": [dict(message) for message in question.conversation],
        }
        call = functools.partial(self._function, question.question, **{name: offered[name] for name in self._extras})

        async def attempt() -> Response:
            returned = call() if self._is_async else await self._threads.call(call)
            if self._is_async or inspect.isawaitable(returned):  # a plain function may wrap an async one
                returned = await _await_guarded(cast(Awaitable[Any], returned), self._timeout_s)
            return read_returned(returned)

        return await self._attempts.ask(attempt)

    async def close(self) -> None:
        """Let the threads end."""
        self._threads.close()


# --- Runnables


@dataclass(frozen=True, kw_only=True, slots=True)
class InputShape:
    """The input of a Runnable: a text when `key` is None, else an object with the question under that name.

    `others` are the further members it requires, `contexts` the one for contexts to answer from, `conversation` the one
    for the messages before the question; under `messages` they are before it. One that takes a list of messages in
    place of the text, as chat models do, `takes_messages`. A graph writes most members of its state itself: `is_graph`
    requires no others than an id of the conversation.
    """

    key: str | None
    others: tuple[str, ...] = ()
    contexts: str | None = None
    conversation: str | None = None
    takes_messages: bool = False
    is_graph: bool = False

    def fill(self, question: TargetQuestion) -> Any:  # noqa: ANN401  # as LangChain takes it
        """Return the input for one question; raises QuestionFailed for what the sample does not have."""
        earlier = [dict(message) for message in question.conversation]
        as_messages = [*earlier, {"role": "user", "content": question.question}]
        if self.key is None:
            return as_messages if self.takes_messages and earlier else question.question
        given: dict[str, Any] = {}
        if self.contexts is not None and question.contexts is not None:
            given[self.contexts] = list(question.contexts)
        is_required = self.conversation in self.others and self.conversation not in question.metadata
        if self.conversation is not None and (earlier or is_required):
            given[self.conversation] = earlier
        ids = dict.fromkeys(CONVERSATION_NAMES, question.conversation_id) if question.conversation_id else {}
        offered = {**ids, **question.metadata, **given}
        others = [name for name in self.others if name in offered or not self.is_graph or name in CONVERSATION_NAMES]
        if missing := [name for name in others if name not in offered]:
            raise QuestionFailed(
                f"it requires {', '.join(missing)} besides {self.key}, and this sample's metadata have none",
                unasked=True,
            )
        members = {name: offered[name] for name in others} | given
        return {**members, self.key: as_messages if self.key == "messages" else question.question}


class RunnableTarget:
    """Asks a LangChain Runnable, once for each question unless its error states that the connection failed."""

    def __init__(self, settings: TargetSettings) -> None:
        assert settings.runnable is not None
        self.name = settings.runnable
        value = _find_object(self.name)
        if inspect.isclass(value) or not hasattr(value, "ainvoke"):
            # A function of this name makes the Runnable.
            if not callable(value):
                kind = name_kind(value)
                raise TargetError(f"{self.name} is {kind}; a runnable has `ainvoke`, or is a function that makes one")
            try:
                value = value()
            except (Exception, SystemExit) as error:  # a factory of any maker may raise anything
                raise TargetError(f"{self.name}() failed with {describe_error(error)}") from error
            if not hasattr(value, "ainvoke"):
                if inspect.iscoroutine(value):
                    value.close()
                kind = name_kind(value)
                raise TargetError(f"{self.name}() returned {kind}, which has no `ainvoke`; return a LangChain Runnable")
        self._runnable: Any = value
        self._shape = shape = read_shape(self.name, self._runnable)
        self.takes_contexts = shape.contexts is not None
        self.takes_conversation = shape.takes_messages or shape.conversation is not None or shape.key == "messages"
        self.names_conversation = any(name in shape.others for name in CONVERSATION_NAMES)
        self._timeout_s = settings.timeout_s
        self._attempts = Attempts(settings)

    async def ask(self, question: TargetQuestion) -> Response:
        """Return the response; an error of the Runnable is its text."""
        try:
            given = self._shape.fill(question)
        except QuestionFailed as failure:
            return Response(error=str(failure))

        async def attempt() -> Response:
            return read_returned(await _await_guarded(self._runnable.ainvoke(given), self._timeout_s))

        return await self._attempts.ask(attempt)

    async def close(self) -> None:
        """Do nothing: the Runnable has its connections."""


def read_shape(name: str, runnable: object) -> InputShape:
    """Return what a Runnable takes, by its input schema; one that allows anything, or a text among others, gets the
    text.

    Raises TargetError when it is not known where the question belongs.
    """
    describe = getattr(runnable, "get_input_jsonschema", None)
    if describe is None:
        raise TargetError(f"{name} does not describe its input: it has no get_input_jsonschema, as a Runnable has")
    try:
        schema = cast(Mapping[str, Any], describe())
    except PydanticUserError as error:
        is_typed = "typing_extensions.TypedDict" in str(error)
        to_do = "import it there" if is_typed else "state its input with .with_types(input_type=str)"
        raise TargetError(f"the input schema of {name} cannot be read: {describe_error(error)}; {to_do}") from None
    if reference := str(schema.get("$ref", "")):
        schema = schema["$defs"][reference.rpartition("/")[2]]
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
    return InputShape(
        key=key or QUESTION_KEYS[0],
        others=others,
        contexts=contexts,
        conversation=earlier,
        is_graph=hasattr(runnable, "channels"),  # of LangGraph
    )
