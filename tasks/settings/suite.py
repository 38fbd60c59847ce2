"""The settings of a suite that belong to each of its runs: target, gate, notification, retention and traces.

They are stored with the run's settings, so that a run that is resumed days later is still judged by the limits it was
started with. Secrets are not stored: a setting holds `${NAME}` for a variable of the environment, `${secret:NAME}` for
a Secret block and `${variable:NAME}` for a variable of the Prefect server; `environment` finds the value on use. All
that can be checked without sending a request is refused here, so that the message names the suite's line.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from evalhouse.warehouse.messages import cut, note_secret, suggest
from evalhouse.warehouse.metric_files import MetricFile, load_metrics

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|(?:secret|variable):[A-Za-z0-9_][A-Za-z0-9_-]*")
NAMED: Final = re.compile(rf"\$\{{({NAME.pattern})\}}")
"""The form in which a text names one; the group is the name."""

Stream = Literal["sse", "jsonl", "text"]
History = Literal["dataset", "own"]
Method = Literal["GET", "POST", "PUT", "PATCH"]
_KINDS = ("url", "callable", "runnable")
_Positive = Annotated[float, Field(gt=0)]

# A mark of a template, and a variable of the environment in a header.
MARK = re.compile(r"\{\{\s*+([^{}\s]*+(?:\s++[^{}\s]++)*?)\s*+\}\}")
VARIABLE = re.compile(r"\$\{([^{}]*)\}")
METADATA = "metadata."
GIVEN_MARKS = ("contexts", "context_ids")
"""Lists that a request holds only if the application is given the contexts to answer from."""
CONVERSATION = "conversation"
"""The list of messages before the question; an item of a list that is this mark is replaced by all of them."""
CONVERSATION_ID = "conversation_id"
_LISTS = (*GIVEN_MARKS, CONVERSATION)
_MARKS = ("question", "sample_id", CONVERSATION_ID, *_LISTS)
_MARKS_SHOWN = (
    "{{question}}", "{{sample_id}}", "{{conversation_id}}", "{{metadata.NAME}}", "{{conversation}}", "{{contexts}}",
    "{{context_ids}}",
)  # fmt: skip
_OBJECT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie")
_SECRET_ENDS = ("key", "token", "secret", "password")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TargetSettings(_Table):
    """One application: exactly one of `url`, `callable` and `runnable`.

    `body` is a JSON template and `url` may hold the same marks: `{{question}}`, `{{sample_id}}` and `{{metadata.NAME}}`
    stand for the sample's, `{{conversation_id}}` for an id that no other run sends; a text that is a mark alone keeps
    its type. `{{contexts}}` and `{{context_ids}}` are lists that the body holds if the application should answer from
    given contexts, `{{conversation}}` is the list of messages before the question. `answer`, `contexts` and
    `context_ids` are JSONPath (RFC 9535) into the response.
    """

    url: str | None = Field(default=None, description="address of an HTTP endpoint")
    callable: str | None = Field(default=None, description="module:function, sync or async, from question to response")
    runnable: str | None = Field(default=None, description="module:name of a LangChain Runnable, or of its factory")
    method: Method = "POST"
    headers: dict[str, str] = {}
    body: Any = Field(default=None, description='JSON template; without one {"question": …} is sent')
    answer: str = Field(default="$.answer", description="JSONPath of the answer")
    contexts: str | None = Field(default="$.contexts", description="JSONPath of the list of contexts, or of each")
    context_ids: str | None = Field(default=None, description="JSONPath of the contexts' ids, as contexts")
    stream: Stream | None = Field(default=None, description="how a streaming response is framed")
    timeout_s: _Positive = Field(default=60.0, description="seconds one response may take, all of it")
    attempts: int = Field(default=3, ge=1, le=50, description="times one question is asked before it has failed")
    concurrency: int = Field(default=4, ge=1, le=1024, description="questions in flight at once")
    rpm: int | None = Field(default=None, ge=1, description="questions per minute")
    history: History = Field(
        default="dataset",
        description="whose answers the earlier turns of a conversation hold",
    )
    stop_early: bool = Field(default=True, description="end the asking when the first questions all fail")
    repeats: int = Field(default=0, ge=0, le=20, description="further times a share of the questions is asked")
    repeat_share: float = Field(default=0.1, gt=0, le=1, description="share of the questions that is asked again")

    @field_validator("url")
    @classmethod
    def check_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        where = MARK.sub("mark", url)
        try:
            parts = urlsplit(where)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            has_user = parts.username is not None or parts.password is not None
        except ValueError:  # a port that is not a number, half a bracket
            is_address, has_user = False, False
        head = re.match(r"[^:]+://[^/?#]*", url)
        if not is_address:
            problem: str | None = f"{cut(url, 120)!r} is not an address; write it like http://localhost:8000/ask"
        elif has_user:
            problem = (
                "a user and a password in the address would be kept on record; "
                'send them as a header, Authorization = "Basic ${NAME}", with the environment\'s value'
            )
        elif any(character.isspace() for character in where):
            problem = f"{cut(url, 120)!r} has white space in it; write it as %20"
        elif head and MARK.search(head[0]):
            problem = "the host of the address may not contain a mark"
        else:
            problem = _find_text_problem(url)
        if problem:
            raise PydanticCustomError("target_url", "{problem}", {"problem": problem})
        return url

    @field_validator("callable", "runnable")
    @classmethod
    def check_object(cls, name: str | None) -> str | None:
        if name is not None and not _OBJECT.fullmatch(name):
            raise PydanticCustomError("target_object", "write it as module:name, like bots.search:ask")
        return name

    @field_validator("headers")
    @classmethod
    def check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            variables = VARIABLE.findall(value)
            wrong = [variable for variable in variables if not NAME.fullmatch(variable)]
            problem = None
            if not _HEADER_NAME.fullmatch(name):
                problem = f"{name!r} is not the name of a header"
            elif wrong:
                problem = (
                    f"header {name}: ${{{wrong[0]}}} names no variable of the environment; write it like "
                    "${BOT_TOKEN}, or ${secret:bot-token} for a Secret block of Prefect"
                )
            elif MARK.search(value):
                allowed = "a header may hold ${NAME} from the environment"
                problem = f"header {name}: marks belong into body and url; {allowed}"
            elif any(character in value for character in "\r\n\0"):
                problem = f"header {name} has a line break in it"
            elif not variables and is_secret_header(name):
                problem = (
                    f"header {name}: its value would be kept on record; write ${{NAME}} for a variable of the "
                    "environment and set that"
                )
            if problem:
                raise PydanticCustomError("target_header", "{problem}", {"problem": problem})
        return headers

    @field_validator("body")
    @classmethod
    def check_body(cls, body: Any) -> Any:  # noqa: ANN401  # any JSON
        """Return the template as data; one that is a text is parsed as JSON."""
        if isinstance(body, str):
            try:
                body = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise PydanticCustomError(
                    "target_body",
                    "a body that is text has to be JSON, with its marks within quotes, like {example}; {reason}",
                    {"example": '\'{"query": "{{question}}"}\'', "reason": str(error)},
                ) from None
        for text in find_texts(body):
            if problem := _find_text_problem(text):
                raise PydanticCustomError("target_body", "{problem}", {"problem": problem})
        return body

    @model_validator(mode="after")
    def check_kind(self) -> "TargetSettings":
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            came = " and ".join(given) or "none of them"
            raise PydanticCustomError("target_kind", f"give exactly one of url, callable and runnable; got {came}")
        unused: tuple[str, ...] = ()
        if self.url is None:
            unused = ("method", "headers", "body", "answer", "contexts", "context_ids", "stream")
        elif self.stream == "text":
            unused = ("answer", "context_ids")
        fields = type(self).model_fields
        if names := [name for name in unused if getattr(self, name) != fields[name].get_default()]:
            raise PydanticCustomError(
                "target_unused",
                "{names} would not be used with {reason}; leave it out",
                {"names": ", ".join(names), "reason": "stream = 'text'" if self.url is not None else given[0]},
            )
        # Every request holds its question.
        holds_question = self.url is None or (self.body is None and self.method != "GET")
        if not holds_question:
            texts = (str(self.url), *find_texts(self.body))
            holds_question = any("question" in MARK.findall(text) for text in texts)
        if not holds_question:
            raise PydanticCustomError(
                "target_question",
                "no request would hold its question; put the mark for it, {mark}, into {where}",
                {"mark": "{{question}}", "where": "the url" if self.body is None else "the body"},
            )
        return self


def find_texts(template: object) -> Iterator[str]:
    """Yield every text of a JSON template, names of members too."""
    if isinstance(template, str):
        yield template
    elif isinstance(template, dict):
        for name, member in template.items():
            yield from find_texts(name)
            yield from find_texts(member)
    elif isinstance(template, list):
        for item in template:
            yield from find_texts(item)


def is_secret_header(name: str) -> bool:
    """Return True if the value of a header of this name is usually a secret."""
    words = re.split(r"[-_]", name.lower())
    return name.lower() in _SECRET_HEADERS or words[-1] in _SECRET_ENDS or name.lower().endswith("apikey")


def _find_text_problem(text: str) -> str | None:
    """Return what is wrong with the marks of a template."""
    for name in MARK.findall(text):
        if name in _LISTS and not MARK.fullmatch(text):
            mark = f"{{{{{name}}}}}"
            return f"the mark {mark} is a list; let it stand alone as a member of body, like {name} = '{mark}'"
        if name not in _MARKS and not name.removeprefix(METADATA).strip() == name[len(METADATA) :] != "":
            return f"unknown mark {{{{{name}}}}}; {suggest(f'{{{{{name}}}}}', _MARKS_SHOWN)}"
    if any(NAME.fullmatch(name) for name in VARIABLE.findall(text)):
        return (
            f"{cut(text, 120)!r} names a variable of the environment, and those go into headers alone, "
            "where they are kept off the record"
        )
    return None


Share = Annotated[float, Field(ge=0, le=1)]
_NotNegative = Annotated[float, Field(ge=0)]
Ending = Literal["completed", "incomplete", "failed", "gate_failed"]
Format = Literal["json", "slack", "dingtalk", "feishu"]
PASSED, MEAN_OF_PASSED, PREVIOUS_ANY = "passed", "mean_of_passed", "previous_any"
"""Baselines that are not the name of a run: the last run of the series that passed its gate or was accepted, the mean
of the last of them, and the last completed one with any decision of its gate."""
MAX_K = 100


def name_scores(suite: str) -> str:
    """Return the key of a suite's scores, which are an asset in Prefect."""
    return f"evalhouse://suite/{suite}/scores"


