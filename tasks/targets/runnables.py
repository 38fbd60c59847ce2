"""An application that is a LangChain Runnable, named `module:name`: the object, or a function that makes it.

Nothing of LangChain is imported: a Runnable is what has `ainvoke`. It gets the question as a text, unless its input
schema is an object: then the question is one member of that, and every other member it requires comes from the
sample's metadata under the same name.
"""

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from pydantic.errors import PydanticUserError

from evalhouse.tasks.messages import name_kind
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.answers import Said, read_returned
from evalhouse.tasks.targets.attempts import Attempts, make_failed
from evalhouse.tasks.targets.callables import await_guarded
from evalhouse.tasks.targets.errors import QuestionFailed, TargetError
from evalhouse.tasks.targets.imports import describe_error, find_object
from evalhouse.tasks.targets.protocol import Response, TargetQuestion

# Names under which an input's question is looked for, the first that it has.
QUESTION_KEYS = ("question", "input", "query", "user_input", "prompt", "messages")


class _Runnable(Protocol):
    """The part of LangChain's Runnable that is used here."""

    async def ainvoke(self, input: Any) -> Any:  # noqa: ANN401  # LangChain's own names
        """Run it."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class InputShape:
    """What a Runnable takes: a text when `key` is None, else an object with the question under that name.

    `others` are the further members it requires.
    """

    key: str | None
    others: tuple[str, ...] = ()

    def fill(self, question: TargetQuestion) -> Any:  # noqa: ANN401  # as LangChain takes it
        """The input for one question; raises QuestionFailed for what the sample does not have."""
        if self.key is None:
            return question.question
        if missing := [name for name in self.others if name not in question.metadata]:
            raise QuestionFailed(
                f"it requires {', '.join(missing)} besides {self.key}, and this sample's metadata have none",
                unasked=True,
            )
        as_messages = [{"role": "user", "content": question.question}]
        members = {name: question.metadata[name] for name in self.others}
        return {**members, self.key: as_messages if self.key == "messages" else question.question}


class RunnableTarget:
    """Asks a LangChain Runnable, once a question unless it says itself that the connection failed."""

    def __init__(self, settings: TargetSettings) -> None:
        assert settings.runnable is not None
        self.name = settings.runnable
        self._runnable = _find_runnable(self.name)
        self._shape = read_shape(self.name, self._runnable)
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

    async def _attempt(self, given: object) -> Said:
        return read_returned(await await_guarded(self._runnable.ainvoke(given), self._timeout_s))


def read_shape(name: str, runnable: object) -> InputShape:
    """What it takes, by its input schema; one that allows anything, or a text among others, gets the text.

    Raises TargetError when it cannot be told where the question belongs.
    """
    schema = _read_schema(name, runnable)
    if schema.get("type") != "object":
        return InputShape(key=None)
    members = tuple(schema.get("properties") or {})
    required = tuple(schema.get("required") or ())
    key = next((known for known in QUESTION_KEYS if known in members), None)
    if key is None and len(required or members) == 1:
        key = (required or members)[0]
    if key is None and members:
        raise TargetError(
            f"{name} takes {', '.join(members)}, and none of them is known to be the question "
            f"(known: {', '.join(QUESTION_KEYS)}); put a RunnableLambda before it that takes the text"
        )
    return InputShape(key=key or QUESTION_KEYS[0], others=tuple(other for other in required if other != key))


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
    found = find_object(name)
    if not inspect.isclass(found) and hasattr(found, "ainvoke"):
        return cast(_Runnable, found)
    if not callable(found):
        raise TargetError(f"{name} is {name_kind(found)}; a runnable has `ainvoke`, or is a function that makes one")
    try:
        made: object = found()
    except Exception as error:  # a factory of any maker may raise anything
        raise TargetError(f"{name}() failed with {describe_error(error)}") from error
    if not hasattr(made, "ainvoke"):
        if inspect.iscoroutine(made):
            made.close()
        raise TargetError(f"{name}() returned {name_kind(made)}, which has no `ainvoke`; return a LangChain Runnable")
    return cast(_Runnable, made)
