"""How often and how fast the application under test is asked, when that ends early, and how what it returns is read.

One `Attempts` belongs to one target, so that its limits have nothing to do with the judge's. What an attempt is, the
targets say; here it either returns an answer or raises one of the errors of `protocol`.
Contexts are understood as a dataset's are: texts, or objects with text, content or page_content and an id; LangChain's
documents and messages are known by their attributes, so nothing of LangChain is imported here.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evalhouse.tasks.asking.limits import EndpointLimit, Slot, draw_backoff
from evalhouse.tasks.datasets.values import TEXT_KEYS, is_absent, read_contexts, read_ids
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.warehouse.messages import list_names, name_kind, quote_value


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


# Who asks to come back later than this is not waited for: a night is too short for many such questions.
_NAMED_MOST_S = 300.0
# What waiting does not mend (a wrong token, another shape, nobody there) is after 5 questions what it is after 5,000.
_LASTING_MOST = 5
# Anything else may be chance, or an application that still starts. One that answers only a quarter of its questions
# fails the first 5 in every fourth run (0.75 ** 5 = 24 %), but the first 20 in 3 of 1,000.
_FAILED_MOST = 20
_KINDS_SHOWN = 3
ANSWER_KEYS = ("answer", "output", "result", "text")
CONTEXTS_KEYS = ("contexts", "context", "documents", "source_documents")
_IDS_KEY = "context_ids"
_FORMS = "a text, a mapping with answer and contexts, or a tuple of answer and contexts"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One answer, which may be empty, and what it rests on; None for contexts and ids that were not told."""

    answer: str
    contexts: tuple[str, ...] | None
    context_ids: tuple[str, ...] | None


def read_returned(value: object) -> Answer:
    """What a function or a Runnable returned; raises QuestionFailed that says what is wrong with it."""
    if isinstance(value, tuple):
        if len(value) != 2:
            raise QuestionFailed(f"a tuple of {len(value)} was returned; allowed: {_FORMS}")
        return make_answer(_read_message(value[0]), value[1])
    if isinstance(value, Mapping):
        return _read_mapping(value)
    text = _read_message(value)
    if not (text is None or isinstance(text, str)):
        raise QuestionFailed(f"{name_kind(text)} was returned: {quote_value(text)}; allowed: {_FORMS}")
    return make_answer(text, None)


def make_answer(answer: object, contexts: object, context_ids: object = None) -> Answer:
    """The answer with its contexts, of which a single text or object is one; raises QuestionFailed."""
    problems: list[str] = []

    def say(_kind: str, text: str) -> None:
        problems.append(text)

    given_ids = read_ids(_listen(context_ids), _IDS_KEY, say, tabular=False)
    read = read_contexts(_listen_contexts(contexts), say, tabular=False)
    ids = read.ids if given_ids is None else given_ids
    if given_ids is not None and len(given_ids) != len(read.texts or ()):
        problems.append(f"there are {len(given_ids)} context_ids for {len(read.texts or ())} contexts")
    text = _read_answer(answer, problems)
    _check_encoding(problems, text, *(read.texts or ()), *(ids or ()))
    if problems:
        raise QuestionFailed("; ".join(problems))
    return Answer(
        answer=text,
        contexts=None if read.texts is None else tuple(read.texts),
        context_ids=None if ids is None else tuple(ids),
    )


def _read_mapping(value: Mapping[object, object]) -> Answer:
    answer_key = next((key for key in ANSWER_KEYS if not is_absent(value.get(key))), None)
    contexts_key = next((key for key in CONTEXTS_KEYS if not is_absent(value.get(key))), None)
    messages = value.get("messages")
    if answer_key is not None:
        answer = _read_message(value[answer_key])
    elif isinstance(messages, Sequence) and not isinstance(messages, str) and messages:
        answer = _read_message(messages[-1])  # an agent's talk, of which the last message is the answer
    elif present := [key for key in ANSWER_KEYS if key in value]:
        raise QuestionFailed(f"the answer is null: {present[0]!r}")
    else:
        allowed = ", ".join(ANSWER_KEYS)
        keys = list_names([str(key) for key in value], 8)
        raise QuestionFailed(f"the mapping that was returned has no answer; it has: {keys}; looked for: {allowed}")
    return make_answer(answer, value[contexts_key] if contexts_key else None, value.get(_IDS_KEY))


