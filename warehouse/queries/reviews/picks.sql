-- One row per verdict that these exports recorded.
from review_picks
where export_id in (select unnest($export_ids))
