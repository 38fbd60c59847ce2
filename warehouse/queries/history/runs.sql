with accepted as (
    select run_id, arg_max(accepted_by || ': ' || why, accepted_at) as accepted
    from gate_acceptances
    group by run_id
)

select runs.run_id, runs.started_at, runs.finished_at, runs.status, runs.label, runs.judge, runs.embeddings,
       runs.language, run_series.plan, runs."trigger", runs.kb_name, runs.kb_version, runs.gate, runs.problem, runs.n_samples,
       runs.suite_hash, runs.code_version, accepted.accepted
from run_series
inner join runs on runs.run_id = run_series.run_id
left join accepted on accepted.run_id = runs.run_id
where run_series.series = $series
order by runs.started_at, runs.run_id
