-- One row per run and cause: how many samples have it, as a share with an interval. Causes that no sample has are there too,
-- with 0, so that runs can be laid side by side.
--
-- The interval is Wilson's (1927), Journal of the American Statistical Association 22, 209-212, with z = 1.96: for a share p
-- of n, (p + z²/2n ± z·√(p(1-p)/n + z²/4n²)) / (1 + z²/n).
create or replace view run_causes as
-- One pass over sample_causes, which is what takes the time.
with sizes as (
    select
        run_id,
        count(*) as n_all,
        count(*) filter (where cause <> 'not_judged') as n_judged,
        histogram(cause) as n_by_cause
    from sample_causes
    group by run_id
),

causes as (
    select cause, min(precedence) as precedence
    from cause_rules
    group by cause
),

counted as (
    select
        sizes.run_id,
        causes.cause,
        causes.precedence,
        coalesce(sizes.n_by_cause[causes.cause], 0)::bigint as n_samples,
        case when causes.cause = 'not_judged' then sizes.n_all else sizes.n_judged end as n_of
    from sizes
    cross join causes
),

shared as (
    select
        *,
        n_samples / nullif(n_of, 0) as share,
        1.96 * 1.96 / nullif(n_of, 0) as pull,
        1.96 * sqrt(share * (1 - share) / nullif(n_of, 0) + pull / nullif(4 * n_of, 0)) as spread
    from counted
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
comment on column run_causes.share is 'n_samples / n_of, 0 to 1; NULL when n_of is 0.';
comment on column run_causes.ci_low is 'Lower end of the 95 % interval of the share; NULL as share.';
comment on column run_causes.ci_high is 'Upper end of the 95 % interval of the share; NULL as share.';
