"""`evalhouse review`: people label what the judge has labelled."""

import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalhouse.flows.commands.options import (
    FORMATS,
    JSON_OPTION,
    RUN_ARGUMENT,
    WAREHOUSE_OPTION,
    LazyGroup,
    pick_format,
)
from evalhouse.flows.display.output import make_table, print_json, print_line, print_notice, print_table, write_count
from evalhouse.flows.errors import SettingsError
from evalhouse.warehouse.rows.reviews import Review
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.steps import REVIEWED_PROMPTS
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.reviews.export import Export, ExportRequest
    from evalhouse.tasks.reviews.take_in import Imported

# Imported when it is called: it brings the statistics libraries.
_AGREEMENT = ("review_agreement", "agreement", "Report how often the judge agrees with people, and people with people.")
_QUESTIONS = ("review_questions", "questions", "Ask people about the questions of a test set: keep, mend or drop.")
_ACCEPTANCE = ("review_questions", "acceptance", "Count the questions that people accepted, mended and dropped.")


@click.group(cls=LazyGroup, elsewhere={"agreement": _AGREEMENT, "questions": _QUESTIONS, "acceptance": _ACCEPTANCE})
def review() -> None:
    """Have people label verdicts, and measure how far to trust the judge.

    `export` writes verdicts to label, as a page for the browser or a table, `questions` the questions of a test set;
    `import` takes in what people said.
    """


@review.command("export")
@RUN_ARGUMENT
@click.option("-n", "n", type=click.IntRange(min=1), default=100, show_default=True, help="Verdicts to label.")
@click.option("--steps", metavar="A,B", help=f"Steps to take verdicts from. Default: {','.join(REVIEWED_PROMPTS)}.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Default: by the ending of FILE, else html.")
@click.option("-o", "--output", metavar="FILE", help="Where to write. Default: review-EXPORT.html.")
@click.option("--seed", type=int, metavar="N", help="Repeat a draw: the same verdicts for the same run and labels.")
@click.option(
    "--share-random",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    metavar="SHARE",
    help="Share that is drawn at random; the rest goes where a person is needed most. 1: all at random.",
)
@click.option("--reviewer", metavar="NAME", help="Who will label; the page asks otherwise.")
@click.option("--again", is_flag=True, help="Also ask about verdicts that somebody has labelled.")
@click.option("--with-verdicts", is_flag=True, help="Put the judge's verdicts into a csv or jsonl file.")
@JSON_OPTION
@WAREHOUSE_OPTION
def export_verdicts(
    *,
    run: str,
    n: int,
    steps: str | None,
    kind: str | None,
    output: str | None,
    seed: int | None,
    share_random: float,
    reviewer: str | None,
    again: bool,
    with_verdicts: bool,
    as_json: bool,
    warehouse: Warehouse,
) -> None:
    """Pick verdicts of RUN for a person to label.

    RUN is a run id, a unique prefix of one, a label, `latest` or `previous`. Half of the verdicts are drawn at
    random; the others come from those on which votes, or the lexical judge and the run's judge, disagree, and those
    whose score moved since the run before. How each was picked is put on record.
    """
    from evalhouse.tasks.reviews.export import ExportRequest, plan_export, record_export  # noqa: PLC0415  # imports the lexical judge

    kind = pick_format(kind, output)
    if with_verdicts and kind == "html":
        raise SettingsError(
            "--with-verdicts is for csv and jsonl; the page shows a verdict once the person has decided"
        )
    if output and Path(output).exists():
        raise SettingsError(f"{output} exists and may hold labels; name another file with -o")
    reviewed_run = find_run(warehouse, run)
    request = ExportRequest(
        n=n,
        steps=_parse_steps(steps),
        share_random=share_random,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        again=again,
    )
    export = plan_export(warehouse, reviewed_run, request)
    path = Path(output or f"review-{export.export_id}.{kind}")
    content = _write(export, kind, (reviewer or "").strip(), with_verdicts=with_verdicts)
    # An export on record whose file could not be written is asked of nobody and does no harm; the other way it would.
    record_export(warehouse, export)
    path.write_bytes(content)
    _report_export(export, request, path, as_json=as_json)


