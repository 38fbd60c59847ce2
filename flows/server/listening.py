"""What the servers of `evalhouse ui` and `evalhouse receive` have in common: a socket, and the token that lets in."""

import ipaddress
import os
import secrets
import socket
from contextlib import suppress
from typing import Final

from evalhouse.flows.errors import SettingsError

_LEAST_TOKEN: Final = 16


def listen(host: str, port: int | None, default: int) -> socket.socket:
    """A socket at the port, or, where none was named, at the default or a free one; raises SettingsError."""
    try:
        return _bind(host, default if port is None else port)
    except OSError as error:
        if port is None:
            with suppress(OSError):
                return _bind(host, 0)
        raise SettingsError(
            f"cannot listen at {host}, port {port or default}: {error.strerror or error}; name another --host or --port"
        ) from None


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def write_address(host: str, listening: socket.socket) -> str:
    """The address that others use: with this machine's name, where it listens at all of them."""
    named = host
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            named = socket.gethostname()
    shown = f"[{named}]" if ":" in named else named
    return f"http://{shown}:{listening.getsockname()[1]}/"


def find_token(variable: str) -> str:
    """The token a person has set, or a new one; raises SettingsError for one that is easily guessed."""
    given = os.environ.get(variable)
    if given is not None and (len(given) < _LEAST_TOKEN or not given.isascii() or not given.isalnum()):
        raise SettingsError(
            f"{variable} has {len(given)} characters; a token has at least {_LEAST_TOKEN} letters and digits: "
            "set another, or none, and one is made"
        )
    return given or secrets.token_hex(16)
