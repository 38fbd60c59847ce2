-- One row: how many traces go, and what there is of them.
select
    count(*) as n_traces,
    coalesce(sum(n_spans), 0)::bigint as n_spans,
    coalesce(sum(n_events), 0)::bigint as n_events,
    coalesce(sum(n_bytes), 0)::bigint as n_bytes
from going_traces
