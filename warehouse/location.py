"""The place of a warehouse: the URL that users write, parsed.

`duckdb:///relative/or//absolute/path.duckdb` or simply a path is one DuckDB file. `ducklake:sqlite:/a/catalog?data=/a`
and `ducklake:postgresql://user@host/db?data=s3://bucket/prefix` are lakes: a catalogue and a place for Parquet files.
After `sqlite:` follows a plain path, `/absolute` or `relative`; four slashes are absolute as well, and after three
only a name is allowed, because people read `sqlite:///a/b` both as /a/b and as ./a/b.
Everything beside the warehouse (its lock, journal and spool) is named after it, so that one `ls` shows what belongs
together; for a lake with a server that is a folder of the user on this machine.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from evalhouse.warehouse.errors import WarehouseUrlError

DEFAULT_URL = "duckdb:///evalhouse.duckdb"
_SCHEME = "duckdb://"
# One letter before a colon is a drive, not a scheme.
_LOOKS_LIKE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
# Between user and host, wherever an address is in it, or as an option of PostgreSQL's.
_PASSWORD = re.compile(r"//[^/@:?]*:(?:(?![?&]data=)[^@])*@|[?&]password=", re.IGNORECASE)
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
        """True where the files are in a bucket."""
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
        """Its name in messages: the file's path, or the lake's URL."""
        return self.lake.url if self.lake else str(self.path)

    @cached_property
    def spill_path(self) -> Path:
        """The folder to which a lake's connections spill when their memory is full."""
        return self.path.with_name(self.path.name + ".spill")

    @cached_property
    def lock_path(self) -> Path:
        """The lock behind which evalhouse's writers queue."""
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
        """The folder of batches written while another process kept the file open."""
        return self.path.with_name(self.path.name + ".spool")

    @cached_property
    def unborn_path(self) -> Path:
        """The temporary name of a new file, so that an incomplete one is never found."""
        return self.path.with_name(self.path.name + ".new")


def parse_location(url: str) -> Location:
    """Parse a warehouse URL or a plain path; raises WarehouseUrlError for anything else.

    Three slashes lead to a relative path and four to an absolute one; a URL that is likely meant the other way is
    refused. Links are followed: two names of one file must share one lock, one journal and one spool.
    """
    text = url.strip()
    if not text:
        raise WarehouseUrlError(f"the warehouse URL is empty; write a path or {DEFAULT_URL!r}")
    if not _LOOKS_LIKE_URL.match(text):
        return _locate(url, text)
    # Before anything else: other messages quote the URL, also to a webhook.
    if any(_PASSWORD.search(form) for form in (text, unquote(text))):
        raise WarehouseUrlError(
            "the warehouse's URL holds a password, and URLs are stored; leave it out there and put it in PGPASSWORD "
            "or ~/.pgpass, or the keys of a bucket in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
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
    # DuckDB's name for a database that is gone when it is closed, as each connection soon is.
    if path == ":memory:":
        raise _no_warehouse(url)
    try:
        return Location(path=Path(path).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, an unknown home, a NUL
        raise WarehouseUrlError(f"{url!r} cannot be followed: {error}; name the warehouse by a plain path") from None


def _locate_lake(url: str, rest: str) -> Location:
    try:
        parts = urlsplit(rest)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise WarehouseUrlError(f"{url!r} cannot be parsed: {error}") from None
    data = options.pop("data", "")
    if not data:
        raise WarehouseUrlError(
            f"{url!r} lacks the place of the files; add ?data=/shared/folder or ?data=s3://bucket/prefix"
        )
    if data.startswith("s3://"):
        data = data.rstrip("/") + "/"
    elif _LOOKS_LIKE_URL.match(data):
        raise WarehouseUrlError(f"{url!r} keeps its files at {data!r}; allowed is a folder, or s3://bucket/prefix")
    else:
        data = str(_locate(url, data).path)
    if parts.scheme == "sqlite" and parts.path.strip("/") and not parts.netloc and not options:
        path = unquote(parts.path)
        if rest.startswith("sqlite:///"):  # `urlsplit` does not tell three slashes from one
            if "/" in path[1:] and not path.startswith("//"):
                absolute, relative = (
                    f"{_LAKE_SCHEME}sqlite:{one}?{parts.query}" for one in (parts.path, parts.path[1:])
                )
                raise _two_readings(url, path[1:], absolute=absolute, relative=relative)
            path = path[1:]
        catalogue = _locate(url, path).path
        return Location(path=catalogue, lake=Lake(catalogue="sqlite", dsn=str(catalogue), data=data))
    if parts.scheme in ("postgresql", "postgres") and parts.hostname and parts.path.strip("/"):
        dsn = parts._replace(scheme="postgresql", query=urlencode(options)).geturl()
        lake = Lake(catalogue="postgres", dsn=dsn, data=data)
        mark = hashlib.sha256(lake.url.encode()).hexdigest()[:16]
        # The folder where this user's programs keep their state, by the rules of the platform.
        base = Path(os.environ.get("XDG_STATE_HOME", ""))
        folder = (base if base.is_absolute() else Path.home() / ".local" / "state") / "evalhouse"
        if chosen := os.environ.get(STATE_VARIABLE):
            folder = Path(chosen).expanduser().resolve()
        return Location(path=folder / f"lake-{mark}" / "warehouse", lake=lake)
    raise _no_warehouse(url)


def _two_readings(url: str, path: str, *, absolute: str, relative: str) -> WarehouseUrlError:
    return WarehouseUrlError(
        f"{url!r} can be read as /{path} and as {path} in this folder; write {absolute!r} for the one, or {relative!r} "
        "for the other"
    )


def _no_warehouse(url: str) -> WarehouseUrlError:
    return WarehouseUrlError(
        f"{url!r} names no warehouse; allowed: duckdb:///folder/file.duckdb (relative), duckdb:////folder/file.duckdb "
        "(absolute), a plain path, ducklake:sqlite:/folder/catalog.sqlite?data=/folder (absolute; relative without the "
        "slash), or "
        "ducklake:postgresql://user@host/db?data=s3://bucket/prefix (or a shared folder)"
    )
