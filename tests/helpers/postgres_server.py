"""A real PostgreSQL server for a test session: made in a temporary folder, on a free port, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from prefect_holder import find_free_port

_USER = "evalhouse"
_PLACES = "/usr/lib/postgresql"
_WAIT_S = 60


@dataclass(frozen=True, kw_only=True)
class PostgresServer:
    """A server without passwords that listens on this machine alone."""

    port: int
    folder: Path
    binaries: Path

    def make_database(self, name: str) -> str:
        """A new database; returns its address."""
        with psycopg.connect(self.address("postgres"), autocommit=True) as session:
            session.execute(f'create database "{name}"')
        return self.address(name)

    def copy_database(self, name: str, copy: str) -> str:
        """A new database that holds what another one holds, to which all connections are cut; returns its address."""
        with psycopg.connect(self.address("postgres"), autocommit=True) as session:
            session.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
            session.execute(f'create database "{copy}" template "{name}"')
        return self.address(copy)

    def address(self, name: str) -> str:
        """The address of a database."""
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        """Stop at once, as a machine that loses its power; does nothing when it is stopped."""
        self._control("stop", "-m", "immediate")

    def start(self) -> None:
        """Start on the same port again and wait until it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        log = str(self.folder / "log")
        self._control("start", "-w", "-t", str(_WAIT_S), "-o", options, "-l", log, check=True)

    def _control(self, *arguments: str, check: bool = False) -> None:
        command = [str(self.binaries / "pg_ctl"), "-D", str(self.folder / "data"), *arguments]
        subprocess.run(command, check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **_drop_rights())


def find_postgres() -> Path | None:
    """Return the folder of PostgreSQL's programs; None without them."""
    in_path = shutil.which("initdb")
    versions = sorted(Path(_PLACES).glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
    found = Path(in_path).resolve() if in_path else next(reversed(versions), None)
    return found.parent if found else None


@contextmanager
def start_postgres() -> Iterator[PostgresServer]:
    """A server for this block; skips the test where PostgreSQL is not installed."""
    binaries = find_postgres()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed here (Debian: apt-get install postgresql)")
    with tempfile.TemporaryDirectory(prefix="evalhouse-postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            owner = pwd.getpwnam(_find_owner())
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        command = [str(binaries / "initdb"), "-D", str(folder / "data"), "-A", "trust", "-U", _USER, "--no-sync"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **_drop_rights())
        server = PostgresServer(port=find_free_port(), folder=folder, binaries=binaries)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _drop_rights() -> dict[str, str]:
    """PostgreSQL refuses to run as root."""
    return {"user": _find_owner()} if os.geteuid() == 0 else {}


def _find_owner() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
