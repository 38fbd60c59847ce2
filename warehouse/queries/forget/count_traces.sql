-- One row: how many traces go, when they began, and what there is of them.
select
    count(*) as n_traces,
    coalesce(sum(n_spans), 0)::bigint as n_spans,
    coalesce(sum(n_events), 0)::bigint as n_events,
    coalesce(sum(n_bytes), 0)::bigint as n_bytes,
    min(began_at) as first_began_at,
    max(began_at) as last_began_at
from going_traces
