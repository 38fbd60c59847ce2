"""Changes between two runs: the parts of a difference of means, and the verdicts that flipped.

A mean moves because samples that both runs scored got another value, and because other samples were scored. Of the
first, each sample's move belongs to what changed in it since the base run: a text the metric rests on, the judge (its
name, model, prompt, language, embeddings or a setting that shapes its replies), or the formula. Changes that came
together cannot be separated without judging again, so they make one part, named after all of them: `answer+contexts`.
Where nothing changed and the value did, the move is the judge's noise. Only what a metric rests on counts: when a
retriever brings other contexts and the answer stays the same, a move of factual_f1 is noise.

With K the samples scored on both sides, B and C those scored in base and candidate, and the means over each:

    mean_C(C) - mean_B(B) = Σ_K (c - b) / |K|                        by what changed in the sample
                          + Σ_{C without K} (c - mean_C(K)) / |C|    added, or not scored before
                          - Σ_{B without K} (b - mean_B(K)) / |B|    removed, or no longer scored

Where K is empty, the middle between both means replaces those over K. `paired` tests whether a move is chance.

Statements, contexts and ratings of both runs are matched by text. A statement that both runs have has flipped when its
label or its support differs. Statements that are left on both sides are paired as reworded where their texts are
similar enough; the others have vanished or appeared. Contexts are matched in the same way, but never as reworded;
ratings by rubric and criterion.

A cause of bad answers counts over the samples that were judged in both runs. It grew or shrank beyond chance by the
same sign-flip test that scores have, with p adjusted over all causes. A stage of the bot is worse or better by these
rules:

- Retrieval: a metric that rests on the contexts alone moved because of other contexts, or a cause that only other
  contexts can end, such as `retrieval_missed`, grew or shrank among samples with other contexts.
- Generation: a cause or most clear metrics of the answer moved, mostly in samples with another answer whose retrieval
  did not move the same way. A bot that answers worse because it finds less is not a case of this.
- Answer: the same, where the contexts changed too and nothing measures them.

A sample whose question or ground truth changed under the same id shows nothing of the bot: it names no stage, and no
cause counts in it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rapidfuzz import fuzz

from evalhouse.prompts import list_rubric_columns, read_stored_rubric
from evalhouse.tasks.comparing.intervals import Floats, Integers
from evalhouse.tasks.comparing.paired import ROUNDING, Verdict, compare_paired
from evalhouse.tasks.judge.protocol import find_judge
from evalhouse.warehouse.metric_files import Better
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, hash_text, parse_mark
from evalhouse.warehouse.steps import JUDGE_SETTINGS, LEXICAL_SETTINGS, PLANS, find_step, list_possible_calls, reaches

Templates = Mapping[str, Collection[str]]
"""The texts of the stored prompts that a rubric asked with, by its step."""
NO_TEMPLATES: Final[Templates] = {}
Flags = NDArray[np.bool_]
Cause = Literal["question", "answer", "earlier_answers", "contexts", "ground_truth", "judge", "formula"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
NOISE, ADDED, REMOVED, NEWLY_SCORED, NO_LONGER_SCORED = "noise", "added", "removed", "newly_scored", "no_longer_scored"
OF_ONE_RUN: Final = (ADDED, REMOVED, NEWLY_SCORED, NO_LONGER_SCORED)
"""The parts of a difference by samples that only one run scored."""

# The inputs of a sample that are judged, and the cause that each belongs to.
INPUTS: Final[Mapping[str, Cause]] = {
    "question": "question",
    "answer": "answer",
    "ground_truth": "ground_truth",
    "contexts": "contexts",
    "context_ids": "contexts",
    "reference_context_ids": "ground_truth",
    "conversation": "question",  # the user's texts in it
    "earlier_answers": "earlier_answers",
    "context_sources": "contexts",  # their addresses and names, which answers cite
    "accepted_answer": "answer",  # of several, the one that counts, which follows from the answer
    "accepted_beside_same": "answer",  # the same, where the contexts are the same in any order
    "tool_calls": "answer",
    "tools_called": "answer",
    "expected_tool_calls": "ground_truth",
    "expected_tools": "ground_truth",
    "reference_tool_calls": "ground_truth",
    "rows": "answer",
    "expected_rows": "ground_truth",
    "tables": "question",
    "setup": "question",
    "schema": "question",
    "contexts_role": "contexts",
    "ground_truths": "ground_truth",
}
ACCEPTED: Final = "accepted_answer"
ACCEPTED_BESIDE_SAME: Final = "accepted_beside_same"
SOURCES: Final = "context_sources"
METADATA_INPUTS: Final = tuple(INPUTS)[list(INPUTS).index("tool_calls") :]
"""The inputs that a sample's metadata holds."""
Edit = Literal["question", "ground_truth", "reference_ids"]
"""Changes of a sample by its dataset, under the same id, by which scores move without a change of the bot."""
# Earlier turns do not count.
_EDITS: Final[Mapping[str, str]] = {
    name: "reference_ids" if name == "reference_context_ids" else cause
    for name, cause in INPUTS.items()
    if cause in ("question", "ground_truth") and name != "conversation"
}
_JOINED_CALLS: Final = frozenset(
    call for plan in PLANS.values() for name in plan.joins for call in list_possible_calls(name)
)
_PLANS_OF_CALLS: Final = {call: name for name, plan in PLANS.items() for call in plan.calls}


