"""Measure the gain of more workers, the rate of the lake's one lock for writers, and reads of a long history.

    python tests/benchmarks/workers.py [throughput|part|writes|history|pictures] [--workers 1,2,4 --samples 512]

*throughput* runs the same number of samples over 1, 2 and 4 workers of a work pool, each with a separate limit,
as machines with separate keys have, against the local endpoint; Prefect and the lake's catalogue are on a PostgreSQL.
*part* is what a part costs besides its requests: the median over parts of one sample, one after the other.
*pictures* puts the pages in Prefect of a run and of a run over two workers, of which one is killed, into the guide.
*writes* has 1, 4 and 16 processes append batches of a shard to the lake for some seconds. *history* writes so many
scores by SQL into a DuckDB file, moves them into a DuckLake, and times the queries of the cookbook on both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

import psycopg  # noqa: E402
from browser import open_browser  # noqa: E402
from cli_house import make_rows, write_dataset  # noqa: E402
from cli_process import finish  # noqa: E402
from history_nights import METRICS, Size, write_nights  # noqa: E402
from kill_runs import noting_endpoint  # noqa: E402
from pool_house import POOL, PoolHouse, open_pool_house  # noqa: E402
from postgres_server import PostgresServer, start_postgres  # noqa: E402
from prefect_holder import close_session, open_session  # noqa: E402

from evalhouse.flows.ui.sql import read_recipes  # noqa: E402
from evalhouse.warehouse.sandbox.query import run_query  # noqa: E402
from evalhouse.warehouse.store import Warehouse  # noqa: E402
from evalhouse.warehouse.upkeep.check_and_compact import compact_warehouse  # noqa: E402
from evalhouse.warehouse.upkeep.copies import move_warehouse  # noqa: E402

IMAGES = ROOT / "flows" / "guides" / "images"
# Two texts to split, their labels, and the support of the answer: four requests a sample.
_METRICS = "factual_f1,faithfulness"
_CALLS = 4  # of a sample
_SAMPLES_A_NIGHT = 3000
_SHARD = 128
_WRITER = """
import sys, time
from evalhouse.warehouse.store import Warehouse  # noqa: E402
from warehouse_processes import make_batch
warehouse, name, n_rows, until = Warehouse(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
taken = []
print("ready", flush=True)
sys.stdin.readline()
until += time.monotonic()
while time.monotonic() < until:
    began = time.monotonic()
    warehouse.append_now(make_batch(f"{name}-{len(taken)}", n=n_rows), patience_s=60)
    taken.append(time.monotonic() - began)
print(" ".join(map(str, taken)))
"""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The result of one run: samples a second while the endpoint was asked, and of the whole command."""

    judged: float
    whole: float
    cpu_s: float


def measure_throughput(postgres: PostgresServer, workers: list[int], n_samples: int, latency: float) -> None:
    """Print a row for each number of workers."""
    print(f"{n_samples} samples, {latency:g} s a request, 16 requests in flight a worker")
    heads = f"{'workers':>8} {'samples/s':>10} {'ratio':>6} {'of the command':>15} {'ratio':>6} {'CPU s a part':>13}"
    print(f"{heads}   (load of the machine {os.getloadavg()[0]:.1f})", flush=True)
    first: Pace | None = None
    with open_house(postgres, "throughput", latency) as house:
        for number, n_workers in enumerate(sorted(workers)):
            start_workers(house, n_workers)
            pace = run_once(house, number, n_samples, "--part-size", str(n_samples))
            first = first or pace
            print(
                f"{n_workers:>8} {pace.judged:>10.2f} {pace.judged / first.judged:>6.2f} "
                f"{pace.whole:>15.2f} {pace.whole / first.whole:>6.2f} {pace.cpu_s / n_workers:>13.1f}",
                flush=True,
            )


def measure_part(postgres: PostgresServer, n_parts: int) -> None:
    """Print the seconds from the end of a part to that of the next, for one worker and requests that take no time."""
    with open_house(postgres, "part", 0.0) as house:
        start_workers(house, 1)
        run_once(house, 0, 1)  # files are read for the first time
        pace = run_once(house, 1, n_parts, "--part-size", "1")
        ends = sorted(datetime.fromisoformat(part["end_time"]) for part in house.list_parts())[1:]
        gaps = [(after - before).total_seconds() for before, after in pairwise(ends)]
        print(
            f"a part of one sample: {statistics.median(gaps):.1f} s of wall time ({min(gaps):.1f} to {max(gaps):.1f}), "
            f"{pace.cpu_s / n_parts:.1f} s of CPU   (load of the machine {os.getloadavg()[0]:.1f})",
            flush=True,
        )


@contextmanager
def open_house(
    postgres: PostgresServer, purpose: str, latency: float, *, has_pages: bool = False
) -> Iterator[PoolHouse]:
    """A house whose lake and Prefect are on PostgreSQL, and with an endpoint that each worker asks."""
    prefix = f"evalhouse-{purpose}-"
    with tempfile.TemporaryDirectory(prefix=prefix) as name, noting_endpoint(latency=latency) as endpoint:
        folder = Path(name)
        os.environ["EVALHOUSE_STATE_DIR"] = str(folder / "state")
        url = f"ducklake:{postgres.make_database(f'{purpose}_lake')}?data={folder / 'files'}"
        database = postgres.make_database(f"{purpose}_prefect")
        # Limits of an endpoint at a loopback address are not shared: each machine has another one there.
        own = {"OPENAI_BASE_URL": endpoint.base_url}
        with open_pool_house(folder, url, endpoint, has_pages=has_pages, database=database, **own) as house:
            yield house


def start_workers(house: PoolHouse, n_workers: int) -> None:
    """Start workers until so many have begun to take parts."""
    while len(house.workers) < n_workers:
        house.start_worker()
    house.wait_until(lambda: _count_started(house) >= n_workers)


def _count_started(house: PoolHouse) -> int:
    return sum("started!" in worker.log.read_text(errors="replace") for worker in house.workers)


def run_once(house: PoolHouse, number: int, n_samples: int, *options: str) -> Pace:
    """One run over texts that were never asked before."""
    path = write_dataset(house.folder, make_rows(n_samples, first=number * 10_000), f"items-{number}.jsonl")
    house.endpoint.reset()
    cpu_s, began = _count_cpu(house), time.monotonic()
    arguments = ("run", path.name, "--judge", "openai:judge", "--pool", POOL, "--metrics", _METRICS)
    ended = finish(house.place.start(*arguments, *options), timeout_s=1200)
    if ended.status:
        raise SystemExit(f"the run ended with status {ended.status}: {ended.stderr}\n{house.read_logs()}")
    stats = house.endpoint.stats
    asked_s = (stats.last_request_at or 0.0) - (stats.first_request_at or 0.0)
    whole_s = time.monotonic() - began
    return Pace(judged=n_samples / asked_s, whole=n_samples / whole_s, cpu_s=_count_cpu(house) - cpu_s)


def _count_cpu(house: PoolHouse) -> float:
    """Seconds of CPU of the processes that workers have started and that have ended."""
    ticks = [Path(f"/proc/{worker.process.pid}/stat").read_text().split()[15:17] for worker in house.workers]
    return sum(int(value) for pair in ticks for value in pair) / os.sysconf("SC_CLK_TCK")


def take_pictures(postgres: PostgresServer, n_samples: int) -> None:
    """Put pictures of two runs in Prefect into the guide: of one process, and of two workers, one of them killed."""
    options = ("--judge", "openai:judge", "--metrics", _METRICS)
    with open_house(postgres, "pictures", 0.3, has_pages=True) as house:
        write_dataset(house.folder, make_rows(n_samples), "handbook.jsonl")
        finish(house.place.start("run", "handbook.jsonl", *options), timeout_s=1200)
        start_workers(house, 2)
        write_dataset(house.folder, make_rows(n_samples, first=n_samples + 1), "handbook.jsonl")
        process = house.place.start("run", "handbook.jsonl", *options, "--pool", POOL)
        house.wait_until(lambda: len(house.endpoint.settled) > n_samples * _CALLS * 1.5, process)
        next(worker for worker in house.workers if worker.is_busy()).kill()
        finish(process, timeout_s=1200)
        runs = house.query("select flow_run_id from runs order by started_at")
        # Prefect draws the graph with WebGL.
        with open_browser("--use-angle=swiftshader", "--enable-unsafe-swiftshader") as browser:
            page = browser.open_page()
            page.show_as(width=1280, height=500)
            for picture, run in zip(("prefect_run", "prefect_pool"), runs, strict=True):
                address = house.server["PREFECT_API_URL"].removesuffix("/api")
                page.visit(f"{address}/runs/flow-run/{run['flow_run_id']}")
                page.wait_for("document.querySelector('canvas')")
                time.sleep(15)  # the graph moves until all of it is placed
                page.take_picture(IMAGES / f"{picture}.png")
                print(IMAGES / f"{picture}.png", flush=True)


def measure_writes(postgres: PostgresServer, seconds: float) -> None:
    """Print how many transactions a second the lake takes, by number of writers, and how long each waits."""
    print(f"batches of {4 * _SHARD} statements, {seconds:g} s each")
    print(
        f"{'writers':>8} {'batches/s':>10} {'median ms':>10} {'worst ms':>9} "
        f"{'catalogue kB each':>18} {'compacted in s':>15}",
        flush=True,
    )
    for n_writers in (1, 4, 16):
        with tempfile.TemporaryDirectory(prefix="evalhouse-writes-") as name:
            os.environ["EVALHOUSE_STATE_DIR"] = f"{name}/state"
            url = f"ducklake:{postgres.make_database(f'writes{n_writers}')}?data={name}/files"
            Warehouse(url).migrate()
            before = _measure_catalogue(postgres, f"writes{n_writers}")
            taken = run_writers(url, n_writers, seconds)
            grown = _measure_catalogue(postgres, f"writes{n_writers}") - before
            compacted_s = _time(lambda url=url: compact_warehouse(Warehouse(url)))  # type: ignore[misc]
        print(
            f"{n_writers:>8} {len(taken) / seconds:>10.1f} {1000 * statistics.median(taken):>10.0f} "
            f"{1000 * max(taken):>9.0f} {grown / 1000 / len(taken):>18.1f} {compacted_s:>15.1f}",
            flush=True,
        )


def _measure_catalogue(postgres: PostgresServer, name: str) -> int:
    """Bytes of the catalogue's database."""
    with psycopg.connect(postgres.address(name), autocommit=True) as session:
        row = session.execute("select pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])


def run_writers(url: str, n_writers: int, seconds: float) -> list[float]:
    """Seconds of each transaction of all writers, which begin together."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "helpers")}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, url, f"w{number}", str(4 * _SHARD), str(seconds)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(n_writers)
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    outputs = []
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        outputs.append(writer.communicate()[0])
    # DuckDB may have shown its progress before, on a busy machine.
    return [float(one) for output in outputs for one in output.splitlines()[-1].split()]


def measure_history(postgres: PostgresServer, n_scores: int) -> None:
    """Print the seconds of each query on both, and their ratio."""
    nights = max(2, round(n_scores / (_SAMPLES_A_NIGHT * len(METRICS))))
    with tempfile.TemporaryDirectory(prefix="evalhouse-history-") as name:
        folder = Path(name)
        os.environ["EVALHOUSE_STATE_DIR"] = str(folder / "state")
        file = Warehouse(str(folder / "history.duckdb"))
        lake = Warehouse(f"ducklake:{postgres.make_database('history')}?data={folder / 'files'}")
        made_s = _time(lambda: write_nights(file.location.path, Size(nights=nights, samples=_SAMPLES_A_NIGHT)))
        moved_s = _time(lambda: move_warehouse(file, lake, lambda *_: None))
        (row,) = file.read_rows("select count(*) as n from scores")
        file_mb = file.location.path.stat().st_size / 1e6
        lake_mb = sum(path.stat().st_size for path in (folder / "files").rglob("*.parquet")) / 1e6
        print(f"{row['n']:,} scores of {nights} nights: made in {made_s:.0f} s, moved into the lake in {moved_s:.0f} s")
        print(f"{file_mb:.0f} MB as a DuckDB file, {lake_mb:.0f} MB of Parquet files")
        print(f"{'file s':>7} {'lake s':>7} {'ratio':>6}  query", flush=True)
        for recipe in read_recipes():
            of_file, of_lake = (_time_query(one, recipe.sql) for one in (file, lake))
            print(f"{of_file:>7.2f} {of_lake:>7.2f} {of_lake / of_file:>6.1f}  {recipe.title}", flush=True)


def _time_query(warehouse: Warehouse, sql: str) -> float:
    """The best of three, opening included."""
    return min(_time(lambda: run_query(warehouse.location, sql)) for _ in range(3))


def _time(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return time.monotonic() - began


def main() -> None:
    """Read the arguments and measure what is asked for, or all."""
    parser = argparse.ArgumentParser(description="Measure workers, writers and readers of a lake.")
    parser.add_argument(
        "what", nargs="*", choices=["throughput", "part", "writes", "history", "pictures", []], default=[]
    )
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers, with commas between them")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--latency", type=float, default=0.3, help="seconds the endpoint takes for a request")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each number of writers writes")
    parser.add_argument("--scores", type=int, default=3_000_000)
    given = parser.parse_args()
    wanted = given.what or ["throughput", "part", "writes", "history"]
    open_session()
    with start_postgres() as postgres:
        if "throughput" in wanted:
            workers = [int(one) for one in given.workers.split(",")]
            measure_throughput(postgres, workers, given.samples, given.latency)
        if "part" in wanted:
            measure_part(postgres, 6)
        if "writes" in wanted:
            measure_writes(postgres, given.seconds)
        if "history" in wanted:
            measure_history(postgres, given.scores)
        if "pictures" in wanted:
            take_pictures(postgres, given.samples)
    close_session()


if __name__ == "__main__":
    main()
