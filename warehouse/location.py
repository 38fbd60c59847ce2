"""Where a warehouse is: the URL users write, taken apart.

`duckdb:///relative/or//absolute/path.duckdb` or simply a path. Everything that lies beside the file
(its lock, journal and spool) is named after it, so that one `ls` shows what belongs together.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from warehouse.errors import WarehouseUrlError

DEFAULT_URL = "duckdb:///evalhouse.duckdb"
_SCHEME = "duckdb://"
# One letter before a colon is a drive, not a scheme.
_LOOKS_LIKE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


@dataclass(frozen=True, kw_only=True)
class Location:
    """A DuckDB file and its neighbours."""

    path: Path

    @property
    def url(self) -> str:
        """The URL that names this place again, with an absolute path."""
        return f"{_SCHEME}/{quote(str(self.path), safe='/:')}"

    @property
    def lock_path(self) -> Path:
        """The lock that our own writers queue behind."""
        return self.path.with_name(self.path.name + ".lock")

    @property
    def journal_path(self) -> Path:
        """The folder of replies not yet in `llm_calls`."""
        return self.path.with_name(self.path.name + ".journal")

    @property
    def spool_path(self) -> Path:
        """The folder of batches written while another process kept the file."""
        return self.path.with_name(self.path.name + ".spool")

    @property
    def unborn_path(self) -> Path:
        """The name under which a new file is made before it gets its own, so that a half-made one is never found."""
        return self.path.with_name(self.path.name + ".new")


def parse_location(url: str) -> Location:
    """Take a warehouse URL or a plain path apart; raises WarehouseUrlError for anything else.

    As with SQLite's URLs three slashes lead to a relative path and four to an absolute one. Links are followed:
    two names of one file must share one lock, one journal and one spool.
    """
    text = url.strip()
    if not text:
        raise WarehouseUrlError(f"the warehouse URL is empty; write a path or {DEFAULT_URL!r}")
    if not _LOOKS_LIKE_URL.match(text):
        return _locate(url, text)
    rest = text.removeprefix(f"{_SCHEME}/")
    if rest == text or not rest.strip("/"):
        raise _no_warehouse(url)
    return _locate(url, unquote(rest))


def _locate(url: str, path: str) -> Location:
    # DuckDB's name for a database that is gone when it is closed, as each of our connections soon is.
    if path == ":memory:":
        raise _no_warehouse(url)
    try:
        return Location(path=Path(path).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a home nobody has, a NUL
        raise WarehouseUrlError(f"{url!r} leads nowhere: {error}; name the warehouse by a plain path") from None


def _no_warehouse(url: str) -> WarehouseUrlError:
    return WarehouseUrlError(
        f"{url!r} names no warehouse; allowed: duckdb:///folder/file.duckdb (relative), "
        "duckdb:////folder/file.duckdb (absolute), or a plain path"
    )
