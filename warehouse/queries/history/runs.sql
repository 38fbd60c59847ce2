select runs.run_id, runs.started_at, runs.finished_at, runs.status, runs.label, runs.judge, runs.embeddings,
       runs.language, runs."trigger", runs.kb_name, runs.kb_version, runs.gate, runs.problem, runs.n_samples,
       runs.suite_hash, runs.code_version
from run_series
inner join runs on runs.run_id = run_series.run_id
where run_series.series = $series
order by runs.started_at, runs.run_id
