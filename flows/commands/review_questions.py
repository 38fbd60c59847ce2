"""`evalhouse review questions` and `review acceptance`: people decide on the questions of a test set."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalhouse.flows.commands.options import FORMATS, JSON_OPTION, WAREHOUSE_OPTION, pick_format
from evalhouse.flows.display.output import (
    make_table,
    print_json,
    print_line,
    print_notice,
    print_table,
    write_count,
)
from evalhouse.flows.errors import SettingsError
from evalhouse.warehouse.rows.testsets import read_acceptance
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.flows.testsets.review import DecidedSet, ImportedDecisions
    from evalhouse.tasks.testsets.decisions import AskedQuestions
    from evalhouse.tasks.testsets.passages import Document

_SET = click.argument("path", metavar="SET", type=click.Path(path_type=Path))


@click.command()
@_SET
@click.argument("docs", metavar="[DOCS]", required=False)
@click.option("-n", "n", type=click.IntRange(min=1), default=100, show_default=True, help="Questions to decide on.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Default: by the ending of FILE, else html.")
@click.option("-o", "--output", metavar="FILE", help="Where to write. Default: questions-HASH.html.")
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
    """Ask people about the questions of SET: keep, mend or drop.

    SET is a file that `testset make` wrote. Proposals of `testset refresh` come first, then questions that nobody has
    decided on. The passages that a question rests on are shown from DOCS; without it they are read where the set was
    made from. `review import` takes the decisions in.
    """
    from evalhouse.tasks.testsets.decisions import pick_questions  # noqa: PLC0415  # imports what reads documents
    from evalhouse.tasks.testsets.sets import read_set  # noqa: PLC0415

    kind = pick_format(kind, output)
    if output and Path(output).exists():
        raise SettingsError(f"{output} exists and may hold decisions; name another file with -o")
    test_set = read_set(path)
    documents = _read_documents(docs, test_set.manifest.source)
    asked = pick_questions(path, test_set, documents, n=n, again=again)
    written = Path(output or f"questions-{test_set.set_hash[:8]}.{kind}")
    if written.exists():
        raise SettingsError(f"{written} exists and may hold decisions; name another file with -o")
    written.write_bytes(_write(asked, kind, (reviewer or "").strip()))
    _report(asked, written, as_json=as_json)


def _read_documents(docs: str | None, source: str) -> "list[Document]":
    from evalhouse.tasks.testsets.documents import read_documents  # noqa: PLC0415
    from evalhouse.tasks.testsets.errors import TestsetError  # noqa: PLC0415

    if docs is not None:
        return read_documents(docs)
    try:
        return read_documents(source)
    except (TestsetError, OSError):
        print_notice(f"the documents are not at {source} any more: spans are shown without what stands around them")
        return []


def _write(asked: "AskedQuestions", kind: str, reviewer: str) -> bytes:
    from evalhouse.tasks.reviews.export import write_csv, write_lines  # noqa: PLC0415
    from evalhouse.tasks.testsets.decisions import list_question_rows  # noqa: PLC0415

    if kind == "html":
        from evalhouse.flows.report.question_page import build_question_page  # noqa: PLC0415  # the chart library

        return build_question_page(asked, reviewer).encode()
    rows = list_question_rows(asked, reviewer=reviewer)
    return write_csv(rows, rows[0]) if kind == "csv" else write_lines(rows)


def _report(asked: "AskedQuestions", path: Path, *, as_json: bool) -> None:
    n_proposals = sum(subject.proposal is not None for subject in asked.subjects)
    if as_json:
        print_json(
            {
                "file": str(path),
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
    print_line(f"wrote {path}: {write_count(len(asked.subjects), 'question')} of {asked.path}{proposals}")
    if asked.n_open > len(asked.subjects):
        print_line(f"{asked.n_open - len(asked.subjects):,} more wait; -n takes more at once")
    if asked.n_decided:
        print_line(f"{asked.n_decided:,} were decided on before; --again asks about them as well")
    if path.suffix == ".html":
        print_line("open it in a browser, decide, download, then `evalhouse review import FILE.jsonl`")
    else:
        print_line(f"write keep, mend or drop into the column label, then `evalhouse review import {path}`")


def report_import(imported: "ImportedDecisions", *, as_json: bool) -> None:
    """What an import of decisions did."""
    if as_json:
        sets = [_describe_set(decided) for decided in imported.sets]
        print_json({"undecided": imported.n_undecided, "sets": sets})
        return
    for decided in imported.sets:
        counts, taken = decided.counts, decided.taken
        new = ", ".join(f"{counts[word]} {word}" for word in ("accepted", "mended", "dropped"))
        print_line(
            f"{decided.path}: {new}; {taken.n_known} on record before, "
            f"{write_count(imported.n_undecided, 'line')} without a decision"
        )
        if taken.n_superseded:
            print_line(f"{taken.n_superseded} count for nothing: somebody decided otherwise later")
        if taken.outdated:
            ids = ", ".join(said.question_id for said in taken.outdated[:5])
            print_notice(
                f"{write_count(len(taken.outdated), 'decision')} left out, as the question is not any more what was "
                f"shown ({ids}{', …' if len(taken.outdated) > 5 else ''}); `evalhouse review questions {decided.path}` "
                "asks about what waits"
            )
        if decided.run_id is not None:
            print_line(
                f"version {decided.set_hash}: {write_count(len(taken.test_set.questions), 'question')}, accepted ones "
                f"first; {write_count(len(taken.test_set.manifest.proposals), 'proposal')} left"
            )


def _describe_set(decided: "DecidedSet") -> dict[str, Any]:
    counts, taken = decided.counts, decided.taken
    return {
        "set": str(decided.path),
        "set_hash": decided.set_hash,
        "run_id": decided.run_id,
        **{word: counts[word] for word in ("accepted", "mended", "dropped")},
        "known": taken.n_known,
        "superseded": taken.n_superseded,
        "outdated": [said.question_id for said in taken.outdated],
        "n_questions": len(taken.test_set.questions),
        "n_proposals": len(taken.test_set.manifest.proposals),
    }


@click.command()
@click.argument("path", metavar="[SET]", required=False, type=click.Path(path_type=Path))
@JSON_OPTION
@WAREHOUSE_OPTION
def acceptance(*, path: Path | None, as_json: bool, warehouse: Warehouse) -> None:
    """Count what people accepted, mended and dropped, by kind, language and judge.

    Of all sets on record, or of SET and the versions it came from. Each reviewer's latest decision on a question
    counts.
    """
    hashes: list[str] = []
    if path is not None:
        from evalhouse.tasks.testsets.sets import read_set  # noqa: PLC0415

        hashes = [version.hash for version in read_set(path).manifest.versions]
    rows = read_acceptance(warehouse, hashes)
    if as_json:
        print_json([{**row, "acceptance": row["n_accepted"] / row["n"]} for row in rows])
        return
    if not rows:
        print_line("nobody has decided on a question yet; `evalhouse review questions SET` asks people")
        return
    print_table(
        make_table(
            ["kind", "language", "judge", "#decided", "#accepted", "#mended", "#dropped", "#acceptance"],
            [
                [row["kind"], row["language"], row["judge"] or "–", row["n"], row["n_accepted"], row["n_mended"],
                 row["n_dropped"], row["n_accepted"] / row["n"]]
                for row in rows
            ],
        )
    )  # fmt: skip
    n, n_accepted = (sum(row[name] for row in rows) for name in ("n", "n_accepted"))
    print_line(f"{n_accepted:,} of {write_count(n, 'decision')} accept the question as it was written")
