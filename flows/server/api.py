"""Prefect's HTTP API as serving suites and announcing an update use it; which errors mean an outage of a server.

Server and keys are found where Prefect itself would find them. Importing this module imports no Prefect.
"""

import contextlib
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.server.environment import (
    API_URL,
    LocalServerError,
    find_api_url,
    load_server_access,
    load_user_settings,
)
from evalhouse.tasks.settings.environment import find_proxy
from evalhouse.warehouse.messages import hide_credentials

TAG: Final = "evalhouse"
"""Prefect's tag of the deployments and flow runs that evalhouse makes."""
KEYLESS: Final = (
    "it requires no key: anyone who can reach it, pages of other sites in your browser included, can run code as the "
    "users who serve suites by it or work for its pools; start it with PREFECT_SERVER_API_AUTH_STRING=user:password "
    "and PREFECT_SERVER_CORS_ALLOWED_ORIGINS set to its own address"
)
_HEALTH_TIMEOUT_S = 10.0
_MAX_SHOWN = 300
_PAUSE_S = 2.0
_NO_API = "what answers there is not Prefect's API, whose address ends in /api"
_ADVICE = {
    401: "; it requires authentication: set PREFECT_API_AUTH_STRING (user:password), or PREFECT_API_KEY for its Cloud",
    404: f"; the API's address ends in /api: correct {API_URL}",
}


def tag_run(run_id: str) -> str:
    """Return Prefect's tag of the flow runs that judge parts of a run."""
    return f"run {run_id}"


class NoAnswer(Exception):
    """A server cannot be reached or broke off; the text gives the reason without the address."""


class BadAddress(NoAnswer):
    """Nothing can be sent to an address; the text is only the kind of error, as its message may hold the address."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The status of an HTTP response, and as much of its body as was requested."""

    status: int
    content: bytes

    @property
    def is_good(self) -> bool:
        """Return whether the request was accepted."""
        return 200 <= self.status < 300


def send_request(
    method: str,
    url: str,
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    max_bytes: int | None = None,
    follow_redirects: bool = True,
) -> Answer:
    """Send one HTTP request, through the environment's proxy unless it stays on this machine; raises NoAnswer.

    An answer may take `timeout_s` from byte to byte, and little longer in all. About `max_bytes` of the response's body
    are read, all of it with None.
    """
    import httpx  # noqa: PLC0415  # a tenth of a second, which a command's help does without

    ended = threading.Event()

    def end() -> None:
        ended.set()
        client.close()

    try:
        with contextlib.ExitStack() as stack:
            client = httpx.Client(
                proxy=find_proxy(url),
                # httpx itself would fail at an ALL_PROXY in the environment that nothing here uses.
                trust_env=False,
                verify=ssl.create_default_context(),
                timeout=timeout_s,
                follow_redirects=follow_redirects,
            )
            stack.enter_context(client)
            # httpx waits `timeout_s` for each byte; a server that sends one now and then would hold it for ever.
            timer = threading.Timer(timeout_s, end)
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)
            response = stack.enter_context(client.stream(method, url, headers=headers, content=body))
            content = bytearray()
            if max_bytes != 0:
                for chunk in response.iter_bytes():
                    content += chunk
                    if max_bytes is not None and len(content) >= max_bytes:
                        break
            return Answer(status=response.status_code, content=bytes(content))
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, ValueError, ImportError) as error:
        raise BadAddress(type(error).__name__) from None
    except (httpx.HTTPError, OSError, RuntimeError) as error:  # RuntimeError: of a client that was closed
        if ended.is_set():
            raise NoAnswer(f"it did not complete its answer within {timeout_s:g} s") from None
        raise NoAnswer(str(error) or type(error).__name__) from None


