"""Two runs side by side: scores, what changed in the samples, which judge was asked, and verdicts.

Each function is one question to the warehouse about a pair of runs. Only rows of the two runs are read, and texts only
of samples whose content hash or metadata differs, so that the answer does not depend on how long history is.
"""

from collections.abc import Sequence

import polars as pl

from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

_SCORES = """
with base as (select * from scores where run_id = $base),

candidate as (select * from scores where run_id = $candidate)

select
    metric,
    sample_id,
    base.value as base,
    candidate.value as candidate,
    base.metric_version as base_version,
    candidate.metric_version as candidate_version
from base
full join candidate using (metric, sample_id)
order by metric, sample_id
"""

_SAMPLES = """
with base as (select sample_id, ordinal from run_samples where run_id = $base),

candidate as (select sample_id, ordinal from run_samples where run_id = $candidate)

select sample_id, base.sample_id is not null as in_base, candidate.sample_id is not null as in_candidate
from base
full join candidate using (sample_id)
order by candidate.ordinal nulls last, base.ordinal
"""

# Equal hashes are equal texts; metadata stands beside the hash, and is NULL in run_samples where it is that of samples.
_CHANGED_INPUTS = """
with pairs as (
    select
        sample_id,
        base.input_hash as base_hash,
        candidate.input_hash as candidate_hash,
        base.metadata as base_metadata,
        candidate.metadata as candidate_metadata
    from run_samples as base
    inner join run_samples as candidate using (sample_id)
    where base.run_id = $base and candidate.run_id = $candidate
        and (
            base.input_hash <> candidate.input_hash
            or base.metadata is not null
            or candidate.metadata is not null
        )
),

texts as (
    select
        pairs.sample_id,
        base.question is distinct from candidate.question as question,
        base.answer is distinct from candidate.answer as answer,
        base.ground_truth is distinct from candidate.ground_truth as ground_truth,
        base.contexts is distinct from candidate.contexts as contexts,
        base.context_ids is distinct from candidate.context_ids as context_ids,
        base.reference_context_ids is distinct from candidate.reference_context_ids as reference_context_ids,
        coalesce(pairs.base_metadata, base.metadata) as base_metadata,
        coalesce(pairs.candidate_metadata, candidate.metadata) as candidate_metadata
    from pairs
    inner join samples as base on base.sample_id = pairs.sample_id and base.input_hash = pairs.base_hash
    inner join samples as candidate
        on candidate.sample_id = pairs.sample_id
        and candidate.input_hash = pairs.candidate_hash
)

select * exclude (base_metadata, candidate_metadata), {further}
from texts
"""
_METADATA_CHANGED = (
    "json_extract(base_metadata, '/{name}')::varchar is distinct from "
    "json_extract(candidate_metadata, '/{name}')::varchar as {name}"
)

# A reply from the record has the model it was asked of, one from the endpoint the model that answered.
_CHANGED_JUDGES = """
with asked as (
    select
        run_id,
        sample_id,
        step,
        list_sort(list(distinct judge || ' ' || coalesce(prompt_hash, ''))) as judges,
        list(distinct model) filter (where status = 'ok' and model is not null) as models
    from llm_calls
    where run_id in ($base, $candidate) and status in ('ok', 'cached') and sample_id is not null
    group by run_id, sample_id, step
)

select sample_id, step
from asked as base
inner join asked as candidate using (sample_id, step)
where base.run_id = $base and candidate.run_id = $candidate
    and (
        base.judges <> candidate.judges
        or (len(base.models) > 0 and len(candidate.models) > 0 and not list_has_any(base.models, candidate.models))
    )
order by step, sample_id
"""

_METRIC_STEPS = "select metric, list(step order by step) as steps from metric_steps group by metric"

_METADATA = """
select
    run_samples.sample_id,
    any_value(coalesce(run_samples.metadata, samples.metadata)::varchar order by run_id = $candidate desc) as metadata
from run_samples
left join samples using (sample_id, input_hash)
where run_samples.run_id in ($base, $candidate)
group by run_samples.sample_id
"""

_TEXTS = """
select
    wanted.sample_id,
    run_samples.run_id = $candidate as of_candidate,
    samples.question,
    samples.answer,
    samples.ground_truth,
    samples.contexts
from wanted
inner join run_samples using (sample_id)
inner join samples using (sample_id, input_hash)
where run_samples.run_id in ($base, $candidate)
"""

