"""`evalhouse review`: people label the judge's verdicts, and decide on the questions of test sets."""

import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalhouse.flows.commands.options import (
    FORMATS,
    JSON_OPTION,
    RUN_ARGUMENT,
    SEED_OPTION,
    WAREHOUSE_OPTION,
    LazyGroup,
    pick_format,
    refuse_database,
)
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.results.comparison import corrected_table
from evalhouse.flows.results.output import (
    make_table,
    print_json,
    print_line,
    print_notice,
    print_table,
    write_count,
    write_interval,
    write_number,
)
from evalhouse.tasks.comparing.agreement import (
    GROUPINGS,
    MEASURES,
    MIN_EFFECTIVE,
    MIN_LABELS,
    MIN_SAMPLES,
    describe_agreement,
)
from evalhouse.tasks.reviews.export import CorrectedMean, explain_uncorrected, list_corrected
from evalhouse.warehouse.rows.reviews import fetch_reviewed
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.steps import REVIEWED_PROMPTS
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalhouse.tasks.testsets.decisions import AppliedDecisions
_SET = click.argument("path", metavar="SET", type=click.Path(path_type=Path))


@click.group(cls=LazyGroup)
def review() -> None:
    """Have people label verdicts, and measure how far to trust the judge.

    `export` writes verdicts to label, as a page for the browser or a table, `questions` the questions of a test set;
    `import` stores the labels and decisions.
    """


@review.command(short_help="Ask people about the questions of a test set: keep, fix or drop.")
@_SET
@click.argument("docs", metavar="[DOCS]", required=False)
@click.option("-n", "n", type=click.IntRange(min=1), default=100, show_default=True, help="Questions to decide on.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Default: by the ending of FILE, else html.")
@click.option(
    "-o", "--output", metavar="FILE", callback=refuse_database, help="Where to write. Default: questions-HASH.html."
)
@click.option("--reviewer", metavar="NAME", help="Who will decide; the page asks otherwise.")
@click.option("--again", is_flag=True, help="Also ask about questions that were decided on.")
@JSON_OPTION
def questions(
    *,
    path: Path,
    docs: str | None,
    n: int,
    kind: str | None,
    output: str | None,
    reviewer: str | None,
    again: bool,
    as_json: bool,
) -> None:
    """Ask people about the questions of SET: keep, fix or drop.

    SET is a file that `testset make` wrote. Proposals of `testset refresh` come first, then questions without a
    decision. The passages that a question rests on are shown from DOCS; without it they are read where the set was
    made from. `review import` stores the decisions.
    """
    # These read documents, which the other commands do not need.
    from evalhouse.tasks.reviews.export import write_csv, write_lines  # noqa: PLC0415
    from evalhouse.tasks.testsets import TestsetError  # noqa: PLC0415
    from evalhouse.tasks.testsets.decisions import list_question_rows, pick_questions  # noqa: PLC0415
    from evalhouse.tasks.testsets.documents import load_documents  # noqa: PLC0415
    from evalhouse.tasks.testsets.questions import load_set  # noqa: PLC0415

    kind = pick_format(kind, output)
    if output and Path(output).exists():
        raise SettingsError(f"{output} exists and may hold decisions; name another file with -o")
    test_set = load_set(path)
    source = test_set.manifest.source
    try:
        documents = load_documents(docs or source)
    except (TestsetError, OSError):
        if docs is not None:
            raise
        print_notice(f"the documents cannot be read at {source}: spans are shown without the text around them")
        documents = []
    asked = pick_questions(path, test_set, documents, n=n, again=again)
    written = Path(output or f"questions-{test_set.set_hash[:8]}.{kind}")
    if written.exists():
        raise SettingsError(f"{written} exists and may hold decisions; name another file with -o")
    reviewer = (reviewer or "").strip()
    if kind == "html":
        from evalhouse.flows.report.page import build_review_page, collect_questions  # noqa: PLC0415  # SciPy

        page = build_review_page(
            collect_questions(asked), about="questions", title=f"Questions of {asked.path.name}",
            origin=f"version {asked.test_set.set_hash}", reviewer=reviewer,
        )  # fmt: skip
        content = page.encode()
    else:
        rows = list_question_rows(asked, reviewer=reviewer)
        content = write_csv(rows, rows[0]) if kind == "csv" else write_lines(rows)
    written.write_bytes(content)
    n_proposals = sum(subject.proposal is not None for subject in asked.subjects)
    if as_json:
        print_json(
            {
                "file": str(written),
                "set": str(asked.path),
                "set_hash": asked.test_set.set_hash,
                "n_questions": len(asked.subjects),
                "n_proposals": n_proposals,
                "n_open": asked.n_open,
                "n_decided": asked.n_decided,
            }
        )
        return
    proposals = f", {write_count(n_proposals, 'proposal')} among them" if n_proposals else ""
    print_line(f"wrote {written}: {write_count(len(asked.subjects), 'question')} of {asked.path}{proposals}")
    if asked.n_open > len(asked.subjects):
        print_line(f"{asked.n_open - len(asked.subjects):,} more wait; -n takes more at once")
    if asked.n_decided:
        print_line(f"{asked.n_decided:,} were decided on before; --again asks about them as well")
    if written.suffix == ".html":
        print_line("open it in a browser, decide, download, then `evalhouse review import FILE.jsonl`")
    else:
        print_line(f"write keep, fix or drop into the column label, then `evalhouse review import {written}`")