@review.command("import")
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--reviewer", metavar="NAME", help="Whose labels these are, where a line does not say.")
@click.option(
    "--set",
    "set_path",
    metavar="SET",
    type=click.Path(path_type=Path),
    help="Where the set is that decisions on questions are about. Default: where it was when they were asked.",
)
@JSON_OPTION
@WAREHOUSE_OPTION
def import_labels(
    files: tuple[Path, ...], *, reviewer: str | None, set_path: Path | None, as_json: bool, warehouse: Warehouse
) -> None:
    """Take labels in, from a page's download or a filled-in table.

    FILE is csv or jsonl. All lines are checked before any is written. Labels are never overwritten: where a
    reviewer labels a verdict twice, the later label counts. What is on record already adds nothing. Decisions on
    questions of a test set make a new version of the set.
    """
    from evalhouse.flows.testsets.review import holds_decisions, import_decisions  # noqa: PLC0415  # as the first
    from evalhouse.tasks.reviews.label_files import read_label_file  # noqa: PLC0415  # as the first
    from evalhouse.tasks.reviews.take_in import import_reviews  # noqa: PLC0415  # as the first

    read, name = [read_label_file(path) for path in files], (reviewer or "").strip() or None
    if holds_decisions(read):
        from evalhouse.flows.commands.review_questions import report_import  # noqa: PLC0415  # as the first

        report_import(import_decisions(warehouse, read, name, set_path), as_json=as_json)
        return
    if set_path is not None:
        raise SettingsError("--set is for decisions on questions; these are labels of verdicts")
    imported = import_reviews(warehouse, read, name)
    if as_json:
        print_json(_describe_import(imported))
        return
    if imported.new:
        rows = [list(group.values()) for group in _count(imported.new)]
        print_table(make_table(["step", "reviewer", "#new", "#agree with the judge", "#differ"], rows))
    print_line(
        f"{write_count(len(imported.new), 'new label')}, {imported.n_known} on record before, "
        f"{write_count(imported.n_unlabelled, 'line')} without one"
    )
    if imported.new:
        print_line("`evalhouse review agreement` says how far they agree with the judge")


def _parse_steps(steps: str | None) -> tuple[str, ...] | None:
    if steps is None:
        return None
    named = tuple(dict.fromkeys(name.strip() for name in steps.split(",") if name.strip()))
    unknown = [name for name in named if name not in REVIEWED_PROMPTS]
    if unknown or not named:
        raise SettingsError(f"--steps is {steps!r}; it must name some of {', '.join(REVIEWED_PROMPTS)}")
    return named


def _write(export: "Export", kind: str, reviewer: str, *, with_verdicts: bool) -> bytes:
    from evalhouse.tasks.reviews.export import list_rows, write_csv, write_lines  # noqa: PLC0415  # as the first

    if kind == "html":
        from evalhouse.flows.report.review_page import build_review_page  # noqa: PLC0415  # imports the chart library

        return build_review_page(export, reviewer).encode()
    rows = list_rows(export, reviewer=reviewer, with_verdicts=with_verdicts)
    return write_csv(rows, rows[0]) if kind == "csv" else write_lines(rows)


def _report_export(export: "Export", request: "ExportRequest", path: Path, *, as_json: bool) -> None:
    groups = [
        {"step": group.step, "stratum": group.stratum, "size": group.size, "picked": len(group.picks),
         "probability": group.probability}
        for group in export.drawn
    ]  # fmt: skip
    if as_json:
        print_json(_describe_export(export, path) | {"groups": groups})
        return
    columns = ["step", "group", "#verdicts", "#picked", "#probability"]
    print_table(make_table(columns, [list(group.values()) for group in groups]))
    print_line(
        f"wrote {path}: {write_count(len(export.picks), 'verdict')} of run {export.run.run_id}, seed {export.seed}"
    )
    if len(export.picks) < request.n:
        print_line(f"-n {request.n} is more than there is: all {export.n_items} are in it")
    n_left_out = len(export.reviewed)
    if n_left_out and not request.again:
        print_line(f"{n_left_out} were reviewed before and are left out; --again asks about them as well")
    if 0 < export.n_read_lexically < export.n_samples:
        print_line(f"the lexical judge has read {export.n_read_lexically} of {export.n_samples} samples, by chance")
    if export.run.status != "completed":
        print_notice(f"run {export.run.run_id} is {export.run.status}: what it has not judged cannot be reviewed")
    if path.suffix == ".html":
        print_line("open it in a browser, label, download, then `evalhouse review import FILE.jsonl`")
    else:
        print_line(f"fill in the column label, then `evalhouse review import {path}`")


def _describe_export(export: "Export", path: Path) -> dict[str, Any]:
    return {
        "export_id": export.export_id,
        "run_id": export.run.run_id,
        "status": export.run.status,
        "file": str(path),
        "seed": export.seed,
        "n_picked": len(export.picks),
        "n_items": export.n_items,
        "n_reviewed_before": len(export.reviewed),
    }


def _describe_import(imported: "Imported") -> dict[str, Any]:
    groups, n_new = _count(imported.new), len(imported.new)
    totals = {name: sum(group[name] for group in groups) for name in ("agree", "differ")}
    return {"new": n_new, "known": imported.n_known, "unlabelled": imported.n_unlabelled, **totals, "groups": groups}


def _count(reviews: Sequence[Review]) -> list[dict[str, Any]]:
    """New labels by step and reviewer."""
    new = Counter((review.step, review.reviewer) for review in reviews)
    agree = Counter((review.step, review.reviewer) for review in reviews if review.label == review.judge_label)
    return [
        {"step": step, "reviewer": reviewer, "new": n, "agree": agree[step, reviewer],
         "differ": n - agree[step, reviewer]}
        for (step, reviewer), n in sorted(new.items())
    ]  # fmt: skip
