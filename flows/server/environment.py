"""The variables of the environment, in the form that libraries read, and the settings that Prefect gets from them.

httpx, aiohttp, urllib, websockets and the clients of providers each read keys, addresses, proxies and certificates by
other rules, and fail far from the cause: `prepare_environment` tidies or refuses these before any of them is imported.

Prefect reads its settings once, from the environment, from files in the working directory and from a profile. This
module reads the same places without importing Prefect, which takes a second and settles them, so that a server the user
has configured is used; it fills the environment with quiet, cheap defaults (`prefect_defaults.yaml`) for every setting
the user has not made. `local` starts the server that these settings describe.
"""

import os
import re
import secrets
import ssl
import tomllib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from evalhouse.flows.errors import SettingsError

API_URL = "PREFECT_API_URL"
SERVER_ACCESS: Final = "evalhouse-server.env"
"""The file in Prefect's folder with address and key of the server of `evalhouse serve --with-server`."""
_KEY = "PREFECT_API_AUTH_STRING"
_NO_PROXY = ("NO_PROXY", "no_proxy")
_SERVER_KEY = "PREFECT_SERVER_API_AUTH_STRING"
_ORIGINS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"
_LOGGING: Final = ("PREFECT_LOGGING_CONFIG_PATH", "PREFECT_LOGGING_SETTINGS_PATH")
_TEST_MODE = (
    "PREFECT_TEST_MODE",
    "PREFECT_UNIT_TEST_MODE",
    "PREFECT_TESTING_UNIT_TEST_MODE",
    "PREFECT_TESTING_TEST_MODE",
)
LOOPBACK: Final = ("127.0.0.1", "localhost")
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_CERTIFICATES: Final = ("SSL_CERT_FILE", "PREFECT_API_SSL_CERT_FILE")
_PROVIDERS: Final = "OPENAI|AZURE_OPENAI|ANTHROPIC|GOOGLE|GEMINI|MISTRAL|OLLAMA|AWS|LANGSMITH|LANGCHAIN"
_READ: Final = re.compile(
    rf"(?:{_PROVIDERS}|PREFECT|EVALHOUSE)_\w+|\w+_API_KEY|(?:HTTPS?|ALL|NO)_PROXY|SSL_CERT_(?:FILE|DIR)", re.IGNORECASE
)
_printed: set[str] = set()  # notices, each once a process
_QUOTES: Final = ('""', "''", "``", "“”", "‘’")
_INVISIBLE: Final = "\ufeff\u200b"  # a byte order mark and a space of no width, as files and web pages add them


class LocalServerError(Exception):
    """The local Prefect server did not start, or died. The message ends with the last lines of its log."""


def prefect_home() -> Path:
    """Return the folder of Prefect's database and profiles."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser().absolute()


def load_user_settings() -> dict[str, str]:
    """Return every Prefect setting that the user has made, by upper-case name.

    The strongest source wins as in Prefect itself: environment, then active profile. Files in the working folder
    (`_FOLDER_FILES`), which Prefect reads as well, do not count: they may have come with a dataset, and a server
    decides what its clients load and run. A profile that cannot be parsed is left for Prefect to report. The key of the
    server of `evalhouse serve --with-server` is added if that server's address is set and no key is.
    """
    settings: dict[str, str] = {}
    if not any(os.environ.get(name) for name in _TEST_MODE):
        profiles = _load_toml(Path(os.environ.get("PREFECT_PROFILES_PATH") or prefect_home() / "profiles.toml"))
        active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
        profile = profiles.get("profiles", {}).get(active, {})
        settings |= {name.upper(): str(value) for name, value in profile.items()}
    # An empty variable does not count as set: `PREFECT_API_URL= evalhouse run` starts a server for the run.
    names = ("PREFECT_", "DO_NOT_TRACK")
    settings |= {name: value for name, value in os.environ.items() if value and name.startswith(names)}
    if API_URL in settings and not settings.keys() & {_KEY, "PREFECT_API_KEY"} and (stored := load_server_access()):
        addresses = (settings[API_URL], stored[API_URL])
        same_host = {url.rstrip("/").replace("://localhost:", "://127.0.0.1:", 1) for url in addresses}
        if len(same_host) == 1:  # the key is never sent to any other address
            settings[_KEY] = stored[_KEY]
    return settings


def load_server_access() -> dict[str, str]:
    """Return the address and the key of the server that `evalhouse serve --with-server` started last; {} for none."""
    stored = _load_env_file(prefect_home() / SERVER_ACCESS)
    return stored if stored.keys() >= {API_URL, _KEY} else {}


def prepare_environment() -> None:
    """Tidy the variables that libraries read by themselves, and report each; raises SettingsError for unusable ones."""
    if notices := tidy_variables():
        from evalhouse.flows.results.output import print_notice  # noqa: PLC0415  # a server starts before its imports

        for notice in notices:
            print_notice(f"note: {notice}")
    if problems := find_environment_problems():
        raise SettingsError("; ".join(problems))
    for notice in pin_settings():
        from evalhouse.flows.results.output import print_notice  # noqa: PLC0415  # as above

        if notice not in _printed:
            print_notice(f"note: {notice}")
            _printed.add(notice)


def pin_settings() -> list[str]:
    """Have Prefect take its server and the file of its logging, which may name any function, from the environment or
    the user's profile; return a notice of each file in the working folder that sets another server."""
    settings = load_user_settings()
    own = next((settings[name] for name in _LOGGING if settings.get(name)), str(prefect_home() / "logging.yml"))
    if not any(os.environ.get(name) for name in _LOGGING):
        os.environ[_LOGGING[0]] = own
    if settings.get(API_URL):
        os.environ[API_URL] = settings[API_URL]
    notices = []
    for name, read in _FOLDER_FILES.items():
        if (url := read(Path(name)).get(API_URL)) and url != settings.get(API_URL):
            notices.append(
                f"{name} in this folder sets {API_URL}, and is not used: a folder may come from anybody; export it, or "
                "set it in your profile (`prefect config set`)"
            )
    return notices


