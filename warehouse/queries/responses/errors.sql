-- Errors that differ in numbers alone, or in words that have some (the id of a request, a time), are one, shown as the
-- example has it; a status of HTTP is not a mere number.
select arg_min(error, sample_id) as error, count(*) as n_samples, min(sample_id) as example
from responses
where run_id = $run_id and status = 'failed'
group by regexp_replace(error, '(status [0-9]+)|[A-Za-z0-9_-]*[0-9][A-Za-z0-9_.,:-]*', '\1', 'g')
order by n_samples desc, error
