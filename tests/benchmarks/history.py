"""Measure every query of the cookbook and every command on a warehouse with half a year of nights.

    python tests/benchmarks/history.py [--nights 200 --samples 3000 --metrics 15] [--only WORD] [--folder FOLDER]

Writes a warehouse of this size by SQL (two minutes for 9 million scores and 42 million rows in all), and starts each
command as a separate process. Printed: wall seconds, seconds of CPU, the wall seconds of the same command on one of
two nights with three samples, the ratio of both, and the peak of memory. The folder is removed at the end; one that
was named stays, and its warehouse is used again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from history_nights import METRICS, SUITE, Size, write_nights  # noqa: E402
from scale import measure_command  # noqa: E402

from evalhouse.flows.ui.sql import read_recipes  # noqa: E402

SMALL = Size(nights=2, samples=3)
GATE_FAILED = 1
COMMANDS = {
    "runs": ("runs",),
    "runs --limit 1000": ("runs", "--limit", "1000"),
    "show latest": ("show", "latest"),
    "compare previous latest": ("compare", "previous", "latest"),
    "gate latest": ("gate", "latest", "--against", "previous", "--max-drop", "faithfulness=0.02"),
    "diagnose latest": ("diagnose", "latest"),
    "diagnose latest --runs 30": ("diagnose", "latest", "--runs", "30"),
    "lineage": ("lineage", "latest", "tide-1", "factual_f1"),
    "report latest": ("report", "latest", "-o", "report.html"),
    "report --against": ("report", "latest", "--against", "previous", "-o", "against.html"),
    "report --history": ("report", "--history", SUITE, "-o", "history.html"),
}


def list_commands(only: str) -> dict[str, tuple[str, ...]]:
    """Return by name the arguments of every command with this word in its name."""
    queries = {f"query: {recipe.title}": ("query", recipe.sql) for recipe in read_recipes()}
    return {name: arguments for name, arguments in {**COMMANDS, **queries}.items() if only in name}


def measure(folder: Path, warehouse: str, arguments: Sequence[str]) -> dict[str, float]:
    """One command from start to end; leaves the program when it fails."""
    allowed = (0, GATE_FAILED) if arguments[0] == "gate" else (0,)
    return measure_command([*arguments, "--warehouse", str(folder / warehouse)], folder, allowed=allowed)


def measure_all(folder: Path, size: Size, only: str) -> None:
    """Make what is missing of the two warehouses, and print a row for each command."""
    large = f"{size.nights}x{size.samples}x{size.metrics}.duckdb"
    os.chdir(folder)
    for name, wanted in ((large, size), ("small.duckdb", SMALL)):
        if not (folder / name).exists():
            began = time.monotonic()
            # In a separate process: on Linux a child's peak of memory begins with that of its parent.
            with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as other:
                other.submit(write_nights, folder / f"{name}.new", wanted).result()
            (folder / f"{name}.new").rename(folder / name)
            megabytes = (folder / name).stat().st_size / 1e6
            print(f"{name}: made in {time.monotonic() - began:.1f} s, {megabytes:.0f} MB", flush=True)
    print(f"{'seconds':>8} {'cpu s':>6} {'small':>6} {'ratio':>6} {'peak MB':>8}  command", flush=True)
    for name, arguments in list_commands(only).items():
        small, found = measure(folder, "small.duckdb", arguments), measure(folder, large, arguments)
        ratio = found["seconds"] / small["seconds"]
        times = f"{found['seconds']:>8.2f} {found['cpu']:>6.2f} {small['seconds']:>6.2f} {ratio:>6.1f}"
        print(f"{times} {found['peak_mb']:>8.0f}  {name}", flush=True)
    for page in sorted(folder.glob("*.html")):
        print(f"{page.name}: {page.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description="Time queries and commands over a long history.")
    parser.add_argument("--nights", type=int, default=200)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--metrics", type=int, default=len(METRICS), choices=range(1, len(METRICS) + 1))
    parser.add_argument("--only", default="", help="measure the commands whose name has this in it")
    parser.add_argument("--folder", type=Path, help="keep the warehouses here, and use them again")
    given = parser.parse_args()
    size = Size(nights=given.nights, samples=given.samples, metrics=given.metrics)
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        measure_all(given.folder.resolve(), size, given.only)
        return
    with tempfile.TemporaryDirectory(prefix="evalhouse-history-") as name:
        measure_all(Path(name), size, given.only)


if __name__ == "__main__":
    main()
