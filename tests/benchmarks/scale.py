"""Measure time and memory of `evalhouse run` with the lexical judge on made-up datasets of several sizes.

    python tests/benchmarks/scale.py 1000 10000 100000

Each size runs in a separate process on a fresh warehouse. Printed: wall seconds, seconds and peak memory relative to
the smallest size, milliseconds a sample, and what is left on disk. No two samples share a text, so nothing is reused.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_SUBJECTS = ["The pump", "The lamp", "The planter", "The tariff", "The depot", "The warranty", "The app", "The filter"]
_VERBS = ["costs", "weighs", "covers", "lasts", "needs", "stores", "delivers", "consumes"]
_OBJECTS = ["euros", "kilograms", "months", "litres", "parcels", "watts", "visits", "sensors"]
_PLACES = ["in Leeds", "in Porto", "near Ghent", "at the harbour", "in the north hall", "on weekdays", "after delivery"]


def write_dataset(path: Path, n_samples: int) -> None:
    """`n_samples` rows with three contexts of about 60 words; half of the answers change one number."""
    draw = random.Random(n_samples)
    with path.open("w", encoding="utf-8") as file:
        for number in range(n_samples):
            file.write(json.dumps(make_sample(draw, number)) + "\n")


def make_sample(draw: random.Random, number: int) -> dict[str, object]:
    """One sample whose facts are in its first or last context."""
    facts = [sentence for sentence, _ in zip(_sentences(draw, number), range(3), strict=False)]
    others = [" ".join(sentence for sentence, _ in zip(_sentences(draw, number), range(7), strict=False)) for _ in "ab"]
    gold = f"{' '.join(facts)} {others.pop()}"
    contexts = [gold, *others, others[0][::-1]] if draw.random() < 0.5 else [*others, others[0][::-1], gold]
    answer = facts[:2] if draw.random() < 0.5 else [facts[0], facts[1].replace(" 1", " 9", 1)]
    return {
        "id": f"s{number}",
        "question": f"What is known about item {number}?",
        "answer": " ".join(answer),
        "ground_truth": " ".join(facts),
        "contexts": contexts,
    }


def _sentences(draw: random.Random, number: int) -> Iterator[str]:
    while True:
        subject, verb, thing = draw.choice(_SUBJECTS), draw.choice(_VERBS), draw.choice(_OBJECTS)
        yield f"{subject} of item {number} {verb} {draw.randint(100, 1999)} {thing} {draw.choice(_PLACES)}."


def list_tree(pid: int) -> list[int]:
    """The process, and all that it has started and that they have, also what a process that has ended has left."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
    tree = [pid]
    for one in tree:
        tree += [child for child, parent in parents.items() if parent == one]
    return tree


def measure_cpu(pids: list[int]) -> float:
    """CPU seconds of these processes, and of their children that have ended."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure_command(
    arguments: Sequence[str], folder: Path, *, allowed: Sequence[int] = (0,), **variables: str
) -> dict[str, float]:
    """Wall seconds, CPU seconds and peak memory in MB of one whole command, its output in files of the folder."""
    began, flags = time.monotonic(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    program = str(Path(sys.executable).with_name("evalhouse"))
    actions = [
        (os.POSIX_SPAWN_OPEN, number, folder / name, flags, 0o600)
        for number, name in ((1, "out.txt"), (2, "errors.txt"))
    ]
    pid = os.posix_spawn(program, [program, *arguments], os.environ | variables, file_actions=actions)
    _, status, usage = os.wait4(pid, 0)
    if (code := os.waitstatus_to_exitcode(status)) not in allowed:
        raise SystemExit(f"{' '.join(arguments)} ended with status {code}: {(folder / 'errors.txt').read_text()}")
    return {
        "seconds": time.monotonic() - began, "cpu": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1024,
    }  # fmt: skip


def measure_run(dataset: Path, warehouse: Path) -> dict[str, float]:
    """The same of a run with the lexical judge."""
    arguments = ("run", str(dataset), "--warehouse", str(warehouse), "--json")
    return measure_command(arguments, warehouse.parent, EVALHOUSE_JUDGE="lexical")


def main(sizes: list[int]) -> None:
    """Measure each size and print a row for it."""
    names = ("samples", "seconds", "cpu s", "ms/sample", "× time", "peak MB", "× memory", "disk MB")
    print(" ".join(f"{name:>9}" for name in names))
    first: dict[str, float] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="evalhouse-scale-") as name:
            folder = Path(name)
            write_dataset(folder / "data.jsonl", size)
            measured = measure_run(folder / "data.jsonl", folder / "scale.duckdb")
            disk = (folder / "scale.duckdb").stat().st_size / 1e6
        first = first or measured
        print(
            f"{size:>9,} {measured['seconds']:>9.1f} {measured['cpu']:>9.1f} "
            f"{measured['seconds'] / size * 1000:>9.1f} {measured['seconds'] / first['seconds']:>9.1f} "
            f"{measured['peak_mb']:>9.0f} {measured['peak_mb'] / first['peak_mb']:>9.2f} {disk:>9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [1000, 10_000, 100_000])