def _read_message(value: object) -> object:
    """The text of a chat message, anything else as it is. Its content may be in parts, of which some are no text."""
    content = getattr(value, "content", None)
    if content is None or isinstance(value, str | Mapping) or not isinstance(getattr(value, "type", None), str):
        return value
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def _read_answer(value: object, problems: list[str]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and not is_absent(value):
        return str(value)
    if is_absent(value):
        problems.append("the answer is null")
    else:
        problems.append(f"the answer is {name_kind(value)}, not text: {quote_value(value)}")
    return ""


def _listen_contexts(value: object) -> object:
    """Contexts as a dataset would have them."""
    items = _listen(value)
    return [_open_document(item) for item in items] if isinstance(items, list) else items


def _listen(value: object) -> object:
    """A list; one text, object or document is a list of one."""
    if isinstance(value, tuple):
        return list(value)
    is_one = isinstance(value, str | Mapping) or hasattr(value, TEXT_KEYS[-1])
    return [value] if is_one else value


def _open_document(item: object) -> object:
    """A LangChain document as an object of a dataset; its id may stand in its metadata, where it is found."""
    if isinstance(item, Mapping):
        return dict(item)
    if not hasattr(item, TEXT_KEYS[-1]):
        return item
    return {
        TEXT_KEYS[-1]: getattr(item, TEXT_KEYS[-1]),
        "id": getattr(item, "id", None),
        "metadata": getattr(item, "metadata", None),
    }


def _check_encoding(problems: list[str], *texts: str) -> None:
    """Half a character, as careless cutting leaves it, can be kept nowhere."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            problems.append(f"a text has half a character at position {error.start}: {quote_value(text)}")
            return


Attempt = Callable[[], Awaitable[Answer]]


class Attempts:
    """Asks within the limits of the settings, and again where that may help."""

    def __init__(self, settings: TargetSettings) -> None:
        self._most = settings.attempts
        self._limit = EndpointLimit(concurrency=settings.concurrency, rpm=settings.rpm)

    async def ask(self, attempt: Attempt) -> Response:
        """The response to one question, failed or not."""
        for number in range(1, self._most + 1):
            try:
                return await self._ask_once(attempt, number)
            except PassingFailure as failure:
                wait_s = _find_wait(failure, number)
                if number == self._most or wait_s > _NAMED_MOST_S:
                    return make_failed(_say_tries(failure, number, wait_s), attempts=number, lasts=failure.unreached)
            except QuestionFailed as failure:
                lasts = not (failure.unasked or isinstance(failure, LateAnswer))
                return make_failed(str(failure), attempts=number - failure.unasked, lasts=lasts)
            await asyncio.sleep(wait_s)
        raise AssertionError("at least one attempt is made")

    async def _ask_once(self, attempt: Attempt, number: int) -> Response:
        async with self._limit.slot() as slot:
            clock = time.perf_counter()
            answer = await self._watch(attempt, slot)
            latency_ms = (time.perf_counter() - clock) * 1000
            self._limit.note_success()
        return Response(
            answer=answer.answer,
            contexts=answer.contexts,
            context_ids=answer.context_ids,
            latency_ms=latency_ms,
            attempts=number,
            error=None,
        )

    async def _watch(self, attempt: Attempt, slot: Slot) -> Answer:
        """The attempt; who is asked too much gets fewer questions at once."""
        try:
            return await attempt()
        except PassingFailure as failure:
            if failure.rate_limited:
                self._limit.note_refused(slot, failure.retry_after_s)
            raise


class FirstQuestions:
    """Watches the first questions of a run until one is answered: if they fail, the others would most likely too."""

    def __init__(self) -> None:
        self._failures: list[Response] = []
        self._is_over = False

    def note(self, response: Response) -> None:
        """Count what came of a question; raises TargetError when enough have failed."""
        self._is_over = self._is_over or response.error is None
        if self._is_over:
            return
        self._failures.append(response)
        alike = [failed for failed in self._failures if failed.lasts and _find_kind(failed) == _find_kind(response)]
        if len(alike) >= _LASTING_MOST or len(self._failures) >= _FAILED_MOST:
            self._is_over = True  # what is still in flight ends as it does
            raise TargetError(_say_failures(self._failures))


def _find_kind(response: Response) -> str:
    """What failures of one kind have in common: a message names what happened first, and then what came."""
    return (response.error or "").partition(":")[0]


def _say_failures(failures: Sequence[Response]) -> str:
    """What came for how many questions, the most frequent kind first, and what to do."""
    kinds = Counter(map(_find_kind, failures)).most_common()
    examples = {_find_kind(failed): failed.error for failed in failures}
    shown = "; ".join(f"{n} times {examples[kind]}" for kind, n in kinds[:_KINDS_SHOWN])
    more = f"; and {len(kinds) - _KINDS_SHOWN} other kinds of failure" if len(kinds) > _KINDS_SHOWN else ""
    return (
        f"none of the first {len(failures)} questions was answered, so the others were not asked: {shown}{more}; mend "
        "the application or [target] (stop_early = false there asks all the same)"
    )


def make_failed(error: str, *, attempts: int, lasts: bool = False) -> Response:
    """The response of a question that has failed."""
    return Response(
        answer=None, contexts=None, context_ids=None, latency_ms=None, attempts=attempts, error=error, lasts=lasts
    )


def _find_wait(failure: PassingFailure, failures: int) -> float:
    """Seconds before the next attempt, with jitter, so that many who fail do not return as one."""
    return max(draw_backoff(failures), (failure.retry_after_s or 0.0) * random.uniform(1.0, 1.1))


def _say_tries(failure: PassingFailure, number: int, wait_s: float) -> str:
    if wait_s > _NAMED_MOST_S:
        return f"{failure}; it asks to come back in {failure.retry_after_s:,.0f} s, which is too long to wait"
    return f"{failure} (asked {number} times)" if number > 1 else str(failure)
