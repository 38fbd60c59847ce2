"""The session's house with all that views tell of its runs stored, as it is of runs with more than a few samples: what
is stored is read in a tenth of the time that the views take to be planned."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import duckdb
from cli_house import House, copy_house
from filelock import FileLock

from evalhouse.warehouse.store import RESTS_ON, Warehouse, store


def store_all(path: Path | str) -> None:
    """Store all parts of all runs of a warehouse anew, however few samples they have."""
    with Warehouse(str(path)).writing() as connection:
        store(connection, [run_id for (run_id,) in connection.execute("select run_id from runs").fetchall()], RESTS_ON)


def forget_changed(connection: duckdb.DuckDBPyConnection, statements: Iterable[str]) -> None:
    """After statements that no run of ours wrote: what rests on the tables they name no longer holds."""
    text = " ".join(statements)
    for part, tables in RESTS_ON.items():
        if any(table in text for table in tables):
            connection.execute("delete from stored_parts where part = ?", [part])


def copy_stored_house(folder: Path, prefect_home: Path) -> House:
    """A copy of the house in this folder, where there must be nothing; what is stored is computed once a session."""
    house = copy_house(folder, prefect_home)
    template = prefect_home.parent / "stored.duckdb"
    with FileLock(template.with_suffix(".lock")):
        if not template.exists():
            store_all(house.path)
            shutil.copy(house.path, template)
    shutil.copy(template, house.path)
    return house
