"""Measure the memory of a run in all its processes, and what a first run takes before its first request.

    python tests/benchmarks/lean.py 3        # times each is repeated

Memory: `evalhouse run` over 300 samples with the lexical judge, in a warehouse and a Prefect home that are new. Printed
is the peak, over samples every 20 ms, of the proportional set sizes (PSS) of the command, its Prefect server and its
queries together: a page that two processes share counts once. RSS counts it in each, and is printed as well. Measure
while no other process of this Python runs: it would share pages, and PSS would be a quarter too small.

First request: `evalhouse run` of one row with a model at a local endpoint, in a new home; wall seconds, and CPU seconds
of all its processes, from the start of the command to the first request. The command and the server use a core each, so
that a quiet machine takes about half of the CPU seconds; on a busy one the wall seconds say little.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from endpoint import running_endpoint
from scale import list_tree, measure_cpu, write_dataset

MOST_MB, MOST_S = 450, 4.0
N_SAMPLES = 300
PROGRAM = str(Path(sys.executable).with_name("evalhouse"))


def measure_memory(pids: list[int]) -> tuple[float, float]:
    """MB of proportional and of resident memory of these processes together."""
    sums = {"Pss:": 0, "Rss:": 0}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, value, *_ = line.split()
            if name in sums:
                sums[name] += int(value)
    return sums["Pss:"] / 1024, sums["Rss:"] / 1024


def start_run(folder: Path, *arguments: str, **variables: str) -> "subprocess.Popen[bytes]":
    """Start `evalhouse run` in a new folder, which is its Prefect home as well."""
    names = ("PREFECT_API_URL", "PREFECT_PROFILE", "OPENAI_API_KEY", "OPENAI_BASE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.Popen(
        [PROGRAM, "run", "data.jsonl", "--warehouse", "lean.duckdb", "--json", *arguments],
        cwd=folder,
        env=environment | {"PREFECT_HOME": str(folder / "prefect")} | variables,
        stdout=subprocess.DEVNULL,
    )


def measure_run() -> tuple[float, float]:
    """Peak MB of a run over 300 samples in all processes, PSS and RSS."""
    with tempfile.TemporaryDirectory(prefix="evalhouse-lean-") as name:
        write_dataset(Path(name, "data.jsonl"), N_SAMPLES)
        running = start_run(Path(name), "--judge", "lexical")
        pss = rss = 0.0
        while running.poll() is None:
            now = measure_memory(list_tree(running.pid))
            pss, rss = max(pss, now[0]), max(rss, now[1])
            time.sleep(0.02)
    if running.returncode:
        raise SystemExit(f"the run ended with status {running.returncode}")
    return pss, rss


def measure_first_request() -> tuple[float, float]:
    """Wall and CPU seconds of a first run, from its start to the first request at the endpoint."""
    with tempfile.TemporaryDirectory(prefix="evalhouse-lean-") as name, running_endpoint() as endpoint:
        write_dataset(Path(name, "data.jsonl"), 1)
        began = time.monotonic()
        running = start_run(
            Path(name), "--judge", "openai:judge", OPENAI_BASE_URL=endpoint.base_url, OPENAI_API_KEY="sk-none"
        )
        while not endpoint.stats.requests and running.poll() is None:
            time.sleep(0.01)
        seconds, cpu = time.monotonic() - began, measure_cpu(list_tree(running.pid))
        if running.wait():
            raise SystemExit(f"the run ended with status {running.returncode}")
    return seconds, cpu


def main(times: int) -> int:
    """Measure both and print a row for each time; status 1 where no time kept to both limits."""
    print("   PSS MB    RSS MB   wall s    CPU s   before the first request")
    is_lean = False
    for _ in range(times):
        (pss, rss), (seconds, cpu) = measure_run(), measure_first_request()
        print(f"{pss:>9.0f} {rss:>9.0f} {seconds:>8.1f} {cpu:>8.1f}", flush=True)
        is_lean |= pss <= MOST_MB and seconds <= MOST_S
    return int(not is_lean)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
