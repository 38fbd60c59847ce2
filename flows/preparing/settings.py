"""Settings: from flags, then `EVALHOUSE_*` variables, then a suite, then defaults, with where each value came from.

A variable is named after the flag that it replaces: `EVALHOUSE_TIMEOUT` is `--timeout`.
"""

import difflib
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_origin

from pydantic import ValidationError

from evalhouse.flows.errors import SettingsError, explain
from evalhouse.tasks.judge.protocol import LEXICAL, JudgeNames, parse_judges
from evalhouse.tasks.settings.run import WHERE, RunSettings, is_sample
from evalhouse.tasks.settings.suite import Notify, SuiteGate, TargetSettings
from evalhouse.warehouse.messages import Finding, Verdict, hide_credentials, name_flag, name_setting
from evalhouse.warehouse.sample_data import SAMPLE

if TYPE_CHECKING:
    from evalhouse.flows.preparing.suites import Suite
    from evalhouse.warehouse.rows.runs import RunRow

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
                raise SettingsError(f"{origin}: got {given!r}; {error}") from None
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


def check_resumable(run: "RunRow", changes: Mapping[str, Any], settable: Collection[str]) -> None:
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
            came = f"got {problem['input']!r}; {message[:1].lower()}{message[1:]}"
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