def report_import(sets: "Sequence[AppliedDecisions]", n_undecided: int, *, as_json: bool) -> None:
    """Print the sets after an import of decisions; `n_undecided` lines had none."""
    counts = [Counter(change.change for change in taken.changes) for taken in sets]
    if as_json:
        plain = [
            {
                "set": str(taken.path),
                "set_hash": taken.test_set.set_hash,
                "run_id": taken.run_id,
                **{word: counted[word] for word in ("accepted", "fixed", "dropped")},
                "known": taken.n_known,
                "superseded": taken.n_superseded,
                "outdated": [decision.question_id for decision in taken.outdated],
                "n_questions": len(taken.test_set.questions),
                "n_proposals": len(taken.test_set.manifest.proposals),
            }
            for taken, counted in zip(sets, counts, strict=True)
        ]
        print_json({"undecided": n_undecided, "sets": plain})
        return
    for taken, counted in zip(sets, counts, strict=True):
        new = ", ".join(f"{counted[word]} {word}" for word in ("accepted", "fixed", "dropped"))
        print_line(
            f"{taken.path}: {new}; {taken.n_known} stored before, {write_count(n_undecided, 'line')} without a decision"
        )
        if taken.n_superseded:
            print_line(f"{taken.n_superseded} do not count: a later decision differs")
        if taken.outdated:
            ids = ", ".join(decision.question_id for decision in taken.outdated[:5])
            print_notice(
                f"{write_count(len(taken.outdated), 'decision')} left out, since the question has changed after it "
                f"was shown ({ids}{', …' if len(taken.outdated) > 5 else ''}); "
                f"`evalhouse review questions {taken.path}` asks about the open ones"
            )
        if taken.run_id is not None:
            print_line(
                f"version {taken.test_set.set_hash}: {write_count(len(taken.test_set.questions), 'question')}, "
                f"accepted ones first; {write_count(len(taken.test_set.manifest.proposals), 'proposal')} left"
            )


@review.command(short_help="Count the questions that people accepted, fixed and dropped.")
@click.argument("path", metavar="[SET]", required=False, type=click.Path(path_type=Path))
@JSON_OPTION
@WAREHOUSE_OPTION
def acceptance(*, path: Path | None, as_json: bool, warehouse: Warehouse) -> None:
    """Count what people accepted, fixed and dropped, by kind, language and judge.

    Of all sets on record, or of SET and the versions it came from. Each reviewer's latest decision on a question
    counts.
    """
    hashes: list[str] = []
    if path is not None:
        from evalhouse.tasks.testsets.questions import load_set  # noqa: PLC0415

        hashes = [version.hash for version in load_set(path).manifest.versions]
    rows = warehouse.fetch_rows("testsets/acceptance", set_hashes=list(hashes))
    if as_json:
        print_json([{**row, "acceptance": row["n_accepted"] / row["n"]} for row in rows])
        return
    if not rows:
        print_line("no question has a decision yet; `evalhouse review questions SET` asks people")
        return
    print_table(
        make_table(
            ["kind", "language", "judge", "#decided", "#accepted", "#fixed", "#dropped", "#acceptance"],
            [
                [row["kind"], row["language"], row["judge"] or "–", row["n"], row["n_accepted"], row["n_fixed"],
                 row["n_dropped"], row["n_accepted"] / row["n"]]
                for row in rows
            ],
        )
    )  # fmt: skip
    n, n_accepted = (sum(row[name] for row in rows) for name in ("n", "n_accepted"))
    print_line(f"{n_accepted:,} of {write_count(n, 'decision')} accept the question as it was written")


