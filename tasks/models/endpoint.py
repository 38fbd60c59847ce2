"""Where models are asked and with which key: the environment's word, as OpenAI's own clients read it.

An address may hold a user and a password; what is kept of it, and said of it, has neither.
"""

import base64
import os
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.messages import redact

_DEFAULT_ENDPOINT = "https://api.openai.com/v1"


def find_endpoint() -> str:
    """The address of the environment, as OpenAI's own clients read it; raises FatalJudgeError when it is none."""
    named = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or _DEFAULT_ENDPOINT
    try:
        parts = urlsplit(named.strip())
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half a bracket
        is_address = False
    if not is_address:
        raise FatalJudgeError(
            f"OPENAI_BASE_URL is {redact(named)!r}, which is no address; write it like http://localhost:8000/v1"
        )
    return named.strip()


def read_openai_key(endpoint: str) -> SecretStr:
    """The key of the environment. A local endpoint usually wants none, so only OpenAI's own insists."""
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        return SecretStr(key)
    if endpoint == _DEFAULT_ENDPOINT:
        raise FatalJudgeError(
            "OPENAI_API_KEY is not set; set it, set OPENAI_BASE_URL to an endpoint that needs none, "
            "or use --judge lexical"
        )
    return SecretStr("no-key")


def strip_credentials(endpoint: str) -> str:
    """An endpoint's address without user and password, fit to be kept; a query, which may hold a key, is left out."""
    parts = urlsplit(endpoint)
    host = parts.netloc.rsplit("@", 1)[-1]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")


def make_login_header(endpoint: str) -> dict[str, str]:
    """The header for an address with a user and a password in it, as a gateway may want one instead of a key.

    HTTP clients make it themselves, but refuse to when a key claims the same header.
    """
    parts = urlsplit(endpoint)
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