def tidy_variables() -> list[str]:
    """Take line ends, blanks and quotes off the variables that libraries read; return a notice for each.

    `socks://`, as some programs write it, becomes `socks5://`, the only form that httpx reads.
    """
    notices = []
    for name, value in list(os.environ.items()):
        if _READ.fullmatch(name) is None:
            continue
        tidy = value.strip().strip(_INVISIBLE).strip()
        if len(tidy) > 1 and tidy[0] + tidy[-1] in _QUOTES:
            tidy = tidy[1:-1].strip()
        if tidy != value:
            notices.append(f"{name} is read without the line end, blanks or quotes around its value")
        if name.upper() in PROXIES and tidy.lower().startswith("socks://"):
            tidy = f"socks5{tidy[5:]}"
        if tidy != value:
            os.environ[name] = tidy
    return notices


def find_environment_problems() -> list[str]:
    """Return a sentence for each proxy and each file of certificates that no client can use."""
    problems = []
    for name in (*PROXIES, *(name.lower() for name in PROXIES)):
        if not (value := os.environ.get(name)):
            continue
        scheme, separator, rest = value.partition("://")
        scheme = scheme.lower() if separator else "http"
        try:
            is_address = bool(urlsplit(f"//{rest if separator else value}").hostname)
            _ = urlsplit(f"//{rest if separator else value}").port
        except ValueError:  # a port that is not a number, half a bracket
            is_address = False
        # Not the value itself, which may hold a password.
        if not is_address or scheme not in ("http", "https", "socks5", "socks5h"):
            problems.append(
                f"{name} is not an address of a proxy that can be used ({scheme}://…); write it like "
                f"http://HOST:PORT or socks5://HOST:PORT, or unset {name}"
            )
        elif scheme.startswith("socks") and not (find_spec("socksio") and find_spec("aiohttp_socks")):
            problems.append(
                f"{name} is a SOCKS proxy, which needs two packages: pip install socksio aiohttp-socks; or name an "
                f"HTTP proxy, such as http://HOST:PORT, or unset {name}"
            )
    for name in _CERTIFICATES:
        if path := os.environ.get(name):
            try:
                ssl.create_default_context(cafile=path)
            except OSError as error:  # an SSLError is one too
                reason = f"which holds no certificate ({error})" if os.path.isfile(path) else "which is not a file"
                problems.append(f"{name} is {path}, {reason}; name a PEM file with certificates, or unset {name}")
    return problems


def find_api_url() -> str | None:
    """Return the address of the server that the user has configured; None if a local one is to be started."""
    return load_user_settings().get(API_URL) or None


def configure_prefect_environment(
    api_url: str | None, *, auth_string: str | None = None, is_lasting: bool = False
) -> None:
    """Prepare this process for `import prefect`; call it before that import.

    With `api_url`, the address of our server, and its `auth_string` that server is used: for one run, or with
    `is_lasting` by a process that serves suites. With None the user's server is used, and only the terminal is kept
    quiet. Settings of the user stay, except address and key when they are given here, and `NO_PROXY`, to which this
    machine is added.
    """
    _fill(os.environ, "quiet")
    is_on_this_machine = True
    if api_url is None:
        settings = load_user_settings()
        auth_string = settings.get(_KEY)
        is_on_this_machine = urlsplit(settings.get(API_URL, "")).hostname in LOOPBACK
    else:
        if not is_lasting:
            _fill(os.environ, "client")
        os.environ[API_URL] = api_url
    if auth_string:
        os.environ[_KEY] = auth_string
    if is_on_this_machine:
        # Both spellings get the hosts of both, because the lower-case one hides the other.
        hosts = [host for name in _NO_PROXY for host in os.environ.get(name, "").split(",") if host]
        os.environ |= dict.fromkeys(_NO_PROXY, "*" if "*" in hosts else ",".join(dict.fromkeys([*hosts, *LOOPBACK])))


