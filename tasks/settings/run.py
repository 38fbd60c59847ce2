"""The settings of one run: strict, typed, stored whole in `runs.config`.

Secrets are not part of it: they come from the environment when a model is made and are not stored.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from evalhouse.tasks.judge.protocol import LEXICAL, VOTED_TASKS, find_judge, is_fixed, list_jurors, parse_judges
from evalhouse.tasks.lexical.marks import BUILT_IN
from evalhouse.tasks.settings.suite import (
    TRACES,
    Notify,
    RefreshedTestset,
    SuiteGate,
    TargetSettings,
    TraceFormat,
    TraceWindow,
    is_web_address,
    make_artifact_key,
)
from evalhouse.warehouse.messages import name_setting
from evalhouse.warehouse.sample_data import SAMPLE

# --- how an answer cites

GROUPS: Final = ("rank", "rank0", "id", "text")
_CITING: Final = frozenset(GROUPS[:3])


@cache
def compile_patterns(patterns: tuple[str, ...]) -> Sequence[re.Pattern[str]]:
    """Return the compiled patterns, by default the built-in ones; raises ValueError for an invalid one."""
    compiled_patterns = []
    for pattern in patterns or BUILT_IN:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{pattern!r} is not a regular expression: {error}; a backslash is written plainly in '…'"
            ) from None
        names = compiled.groupindex.keys()
        if not names & _CITING:
            raise ValueError(f"{pattern!r} names nothing that is cited; write (?P<rank>\\d+) or (?P<id>…) into it")
        if unknown := sorted(names - set(GROUPS)):
            raise ValueError(f"{pattern!r} has a group {unknown[0]!r}; allowed are {', '.join(GROUPS)}")
        if compiled.fullmatch(""):
            raise ValueError(f"{pattern!r} matches the empty text; write what a mark begins with into it")
        compiled_patterns.append(compiled)
    return compiled_patterns


# --- settings

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)
_SPAN = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})m(?:in)?)?(?:(\d{1,6})s)?", re.ASCII)


def find_deadline(written: str, now: datetime) -> datetime:
    """Return the deadline: the next such time of day after `now` in its zone, or a time span after `now`.

    Raises PydanticCustomError, a ValueError, for any other text.
    """
    if time := _TIME.fullmatch(written):
        today = now.replace(hour=int(time[1]), minute=int(time[2]), second=0, microsecond=0)
        return today if today > now else today + timedelta(days=1)
    span = _SPAN.fullmatch(written)
    if span is None or not any(span.groups()):
        raise PydanticCustomError(
            "not_a_deadline", "not a deadline; write a local time like 06:00, or a time from now like 8h or 90m"
        )
    hours, minutes, seconds = (int(part or 0) for part in span.groups())
    return now + timedelta(hours=hours, minutes=minutes, seconds=seconds)


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
TOP: Final = "the top of the file, above the first table"
LIMITS: Final = "[limits]"


@dataclass(frozen=True, kw_only=True)
class Where:
    """The place and the meaning of a setting; a field of `RunSettings` without one has these defaults.

    `place` is its table in a suite, None for a setting that is made for each run. `environment` is False for the
    subject of a run: it is given for each run, for a variable would be forgotten and change the results. `is_path` is
    relative to a suite's folder. `varies`: a variant of a suite may have another. `judges`: of no use to a run that
    judges nothing; `belongs_to_run`: of no use to one that judges the same samples again. `compares`: `prompts compare`
    takes it from its flags if it is given there, else from the reviewed run, or always from flags.
    """

    place: str | None = TOP
    environment: bool = True
    is_path: bool = False
    varies: bool = False
    judges: bool = False
    belongs_to_run: bool = False
    compares: Literal["given", "always"] | None = None


AUTO: Final = "auto"
"""The language of prompts that is settled by the texts of the dataset."""


class RunSettings(BaseModel):
    """The settings of a run. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    dataset: Annotated[str, Where(environment=False, is_path=True)] = "sample"
    mapping: Annotated[dict[str, str], Where(place="[map]", environment=False, varies=True)] = {}
    encoding: Annotated[str | None, Where(environment=False)] = Field(
        default=None, description="encoding of a text file; None finds it where it is certain"
    )
    turns: Annotated[Literal["all", "last"], Where(environment=False)] = Field(
        default="all", description="which turns of a row that is a whole conversation are samples"
    )
    judge_thoughts: Annotated[bool, Where(environment=False)] = Field(
        default=False, description="judge the bot's thoughts (such as <think>…</think>) as part of its answers"
    )
    format: Annotated[TraceFormat | None, Where(environment=False)] = Field(
        default=None, description="tool whose traces the dataset holds; None for a dataset of samples"
    )
    traces: Annotated[TraceWindow | None, Where(place="[traces]", environment=False)] = Field(
        default=None, description="which received traces are judged, with the dataset `traces`"
    )
    limit: Annotated[int | None, Where(place=LIMITS)] = Field(
        default=None, ge=1, le=2**63 - 1, description="judge only the first N samples"
    )
    sample_budget: Annotated[int | None, Where(place=LIMITS, judges=True, belongs_to_run=True)] = Field(
        default=None, ge=10, description="judge so many samples, picked with known probabilities, for all"
    )
    sample_seed: Annotated[int, Where(place=LIMITS, judges=True, belongs_to_run=True)] = Field(
        default=0, ge=0, description="which of them are picked: another number picks others"
    )
    judge: Annotated[str, Where(judges=True, compares="given")] = Field(
        default=LEXICAL, description="the default judge, and behind it judges of steps, as in `J,classify=J2`"
    )
    embeddings: Annotated[str, Where(judges=True)] = "hashing"
    language: Annotated[str, Where(compares="given")] = Field(
        default="en", description="language of the prompts; auto is zh for Chinese texts and en for all others"
    )
    prompts: Annotated[str | None, Where(is_path=True, judges=True)] = Field(
        default=None, description="folder whose prompt files override ours"
    )
    metrics: Annotated[tuple[str, ...], Where(judges=True)] = ()
    metric_files: Annotated[str | None, Where(is_path=True, judges=True)] = Field(
        default=None, description="folder with metric SQL files of your own"
    )
    metric_settings: Annotated[
        dict[str, dict[str, float]], Where(place="[metric_settings]", environment=False, judges=True)
    ] = {}
    suite: Annotated[str | None, Where(place=None, environment=False)] = None
    suite_hash: Annotated[str | None, Where(place=None, environment=False)] = None
    file_limits: Annotated[tuple[int | None, int | None] | None, Where(place=None, environment=False)] = Field(
        default=None, description="the suite file's own limit and budget of samples, from which options may differ"
    )
    upstream: Annotated[str | None, Where(place=None, environment=False)] = Field(
        default=None, description="knowledge base or asset whose updates start the suite"
    )
    failed_traces: Annotated[int | None, Where(place=None, environment=False, belongs_to_run=True)] = Field(
        default=None, description="traces of the window that ended with an error and no answer"
    )
    refreshed: Annotated[RefreshedTestset | None, Where(place=None, environment=False, belongs_to_run=True)] = Field(
        default=None, description="what became of the suite's test set before the run"
    )
    target: Annotated[
        TargetSettings | None, Where(place="[target]", environment=False, varies=True, belongs_to_run=True)
    ] = Field(default=None, description="the application that is asked for answers")
    variants: Annotated[
        dict[str, dict[str, Any]], Where(place="[variants.NAME]", environment=False, belongs_to_run=True)
    ] = Field(default={}, description="settings of each variant that a suite asks after itself, whole, by their names")
    variant: Annotated[str | None, Where(place=None, environment=False)] = Field(
        default=None, description="the variant of the suite that is asked; None for the suite itself"
    )
    has_answers_apart: Annotated[bool, Where(place=None, environment=False)] = Field(
        default=False, description="the answers are in another column than the suite names for itself"
    )
    night: Annotated[str | None, Where(place=None, environment=False, belongs_to_run=True)] = Field(
        default=None, description="run of the suite itself after which its variant is asked"
    )
    responses: Annotated[str | None, Where(place=None, environment=False, belongs_to_run=True)] = Field(
        default=None, description="run whose responses are judged, instead of asking again"
    )
    answers_of: Annotated[str | None, Where(place=None, environment=False, belongs_to_run=True)] = Field(
        default=None,
        description="suite with its variant, or dataset, of these responses; None if it equals that of the run",
    )
    only_affected: Annotated[bool, Where(place="[trigger]", environment=False, belongs_to_run=True)] = Field(
        default=False, description="ask the target only where the last contexts cite a changed document"
    )
    noise_share: Annotated[float, Where(place="[noise] as `share`", judges=True, belongs_to_run=True)] = Field(
        default=0.0, ge=0, le=1, description="share of unchanged samples that are judged again to measure noise"
    )
    gate: Annotated[SuiteGate | None, Where(place="[gate]", environment=False, judges=True, belongs_to_run=True)] = (
        Field(default=None, description="limits that the run of a suite has to keep")
    )
    notify: Annotated[Notify | None, Where(place="[notify]", environment=False, judges=True, belongs_to_run=True)] = (
        Field(default=None, description="where the run of a suite posts how it ended")
    )
    label: Annotated[str | None, Where(varies=True, belongs_to_run=True)] = None
    href: Annotated[str | None, Where(varies=True)] = None
    tags: Annotated[tuple[str, ...], Where()] = ()
    concurrency: Annotated[int, Where(place=LIMITS, compares="given")] = Field(
        default=16, ge=1, le=4096, description="requests in flight at once"
    )
    rpm: Annotated[int | None, Where(place=LIMITS, compares="given")] = Field(
        default=None, ge=1, description="requests per minute"
    )
    tpm: Annotated[int | None, Where(place=LIMITS, compares="given")] = Field(
        default=None, ge=1, description="tokens per minute, of requests and replies together"
    )
    budget_usd: Annotated[float | None, Where(place=LIMITS, judges=True, compares="always")] = Field(default=None, gt=0)
    prices: Annotated[str | None, Where(is_path=True, judges=True, compares="given")] = Field(
        default=None, description="file with prices of your own"
    )
    timeout_s: Annotated[float | None, Where(place=LIMITS, compares="given")] = Field(
        default=None, gt=0, description="seconds one request may take; 60, and 600 on this machine or its network"
    )
    attempts: Annotated[int, Where(place=LIMITS, compares="given")] = Field(
        default=5, ge=1, le=50, description="times one question is asked before it is given up"
    )
    max_wait_s: Annotated[float, Where(place=LIMITS, compares="given")] = Field(
        default=3600.0, gt=0, description="seconds to wait for an endpoint that asks to and lets nothing through"
    )
    run_timeout_s: Annotated[float | None, Where(place=LIMITS, belongs_to_run=True)] = Field(
        default=None, gt=0, description="seconds a flow run may take before Prefect ends it; the run can be resumed"
    )
    task_timeout_s: Annotated[float | None, Where(place=LIMITS, belongs_to_run=True)] = Field(
        default=None, gt=0, description="seconds one step may take for a shard before Prefect ends its task run"
    )
    temperature: Annotated[float | None, Where(compares="given")] = Field(
        default=None, ge=0, le=2, description="None sends none: the model has its own"
    )
    reasoning_effort: Annotated[Effort | None, Where(judges=True, compares="given")] = Field(
        default=None, description="how long a model thinks before it replies; None leaves it to the model"
    )
    votes: Annotated[int, Where(judges=True)] = Field(
        default=1, ge=1, le=99, description="times classify, attribute and rank are asked; the majority counts"
    )
    max_tokens: Annotated[int | None, Where(place=LIMITS)] = Field(default=None, ge=1)
    request_tokens: Annotated[int, Where(place=LIMITS)] = Field(
        default=24_000, ge=500, description="data tokens one request holds before it is split"
    )
    context_window: Annotated[int | None, Where(place=LIMITS, compares="given")] = Field(
        default=None, ge=500, description="tokens that the model's context window holds, request and reply together"
    )
    regenerated_questions: int = Field(default=3, ge=1, le=20, description="questions an answer's relevancy rests on")
    contexts_role: Literal["authoritative", "supplementary"] = Field(
        default="authoritative", description="whether contexts hold the truth or add to it; a sample may say otherwise"
    )
    citations: Annotated[tuple[str, ...], Where(environment=False, varies=True)] = Field(
        default=(), description="regular expressions that find what answers cite; none: the built-in ones"
    )
    citations_from: Annotated[Literal[0, 1], Where(varies=True)] = Field(
        default=1, description="the number by which answers cite the first context"
    )
    contexts_alone: bool = Field(
        default=False,
        description="judge each context in a separate request; none is found to support together",
    )
    plan: Annotated[Literal["separate", "fused"], Where(judges=True)] = Field(
        default="separate",
        description="whether classify, attribute and rank ask by themselves or in one request",
    )
    logprobs: bool = Field(
        default=False, description="grade by the probabilities of a scale's numbers where the endpoint gives them"
    )
    batch: Annotated[bool, Where(judges=True)] = Field(
        default=False,
        description="send requests through the provider's batch API: answered within a day, at a discount",
    )
    deadline: Annotated[str | None, Where(judges=True)] = Field(
        default=None, description="local time, or time from now, from which nothing waits for a batch any more"
    )
    fresh: Annotated[bool, Where(compares="always")] = Field(
        default=False, description="ask again although a reply is stored"
    )
    pool: str | None = Field(default=None, description="Prefect work pool whose workers judge the samples")
    part_size: int = Field(default=500, ge=1, description="samples that one worker is given at once")
    shard_size: int = Field(
        default=128, ge=1, le=4096, validate_default=True, description="samples that one task run works on"
    )
    reports: Annotated[str | None, Where(is_path=True, judges=True, belongs_to_run=True)] = Field(
        default=None, description="folder into which the report of a run is written at its end"
    )
    ui_url: Annotated[str | None, Where(judges=True, belongs_to_run=True)] = Field(
        default=None, description="address at which people open `evalhouse ui`, for links from Prefect"
    )
    warehouse: Annotated[str, Where(is_path=True)] = "duckdb:///evalhouse.duckdb"

    @property
    def runs_before(self) -> tuple[str, ...]:
        """The run that refreshed the test set before this one, if any: the budget is for both."""
        return (self.refreshed.run_id,) if self.refreshed is not None and self.refreshed.run_id else ()

    @property
    def is_asked(self) -> bool:
        """True if answers and contexts come from a target or another run, and not from the dataset."""
        return self.target is not None or self.responses is not None

    @property
    def has_other_answers(self) -> bool:
        """True if tool calls and rows of the dataset belong to other answers: a bot is asked, or a variant reads its
        answers from another column."""
        return self.is_asked or self.has_answers_apart

    @property
    def thoughts(self) -> Literal["apart", "within", "beside"]:
        """The handling of thoughts in the dataset; a column of them belongs to the answers of the suite itself."""
        if not self.judge_thoughts:
            return "apart"
        return "within" if self.has_answers_apart else "beside"

    @property
    def suite_name(self) -> str | None:
        """The name of its suite, of a variant with the variant's behind it, as that of its run."""
        return self.suite if self.variant is None else f"{self.suite}/{self.variant}"

    @property
    def prefect_tags(self) -> list[str]:
        """The tags by which the flow run and task runs of a run are found: its suite, judge, dataset and tags."""
        suite = [self.suite] if self.suite else []
        suite += [f"variant: {self.variant}"] if self.variant else []
        return [*suite, f"judge: {self.judge}", f"dataset: {self.dataset}", *self.tags]

    def name_artifact(self, what: str) -> str:
        """Return the key of one of the run's artifacts in Prefect: that of its suite, or without one of its dataset."""
        return make_artifact_key(what, self.suite_name or Path(self.dataset).stem)

    @field_validator("shard_size")
    @classmethod
    def fit_into_part(cls, shard_size: int, info: ValidationInfo) -> int:
        return min(shard_size, int(info.data.get("part_size", shard_size)))

    @field_validator("judge", mode="before")
    @classmethod
    def write_judges(cls, given: object) -> object:
        if not isinstance(given, str | Mapping):
            return given
        try:
            names = parse_judges(given)
        except ValueError as error:
            raise PydanticCustomError("judges", "{why}", {"why": str(error)}) from None
        return str(replace(names, default=names.default or LEXICAL))

    @field_validator("deadline")
    @classmethod
    def check_deadline(cls, deadline: str | None) -> str | None:
        if deadline is not None:
            find_deadline(deadline, datetime.now().astimezone())
        return deadline

    @field_validator("citations")
    @classmethod
    def check_citations(cls, citations: tuple[str, ...]) -> tuple[str, ...]:
        try:
            compile_patterns(citations)
        except ValueError as error:
            raise PydanticCustomError("bad_pattern", "{why}", {"why": str(error)}) from None
        return citations

    @field_validator("ui_url")
    @classmethod
    def check_ui_url(cls, ui_url: str | None) -> str | None:
        if ui_url is not None and (not is_web_address(ui_url) or "?" in ui_url or "@" in ui_url):
            raise PydanticCustomError(
                "ui_url", "give the address that begins with http:// or https://, without a token or a password"
            )
        return ui_url

    @field_validator("plan")
    @classmethod
    def check_plan(cls, plan: str, info: ValidationInfo) -> str:
        if plan != "separate" and info.data.get("contexts_alone"):
            raise PydanticCustomError(
                "joined_contexts",
                "one request for all contexts is the opposite of one for each (contexts_alone); choose one of them",
            )
        return plan

    @field_validator("votes")
    @classmethod
    def check_votes(cls, votes: int, info: ValidationInfo) -> int:
        if votes % 2 == 0:
            raise PydanticCustomError("even_votes", "an even number of votes can tie; give an odd one")
        judges = {find_judge(info.data.get("judge", ""), task) for task in VOTED_TASKS}
        if votes > 1 and any(len(list_jurors(judge)) > 1 for judge in judges):
            raise PydanticCustomError("votes_of_jury", "each judge of a jury has one vote; leave votes out")
        if votes > 1 and all(map(is_fixed, judges)):
            who = "the lexical judge" if judges == {LEXICAL} else " and ".join(sorted(judges))
            raise PydanticCustomError(
                "equal_votes",
                "{who} is deterministic, so more votes change nothing; name a model with {judge}, or take one vote",
                {"who": who, "judge": name_setting("judge")},
            )
        return votes


