"""`evalhouse review agreement`: how far judge and people agree, and what that makes of a run's means."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from evalhouse.flows.commands.options import JSON_OPTION, SEED_OPTION, WAREHOUSE_OPTION
from evalhouse.flows.display.output import (
    Table,
    make_table,
    print_json,
    print_line,
    print_table,
    write_count,
    write_interval,
    write_number,
)
from evalhouse.flows.documents.agreement import GROUPINGS, MEASURES, Document, describe_agreement
from evalhouse.flows.documents.comparison import corrected_table
from evalhouse.flows.errors import SettingsError
from evalhouse.tasks.comparing.agreement import (
    LEAST_EFFECTIVE,
    LEAST_LABELS,
    LEAST_SAMPLES,
)
from evalhouse.tasks.reviews.corrected_means import CorrectedMean, explain_uncorrected, list_corrected
from evalhouse.warehouse.rows.reviews import list_reviewed_runs, read_reviewed
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.store import Warehouse


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]…")
@click.option(
    "--by",
    default="step",
    show_default=True,
    metavar="A,B",
    help=f"Group verdicts by these, besides their step: {', '.join(GROUPINGS)}. `label` is the judge's.",
)
@SEED_OPTION
@WAREHOUSE_OPTION
@JSON_OPTION
def agreement(*, runs: tuple[str, ...], by: str, seed: int, warehouse: Warehouse, as_json: bool) -> None:
    """Report how often the judge agrees with people, and people with each other, and correct means by it.

    Each RUN is a run id, a unique prefix of one, a label, `latest` or `previous`; without one, the runs whose verdicts
    were reviewed. A label counts for every run that has a verdict of the same content.
    """
    groupings = _parse_groupings(by)
    reviewed_runs = [find_run(warehouse, name) for name in (runs or list_reviewed_runs(warehouse))]
    reviewed_runs = list({run.run_id: run for run in reviewed_runs}.values())
    reviewed = read_reviewed(warehouse, [run.run_id for run in reviewed_runs])
    if reviewed.is_empty():
        raise SettingsError(_explain_nothing(reviewed_runs))
    document = describe_agreement(reviewed, groupings, seed=seed) | {
        "runs": [run.run_id for run in reviewed_runs],
        "corrected": {
            run.run_id: [asdict(mean) for mean in list_corrected(warehouse, run.run_id)] for run in reviewed_runs
        },
    }
    if as_json:
        print_json(document)
    else:
        _print(document, reviewed_runs)


def _parse_groupings(text: str) -> list[str]:
    groupings = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in groupings if name not in GROUPINGS]
    if unknown or not groupings:
        raise SettingsError(f"--by: got {text!r}; known: {', '.join(GROUPINGS)}, several with commas")
    return list(dict.fromkeys(groupings))


def _explain_nothing(runs: Sequence[RunRow]) -> str:
    if not runs:
        return "nobody has reviewed a verdict yet; `evalhouse review export latest` picks some for a person to label"
    names = ", ".join(run.run_id for run in runs)
    return (
        f"no verdict of {names} has been reviewed, here or by its content; `evalhouse review export {runs[0].run_id}`"
    )


def _print(document: Document, runs: Sequence[RunRow]) -> None:
    n_labels, n_reviewers = document["n_labels"], document["n_reviewers"]
    of_runs = f"run {runs[0].run_id}" if len(runs) == 1 else f"{len(runs)} runs"
    print_line(f"{write_count(n_labels, 'label')} by {write_count(n_reviewers, 'reviewer')}, {of_runs}")
    changed = document["n_changed_after_seeing_the_judge"]
    if changed:
        print_line(
            f"Changed after the judge's verdict was shown: {write_count(changed, 'label')}; the later ones count."
        )
    for by in dict.fromkeys(row["by"] for row in document["judge"]):
        rows = [row for row in document["judge"] if row["by"] == by]
        print_line()
        print_table(_make_judge_table(by, rows))
    for row in document["judge"]:
        if row["by"] == "step":
            print_line()
            print_table(_make_confusion(row))
    print_line()
    _print_people(document["people"])
    for run in runs:
        _print_corrected(run, document["corrected"][run.run_id])
    print_line()
    print_line(
        f"Intervals are 95 %, over samples. Too few is: under {LEAST_EFFECTIVE} verdicts by weight, under "
        f"{LEAST_SAMPLES} samples, or a label given under {LEAST_LABELS} times."
    )


def _make_judge_table(by: str, rows: Sequence[Document]) -> Table:
    grouping = [] if by == "step" else [by.replace("_", " ")]
    columns = ["step", *grouping, "#verdicts", "#by weight", "#samples"]
    columns += ["accuracy", "balanced", "κ", "α", "mind"]
    cells = [
        [
            row["step"],
            *(["no request" if row["value"] is None else row["value"]] if grouping else []),
            row["n_verdicts"], f"{row['n_effective']:.0f}", row["n_samples"],
            *(_write_measure(row[name]) for name in MEASURES), "; ".join(row["notes"]) or None,
        ]
        for row in rows
    ]  # fmt: skip
    return make_table(columns, cells, title="The judge against people" + (f", by {grouping[0]}" if grouping else ""))


def _make_confusion(row: Document) -> Table:
    labels = list(row["confusion"])
    cells = [[f"judge: {label}", *(row["confusion"][label][other] for other in labels)] for label in labels]
    return make_table([row["step"], *(f"#people: {label}" for label in labels)], cells)


def _print_people(people: Sequence[Document]) -> None:
    if not people:
        print_line("People with each other: no verdict has labels of two people, so nothing can be said.")
        return
    rows = [
        [
            step["step"], f"{step['n_reviewers']} reviewers", step["n_verdicts"],
            _write_measure(step["agreeing"]), None, _write_measure(step["alpha"]), "; ".join(step["notes"]) or None,
        ]
        for step in people
        if step["n_reviewers"] > 2
    ]  # fmt: skip
    rows += [
        [
            step["step"], " and ".join(pair["reviewers"]), pair["agreement"]["n_verdicts"],
            _write_measure(pair["agreement"]["accuracy"]), _write_measure(pair["agreement"]["kappa"]),
            _write_measure(pair["agreement"]["alpha"]), "; ".join(pair["agreement"]["notes"]) or None,
        ]
        for step in people
        for pair in step["pairs"]
    ]  # fmt: skip
    columns = ["step", "who", "#verdicts", "agreeing", "κ", "α", "mind"]
    print_table(make_table(columns, rows, title="People with each other"))


def _print_corrected(run: RunRow, rows: Sequence[Document]) -> None:
    if not rows:
        return
    print_line()
    print_table(corrected_table([CorrectedMean(**row) for row in rows], title=f"Means of run {run.run_id}, corrected"))
    for sentence in explain_uncorrected(run.metrics):
        print_line(sentence)


def _write_measure(measure: Document) -> str:
    if measure["value"] is None:
        return "–"
    if measure["ci_low"] is None:
        return write_number(measure["value"])
    return f"{measure['value']:.3f} ({write_interval(measure['ci_low'], measure['ci_high'])})"
