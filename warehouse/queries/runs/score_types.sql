-- One row for what is wrong with the columns of a metric that was tried on an empty warehouse. A bare null is an
-- INTEGER once it is in a table.
with first_row as (from metric_scores limit 1),

columns as (
    select
        'sample_id' as name, 'text' as wanted, typeof((select sample_id from first_row)) as came,
        can_cast_implicitly((select sample_id from first_row), null::varchar) as fits
    union all
    select
        'value', 'a number', typeof((select value from first_row)),
        can_cast_implicitly((select value from first_row), null::double)
    union all
    select
        'unscored_reason', 'text', typeof((select unscored_reason from first_row)),
        can_cast_implicitly((select unscored_reason from first_row), null::varchar) or typeof((select unscored_reason from first_row)) = 'INTEGER'
)

select format('{} is {}; it must be {}', name, came, wanted) as fault
from columns
where not fits
union all
select 'it gives a row where the run has no sample; it must give one row per sample of the run'
from first_row
