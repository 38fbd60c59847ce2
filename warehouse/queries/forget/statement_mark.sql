-- Statements are compared whatever their blanks and capitals are.
create or replace temp macro statement_mark(given) as if(
    is_mark(given), given, make_mark(given, lower(trim(regexp_replace(given, '\s+', ' ', 'g'))))
)
