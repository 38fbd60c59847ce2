-- One row per run and step whose verdicts were voted on: how often the votes were not of one mind.
create or replace view vote_flips as
with items as (
    -- Of an item that was judged in parts, all parts' votes count.
    select
        run_id,
        step,
        sample_id,
        item_id,
        count(*) as n_votes,
        count(*) filter (where not agrees) as n_against
    from votes
    group by run_id, step, sample_id, item_id
)

select
    run_id,
    step,
    count(*) as n_items,
    count(*) filter (where n_against > 0) as n_flipped,
    count(*) filter (where n_against > 0) / count(*) as flip_rate,
    sum(n_votes)::bigint as n_votes,
    sum(n_against)::bigint as n_against,
    sum(n_against) / sum(n_votes) as against_rate
from items
group by run_id, step;

comment on view vote_flips is 'One row per run and step whose verdicts were voted on.';
comment on column vote_flips.run_id is 'Run.';
comment on column vote_flips.step is 'Step that was voted on: classify, attribute or rank.';
comment on column vote_flips.n_items is 'Statements or contexts that have a verdict by vote.';
comment on column vote_flips.n_flipped is 'Items of these whose votes were not unanimous.';
comment on column vote_flips.flip_rate is 'n_flipped / n_items, 0 to 1.';
comment on column vote_flips.n_votes is 'Votes on these items, each on one item; without failed ones.';
comment on column vote_flips.n_against is 'Votes that differ from the majority.';
comment on column vote_flips.against_rate is 'n_against / n_votes, 0 to 1: how often a single request would have given another verdict.';
