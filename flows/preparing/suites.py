"""A suite: one strict TOML file that describes a run that is repeated, its schedule and trigger, gate and notification.

A suite becomes the settings of a run (`settings`), a schedule and a trigger (`serving.serve`), and a gate and a
notification (`serving.suite_runs`). One error reports all problems of a file, each with its key and line. `tomllib`
forgets where values are, so lines are found by a search of the text for keys.
"""

import codecs
import contextlib
import hashlib
import importlib.util
import json
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from evalhouse.flows.errors import SettingsError
from evalhouse.tasks.judge.protocol import JudgeNames, parse_judges
from evalhouse.tasks.settings.run import LIMITS, TOP, WHERE, RunSettings, list_settings
from evalhouse.tasks.settings.suite import (
    NAMED,
    TRACES,
    Notify,
    Retention,
    SuiteGate,
    TargetSettings,
    TraceWindow,
    name_scores,
)
from evalhouse.warehouse.messages import quote_value, suggest

KeyPath = tuple[str | int, ...]
_Model = TypeVar("_Model", bound=BaseModel)
UPDATED: Final = "knowledge-base.updated"
# Prefect emits it when a task that was made with `@materialize` has completed.
MATERIALIZED: Final = "prefect.asset.materialization.succeeded"
# The form that Prefect requires of an asset's key, without `*`, which a trigger would read as any text.
_ASSET_KEY = re.compile(r"[a-z][a-z0-9+.-]*://[^\s#?&%\"'<>\[\]{}|\\^`*]+")
_RESTRICTED = "* # ? & % \" ' < > [ ] { } | \\ ^ `"
_MAX_KEY = 512
# `*`, `?`, `[` and `!` would make Prefect's triggers match other names.
_KB_NAME = re.compile(r"[\w./:@+-]+(?: [\w./:@+-]+)*")
# The form that Prefect requires of a deployment's name, without the colon of `latest:SUITE` and shell characters.
_NAME = re.compile(r"\w[\w.-]{0,99}")
_ALLOWED = "allowed are letters, digits, `_`, `-` and `.`, at most 100, the first a letter, digit or `_`"
KB_RESOURCE: Final = "knowledge-base."
_CRONITER = "evalhouse_prefect_croniter"
_EXAMPLE = "five fields: minute, hour, day of month, month, day of week, such as '0 3 * * *' for each night at three"
# Half an hour is worth a run; after a week Prefect has forgotten the first update.
_USUAL_WAIT_S: Final = 1_800.0
_MAX_WAIT_S: Final = 604_800.0
_TYPOGRAPHIC: Final = re.compile("=\\s*[“”„‘’‚«]")
_BACKSLASH: Final = re.compile(r"=\s*\"[^\"\n]*\\")
_KEY = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PATH = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_LINE = re.compile(rf"[ \t]*(?:\[\[?[ \t]*(?P<table>{_PATH})[ \t]*\]\]?[ \t]*(?:#.*)?$|(?P<key>{_PATH})[ \t]*=)")
_LIMITS = list_settings(lambda where: where.place == LIMITS)
_TOP = list_settings(lambda where: where.place == TOP)
_PATHS = list_settings(lambda where: where.is_path)
_TABLES = (
    "map",
    "judges",
    "metric_settings",
    "limits",
    "target",
    "variants",
    "schedule",
    "trigger",
    "testset",
    "traces",
    "noise",
    "gate",
    "notify",
    "retention",
)
# The keys of a suite that a variant may have too, with the settings they are.
_OF_BOT = ("answer", "contexts", "context_ids")
_VARIED = {"map" if name == "mapping" else name: name for name in list_settings(lambda where: where.varies)}
_SAMPLE = "sample"
_DUCKDB = "duckdb:///"
_OTHER_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
# For a judge that flags or the environment may name, so that no setting is refused because of the lexical judge.
_ANY_JUDGE = "openai:any"


def explain_bad_name(name: str) -> str | None:
    """Return what is wrong with the name of a knowledge base, and what is allowed; None when it is fine."""
    if _KB_NAME.fullmatch(name) and len(name) <= 200:
        return None
    return (
        "it cannot name a knowledge base; allowed are letters, digits and . _ - / : @ +, with single blanks between "
        "them, at most 200"
    )


