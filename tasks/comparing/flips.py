"""What the judge says otherwise of a sample than before: statements, contexts and ratings of two runs, matched by text.

A statement that is there in both runs has flipped when its label or its support is another. What is left on either
side is paired as reworded where the texts are alike enough to be read side by side, and is otherwise vanished or
appeared. Contexts are matched in the same way, but never reworded; ratings by rubric and criterion.

`find_flips` shows one sample with all that is otherwise in it; `list_verdict_flips` looks at all samples, by SQL:
which way verdicts on the same thing went, and what had changed around them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl
from rapidfuzz import fuzz

from evalhouse.tasks.comparing.parts import (
    PairedSamples,
    find_causes,
    find_changed_inputs,
    find_changed_judges,
    name_changes,
)
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import hash_text, read_hash

Item = Mapping[str, Any]
Kind = Literal["answer", "ground_truth", "context", "rating"]
Change = Literal["flipped", "reworded", "vanished", "appeared", "moved", "same"]

_ALIKE: Final = 70.0  # of 100, as rapidfuzz counts the letters that have to be changed
_VERDICTS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "answer": ("label", "supported"),
    "ground_truth": ("label", "supported"),
    "context": ("useful",),
    "rating": ("rating",),
}


@dataclass(frozen=True, kw_only=True)
class Flip:
    """One statement, context or rating of both runs or one; None on the side that does not have it.

    `moved` is a context with the same verdict at another rank, `same` what is as it was.
    """

    kind: Kind
    change: Change
    base: Item | None
    candidate: Item | None


def find_flips(*, statements: pl.DataFrame, contexts: pl.DataFrame, grades: pl.DataFrame) -> dict[str, list[Flip]]:
    """By sample what is not as it was, from rows of both runs that `of_candidate` tells apart.

    Samples without a flip are left out.
    """
    matched = match_items(
        statements=_leave_out_same(statements, "source", "label", "supported"),
        contexts=_leave_out_same(contexts, "context_rank", "useful"),
        grades=_leave_out_same(grades, "rating"),
    )
    flips = {sample_id: [item for item in items if item.change != "same"] for sample_id, items in matched.items()}
    return {sample_id: items for sample_id, items in flips.items() if items}


def _leave_out_same(rows: pl.DataFrame, *verdict: str) -> pl.DataFrame:
    """Without the text that either run has once, word for word and with the same verdict: only the rest is matched."""
    of_text, of_verdict = ("sample_id", "text"), ("sample_id", "text", *verdict)
    is_same = (pl.len().over(of_text) == 2) & (pl.len().over(of_verdict) == 2)
    return rows.filter(~(is_same & (pl.col("of_candidate").n_unique().over(of_text) == 2)))


def match_items(*, statements: pl.DataFrame, contexts: pl.DataFrame, grades: pl.DataFrame) -> dict[str, list[Flip]]:
    """The same with all that is as it was."""
    flips: dict[str, list[Flip]] = {}
    for kind in ("answer", "ground_truth"):
        of_kind = statements.filter(pl.col("source") == kind).drop("source")
        _add_flips(flips, kind, of_kind, measure=_measure)
    _add_flips(flips, "context", contexts)
    _add_flips(flips, "rating", grades)
    return flips


def _add_flips(
    by_sample_id: dict[str, list[Flip]],
    kind: Kind,
    rows: pl.DataFrame,
    *,
    measure: Callable[[str, str], float] | None = None,
) -> None:
    by_sample: dict[str, tuple[list[Item], list[Item]]] = {}
    for row in rows.to_dicts():
        sides = by_sample.setdefault(row.pop("sample_id"), ([], []))
        sides[row.pop("of_candidate")].append(row)
    for sample_id, (base, candidate) in by_sample.items():
        by_sample_id.setdefault(sample_id, []).extend(_match(kind, base, candidate, measure))


def _match(
    kind: Kind, base: Sequence[Item], candidate: Sequence[Item], measure: Callable[[str, str], float] | None
) -> Iterable[Flip]:
    """What one sample has in either run, in the order of the candidate's text, vanished items last."""
    # Texts that were forgotten are the same by their hashes, and how alike others are cannot be said.
    is_forgotten = any(read_hash(item["text"]) for item in (*base, *candidate))
    name = _hash(kind) if is_forgotten else _normalise
    open_items: dict[str, list[Item]] = {}
    for item in base:
        open_items.setdefault(name(item["text"]), []).append(item)
    partners: list[Item | None] = []
    for item in candidate:
        same_text = open_items.get(name(item["text"]))
        partners.append(same_text.pop(0) if same_text else None)
    left = [item for items in open_items.values() for item in items]
    matched = list(partners)
    if measure is not None and not is_forgotten:
        _pair_alike(partners, left, candidate, measure)
    for item, partner, same in zip(candidate, partners, matched, strict=True):
        change: Change = _name_change(kind, partner, item) if same is partner else "reworded"
        yield Flip(kind=kind, change=change, base=partner, candidate=item)
    for item in left:
        yield Flip(kind=kind, change="vanished", base=item, candidate=None)


