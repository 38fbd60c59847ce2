"""The schema of a reply to one request: every id that is asked for, once, with what may be said of it.

The schema of a prompt file fits any data, so that a reply which stops half way through the ids, or makes some up, fits
it too, and so does a list in which a small model says the same over and over until its window is full. One for the data
at hand does not let that happen where the endpoint holds the model to it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from evalhouse.prompts.prompt_file import Schema, name_support, pick_prefixes, pick_verdict_lists
from evalhouse.prompts.render import BlockValue
from evalhouse.prompts.verdict_rows import is_row_schema, name_row

# What is longer makes grammars that some servers take long over, or refuse.
_MOST_IDS = 64
# Every statement takes a word of the text at least; a script without spaces counts by its characters.
_WORD = re.compile(r"[A-Za-z0-9]+|[^\x00-\x7f]")
_LEAST_TEXTS = 8


def name_ids(
    schema: dict[str, Any], labels: Mapping[str, Sequence[str]], data: Mapping[str, BlockValue], only: Collection[str]
) -> dict[str, Any]:
    """The schema for these data; as it is where the reply has more verdicts than a schema should name.

    Lists of texts end where the data have no more words to make one of. Each list of verdicts is about ids of certain
    prefixes; all other ids are what they may cite. One of which none is asked for is left out.
    """
    ids = [item.id for value in data.values() if not isinstance(value, str) for item in value]
    lists = pick_verdict_lists(schema["properties"], data)
    if not lists:
        return _bound_texts(schema, data)
    # In the order in which the prompt asks for them, which for one list of all is that of the labels.
    own = {
        name: [item_id for prefix in pick_prefixes(name, labels) for item_id in ids if item_id[0] == prefix]
        for name in lists
    }
    asked = {
        name: [item_id for item_id in judged if not only or {item_id, name_support(item_id)} & {*only}]
        for name, judged in own.items()
    }
    if not 0 < sum(map(len, asked.values())) <= _MOST_IDS:
        return schema
    named = {
        name: _name_rows(judged, labels, only)
        if is_row_schema(lists[name]["items"])
        else _name_list(lists[name]["items"], judged, labels, [item_id for item_id in ids if item_id not in own[name]])
        for name, judged in asked.items()
        if judged
    }
    kept = [name for name in schema["properties"] if name in named or name not in lists]
    properties = {name: named.get(name, schema["properties"][name]) for name in kept}
    return schema | {"properties": properties, "required": list(properties)}


def _bound_texts(schema: dict[str, Any], data: Mapping[str, BlockValue]) -> dict[str, Any]:
    words = sum(len(_WORD.findall(value)) for value in data.values() if isinstance(value, str))
    bound = {"maxItems": max(_LEAST_TEXTS, words)}
    properties = {
        name: part | bound if part.get("items") == {"type": "string"} else part
        for name, part in schema["properties"].items()
    }
    return schema | {"properties": properties}


def _name_list(
    verdict: Schema, ids: Sequence[str], labels: Mapping[str, Sequence[str]], cited: Sequence[str]
) -> dict[str, Any]:
    return _list_exactly([_name_verdict(verdict, item_id, labels[item_id[0]], cited) for item_id in ids])


def _name_rows(ids: Sequence[str], labels: Mapping[str, Sequence[str]], only: Collection[str]) -> dict[str, Any]:
    return _list_exactly(
        [
            name_row(
                item_id,
                labels[item_id[0]],
                with_label=not only or item_id in only,
                with_support=not only or name_support(item_id) in only,
            )
            for item_id in ids
        ]
    )


def _list_exactly(named: Sequence[Schema]) -> dict[str, Any]:
    return {"type": "array", "prefixItems": list(named), "minItems": len(named), "maxItems": len(named)}


def _name_verdict(verdict: Schema, item_id: str, labels: Sequence[str], cited: Sequence[str]) -> dict[str, Any]:
    properties = dict(verdict["properties"])
    for name, schema in properties.items():
        if name == "id":
            properties[name] = schema | {"enum": [item_id]}
        elif name == "label" and labels:
            properties[name] = schema | {"enum": list(labels)}
        elif schema["type"] == "array" and cited:
            properties[name] = schema | {"items": schema["items"] | {"enum": list(cited)}, "maxItems": len(cited)}
    return {**verdict, "properties": properties}
