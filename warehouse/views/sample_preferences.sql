-- One row per sample of which one of two answers was preferred: what both orders come to. Each order gives the answers a
-- point between them, half of one for a tie; a sample counts by the mean of both.
create or replace view sample_preferences as
with pointed as (
    select
        *,
        case verdict when 'first' then 1.0 when 'tie' then 0.5 else 0.0 end as of_first
    from preferences
),

joined as (
    select
        run_id,
        sample_id,
        any_value(cluster) as cluster,
        bool_and(call_id is null) as is_identical,
        max(verdict) filter (where shown_first = 'base') as base_first,
        max(verdict) filter (where shown_first = 'candidate') as candidate_first,
        max(reason) filter (where shown_first = 'base') as base_first_reason,
        max(reason) filter (where shown_first = 'candidate') as candidate_first_reason,
        max(call_id) filter (where shown_first = 'base') as base_first_call_id,
        max(call_id) filter (where shown_first = 'candidate') as candidate_first_call_id,
        case when count(*) = 2 then avg(case when shown_first = 'candidate' then of_first else 1 - of_first end) end as points,
        case when count(*) = 2 and not is_identical then avg(of_first) end as first_place
    from pointed
    group by run_id, sample_id
)

select
    run_id,
    sample_id,
    cluster,
    points,
    case when points > 0.5 then 'candidate' when points < 0.5 then 'base' when points = 0.5 then 'tie' end as winner,
    is_identical,
    case
        when first_place is null then null
        when points in (0.25, 0.75) then 'half'
        when base_first = candidate_first and base_first <> 'tie' then 'contradict'
        else 'agree'
    end as orders,
    first_place,
    base_first,
    base_first_reason,
    base_first_call_id,
    candidate_first,
    candidate_first_reason,
    candidate_first_call_id
from joined;

comment on view sample_preferences is 'One row per sample of which one of two answers was preferred.';
comment on column sample_preferences.run_id is 'Run, of kind prefer.';
comment on column sample_preferences.sample_id is 'Sample.';
comment on column sample_preferences.cluster is 'Group of samples that are not independent; NULL where samples are independent.';
comment on column sample_preferences.points is 'What the candidate''s answer has of the one point: 1, 0.75, 0.5, 0.25 or 0, the mean of both orders; NULL where an order has no verdict.';
comment on column sample_preferences.winner is 'candidate, base or tie, by the points; NULL where an order has no verdict.';
comment on column sample_preferences.is_identical is 'Whether the answers are the same, so that nothing was asked.';
comment on column sample_preferences.orders is 'agree: both orders say the same; half: one says tie; contradict: the order decided. NULL where not both were asked.';
comment on column sample_preferences.first_place is 'The share of the point that the first answer has, the mean of both orders: 0.5 where the place decided nothing; NULL where not both were asked.';
comment on column sample_preferences.base_first is 'first, second or tie, with the base''s answer in front.';
comment on column sample_preferences.base_first_reason is 'The judge''s reason for it.';
comment on column sample_preferences.base_first_call_id is 'The call that gave it.';
comment on column sample_preferences.candidate_first is 'first, second or tie, with the candidate''s answer in front.';
comment on column sample_preferences.candidate_first_reason is 'The judge''s reason for it.';
comment on column sample_preferences.candidate_first_call_id is 'The call that gave it.';
