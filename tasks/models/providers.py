"""The providers of models by name: rows of `providers.toml`, and the keys and addresses that the environment has.

A provider is a row of data. Its chat model comes from LangChain's package for it, which is an optional extra. Nothing
of LangChain is imported here, for names are checked before anything is asked. A stored address has neither user nor
password.
"""

import base64
import logging
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.settings.environment import NamedValueError, UserCodeError, call_object, fill_variable
from evalhouse.warehouse.messages import hide_credentials, name_setting, note_secret, redact

_logger: Final = logging.getLogger(__name__)
# The end of the address of one request, as the pages of OpenAI, Azure, Anthropic, Ollama and Google show it.
_OF_REQUEST: Final = re.compile(
    r"/(?:(?:chat/)?completions|embeddings|responses|v1/messages|api/(?:chat|generate)|v1beta/models/[^/]+:\w+)"
    r"/?(?:\?\S*)?$"
)
# The hosts of OpenAI's models at Azure.
_AZURE_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com")


def is_openai(endpoint: str) -> bool:
    """Return whether an address is OpenAI's own service."""
    return (urlsplit(endpoint).hostname or "").endswith(".openai.com")


def compiles_schemas(endpoint: str) -> bool:
    """Return whether OpenAI's models answer there: a new schema costs seconds, and none that names ids is accepted."""
    return is_openai(endpoint) or (urlsplit(endpoint).hostname or "").endswith(_AZURE_HOSTS)


def check_address(source: str, named: str, *, scheme: str = "", example: str = "https://host:8000") -> str:
    """Return the address in the variable `source`, with `scheme` if it has none; raises FatalJudgeError.

    Of the address of one request, as providers' pages show it, the part that clients complete is taken.
    """
    address = f"{scheme}{named}" if "://" not in named else named
    if (match := _OF_REQUEST.search(address)) is not None:
        # For other clients in this process too, so that it is noted once.
        address = os.environ[source] = address[: match.start()]
        _logger.warning(
            "%s ends with %s, which each request adds by itself; it is read as %s",
            source,
            match[0].partition("?")[0],
            hide_credentials(address),
        )
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, half a bracket
        is_address = False
    if not is_address:
        raise FatalJudgeError(f"{source} is {redact(named)!r}, which is not an address; write it like {example}")
    return address


def strip_credentials(endpoint: str) -> str:
    """Return an address without user, password and query, which may hold a key, so that it can be stored."""
    parts = urlsplit(endpoint)
    host = parts.netloc.rsplit("@", 1)[-1]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")


def read_key_variable(name: str) -> str | None:
    """Return a variable of the environment that holds a key, or names the Prefect block or variable that does; None
    if it is empty. Raises FatalJudgeError if that cannot be read, or cannot be sent in a header."""
    try:
        fill_variable(name)
    except NamedValueError as error:
        raise FatalJudgeError(str(error)) from None
    key = os.environ.get(name) or None
    if key is not None and not (key.isascii() and key.isprintable()):
        place = next(place for place, char in enumerate(key, 1) if not (char.isascii() and char.isprintable()))
        odd = f"character {place} of {len(key)} is {key[place - 1]!a}"
        raise FatalJudgeError(f"{name} is not a key: {odd}, which no key has; copy the key again")
    return key


def call_factory(name: str) -> object:
    """Import `module`, call `factory` without arguments; raises FatalJudgeError that states what is missing."""
    try:
        return call_object(name)
    except UserCodeError as error:
        raise FatalJudgeError(str(error)) from error.__cause__


# --- rows of providers.toml


@dataclass(frozen=True, kw_only=True)
class Variables:
    """The variables of the environment that a message names, and the usual form of an address."""

    key: str
    address: str
    usual: str = ""


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A row of `providers.toml`, which describes its fields; `name` is the part of a judge's name before the colon."""

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
    def variables(self) -> Variables:
        """The variables that messages name."""
        keys, addresses = " or ".join(self.keys or self.secrets), " or ".join(self.addresses)
        return Variables(key=keys or f"the key of {self.name}", address=addresses or f"the address of {self.name}")

    def require_package(self, judge: str) -> None:
        """Raise FatalJudgeError with the line that installs a missing package."""
        missing = [name for name in ("langchain", self.package) if find_spec(name) is None]
        if missing:
            line = f'"evalhouse[{self.extra}]"' if self.extra else f"langchain {self.package.replace('_', '-')}"
            raise FatalJudgeError(f"{judge} needs the package {' and '.join(missing)}: pip install {line}")

    def find_min_cached(self, model: str) -> int | None:
        """Return the tokens from which a marked beginning is cached for a model; None if the provider has no marks."""
        fitting = [name for name in self.cached_from if model.startswith(name)]
        return self.cached_from[max(fitting, key=len)] if fitting else None

    def read_key(self, judge: str, address: str) -> str:
        """Return the key of the environment; raises FatalJudgeError if the provider's own address requires one."""
        values = {name: read_key_variable(name) for name in (*self.keys, *self.secrets)}
        for secret in filter(None, values.values()):
            note_secret(secret)
        key = next((value for name in self.keys if (value := values[name])), None)
        if key is None and self.keys and (address == self.address or not self.address):
            lexical = name_setting("judge", "lexical")
            raise FatalJudgeError(f"{self.keys[0]} is not set; set it to your key for {judge}, or use {lexical}")
        return key or "no-key"


