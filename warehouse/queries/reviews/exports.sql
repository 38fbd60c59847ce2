-- One row per export that asks about verdicts of a run, the newest first.
with answers as (
    select export_id, count(distinct item_hash) as n_answered, list_sort(list(distinct reviewer)) as reviewers
    from reviews
    where export_id is not null
    group by export_id
)

select
    review_picks.export_id,
    min(review_picks.picked_at) as picked_at,
    count(*) as n_asked,
    coalesce(any_value(answers.n_answered), 0) as n_answered,
    coalesce(any_value(answers.reviewers), []) as reviewers
from review_picks
left join answers on answers.export_id = review_picks.export_id
where review_picks.run_id = $run_id and review_picks.asked
group by review_picks.export_id
order by picked_at desc, review_picks.export_id desc
