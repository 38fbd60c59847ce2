"""Prefect's HTTP API as serving suites and announcing an update use it, whether a server answers and wants a key, and
which errors say that a server or a warehouse was away.

The server and the keys to it are those that Prefect itself would find. Importing this imports no Prefect.
"""

import ssl
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.server.environment import API_URL, LOOPBACK, LocalServerError, find_api_url, read_user_settings
from evalhouse.warehouse.messages import hide_credentials

TAG: Final = "evalhouse"
"""Prefect's tag of deployments and flow runs that are ours."""
KEYLESS: Final = (
    "it asks nobody for a key: who can reach it, pages of other sites in your browser included, can run code as those "
    "who serve suites by it or work for its pools; start it with PREFECT_SERVER_API_AUTH_STRING=user:password and "
    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS set to its own address"
)
_HEALTH_TIMEOUT_S = 10.0
_LONGEST_SHOWN = 300
_PAUSE_S = 2.0
_NO_API = "what answers there is not Prefect's API, whose address ends in /api"
_ADVICE = {
    401: "; it requires authentication: set PREFECT_API_AUTH_STRING (user:password), or PREFECT_API_KEY for its Cloud",
    404: f"; the API's address ends in /api: correct {API_URL}",
}


def tag_run(run_id: str) -> str:
    """Prefect's tag of the flow runs that judge parts of a run."""
    return f"run {run_id}"


class NoAnswer(Exception):
    """A server cannot be reached or has broken off; says why, without its address."""


class BadAddress(NoAnswer):
    """Nothing can be sent to an address; names the kind of error alone, as its text may hold the address."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A status and as much of the body as was asked for."""

    status: int
    content: bytes

    @property
    def is_good(self) -> bool:
        """Whether the request was taken."""
        return 200 <= self.status < 300