def _pair_alike(
    partners: list[Item | None], left: list[Item], candidate: Sequence[Item], measure: Callable[[str, str], float]
) -> None:
    """Give partners to items without one, the most alike first; what is paired is taken off `left`."""
    pairs = sorted(
        (
            (-measure(other["text"], item["text"]), place, number)
            for place, item in enumerate(candidate)
            if partners[place] is None
            for number, other in enumerate(left)
        )
    )
    taken: set[int] = set()
    for distance, place, number in pairs:
        if -distance >= _ALIKE and partners[place] is None and number not in taken:
            partners[place] = left[number]
            taken.add(number)
    left[:] = [item for number, item in enumerate(left) if number not in taken]


def _name_change(kind: Kind, base: Item | None, candidate: Item) -> Change:
    if base is None:
        return "appeared"
    if any(base[name] != candidate[name] for name in _VERDICTS[kind]):
        return "flipped"
    if kind == "context" and base["context_rank"] != candidate["context_rank"]:
        return "moved"
    return "same"


def _measure(first: str, second: str) -> float:
    return fuzz.ratio(first.casefold(), second.casefold())


def _normalise(text: str | None) -> str:
    return " ".join((text or "").split())


def _hash(kind: Kind) -> Callable[[str | None], str]:
    """The name of a text by its hash, as a mark has it: of a context's text as it is, of a statement's plain words."""

    def name(text: str | None) -> str:
        plain = (text or "") if kind == "context" else _normalise(text).lower()
        return read_hash(text) or hash_text(plain)

    return _normalise if kind == "rating" else name


WAYS: Final = ("worse", "better")


def list_verdict_flips(pair: RunPair) -> pl.DataFrame:
    """One row per verdict that flipped, in the order of the candidate's samples.

    sample_id, step, source (answer, ground_truth, context or rating), base_id and candidate_id (the statement, the
    context's rank or the rating's name), base and candidate (the verdicts), way (worse or better), around: what had
    changed of what the verdict rests on, as a part of a difference is named.
    """
    flips = pair.read_flips()
    samples = PairedSamples(pair.read_samples())
    places = pl.DataFrame({"sample_id": samples.ids}).with_row_index("place")
    flips = flips.join(places, on="sample_id", how="left")
    flips = flips.with_columns(
        pl.when("is_better").then(pl.lit("better")).otherwise(pl.lit("worse")).alias("way"),
        pl.Series("around", _name_around(pair, samples, flips), dtype=pl.String),
    )
    return flips.drop("is_better").sort("place", "step", "candidate_id", maintain_order=True)


def _name_around(pair: RunPair, samples: PairedSamples, flips: pl.DataFrame) -> list[str]:
    """For each flip what had changed in its sample that its step reads."""
    steps = flips["step"].unique().to_list()
    inputs, rubrics = find_changed_inputs(pair, samples), pair.read_rubrics()
    judges = find_changed_judges(pair, samples, pair.read_changed_judges(), steps)
    by_step = {
        step: name_changes(find_causes([step], inputs=inputs, judges=judges, rubrics=rubrics, is_formula_changed=False))
        for step in steps
    }
    return [by_step[step][place] for step, place in flips.select("step", "place").iter_rows()]