@cache
def load_table() -> Mapping[str, Any]:
    """Return `providers.toml`."""
    return tomllib.loads(files("evalhouse.tasks.models").joinpath("providers.toml").read_text(encoding="utf-8"))


@cache
def load_providers() -> Mapping[str, Provider]:
    """Return all providers by the part of a judge's name before the colon, the rows of the table first."""
    table = load_table()
    rows = {name: Provider(name=name, **row) for name, row in table["providers"].items()}
    others = {name: Provider(name=name, langchain=name, package=package) for name, package in table["others"].items()}
    return rows | others | {name: row for row in rows.values() for name in row.also}


def find_provider(judge: str) -> Provider | None:
    """Return the provider of a name such as `anthropic:claude-sonnet-4-5`; None for an unknown prefix."""
    prefix, separator, model = judge.partition(":")
    return load_providers().get(prefix) if separator and model.strip() else None


def list_variables(judges: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the variables that these judges' providers read: the secret ones, and the others."""
    rows = [row for judge in judges if (row := find_provider(judge))]
    secrets = [name for row in rows for name in (*row.keys, *row.secrets)]
    return secrets, [name for row in rows for name in (*row.addresses, *row.others)]


# --- OpenAI-compatible endpoints

OPENAI_VARIABLES = Variables(key="OPENAI_API_KEY", address="OPENAI_BASE_URL", usual=", which usually ends in /v1")
_DEFAULT_ENDPOINT = "https://api.openai.com/v1"
# Servers of one model, such as llama.cpp's and vLLM, have the judge at one address and embeddings at another.
_EMBEDDINGS_ADDRESS, _EMBEDDINGS_KEY = "OPENAI_EMBEDDINGS_BASE_URL", "OPENAI_EMBEDDINGS_API_KEY"


@dataclass(frozen=True, kw_only=True)
class Access:
    """The address, key and headers of an OpenAI-compatible endpoint; `endpoint` is the stored form of its address."""

    endpoint: str
    key: SecretStr
    headers: Mapping[str, str]
    query: Mapping[str, object] | None = None
    variables: Variables = OPENAI_VARIABLES


def find_access(*, embeds: bool = False) -> Access:
    """Return the access to `openai:` models by the variables that OpenAI's own clients read, or to embeddings.

    Raises FatalJudgeError for an invalid address, or if OpenAI's own address has no key. Local endpoints usually need
    none.
    """
    has_own_address = embeds and bool(os.environ.get(_EMBEDDINGS_ADDRESS))
    names = (_EMBEDDINGS_ADDRESS,) if has_own_address else ("OPENAI_BASE_URL", "OPENAI_API_BASE")
    source = next((name for name in names if os.environ.get(name)), names[0])
    named = os.environ.get(source) or _DEFAULT_ENDPOINT
    endpoint = check_address(source, named, example="http://localhost:8000/v1")
    # An address of embeddings alone has a separate key, so that the judge's key is sent to the judge alone.
    key = read_key_variable(_EMBEDDINGS_KEY if has_own_address else "OPENAI_API_KEY")
    if key:
        note_secret(key)
    elif endpoint == _DEFAULT_ENDPOINT and not has_own_address:
        raise FatalJudgeError(
            "OPENAI_API_KEY is not set; set it, set OPENAI_BASE_URL to an endpoint that needs none, "
            f"or use {name_setting('judge', 'lexical')}"
        )
    headers: dict[str, str] = {}
    parts = urlsplit(endpoint)
    if parts.username is not None:
        # A gateway may require a login in place of a key. HTTP clients make this header of an address themselves, but
        # not if a key claims the same header.
        password = unquote(parts.password or "")
        login = f"{unquote(parts.username)}:{password}"
        for secret in (login, password, parts.password or ""):
            note_secret(secret)
        headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    return Access(endpoint=strip_credentials(endpoint), key=SecretStr(key or "no-key"), headers=headers)
