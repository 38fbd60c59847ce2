"""The Prefect server of this process: the user's own, or one of ours, which is held for a block of code.

A command holds it from its first moment, so that it comes up while everything else is imported; the process of
`evaluate` holds it for all of its runs. A run takes the one that is held, or one for itself.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from evalhouse.flows.server.environment import API_URL, configure_prefect_environment, find_api_url, prefect_home
from evalhouse.flows.server.local import LocalServer

_held: list[LocalServer] = []


@contextmanager
def hold_server() -> Iterator[None]:
    """Have a server of ours for the time of the block, where the user has none and none is held yet."""
    if _held or find_api_url() is not None:
        yield
        return
    server = LocalServer.start()
    _held.append(server)
    try:
        yield
    finally:
        _held.remove(server)
        server.stop()


@contextmanager
def prefect_server() -> Iterator[Callable[[], None] | None]:
    """Prefect's settings for a run, to be made before Prefect is imported: None where the server is the user's own,
    else what waits until ours is ready. Raises SettingsError when the user's own does not answer.
    """
    with hold_server():
        if not _held:
            from evalhouse.flows.server.api import check_prefect_server  # noqa: PLC0415  # a run without it does without

            check_prefect_server()
            configure_prefect_environment(None)
            yield None
            return
        (server,) = _held
        os.environ.setdefault("PREFECT_API_SSL_CERT_FILE", str(_write_authority()))
        configure_prefect_environment(server.api_url, auth_string=server.auth_string)
        try:
            yield server.wait_until_ready
        finally:
            os.environ.pop(API_URL, None)  # which would name a server of the user's to the next run


def _write_authority() -> Path:
    """A file with one authority of the world, the first: each of Prefect's clients reads all of them before it speaks
    plain HTTP to our server, 50 ms three times a run."""
    path = prefect_home() / "evalhouse-one-authority.pem"
    if not path.exists():
        import certifi  # noqa: PLC0415  # once a home

        end = "-----END CERTIFICATE-----\n"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end, encoding="utf-8")
    return path


def is_server_alive() -> bool:
    """Whether the server that is held still runs; true as well where none is."""
    return all(server.is_alive for server in _held)
