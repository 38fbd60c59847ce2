"""The reply that a prompt asks for: its lists of verdicts, rows of cells, the schema of one request, copied words.

A fused prompt asks so much in one request that the names of keys would be most of its reply. Its verdicts are rows:

    ["A1", "G1", "TP", "C1 C2"]                               a statement: id, evidence, label, support
    ["A2", "G2 says 30 km.", "FP", "none: C1 says 30 km."]
    ["C5", "About another cape.", "not_useful"]               a context: id, evidence, label

Evidence comes before the label that rests on it: a model that does not think before it writes looks for it while it
writes. Ids are enough evidence for a verdict in favour and are stored as its reason; a verdict against is explained.
The last cell names contexts that support the statement: those that support it alone are separate ("C1 C2"), those that
support it together are joined ("C1+C2"), or it is "none", with a reason after a colon. A cell that was not asked for is
"-".
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, JsonValue

from evalhouse.prompts.render import BLOCKS, BlockValue, list_texts

NOT_ASKED: Final = "-"
_LEAST_CELLS, _MOST_CELLS = 3, 4
_NONE = re.compile(r"none\b", re.IGNORECASE)
_ID = r"\[?[A-Z][1-9][0-9]*\]?"
_IDS = re.compile(rf"{_ID}(?:[\s,;+、，；]+{_ID})*", re.ASCII)
_ONE_ID = re.compile(r"[A-Z][1-9][0-9]*", re.ASCII)
_JOINED = re.compile(rf"{_ID}(?:\s*\+\s*{_ID})+", re.ASCII)
_COLON = re.compile("[:：]")

Schema = Mapping[str, Any]

VERDICTS = "verdicts"
"""Where a reply has one list of verdicts; where it has one for each block of items, they bear the blocks' names."""
_SUPPORTS = "supports"


def pick_verdict_lists(reply: Mapping[str, Any], variables: Iterable[str]) -> dict[str, Any]:
    """By name those parts of a reply, or of its schema, that are lists of verdicts; none where it gives none."""
    names = {VERDICTS, *(name for name in variables if name in BLOCKS and BLOCKS[name].prefix)}
    return {name: part for name, part in reply.items() if name in names}


def pick_prefixes(name: str, labels: Mapping[str, Sequence[str]]) -> Collection[str]:
    """How the ids begin that a list of verdicts is about."""
    return labels if name == VERDICTS else BLOCKS[name].prefix


def name_support(item_id: str) -> str:
    """What the verdict on an item's support is called where only some are asked for, and another has the item's id."""
    return f"{_SUPPORTS} {item_id}"


def list_verdict_labels(name: str, labels: Mapping[str, Sequence[str]]) -> list[str]:
    """The labels open to the verdicts of a list, each once, in the order of the file."""
    prefixes = pick_prefixes(name, labels)
    return list(dict.fromkeys(label for prefix in prefixes for label in labels.get(prefix, ())))


