"""Why a mean moved: the difference of two runs' means as parts that add up to it.

A mean moves because samples that both runs scored got another value, and because other samples were scored. Of the
first, each sample's move belongs to what changed in it since the base run: a text the metric rests on, the judge (its
name, model, prompt, language, embeddings or a setting that shapes its replies), or the formula. What changed together
cannot be told apart without judging again, so it makes a part of its own, named after all of it: `answer+contexts`.
Where nothing changed and the value did, it is the judge's own noise. Only what a metric rests on counts: when a
retriever brings other contexts and the answer stays, factual_f1 has no reason to move, and if it does, that is noise.

With K the samples scored on both sides, B and C those scored in base and candidate, and the means over each:

    mean_C(C) - mean_B(B) = Σ_K (c - b) / |K|                        by what changed in the sample
                          + Σ_{C without K} (c - mean_C(K)) / |C|    added, or not scored before
                          - Σ_{B without K} (b - mean_B(K)) / |B|    removed, or no longer scored

Where K is empty the middle between both means stands in for those over K. `paired` says whether a move is chance.

Retrieval can move a metric that does not read the contexts. A metric of the answer (factual_f1) does not read the
contexts, so that its parts name the answer and no more. In a RAG bot the answer is often another because the contexts
are. Where most of such a metric's move comes from samples whose contexts are others too, and a metric of retrieval
alone is better or worse in the same way, that is told as one thing. Metrics of retrieval alone may also have moved
while the answers stood: that is said of retrieval by itself.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rapidfuzz import fuzz

from evalhouse.prompts import list_rubric_columns, list_rubric_metrics
from evalhouse.tasks.comparing.intervals import Floats
from evalhouse.tasks.comparing.paired import ROUNDING
from evalhouse.tasks.judge.names import find_judge
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, hash_text, read_hash
from evalhouse.warehouse.steps import (
    JUDGE_SETTINGS,
    LEXICAL_SETTINGS,
    PLANS,
    find_step,
    list_possible_calls,
    reaches,
)

Templates = Mapping[str, Collection[str]]
"""By step of a rubric the texts of the prompts that it asked with, as they stand on record."""
NO_TEMPLATES: Final[Templates] = {}


def list_step_inputs(name: str, templates: Templates = NO_TEMPLATES) -> Collection[str] | None:
    """The columns that one step reads; None where it may be any, as for a rubric of which no prompt is known."""
    step = find_step(name)
    if step.prompt is None or step.task != "grade":
        return step.inputs
    columns = list_rubric_columns(step.prompt, templates.get(name, ()))
    return None if columns is None else columns.union(step.inputs or ())


def find_graded(rubrics: Templates) -> dict[str, frozenset[str]]:
    """The step that each score of a rubric rests on; users' own have no metric file that says so."""
    return {
        metric: frozenset({step})
        for step, templates in rubrics.items()
        for template in templates
        for metric in list_rubric_metrics(template)
    }


Flags = NDArray[np.bool_]
Cause = Literal["question", "answer", "contexts", "ground_truth", "judge", "formula"]
CAUSES: Final[tuple[Cause, ...]] = ("question", "answer", "contexts", "ground_truth", "judge", "formula")
NOISE, ADDED, REMOVED, NEWLY_SCORED, NO_LONGER_SCORED = "noise", "added", "removed", "newly_scored", "no_longer_scored"

# What may stand in a sample and is judged, and what it belongs to.
INPUTS: Final[Mapping[str, Cause]] = {
    "question": "question",
    "answer": "answer",
    "ground_truth": "ground_truth",
    "contexts": "contexts",
    "answer_as_contexts": "answer",  # where a sample lacks contexts, and a rubric rates its answer in their place
    "context_ids": "contexts",
    "reference_context_ids": "ground_truth",
    "conversation": "question",
    "tool_calls": "answer",
    "expected_tool_calls": "ground_truth",
    "rows": "answer",
    "expected_rows": "ground_truth",
    "tables": "question",
    "setup": "question",
    "schema": "question",
    "contexts_role": "contexts",
    "ground_truths": "ground_truth",
}
_JOINED_CALLS: Final = frozenset(
    call for plan in PLANS.values() for name in plan.joins for call in list_possible_calls(name)
)
_PLANS_OF_CALLS: Final = {call: name for name, plan in PLANS.items() for call in plan.calls}
METADATA_INPUTS: Final = tuple(INPUTS)[8:]
"""Those of them that stand in a sample's metadata."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a difference of means. `name` is what changed, several things joined with `+`; `n_moved` of its `n`
    samples have another value (of those scored in one run only, all count); `value` is what it adds to the difference.
    `also` counts those of the `n` samples in which something else changed that the metric does not rest on.
    """

    name: str
    n: int
    n_moved: int
    value: float
    also: Mapping[Cause, int] = field(default_factory=dict)