def make_lasting_key(port: int) -> tuple[str, str]:
    """Return the key to the server that serves suites, `user:password`, and a note about it for the user.

    The key is the one the user has set by either of Prefect's settings for it, or one made at the first start and kept
    with the server's address in a file that only its user can read. The note shows the key itself only once. Without a
    key every web page that this user opens, and every other user of the machine, could run code as this user by way of
    the server.
    """
    settings, path = load_user_settings(), prefect_home() / SERVER_ACCESS
    if chosen := settings.get(_SERVER_KEY) or settings.get(_KEY):
        return chosen, "the one that you have set; the browser asks for it"
    kept = _load_env_file(path).get(_KEY)
    key = kept or f"evalhouse:{secrets.token_urlsafe(24)}"
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{API_URL}=http://127.0.0.1:{port}/api\n{_KEY}={key}\n")
    draft.replace(path)
    place = f"kept in {path}, where your own evalhouse commands find it"
    return key, f"{place}; the browser asks for it" if kept else f"{key} is what the browser asks for; it is {place}"


def make_server_environment(port: int, auth_string: str, *, is_lasting: bool = False) -> dict[str, str]:
    """Return the environment of our server: for one run, or with `is_lasting` for as long as suites are served.

    The server is open to this machine alone and to clients that have the key `auth_string`, `user:password`. Settings
    of the user stay, except how clients reach the server.
    """
    chosen, defaults = load_user_settings(), _load_defaults()
    environ = dict(os.environ)
    # Its log goes to a file, so the quiet of the terminal is undone if this process has been configured before.
    for name in (API_URL, *defaults["quiet"], *defaults["client"]):
        environ.pop(name, None)
    _fill(environ, "server", "lasting server" if is_lasting else "server of a run")
    if not chosen.keys() & {_ORIGINS, "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"}:
        # Prefect's default lets pages of all sites use its API.
        environ[_ORIGINS] = ",".join(f"http://{host}:{port}" for host in LOOPBACK)
    environ |= {
        _SERVER_KEY: auth_string,
        "PREFECT_HOME": str(prefect_home()),
        "PREFECT_SERVER_API_BASE_PATH": "/api",  # as in `LocalServer.api_url`
        "PREFECT_LOGGING_COLORS": "false",
    }
    if is_lasting:
        return environ | {
            "PREFECT_SERVER_API_HOST": "127.0.0.1",
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api",
        }
    # This protection is for browsers, and no browser has this key.
    return environ | {"PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "false"}


def _fill(environ: MutableMapping[str, str], *groups: str) -> None:
    """Set the defaults of these groups that the user has not set by any name."""
    chosen, defaults = load_user_settings(), _load_defaults()
    for group in groups:
        for name, value in defaults[group].items():
            if name not in chosen and defaults["aliases"].get(name) not in chosen:
                environ[name] = value


@cache
def _load_defaults() -> dict[str, dict[str, str]]:
    """Return default values by name, by group; the group `aliases` has other names of some settings."""
    text = files(__package__).joinpath("prefect_defaults.yaml").read_text(encoding="utf-8")
    groups: dict[str, dict[str, str]] = yaml.safe_load(text)
    return groups


def _flatten(table: Mapping[str, Any], prefix: str = "PREFECT") -> Iterator[tuple[str, str]]:
    """Yield `{"api": {"url": u}}` as `("PREFECT_API_URL", u)`."""
    for key, value in table.items():
        name = f"{prefix}_{key.upper()}"
        if isinstance(value, dict):
            yield from _flatten(value, name)
        else:
            yield name, str(value)


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}


def _load_env_file(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    values: dict[str, str] = {}
    for line in lines:
        name, _, value = line.strip().removeprefix("export ").partition("=")
        if name.strip().upper().startswith("PREFECT_"):
            values[name.strip().upper()] = value.strip().strip("'\"")
    return values


_FOLDER_FILES: Final[Mapping[str, Callable[[Path], Mapping[str, str]]]] = {
    ".env": _load_env_file,
    "prefect.toml": lambda path: dict(_flatten(_load_toml(path))),
    "pyproject.toml": lambda path: dict(_flatten(_load_toml(path).get("tool", {}).get("prefect", {}))),
}
"""The readers of the files in the working folder from which Prefect takes settings."""
