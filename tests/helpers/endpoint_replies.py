"""The replies of the local endpoint: it reads the data blocks of a request and decides by shared words.

Neighbour of `endpoint.py`, which holds the server, the counters and the limits. The rule here is deliberately dull and
is independent: it shares no code with the judges of the project, so a test that passes against it proves the wire,
not the rule. Everything is a pure function of the request.
"""

from __future__ import annotations

import base64
import re
import time
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import orjson

Kind = Literal[
    "extract", "extract_both", "classify", "attribute", "rank", "fused", "write_question", "answer_question",
    "match_questions", "renew_question", "embeddings", "other",
]  # fmt: skip

HttpFault = Literal[
    "rate_limit", "insufficient_quota", "server_error", "unavailable", "reset", "hang", "context_length_exceeded"
]
IdFault = Literal["missing_id", "doubled_id", "invented_id", "unknown_label"]
TextFault = Literal["truncated", "fence", "prose", "empty", "length", "refusal", "content_filter"]
Fault = Literal[HttpFault, IdFault, TextFault]
# For requests of other evaluators.
# Lists of this length stand for the statements, questions or verdicts of an answer of some five sentences.
_ITEMS = 4
_WORDS = "The keeper of the lighthouse wrote the weather into the log."
_DEPTH = 12

DIMENSIONS = 256  # of a vector where the request names none
SHARED_STATEMENT = 0.6  # share of a statement's words in another text from which on it is supported there
SHARED_CONTEXT = 0.3  # share of the ground truth's words that makes a context useful

_KINDS: frozenset[str] = frozenset(get_args(Kind)) - {"embeddings", "other"}
_BOTH = {"answer": "answer", "ground_truth": "ground_truth"}
# A block that only one prompt has.
_OWN_BLOCKS: Mapping[str, Kind] = {
    "text": "extract", "question_kind": "write_question", "old_contexts": "renew_question",
    "questions": "match_questions", "conversation": "answer_question",
}  # fmt: skip
_OPENING = re.compile(r"^<([a-z_]+) ([0-9a-f]+)>\n", re.MULTILINE)
_ITEM = re.compile(r"\[([A-Z]\d+)\] ?(.*)")
_ONLY = re.compile(r"Give verdicts for these ids only: ([^.]*)\.")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？；])|\n+")
_WORD = re.compile(r"[㐀-鿿]+|[^\W_㐀-鿿]+")
_ASCII_BREAKS = {code: " " for code in range(128) if not chr(code).isalnum()}
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be been but by for from had has have he in is it its of on or she that the their they this "
        "to was were which will with"
    )
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request as the endpoint understood it; `texts` are the messages in order, or the inputs."""

    kind: Kind
    model: str
    texts: tuple[str, ...]
    blocks: Mapping[str, str]
    body: Mapping[str, Any]

    def items(self, block: str) -> dict[str, str]:
        """Return texts of a block's items by id, in order; a line without an id continues the item before it."""
        found: dict[str, str] = {}
        last = ""
        for line in self.blocks.get(block, "").split("\n"):
            if match := _ITEM.match(line):
                last = match[1]
                found[last] = match[2]
            elif last:
                found[last] += "\n" + line
        return found


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The part of a completion that faults of content change."""

    content: str | None
    finish_reason: str = "stop"
    refusal: str | None = None


def read_chat(body: Mapping[str, Any]) -> Asked:
    """Understand a chat request: its kind from the reply schema's name, else from the last human message's blocks."""
    messages = body["messages"]
    texts = tuple(_message_text(message) for message in messages)
    humans = [text for message, text in zip(messages, texts, strict=True) if message.get("role") == "user"]
    blocks = parse_blocks(humans[-1]) if humans else {}
    schema = (body.get("response_format") or {}).get("json_schema") or {}
    named = schema.get("name")
    kind: Kind = named if named in _KINDS else "other" if named else _kind_of_blocks(blocks)
    return Asked(kind=kind, model=body["model"], texts=texts, blocks=blocks, body=body)


def read_embeddings(body: Mapping[str, Any]) -> Asked:
    """Understand an embeddings request; inputs given as token numbers become words of digits."""
    inputs = body["input"]
    if isinstance(inputs, str) or (inputs and isinstance(inputs[0], int)):
        inputs = [inputs]
    texts = tuple(text if isinstance(text, str) else " ".join(map(str, text)) for text in inputs)
    return Asked(kind="embeddings", model=body["model"], texts=texts, blocks={}, body=body)


def parse_blocks(text: str) -> dict[str, str]:
    """Contents of `<name nonce>` ... `</name nonce>` by name; tags with another nonce than the first are plain text."""
    blocks: dict[str, str] = {}
    opening = _OPENING.search(text)
    nonce = opening[2] if opening else ""
    while opening:
        closing = f"</{opening[1]} {nonce}>"
        end = text.find(closing, opening.end())
        if opening[2] == nonce and end >= 0:
            blocks[opening[1]] = text[opening.end() : end].removesuffix("\n")
            position = end + len(closing)
        else:
            position = opening.end()
        opening = _OPENING.search(text, position)
    return blocks


def compose_reply(asked: Asked) -> dict[str, Any] | str:
    """The endpoint's own reply in the shape of the prompt; plain text for any other request."""
    match asked.kind:
        case "extract" | "extract_both":
            blocks = {"statements": "text"} if asked.kind == "extract" else _BOTH
            return {name: split_sentences(asked.blocks.get(block, "")) for name, block in blocks.items()}
        case "classify":
            return {"verdicts": _classify(asked.items("answer_statements"), asked.items("ground_truth_statements"))}
        case "attribute":
            statements = asked.items("answer_statements") | asked.items("ground_truth_statements")
            return {"verdicts": _attribute(statements, asked.items("contexts"))}
        case "rank":
            return {"verdicts": _rank(asked.blocks.get("ground_truth", ""), asked.items("contexts"))}
        case "fused":
            return _fuse(asked)
        case _:
            schema = ((asked.body.get("response_format") or {}).get("json_schema") or {}).get("schema")
            if schema:
                filled: dict[str, Any] = fill_schema(schema)
                return filled
            return f"You said: {asked.texts[-1][:200]}" if asked.texts else ""


