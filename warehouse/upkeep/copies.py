"""Copies of a warehouse that are proved whole: a backup as one DuckDB file, and a move into another warehouse.

A backup is whole as of one moment, while runs continue to write. DuckDB itself copies (a copy of the file by other
means would lose the rows in its log), under the writers' lock: runs wait for it or spool beside the warehouse, and lose
nothing. Rows in the journals of this machine are copied too. A lake is copied table by table in one transaction, which
sees one snapshot. The copy has another name until every row of it was counted and hashed, and it was opened and read.

A move copies a file into a lake or back, table by table and run by run, some runs to a transaction. Rows are counted
and hashed on both sides, so that an interrupted move resumes where it stopped; the hash of a set of rows is the sum of
the hashes of its rows, so that their order does not matter. The source gets what waits beside it, and nothing else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from evalhouse.warehouse.engine.connection import (
    MAX_COMMIT_BYTES,
    are_long,
    explain_failure,
    keep_groups_apart,
    open_reader,
    open_writer,
)
from evalhouse.warehouse.engine.locks import list_held
from evalhouse.warehouse.engine.migrate import find_missing, load_migrations
from evalhouse.warehouse.errors import WarehouseError, WarehouseUnwritable
from evalhouse.warehouse.mover import JournalledTable, Segment, copy_segments, list_segments, take_in_orphans
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse, cut_by_bytes, derive
from evalhouse.warehouse.upkeep.check_and_compact import check_warehouse, copy_database

_COPY: Final = "fresh"
_BYTES_AT_ONCE: Final = 16_000_000
_FEWEST_ROWS, _MOST_ROWS, _LAKE_ROWS = 16, 20_000, 4_000
_ROWS_PER_COMMIT: Final = 200_000
_RUNS_PER_COMMIT: Final = 50


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A finished backup: its file, its rows by table, and its bytes."""

    path: Path
    tables: dict[str, int]
    n_bytes: int


