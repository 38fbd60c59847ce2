-- One row per statement that was found, with its verdicts and the calls that gave them.
with given as (
    select verdicts.*, split_part(verdicts.step, '_', 1) as kind
    from slice
    inner join verdicts on verdicts.sample_id = slice.sample_id
    where verdicts.run_id = $run_id and verdicts.statement_id is not null
)

select
    sample_id,
    statement_id as id,
    any_value(source) filter (where kind = 'extract') as source,
    any_value(ordinal) filter (where kind = 'extract') as ordinal,
    any_value(statement) filter (where kind = 'extract') as text,
    any_value(label) filter (where kind = 'classify') as label,
    any_value(reason) filter (where kind = 'classify') as label_reason,
    any_value(supported) filter (where kind = 'attribute') as supported,
    any_value(context_ranks) filter (where kind = 'attribute') as context_ranks,
    any_value(joint_ranks) filter (where kind = 'attribute') as joint_ranks,
    any_value(reason) filter (where kind = 'attribute') as support_reason,
    list({kind: kind, call_id: call_id} order by kind) filter (where call_id is not null) as calls
from given
group by sample_id, statement_id
having bool_or(kind = 'extract')
order by sample_id, source, ordinal, statement_id
