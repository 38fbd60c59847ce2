"""`evalhouse warehouse`: check it, compact it, back it up, move it elsewhere, and forget what need not be kept."""

import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from evalhouse.flows.commands.options import JSON_OPTION, WAREHOUSE_OPTION, LazyGroup
from evalhouse.flows.results.output import make_table, print_json, print_line, print_table, write_count
from evalhouse.warehouse.rows.spans import write_began
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.warehouse.upkeep.check_and_compact import Size
    from evalhouse.warehouse.upkeep.forget import Forgotten

_WRONG = 1
_MB = 1_000_000


@click.group(cls=LazyGroup)
def warehouse() -> None:
    """Look after the warehouse: check, compact, back up, move, and forget what need not be kept."""


@warehouse.command()
@WAREHOUSE_OPTION
@JSON_OPTION
def check(warehouse: Warehouse, as_json: bool) -> int:
    """Check that no row is lost, duplicated, or without what it rests on, and say what takes how much room.

    Nothing is changed. Exit status 1 when something is wrong.
    """
    from evalhouse.warehouse.upkeep.check_and_compact import check_warehouse, measure_size  # noqa: PLC0415

    findings = list(check_warehouse(warehouse))
    size = measure_size(warehouse)
    is_wrong = any(finding.verdict == "wrong" for finding in findings)
    if as_json:
        rows = [asdict(finding) for finding in findings]
        document = {
            "ok": not is_wrong,
            "findings": rows,
            "size": {
                "bytes": size.n_bytes,
                "bytes_free": size.n_free,
                "n_samples": size.n_samples,
                "bytes_by_group": dict(size.groups),
                "bytes_per_1000_samples": size.per_thousand(size.n_bytes - size.n_free),
            },
        }
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
    last of each run, and files that nothing needs are removed. Writers wait meanwhile.
    """
    from evalhouse.warehouse.upkeep.check_and_compact import compact_warehouse  # noqa: PLC0415

    warehouse.migrate()
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


@warehouse.command()
@click.option("--older-than", metavar="AGE", help="Runs that began before so long ago: 180d, 26w or 2y.")
@click.option("--suite", metavar="NAME", help="With --older-than: only the runs of this suite.")
@click.option("--run", "run", metavar="RUN", help="One run, with its noise run.")
@click.option("--sample", "sample_id", metavar="ID", help="One sample, in all runs.")
@click.option("--scores", is_flag=True, help="Have verdicts and scores go as well, and so the rows altogether.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@WAREHOUSE_OPTION
@JSON_OPTION
def forget(
    *,
    older_than: str | None,
    suite: str | None,
    run: str | None,
    sample_id: str | None,
    scores: bool,
    dry_run: bool,
    warehouse: Warehouse,
    as_json: bool,
) -> int:
    """Take texts out of the warehouse: questions, answers, ground truths, contexts, requests and replies.

    Scores, verdicts and costs stay unless --scores is given, and everywhere a text was stands the day on which it was
    forgotten. A text that a kept run has too stays, and so does a reply that one rests on. Received traces go
    altogether. What was forgotten is on record in the tables `forgotten` and `forgotten_traces`. The bytes are gone
    from the disk after `evalhouse warehouse compact`.
    """
    from evalhouse.tasks.settings.suite import find_cutoff  # noqa: PLC0415  # brings pydantic
    from evalhouse.warehouse.rows.runs import find_run, now_utc  # noqa: PLC0415
    from evalhouse.warehouse.upkeep.forget import Rule  # noqa: PLC0415
    from evalhouse.warehouse.upkeep.forget import forget as forget_rows  # noqa: PLC0415

    given = {"--older-than": older_than, "--run": run, "--sample": sample_id}
    named = {option: value for option, value in given.items() if value is not None}
    if len(named) != 1:
        raise click.UsageError(f"got {' and '.join(named) or 'nothing to forget'}; give one of {', '.join(given)}")
    if suite is not None and older_than is None:
        raise click.UsageError("--suite goes with --older-than; a run or a sample is named by itself")
    words = " ".join([f"{option} {value}" for option, value in named.items()] + ([f"--suite {suite}"] if suite else []))
    words += " --scores" if scores else ""
    if older_than is not None:
        try:
            before = find_cutoff(older_than, now_utc())
        except ValueError as error:
            raise click.UsageError(f"--older-than: got {older_than!r}; {error}") from None
        rule = Rule(words=words, before=before, suite=suite, with_scores=scores)
    elif run is not None:
        rule = Rule(words=words, run_ids=(find_run(warehouse, run).run_id,), with_scores=scores)
    else:
        rule = Rule(words=words, sample_id=sample_id, with_scores=scores)
    forgotten = forget_rows(warehouse, rule, dry_run=dry_run)
    if as_json:
        traces = forgotten.traces
        print_json(
            {
                "warehouse": warehouse.location.url,
                "dry_run": dry_run,
                "rule": forgotten.rule.words,
                "runs": list(forgotten.run_ids),
                "n_samples": forgotten.n_samples,
                "rows": dict(forgotten.tables),
                "bytes": forgotten.n_bytes,
                "under_way": list(forgotten.under_way),
                "traces": None
                if traces is None
                else {
                    "n_traces": traces.n_traces,
                    "first_began_at": traces.first_began_at,
                    "last_began_at": traces.last_began_at,
                },
            }
        )
    else:
        _print_forgotten(warehouse, forgotten, dry_run=dry_run)
    return 0


def _print_forgotten(warehouse: Warehouse, forgotten: "Forgotten", *, dry_run: bool) -> None:
    for run_id in forgotten.under_way:
        print_line(f"run {run_id} is under way and was left out; forget it when it has ended")
    if not forgotten.run_ids and not forgotten.tables:
        print_line("nothing to forget: no run fits that is not forgotten already")
        return
    rows = [[table, n] for table, n in sorted(forgotten.tables.items())]
    print_table(make_table(["table", "#rows"], rows))
    print_line()
    print_line(
        f"{'would be forgotten' if dry_run else 'forgotten'}: {write_count(forgotten.n_samples, 'sample')} of "
        f"{write_count(len(forgotten.run_ids), 'run')}, {forgotten.n_bytes / _MB:,.1f} MB of text",
        bold=True,
    )
    if (traces := forgotten.traces) and traces.first_began_at and traces.last_began_at:
        began = write_began(traces.first_began_at, traces.last_began_at)
        print_line(f"and {write_count(traces.n_traces, 'received trace')} that began {began}")
    if dry_run:
        print_line("nothing was changed; leave out --dry-run to have it go")
    else:
        print_line(f"next: evalhouse warehouse compact --warehouse {shlex.quote(warehouse.location.url)}")