def explain_direction(kind: str, names: Iterable[str], metrics: Mapping[str, MetricFile]) -> str | None:
    """Return the problem of limits of a kind for metrics with another direction, else None: smallest means of metrics
    that are better when low, drops and trends of metrics that are neither better when high nor when low."""
    wrong, advice = {
        "min": ("low", "better when low; put a limit into [gate.max]"),
        "max_drop": ("neutral", "neither a drop nor a rise is worse; put a limit into [gate.min] or [gate.max]"),
    }["min" if kind == "min" else "max_drop"]
    found = [name for name in names if name in metrics and metrics[name].better == wrong]
    return f"{', '.join(found)}: {advice}" if found else None


def explain_scale(limits: Mapping[str, float], metrics: Mapping[str, MetricFile]) -> str | None:
    """Return the problem of limits that no score can reach, else None: scores of built-in metrics are from 0 to 1."""
    for name, limit in limits.items():
        if name in metrics and not metrics[name].is_own and not 0 <= limit <= 1:
            percent = f"; {limit:g} % is {limit / 100:g}" if 1 < limit <= 100 else ""
            return f"{name} is from 0 to 1, and so are its limits: got {limit:g}{percent}"
    return None


class SliceGate(_Table):
    """The limits that each slice of a run has to keep: the samples that share a value of a metadata column.

    Without any they are the limits of [gate] on means and drops.
    """

    min: dict[str, float] = Field(default={}, description="least means by metric")
    max: dict[str, float] = Field(default={}, description="most means by metric, for metrics that are better when low")
    max_drop: dict[str, _NotNegative] = Field(default={}, description="most drops against the baseline by metric")

    @field_validator("min", "max", "max_drop")
    @classmethod
    def check_directions(cls, limits: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        return refuse_direction(limits, info)


def refuse_direction(limits: dict[str, float], info: ValidationInfo) -> dict[str, float]:
    """Refuse limits of metrics whose direction or scale does not fit; raises PydanticCustomError."""
    metrics, kind = load_metrics(), str(info.field_name)
    problem = (explain_direction(kind, limits, metrics) if kind != "max" else None) or explain_scale(limits, metrics)
    if problem:
        raise PydanticCustomError("wrong_direction", "{problem}", {"problem": problem})
    return limits


class SuiteGate(_Table):
    """The limits a run has to keep, by metric, named as the options of `evalhouse gate` are."""

    against: str = Field(
        default=PASSED,
        min_length=1,
        description="baseline of max_drop: the suite's last run that passed or was accepted, mean_of_passed, "
        "previous_any, or a run's id or label",
    )
    k: int = Field(default=5, ge=1, le=MAX_K, description="how many runs mean_of_passed is the mean of")
    undecided: Literal["pass", "fail"] = Field(default="pass", description="what an undecided check does to the gate")
    max_cost: float | None = Field(default=None, ge=0, description="most dollars for the calls sent")
    max_latency_p95_ms: float | None = Field(
        default=None, gt=0, description="most milliseconds of 95 in 100 responses of the target"
    )
    cluster: str | None = Field(default=None, description="metadata column of samples that are not independent")
    min_coverage: float | None = Field(default=None, ge=0, le=1, description="least share scored, of all metrics")
    min: dict[str, float] = Field(default={}, description="least means by metric")
    max: dict[str, float] = Field(default={}, description="most means by metric, for metrics that are better when low")
    max_drop: dict[str, _NotNegative] = Field(default={}, description="most drops against the baseline by metric")
    trend: dict[str, _NotNegative] | Literal[False] = Field(
        default={}, description="most of a fall over nights by metric, else half of max_drop; false for no such check"
    )
    coverage: dict[str, Share] = Field(default={}, description="least shares scored by metric")
    by: dict[str, SliceGate] = Field(
        default={},
        description="limits for each value of a metadata column, by column; an empty one has the limits of [gate]",
    )

    @field_validator("min", "max", "max_drop", "trend")
    @classmethod
    def check_directions(
        cls, limits: dict[str, float] | Literal[False], info: ValidationInfo
    ) -> dict[str, float] | Literal[False]:
        return limits and refuse_direction(limits, info)

    @field_validator("against")
    @classmethod
    def rename_previous(cls, against: str) -> str:
        # The name of `passed` while it was the last completed run, which a gate may have refused.
        return PASSED if against == "previous" else against

    @model_validator(mode="after")
    def check_sense(self) -> "SuiteGate":
        for column, limits in self.slices.items():
            if limits == SliceGate():
                raise PydanticCustomError(
                    "empty_slices",
                    "there is nothing to check by {column}; give limits in [gate.by.{column}.min], .max or .max_drop, "
                    "or in [gate] for the whole and for each of its values",
                    {"column": column},
                )
        is_empty = not (self.min or self.max or self.max_drop or self.trend or self.coverage or self.by)
        if is_empty and self.max_cost is self.max_latency_p95_ms is self.min_coverage is None:
            raise PydanticCustomError(
                "empty_gate",
                "there is nothing to check; give max_cost, max_latency_p95_ms, min_coverage, or a limit in [gate.min], "
                "[gate.max], [gate.max_drop], [gate.trend], [gate.coverage] or [gate.by.COLUMN]",
            )
        # The default may have been written out, as in a run's config.
        if self.against != PASSED and not self.has_drops:
            raise PydanticCustomError(
                "no_drop", "there is nothing to compare; give a limit in [gate.max_drop], or leave `against` out"
            )
        return self

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that has a limit."""
        of_slices = (name for limits in self.by.values() for name in (*limits.min, *limits.max, *limits.max_drop))
        of_whole = (*self.min, *self.max, *self.max_drop, *(self.trend or ()), *self.coverage)
        return tuple(dict.fromkeys((*of_whole, *of_slices)))

    @property
    def has_drops(self) -> bool:
        """True if there is a limit on a drop, of the whole or of a slice."""
        return bool(self.max_drop) or any(limits.max_drop for limits in self.by.values())

    @property
    def slices(self) -> dict[str, SliceGate]:
        """The limits of the slices by column; the limits of the whole where a column has none."""
        whole = SliceGate(min=self.min, max=self.max, max_drop=self.max_drop)
        return {column: whole if limits == SliceGate() else limits for column, limits in self.by.items()}

    @property
    def trends(self) -> dict[str, float]:
        """The largest fall over nights, by metric: the given one, else half of what one night may drop.

        A fall that lasts is worse than a bad night, and many nights show a smaller one.
        """
        if self.trend is False:
            return {}
        return {metric: drop / 2 for metric, drop in self.max_drop.items()} | self.trend


class RefreshedTestset(_Table):
    """The refresh of a run's test set before the run: the version that was judged, the one it was made from, how many
    questions changed how, and how many proposals wait for a person. `problem` states why it was not refreshed."""

    set_hash: str | None = None
    parent_hash: str | None = None
    run_id: str | None = None
    n_questions: int = 0
    changes: dict[str, int] = {}
    n_proposals: int = 0
    n_failed: int = 0
    problem: str | None = None

    def describe(self) -> str:
        """Return it in a sentence."""
        version = f"version {self.set_hash}" if self.set_hash else "the version before"
        waiting = (
            f"; {self.n_proposals} proposal{'s' * (self.n_proposals != 1)} for a person" if self.n_proposals else ""
        )
        if self.problem is not None:
            return f"test set: not refreshed, {version} was evaluated as it was: {self.problem}{waiting}"
        changed = ", ".join(f"{n} {word}" for word, n in sorted(self.changes.items()) if word != "same")
        failed = f"; {self.n_failed} without a usable reply" if self.n_failed else ""
        if self.set_hash == self.parent_hash:
            return f"test set: {version} as before, {changed or 'nothing it rests on changed'}{failed}{waiting}"
        return f"test set: {version} made from {self.parent_hash}, {changed}{failed}{waiting}"


def make_artifact_key(what: str, name: str) -> str:
    """Return the key of an artifact of a suite or a dataset, the same for each run, so that Prefect keeps its history.

    A key has only small letters, digits and dashes; two names never share one.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    if plain != name:
        plain = f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}".strip("-")
    return f"{what}-{plain}"


