"""One Prefect server for all test processes of a session: it costs 4 s of CPU to start.

The first test that needs it starts this file as a process, which outlives the worker that called it and ends
with the session. The file `server.json` of the session's folder has its address.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from evalhouse.flows.server.local import LocalServer

_SESSION = "TESTS_SESSION_FOLDER"  # tests take away all that begins with EVALHOUSE_
_WAIT_S = 120.0
_STOP_S = 20.0


def open_session() -> None:
    """Make the folder that all processes of this session share; the workers, started later, find it made."""
    if _SESSION not in os.environ:
        folder = tempfile.mkdtemp(prefix="evalhouse-tests-")
        os.environ[_SESSION] = folder
        (Path(folder) / "owner").write_text(str(os.getpid()))
        find_home().mkdir()


def close_session() -> None:
    """Remove the folder, and with it the server, where this process has made it."""
    folder = Path(os.environ[_SESSION])
    if (folder / "owner").read_text() != str(os.getpid()):
        return
    (folder / "owner").unlink()
    holder = folder / "holder"
    deadline = time.monotonic() + _STOP_S
    while holder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def find_home() -> Path:
    """The `PREFECT_HOME` of the shared server."""
    return Path(os.environ[_SESSION]) / "prefect"


def find_server() -> dict[str, str]:
    """Return the variables that lead to the shared server, which is started by the first call."""
    folder = Path(os.environ[_SESSION])
    report = folder / "server.json"
    with FileLock(folder / "server.lock"):
        if not report.exists():
            _start(folder, report)
    variables: dict[str, str] = json.loads(report.read_text())
    return variables


def copy_database(home: Path) -> None:
    """Give a home that is not the session's a database with all of Prefect's tables: to make one costs 5 s of CPU."""
    find_server()
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(os.environ[_SESSION]) / "empty.db", home / "prefect.db")


def _start(folder: Path, report: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with (folder / "holder.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            env={**kept, "PREFECT_HOME": str(find_home())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + _WAIT_S
    while not report.exists():
        assert process.poll() is None, (folder / "holder.log").read_text()
        assert time.monotonic() < deadline, "the shared Prefect server does not start"
        time.sleep(0.05)
    process.returncode = 0  # it is the session's and not this worker's, which does not wait for it


def main() -> None:
    """Hold the server until the session has ended, in any way."""
    folder = Path(sys.argv[1])
    (folder / "holder").touch()
    owner = folder / "owner"
    process = int(owner.read_text())
    server = LocalServer.start()
    server.wait_until_ready()
    _keep_empty(folder)
    variables = {"PREFECT_API_URL": server.api_url, "PREFECT_API_AUTH_STRING": str(server.auth_string)}
    draft = folder / "server.json.draft"
    draft.write_text(json.dumps(variables))
    draft.rename(folder / "server.json")
    while owner.exists() and _is_alive(process) and server.is_alive:
        time.sleep(0.2)
    server.stop(drain_timeout_s=0)
    (folder / "holder").unlink(missing_ok=True)


def _keep_empty(folder: Path) -> None:
    """Copy the database of a server that was never used."""
    with closing(sqlite3.connect(find_home() / "prefect.db")) as database, closing(sqlite3.connect(":memory:")) as kept:
        database.backup(kept)
        (folder / "empty.db").write_bytes(kept.serialize())


# Below the range from which the system takes the ports of clients, and of servers that do not care: in between one
# of those would be given the port of a server that is just not running.
_RANGE = range(20_000, 32_000)


def find_free_port() -> int:
    """Return a free port of this machine."""
    while True:
        port = secrets.choice(_RANGE)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextmanager
def running_server(folder: Path, port: int, environment: dict[str, str]) -> Iterator[None]:
    """Run `prefect server start`, with all of Prefect's services, for the block."""
    environment = {name: value for name, value in environment.items() if name != "PREFECT_API_URL"}
    environment |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    log, health = folder / "server.log", f"http://127.0.0.1:{port}/api/health"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        deadline, is_up = time.monotonic() + _WAIT_S, False
        while not is_up:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
            try:
                with opener.open(health, timeout=5) as response:
                    is_up = response.read() == b"true"
            except urllib.error.HTTPError:
                is_up = True  # it requires a key
            except OSError:
                pass
        yield
    finally:
        for pid in list_family(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def list_family(pid: int) -> list[int]:
    """A process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents.setdefault(int(stat[1]), []).append(int(entry.name))
    family = [pid]
    for one in family:
        family += parents.get(one, [])
    return family


if __name__ == "__main__":
    main()
