-- One row per verdict of any run and reviewer who has labelled its content, in that run or in another one: the latest
-- label of each reviewer.
create or replace view reviewed_verdicts as
with latest as (
    select *, bool_or(export_id is not null) over (partition by item_hash, reviewer) as is_answer
    from reviews
    qualify row_number() over (partition by item_hash, reviewer order by reviewed_at desc, imported_at desc) = 1
),

-- The draw of an export counts once a label came back for that export.
designs as (
    select item_hash, run_id, {'stratum': stratum, 'probability': probability} as design, picked_at
    from review_picks
    where export_id in (select export_id from reviews)
),

designs_of_run as (
    select item_hash, run_id, arg_max(design, picked_at) as design
    from designs
    group by item_hash, run_id
),

designs_of_item as (
    select item_hash, arg_max(design, picked_at) as design
    from designs
    group by item_hash
),

designed as (
    select
        review_items.*,
        latest.label,
        latest.first_label,
        latest.reviewer,
        latest.reviewed_at,
        latest.run_id as review_run_id,
        latest.is_answer,
        coalesce(designs_of_run.design, designs_of_item.design) as design
    from review_items
    inner join latest on latest.item_hash = review_items.item_hash
    left join designs_of_run
        on designs_of_run.item_hash = review_items.item_hash
        and designs_of_run.run_id = review_items.run_id
    left join designs_of_item on designs_of_item.item_hash = review_items.item_hash
)

select
    run_id,
    sample_id,
    step,
    statement_id,
    context_rank,
    source,
    judge_label,
    label,
    first_label,
    reviewer,
    reviewed_at,
    -- A person who labels a picked item unasked has chosen it, not chance.
    case when is_answer or design.stratum = 'reviewed' then design.probability end as probability,
    case when is_answer or design.stratum = 'reviewed' then design.stratum end as stratum,
    review_run_id,
    item_hash
from designed;

comment on view reviewed_verdicts is 'One row per verdict of any run and reviewer who has labelled its content: the same question, statement or context, and all it was judged against. Name a run: the texts of every run named are hashed.';
comment on column reviewed_verdicts.run_id is 'Run of the verdict.';
comment on column reviewed_verdicts.sample_id is 'Sample.';
comment on column reviewed_verdicts.step is 'Step that gave the verdict: classify, attribute or rank.';
comment on column reviewed_verdicts.statement_id is 'Statement the verdict is about; NULL in step rank.';
comment on column reviewed_verdicts.context_rank is 'Rank, from 1, of the context the verdict is about; NULL but in step rank.';
comment on column reviewed_verdicts.source is 'Text the statement was split from: answer or ground_truth; NULL in step rank.';
comment on column reviewed_verdicts.judge_label is 'What the judge says in this run: TP, FP or FN; supported or unsupported; useful or not_useful.';
comment on column reviewed_verdicts.label is 'The person''s label: the latest label of this reviewer.';
comment on column reviewed_verdicts.first_label is 'The person''s label before the judge''s verdict was shown; NULL when unknown.';
comment on column reviewed_verdicts.reviewer is 'The reviewer.';
comment on column reviewed_verdicts.reviewed_at is 'When, UTC.';
comment on column reviewed_verdicts.probability is 'Probability that its content was picked for review: by the last answered export of this run that has it, else of any run; 1 for an item that was reviewed before and represents itself. NULL when it was never picked, and for the label of a person who chose it unasked.';
comment on column reviewed_verdicts.stratum is 'Group it was picked from: votes, judges, gate, rest or reviewed; NULL as probability.';
comment on column reviewed_verdicts.review_run_id is 'Run whose verdict the person reviewed.';
comment on column reviewed_verdicts.item_hash is 'Hash of the content, as in review_items: verdicts of the same content share it and were picked as one.';
