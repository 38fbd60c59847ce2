-- One row per value by which runs can be found, and how many have it.
select name, choice, count(*) as n_runs
from (
    select unnest(['kind', 'status', 'suite', 'dataset', 'judge', 'label']) as name,
           unnest([kind, status, suite, dataset, judge, label]) as choice
    from runs
    union all
    select 'tag', unnest(tags) from runs
)
where choice is not null
group by name, choice
order by name, n_runs desc, choice
