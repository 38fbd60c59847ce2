"""Settings: from flags, then `EVALHOUSE_*` variables, then defaults, with where each value came from."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tasks.run_settings import RunSettings

_LISTS = ("metrics", "tags")
_NOT_FROM_ENVIRONMENT = ("dataset", "mapping", "metric_settings", "suite", "label", "href", "tags")
_DEFAULT_MODEL = "openai:gpt-4.1-mini"


class SettingsError(Exception):
    """A setting has a value that is not allowed; says which one, where it came from, and what is."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """Settings and, by name, where each came from: a flag, a variable or `default`."""

    settings: RunSettings
    origins: Mapping[str, str]


def resolve_settings(flags: Mapping[str, Any]) -> Resolved:
    """Merge flags (None where not given) with the environment; raises SettingsError."""
    values: dict[str, Any] = {}
    origins = dict.fromkeys(RunSettings.model_fields, "default")
    for name in RunSettings.model_fields:
        variable = f"EVALHOUSE_{name.upper()}"
        text = os.environ.get(variable)
        if flags.get(name) not in (None, (), {}):
            values[name], origins[name] = flags[name], f"--{name.replace('_', '-')}"
        elif text and name not in _NOT_FROM_ENVIRONMENT:
            values[name], origins[name] = _parse_text(name, text), variable
    if "judge" not in values and os.environ.get("OPENAI_API_KEY"):
        values["judge"], origins["judge"] = _DEFAULT_MODEL, "OPENAI_API_KEY is set"
    if origins["judge"] == "default":
        origins["judge"] = "default, because no OPENAI_API_KEY is set"
    return Resolved(settings=validate_settings(values, origins), origins=origins)


def validate_settings(values: Mapping[str, Any], origins: Mapping[str, str]) -> RunSettings:
    """Check values against the settings' types and bounds; raises SettingsError with every problem."""
    try:
        return RunSettings.model_validate(dict(values), strict=False)
    except ValidationError as error:
        problems = [_describe(problem, origins) for problem in error.errors()]
        raise SettingsError("; ".join(problems)) from None


def parse_pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """`a=b` texts as a dictionary; raises SettingsError for a text without `=`."""
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip() or not value.strip():
            raise SettingsError(f"{option} got {text!r}; write NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs


def parse_metric_settings(texts: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """`metric.parameter=number` texts by metric; raises SettingsError."""
    settings: dict[str, dict[str, float]] = {}
    for path, text in parse_pairs(texts, "--set").items():
        metric, separator, parameter = path.partition(".")
        try:
            number = float(text)
        except ValueError:
            raise SettingsError(f"--set {path}={text}: {text!r} is no number") from None
        if not separator or not parameter:
            raise SettingsError(f"--set got {path!r}; write METRIC.PARAMETER=NUMBER")
        settings.setdefault(metric, {})[parameter] = number
    return settings


def split_list(text: str | None) -> tuple[str, ...] | None:
    """A comma list as a tuple; None stays None."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_text(name: str, text: str) -> object:
    if name in _LISTS:
        return split_list(text)
    return None if text.lower() == "none" else text


def _describe(problem: Any, origins: Mapping[str, str]) -> str:
    name = str(problem["loc"][0])
    origin = origins.get(name, "default")
    said = name if origin == "default" else f"{name} (from {origin})"
    return f"{said}: {problem['input']!r} is not allowed: {problem['msg']}"