def explain_bad_asset(key: str) -> str | None:
    """Return what is wrong with the key of an asset, and what is allowed; None when it is fine."""
    if _ASSET_KEY.fullmatch(key) and len(key) <= _MAX_KEY:
        return None
    return (
        "it cannot be the key of an asset; write it as in @materialize: a scheme in small letters, :// and a name, "
        f"such as s3://kb/handbook, at most {_MAX_KEY} characters, no blanks and none of {_RESTRICTED}"
    )


@dataclass(frozen=True, kw_only=True)
class UpdateSource:
    """The source of updates: its stored name, and the resource and the event in Prefect that announce an update."""

    name: str
    resource: str
    event: str

    @property
    def is_asset(self) -> bool:
        """Return whether Prefect itself announces the updates."""
        return self.event == MATERIALIZED


def make_kb_source(kb_name: str) -> UpdateSource:
    """Return a knowledge base that announces its updates; raises SettingsError for a name that is not allowed."""
    if problem := explain_bad_name(kb_name):
        raise SettingsError(f"{kb_name!r}: {problem}")
    return UpdateSource(name=kb_name, resource=f"{KB_RESOURCE}{kb_name}", event=UPDATED)


def make_asset_source(key: str) -> UpdateSource:
    """Return an asset that flows materialize; raises SettingsError for a key that is not allowed."""
    if problem := explain_bad_asset(key):
        raise SettingsError(f"{key!r}: {problem}")
    return UpdateSource(name=key, resource=key, event=MATERIALIZED)


def explain_bad_cron(cron: str) -> str | None:
    """Return what is wrong with a cron expression, or None for one that Prefect takes and that fires some day."""
    croniter = _load_croniter()
    if len(fields := cron.split()) in (6, 7):
        return _explain_fields(fields)
    # Prefect refuses croniter's random and hashed fields.
    if any(field.casefold() in ("r", "h") for field in cron.split()):
        return f"random and hashed fields (R, H) are not allowed; write {_EXAMPLE}"
    try:
        croniter.croniter(cron).get_next()
    except croniter.CroniterBadDateError:
        return "that day never comes, so it would never fire"
    except (croniter.CroniterError, ValueError, AttributeError, KeyError):
        return f"it is not a cron expression; write {_EXAMPLE}"
    return None


def _explain_fields(fields: Sequence[str]) -> str:
    """Return what is wrong with six or seven fields, and the five of them that mean the same.

    Quartz and Spring begin with seconds, AWS and Quartz end with a year; Prefect would read the sixth as seconds.
    """
    croniter = _load_croniter().croniter
    ends_with_year = len(fields) == 6 and re.fullmatch(r"\d{4}(?:[-,/]\d+)*", fields[5]) is not None
    for five, left_out in ((fields[1:6], "seconds at its beginning"), (fields[:5], "year at its end")):
        if (ends_with_year and five == fields[1:6]) or not croniter.is_valid(" ".join(five)):
            continue
        written = ["*" if field == "?" else field for field in five]
        if "?" in five:  # as in Quartz and AWS, where Sunday is 1; here it is 0
            written[4] = re.sub(r"(?<![#/\d])[1-7]", lambda day: str(int(day[0]) - 1), written[4])
        form = " ".join(written)
        return (
            f"it has {len(fields)} fields, and a schedule has five; without the {left_out} it is {form!r}: write that"
        )
    return f"it has {len(fields)} fields; write {_EXAMPLE}"


def explain_bad_timezone(timezone: str) -> str | None:
    """Return what is wrong with the name of a time zone, or None."""
    try:
        if timezone in ("localtime", "posixrules", "Factory"):  # of the system, and no zones to the scheduler
            raise ZoneInfoNotFoundError(timezone)
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "unknown time zone; allowed are names such as UTC, Europe/Berlin, Asia/Shanghai"
    return None


