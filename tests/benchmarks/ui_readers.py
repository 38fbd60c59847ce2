"""Measure the pages of `evalhouse ui` while a run writes, and the run's writes while people read.

    python tests/benchmarks/ui_readers.py [--folder FOLDER] [--readers 20] [--pause 1] [--seconds 60] [--only WORD]

Works on a copy of the warehouse that `tests/benchmarks/history.py --folder FOLDER` keeps (made where it is missing).
`evalhouse ui` serves it in a separate process. Another one writes the newest night again, 50 samples a second in one
transaction each, first alone and then while the readers click: each opens a page, reads it whole, waits `--pause`
seconds on average and opens the next. Printed: for each page by its address the milliseconds to the first byte (n,
median, 95th of a hundred, most; `!` where the median is over 500 or the most over 1,500), and for the writes, alone and
beside the readers, the milliseconds of a transaction from asking for the file to having closed it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "tests" / "benchmarks")]

from history import SUITE, Size  # noqa: E402
from history_nights import METRICS, write_nights  # noqa: E402
from scale import measure_cpu  # noqa: E402

from evalhouse.warehouse.store import Warehouse  # noqa: E402

MEDIAN_MS, MOST_MS = 500, 1500
NO_ANSWER = 0
PER_BATCH, EVERY_S = 50, 1.0
# What a night writes of a sample while it runs.
TABLES = ("run_samples", "statements", "classifications", "attributions", "context_verdicts", "similarities",
          "llm_calls", "outcomes", "scores")  # fmt: skip
# Forms of addresses; a missing page is left out with a line.
PAGES = (
    "/",
    "/series?name={suite}",
    "/series/{suite}",
    "/runs",
    "/live",
    "/runs/{run}",
    "/runs/{older}",
    "/runs/{live}",
    "/runs/{live}/live",
    "/runs/{run}/samples",
    "/runs/{run}/samples?metric=faithfulness&page=20",
    "/runs/{run}/samples?cause=hallucinated",
    "/runs/{run}/samples?words=tide+17",
    "/runs/{live}/samples",
    "/runs/{run}/sample?id=tide-17",
    "/runs/{older}/sample?id=tide-2048",
    "/runs/{run}/documents",
    "/compare?base={previous}&candidate={run}",
    "/compare?base={oldest}&candidate={run}",
    "/compare/samples?base={previous}&candidate={run}",
    "/compare/sample?base={previous}&candidate={run}&id=tide-17",
    "/costs",
    "/judge",
    "/sql",
    "/sql?q=select+metric%2C+mean+from+run_scores+where+run_id+%3D+getvariable%28%27latest%27%29",
)


@dataclass(kw_only=True)
class Clicks:
    """The milliseconds to each first byte by form of address, and the responses without a page."""

    ms: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[tuple[str, int], int] = field(default_factory=dict)


def write_night(path: str, run_id: str, live: str, seconds: float, results: Connection) -> None:
    """Write the samples of a night again under another id until the time is over; sends the transactions' seconds."""
    warehouse = Warehouse(path)
    with warehouse.writing(patience_s=60) as connection:
        connection.execute(
            "insert into runs by name select * replace ($live as run_id, 'running' as status, null as finished_at, "
            "now() at time zone 'UTC' as started_at) from runs where run_id = $run and not exists "
            "(from runs where run_id = $live)",
            {"live": live, "run": run_id},
        )
        known = {row[0] for row in connection.execute("select table_name from duckdb_tables()").fetchall()}
    took, began = [], time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        first = len(took) * PER_BATCH
        values = {"live": live, "run": run_id, "ids": [f"tide-{first + n}" for n in range(1, PER_BATCH + 1)]}
        with warehouse.writing(patience_s=60) as connection:
            for table in TABLES:
                if table in known:
                    connection.execute(
                        f"insert into {table} by name select * replace ($live as run_id) from {table} "
                        "where run_id = $run and list_contains($ids, sample_id)",
                        values,
                    )
        took.append(time.monotonic() - now)
        time.sleep(max(0.0, now + EVERY_S - time.monotonic()))
    results.send(took)


