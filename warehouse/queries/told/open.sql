-- Those of the wanted runs of which a part is not stored, in groups that one query computes: of $most samples, and those
-- of the last run of a group beside them. Runs that follow each other go together, for they look back at the same ones.
with open_runs as (
    select wanted.run_id, coalesce(runs.n_samples, 0) as n_samples
    from wanted
    anti join (from stored_runs where part = $part) using (run_id)
    left join runs using (run_id)
),

placed as (
    select run_id, (sum(n_samples) over (order by run_id) - n_samples) // $most as place
    from open_runs
)

select list(run_id order by run_id) as run_ids
from placed
group by place
order by place
