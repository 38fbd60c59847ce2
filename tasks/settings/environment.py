"""Objects and values that a setting names, of Python modules and of variables, and the proxy of an address."""

import importlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast
from urllib.parse import urlsplit

from evalhouse.warehouse.messages import describe_error, name_kind, note_secret, shorten

# Our Prefect server may just be starting.
_PATIENCE_S = 60.0
_PAUSE_S = 0.5
_REHEARSING: ContextVar[bool] = ContextVar("rehearsing", default=False)


class UserCodeError(Exception):
    """An object that a setting names is not there, or its module broke; the message states which."""


def import_object(name: str) -> object:
    """Import the module of `module:name` and return the object of it; raises UserCodeError.

    The working directory is searched last, so that a file there cannot take the place of an installed module.
    """
    module_name, _, path = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        value: object = importlib.import_module(module_name)
    except ImportError as error:
        raise UserCodeError(
            f"cannot import {module_name!r} for {name!r}: {shorten(str(error))}; "
            "start where it is, or install it into this environment"
        ) from None
    except (Exception, SystemExit) as error:  # a module of any maker may raise anything
        raise UserCodeError(f"module {module_name!r} of {name!r} broke on import: {describe_error(error)}") from error
    for part in path.split("."):
        if not hasattr(value, part):
            raise UserCodeError(f"module {module_name!r} has no {path!r} (asked for by {name!r})")
        value = getattr(value, part)
    return value


def call_object(name: str) -> object:
    """Return what the function `module:name` returns without arguments; raises UserCodeError."""
    function = import_object(name)
    if not callable(function):
        raise UserCodeError(f"{name} is {name_kind(function)}, not a function")
    try:
        return cast(object, function())
    except (Exception, SystemExit) as error:  # as above
        raise UserCodeError(f"{name} failed with {describe_error(error)}") from error


class NamedValueError(Exception):
    """Prefect does not give a value; the message states which one and why, and no value."""


def describe_name(name: str) -> str:
    """Return the words for a named value, and for the place where it is set."""
    kind, _, rest = name.rpartition(":")
    return {"secret": f"Prefect's Secret block {rest!r}", "variable": f"Prefect's variable {rest!r}"}.get(
        kind, f"the environment's {rest}"
    )


def read_named(name: str) -> str | None:
    """Return the value; None if it is missing or empty. Raises NamedValueError if Prefect cannot be asked."""
    kind, _, rest = name.rpartition(":")
    if not kind:
        return os.environ.get(name) or None
    # Prefect is imported only for a value that it has.
    import httpx  # noqa: PLC0415
    from prefect.client.orchestration import get_client  # noqa: PLC0415
    from prefect.exceptions import ObjectNotFound, PrefectException  # noqa: PLC0415
    from prefect.settings import get_current_settings  # noqa: PLC0415

    if get_current_settings().api.url is None:
        raise NamedValueError("no Prefect server is configured that could have it; set PREFECT_API_URL")
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with get_client(sync_client=True) as client:
                if kind == "variable":
                    variable = client.read_variable_by_name(rest)
                    return None if variable is None or variable.value is None else str(variable.value) or None
                secret = str(client.read_block_document_by_name(rest, "secret").data["value"])
                note_secret(secret)
                return secret or None
        except ObjectNotFound:
            return None
        except httpx.ConnectError as error:
            if time.monotonic() > deadline:
                raise NamedValueError(f"Prefect's server does not answer: {error}") from None
            time.sleep(_PAUSE_S)
        except (httpx.HTTPError, PrefectException) as error:
            raise NamedValueError(f"Prefect's server does not give it: {type(error).__name__}") from None


def fill_variable(name: str) -> None:
    """Replace `${secret:NAME}` or `${variable:NAME}` in an environment variable by its value: for keys, which all
    clients read from there. Raises NamedValueError.

    A variable of the environment that names another one is left alone: a shell does that.
    """
    from evalhouse.tasks.settings.suite import NAMED  # noqa: PLC0415  # pydantic, which `kb-updated` does without

    match = NAMED.fullmatch(os.environ.get(name, "").strip())
    if match is None or ":" not in match[1] or _REHEARSING.get():
        return
    wanted = f"{name} requires {describe_name(match[1])}"
    try:
        value = read_named(match[1])
    except NamedValueError as error:
        raise NamedValueError(f"{wanted}: {error}") from None
    if value is None:
        raise NamedValueError(f"{wanted}, which is not set; set it")
    note_secret(value)
    os.environ[name] = value


@contextmanager
def nothing_looked_up() -> Iterator[None]:
    """Leave variables alone within this block, in which nothing is sent."""
    token = _REHEARSING.set(True)
    try:
        yield
    finally:
        _REHEARSING.reset(token)


def find_proxy(url: str) -> str | None:
    """Return the environment's proxy for an address, None if it is asked directly.

    HTTP_PROXY or HTTPS_PROXY by the address's scheme comes before ALL_PROXY; hosts in NO_PROXY and this machine have
    none. Lower-case names win, as they do in urllib.
    """
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415  # 20 ms, which a command's help does without

    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or parts.hostname in ("127.0.0.1", "localhost") or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