@cache
def _load_croniter() -> ModuleType:
    """Load the croniter that Prefect ships, from its file.

    Prefect schedules by this copy, so a cron expression must be read by it: cronsim gives other days for
    `0 0 */2 * 1-5`, and refuses `@daily`, `0 22-2 * * *`, `?` and `L5`, which Prefect takes. Prefect's public schedule
    classes (`prefect.client.schemas.schedules.CronSchedule`) only check an expression, and importing them imports
    Prefect, which must not happen before the address of its server is known; so must `prefect._vendor`.
    """
    prefect = importlib.util.find_spec("prefect")
    assert prefect is not None
    assert prefect.origin is not None
    path = Path(prefect.origin).parent / "_vendor" / "croniter" / "croniter.py"
    if not path.is_file():  # of a release of Prefect that depends on the package in place of its copy
        return importlib.import_module("croniter")
    spec = importlib.util.spec_from_file_location(_CRONITER, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_CRONITER] = module
    spec.loader.exec_module(module)
    return module


def refused_by(explain: Callable[[str], str | None]) -> AfterValidator:
    """Return a check of a text from the function that explains what is wrong with it."""

    def check(text: str) -> str:
        if problem := explain(text):
            raise PydanticCustomError("refused", "{problem}", {"problem": problem})
        return text

    return AfterValidator(check)


def _explain_bad_judge(text: str) -> str | None:
    try:
        parse_judges(text)
    except ValueError as error:
        return str(error)
    return None


class Table(BaseModel):
    """A table of a suite; keys that are not listed are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Schedule(Table):
    """The times at which a suite runs by itself."""

    cron: Annotated[str, refused_by(explain_bad_cron)]
    timezone: Annotated[str, refused_by(explain_bad_timezone)] = "UTC"


class KnowledgeBase(Table):
    """The source whose updates start a run: a knowledge base that announces them, or an asset that flows materialize.

    Prefect waits at least ten seconds for quiet.
    """

    asset: Annotated[str, refused_by(explain_bad_asset)] | None = None
    knowledge_base: Annotated[str, refused_by(explain_bad_name)] | None = Field(default=None, validate_default=True)
    debounce_s: float = Field(default=60.0, ge=10, le=86_400)
    max_wait_s: float | None = Field(default=None, le=_MAX_WAIT_S)
    only_affected: bool = False

    @field_validator("knowledge_base")
    @classmethod
    def _check_one_of_two(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None and info.data.get("asset", "") is None:
            raise PydanticCustomError("absent", "is missing; give it, or `asset` in its place")
        if name is not None and info.data.get("asset") is not None:
            raise PydanticCustomError("refused", "there is an `asset` as well; a suite has one of the two")
        return name

    @field_validator("max_wait_s")
    @classmethod
    def _check_wait(cls, seconds: float | None, info: ValidationInfo) -> float | None:
        quiet_s = info.data.get("debounce_s")
        if seconds is not None and quiet_s is not None and seconds < quiet_s:
            problem = f"an update cannot wait shorter than debounce_s; give at least {quiet_s:g}"
            raise PydanticCustomError("refused", "{problem}", {"problem": problem})
        return seconds

    @property
    def source(self) -> UpdateSource:
        """The source of the updates."""
        return make_asset_source(self.asset) if self.asset is not None else make_kb_source(self.knowledge_base or "")

    @property
    def max_total_wait_s(self) -> float:
        """The seconds after which the first update of a stream that does not end starts a run."""
        if self.max_wait_s is not None:
            return self.max_wait_s
        return min(max(10 * self.debounce_s, _USUAL_WAIT_S), _MAX_WAIT_S)


class LivingSet(Table):
    """The documents that the dataset, a test set, is refreshed from before each run.

    `judge` None is the suite's; `coverage` is the number of questions, None for as many a passage as when the set was
    made.
    """

    documents: str = Field(min_length=1)
    judge: Annotated[str, refused_by(_explain_bad_judge)] | None = None
    accept: bool = False
    coverage: int | None = Field(default=None, ge=1)
    new: bool = True
    encoding: str | None = None


class _Noise(Table):
    share: float = Field(ge=0, le=1)


_MODELS: Final[Mapping[str | int, type[BaseModel]]] = {
    "target": TargetSettings,
    "gate": SuiteGate,
    "notify": Notify,
    "traces": TraceWindow,
}
# The table to which a key belongs that a person may have written elsewhere.
_PLACES: Final[Mapping[str, str]] = {
    **{name: where.place for name, where in WHERE.items() if where.place},
    **dict.fromkeys(Schedule.model_fields, "[schedule]"),
    **dict.fromkeys(KnowledgeBase.model_fields, "[trigger]"),
    **dict.fromkeys(("texts", "scores", "prefect"), "[retention]"),
    "max_wait_s": "[limits] or [trigger]",
    "webhook": "[notify]",
    "max_cost": "[gate]",
    "max_latency_p95_ms": "[gate]",
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem of a suite, and the key it is about."""

    path: KeyPath
    text: str


