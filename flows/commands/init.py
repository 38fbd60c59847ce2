"""`evalhouse init`: a first suite, shown to work by one question that is asked and judged."""

import json
import os
import sys
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Final, cast

import click

from evalhouse.flows.errors import INCOMPLETE, SettingsError
from evalhouse.flows.preparing.settings import resolve_settings
from evalhouse.flows.preparing.suites import load_suite
from evalhouse.flows.results.output import print_line, print_notice, print_section, write_value
from evalhouse.flows.results.progress import show_run
from evalhouse.flows.results.run_origin import print_responses, read_response_counts
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

SAMPLE: Final = "sample"
_LABEL: Final = "init"
_SHOWN: Final = 300
_EXAMPLE_URL: Final = "http://localhost:8000/ask"


@click.command()
@click.argument("suite", metavar="[SUITE.toml]", default="suite.toml", type=click.Path(path_type=Path))
@click.option("--url", metavar="URL", help="Where your bot is asked. Default: nowhere, the dataset brings answers.")
@click.option("--answer", metavar="JSONPATH", default="$.answer", show_default=True, help="Where its answer stands.")
@click.option("--contexts", metavar="JSONPATH", default="$.contexts", show_default=True, help="Where its contexts do.")
@click.option("--dataset", metavar="FILE", help=f"The questions. Default: `{SAMPLE}`, which ships with evalhouse.")
@click.option(
    "--judge",
    metavar="J",
    help="lexical, openai:MODEL, another PROVIDER:MODEL or module:factory. Default: lexical, which is free.",
)
def init(*, suite: Path, url: str | None, answer: str, contexts: str, dataset: str | None, judge: str | None) -> int:
    """Write SUITE.toml with comments, ask the bot its first question, judge the answer, and show what came of it.

    At a terminal it asks for what no option says; elsewhere it asks nothing. A file that is there is left as it is.
    """
    if suite.exists():
        raise SettingsError(f"{suite} is there already; name another file, or run it with `evalhouse run {suite}`")
    values = {
        "dataset": dataset or _ask("Dataset", SAMPLE),
        "url": _ask("Address of your bot (empty: the dataset brings answers)", "") if url is None else url,
        "judge": judge or _ask("Judge", "lexical"),
    }
    write_suite(suite, {**values, "answer": answer, "contexts": contexts})
    try:
        settings = resolve_settings({}, suite=load_suite(suite)).settings
        # The first question alone, in a run without the suite's name, which does not count as one of its nights.
        from evalhouse.flows.evaluate import start_run  # noqa: PLC0415  # imports what runs
        from evalhouse.flows.preparing.request import RunRequest  # noqa: PLC0415

        alone = {"suite": None, "suite_hash": None, "limit": 1, "label": _LABEL}
        with show_run() as watch:
            outcome = start_run(RunRequest(settings=settings.model_copy(update=alone)), watch=watch)
    except Exception:  # whatever went wrong, the suite is to be written again, with other options
        suite.unlink()
        raise
    print_line(f"wrote {suite}")
    warehouse = Warehouse(settings.warehouse)
    run = outcome.run
    texts = warehouse.read_rows(read_query("show/texts"), {"run_id": run.run_id})
    for sample in texts:
        print_line()
        retrieved = cast("list[str] | None", sample["contexts"])
        shown = {
            "question": sample["question"],
            "answer": sample["answer"],
            "contexts": None if retrieved is None else f"{len(retrieved)} ({shorten(' | '.join(retrieved), _SHOWN)})",
            "ground truth": sample["ground_truth"],
        }
        for name, value in shown.items():
            print_line(f"{name}: {shorten(write_value(value), _SHOWN)}")
    print_responses(read_response_counts(warehouse, run))
    rows = warehouse.read_rows(read_query("runs/means"), {"run_id": run.run_id, "metrics": list(run.metrics)})
    if outcome.status != "completed":
        print_notice(f"{outcome.problem or 'The question was not answered, or the answer not judged whole'}.")
        print_line(f"next: fix {suite}, then evalhouse run {quote(str(suite))} --limit 1")
        return INCOMPLETE
    scored = [[row["metric"], row["mean"], row["better"]] for row in rows if row["mean"] is not None]
    print_section("Scores of this answer", ["metric", "#score", "better"], scored)
    print_line()
    print_line(f"next: evalhouse run {quote(str(suite))}   (all questions)")
    print_line(f"or:   evalhouse lineage {run.run_id} {quote(str(texts[0]['sample_id']))}   (why these scores)")
    print_line(f"or:   evalhouse serve {quote(str(suite))} --with-server   (every night, with [schedule] in the file)")
    return 0


def _ask(what: str, default: str) -> str:
    """What the person at the terminal says; the default where there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return default
    said: str = click.prompt(what, default=default, show_default=bool(default))
    return said.strip()


def write_suite(path: Path, values: dict[str, str]) -> None:
    """Write the commented file, with the dataset as seen from its folder."""
    dataset = values["dataset"]
    if dataset != SAMPLE and Path(dataset.partition("#")[0]).exists():
        values["dataset"] = os.path.relpath(dataset, path.parent)
    text = (files("evalhouse.flows.preparing") / "new_suite.toml").read_text(encoding="utf-8")
    for name, value in {**values, "url": values["url"] or _EXAMPLE_URL}.items():
        text = text.replace(f"@{name}@", json.dumps(value, ensure_ascii=False))
    text = text.replace("@off@", "" if values["url"] else "# ").replace("@file@", quote(str(path)))
    path.write_text(text, encoding="utf-8")
