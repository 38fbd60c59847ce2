"""Where a warehouse is: the URL users write, taken apart.

`duckdb:///relative/or//absolute/path.duckdb` or simply a path is one DuckDB file. `ducklake:sqlite:/a/catalog?data=/a`
and `ducklake:postgresql://user@host/db?data=s3://bucket/prefix` are lakes: a catalogue and a place for Parquet files.
After `sqlite:` stands a path as it is, `/absolute` or `relative`; four slashes are absolute as well, and three are
followed by a name alone, because half of the world takes `sqlite:///a/b` for /a/b and half for ./a/b.
Everything that lies beside the warehouse (its lock, journal and spool) is named after it, so that one `ls` shows what
belongs together; of a lake with a server that is a folder of this user's on this machine.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from evalhouse.warehouse.errors import WarehouseUrlError

DEFAULT_URL = "duckdb:///evalhouse.duckdb"
_SCHEME = "duckdb://"
# One letter before a colon is a drive, not a scheme.
_LOOKS_LIKE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


_LAKE_SCHEME = "ducklake:"
STATE_VARIABLE = "EVALHOUSE_STATE_DIR"


@dataclass(frozen=True, kw_only=True)
class Lake:
    """A DuckLake: `dsn` is the catalogue's file or libpq address, `data` the folder or bucket of its Parquet files."""

    catalogue: Literal["postgres", "sqlite"]
    dsn: str
    data: str

    @cached_property
    def is_remote(self) -> bool:
        """Whether the files are in a bucket."""
        return self.data.startswith("s3://")

    @cached_property
    def url(self) -> str:
        """The URL that names this lake again."""
        if self.catalogue == "sqlite":
            return f"{_LAKE_SCHEME}sqlite:///{quote(self.dsn, safe='/:')}?{urlencode({'data': self.data}, safe='/:')}"
        joint = "&" if "?" in self.dsn else "?"
        return f"{_LAKE_SCHEME}{self.dsn}{joint}{urlencode({'data': self.data}, safe='/:')}"


@dataclass(frozen=True, kw_only=True)
class Location:
    """A warehouse and its neighbours. `path` is the DuckDB file, or what the neighbours of a lake are named after."""

    path: Path
    lake: Lake | None = None

    @cached_property
    def url(self) -> str:
        """The URL that names this place again, with an absolute path."""
        return self.lake.url if self.lake else f"{_SCHEME}/{quote(str(self.path), safe='/:')}"

    @cached_property
    def name(self) -> str:
        """What to call it in a message: the file's path, or the lake's URL."""
        return self.lake.url if self.lake else str(self.path)

    @cached_property
    def spill_path(self) -> Path:
        """The folder where a lake's connections put what their memory does not hold."""
        return self.path.with_name(self.path.name + ".spill")

    @cached_property
    def lock_path(self) -> Path:
        """The lock that our own writers queue behind."""
        return self.path.with_name(self.path.name + ".lock")

    @cached_property
    def journal_path(self) -> Path:
        """The folder of replies not yet in `llm_calls`."""
        return self.path.with_name(self.path.name + ".journal")

    @cached_property
    def refused_path(self) -> Path:
        """The folder of rows that their tables cannot hold, by table."""
        return self.path.with_name(self.path.name + ".refused")

    @cached_property
    def spool_path(self) -> Path:
        """The folder of batches written while another process kept the file."""
        return self.path.with_name(self.path.name + ".spool")

    @cached_property
    def unborn_path(self) -> Path:
        """The name under which a new file is made before it gets its own, so that a half-made one is never found."""
        return self.path.with_name(self.path.name + ".new")


def parse_location(url: str) -> Location:
    """Take a warehouse URL or a plain path apart; raises WarehouseUrlError for anything else.

    Three slashes lead to a relative path and four to an absolute one; what looks as if it was meant the other way is
    refused. Links are followed: two names of one file must share one lock, one journal and one spool.
    """
    text = url.strip()
    if not text:
        raise WarehouseUrlError(f"the warehouse URL is empty; write a path or {DEFAULT_URL!r}")
    if not _LOOKS_LIKE_URL.match(text):
        return _locate(url, text)
    if text.startswith(_LAKE_SCHEME):
        return _locate_lake(url, text.removeprefix(_LAKE_SCHEME))
    rest = text.removeprefix(f"{_SCHEME}/")
    if rest == text or not rest.strip("/"):
        raise _no_warehouse(url)
    path = unquote(rest)
    folder = Path(path).parts[0]
    if folder != path and not path.startswith("/") and not Path(folder).exists() and Path("/", folder).exists():
        raise _two_readings(url, path, absolute=f"{_SCHEME}//{rest}", relative=path)
    return _locate(url, path)


