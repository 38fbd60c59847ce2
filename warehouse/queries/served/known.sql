-- The stored identities of the model behind a name at an address, one row: what this run began with, what the last run had,
-- and what the first had, to which all replies without an identity belong.
select
    max_by(identity, noted_at) filter (where run_id = $run_id) as of_run,
    max_by(identity, noted_at) as last,
    min_by(identity, noted_at) as first,
    coalesce(
        max_by(context_window, noted_at) filter (where run_id = $run_id), max_by(context_window, noted_at)
    ) as context_window
from served_models
where endpoint = $endpoint and model = $model
