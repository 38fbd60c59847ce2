-- Whether a text is a mark, which does not change.
create or replace temp macro is_mark(given) as
    regexp_full_match(given, 'forgotten on \d{{4}}-\d\d-\d\d( \(\d+ bytes(, 中文)?, [0-9a-f]{{16}}\))?')
