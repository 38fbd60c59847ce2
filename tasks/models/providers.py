"""Providers of models by name: what `providers.toml` says of each, and what the environment says for it.

A provider is a row of data. Its chat model comes from LangChain's package for it, which is an extra of ours. Nothing of
LangChain is imported here, for names are checked before anything is asked.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.settings.target import NamedValueError, fill_variable
from evalhouse.warehouse.messages import note_secret, redact
from evalhouse.warehouse.names import name_setting

# Where OpenAI's models answer at Azure.
_AZURE_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com")


def is_openai(endpoint: str) -> bool:
    """Whether OpenAI's own service answers there."""
    return (urlsplit(endpoint).hostname or "").endswith(".openai.com")


def compiles_schemas(endpoint: str) -> bool:
    """Whether OpenAI's models answer there: a new schema costs seconds, and none that names single items is taken."""
    return is_openai(endpoint) or (urlsplit(endpoint).hostname or "").endswith(_AZURE_HOSTS)


def check_address(source: str, named: str, *, scheme: str = "", example: str = "https://host:8000") -> str:
    """The address in the variable `source`; raises FatalJudgeError when it is not one. Without one it gets `scheme`."""
    address = named.strip()
    address = f"{scheme}{address}" if "://" not in address else address
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, half a bracket
        is_address = False
    if not is_address:
        raise FatalJudgeError(f"{source} is {redact(named)!r}, which is not an address; write it like {example}")
    return address


_FINISH_FIELDS = ("finish_reason", "stop_reason", "stopReason", "done_reason")


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A row of `providers.toml`, which says what its fields are; `name` is what stands before the colon."""

    name: str
    langchain: str
    package: str
    also: Sequence[str] = ()
    extra: str | None = None
    keys: Sequence[str] = ()
    secrets: Sequence[str] = ()
    addresses: Sequence[str] = ()
    others: Sequence[str] = ()
    address: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    unset: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    options_in: str | None = None
    names_ids: bool = False
    cached_from: Mapping[str, int] = field(default_factory=dict)

    @property
    def install_line(self) -> str:
        """What brings its package."""
        return (
            f'pip install "evalhouse[{self.extra}]"'
            if self.extra
            else f"pip install langchain {self.package.replace('_', '-')}"
        )

    def require_package(self, judge: str) -> None:
        """Raise FatalJudgeError with the line that installs what is missing."""
        missing = [name for name in ("langchain", self.package) if find_spec(name) is None]
        if missing:
            raise FatalJudgeError(f"{judge} needs the package {' and '.join(missing)}: {self.install_line}")

    def find_least_cached(self, model: str) -> int | None:
        """From how many tokens on a marked beginning is kept for a model; None where the provider wants no marks."""
        fitting = [name for name in self.cached_from if model.startswith(name)]
        return self.cached_from[max(fitting, key=len)] if fitting else None

    def find_address(self) -> str:
        """The address of the environment, else the provider's own; raises FatalJudgeError for what is not one."""
        for name in self.addresses:
            if os.environ.get(name, "").strip():
                return check_address(name, os.environ[name], scheme="http://" if self.name == "ollama" else "")
        return self.address

    def read_key(self, judge: str, address: str) -> str:
        """The key of the environment; raises FatalJudgeError where the provider's own address wants one."""
        values = {name: read_key_variable(name) for name in (*self.keys, *self.secrets)}
        for secret in filter(None, values.values()):
            note_secret(secret)
        key = next((value for name in self.keys if (value := values[name])), None)
        if key is None and self.keys and (address == self.address or not self.address):
            lexical = name_setting("judge", "lexical")
            raise FatalJudgeError(f"{self.keys[0]} is not set; set it to your key for {judge}, or use {lexical}")
        return key or "no-key"


def read_key_variable(name: str) -> str | None:
    """A variable of the environment that holds a key, or names what Prefect keeps it in; None where it is empty. Raises
    FatalJudgeError where that cannot be read."""
    try:
        fill_variable(name)
    except NamedValueError as error:
        raise FatalJudgeError(str(error)) from None
    return os.environ.get(name) or None


@cache
def load_providers() -> Mapping[str, Provider]:
    """All providers by what stands before the colon; those of which more than the package is known come first."""
    table = _read_table()
    rows = {name: Provider(name=name, **row) for name, row in table["providers"].items()}
    others = {name: Provider(name=name, langchain=name, package=package) for name, package in table["others"].items()}
    return rows | others | {name: row for row in rows.values() for name in row.also}


def list_prefixes() -> list[str]:
    """Those that messages and help texts name."""
    return list(_read_table()["providers"])


def find_provider(judge: str) -> Provider | None:
    """The provider of a name such as `anthropic:claude-sonnet-4-5`; None where its prefix is none's."""
    prefix, separator, model = judge.partition(":")
    return load_providers().get(prefix) if separator and model.strip() else None


def list_variables(judges: Sequence[str]) -> tuple[list[str], list[str]]:
    """The variables that these judges' providers read: those that hold secrets, and the others."""
    rows = [row for judge in judges if (row := find_provider(judge))]
    secrets = [name for row in rows for name in (*row.keys, *row.secrets)]
    return secrets, [name for row in rows for name in (*row.addresses, *row.others)]


def read_ending(metadata: Mapping[str, Any]) -> tuple[str | None, str]:
    """What ended a reply, in OpenAI's words (None for the usual end), and in those of the provider."""
    feedback = metadata.get("prompt_feedback")
    blocked = feedback.get("block_reason") if isinstance(feedback, dict) else None
    named = blocked or next((metadata[name] for name in _FINISH_FIELDS if metadata.get(name)), "")
    word = str(getattr(named, "name", named))
    if blocked:
        return "content_filter", word
    return next((ours for ours, words in _read_table()["endings"].items() if word.lower() in words), None), word


@cache
def _read_table() -> Mapping[str, Any]:
    return tomllib.loads(files("evalhouse.tasks.models").joinpath("providers.toml").read_text(encoding="utf-8"))
