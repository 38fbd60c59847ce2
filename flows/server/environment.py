"""What Prefect is told before it is imported. Prefect reads its settings once, from the environment, from files in the
working directory and from a profile; this module reads the same places without importing Prefect (a second saved), so
that a server the user has configured is used, and fills the environment with the quiet, cheap defaults of one run on
one machine wherever the user has set nothing. `local_server` starts the server these settings describe."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

API_URL = "PREFECT_API_URL"
_PROFILES = "profiles.toml"
LOOPBACK = ("127.0.0.1", "localhost")
_TEST_MODE = (
    "PREFECT_TEST_MODE",
    "PREFECT_UNIT_TEST_MODE",
    "PREFECT_TESTING_UNIT_TEST_MODE",
    "PREFECT_TESTING_TEST_MODE",
)


@dataclass(frozen=True, kw_only=True)
class Default:
    """A value for one Prefect setting, unless the user has set it by any of its names."""

    name: str
    value: str
    aliases: tuple[str, ...] = ()


# Prefect installs a console handler on the root logger and one on its internal loggers. Muting the handlers, not the
# loggers, leaves what a server of the user's own receives as it is.
_QUIET = (
    Default(name="PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", value="CRITICAL"),
    Default(name="PREFECT_LOGGING_HANDLERS_DEBUG_LEVEL", value="CRITICAL"),
    # Without it a first import in a terminal prints a notice and reports itself to Prefect's makers.
    Default(name="DO_NOT_TRACK", value="1"),
)

# For the process that runs the flow against our own server.
_LOCAL_CLIENT = (
    Default(name="PREFECT_SERVER_EPHEMERAL_ENABLED", value="false", aliases=("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE",)),
    # The server is of the same installation: a request saved.
    Default(name="PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED", value="false"),
    # Asking for a token would make FastAPI build nearly all of its 200 routes before the first flow run: 0.4 s.
    Default(name="PREFECT_CLIENT_CSRF_SUPPORT_ENABLED", value="false"),
    Default(name="PREFECT_LOGGING_TO_API_ENABLED", value="false"),
    Default(name="PREFECT_LOGGING_LEVEL", value="CRITICAL"),
)

# For our own server. The recorder turns the client's events into task runs: with its default batch of one it costs
# three times the CPU. Everything else that listens to events, or wakes up on its own, is for schedules, automations
# and workers, which need a server that stays (`evalhouse serve`).
_LOCAL_SERVER = (
    Default(name="PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE", value="200"),
    Default(name="PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE", value="200"),
    Default(name="PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL", value="1"),
    Default(
        name="PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED",
        value="false",
        aliases=("PREFECT_API_SERVICES_EVENT_PERSISTER_ENABLED",),
    ),
    Default(
        name="PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED",
        value="false",
        aliases=("PREFECT_API_SERVICES_TRIGGERS_ENABLED",),
    ),
    Default(
        name="PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED",
        value="false",
        aliases=("PREFECT_API_EVENTS_STREAM_OUT_ENABLED",),
    ),
    # A server that stays registers them when it starts; a run needs none. 1.3 s on a fresh database.
    Default(
        name="PREFECT_SERVER_REGISTER_BLOCKS_ON_START", value="false", aliases=("PREFECT_API_BLOCKS_REGISTER_ON_START",)
    ),
    Default(name="PREFECT_SERVER_ANALYTICS_ENABLED", value="false"),
    Default(name="PREFECT_SERVER_UI_ENABLED", value="false", aliases=("PREFECT_UI_ENABLED",)),
    Default(name="DO_NOT_TRACK", value="1"),
)

# For our own server that stays (`evalhouse serve --with-server`). Events are written within a second, a quiet time is
# noticed within one, and they are kept as long as unanswered updates are looked for.
_LASTING_SERVER = (
    Default(name="PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE", value="200"),
    Default(name="PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE", value="200"),
    Default(name="PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL", value="1"),
    Default(name="PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE", value="200"),
    Default(
        name="PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE",
        value="200",
        aliases=("PREFECT_API_SERVICES_EVENT_PERSISTER_BATCH_SIZE",),
    ),
    Default(
        name="PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL",
        value="1",
        aliases=("PREFECT_API_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL",),
    ),
    Default(
        name="PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY",
        value="PT1S",
        aliases=("PREFECT_EVENTS_PROACTIVE_GRANULARITY",),
    ),
    Default(name="PREFECT_SERVER_EVENTS_RETENTION_PERIOD", value="P30D", aliases=("PREFECT_EVENTS_RETENTION_PERIOD",)),
    Default(
        name="PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS",
        value="5",
        aliases=("PREFECT_DEPLOYMENT_CONCURRENCY_SLOT_WAIT_SECONDS",),
    ),
    # In memory, a server that is killed would forget who holds a deployment's one slot, and never give it back.
    Default(
        name="PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE", value="prefect.server.concurrency.lease_storage.filesystem"
    ),
    Default(name="PREFECT_SERVER_ANALYTICS_ENABLED", value="false"),
    Default(name="DO_NOT_TRACK", value="1"),
)


def prefect_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Where Prefect keeps its database and profiles."""
    return Path(environ.get("PREFECT_HOME") or "~/.prefect").expanduser()


