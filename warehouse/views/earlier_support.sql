-- One row per ground-truth statement that no retrieved context supports in a run, though contexts that an earlier run of
-- its series retrieved for the same sample did: what was found before is evidence of what the knowledge base holds.
--
-- Evidence is valid until an update may have changed it: of a document until an update names it, of all documents until
-- an update does not name its changes. A context that both runs have shows the judge's change and not retrieval's.
create or replace view earlier_support as
with open_runs as (select run_id from runs)

select * from ($earlier_support);

comment on view earlier_support is 'One row per ground-truth statement that no context supports in a run, though contexts that an earlier run retrieved for the sample did.';
comment on column earlier_support.run_id is 'Run.';
comment on column earlier_support.sample_id is 'Sample.';
comment on column earlier_support.statement_id is 'Statement of the ground truth: G1, G2, …';
comment on column earlier_support.finding is 'retrieved_before: nothing on record says that the knowledge base has lost it since; truth_outdated: an update since named a document that supported it.';
comment on column earlier_support.earlier_run_id is 'The latest such run of the same series, by the same judge and in the same language.';
comment on column earlier_support.context_ids is 'Ids of the contexts that supported the statement there; NULL, or NULL in it, where a context has none.';
comment on column earlier_support.changed_document is 'Document that the update named; NULL when none did.';
comment on column earlier_support.kb_version is 'Version of the knowledge base that the update brought; NULL without an update, or where it had no version.';
comment on column earlier_support.update_run_id is 'Run that answered the update; NULL without one.';
