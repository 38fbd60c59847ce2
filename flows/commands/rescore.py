"""`evalhouse rescore`: scores again from stored verdicts, with other weights or more metrics, without a call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from evalhouse.flows.commands.options import JSON_OPTION, WAREHOUSE_OPTION
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.settings import parse_metric_settings, split_list, validate_settings
from evalhouse.flows.results.output import make_table, print_json, print_line, print_table
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.metric_files import MetricFile, load_metrics, plan_run, resolve_parameters
from evalhouse.warehouse.rows.runs import RunKind, RunRow, find_forgotten, find_run, list_runs, update_run
from evalhouse.warehouse.rows.scores import score_run
from evalhouse.warehouse.store import Warehouse

_WITHOUT_SCORES: Mapping[RunKind, str] = {"testset": "made a test set", "prefer": "preferred one of two answers"}
_ON_RECORD = "select distinct step from outcomes where run_id = $run_id"


@dataclass(frozen=True, kw_only=True)
class Rescoring:
    """One run's rescoring before anything is written: what is scored, and why the rest is not."""

    run: RunRow
    settings: RunSettings
    metrics: tuple[MetricFile, ...]
    left_out: Mapping[str, str]


@click.command()
@click.argument("run_names", metavar="[RUN]...", nargs=-1)
@click.option("--metrics", metavar="A,B", help="Also score these metrics, where their verdicts are on record.")
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
    """Recompute the scores of the named runs, or of all of them, from the verdicts on record.

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
        print_line(f"No run is on record in {warehouse.location.name}; start one with `evalhouse run sample`.")


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
    added = (*metrics, *own)
    plan_run([*added, *parameters], files)  # refuses a name that is not known, with the list of those that are
    merged = dict(settings.metric_settings)
    for name, changed in parameters.items():
        resolve_parameters(files[name], changed)  # refuses a parameter that the metric does not have
        merged[name] = {**merged.get(name, {}), **changed}
    forgotten = find_forgotten(warehouse, run.run_id)
    steps = {str(row["step"]) for row in warehouse.read_rows(_ON_RECORD, {"run_id": run.run_id})}
    scored, left_out = [], {}
    for name in dict.fromkeys([*run.metrics, *added]):
        if name not in files:
            left_out[name] = "its file is not there any more"
        elif forgotten is not None and files[name].is_own:
            left_out[name] = f"it may read texts, which were forgotten on {forgotten.forgotten_at:%Y-%m-%d}"
        elif not files[name].fits(run.embeddings):
            left_out[name] = f"it has no value with embeddings {run.embeddings!r}"
        elif name in run.metrics or steps.issuperset(files[name].needs):
            scored.append(files[name])
        else:
            left_out[name] = "the run has no verdicts for it"
    settings = settings.model_copy(update={"metric_settings": merged, "metric_files": folder})
    return Rescoring(run=run, settings=settings, metrics=tuple(scored), left_out=left_out)