def start_writing(path: Path, run_id: str, live: str, seconds: float) -> tuple[multiprocessing.Process, Connection]:
    """A process that writes; the other end of what it sends."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=write_night, args=(str(path), run_id, live, seconds, sending))
    process.start()
    return process, receiving


async def click(session: aiohttp.ClientSession, form: str, address: str, clicks: Clicks) -> None:
    """Open one page and read it whole."""
    began = time.monotonic()
    try:
        async with session.get(address) as response:
            ms, status = 1000 * (time.monotonic() - began), response.status
            await response.read()
    except TimeoutError:
        ms, status = 1000 * (time.monotonic() - began), NO_ANSWER
    if status == 200:
        clicks.ms.setdefault(form, []).append(ms)
    else:
        clicks.refused[form, status] = clicks.refused.get((form, status), 0) + 1


async def read_pages(root: str, forms: Sequence[str], ids: dict[str, str], args: argparse.Namespace) -> Clicks:
    """All readers at once, each with pages in a random order."""
    clicks, over = Clicks(), time.monotonic() + args.seconds

    async def read(number: int) -> None:
        chance = random.Random(number)
        await asyncio.sleep(chance.random() * args.pause)
        while time.monotonic() < over:
            for form in chance.sample(forms, len(forms)):
                if time.monotonic() < over:
                    await click(session, form, root + form.format(**ids), clicks)
                    await asyncio.sleep(chance.uniform(0.5, 1.5) * args.pause)

    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(read(number) for number in range(args.readers)))
    return clicks


async def find_forms(root: str, ids: dict[str, str], only: str) -> list[str]:
    """The pages that are there; each is opened once, which also shows it with nothing at hand yet."""
    found = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        for form in (form for form in PAGES if re.search(only, form)):
            began = time.monotonic()
            async with session.get(root + form.format(**ids)) as response:
                ms = 1000 * (time.monotonic() - began)
                print(f"{ms:>6.0f} ms, status {response.status}, opened first: {form}", flush=True)
            if response.status == 200:
                found.append(form)
    return found


def serve(path: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start `evalhouse ui` in a separate process; returns it with its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = str(Path(sys.executable).with_name("evalhouse"))
    server = subprocess.Popen([program, "ui", "--no-browser", "--port", str(port), "--warehouse", str(path)])
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server, f"http://127.0.0.1:{port}"
        except OSError:
            if server.poll() is not None:
                raise SystemExit("evalhouse ui has ended") from None
            time.sleep(0.05)


def print_times(name: str, ms: Sequence[float], *, is_page: bool = True) -> None:
    """A row: how many, median, 95th of a hundred, most."""
    ordered = sorted(ms)
    median, most = statistics.median(ordered), ordered[-1]
    mark = "!" if is_page and (median > MEDIAN_MS or most > MOST_MS) else " "
    late = ordered[int(0.95 * (len(ordered) - 1))]
    print(f"{mark}{len(ordered):>5} {median:>8.0f} {late:>8.0f} {most:>8.0f}  {name}")


def find_ids(path: Path) -> dict[str, str]:
    """The ids that the forms of addresses name."""
    runs = [
        str(row["run_id"])
        for row in Warehouse(str(path)).read_rows(
            "select run_id from runs where n_samples >= 1000 or n_samples is null order by started_at"
        )
    ]
    ids = {"run": runs[-1], "previous": runs[-2], "oldest": runs[0], "older": runs[len(runs) // 2]}
    return {**ids, "suite": SUITE, "live": f"{runs[-1]}-live"}


def measure(path: Path, args: argparse.Namespace) -> None:
    """Write alone, then write and read."""
    ids = find_ids(path)
    process, results = start_writing(path, ids["run"], ids["live"], min(15.0, args.seconds))
    alone = results.recv()
    process.join()
    server, root = serve(path)
    try:
        forms = asyncio.run(find_forms(root, ids, args.only))
        process, results = start_writing(path, ids["run"], f"{ids['run']}-next", args.seconds)
        time.sleep(2)
        before = measure_cpu([server.pid])
        clicks = asyncio.run(read_pages(root, forms, ids, args))
        cpu_s = measure_cpu([server.pid]) - before
        beside = results.recv()
        process.join()
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            print("evalhouse ui did not end by itself and was killed")
            server.kill()
    print(f"{'n':>6} {'median':>8} {'95 %':>8} {'most':>8}  ms to the first byte, {args.readers} readers")
    for form in forms:
        if form in clicks.ms:
            print_times(form, clicks.ms[form])
    print_times("all pages", [ms for each in clicks.ms.values() for ms in each])
    print_times("a write alone", [1000 * seconds for seconds in alone], is_page=False)
    print_times("a write beside the readers", [1000 * seconds for seconds in beside], is_page=False)
    print(f"evalhouse ui took {cpu_s:.1f} s of CPU in {args.seconds:g} s; load of the machine {os.getloadavg()[0]:.1f}")
    for (form, status), n in sorted(clicks.refused.items()):
        print(f"{n:>6} x status {status}  {form}")


def main() -> None:
    """Read the arguments and measure on a copy."""
    parser = argparse.ArgumentParser(description="Time the pages of evalhouse ui while a run writes.")
    parser.add_argument("--nights", type=int, default=200)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--metrics", type=int, default=len(METRICS), choices=range(1, len(METRICS) + 1))
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between a reader's clicks, on average")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default="", help="open the pages whose form of address matches this")
    parser.add_argument("--folder", type=Path, help="where the warehouse is kept")
    args = parser.parse_args()
    size = Size(nights=args.nights, samples=args.samples, metrics=args.metrics)
    with tempfile.TemporaryDirectory(prefix="evalhouse-readers-", dir=args.folder) as name:
        path = Path(name) / "w.duckdb"
        kept = (args.folder or Path(name)) / f"{size.nights}x{size.samples}x{size.metrics}.duckdb"
        if not kept.exists():
            write_nights(kept, size)
        shutil.copyfile(kept, path)
        Warehouse(str(path)).migrate()
        os.environ.pop("EVALHOUSE_WAREHOUSE", None)
        measure(path, args)


if __name__ == "__main__":
    main()