def back_up(warehouse: Warehouse, target: str) -> Backup:
    """Copy a warehouse into a new DuckDB file `target`, or into one named after the time within the folder `target`.

    Raises WarehouseError where that file exists, or when the copy differs from its source; WarehouseUnwritable.
    """
    location = warehouse.location
    path = Path(target).expanduser().resolve()
    if path.is_dir():
        stem = location.path.stem if location.lake is None else "lake"
        path /= f"{stem}-{now_utc():%Y%m%d-%H%M%S}.duckdb"
    if path.exists():
        raise WarehouseError(f"{path} exists, and a backup overwrites nothing; name a new file, or a folder")
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        warehouse.flush()
        tables, segments = _copy_tables(warehouse, partial)
        copy = Warehouse(str(partial))
        for table, n_rows in copy_segments(copy, segments).items():
            tables[table] = tables.get(table, 0) + n_rows
        # The link takes the file without its log, and DuckDB does not report a checkpoint that fails as it closes.
        with copy.writing(patience_s=FLUSH_PATIENCE_S) as connection:
            connection.execute("checkpoint")
        # Open the copy as a warehouse and check its invariants; violations that the source has too are ignored.
        wrong, known = (
            {finding.what: finding.detail for finding in check_warehouse(house) if finding.verdict == "wrong"}
            for house in (copy, warehouse)
        )
        for what, detail in wrong.items():
            if what not in known:
                raise WarehouseError(f"the copy has a fault that its source does not have: {what}: {detail}")
        try:
            # Unlike a rename a link never replaces another file.
            path.hardlink_to(partial)
        except FileExistsError:
            raise WarehouseError(f"{path} was made meanwhile, and a backup overwrites nothing") from None
        except OSError:  # a file system without links
            partial.rename(path)
        return Backup(path=path, tables=tables, n_bytes=path.stat().st_size)
    except OSError as error:
        raise WarehouseUnwritable(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        for left in (partial, partial.with_name(f"{partial.name}.wal"), partial.with_name(f"{partial.name}.lock")):
            left.unlink(missing_ok=True)


def _copy_tables(warehouse: Warehouse, path: Path) -> tuple[dict[str, int], dict[JournalledTable, list[Segment]]]:
    """Copy all tables into a new file and return their rows, counted and hashed on both sides under the lock, and what
    is on its way into them: rows of the copy may rest on calls that are in a running process's journal."""
    location = warehouse.location
    if location.lake is not None:
        # A file has the tables of a lake, with other types for some columns.
        Warehouse(str(path)).migrate()
    counts = {}
    with open_writer(location, patience_s=FLUSH_PATIENCE_S) as connection:
        try:
            names = dict(connection.execute(read_query("upkeep/table_names")).fetchall())
            if location.lake is None:
                copy_database(connection, path, _COPY)
            elif find_missing(connection, location, load_migrations()):
                raise WarehouseError(
                    f"{location.name} lacks what the newest evalhouse adds; bring it up to date first, with "
                    f"`evalhouse warehouse compact --warehouse '{location.url}'`"
                )
            else:
                # The record of how a lake's tables were made is not that of the file's.
                del names["migrations"]
                address = str(path).replace("'", "''")
                connection.execute(f"attach '{address}' as {_COPY}")
                connection.begin()
                for quoted in names.values():
                    connection.execute(f"insert into {_COPY}.{quoted} by name select * from {quoted}")
                connection.commit()
                connection.execute(f"checkpoint {_COPY}")
            for name, quoted in names.items():
                columns = connection.execute(f"select column_name from (describe {quoted}) order by all").fetchall()
                shown = ", ".join(f'"{column}"::varchar' for (column,) in columns)
                own, copied = (
                    connection.execute(read_query("upkeep/sum").format(table=table, shown=shown)).fetchall()
                    for table in (quoted, f"{_COPY}.{quoted}")
                )
                if own != copied:
                    raise WarehouseError(
                        f"the copy of {name} differs from its source ({copied[0][0]} rows of {own[0][0]}); the disk of "
                        "the backup may be failing: name another place"
                    )
                counts[name] = int(own[0][0])
            return counts, list_segments(location)
        except duckdb.Error as error:
            raise explain_failure(location, error) from None
        finally:
            # An error or a signal may come within a transaction, which would keep the copy attached.
            # Where a lake's catalogue has gone, neither works: the connection is closed then.
            gone = () if location.lake is None else (duckdb.Error,)
            with suppress(duckdb.TransactionException, *gone):
                connection.rollback()
            with suppress(*gone):
                connection.execute(f"detach database if exists {_COPY}")


Sums = Mapping[str | None, tuple[int, int]]
"""The number of a table's rows and the sum of their hashes, by run or None."""


@dataclass(frozen=True, kw_only=True)
class _Window:
    """Rows of a table that are read together: the condition that selects them, and their runs."""

    condition: str
    run_ids: frozenset[str | None]


def move_warehouse(source: Warehouse, target: Warehouse, report: Callable[[str, int], None]) -> dict[str, int]:
    """Copy all rows that the target does not have yet; return the number of rows by table, also given to `report`.

    What waits beside the source is taken in before. Raises WarehouseError when a process still writes to the source,
    when the target holds other runs, when rows arrive changed, or when the tables of the two sides are of different
    versions.
    """
    if source.location == target.location:
        raise WarehouseError(f"{source.location.name} is both the source and the target; name two warehouses")
    take_in_orphans(source)
    source.flush()
    running = source.read("select run_id from runs where status = 'running'")["run_id"].to_list()
    held = list_held(source.location, [f"run-{run_id}" for run_id in running])
    n_waiting = sum(len(segment.rows) for of_table in list_segments(source.location).values() for segment in of_table)
    if held or n_waiting:
        what = ", ".join(sorted(name.removeprefix("run-") for name in held)) or f"{n_waiting:,} received rows"
        raise WarehouseError(
            f"a process still writes to {source.location.name} ({what}); stop it, or wait until it has ended, and move "
            "then"
        )
    of_file = {row["table_name"]: tuple(row["columns"]) for row in source.fetch_rows("upkeep/tables")}
    target.migrate()
    tables = {row["table_name"]: tuple(row["columns"]) for row in target.fetch_rows("upkeep/tables")}
    if tables != {name: columns for name, columns in of_file.items() if name in tables}:
        raise WarehouseError(
            f"the tables of {source.location.name} are of another version; bring them to this one first, with "
            "`evalhouse warehouse compact --warehouse …`"
        )
    of_source, of_target = (set(house.read("select run_id from runs")["run_id"]) for house in (source, target))
    if others := sorted(of_target - of_source):
        raise WarehouseError(
            f"{target.location.name} holds {len(others)} runs that are not of {source.location.name}, such as "
            f"{others[0]}; move into an empty warehouse"
        )
    counts: dict[str, int] = {}
    finished = {*of_target, *([None] if of_target == of_source else [])}
    # Runs themselves come last: a run that is there is complete.
    for table, columns in sorted(tables.items(), key=lambda entry: (entry[0] == "runs", entry[0])):
        sums, windows = _sum_rows(source, table, columns)
        missing = _find_missing(target, table, columns, sums, finished)
        group: list[str | None] = []
        for run_id in sorted(missing, key=lambda run_id: run_id or ""):
            if group and sum(sums[name][0] for name in [*group, run_id]) > _ROWS_PER_COMMIT:
                _copy_rows(source, target, table, columns, windows=windows, run_ids=group)
                group = []
            group.append(run_id)
        if group:
            _copy_rows(source, target, table, columns, windows=windows, run_ids=group)
        if missing and _find_missing(target, table, columns, sums, {*of_source, None}):
            raise WarehouseError(
                f"rows of {table} arrived changed; was {source.location.name} written to meanwhile? Move again"
            )
        counts[table] = sum(n_rows for n_rows, _ in sums.values())
        report(table, counts[table])
    # The target has its own rows of what follows from the others, such as means.
    ended = target.read(
        "select run_id from runs anti join stored_scores using (run_id) where status <> 'running' order by run_id"
    )
    for run_ids in ended.iter_slices(_RUNS_PER_COMMIT):
        with target.writing(patience_s=FLUSH_PATIENCE_S) as writing:
            derive(writing, run_ids["run_id"].to_list())
    return counts


def list_left(source: Warehouse, target: Warehouse) -> list[str]:
    """Return the users' own tables, views and macros, which a move leaves in the source."""
    here, there = (set(house.fetch("upkeep/objects")["name"]) for house in (source, target))
    return sorted(here - there)


def _sum_rows(warehouse: Warehouse, table: str, columns: Sequence[str]) -> tuple[Sums, list[_Window]]:
    """Count and hash the rows of a table, by run; return the windows too in which they were read.

    DuckDB holds 2,048 rows at once, however long: the windows of a file have no more rows than bytes allow. A
    lake is read by its files, which were written so.
    """
    # As text, because a JSON column of a file is a text column of a different kind in a lake.
    texts = [f'"{name}"::varchar' for name in columns]
    sql = read_query("upkeep/sums").format(
        run=_name_run(columns),
        shown=", ".join(texts),
        size=" + ".join(f"coalesce(strlen({text}), 0)" for text in texts),
        table=table,
    )
    is_file = warehouse.location.lake is None
    last = warehouse.read(f"select max(rowid) as last from {table}").item() if is_file else 0
    sums: dict[str | None, tuple[int, int]] = {}
    windows: list[_Window] = []
    first, size = 0, _FEWEST_ROWS
    while last is not None and first <= last:
        condition = f"rowid >= {first} and rowid < {first + size}" if is_file else "true"
        rows = warehouse.read(sql.replace("$window", condition)).to_dicts()
        for row in rows:
            n_rows, digest = sums.get(row["run"], (0, 0))
            sums[row["run"]] = n_rows + row["n_rows"], digest + int(row["digest"])
        windows.append(_Window(condition=condition, run_ids=frozenset(row["run"] for row in rows)))
        first += size
        n_bytes = sum(row["n_bytes"] for row in rows)
        size = max(1, min(_MOST_ROWS, 8 * size, size * _BYTES_AT_ONCE // max(1, n_bytes)))
    return sums, windows


def _name_run(columns: Sequence[str]) -> str:
    """Return the column of a row's run; NULL for a table without runs."""
    return "run_id" if "run_id" in columns else "null::varchar"


def _find_missing(
    target: Warehouse, table: str, columns: Sequence[str], wanted: Sums, finished: Set[str | None]
) -> list[str | None]:
    """Return the runs without rows in the target; raises WarehouseError when it has other rows of a finished run.

    An interrupted move may have left a part of the rows of other runs, or of the samples: these are deleted.
    """
    sums, _ = _sum_rows(target, table, columns)
    other = [run_id for run_id, total in sums.items() if total != wanted.get(run_id)]
    cut = {run_id for run_id in other if run_id is not None or table == "samples"} & (wanted.keys() - finished)
    if cut and table != "runs":
        with target.writing(patience_s=FLUSH_PATIENCE_S) as connection:
            for run_id in cut:
                connection.execute(f"delete from {table} where {_name_run(columns)} is not distinct from ?", [run_id])
        return _find_missing(target, table, columns, wanted, finished)
    if other:
        of_run = f" of run {other[0]}" if other[0] else ""
        raise WarehouseError(
            f"{table}{of_run} in {target.location.name} has other rows than the source; move into an empty warehouse"
        )
    return [run_id for run_id in wanted if run_id not in sums]


def _copy_rows(
    source: Warehouse,
    target: Warehouse,
    table: str,
    columns: Sequence[str],
    *,
    windows: Sequence[_Window],
    run_ids: Sequence[str | None],
) -> None:
    """Copy the rows of these runs, some bytes at a time: each insert is a file of a lake.

    The memory of a transaction grows with its bytes, so that rows are committed in parts where a move that is
    interrupted between two of them can resume. Of long rows each insert is a transaction, and a row group of a file.
    """
    # `_find_missing` deletes no other rows without a run, which may be the target's own.
    resumes = table == "samples" or None not in run_ids
    with (
        open_reader(source.location) as reading,
        target.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_ids[0] if len(run_ids) == 1 else None) as writing,
    ):

        def read() -> Iterator[pa.RecordBatch]:
            """Yield rows in the order of the file they are read from, which joins by lineage rest on."""
            runs = {"runs": [run_id for run_id in run_ids if run_id is not None], "with_none": None in run_ids}
            is_of_run = f"{_name_run(columns)} in (select unnest($runs::varchar[]))"
            for window in windows:
                if window.run_ids.isdisjoint(run_ids):
                    continue
                try:
                    rows = reading.sql(
                        f"select * from {table} where {window.condition} "
                        f"and ({is_of_run} or ($with_none and {_name_run(columns)} is null))",
                        params=runs,
                    )
                    for batch in rows.to_arrow_reader(_MOST_ROWS if source.location.lake is None else _LAKE_ROWS):
                        n_rows = max(1, batch.num_rows * _BYTES_AT_ONCE // max(1, batch.nbytes))
                        yield from (batch.slice(start, n_rows) for start in range(0, batch.num_rows, n_rows))
                except duckdb.Error as error:
                    raise explain_failure(source.location, error) from None

        is_file = target.location.lake is None
        n_bytes = 0
        for batches in cut_by_bytes(read(), lambda batch: batch.nbytes, max_bytes=_BYTES_AT_ONCE):
            rows = pa.Table.from_batches(batches)
            writing.register("incoming_rows", rows)
            writing.execute(f"insert into {table} by name select * from incoming_rows")
            writing.unregister("incoming_rows")
            n_bytes += rows.nbytes
            is_long = is_file and are_long(rows.nbytes, rows.num_rows)
            if is_long:
                keep_groups_apart(writing)
            if is_long or (resumes and n_bytes >= MAX_COMMIT_BYTES):
                writing.commit()
                writing.begin()
                n_bytes = 0
