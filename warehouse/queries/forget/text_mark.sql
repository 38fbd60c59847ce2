create or replace temp macro text_mark(given) as if(is_mark(given), given, make_mark(given, given))