class Notify(BaseModel):
    """The notification of how a run ended. The address is a secret: posting needs nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    webhook: str = Field(
        repr=False,
        description="address that is posted to; ${NAME} names a variable, ${secret:NAME} a block",
    )
    on: tuple[Ending, ...] = Field(
        default=("failed", "incomplete", "gate_failed"), description="endings that are posted"
    )
    format: Format = Field(default="json", description="json, or the message of a chat program")

    @field_validator("webhook")
    @classmethod
    def check_webhook(cls, webhook: str) -> str:
        if "$" in NAMED.sub("", webhook):
            raise PydanticCustomError(
                "webhook",
                "a variable is written ${NAME}, with letters, digits and _; what Prefect has ${secret:NAME}",
            )
        if not NAMED.search(webhook) and not is_web_address(webhook):
            raise PydanticCustomError("webhook", "give an address that begins with https:// or http://, or ${NAME}")
        return webhook

    @field_validator("on")
    @classmethod
    def check_on(cls, endings: tuple[Ending, ...]) -> tuple[Ending, ...]:
        if not endings:
            raise PydanticCustomError("no_ending", "name at least one ending, or leave `on` out")
        return endings

    def note_secrets(self, environ: Mapping[str, str]) -> None:
        """Register the address, as far as the environment gives it, as a secret that is never stored."""
        values = {name: environ.get(name, "") for name in NAMED.findall(self.webhook)}
        if all(values.values()):  # what Prefect has is noted when it is read
            note_secret(NAMED.sub(lambda match: values[match[1]], self.webhook).strip())
        for value in values.values():
            note_secret(value)


def is_web_address(text: str) -> bool:
    """Return True for an address with http or https and a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable() and " " not in text
    except ValueError:
        return False


