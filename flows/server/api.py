"""Prefect's HTTP API, as far as announcing an update and serving suites need it, without the second that importing
Prefect takes: the server and the keys to it are those that Prefect itself would find. And whether that server answers,
asked before a run is begun and by `doctor`: Prefect would say so in a hundred lines, after the run is on record."""

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.server.environment import API_URL, LOOPBACK, find_api_url, read_user_settings
from evalhouse.tasks.messages import hide_credentials

_TIMEOUT_S = 20.0
_LONGEST_SHOWN = 300
# A server on SQLite answers with 503 while somebody else writes. Nothing that is asked here does harm when it is asked
# twice: events and flow runs have ids and keys of ours.
_TRY_AGAIN = (429, 502, 503)
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)
_YES = ("1", "true", "yes", "on")


class PrefectApiError(SettingsError):
    """The server cannot be asked, or has refused; says which server, what it said, and what to do."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class PrefectApi:
    """One server. `post`, `get`, `patch` and `delete` take a path below the API's address and give its JSON."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.url = settings[API_URL].rstrip("/")
        self._headers = {"Content-Type": "application/json", **_read_headers(settings)}
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=_make_context(settings))]
        if urlsplit(self.url).hostname in LOOPBACK:
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str) -> Any:  # noqa: ANN401  # whatever the server's JSON is
        return self._ask("GET", path, None)

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401
        return self._ask("POST", path, body)

    def patch(self, path: str, body: object) -> Any:  # noqa: ANN401
        return self._ask("PATCH", path, body)

    def delete(self, path: str) -> Any:  # noqa: ANN401
        return self._ask("DELETE", path, None)

    def _ask(self, method: str, path: str, body: object) -> Any:  # noqa: ANN401
        for pause_s in _PAUSES_S:
            try:
                return self._ask_once(method, path, body)
            except PrefectApiError as error:
                if error.status not in _TRY_AGAIN:
                    raise
            time.sleep(pause_s)
        return self._ask_once(method, path, body)

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
        request = urllib.request.Request(f"{self.url}{path}", data, self._headers, method=method)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                content: bytes = response.read()
        except urllib.error.HTTPError as error:
            with error:
                raise self._explain_refusal(error.code, error.read(2_000)) from None
        except urllib.error.URLError as error:
            raise self._explain_silence(str(error.reason)) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._explain_silence(str(error) or type(error).__name__) from None
        try:
            return json.loads(content) if content else None
        except ValueError:
            raise self._explain_silence("what answers there is no Prefect API, whose address ends in /api") from None

    def _explain_silence(self, problem: str) -> PrefectApiError:
        return PrefectApiError(
            f"the Prefect server at {hide_credentials(self.url)} cannot be asked: {problem}; start it "
            f"(`evalhouse serve SUITE.toml --with-server` brings one along), or mend {API_URL}"
        )

    def _explain_refusal(self, status: int, content: bytes) -> PrefectApiError:
        said = content.decode(errors="replace").strip()[:_LONGEST_SHOWN]
        advice = {
            401: "; it wants a key: set PREFECT_API_AUTH_STRING (user:password), or PREFECT_API_KEY for Prefect Cloud",
            404: f"; the API's address ends in /api: mend {API_URL}",
        }.get(status, "")
        told = f"the Prefect server at {hide_credentials(self.url)} has refused with status {status}: {said}{advice}"
        return PrefectApiError(told, status=status)


def find_api(purpose: str) -> PrefectApi:
    """The server that is configured; `purpose` is what could not be done without one, for the error."""
    settings = read_user_settings()
    if not settings.get(API_URL):
        raise SettingsError(
            f"{purpose}: no Prefect server is configured; start one together with your suites by "
            f"`evalhouse serve SUITE.toml --with-server`, which prints its address, and set {API_URL} to that, "
            "or to the address of a server of your own, such as http://127.0.0.1:4200/api"
        )
    return PrefectApi(settings)


def _read_headers(settings: Mapping[str, str]) -> dict[str, str]:
    """What lets us in, as Prefect's own client sends it."""
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
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise SettingsError('PREFECT_CLIENT_CUSTOM_HEADERS is no JSON object of texts, such as {"X-Team": "search"}')
    return {str(name): value for name, value in found.items()}


def _make_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.get("PREFECT_API_SSL_CERT_FILE") or None)
    if settings.get("PREFECT_API_TLS_INSECURE_SKIP_VERIFY", "").lower() in _YES:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


_REACH_S = 10.0


def check_prefect_server() -> None:
    """Refuse a server that was chosen and does not answer; raises SettingsError."""
    url = find_api_url()
    problem = ask_health(url) if url else None
    if url and problem:
        raise SettingsError(explain_unreachable(url, problem))


def explain_unreachable(url: str, problem: str) -> str:
    """What a person reads about a server that does not answer."""
    return (
        f"the Prefect server at {hide_credentials(url)} does not answer: {problem}; start it, mend {API_URL}, "
        "or take that away: each run then starts a server of its own"
    )


def ask_health(url: str) -> str | None:
    """What is wrong with a Prefect server, or None. One that wants a key first is well."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=_REACH_S) as response:
            content: bytes = response.read(100)
    except urllib.error.HTTPError as error:
        error.close()
        return None if error.code in (401, 403) else f"status {error.code}"
    except urllib.error.URLError as error:
        return str(error.reason)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return None if content.strip() == b"true" else "what answers there is no Prefect API, whose address ends in /api"
