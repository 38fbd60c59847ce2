-- One row per run of the series up to this run, newest first. The embeddings decide no cause, so they are not part
-- of the yardstick.
with placed as (
    select
        run_id, status, judge, language, plan, started_at,
        lag({j: judge, l: language, p: plan}) over before = {j: judge, l: language, p: plan} as same_yardstick
    from run_series
    where series = (select series from run_series where run_id = $run_id)
        and (started_at, run_id) <= (select (started_at, run_id) from run_series where run_id = $run_id)
    window before as (order by started_at, run_id)
)

select run_id, status, judge, started_at, same_yardstick
from placed order by started_at desc, run_id desc limit $n_runs
