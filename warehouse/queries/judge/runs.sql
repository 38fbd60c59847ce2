-- One row per run of a series, the newest first: what its verdicts were given by.
select
    run_series.run_id,
    run_series.started_at,
    run_series.judge,
    run_series.embeddings,
    run_series.language,
    run_series.plan,
    runs.n_samples,
    coalesce((runs.config ->> '$.votes')::integer, 1) as votes
from run_series
inner join runs using (run_id)
where run_series.series = $series and run_series.status in ('completed', 'incomplete')
order by run_series.started_at desc, run_series.run_id desc
limit $most
