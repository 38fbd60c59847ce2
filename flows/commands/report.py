"""`evalhouse report`: a run, or the history of a suite, as one HTML file."""

import re
from pathlib import Path

import click

from evalhouse.flows.commands.options import WAREHOUSE_OPTION
from evalhouse.flows.display.output import print_line, write_count
from evalhouse.flows.documents.run_origin import find_other_run
from evalhouse.flows.errors import SettingsError
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.rows.history import find_series, read_series
from evalhouse.warehouse.rows.report import reading_slices
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--against", metavar="RUN", help="Another run to show beside it.")
@click.option(
    "--history", metavar="SUITE", help="Instead of a run: all runs of a suite, or of a dataset outside suites."
)
@click.option("-o", "--output", metavar="FILE", help="Where to write. Default: report-RUN.html, history-SUITE.html.")
@click.option("--no-calls", is_flag=True, help="Leave the raw requests and replies out: a smaller file.")
@WAREHOUSE_OPTION
def report(
    *,
    run: str | None,
    against: str | None,
    history: str | None,
    output: str | None,
    no_calls: bool,
    warehouse: Warehouse,
) -> None:
    """Write RUN as one HTML file that needs no network: scores, distributions, history, costs, and every sample with
    its verdicts.

    RUN is a run id, a unique prefix of one, a label, `latest` (the default), `latest-completed` or `previous`.
    """
    if run and history:
        raise click.UsageError("name one RUN, such as `latest`, or a suite with --history")
    if history is not None and (against or no_calls):
        raise click.UsageError("--against and --no-calls are for a RUN, and --history shows none")
    if history is not None:
        _write_history(warehouse, history, output)
    else:
        _write_run(warehouse, run or "latest", against, output, with_calls=not no_calls)


def _write_run(warehouse: Warehouse, run: str, against: str | None, output: str | None, *, with_calls: bool) -> None:
    run_row = find_run(warehouse, run)
    base = find_other_run(warehouse, run_row, against) if against else None
    with reading_slices(warehouse, run_row, base, with_calls=with_calls) as slices:
        from evalhouse.flows.report.page import build_page  # noqa: PLC0415  # while samples are read

        page = build_page(warehouse, run_row, base, slices, with_calls=with_calls)
    _write_page(page, output or f"report-{run_row.run_id}.html", write_count(run_row.n_samples or 0, "sample"))


def _write_history(warehouse: Warehouse, suite: str, output: str | None) -> None:
    from evalhouse.flows.report.history import build_history  # noqa: PLC0415  # a run needs none of it

    series, others = find_series(warehouse, suite)
    if series is None:
        raise SettingsError(
            f"no run with scores of suite {suite!r} is on record, nor of a dataset of that name outside suites; "
            f"{suggest(suite, others)}"
        )
    data = read_series(warehouse, series)
    page = build_history(warehouse, data)
    name = re.sub(r"[^\w.-]+", "-", suite)
    _write_page(page, output or f"history-{name}.html", write_count(len(data.runs), "run"))


def _write_page(page: str, path: str, what: str) -> None:
    size = Path(path).write_bytes(page.encode())
    print_line(f"wrote {path}: {size / 1e6:.1f} MB, {what}; open it in any browser")
