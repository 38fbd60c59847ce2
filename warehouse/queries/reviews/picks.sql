-- One row per verdict that these exports put on record.
from review_picks
where export_id in (select unnest($export_ids))
