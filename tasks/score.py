"""Score: run every metric's SQL over the verdicts of a run, and publish the means."""

import asyncio
import re
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import acreate_table_artifact
from prefect.assets import Asset, AssetProperties, add_asset_metadata, materialize
from prefect.tasks import Task

from evalhouse.tasks.pipeline.live_run import UNCACHED, LiveRun, Stored, find_live_run
from evalhouse.tasks.settings.suite import name_scores
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.rows.samples import score_run

# Characters that a key must not have.
_RESTRICTED = re.compile(r"[\s#?&%\"'<>\[\]{}|\\^`]")
_URI = re.compile(r"[a-z][a-z0-9+.-]*://")
_LONGEST_KEY = 512


def make_scores_asset(suite: str) -> Asset:
    """Return the asset of a suite's scores."""
    properties = AssetProperties(name=f"scores of {suite}", description=f"The scores of the runs of suite {suite}.")
    return Asset(key=name_scores(suite), properties=properties)


def list_upstream(live_run: LiveRun) -> list[Asset | str]:
    """Return the sources of a suite's scores: the dataset, and the asset whose updates start the suite."""
    settings = live_run.settings
    assets: list[Asset | str] = [Asset(key=name_dataset(settings.dataset))]
    if settings.upstream is not None:
        assets.append(Asset(key=name_source(settings.upstream)))
    return assets


def name_dataset(dataset: str) -> str:
    """Return the key of a dataset: its address, or that of its file; `sample` ships with evalhouse and has none."""
    if _URI.match(dataset):
        return _keep_allowed(dataset)
    path = Path(dataset)
    return _keep_allowed(f"file://{path.as_posix()}" if path.is_absolute() else f"evalhouse://dataset/{dataset}")


def name_source(name: str) -> str:
    """Return the key of a source: that of an asset, or a key of evalhouse for a knowledge base."""
    return _keep_allowed(name if _URI.match(name) else f"evalhouse://knowledge-base/{name}")


def _keep_allowed(key: str) -> str:
    return _RESTRICTED.sub("_", key)[:_LONGEST_KEY]


@task(name="score", task_run_name="score {run_id}", **UNCACHED)
async def score(run_id: str) -> Stored:
    """Score all samples of a run from the verdicts in the warehouse."""
    await asyncio.to_thread(score_verdicts, find_live_run(run_id))
    return Stored()


@materialize("evalhouse://suite/scores", by="evalhouse", name="score", task_run_name="score {run_id}", **UNCACHED)
async def score_suite(run_id: str) -> Stored:
    """Score a run of a suite, and add its means to the event of the asset."""
    live_run = find_live_run(run_id)
    await asyncio.to_thread(score_verdicts, live_run)
    means = await asyncio.to_thread(read_means, live_run)
    run = await asyncio.to_thread(find_run, live_run.warehouse, run_id)
    n_samples = {row["metric"]: row["n_scored"] + row["n_unscored"] for row in means}
    metadata = {
        "run_id": run_id,
        "dataset_hash": run.dataset_hash,
        "judge": run.judge,
        "n_samples": run.n_samples,
        "means": {row["metric"]: row["mean"] for row in means},
        "coverage": {row["metric"]: row["n_scored"] / max(1, n_samples[row["metric"]]) for row in means},
    }
    add_asset_metadata(make_scores_asset(str(live_run.settings.suite_name)), metadata)
    return Stored()


def pick_score_task(live_run: LiveRun) -> "Task[[str], Coroutine[Any, Any, Stored]]":
    """Return `score_suite` with the assets of the run's suite for an evaluation of one, else `score`.

    A noise run and a run of repeats are of the suite as well, and score only a few of its samples.
    """
    suite = live_run.settings.suite_name
    if suite is None or live_run.kind != "evaluation":
        return score
    return score_suite.with_options(assets=[make_scores_asset(suite)], asset_deps=list_upstream(live_run))


def read_means(live_run: LiveRun) -> Sequence[Mapping[str, Any]]:
    """Return the means of a run's metrics and how many samples they rest on."""
    names = [metric.name for metric in live_run.metrics]
    return live_run.warehouse.fetch_rows("runs/means", run_id=live_run.run_id, metrics=names)


@task(name="publish", task_run_name="publish {run_id}", **UNCACHED)
async def publish(run_id: str) -> None:
    """Show the run's scores as a table in Prefect."""
    live_run = find_live_run(run_id)
    rows = await asyncio.to_thread(read_means, live_run)
    kind = live_run.kind
    table = [
        {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()} for row in rows
    ]
    await acreate_table_artifact(
        table=table,
        key=live_run.settings.name_artifact("scores" if kind == "evaluation" else f"scores-of-{kind}"),
        description=f"Scores of run {run_id}, judged by {live_run.settings.judge}",
    )


def score_verdicts(live_run: LiveRun) -> None:
    """Import the spool, score, and note how many samples failed."""
    live_run.warehouse.flush()
    settings = live_run.settings.metric_settings
    live_run.progress.n_failed = score_run(live_run.warehouse, live_run.run_id, live_run.metrics, settings)
