-- One row per language that the lexical judge was asked about and does not know, the most frequent first.
select detail as language, count(distinct sample_id) as n_samples
from outcomes
where run_id = $run_id and reason = 'language_not_supported' and detail is not null
group by detail
order by n_samples desc, language
