"""The errors of a warehouse, as a tree: the text of each is one sentence that a person can act on.

WarehouseError
├── WarehouseUrlError     the URL names no warehouse we know
├── WarehouseMissing      nothing has been written there yet
├── WarehouseBusy         another process keeps the file
│   └── WarehouseUnreachable  the server of a lake's catalogue does not answer
├── WarehouseUnwritable   read-only place, full disk, no rights
├── RowsRefused           a table cannot hold these values
├── MigrationError        the tables there are not ours, or newer than this program
├── QueryError            the user's SQL was refused or failed
│   └── QueryStopped          it took too long or too much memory, or ended its process
└── TableError            a sample's table, or the script that makes it, is at fault
"""

from typing import Literal


class WarehouseError(Exception):
    """Any failure of the warehouse; its text is meant for the person at the terminal."""


class WarehouseUrlError(WarehouseError):
    """The URL names no warehouse we know."""


class WarehouseMissing(WarehouseError):
    """No warehouse is at that place yet."""


class WarehouseBusy(WarehouseError):
    """The file is held and was not let go of in time.

    `who` holds it: `others`, for whom a run waits; another thread of this process (`own thread`), which lets go by
    itself; or `own code`, which cannot while it is waited for.
    """

    def __init__(self, message: str, *, who: Literal["others", "own thread", "own code"] = "others") -> None:
        super().__init__(message)
        self.who = who


class WarehouseUnreachable(WarehouseBusy):
    """The server of a lake's catalogue does not answer; batches are spooled until it does."""


class WarehouseUnwritable(WarehouseError):
    """The place cannot be written to: read-only, no rights, or the disk is full."""


class RowsRefused(WarehouseError):
    """A table cannot hold these values, or not so many rows at once."""


class MigrationError(WarehouseError):
    """The tables found do not belong to this version of evalhouse."""


class QueryError(WarehouseError):
    """A query was refused by the sandbox, failed, or ran out of time or memory.

    `place` is the character of the SQL at which it fails, counted from 0, where DuckDB knows it.
    """

    def __init__(self, message: str, *, place: int | None = None) -> None:
        super().__init__(message)
        self.place = place


class QueryStopped(QueryError):
    """A query took too long or too much memory, or ended the process that it ran in."""


class TableError(WarehouseError):
    """A table of a sample, or the script that makes it, is in no form that is known."""


def explain_missing(name: str) -> WarehouseMissing:
    """Return the error for a place, called `name`, without a warehouse."""
    return WarehouseMissing(f"no warehouse at {name}; `evalhouse run` makes one, --warehouse names another")


def first_line(text: str) -> str:
    """Return the first line of an error's text."""
    return text.strip().splitlines()[0] if text.strip() else "no reason given"
