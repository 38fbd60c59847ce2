"""The judge's noise on record: which samples may be judged again, what a noise run came to, and what two runs share.

A noise run is a row of `runs` of kind noise with calls, verdicts and scores of its own over some samples of its parent.
The table `noise` follows the scores: whenever parent or noise run are scored, `note_noise` writes their rows anew.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import duckdb
import polars as pl

from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse

_PAIRS = "select run_id, parent_run_id from runs where kind = 'noise' and (run_id = $run_id or parent_run_id = $run_id)"

# Scores by another version of a metric differ by more than the judge. The rounding is that of
# `tasks/comparing/paired.py`.
_NOISE = """
insert into noise by name
with first as (select * from scores where run_id = $run_id),

again as (select * from scores where run_id = $noise_run_id),

differences as (
    select
        metric,
        case when first.metric_version = again.metric_version then again.value - first.value end as difference
    from again
    inner join first using (metric, sample_id)
)

select
    $run_id as run_id,
    $noise_run_id as noise_run_id,
    metric,
    count(difference) as n_samples,
    count(*) filter (where abs(difference) >= 1e-12) as n_changed,
    avg(difference) as mean_difference,
    stddev_samp(difference) as sd_difference
from differences
group by metric
order by metric
"""

# A judge that says the same each time is its own second opinion.
_SAME = """
insert into noise by name
select
    run_id,
    run_id as noise_run_id,
    metric,
    count(value) as n_samples,
    0 as n_changed,
    0.0 as mean_difference,
    case when count(value) > 1 then 0.0 end as sd_difference
from scores
where run_id = $run_id
group by run_id, metric
order by metric
"""

_SCORED = """
select run_samples.sample_id
from run_samples
inner join scores using (run_id, sample_id)
where run_samples.run_id = $run_id and scores.value is not null
group by run_samples.sample_id
order by min(run_samples.ordinal)
"""

_PREVIOUS = """
with this as (select series, started_at from run_series where run_id = $run_id)

select run_series.run_id
from run_series
inner join this using (series)
where run_series.run_id <> $run_id
    and run_series.started_at <= this.started_at
    and run_series.status in ('completed', 'incomplete')
order by run_series.started_at desc, run_series.run_id desc
limit 1
"""

_EQUAL_INPUTS = """
select candidate.sample_id
from run_samples as candidate
inner join run_samples as base using (sample_id, input_hash)
where candidate.run_id = $candidate and base.run_id = $base
"""

_COPY = """
insert into run_samples by name
select $noise_run_id as run_id, sample_id, input_hash, row_number() over (order by ordinal) as ordinal, metadata
from run_samples
where run_id = $run_id and sample_id in (select sample_id from picked_samples)
order by ordinal
"""

# Replies from the record are the reply that was paid for; the lexical judge says the same each time.
_JUDGED_ANEW = """
with base as (
    select sample_id, step, coalesce(reused_call_id, call_id) as reply
    from llm_calls
    where run_id = $base and status in ('ok', 'cached') and sample_id is not null and judge <> 'lexical'
),

candidate as (
    select sample_id, step, coalesce(reused_call_id, call_id) as reply
    from llm_calls
    where run_id = $candidate and status in ('ok', 'cached') and sample_id is not null and judge <> 'lexical'
)

select distinct sample_id, step
from base
full join candidate using (sample_id, step, reply)
where base.reply is null or candidate.reply is null
"""

# Measured up to the run, newest first, and only then what was measured later.
_NOISE_RUNS = """
with this as (select run_id, series, started_at from run_series where run_id = $run_id)

select noise.noise_run_id
from noise
inner join run_series on run_series.run_id = noise.run_id
inner join this on this.series = run_series.series
where noise.noise_run_id <> noise.run_id and noise.n_samples > 0
group by noise.noise_run_id, run_series.started_at, this.started_at
order by
    run_series.started_at > this.started_at,
    abs(epoch(run_series.started_at) - epoch(this.started_at)),
    noise.noise_run_id
"""

_NOISE_ROWS = """
with versions as (
    select run_id, metric, any_value(metric_version) as metric_version
    from scores
    where run_id in (select run_id from wanted)
    group by run_id, metric
)

