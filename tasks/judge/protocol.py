"""The judge protocol: a judge answers one question about one sample with a text.

Its two steps are `prepare`, which returns the exact request (so that it can be keyed and recorded), and `reply`, which
sends it. The chat models and the lexical judge are equal implementations; the call path in `asking` knows neither.

Below are the errors of a judge, by what has to be done about them:

JudgeError
├── FatalJudgeError       nothing will work: wrong key, unknown model; the run stops with this message
│   └── RunCancelled      a person or a signal stopped the run
├── TransientJudgeError   the same request may work in a moment: 429, 5xx, timeout, reset
├── RefusedRequest        this request will never work: content filter, too long; the sample is unscored
├── UnusableReply         a reply came and cannot be read; asked again with a note
│   └── CutReply          the output limit cut it off before anything usable; the same is asked in parts
├── UnsupportedOption     the endpoint does not know an option we sent; sent again without it
├── EndpointDown          a question was given up on transport errors; Prefect may retry the task
└── JudgeFailed           a question was given up for good; the sample's verdict is `judge_failed`
    ├── QuestionRefused   because its request was refused
    └── BudgetExhausted   the run's budget is spent

Last are the judges that `--judge` names, as `openai:gpt-4.1-mini,attribute=lexical`: an item with `=` names a step, by
its file in `tasks/`, and its judge; the item without is the default. They are stored that way in `runs.judge`: two runs
are judged alike when they have the same text there. The row of each call has the judge that was asked.
"""

import hashlib
import ipaddress
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import orjson

from evalhouse.warehouse.messages import hide_secrets, quote_value, suggest
from evalhouse.warehouse.steps import GRADE_STEP, JUDGED_TASKS, PLANS, STEPS, TASKS, find_step, find_task

if TYPE_CHECKING:
    from evalhouse.prompts import BlockValue, Prompt  # commands that only read load this module, and no prompts

# No reply and no context window comes near it, and the sum of billions of such counts still fits a BIGINT.
MAX_COUNT: Final = 2**31 - 1
TIMEOUT_S: Final = 60.0
"""The usual seconds for one request."""
MAX_TIMEOUT_S: Final = 3600.0
# A server on the user's machine or network may read a long prompt for minutes, and loses nothing on the way.
_NEAR_TIMEOUT_S = 600.0
_BACKOFF_FIRST_S = 0.5
_MAX_BACKOFF_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question for the judge.

    `vote` numbers, from 1, the times the same thing is asked to let a majority decide, and is 0 where it is asked once;
    `number` counts the times this sample's step has asked, and `only` names the ids it asks for when these are not all
    of the data; both belong to the question. `note` reports to the model that its last reply was not usable, and
    `n_unusable` counts such replies, which does not make it another question; `logprobs` requests how likely each token
    of the reply was. Embeddings are asked for without a prompt, several at once as `parts`: a question each, of which
    every one has its sample, and all together have none.
    """

    step: str
    sample_id: str | None
    prompt: "Prompt | None"
    data: "Mapping[str, BlockValue]"
    vote: int = 0
    number: int = 1
    only: tuple[str, ...] = ()
    note: str = ""
    n_unusable: int = 0
    logprobs: bool = False
    parts: "Sequence[Question]" = ()

    @property
    def n_repeats(self) -> int:
        """The number of earlier requests that differ from this one in nothing but the note."""
        return max(0, self.n_unusable - 1)

    @property
    def instruction(self) -> str:
        """The text behind the data of this question; in our own words alone."""
        narrowed = f"Give verdicts for these ids only: {', '.join(self.only)}." if self.only else ""
        return " ".join(part for part in (narrowed, self.note) if part)


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A request ready to be sent: its key and the payload that is recorded as `request`."""

    request_hash: str
    payload: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class ModelReply:
    """The raw text of a reply and the endpoint's report about it. Token counts are None where it gives none.

    `cached_tokens` are the part of the prompt that the provider still had from an earlier request;
    `written_tokens` are a part, too, which it keeps for later ones.
    `thoughts` are the model's reasoning before the text, which is paid for with it. `is_cut` is for a reply that the
    model's output limit ended. `logprobs` are packed as `measures/expected_ratings.py` does, None where the endpoint
    gives none or was not asked. `parts` are the replies to the parts of a question, in order; `text` is then empty.
    """

    text: str
    thoughts: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    written_tokens: int = 0
    logprobs: str | None = None
    is_cut: bool = False
    parts: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class UnsupportedParameter:
    """An option that an endpoint refused in these `words` and is not sent any more; `instead` is sent in its place."""

    option: str
    instead: str | None
    words: str


