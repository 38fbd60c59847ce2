"""`evalhouse warehouse`: check it, compact it, back it up, move it elsewhere."""

import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from evalhouse.flows.commands.options import JSON_OPTION, WAREHOUSE_OPTION, LazyGroup
from evalhouse.flows.display.output import make_table, print_json, print_line, print_table
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.warehouse.upkeep.size import Size

_WRONG = 1
_MB = 1_000_000


@click.group(cls=LazyGroup, elsewhere={})
def warehouse() -> None:
    """Look after the warehouse: check it, compact it, back it up, move it elsewhere."""


@warehouse.command()
@WAREHOUSE_OPTION
@JSON_OPTION
def check(warehouse: Warehouse, as_json: bool) -> int:
    """Check that no row is lost, duplicated, or without what it rests on, and say what takes how much room.

    Nothing is changed. Exit status 1 when something is wrong.
    """
    from evalhouse.warehouse.upkeep.check_and_compact import check_warehouse  # noqa: PLC0415
    from evalhouse.warehouse.upkeep.size import measure_size  # noqa: PLC0415

    findings = list(check_warehouse(warehouse))
    size = measure_size(warehouse)
    is_wrong = any(finding.verdict == "wrong" for finding in findings)
    if as_json:
        rows = [asdict(finding) for finding in findings]
        document = {"ok": not is_wrong, "findings": rows, "size": _describe_size(size)}
        print_json({"warehouse": warehouse.location.url, **document})
    else:
        print_line(warehouse.location.name)
        print_line()
        cells = [[finding.verdict, finding.what, finding.detail] for finding in findings]
        print_table(make_table(["", "what", "found"], cells))
        print_line()
        _print_size(size)
        print_line()
        print_line("something is wrong" if is_wrong else "all is in its place", bold=True)
    return _WRONG if is_wrong else 0


def _describe_size(size: "Size") -> dict[str, object]:
    return {
        "bytes": size.n_bytes,
        "bytes_free": size.n_free,
        "n_samples": size.n_samples,
        "bytes_by_group": dict(size.groups),
        "bytes_per_1000_samples": size.per_thousand(size.n_bytes - size.n_free),
    }


def _print_size(size: "Size") -> None:
    def write(n_bytes: float | None) -> str | None:
        return None if n_bytes is None else f"{n_bytes / _MB:,.2f}"

    n_used = size.n_bytes - size.n_free
    rows = [[group, write(n_bytes), write(size.per_thousand(n_bytes))] for group, n_bytes in size.groups.items()]
    rows += [["all", write(n_used), write(size.per_thousand(n_used))], ["free", write(size.n_free), None]]
    print_table(make_table(["size", "#MB", "#MB a 1,000 samples"], rows))
    print_line(f"{size.n_samples:,} samples in all runs; the next rows take what is free, or `compact` gives it back")


@warehouse.command()
@WAREHOUSE_OPTION
@JSON_OPTION
def compact(warehouse: Warehouse, as_json: bool) -> int:
    """Make the warehouse smaller without losing a row.

    A DuckDB file is written again from the start. In a lake small files are merged, snapshots are dropped except the
    last of each run, and files that nothing needs are removed. Writers wait meanwhile. What is stored of runs that have
    ended (means, causes, costs) is stored where it is missing, as after an update of evalhouse.
    """
    from evalhouse.warehouse.rows.runs import store_ended  # noqa: PLC0415
    from evalhouse.warehouse.upkeep.check_and_compact import compact_warehouse  # noqa: PLC0415

    warehouse.migrate()
    store_ended(warehouse)
    done = compact_warehouse(warehouse)
    if as_json:
        document = {"bytes_before": done.before, "bytes_after": done.after, "detail": done.detail}
        print_json({"warehouse": warehouse.location.url, **document})
    else:
        print_line(f"{warehouse.location.name}: {done.detail}")
        print_line(f"{done.before / _MB:.1f} MB before, {done.after / _MB:.1f} MB after")
    return 0


@warehouse.command()
@click.argument("target", metavar="DEST")
@WAREHOUSE_OPTION
@JSON_OPTION
def backup(target: str, warehouse: Warehouse, as_json: bool) -> int:
    """Copy the warehouse into one DuckDB file, whole as of one moment, while runs go on.

    DEST is a file that is not there yet, or a folder, in which the file is named after the time. Writers wait meanwhile
    or put their rows aside, and lose nothing. Every row is counted and hashed on both sides, and the copy is opened and
    checked. A lake is copied into a DuckDB file as well. To restore, name the copy with --warehouse or put it in place.
    """
    from evalhouse.warehouse.upkeep.backup import back_up  # noqa: PLC0415

    done = back_up(warehouse, target)
    n_rows = sum(done.tables.values())
    if as_json:
        print_json(
            {"warehouse": warehouse.location.url, "backup": str(done.path), "bytes": done.n_bytes, "rows": n_rows}
        )
        return 0
    print_line(f"{n_rows:,} rows are in {done.path} ({done.n_bytes / _MB:.1f} MB), counted and hashed on both sides")
    print_line(f"to look at it: evalhouse show latest --warehouse {shlex.quote(str(done.path))}")
    return 0


@warehouse.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@JSON_OPTION
def move(source: str, target: str, as_json: bool) -> int:
    """Copy a whole warehouse, such as a DuckDB file into a lake or back.

    FROM and TO are warehouse URLs or paths. Every table is counted and hashed on both sides, run by run. A move that
    was cut short continues where it stopped when the same command is given again. FROM stays as it is.
    """
    from evalhouse.warehouse.upkeep.move import move_warehouse  # noqa: PLC0415

    old, new = Warehouse(source), Warehouse(target)

    def note(table: str, n_rows: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"{table}: {n_rows:,} rows", err=True)

    tables = move_warehouse(old, new, note)
    n_rows = sum(tables.values())
    if as_json:
        print_json({"from": old.location.url, "to": new.location.url, "rows": n_rows, "tables": tables})
        return 0
    print_table(make_table(["table", "#rows"], [[name, n] for name, n in sorted(tables.items())]))
    print_line()
    print_line(f"{n_rows:,} rows are in {new.location.name}, counted and hashed on both sides", bold=True)
    print_line(f"next: export EVALHOUSE_WAREHOUSE='{new.location.url}'")
    return 0