select noise.noise_run_id, noise.metric, versions.metric_version, n_samples, n_changed, mean_difference, sd_difference
from noise
inner join versions on versions.run_id = noise.noise_run_id and versions.metric = noise.metric
where noise.noise_run_id in (select run_id from wanted) and noise.n_samples > 0
"""

# A run that took all replies of a step from the record has not heard from the model that answers today.
_ASKED = """
select
    run_id,
    step,
    list_sort(list(distinct judge || ' ' || coalesce(prompt_hash, ''))) as judges,
    list_sort(list(distinct model) filter (where status = 'ok' and model is not null)) as models
from llm_calls
where run_id in (select run_id from wanted) and status in ('ok', 'cached') and sample_id is not null
group by run_id, step
"""

# The runs are named at every table: what a join alone says does not keep the other runs from being read.
_FLIPS = """
with pairs as (
    select runs.run_id as noise_run_id, runs.parent_run_id as run_id
    from runs
    where runs.run_id in (select run_id from wanted)
),

sides as (
    select noise_run_id, noise_run_id as run_id, true as is_again from pairs
    union all
    select noise_run_id, run_id, false from pairs
),

picked as (
    select sides.noise_run_id, sides.run_id, sides.is_again, run_samples.sample_id
    from sides
    inner join run_samples on run_samples.run_id = sides.noise_run_id
),

stated as (
    select
        picked.noise_run_id,
        picked.is_again,
        sample_id,
        source,
        trim(regexp_replace(text, '\\s+', ' ', 'g')) as item,
        any_value(label) as label,
        any_value(supported) as supported
    from picked
    inner join (from statements where run_id in (select run_id from sides)) as statements using (run_id, sample_id)
    left join (from classifications where run_id in (select run_id from sides)) as classifications
        using (run_id, sample_id, statement_id)
    left join (from attributions where run_id in (select run_id from sides)) as attributions
        using (run_id, sample_id, statement_id)
    group by all
),

said as (
    select noise_run_id, is_again, sample_id, 'extract_' || source as step, item, '' as verdict
    from stated
    union all
    select noise_run_id, is_again, sample_id, 'classify', source || ' ' || item, label
    from stated
    where label is not null
    union all
    select noise_run_id, is_again, sample_id, 'attribute', source || ' ' || item, supported::varchar
    from stated
    where supported is not null
    union all
    select noise_run_id, is_again, sample_id, 'rank', context_rank::varchar, useful::varchar
    from picked
    inner join context_verdicts using (run_id, sample_id)
    union all
    select noise_run_id, is_again, sample_id, 'grade_' || rubric, criterion, rating::varchar
    from picked
    inner join grades using (run_id, sample_id)
    where rating is not null and rubric not in ('relevancy', 'tool_calls', 'result_sets')
),

matched as (
    select coalesce(first.step, again.step) as step, first.verdict as verdict, again.verdict as verdict_again
    from (select * from said where not is_again) as first
    full join (select * from said where is_again) as again using (noise_run_id, sample_id, step, item)
)

select
    step,
    count(*) as n_items,
    count(*) filter (where verdict is distinct from verdict_again) as n_flipped,
    count(*) filter (where verdict is distinct from verdict_again) / count(*) as flip_rate
from matched
-- A statement that was not split off the second time is a flip of the split, and has no second verdict to compare.
where starts_with(step, 'extract') or (verdict is not null and verdict_again is not null)
group by step
order by step
"""


def note_noise(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Write the rows of `noise` anew for every pair of a run and a noise run that this run is one of."""
    for noise_run_id, parent_run_id in connection.execute(_PAIRS, {"run_id": run_id}).fetchall():
        connection.execute("delete from noise where noise_run_id = ?", [noise_run_id])
        connection.execute(_NOISE, {"run_id": parent_run_id, "noise_run_id": noise_run_id})


def note_no_noise(warehouse: Warehouse, run_id: str) -> None:
    """Put on record that a run's judge says the same each time: rows of `noise` that name the run itself."""
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        connection.execute("delete from noise where noise_run_id = ?", [run_id])
        connection.execute(_SAME, {"run_id": run_id})