def list_step_inputs(name: str, templates: Templates = NO_TEMPLATES) -> Collection[str] | None:
    """Return the columns that one step reads; None where it may read any, as a rubric without a stored prompt."""
    step = find_step(name)
    if step.prompt is None or step.task != "grade":
        return step.inputs
    columns = list_rubric_columns(step.prompt, templates.get(name, ()))
    return None if columns is None else columns.union(step.inputs or ())


def find_graded(rubrics: Templates) -> dict[str, frozenset[str]]:
    """Return the step that each score of a rubric rests on; rubrics of users have no metric file that names it."""
    return {
        metric: frozenset({step})
        for step, templates in rubrics.items()
        for rubric in map(read_stored_rubric, templates)
        if rubric is not None
        for metric in rubric.metrics
    }


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a difference of means.

    `name` is what changed, several changes joined with `+`. `n_moved` of its `n` samples have another value; of samples
    scored in one run only, all count. `value` is what the part adds to the difference. `also` counts the samples among
    the `n` in which something else changed that the metric does not rest on.
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
    """Return the parts that add up to mean(candidate) - mean(base); none when a run has no score at all.

    All arguments are by sample: both values, NaN where unscored; whether each run has the sample; and the name of what
    changed in it between the runs (see `name_changes`), which counts where both have scored it. `inputs` flags the
    samples in which an input changed, whether the metric rests on it or not.
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
    # Single causes come first, in their order, then joint ones, and noise last.
    order = {name: place for place, name in enumerate(CAUSES)}
    for name in sorted(
        set(names[both]), key=lambda name: (name == NOISE, name.count("+"), order.get(name, len(order)), name)
    ):
        there = both & (names == name)
        also = {
            cause: count
            for cause, flags in (inputs or {}).items()
            if cause not in name.split("+") and (count := int((flags & there).sum()))
        }
        value, n_moved = float(moves[there].sum()), int((is_moved & there).sum())
        parts.append(Part(name=name, n=int(there.sum()), n_moved=n_moved, value=value, also=also))
    only_candidate, only_base = has_candidate & ~has_base, has_base & ~has_candidate
    for name, there, effects in (
        (ADDED, only_candidate & ~in_base, came),
        (REMOVED, only_base & ~in_candidate, went),
        (NEWLY_SCORED, only_candidate & in_base, came),
        (NO_LONGER_SCORED, only_base & in_candidate, went),
    ):
        if n := int(there.sum()):
            parts.append(Part(name=name, n=n, n_moved=n, value=float(effects[there].sum())))
    return parts


def name_changes(flags: Mapping[Cause, Flags]) -> list[str]:
    """Return by sample what changed, joined in the order of CAUSES; `noise` where nothing did."""
    # A number by sample with a bit for each cause: few differ, and each is named once.
    bits = np.sum([of_cause.astype(np.int64) << place for place, of_cause in enumerate(flags.values())], axis=0)
    known, places = np.unique(bits, return_inverse=True)
    names = [
        "+".join(cause for place, cause in enumerate(flags) if bit >> place & 1) or NOISE for bit in known.tolist()
    ]
    return [names[place] for place in places.tolist()]


def find_causes(
    steps: Collection[str],
    *,
    inputs: Mapping[str, Flags],
    judges: Mapping[str, Flags],
    is_formula_changed: bool,
    rubrics: Templates = NO_TEMPLATES,
) -> dict[Cause, Flags]:
    """Return by cause the samples in which it changed, for a metric that rests on these steps.

    `inputs` flags samples by name of the input, `judges` by the step of the calls; `rubrics` are the stored prompts by
    the step of a rubric. A metric that rests on no step reads the samples themselves: every input may be its cause, and
    no judge.
    """
    empty = np.zeros_like(next(iter(inputs.values())))
    causes: dict[Cause, Flags] = {cause: empty.copy() for cause in CAUSES}
    for name in list_moving(steps, rubrics):
        causes[INPUTS[name]] |= inputs[name]
    for step in list_call_steps(steps):
        causes["judge"] |= judges.get(step, empty)
    causes["formula"] |= is_formula_changed
    return causes


def list_inputs(steps: Collection[str], rubrics: Templates = NO_TEMPLATES) -> list[str]:
    """Return the inputs that a metric resting on these steps reads."""
    inputs = [list_step_inputs(step, rubrics) for step in steps]
    if not inputs or None in inputs:
        return [name for name in INPUTS if name != SOURCES]
    moving = {name for names in inputs for name in names or ()}
    if "ground_truth" in moving:
        moving.add("ground_truths")
    if "conversation" in moving:
        moving.add("earlier_answers")
    # Of ranked contexts the ids are compared where the dataset has them.
    return [name for name in INPUTS if name in moving or ("rank" in steps and name.endswith("context_ids"))]


def list_moving(steps: Collection[str], rubrics: Templates = NO_TEMPLATES) -> list[str]:
    """Return the inputs that can move a metric resting on these steps: what it reads, and what picks among it.

    Of several accepted answers the answer picks the one whose statements the contexts are to support. `rank` reads all.
    """
    reads = list_inputs(steps, rubrics)
    return [*reads, ACCEPTED] if "attribute_ground_truth" in steps and ACCEPTED not in reads else reads


def list_call_steps(steps: Iterable[str]) -> list[str]:
    """Return the steps, as `llm_calls` names them, whose calls a metric resting on these steps was made from."""
    names = [name for step in steps for name in (*find_step(step).after, step)]
    return list(dict.fromkeys(call for name in names for call in list_possible_calls(name)))


def join_inputs(inputs: Mapping[str, Flags]) -> dict[Cause, Flags]:
    """Return by cause the samples in which one of its inputs changed."""
    joined: dict[Cause, Flags] = {}
    for name, flags in inputs.items():
        cause = INPUTS[name]
        joined[cause] = joined[cause] | flags if cause in joined else flags
    return joined


def find_edited(inputs: Mapping[str, Flags]) -> dict[Edit, Flags]:
    """Return the samples of which the dataset changed question, ground truth or reference ids, under the same id."""
    return {
        edit: np.any([inputs[name] for name, of_name in _EDITS.items() if of_name == edit], axis=0)
        for edit in get_args(Edit)
    }


def flag_edited(edited: Mapping[Edit, Flags], reads: Collection[str]) -> Flags:
    """Return the edited samples in which a metric that reads these inputs may move without a change of the bot.

    Another question counts for each metric, because it gets another answer.
    """
    moving = {"question", *(_EDITS[name] for name in reads if name in _EDITS)}
    flags: Flags = np.any([of_edit for edit, of_edit in edited.items() if edit in moving], axis=0)
    return flags


def is_changed_everywhere(base: RunRow, candidate: RunRow, step: str) -> bool:
    """Return True if judge, embeddings, language, plan or a setting of a step differ, and so for every sample."""
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
    """Return the settings that both runs have stored and that differ."""
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
        self.common: Flags = self.in_base & self.in_candidate

    def flag(self, sample_ids: Sequence[str]) -> Flags:
        """Return flags that are True for these samples."""
        flags = np.zeros(len(self.ids), dtype=bool)
        flags[[self.places[sample_id] for sample_id in sample_ids]] = True
        return flags

    def place_values(self, sample_ids: Sequence[str], values: pl.Series) -> Floats:
        """Return the values of these samples in their places, NaN elsewhere."""
        placed = np.full(len(self.ids), np.nan)
        # A call of Polars takes longer than the values of a small run: none where they are floats already.
        floats = values if values.dtype == pl.Float64 else values.cast(pl.Float64)
        placed[[self.places[sample_id] for sample_id in sample_ids]] = floats.to_numpy()
        return placed


def find_metric_steps(pair: RunPair) -> dict[str, frozenset[str]]:
    """Return the steps that each known metric rests on, and each score of a rubric that graded in either run."""
    return find_graded(pair.rubrics) | pair.metric_steps


def find_changed_inputs(pair: RunPair, samples: PairedSamples) -> dict[str, Flags]:
    """Return by input the samples in which it changed; of the metadata, which may be anything, only what is scored."""
    steps = find_metric_steps(pair)
    # Of metrics without steps the built-in ones rank ids alone, and what a user's one reads is not known.
    scored = [steps[metric] for metric in {*pair.base.metrics, *pair.candidate.metrics} if steps.get(metric)]
    reads = {name for of_metric in scored for name in list_inputs(of_metric, pair.rubrics)}
    changed = pair.fetch_changed_inputs(METADATA_INPUTS)
    unread = {name for name in METADATA_INPUTS if name not in reads}
    return {
        name: samples.flag([] if name in unread else changed.filter(pl.col(name))["sample_id"].to_list())
        for name in INPUTS
    }


def find_changed_judges(
    pair: RunPair, samples: PairedSamples, other_judges: pl.DataFrame, steps: Collection[str]
) -> dict[str, Flags]:
    """Return by step of the calls the samples for which the runs had another judge, prompt, language or setting."""
    flags = {
        str(key[0]): samples.flag(rows["sample_id"].to_list())
        for key, rows in other_judges.partition_by("step", as_dict=True).items()
    }
    everywhere = np.ones(len(samples.ids), dtype=bool)
    for step in list_call_steps(steps):
        if is_changed_everywhere(pair.base, pair.candidate, step):
            flags[step] = everywhere
    return flags


@dataclass(frozen=True, kw_only=True)
class MetricMoves:
    """A metric by sample.

    `rests_on` names the causes that can move it, `moves` is candidate - base, NaN where one is unscored, and `verdict`
    is that of its comparison.
    """

    metric: str
    rests_on: frozenset[Cause]
    moves: Floats
    verdict: str
    better: Better = "high"

    @property
    def gains(self) -> Floats:
        """The moves, above 0 where the candidate is better."""
        return -self.moves if self.better == "low" else self.moves


Item = Mapping[str, Any]
Kind = Literal["answer", "ground_truth", "context", "rating"]
Change = Literal["flipped", "reworded", "vanished", "appeared", "moved", "same"]

_MIN_SIMILARITY: Final = 70.0  # of 100, by rapidfuzz's count of the letters that have to be changed
_VERDICTS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "answer": ("label", "supported"),
    "ground_truth": ("label", "supported"),
    "context": ("useful",),
    "rating": ("rating",),
}


@dataclass(frozen=True, kw_only=True)
class Flip:
    """One statement, context or rating of both runs or one; None on the side that does not have it.

    `moved` is a context with the same verdict at another rank, `same` an unchanged item.
    """

    kind: Kind
    change: Change
    base: Item | None
    candidate: Item | None


def find_flips(*, statements: pl.DataFrame, contexts: pl.DataFrame, grades: pl.DataFrame) -> dict[str, list[Flip]]:
    """Return by sample what changed, from rows of both runs; `of_candidate` marks the candidate's.

    Samples without a change are left out.
    """
    frames = []
    for rows, verdict in (
        (statements, ("source", "label", "supported")), (contexts, ("context_rank", "useful")), (grades, ("rating",)),
    ):  # fmt: skip
        # A text that either run has once, word for word and with the same verdict, needs no matching.
        of_text, of_verdict = ("sample_id", "text"), ("sample_id", "text", *verdict)
        is_same = (pl.len().over(of_text) == 2) & (pl.len().over(of_verdict) == 2)
        frames.append(rows.filter(~(is_same & (pl.col("of_candidate").n_unique().over(of_text) == 2))))
    matched = match_items(statements=frames[0], contexts=frames[1], grades=frames[2])
    flips = {sample_id: [item for item in items if item.change != "same"] for sample_id, items in matched.items()}
    return {sample_id: items for sample_id, items in flips.items() if items}


def match_items(*, statements: pl.DataFrame, contexts: pl.DataFrame, grades: pl.DataFrame) -> dict[str, list[Flip]]:
    """Return by sample all items of both runs, changed or not."""
    flips: dict[str, list[Flip]] = {}
    frames: dict[Kind, pl.DataFrame] = {
        "answer": statements.filter(pl.col("source") == "answer").drop("source"),
        "ground_truth": statements.filter(pl.col("source") == "ground_truth").drop("source"),
        "context": contexts,
        "rating": grades,
    }
    for kind, rows in frames.items():
        by_sample: dict[str, tuple[list[Item], list[Item]]] = {}
        for row in rows.to_dicts():
            sides = by_sample.setdefault(row.pop("sample_id"), ([], []))
            sides[row.pop("of_candidate")].append(row)
        for sample_id, (base, candidate) in by_sample.items():
            flips.setdefault(sample_id, []).extend(_match(kind, base, candidate))
    return flips


def _match(kind: Kind, base: Sequence[Item], candidate: Sequence[Item]) -> Iterable[Flip]:
    """Yield one sample's items of either run, in the order of the candidate's text, vanished items last."""
    # Forgotten texts are equal by their hashes, and how similar others are cannot be measured.
    is_forgotten = any(parse_mark(item["text"]) for item in (*base, *candidate))
    names: list[list[str]] = [[], []]
    for side, items in zip(names, (base, candidate), strict=True):
        for item in items:
            name = " ".join((item["text"] or "").split())
            if is_forgotten and kind != "rating":
                # A context's text is hashed unchanged, a statement's in plain words.
                plain = (item["text"] or "") if kind == "context" else name.lower()
                name = parse_mark(item["text"]) or hash_text(plain)
            side.append(name)
    open_items: dict[str, list[Item]] = {}
    for name, item in zip(names[0], base, strict=True):
        open_items.setdefault(name, []).append(item)
    partners = [same.pop(0) if (same := open_items.get(name)) else None for name in names[1]]
    left = [item for items in open_items.values() for item in items]
    matched = list(partners)
    if kind in ("answer", "ground_truth") and not is_forgotten:
        # Pair the remaining statements, the most similar first.
        pairs = sorted(
            (-fuzz.ratio(other["text"].casefold(), item["text"].casefold()), place, number)
            for place, item in enumerate(candidate)
            if partners[place] is None
            for number, other in enumerate(left)
        )
        taken: set[int] = set()
        for distance, place, number in pairs:
            if -distance >= _MIN_SIMILARITY and partners[place] is None and number not in taken:
                partners[place] = left[number]
                taken.add(number)
        left = [item for number, item in enumerate(left) if number not in taken]
    for item, partner, same_text in zip(candidate, partners, matched, strict=True):
        change: Change = "same"
        if partner is None:
            change = "appeared"
        elif partner is not same_text:
            change = "reworded"
        elif any(partner[name] != item[name] for name in _VERDICTS[kind]):
            change = "flipped"
        elif kind == "context" and partner["context_rank"] != item["context_rank"]:
            change = "moved"
        yield Flip(kind=kind, change=change, base=partner, candidate=item)
    for item in left:
        yield Flip(kind=kind, change="vanished", base=item, candidate=None)


def list_verdict_flips(pair: RunPair) -> pl.DataFrame:
    """Return one row per verdict that flipped, in the order of the candidate's samples.

    sample_id, step, source (answer, ground_truth, context or rating), base_id and candidate_id (the statement, the
    context's rank or the rating's name), base and candidate (the verdicts), way (worse or better), around: what changed
    of the inputs that the verdict rests on, named like a part of a difference.
    """
    flips = pair.fetch("flips")
    samples = PairedSamples(pair.fetch("samples"))
    places = pl.DataFrame({"sample_id": samples.ids}, schema={"sample_id": pl.String}).with_row_index("place")
    flips = flips.join(places, on="sample_id", how="left")
    steps = flips["step"].unique().to_list()
    inputs, rubrics = find_changed_inputs(pair, samples), pair.rubrics
    judges = find_changed_judges(pair, samples, pair.fetch("changed_judges"), steps)
    by_step = {
        step: name_changes(find_causes([step], inputs=inputs, judges=judges, rubrics=rubrics, is_formula_changed=False))
        for step in steps
    }
    around = [by_step[step][place] for step, place in flips.select("step", "place").iter_rows()]
    flips = flips.with_columns(
        pl.when("is_better").then(pl.lit("better")).otherwise(pl.lit("worse")).alias("way"),
        pl.Series("around", around, dtype=pl.String),
    )
    return flips.drop("is_better").sort("place", "step", "candidate_id", maintain_order=True)


Stage = Literal["retrieval", "generation", "answer"]
Way = Literal["worse", "better"]
WAYS: Final[tuple[Way, ...]] = ("worse", "better")
FINE: Final = ("fine", "refused_rightly")
"""Causes of samples in which nothing is wrong."""
OF_RETRIEVAL: Final = (
    "retrieval_missed", "not_in_contexts", "knowledge_base_lacks", "ranked_too_low", "ground_truth_outdated",
)  # fmt: skip
"""Causes that only other contexts can end."""
_OF_MEASURING: Final = ("judge_suspect", "ground_truth_doubtful")
MOST: Final = 0.5
"""The share of a move from which samples explain it."""


@dataclass(frozen=True, kw_only=True)
class CauseMove:
    """One cause of bad answers: the samples with it in either run, and if that is worse or better beyond chance."""

    cause: str
    n_base: int
    n_candidate: int
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class CauseChanges:
    """Causes of bad answers over the `n` samples judged in both runs whose question and ground truth are the same.

    `n_base` and `n_candidate` of these have a problem. `moves` has the causes that either run has, `stages` the stages
    of the bot that are clearly worse or better.
    """

    n: int = 0
    n_base: int = 0
    n_candidate: int = 0
    moves: tuple[CauseMove, ...] = ()
    stages: Mapping[Stage, Way] = field(default_factory=dict)

    def list_moved(self, way: Way) -> list[CauseMove]:
        """Return the causes that grew (`worse`) or shrank, the clear ones first, then by size."""
        sign = 1 if way == "worse" else -1
        moved = [move for move in self.moves if sign * (move.n_candidate - move.n_base) > 0]
        return sorted(moved, key=lambda move: (move.verdict != way, sign * (move.n_base - move.n_candidate)))


def find_cause_changes(
    causes: pl.DataFrame,
    samples: PairedSamples,
    metrics: Sequence[MetricMoves],
    *,
    changed: Mapping[Cause, Flags],
    clusters: Integers,
    seed: int,
    resamples: int,
) -> CauseChanges:
    """Compare the causes of two runs; `causes` are the rows of `run_pairs/causes.sql`.

    `metrics` are in the order of the runs, `changed` and `clusters` by sample. Neither causes nor moves are of samples
    with another question or ground truth. Equal arguments give equal results.
    """
    names = sorted(set(causes["base"]) | set(causes["candidate"]))
    places = [samples.places[sample_id] for sample_id in causes["sample_id"]]
    sides = {}
    for side in ("base", "candidate"):
        sides[side] = np.full(len(samples.ids), "", dtype=object)
        sides[side][places] = causes[side].to_list()
    faults = [name for name in names if name not in FINE]

    def differ(of: Iterable[str], where: Flags) -> Floats:
        """Return by sample 1 where it came to have one of these causes, -1 where it lost them, NaN where not judged."""
        moves = np.isin(sides["candidate"], list(of)).astype(float) - np.isin(sides["base"], list(of))
        moves[~where] = 0.0
        moves[sides["base"] == ""] = np.nan
        return moves

    everywhere = np.ones(len(samples.ids), dtype=bool)
    missed = differ(OF_RETRIEVAL, changed["contexts"])
    columns = [missed, *(differ([name], everywhere) for name in faults)]
    tested = compare_paired(
        np.column_stack(columns), clusters, low_is_good=[True] * len(columns), seed=seed, resamples=resamples
    )
    verdicts = dict(zip(("", *faults), (paired.verdict for paired in tested), strict=True))
    of_contexts = [metric for metric in metrics if {"answer", "contexts"} & metric.rests_on == {"contexts"}]
    is_measured = bool(faults) or any((~np.isnan(metric.moves)).any() for metric in of_contexts)
    # By sample how far its contexts got better: by the metrics that rest on them alone, and by its causes.
    gains = np.sum([np.nan_to_num(metric.gains) for metric in of_contexts], axis=0) - np.nan_to_num(missed)
    is_wrong_twice = np.isin(sides["base"], faults) & np.isin(sides["candidate"], faults)
    by_contexts = [metric for metric in of_contexts if find_share(metric.gains, changed["contexts"]) >= MOST]
    verdicts_of_retrieval = {verdicts[""], *(metric.verdict for metric in by_contexts)}
    stages: dict[Stage, Way] = {}
    for way in WAYS:
        sign = -1.0 if way == "worse" else 1.0
        if way in verdicts_of_retrieval and "retrieval" not in stages:
            stages["retrieval"] = way
        by_retrieval = changed["contexts"] & (sign * gains > 0) if way in verdicts_of_retrieval else ~everywhere
        of_bot = changed["answer"] & ~by_retrieval
        moved = [metric.gains for metric in metrics if metric.verdict == way and "answer" in metric.rests_on]
        n_of_bot = sum(find_share(gains_of_one, of_bot) >= MOST for gains_of_one in moved)
        # With other contexts only a sample without a problem on one side is the bot's: else one cause covers another.
        by_bot = {True: of_bot & ~changed["contexts"], False: of_bot & (~changed["contexts"] | ~is_wrong_twice)}
        has_grown = any(
            find_share(column, by_bot[name in OF_RETRIEVAL]) >= MOST
            for name, column in zip(faults, columns[1:], strict=True)
            if verdicts[name] == way and name not in _OF_MEASURING
        )
        if 0 < n_of_bot >= MOST * len(moved) or has_grown:
            is_known = is_measured or all(find_share(one, changed["contexts"]) < MOST for one in moved)
            stages.setdefault("generation" if is_known else "answer", way)
    has_fault = {side: int(np.isin(causes_of, faults).sum()) for side, causes_of in sides.items()}
    return CauseChanges(
        n=len(places),
        n_base=has_fault["base"],
        n_candidate=has_fault["candidate"],
        moves=tuple(
            CauseMove(
                cause=name,
                n_base=int((sides["base"] == name).sum()),
                n_candidate=int((sides["candidate"] == name).sum()),
                verdict=verdicts[name],
            )
            for name in faults
        ),
        stages=stages,
    )


Edits = Literal["cause", "unclear", "beside"]
"""The part of edits of the dataset in a difference that is mostly in edited samples: its cause; unclear, as answers or
contexts changed in the same samples alone; or beside what the bot changed."""
_MIN_ALONE: Final = 6
_MIN_ALONE_SHARE: Final = 0.1
"""The least samples with one of both changes, and their least share of the samples with both, that tell these apart."""


def judge_edits(base: Floats, moves: Floats, edited: Flags, by_bot: Flags) -> Edits | None:
    """Return how edits stand to a metric's move, None where the edited samples account for less than most of it.

    `base` has the scores before; `by_bot` flags the samples in which answer or contexts changed, if the metric reads
    them. What moved the samples with both follows from the ones with an edit alone or from the ones without an edit, if
    these are more. A score that cannot move further that way says nothing: where a bot writes its answers in new words
    each night, the only ones left alike are refusals, which scored 0 and do so again.
    """
    if find_share(moves, edited) < MOST:
        return None
    ends = np.concatenate([base, base + moves])
    at_end = np.nanmin(ends) if np.nansum(moves[edited]) < 0 else np.nanmax(ends)
    scored = ~np.isnan(moves)
    of_both = moves[scored & edited & by_bot]
    room = np.abs(of_both.sum()) / max(1, 2 * len(of_both))
    can_move = scored & (np.abs(base - at_end) > room)
    both, edit_alone, bot_alone = can_move & edited & by_bot, can_move & edited & ~by_bot, can_move & ~edited & by_bot
    n_alone = max(edit_alone.sum(), bot_alone.sum())
    if not both.any():
        return "cause"
    if n_alone < max(_MIN_ALONE, _MIN_ALONE_SHARE * both.sum()):
        return "unclear"
    is_more = edit_alone.sum() >= bot_alone.sum()
    of_edit = moves[edit_alone].mean() if is_more else moves[both].mean() - moves[bot_alone].mean()
    by_edits = moves[edit_alone].sum() + both.sum() * of_edit
    return "cause" if by_edits / np.nansum(moves[edited & can_move]) >= MOST else "beside"


def find_share(gains: Floats, where: Flags) -> float:
    """Return the share of a move that these samples account for; 0 where all of it cancels out."""
    whole = float(np.nansum(gains))
    return float(np.nansum(gains[where])) / whole if whole else 0.0