class Judge(Protocol):
    """Answers questions. `name` is what users write after `--judge` and what is stored with every number."""

    @property
    def name(self) -> str:
        """The name, such as `openai:gpt-4.1-mini` or `lexical`."""

    @property
    def model(self) -> str:
        """The model asked for, as prices know it."""

    @property
    def tasks(self) -> frozenset[str] | None:
        """The steps that it can answer, by their files in `tasks/`; None where these are all."""

    @property
    def endpoint(self) -> str | None:
        """The address of the model, for limits that are shared; None for a model in this process."""

    def prepare(self, question: Question) -> ModelRequest:
        """Return the request, without sending it."""

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send a prepared request; raises a JudgeError."""

    async def close(self) -> None:
        """Close connections."""


class RepeatedJudge:
    """A judge whose every request counts as one that was never asked, for a noise run.

    The key of a request is made of the judge's key and of the run. So no recorded reply answers it, and its reply
    answers no later run: an unchanged sample would otherwise change its verdict after the night on which it was judged
    twice.
    """

    def __init__(self, judge: Judge, run_id: str) -> None:
        self._judge, self._run_id = judge, run_id
        self.name, self.model, self.endpoint, self.tasks = judge.name, judge.model, judge.endpoint, judge.tasks
        self.batches = getattr(judge, "batches", None)
        self.reply, self.close = judge.reply, judge.close

    @property
    def window(self) -> int | None:
        """The judge's, which may be found later."""
        return find_window(self._judge)

    def prepare(self, question: Question) -> ModelRequest:
        """Return the judge's request under a key for this run alone."""
        request = self._judge.prepare(question)
        key = hashlib.sha256(f"{self._run_id}/{request.request_hash}".encode()).hexdigest()
        return replace(request, request_hash=key)


def find_window(judge: Judge | None) -> int | None:
    """Return how many tokens a judge's model reads at once; None for one without a model, or of an unknown window."""
    return getattr(judge, "window", None)


def choose_timeout(setting: float | None, endpoint: str | None) -> float:
    """Return the seconds one request may take: as set, else what is usual for the address."""
    if setting is not None:
        return setting
    if endpoint is None:
        return MAX_TIMEOUT_S  # a model in this process
    return _NEAR_TIMEOUT_S if is_near(endpoint) else TIMEOUT_S


def is_near(endpoint: str, *, network: bool = True) -> bool:
    """Return whether an address is one of this machine, or of its `network`, as far as its name shows."""
    host = urlsplit(endpoint).hostname if "://" in endpoint else None
    if not host:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        is_local = host == "localhost" or host.endswith(".localhost")
        return is_local or (network and ("." not in host or host.endswith((".local", ".internal"))))
    return address.is_loopback or (network and address.is_private)


def require_prompt(question: Question) -> "Prompt":
    """Return the question's prompt; raises ValueError for a question that has none and needs one."""
    if question.prompt is None:
        raise ValueError(f"the step {question.step!r} asked a judge without a prompt")
    return question.prompt


def parse_count(value: object) -> int | None:
    """Return a count that an endpoint reports, or None for anything that cannot be one.

    A whole number from 0 to MAX_COUNT is a count. A larger one does not fit a column of the warehouse, and is the
    result of arithmetic below zero at the endpoint, as 2**64 - 1 is.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        return None
    return int(value) if value == int(value) else None


def hash_canonical(value: object) -> str:
    """Return the SHA-256 of canonical JSON (sorted keys, no spaces, non-ASCII kept), as hex."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def plain_data(data: "Mapping[str, BlockValue]") -> dict[str, object]:
    """Return a question's data with items as dictionaries, as JSON has it."""
    return {
        name: value if isinstance(value, str) else [{"id": item.id, "text": item.text} for item in value]
        for name, value in data.items()
    }


class JudgeError(Exception):
    """Any failure of a judge. Texts hold no key and no header, even where a reply that they quote repeats one."""

    def __init__(self, message: str = "") -> None:
        super().__init__(hide_secrets(message))


class FatalJudgeError(JudgeError):
    """Nothing will work until a person changes something; stops the run."""


class RunCancelled(FatalJudgeError):
    """The run was stopped from outside; it can be resumed."""