@dataclass(frozen=True, kw_only=True)
class SuiteText:
    """The values of a suite's file and the lines of its keys, see `find_lines`."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[KeyPath, int | None]

    def find_line(self, path: KeyPath) -> int | None:
        """Return the line of a key, or of the nearest table around it."""
        around = (path[:length] for length in range(len(path), 0, -1))
        return next((self.lines[part] for part in around if part in self.lines), 1)

    def refuse(self, problems: Sequence[Problem]) -> SettingsError:
        """Return one error with every problem on a separate line, in the order of the file."""
        places = sorted(
            (self.find_line(problem.path) or 0, write_path(problem.path), problem.text) for problem in problems
        )
        lines = [
            f"{self.path.name}{f', line {line}' if line else ''}: {f'{key}: ' if key else ''}{text}"
            for line, key, text in places
        ]
        return SettingsError("\n".join(dict.fromkeys(lines)))


def load_suite_text(path: Path) -> SuiteText:
    """Load a suite's file; raises SettingsError for invalid TOML, and for values that no setting can have."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig")
        values = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"the suite {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path.name} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        hint = ""
        if _TYPOGRAPHIC.search(text):
            hint = "; it has typographic quotes: write straight ones"
        elif _BACKSLASH.search(text):
            hint = "; a backslash within \"…\" begins an escape: write a path in single quotes, 'C:\\Users\\…'"
        raise SettingsError(f"{path.name} is not valid TOML: {error}{hint}") from None
    suite_text = SuiteText(path=path, values=values, lines=find_lines(text))
    if problems := list(_find_odd(values, ())):
        raise suite_text.refuse(problems)
    return suite_text


def find_lines(text: str) -> dict[KeyPath, int | None]:
    """Return the line, from 1, on which each key and table of a valid TOML text begins, by path.

    Values within an array or an inline table have no line. None if two lines look like the same key, as one of them may
    belong to a text of several lines.
    """
    lines: dict[KeyPath, int | None] = {}
    begun: set[KeyPath] = set()
    table: KeyPath = ()
    for number, line in enumerate(text.split("\n"), start=1):
        match = _LINE.match(line.removesuffix("\r"))
        if match is None:
            continue
        path = _parse_key(match["table"]) if match["table"] else (*table, *_parse_key(match["key"]))
        table = path if match["table"] else table
        for length in range(1, len(path)):
            lines.setdefault(path[:length], number)
        lines[path] = None if path in begun else lines.get(path, number)
        begun.add(path)
    return lines


def write_path(path: KeyPath) -> str:
    """Return a path as a person would write it: `target.headers.X-Key`, `metrics[2]` for the second item."""
    written = ""
    for part in path:
        written += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if written else part
    return written


def _parse_key(written: str) -> KeyPath:
    """Return a dotted key without its quotes and escapes."""
    path, value = [], tomllib.loads(f"{written} = 0")
    while isinstance(value, dict):
        ((key, value),) = value.items()
        path.append(key)
    return tuple(path)


