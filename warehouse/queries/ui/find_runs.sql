-- One row per run that is looked for, with how many there are in all; a parameter that is NULL asks for nothing.
with found as (
    select
        runs.run_id, runs.kind, runs.status, runs.suite, runs.variant, runs.dataset, runs.judge, runs.label, runs.tags,
        runs.gate, runs.started_at, runs.finished_at, runs.n_samples, runs.problem, runs.parent_run_id,
        epoch(runs.finished_at - runs.started_at) as seconds
    from runs
    left join run_series on run_series.run_id = runs.run_id
    where ($kind is null or runs.kind = $kind)
        and ($status is null or runs.status = $status)
        and ($suite is null or runs.suite = $suite)
        and ($dataset is null or runs.dataset = $dataset)
        and ($judge is null or runs.judge = $judge)
        and ($label is null or runs.label = $label)
        and ($tag is null or list_contains(runs.tags, $tag))
        and ($series is null or run_series.series = $series)
        and (
            $words is null
            or contains(
                lower(concat_ws(' ', runs.run_id, runs.label, runs.suite, runs.variant, runs.dataset, runs.judge,
                                runs.tags::varchar, runs.problem, runs.kb_version)),
                lower($words)
            )
        )
)

select *, count(*) over () as n_found
from found
order by $order
limit $most offset $start