class ExampleContent(BaseModel):
    """A worked example as it stands in the file: the data of a request and the reply it should get."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    data: dict[str, JsonValue]
    reply: dict[str, JsonValue]


_ROW: Final[Schema] = {"type": "array", "items": {"type": "string"}}


def is_row_schema(verdict: Schema) -> bool:
    """Whether a list of verdicts with items of this schema has rows."""
    return verdict.get("type") == "array"


def find_row_fault(verdict: Schema) -> str | None:
    """What keeps a schema of rows from being one."""
    return None if verdict == _ROW else "must be an array of texts, the cells of a row, where verdicts are rows"


def list_ids(text: str) -> list[str]:
    """The ids in a cell that holds nothing else; none in any other text."""
    return _ONE_ID.findall(text) if _IDS.fullmatch(text.strip()) else []


def unfold_row(cells: Sequence[object]) -> list[dict[str, object]]:
    """The verdicts of a row as objects, as other replies have them: with `label`, and with `contexts` and `together`.

    ValueError: says what keeps the row from being read. What was not asked for gives no verdict.
    """
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    if len(texts) < len(cells) or not _LEAST_CELLS <= len(texts) <= _MOST_CELLS:
        raise ValueError(
            f"a row has {_LEAST_CELLS} cells for a context, {_MOST_CELLS} for a statement, all of them texts"
        )
    item_id, evidence, label = texts[:_LEAST_CELLS]
    evidence = "" if evidence == NOT_ASKED else evidence
    verdicts: list[dict[str, object]] = []
    if label != NOT_ASKED:
        verdicts.append({"id": item_id, "reason": ", ".join(list_ids(evidence)) or evidence, "label": label})
    if len(texts) == _MOST_CELLS and texts[-1] != NOT_ASKED:
        verdicts.append({"id": item_id, **_read_support(texts[-1])})
    return verdicts


def word_row(row: Sequence[str], *, in_favour: bool, reasons: Iterator[str]) -> list[str]:
    """The row with ids alone for what is in favour, and the next of these reasons for each verdict against."""
    item_id, _, label = row[:_LEAST_CELLS]
    evidence = ("A1" if item_id.startswith("G") else "G1") if in_favour else next(reasons)
    named = [_split_at_colon(cell)[0] for cell in row[_LEAST_CELLS:]]
    return [item_id, evidence, label, *(f"none: {next(reasons)}" if _NONE.fullmatch(cell) else cell for cell in named)]


def _read_support(cell: str) -> dict[str, object]:
    """No lists where neither ids nor "none" stand there: whoever checks the verdict says so."""
    named, reason = _split_at_colon(cell)
    if _NONE.fullmatch(named):
        return {"reason": reason, "contexts": [], "together": []}
    if not _IDS.fullmatch(named):
        return {"reason": cell, "contexts": None, "together": []}
    joined = [_ONE_ID.findall(group) for group in _JOINED.findall(named)]
    together = joined[0] if joined else []
    alone = _ONE_ID.findall(_JOINED.sub(" ", named))
    return {"reason": reason or ", ".join(alone) or " + ".join(together), "contexts": alone, "together": together}


def name_row(item_id: str, labels: Sequence[str], *, with_label: bool, with_support: bool) -> dict[str, Any]:
    """The schema of the row about one item in the reply to one request."""
    has_support = not item_id.startswith("C")
    cells: list[dict[str, Any]] = [
        {"type": "string", "enum": [item_id]},
        {"type": "string"} if with_label else {"type": "string", "enum": [NOT_ASKED]},
        {"type": "string", "enum": list(labels) if with_label else [NOT_ASKED]},
    ]
    if has_support:
        cells.append({"type": "string"} if with_support else {"type": "string", "enum": [NOT_ASKED]})
    return {"type": "array", "prefixItems": cells, "minItems": len(cells), "maxItems": len(cells)}


def _split_at_colon(cell: str) -> tuple[str, str]:
    """What stands before the first colon, and behind it; without one nothing does."""
    before, *behind = _COLON.split(cell, maxsplit=1)
    return before.strip(), behind[0].strip() if behind else ""


# What is longer makes grammars that some servers take long over, or refuse.
_MOST_IDS = 64
# Every statement takes a word of the text at least; a script without spaces counts by its characters.
_UNIT = re.compile(r"[A-Za-z0-9]+|[^\x00-\x7f]")
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
        words = sum(len(_UNIT.findall(value)) for value in data.values() if isinstance(value, str))
        bound = {"maxItems": max(_LEAST_TEXTS, words)}
        bounded = {
            name: part | bound if part.get("items") == {"type": "string"} else part
            for name, part in schema["properties"].items()
        }
        return schema | {"properties": bounded}
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
    named: dict[str, Schema] = {}
    for name, judged in asked.items():
        if not judged:
            continue
        verdict = lists[name]["items"]
        if is_row_schema(verdict):
            parts = [
                name_row(
                    item_id,
                    labels[item_id[0]],
                    with_label=not only or item_id in only,
                    with_support=not only or name_support(item_id) in only,
                )
                for item_id in judged
            ]
        else:
            cited = [item_id for item_id in ids if item_id not in own[name]]
            parts = [_name_verdict(verdict, item_id, labels[item_id[0]], cited) for item_id in judged]
        named[name] = {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    kept = [name for name in schema["properties"] if name in named or name not in lists]
    properties = {name: named.get(name, schema["properties"][name]) for name in kept}
    return schema | {"properties": properties, "required": list(properties)}


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


_SHORTEST = 8
_WORD = re.compile(r"[^\W\d_\u3000-\u9fff]{4,}|[\u4e00-\u9fff]+|\d{2,}")


def collect_said(examples: Iterable[ExampleContent]) -> dict[str, frozenset[str]]:
    """By text of an example's reply those of its words that its own data have; texts without one are left out."""
    said: dict[str, frozenset[str]] = {}
    for example in examples:
        known = collect_words(_walk_texts(example.data))
        for text in [*_walk_texts(example.reply), *list_row_reasons(example.reply)]:
            # Ids, labels and single words are no copies of anything.
            is_word = len(text) < _SHORTEST or (text.isascii() and " " not in text)
            if not is_word and (telling := collect_words([text]) & known):
                said[text.strip()] = telling
    return said


def list_row_reasons(reply: Mapping[str, Any]) -> list[str]:
    """What the rows of a reply say in words; ids are none."""
    rows = [row for row in reply.get(VERDICTS) or () if isinstance(row, list)]
    reasons = [str(verdict["reason"]) for row in rows for verdict in unfold_row(row)]
    return [reason for reason in reasons if not list_ids(reason)]


def list_copied(
    texts: Iterable[str], said: Mapping[str, frozenset[str]], data: Mapping[str, BlockValue]
) -> Collection[str]:
    """Those of the texts that are word for word an example's, and not about these data."""
    alike = [text for text in texts if text.strip() in said]
    if not alike:
        return ()
    known = collect_words(text for value in data.values() for text in list_texts(value))
    return {text for text in alike if said[text.strip()] - known}


def collect_words(texts: Iterable[str]) -> frozenset[str]:
    """Telling words: of four letters and more, numbers of more than one digit, and pairs of Chinese characters."""
    words: set[str] = set()
    for text in texts:
        for word in _WORD.findall(text.lower()):
            chinese = "\u4e00" <= word[0] <= "\u9fff"
            words.update((word[place : place + 2] for place in range(len(word) - 1)) if chinese else [word])
    return frozenset(words)


def _walk_texts(value: Any) -> Iterator[str]:  # noqa: ANN401  # JSON
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _walk_texts(part)
