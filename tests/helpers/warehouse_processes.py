"""Other processes for the warehouse's tests: real ones, that hold the file, are killed, or may not write.

A script is Python text; it finds the path of the warehouse in `PATH`, and what it needs most imported.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from kept_open import let_go
from warehouse_runs import lay_warehouse

from evalhouse.warehouse.store import Batch, Warehouse, build_frame

ROOT = Path(__file__).parents[2]

_HEAD = """
import os, signal, sys, time
from evalhouse.warehouse.store import Batch
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.store import build_frame
from warehouse_processes import make_batch
PATH = sys.argv[1]
def kill_self(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)
"""
# Files larger than this cannot be written: what a full disk looks like to a program, with no disk to fill.
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))\n"
# Root may write everywhere. Without its capabilities (of Linux) it is an owner of files like any other.
BIND_RIGHTS = """
import ctypes
if os.geteuid() == 0:
    ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a script: `code` is -9 when it was killed."""

    code: int
    output: str
    errors: str


# Forks a process for each script, with all imported that scripts need: to import it takes half a second. Between the
# two a third one waits for the script and writes down how it ended.
_FORKING = """
import json, signal, tempfile, traceback
import evalhouse.warehouse.engine.migrate, evalhouse.warehouse.mover, evalhouse.warehouse.upkeep.forget
def work(job):
    for number, name in enumerate(("/dev/null", job["output"], job["errors"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(job["environ"])
    tempfile.tempdir, sys.argv = None, ["-c", *job["arguments"]]
    code = 0
    try:
        exec(job["script"], {"__name__": "__main__"})
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        code = 1
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        job = json.loads(line)
        ended = os.open(job["ended"], os.O_WRONLY)  # open until the last process that the script forks has ended
        script = os.fork()
        if script == 0:
            work(job)
        code = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
        os.write(ended, str(code).encode())
        os._exit(0)
"""
_MOST_S = 60
_one_asks = threading.Lock()


def _make_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT), str(ROOT / "tests" / "helpers")])}


@cache
def _start_forking() -> subprocess.Popen[str]:
    """The process that forks scripts; it ends with this one, whose end closes its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HEAD.replace("PATH = sys.argv[1]\n", "") + _FORKING],
        cwd=ROOT,
        env=_make_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def run_script(script: str, path: Path, *more: str) -> Ended:
    """Run a script to its end."""
    let_go()  # a process that is forked elsewhere is not seen from here
    with TemporaryDirectory() as name:
        folder = Path(name)
        job = {place: str(folder / place) for place in ("output", "errors", "ended")}
        os.mkfifo(folder / "ended")
        # Opened without waiting for the other end.
        with open(os.open(folder / "ended", os.O_RDONLY | os.O_NONBLOCK), encoding="ascii") as ended:
            arguments = {"script": _HEAD + script, "arguments": [str(path), *more], "environ": _make_environment()}
            with _one_asks:
                forking = _start_forking()
                assert forking.stdin is not None
                forking.stdin.write(f"{json.dumps(job | arguments)}\n")
                forking.stdin.flush()
            if not select.select([ended], [], [], _MOST_S)[0]:
                raise TimeoutError(f"a script takes longer than {_MOST_S} s: {script}")
            os.set_blocking(ended.fileno(), True)
            code = int(ended.read())
        return Ended(
            code=code,
            output=(folder / "output").read_text(encoding="utf-8").strip(),
            errors=(folder / "errors").read_text(encoding="utf-8").strip(),
        )


def open_when_free(*, read_only: bool) -> str:
    """The beginning of a script that opens the file named by its argument, in a moment in which no writer has it."""
    return f"""
import duckdb, sys, time
while True:
    try:
        held = duckdb.connect(sys.argv[1], read_only={read_only})
        break
    except duckdb.IOException:
        time.sleep(0.01)
"""


@contextmanager
def held_file(path: Path, *, read_only: bool) -> Iterator[int]:
    """The warehouse file as an analyst's notebook keeps it open; gives the process's id."""
    script = f"{open_when_free(read_only=read_only)}print('open', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            yield process.pid
        finally:
            process.communicate("")


def make_batch(key: str, *, n: int = 3, label: str = "TP", replaces: tuple[str, ...] = ()) -> Batch:
    """A batch of run `r` with `n` samples `<key>-1` … that writes to three tables."""
    ids = replaces or tuple(f"{key}-{number}" for number in range(1, n + 1))
    keys = [{"run_id": "r", "sample_id": sample_id} for sample_id in ids]
    return Batch(
        key=key,
        run_id="r",
        replaces=replaces,
        tables={
            "statements": build_frame(
                "statements",
                [{**row, "statement_id": "A1", "source": "answer", "ordinal": 1, "text": key} for row in keys],
            ),
            "classifications": build_frame(
                "classifications", [{**row, "statement_id": "A1", "label": label, "reason": "why"} for row in keys]
            ),
            "outcomes": build_frame("outcomes", [{**row, "step": "classify"} for row in keys]),
        },
    )


def make_warehouse(folder: Path) -> Warehouse:
    """A warehouse with all tables and views, `w.duckdb` in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return lay_warehouse(folder / "w.duckdb")


def count_rows(warehouse: Warehouse, table: str, where: str = "true") -> int:
    return int(warehouse.read(f"select count(*) as n from {table} where {where}")["n"][0])


def find_tables(warehouse: Warehouse, words: str) -> set[str]:
    """The tables of which a row holds these words."""
    tables = warehouse.read("select table_name from duckdb_tables() where not internal")["table_name"]
    sql = "select 1 from {} as one where contains(one::varchar, $words) limit 1"
    return {table for table in tables if warehouse.read(sql.format(table), {"words": words}).height}


def count_by_batch(warehouse: Warehouse) -> pl.DataFrame:
    """One row per batch key that left any trace, with its rows in the ledger and in each of its tables."""
    return warehouse.read(
        """
        with traces as (
            select 'batches' as place, batch_key as key from batches
            union all select 'statements', text from statements
            union all select 'classifications', regexp_replace(sample_id, '-[0-9]+$', '') from classifications
            union all select 'outcomes', regexp_replace(sample_id, '-[0-9]+$', '') from outcomes
        )
        select
            key,
            count(*) filter (where place = 'batches') as batches,
            count(*) filter (where place = 'statements') as statements,
            count(*) filter (where place = 'classifications') as classifications,
            count(*) filter (where place = 'outcomes') as outcomes
        from traces group by key order by key
        """
    )
