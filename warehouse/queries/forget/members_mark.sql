-- Metadata keeps the names of its members, for samples are compared and cut into slices by them.
create or replace temp macro members_mark(given) as if(
    json_type(given) = 'OBJECT',
    to_json(map_from_entries(list_transform(
        json_keys(given),
        lambda name: {{
            'key': name,
            'value': text_mark(
                if(
                    is_mark(json_extract_string(given, '/' || replace(replace(name, '~', '~0'), '/', '~1'))),
                    json_extract_string(given, '/' || replace(replace(name, '~', '~0'), '/', '~1')),
                    json_extract(given, '/' || replace(replace(name, '~', '~0'), '/', '~1'))::varchar
                )
            )
        }}
    ))),
    if(given is null, null, to_json(text_mark(given::varchar)))
)
