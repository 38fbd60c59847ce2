-- One row per rating, or similarity of two texts.
select
    verdicts.sample_id,
    verdicts.step,
    verdicts.criterion,
    coalesce(verdicts.similarity, verdicts.rating) as value,
    verdicts.scale_max,
    verdicts.said,
    verdicts.rule,
    verdicts.statement as text,
    verdicts.reason,
    verdicts.call_id
from slice
inner join verdicts on verdicts.sample_id = slice.sample_id
where verdicts.run_id = $run_id and (verdicts.similarity is not null or verdicts.rating is not null)
order by verdicts.sample_id, verdicts.step, verdicts.criterion
