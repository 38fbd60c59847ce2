update {table}
set {marks}
where run_id in (select run_id from here) and ($sample_id is null or {sample} = $sample_id)
