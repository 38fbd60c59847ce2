"""`evalhouse query`, and `evalhouse warehouse`: check, compact, back up, move, and forget what need not be kept."""

import os
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalhouse.flows.commands.options import (
    JSON_OPTION,
    WAREHOUSE_OPTION,
    WAREHOUSE_URL_OPTION,
    LazyGroup,
    find_warehouse,
    refuse_database,
)
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.results.output import (
    FORMATS,
    lay_table,
    make_table,
    print_json,
    print_line,
    print_notice,
    print_table,
    print_text,
    write_count,
    write_frame,
)
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.messages import list_names

if TYPE_CHECKING:
    from evalhouse.warehouse.store import Warehouse
    from evalhouse.warehouse.upkeep.forget import Forgotten


_WRONG = 1
_MB = 1_000_000


@click.group(cls=LazyGroup)
def warehouse() -> None:
    """Look after the warehouse: check, compact, back up, move, and forget what need not be kept."""


@warehouse.command()
@WAREHOUSE_OPTION
@JSON_OPTION
def check(warehouse: "Warehouse", as_json: bool) -> int:
    """Check that no row is lost, duplicated, or without the rows it needs, and print the size of each part.

    Nothing is changed. Exit status 1 when something is wrong.
    """
    from evalhouse.warehouse.upkeep.check_and_compact import check_warehouse, measure_size  # noqa: PLC0415

    findings = list(check_warehouse(warehouse))
    size = measure_size(warehouse)
    is_wrong = any(finding.verdict == "wrong" for finding in findings)
    if as_json:
        document = {
            "ok": not is_wrong,
            "findings": [asdict(finding) for finding in findings],
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
        sizes = [*size.groups.items(), ("all", size.n_bytes - size.n_free)]
        rows = []
        for group, n_bytes in sizes:
            per_thousand = size.per_thousand(n_bytes)
            rate = None if per_thousand is None else f"{per_thousand / _MB:,.2f}"
            rows.append([group, f"{n_bytes / _MB:,.2f}", rate])
        rows.append(["free", f"{size.n_free / _MB:,.2f}", None])
        print_table(make_table(["size", "#MB", "#MB a 1,000 samples"], rows))
        print_line(f"{size.n_samples:,} samples in all runs; new rows fill the free space, or `compact` releases it")
        print_line()
        print_line("something is wrong" if is_wrong else "nothing is wrong", bold=True)
    return _WRONG if is_wrong else 0


@warehouse.command()
@WAREHOUSE_OPTION
@JSON_OPTION
def compact(warehouse: "Warehouse", as_json: bool) -> int:
    """Make the warehouse smaller without losing a row.

    A DuckDB file is written again from the start. In a lake small files are merged, snapshots are dropped except the
    last of each run, and unneeded files are removed. Writers wait meanwhile.
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
def backup(target: str, warehouse: "Warehouse", as_json: bool) -> int:
    """Copy the warehouse into one DuckDB file, complete at one moment, while runs continue.

    DEST is a file that is not there yet, or a folder, in which the file is named after the time. Writers wait meanwhile
    or spool their rows, and lose nothing. Every row is counted and hashed on both sides, and the copy is opened and
    checked. A lake is copied into a DuckDB file as well. To restore, name the copy with --warehouse or put it in place.
    """
    from evalhouse.warehouse.upkeep.copies import back_up  # noqa: PLC0415

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
    was cut short continues where it stopped when the same command is given again. FROM gets the replies that wait
    beside it, and is not changed otherwise.
    """
    from evalhouse.warehouse.store import Warehouse  # noqa: PLC0415
    from evalhouse.warehouse.upkeep.copies import list_left, move_warehouse  # noqa: PLC0415

    old, new = Warehouse(source), Warehouse(target)

    def note(table: str, n_rows: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"{table}: {n_rows:,} rows", err=True)

    tables = move_warehouse(old, new, note)
    n_rows = sum(tables.values())
    left = list_left(old, new)
    if left:
        print_notice(f"left in {old.location.name}, your own: {', '.join(left)}")
    if as_json:
        names = {"from": old.location.url, "to": new.location.url}
        print_json({**names, "rows": n_rows, "tables": tables, "left": left})
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
@click.option("--scores", is_flag=True, help="Delete verdicts and scores as well, and so the whole rows.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and change nothing.")
@click.option("--yes", is_flag=True, help="Delete without asking; needed where no terminal is.")
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
    yes: bool,
    warehouse: "Warehouse",
    as_json: bool,
) -> int:
    """Delete texts from the warehouse: questions, answers, ground truths, contexts, requests and replies.

    Scores, verdicts and costs stay unless --scores is given, and each text is replaced by the day on which it was
    forgotten. A text that a kept run also has stays, and so does a reply that such a run uses. Received traces are
    deleted completely. At a terminal it asks before it deletes. The tables `forgotten` and `forgotten_traces` list what
    was forgotten. The bytes are removed from the disk by `evalhouse warehouse compact`.
    """
    from evalhouse.tasks.settings.suite import find_cutoff  # noqa: PLC0415  # brings pydantic
    from evalhouse.warehouse.errors import WarehouseError  # noqa: PLC0415
    from evalhouse.warehouse.rows.runs import find_run, now_utc  # noqa: PLC0415
    from evalhouse.warehouse.upkeep.forget import Rule, finish_forgetting  # noqa: PLC0415
    from evalhouse.warehouse.upkeep.forget import forget as forget_rows  # noqa: PLC0415

    given = {"--older-than": older_than, "--run": run, "--sample": sample_id}
    named = {option: value for option, value in given.items() if value is not None}
    if len(named) != 1:
        raise click.UsageError(f"got {' and '.join(named) or 'nothing to forget'}; give one of {', '.join(given)}")
    if suite is not None and older_than is None:
        raise click.UsageError("--suite goes with --older-than; a run or a sample is named by itself")
    words = " ".join([f"{option} {value}" for option, value in named.items()] + ([f"--suite {suite}"] if suite else []))
    words += " --scores" if scores else ""
    # Before the rule is looked up: a run that is half gone is not found.
    finished = [] if dry_run else finish_forgetting(warehouse)
    for other in finished:
        print_notice(f"finished what was cut short: forget {other.rule.words}")
    same = next((other for other in finished if other.rule.words == words), None)
    before = None
    if older_than is not None:
        try:
            before = find_cutoff(older_than, now_utc())
        except ValueError as error:
            raise click.UsageError(f"--older-than: got {older_than!r}; {error}") from None
    try:
        run_ids = () if run is None else (find_run(warehouse, run).run_id,)
        rule = Rule(
            words=words, run_ids=run_ids, before=before, suite=suite, sample_id=sample_id, with_scores=scores
        )  # fmt: skip
        if not (dry_run or yes):
            planned = forget_rows(warehouse, rule, dry_run=True)
            has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
            what = f"{write_count(planned.n_samples, 'sample')} of {write_count(len(planned.run_ids), 'run')}"
            what += f", {planned.n_bytes / _MB:,.1f} MB of text" + (", with verdicts and scores" if scores else "")
            if planned.tables and not has_terminal:
                raise SettingsError(
                    f"this deletes {what} for ever, without a terminal to ask at; give --yes to delete, or --dry-run "
                    "to see the rows"
                )
            if planned.tables:
                click.confirm(f"Delete {what} for ever from {warehouse.location.name}?", abort=True)
        forgotten = forget_rows(warehouse, rule, dry_run=dry_run)
    except WarehouseError:
        if same is None:
            raise
        forgotten = same  # it is not found any more, because the rest of it was deleted above
    if same is not None and not (forgotten.run_ids or forgotten.tables):
        forgotten = same
    return _print_forgotten(warehouse, forgotten, dry_run=dry_run, as_json=as_json)


