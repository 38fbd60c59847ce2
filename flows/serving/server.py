"""Which Prefect server suites are served by: the one that is configured, or one of ours that lasts as long as that."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.server.environment import (
    API_URL,
    configure_prefect_environment,
    configure_serving_environment,
    find_api_url,
    prefect_home,
)
from evalhouse.flows.server.local import LocalServer
from evalhouse.flows.server.reach import check_prefect_server


@dataclass(frozen=True, kw_only=True)
class ServerUse:
    """The server that suites are served by; `own` is the one we brought along."""

    api_url: str
    own: LocalServer | None

    @property
    def ui_url(self) -> str:
        """Where a person looks at it, when its pages stand where Prefect puts them."""
        return self.api_url.rstrip("/").removesuffix("/api")


@contextlib.contextmanager
def use_server(*, with_server: bool, port: int | None) -> Iterator[ServerUse]:
    """The server for this block; one of ours ends with it. Raises SettingsError, LocalServerError."""
    chosen = find_api_url()
    if chosen is not None:
        if with_server:
            raise SettingsError(
                f"{API_URL} names a server already; leave out --with-server to serve by that one, or take {API_URL} "
                "away (it may stand in Prefect's profile) to have one started"
            )
        check_prefect_server()
        configure_prefect_environment(None)
        yield ServerUse(api_url=chosen, own=None)
        return
    if not with_server:
        raise SettingsError(
            "no Prefect server is configured; have one started by `evalhouse serve … --with-server`, or set "
            f"{API_URL} to the address of one that runs, such as http://127.0.0.1:4200/api"
        )
    told = (
        f"another `evalhouse serve --with-server` runs a server over {prefect_home()} already, and two over one "
        f"database would each see half of the events; set {API_URL} to the address it has printed, or PREFECT_HOME to "
        "another folder"
    )
    with hold_alone(prefect_home() / "evalhouse-serve.lock", told):
        server = LocalServer.start_lasting(port)
        try:
            configure_serving_environment(server.api_url, auth_string=server.auth_string)
            yield ServerUse(api_url=server.api_url, own=server)
        finally:
            server.stop()


@contextlib.contextmanager
def hold_alone(path: Path, told: str) -> Iterator[None]:
    """A lock for this block; raises SettingsError, saying what it is told to, when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SettingsError(told) from None
    try:
        yield
    finally:
        lock.release()
