"""Rows that are computed from others: the means, the causes and the costs of runs.

They are stored in the transaction that writes what they are computed from, so that pages only read them: means and
causes when a run is scored, costs when it ends, and all of them again where rows of an ended run come late or go.
The views `run_scores`, `sample_causes`, `run_causes` and `run_costs` read them.
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
_SAMPLES_AT_ONCE: Final = 20_000
_BYTES_PER_SAMPLE: Final = 25_000  # twice what 30,000 samples of 7 statements each took
_WRITER_MIB: Final = 180
_MOST_MIB: Final = 2_000


def derive(
    connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str], parts: Collection[Part] = tuple(RESTS_ON)
) -> None:
    """Compute these parts of these runs and store them in place of what was there, within the open transaction."""
    for chunk, n_samples in _divide(connection, run_ids):
        connection.execute("create or replace temp table open_runs as select unnest(?::varchar[]) as run_id", [chunk])
        with _memory_for(connection, n_samples if "causes" in parts else 0):
            for part in parts:
                connection.execute(f"delete from stored_{part} where run_id in (select run_id from open_runs)")
                connection.execute(f"insert into stored_{part} by name\n{read_stored(part)}")
        connection.execute("drop table temp.open_runs")


def derive_again(connection: duckdb.DuckDBPyConnection, run_id: str, written: Collection[str]) -> None:
    """Bring what rests on these tables up to date, where rows were written or deleted of a run that has ended.

    Of a run that is running nothing is done: it is scored, and its costs are stored, when it ends.
    """
    parts = [part for part, tables in RESTS_ON.items() if not tables.isdisjoint(written)]
    if parts and connection.execute("select 1 from runs where run_id = ? and status <> 'running'", [run_id]).fetchone():
        derive(connection, [run_id], parts)
        if "causes" in parts:
            derive(connection, list_later(connection, [run_id]), ["causes"])


def list_later(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> list[str]:
    """Return the later runs whose causes look back at one of these runs."""
    return [row[0] for row in connection.execute(read_query("stored/later"), {"run_ids": list(run_ids)}).fetchall()]


def _divide(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> Iterator[tuple[list[str], int]]:
    """Runs in groups whose causes fit into memory together, each with its number of samples."""
    sql = "select run_id, count(*) from run_samples where run_id in (select unnest(?::varchar[])) group by run_id"
    sizes = dict(connection.execute(sql, [list(run_ids)]).fetchall())
    chunk: list[str] = []
    n_samples = 0
    for run_id in run_ids:
        if chunk and n_samples + sizes.get(run_id, 0) > _SAMPLES_AT_ONCE:
            yield chunk, n_samples
            chunk, n_samples = [], 0
        chunk.append(run_id)
        n_samples += sizes.get(run_id, 0)
    if chunk:
        yield chunk, n_samples


@contextmanager
def _memory_for(connection: duckdb.DuckDBPyConnection, n_samples: int) -> Iterator[None]:
    """Give a writer, which has little memory, what it takes to compute the causes of so many samples."""
    needed = n_samples * _BYTES_PER_SAMPLE // 2**20
    if needed <= _WRITER_MIB:
        yield
        return
    ((before,),) = connection.execute("select current_setting('memory_limit')").fetchall()
    connection.execute(f"set memory_limit = '{min(needed, _MOST_MIB)}MiB'")
    try:
        yield
    finally:
        connection.execute(f"set memory_limit = '{before}'")
