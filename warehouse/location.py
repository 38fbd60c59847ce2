"""Where a warehouse is: the URL users write, taken apart.

`duckdb:///relative/or//absolute/path.duckdb` or simply a path. Everything that lies beside the file
(its lock, journal and spool) is named after it, so that one `ls` shows what belongs together.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from warehouse.errors import WarehouseUrlError

DEFAULT_URL = "duckdb:///evalhouse.duckdb"
_SCHEME = "duckdb://"


@dataclass(frozen=True, kw_only=True)
class Location:
    """A DuckDB file and its neighbours."""

    path: Path

    @property
    def url(self) -> str:
        """The URL that names this place again, with an absolute path."""
        return f"{_SCHEME}//{self.path}"

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


def parse_location(url: str) -> Location:
    """Take a warehouse URL or a plain path apart; raises WarehouseUrlError for anything else.

    As with SQLite's URLs three slashes lead to a relative path and four to an absolute one.
    """
    text = url.strip()
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text:
            raise WarehouseUrlError(f"the warehouse URL is empty; write a path or {DEFAULT_URL!r}")
        return Location(path=Path(text).expanduser().absolute())
    if scheme != "duckdb" or not rest.startswith("/") or len(rest) < 2:
        raise WarehouseUrlError(
            f"{url!r} names no warehouse; allowed: duckdb:///folder/file.duckdb (relative), "
            "duckdb:////folder/file.duckdb (absolute), or a plain path"
        )
    return Location(path=Path(unquote(rest[1:])).expanduser().absolute())
