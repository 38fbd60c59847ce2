-- One row per run and cause: how many samples have it, as a share with an interval. Causes that no sample has are there too,
-- with 0, so that runs can be laid side by side.
--
-- A sample counts 1 / probability where a budget picked it (see sampled_means), so that the share is that of the whole
-- dataset (Hájek's ratio), and else 1. The interval is Wilson's (1927), Journal of the American Statistical Association 22,
-- 209-212, with z = 1.96: for a share p of n, (p + z²/2n ± z·√(p(1-p)/n + z²/4n²)) / (1 + z²/n). Here n is the effective number
-- of samples, p(1-p) by the variance of p (Korn and Graubard 1998, Survey Methodology 24), and (Σw)²/Σw² where p is 0 or 1
-- (Kish 1965, Survey Sampling): the number of samples where each counts 1.
create or replace view run_causes as
-- One pass over sample_causes, which is what takes the time.
with counted as (
    select
        sample_causes.run_id,
        sample_causes.cause,
        count(*) as n,
        sum(1 / coalesce(sample_picks.probability, 1)) as weight,
        sum(pow(coalesce(sample_picks.probability, 1), -2)) as squares
    from sample_causes
    left join sample_picks
        on sample_picks.run_id = sample_causes.run_id
        and sample_picks.sample_id = sample_causes.sample_id
    group by sample_causes.run_id, sample_causes.cause
),

causes as (
    select cause, min(precedence) as precedence
    from cause_rules
    group by cause
),

-- The samples with a cause, and the ones that its share is of.
summed as (
    select
        counted.run_id,
        causes.cause,
        causes.precedence,
        coalesce(sum(n) filter (where counted.cause = causes.cause), 0)::bigint as n_samples,
        coalesce(sum(weight) filter (where counted.cause = causes.cause), 0) as weight,
        coalesce(sum(squares) filter (where counted.cause = causes.cause), 0) as squares,
        coalesce(sum(n) filter (where counted.cause <> 'not_judged' or causes.cause = 'not_judged'), 0)::bigint as n_of,
        sum(weight) filter (where counted.cause <> 'not_judged' or causes.cause = 'not_judged') as weight_of,
        sum(squares) filter (where counted.cause <> 'not_judged' or causes.cause = 'not_judged') as squares_of
    from counted
    cross join causes
    group by counted.run_id, causes.cause, causes.precedence
),

shared as (
    select
        *,
        weight / weight_of as share,
        case
            when n_samples in (0, n_of) then squares_of / pow(weight_of, 2)
            else (pow(1 - share, 2) * squares + pow(share, 2) * (squares_of - squares))
                / pow(weight_of, 2) / (share * (1 - share))
        end as per_sample,
        1.96 * 1.96 * per_sample as pull,
        1.96 * sqrt(share * (1 - share) * per_sample + pull * per_sample / 4) as spread
    from summed
)

select
    run_id,
    cause,
    precedence,
    n_samples,
    n_of,
    share,
    -- Rounding must not push an end past the share itself, nor past 0 or 1.
    case when n_of = 0 then null when n_samples = 0 then 0 else (share + pull / 2 - spread) / (1 + pull) end as ci_low,
    case when n_of = 0 then null when n_samples = n_of then 1 else (share + pull / 2 + spread) / (1 + pull) end as ci_high
from shared;

comment on view run_causes is 'One row per run and cause: how many of its samples have it, with a 95 % interval of the share.';
comment on column run_causes.run_id is 'Run.';
comment on column run_causes.cause is 'Cause, as in sample_causes.';
comment on column run_causes.precedence is 'Place of the cause''s first rule in cause_rules.';
comment on column run_causes.n_samples is 'Samples with this cause.';
comment on column run_causes.n_of is 'Of how many: the judged samples; for not_judged all samples of the run.';
comment on column run_causes.share is 'n_samples / n_of, 0 to 1, and where a budget picked the samples the estimated share of the whole dataset; NULL when n_of is 0.';
comment on column run_causes.ci_low is 'Lower end of the 95 % interval of the share; NULL as share.';
comment on column run_causes.ci_high is 'Upper end of the 95 % interval of the share; NULL as share.';
