-- One row where traces were forgotten that may have begun in [$since, $until): how many by these forgettings, when, why.
select
    sum(n_traces)::bigint as n_traces,
    min(first_began_at) as first_began_at,
    max(last_began_at) as last_began_at,
    max(forgotten_at) as forgotten_at,
    list(distinct rule order by rule) as rules
from forgotten_traces
where last_began_at >= $since and first_began_at < $until
having count(*) > 0
