"""Addresses as the environment names them."""

from urllib.parse import urlsplit

from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.warehouse.messages import redact

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
