-- One row per run that is not under way, or the run that is named, of which one of these parts is not stored: newest first.
-- Runs without samples are among them: there is nothing to store, and views need not look.
select runs.run_id, coalesce(sized.n_samples, 0) as n_samples, list(parts.part order by parts.part) as parts
from runs
left join (select run_id, count(*) as n_samples from run_samples group by run_id) as sized
    on sized.run_id = runs.run_id
cross join (select unnest($parts::varchar[]) as part) as parts
anti join stored_runs
    on stored_runs.run_id = runs.run_id
    and stored_runs.part = parts.part
where (runs.status <> 'running' or runs.run_id is not distinct from $run_id)
    and (parts.part <> 'causes' or coalesce(sized.n_samples, 0) <= $most_samples)
group by runs.run_id, sized.n_samples, runs.started_at
order by runs.run_id is not distinct from $run_id desc, runs.started_at desc, runs.run_id desc
