"""How long a person waits before the first task of a flow runs: with the server Prefect starts by itself when none is
configured, and with ours. Every run is a process of its own, the two take turns, and each is measured on a home that
does not exist yet and on one that has been used. Prints medians in seconds, and the ratio of each pair.

    python tests/benchmarks/prefect_startup.py [RUNS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

FLOW = """
import asyncio, time
from pathlib import Path
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

@task(persist_result=False, cache_policy=NO_CACHE)
async def judge(number):
    if number == 0:
        print("first", time.time(), flush=True)

@flow(persist_result=False, result_storage=Path("."))
async def evaluate():
    await asyncio.gather(*[judge(number) for number in range(50)])
"""
PREFECTS = FLOW + "asyncio.run(evaluate())\n"
OURS = (
    """
from evalhouse.flows.server.local import LocalServer
from evalhouse.flows.server.environment import configure_prefect_environment
server = LocalServer.start()
configure_prefect_environment(server.api_url, auth_string=server.auth_string)
"""
    + FLOW
    + """
server.wait_until_ready()
asyncio.run(evaluate())
server.stop()
"""
)
SCRIPTS = {"prefect's own": PREFECTS, "ours": OURS}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    to_first_task: dict[tuple[str, str], list[float]] = {}
    to_exit: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            for server, script in SCRIPTS.items():
                home = Path(folder) / f"{number}-{server[:4]}"
                for state in ("fresh", "warm"):
                    first_s, exit_s = measure(script, home)
                    to_first_task.setdefault((state, server), []).append(first_s)
                    to_exit.setdefault((state, server), []).append(exit_s)
    for title, measured in (("to the first task", to_first_task), ("to the end of the process", to_exit)):
        print(f"seconds {title}, median of {runs} (lowest to highest)")
        for state in ("fresh", "warm"):
            theirs, ours = (measured[state, server] for server in SCRIPTS)
            ratio = statistics.median(theirs) / statistics.median(ours)
            print(f"  {state} home: {show(theirs)} Prefect's own, {show(ours)} ours: {ratio:.1f} times faster")


def show(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"


def measure(script: str, home: Path) -> list[float]:
    """Seconds from the start of a process to its first task and to its end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ |= {
        "PREFECT_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        # Prefect gives itself 20 s, which a fresh home on a busy machine takes.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }
    began = time.time()
    run = subprocess.run(
        [sys.executable, "-c", script], env=environ, cwd=home.parent, capture_output=True, text=True, check=True
    )
    [first] = [line.split()[1] for line in run.stdout.splitlines() if line.startswith("first ")]
    return [float(first) - began, time.time() - began]


if __name__ == "__main__":
    main()
