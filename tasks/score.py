"""Score: every metric's SQL over the verdicts of a run, and what the run came to."""

import asyncio

from prefect import task
from prefect.artifacts import acreate_table_artifact

from evalhouse.tasks.pipeline.live_run import LiveRun, find_live_run
from evalhouse.tasks.pipeline.run_step import UNCACHED
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.scores import score_run


@task(name="score", task_run_name="score {run_id}", **UNCACHED)
async def score(run_id: str) -> None:
    """Score all samples of a run from the verdicts in the warehouse."""
    live_run = find_live_run(run_id)
    await asyncio.to_thread(score_verdicts, live_run)


@task(name="publish", task_run_name="publish {run_id}", **UNCACHED)
async def publish(run_id: str) -> None:
    """Show the run's scores as a table in Prefect."""
    live_run = find_live_run(run_id)
    names = [metric.name for metric in live_run.metrics]
    rows = await asyncio.to_thread(
        live_run.warehouse.read_rows, read_query("runs/means"), {"run_id": run_id, "metrics": names}
    )
    table = [
        {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()} for row in rows
    ]
    artifact = acreate_table_artifact(
        table=table,
        key=f"evalhouse-{run_id.lower()}",
        description=f"Scores of run {run_id}, judged by {live_run.settings.judge}",
    )
    await asyncio.create_task(artifact)  # so that what wakes it does not come through here each time


def score_verdicts(live_run: LiveRun) -> None:
    """Take the spool in, score, and note how many samples failed."""
    live_run.warehouse.flush()
    settings = live_run.settings.metric_settings
    live_run.progress.n_failed = score_run(live_run.warehouse, live_run.run_id, live_run.metrics, settings)