# One run at a time: a filter on one run reaches the tables behind the view's windows, one on two runs does not.
_STATEMENTS = """
with of_pair as (
    select * from statement_verdicts where run_id = $base
    union all
    select * from statement_verdicts where run_id = $candidate
)

select
    sample_id, run_id = $candidate as of_candidate, source, text, label, label_reason, supported, context_ranks,
    support_reason
from of_pair
inner join wanted using (sample_id)
order by sample_id, of_candidate, source, ordinal
"""

_CONTEXTS = """
with of_pair as (
    select * from context_verdicts where run_id = $base
    union all
    select * from context_verdicts where run_id = $candidate
),

placed as (
    select run_id, sample_id, input_hash
    from run_samples
    inner join wanted using (sample_id)
    where run_id in ($base, $candidate)
)

select
    sample_id, run_id = $candidate as of_candidate, samples.contexts[context_rank] as text, context_rank, useful, reason
from of_pair
inner join placed using (run_id, sample_id)
inner join samples using (sample_id, input_hash)
order by sample_id, of_candidate, context_rank
"""

_GRADES = """
select
    sample_id, run_id = $candidate as of_candidate, rubric || ': ' || criterion as text, rating, scale_max, reason
from grades
inner join wanted using (sample_id)
where run_id in ($base, $candidate)
order by sample_id, of_candidate, text
"""


class RunPair:
    """Two runs of one warehouse, and what can be read of them together."""

    def __init__(self, warehouse: Warehouse, base: RunRow, candidate: RunRow) -> None:
        self.base, self.candidate = base, candidate
        self._warehouse = warehouse
        self._ids = {"base": base.run_id, "candidate": candidate.run_id}

    @property
    def warehouse(self) -> Warehouse:
        """Where both are on record."""
        return self._warehouse

    def read_samples(self) -> pl.DataFrame:
        """One row a sample of either run: sample_id, in_base, in_candidate."""
        return self._warehouse.read(_SAMPLES, self._ids)

    def read_scores(self) -> pl.DataFrame:
        """One row per metric and sample of either run: both values (NULL where unscored) and formula versions."""
        return self._warehouse.read(_SCORES, self._ids)

    def read_changed_inputs(self, metadata_names: Sequence[str]) -> pl.DataFrame:
        """One row per sample of both runs in which something may differ: a flag for each input, and for each of these
        names in the metadata."""
        further = ", ".join(_METADATA_CHANGED.format(name=name) for name in metadata_names)
        return self._warehouse.read(_CHANGED_INPUTS.format(further=further), self._ids)

    def read_changed_judges(self) -> pl.DataFrame:
        """One row per sample and step of a call for which the runs asked another judge, model or prompt."""
        return self._warehouse.read(_CHANGED_JUDGES, self._ids)

    def read_metric_steps(self) -> dict[str, frozenset[str]]:
        """The steps each known metric rests on."""
        rows = self._warehouse.read(_METRIC_STEPS).to_dicts()
        return {row["metric"]: frozenset(row["steps"]) for row in rows}

    def read_metadata(self) -> pl.DataFrame:
        """One row a sample of either run: sample_id and its metadata as JSON text; the candidate's if both have it."""
        return self._warehouse.read(_METADATA, self._ids)

    def read_texts(self, sample_ids: Sequence[str]) -> pl.DataFrame:
        """One row per sample and run that has it: question, answer, ground_truth, contexts; of_candidate says which."""
        return self._read_of(_TEXTS, sample_ids)

    def read_statements(self, sample_ids: Sequence[str]) -> pl.DataFrame:
        """One row per statement with its verdicts, of both runs, in the order of their texts."""
        return self._read_of(_STATEMENTS, sample_ids)

    def read_contexts(self, sample_ids: Sequence[str]) -> pl.DataFrame:
        """One row per context that was judged by itself, of both runs."""
        return self._read_of(_CONTEXTS, sample_ids)

    def read_grades(self, sample_ids: Sequence[str]) -> pl.DataFrame:
        """One row per rating, of both runs; `text` names rubric and criterion."""
        return self._read_of(_GRADES, sample_ids)

    def _read_of(self, sql: str, sample_ids: Sequence[str]) -> pl.DataFrame:
        wanted = pl.DataFrame({"sample_id": list(sample_ids)}, schema={"sample_id": pl.String})
        return self._warehouse.read(sql, self._ids, frames={"wanted": wanted})
