"""Addresses as the environment names them."""

from urllib.parse import urlsplit

from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.messages import redact


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
