-- Statements are compared without blanks and capitals.
create or replace temp macro statement_mark(given) as if(
    is_mark(given), given, make_mark(given, lower(trim(regexp_replace(given, '\s+', ' ', 'g'))))
)
