-- What a page of runs that have ended rests on, as one text: another one whenever a run begins or ends, its scores,
-- causes or costs are stored or no longer hold, or a person labels or decides something. Which runs are under way, and
-- of which all parts are stored, so that whatever is written of them shows in that text.
select
    concat_ws(
        ' ',
        (select concat(count(*), ':', bit_xor(hash(t))) from runs as t),
        (select concat(count(*), ':', bit_xor(hash(t))) from stored_parts as t),
        (select concat(count(*), ':', bit_xor(hash(t))) from reviews as t),
        (select concat(count(*), ':', bit_xor(hash(t))) from review_picks as t),
        (select concat(count(*), ':', bit_xor(hash(t))) from gate_decisions as t),
        (select concat(count(*), ':', bit_xor(hash(t))) from gate_checks as t),
        (select concat(count(*), ':', bit_xor(hash(t))) from gate_acceptances as t),
        (select concat(count(*), ':', bit_xor(hash(t))) from kb_updates as t),
        (select concat(count(*), ':', bit_xor(hash(t))) from noise as t)
    ) as stamp,
    coalesce((select list(run_id) from runs where status = 'running'), []) as running,
    coalesce(
        (select list(run_id) from (select run_id from stored_runs group by run_id having count(distinct part) = 3)), []
    ) as stored
