"""Analysts who query all the time while a run is written: each is a process, which notes everything it sees that
must not be. A torn batch would show as a sample with some of its rows, a lost one as a count that falls."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cli_process import ROOT

from evalhouse.warehouse.store import Warehouse

# To read takes a tenth of a second of CPU and more, of two cores that are shared with everything else here: the longer
# it takes, the less often it is done.
_PAUSE_S = 0.5
_OFTEN = 5

_COUNTS = """
select
    (select count(*) from llm_calls) as n_calls,
    (select count(*) from run_samples) as n_samples,
    (select count(distinct sample_id) from outcomes) as n_judged,
    (select count(*) from scores) as n_scores
"""
# Every sample of the dataset has as many rows of each kind as any other.
_KINDS = """
select table_name, count(distinct n_rows) as n_sizes
from (
    select 'outcomes' as table_name, sample_id, count(*) as n_rows from outcomes group by all
    union all by name
    select 'statements' as table_name, sample_id, count(*) as n_rows from statements group by all
    union all by name
    select 'classifications' as table_name, sample_id, count(*) as n_rows from classifications group by all
    union all by name
    select 'attributions' as table_name, sample_id, count(*) as n_rows from attributions group by all
)
group by table_name
"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The report of a reader: how often it read, what was wrong, and its last counts."""

    n_reads: int
    wrong: list[str]
    last: dict[str, int]


@contextlib.contextmanager
def reading(url: str, folder: Path, *, n_readers: int) -> Iterator[list[Path]]:
    """Readers for this block; yields where each will have written what it saw, once the block has ended."""
    stop = folder / "readers.stop"
    paths = [folder / f"reader-{number}.json" for number in range(n_readers)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])}
    readers = [
        subprocess.Popen([sys.executable, __file__, url, str(stop), str(path)], env=environment) for path in paths
    ]
    try:
        yield paths
    finally:
        stop.touch()
        for reader in readers:
            reader.wait(timeout=60)


def read_seen(path: Path) -> Seen:
    return Seen(**json.loads(path.read_text()))


def read_on(url: str, stop: Path) -> Seen:
    """Read until the order to stop, and once after it: the last batch may have come since the read before."""
    warehouse = Warehouse(url)
    last: dict[str, int] = {}
    wrong: list[str] = []
    n_reads = 0
    while not (warehouse.exists() and "outcomes" in _list_tables(warehouse)) and not stop.exists():
        time.sleep(0.5)
    is_over = False
    while not is_over:
        is_over = stop.exists()
        counts = {name: int(str(value)) for name, value in warehouse.read_rows(_COUNTS)[0].items()}
        fallen = {name: (before, counts[name]) for name, before in last.items() if counts[name] < before}
        torn = [row for row in warehouse.read_rows(_KINDS) if row["n_sizes"] != 1]
        wrong += [f"fallen: {fallen}"] if fallen else []
        wrong += [f"torn: {torn}"] if torn else []
        last, n_reads = counts, n_reads + 1
        if not is_over:
            time.sleep(_PAUSE_S * (1 + n_reads // _OFTEN))
    return Seen(n_reads=n_reads, wrong=wrong, last=last)


def _list_tables(warehouse: Warehouse) -> set[str]:
    return {str(row["table_name"]) for row in warehouse.read_rows("select table_name from duckdb_tables()")}


if __name__ == "__main__":
    seen = read_on(sys.argv[1], Path(sys.argv[2]))
    Path(sys.argv[3]).write_text(json.dumps({"n_reads": seen.n_reads, "wrong": seen.wrong, "last": seen.last}))