def split_sentences(text: str) -> list[str]:
    """Sentences of an English or Chinese text, without bullets; a text without words gives none."""
    sentences = (part.strip().lstrip("-*• ") for part in _SENTENCE_END.split(text))
    return [sentence for sentence in sentences if _WORD.search(sentence)]


@lru_cache(maxsize=2048)
def collect_words(text: str) -> frozenset[str]:
    """Latin words in lower case and bigrams of Chinese characters."""
    lowered = text.lower()
    if lowered.isascii():  # the same words as below in a fifth of the time
        return frozenset(lowered.translate(_ASCII_BREAKS).split())
    words: set[str] = set()
    for run in _WORD.findall(lowered):
        if "㐀" <= run[0] <= "鿿":
            words.update(run[i : i + 2] for i in range(max(1, len(run) - 1)))
        else:
            words.add(run)
    return frozenset(words)


def collect_content_words(text: str) -> frozenset[str]:
    """Words without the commonest ones, which any two texts share."""
    return collect_words(text) - _STOP_WORDS


def share_words(words: frozenset[str], others: frozenset[str]) -> float:
    """Share of `words` that are among `others`, 0 to 1; 0 for no words."""
    return len(words & others) / len(words) if words else 0.0


def can_show(fault: Fault, asked: Asked) -> bool:
    """Return whether a reply to this request can carry the fault: ids need verdicts, contents need a completion."""
    if fault in get_args(IdFault):
        blocks = ("contexts",) if asked.kind == "rank" else ("answer_statements", "ground_truth_statements")
        return asked.kind in {"classify", "attribute", "rank", "fused"} and any(asked.items(block) for block in blocks)
    return fault not in get_args(TextFault) or asked.kind != "embeddings"


