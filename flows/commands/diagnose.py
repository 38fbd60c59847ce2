"""`evalhouse diagnose`: which stage of the application fails, for which samples, and what to try."""

import shlex
from collections.abc import Mapping
from typing import Any, Final, cast

import click

from evalhouse.flows.commands.options import JSON_OPTION, LATEST_ARGUMENT, WAREHOUSE_OPTION, count_option
from evalhouse.flows.results.diagnosis import CAUSES, LANGUAGES, Cause, Language, read_diagnosis
from evalhouse.flows.results.output import (
    make_table,
    print_json,
    print_line,
    print_section,
    print_table,
    write_count,
    write_interval,
)
from evalhouse.warehouse.messages import clean_text, shorten
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse

_GOOD: Final = ("refused_rightly", "fine")
_LAST: Final = (*_GOOD, "not_judged")  # in this order, behind the failures
_SHOWN_STATEMENTS: Final = 2


@click.command()
@LATEST_ARGUMENT
@click.option("--cause", type=click.Choice(CAUSES), metavar="NAME", help="Show this cause alone.")
@count_option("--limit", default=3, text="Worst samples to show of each cause.")
@count_option("--runs", "n_runs", default=5, least=1, text="Runs of the same suite or dataset in the trend.")
@click.option(
    "--language", type=click.Choice(LANGUAGES), help="Language of causes and remedies. Default: that of the run."
)
@WAREHOUSE_OPTION
@JSON_OPTION
def diagnose(
    *, run: str, cause: str | None, limit: int, n_runs: int, language: str | None, warehouse: Warehouse, as_json: bool
) -> None:
    """Say which stage fails in RUN, for which samples, and what to try.

    Each sample gets one cause from the verdicts on record; no model is asked. RUN is a run id, a unique prefix of one,
    a label, `latest` (the default), `latest-completed` or `previous`.
    """
    run_row = find_run(warehouse, run)
    chosen = language or (run_row.language if run_row.language in LANGUAGES else "en")
    shown = CAUSES if cause is None else (cast(Cause, cause),)
    document = read_diagnosis(
        warehouse, run_row, language=cast(Language, chosen), causes=shown, n_samples=limit, n_runs=n_runs
    )
    if as_json:
        print_json(document)
    else:
        n_samples = write_count(run_row.n_samples, "sample")
        print_line(
            f"run {run_row.run_id} {run_row.status}: {n_samples} of {run_row.dataset}; judge {run_row.judge}", bold=True
        )
        print_line()
        names = {row["cause"]: row["name"] for row in document["causes"]}
        rows = [
            [row["name"], row["n_samples"], row["share"], write_interval(row["ci_low"], row["ci_high"]), row["meaning"]]
            for row in _sort_causes(document)
            if row["n_samples"] or row["cause"] == cause
        ]
        if not rows:
            print_line("No samples yet.")
        else:
            print_table(make_table(["cause", "#samples", "#share", "95 % interval", "meaning"], rows))
            for row in document["not_judged"]:
                # A run that has completed was not stopped before anything.
                is_unasked = row["reason"] == "cancelled" and document["run"]["status"] == "completed"
                why = " (no metric of this run asks for these verdicts)" if is_unasked else ""
                print_line(f"{names['not_judged']}: {row['n_samples']} {row['reason']}{why}")
        _print_trend(document, names)
        _print_samples(document, names, cause)
        causes = [row for row in _sort_causes(document) if row["remedies"]]
        if causes:
            print_line()
            print_line("What to try", bold=True)
            for row in causes:
                print_line(f"{row['name']} ({row['n_samples']})")
                for remedy in row["remedies"]:
                    print_line(f"  - {remedy}")
        frequent = next((row for row in _sort_causes(document) if row["n_samples"] and row["cause"] not in _LAST), None)
        print_line()
        if run_row.status != "completed":
            print_line(f"next: evalhouse resume {run_row.run_id}")
        if frequent is not None:
            sample = next((row["sample_id"] for row in document["samples"] if row["cause"] == frequent["cause"]), None)
            if sample is not None:
                # The id is the dataset's own; a shell must take it for a word.
                print_line(f"next: evalhouse lineage {run_row.run_id} {shlex.quote(clean_text(sample))}")
            if cause is None:
                print_line(f"next: evalhouse diagnose {run_row.run_id} --cause {frequent['cause']} --limit 20")


def _sort_causes(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The most frequent failure first; what is fine or was not judged last."""
    return sorted(
        document["causes"],
        key=lambda row: (_LAST.index(row["cause"]) + 1 if row["cause"] in _LAST else 0, -row["n_samples"]),
    )


def _print_trend(document: Mapping[str, Any], names: Mapping[str, str]) -> None:
    trend = document["trend"]
    rows = [
        [names[row["cause"]], *(of_run["shares"].get(row["cause"]) for of_run in trend)]
        for row in _sort_causes(document)
        if any(of_run["shares"].get(row["cause"]) for of_run in trend)
    ]
    if len(trend) < 2 or not rows:
        return
    minutes = {f"{of_run['started_at']:%m-%d %H:%M}" for of_run in trend}
    form = "%m-%d %H:%M" if len(minutes) == len(trend) else "%m-%d %H:%M:%S"
    columns = ["share", *(f"#{of_run['started_at']:{form}}" for of_run in trend)]
    print_section("Trend", columns, rows)
    for of_run in trend:
        if of_run["same_yardstick"] is False:
            what = "another judge, language or plan"
            print_line(f"run {of_run['run_id']} has {what} than the one before: not comparable")


def _print_samples(document: Mapping[str, Any], names: Mapping[str, str], asked_for: str | None) -> None:
    rows = [
        [
            names[row["cause"]],
            row["sample_id"],
            row["evidence"],
            " / ".join(shorten(statement["text"], 60) for statement in row["statements"][:_SHOWN_STATEMENTS]) or None,
            shorten(row["question"], 60),
            shorten(row["answer"], 80) or None,
        ]
        for row in document["samples"]
        if row["cause"] not in _GOOD or asked_for
    ]
    print_section("Samples", ["cause", "sample", "evidence", "statements", "question", "answer"], rows)
