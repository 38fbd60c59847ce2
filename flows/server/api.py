"""Prefect's HTTP API as serving suites and announcing an update use it, whether a server answers and wants a key, and
which errors say that a server or a warehouse was away.

The server and the keys to it are those that Prefect itself would find, without the second that importing Prefect takes.
"""

import base64
import json
import ssl
import sys
import time
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
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
_TIMEOUT_S = 20.0
_HEALTH_TIMEOUT_S = 10.0
_LONGEST_SHOWN = 300
# A server on SQLite answers with 503 while another process writes. Nothing that is asked here does harm when it is
# asked twice: events and flow runs have ids and keys of ours.
_TRY_AGAIN = (429, 502, 503)
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)
_NO_API = "what answers there is not Prefect's API, whose address ends in /api"
_YES = ("1", "true", "yes", "on")


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
    context: ssl.SSLContext | None = None,
    most_bytes: int | None = None,
    follows: bool = True,
) -> Answer:
    """One HTTP request, by the environment's proxy unless it stays on this machine.

    `context` None trusts this machine's certificates; `most_bytes` None reads the whole body, else about so much of it;
    `follows` says whether redirects are followed. Raises NoAnswer.
    """
    import httpx  # noqa: PLC0415  # a tenth of a second, which a command's help can do without

    try:
        with (
            httpx.Client(
                proxy=_find_proxy(url),
                # Not httpx's own reading of the environment: it fails at an ALL_PROXY that nothing here would use.
                trust_env=False,
                verify=context or ssl.create_default_context(),
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


def _find_proxy(url: str) -> str | None:
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or parts.hostname in LOOPBACK or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


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
    """One server. `post`, `get`, `patch` and `delete` take a path below the API's address and give its JSON.

    A server that does not answer at all is asked again for `patience_s` seconds.
    """

    def __init__(self, settings: Mapping[str, str], *, patience_s: float = 0.0) -> None:
        self.url = settings[API_URL].rstrip("/")
        self._patience_s = patience_s
        self._headers = {"Content-Type": "application/json", **_read_headers(settings)}
        self._context = _make_context(settings)

    def get(self, path: str) -> Any:  # noqa: ANN401  # whatever the server's JSON is
        return self._ask("GET", path, None)

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401
        return self._ask("POST", path, body)

    def patch(self, path: str, body: object) -> Any:  # noqa: ANN401
        return self._ask("PATCH", path, body)

    def delete(self, path: str) -> None:
        self._ask("DELETE", path, None)

    def _ask(self, method: str, path: str, body: object) -> Any:  # noqa: ANN401
        deadline, pauses_s = time.monotonic() + self._patience_s, iter(_PAUSES_S)
        while True:
            pause_s = next(pauses_s, None)
            try:
                return self._ask_once(method, path, body)
            except PrefectApiError as error:
                if error.is_silence and time.monotonic() < deadline:
                    pause_s = pause_s or _PAUSES_S[-1]
                elif error.status not in _TRY_AGAIN or pause_s is None:
                    raise
            time.sleep(pause_s)

    def _ask_once(self, method: str, path: str, body: object) -> Any:  # noqa: ANN401
        try:
            return self._send(method, path, body)
        except PrefectApiError as error:
            # A server that guards against foreign browsers wants a token of its own making beside the key.
            if error.status != 403 or ("csrf" not in str(error).lower() and "client identifier" not in str(error)):
                raise
        client = str(uuid.uuid4())
        token = self._send("GET", f"/csrf-token?client={client}", None)["token"]
        self._headers |= {"Prefect-Csrf-Client": client, "Prefect-Csrf-Token": token}
        return self._send(method, path, body)

    def _send(self, method: str, path: str, body: object) -> Any:  # noqa: ANN401
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        try:
            answer = send_request(
                method,
                f"{self.url}{path}",
                timeout_s=_TIMEOUT_S,
                headers=self._headers,
                body=data,
                context=self._context,
            )
        except NoAnswer as error:
            raise self._explain_silence(str(error)) from None
        if not answer.is_good:
            raise self._explain_refusal(answer.status, answer.content)
        try:
            return json.loads(answer.content) if answer.content else None
        except ValueError:
            raise self._explain_silence(_NO_API) from None

    def _explain_silence(self, problem: str) -> PrefectApiError:
        return PrefectApiError(
            f"the Prefect server at {hide_credentials(self.url)} cannot be asked: {problem}; start it "
            f"(`evalhouse serve SUITE.toml --with-server` brings one along), or correct {API_URL}"
        )

    def _explain_refusal(self, status: int, content: bytes) -> PrefectApiError:
        reason = content.decode(errors="replace").strip()[:_LONGEST_SHOWN]
        advice = {
            401: "; it wants a key: set PREFECT_API_AUTH_STRING (user:password), or PREFECT_API_KEY for Prefect Cloud",
            404: f"; the API's address ends in /api: correct {API_URL}",
        }.get(status, "")
        server = hide_credentials(self.url)
        message = f"the Prefect server at {server} has refused with status {status}: {reason}{advice}"
        return PrefectApiError(message, status=status)


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


def _read_headers(settings: Mapping[str, str]) -> dict[str, str]:
    """The credentials, as Prefect's own client sends them."""
    headers: dict[str, str] = {}
    custom = settings.get("PREFECT_CLIENT_CUSTOM_HEADERS")
    if custom:
        headers |= _parse_headers(custom)
    if settings.get("PREFECT_API_AUTH_STRING"):
        encoded = base64.b64encode(settings["PREFECT_API_AUTH_STRING"].encode()).decode()
        headers["Authorization"] = f"Basic {encoded}"
    if settings.get("PREFECT_API_KEY"):
        headers["Authorization"] = f"Bearer {settings['PREFECT_API_KEY']}"
    return headers


def _parse_headers(text: str) -> dict[str, str]:
    try:
        headers = json.loads(text)
    except ValueError:
        headers = None
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise SettingsError('PREFECT_CLIENT_CUSTOM_HEADERS is not a JSON object of texts, such as {"X-Team": "search"}')
    return {str(name): value for name, value in headers.items()}


def _make_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.get("PREFECT_API_SSL_CERT_FILE") or None)
    if settings.get("PREFECT_API_TLS_INSECURE_SKIP_VERIFY", "").lower() in _YES:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


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