def spoil_reply(reply: dict[str, Any] | str, fault: Fault | None) -> Choice:
    """The reply as a choice with the fault in it; faults on the wire leave it whole."""
    if fault in get_args(IdFault) and isinstance(reply, dict):
        name = next((name for name, verdicts in reply.items() if verdicts), "verdicts")
        reply = {**reply, name: _spoil_verdicts(reply[name], fault)}
    content = reply if isinstance(reply, str) else orjson.dumps(reply).decode()
    cut = content[: len(content) * 2 // 3]
    match fault:
        case "truncated":
            return Choice(content=cut)
        case "fence":
            return Choice(content=f"```json\n{content}\n```")
        case "prose":
            return Choice(content=f"I compared the texts, and this is what I found.\n\n{content}")
        case "empty":
            return Choice(content="")
        case "length":
            return Choice(content=cut, finish_reason="length")
        case "refusal":
            return Choice(content=None, refusal="I cannot help with that request.")
        case "content_filter":
            return Choice(content="", finish_reason="content_filter")
    return Choice(content=content)


def embed_text(text: str, dimensions: int) -> array[float]:
    """A unit vector of float32 that hashes the words, so texts that share words have a higher cosine."""
    vector = [0.0] * dimensions
    for word in collect_content_words(text) or (text,):
        hashed = zlib.crc32(word.encode())
        vector[(hashed & 0x7FFFFFFF) % dimensions] += 1.0 if hashed >> 31 else -1.0
    norm = sum(value * value for value in vector) ** 0.5
    if not norm:  # two words met in one place with opposite signs
        vector[0] = norm = 1.0
    return array("f", [value / norm for value in vector])


def count_tokens(*texts: str) -> int:
    """A quarter of the characters of all texts together, rounded up."""
    return -(-sum(map(len, texts)) // 4)


def build_completion(
    asked: Asked, choice: Choice, ordinal: int, cached_tokens: int, written_tokens: int = 0
) -> dict[str, Any]:
    """The body of a chat completion, with its usage."""
    prompt_tokens = count_tokens(*asked.texts)
    completion_tokens = count_tokens(choice.content or choice.refusal or "")
    message = {"role": "assistant", "content": choice.content, "refusal": choice.refusal}
    return {
        "id": f"chatcmpl-{ordinal}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": choice.finish_reason}],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
         "total_tokens": prompt_tokens + completion_tokens,
         "prompt_tokens_details": {"cached_tokens": cached_tokens, "written_tokens": written_tokens}},
    }  # fmt: skip


