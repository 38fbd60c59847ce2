-- Which samples of a run are not independent of each other, as its dataset's columns say: intervals of means count groups
-- where there are some. Runs from before have none.
alter table run_samples add column cluster varchar;

comment on column run_samples.cluster is 'Column of the metadata and its value, such as document_id="d1", that samples of one group share; NULL where a run has no groups. In a run with groups a sample that is of none has its own. The column is the first known one that all samples of the run have and some share, or the one that the suite''s gate names.';
