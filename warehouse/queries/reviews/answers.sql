-- One row per verdict that a reviewer has labelled for an export: the last label.
from reviews
select item_hash, label, first_label, note, strftime(reviewed_at, '%Y-%m-%dT%H:%M:%S.%gZ') as time
where export_id = $export_id and reviewer = $reviewer
qualify row_number() over (partition by item_hash order by reviewed_at desc, imported_at desc) = 1
