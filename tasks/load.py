"""Collect and load: ask the application under test where there is one, and take the staged dataset into the warehouse,
with its responses and the prompts.

`datasets/read.py` is where the dataset was read and refused if need be, `targets/collection.py` how the target is
asked: responses are in a journal on disk as soon as they came, and on their way from there into the warehouse
meanwhile.
"""

import asyncio
from collections.abc import Mapping, Sequence

from prefect import task

from evalhouse.prompts import Prompt
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import UNCACHED, find_live_run
from evalhouse.tasks.pipeline.sampling import list_rows, pick_staged
from evalhouse.tasks.targets.collection import Collection, stage_responses
from evalhouse.warehouse.rows.samples import Staging, has_conversations, renew_samples, take_in_samples
from evalhouse.warehouse.tables import Batch, build_frame


@task(name="collect", task_run_name="collect shard {shard}", **UNCACHED)
async def collect(run_id: str, shard: int) -> None:
    """Ask the target about the samples of a shard."""
    live_run = find_live_run(run_id)
    if live_run.collection is not None:
        await live_run.collection.collect(live_run.asker.stop_sign, shard, size=live_run.settings.shard_size)


@task(name="load", task_run_name="load {run_id}", **UNCACHED)
async def load(run_id: str) -> int:
    """Take the samples of a run and its prompts into the warehouse, and return how many samples there are."""
    live_run = find_live_run(run_id)
    if live_run.collection is None and live_run.staged is not None:
        live_run.progress.n_samples = await asyncio.to_thread(_take_in, live_run, live_run.staged.staging)
        return live_run.progress.n_samples
    if live_run.collection is not None:
        await asyncio.to_thread(load_responses, live_run, live_run.collection)
    spoken = await asyncio.to_thread(has_conversations, live_run.warehouse, run_id)
    prompts = make_prompt_batch(live_run, in_conversation=spoken)
    if prompts is not None:
        await asyncio.to_thread(live_run.warehouse.append, prompts)
    return live_run.progress.n_samples


def _take_in(live_run: LiveRun, staging: Staging) -> int:
    """Take in staged samples with the run's prompts and picks; returns how many samples there are."""
    prompts = make_prompt_batch(live_run, in_conversation=staging.has_conversations())
    beside = add_picks(live_run, staging, prompts)
    return take_in_samples(live_run.warehouse, live_run.run_id, staging, cluster=_find_cluster(live_run), beside=beside)


def list_picked(live_run: LiveRun, staging: Staging) -> set[int] | None:
    """The ordinals of the samples that a run with a budget would judge; None where it judges all."""
    if not _has_budget(live_run, staging):
        return None
    picks = pick_staged(live_run.warehouse, live_run.run_id, live_run.settings, live_run.metrics, staging)
    return {pick.ordinal for pick in picks if pick.picked}


def _has_budget(live_run: LiveRun, staging: Staging) -> bool:
    return live_run.settings.sample_budget is not None and live_run.settings.sample_budget < staging.n_rows


def add_picks(live_run: LiveRun, staging: Staging, beside: Batch | None) -> Batch | None:
    """A batch with the picks of a run whose budget is less than its dataset; any other batch as it came."""
    if not _has_budget(live_run, staging):
        return beside
    picks = pick_staged(live_run.warehouse, live_run.run_id, live_run.settings, live_run.metrics, staging)
    rows, signals = list_rows(live_run.run_id, picks)
    tables = {
        **(beside.tables if beside else {}),
        "sample_picks": build_frame("sample_picks", rows),
        "sample_signals": build_frame("sample_signals", signals),
    }
    return Batch(key=f"{live_run.run_id}/picks/{live_run.session}", run_id=live_run.run_id, tables=tables)


def load_responses(live_run: LiveRun, collection: Collection) -> None:
    """Take in the samples with the responses to them; of a run that was loaded before, those that were asked again."""
    if not collection.numbers:
        return
    staging = stage_responses(collection, live_run.settings.shard_size)
    try:
        if live_run.staged is not None:
            take_in_samples(live_run.warehouse, live_run.run_id, staging, cluster=_find_cluster(live_run))
        else:
            renew_samples(live_run.warehouse, live_run.run_id, staging, cluster=_find_cluster(live_run))
    finally:
        staging.discard()


def _find_cluster(live_run: LiveRun) -> str | None:
    """The metadata column of samples that are not independent, where the suite names one for its gate."""
    return live_run.settings.gate.cluster if live_run.settings.gate else None


def make_prompt_batch(live_run: LiveRun, beside: Sequence[str] = (), *, in_conversation: bool = False) -> Batch | None:
    """The prompts of the run's steps and others `beside`, to be put on record, also as they are for samples with a
    conversation where there are some; None where there are none."""
    names = {*live_run.prompt_names, *(prompt.name for prompt in live_run.rubrics), *beside}
    prompts = [live_run.prompts[name] for name in sorted(names)]
    spoken = [prompt.in_conversation for prompt in prompts] if in_conversation else []
    return make_batch_of(live_run, "prompts", [*prompts, *spoken])


def make_batch_of(live_run: LiveRun, what: str, prompts: Sequence[Prompt]) -> Batch | None:
    """These prompts, to be put on record; `what` tells the run's batches apart. None where there are none."""
    rows = [_to_row(prompt) for prompt in prompts]
    if not rows:
        return None
    key = f"{live_run.run_id}/{what}/{live_run.session}"
    return Batch(key=key, run_id=live_run.run_id, tables={"prompts": build_frame("prompts", rows)})


def _to_row(prompt: Prompt) -> Mapping[str, object]:
    return {
        "prompt_hash": prompt.prompt_hash,
        "prompt": prompt.name,
        "version": prompt.version,
        "language": prompt.language or None,
        "template": prompt.template,
    }
