-- The mark of a text: the day, its length, whether it was Chinese, and a hash, so that any query that counts or
-- compares texts still comes to what it did.
create or replace temp macro make_mark(given, compared) as
    'forgotten on {day} (' || strlen(trim(given)) || ' bytes' || if(regexp_matches(given, '\p{{Han}}'), ', 中文', '')
    || ', ' || left(md5(compared), 16) || ')'
