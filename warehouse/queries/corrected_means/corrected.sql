-- One row per metric of a run of whose verdicts some are reviewed.
from corrected_scores
where run_id = $run_id
order by metric