def split_difference(
    *,
    base: Floats,
    candidate: Floats,
    in_base: Flags,
    in_candidate: Flags,
    changed: Sequence[str],
    inputs: Mapping[Cause, Flags] | None = None,
) -> list[Part]:
    """The parts of mean(candidate) - mean(base), which they add up to; none when a run has no score at all.

    By sample: both values, NaN where unscored; whether each run has the sample; and the name of what changed in it
    between the runs (see `name_changes`), which counts where both have scored it. `inputs` has a flag a sample of all
    that changed in it, whether the metric rests on it or not.
    """
    has_base, has_candidate = ~np.isnan(base), ~np.isnan(candidate)
    if not has_base.any() or not has_candidate.any():
        return []
    both = has_base & has_candidate
    names = np.array(changed, dtype=object)
    middle = (base[has_base].mean() + candidate[has_candidate].mean()) / 2
    around_base, around_candidate = (base[both].mean(), candidate[both].mean()) if both.any() else (middle, middle)
    moves = (candidate - base) / max(1, both.sum())
    came = (candidate - around_candidate) / has_candidate.sum()
    went = (around_base - base) / has_base.sum()
    is_moved = np.abs(candidate - base) > ROUNDING
    parts = []
    for name in _order_names(names[both]):
        there = both & (names == name)
        also = _count_also(name, there, inputs or {})
        parts.append(_make_part(name, moves[there], n_moved=int((is_moved & there).sum()), also=also))
    only_candidate, only_base = has_candidate & ~has_base, has_base & ~has_candidate
    parts += [
        _make_part(ADDED, came[only_candidate & ~in_base]),
        _make_part(REMOVED, went[only_base & ~in_candidate]),
        _make_part(NEWLY_SCORED, came[only_candidate & in_base]),
        _make_part(NO_LONGER_SCORED, went[only_base & in_candidate]),
    ]
    return [part for part in parts if part.n]


def name_changes(flags: Mapping[Cause, Flags]) -> list[str]:
    """By sample what changed, joined in the order of CAUSES; `noise` where nothing did: a move would be just that."""
    return [
        "+".join(cause for cause, is_changed in zip(flags, row, strict=True) if is_changed) or NOISE
        for row in zip(*(flags[cause].tolist() for cause in flags), strict=True)
    ]


def find_causes(
    steps: Collection[str],
    *,
    inputs: Mapping[str, Flags],
    judges: Mapping[str, Flags],
    is_formula_changed: bool,
    rubrics: Templates = NO_TEMPLATES,
) -> dict[Cause, Flags]:
    """By cause the samples in which it changed, for a metric that rests on these steps.

    `inputs` has a flag a sample by name of the input, `judges` by the step of the calls, `rubrics` the prompts on
    record by the step of a rubric. A metric that rests on no step reads the samples themselves, so that every input may
    be its cause, and no judge.
    """
    empty = np.zeros_like(next(iter(inputs.values())))
    causes: dict[Cause, Flags] = {cause: empty.copy() for cause in CAUSES}
    for name in list_inputs(steps, rubrics):
        causes[INPUTS[name]] |= inputs[name]
    for step in list_call_steps(steps):
        causes["judge"] |= judges.get(step, empty)
    causes["formula"] |= is_formula_changed
    return causes


def list_inputs(steps: Collection[str], rubrics: Templates = NO_TEMPLATES) -> list[str]:
    """The inputs that a metric resting on these steps can be moved by."""
    inputs = [list_step_inputs(step, rubrics) for step in steps]
    if not inputs or None in inputs:
        return list(INPUTS)
    moving = {name for names in inputs for name in names or ()}
    if "ground_truth" in moving:
        moving.add("ground_truths")
    # Of ranked contexts the ids are compared where the dataset has them.
    return [name for name in INPUTS if name in moving or ("rank" in steps and name.endswith("context_ids"))]


def list_call_steps(steps: Iterable[str]) -> list[str]:
    """The steps, as `llm_calls` names them, whose calls a metric resting on these steps was made from."""
    names = [name for step in steps for name in (*find_step(step).after, step)]
    return list(dict.fromkeys(call for name in names for call in list_possible_calls(name)))


def join_inputs(inputs: Mapping[str, Flags]) -> dict[Cause, Flags]:
    """By cause the samples in which one of its inputs changed."""
    joined: dict[Cause, Flags] = {}
    for name, flags in inputs.items():
        cause = INPUTS[name]
        joined[cause] = joined[cause] | flags if cause in joined else flags
    return joined