def build_embeddings(asked: Asked) -> dict[str, Any]:
    """The body of an embeddings reply; the request's own `dimensions` and `encoding_format` come first."""
    vectors = [embed_text(text, asked.body.get("dimensions") or DIMENSIONS) for text in asked.texts]
    packed = asked.body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": base64.b64encode(v).decode() if packed else v.tolist()}
        for i, v in enumerate(vectors)
    ]
    tokens = count_tokens(*asked.texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": asked.model, "usage": usage}


def _message_text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _kind_of_blocks(blocks: Mapping[str, str]) -> Kind:
    names = blocks.keys()
    if kind_of_block := next((kind for block, kind in _OWN_BLOCKS.items() if block in names), None):
        return kind_of_block
    statements = names & {"answer_statements", "ground_truth_statements"}
    if "contexts" in names and "ground_truth" in names and statements:
        return "fused"
    if "contexts" in names:
        return "attribute" if statements else "rank"
    return "classify" if statements else "other"


def _classify(answer: Mapping[str, str], ground_truth: Mapping[str, str]) -> list[dict[str, Any]]:
    answers = {item_id: collect_content_words(text) for item_id, text in answer.items()}
    truths = {item_id: collect_content_words(text) for item_id, text in ground_truth.items()}
    verdicts = []
    for own, others, miss in ((answers, truths, "FP"), (truths, answers, "FN")):
        for item_id, words in own.items():
            best = max((share_words(words, other) for other in others.values()), default=0.0)
            label = "TP" if best >= SHARED_STATEMENT else miss
            verdicts.append({"id": item_id, "reason": f"{best:.0%} of its words in one statement", "label": label})
    return verdicts


def _attribute(statements: Mapping[str, str], contexts: Mapping[str, str]) -> list[dict[str, Any]]:
    known = {key: collect_words(text) for key, text in contexts.items()}
    verdicts = []
    for item_id, text in statements.items():
        words = collect_content_words(text)
        support = [key for key, context in known.items() if share_words(words, context) >= SHARED_STATEMENT]
        reason = f"{len(support)} contexts share its words"
        verdicts.append({"id": item_id, "reason": reason, "contexts": support, "together": []})
    return verdicts


def _rank(ground_truth: str, contexts: Mapping[str, str]) -> list[dict[str, Any]]:
    wanted = collect_content_words(ground_truth)
    verdicts = []
    for item_id, text in contexts.items():
        share = share_words(wanted, collect_words(text))
        label = "useful" if share >= SHARED_CONTEXT else "not_useful"
        verdicts.append({"id": item_id, "reason": f"{share:.0%} of the ground truth's words", "label": label})
    return verdicts


def _fuse(asked: Asked) -> dict[str, Any]:
    """A row about each item; of what a note names no more than that, and "-" in cells that it leaves out."""
    answer, truth = (asked.items(side) for side in ("answer_statements", "ground_truth_statements"))
    contexts, ground_truth = asked.items("contexts"), asked.blocks.get("ground_truth", "")
    supports = {one["id"]: one for one in _attribute(answer | truth, contexts)}
    others = {**dict.fromkeys(answer, truth), **dict.fromkeys(truth, answer), **dict.fromkeys(contexts, truth)}
    texts = {**answer, **truth, **contexts}
    only = _ONLY.search(asked.texts[-1])
    named = only[1].split(", ") if only else [*texts, *(f"supports {item}" for item in supports)]
    rows = []
    for verdict in [*_classify(answer, truth), *_rank(ground_truth, contexts)]:
        item, label = verdict["id"], verdict["label"]
        evidence = verdict["reason"]
        if label in ("TP", "useful"):  # the text that has the largest share of its words in this one
            words = collect_content_words(texts[item])
            shares = {one: share_words(collect_content_words(text), words) for one, text in others[item].items()}
            evidence = max(shares, key=lambda one: shares[one], default="") or evidence
        row = [item, evidence, label] if item in named else [item, "-", "-"]
        if item in supports:
            support = " ".join(supports[item]["contexts"]) or f"none: {supports[item]['reason']}"
            row.append(support if f"supports {item}" in named else "-")
        if row[2:].count("-") < len(row[2:]):
            rows.append(row)
    return {"verdicts": rows}


def _spoil_verdicts(verdicts: Sequence[Any], fault: str | None) -> list[Any]:
    """Return verdicts, objects or rows, with the fault in the first of them."""
    first, *rest = verdicts
    is_row = isinstance(first, list)
    stranger = f"{(first[0] if is_row else first['id'])[0]}999"
    match fault:
        case "missing_id":
            return rest
        case "doubled_id":
            return [first, *verdicts]
        case "invented_id":
            return [*verdicts, [stranger, *first[1:]] if is_row else {**first, "id": stranger}]
    if is_row:
        return [[*first[:2], "PERHAPS", *first[3:]], *rest]
    return [{**first, **({"label": "PERHAPS"} if "label" in first else {"contexts": ["C999"]})}, *rest]


def fill_schema(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON value
    """A value that fits a schema: the first of an enum, true, 1, one sentence, lists of four."""
    return _fill(schema, schema, _DEPTH)


def _fill(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:  # noqa: ANN401
    if depth == 0:
        return None
    inner = next((schema[choices][0] for choices in ("anyOf", "oneOf", "allOf") if choices in schema), None)
    if "$ref" in schema:
        inner = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    if inner is not None:
        return _fill(inner, root, depth - 1)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    if schema.get("type") == "object":
        return {name: _fill(part, root, depth - 1) for name, part in schema.get("properties", {}).items()}
    if schema.get("type") == "array":
        return [_fill(schema.get("items", {}), root, depth - 1)] * _ITEMS
    return {"integer": 1, "number": 1, "boolean": True}.get(schema.get("type", ""), _WORDS)


def fill_reply(asked: Asked, *, question: str = "", reason: str = "") -> dict[str, Any]:
    """The lowest rating of each criterion, true for each flag, and as many questions as were asked for.

    `question` is written that often, `reason` wherever a reason is wanted; both are the endpoint's own words if empty.
    """
    filled: dict[str, Any] = fill_schema(asked.body["response_format"]["json_schema"]["schema"])
    if "questions" in filled:
        count = int(asked.blocks["count"])
        filled |= {"noncommittal": False, "questions": [question or filled["questions"][0]] * count}
    for entry in (filled, *(value for value in filled.values() if isinstance(value, dict))):
        if "scores" in entry:
            entry["scores"] = [{"score": entry["scores"][0]["score"], "probability": 1.0}]
        if reason and "reason" in entry:
            entry["reason"] = reason
    return filled
