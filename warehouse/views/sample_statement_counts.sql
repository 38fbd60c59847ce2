-- One row per sample of a run that has statements: how many there are of each kind.
create or replace view sample_statement_counts as
select
    run_id,
    sample_id,
    count(*) filter (where source = 'answer') as n_answer,
    count(*) filter (where source = 'ground_truth') as n_ground_truth,
    count(*) filter (where source = 'answer' and label = 'TP') as n_tp,
    count(*) filter (where source = 'answer' and label = 'FP') as n_fp,
    count(*) filter (where source = 'ground_truth' and label = 'FN') as n_fn,
    count(*) filter (where source = 'answer' and supported) as n_answer_supported,
    count(*) filter (where source = 'ground_truth' and supported_by_contexts) as n_ground_truth_supported,
    count(*) filter (where source = 'ground_truth' and supported_by_contexts and label = 'TP')
        as n_ground_truth_supported_tp,
    count(*) filter (where source = 'answer' and label = 'TP' and not supported) as n_tp_unsupported,
    count(*) filter (where source = 'answer' and label = 'FP' and not supported) as n_fp_unsupported,
    count(*) filter (where source = 'answer' and label = 'FP' and supported and supported_by_relevant) as n_fp_relevant,
    -- A statement that turns alone support is not noise of the retriever.
    count(*) filter (
        where source = 'answer' and label = 'FP' and supported and not supported_by_relevant and len(support_ranks) > 0
    ) as n_fp_irrelevant
from statement_verdicts
group by run_id, sample_id;

comment on view sample_statement_counts is 'One row per sample of a run that has statements: how many of each kind. Counts are meaningful where sample_steps gives no reason for the step they come from.';
comment on column sample_statement_counts.run_id is 'Run.';
comment on column sample_statement_counts.sample_id is 'Sample.';
comment on column sample_statement_counts.n_answer is 'Statements of the answer.';
comment on column sample_statement_counts.n_ground_truth is 'Statements of the ground truth.';
comment on column sample_statement_counts.n_tp is 'Answer statements that the ground truth supports.';
comment on column sample_statement_counts.n_fp is 'Answer statements that the ground truth does not support.';
comment on column sample_statement_counts.n_fn is 'Ground-truth statements that the answer leaves out.';
comment on column sample_statement_counts.n_answer_supported is 'Answer statements that the contexts support, one alone or several together, or earlier turns of the conversation.';
comment on column sample_statement_counts.n_ground_truth_supported is 'Ground-truth statements that the contexts support, one alone or several together.';
comment on column sample_statement_counts.n_ground_truth_supported_tp is 'Ground-truth statements that the contexts support and the answer states.';
comment on column sample_statement_counts.n_tp_unsupported is 'TP answer statements that no context supports, nor several together, nor an earlier turn.';
comment on column sample_statement_counts.n_fp_unsupported is 'FP answer statements that no context supports, nor several together, nor an earlier turn.';
comment on column sample_statement_counts.n_fp_relevant is 'FP answer statements in whose support a context has part that also has part in that of a ground-truth statement.';
comment on column sample_statement_counts.n_fp_irrelevant is 'FP answer statements supported only by contexts that have no part in the support of a ground-truth statement.';