class TransientJudgeError(JudgeError):
    """The same request may work in a moment. It is `unreachable` where no connection was made, `late` where no reply
    came in time.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        rate_limited: bool = False,
        unreachable: bool = False,
        late: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.rate_limited = rate_limited
        self.unreachable = unreachable
        self.late = late


class RefusedRequest(JudgeError):
    """This request will never work: refused, filtered, or too long. `reply` was paid for, if one came.

    It is `unexplained` where nothing shows it to be the fault of this one request: all others may end like it.
    Where it is `too_long`, less of the same may work.
    """

    def __init__(
        self,
        message: str,
        *,
        reply: "ModelReply | None" = None,
        unexplained: bool = False,
        too_long: bool = False,
    ) -> None:
        super().__init__(message)
        self.reply = reply
        self.unexplained = unexplained
        self.too_long = too_long


class UnusableReply(JudgeError):
    """A reply came that cannot be read as an answer; `reply` is it, where the judge itself refused to read it."""

    def __init__(self, message: str, *, reply: "ModelReply | None" = None) -> None:
        super().__init__(message)
        self.reply = reply


THINK, THOUGHT = "<think>", "</think>"
"""The marks around thoughts that a model writes into its reply."""


MARKED_RATING = re.compile(r"\[\[([^\[\]]*)\]\]")
"""A rating in plain text, as `[[7]]`."""


def ends_in_thoughts(text: str) -> bool:
    """Return True for a reply, or the beginning of one, that breaks off within marked thoughts."""
    return text.rfind(THINK) > text.rfind(THOUGHT)


CUT_OFF: Final = "the reply was cut off at the model's output limit"
NEW_RUN: Final = "begin a new run with another"
"""The words of the error of a run that keeps what it failed by when it is resumed: its judge, or a setting of it."""
LATE: Final = "no reply within"
"""The beginning of the error of a request that was not answered in time."""
COPIED: Final = "the words of the prompt's own example"
"""The beginning of the error of verdicts whose reasons were copied from a worked example."""
NOT_IN_TEXT: Final = "hardly in the text: "
"""The words of an outcome of `extract` before the ids of statements whose words are mostly not in the text."""
NOT_TAKEN: Final = "the endpoint does not take "
"""The beginning of the error of a request that was sent again without an option."""


class CutReply(UnusableReply):
    """The model's output limit cut a reply off before anything usable; less has to be asked at once."""


class UnsupportedOption(JudgeError):
    """The endpoint does not take an option of our requests, and will not be sent it again.

    `options` may be meant by its message; with `is_value` it takes the option, but not with this value.
    """

    def __init__(self, message: str, *, options: Sequence[str], is_value: bool = False) -> None:
        super().__init__(message)
        self.options = tuple(options)
        self.is_value = is_value


class EndpointDown(JudgeError):
    """All attempts at a question failed on the way; a later one may not."""


class JudgeFailed(JudgeError):
    """A question was given up; `reason` is the `unscored_reason` of the sample."""

    reason = "judge_failed"


class QuestionRefused(JudgeFailed):
    """A question was given up because its request was refused: asked again, it will be again."""


class TooLong(QuestionRefused):
    """A request was larger than the model's context window; less of the same may be asked."""


class BudgetExhausted(JudgeFailed):
    """The budget is spent; nothing more is asked."""

    reason = "budget_exhausted"


Ending = TypeVar("Ending", bound=JudgeError)


def draw_backoff(failures: int) -> float:
    """Return the seconds to wait after so many failures: exponential, with jitter so that failures do not coincide."""
    return min(_MAX_BACKOFF_S, _BACKOFF_FIRST_S * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)


