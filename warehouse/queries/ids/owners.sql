-- An id of a document or a passage in the form that is compared, after the ids that it may belong to, the shortest first:
-- `shop/faq.md#3` belongs to `shop/faq.md` and to `shop`. The form is NFC with `/` in place of `\`, without a leading `./`;
-- capital letters count only in ids that are not paths, such as `aB3x`. `$id` is the given id.
list_transform(
    [rtrim(regexp_replace(replace(nfc_normalize(trim($id)), '\', '/'), '^(\./)+', ''), '/')],
    lambda form: list_transform(
        [case when regexp_matches(form, '/|\.[A-Za-z][A-Za-z0-9]{0,4}($|[#:|@])') then lower(form) else form end],
        lambda whole: list_transform(
            [regexp_extract_all(whole, '[^#:/|@]*[#:/|@]')],
            lambda parts: list_append(
                list_transform(parts, lambda part, place: array_to_string(parts[1:place], '')[1:-2]), whole
            )
        )[1]
    )[1]
)[1]
