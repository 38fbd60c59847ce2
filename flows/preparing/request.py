"""The request for a run: its settings and its trigger, and the row of `runs` that the run begins with.

Settings come from flags, then `EVALHOUSE_*` variables, then a suite, then defaults, with where each value came from. A
variable is named after the flag that it replaces: `EVALHOUSE_TIMEOUT` is `--timeout`.
"""

import difflib
import hashlib
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_origin

from pydantic import ValidationError

from evalhouse.flows.errors import SettingsError, explain
from evalhouse.tasks.judge.protocol import LEXICAL, JudgeNames, parse_judges
from evalhouse.tasks.settings.run import WHERE, RunSettings, is_sample, list_night, read_settings
from evalhouse.tasks.settings.suite import Notify, SuiteGate, TargetSettings
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import (
    Finding,
    Verdict,
    hide_credentials,
    name_flag,
    name_setting,
    quote_value,
    suggest,
)
from evalhouse.warehouse.rows.runs import RunKind, RunRow, find_run, make_run_id, now_utc, refuse_forgotten
from evalhouse.warehouse.sample_data import SAMPLE
from evalhouse.warehouse.steps import list_calls
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    import polars as pl

    from evalhouse.flows.preparing.suites import Suite
    from evalhouse.tasks.datasets.formats import DatasetSource
    from evalhouse.tasks.datasets.read import StagedDataset
    from evalhouse.warehouse.metric_files import Plan

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("flows", "prompts", "tasks", "warehouse")
_SUFFIXES = (".py", ".sql", ".yaml")

NO_JUDGE = "none"
"""The value of `runs.judge` for a run that only collects."""
TriggerKind = Literal["manual", "schedule", "event"]


@dataclass(frozen=True, kw_only=True)
class Update:
    """One announced update of a knowledge base. `changed` are ids of documents; `occurred_at` is UTC without a zone."""

    event_id: str
    version: str | None
    changed: tuple[str, ...]
    occurred_at: datetime


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """The cause of a run; for an event the knowledge base and all updates that this run answers, oldest first.

    `flow_run_id` is Prefect's flow run that the run is within, on record from the beginning: until the run has one of
    its own, nothing else says which of them a killed process worked on.
    """

    kind: TriggerKind = "manual"
    flow_run_id: str | None = None
    kb_name: str | None = None
    updates: tuple[Update, ...] = ()

    @property
    def kb_version(self) -> str | None:
        """The version of the newest update that named one."""
        return next((update.version for update in reversed(self.updates) if update.version is not None), None)

    @property
    def changed(self) -> tuple[str, ...]:
        """The ids of all changed documents, each once, in the order they were announced."""
        return tuple(dict.fromkeys(document for update in self.updates for document in update.changed))