def _find_odd(value: object, path: KeyPath) -> Iterator[Problem]:
    """Yield a problem for each value that TOML allows and no setting does."""
    match value:
        case dict():
            for key, part in value.items():
                yield from _find_odd(part, (*path, key))
        case list():
            for place, part in enumerate(value):
                yield from _find_odd(part, (*path, place))
        case date() | time():
            yield Problem(path=path, text=f"got the date or time {value}; no setting is one; write a text in quotes")
        case float() if not math.isfinite(value):
            yield Problem(path=path, text=f"got {value}; give a finite number")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A loaded suite.

    `values` are settings of its runs by name, typed, with absolute paths; `suite_hash` is the hash of the file's
    values: comments, spacing and the order of its keys change nothing.
    """

    name: str
    path: Path
    values: Mapping[str, Any]
    schedule: Schedule | None
    trigger: KnowledgeBase | None
    testset: LivingSet | None
    gate: SuiteGate | None
    notify: Notify | None
    retention: Retention | None
    suite_hash: str


def load_suite(path: str | Path) -> Suite:
    """Load and check a suite; raises SettingsError with every problem, its line and its key."""
    path = Path(path).expanduser().absolute()
    text = load_suite_text(path)
    reading = _Reading(text)
    settings = reading.read_settings()
    name = text.values.get("name", path.stem)
    variants = reading.read_variants(str(name)) if settings is not None else {}
    schedule = reading.read_table("schedule", Schedule)
    trigger = reading.read_table("trigger", KnowledgeBase)
    testset = reading.read_testset()
    retention = reading.read_table("retention", Retention)
    if "traces" in text.values and reading.flat.get("dataset") not in (None, TRACES):
        problem = f'the dataset is {quote_value(reading.flat["dataset"])}; write dataset = "{TRACES}"'
        reading.refuse(("traces",), problem)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        origin = "" if "name" in text.values else " from the name of its file, as `name` is missing"
        reading.refuse(("name",), f"got {quote_value(name)}{origin}; {_ALLOWED}")
    own_scores = [name_scores(str(name)), *(name_scores(f"{name}/{variant}") for variant in variants)]
    if trigger is not None and trigger.asset in own_scores:
        problem = "these are the scores of this suite, so that each run would start another"
        reading.refuse(("trigger", "asset"), problem)
    if reading.problems or settings is None:
        raise text.refuse(reading.problems)
    values = {field: getattr(settings, field) for field in reading.flat}
    if variants:
        values["variants"] = variants
    if "judge" in values:
        values["judge"] = str(parse_judges(reading.flat["judge"]))  # without a default that is named elsewhere
    if settings.notify is not None and NAMED.search(settings.notify.webhook) is None:
        del values["notify"]  # settings are stored with the run, and this address is enough to post
    paths = {name: _find_path(name, values[name], path.parent) for name in _PATHS if values.get(name) is not None}
    limits = (settings.limit, settings.sample_budget)
    canonical = json.dumps(text.values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return Suite(
        name=name,
        path=path,
        values={
            **values,
            **paths,
            "suite": name,
            "suite_hash": digest,
            "upstream": trigger and trigger.source.name,
            "file_limits": limits if any(limits) else None,
        },
        schedule=schedule,
        trigger=trigger,
        testset=testset,
        gate=settings.gate,
        notify=settings.notify,
        retention=retention,
        suite_hash=digest,
    )


class _Reading:
    """A suite's values on their way to typed settings, and the problems found.

    `flat` has the settings of a run that the suite gives, by name; `_places` their keys in the file.
    """

    def __init__(self, text: SuiteText) -> None:
        self.problems: list[Problem] = []
        self.flat: dict[str, Any] = {}
        self._places: dict[str, KeyPath] = {}
        self._text = text
        for key, value in text.values.items():
            if key not in _TABLES:
                if key in _TOP:
                    self.take(key, (key,), value)
                elif key != "name":
                    self.refuse((key,), explain_misplaced(key, ("name", *_TOP, *_TABLES)))
            elif not isinstance(value, dict):
                self.refuse((key,), f"got {quote_value(value)}; this is a table: write [{key}] on a separate line")
            elif key == "variants":
                pass  # read when the suite itself is known, of which they are changes
            elif key == "limits":
                for name, limit in value.items():
                    if name in _LIMITS:
                        self.take(name, ("limits", name), limit)
                    else:
                        self.refuse(("limits", name), explain_misplaced(name, _LIMITS))
            elif key == "noise":
                if (noise := self.read_table("noise", _Noise)) is not None:
                    self.take("noise_share", ("noise", "share"), noise.share)
            elif key == "judges":
                if "judge" in text.values:
                    self.refuse((key,), "there is a `judge` as well; write it as `default` into [judges]")
                self.take("judge", (key,), value)
            elif key == "map":
                self.take("mapping", (key,), value)
            elif key in RunSettings.model_fields:
                self.take(key, (key,), value)

    def take(self, name: str, place: KeyPath, value: object) -> None:
        self.flat[name], self._places[name] = value, place

    def refuse(self, path: KeyPath, text: str) -> None:
        self.problems.append(Problem(path=path, text=text))

    def read_settings(self) -> RunSettings | None:
        """Return all that makes up a run's settings; None when something is wrong with it."""
        if "dataset" not in self.flat:
            problem = f"`dataset` is missing; name a file, or {_SAMPLE!r} for the dataset that ships with evalhouse"
            self.refuse((), problem)
        given = self.flat.get("judge", {})
        try:
            # With a default, so that the check covers everything though the judge may be named elsewhere.
            names = parse_judges(given) if isinstance(given, str) or given else JudgeNames()
            given = str(replace(names, default=names.default or _ANY_JUDGE))
        except (AttributeError, ValueError):
            pass  # the check below reports it
        values = {**self.flat, "judge": given}
        if values.get("temperature") == "none":
            values = {**values, "temperature": None}
        return self._validate(RunSettings, values, self._places)

    def read_table(self, key: str, model: type[_Model]) -> _Model | None:
        """Return a table that is not part of a run's settings; None without it, and for one with problems."""
        values = self._text.values.get(key)
        if not isinstance(values, dict):
            return None
        return self._validate(model, values, {name: (key, name) for name in values}, within=(key,))

    def read_testset(self) -> LivingSet | None:
        """Return the table of a test set, whose dataset must be one that evalhouse wrote."""
        testset, dataset = self.read_table("testset", LivingSet), self.flat.get("dataset")
        if testset is None:
            return None
        if isinstance(dataset, str) and not dataset.endswith(".jsonl"):
            problem = f"there is [testset], and the dataset is {quote_value(dataset)}; name a set that "
            self.refuse(("dataset",), f"{problem}`evalhouse testset make` wrote, a file that ends in .jsonl")
        if testset.coverage is not None and not testset.new:
            problem = "gives a number of questions for the set, and `new = false` lets none be made"
            self.refuse(("testset", "coverage"), problem)
        documents = _find_path("documents", testset.documents, self._text.path.parent)
        return testset.model_copy(update={"documents": documents})

    def read_variants(self, suite: str) -> dict[str, dict[str, Any]]:
        """Return the settings of each variant by name, whole: what it does not give is as in the suite itself.

        A variant may differ in its bot and in how that one's answers are read. Everything else is the yardstick.
        """
        variants: dict[str, dict[str, Any]] = {}
        tables = self._text.values.get("variants", {})
        for name, given in tables.items() if isinstance(tables, dict) else ():
            place: KeyPath = ("variants", name)
            if not _NAME.fullmatch(name):
                self.refuse(place, f"got {quote_value(name)}; {_ALLOWED}")
            elif name == suite:
                self.refuse(
                    place, "this is the name of the suite itself, which is asked first; give the variant another"
                )
            elif not isinstance(given, dict):
                self.refuse(place, f"got {quote_value(given)}; a variant is a table: write [variants.NAME]")
            elif not given:
                self.refuse(place, f"nothing differs from the suite itself; give one of {', '.join(_VARIED)}")
            elif odd := [key for key in given if key not in _VARIED]:
                for key in odd:
                    is_setting = key in _TOP or key in _TABLES or key in _LIMITS
                    problem = (
                        "it is one for all variants, or they could not be compared; a variant may have another "
                        f"{', '.join(_VARIED)}"
                    )
                    self.refuse((*place, key), problem if is_setting else explain_misplaced(key, tuple(_VARIED)))
            elif fields := [field for field in (given.get("map") or {}) if field not in _OF_BOT]:
                problem = f"all variants answer the same questions; a variant may map {', '.join(_OF_BOT)}"
                for field in fields:
                    self.refuse((*place, "map", field), problem)
            elif given.get("map") and ("target" in self.flat or "target" in given):
                self.refuse(
                    (*place, "map"), "a bot is asked, so no column has its answers; leave out [target] or the map"
                )
            else:
                flat = {_VARIED[key]: _lay_over(self.flat.get(_VARIED[key]), value) for key, value in given.items()}
                if isinstance(of_map := given.get("map"), dict) and "contexts" in of_map:
                    # The ids that the suite reads belong to its contexts.
                    flat["mapping"] = _lay_over(flat["mapping"], {"context_ids": of_map.get("context_ids", "")})
                if isinstance(of_map, dict) and "answer" in of_map:
                    of_suite = self.flat.get("mapping") or {}
                    flat["has_answers_apart"] = of_map["answer"] != of_suite.get("answer", "answer")
                places = {_VARIED[key]: (*place, key) for key in given}
                settings = self._validate(RunSettings, {"dataset": self.flat["dataset"], **flat}, places)
                if settings is not None:
                    variants[name] = settings.model_dump(mode="json", include=set(flat))
        if variants and self.flat.get("sample_budget") is not None:
            problem = "a budget of samples picks them by their answers, so that each variant would be judged on others"
            self.refuse(("limits", "sample_budget"), f"{problem}; write `limit`")
        return variants

    def _validate(
        self, model: type[_Model], values: Mapping[str, Any], places: Mapping[str, KeyPath], *, within: KeyPath = ()
    ) -> _Model | None:
        """Return a model of the values; as JSON, because there a list becomes a tuple and a text never a number."""
        try:
            return model.model_validate_json(json.dumps(values, ensure_ascii=False))
        except ValidationError as error:
            for problem in error.errors():
                path = within
                if problem["loc"]:
                    name, *rest = problem["loc"]
                    below = (part for part in rest if part != "[key]")
                    path = (*places.get(str(name), (*within, name)), *below)
                self.refuse(path, explain_error(problem, path, model))
            return None