def _count_also(name: str, there: Flags, inputs: Mapping[Cause, Flags]) -> dict[Cause, int]:
    own = name.split("+")
    counts = {cause: int((flags & there).sum()) for cause, flags in inputs.items() if cause not in own}
    return {cause: count for cause, count in counts.items() if count}


def _make_part(
    name: str, values: Floats, *, n_moved: int | None = None, also: Mapping[Cause, int] | None = None
) -> Part:
    n = len(values)
    n_moved = n if n_moved is None else n_moved
    return Part(name=name, n=n, n_moved=n_moved, value=float(values.sum()), also=also or {})


def _order_names(names: NDArray[np.object_]) -> list[str]:
    """Single causes in their order, then joint ones, noise last."""
    order = {name: place for place, name in enumerate(CAUSES)}
    return sorted(set(names), key=lambda name: (name == NOISE, name.count("+"), order.get(name, len(order)), name))


def is_changed_everywhere(base: RunRow, candidate: RunRow, step: str) -> bool:
    """Whether the runs had another judge, embeddings, language, plan or setting in a step, and so for every sample."""
    if step == "similarity":
        return base.embeddings != candidate.embeddings
    if _PLANS_OF_CALLS.get(step, base.plan) not in (base.plan, candidate.plan):
        return False  # neither run asks so
    if find_judge(base.judge, step) != find_judge(candidate.judge, step) or base.language != candidate.language:
        return True
    if base.plan != candidate.plan and step in _JOINED_CALLS:
        return True
    return any(reaches(name, step) for name in list_changed_settings(base, candidate))


def list_changed_settings(base: RunRow, candidate: RunRow) -> list[str]:
    """Settings that both runs have on record and that differ."""
    are_lexical = base.judge == candidate.judge == "lexical"
    return [
        name
        for name in (LEXICAL_SETTINGS if are_lexical else JUDGE_SETTINGS)
        if name in base.config and name in candidate.config and base.config[name] != candidate.config[name]
    ]


class PairedSamples:
    """The samples of both runs in one order, and flags over them."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.ids: list[str] = frame["sample_id"].to_list()
        self.places = {sample_id: place for place, sample_id in enumerate(self.ids)}
        self.in_base: Flags = frame["in_base"].to_numpy()
        self.in_candidate: Flags = frame["in_candidate"].to_numpy()

    @property
    def common(self) -> Flags:
        return self.in_base & self.in_candidate

    def flag(self, sample_ids: Sequence[str]) -> Flags:
        """True for these samples."""
        flags = np.zeros(len(self.ids), dtype=bool)
        flags[[self.places[sample_id] for sample_id in sample_ids]] = True
        return flags

    def place_values(self, sample_ids: Sequence[str], values: pl.Series) -> Floats:
        """The values of these samples in their places, NaN elsewhere."""
        placed = np.full(len(self.ids), np.nan)
        # A call of Polars takes longer than the values of a small run: none where they are floats already.
        floats = values if values.dtype == pl.Float64 else values.cast(pl.Float64)
        placed[[self.places[sample_id] for sample_id in sample_ids]] = floats.to_numpy()
        return placed


def find_changed_inputs(pair: RunPair, samples: PairedSamples) -> dict[str, Flags]:
    """By input the samples in which it is another."""
    changed = pair.read_changed_inputs(METADATA_INPUTS)
    return {name: samples.flag(changed.filter(pl.col(name))["sample_id"].to_list()) for name in INPUTS}


def find_changed_judges(
    pair: RunPair, samples: PairedSamples, other_judges: pl.DataFrame, steps: Collection[str]
) -> dict[str, Flags]:
    """By step of the calls the samples for which the runs had another judge, prompt, language or setting."""
    flags = {
        str(key[0]): samples.flag(rows["sample_id"].to_list())
        for key, rows in other_judges.partition_by("step", as_dict=True).items()
    }
    everywhere = np.ones(len(samples.ids), dtype=bool)
    for step in list_call_steps(steps):
        if is_changed_everywhere(pair.base, pair.candidate, step):
            flags[step] = everywhere
    return flags


_LEAST_SHARE: Final = 0.5
"""The share of a mean's move that samples with other contexts must account for."""
_CLEAR: Final = ("worse", "better")
_MOST_NAMED: Final = 4


@dataclass(frozen=True, kw_only=True)
class MetricMoves:
    """A metric by sample: `rests_on` is what of a sample can move it, `moves` is candidate - base, NaN where one is
    unscored, and `verdict` that of its comparison.
    """

    metric: str
    rests_on: frozenset[Cause]
    moves: Floats
    verdict: str


