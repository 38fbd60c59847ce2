-- One row per id of these, with the ids that it may belong to and, last, itself in the form that is compared.
select id, $id_owners(id) as owners
from (select unnest($ids::varchar[]) as id)