def _locate(url: str, path: str) -> Location:
    # DuckDB's name for a database that is gone when it is closed, as each of our connections soon is.
    if path == ":memory:":
        raise _no_warehouse(url)
    try:
        return Location(path=Path(path).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a home nobody has, a NUL
        raise WarehouseUrlError(f"{url!r} leads nowhere: {error}; name the warehouse by a plain path") from None


def _locate_lake(url: str, rest: str) -> Location:
    try:
        parts = urlsplit(rest)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise WarehouseUrlError(f"{url!r} cannot be taken apart: {error}") from None
    if parts.password is not None:
        raise WarehouseUrlError(
            "the warehouse's URL holds a password, and URLs go on record; leave it out there and put it in PGPASSWORD "
            "or ~/.pgpass"
        )
    if not options.get("data"):
        raise WarehouseUrlError(
            f"{url!r} does not say where the files are; add ?data=/shared/folder or ?data=s3://bucket/prefix"
        )
    data = _locate_data(url, options.pop("data"))
    if parts.scheme == "sqlite" and parts.path.strip("/") and not parts.netloc and not options:
        catalogue = _locate(url, _read_sqlite_path(url, rest, parts)).path
        return Location(path=catalogue, lake=Lake(catalogue="sqlite", dsn=str(catalogue), data=data))
    if parts.scheme in ("postgresql", "postgres") and parts.hostname and parts.path.strip("/"):
        dsn = parts._replace(scheme="postgresql", query=urlencode(options)).geturl()
        lake = Lake(catalogue="postgres", dsn=dsn, data=data)
        mark = hashlib.sha256(lake.url.encode()).hexdigest()[:16]
        return Location(path=_find_state_folder() / f"lake-{mark}" / "warehouse", lake=lake)
    raise _no_warehouse(url)


def _read_sqlite_path(url: str, rest: str, parts: SplitResult) -> str:
    """The catalogue's path: after three slashes, which `urlsplit` does not tell from one, only a name."""
    path = unquote(parts.path)
    if not rest.startswith("sqlite:///"):
        return path
    if "/" in path[1:] and not path.startswith("//"):
        query = f"?{parts.query}"
        raise _two_readings(
            url,
            path[1:],
            absolute=f"{_LAKE_SCHEME}sqlite:{parts.path}{query}",
            relative=f"{_LAKE_SCHEME}sqlite:{parts.path[1:]}{query}",
        )
    return path[1:]


def _two_readings(url: str, path: str, *, absolute: str, relative: str) -> WarehouseUrlError:
    return WarehouseUrlError(
        f"{url!r} can be read as /{path} and as {path} in this folder; write {absolute!r} for the one, or {relative!r} "
        "for the other"
    )


def _locate_data(url: str, data: str) -> str:
    if data.startswith("s3://"):
        return data.rstrip("/") + "/"
    if _LOOKS_LIKE_URL.match(data):
        raise WarehouseUrlError(f"{url!r} keeps its files at {data!r}; allowed is a folder, or s3://bucket/prefix")
    return str(_locate(url, data).path)


def _find_state_folder() -> Path:
    """Where this user's programs keep what must survive them, by the rules of the platform."""
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().resolve()
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "evalhouse"


def _no_warehouse(url: str) -> WarehouseUrlError:
    return WarehouseUrlError(
        f"{url!r} names no warehouse; allowed: duckdb:///folder/file.duckdb (relative), duckdb:////folder/file.duckdb "
        "(absolute), a plain path, ducklake:sqlite:/folder/catalog.sqlite?data=/folder (absolute; relative without the "
        "slash), or "
        "ducklake:postgresql://user@host/db?data=s3://bucket/prefix (or a shared folder)"
    )
