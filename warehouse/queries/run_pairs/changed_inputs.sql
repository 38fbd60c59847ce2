-- Equal hashes are equal texts; metadata is beside the hash, and is NULL in run_samples where it is that of samples.
with sources as (
    select
        run_id,
        sample_id,
        any_value(context_sources::varchar) as names
    from responses
    where run_id in ($base, $candidate) and context_sources is not null
    group by run_id, sample_id
),

pairs as (
    select
        sample_id,
        base.input_hash as base_hash,
        candidate.input_hash as candidate_hash,
        base.metadata as base_metadata,
        candidate.metadata as candidate_metadata,
        base_sources.names as base_sources,
        candidate_sources.names as candidate_sources
    from run_samples as base
    inner join run_samples as candidate using (sample_id)
    left join sources as base_sources on base_sources.sample_id = base.sample_id and base_sources.run_id = $base
    left join sources as candidate_sources
        on candidate_sources.sample_id = base.sample_id and candidate_sources.run_id = $candidate
    where base.run_id = $base and candidate.run_id = $candidate
        and (
            base.input_hash <> candidate.input_hash
            or base.metadata is not null
            or candidate.metadata is not null
            or base_sources.names is distinct from candidate_sources.names
        )
),

-- Texts by their hashes: where one was forgotten its mark ends in that.
compared as (
    select
        sample_id,
        input_hash,
        context_ids,
        reference_context_ids,
        metadata,
        conversation::varchar as conversation,
        list_where(
            json_extract_string(conversation, '$[*].text'),
            list_transform(json_extract_string(conversation, '$[*].role'), lambda role: role = 'user')
        ) as earlier_questions,
        list_transform(
            [question, answer, ground_truth],
            lambda text: if(starts_with(text, 'forgotten on '), left(right(text, 17), 16), left(md5(text), 16))
        ) as texts,
        list_transform(
            contexts,
            lambda text: if(starts_with(text, 'forgotten on '), left(right(text, 17), 16), left(md5(text), 16))
        ) as contexts
    from samples
    where (sample_id, input_hash) in (
        select (sample_id, base_hash) from pairs union all select (sample_id, candidate_hash) from pairs
    )
),

-- The accepted answer that counts, of samples with several. Whether a forgotten one changed is unknown.
accepted as (
    select
        run_id,
        sample_id,
        any_value(text) as text
    from similarities
    where run_id in ($base, $candidate) and kind = 'accepted_answer' and not starts_with(text, 'forgotten on ')
    group by run_id, sample_id
),

texts as (
    select
        pairs.sample_id,
        base.texts[1] is distinct from candidate.texts[1] as question,
        base.texts[2] is distinct from candidate.texts[2] as answer,
        base.texts[3] is distinct from candidate.texts[3] as ground_truth,
        base.contexts is distinct from candidate.contexts as contexts,
        base.context_ids is distinct from candidate.context_ids as context_ids,
        base.reference_context_ids is distinct from candidate.reference_context_ids as reference_context_ids,
        -- Whether a forgotten one changed is unknown.
        base.conversation is distinct from candidate.conversation
            and not contains(concat(base.conversation, candidate.conversation), '"forgotten on ') as earlier_turns,
        coalesce(base.earlier_questions, []) = coalesce(candidate.earlier_questions, []) as asks_the_same,
        earlier_turns and not asks_the_same as conversation,
        earlier_turns and asks_the_same as earlier_answers,
        answer and coalesce(base_accepted.text <> candidate_accepted.text, false) as accepted_answer,
        accepted_answer and list_sort(base.contexts) is not distinct from list_sort(candidate.contexts)
            as accepted_beside_same,
        coalesce(pairs.base_metadata, base.metadata) as base_metadata,
        coalesce(pairs.candidate_metadata, candidate.metadata) as candidate_metadata,
        -- As tasks.datasets.values.list_source_names reads them from the objects of a dataset.
        list_transform(
            [
                coalesce(pairs.base_metadata, base.metadata, 'null'),
                coalesce(pairs.candidate_metadata, candidate.metadata, 'null')
            ],
            lambda one: [
                json_extract_string(one, '$.contexts[*].url'),
                json_extract_string(one, '$.contexts[*].source'),
                json_extract_string(one, '$.contexts[*].metadata.url'),
                json_extract_string(one, '$.contexts[*].metadata.source')
            ]
        ) as written,
        pairs.base_sources is distinct from pairs.candidate_sources or written[1] <> written[2] as context_sources
    from pairs
    inner join compared as base on base.sample_id = pairs.sample_id and base.input_hash = pairs.base_hash
    inner join compared as candidate
        on candidate.sample_id = pairs.sample_id
        and candidate.input_hash = pairs.candidate_hash
    left join accepted as base_accepted
        on base_accepted.sample_id = pairs.sample_id and base_accepted.run_id = $base
    left join accepted as candidate_accepted
        on candidate_accepted.sample_id = pairs.sample_id and candidate_accepted.run_id = $candidate
)

select * exclude (earlier_turns, asks_the_same, base_metadata, candidate_metadata, written), {further}
from texts
