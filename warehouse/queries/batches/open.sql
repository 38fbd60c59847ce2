-- One row per batch of a judge that may still hold unread answers, of one run where one is named.
select
    batch_id,
    min_by(run_id, noted_at) as run_id,
    max(provider_batch_id) as provider_batch_id,
    min(noted_at) as planned_at
from provider_batches
where judge = $judge
  and endpoint = $endpoint
  and ($run_id::varchar is null or run_id = $run_id)
group by batch_id
having not bool_or(status in ('over', 'never_sent'))
order by planned_at, batch_id