_AGE: Final = re.compile(r"([1-9][0-9]{0,4})([dwy])")
_DAYS: Final = {"d": 1, "w": 7, "y": 365}
_ALLOWED: Final = "write a number of days, weeks or years, such as 180d, 26w or 2y"
NEVER: Final = "never"
# As long as updates without a run are looked for: an update counts as tried if it has a flow run.
_MIN_HISTORY: Final = timedelta(days=30)


def parse_age(text: str) -> timedelta:
    """Parse an age such as `180d`; raises PydanticCustomError, a ValueError, that states what is allowed."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise PydanticCustomError("age", _ALLOWED)
    return timedelta(days=int(match[1]) * _DAYS[match[2]])


def _check_age(text: str) -> str:
    parse_age(text)
    return text


def _check_history_age(text: str) -> str:
    if text != NEVER and (_AGE.fullmatch(text) is None or parse_age(text) < _MIN_HISTORY):
        allowed = f'{_ALLOWED}, at least {_MIN_HISTORY.days}d, or "{NEVER}"'
        raise PydanticCustomError("history_age", "{allowed}", {"allowed": allowed})
    return text


Age = Annotated[str, AfterValidator(_check_age)]
HistoryAge = Annotated[str, AfterValidator(_check_history_age)]


class Retention(_Table):
    """The ages at which a run of the suite is forgotten; without an age it is kept, except for Prefect's history."""

    texts: Age | None = Field(default=None, description="age at which a run's texts, requests and replies go: 180d")
    scores: Age | None = Field(default=None, description="age at which a run goes altogether, scores and all: 5y")
    prefect: HistoryAge = Field(default="30d", description="age at which Prefect's record of a served run goes: 30d")

    @model_validator(mode="after")
    def check_order(self) -> "Retention":
        if self.texts and self.scores and parse_age(self.scores) < parse_age(self.texts):
            raise PydanticCustomError("order", "scores go with the texts they rest on; let `scores` be the longer one")
        return self


