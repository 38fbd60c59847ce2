"""What people's labels say of a run: reviewed verdicts with what made them, and means corrected by them.

The views `reviewed_verdicts` and `corrected_scores` look at whole runs and are asked for one run at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse

# A reply from the record has the prompt it was asked with, as one from the endpoint has.
_REVIEWED = r"""
with made as (
    select run_id, sample_id, 'classify' as step, statement_id, null::integer as context_rank, call_id
    from classifications
    where run_id = $run_id
    union all
    select run_id, sample_id, 'attribute', statement_id, null, call_id from attributions where run_id = $run_id
    union all
    select run_id, sample_id, 'rank', null, context_rank, call_id from context_verdicts where run_id = $run_id
),

asked as (
    select
        llm_calls.call_id,
        llm_calls.step,
        llm_calls.prompt_hash,
        coalesce(prompts.version || ' ', '') || left(llm_calls.prompt_hash, 8) as prompt_version
    from llm_calls
    left join prompts on prompts.prompt_hash = llm_calls.prompt_hash
    where llm_calls.run_id = $run_id
)

select
    reviewed.run_id,
    reviewed.sample_id,
    reviewed.step,
    reviewed.statement_id,
    reviewed.context_rank,
    reviewed.item_hash,
    reviewed.judge_label,
    reviewed.label,
    reviewed.first_label,
    reviewed.reviewer,
    reviewed.stratum,
    reviewed.probability,
    coalesce(corrected_strata.n_picked / corrected_strata.n_labelled, 1) / nullif(reviewed.probability, 0) as weight,
    runs.judge,
    -- Of the question; prompts in one language may ask about texts in another.
    if(regexp_matches(samples.question, '\p{Han}'), 'zh', if(runs.language = 'zh', 'en', runs.language)) as language,
    asked.prompt_hash,
    asked.prompt_version
from reviewed_verdicts as reviewed
inner join runs on runs.run_id = reviewed.run_id
left join made
    on made.sample_id = reviewed.sample_id
    and made.step = reviewed.step
    and coalesce(made.statement_id, '') = coalesce(reviewed.statement_id, '')
    and coalesce(made.context_rank, 0) = coalesce(reviewed.context_rank, 0)
-- A verdict by rule has the call of the split it rests on.
left join asked
    on asked.call_id = made.call_id
    and asked.step = made.step
inner join run_samples
    on run_samples.run_id = reviewed.run_id
    and run_samples.sample_id = reviewed.sample_id
inner join samples
    on samples.sample_id = run_samples.sample_id
    and samples.input_hash = run_samples.input_hash
left join corrected_strata
    on corrected_strata.run_id = reviewed.run_id
    and corrected_strata.stratum = reviewed.stratum
    and corrected_strata.probability = reviewed.probability
where reviewed.run_id = $run_id
order by reviewed.sample_id, reviewed.step, reviewed.statement_id, reviewed.context_rank, reviewed.reviewer
"""

_REVIEWED_RUNS = "select run_id from runs where run_id in (select run_id from reviews) order by started_at, run_id"

_CORRECTED = "from corrected_scores where run_id = $run_id order by metric"


_SAMPLES = """
select
    run_samples.ordinal, sample_id, input_hash, question, answer, ground_truth, contexts, context_ids,
    reference_context_ids, coalesce(run_samples.metadata, samples.metadata)::varchar as metadata_json
from run_samples
semi join wanted using (sample_id)
inner join samples using (sample_id, input_hash)
where run_samples.run_id = $run_id
order by run_samples.ordinal
"""

_SPLITS = """
select sample_id, source, ordinal, statement_id, text, call_id, null as reason
from statements
semi join wanted using (sample_id)
where run_id = $run_id

union all

select sample_id, replace(step, 'extract_', ''), 0, null, null, null, reason
from outcomes
semi join wanted using (sample_id)
where run_id = $run_id and step in ('extract_answer', 'extract_ground_truth') and reason is not null

order by 1, 2, 3
"""

_PROMPTS = """
select prompt_hash, prompt, version, template
from prompts
where language = $language and (starts_with(prompt_hash, $wanted) or version = $wanted)
order by prompt, prompt_hash
"""


@dataclass(frozen=True, kw_only=True)
class JudgedTexts:
    """A sample of a run and the rows of its statements in their order, by source; a row with a reason says why none."""

    sample: StoredSample
    splits: Sequence[Mapping[str, Any]]


def read_reviewed(warehouse: Warehouse, run_ids: Sequence[str]) -> pl.DataFrame:
    """One row per reviewed verdict of these runs and reviewer.

    `weight` is how many verdicts it stands for, NULL where chance did not pick it; `prompt_version` is version and
    hash of the prompt, NULL where no request was needed; `language` is that of the question.
    """
    # One run at a time: then a filter on it reaches every table below the views.
    frames = [warehouse.read(_REVIEWED, {"run_id": run_id}) for run_id in run_ids]
    return pl.concat(frames) if frames else warehouse.read(_REVIEWED, {"run_id": ""})


def list_reviewed_runs(warehouse: Warehouse) -> list[str]:
    """Ids of the runs whose verdicts were reviewed, oldest first."""
    return [str(row["run_id"]) for row in warehouse.read_rows(_REVIEWED_RUNS)]


def read_corrected(warehouse: Warehouse, run_id: str) -> list[dict[str, Any]]:
    """The rows of `corrected_scores` of a run: none when nobody has reviewed any of its verdicts."""
    return warehouse.read_rows(_CORRECTED, {"run_id": run_id})


def read_judged_texts(warehouse: Warehouse, run_id: str, sample_ids: Sequence[str]) -> list[JudgedTexts]:
    """What the judge was given of these samples of a run, in the run's order."""
    frames = {"wanted": pl.DataFrame({"sample_id": list(sample_ids)}, schema={"sample_id": pl.String})}
    samples = warehouse.read(_SAMPLES, {"run_id": run_id}, frames=frames).to_dicts()
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for row in warehouse.read(_SPLITS, {"run_id": run_id}, frames=frames).to_dicts():
        splits.setdefault(row["sample_id"], []).append(row)
    return [JudgedTexts(sample=StoredSample(**row), splits=splits.get(row["sample_id"], [])) for row in samples]


def find_prompts(warehouse: Warehouse, wanted: str, language: str) -> list[dict[str, Any]]:
    """Prompts on record whose hash begins so, or of that version: prompt_hash, prompt, version, template."""
    return warehouse.read_rows(_PROMPTS, {"wanted": wanted, "language": language})