def _lay_over(whole: object, given: object) -> object:
    """Return a setting of a variant: that of the suite with the given entries in it, at any depth.

    A bot of another kind (a callable where the suite has a url) takes over nothing.
    """
    if not isinstance(given, dict) or not isinstance(whole, dict):
        return given
    kinds = [{"url", "callable", "runnable"} & table.keys() for table in (whole, given)]
    if kinds[1] and kinds[0] != kinds[1]:
        return given
    if isinstance(body := whole.get("body"), str) and isinstance(given.get("body"), dict):
        with contextlib.suppress(ValueError):  # the suite's problem, which is reported there
            whole = {**whole, "body": json.loads(body)}
    return {**whole, **{key: _lay_over(whole.get(key), value) for key, value in given.items()}}


def explain_error(problem: ErrorDetails, path: KeyPath, model: type[BaseModel]) -> str:
    """Return the message for an error of pydantic, with the value unless it is a table or a secret address."""
    match problem["type"]:
        case "extra_forbidden":
            # The key is unknown to the table that it is in.
            table = _MODELS.get(problem["loc"][0], model) if len(problem["loc"]) > 1 else model
            return explain_misplaced(str(path[-1]), tuple(table.model_fields))
        case "missing":
            return "is missing"
        case "absent":
            return problem["msg"]
    message = f"{problem['msg'][:1].lower()}{problem['msg'][1:]}"
    if path[:2] == ("notify", "webhook") or isinstance(problem["input"], dict):
        return message
    return f"got {quote_value(problem['input'])}; {message}"


def explain_misplaced(key: str, allowed: Sequence[str]) -> str:
    """Return the message for a key that is unknown where it is written."""
    if key in _PLACES and key not in allowed:
        return f"unknown key here; it belongs in {_PLACES[key]}"
    return f"unknown key; {suggest(key, allowed, otherwise='allowed')}"


def _find_path(name: str, text: str, folder: Path) -> str:
    """Return a setting that is a path, relative to the suite's folder."""
    if name == "dataset" and text in (_SAMPLE, TRACES):
        return text
    if name == "warehouse" and _OTHER_URL.match(text):
        relative = text.startswith(_DUCKDB) and not text.startswith(f"{_DUCKDB}/")
        return f"{_DUCKDB}{folder.as_posix()}/{text.removeprefix(_DUCKDB)}" if relative else text
    return str(folder / Path(text).expanduser())
