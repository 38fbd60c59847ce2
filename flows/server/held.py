"""The Prefect server of this process: the user's own, or one of ours, which is held for a block of code.

A command holds it from its first moment, so that it comes up while everything else is imported; the process of
`evaluate` holds it for all of its runs. A run takes the one that is held, or one for itself.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evalhouse.flows.server.environment import API_URL, configure_prefect_environment, find_api_url
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
        configure_prefect_environment(server.api_url, auth_string=server.auth_string)
        try:
            yield server.wait_until_ready
        finally:
            os.environ.pop(API_URL, None)  # which would name a server of the user's to the next run


def is_server_alive() -> bool:
    """Whether the server that is held still runs; true as well where none is."""
    return all(server.is_alive for server in _held)
