"""`evalhouse prompts` and `evalhouse benchmark`: the prompts of the judge, and how far it agrees with people."""

from dataclasses import asdict
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
    LazyGroup,
    count_option,
    find_warehouse,
    join_options,
    limit_options,
    temperature_option,
)
from evalhouse.flows.errors import INCOMPLETE, INTERRUPTED, SettingsError
from evalhouse.flows.results.output import (
    make_table,
    print_json,
    print_line,
    print_notice,
    print_table,
    print_text,
)
from evalhouse.flows.run.outcome import show_run
from evalhouse.prompts import Prompt, Rubric, check_prompts, list_languages, load_prompts
from evalhouse.tasks.settings.run import AUTO
from evalhouse.warehouse.messages import suggest

if TYPE_CHECKING:
    from evalhouse.tasks.trials.labelled import Half


_VARIABLE = "EVALHOUSE_PROMPTS"
_LANGUAGE = click.option(
    "--language",
    default="en",
    show_default=True,
    envvar="EVALHOUSE_LANGUAGE",
    # Without texts nothing settles it: the English prompts are for texts of any language.
    callback=lambda _context, _parameter, value: "en" if value == AUTO else value,
    metavar="|".join(list_languages()),
    help="Language of the prompts.",
)
_FOLDER = click.option(
    "--prompts",
    "folder",
    envvar=_VARIABLE,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A folder with prompt files that replace the built-in ones, and with your own rubrics.",
)
_asked_again_options = join_options(
    click.option("--language", metavar="en|zh", help="Language of the prompts. Default: the run's."),
    temperature_option("the run's"),
    click.option("--reasoning-effort", metavar="E", help="How long a reasoning model thinks. Default: the run's."),
    FRESH_OPTION,
    SEED_OPTION,
    DRY_RUN_OPTION,
    limit_options,
    WAREHOUSE_URL_OPTION,
    JSON_OPTION,
)
"""The options of commands that ask again about reviewed verdicts."""


@click.group(cls=LazyGroup)
def prompts() -> None:
    """List, show and check the judge's prompts, compare two sets by people's labels, and learn examples from these."""


@prompts.command("list")
@_LANGUAGE
@_FOLDER
@JSON_OPTION
def list_prompts(language: str, folder: Path | None, as_json: bool) -> None:
    """List the prompts with versions and hashes, and the rubrics with scales and metrics."""
    loaded = load_prompts(language, folder).values()
    if as_json:
        print_json([_describe(prompt) for prompt in loaded])
        return
    rows = [
        [prompt.name, prompt.version, prompt.language, prompt.prompt_hash[:12], *_mark(prompt.rubric),
         prompt.description]
        for prompt in loaded
    ]  # fmt: skip
    columns = ["prompt", "#version", "language", "hash", "scale", "metrics", "what it asks"]
    print_table(make_table(columns, rows))


