"""What is told of a run again and again, stored when it ends beside what it is computed from: means, causes, costs.

Each part is a table that a view of the same rows reads: `stored_scores` (view `run_scores`), `stored_causes`
(`sample_causes`, and so `run_causes`) and `stored_costs` (`run_costs`). A row in `stored_parts` says that a run's part
is stored and by which rules; whoever writes what it is computed from takes that row away in the same transaction
(`forget`), and the views compute for themselves until it is stored again (`store_open`). So they never disagree.

To plan the computation takes longer than to do it for a few samples: small runs are stored many at a time, with the end
of a later run.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal

import duckdb

from evalhouse.warehouse.metric_files import read_stored
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.tables import VERDICT_TABLES

Part = Literal["scores", "causes", "costs"]
RESTS_ON: Final[Mapping[Part, frozenset[str]]] = {
    "scores": frozenset({"scores", "run_samples"}),
    "causes": frozenset({*VERDICT_TABLES, "run_samples", "kb_updates"}),
    "costs": frozenset({"llm_calls"}),
}
"""By part the tables that it is computed from; causes also from those of earlier runs of the series."""
FEW_SAMPLES: Final = 50
"""Runs with fewer samples in all are left to the views."""
CHUNK_SAMPLES: Final = 20_000
"""Samples that are computed in one transaction, beside those of the run that has just ended."""
MOST_SAMPLES: Final = 40_000
"""A run with more samples has its causes computed whenever they are asked for: they would not fit into a writer."""
_BYTES_PER_SAMPLE: Final = 25_000  # twice what 30,000 samples of 7 statements each took
_WRITER_MIB: Final = 180


def forget(connection: duckdb.DuckDBPyConnection, run_id: str, written: Collection[str]) -> None:
    """Note within the open transaction that rows of a run are written to these tables: what rests on them is stale."""
    parts = [part for part, tables in RESTS_ON.items() if not tables.isdisjoint(written)]
    if parts and connection.execute("select 1 from stored_parts limit 1").fetchone():
        connection.execute(read_query("stored/forget"), {"run_id": run_id, "parts": parts})


def store(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str], parts: Collection[Part]) -> None:
    """Compute these parts of these runs and store them in place of what was there, within the open transaction."""
    connection.execute("create or replace temp table open_runs as select unnest(?::varchar[]) as run_id", [run_ids])
    for part in parts:
        for table, where in ((f"stored_{part}", ""), ("stored_parts", f"part = '{part}' and")):
            connection.execute(f"delete from {table} where {where} run_id in (select run_id from open_runs)")
        connection.execute(f"insert into stored_{part} by name\n{read_stored(part)}")
        connection.execute(read_query("stored/note"), {"part": part})
    connection.execute("drop table temp.open_runs")


def store_scored(connection: duckdb.DuckDBPyConnection, run_id: str, n_samples: int) -> None:
    """Store what a run was scored to in the transaction that scores it; of a small run that is left to `store_open`."""
    if n_samples >= FEW_SAMPLES:
        parts: tuple[Part, ...] = ("scores", "causes") if n_samples <= MOST_SAMPLES else ("scores",)
        with _room_for(connection, n_samples if "causes" in parts else 0):
            store(connection, [run_id], parts)


def store_open(connection: duckdb.DuckDBPyConnection, run_id: str | None = None) -> int:
    """Store what is not yet stored of runs that have ended, and of the run that is named, the newest first.

    Returns how many runs are left to another transaction; 0 where they have too few samples to be worth it.
    """
    wanted = {"parts": list(RESTS_ON), "run_id": run_id, "most_samples": MOST_SAMPLES}
    rows = connection.execute(read_query("stored/open"), wanted).fetchall()
    if sum(n_samples for _, n_samples, _ in rows) < FEW_SAMPLES:
        return 0
    taken = _take_chunk(rows)
    by_parts: dict[tuple[Part, ...], list[str]] = {}
    for run, _, missing in taken:
        by_parts.setdefault(tuple(missing), []).append(run)
    with _room_for(connection, sum(n_samples for _, n_samples, missing in taken if "causes" in missing)):
        for parts, runs in by_parts.items():
            store(connection, runs, parts)
    return len(rows) - len(taken)


def _take_chunk(rows: Sequence[tuple[str, int, list[Part]]]) -> Sequence[tuple[str, int, list[Part]]]:
    """As many runs as one transaction takes, one at least."""
    n_samples = 0
    for place, (_, n, _) in enumerate(rows):
        n_samples += n
        if place and n_samples > CHUNK_SAMPLES:
            return rows[:place]
    return rows


@contextmanager
def _room_for(connection: duckdb.DuckDBPyConnection, n_samples: int) -> Iterator[None]:
    """Give a writer, which has little memory, what it takes to compute the causes of so many samples."""
    needed = n_samples * _BYTES_PER_SAMPLE // 2**20
    if needed <= _WRITER_MIB:
        yield
        return
    ((before,),) = connection.execute("select current_setting('memory_limit')").fetchall()
    connection.execute(f"set memory_limit = '{needed}MiB'")
    try:
        yield
    finally:
        connection.execute(f"set memory_limit = '{before}'")
