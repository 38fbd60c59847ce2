-- The earlier runs of a judge that asked at temperature 0, how many and the last; no row where one asked without any.
select
    count(*) as n_runs,
    max_by(run_id, started_at) as last_run_id
from runs
where judge = $judge and run_id <> $run_id and try_cast((config ->> 'temperature') as double) = 0
having
    count(*) > 0
    and not exists (select 1 from runs where judge = $judge and run_id <> $run_id and (config ->> 'temperature') is null)
