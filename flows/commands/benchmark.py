"""`evalhouse benchmark`: how far a judge agrees with people, on data that people have labelled."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalhouse.flows.commands.options import (
    DRY_RUN_OPTION,
    FRESH_OPTION,
    JSON_OPTION,
    PLAN_OPTION,
    REASONING_OPTION,
    SEED_OPTION,
    TEMPERATURE_OPTION,
    WAREHOUSE_URL_OPTION,
    limit_options,
)
from evalhouse.flows.errors import INCOMPLETE, INTERRUPTED
from evalhouse.flows.results.output import print_json, print_line, print_notice

if TYPE_CHECKING:
    from evalhouse.tasks.trials.labelled_sets import Half


@click.command()
@click.option(
    "--judge",
    metavar="J",
    help="lexical, openai:MODEL, PROVIDER:MODEL (anthropic, google_genai, bedrock, azure, ollama, mistralai, …), "
    "local:MODEL (a classifier), or module:factory; `J,classify=K` asks K in one step.",
)
@click.option(
    "--data",
    "folders",
    multiple=True,
    required=True,
    metavar="FOLDER",
    help="A set of labelled rows, or a folder that holds sets. Repeatable.",
)
@click.option("--language", metavar="en|zh", help="Only rows in this language. Default: all, each asked in its own.")
@click.option("--prompts", metavar="DIR", help="A folder whose prompt files replace the built-in ones.")
@TEMPERATURE_OPTION
@REASONING_OPTION
@PLAN_OPTION
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N rows of each set and language.")
@click.option(
    "--half",
    type=click.Choice(["choose", "report", "all"]),
    default="all",
    show_default=True,
    help="One half of each set, split by hash of its groups: choose settings by one, report the other.",
)
@SEED_OPTION
@FRESH_OPTION
@DRY_RUN_OPTION
@limit_options
@WAREHOUSE_URL_OPTION
@JSON_OPTION
def benchmark(
    *,
    folders: tuple[str, ...],
    limit: int | None,
    half: "Half",
    seed: int,
    dry_run: bool,
    as_json: bool,
    language: str | None,
    **flags: object,
) -> int:
    """Ask a judge about rows that people have labelled, and report how far it agrees with them.

    A set is a folder with JSON Lines files. What is judged follows from its columns: support, correctness, relevance,
    decomposition, rubric or pairwise. The judge is asked about the rows as about samples of a run, and every reply is
    on record: the same command resumes where it was stopped and pays for nothing twice. Exit status 3 when rows are
    left without a verdict. `--plan fused` asks about every row by both plans and shows their difference with its
    interval.
    """
    # Help imports nothing of what asks.
    from evalhouse.flows.preparing.settings import resolve_settings  # noqa: PLC0415
    from evalhouse.flows.prompt_trials import benchmark as trials  # noqa: PLC0415
    from evalhouse.flows.results.progress import show_run  # noqa: PLC0415
    from evalhouse.tasks.judge.names import LEXICAL  # noqa: PLC0415
    from evalhouse.tasks.models.make import make_judges  # noqa: PLC0415
    from evalhouse.tasks.trials.labelled_sets import pick_rows, read_labelled  # noqa: PLC0415

    settings = resolve_settings(flags | {"language": language}).settings
    labelled = read_labelled([Path(folder) for folder in folders], language=language)
    parts = [pick_rows(part, half=half, limit=limit, seed=seed) for part in labelled.parts]
    if dry_run:
        costs = trials.estimate_benchmark(settings, parts)
        if as_json:
            print_json(trials.describe_plainly(settings.judge, parts, costs))
        else:
            trials.print_estimate(parts, costs)
            print_line()
            print_line(f"{trials.describe_estimate(settings.judge, parts, costs)}. Nothing was asked.")
        return 0
    parts = [part for part in parts if part.rows]
    models = [judge.model for judge in make_judges(settings, trials.plan_parts(parts, settings.plan)).all]
    if settings.judge != LEXICAL:
        print_notice(trials.describe_estimate(settings.judge, parts, trials.estimate_benchmark(settings, parts)))
    with show_run() as watch:
        outcome = trials.run_benchmark(settings, parts, watch)
    report = trials.make_report(settings, outcome, labelled, model=", ".join(models), half=half, seed=seed)
    if as_json:
        print_json(report.to_plain())
    else:
        report.print()
    if report.outcome.problem is not None:
        print_notice(f"{report.outcome.problem}; the same command resumes from here")
        return INTERRUPTED
    return INCOMPLETE if report.n_failed else 0