BY_HAND = Trigger()


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run to be started or resumed, and its trigger.

    `source` are samples for which `settings.dataset` is just a name; `resumed` is the run that is resumed, `holds` the
    id of a run that no other process may take up meanwhile; `wait_s` is how long to wait for the end of another run of
    the same suite, unless the caller `holds_suite`. A run that `is_served` is resumed by `evalhouse serve` when an
    outage has interrupted it.
    """

    settings: RunSettings
    kind: RunKind = "evaluation"
    trigger: Trigger = BY_HAND
    source: "str | pl.DataFrame | DatasetSource | None" = None
    resumed: RunRow | None = None
    holds: str | None = None
    wait_s: float = 0.0
    holds_suite: bool = False
    is_served: bool = False


def find_unfinished(
    wanted: str,
    *,
    warehouse_url: str,
    changes: Mapping[str, object] | None = None,
    wait_s: float = 0.0,
    is_served: bool = False,
) -> RunRequest:
    """Return the request to resume a run with its own settings but for `changes`.

    Raises WarehouseError for a run that is resumed with its parent, or by another command.
    """
    warehouse = Warehouse(warehouse_url)
    run = find_run(warehouse, wanted)
    if run.kind == "noise":
        raise WarehouseError(
            f"run {run.run_id} measures the noise of {run.parent_run_id}: `evalhouse resume {run.parent_run_id}` "
            "continues it if it was stopped, and the next run measures it again"
        )
    if run.kind == "repeats":
        raise WarehouseError(
            f"run {run.run_id} asks questions of {run.parent_run_id} again; `evalhouse resume {run.parent_run_id}` "
            "resumes both"
        )
    if run.kind == "replay":
        raise WarehouseError(
            f"run {run.run_id} is of kind replay; stored answers are used when its command is given again: "
            f"evalhouse replay {run.replayed_base} {run.parent_run_id}"
        )
    if run.kind in ("prefer", "testset"):
        raise WarehouseError(f"run {run.run_id} is of kind {run.kind}; `evalhouse resume {run.run_id}` resumes it")
    if run.kind in ("prompts", "benchmark"):
        raise WarehouseError(
            f"run {run.run_id} is of kind {run.kind}; give its command again: stored answers are not asked for twice"
        )
    refuse_forgotten(warehouse, run, "start a new run: nothing is left to be resumed")
    settings = read_settings({**run.config, **(changes or {}), "warehouse": warehouse_url})
    return RunRequest(
        settings=settings, kind=run.kind, resumed=run, holds=run.run_id, wait_s=wait_s, is_served=is_served
    )


def make_row(request: RunRequest, plan: "Plan", staged: "StagedDataset") -> RunRow:
    """Return the row of an evaluation or a collection that begins now."""
    settings, trigger = request.settings, request.trigger
    begun = begin_run(
        request.kind,
        settings,
        parent=settings.responses,
        tags=settings.tags,
        n_samples=count_judged(settings, staged),
    )
    return replace(
        begun,
        night=settings.night or (begun.run_id if settings.variants else None),
        suite=settings.suite,
        variant=settings.variant,
        suite_hash=settings.suite_hash,
        label=settings.label,
        href=settings.href,
        dataset=settings.dataset,
        dataset_hash=staged.content_hash,
        judge=NO_JUDGE if request.kind == "collection" else settings.judge,
        embeddings=settings.embeddings if "similarity" in list_calls(plan.steps) else None,
        metrics=tuple(metric.name for metric in plan.metrics),
        trigger=trigger.kind,
        flow_run_id=trigger.flow_run_id,
        kb_name=trigger.kb_name,
        kb_version=trigger.kb_version,
        kb_changed=trigger.changed or None,
    )


def count_judged(settings: RunSettings, staged: "StagedDataset") -> int:
    """Return how many samples of a dataset are judged: all, or as many as there is a budget for."""
    return min(staged.n_samples, settings.sample_budget or staged.n_samples)


def begin_run(
    kind: RunKind,
    settings: RunSettings,
    *,
    n_samples: int,
    parent: str | None = None,
    tags: Sequence[str] = (),
    repeats: RunRow | None = None,
) -> RunRow:
    """Return the row of a run of any kind that begins now, with the columns that every kind has.

    `repeats` is a run whose other columns (dataset, suite, metrics, trigger) it takes over; `parent` is a run's id.
    """
    run_id = make_run_id(started_at := now_utc())
    whole = repeats or RunRow(
        run_id="", judge=settings.judge, language=settings.language, started_at=started_at, config={},
        code_version=find_code_version(),
    )  # fmt: skip
    return replace(
        whole,
        run_id=run_id,
        kind=kind,
        parent_run_id=parent,
        label=None,
        tags=tuple(tags),
        config=settings.model_dump(mode="json"),
        status="running",
        started_at=started_at,
        finished_at=None,
        n_samples=n_samples,
        flow_run_id=None,
        problem=None,
        gate=None,
    )


@cache
def find_code_version() -> str:
    """Return for example `0.1.0+3f2a9c1b7e04`: the hash is over all Python, SQL and prompt files."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in _FOLDERS for path in (_ROOT / folder).rglob("*") if path.suffix in _SUFFIXES):
        digest.update(f"{path.relative_to(_ROOT).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return f"{version('evalhouse')}+{digest.hexdigest()[:12]}"


CheckResult = tuple[Verdict, str]
_PREFIX = "EVALHOUSE_"
_LISTS = tuple(name for name, field in RunSettings.model_fields.items() if get_origin(field.annotation) is tuple)
# What is given by name: a flag adds to what the suite has, or replaces its entry of the same name.
_BY_NAME = tuple(name for name, field in RunSettings.model_fields.items() if get_origin(field.annotation) is dict)
# Variables that are not settings of a run: where journals are (`evalhouse.warehouse.location`), and who may see pages
# and send traces (`evalhouse.flows.ui.app`, `evalhouse.flows.receiver`, which a run does not import).
_OTHER_VARIABLES = ("EVALHOUSE_STATE_DIR", "EVALHOUSE_UI_TOKEN", "EVALHOUSE_RECEIVE_TOKEN", "EVALHOUSE_PLAIN_SERVER")
# How the origin of a suite's value begins; the name of its file follows.
SUITE_ORIGIN = "suite "
_DEFAULT_MODEL = "openai:gpt-4.1-mini"
_DEFAULT_EMBEDDINGS = "openai:text-embedding-3-small"


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """Settings and, by name, where each came from: a flag, a variable, `suite FILE` or `default`."""

    settings: RunSettings
    origins: Mapping[str, str]

    @property
    def judge_was_chosen(self) -> bool:
        """Return whether a person named the judge, rather than its being what is at hand."""
        return not self.origins["judge"].startswith("default")


def resolve_settings(flags: Mapping[str, Any], *, suite: "Suite | None" = None) -> Resolved:
    """Merge flags (None where not given) with the environment and a suite; raises SettingsError."""
    of_suite = suite.values if suite else {}
    values: dict[str, Any] = {}
    origins = dict.fromkeys(RunSettings.model_fields, "default")
    for name in RunSettings.model_fields:
        if name == "judge":
            continue
        variable = find_variable(name)
        text = os.environ.get(variable) if variable else None
        if flags.get(name) not in (None, (), {}):
            flag = flags[name]
            # `--temperature` alone is a text, because `none` is a value of it.
            is_text = name == "temperature" and isinstance(flag, str)
            values[name], origins[name] = _parse_text(name, flag) if is_text else flag, find_flag(name)
        elif text and variable:
            values[name], origins[name] = _parse_text(name, text), variable
        elif name in of_suite and suite:
            values[name], origins[name] = of_suite[name], f"{SUITE_ORIGIN}{suite.path.name}"
        if name in _BY_NAME and name in values and of_suite.get(name):
            # Both together; where both have an entry the flag's counts, of tables each of their entries.
            merged = dict(of_suite[name])
            for key, value in values[name].items():
                merged[key] = {**merged[key], **value} if isinstance(merged.get(key), Mapping) else value
            values[name] = merged
    values["judge"], origins["judge"] = _resolve_judges(flags, suite, dataset=values.get("dataset"))
    address = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
    # Other endpoints may have no embedding model.
    is_openai = not address or "//api.openai.com" in address
    if "embeddings" not in values and values["judge"].startswith("openai:") and is_openai:
        values["embeddings"], origins["embeddings"] = _DEFAULT_EMBEDDINGS, "default beside an openai: judge"
    return Resolved(settings=validate_settings(values, origins), origins=origins)


def resolve_suite(
    suite: "Suite", *, flags: Mapping[str, Any], trigger: Trigger = BY_HAND, variant: str | None = None
) -> Resolved:
    """Return the settings of a run of the suite, or of one of its variants alone; raises SettingsError.

    Only a run that answers an update may ask about the affected documents alone: all others are complete.
    """
    resolved = resolve_settings(flags, suite=suite)
    settings, origins = resolved.settings, dict(resolved.origins)
    if options := flags.get("mapping"):
        # An option is for all: a variant keeps its own columns alone, and gives them up too if it is asked alone.
        of_file, changed = suite.values.get("mapping") or {}, {}
        # A suite that names no column of answers reads these alone: its tool calls and thoughts are theirs.
        usual = of_file.get("answer", "answer" if settings.variants else options.get("answer"))
        for name, changes in settings.variants.items():
            of_variant = changes.get("mapping", {})
            own = {field: column for field, column in of_variant.items() if column != of_file.get(field)}
            if "has_answers_apart" in changes:  # it names its answers, maybe by the suite's column
                own["answer"] = of_variant["answer"]
            mapping = {**settings.mapping, **own, **(options if name == variant else {})}
            is_apart = mapping.get("answer", usual) != usual
            changed[name] = {**changes, "mapping": mapping, "has_answers_apart": is_apart} if of_variant else changes
        is_apart = options.get("answer", usual) != usual
        settings = settings.model_copy(update={"variants": changed, "has_answers_apart": is_apart})
    if variant is not None:
        variants = {of_variant.variant: of_variant for of_variant in list_night(settings)}
        if variant not in variants:
            known = (
                suggest(variant, list(settings.variants), otherwise="it has") if settings.variants else "it has none"
            )
            raise SettingsError(
                f"--variant got {variant!r}, which {suite.path.name} has no [variants.{variant}] for; {known}"
            )
        # Alone it is named and notified of as any run is.
        given = {name: flags[name] for name in ("label", "href") if flags.get(name)}
        settings = variants[variant].model_copy(update={"notify": settings.notify, **given})
    elif settings.variants and settings.responses is not None:  # the answers of one bot
        settings = settings.model_copy(update={"variants": {}})
    if suite.trigger is not None and suite.trigger.only_affected and trigger.kind == "event":
        settings = settings.model_copy(update={"only_affected": True})
        origins["only_affected"] = f"{SUITE_ORIGIN}{suite.path.name}"
    return Resolved(settings=settings, origins=origins)


def _resolve_judges(flags: Mapping[str, Any], suite: "Suite | None", *, dataset: object) -> tuple[str, str]:
    """Return the text of the judges, and where it came from: the first that names a default judges all other steps."""
    names, origins = JudgeNames(), []
    suite_origin = f"{SUITE_ORIGIN}{suite.path.name}" if suite else ""
    variable = "EVALHOUSE_JUDGE"
    for given, origin in (
        (flags.get("judge"), find_flag("judge")),
        (os.environ.get(variable) or None, variable),
        (suite.values.get("judge") if suite else None, suite_origin),
    ):
        if given is not None and names.default is None:
            try:
                names = names.lay_over(parse_judges(given))
            except ValueError as error:
                raise SettingsError(f"{origin}: got {quote_value(given, 200)}; {error}") from None
            origins.append(origin)
    if names.default is not None:
        return str(names), ", ".join(origins)
    default, why = LEXICAL, "no OPENAI_API_KEY is set"
    if is_sample(dataset):
        # The first command that a newcomer types costs nothing, even with a key.
        why = f"the dataset is {SAMPLE!r}"
    elif os.environ.get("OPENAI_API_KEY"):
        default, why = _DEFAULT_MODEL, "OPENAI_API_KEY is set"
    return str(replace(names, default=default)), ", ".join([f"default, because {why}", *origins])


def resolve_changes(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were given, checked, for a run that has its other settings. Raises SettingsError."""
    values = {name: value for name, value in flags.items() if value is not None}
    settings = validate_settings(values, {name: find_flag(name) for name in values})
    return {name: getattr(settings, name) for name in values}


def check_resumable(run: RunRow, changes: Mapping[str, Any], settable: Collection[str]) -> None:
    """Raise SettingsError for a run that has completed, and for `changes` that are not `settable`."""
    if run.status == "completed":
        raise SettingsError(f"run {run.run_id} has completed: nothing is left to be resumed")
    if odd := [find_flag(name) for name in changes if name not in settable]:
        raise SettingsError(f"{', '.join(odd)}: a run of kind {run.kind} has no such setting")


def validate_settings(values: Mapping[str, Any], origins: Mapping[str, str]) -> RunSettings:
    """Check values against the settings' types and bounds; raises SettingsError with every problem."""
    places = {name: name if origin.startswith("default") else origin for name, origin in origins.items()}
    try:
        settings = RunSettings.model_validate(dict(values), strict=False)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            name, message = str(problem["loc"][0]), str(problem["msg"])
            came = f"got {quote_value(problem['input'], 200)}; {message[:1].lower()}{message[1:]}"
            problems.append(f"{places.get(name, name)}: {came}")
        raise SettingsError("; ".join(problems)) from None
    endless = [name for name, value in settings if isinstance(value, float) and math.isinf(value)]
    if endless:
        raise SettingsError("; ".join(f"{places.get(name, name)}: got inf; give a finite number" for name in endless))
    return settings


def find_flag(name: str) -> str:
    """Return what the caller writes to set this: a flag, or an argument of `evaluate`."""
    return name_setting(name).removesuffix("=")


def find_variable(name: str) -> str | None:
    """Return the environment variable of a setting; None if only flags set it."""
    if not WHERE[name].environment:
        return None
    flag = name_flag(name).removeprefix("--") if name not in _LISTS else name
    return f"{_PREFIX}{flag.upper().replace('-', '_')}"


def find_unknown_variables() -> dict[str, str | None]:
    """Return `EVALHOUSE_*` variables that set nothing, each with the one that was probably meant."""
    settings = [variable for name in RunSettings.model_fields if (variable := find_variable(name))]
    variables = [*settings, *_OTHER_VARIABLES]
    unknown = sorted(name for name in os.environ if name.startswith(_PREFIX) and name not in variables)
    return {name: next(iter(difflib.get_close_matches(name, variables, n=1, cutoff=0.8)), None) for name in unknown}


def parse_pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """Return `a=b` texts as a dictionary; raises SettingsError for a text without `=` or a name given twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator or not name or not value:
            raise SettingsError(f"{option} got {text!r}; write NAME=VALUE")
        if name in pairs:
            raise SettingsError(f"{option} got {name!r} twice: {pairs[name]!r} and {value!r}")
        pairs[name] = value
    return pairs


def parse_metric_settings(texts: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return `metric.parameter=number` texts by metric; raises SettingsError."""
    settings: dict[str, dict[str, float]] = {}
    for path, text in parse_pairs(texts, "--set").items():
        metric, separator, parameter = path.partition(".")
        if not separator or not metric or not parameter:
            raise SettingsError(f"--set got {path!r}; write METRIC.PARAMETER=NUMBER")
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise SettingsError(f"--set {path} got {text!r}; write a number")
        settings.setdefault(metric, {})[parameter] = number
    return settings


def split_list(text: str | None, option: str = "--metrics") -> tuple[str, ...] | None:
    """Return a comma list as a tuple; None stays None. Raises SettingsError for a list of nothing."""
    if text is None:
        return None
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise SettingsError(f"{option} got {text!r}; write names with commas between them")
    return parts


def _parse_text(name: str, text: str) -> object:
    if name in _LISTS:
        return split_list(text, find_variable(name) or name)
    return None if text.lower() == "none" and name != "reasoning_effort" else text


def is_suite(argument: str) -> bool:
    """Return whether an argument of `run` or `doctor` names a suite rather than a dataset."""
    return argument.lower().endswith(".toml")


def show_target(target: TargetSettings) -> str:
    """Return a target in a word, without credentials."""
    return hide_credentials(target.url) if target.url else str(target.callable or target.runnable)


def to_plain_setting(value: object) -> Any:  # noqa: ANN401  # any value of JSON
    """Return a setting as JSON, without secrets: of headers the names alone, of a notification not the address."""
    match value:
        case TargetSettings():
            shown: dict[str, Any] = {**value.model_dump(mode="json"), "headers": sorted(value.headers)}
            return {**shown, "url": hide_credentials(value.url)} if value.url else shown
        case Notify():
            return value.model_dump(mode="json", exclude={"webhook"})
        case SuiteGate():
            return value.model_dump(mode="json", exclude_defaults=True)
        case _:
            return value


def write_part(value: TargetSettings | SuiteGate | Notify) -> str:
    """Return a table of a suite in a few words."""
    match value:
        case TargetSettings():
            return show_target(value)
        case Notify():
            return f"on {', '.join(value.on)}"
        case SuiteGate():
            return count_limits(value)


def count_limits(gate: SuiteGate) -> str:
    """Return how many limits of which kind a gate has: `2 minimums, 1 drop limit against passed`."""
    counts = {
        "minimum": len(gate.min),
        "maximum": len(gate.max),
        "drop limit": len(gate.max_drop),
        "trend limit": len(gate.trends),
        "coverage limit": len(gate.coverage) + (gate.min_coverage is not None),
        "cost limit": int(gate.max_cost is not None),
        "latency limit": int(gate.max_latency_p95_ms is not None),
    }
    parts = []
    for kind, n in counts.items():
        if n:
            base = f" against {gate.against}" if kind == "drop limit" else ""
            parts.append(f"{n} {kind}{'s' if n > 1 else ''}{base}")
    return ", ".join(parts)


def make_finding(what: str, check: Callable[[], CheckResult]) -> Finding:
    """Return the finding of a check; an error that a person can fix is a finding as well."""
    try:
        verdict, detail = check()
    except Exception as error:  # a check may raise any error; a bug is raised again
        message = explain(error) or (str(error) if isinstance(error, OSError) else None)
        if message is None:
            raise
        verdict, detail = "wrong", message
    return Finding(what=what, verdict=verdict, detail=detail)
