"""Measure the disk space of a night by group of tables, after `evalhouse run` with the lexical judge.

    python tests/benchmarks/size.py 1000

Printed: MB a 1,000 samples by group of tables, as `evalhouse warehouse check` has them, for a first night, in which
everything is new, and for a second, in which nothing is. A night that takes more than `MOST_MB` ends with status 1.
"""

import sys
import tempfile
from pathlib import Path

from scale import measure_run, write_dataset

from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.upkeep.check_and_compact import GROUPS, compact_warehouse, measure_size

MOST_MB = {"first": 9.0, "second": 2.0}
"""A 1,000 samples of three contexts of 60 words, by night."""
_MB = 1_000_000


def measure_nights(n_samples: int) -> dict[str, dict[str, float]]:
    """MB a 1,000 samples by group and in all (`all`), by night; the file is compacted after each."""
    nights: dict[str, dict[str, float]] = {}
    before: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="evalhouse-size-") as name:
        folder = Path(name)
        write_dataset(folder / "data.jsonl", n_samples)
        for night in MOST_MB:
            measure_run(folder / "data.jsonl", folder / "size.duckdb")
            warehouse = Warehouse(str(folder / "size.duckdb"))
            compact_warehouse(warehouse)
            size = measure_size(warehouse)
            now = {**size.groups, "all": size.n_bytes - size.n_free}
            nights[night] = {group: (n - before.get(group, 0)) / _MB / n_samples * 1000 for group, n in now.items()}
            before = dict(now)
    return nights


def main(n_samples: int) -> int:
    """Measure both nights and print a row for each."""
    names = (*GROUPS, "all")
    print(" ".join(f"{name:>9}" for name in ("night", *names, "at most")))
    nights = measure_nights(n_samples)
    for night, by_group in nights.items():
        cells = [f"{night:>9}", *(f"{by_group[name]:>9.2f}" for name in names), f"{MOST_MB[night]:>9.1f}"]
        print(" ".join(cells))
    return int(any(by_group["all"] > MOST_MB[night] for night, by_group in nights.items()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
