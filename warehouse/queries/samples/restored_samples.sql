-- Texts that were forgotten and come again with a dataset take the place of their marks.
delete from samples
where starts_with(question, 'forgotten on ')
    and (sample_id, input_hash) in (
        select (sample_id, input_hash) from staged_ids semi join read_parquet($parts) using (ordinal)
    )
