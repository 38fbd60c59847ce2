"""The protocol of a target, which takes a question and returns a response. Its errors, by what to do about them:

TargetError        no question can get past this: a missing module, a variable that is not set
QuestionFailed     this question has failed; its response states why
├── LateAnswer     code in this process did not return in time; it cannot be stopped, so it is not asked again
└── PassingFailure the same question may be answered in a moment: 429, 5xx, no connection, no answer in time

Answers are read here from the forms that applications return, and `Attempts` asks a question again where that may help.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from evalhouse.tasks.asking.limits import EndpointLimit
from evalhouse.tasks.datasets.thoughts import find_thoughts, is_thought, join_thoughts, read_parts
from evalhouse.tasks.datasets.values import is_absent, list_source_names, read_contexts, read_ids
from evalhouse.tasks.judge.protocol import draw_backoff
from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.warehouse.messages import join_surrogates, list_names, name_kind, quote_value


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetQuestion:
    """A question, and the other parts of the sample that a request may need.

    `contexts` are set if the application should answer from these instead of looking for others; `context_ids` are
    their ids, as far as known. `conversation` are the messages before the question, the oldest first, as OpenAI's
    chat API has them; `conversation_id` is a UUID for one asking of a conversation.
    """

    sample_id: str
    question: str
    metadata: Mapping[str, Any]
    contexts: tuple[str, ...] | None = None
    context_ids: tuple[str, ...] | None = None
    conversation: tuple[Mapping[str, str], ...] = ()
    conversation_id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """The response to one question, as the application returned it or after all attempts; an empty `answer` is one.

    `error` is None when the question was answered.
    `contexts` are None when the application returned none, `context_ids` when none of them has an id ("" marks one
    without), `context_sources`, the addresses and names beside each, when none has any. `latency_ms` is of the attempt
    that succeeded, from its start to the last byte, None when none did. `attempts` counts the times the application was
    asked, 0 when the question could not even be sent. `lasts` marks a failure that waiting would not fix: the question
    was refused, its response has another shape, no server is there.
    """

    answer: str | None = None
    contexts: tuple[str, ...] | None = None
    context_ids: tuple[str, ...] | None = None
    context_sources: tuple[tuple[str, ...], ...] | None = None
    latency_ms: float | None = None
    attempts: int = 0
    error: str | None = None
    lasts: bool = False


class Target(Protocol):
    """An application that can be asked. Use one within one event loop, and close it there.

    `takes_contexts`: it can be given the contexts that it should answer from. `takes_conversation`: it is given the
    messages before a question; `names_conversation`: it is given the conversation's id, so that it can remember.
    """

    name: str
    takes_contexts: bool
    takes_conversation: bool
    names_conversation: bool

    async def ask(self, question: TargetQuestion) -> Response:
        """Return the response, failed or not, after the target's attempts and within its limits.

        Raises only TargetError, for what no question can get past.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


class TargetError(Exception):
    """The target cannot be asked at all until a person changes something. Texts hold no secret."""


class QuestionFailed(Exception):
    """One question was not answered, and asking again would not help. Texts hold no secret.

    `unasked`: the application did not receive it.
    """

    def __init__(self, message: str, *, unasked: bool = False) -> None:
        super().__init__(message)
        self.unasked = unasked