def _print_forgotten(warehouse: "Warehouse", forgotten: "Forgotten", *, dry_run: bool, as_json: bool) -> int:
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
                "under_way": list(forgotten.running),
                "later_turns": list(forgotten.later_turns),
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
        for run_id in forgotten.running:
            print_line(f"run {run_id} is running and was left out; forget it when it has ended")
        if not forgotten.run_ids and not forgotten.tables:
            print_line("nothing to forget: no run fits that is not forgotten already")
            return 0
        rows = [[table, n] for table, n in sorted(forgotten.tables.items())]
        print_table(make_table(["table", "#rows"], rows))
        print_line()
        print_line(
            f"{'would be forgotten' if dry_run else 'forgotten'}: {write_count(forgotten.n_samples, 'sample')} of "
            f"{write_count(len(forgotten.run_ids), 'run')}, {forgotten.n_bytes / _MB:,.1f} MB of text",
            bold=True,
        )
        if forgotten.later_turns:
            print_line(
                f"its texts remain as an earlier turn in the conversation of {list_names(forgotten.later_turns, 8)}; "
                f"forget these too, as in `evalhouse warehouse forget --sample {forgotten.later_turns[0]}`"
            )
        if (traces := forgotten.traces) and traces.first_began_at and traces.last_began_at:
            from evalhouse.warehouse.rows.spans import write_began  # noqa: PLC0415

            began = write_began(traces.first_began_at, traces.last_began_at)
            print_line(f"and {write_count(traces.n_traces, 'received trace')} that began {began}")
        print_line("backups, reports and artifacts of a Prefect server keep their copies: evalhouse guide operating")
        if dry_run:
            print_line("nothing was changed; leave out --dry-run to delete it")
        else:
            print_line(f"next: evalhouse warehouse compact --warehouse {shlex.quote(warehouse.location.url)}")
    return 0


