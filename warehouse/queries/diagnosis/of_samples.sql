-- One row per sample of a run among those wanted: its cause, and what decided.
select sample_id, cause, evidence
from sample_causes
where run_id = $run_id and list_contains($sample_ids::varchar[], sample_id)