def repeat_error(error: Ending) -> Ending:
    """Return the same error again, for another caller who has to end with it: a raised error belongs to one stack."""
    return type(error)(str(error))


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait, from a number or a date; None for neither."""
    for header, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(header)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            try:
                # By the server's clock: that of this machine may be minutes off.
                now = parsedate_to_datetime(headers["date"]).timestamp() if headers.get("date") else time.time()
                seconds = parsedate_to_datetime(value).timestamp() - now
            except (TypeError, ValueError, OverflowError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


DEFAULT: Final = "default"
"""The name of the default judge where judges are listed by name, as in a suite's `[judges]`."""
LEXICAL: Final = "lexical"
"""The built-in judge, which asks no model."""
LOCAL: Final = "local"
"""The beginning of a classifier's name, before the colon."""
LOCAL_TASKS: Final = frozenset(("classify", "attribute", "rank"))
"""The steps that a classifier of document-claim support can judge."""
JURY: Final = "jury"
"""The beginning of a jury's name, before the colon; its judges follow, with commas between them."""
VOTED_TASKS: Final = tuple(dict.fromkeys(step.task for step in STEPS.values() if "votes" in step.settings))
"""The steps whose verdicts can be put to the vote. A jury's first judge answers for it in all other steps."""
FORM_JOIN: Final = "+"
"""The sign in a judge's name behind the form in which it is asked by pairs."""
# The name of a judge may hold `=`, but only behind its colon.
_ITEM: Final = re.compile(r"([^:=]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JudgeNames:
    """The default judge, None where it is named elsewhere, and the judges of steps by task."""

    default: str | None = None
    of_tasks: Mapping[str, str] = field(default_factory=dict)

    def find(self, task: str) -> str | None:
        """Return the judge of a step."""
        return self.of_tasks.get(task, self.default)

    def lay_over(self, below: "JudgeNames") -> "JudgeNames":
        """Return these, with the names below where these have no default: a default is for all steps not named."""
        if self.default is not None:
            return self
        return JudgeNames(default=below.default, of_tasks={**below.of_tasks, **self.of_tasks})

    def __str__(self) -> str:
        """Return the text that names them, the same for the same judges: a step with the default's judge has none."""
        named = [f"{task}={name}" for task in JUDGED_TASKS if (name := self.find(task)) not in (None, self.default)]
        return ",".join([*([self.default] if self.default is not None else []), *named])


def parse_judges(given: str | Mapping[str, object]) -> JudgeNames:
    """Return the judges in a text, or by name as a suite's table has them; raises ValueError with the problem."""
    if not isinstance(given, str | Mapping):
        raise ValueError("give the name of a judge, or a dictionary of names by step")
    pairs = _split(given) if isinstance(given, str) else given.items()
    judges: dict[str, str] = {}
    for task, name in pairs:
        if not isinstance(name, str) or name.strip().lower() in ("", "none"):
            raise ValueError(f"no judge given for {task}; write JUDGE, or STEP=JUDGE, with commas between them")
        if task != DEFAULT and task not in JUDGED_TASKS:
            owner = find_step(task).task if task in STEPS or task.startswith(GRADE_STEP) else task
            if owner != task and owner in JUDGED_TASKS:
                raise ValueError(f"{task!r} is part of the step {owner!r}; name its judge as {owner}=JUDGE")
            if task in STEPS or task in TASKS:
                raise ValueError(f"the step {task!r} asks no judge; steps that do: {', '.join(JUDGED_TASKS)}")
            raise ValueError(f"unknown step {task!r}; {suggest(task, JUDGED_TASKS, otherwise='known')}")
        if task in judges and task == DEFAULT:
            raise ValueError(
                f"there are two default judges, {quote_value(judges[task])} and {quote_value(name)}; "
                "name a step's judge as STEP=JUDGE"
            )
        if task in judges:
            both = f"{quote_value(judges[task])} and {quote_value(name)}"
            raise ValueError(f"the step {task!r} has two judges, {both}; name one")
        judges[task] = name.strip()
        jurors = list_jurors(judges[task])
        is_jury = judges[task].partition(":")[0] == JURY
        if is_jury and (len(set(jurors)) < max(2, len(jurors)) or not all(jurors)):
            repeated = next((juror for juror in jurors if juror and jurors.count(juror) > 1), None)
            raise ValueError(
                f"{quote_value(name)} is not a jury, which has two or more different judges"
                f"{f' ({quote_value(repeated)} is named twice)' if repeated else ''}; "
                f"write {JURY}:openai:A,anthropic:B,…"
            )
        if len(jurors) > 1 and task not in (DEFAULT, *VOTED_TASKS):
            raise ValueError(
                f"the step {task!r} has one judge, and no jury: votes are counted in {', '.join(VOTED_TASKS)}"
            )
    return JudgeNames(default=judges.pop(DEFAULT, None), of_tasks=judges)


def is_fixed(name: str) -> bool:
    """Return whether a judge is deterministic, so that asking it again changes nothing."""
    return name == LEXICAL or name.startswith(f"{LOCAL}:")


def list_jurors(name: str) -> list[str]:
    """Return the judges of a jury in their order; of another judge its name alone."""
    kind, _, judges = name.partition(":")
    return [juror.strip() for juror in judges.split(",")] if kind == JURY else [name]


def find_judge(text: str, call: str) -> str:
    """Return the judge that a stored text names for a call, as `llm_calls` has its step: a jury where it votes."""
    judges = dict(_split(text))
    asking = PLANS[call].joins[0] if call in PLANS else call
    task = asking if asking in TASKS else find_task(asking)
    name = judges.get(task, judges.get(DEFAULT, text))
    return name if task in VOTED_TASKS else list_jurors(name)[0]


def list_judges(text: str) -> list[str]:
    """Return the names of all judges in a stored text, each once, the judges of a jury singly."""
    return list(dict.fromkeys(juror for _, name in _split(text) for juror in list_jurors(name)))


def _split(text: str) -> list[tuple[str, str]]:
    named: list[tuple[str, str]] = []
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None and named and named[-1][1].partition(":")[0] == JURY:
            task, jury = named.pop()
            named.append((task, f"{jury},{item.strip()}"))
        else:
            named.append((match[1].strip(), match[2].strip()) if match else (DEFAULT, item.strip()))
    return named
