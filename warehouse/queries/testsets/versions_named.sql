-- One row per version on record whose hash begins so.
select distinct set_hash
from testset_versions
where starts_with(set_hash, $prefix)
order by set_hash