def send_request(
    method: str,
    url: str,
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    most_bytes: int | None = None,
    follows: bool = True,
) -> Answer:
    """One HTTP request, by the environment's proxy unless it stays on this machine.

    `most_bytes` None reads the whole body, else about so much of it;
    `follows` says whether redirects are followed. Raises NoAnswer.
    """
    import httpx  # noqa: PLC0415  # a tenth of a second, which a command's help can do without

    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if parts.hostname in LOOPBACK or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        proxy = None
    elif proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        with (
            httpx.Client(
                proxy=proxy or None,
                # Not httpx's own reading of the environment: it fails at an ALL_PROXY that nothing here would use.
                trust_env=False,
                verify=ssl.create_default_context(),
                timeout=timeout_s,
                follow_redirects=follows,
            ) as client,
            client.stream(method, url, headers=headers, content=body) as response,
        ):
            content = bytearray()
            if most_bytes != 0:
                for chunk in response.iter_bytes():
                    content += chunk
                    if most_bytes is not None and len(content) >= most_bytes:
                        break
            return Answer(status=response.status_code, content=bytes(content))
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, ValueError, ImportError) as error:
        raise BadAddress(type(error).__name__) from None
    except (httpx.HTTPError, OSError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from None


class PrefectApiError(SettingsError):
    """The server cannot be asked, or has refused; says which server, what it said, and what to do."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_silence(self) -> bool:
        """Whether nobody has answered."""
        return self.status is None


class PrefectApi:
    """One server, asked by Prefect's own client, which tries again where a server is busy.

    `post`, `get`, `patch` and `delete` take a path below the API's address and give its JSON. A server that does not
    answer at all is asked again for `patience_s` seconds. Nothing that is asked here does harm when it is asked twice:
    events and flow runs have ids and keys of ours.
    """

    def __init__(self, settings: Mapping[str, str], *, patience_s: float = 0.0) -> None:
        self.url = settings[API_URL].rstrip("/")
        self._keys: dict[str, Any] = {
            "auth_string": settings.get("PREFECT_API_AUTH_STRING"),
            "api_key": settings.get("PREFECT_API_KEY"),
        }
        self._patience_s = patience_s

    def get(self, path: str) -> Any:  # noqa: ANN401  # whatever the server's JSON is
        return self._ask("GET", path, None)

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401
        return self._ask("POST", path, body)

    def patch(self, path: str, body: object) -> Any:  # noqa: ANN401
        return self._ask("PATCH", path, body)

    def delete(self, path: str) -> None:
        self._ask("DELETE", path, None)

    def _ask(self, method: Literal["GET", "POST", "PATCH", "DELETE"], path: str, body: object) -> Any:  # noqa: ANN401
        import httpx  # noqa: PLC0415  # these take a second, which a command's help can do without
        from prefect.client.orchestration import SyncPrefectClient  # noqa: PLC0415

        deadline = time.monotonic() + self._patience_s
        server = hide_credentials(self.url)
        while True:
            try:
                # A new client fails at once where nobody listens; one that was connected before waits for a minute.
                with SyncPrefectClient(self.url, **self._keys) as client:
                    response = client.request(method, cast("Any", path), json=body)
                return response.json() if response.content else None
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                reason = error.response.text.strip()[:_LONGEST_SHOWN]
                said = f"has refused with status {status}: {reason}{_ADVICE.get(status, '')}"
                raise PrefectApiError(f"the Prefect server at {server} {said}", status=status) from None
            except ValueError:
                problem = _NO_API
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                problem = str(error) or type(error).__name__
            if time.monotonic() >= deadline:
                raise PrefectApiError(
                    f"the Prefect server at {server} cannot be asked: {problem}; start it "
                    f"(`evalhouse serve SUITE.toml --with-server` brings one along), or correct {API_URL}"
                )
            time.sleep(_PAUSE_S)


def find_api(purpose: str, *, patience_s: float = 0.0) -> PrefectApi:
    """The server that is configured; `purpose` is what could not be done without one, for the error."""
    settings = read_user_settings()
    if not settings.get(API_URL):
        raise SettingsError(
            f"{purpose}: no Prefect server is configured; start one together with your suites by "
            f"`evalhouse serve SUITE.toml --with-server`, which prints its address, and set {API_URL} to that, "
            "or to the address of your own server, such as http://127.0.0.1:4200/api"
        )
    return PrefectApi(settings, patience_s=patience_s)


def check_prefect_server() -> None:
    """Refuse a server that was chosen and does not answer; raises SettingsError."""
    url = find_api_url()
    problem = ask_health(url) if url else None
    if url and problem:
        raise SettingsError(explain_unreachable(url, problem))


def is_keyless(url: str) -> bool:
    """Whether a Prefect server lets in who has no key."""
    try:
        return send_request("GET", f"{url.rstrip('/')}/version", timeout_s=_HEALTH_TIMEOUT_S, most_bytes=100).is_good
    except NoAnswer:
        return False


def explain_unreachable(url: str, problem: str) -> str:
    """What a person reads about a server that does not answer."""
    return (
        f"the Prefect server at {hide_credentials(url)} does not answer: {problem}; start it, correct {API_URL}, "
        "or take that away: each run then starts a server of its own"
    )


def ask_health(url: str) -> str | None:
    """What is wrong with a Prefect server, or None. One that wants a key first is well."""
    try:
        answer = send_request("GET", f"{url.rstrip('/')}/health", timeout_s=_HEALTH_TIMEOUT_S, most_bytes=100)
    except NoAnswer as error:
        return str(error)
    if answer.status in (401, 403):
        return None
    if not answer.is_good:
        return f"status {answer.status}"
    return None if answer.content.strip() == b"true" else _NO_API


def is_outage(error: BaseException | None) -> bool:
    """Return whether an error, its cause, or all errors of a group say that a warehouse or the server was away.

    Such a run has no end of its own; `evalhouse serve` takes it up again, as it does one whose process was killed.
    """
    from evalhouse.warehouse.engine.lake import is_broken_catalogue  # noqa: PLC0415  # announcing an update does without
    from evalhouse.warehouse.errors import WarehouseBusy  # noqa: PLC0415

    if error is None:
        return False
    if isinstance(error, BaseExceptionGroup):
        return all(is_outage(part) for part in error.exceptions)
    if isinstance(error, WarehouseBusy | LocalServerError):
        return True
    if isinstance(error, PrefectApiError):
        return error.is_silence
    # Those of httpx come from Prefect's client alone: judges and applications under test have errors of our own.
    if (httpx := sys.modules.get("httpx")) is not None:
        if isinstance(error, httpx.HTTPStatusError):
            return bool(error.response.status_code >= 500)
        if isinstance(error, httpx.TransportError):
            return True
    return is_broken_catalogue(error) or is_outage(error.__cause__)


def describe_outage(error: BaseException) -> str:
    """Return an outage in a line, for an error that has no words for a person."""
    text = " ".join(str(error).split())
    return f"the Prefect server cannot be reached ({text or type(error).__name__})"
