-- One row per run, group that verdicts were picked from for review, and probability: how many were picked, and of how many
-- a label came back. Where some did not, the others of the same group represent them.
create or replace view corrected_strata as
with picked as (
    select
        run_id,
        item_hash,
        -- As in reviewed_verdicts: an export counts once a label came back for it, and the last one counts.
        arg_max({'stratum': stratum, 'probability': probability}, picked_at) as design,
        -- A label that was given unasked does not answer the draw; an item that had one before represents itself.
        bool_or(
            item_hash in (select item_hash from reviews where export_id is not null)
            or (stratum = 'reviewed' and item_hash in (select item_hash from reviews))
        ) as is_labelled
    from review_picks
    where export_id in (select export_id from reviews)
    group by run_id, item_hash
)

select
    run_id,
    design.stratum as stratum,
    design.probability as probability,
    count(*) as n_picked,
    count(*) filter (where is_labelled) as n_labelled
from picked
group by run_id, design.stratum, design.probability;

comment on view corrected_strata is 'One row per run, group that verdicts were picked from for review, and probability of being picked.';
comment on column corrected_strata.run_id is 'Run that was exported for review.';
comment on column corrected_strata.stratum is 'Group, as in review_picks.';
comment on column corrected_strata.probability is 'Probability of being picked, as in review_picks.';
comment on column corrected_strata.n_picked is 'Contents that were picked.';
comment on column corrected_strata.n_labelled is 'Contents of these with a label.';
