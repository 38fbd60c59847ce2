-- One row per part of what is told of a run that is stored: what it is computed by today.
create or replace view stored_rules as
with texts (part, rules) as (
    values
        -- Hashes of the queries and views that compute them.
        ('scores', '$hash_of_scores'),
        ('causes', '$hash_of_causes'),
        ('costs', '$hash_of_costs')
),

thresholds as (
    select string_agg(threshold || ' ' || value, ', ' order by threshold) as thresholds
    from cause_thresholds
)

select
    texts.part,
    texts.rules || if(texts.part = 'causes', ', ' || thresholds.thresholds, '') as rules
from texts
cross join thresholds;

comment on view stored_rules is 'One row per part of what is told of a run that is stored: what it is computed by today.';
comment on column stored_rules.part is 'scores, causes or costs.';
comment on column stored_rules.rules is 'A hash of the queries that compute it, and the thresholds of causes.';
