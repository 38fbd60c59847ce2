"""What a prompt would ask of one sample: the real steps go over it, and their questions are kept in place of replies.

Nothing is sent and nothing is written. Statements, which a request may hold and no dataset has, are those that the
built-in lexical judge finds (`tasks/models/stand_ins.py`); in a run they come from the replies of the extract step.
"""

import asyncio
from dataclasses import dataclass

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import make_live_run
from evalhouse.flows.shards import take_asking_steps
from evalhouse.prompts import Message, Prompt
from evalhouse.tasks.datasets.read import stage_of
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.models.make import Judges
from evalhouse.tasks.models.stand_ins import NoRecord, StandInJudge
from evalhouse.tasks.pipeline.live_run import SampleWork, make_work
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.steps import APART_PROMPTS, PLANS, SEPARATE, add_earlier, find_asking_steps, find_plan
from evalhouse.warehouse.store import Warehouse


@dataclass(frozen=True, kw_only=True)
class PreviewedRequest:
    """The messages of one request, as they would be sent for the step."""

    step: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class Preview:
    """All requests a prompt takes for one sample; `why_none` says why there are none."""

    sample_id: str
    requests: tuple[PreviewedRequest, ...]
    has_stand_ins: bool
    why_none: str | None


def preview_prompt(prompt: Prompt, settings: RunSettings, sample_id: str | None) -> Preview:
    """What `prompt` asks of a sample of the settings' dataset, its first one without an id.

    Raises SettingsError for a prompt of test sets and for an id the dataset does not have, and DatasetError for a
    dataset that would be refused.
    """
    if prompt.name in APART_PROMPTS:
        raise SettingsError(
            f"{prompt.name} is asked where test sets are made and refreshed, and about no sample of a dataset; leave "
            "out --sample and --dataset to see its words"
        )
    if prompt.rubric is not None and prompt.rubric.is_of_pairs:
        raise SettingsError(
            f"{prompt.name} is asked of two answers, by `evalhouse prefer`, and about no single sample; leave out "
            "--sample and --dataset to see its words"
        )
    sample = _find_sample(settings, sample_id)
    questions: dict[str, Question] = {}
    way = find_plan(prompt.name)
    # What limits or repeats the asking changes no message.
    quiet = settings.model_copy(
        update={"rpm": None, "tpm": None, "budget_usd": None, "votes": 1, "embeddings": "hashing", "plan": way}
    )
    asking = find_asking_steps(prompt.name) if way == SEPARATE else PLANS[way].joins
    plan = Plan(metrics=(), steps=add_earlier(asking))
    # The judge sends nothing: what it is asked is put into `questions`.
    judges = Judges(default=StandInJudge(None, heard=questions))
    live_run = make_live_run("preview", quiet, plan, judges, Warehouse(settings.warehouse), record=NoRecord())

    async def take_steps() -> SampleWork:
        work = make_work(sample)
        await take_asking_steps(live_run, work)
        return work

    work = asyncio.run(take_steps())
    requests = tuple(
        PreviewedRequest(step=question.step, messages=question.prompt.render(question.data, note=question.instruction))
        for question in questions.values()
        if question.prompt is not None and question.prompt.name == prompt.name
    )
    why_none = None
    if not requests:
        # How the steps ended that had nothing to ask, or what settled the matter without a judge.
        outcomes = [row for row in work.rows["outcomes"] if row["reason"]]
        ended = [f"{row['step']}: {row['reason']} {row['detail'] or ''}".strip() for row in outcomes]
        settled = [str(row["reason"]).strip() for table in ("grades", "classifications") for row in work.rows[table]]
        why_none = "; ".join(dict.fromkeys(ended or settled)) or "there is nothing to judge"
    return Preview(
        sample_id=sample.sample_id,
        requests=requests,
        has_stand_ins=bool(requests) and any(name.endswith("_statements") for name in prompt.variables),
        why_none=why_none,
    )


def _find_sample(settings: RunSettings, sample_id: str | None) -> StoredSample:
    staged = stage_of(settings.model_copy(update={"limit": None}))
    try:
        ids: list[str] = []
        for samples in staged.staging.read_parts():
            for sample in samples:
                if sample_id in (None, sample.sample_id):
                    return sample
                ids.append(sample.sample_id)
    finally:
        staged.staging.discard()
    advice = suggest(sample_id or "", ids, otherwise="it has")
    raise SettingsError(f"dataset {settings.dataset} has no sample {sample_id!r}; {advice}")
