-- A reply from the record has the model it was asked of, one from the endpoint the model that answered. A server of the
-- user may have a new model under a name, and the model at another address counts as a new one, unless both servers report
-- the same.
with served as (
    select run_id, judge, identity, endpoint
    from served_models
    where run_id in ($base, $candidate)
),

asked as (
    select
        run_id,
        sample_id,
        step,
        list_sort(list(distinct judge || ' ' || coalesce(prompt_hash, ''))) as judges,
        list(distinct model) filter (where status = 'ok' and model is not null) as models,
        list_sort(coalesce(list(distinct identity) filter (where identity is not null), [])) as identities,
        list_sort(coalesce(list(distinct endpoint) filter (where endpoint is not null), [])) as endpoints
    from llm_calls
    left join served using (run_id, judge)
    where run_id in ($base, $candidate) and status in ('ok', 'cached') and sample_id is not null
    group by run_id, sample_id, step
)

select sample_id, step
from asked as base
inner join asked as candidate using (sample_id, step)
where base.run_id = $base and candidate.run_id = $candidate
    and (
        base.judges <> candidate.judges
        or (len(base.models) > 0 and len(candidate.models) > 0 and not list_has_any(base.models, candidate.models))
        or (
            len(base.identities) > 0 and len(candidate.identities) > 0
            and base.identities <> candidate.identities
        )
        or (
            len(base.endpoints) > 0 and len(candidate.endpoints) > 0 and base.endpoints <> candidate.endpoints
            and (len(base.identities) = 0 or base.identities <> candidate.identities)
        )
    )
order by step, sample_id
