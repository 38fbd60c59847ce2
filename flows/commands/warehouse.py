"""`evalhouse warehouse`: check it, compact it, move it elsewhere."""

import sys
from dataclasses import asdict

import click

from evalhouse.flows.commands.options import JSON_OPTION, WAREHOUSE_OPTION, LazyGroup
from evalhouse.flows.display.output import make_table, print_json, print_line, print_table
from evalhouse.warehouse.store import Warehouse

_WRONG = 1
_MB = 1_000_000


@click.group(cls=LazyGroup, elsewhere={})
def warehouse() -> None:
    """Look after the warehouse: check it, compact it, move it elsewhere."""


@warehouse.command()
@WAREHOUSE_OPTION
@JSON_OPTION
def check(warehouse: Warehouse, as_json: bool) -> int:
    """Check that no row is lost, duplicated, or without what it rests on.

    Nothing is changed. Exit status 1 when something is wrong.
    """
    from evalhouse.warehouse.upkeep.check_and_compact import check_warehouse  # noqa: PLC0415

    findings = list(check_warehouse(warehouse))
    is_wrong = any(finding.verdict == "wrong" for finding in findings)
    if as_json:
        rows = [asdict(finding) for finding in findings]
        print_json({"warehouse": warehouse.location.url, "ok": not is_wrong, "findings": rows})
    else:
        print_line(warehouse.location.name)
        print_line()
        cells = [[finding.verdict, finding.what, finding.detail] for finding in findings]
        print_table(make_table(["", "what", "found"], cells))
        print_line()
        print_line("something is wrong" if is_wrong else "all is in its place", bold=True)
    return _WRONG if is_wrong else 0


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