@prompts.command()
@click.argument("name")
@click.option(
    "--sample", "sample_id", metavar="ID", help="Show the messages that are sent for this sample of the dataset."
)
@click.option(
    "--dataset",
    metavar="DATASET",
    help="The sample's dataset, as `run` takes it; without --sample its first one is shown. Default: sample.",
)
@click.option(
    "--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Read the column OURS from THEIRS. Repeatable."
)
@_LANGUAGE
@_FOLDER
@JSON_OPTION
def show(
    *,
    name: str,
    sample_id: str | None,
    dataset: str | None,
    maps: tuple[str, ...],
    language: str,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Show the messages that each request of prompt NAME begins with, and its reply's shape.

    With --sample or --dataset the messages are complete, for one sample. Nothing is sent.
    """
    loaded = load_prompts(language, folder)
    if name not in loaded:
        raise SettingsError(f"unknown prompt {name!r}; {suggest(name, loaded)}")
    prompt = loaded[name]
    if sample_id is not None or dataset is not None:
        # Imports everything that a run needs, which the list of prompts does not.
        from evalhouse.flows.preparing.request import parse_pairs, resolve_settings  # noqa: PLC0415
        from evalhouse.flows.trials.prompts import preview_prompt  # noqa: PLC0415

        flags = {"dataset": dataset, "language": language, "prompts": str(folder) if folder else None}
        resolved = resolve_settings({**flags, "mapping": parse_pairs(maps, "--map")})
        preview = preview_prompt(prompt, resolved.settings, sample_id)
        if as_json:
            print_json(_describe(prompt) | asdict(preview))
        else:
            if preview.why_none is not None:
                print_line(f"Nothing is asked with {prompt.name} for sample {preview.sample_id}: {preview.why_none}")
            if preview.has_stand_ins:
                print_line("The statements are from the lexical judge; in a run they come from the extract step.")
            for number, request in enumerate(preview.requests, start=1):
                place = f"request {number} of {len(preview.requests)}"
                print_line(f"══ {place} for sample {preview.sample_id}, step {request.step} ", bold=True)
                for message in request.messages:
                    print_line(f"── {message.role} ", bold=True)
                    print_line(message.content)
        return
    if maps:
        raise SettingsError("--map names columns of a dataset; give one with --dataset")
    if as_json:
        messages = [asdict(message) for message in prompt.opening]
        print_json(_describe(prompt) | {"messages": messages, "reply_schema": prompt.reply_schema})
        return
    for message in prompt.opening:
        print_line(f"── {message.role} ", bold=True)
        print_text(f"{message.content}\n")
    print_line("── human ", bold=True)
    print_line("\n".join(f"<{block} …>\n…\n</{block} …>" for block in prompt.variables))
    print_line("── reply ", bold=True)
    print_json(prompt.reply_schema)


@prompts.command()
@_LANGUAGE
@click.argument("folder", required=False, envvar=_VARIABLE, type=click.Path(path_type=Path))
def check(folder: Path | None, language: str) -> int:
    """Check the prompts and rubrics in FOLDER and report everything that is wrong with them.

    Without FOLDER, the folder that $EVALHOUSE_PROMPTS names is checked, and without that variable the built-in prompts.
    """
    problems = [str(problem) for problem in check_prompts(folder, language)]
    loaded = {} if problems else load_prompts(language, folder)
    if folder and not problems:
        # Imports parts of a run, which the list of prompts does not need.
        from evalhouse.flows.preparing.live_run import find_taken_scores, list_rubrics  # noqa: PLC0415
        from evalhouse.warehouse.metric_files import load_metrics  # noqa: PLC0415

        problems = list(find_taken_scores(list_rubrics(loaded), load_metrics()))
    for problem in problems:
        print_notice(problem)
    if problems:
        return 2
    print_line(f"{len(loaded)} prompts in {language} are sound: {', '.join(loaded)}")
    if folder:
        # The files of a folder replace built-in prompts, or are rubrics.
        ours = load_prompts(language) if language in list_languages() else {}
        sentences = []
        for prompt in [prompt for prompt in loaded.values() if prompt is not ours.get(prompt.name)]:
            if prompt.name in ours:
                is_same = prompt.prompt_hash == ours[prompt.name].prompt_hash
                sentences.append(f"{prompt.name} {'is the same as' if is_same else 'replaces'} the built-in one")
            elif prompt.rubric:
                scale, metrics = _mark(prompt.rubric)
                use = f"gives {metrics}" if metrics else "is one for `evalhouse prefer`"
                sentences.append(f"{prompt.name} is a rubric of {scale} and {use}")
            else:
                sentences.append(f"{prompt.name} is in another language")
        print_line(f"in {folder}: {'; '.join(sentences)}")
    return 0


@prompts.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option(
    "--on",
    "reviewed",
    required=True,
    metavar="REVIEWED",
    help="A run whose verdicts people have reviewed, or `all` for every such run.",
)
@click.option(
    "--judge", metavar="J", help="openai:MODEL, another PROVIDER:MODEL, or module:factory. Default: the run's."
)
@_asked_again_options
def compare(
    *,
    old: str,
    new: str,
    reviewed: str,
    seed: int,
    dry_run: bool,
    warehouse: str | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Report how far the judge agrees with people when asked by the prompts OLD and by NEW.

    Each is `built-in`, a folder as for `run --prompts`, or, for stored prompts, a version or the beginning of a hash.
    The judge is asked about the verdicts that people have reviewed, over the statements of their runs; nothing is split
    again, so `extract` is not compared. Stored replies are reused.
    """
    from evalhouse.flows.trials.prompts import compare_prompt_sets  # noqa: PLC0415  # imports all that asks

    document = compare_prompt_sets(
        old=old, new=new, reviewed=reviewed, url=find_warehouse(warehouse), flags=flags, seed=seed, dry_run=dry_run
    )
    if as_json:
        print_json(document.to_plain())
    else:
        document.print()


@prompts.command()
@click.option(
    "--step",
    type=click.Choice(["classify", "attribute", "rank"]),
    required=True,
    help="The step whose prompt gets worked examples.",
)
@click.option(
    "--on",
    "reviewed",
    default="all",
    show_default=True,
    metavar="REVIEWED",
    help="A run whose verdicts people have reviewed, or `all` for every such run.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), default="learned", show_default=True, metavar="DIR",
              help="The folder of prompts to write to.")  # fmt: skip
@count_option("--examples", default=3, min_value=1, text="Examples at most; each is part of every request.")
@count_option("--folds", default=5, min_value=2, text="Parts that the questions are split into, to try examples.")
@click.option("--prompts", metavar="DIR", help="A folder whose prompt file gets the examples, or built-in.")
@click.option("--judge", metavar="J", help="The judge that learns. Default: the run's.")
@_asked_again_options
def learn(
    *,
    step: str,
    reviewed: str,
    output: Path,
    examples: int,
    folds: int,
    prompts: str | None,
    seed: int,
    dry_run: bool,
    warehouse: str | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Learn worked examples for a prompt from reviewed verdicts, and write the prompt if they help.

    The examples are samples in which the judge contradicted people, with people's labels. They are tried on questions
    that they are not from, by cross-validation. DIR/STEP.yaml is written only if the judge then agrees with people
    better, with the whole 95 % interval of the difference above 0.
    """
    from evalhouse.flows.trials.learn import learn_examples  # noqa: PLC0415  # imports all that asks

    report = learn_examples(
        step=step, reviewed=reviewed, url=find_warehouse(warehouse), flags=flags, output=output, n_examples=examples,
        n_folds=folds, prompts=prompts, seed=seed, dry_run=dry_run,
    )  # fmt: skip
    if as_json:
        print_json(report.to_plain())
    else:
        report.compared.print()
        print_line(report.verdict)


def _mark(rubric: Rubric | None) -> tuple[str | None, str | None]:
    """Return a rubric's scales and metrics in words, for criteria with a metric; None for other prompts."""
    if rubric is None:
        return None, None
    if rubric.is_of_pairs:
        return "two answers", None
    scored = rubric.metrics.values()
    scales = [
        "true or false" if criterion.kind == "flag" else f"{criterion.min} to {criterion.max}"
        for name, criterion in rubric.criteria.items()
        if name in scored
    ]
    return ", ".join(dict.fromkeys(scales)), ", ".join(rubric.metrics)


def _describe(prompt: Prompt) -> dict[str, object]:
    names = ("name", "version", "language", "prompt_hash", "description")
    described: dict[str, object] = {name: getattr(prompt, name) for name in names} | {"rubric": None}
    if (rubric := prompt.rubric) is not None:
        fields = {"kind", "min", "max", "anchors", "better"}
        criteria = {name: criterion.model_dump(include=fields) for name, criterion in rubric.criteria.items()}
        described["rubric"] = {"needs": rubric.needs, "criteria": criteria, "metrics": rubric.metrics}
    return described


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
    stored: the same command resumes where it was stopped and pays for nothing twice. Exit status 3 when rows are left
    without a verdict. `--plan fused` asks about every row by both plans and shows their difference with its interval.
    """
    # Help must not import everything that asks.
    from evalhouse.flows.preparing.request import resolve_settings  # noqa: PLC0415
    from evalhouse.flows.run.estimate import usage_table  # noqa: PLC0415
    from evalhouse.flows.trials import benchmark as trials  # noqa: PLC0415
    from evalhouse.tasks.asking.usage import Usage  # noqa: PLC0415
    from evalhouse.tasks.judge.protocol import LEXICAL  # noqa: PLC0415
    from evalhouse.tasks.models.make import make_judges  # noqa: PLC0415
    from evalhouse.tasks.trials.labelled import pick_rows, read_labelled  # noqa: PLC0415

    settings = resolve_settings(flags | {"language": language}).settings
    labelled = read_labelled([Path(folder) for folder in folders], language=language)
    parts = [pick_rows(part, half=half, limit=limit, seed=seed) for part in labelled.parts]
    if dry_run:
        costs = trials.estimate_benchmark(settings, parts)
        names = ("requests", "reused", "failed", "unreadable", "prompt_tokens", "completion_tokens", "cost_usd")
        if as_json:
            sets = [
                {"set": part.name, "kind": part.kind, "language": part.language, "rows": len(part.rows)}
                | usage.pick(*names)
                for part, usage in zip(parts, costs, strict=True)
            ]
            calls = sum(costs, start=Usage()).pick(*names)
            print_json({"judge": settings.judge, "sets": sets, "calls": calls})
        else:
            rows = [
                ((part.name, part.kind, part.language, len(part.rows)), usage)
                for part, usage in zip(parts, costs, strict=True)
            ]
            shown = [name for name in names if name not in ("failed", "unreadable")]
            print_table(usage_table(["set", "kind", "language", "#rows"], rows, shown))
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
