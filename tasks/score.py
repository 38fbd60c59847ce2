"""Score: every metric's SQL over the verdicts of a run, and what the run came to."""

import asyncio

from prefect import task
from prefect.artifacts import acreate_table_artifact

from evalhouse.tasks.pipeline.live_run import LiveRun, find_live_run
from evalhouse.tasks.pipeline.run_step import UNCACHED
from evalhouse.warehouse.rows.samples import FAILURE_REASONS
from evalhouse.warehouse.rows.scores import score_run

_SUMMARY = """
select metric, round(mean, 4) as mean, round(ci_low, 4) as ci_low, round(ci_high, 4) as ci_high, n_scored, n_unscored
from run_scores where run_id = $run_id order by metric
"""
_FAILED = """
select count(distinct sample_id) as n
from (
    select sample_id from outcomes where run_id = $run_id and reason in (select unnest($reasons))
    union all
    select sample_id from responses where run_id = $run_id and status = 'failed'
)
"""


@task(name="score", task_run_name="score {run_id}", **UNCACHED)
async def score(run_id: str) -> None:
    """Score all samples of a run from the verdicts in the warehouse."""
    live_run = find_live_run(run_id)
    await asyncio.to_thread(score_verdicts, live_run)


@task(name="publish", task_run_name="publish {run_id}", **UNCACHED)
async def publish(run_id: str) -> None:
    """Show the run's scores as a table in Prefect."""
    live_run = find_live_run(run_id)
    table = await asyncio.to_thread(live_run.warehouse.read_rows, _SUMMARY, {"run_id": run_id})
    await acreate_table_artifact(
        table=table,
        key=f"evalhouse-{run_id.lower()}",
        description=f"Scores of run {run_id}, judged by {live_run.settings.judge}",
    )


def score_verdicts(live_run: LiveRun) -> None:
    """Take the spool in, score, and note how many samples failed."""
    live_run.warehouse.flush()
    score_run(live_run.warehouse, live_run.run_id, live_run.metrics, live_run.settings.metric_settings)
    failed = live_run.warehouse.read_rows(_FAILED, {"run_id": live_run.run_id, "reasons": list(FAILURE_REASONS)})
    live_run.progress.n_failed = int(str(failed[0]["n"]))
