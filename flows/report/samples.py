"""The samples of a report as records: the data of a sample's page, made of the warehouse's rows.

A record has texts, verdicts with their reasons and their places in the texts, and the calls they came from, by their
places in its list of calls, which the warehouse writes as JSON. The part that all requests of a prompt share
(instructions, worked examples, the reply's schema) is stored once for all samples.

The place of a statement in a text helps the eye and is not a verdict. The judge may word a statement differently from
the text it was split from or the context that supports it: with the same words the place is exact, else it is the most
similar part of the text by rapidfuzz's alignment, if it is similar enough.

Against another run, `tasks/comparing/changes.py` matches statements, contexts and ratings; here its rows become the
words of the page.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import orjson
from rapidfuzz import fuzz

from evalhouse.flows.results.output import explain_support, name_support, write_json
from evalhouse.tasks.comparing.changes import find_flips
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.rows.pages import Row, SampleSlice
from evalhouse.warehouse.rows.samples import load_turns, plain_turns

_SIMILARITY = 62.0  # of 100; below this the stretch found in a context about something else is mostly chance
_MIN_LETTERS = 3
_MAX_LETTERS = 20_000  # aligning takes time in proportion to both lengths
_KINDS: Final = {
    "answer": "the answer says",
    "ground_truth": "the ground truth says",
    "context": "context",
    "rating": "rating",
}
_KINDS_OF_CALLS: Final = ("extract", "classify", "attribute")
_OF_SAMPLE: Final = ("sample_id", "question", "answer", "thoughts", "ground_truth")
_OF_MEASURE: Final = ("step", "criterion", "value", "scale_max", "said", "rule", "text", "reason")
_MAX_CONTEXT: Final = 300  # letters; the sample's own contexts are shown whole


@dataclass(frozen=True, kw_only=True)
class Span:
    """A part of a text, in characters (code points) from 0; `end` is the first one after it."""

    start: int
    end: int


Source = Literal["answer", "ground_truth"]


@dataclass(frozen=True, kw_only=True)
class StatementRecord:
    """A statement with its verdicts; `span` is its place in its text, `evidence` its places in contexts, by rank.
    `cited` are the ranks of the contexts that it cites, `cited_in_vain` the marks that name no context."""

    id: str
    source: Source
    text: str
    label: str | None
    label_reason: str | None
    supported: bool | None
    ranks: tuple[int, ...]
    joint: bool
    turns: tuple[int, ...]
    support_reason: str | None
    cited: tuple[int, ...]
    cited_in_vain: tuple[str, ...]
    calls: dict[str, int]
    span: Span | None
    evidence: dict[str, Span]


@dataclass(frozen=True, kw_only=True)
class SampleRecord:
    """The data of one sample's page; `base_answer` is None where the other run's is the same.

    `contexts` have text, id, useful (None where it was not judged), reason and call, the place of the call in `calls`;
    `measures` are ratings of rubrics and similarities, `failures` the steps that gave no verdict, with the reason.
    `votes` are the items whose votes disagreed, with how often each verdict was given, the majority's first; `flips`
    the verdicts that changed, None on the side that does not have it. `calls` are JSON as the warehouse writes it.
    """

    sample_id: str
    conversation: Sequence[Mapping[str, Any]]
    question: str
    answer: str | None
    thoughts: str | None
    ground_truth: str | None
    base_answer: str | None
    metadata: Mapping[str, Any] | None
    contexts: Sequence[Row]
    statements: tuple[StatementRecord, ...]
    measures: Sequence[Row]
    failures: Sequence[Row]
    votes: Sequence[Row]
    calls: orjson.Fragment
    flips: Sequence[Row]


def build_samples(rows: SampleSlice, shared: dict[str, str]) -> Iterator[SampleRecord]:
    """Yield the records of a slice, in its order, with the differences from the other run, if there is one.

    Texts that requests share are added to `shared`.
    """
    # The verdicts that flipped, were reworded, appeared or vanished, by sample. A context with the same verdict at
    # another rank does not count here.
    flips: defaultdict[str, list[Row]] = defaultdict(list)
    for sample_id, of_sample in (find_flips(**rows.of_both) if rows.of_both else {}).items():
        for flip in of_sample:
            if flip.change != "moved":
                base, candidate = (_describe_side(flip.kind, side) for side in (flip.base, flip.candidate))
                record = {"kind": _KINDS[flip.kind], "change": flip.change, "base": base, "candidate": candidate}
                flips[sample_id].append(record)
    # The text that requests share, under its name in calls, from one of these requests.
    for shared_by in rows.calls:
        if shared_by["fixed"] is not None and shared_by["fixed"] not in shared:
            request = orjson.loads(shared_by["request"])
            shared[shared_by["fixed"]] = write_json({**request, "messages": request["messages"][:-1]})

    def group(table: Iterable[Row]) -> defaultdict[str, list[Row]]:
        by_sample: defaultdict[str, list[Row]] = defaultdict(list)
        for row in table:
            by_sample[str(row["sample_id"])].append(row)
        return by_sample

    statements, contexts, measures = group(rows.statements), group(rows.contexts), group(rows.measures)
    failures, votes, answers = group(rows.failures), group(rows.votes), group(rows.base_answers)
    calls = group(rows.calls)
    for sample in rows.samples:
        sample_id = str(sample["sample_id"])
        places = {str(call["call_id"]): place for place, call in enumerate(calls[sample_id])}
        base_answer = next((row["answer"] for row in answers[sample_id]), None)
        ids, by_rank = sample["context_ids"] or [], {row["context_rank"]: row for row in contexts[sample_id]}
        judged_contexts = []
        for rank, text in enumerate(sample["contexts"] or [], start=1):
            row = by_rank.get(rank, {})
            judged_contexts.append(
                {
                    "text": text,
                    "id": ids[rank - 1] if rank <= len(ids) else None,
                    "useful": row.get("useful"),
                    "reason": row.get("reason"),
                    "call": places.get(row.get("call_id", "")),
                }
            )
        by_item: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for row in votes[sample_id]:
            by_item.setdefault((row["step"], row["item_id"]), []).append((row["verdict"], row["n"]))
        texts_of_calls = []
        for row in calls[sample_id]:
            call_text = str(row["call"])
            if not row["is_undivided"]:
                texts_of_calls.append(call_text)
                continue
            # A request that has no last message is shown as a whole, to be read by a person.
            call = orjson.loads(call_text)
            whole = {**call, "request": write_json(orjson.loads(call["request"]))}
            texts_of_calls.append(write_json(whole, indent=False))
        built = []
        for row in statements[sample_id]:
            joint = tuple(row["joint_ranks"] or ())
            ranks = (*(row["context_ranks"] or ()), *joint)
            by_kind = {
                kind: places[call_id] for kind in _KINDS_OF_CALLS if (call_id := row[f"{kind}_call_id"]) in places
            }
            texts = sample["contexts"] or []
            spans = {str(rank): find_span(row["text"], texts[rank - 1]) for rank in ranks if rank <= len(texts)}
            built.append(
                StatementRecord(
                    id=row["id"],
                    source=row["source"],
                    text=row["text"],
                    label=row["label"],
                    label_reason=row["label_reason"],
                    supported=row["supported"],
                    ranks=ranks,
                    joint=bool(joint),
                    turns=tuple(row["turn_ranks"] or ()),
                    support_reason=row["support_reason"],
                    cited=tuple(row["cited_ranks"] or ()),
                    cited_in_vain=tuple(row["cited_in_vain"] or ()),
                    calls=by_kind,
                    span=find_span(row["text"], sample[row["source"]] or ""),
                    evidence={rank: span for rank, span in spans.items() if span is not None},
                )
            )
        yield SampleRecord(
            **{name: sample[name] for name in _OF_SAMPLE},
            conversation=plain_turns(load_turns(sample["conversation"])),
            base_answer=base_answer if base_answer != sample["answer"] else None,
            metadata=orjson.loads(sample["metadata"]) if sample["metadata"] else None,
            contexts=judged_contexts,
            statements=tuple(built),
            measures=[
                {**{name: row[name] for name in _OF_MEASURE}, "call": places.get(row["call_id"])}
                for row in measures[sample_id]
            ],
            failures=[{name: row[name] for name in ("step", "reason", "detail")} for row in failures[sample_id]],
            votes=[
                {"step": step, "item": item, "votes": of_item}
                for (step, item), of_item in by_item.items()
                if len(of_item) > 1
            ],
            calls=orjson.Fragment(f"[{','.join(texts_of_calls)}]"),
            flips=flips.get(sample_id, ()),
        )


def find_span(statement: str, text: str) -> Span | None:
    """Find the part of `text` that states the statement; None if no part is similar enough."""
    words, folded = _fold(statement.strip().rstrip(".。!！?？")), _fold(text)
    if len(words) < _MIN_LETTERS or not folded:
        return None
    start = folded.find(words)
    if start >= 0:
        return Span(start=start, end=start + len(words))
    if max(len(words), len(folded)) > _MAX_LETTERS:
        return None
    alignment = fuzz.partial_ratio_alignment(words, folded, score_cutoff=_SIMILARITY)
    if alignment is None or len(words) > len(folded):
        # For a text shorter than the statement the alignment is its place in the statement.
        return None if alignment is None else Span(start=0, end=len(text))
    # Extend to whole words, in scripts with visible word ends, and leave out blanks around them.
    start, end = alignment.dest_start, alignment.dest_end
    while start > 0 and _is_word(text[start - 1]) and _is_word(text[start]):
        start -= 1
    while end < len(text) and _is_word(text[end - 1]) and _is_word(text[end]):
        end += 1
    stretch = text[start:end]
    start += len(stretch) - len(stretch.lstrip())
    end -= len(stretch) - len(stretch.rstrip())
    return Span(start=start, end=end) if start < end else None


@lru_cache(maxsize=64)
def _fold(text: str) -> str:
    """Return the text in small letters, unless that moves its characters (İ becomes two)."""
    folded = text.lower()
    return folded if len(folded) == len(text) else text


def _is_word(character: str) -> bool:
    """Return True for letters of scripts with blanks between words; Chinese would extend to the whole sentence."""
    return character.isalnum() and character < "\u2e80"


def _describe_side(kind: str, item: Mapping[str, Any] | None) -> Row | None:
    """Return the text, the verdict on it and its reason in one run."""
    if item is None:
        return None
    text = str(item["text"])
    if kind == "rating":
        return {"text": text, "verdict": f"{item['rating']:g} of {item['scale_max']:g}", "reason": item["reason"]}
    if kind == "context":
        verdict = f"C{item['context_rank']} {'useful' if item['useful'] else 'not useful'}"
        return {"text": shorten(text, _MAX_CONTEXT), "verdict": verdict, "reason": item["reason"]}
    reasons = filter(None, (item["label_reason"], explain_support(item, item["support_reason"])))
    verdicts = [str(item["label"])] if item["label"] else []
    if item["supported"] is not None:
        verdicts.append(f"supported by {name_support(item)}" if item["supported"] else "unsupported")
    return {"text": text, "verdict": ", ".join(verdicts) or "–", "reason": " / ".join(reasons) or None}