_MOST_S = 1e6
_EXAMPLE = 'evalhouse query "from run_scores"'
_NO_SQL = (
    f"give the SQL as an argument or with --file, for example: {_EXAMPLE}; "
    "to write it with completion, open the SQL page of `evalhouse ui`"
)
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([KMGT]i?B|%)", re.IGNORECASE)
_COMMENT = re.compile(r"--(\s|.*\n)")


class _SqlCommand(click.Command):
    """A command whose argument may begin with a comment, which would be parsed as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments with a line break before SQL that begins with a comment."""
        return super().parse_args(ctx, [f"\n{arg}" if _COMMENT.match(arg) else arg for arg in args])


def _read_memory(_: click.Context, __: click.Parameter, size: str) -> int:
    """Return the MB of a size such as 2GB, or of a share of the machine's memory such as 50%."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # a container may have less; "max" is not a number
        available = min(available, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    bytes_of = {"%": available / 100, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    match = _SIZE.fullmatch(size.strip())
    memory_mb = int(float(match[1]) * bytes_of[match[2].upper().replace("I", "")] / 1e6) if match else 0
    if memory_mb < 1:
        raise click.BadParameter(f"{size!r} is not a memory limit; write for example 2GB, 500MB or 80%")
    return memory_mb


@click.command(cls=_SqlCommand)
@click.argument("sql", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Read the SQL from a file, or from standard input with `-`.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Default: by the ending of --output, else table.")
@click.option("--json", "kind", flag_value="json", help="The same as --format json.")
@click.option(
    "-o", "--output", metavar="FILE", callback=refuse_database, help="Write the result there. Parquet needs it."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True, max=_MOST_S),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Stop after this many seconds.",
)
@click.option(
    "--memory-limit",
    "memory_mb",
    callback=_read_memory,
    default="50%",
    show_default=True,
    metavar="SIZE",
    help="Memory it may use, such as 2GB or a share of the machine's.",
)
@WAREHOUSE_URL_OPTION
def query(
    *,
    sql: str | None,
    path: str | None,
    kind: str | None,
    output: str | None,
    timeout: float,
    memory_mb: int,
    warehouse: str | None,
) -> None:
    r"""Run one SELECT over the warehouse, read-only and without access to other files or the network.

    Start with `evalhouse query "from run_scores"`; `evalhouse query "\d"` lists tables and views, and "\d NAME" the
    columns of one with what they mean. In SQL getvariable('latest') is the id of the newest evaluation and
    getvariable('previous') that of the run before it in its series (suite, or dataset). `table` cuts very long texts
    at a terminal; the other formats have them whole. In `csv` a text that begins like a formula gets an apostrophe, so
    that no spreadsheet runs it; `json` and `jsonl` have every text unchanged. `evalhouse ui` has a page to write SQL
    in, with completion and charts.
    """
    from evalhouse.warehouse.sandbox.query_process import answer_apart  # noqa: PLC0415  # imports Polars

    if sql is not None and path is not None:
        raise SettingsError("got SQL as an argument and with --file; give it once")
    if sql == "-" or (sql is None and path in (None, "-")):
        if path is None and sql is None and sys.stdin.isatty():
            raise SettingsError(_NO_SQL)
        sql = sys.stdin.read()
    elif path is not None:
        try:
            sql = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingsError(f"{path} is not UTF-8 text; --file takes a file of SQL") from None
    if sql is None or not sql.strip():
        raise SettingsError(f"the SQL is empty; write one SELECT, for example: {_EXAMPLE}")
    if kind is None:
        suffix = Path(output or "").suffix.removeprefix(".").lower()
        suffix = {"md": "markdown", "ndjson": "jsonl"}.get(suffix, suffix)
        kind = suffix if suffix in FORMATS else "table"
    if kind == "parquet" and output is None:
        raise SettingsError("Parquet is not text; name a file with --output")
    location = parse_location(find_warehouse(warehouse))
    frame = answer_apart(location, sql, timeout_s=timeout, memory_mb=memory_mb, max_bytes=None)
    if output is not None:
        try:
            if kind == "parquet":
                frame.write_parquet(output)
            else:
                Path(output).write_text(write_frame(frame, kind), encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"cannot write {output}: {error.strerror or error}") from None
        print_notice(f"{write_count(frame.height, 'row')} in {output}")
    elif kind == "table" and frame.columns == ["explain_key", "explain_value"]:
        print_text("\n".join(frame["explain_value"]))  # a drawing of many lines
    elif kind == "table":
        print_table(lay_table(frame))
        print_notice(write_count(frame.height, "row"))
    else:
        print_text(write_frame(frame, kind), is_json=kind in ("json", "jsonl"))
