"""`evalhouse rescore`: scores anew from stored verdicts, with other weights or more metrics, and no model call."""

from pathlib import Path
from typing import Any

import click

from flows.command_run import JSON_OPTION, WAREHOUSE_OPTION
from flows.output import make_console, make_table, print_json
from flows.settings import parse_metric_settings, split_list
from tasks.plan import Plan, plan_run
from tasks.run_settings import RunSettings
from warehouse.location import DEFAULT_URL
from warehouse.metric_files import MetricFile, load_metrics, resolve_parameters
from warehouse.runs import RunRow, find_run, list_runs, update_run
from warehouse.scoring import score_run
from warehouse.store import Warehouse


@click.command()
@click.argument("run_names", metavar="[RUN]...", nargs=-1)
@click.option("--metrics", metavar="A,B", help="Also score these metrics, where their verdicts are on record.")
@click.option("--metric-files", metavar="DIR", help="A folder with metrics of your own, one SQL file each.")
@click.option("--set", "sets", multiple=True, metavar="METRIC.PARAMETER=N", help="Set a metric's parameter.")
@WAREHOUSE_OPTION
@JSON_OPTION
def rescore(
    run_names: tuple[str, ...],
    metrics: str | None,
    metric_files: str | None,
    sets: tuple[str, ...],
    warehouse: str | None,
    as_json: bool,
) -> None:
    """Recompute the scores of the named runs, or of all of them, from the verdicts on record.

    Each run keeps its own metrics and settings but for what is given here.
    """
    store = Warehouse(warehouse or DEFAULT_URL)
    found = [find_run(store, name) for name in run_names] if run_names else list_runs(store)
    store.migrate()
    changes = parse_metric_settings(sets)
    report = [
        _rescore_run(store, run, added=split_list(metrics) or (), metric_files=metric_files, changes=changes)
        for run in found
    ]
    if as_json:
        print_json(report)
        return
    rows = [[item["run_id"], len(item["metrics"]), item["left_out"] or None] for item in report]
    make_console().print(make_table(["run", "#metrics scored", "left out: no verdicts on record"], rows))


def _rescore_run(
    store: Warehouse,
    run: RunRow,
    *,
    added: tuple[str, ...],
    metric_files: str | None,
    changes: dict[str, dict[str, float]],
) -> dict[str, Any]:
    settings = RunSettings.model_validate(dict(run.config), strict=False)
    folder = metric_files or settings.metric_files
    known = load_metrics(Path(folder) if folder else None)
    had = plan_run([name for name in run.metrics if name in known], known)
    wanted = plan_run([*(metric.name for metric in had.metrics), *added], known)
    scored = [metric for metric in wanted.metrics if _is_on_record(metric, had, known)]
    merged = dict(settings.metric_settings)
    for name, parameters in changes.items():
        plan_run([name], known)  # an unknown name is refused with the list of known ones
        resolve_parameters(known[name], parameters)
        merged[name] = {**merged.get(name, {}), **parameters}
    score_run(store, run.run_id, scored, merged)
    names = [metric.name for metric in scored]
    config = settings.model_copy(update={"metric_settings": merged, "metric_files": folder})
    update_run(store, run.run_id, metrics=names, config=config.model_dump_json())
    left_out = [metric.name for metric in wanted.metrics if metric.name not in names]
    return {"run_id": run.run_id, "metrics": names, "left_out": left_out}


def _is_on_record(metric: MetricFile, had: Plan, known: dict[str, MetricFile]) -> bool:
    return plan_run([metric.name], known).steps <= had.steps
