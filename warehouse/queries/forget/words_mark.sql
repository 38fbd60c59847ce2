-- Where nothing is compared the day is enough.
create or replace temp macro words_mark(given) as if(given is null or is_mark(given), given, 'forgotten on {day}')
