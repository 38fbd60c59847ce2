-- An id of a document or a passage in the form that is compared, after the ids that it may belong to, the shortest first:
-- `shop/faq.md#3` belongs to `shop/faq.md` and to `shop`. The form is NFC with `/` in place of `\`, without a leading `./`;
-- capital letters count only in ids that are not paths, such as `aB3x`. `$id` is the given id.
--
-- Each page of a site is a document: in an address (`https://…`, `docs.x.com/…`, `/docs/…`) a `/` separates a passage only
-- from the ending of a file (`…/faq.md/3`), a `:` only a number at the end, and `@` or `|` only what has no `/`.
list_transform(
    [rtrim(regexp_replace(replace(nfc_normalize(trim($id)), '\', '/'), '^(\./)+', ''), '/')],
    lambda form: list_transform(
        [case when regexp_matches(form, '/|\.[A-Za-z][A-Za-z0-9]{0,4}($|[#:|@])') then lower(form) else form end],
        lambda whole: list_transform(
            [regexp_extract_all(whole, '[^#:/|@]*[#:/|@]')],
            lambda parts: list_append(
                list_transform(
                    list_filter(
                        list_transform(parts, lambda part, place: array_to_string(parts[1:place], '')),
                        lambda cut: not regexp_matches(whole, '^/|://|^[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,}/')
                            or regexp_matches(whole[length(cut):], '^(#|:+([a-z]+[-_ ]?)?\d+([#:|@]|$)|[@|][^/]*$)')
                            or regexp_matches(
                                cut,
                                '\.(mdx?|markdown|txt|pdf|html?|docx?|pptx?|xlsx?|csv|jsonl?|ya?ml|rst|adoc|xml|rtf|epub|odt|ipynb)'
                                '([:|@]+[^/]*)?[#:/|@]$'
                            )
                    ),
                    lambda cut: case when regexp_matches(cut, '/[#:|@]$') then cut[:-3] else cut[:-2] end
                ),
                whole
            )
        )[1]
    )[1]
)[1]
