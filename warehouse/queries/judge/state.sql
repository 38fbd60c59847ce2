-- One text that changes whenever a run has begun or ended, a judge's noise was measured, or people gave labels.
select concat_ws(
    ' ',
    (select concat_ws(' ', count(*), max(run_id), max(finished_at), count(*) filter (where status = 'running')) from runs),
    (select concat_ws(' ', count(*), bit_xor(hash(noise))) from noise),
    (select concat_ws(' ', count(*), bit_xor(hash(reviews))) from reviews)
) as state
