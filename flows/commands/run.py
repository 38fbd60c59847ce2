"""`evalhouse run`, `resume`, `collect` and `rescore`: judge data, continue, only ask the application, or rescore."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import click

from evalhouse.flows.commands.options import (
    BY_OPTION,
    DRY_RUN_OPTION,
    JSON_OPTION,
    RUN_ARGUMENT,
    WAREHOUSE_OPTION,
    WAREHOUSE_URL_OPTION,
    SectionedCommand,
    dataset_options,
    find_warehouse,
    judge_options,
    limit_options,
    metric_options,
    pool_options,
    run_options,
)
from evalhouse.flows.errors import GATE_FAILED, INCOMPLETE, INTERRUPTED, SettingsError
from evalhouse.flows.preparing.live_run import make_rubric_metrics
from evalhouse.flows.preparing.request import (
    BY_HAND,
    Resolved,
    RunRequest,
    Trigger,
    Update,
    find_unknown_variables,
    is_suite,
    parse_metric_settings,
    parse_pairs,
    resolve_changes,
    resolve_settings,
    resolve_suite,
    split_list,
    validate_settings,
)
from evalhouse.flows.results.output import (
    make_table,
    print_json,
    print_line,
    print_notice,
    print_scores,
    print_table,
    write_count,
    write_dollars,
)
from evalhouse.flows.run.outcome import (
    RunOutcome,
    SuiteOutcome,
    apart_from_user_code,
    list_shortfalls,
    show_run,
    write_next,
)
from evalhouse.flows.server.interrupts import wait_for_warehouse
from evalhouse.flows.server.local import hold_server
from evalhouse.prompts import read_stored_rubric
from evalhouse.tasks.judge.protocol import LEXICAL, parse_judges
from evalhouse.tasks.settings.run import RunSettings, leave_out
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.metric_files import MetricFile, load_metrics, plan_run, resolve_parameters
from evalhouse.warehouse.rows.calls import fetch_rubric_templates
from evalhouse.warehouse.rows.runs import RunKind, RunRow, find_forgotten, find_run, list_runs, now_utc, update_run
from evalhouse.warehouse.rows.samples import score_run
from evalhouse.warehouse.store import Warehouse

_STATUSES = {"completed": 0, "cancelled": INTERRUPTED}
VARIANT_OPTION = click.option(
    "--variant", metavar="NAME", help="Only this variant of the suite: the NAME of its table [variants.NAME]."
)
_WITHOUT_SCORES: Mapping[RunKind, str] = {"testset": "made a test set", "prefer": "preferred one of two answers"}
_STEPS = "select distinct step from outcomes where run_id = $run_id"
_VERSIONS = "select metric, any_value(metric_version) as version from scores where run_id = $run_id group by metric"


@click.command(cls=SectionedCommand)
@click.argument("dataset", metavar="DATASET|SUITE.toml")
@VARIANT_OPTION
@judge_options
@metric_options
@dataset_options
@run_options
@DRY_RUN_OPTION
@limit_options
@pool_options
@BY_OPTION
@WAREHOUSE_URL_OPTION
@JSON_OPTION
@wait_for_warehouse()
def run(
    *,
    dataset: str,
    by: str | None,
    as_json: bool,
    dry_run: bool,
    maps: tuple[str, ...],
    sets: tuple[str, ...],
    metrics: str | None,
    variant: str | None,
    **flags: object,
) -> int:
    """Evaluate DATASET, or what SUITE.toml describes, and print its scores.

    DATASET is a file (JSON Lines, JSON, CSV, Excel, Parquet, Arrow), a table as `file.duckdb#table`, or `sample`, the
    dataset that ships with evalhouse. It holds one sample a row: question, answer, ground_truth and contexts, under
    these names or the names of other evaluation tools. A suite has all of this in a file, with the application that is
    asked for answers and a gate; options given here override it. Exit status 1 when the gate fails.
    """
    suite = None
    if is_suite(dataset):
        from evalhouse.flows.preparing.suites import load_suite  # noqa: PLC0415  # a dataset does without

        suite = load_suite(dataset)
    options = flags | {
        "dataset": None if suite else dataset,
        "metrics": split_list(metrics),
        "mapping": parse_pairs(maps, "--map"),
        "metric_settings": parse_metric_settings(sets),
    }
    if suite is None and variant is not None:
        raise SettingsError(f"--variant {variant}: variants are in a suite, and {dataset} is a dataset")
    resolved = resolve_suite(suite, flags=options, variant=variant) if suite else resolve_settings(options)
    settings = resolved.settings
    # Refuse parameters of an unknown metric; parameters of a metric that is not scored are allowed.
    if settings.metric_settings:
        files = load_metrics(Path(settings.metric_files) if settings.metric_files else None)
        plan_run(list(settings.metric_settings), files)
        for name, parameters in settings.metric_settings.items():
            resolve_parameters(files[name], parameters)
    for name, meant in find_unknown_variables().items():
        if meant:
            print_notice(f"{name} is set, which is not a setting; did you mean {meant}? It is ignored.")
    if dry_run:
        # These import what asks.
        from evalhouse.flows.preparing.live_run import make_plan, try_own_metrics  # noqa: PLC0415
        from evalhouse.flows.run.estimate import print_estimates  # noqa: PLC0415
        from evalhouse.flows.serving.suite_checks import check_suite_gate, describe_estimate  # noqa: PLC0415
        from evalhouse.tasks.testsets import TestsetError  # noqa: PLC0415

        if suite is not None and suite.testset is not None:
            try:
                print_notice(describe_estimate(suite.testset, settings))
            except (SettingsError, TestsetError) as error:
                print_notice(f"test set: cannot be refreshed, and would be evaluated unchanged: {error}")
        try_own_metrics(make_plan(settings), settings)
        if settings.gate is not None:
            check_suite_gate(settings.gate, settings)
        print_estimates(settings, as_json=as_json)
        return 0

    from evalhouse.flows.start import start_run  # noqa: PLC0415  # imports what runs
    from evalhouse.tasks.judge.protocol import RunCancelled  # noqa: PLC0415

    with show_run(_introduce_judge(resolved)) as watch:
        if suite is not None:
            from evalhouse.flows.serving.suite_runs import run_suite  # noqa: PLC0415  # imports the statistics

            try:
                suite_outcome = run_suite(suite, flags=options, variant=variant, watch=watch)
            except RunCancelled as error:
                print_notice(f"{error} while the test set was refreshed: it is unchanged, and nothing was evaluated")
                return INTERRUPTED
        else:
            suite_outcome = SuiteOutcome(outcome=start_run(RunRequest(settings=settings), watch=watch))
    return report_outcome(suite_outcome, settings.warehouse, as_json=as_json, by=by)


@click.command(cls=SectionedCommand)
@RUN_ARGUMENT
@limit_options
@pool_options
@WAREHOUSE_URL_OPTION
@JSON_OPTION
@wait_for_warehouse()
def resume(run: str, warehouse: str | None, as_json: bool, **flags: object) -> int:
    """Continue RUN where it stopped.

    Stored replies are not asked for again; samples that failed are tried once more. RUN is a run id, a unique prefix of
    one, a label, `latest` or `previous`. The run keeps its settings; the options here change how it is asked. Exit
    status 1 when it belongs to a suite and does not pass its gate. Runs of `evalhouse prefer` can be resumed as well;
    for a run of `evalhouse testset` its command is repeated, as a separate run with the same settings.
    """
    changes = resolve_changes(flags)
    url = find_warehouse(warehouse)
    if (row := find_run(Warehouse(url), run)).kind == "testset":
        from evalhouse.flows.commands.testset import resume_testset  # noqa: PLC0415  # the commands of test sets

        return resume_testset(row, warehouse_url=url, changes=changes, as_json=as_json)
    if row.kind == "prefer":
        from evalhouse.flows.commands.compare import resume_preferences  # noqa: PLC0415  # as above

        return resume_preferences(row, warehouse_url=url, changes=changes, as_json=as_json)
    # Runs of other kinds are refused, without a server.
    with hold_server() if row.kind in ("evaluation", "collection") else nullcontext(), show_run() as watch:
        from evalhouse.flows.serving.suite_runs import resume_suite_run  # noqa: PLC0415  # while the server comes up

        suite_outcome = resume_suite_run(run, warehouse_url=url, changes=changes, watch=watch)
    if suite_outcome.outcome.run.kind == "collection":
        return report_collection(suite_outcome.outcome, url, as_json=as_json)
    return report_outcome(suite_outcome, url, as_json=as_json)


def report_outcome(suite_outcome: SuiteOutcome, url: str, *, as_json: bool, by: str | None = None) -> int:
    """Print how a run ended, and its gate where it has one, and return the exit status."""
    from evalhouse.flows.results import run_facts  # noqa: PLC0415  # read when the run has ended

    outcome, run, warehouse = suite_outcome.outcome, suite_outcome.outcome.run, Warehouse(url)
    night = suite_outcome.night
    used = ("requests", "reused", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd")
    with one_reader():
        of_run = {"run_id": run.run_id, "metrics": list(run.metrics)}
        rows = warehouse.fetch_rows("runs/means", **of_run)
        slices: list[dict[str, object]] = []
        if outcome.status in ("completed", "incomplete"):
            try:
                slices = run_facts.read_slices(warehouse, run, by)
            except ValueError as error:  # the run is paid for, and all else is shown
                print_notice(f"{error}; evalhouse show {run.run_id} --by COLUMN shows it later")
        if as_json:
            testset = run.config.get("refreshed")
            of_suite: dict[str, object] = {"suite": run.suite, "gate": suite_outcome.gate} if run.suite else {}
            of_suite |= {"testset": testset} if testset else {}
            if night is not None:
                calls = {ended.run.run_id: ended.counts.pick(*used) for ended in night.variants}
                of_variants = [{**row, "calls": calls.get(row["run_id"])} for row in night.list_runs()]
                of_suite |= {"variants": {"lines": night.lines, "problem": night.problem, "runs": of_variants}}
            print_json(
                {
                    "run_id": run.run_id,
                    "status": outcome.status,
                    "problem": outcome.problem,
                    "n_samples": run.n_samples,
                    "judge": run.judge,
                    "embeddings": run.embeddings,
                    "metrics": {
                        row["metric"]: {key: row[key] for key in row if key not in ("metric", "better")} for row in rows
                    },
                    "calls": outcome.counts.pick(*used),
                    "noise": outcome.noise.to_plain() if outcome.noise else None,
                    "repeats": outcome.repeats.to_plain() if outcome.repeats else None,
                    "by": slices,
                    "warehouse": warehouse.location.url,
                    **of_suite,
                }
            )
        else:
            for line in night.lines if night is not None else ():
                print_line(line, bold=True)
            if night is not None and night.lines:
                print_line()
            suite_name = f" of {run.suite_name}" if run.suite else ""
            tools = f"judged by {run.judge}" + (f", embeddings {run.embeddings}" if run.embeddings else "")
            print_line(
                f"run {run.run_id}{suite_name} {outcome.status}: {write_count(run.n_samples, 'sample')}, {tools}",
                bold=True,
            )
            # A run that was stopped has scores of some samples only; `show` has them to look at.
            if outcome.status in ("completed", "incomplete"):
                print_line()
                silent = run_facts.read_silent(warehouse, run)
                folded = run_facts.list_folded(run, rows, silent.hidden)
                print_scores(rows, run_facts.sort_first(run.metrics), silent.hidden, silent.line, folded)
                for note in run_facts.list_notes(warehouse, run):
                    print_line(note)
                run_facts.print_slices(slices)
                print_line()
            counts = outcome.counts
            no_price = "unknown: no price is on the list (--prices FILE)"
            cost = no_price if counts.unpriced else write_dollars(counts.cost_usd)
            cached = f" ({counts.cached_tokens:,} cached)" if counts.cached_tokens else ""
            print_line(
                f"{write_count(counts.requests, 'request')}, {counts.reused:,} reused from the record, "
                f"{counts.failed:,} failed; {counts.prompt_tokens:,}{cached} + {counts.completion_tokens:,} tokens, "
                f"cost {cost}"
            )
            if sampling := run_facts.explain_sampling(warehouse, run):
                print_line(f"warning: {sampling.removeprefix('note: ')}")
            for warning in run_facts.describe_languages(warehouse, run.run_id):
                print_line(f"warning: {warning}")
            # Only models give replies that may deserve a warning.
            if run.judge != LEXICAL or run.embeddings not in (None, "hashing"):
                identified = list(warehouse.fetch("served/identified", run_id=run.run_id)["model"])
                earlier = warehouse.fetch_row("calls/n_earlier", run_id=run.run_id)
                for warning in (
                    *run_facts.describe_replies(run_facts.read_replies(warehouse, run.run_id)),
                    *run_facts.describe_strange(warehouse, run.run_id),
                    *run_facts.describe_dropped(warehouse, run.run_id),
                    *run_facts.describe_local(counts, run.judge, earlier["n_earlier"], identified),
                    *run_facts.describe_unnamed(run.embeddings, earlier["n_unnamed"]),
                ):
                    print_line(f"warning: {warning}")
            run_facts.print_responses(run_facts.read_response_counts(warehouse, run))
            if outcome.noise is not None:
                print_line(outcome.noise.describe())
            if outcome.repeats is not None:
                print_line(outcome.repeats.describe())
            _print_stop(outcome)
            if suite_outcome.gate is not None:
                from evalhouse.flows.results.gate import print_gate  # noqa: PLC0415  # imports the statistics

                print_gate(suite_outcome.gate, names_run=False)
            if night is not None:
                print_line()
                for ended in night.variants:
                    asked = ended.counts
                    print_line(
                        f"run {ended.run.run_id} of {ended.run.suite_name} {ended.status}: "
                        f"{write_count(asked.requests, 'request')}, {asked.reused:,} reused from the record, "
                        f"{asked.failed:,} failed; cost {no_price if asked.unpriced else write_dollars(asked.cost_usd)}"
                    )
                for line in list_shortfalls(night):
                    print_notice(line)
            # The commands to type next, with the option for a warehouse that they would not find by themselves.
            run_id, location = run.run_id, warehouse.location
            elsewhere = (
                "" if location == parse_location(find_warehouse(None)) else f" --warehouse {quote(location.name)}"
            )
            unscored = " and what is unscored and why" if any(row["n_unscored"] for row in rows) else ""
            steps = []
            if suite_outcome.gate is not None and suite_outcome.gate_failed and suite_outcome.gate["against"]:
                compare = f"evalhouse compare {suite_outcome.gate['against']['run_id']} {run_id}{elsewhere}"
                steps.append(f"{compare}   (what moved, and why)")
            if outcome.status != "completed":
                steps.append(write_next(run, elsewhere))
            if night is not None and night.problem:
                steps.append(f"evalhouse resume {night.runs[0].run_id}{elsewhere}   (the variants that were not asked)")
            if night is not None and len(night.lines):
                side_by_side = " ".join(ended.run_id for ended in night.runs)
                steps.append(f"evalhouse compare {side_by_side}{elsewhere}   (the variants side by side)")
            if outcome.status in ("completed", "incomplete"):
                steps.append(f"evalhouse show {run_id}{elsewhere}   (worst samples, costs{unscored})")
            for place, step in enumerate(steps):
                print_line(f"{'or:  ' if place else 'next:'} {step}")
    if suite_outcome.gate is not None and suite_outcome.gate_failed:
        return GATE_FAILED
    if outcome.status == "completed" and night is not None and list_shortfalls(night):
        is_interrupted = night.is_interrupted or suite_outcome.last.status == "cancelled"
        return _STATUSES["cancelled"] if is_interrupted else INCOMPLETE
    return _STATUSES.get(outcome.status, INCOMPLETE)


def _introduce_judge(resolved: Resolved) -> str | None:
    """Explain who judges if no judge was named: verdicts without a model, or calls that cost money."""
    if resolved.judge_was_chosen:
        return None
    names = parse_judges(resolved.settings.judge)
    judge = names.default
    if names.of_tasks:
        why = resolved.origins["judge"].partition(", because ")[2].partition(",")[0]
        return f"No judge was named for the other steps and {why}, so {judge} takes them."
    if judge != LEXICAL:
        return f"OPENAI_API_KEY is set, so {judge} is asked; --judge names another, such as lexical."
    why = resolved.origins["judge"].removeprefix("default, because ")
    return (
        f"No judge was named and {why}, so the built-in lexical judge gives the verdicts: it compares words and "
        "sentences and understands none of them. Take its scores as a free baseline; --judge openai:MODEL asks a model."
    )


def _print_stop(outcome: RunOutcome) -> None:
    if outcome.status == "cancelled":
        print_notice("The run was interrupted.")
    elif outcome.problem:
        print_notice(f"The run stopped: {outcome.problem}")


@click.command()
@click.argument("suite", metavar="SUITE.toml")
@VARIANT_OPTION
@click.option("--label", metavar="TEXT", help="A name for this run.")
@click.option("--limit", type=int, metavar="N", help="Ask only about the first N samples.")
@click.option("--only-affected", is_flag=True, default=None, help="Ask only where a --changed document was cited.")
@click.option("--changed", multiple=True, metavar="ID", help="A document that changed. Repeatable.")
@WAREHOUSE_URL_OPTION
@JSON_OPTION
@wait_for_warehouse()
def collect(*, suite: str, variant: str | None, as_json: bool, changed: tuple[str, ...], **flags: object) -> int:
    """Ask the application of SUITE.toml about every sample, and judge nothing.

    The responses are a separate run, which `evalhouse run SUITE.toml --responses RUN` judges, as often as you like,
    without asking again. Each answer is stored at once; `evalhouse resume` continues a run that was stopped or in which
    questions failed.
    """
    from evalhouse.flows.preparing.suites import load_suite  # noqa: PLC0415  # other commands do without

    read = load_suite(suite)
    if not changed:
        trigger = BY_HAND
    else:
        update = Update(event_id="by hand", version=None, changed=changed, occurred_at=now_utc())
        trigger = Trigger(kb_name=read.trigger.source.name if read.trigger else None, updates=(update,))
    settings = resolve_suite(read, flags=flags, trigger=trigger, variant=variant).settings
    # A night of variants is judged: of a collection one bot is asked.
    settings = settings.model_copy(update={"variants": {}})
    if settings.target is None:
        raise SettingsError(f"{suite} has no [target], so there is nothing to ask; `evalhouse run` judges its dataset")
    from evalhouse.flows.start import start_run  # noqa: PLC0415

    # Nothing is judged, so neither a key nor a price is needed.
    settings = leave_out(settings, lambda where: where.judges)
    request = RunRequest(settings=settings, kind="collection", trigger=trigger)

    with show_run() as watch:
        outcome = start_run(request, watch=watch)
    return report_collection(outcome, settings.warehouse, as_json=as_json, suite_path=suite)


def report_collection(outcome: RunOutcome, url: str, *, as_json: bool, suite_path: str | None = None) -> int:
    """Print how a run that only asked has ended, and return the exit status."""
    from evalhouse.flows.results import run_facts  # noqa: PLC0415  # read when the run has ended

    warehouse = Warehouse(url)
    run = outcome.run
    counts, errors = (
        warehouse.fetch_row("responses/counts", run_id=run.run_id),
        warehouse.fetch_rows("responses/errors", run_id=run.run_id),
    )
    if as_json:
        print_json(
            {
                "run_id": run.run_id,
                "kind": run.kind,
                "status": outcome.status,
                "problem": outcome.problem,
                "suite": run.suite,
                "n_samples": run.n_samples,
                "responses": {**counts, "errors": errors},
                "warehouse": warehouse.location.url,
            }
        )
    else:
        print_line(
            f"run {run.run_id} {outcome.status}: {write_count(run.n_samples, 'sample')}, nothing judged", bold=True
        )
        print_line(run_facts.describe_responses(counts))
        _print_stop(outcome)
        if errors:
            run_facts.print_response_errors(errors)
            print_line()
        judge = f"evalhouse run {suite_path or 'SUITE.toml'} --responses {run.run_id}   (judges these responses)"
        if outcome.status == "completed":
            print_line(f"next: {judge}")
        else:
            print_line(f"next: evalhouse resume {run.run_id}   (asks where no answer has come yet)")
            if outcome.status == "incomplete":
                print_line(f"or:   {judge}")
    return _STATUSES.get(outcome.status, INCOMPLETE)


@dataclass(frozen=True, kw_only=True)
class Rescoring:
    """The plan of rescoring one run: the metrics to score, and why others are left out."""

    run: RunRow
    settings: RunSettings
    metrics: tuple[MetricFile, ...]
    left_out: Mapping[str, str]


@click.command()
@click.argument("run_names", metavar="[RUN]...", nargs=-1)
@click.option("--metrics", metavar="A,B", help="Also score these metrics, if their verdicts are stored.")
@click.option("--metric-files", metavar="DIR", help="A folder with metrics of your own, which are scored as well.")
@click.option("--set", "sets", multiple=True, metavar="METRIC.PARAMETER=N", help="Set a metric's parameter.")
@WAREHOUSE_OPTION
@JSON_OPTION
def rescore(
    *,
    run_names: tuple[str, ...],
    metrics: str | None,
    metric_files: str | None,
    sets: tuple[str, ...],
    warehouse: Warehouse,
    as_json: bool,
) -> None:
    """Recompute the scores of the named runs, or of all runs, from stored verdicts.

    Each run keeps its own metrics and settings, except for what is given here.
    """
    parameters = parse_metric_settings(sets)
    runs = (
        [find_run(warehouse, name) for name in run_names]
        if run_names
        else [run for run in list_runs(warehouse) if run.kind not in _WITHOUT_SCORES]
    )
    warehouse.migrate()
    # All are planned before the first is written: a name that is wrong changes nothing.
    rescorings = [
        _plan_rescoring(warehouse, run, split_list(metrics) or (), metric_files, parameters)
        for run in {run.run_id: run for run in runs}.values()
    ]
    with apart_from_user_code():  # of metrics
        for rescoring in rescorings:
            run_id = rescoring.run.run_id
            score_run(warehouse, run_id, rescoring.metrics, rescoring.settings.metric_settings)
            # A metric whose file is gone keeps the scores it has, so it stays one of the run's.
            unchanged = [name for name in rescoring.run.metrics if name in rescoring.left_out]
            names = [*(metric.name for metric in rescoring.metrics), *unchanged]
            update_run(warehouse, run_id, metrics=names, config=rescoring.settings.model_dump(mode="json"))
    if as_json:
        print_json(
            [
                {
                    "run_id": rescoring.run.run_id,
                    "metrics": [metric.name for metric in rescoring.metrics],
                    "left_out": dict(rescoring.left_out),
                }
                for rescoring in rescorings
            ]
        )
    elif rescorings:
        rows = [
            [
                rescoring.run.run_id,
                len(rescoring.metrics),
                "; ".join(f"{name}: {reason}" for name, reason in rescoring.left_out.items()) or None,
            ]
            for rescoring in rescorings
        ]
        print_table(make_table(["run", "#metrics scored", "left out"], rows))
        print_line()
        print_line(f"next: evalhouse show {rescorings[0].run.run_id}")
    else:
        print_line(f"No run in {warehouse.location.name} yet; start one with `evalhouse run sample`.")


def _plan_rescoring(
    warehouse: Warehouse,
    run: RunRow,
    metrics: Sequence[str],
    metric_files: str | None,
    parameters: Mapping[str, Mapping[str, float]],
) -> Rescoring:
    if what := _WITHOUT_SCORES.get(run.kind):
        raise SettingsError(f"run {run.run_id} {what}, and has no scores; name a run that judged samples")
    try:
        settings = validate_settings(run.config, {})
    except SettingsError as error:
        raise SettingsError(
            f"run {run.run_id} was made by another version of evalhouse with settings this one does not know: {error}"
        ) from None
    folder = metric_files or settings.metric_files
    files = load_metrics(Path(folder) if folder else None)
    own = () if metrics or not metric_files else sorted(files.keys() - load_metrics(None).keys())
    stored = map(read_stored_rubric, fetch_rubric_templates(warehouse, run.run_id).values())
    files = make_rubric_metrics([rubric for rubric in stored if rubric is not None], {}) | files
    added = (*metrics, *own)
    plan_run([*added, *parameters], files)  # refuses an unknown name, with the list of known ones
    merged = dict(settings.metric_settings)
    for name, changed in parameters.items():
        resolve_parameters(files[name], changed)  # refuses a parameter that the metric does not have
        merged[name] = {**merged.get(name, {}), **changed}
    forgotten = find_forgotten(warehouse, run.run_id)
    steps = {str(row["step"]) for row in warehouse.read_rows(_STEPS, {"run_id": run.run_id})}
    versions = {row["metric"]: row["version"] for row in warehouse.read_rows(_VERSIONS, {"run_id": run.run_id})}
    # Rows of code that read marks, calls or queries in another way.
    built_in = {name: metric for name, metric in files.items() if not metric.is_own}
    older = [
        name
        for name, version in versions.items()
        if name in built_in and built_in[name].version != str(version).partition(";")[0]
    ]
    outdated = {step for name in older for step in built_in[name].read_steps}
    scored, left_out = [], {}
    for name in dict.fromkeys([*run.metrics, *added]):
        if name not in files:
            left_out[name] = "its file no longer exists"
        elif forgotten is not None and files[name].is_own:
            left_out[name] = f"it may read texts, which were forgotten on {forgotten.forgotten_at:%Y-%m-%d}"
        elif name in built_in and not outdated.isdisjoint(files[name].read_steps):
            left_out[name] = "another version of evalhouse read the texts for it; run the data again"
        elif not files[name].fits(run.embeddings):
            left_out[name] = f"it has no value with embeddings {run.embeddings!r}"
        elif name in run.metrics or steps.issuperset(files[name].needs):
            scored.append(files[name])
        else:
            left_out[name] = "the run has no verdicts for it"
    settings = settings.model_copy(update={"metric_settings": merged, "metric_files": folder})
    return Rescoring(run=run, settings=settings, metrics=tuple(scored), left_out=left_out)
