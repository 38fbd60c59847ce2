"""The reply that a prompt asks for: lists of verdicts, rows of cells, the schema of one request, and copied words.

A fused prompt asks so much in one request that the names of keys would be most of its reply. Its verdicts are rows:

    ["A1", "G1", "TP", "C1 C2"]                               a statement: id, evidence, label, support
    ["A2", "G2 says 30 km.", "FP", "none: C1 says 30 km."]
    ["C5", "About another cape.", "not_useful"]               a context: id, evidence, label

Evidence comes before the label that rests on it: a model that does not think before it writes looks for it while it
writes. Ids are enough evidence for a verdict in favour and are stored as its reason; a verdict against is explained.
The last cell names contexts that support the statement: separate ids support it alone ("C1 C2"), joined ids support it
together ("C1+C2"), or it is "none", with a reason after a colon. A cell that was not requested is "-".
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, JsonValue

from evalhouse.prompts.render import BLOCKS, BlockValue

NOT_REQUESTED: Final = "-"
_MIN_CELLS, _MAX_CELLS = 3, 4
_NONE = re.compile(r"none\b", re.IGNORECASE)
_ID = r"\[?[A-Z][1-9][0-9]*\]?"
_IDS = re.compile(rf"{_ID}(?:[\s,;+、，；]+{_ID})*", re.ASCII)
_ONE_ID = re.compile(r"[A-Z][1-9][0-9]*", re.ASCII)
_JOINED = re.compile(rf"{_ID}(?:\s*\+\s*{_ID})+", re.ASCII)
_COLON = re.compile("[:：]")

Schema = Mapping[str, Any]

VERDICTS = "verdicts"
"""The key of a single list of verdicts; lists for each block of items have the blocks' names."""
_SUPPORTS = "supports"


def pick_verdict_lists(reply: Mapping[str, Any], variables: Iterable[str]) -> dict[str, Any]:
    """Return by name the parts of a reply, or of its schema, that are lists of verdicts."""
    names = {VERDICTS, *(name for name in variables if name in BLOCKS and BLOCKS[name].prefix)}
    return {name: part for name, part in reply.items() if name in names}


def pick_prefixes(name: str, labels: Mapping[str, Sequence[str]]) -> Collection[str]:
    """Return the prefixes of the ids that a list of verdicts is about."""
    return labels if name == VERDICTS else BLOCKS[name].prefix


def name_support(item_id: str) -> str:
    """Return the name of the verdict on an item's support, beside the verdict that has the item's id."""
    return f"{_SUPPORTS} {item_id}"


