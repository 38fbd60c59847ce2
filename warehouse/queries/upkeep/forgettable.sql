-- One row per snapshot of a lake but the last of each run, oldest first; the newest of all stays, and none from before
-- rows were forgotten.
select snapshot_id
from ducklake_snapshots('{lake}')
qualify (
    snapshot_id not in (select max(snapshot_id) from ducklake_snapshots('{lake}') group by commit_message)
    or snapshot_id <= (select max(snapshot_id) from ducklake_snapshots('{lake}') where commit_message = '{forgetting}')
) and snapshot_id < max(snapshot_id) over ()
order by snapshot_id