@review.command("export")
@RUN_ARGUMENT
@click.option("-n", "n", type=click.IntRange(min=1), default=100, show_default=True, help="Verdicts to label.")
@click.option("--steps", metavar="A,B", help=f"Steps to take verdicts from. Default: {','.join(REVIEWED_PROMPTS)}.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Default: by the ending of FILE, else html.")
@click.option(
    "-o", "--output", metavar="FILE", callback=refuse_database, help="Where to write. Default: review-EXPORT.html."
)
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
@click.option("--again", is_flag=True, help="Also ask about verdicts that have a label.")
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
    whose score moved since the run before. The reason for each pick is stored.
    """
    # Imports the lexical judge.
    from evalhouse.tasks.reviews.export import (  # noqa: PLC0415
        ExportRequest,
        list_rows,
        plan_export,
        record_export,
        write_csv,
        write_lines,
    )

    kind = pick_format(kind, output)
    if with_verdicts and kind == "html":
        raise SettingsError(
            "--with-verdicts is for csv and jsonl; the page shows a verdict once the person has decided"
        )
    if output and Path(output).exists():
        raise SettingsError(f"{output} exists and may hold labels; name another file with -o")
    reviewed_run = find_run(warehouse, run)
    chosen_steps = None
    if steps is not None:
        named = tuple(dict.fromkeys(name.strip() for name in steps.split(",") if name.strip()))
        if not named or not set(named) <= set(REVIEWED_PROMPTS):
            raise SettingsError(f"--steps is {steps!r}; it must name some of {', '.join(REVIEWED_PROMPTS)}")
        chosen_steps = named
    request = ExportRequest(
        n=n,
        steps=chosen_steps,
        share_random=share_random,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        again=again,
    )
    export = plan_export(warehouse, reviewed_run, request)
    path = Path(output or f"review-{export.export_id}.{kind}")
    reviewer = (reviewer or "").strip()
    if kind == "html":
        from evalhouse.flows.report.page import build_review_page, collect_verdicts  # noqa: PLC0415  # SciPy

        page = build_review_page(
            collect_verdicts(export.export_id, export.run.run_id, export.picks, export.texts), about="verdicts",
            title=f"Review of {export.run.label or export.run.dataset or 'a run'}", origin=f"run {export.run.run_id}",
            reviewer=reviewer,
        )  # fmt: skip
        content = page.encode()
    else:
        rows = list_rows(export, reviewer=reviewer, with_verdicts=with_verdicts)
        content = write_csv(rows, rows[0]) if kind == "csv" else write_lines(rows)
    # A stored export whose file could not be written does no harm; a file without a stored export would.
    record_export(warehouse, export)
    path.write_bytes(content)
    groups = [
        {"step": group.step, "stratum": group.stratum, "size": group.size, "picked": len(group.picks),
         "probability": group.probability}
        for group in export.drawn
    ]  # fmt: skip
    if as_json:
        print_json(
            {
                "export_id": export.export_id,
                "run_id": export.run.run_id,
                "status": export.run.status,
                "file": str(path),
                "seed": export.seed,
                "n_picked": len(export.picks),
                "n_items": export.n_items,
                "n_reviewed_before": len(export.reviewed),
            }
            | {"groups": groups}
        )
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
    """Store labels from a page's download or a filled-in table.

    FILE is csv or jsonl. All lines are checked before any is written. Labels are never overwritten: where a
    reviewer labels a verdict twice, the later label counts. Labels that are stored already are skipped. Decisions on
    questions of a test set make a new version of the set.
    """
    from evalhouse.flows.testsets.versions import holds_decisions, import_decisions  # noqa: PLC0415  # as the first
    from evalhouse.tasks.reviews.labels import import_reviews, read_label_file  # noqa: PLC0415  # as the first

    read, name = [read_label_file(path) for path in files], (reviewer or "").strip() or None
    if holds_decisions(read):
        n_undecided = sum(not line.get("label") for file in read for line in file.lines)
        report_import(import_decisions(warehouse, read, name, set_path), n_undecided, as_json=as_json)
        return
    if set_path is not None:
        raise SettingsError("--set is for decisions on questions; these are labels of verdicts")
    imported = import_reviews(warehouse, read, name)
    # New labels by step and reviewer.
    new = Counter((item.step, item.reviewer) for item in imported.new)
    agree = Counter((item.step, item.reviewer) for item in imported.new if item.label == item.judge_label)
    groups: list[dict[str, Any]] = [
        {"step": step, "reviewer": by, "new": n, "agree": agree[step, by], "differ": n - agree[step, by]}
        for (step, by), n in sorted(new.items())
    ]
    if as_json:
        n_new = len(imported.new)
        totals = {name: sum(group[name] for group in groups) for name in ("agree", "differ")}
        print_json(
            {"new": n_new, "known": imported.n_known, "unlabelled": imported.n_unlabelled, **totals, "groups": groups}
        )
        return
    if imported.new:
        rows = [list(group.values()) for group in groups]
        print_table(make_table(["step", "reviewer", "#new", "#agree with the judge", "#differ"], rows))
    print_line(
        f"{write_count(len(imported.new), 'new label')}, {imported.n_known} stored before, "
        f"{write_count(imported.n_unlabelled, 'line')} without one"
    )
    if imported.new:
        print_line("`evalhouse review agreement` says how far they agree with the judge")


@review.command(short_help="Report how often the judge agrees with people, and people with people.")
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
    groupings = list(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    if not groupings or not set(groupings) <= set(GROUPINGS):
        raise SettingsError(f"--by: got {by!r}; known: {', '.join(GROUPINGS)}, several with commas")
    reviewed_runs = [find_run(warehouse, name) for name in (runs or list(warehouse.fetch("reviews/runs")["run_id"]))]
    reviewed_runs = list({run.run_id: run for run in reviewed_runs}.values())
    reviewed = fetch_reviewed(warehouse, [run.run_id for run in reviewed_runs])
    if reviewed.is_empty():
        if not reviewed_runs:
            raise SettingsError(
                "no verdict has been reviewed yet; `evalhouse review export latest` picks some for a person to label"
            )
        names = ", ".join(run.run_id for run in reviewed_runs)
        raise SettingsError(
            f"no verdict of {names} has been reviewed, here or by its content; `evalhouse review export "
            f"{reviewed_runs[0].run_id}` picks some"
        )
    document = describe_agreement(reviewed, groupings, seed=seed) | {
        "runs": [run.run_id for run in reviewed_runs],
        "corrected": {
            run.run_id: [asdict(mean) for mean in list_corrected(warehouse, run.run_id)] for run in reviewed_runs
        },
    }
    if as_json:
        print_json(document)
    else:
        n_labels, n_reviewers = document["n_labels"], document["n_reviewers"]
        of_runs = f"run {reviewed_runs[0].run_id}" if len(reviewed_runs) == 1 else f"{len(reviewed_runs)} runs"
        print_line(f"{write_count(n_labels, 'label')} by {write_count(n_reviewers, 'reviewer')}, {of_runs}")
        changed = document["n_changed_after_seeing_the_judge"]
        if changed:
            print_line(
                f"Changed after the judge's verdict was shown: {write_count(changed, 'label')}; the later ones count."
            )
        for group_by in dict.fromkeys(row["by"] for row in document["judge"]):
            rows = [row for row in document["judge"] if row["by"] == group_by]
            print_line()
            grouping = [] if group_by == "step" else [group_by.replace("_", " ")]
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
            print_table(
                make_table(
                    columns, cells, title="The judge against people" + (f", by {grouping[0]}" if grouping else "")
                )
            )
        for row in document["judge"]:
            if row["by"] == "step":
                print_line()
                labels = list(row["confusion"])
                cells = [[f"judge: {label}", *(row["confusion"][label][other] for other in labels)] for label in labels]
                print_table(make_table([row["step"], *(f"#people: {label}" for label in labels)], cells))
        print_line()
        people = document["people"]
        if people:
            people_rows = [
                [
                    step["step"], f"{step['n_reviewers']} reviewers", step["n_verdicts"],
                    _write_measure(step["agreeing"]), None, _write_measure(step["alpha"]),
                    "; ".join(step["notes"]) or None,
                ]
                for step in people
                if step["n_reviewers"] > 2
            ]  # fmt: skip
            people_rows += [
                [
                    step["step"], " and ".join(pair["reviewers"]), pair["agreement"]["n_verdicts"],
                    _write_measure(pair["agreement"]["accuracy"]), _write_measure(pair["agreement"]["kappa"]),
                    _write_measure(pair["agreement"]["alpha"]), "; ".join(pair["agreement"]["notes"]) or None,
                ]
                for step in people
                for pair in step["pairs"]
            ]  # fmt: skip
            columns = ["step", "who", "#verdicts", "agreeing", "κ", "α", "mind"]
            print_table(make_table(columns, people_rows, title="People with each other"))
        else:
            print_line("People with each other: no verdict has labels of two people, so their agreement is unknown.")
        for run in reviewed_runs:
            means = [CorrectedMean(**row) for row in document["corrected"][run.run_id]]
            if means:
                print_line()
                print_table(corrected_table(means, title=f"Means of run {run.run_id}, corrected"))
                for sentence in explain_uncorrected(run.metrics):
                    print_line(sentence)
        print_line()
        print_line(
            f"Intervals are 95 %, over samples. Too few is: under {MIN_EFFECTIVE} verdicts by weight, under "
            f"{MIN_SAMPLES} samples, or a label given under {MIN_LABELS} times."
        )


def _write_measure(measure: Mapping[str, Any]) -> str:
    if measure["value"] is None:
        return "–"
    if measure["ci_low"] is None:
        return write_number(measure["value"])
    return f"{measure['value']:.3f} ({write_interval(measure['ci_low'], measure['ci_high'])})"