class PrefectApiError(SettingsError):
    """The server did not answer or refused; the text names the server, the reason and what to do.

    `status` is that of the refusal, None without an answer.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class PrefectApi:
    """One server, called by Prefect's own client, which tries again while the server is busy.

    `get`, `post`, `patch` and `delete` take a path below the API's address and return its JSON. A server that does not
    answer at all is called again for `patience_s` seconds. No call here does harm when it is repeated: events and flow
    runs have ids and keys that evalhouse gives them.
    """

    def __init__(self, settings: Mapping[str, str], *, patience_s: float = 0.0) -> None:
        self.url = settings[API_URL].rstrip("/")
        self._keys: dict[str, Any] = {
            "auth_string": settings.get("PREFECT_API_AUTH_STRING"),
            "api_key": settings.get("PREFECT_API_KEY"),
        }
        self._patience_s = patience_s

    def get(self, path: str) -> Any:  # noqa: ANN401  # the server's JSON
        return self._request("GET", path, None)

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401
        return self._request("POST", path, body)

    def patch(self, path: str, body: object) -> Any:  # noqa: ANN401
        return self._request("PATCH", path, body)

    def delete(self, path: str) -> None:
        self._request("DELETE", path, None)

    def _request(self, method: Literal["GET", "POST", "PATCH", "DELETE"], path: str, body: object) -> Any:  # noqa: ANN401
        import httpx  # noqa: PLC0415  # these take a second, which a command's help does without
        from prefect.client.orchestration import SyncPrefectClient  # noqa: PLC0415

        deadline = time.monotonic() + self._patience_s
        server = hide_credentials(self.url)
        while True:
            try:
                # A new client fails at once if no server listens; one that was connected before waits for a minute.
                with SyncPrefectClient(self.url, **self._keys) as client:
                    response = client.request(method, cast("Any", path), json=body)
                return response.json() if response.content else None
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                reason = error.response.text.strip()[:_MAX_SHOWN]
                refusal = f"has refused with status {status}: {reason}{_ADVICE.get(status, '')}"
                raise PrefectApiError(f"the Prefect server at {server} {refusal}", status=status) from None
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


def find_api(purpose: str, *, patience_s: float = 0.0, finds_served: bool = False) -> PrefectApi:
    """Return the API of the configured server; without one the error names `purpose`, which cannot be done then.

    `finds_served` takes the server of `evalhouse serve --with-server` where none is configured.
    """
    settings = load_user_settings()
    if finds_served and not settings.get(API_URL):
        settings |= load_server_access()
    if not settings.get(API_URL):
        raise SettingsError(
            f"{purpose}: no Prefect server is configured; start one together with your suites by "
            f"`evalhouse serve SUITE.toml --with-server`, which prints its address, and set {API_URL} to that, "
            "or to the address of your own server, such as http://127.0.0.1:4200/api"
        )
    return PrefectApi(settings, patience_s=patience_s)


def check_prefect_server() -> str | None:
    """Return the address of the configured server, None without one; raises PrefectApiError if it does not answer."""
    url = find_api_url()
    if url is None:
        return None
    try:
        answer = send_request("GET", f"{url.rstrip('/')}/health", timeout_s=_HEALTH_TIMEOUT_S, max_bytes=100)
        if answer.status in (401, 403):  # it is there, and requires a key
            return url
        problem = f"status {answer.status}" if not answer.is_good else _NO_API
        if answer.is_good and answer.content.strip() == b"true":
            return url
    except NoAnswer as error:
        problem = str(error)
    raise PrefectApiError(  # of a served night it is an outage
        f"the Prefect server at {hide_credentials(url)} does not answer: {problem}; start it, correct {API_URL}, or "
        "unset that: each run then starts a server for itself"
    )


def is_keyless(url: str) -> bool:
    """Return whether a Prefect server accepts requests without a key."""
    try:
        return send_request("GET", f"{url.rstrip('/')}/version", timeout_s=_HEALTH_TIMEOUT_S, max_bytes=100).is_good
    except NoAnswer:
        return False


def is_outage(error: BaseException | None) -> bool:
    """Return whether an error, its cause, or all errors of a group mean that a warehouse or the server was away.

    A run that ends by an outage keeps its status; `evalhouse serve` resumes it like one whose process was killed.
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
        return error.status is None
    # Errors of httpx come from Prefect's client alone: judges and applications under test raise errors of evalhouse.
    if (httpx := sys.modules.get("httpx")) is not None:
        if isinstance(error, httpx.HTTPStatusError):
            return bool(error.response.status_code >= 500)
        if isinstance(error, httpx.TransportError):
            return True
    return is_broken_catalogue(error) or is_outage(error.__cause__)


def describe_outage(error: BaseException) -> str:
    """Return an outage in a line, for an error without a message for a person."""
    text = " ".join(str(error).split())
    return f"the Prefect server cannot be reached ({text or type(error).__name__})"
