"""The warehouse: append a batch of rows atomically, read, migrate. Everything else is built on these three.

A batch is rows that are written together or not at all. The migrations define its tables; `tables.toml`, which a test
keeps equal to them, and the steps that write verdicts (`steps`) give the types of their columns, so that a batch has
them before any DuckDB file is open, even when a column is all NULL or the batch goes to the spool.

A batch is written by one transaction on a short-lived connection. When another program keeps the file for longer than a
few seconds the batch goes to the spool and is taken in by the next write, so that a run continues to judge beside an
analyst's open notebook; all other reads and writes of a run wait until the file is free (`engine/locks`).

A spooled batch is a folder of Parquet files, written under a temporary name and then renamed, so that a folder with a
final name is always complete; it loses that name again before it is removed.

Derived rows (the means, the causes and the costs of runs) are stored in the transaction that writes the rows they are
computed from, so that pages only read them: means and causes when a run is scored, costs when it ends, and all of them
again where rows of an ended run arrive late or are deleted. The views `run_scores`, `sample_causes`, `run_causes` and
`run_costs` read them.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import tempfile
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import duckdb
import polars as pl

from evalhouse.warehouse import messages, steps
from evalhouse.warehouse.engine.connection import (
    explain_failure,
    lending,
    open_reader,
    open_writer,
    read_maker,
    to_frame,
)
from evalhouse.warehouse.engine.migrate import apply_migrations, load_migrations, migrate
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseMissing, WarehouseUnwritable, first_line
from evalhouse.warehouse.location import Location, parse_location
from evalhouse.warehouse.messages import name_setting
from evalhouse.warehouse.metric_files import read_stored
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.steps import ColumnType

_TYPES: Mapping[ColumnType, pl.DataType | type[pl.DataType]] = {
    "text": pl.String, "integer": pl.Int32, "long": pl.Int64, "hash": pl.UInt64, "number": pl.Float64,
    "boolean": pl.Boolean, "integers": pl.List(pl.Int32), "texts": pl.List(pl.String), "time": pl.Datetime("us"),
}  # fmt: skip
_COLUMNS = tomllib.loads(files("evalhouse.warehouse").joinpath("tables.toml").read_text(encoding="utf-8"))
TABLES: dict[str, dict[str, pl.DataType | type[pl.DataType]]] = {
    table: {name: _TYPES[kind] for name, kind in columns.items()} for table, columns in _COLUMNS.items()
}
for _table in steps.VERDICT_TABLES:
    _columns = {name: _TYPES[kind] for name, kind in _table.columns.items()}
    TABLES[_table.name] = {"run_id": pl.String, "sample_id": pl.String, **_columns, "call_id": pl.String}
VERDICT_TABLES = (*(table.name for table in steps.VERDICT_TABLES), "outcomes")
"""The tables that the steps write, a shard's rows at a time."""


Frames = Mapping[str, pl.DataFrame]
"""Rows by table."""


T = TypeVar("T")