def find_cutoff(age: str, now: datetime) -> datetime:
    """Return the time before which something is older than this age."""
    return now - parse_age(age)


TraceFormat = Literal["otel", "openinference", "langfuse", "langsmith", "phoenix"]
TRACES: Final = "traces"
"""The dataset's name."""
_SPAN: Final = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_HOURS: Final = {"h": 1, "d": 24, "w": 168}


def _check_span(text: str) -> str:
    if _SPAN.fullmatch(text) is None:
        raise PydanticCustomError("span", "write a number of hours, days or weeks, such as 24h, 7d or 2w")
    return text


def _check_time(text: str | None) -> str | None:
    try:
        is_utc = text is None or datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        is_utc = False
    if not is_utc:
        raise PydanticCustomError("time", "write a time in UTC, without a zone, such as 2026-03-14T02:00")
    return text


KeptBy = Literal["share", "rule", "all"]
"""The traces that a run takes: kept by the share of a receiver, by a rule of it alone, or both."""


class TraceWindow(_Table):
    """The traces that began in the time before a run. `until` is set by each run: a resumed one has the same."""

    last: Annotated[str, AfterValidator(_check_span)] = Field(
        default="24h", description="how far back from the start of a run: 24h, 7d, 2w"
    )
    service: str | None = Field(default=None, min_length=1, description="only traces with a span of this service.name")
    kept_by: KeptBy = Field(
        default="share", description="only traces of the receiver's share (or all, without one), only others, or both"
    )
    until: Annotated[str | None, AfterValidator(_check_time)] = Field(
        default=None, description="end of the time, UTC; set by each run for itself"
    )

    def find_bounds(self, now: datetime) -> tuple[datetime, datetime]:
        """Return begin and end, the end not included."""
        match = _SPAN.fullmatch(self.last)
        assert match is not None  # it is checked above
        end = datetime.fromisoformat(self.until) if self.until is not None else now
        return end - timedelta(hours=int(match[1]) * _HOURS[match[2]]), end


