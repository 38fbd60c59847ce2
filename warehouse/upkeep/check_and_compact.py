"""Checking a warehouse, making it small again, and measuring what it takes on disk.

A check reads and changes nothing. Compacting a DuckDB file writes it again without the holes that deleted rows left;
compacting a lake merges its small files, forgets snapshots but the last of each run, and removes unused files.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import duckdb
import polars as pl

from evalhouse.warehouse import steps
from evalhouse.warehouse.engine.connection import (
    MAX_COMMIT_BYTES,
    VECTOR_ROWS,
    explain_failure,
    keep_groups_apart,
    open_reader,
    open_writer,
)
from evalhouse.warehouse.engine.lake import FORGETTING, NAME
from evalhouse.warehouse.engine.migrate import load_migrations
from evalhouse.warehouse.errors import WarehouseError, first_line
from evalhouse.warehouse.messages import Finding
from evalhouse.warehouse.mover import FLUSH_POLICIES, count_refused, find_journal, find_orphans, list_segments
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, VERDICT_TABLES, Warehouse, list_spooled

_ROUNDS: Final = 3


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """Sizes in bytes before and after, and a description of the work."""

    before: int
    after: int
    detail: str


def check_warehouse(warehouse: Warehouse) -> Iterator[Finding]:
    """Yield a finding for each check; raises the errors of a warehouse that cannot be opened."""
    location = warehouse.location
    applied, newest = warehouse.read("select max(number) from migrations").item(), len(load_migrations())
    if applied == newest:
        yield Finding(what="tables", verdict="ok", detail=f"as this evalhouse makes them ({newest} migrations)")
    else:
        detail = f"{applied} of {newest} migrations; the next run applies the others"
        yield Finding(what="tables", verdict="note", detail=detail)

    runs = {str(row["status"]): row["n"] for row in warehouse.fetch_rows("upkeep/runs")}
    yield Finding(what="runs", verdict="ok", detail=", ".join(f"{n} {status}" for status, n in runs.items()) or "none")
    ids = {
        f"{column}s": " union ".join(f"select {column} from {table}" for table in tables)
        for column, tables in (("run_id", VERDICT_TABLES), ("call_id", [table.name for table in steps.VERDICT_TABLES]))
    }
    sql = read_query("upkeep/faults").format_map(ids)
    for _ in range(_ROUNDS):
        # A run stores verdicts while their calls are in its journal. It may add some while this is read.
        called = [row["call_id"] for segment in list_segments(location)["llm_calls"] for row in segment.rows]
        journalled = pl.DataFrame({"call_id": called}, schema={"call_id": pl.String})
        faults = warehouse.read(sql, frames={"journalled": journalled}).to_dicts()
        if not any(row["n"] for row in faults) or journalled.is_empty():
            break
    for row in faults:
        yield Finding(what=str(row["what"]), verdict="wrong" if row["n"] else "ok", detail=f"{row['n'] or 'none'}")

    # The files beside the warehouse.
    waiting = len(list_spooled(location.spool_path))
    journals = [find_journal(location, table) for table in FLUSH_POLICIES]
    orphans = sum(len(segment.rows) for folder in journals for segment in find_orphans(folder))
    refused = count_refused(location)
    for what, n, advice in (
        ("batches that wait beside it", waiting, f"in {location.spool_path}, taken in by the next write"),
        ("replies that dead processes left", orphans, f"in {location.journal_path}, taken in by the next run"),
        (
            "rows that cannot be stored",
            refused,
            f"in {location.refused_path}; correct them and move them into the journal, or delete them",
        ),
    ):
        yield Finding(what=what, verdict="note" if n else "ok", detail=f"{n} {advice}" if n else "none")

    if location.lake is not None:
        # Every column of every file is read: a missing or broken file raises an error.
        names = warehouse.fetch("upkeep/table_names")["quoted"]
        for name in names:
            try:
                with open_reader(location) as connection:
                    connection.execute(f"select count(columns(*)) from {name}").fetchall()
            except duckdb.Error as error:
                yield Finding(what="files", verdict="wrong", detail=f"{name}: {first_line(str(error))}")
                return
        yield Finding(what="files", verdict="ok", detail=f"all of {len(names)} tables can be read")


def compact_warehouse(warehouse: Warehouse) -> Compacted:
    """Make a warehouse small; raises WarehouseBusy when it is written to or kept open by another program.

    A file is written again beside itself, and the new one takes its name in one step. Of a lake files are merged and
    snapshots forgotten, in the order that leaves the least. The writer's lock is held from the first row to the last.
    """
    warehouse.flush()
    location = warehouse.location
    if location.lake is None:
        before, fresh = location.path.stat().st_size, location.unborn_path
        fresh.unlink(missing_ok=True)
        with open_writer(location, patience_s=FLUSH_PATIENCE_S) as connection:
            try:
                # If the old file has no room for a killed writer's log when it is closed, that log stays beside the new
                # file, and DuckDB then does not open it.
                connection.execute("checkpoint")
                copy_database(connection, fresh, "fresh")
                connection.execute("detach fresh")
                fresh.replace(location.path)
            except duckdb.Error as error:
                fresh.unlink(missing_ok=True)
                raise explain_failure(location, error) from None
            except OSError as error:
                raise WarehouseError(f"cannot replace {location.path}: {error.strerror or error}") from None
        return Compacted(before=before, after=location.path.stat().st_size, detail="written again")
    sizes = [warehouse.read(read_query("upkeep/lake_size").format(lake=NAME)).to_dicts()[0]]
    with open_writer(location, patience_s=FLUSH_PATIENCE_S) as connection:
        try:
            connection.execute(f"call ducklake_flush_inlined_data('{NAME}')")
            # Also a file that lost one row of many: what was forgotten is in it otherwise.
            connection.execute(f"call ducklake_rewrite_data_files('{NAME}', delete_threshold => 0)")
            connection.execute(f"call ducklake_merge_adjacent_files('{NAME}')")
            forgettable = read_query("upkeep/forgettable").format(lake=NAME, forgetting=FORGETTING)
            snapshots = [row[0] for row in connection.execute(forgettable).fetchall()]
            if snapshots:
                connection.execute(f"call ducklake_expire_snapshots('{NAME}', versions => {snapshots})")
            for function in ("cleanup_old_files", "delete_orphaned_files"):
                connection.execute(f"call ducklake_{function}('{NAME}', cleanup_all => true)")
        except duckdb.Error as error:
            raise explain_failure(location, error) from None
    sizes.append(warehouse.read(read_query("upkeep/lake_size").format(lake=NAME)).to_dicts()[0])
    before_files, after_files = (size["files"] for size in sizes)
    detail = f"{len(snapshots)} snapshots forgotten, {before_files} files before and {after_files} after"
    return Compacted(before=sizes[0]["bytes"], after=sizes[1]["bytes"], detail=detail)


def copy_database(connection: duckdb.DuckDBPyConnection, path: Path, name: str) -> None:
    """Copy everything in the connection's file into a new one, which stays attached as `name`.

    Long texts are copied some at a time into separate row groups, which `VECTOR_ROWS` explains.
    """
    ((own,),) = connection.execute("select current_database()").fetchall()
    quoted = str(path).replace("'", "''")
    connection.execute(f"attach '{quoted}' as {name} (storage_version 'v1.5.0')")
    tables = connection.execute(read_query("upkeep/text_columns")).fetchall()
    windows = {table: _list_windows(connection, table, columns) for table, columns in tables}
    if all(len(of_table) <= 1 for of_table in windows.values()):
        connection.execute(f'copy from database "{own}" to {name}')
    else:
        connection.execute(f'copy from database "{own}" to {name} (schema)')
        keep_groups_apart(connection)
        for table, of_table in windows.items():
            for first, last in of_table:
                connection.execute(
                    f'insert into {name}.{table} from "{own}".{table} where rowid between {first} and {last}'
                )
                if len(of_table) > 1:
                    connection.execute(f"checkpoint {name}")  # a row group is complete when it is in the file
    connection.execute(f"checkpoint {name}")


def _list_windows(connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[str]) -> list[tuple[int, int]]:
    """Return the first and last rowids of rows to copy together: all, or as many as a transaction can hold."""
    size = " + ".join(["0", *(f'coalesce(strlen("{column}"::varchar), 0)' for column in columns)])
    sql = read_query("upkeep/text_bytes").format(size=size, table=table, rows=VECTOR_ROWS)
    windows: list[tuple[int, int]] = []
    grows = False  # the last window, with the rows that follow it
    for first, last, n_rows, n_bytes in connection.execute(sql).fetchall():
        if n_bytes <= MAX_COMMIT_BYTES:
            windows = [*windows[:-1], (windows[-1][0], last)] if grows else [*windows, (first, last)]
            grows = True
            continue
        step = max(1, n_rows * MAX_COMMIT_BYTES // n_bytes)
        windows += [(begin, min(begin + step - 1, last)) for begin in range(first, last + 1, step)]
        grows = False
    return windows


Group = Literal["texts", "calls", "verdicts", "scores", "other"]
GROUPS: Final[Mapping[Group, frozenset[str]]] = {
    "texts": frozenset({"samples", "run_samples", "responses"}),
    "calls": frozenset({"llm_calls", "prompts", "provider_batches", "batch_requests"}),
    "verdicts": frozenset({*VERDICT_TABLES, "reviews", "review_picks", "stored_causes"}),
    "scores": frozenset({"scores", "noise", "stored_scores", "stored_costs"}),
    "other": frozenset(),
}
"""The tables of each group; the last one has all others."""
PER_SAMPLES: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Size:
    """Bytes on disk: in all, free, and of each group; and the number of samples of all runs."""

    n_bytes: int
    n_free: int
    groups: Mapping[Group, int]
    n_samples: int

    def per_thousand(self, n_bytes: float) -> float | None:
        """Return the bytes per 1,000 samples; None without samples."""
        return n_bytes * PER_SAMPLES / self.n_samples if self.n_samples else None


def measure_size(warehouse: Warehouse) -> Size:
    """Measure a warehouse on disk; raises the errors of one that cannot be read."""
    is_file = warehouse.location.lake is None
    with open_reader(warehouse.location) as connection:
        try:
            if is_file:
                # Bytes by table, from the blocks of its segments.
                tables_here = connection.execute(read_query("upkeep/table_names")).fetchall()
                literals = [[text.replace("'", "''") for text in row] for row in tables_here]
                segments = " union all ".join(
                    f"select '{name}' as table_name, block_id, additional_block_ids "
                    f"from pragma_storage_info('{quoted}') where persistent"
                    for name, quoted in literals
                )
                sql = read_query("upkeep/file_size").format(segments=segments)
            else:
                sql = read_query("upkeep/lake_table_sizes").format(lake=NAME)
            tables: dict[str, float] = dict(connection.execute(sql).fetchall())
            ((n_samples,),) = connection.execute("select count(*) from run_samples").fetchall()
        except duckdb.Error as error:
            raise explain_failure(warehouse.location, error) from None
    used = sum(tables.values())
    n_bytes = warehouse.location.path.stat().st_size if is_file else round(used)
    groups: dict[Group, int] = dict.fromkeys(GROUPS, 0)
    for table, size in tables.items():
        group: Group = next((group for group, names in GROUPS.items() if table in names), "other")
        groups[group] += round(size)
    return Size(n_bytes=n_bytes, n_free=max(0, round(n_bytes - used)), groups=groups, n_samples=n_samples)
