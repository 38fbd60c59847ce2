-- metric: context_precision
-- version: 3
-- needs: rank
-- default: yes, place 7
-- correctable: no, ranks
-- meaning: Whether the useful contexts come first in the retrieved ones
-- One row per sample of the run: the mean, over the useful contexts, of the share of useful contexts down to
-- their rank k, sum(useful_k * useful in the top k / k) / sum(useful_k); 0 when none is useful, or none was retrieved. A
-- repeat of an earlier text is not useful once more.
select
    run_id,
    sample_id,
    case when useful_reason is null then coalesce(
        list_sum(list_transform(
            useful_gains, lambda gain, rank: if(gain = 1, list_sum(useful_gains[1:rank]) / rank, 0)
        )) / nullif(list_sum(useful_gains), 0),
        0
    ) end as value,
    useful_reason as unscored_reason
from sample_rankings
where run_id = $run_id