def measure_bytes(value: object) -> int:
    """Return about how many bytes a value of nested lists and mappings takes, most of all its texts."""
    n_bytes, waiting = 0, [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            n_bytes += len(value) if value.isascii() else 3 * len(value)
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        else:
            n_bytes += 8
    return n_bytes


def cut_by_bytes(items: Iterable[T], measure: Callable[[T], int], *, max_bytes: int) -> Iterator[list[T]]:
    """Yield the items in order, as many together as `max_bytes` allow, and at least one."""
    group: list[T] = []
    n_bytes = 0
    for item in items:
        size = measure(item)
        if group and n_bytes + size > max_bytes:
            yield group
            group, n_bytes = [], 0
        group.append(item)
        n_bytes += size
    if group:
        yield group


def build_frame(table: str, rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Return rows as a frame with the table's columns, without secrets; raises KeyError for an unknown column."""
    columns = TABLES[table]
    if rows and messages.noted:
        rows = messages.hide_in_rows(rows)
    for row in rows:
        if not row.keys() <= columns.keys():
            raise KeyError(f"{table} has no column {', '.join(sorted(row.keys() - columns.keys()))}")
    return pl.DataFrame(
        {name: pl.Series(name, [row.get(name) for row in rows], dtype=dtype) for name, dtype in columns.items()}
    )


def build_verdict_frames(run_id: str, rows: Sequence[Mapping[str, Sequence[Mapping[str, object]]]]) -> Frames:
    """Return a frame for each of VERDICT_TABLES; `rows` has the rows of each sample by table."""
    return {
        table: build_frame(table, [{"run_id": run_id, **row} for of_sample in rows for row in of_sample[table]])
        for table in VERDICT_TABLES
    }


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Frames by table name under a key that makes a second writing harmless.

    `run_id` is None for rows of no run. `replaces` names samples of the run whose rows in these tables are deleted in
    the same transaction, for a run that is resumed.
    """

    key: str
    run_id: str | None
    tables: Frames = field(default_factory=dict)
    replaces: tuple[str, ...] = ()


Part = Literal["scores", "causes", "costs"]
RESTS_ON: Final[Mapping[Part, frozenset[str]]] = {
    "scores": frozenset({"scores", "run_samples"}),
    "causes": frozenset({*VERDICT_TABLES, "run_samples", "kb_updates"}),
    "costs": frozenset({"llm_calls"}),
}
"""The tables that each part is computed from; causes also look at earlier runs of the series."""
_SAMPLES_AT_ONCE: Final = 20_000
_BYTES_PER_SAMPLE: Final = 25_000  # twice what 30,000 samples of 7 statements each took
_WRITER_MIB: Final = 360
_MAX_MIB: Final = 2_000  # for up to 200,000 samples, whose rows spill to disk
_LEAST_BYTES: Final = 10_000  # a sample of a larger run


def derive(
    connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str], parts: Collection[Part] = tuple(RESTS_ON)
) -> None:
    """Compute these parts of these runs and replace the stored rows, within the open transaction."""
    # Runs in groups whose causes fit into memory together.
    sql = "select run_id, count(*) from run_samples where run_id in (select unnest(?::varchar[])) group by run_id"
    sizes = dict(connection.execute(sql, [list(run_ids)]).fetchall())
    groups: list[tuple[list[str], int]] = []
    for run_id in run_ids:
        n_samples = sizes.get(run_id, 0)
        if groups and groups[-1][1] + n_samples <= _SAMPLES_AT_ONCE:
            groups[-1] = ([*groups[-1][0], run_id], groups[-1][1] + n_samples)
        else:
            groups.append(([run_id], n_samples))
    for group, n_samples in groups:
        connection.execute("create or replace temp table open_runs as select unnest(?::varchar[]) as run_id", [group])
        with _memory_for(connection, n_samples if "causes" in parts else 0):
            for part in parts:
                connection.execute(f"delete from stored_{part} where run_id in (select run_id from open_runs)")
                connection.execute(f"insert into stored_{part} by name\n{read_stored(part)}")
        connection.execute("drop table temp.open_runs")


@contextmanager
def _memory_for(connection: duckdb.DuckDBPyConnection, n_samples: int) -> Iterator[None]:
    """Give a writer, which has little memory, enough to compute the causes of so many samples."""
    needed = n_samples * _BYTES_PER_SAMPLE // 2**20
    if needed <= _WRITER_MIB:
        yield
        return
    most = max(_MAX_MIB, n_samples * _LEAST_BYTES // 2**20)
    ((before,),) = connection.execute("select current_setting('memory_limit')").fetchall()
    connection.execute(f"set memory_limit = '{min(needed, most)}MiB'")
    yield
    connection.execute(f"set memory_limit = '{before}'")


def derive_again(connection: duckdb.DuckDBPyConnection, run_id: str, written: Collection[str]) -> None:
    """Derive the parts that rest on these tables again, where rows of an ended run were written or deleted.

    A running run is left alone: it is scored, and its costs are stored, when it ends.
    """
    parts = [part for part, tables in RESTS_ON.items() if not tables.isdisjoint(written)]
    if parts and connection.execute("select 1 from runs where run_id = ? and status <> 'running'", [run_id]).fetchone():
        derive(connection, [run_id], parts)
        if "causes" in parts:
            derive(connection, list_later(connection, [run_id]), ["causes"])


def list_later(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> list[str]:
    """Return the later runs whose causes look back at one of these runs."""
    return [row[0] for row in connection.execute(read_query("stored/later"), {"run_ids": list(run_ids)}).fetchall()]


WRITE_PATIENCE_S = 5.0
FLUSH_PATIENCE_S = 60.0
_HEAD = "batch.json"
# About the size of the journal when it is moved into the warehouse: 2,000 calls of 8 KB.
_ROOM_MB = 16
_BLOCK_BYTES = 2**20


class Warehouse:
    """A warehouse at a URL. Holds no connection; safe to use from several threads and processes."""

    def __init__(self, url: str) -> None:
        self.location: Location = parse_location(url)

    def exists(self) -> bool:
        """Return whether there is a warehouse; raises the errors of one that cannot be reached."""
        try:
            with open_reader(self.location):
                return True
        except WarehouseMissing:
            return False

    def migrate(self) -> list[str]:
        """Create or update the tables and views; returns the names of the applied migrations."""
        return migrate(self.location)

    def make_ready(self) -> None:
        """Prepare everything for a run by one opening: the newest tables, the spool taken in, and room for replies.

        Raises MigrationError, and WarehouseUnwritable for a full disk, a quota, or a place that is read-only.
        """
        with open_writer(self.location, patience_s=FLUSH_PATIENCE_S) as connection:
            try:
                apply_migrations(connection, self.location, load_migrations())
                self._take_in_spool(connection)
            except duckdb.Error as error:
                raise explain_failure(self.location, error) from None
        # Fill some room beside the warehouse for a moment.
        folder = self.location.journal_path
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A file without a name, or one that the system removes: nothing stays of it, however this process ends.
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                try:
                    # The file system sets the room aside in a fifth of the time that writing takes.
                    os.posix_fallocate(file.fileno(), 0, _ROOM_MB * _BLOCK_BYTES)
                except (AttributeError, OSError) as error:
                    if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                        raise
                    block = os.urandom(_BLOCK_BYTES)  # noise, because a file system may pack zeros to nothing
                    for _ in range(_ROOM_MB):
                        if file.write(block) != len(block):
                            raise OSError("no space left") from None
                os.fsync(file.fileno())
        except OSError as error:
            raise WarehouseUnwritable(
                f"no room for replies in {folder}: {error.strerror or error}; at least {_ROOM_MB} MB are "
                f"needed; make room, or name another place with {name_setting('warehouse')}"
            ) from None

    def append(self, batch: Batch, *, patience_s: float = WRITE_PATIENCE_S) -> bool:
        """Write a batch together with all spooled ones; False when it had to be spooled instead.

        A batch whose key is known is not written again. Raises WarehouseUnwritable when the disk is full.
        """
        try:
            self.append_now(batch, patience_s=patience_s, waits=False)
        except WarehouseBusy:
            try:
                spool_batch(self.location.spool_path, batch)
            except OSError as error:
                raise WarehouseUnwritable(
                    f"{self.location.name} is kept by another program and the spool beside it cannot be written: "
                    f"{error.strerror or error}"
                ) from None
            return False
        return True

    def append_now(self, batch: Batch, *, patience_s: float = WRITE_PATIENCE_S, waits: bool = True) -> None:
        """Write a batch or raise WarehouseBusy, for callers that keep the rows safe themselves."""
        with self.writing(patience_s=patience_s, run_id=batch.run_id, waits=waits) as connection:
            write_batch(connection, batch)

    def append_rows(
        self,
        key: str,
        run_id: str | None,
        tables: Mapping[str, Sequence[Mapping[str, object]]],
        *,
        replaces: Sequence[str] = (),
    ) -> None:
        """Write rows by table as one batch under a key, in place of the rows of the run's samples `replaces`."""
        frames = {table: build_frame(table, rows) for table, rows in tables.items() if rows or replaces}
        if frames:
            self.append(Batch(key=key, run_id=run_id, tables=frames, replaces=tuple(replaces)))

    def flush(self, *, patience_s: float = FLUSH_PATIENCE_S) -> None:
        """Take the spool in; raises WarehouseBusy with the number of waiting batches when the file stays locked."""
        if not list_spooled(self.location.spool_path):
            return
        try:
            with self.writing(patience_s=patience_s):
                pass
        except WarehouseBusy as error:
            n_waiting = len(list_spooled(self.location.spool_path))
            wait = "batch waits" if n_waiting == 1 else "batches wait"
            raise WarehouseBusy(
                f"{error}; {n_waiting} {wait} safely in {self.location.spool_path}, to be taken in by the next run or "
                "`evalhouse resume`"
            ) from None

    @contextlib.contextmanager
    def writing(
        self, *, patience_s: float = WRITE_PATIENCE_S, run_id: str | None = None, waits: bool = True
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open one transaction on a short-lived connection, after taking the spool in.

        The snapshot that it makes in a lake is named after the run. Raises WarehouseBusy, WarehouseUnwritable (then
        nothing of the transaction is kept), or WarehouseError; `waits` as for `open_writer`.
        """
        with open_writer(self.location, patience_s=patience_s, waits=waits) as connection:
            try:
                self._take_in_spool(connection)
                connection.begin()
                yield connection
                if self.location.lake is not None:
                    from evalhouse.warehouse.engine.lake import describe_commit  # noqa: PLC0415  # few are lakes

                    describe_commit(connection, run_id)
                connection.commit()
            except duckdb.Error as error:
                raise explain_failure(self.location, error) from None

    def read(
        self,
        sql: str,
        parameters: Mapping[str, object] | None = None,
        *,
        frames: Mapping[str, pl.DataFrame] | None = None,
    ) -> pl.DataFrame:
        """Return the rows of SQL of this program (foreign SQL goes through `run_query`).

        `frames` are tables for this query alone: hundreds of values come in a frame within a millisecond, as a list
        among the parameters in sixty.
        """
        with open_reader(self.location) as connection:
            try:
                with lending(connection, frames or {}):
                    return to_frame(connection.sql(sql, params=dict(parameters) if parameters else None))
            except (duckdb.CatalogException, duckdb.BinderException) as error:
                maker = read_maker(self.location)
                if maker is not None and maker.split(".")[0] != f"v{duckdb.__version__.split('.')[0]}":
                    raise WarehouseError(
                        f"{self.location.name} was last written by DuckDB {maker.removeprefix('v')}, and the DuckDB "
                        f"{duckdb.__version__} of this installation does not understand a view in it "
                        f"({first_line(str(error))}); install `duckdb=={maker.removeprefix('v')}`, or write the views "
                        "again by a run of this evalhouse there"
                    ) from None
                raise WarehouseError(
                    f"{self.location.name} is not an evalhouse warehouse, or one of another version "
                    f"({first_line(str(error))}); name another file with {name_setting('warehouse')}"
                ) from None
            except duckdb.Error as error:
                raise explain_failure(self.location, error) from None

    def read_rows(self, sql: str, parameters: Mapping[str, object] | None = None) -> list[dict[str, object]]:
        """Like `read`, as a list of dictionaries."""
        return self.read(sql, parameters).to_dicts()

    def fetch(
        self, query: str, wanted: Mapping[str, Collection[str]] | None = None, /, **parameters: object
    ) -> pl.DataFrame:
        """Return the rows of `queries/QUERY.sql` with these parameters.

        `wanted` has one column of texts: it is the table `wanted`, in which `place` counts them from 0.
        """
        frames = {}
        if wanted is not None:
            texts = {name: list(values) for name, values in wanted.items()}
            frames["wanted"] = pl.DataFrame(texts, schema=dict.fromkeys(texts, pl.String)).with_row_index("place")
        return self.read(read_query(query), parameters, frames=frames)

    def fetch_rows(
        self, query: str, wanted: Mapping[str, Collection[str]] | None = None, /, **parameters: object
    ) -> list[dict[str, Any]]:
        """Like `fetch`, as a list of dictionaries."""
        return self.fetch(query, wanted, **parameters).to_dicts()

    def fetch_row(self, query: str, **parameters: object) -> dict[str, Any]:
        """Like `fetch`, for a query that returns one row."""
        (row,) = self.fetch(query, **parameters).to_dicts()
        return row

    def _take_in_spool(self, connection: duckdb.DuckDBPyConnection) -> None:
        folder = self.location.spool_path
        for path in folder.glob("*.done"):  # left by a process that was killed in `drop_spooled`
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)
        for path in list_spooled(folder):
            connection.begin()
            try:
                write_batch(connection, read_spooled(path))
            except duckdb.Error as error:
                explained = explain_failure(self.location, error)
                if isinstance(explained, WarehouseBusy):
                    raise explained from None
                raise refuse_spooled(path, str(error)) from None
            connection.commit()
            drop_spooled(path)


def insert_frame(connection: duckdb.DuckDBPyConnection, table: str, frame: pl.DataFrame) -> None:
    """Append the rows of a frame to a table, columns matched by name."""
    if frame.is_empty():
        return
    with lending(connection, {"incoming_rows": frame}):
        connection.execute(f"insert into {table} by name select * from incoming_rows")


def delete_rows(
    connection: duckdb.DuckDBPyConnection, tables: Iterable[str], run_id: str, sample_ids: Sequence[str]
) -> None:
    """Delete the rows of some samples of a run."""
    with lending(connection, {"replaced_samples": pl.DataFrame({"sample_id": sample_ids})}):
        for table in tables:
            connection.execute(
                f"delete from {table} where run_id = ? and sample_id in (select sample_id from replaced_samples)",
                [run_id],
            )


def enter_batch(connection: duckdb.DuckDBPyConnection, key: str, run_id: str | None) -> bool:
    """Enter a batch into the ledger; False when it is there already, and is not to be written again."""
    if connection.execute("select 1 from batches where batch_key = ?", [key]).fetchone():
        return False
    connection.execute("insert into batches values (?, ?, now() at time zone 'UTC')", [key, run_id])
    return True


def write_batch(connection: duckdb.DuckDBPyConnection, batch: Batch) -> None:
    """Write a batch within the open transaction, unless its key is known; a prompt is kept once, by its hash."""
    if not enter_batch(connection, batch.key, batch.run_id):
        return
    if batch.replaces and batch.run_id is not None:
        delete_rows(connection, batch.tables, batch.run_id, batch.replaces)
    for table, frame in batch.tables.items():
        if table == "responses" and batch.run_id is not None:  # takes the place of an earlier one of the same run
            delete_rows(connection, (table,), batch.run_id, frame["sample_id"].to_list())
        new = frame
        if table == "prompts":
            known = to_frame(connection.sql("select prompt_hash from prompts"))
            new = frame.unique("prompt_hash", keep="first", maintain_order=True).join(
                known, on="prompt_hash", how="anti"
            )
        insert_frame(connection, table, new)
    if batch.run_id is not None:
        derive_again(connection, batch.run_id, batch.tables)


def spool_batch(folder: Path, batch: Batch) -> Path:
    """Write the batch into the spool and return its folder; raises OSError and leaves nothing when that fails."""
    # Later than all waiting ones, even when the clock was set back: a batch may replace rows of an earlier one.
    newest = max((int(path.name.split("-")[0]) for path in list_spooled(folder)), default=0)
    stamp = max(time.time_ns(), newest + 1)
    final = folder / f"{stamp:020d}-{hashlib.sha256(batch.key.encode()).hexdigest()[:16]}"
    partial = final.with_suffix(".partial")
    partial.mkdir(parents=True)
    try:
        for table, frame in batch.tables.items():
            buffer = io.BytesIO()
            frame.write_parquet(buffer)
            _write_file(partial / f"{table}.parquet", buffer.getvalue())
        head = {"key": batch.key, "run_id": batch.run_id, "replaces": list(batch.replaces)}
        _write_file(partial / _HEAD, json.dumps(head).encode())
        partial.rename(final)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def list_spooled(folder: Path) -> list[Path]:
    """Return the folders of complete batches, oldest first."""
    if not folder.exists():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.suffix)


def read_spooled(path: Path) -> Batch:
    """Load one spooled batch; raises WarehouseError when its files were changed."""
    try:
        head = json.loads((path / _HEAD).read_text(encoding="utf-8"))
        tables = {entry.stem: pl.read_parquet(entry) for entry in sorted(path.glob("*.parquet"))}
        return Batch(key=head["key"], run_id=head["run_id"], tables=tables, replaces=tuple(head["replaces"]))
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise refuse_spooled(path, str(error)) from None


def refuse_spooled(path: Path, why: str) -> WarehouseError:
    """Return the error for a batch that cannot be taken in and therefore keeps every later one waiting."""
    return WarehouseError(
        f"the spooled batch {path} cannot be taken in ({why.splitlines()[0] if why else 'no reason given'}); "
        "move that folder away and continue with `evalhouse resume`: stored replies are not paid for again"
    )


def drop_spooled(path: Path) -> None:
    """Remove a batch that has been written."""
    gone = path.with_suffix(".done")
    path.rename(gone)
    shutil.rmtree(gone)


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
