-- The keys of the batches that have rows of a segment of the journal.
select batch_key
from batches
where batch_key = $key or starts_with(batch_key, $key || '/')
