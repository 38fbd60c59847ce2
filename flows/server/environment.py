"""The settings that Prefect gets before it is imported.

Prefect reads its settings once, from the environment, from files in the working directory and from a profile; this
module reads the same places without importing Prefect (a second saved, and an import would settle them), so that a
server the user has configured is used, and fills the environment with the quiet, cheap defaults of one run on one
machine (`prefect_defaults.yaml`) wherever the user has set nothing. `local` starts the server these settings describe.
"""

import os
import secrets
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

API_URL = "PREFECT_API_URL"
LOOPBACK = ("127.0.0.1", "localhost")
SERVER_ACCESS: Final = "evalhouse-server.env"
"""In Prefect's folder: the address and the key of the server of `evalhouse serve --with-server`, for its user alone."""
_KEY = "PREFECT_API_AUTH_STRING"
_SERVER_KEY = "PREFECT_SERVER_API_AUTH_STRING"
_TEST_MODE = (
    "PREFECT_TEST_MODE",
    "PREFECT_UNIT_TEST_MODE",
    "PREFECT_TESTING_UNIT_TEST_MODE",
    "PREFECT_TESTING_TEST_MODE",
)


class LocalServerError(Exception):
    """The local Prefect server did not start, or died. The message ends with what it logged last."""


def prefect_home() -> Path:
    """Where Prefect keeps its database and profiles."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()


def read_user_settings() -> dict[str, str]:
    """Every Prefect setting the user made, by upper-case name, the strongest source winning as in Prefect itself:
    environment, `.env`, `prefect.toml`, `[tool.prefect]` of `pyproject.toml`, active profile.

    A file that cannot be parsed is left for Prefect to complain about. The key of our own server that stays is added
    where its address is chosen and no key is.
    """
    folder = Path.cwd()
    in_env_file = _read_env_file(folder / ".env")
    in_toml = _read_toml(folder / "prefect.toml")
    in_pyproject = _read_toml(folder / "pyproject.toml").get("tool", {}).get("prefect", {})
    settings: dict[str, str] = {}
    if not any(os.environ.get(name) for name in _TEST_MODE):
        profiles_path = (
            os.environ.get("PREFECT_PROFILES_PATH")
            or in_env_file.get("PREFECT_PROFILES_PATH")
            or in_toml.get("profiles_path")
            or in_pyproject.get("profiles_path")
            or prefect_home() / "profiles.toml"
        )
        settings |= _read_profile(_read_toml(folder / str(profiles_path)))
    settings |= dict(_flatten(in_pyproject))
    settings |= dict(_flatten(in_toml))
    settings |= in_env_file
    # An empty variable does not count as set: `PREFECT_API_URL= evalhouse run` starts a server of its own.
    names = ("PREFECT_", "DO_NOT_TRACK")
    settings |= {name: value for name, value in os.environ.items() if value and name.startswith(names)}
    if API_URL in settings and not settings.keys() & {_KEY, "PREFECT_API_KEY"}:
        kept = _read_env_file(prefect_home() / SERVER_ACCESS)
        # To no other address is the key ever sent.
        if kept.keys() >= {API_URL, _KEY} and _locate(settings[API_URL]) == _locate(kept[API_URL]):
            settings[_KEY] = kept[_KEY]
    return settings


def _locate(api_url: str) -> str:
    """An address with one name for this machine."""
    name = api_url.rstrip("/")
    return name.replace("://localhost:", "://127.0.0.1:", 1)


def find_api_url() -> str | None:
    """The server the user has chosen, wherever Prefect would find it, or None: then a local one is to be started."""
    return read_user_settings().get(API_URL) or None


def configure_prefect_environment(api_url: str | None, *, auth_string: str | None = None) -> None:
    """Prepare this process for `import prefect`; to be called before it.

    With `api_url`, the URL of our own server, and its `auth_string`: that server is used, and nothing is shipped to
    it but runs, states and artifacts. With None the server is the user's: only the terminal is kept quiet. What the
    user has set stays, except `PREFECT_API_URL` and `PREFECT_API_AUTH_STRING` when they are given here, and
    `NO_PROXY`, to which this machine is added.
    """
    if api_url is None:
        _fill(os.environ, "quiet")
        settings = read_user_settings()
        if key := settings.get(_KEY):
            os.environ[_KEY] = key
        if urlsplit(settings.get(API_URL, "")).hostname in LOOPBACK:
            _reach_without_proxy()
        return
    _fill(os.environ, "quiet", "client")
    _use_own_server(api_url, auth_string)


def configure_serving_environment(api_url: str, *, auth_string: str | None) -> None:
    """Prepare a process that serves suites, and all that it starts, for our own server that stays."""
    _fill(os.environ, "quiet")
    _use_own_server(api_url, auth_string)


def make_lasting_key(port: int) -> tuple[str, str]:
    """The key to our own server that stays, `user:password`, and what its user reads of it: the key itself once only.

    It is the user's own, by either of Prefect's settings for it, or one that is made at the first start and kept with
    the server's address where only its user can read it. Without a key every page of the web that this user opens, and
    every other user of the machine, could run code as this one by way of the server.
    """
    settings, path = read_user_settings(), prefect_home() / SERVER_ACCESS
    if chosen := settings.get(_SERVER_KEY) or settings.get(_KEY):
        return chosen, "the one that you have set; the browser asks for it"
    kept = _read_env_file(path).get(_KEY)
    key = kept or f"evalhouse:{secrets.token_urlsafe(24)}"
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{API_URL}=http://127.0.0.1:{port}/api\n{_KEY}={key}\n")
    draft.replace(path)
    place = f"kept in {path}, where your own evalhouse commands find it"
    return key, f"{place}; the browser asks for it" if kept else f"{key} is what the browser asks for; it is {place}"


def lasting_server_environment(port: int, auth_string: str) -> dict[str, str]:
    """The environment of our own server that stays, open to this machine alone and to who has its key."""
    return _make_server_environment("lasting server", port) | {
        _SERVER_KEY: auth_string,
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api",
    }


def server_environment(port: int, auth_string: str) -> dict[str, str]:
    """The environment of our own server for one run, with `auth_string`, `user:password`, as the only key to it."""
    return _make_server_environment("server of a run", port) | {
        _SERVER_KEY: auth_string,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "false",  # guards browsers; this key is in no browser
    }


def _make_server_environment(group: str, port: int) -> dict[str, str]:
    """Its logging goes to a file, so the quiet of the terminal is taken back, whether or not this process has been
    configured before. What the user has set stays, except how clients reach the server."""
    chosen = read_user_settings()
    environ = dict(os.environ)
    for name in (API_URL, *_read_defaults()["quiet"], *_read_defaults()["client"]):
        environ.pop(name, None)
    _fill(environ, "server", group)
    if not chosen.keys() & {"PREFECT_SERVER_CORS_ALLOWED_ORIGINS", "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"}:
        # Prefect's own default lets pages of all sites use its API.
        environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(f"http://{host}:{port}" for host in LOOPBACK)
    # The path is where `LocalServer.api_url` says.
    return environ | {"PREFECT_SERVER_API_BASE_PATH": "/api", "PREFECT_LOGGING_COLORS": "false"}


def _fill(environ: MutableMapping[str, str], *groups: str) -> None:
    """Set the defaults of these groups that the user has not set by any name."""
    chosen, aliases = read_user_settings(), _read_defaults()["aliases"]
    for group in groups:
        for name, value in _read_defaults()[group].items():
            if name not in chosen and aliases.get(name) not in chosen:
                environ[name] = value


@cache
def _read_defaults() -> dict[str, dict[str, str]]:
    """Values by name, by group, and under `aliases` the other names of some."""
    text = files(__package__).joinpath("prefect_defaults.yaml").read_text(encoding="utf-8")
    groups: dict[str, dict[str, str]] = yaml.safe_load(text)
    return groups


def _use_own_server(api_url: str, auth_string: str | None) -> None:
    os.environ[API_URL] = api_url
    if auth_string is not None:
        os.environ["PREFECT_API_AUTH_STRING"] = auth_string
    _reach_without_proxy()


def _reach_without_proxy() -> None:
    """Have this machine reached directly. Both spellings, because the lower-case one hides the other."""
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        if "*" not in hosts:
            os.environ[name] = ",".join([*hosts, *(host for host in LOOPBACK if host not in hosts)])


def _read_profile(profiles: Mapping[str, Any]) -> dict[str, str]:
    name = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    return {key.upper(): str(value) for key, value in profiles.get("profiles", {}).get(name, {}).items()}


def _flatten(table: Mapping[str, Any], prefix: str = "PREFECT") -> Iterator[tuple[str, str]]:
    """`{"api": {"url": u}}` as `("PREFECT_API_URL", u)`."""
    for key, value in table.items():
        name = f"{prefix}_{key.upper()}"
        if isinstance(value, dict):
            yield from _flatten(value, name)
        else:
            yield name, str(value)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}


def _read_env_file(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines)
    named = ((name.strip().upper(), value.strip().strip("'\"")) for name, _, value in pairs)
    return {name: value for name, value in named if name.startswith("PREFECT_")}