def list_scored(warehouse: Warehouse, run_id: str) -> list[str]:
    """The samples of a run with a score in any metric, in their order."""
    return _list(warehouse, _SCORED, {"run_id": run_id})


def find_previous(warehouse: Warehouse, run_id: str) -> str | None:
    """The evaluation before this one in its series that came to an end."""
    found = _list(warehouse, _PREVIOUS, {"run_id": run_id})
    return found[0] if found else None


def list_equal_inputs(warehouse: Warehouse, *, base: str, candidate: str) -> list[str]:
    """The samples with the same texts in both runs."""
    return _list(warehouse, _EQUAL_INPUTS, {"base": base, "candidate": candidate})


def copy_samples(warehouse: Warehouse, *, run_id: str, noise_run_id: str, sample_ids: Collection[str]) -> None:
    """Give a noise run these samples of its parent."""
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=noise_run_id) as connection:
        connection.register("picked_samples", pl.DataFrame({"sample_id": list(sample_ids)}).to_arrow())
        connection.execute(_COPY, {"run_id": run_id, "noise_run_id": noise_run_id})
        connection.unregister("picked_samples")


def has_noise_run(warehouse: Warehouse, run_id: str) -> bool:
    """Whether the noise of a run was measured to the end."""
    sql = (
        "select run_id from runs where kind = 'noise' and parent_run_id = $run_id "
        "and status in ('completed', 'incomplete')"
    )
    return bool(_list(warehouse, sql, {"run_id": run_id}))


def count_changed(warehouse: Warehouse, noise_run_id: str) -> int:
    """How many samples of a noise run have another score than in its parent, in any metric."""
    sql = """
    select count(distinct again.sample_id) as n
    from runs
    inner join scores as again on again.run_id = runs.run_id
    inner join scores as first
        on first.run_id = runs.parent_run_id
        and first.metric = again.metric
        and first.sample_id = again.sample_id
    where runs.run_id = $run_id and abs(first.value - again.value) >= 1e-12
    """
    (row,) = warehouse.read_rows(sql, {"run_id": noise_run_id})
    return int(str(row["n"]))


def read_judged_anew(warehouse: Warehouse, *, base: str, candidate: str) -> pl.DataFrame:
    """One row per sample and step of a call for which the runs do not rest on the very same replies."""
    return warehouse.read(_JUDGED_ANEW, {"base": base, "candidate": candidate})


def list_noise_runs(warehouse: Warehouse, run_id: str) -> list[str]:
    """The noise runs of a run's series: those up to the run first, each time the nearest first."""
    return _list(warehouse, _NOISE_RUNS, {"run_id": run_id})


def read_noise(warehouse: Warehouse, noise_run_ids: Sequence[str]) -> pl.DataFrame:
    """The rows of `noise` of these runs that have a sample, with the version of the metric they are by."""
    return _read_of(warehouse, _NOISE_ROWS, noise_run_ids)


def read_asked(warehouse: Warehouse, run_ids: Sequence[str]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """By run and step of its calls: `judges`, each with the hash of its prompt, and the `models` that answered."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {run_id: {} for run_id in run_ids}
    for row in _read_of(warehouse, _ASKED, run_ids).to_dicts():
        found[row["run_id"]][row["step"]] = row
    return found


def read_flips(warehouse: Warehouse, noise_run_ids: Sequence[str]) -> list[dict[str, object]]:
    """One row per step over these noise runs: `n_items` judged twice, `n_flipped` of them otherwise, `flip_rate`.

    Statements are matched by their text; of a split, what flips is a statement that only one of the two has.
    """
    return _read_of(warehouse, _FLIPS, noise_run_ids).to_dicts()


def _read_of(warehouse: Warehouse, sql: str, run_ids: Sequence[str]) -> pl.DataFrame:
    wanted = pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
    return warehouse.read(sql, frames={"wanted": wanted})


def _list(warehouse: Warehouse, sql: str, parameters: Mapping[str, object]) -> list[str]:
    return [str(value) for value in warehouse.read(sql, parameters).to_series(0)]
