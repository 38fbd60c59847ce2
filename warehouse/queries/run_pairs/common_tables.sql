-- The estimates are of the samples that both datasets have: to add harder questions makes no bot worse. The tables that the
-- estimate reads have these alone.
common as (
    select sample_id
    from (
        select run_id, sample_id from main.sample_picks where run_id in ($base, $candidate)
        union
        select run_id, sample_id from main.scores where run_id in ($base, $candidate)
    )
    group by sample_id
    having count(*) = 2
),

sample_picks as (
    from main.sample_picks
    where run_id in ($base, $candidate) and sample_id in (from common)
),

sample_signals as (
    from main.sample_signals
    where run_id in ($base, $candidate) and sample_id in (from common)
),

unanswerable as (
    from ($unanswerable)
),

-- The relevancy of a right refusal is 0, and left out here as in comparisons of whole runs (`fetch_scores` in Python).
scores as (
    select
        scores.* replace (
            if(is_right, null, value) as value,
            if(is_right, 'no_statements', unscored_reason) as unscored_reason
        )
    from (
        select
            scores.*,
            metric = 'answer_relevancy' and value is not null and coalesce(is_refused, false) as is_right
        from main.scores
        left join unanswerable using (run_id, sample_id)
        where run_id in ($base, $candidate) and sample_id in (from common)
    ) as scores
)