WHERE: Final[Mapping[str, Where]] = {
    name: next((part for part in field.metadata if isinstance(part, Where)), Where())
    for name, field in RunSettings.model_fields.items()
}
"""The place of each setting, in the model's order."""


def read_settings(values: Mapping[str, Any]) -> RunSettings:
    """Return the settings that are stored in a run's `config`; raises ValidationError.

    They are read as JSON, because there a list becomes a tuple and a text never a number.
    """
    return RunSettings.model_validate_json(json.dumps(values, ensure_ascii=False))


def list_settings(chosen: Callable[[Where], object]) -> tuple[str, ...]:
    """Return the names of the settings whose place is chosen."""
    return tuple(name for name, where in WHERE.items() if chosen(where))


def list_night(settings: RunSettings, night: str | None = None) -> list[RunSettings]:
    """Return the settings of a suite's variants; `night` is the run of the suite itself after which they are asked.

    A gate, a notification and a label belong to the suite itself.
    """
    left_out: dict[str, Any] = {
        "variants": {},
        "night": night,
        "gate": None,
        "notify": None,
        "label": None,
        "href": None,
    }
    whole = {**settings.model_dump(mode="json"), **left_out}
    return [read_settings({**whole, **changes, "variant": name}) for name, changes in settings.variants.items()]


def leave_out(settings: RunSettings, chosen: Callable[[Where], object]) -> RunSettings:
    """Return the settings with the defaults in place of those whose place is chosen."""
    defaults = {name: RunSettings.model_fields[name].get_default() for name in list_settings(chosen)}
    return settings.model_copy(update=defaults)


def is_sample(dataset: object) -> bool:
    """Return True if a dataset's name means the one of evalhouse; a file called `sample` takes precedence."""
    return dataset == SAMPLE and not Path(SAMPLE).exists()


def locate_file(dataset: str) -> Path:
    """Return the file in a dataset's name, which may name a sheet or a table in it: `FILE#TABLE`."""
    path = Path(dataset)
    return path if path.exists() else Path(dataset.rpartition("#")[0] or dataset)


def is_traces(dataset: object) -> bool:
    """Return True if a dataset's name means the received traces; a file called `traces` takes precedence."""
    return dataset == TRACES and not Path(TRACES).exists()
