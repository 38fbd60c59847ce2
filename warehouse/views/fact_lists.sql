-- One row per sample of a run: its statements as lists of TP, FP and FN, what the three factual metrics made of them, and
-- how the run was named, for readers who want a comparison whole and not by statement.
create or replace view fact_lists as
with listed as (
    select
        run_id,
        sample_id,
        list(text order by ordinal) filter (where source = 'answer' and label = 'TP') as tp,
        list(text order by ordinal) filter (where source = 'answer' and label = 'FP') as fp,
        list(text order by ordinal) filter (where source = 'ground_truth' and label = 'FN') as fn
    from statement_verdicts
    group by run_id, sample_id
),

scored as (
    select
        run_id,
        sample_id,
        max(value) filter (where metric = 'factual_precision') as factual_precision,
        max(value) filter (where metric = 'factual_recall') as factual_recall,
        max(value) filter (where metric = 'factual_f1') as factual_f1
    from scores
    group by run_id, sample_id
),

-- A list of nothing is empty where the statements were classified, and NULL where they were not.
facts as (
    select
        sample_steps.run_id,
        sample_steps.sample_id,
        case when sample_steps.reason is null then coalesce(listed.tp, []) end as tp,
        case when sample_steps.reason is null then coalesce(listed.fp, []) end as fp,
        case when sample_steps.reason is null then coalesce(listed.fn, []) end as fn,
        sample_steps.reason
    from sample_steps
    left join listed
        on listed.run_id = sample_steps.run_id
        and listed.sample_id = sample_steps.sample_id
    where sample_steps.step = 'classify'
)

select
    facts.run_id,
    facts.sample_id,
    runs.label,
    runs.href,
    runs.tags,
    facts.tp,
    facts.fp,
    facts.fn,
    len(facts.tp) as n_tp,
    len(facts.fp) as n_fp,
    len(facts.fn) as n_fn,
    scored.factual_precision,
    scored.factual_recall,
    scored.factual_f1,
    facts.reason
from facts
left join runs on runs.run_id = facts.run_id
left join scored
    on scored.run_id = facts.run_id
    and scored.sample_id = facts.sample_id;

comment on view fact_lists is 'One row per sample of a run: the texts of its TP, FP and FN statements as lists, the factual scores made of them, and the run''s label, href and tags.';
comment on column fact_lists.run_id is 'Run; the id that other tools call the run''s UUID.';
comment on column fact_lists.sample_id is 'Sample.';
comment on column fact_lists.label is 'Label of the run, and of no statement; NULL when it was given none.';
comment on column fact_lists.href is 'Link of the run; NULL when it was given none.';
comment on column fact_lists.tags is 'Tags of the run.';
comment on column fact_lists.tp is 'Answer statements that the ground truth supports, in their order; NULL when nothing was classified.';
comment on column fact_lists.fp is 'Answer statements that the ground truth does not support, in their order; NULL as tp.';
comment on column fact_lists.fn is 'Ground-truth statements that the answer leaves out, in their order; NULL as tp.';
comment on column fact_lists.n_tp is 'Length of tp; NULL as tp.';
comment on column fact_lists.n_fp is 'Length of fp; NULL as tp.';
comment on column fact_lists.n_fn is 'Length of fn; NULL as tp.';
comment on column fact_lists.factual_precision is 'Score of factual_precision; NULL when it is missing or the run has not this metric.';
comment on column fact_lists.factual_recall is 'Score of factual_recall; NULL when it is missing or the run has not this metric.';
comment on column fact_lists.factual_f1 is 'Score of factual_f1; NULL when it is missing or the run has not this metric.';
comment on column fact_lists.reason is 'Why nothing was classified, one of unscored_reasons; NULL when it was.';