def read_user_settings(environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> dict[str, str]:
    """Every Prefect setting the user made, by upper-case name, the strongest source winning as in Prefect itself:
    environment, `.env`, `prefect.toml`, `[tool.prefect]` of `pyproject.toml`, active profile.

    `folder` is the working directory when None. A file that cannot be parsed is left for Prefect to complain about."""
    folder = folder or Path.cwd()
    in_env_file = _read_env_file(folder / ".env")
    in_toml = _read_toml(folder / "prefect.toml")
    in_pyproject = _read_toml(folder / "pyproject.toml").get("tool", {}).get("prefect", {})
    found: dict[str, str] = {}
    if not any(environ.get(name) for name in _TEST_MODE):
        profiles_path = (
            environ.get("PREFECT_PROFILES_PATH")
            or in_env_file.get("PREFECT_PROFILES_PATH")
            or in_toml.get("profiles_path")
            or in_pyproject.get("profiles_path")
            or prefect_home(environ) / _PROFILES
        )
        found |= _active_profile(_read_toml(folder / str(profiles_path)), environ.get("PREFECT_PROFILE"))
    found |= dict(_flatten(in_pyproject))
    found |= dict(_flatten(in_toml))
    found |= in_env_file
    # An empty variable is no setting: `PREFECT_API_URL= evalhouse run` starts a server of its own.
    found |= {name: value for name, value in environ.items() if value and name.startswith(("PREFECT_", "DO_NOT_TRACK"))}
    return found


def find_api_url(environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> str | None:
    """The server the user has chosen, wherever Prefect would find it, or None: then a local one is to be started."""
    return read_user_settings(environ, folder).get(API_URL) or None


def configure_prefect_environment(api_url: str | None, *, auth_string: str | None = None) -> None:
    """Prepares this process for `import prefect`; to be called before it.

    With `api_url`, the URL of our own server, and its `auth_string`: that server is used, and nothing is shipped to
    it but runs, states and artifacts. With None the server is the user's: only the terminal is kept quiet. What the
    user has set stays, except `PREFECT_API_URL` and `PREFECT_API_AUTH_STRING` when they are given here, and
    `NO_PROXY`, to which this machine is added."""
    if api_url is None:
        _fill(os.environ, _QUIET, read_user_settings())
        return
    _fill(os.environ, _QUIET + _LOCAL_CLIENT, read_user_settings())
    os.environ[API_URL] = api_url
    if auth_string is not None:
        os.environ["PREFECT_API_AUTH_STRING"] = auth_string
    _bypass_proxies(os.environ)


def configure_serving_environment(api_url: str, *, auth_string: str | None) -> None:
    """Prepares a process that serves suites, and all that it starts, for our own server that stays."""
    _fill(os.environ, _QUIET, read_user_settings())
    os.environ[API_URL] = api_url
    if auth_string is not None:
        os.environ["PREFECT_API_AUTH_STRING"] = auth_string
    _bypass_proxies(os.environ)


def lasting_server_environment(port: int) -> dict[str, str]:
    """The environment of our own server that stays, open to this machine alone as Prefect's own is.

    Whoever wants a key to it sets PREFECT_SERVER_API_AUTH_STRING, as for any Prefect server."""
    environ = dict(os.environ)
    for name in (API_URL, *(default.name for default in _QUIET + _LOCAL_CLIENT)):
        environ.pop(name, None)
    _fill(environ, _LASTING_SERVER, read_user_settings())
    return environ | {
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_API_BASE_PATH": "/api",
        "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_LOGGING_COLORS": "false",
    }


def server_environment(auth_string: str) -> dict[str, str]:
    """The environment of our own server, with `auth_string`, `user:password`, as the only key to it.

    Its logging goes to a file, so the quiet of the terminal is taken back, whether or not this process has been
    configured before. What the user has set stays, except how clients reach the server."""
    environ = dict(os.environ)
    for name in (API_URL, *(default.name for default in _QUIET + _LOCAL_CLIENT)):
        environ.pop(name, None)
    _fill(environ, _LOCAL_SERVER, read_user_settings())
    return environ | {
        "PREFECT_SERVER_API_AUTH_STRING": auth_string,
        "PREFECT_SERVER_API_BASE_PATH": "/api",  # where `LocalServer.api_url` says
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "false",  # guards browsers; this key is in no browser
        "PREFECT_LOGGING_COLORS": "false",
    }


def _fill(environ: MutableMapping[str, str], defaults: tuple[Default, ...], chosen: Mapping[str, str]) -> None:
    for default in defaults:
        if not any(name in chosen for name in (default.name, *default.aliases)):
            environ[default.name] = default.value


def _bypass_proxies(environ: MutableMapping[str, str]) -> None:
    """Adds this machine to the hosts that are not reached through a proxy. Both spellings, because the lower-case one
    hides the other."""
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in environ.get(name, "").split(",") if host]
        if "*" not in hosts:
            environ[name] = ",".join([*hosts, *(host for host in LOOPBACK if host not in hosts)])


def _active_profile(profiles: Mapping[str, Any], chosen: str | None) -> dict[str, str]:
    name = chosen or profiles.get("active")
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
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _read_env_file(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return {
        name.strip().upper(): value.strip().strip("'\"")
        for name, _, value in pairs
        if name.strip().upper().startswith("PREFECT_")
    }
