"""Collect and load: ask the application under test where there is one, and take the dataset into the warehouse, with
its responses and the prompts.

`datasets/read.py` has read the dataset, `targets/collection.py` asks the target: each response is in a journal on disk
as soon as it came, and moves from there into the warehouse meanwhile.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect import task

from evalhouse.prompts import Prompt
from evalhouse.tasks.pipeline.live_run import UNCACHED, LiveRun, Stored, find_live_run
from evalhouse.warehouse.rows.samples import Staging, renew_samples, take_in_samples
from evalhouse.warehouse.steps import list_prompts
from evalhouse.warehouse.store import Batch, build_frame

if TYPE_CHECKING:
    from evalhouse.tasks.targets.collection import Collection


@task(name="collect", task_run_name="collect shard {shard}", **UNCACHED)
async def collect(run_id: str, shard: int) -> Stored:
    """Ask the target about the samples of a shard."""
    live_run = find_live_run(run_id)
    if live_run.collection is not None:
        await live_run.collection.collect(live_run.asker.stop_sign, shard, size=live_run.settings.shard_size)
    return Stored()


@task(name="load", task_run_name="load {run_id}", **UNCACHED)
async def load(run_id: str) -> Stored:
    """Take the samples of a run and its prompts into the warehouse."""
    live_run = find_live_run(run_id)
    if live_run.collection is None and live_run.staged is not None:
        live_run.progress.n_samples = await asyncio.to_thread(load_staged, live_run, live_run.staged.staging)
        return Stored()
    if live_run.collection is not None:
        await asyncio.to_thread(load_responses, live_run, live_run.collection)
    in_conversation = bool(await asyncio.to_thread(live_run.warehouse.fetch_rows, "samples/talked", run_id=run_id))
    prompts = make_prompt_batch(live_run, in_conversation=in_conversation)
    if prompts is not None:
        await asyncio.to_thread(live_run.warehouse.append, prompts)
    return Stored()


def load_staged(live_run: LiveRun, staging: Staging) -> int:
    """Take in staged samples with the run's prompts, and with its picks where its budget is less than its dataset."""
    batch, settings = make_prompt_batch(live_run, in_conversation=staging.has_conversations()), live_run.settings
    if settings.sample_budget is not None and settings.sample_budget < staging.n_rows:
        from evalhouse.tasks.pipeline.sampling import list_rows, pick_staged  # noqa: PLC0415  # few runs have a budget

        picks = pick_staged(live_run.warehouse, live_run.run_id, settings, live_run.metrics, staging)
        rows, signals = list_rows(live_run.run_id, picks)
        tables = {"sample_picks": build_frame("sample_picks", rows)}
        tables["sample_signals"] = build_frame("sample_signals", signals)
        key = f"{live_run.run_id}/picks/{live_run.session}"
        batch = Batch(key=key, run_id=live_run.run_id, tables={**(batch.tables if batch else {}), **tables})
    return take_in_samples(live_run.warehouse, live_run.run_id, staging, cluster=find_cluster(live_run), beside=batch)


def load_responses(live_run: LiveRun, collection: "Collection") -> None:
    """Take in the samples with their responses; of a run that was loaded before, only those asked again."""
    if not collection.numbers:
        return
    from evalhouse.tasks.targets.collection import stage_responses  # noqa: PLC0415  # most runs ask no target

    staging = stage_responses(collection, live_run.settings.shard_size)
    take_in = renew_samples if live_run.staged is None else take_in_samples
    try:
        take_in(live_run.warehouse, live_run.run_id, staging, cluster=find_cluster(live_run))
    finally:
        staging.discard()


def find_cluster(live_run: LiveRun) -> str | None:
    """Return the metadata column of samples that are not independent, where the suite names one for its gate."""
    return live_run.settings.gate.cluster if live_run.settings.gate else None


def make_prompt_batch(live_run: LiveRun, beside: Sequence[str] = (), *, in_conversation: bool = False) -> Batch | None:
    """Return the rows of the prompts of the run's steps and of others `beside`, also in the form for samples with a
    conversation where some have one; None without prompts."""
    # A plan falls back on the prompts of its steps.
    of_steps = list_prompts(live_run.steps | live_run.asking)
    names = {*of_steps, *(prompt.name for prompt in live_run.rubrics), *beside}
    prompts = [live_run.prompts[name] for name in sorted(names)]
    return make_batch_of(
        live_run, "prompts", [*prompts, *(prompt.in_conversation for prompt in prompts if in_conversation)]
    )


def make_batch_of(live_run: LiveRun, what: str, prompts: Sequence[Prompt]) -> Batch | None:
    """Return the rows of these prompts; `what` distinguishes the run's batches. None without prompts."""
    if not prompts:
        return None
    rows = [
        {
            "prompt_hash": prompt.prompt_hash,
            "prompt": prompt.name,
            "version": prompt.version,
            "language": prompt.language or None,
            "template": prompt.template,
        }
        for prompt in prompts
    ]
    key = f"{live_run.run_id}/{what}/{live_run.session}"
    return Batch(key=key, run_id=live_run.run_id, tables={"prompts": build_frame("prompts", rows)})
