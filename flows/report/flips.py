"""What the judge says otherwise of a report's samples than of the other run's: both sides as they are to be read.

`tasks/comparing/flips.py` matches statements, contexts and ratings of two runs; here its rows become the words of the
page.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evalhouse.flows.display.output import shorten
from evalhouse.tasks.comparing.flips import Flip, find_flips
from evalhouse.warehouse.rows.run_pairs import RunPair

Flips = Mapping[str, Sequence["FlipRecord"]]
ReadFlips = Callable[[Sequence[str]], Flips]

_KINDS: Final = {
    "answer": "the answer says",
    "ground_truth": "the ground truth says",
    "context": "context",
    "rating": "rating",
}
_MOST_CONTEXT: Final = 300  # letters; a context stands whole with its own sample


@dataclass(frozen=True, kw_only=True)
class SideRecord:
    """One run's word: the text, the verdict on it, and its reasons."""

    text: str
    verdict: str
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class FlipRecord:
    """One thing that is not as it was; None on the side that does not have it."""

    kind: str
    change: str
    base: SideRecord | None
    candidate: SideRecord | None


def read_flips(pair: RunPair, sample_ids: Sequence[str]) -> Flips:
    """By sample what flipped, was reworded, appeared or vanished; samples without are left out.

    A context with the same verdict at another rank is no flip here.
    """
    found = find_flips(
        statements=pair.read_statements(sample_ids),
        contexts=pair.read_contexts(sample_ids),
        grades=pair.read_grades(sample_ids),
    )
    told = {sample_id: tuple(_tell_flips(flips)) for sample_id, flips in found.items()}
    return {sample_id: flips for sample_id, flips in told.items() if flips}


def _tell_flips(flips: Sequence[Flip]) -> Iterator[FlipRecord]:
    for flip in flips:
        if flip.change != "moved":
            yield FlipRecord(
                kind=_KINDS[flip.kind],
                change=flip.change,
                base=_tell_side(flip.kind, flip.base),
                candidate=_tell_side(flip.kind, flip.candidate),
            )


def _tell_side(kind: str, item: Mapping[str, Any] | None) -> SideRecord | None:
    if item is None:
        return None
    text = str(item["text"])
    if kind == "rating":
        return SideRecord(text=text, verdict=f"{item['rating']:g} of {item['scale_max']:g}", reason=item["reason"])
    if kind == "context":
        verdict = f"C{item['context_rank']} {'useful' if item['useful'] else 'not useful'}"
        return SideRecord(text=shorten(text, _MOST_CONTEXT), verdict=verdict, reason=item["reason"])
    reasons = [str(item[name]) for name in ("label_reason", "support_reason") if item[name]]
    return SideRecord(text=text, verdict=", ".join(_tell_verdicts(item)) or "–", reason=" / ".join(reasons) or None)


def _tell_verdicts(item: Mapping[str, Any]) -> Iterator[str]:
    if item["label"]:
        yield str(item["label"])
    if item["supported"] is not None:
        ranks = ", ".join(f"C{rank}" for rank in item["context_ranks"] or ())
        yield f"supported by {ranks}" if item["supported"] else "unsupported"