@dataclass(frozen=True, kw_only=True)
class RetrievalFinding:
    """`metric` moved by `value` on the `n_contexts` of its `n_answers` samples with another answer that had other
    contexts as well, of `difference` over all; on those same samples `retrieval_metric` moved by `retrieval_value`.
    """

    metric: str
    verdict: str
    n_answers: int
    n_contexts: int
    value: float
    difference: float
    retrieval_metric: str
    retrieval_value: float

    def describe(self) -> str:
        """The finding in a sentence."""
        return (
            f"{self.metric} is {self.verdict}, and it looks like retrieval: of {self.n_answers} samples with another "
            f"answer {self.n_contexts} also had other contexts, which add {self.value:+.3f} to the "
            f"{self.difference:+.3f}; {self.retrieval_metric} moved by {self.retrieval_value:+.3f} on these"
        )


@dataclass(frozen=True, kw_only=True)
class RetrievalMove:
    """A metric of retrieval alone that is better or worse by `difference`, for the most part in samples whose contexts
    are others: `n_contexts` of the `n` that both runs scored."""

    metric: str
    verdict: str
    n: int
    n_contexts: int
    difference: float


def find_retrieval(metrics: Sequence[MetricMoves], *, answers: Flags, contexts: Flags) -> Iterator[RetrievalFinding]:
    """What looks like retrieval; the flags say which samples have another answer and which other contexts."""
    of_retrieval = _pick_retrieval(metrics)
    for metric in metrics:
        if metric.verdict in _CLEAR and {"answer", "contexts"} & metric.rests_on == {"answer"}:
            yield from _look_at(metric, of_retrieval, answers=answers, contexts=contexts)


def list_retrieval_moves(metrics: Sequence[MetricMoves], *, contexts: Flags) -> Iterator[RetrievalMove]:
    """The metrics of retrieval alone that are better or worse because of the contexts, as the flags say them."""
    for metric in _pick_retrieval(metrics):
        scored = ~np.isnan(metric.moves)
        difference = float(metric.moves[scored].sum())
        if metric.verdict in _CLEAR and float(metric.moves[scored & contexts].sum()) / difference >= _LEAST_SHARE:
            yield RetrievalMove(
                metric=metric.metric,
                verdict=metric.verdict,
                n=int(scored.sum()),
                n_contexts=int((scored & contexts).sum()),
                difference=difference / int(scored.sum()),
            )


def describe_retrieval_moves(moves: Sequence[RetrievalMove]) -> tuple[str, str] | None:
    """What became of the retrieval in half a sentence, and in which metrics; None where nothing did."""
    if not moves:
        return None
    named = {way: [move for move in moves if move.verdict == way] for way in _CLEAR}
    ways = [way for way in _CLEAR if named[way]]
    said = ways[0] if len(ways) == 1 else "worse in some ways and better in others"
    most = max(moves, key=lambda move: move.n_contexts)
    by_way = "; ".join(f"{way} in {_name_moves(named[way])}" for way in ways)
    return (
        f"The retrieval is {said}",
        f"Retrieval is {by_way}; {most.n_contexts:,} of {most.n:,} samples have other contexts",
    )


def _name_moves(moves: Sequence[RetrievalMove]) -> str:
    """The metrics that moved furthest, and how many more there are."""
    ordered = sorted(moves, key=lambda move: -abs(move.difference))
    named = ", ".join(f"{move.metric} ({move.difference:+.3f})" for move in ordered[:_MOST_NAMED])
    return named + (f" and {len(moves) - _MOST_NAMED} more" if len(moves) > _MOST_NAMED else "")


def _pick_retrieval(metrics: Sequence[MetricMoves]) -> list[MetricMoves]:
    return [metric for metric in metrics if "contexts" in metric.rests_on and "answer" not in metric.rests_on]


def _look_at(
    metric: MetricMoves, of_retrieval: Sequence[MetricMoves], *, answers: Flags, contexts: Flags
) -> Iterator[RetrievalFinding]:
    scored = ~np.isnan(metric.moves)
    both = scored & answers & contexts
    difference, value = (float(metric.moves[flags].sum() / scored.sum()) for flags in (scored, both))
    agreeing = [
        (abs(moved), other.metric, moved)
        for other in of_retrieval
        if other.verdict == metric.verdict and (moved := _mean_move(other.moves, both))
    ]
    if agreeing and value / difference >= _LEAST_SHARE:
        _, name, moved = max(agreeing)
        yield RetrievalFinding(
            metric=metric.metric,
            verdict=metric.verdict,
            n_answers=int((scored & answers).sum()),
            n_contexts=int(both.sum()),
            value=value,
            difference=difference,
            retrieval_metric=name,
            retrieval_value=moved,
        )


def _mean_move(moves: Floats, flags: Flags) -> float:
    there = moves[flags & ~np.isnan(moves)]
    return float(there.mean()) if len(there) else 0.0


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