def list_verdict_labels(name: str, labels: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the labels that the verdicts of a list can have, each once, in the order of the file."""
    prefixes = pick_prefixes(name, labels)
    return list(dict.fromkeys(label for prefix in prefixes for label in labels.get(prefix, ())))


class ExampleContent(BaseModel):
    """A worked example of a prompt file: the data of a request and the reply it should get."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    data: dict[str, JsonValue]
    reply: dict[str, JsonValue]


def list_ids(text: str) -> list[str]:
    """Return the ids in a cell that has nothing else; none for any other text."""
    return _ONE_ID.findall(text) if _IDS.fullmatch(text.strip()) else []


def unfold_row(cells: Sequence[object]) -> list[dict[str, object]]:
    """Return the verdicts of a row as objects, as in other replies: with `label`, and with `contexts` and `together`.

    `contexts` is None for a cell with neither ids nor "none", which the check of the verdict reports. A cell that was
    not requested gives no verdict. ValueError: the row cannot be read.
    """
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    if len(texts) < len(cells) or not _MIN_CELLS <= len(texts) <= _MAX_CELLS:
        raise ValueError(f"a row has {_MIN_CELLS} cells for a context, {_MAX_CELLS} for a statement, all of them texts")
    item_id, evidence, label = texts[:_MIN_CELLS]
    evidence = "" if evidence == NOT_REQUESTED else evidence
    verdicts: list[dict[str, object]] = []
    if label != NOT_REQUESTED:
        verdicts.append({"id": item_id, "reason": ", ".join(list_ids(evidence)) or evidence, "label": label})
    if len(texts) == _MAX_CELLS and texts[-1] != NOT_REQUESTED:
        named, reason = _split_at_colon(texts[-1])
        support: dict[str, object] = {"reason": reason, "contexts": [], "together": []}
        if not _NONE.fullmatch(named) and not _IDS.fullmatch(named):
            support = {"reason": texts[-1], "contexts": None, "together": []}
        elif not _NONE.fullmatch(named):
            joined = [_ONE_ID.findall(group) for group in _JOINED.findall(named)]
            together = joined[0] if joined else []
            alone = _ONE_ID.findall(_JOINED.sub(" ", named))
            reason = reason or ", ".join(alone) or " + ".join(together)
            support = {"reason": reason, "contexts": alone, "together": together}
        verdicts.append({"id": item_id, **support})
    return verdicts


def word_row(row: Sequence[str], *, in_favour: bool, reasons: Iterator[str]) -> list[str]:
    """Return the row with ids as evidence in favour, and the next of these reasons for each verdict against."""
    item_id, _, label = row[:_MIN_CELLS]
    evidence = ("A1" if item_id.startswith("G") else "G1") if in_favour else next(reasons)
    named = [_split_at_colon(cell)[0] for cell in row[_MIN_CELLS:]]
    return [item_id, evidence, label, *(f"none: {next(reasons)}" if _NONE.fullmatch(cell) else cell for cell in named)]


def _split_at_colon(cell: str) -> tuple[str, str]:
    """Return the texts before and after the first colon; without one the second is empty."""
    before, *behind = _COLON.split(cell, maxsplit=1)
    return before.strip(), behind[0].strip() if behind else ""


_MAX_IDS = 64  # longer schemas make grammars that some servers take long over, or refuse
# Every statement takes at least one word of the text; a script without spaces counts by its characters.
_UNIT = re.compile(r"[A-Za-z0-9]+|[^\x00-\x7f]")
_MIN_TEXTS = 8


def name_ids(
    schema: dict[str, Any], labels: Mapping[str, Sequence[str]], data: Mapping[str, BlockValue], only: Collection[str]
) -> dict[str, Any]:
    """Return the schema for these data, or unchanged if the reply has more verdicts than a schema should name.

    Lists of texts have at most as many items as the data have words. Each list of verdicts is about ids with certain
    prefixes; the verdicts may cite all other ids. A list without any requested id is left out.
    """
    ids = [item.id for value in data.values() if not isinstance(value, str) for item in value]
    lists = pick_verdict_lists(schema["properties"], data)
    if not lists:
        words = sum(len(_UNIT.findall(value)) for value in data.values() if isinstance(value, str))
        bound = {"maxItems": max(_MIN_TEXTS, words)}
        bounded = {
            name: part | bound if part.get("items") == {"type": "string"} else part
            for name, part in schema["properties"].items()
        }
        return schema | {"properties": bounded}
    # In the order in which the prompt asks for them, which for one list of all is the order of the labels.
    own = {
        name: [item_id for prefix in pick_prefixes(name, labels) for item_id in ids if item_id[0] == prefix]
        for name in lists
    }
    requested = {
        name: [item_id for item_id in judged if not only or {item_id, name_support(item_id)} & {*only}]
        for name, judged in own.items()
    }
    if not 0 < sum(map(len, requested.values())) <= _MAX_IDS:
        return schema
    named: dict[str, Schema] = {}
    for name, judged in requested.items():
        if not judged:
            continue
        verdict = lists[name]["items"]
        if verdict.get("type") == "array":
            parts = [_name_row(item_id, labels[item_id[0]], only) for item_id in judged]
        else:
            cited = [item_id for item_id in ids if item_id not in own[name]]
            parts = [_name_verdict(verdict, item_id, labels[item_id[0]], cited) for item_id in judged]
        named[name] = {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    kept = [name for name in schema["properties"] if name in named or name not in lists]
    properties = {name: named.get(name, schema["properties"][name]) for name in kept}
    return schema | {"properties": properties, "required": list(properties)}


def _name_row(item_id: str, labels: Sequence[str], only: Collection[str]) -> dict[str, Any]:
    """Return the schema of the row about one item."""
    text, not_requested = {"type": "string"}, {"type": "string", "enum": [NOT_REQUESTED]}
    has_label = not only or item_id in only
    cells: list[dict[str, Any]] = [
        {"type": "string", "enum": [item_id]},
        text if has_label else not_requested,
        {"type": "string", "enum": list(labels)} if has_label else not_requested,
    ]
    if not item_id.startswith("C"):
        cells.append(text if not only or name_support(item_id) in only else not_requested)
    return {"type": "array", "prefixItems": cells, "minItems": len(cells), "maxItems": len(cells)}


def _name_verdict(verdict: Schema, item_id: str, labels: Sequence[str], cited: Sequence[str]) -> dict[str, Any]:
    """Return the schema of the object about one item."""
    properties = dict(verdict["properties"])
    for name, schema in properties.items():
        if name == "id":
            properties[name] = schema | {"enum": [item_id]}
        elif name == "label" and labels:
            properties[name] = schema | {"enum": list(labels)}
        elif schema["type"] == "array" and cited:
            properties[name] = schema | {"items": schema["items"] | {"enum": list(cited)}, "maxItems": len(cited)}
    return {**verdict, "properties": properties}


_WORD = re.compile(r"[^\W\d_\u3000-\u9fff]{4,}|[\u4e00-\u9fff]+|\d{2,}")


def list_row_reasons(reply: Mapping[str, Any]) -> list[str]:
    """Return the reasons in the rows of a reply that have words, and not only ids."""
    rows = [row for row in reply.get(VERDICTS) or () if isinstance(row, list)]
    reasons = [str(verdict["reason"]) for row in rows for verdict in unfold_row(row)]
    return [reason for reason in reasons if not list_ids(reason)]


def collect_words(texts: Iterable[str]) -> frozenset[str]:
    """Return words of four letters and more, numbers of two digits and more, and pairs of Chinese characters."""
    words: set[str] = set()
    for text in texts:
        for word in _WORD.findall(text.lower()):
            chinese = "\u4e00" <= word[0] <= "\u9fff"
            words.update((word[place : place + 2] for place in range(len(word) - 1)) if chinese else [word])
    return frozenset(words)


def walk_texts(value: Any) -> Iterator[str]:  # noqa: ANN401  # JSON
    """Yield the texts in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from walk_texts(part)