_LONE_BACKSLASH: Final = re.compile(r"\\(?![0-9\\g])")
PatternName = Literal["email", "phone", "card", "iban", "ip", "key"]
"""The names of the built-in patterns of redaction."""


def _check_pattern(pattern: str) -> str:
    import regex  # noqa: PLC0415  # which the redaction uses, and a run does not

    try:
        matches_nothing = regex.match(pattern, "") is not None
    except regex.error as error:
        raise PydanticCustomError("pattern", "not a regular expression: {why}", {"why": str(error)}) from None
    if matches_nothing:
        raise PydanticCustomError("empty_pattern", "this is found everywhere, in an empty text too; narrow it down")
    return pattern


class OwnPattern(_Table):
    """A regular expression and the replacement of its matches, in which \\1 is its first group."""

    pattern: Annotated[str, AfterValidator(_check_pattern)]
    replacement: str = "[redacted]"

    @field_validator("replacement")
    @classmethod
    def check_replacement(cls, replacement: str) -> str:
        if _LONE_BACKSLASH.search(replacement):
            raise PydanticCustomError("replacement", "a backslash here comes before a group's number; write two")
        return replacement


class Redaction(_Table):
    """The patterns that are removed from every text of a span before it is stored."""

    patterns: tuple[PatternName, ...] = Field(
        default=(), description=f"built-in patterns: {', '.join(get_args(PatternName))}"
    )
    own: tuple[OwnPattern, ...] = Field(default=(), description="patterns of your own, each with its replacement")


class Sampling(_Table):
    """The traces that are kept: a share of all, and in addition the ones that another rule names."""

    share: float = Field(default=1.0, ge=0, le=1, description="share of all traces, picked by their ids")
    errors: bool = Field(default=True, description="keep each trace that has a span with an error")
    slower_than_ms: float | None = Field(default=None, gt=0, description="keep each trace with a span that took longer")
    attributes: dict[str, tuple[str, ...]] = Field(
        default={}, description="keep each trace with a span whose attribute has one of these values; none means any"
    )
    wait_s: float = Field(
        default=30.0, gt=0, le=3600, description="how long the spans of a trace wait for one that keeps it"
    )


class TraceRetention(_Table):
    """The age at which received spans are deleted."""

    traces: Age | None = Field(default=None, description="age at which spans go: 30d")


class ReceiverSettings(_Table):
    """All settings of a receiver's file."""

    sampling: Sampling = Sampling()
    redaction: Redaction = Redaction()
    retention: TraceRetention = TraceRetention()
    body_mb: float = Field(default=16.0, gt=0, le=1024, description="largest request, unpacked, in MiB")
    waiting_spans: int = Field(
        default=200_000,
        ge=1,
        description="spans on disk that are not in the warehouse yet, from which on none are taken",
    )