class LateAnswer(QuestionFailed):
    """A function or a Runnable did not return in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"it did not return within {timeout_s:g} s; raise timeout_s if it may take longer")


class PassingFailure(QuestionFailed):
    """The same question may be answered in a moment, in `retry_after_s` if that was stated.

    `rate_limited`: it was asked too much, so other questions should wait as well. `unreached`: no server answered.
    """

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, rate_limited: bool = False, unreached: bool = False
    ) -> None:
        super().__init__(message)
        self.unreached = unreached
        self.retry_after_s = retry_after_s
        self.rate_limited = rate_limited


# --- what applications return

ANSWER_KEYS = ("answer", "output", "result", "text")
CONTEXTS_KEYS = ("contexts", "context", "documents", "source_documents")
_IDS_KEY = "context_ids"
_FORMS = "a text, a mapping with answer and contexts, or a tuple of answer and contexts"


def read_returned(value: object) -> Response:
    """Return the answer of what a function or a Runnable returned; raises QuestionFailed that states the problem."""
    if isinstance(value, tuple):
        if len(value) != 2:
            raise QuestionFailed(f"a tuple of {len(value)} was returned; allowed: {_FORMS}")
        return make_answer(_read_message(value[0]), value[1])
    if not isinstance(value, Mapping):
        text = _read_message(value)
        if not (text is None or isinstance(text, str)):
            raise QuestionFailed(f"{name_kind(text)} was returned: {quote_value(text)}; allowed: {_FORMS}")
        return make_answer(text, None)
    answer_key = next((key for key in ANSWER_KEYS if not is_absent(value.get(key))), None)
    contexts_key = next((key for key in CONTEXTS_KEYS if not is_absent(value.get(key))), None)
    messages = value.get("messages")
    if answer_key is not None:
        answer = _read_message(value[answer_key])
    elif isinstance(messages, Sequence) and not isinstance(messages, str) and messages:
        answer = _read_message(messages[-1])  # an agent's messages, of which the last is the answer
    elif present := [key for key in ANSWER_KEYS if key in value]:
        raise QuestionFailed(f"the answer is null: {present[0]!r}")
    else:
        allowed = ", ".join(ANSWER_KEYS)
        keys = list_names([str(key) for key in value], 8)
        raise QuestionFailed(f"the mapping that was returned has no answer; it has: {keys}; looked for: {allowed}")
    check_no_error(answer, value)
    contexts = value[contexts_key] if contexts_key else None
    return make_answer(answer, contexts, value.get(_IDS_KEY), thoughts=find_thoughts(value))


def _read_message(value: object) -> object:
    """Return the text of a chat message, anything else unchanged. Its content may be in parts, some without text."""
    content = getattr(value, "content", None)
    if content is None or isinstance(value, str | Mapping) or not isinstance(getattr(value, "type", None), str):
        return value
    thoughts = find_thoughts(getattr(value, "additional_kwargs", None)) or find_thoughts({"content": content})
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content if not is_thought(part)]
        content = "".join(text for text in texts if isinstance(text, str))
    return join_thoughts(thoughts, content) if isinstance(content, str) else content


def check_no_error(answer: object, *beside: object) -> None:
    """Raise QuestionFailed for an empty answer beside a filled `error`, or a false `success`: it is not a refusal."""
    if answer is not None and not (isinstance(answer, str) and not answer.strip()):
        return
    for members in beside:
        if isinstance(members, Mapping):
            if error := members.get("error"):
                raise QuestionFailed(f"the answer is empty, and error is {quote_value(error)}")
            if named := next((name for name in ("success", "ok") if members.get(name) is False), None):
                raise QuestionFailed(f"the answer is empty, and {named} is false")


def make_answer(
    answer: object,
    contexts: object,
    context_ids: object = None,
    *,
    beside: Sequence[object] = (),
    thoughts: str | None = None,
) -> Response:
    """Return the answer with its contexts, of which a single text or object is one; raises QuestionFailed.

    `beside` has the other members of the object that each context is in, where contexts are texts. The bot's
    `thoughts`, or those among the parts of its answer, are before the answer in marks.
    """
    problems: list[str] = []

    def note(_kind: str, text: str) -> None:
        problems.append(text)

    given_ids = read_ids(context_ids, _IDS_KEY, note, is_exact=True)
    read = read_contexts(contexts, note, is_exact=True)
    ids = read.ids if given_ids is None else given_ids
    if given_ids is not None and len(given_ids) != len(read.texts or ()):
        problems.append(f"there are {len(given_ids)} context_ids for {len(read.texts or ())} contexts")
    text = ""
    parts = read_parts(answer)
    answer = answer if parts is None else parts
    if is_absent(answer):
        problems.append("the answer is null")
    elif isinstance(answer, bool):
        text = "true" if answer else "false"
    elif isinstance(answer, str | int | float):
        text = join_thoughts(thoughts, str(answer))
    else:
        problems.append(f"the answer is {name_kind(answer)}, not text: {quote_value(answer)}")
    sources = list_source_names(beside if read.rest is None and len(beside) == len(read.texts or ()) else read.rest)
    if problems:
        raise QuestionFailed("; ".join(problems))
    # Careless cutting leaves half a character, and names of files that are not UTF-8 have some: nothing can store it.
    return Response(
        answer=join_surrogates(text),
        contexts=None if read.texts is None else tuple(map(join_surrogates, read.texts)),
        context_ids=None if ids is None else tuple(map(join_surrogates, ids)),
        context_sources=tuple(tuple(map(join_surrogates, names)) for names in sources) if any(sources) else None,
    )


# --- attempts

# A longer wait that an application asks for is not waited for: a night is too short for many such questions.
_MAX_WAIT_S = 300.0
# Failures that waiting does not fix (a wrong token, another shape, no server) are the same after 5,000 questions.
_MAX_LASTING = 5
# Anything else may be chance, or an application that still starts. One that answers only a quarter of its questions
# fails the first 5 in every fourth run (0.75 ** 5 = 24 %), but the first 20 in 3 of 1,000.
_MAX_FAILED = 20
_SHOWN_KINDS = 3


class Attempts:
    """Asks within the limits of the settings, and again where that may help."""

    def __init__(self, settings: TargetSettings) -> None:
        self._max_attempts = settings.attempts
        self._limit = EndpointLimit(concurrency=settings.concurrency, rpm=settings.rpm)
        self._was_answered = False

    async def ask(self, attempt: Callable[[], Awaitable[Response]]) -> Response:
        """Return the response to one question, failed or not.

        Where the application has answered before, a refusal for a rate limit is waited out and does not count as an
        attempt: most name no time to come back, and their minute is longer than all attempts take.
        """
        number, refused, refused_s = 0, 0, 0.0
        while True:
            number += 1
            try:
                async with self._limit.slot() as slot:
                    clock = time.perf_counter()
                    try:
                        answer = await attempt()
                    except PassingFailure as failure:
                        if failure.rate_limited:
                            self._limit.note_refused(slot, failure.retry_after_s)
                        raise
                    latency_ms = (time.perf_counter() - clock) * 1000
                    self._limit.note_success(slot)
                    self._was_answered = True
            except PassingFailure as failure:
                is_refused = failure.rate_limited and self._was_answered and refused_s < _MAX_WAIT_S
                refused += is_refused
                # With jitter, so that many questions that fail do not return as one.
                backoff_s = draw_backoff(refused if is_refused else number - refused)
                wait_s = max(backoff_s, (failure.retry_after_s or 0.0) * random.uniform(1.0, 1.1))
                error = str(failure)
                if failure.retry_after_s is not None and wait_s > _MAX_WAIT_S:
                    error += f"; it asks to come back in {failure.retry_after_s:,.0f} s, which is too long to wait"
                elif is_refused or number - refused < self._max_attempts:
                    refused_s += wait_s if is_refused else 0.0
                    await asyncio.sleep(wait_s)
                    continue
                elif number > 1:
                    error += f" (asked {number} times)"
                    error += "; set rpm in [target]" if failure.rate_limited else ""
                return Response(error=error, attempts=number, lasts=failure.unreached)
            except QuestionFailed as failure:
                lasts = not (failure.unasked or isinstance(failure, LateAnswer))
                return Response(error=str(failure), attempts=number - failure.unasked, lasts=lasts)
            return replace(answer, latency_ms=latency_ms, attempts=number)


class FirstQuestions:
    """Watches the first questions of a run until one is answered: if they fail, the others would most likely too."""

    def __init__(self) -> None:
        self._failures: dict[str, list[Response]] = {}  # by kind
        self._is_over = False

    def note(self, response: Response) -> None:
        """Count a response; raises TargetError when enough questions have failed."""
        self._is_over = self._is_over or response.error is None
        if self._is_over:
            return
        # A message begins with the kind of failure.
        alike = self._failures.setdefault((response.error or "").partition(":")[0], [])
        alike.append(response)
        n_failed = sum(map(len, self._failures.values()))
        if sum(failed.lasts for failed in alike) < _MAX_LASTING and n_failed < _MAX_FAILED:
            return
        self._is_over = True  # questions that are still in flight are not counted
        kinds = sorted(self._failures.values(), key=len, reverse=True)
        shown = "; ".join(f"{len(failures)} times {failures[-1].error}" for failures in kinds[:_SHOWN_KINDS])
        more = f"; and {len(kinds) - _SHOWN_KINDS} other kinds of failure" if len(kinds) > _SHOWN_KINDS else ""
        raise TargetError(
            f"none of the first {n_failed} questions was answered, so the others were not asked: "
            f"{shown}{more}; fix the application or [target] (stop_early = false there keeps asking)"
        )
