-- One row per answer and metric of these replays; of an answer that was scored in several, that of the newest.
select scores.sample_id as ask_id, scores.metric, scores.value, scores.unscored_reason
from wanted
inner join scores using (run_id)
qualify row_number() over (
    partition by scores.sample_id, scores.metric order by scores.value is null, scores.run_id desc
) = 1
