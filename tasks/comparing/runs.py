"""The comparison of two stored runs: the change of each metric, its significance, its causes, and warnings.

Here the statistics (`paired`) and the parts of a difference (`changes`) meet the warehouse. The result is plain data
that commands print.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import orjson
import polars as pl
from numpy.typing import NDArray

from evalhouse.tasks.comparing.changes import (
    ACCEPTED,
    ACCEPTED_BESIDE_SAME,
    INPUTS,
    NOISE,
    OF_ONE_RUN,
    SOURCES,
    Cause,
    CauseChanges,
    Edit,
    Edits,
    Flags,
    MetricMoves,
    PairedSamples,
    Part,
    find_cause_changes,
    find_causes,
    find_changed_inputs,
    find_changed_judges,
    find_edited,
    find_metric_steps,
    flag_edited,
    join_inputs,
    judge_edits,
    list_changed_settings,
    list_inputs,
    list_moving,
    name_changes,
    split_difference,
)
from evalhouse.tasks.comparing.intervals import Floats, Integers, find_mean_interval
from evalhouse.tasks.comparing.noise import MetricNoise, PairNoise, Shift, describe_shifts, find_scale, is_judged_alike
from evalhouse.tasks.comparing.paired import (
    MAX_LOST,
    MIN_CLUSTERS,
    RESAMPLES,
    ROUNDING,
    Paired,
    Scored,
    Shares,
    adjust_estimates,
    compare_paired,
    decide,
    group_terms,
    is_sampled,
    measure_terms,
)
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.messages import list_names, suggest
from evalhouse.warehouse.metric_files import SIGNS, Better, explain_versions
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import YARDSTICKS, RunRow, find_forgotten
from evalhouse.warehouse.rows.samples import CLUSTER_COLUMNS, MIN_GROUPS, NO_CLUSTER, fetch_asked
from evalhouse.warehouse.store import Warehouse

MEASURING: Final = ("judge", "formula")
"""The causes of a change that lie in the measurement."""
RELEVANCY: Final = "answer_relevancy"
_MANY_LOST: Final = 0.2
NOTHING_TO_MEASURE: Final = frozenset({"nothing_to_heed", "no_citations", "no_statements"})
"""The reasons of scores that are missing because the answer has nothing that the metric measures."""


class ComparisonError(ValueError):
    """The runs cannot be compared as asked; the text names the value and what is allowed."""


class NothingCommon(ComparisonError):
    """The runs share no sample."""


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings:
    """Settings of a comparison. `cluster` is a metadata column, NO_CLUSTER, or None for that of the candidate's
    suite, else the first of CLUSTER_COLUMNS by which samples are in at least MIN_GROUPS groups.

    p is adjusted over `metrics`, or over all if that is None; the others have no adjusted one.
    """

    cluster: str | None = None
    seed: int = 0
    resamples: int = RESAMPLES
    metrics: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class MetricComparison:
    """One metric in both runs.

    `n_*` counts scored samples, `coverage_*` is their share of the run; `mean_*` is over all of them, `common_*` over
    the samples that both runs scored, as is everything in `paired`. `change` is the difference of the means over all,
    which the `parts` add up to; None when a run has no score. `noise` is the possible share of the judge's noise in
    `paired`, None where no sample is common. `lost` counts by reason the samples of both runs that the base scored and
    the candidate did not, so that no difference has them; `n_missing` of them lack more than something to measure.
    Not lost are the `n_refused` that have no answer and that the candidate rightly refused.
    `n_gained` counts the ones that the candidate alone scored and that had something to measure in the base.
    An estimate is of all samples that both datasets have, by the ones judged in either run; its `plain_parts` do not
    add up to its change, `sizes` are the samples of either dataset and of both, and `shares` tell what was lost and
    gained. `is_unpicked` is True if the candidate judged a part, and by chance the metric applies to no sample in that.
    `cluster` is the column of the clusters in `paired`, None where each sample is one.
    `n_edited` samples that both runs scored have another question, or another ground truth that the metric reads;
    `edits` says how these stand to the difference, None where they account for less than most of it.
    """

    metric: str
    n_base: int
    n_candidate: int
    coverage_base: float
    coverage_candidate: float
    mean_base: float | None
    mean_candidate: float | None
    common_base: float | None
    common_candidate: float | None
    paired: Paired
    change: float | None
    parts: tuple[Part, ...]
    noise: MetricNoise | None = None
    better: Better = "high"
    lost: Mapping[str, int] = field(default_factory=dict)
    n_missing: int = 0
    n_refused: int = 0
    n_gained: int = 0
    plain_parts: tuple[Part, ...] = ()
    is_estimate: bool = False
    sizes: tuple[int, int, int] | None = None
    shares: Shares | None = None
    is_unpicked: bool = False
    cluster: str | None = None
    n_edited: int = 0
    edits: Edits | None = None

    @property
    def is_compared(self) -> bool:
        """True if both runs scored a sample, or the difference is an estimate from what either judged."""
        return bool(self.paired.n) or (self.is_estimate and self.paired.difference is not None)

    @property
    def n_lost(self) -> int:
        """The samples of both runs that only the base scored."""
        return sum(self.lost.values())

    @property
    def n_other(self) -> dict[str, int]:
        """The samples that both runs scored by another judge or formula, by that cause; no cause without any."""
        counts: Counter[str] = Counter()
        for part in self.parts or self.plain_parts:
            counts.update({cause: part.n for cause in part.name.split("+") if cause in MEASURING})
        return counts

    @property
    def is_partly_lost(self) -> bool:
        """True if more than MAX_LOST of what the base scored has no score in the candidate."""
        if self.shares:
            return self.shares.shift < 0
        return self.n_lost > MAX_LOST * (self.paired.n + self.n_lost)

    @property
    def has_few_common(self) -> bool:
        """True if less than half of what either run scored is scored in both, as after an edit of the dataset; of an
        estimate, if less than half of either dataset is in both."""
        n_base, n_candidate, n_common = self.sizes or (self.n_base, self.n_candidate, self.paired.n)
        return 2 * n_common < min(n_base, n_candidate)

    @property
    def is_partly_missing(self) -> bool:
        """True if that is so without the samples in whose answers nothing is left that the metric measures; of an
        estimate, which these samples are missing from as well, with them."""
        if self.shares:
            return self.is_partly_lost
        return self.n_missing > MAX_LOST * (self.paired.n + self.n_lost)

    @property
    def has_few_left(self) -> bool:
        """True if a fifth of what the base scored has no score, for any reason, as where a bot begins to refuse."""
        return not self.shares and self.n_lost >= _MANY_LOST * (self.paired.n + self.n_lost) > 0

    @property
    def has_many_gained(self) -> bool:
        """True if more than MAX_LOST of what the candidate scored had no score in the base."""
        if self.shares:
            return self.shares.shift > 0
        return self.n_gained > MAX_LOST * (self.paired.n + self.n_gained)

    @property
    def noise_floor(self) -> float | None:
        """The largest change that the judge's noise alone would reach in 95 of 100 comparisons; None if not known."""
        return None if self.noise is None else self.noise.floor

    @property
    def is_unchanged(self) -> bool:
        """True if nothing that the metric rests on changed in any sample that both runs scored, nor their scores."""
        common = [part for part in self.parts if part.name not in OF_ONE_RUN]
        return bool(common) and all(part.name == NOISE and not part.n_moved for part in common)

    @property
    def is_real(self) -> bool:
        """True if the difference is significantly better or worse, from any cause."""
        return self.paired.verdict in ("better", "worse")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of two runs in every metric.

    `cluster` is the column that was used; `moves` has one row per sample of both runs and metric (sample_id, metric,
    base, candidate, changed) where the values differ or only one run has one. `noise_run_ids` are the noise runs that
    floors rest on, `shifts` the metrics in which they show that the judge has shifted, `causes` the changes of what is
    wrong with the answers. `changed` counts, by what changed, the samples of both runs, and `edited` the ones whose
    question or ground truth the dataset changed.
    """

    n_base: int
    n_candidate: int
    n_common: int
    cluster: str | None
    metrics: tuple[MetricComparison, ...]
    warnings: tuple[str, ...]
    moves: pl.DataFrame
    noise_run_ids: tuple[str, ...] = ()
    shifts: tuple[Shift, ...] = ()
    causes: CauseChanges = field(default_factory=CauseChanges)
    changed: Mapping[Cause, int] = field(default_factory=dict)
    edited: Mapping[Edit, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """The cluster of each sample, and the column they rest on; None where each sample is one.

    Each of the `n_without` samples that have no value in that column is a separate cluster. `is_found` if the column
    was not named; `too_few` is a known one that was not taken, with the number of its groups.
    """

    column: str | None
    places: Integers
    n_without: int = 0
    is_found: bool = False
    too_few: tuple[str, int] | None = None

    def warn(self) -> Iterator[str]:
        """Yield warnings of samples that are in no group, and of a column that has too few groups."""
        if self.too_few:
            name, n = self.too_few
            counted = f"they are grouped by {self.column}" if self.column else "each sample counts for itself"
            yield (
                f"samples share {name}, in {n} groups, too few to compare by: {counted}; "
                f"--cluster {name}, or `cluster` in [gate], counts the groups"
            )
        if self.n_without:
            yield f"{self.n_without:,} samples have no {self.column}: each of them counts as a separate group"


@dataclass(frozen=True, kw_only=True)
class MetricColumn:
    """One metric by sample, in the order of the samples; `steps`, `rests_on` and `version` are of the metric itself.

    `unscored` has the reasons of the samples that the candidate did not score, by their places, `refused` flags the
    other ones without a score, which it rightly refused, and `n_gained` counts the ones that it alone scored. `edited`
    flags the samples whose question, or whose ground truth if the metric reads it, the dataset changed.
    """

    metric: str
    base: Floats
    candidate: Floats
    moves: Floats
    changed: Sequence[str]
    edited: Flags
    steps: frozenset[str]
    rests_on: frozenset[Cause]
    version: str | None
    better: Better
    refused: Flags
    unscored: Mapping[int, str] = field(default_factory=dict)
    n_gained: int = 0


@one_reader()
def compare_runs(pair: RunPair, settings: ComparisonSettings) -> Comparison:
    """Compare two runs; raises ComparisonError for a cluster column that no common sample has."""
    samples = PairedSamples(pair.fetch("samples"))
    scores = fetch_scores(pair)
    other_judges = pair.fetch("changed_judges")
    inputs = find_changed_inputs(pair, samples)
    columns = list(build_columns(pair, samples, scores, other_judges, inputs))
    grouped = find_clusters(pair, samples, settings.cluster)
    clusters = grouped.places
    # Addresses of the same contexts may be signed again each night, and only citations read them.
    texts = {name: flags for name, flags in inputs.items() if name != SOURCES}
    changed_texts = join_inputs(texts)
    changed = join_inputs(inputs)
    edited = find_edited(inputs)
    scales = [find_scale(np.concatenate([column.base, column.candidate])) for column in columns]

    def compare(moves: Sequence[Floats]) -> list[Paired]:
        return compare_paired(
            np.column_stack([*moves] or [np.empty((len(samples.ids), 0))]),
            clusters,
            low_is_good=[column.better == "low" for column in columns],
            scales=scales,
            family=[settings.metrics is None or column.metric in settings.metrics for column in columns],
            is_found=grouped.is_found,
            seed=settings.seed,
            resamples=settings.resamples,
        )

    results = compare([column.moves for column in columns])
    estimates: dict[str, Mapping[str, Any]] = {}
    shares: dict[str, Shares] = {}
    unpicked: frozenset[str] = frozenset()
    if has_part := is_sampled(pair.base) or is_sampled(pair.candidate):
        asked = fetch_asked(pair.warehouse, [pair.base.run_id, pair.candidate.run_id])
        (sizes,) = pair.fetch("common").iter_rows()
        estimates = {str(row["metric"]): row for row in pair.fetch_sampled("sampled").to_dicts()}
        terms = pair.fetch_sampled("sampled_terms")
        if len(set(clusters.tolist())) < len(clusters):
            terms = group_terms(terms, dict(zip(samples.ids, clusters.tolist(), strict=True)))
        estimates = {name: {**row, **measure_terms(terms, name)} for name, row in estimates.items()}
        sides = {
            (metric, of_candidate): Scored(n=n, share=share, size=size, reason=reason)
            for metric, of_candidate, n, share, size, reason in pair.fetch_sampled("sampled_shares").iter_rows()
        }
        scale_of = {column.metric: scale for column, scale in zip(columns, scales, strict=True)}
        shares = {
            name: Shares(base=sides[name, False], candidate=sides[name, True], scale=scale_of.get(name, 1.0))
            for name in estimates
        }
        if is_sampled(pair.candidate):
            of_run = pair.warehouse.fetch_rows("gate/scores", run_id=pair.candidate.run_id)
            unpicked = frozenset(row["metric"] for row in of_run if not row["n_applicable"])
        # The differences of estimates where both runs have one, with p adjusted over all of them.
        estimated = {
            column.metric: decide(
                paired,
                estimates[column.metric],
                better=column.better,
                scale=scale,
                shares=shares[column.metric],
            )
            for column, paired, scale in zip(columns, results, scales, strict=True)
            if column.metric in estimates
        }
        terms = terms.pivot("metric", index=["side", "sample_id"], values="term")
        adjusted = adjust_estimates(
            list(estimated.values()),
            terms.select(pl.col(name) if name in terms.columns else pl.lit(0.0).alias(name) for name in estimated)
            .fill_null(0.0)
            .cast(pl.Float64)
            .to_numpy(),
            family=[settings.metrics is None or name in settings.metrics for name in estimated],
            seed=settings.seed,
            resamples=settings.resamples,
        )
        estimated = dict(zip(estimated, adjusted, strict=True))
        results = [estimated.get(column.metric, paired) for column, paired in zip(columns, results, strict=True)]
    results = [leave_side_open(paired, column.better) for column, paired in zip(columns, results, strict=True)]
    noise = PairNoise(pair)
    metrics = []
    for column, paired in zip(columns, results, strict=True):
        compared = _compare_column(
            samples,
            column,
            paired,
            noise=noise,
            grouped=grouped,
            changed=changed if "citations" in column.steps else changed_texts,
        )
        if has_part:  # a run judged a part of its dataset: estimates replace plain means
            plain = compared.parts
            # The parts may not show it, because few samples are in both.
            if not is_judged_alike(pair.base, pair.candidate, asked, column.steps):
                plain += (Part(name="judge", n=paired.n, n_moved=paired.n, value=paired.difference or 0.0),)
            # By the base's share so many picks would have it. That none of twelve has is not chance: all were refused.
            n_expected = compared.coverage_base * int(samples.in_candidate.sum())
            is_unpicked = column.metric in unpicked and n_expected < 2 * MIN_CLUSTERS
            compared = replace(compared, parts=(), plain_parts=plain, noise=None, sizes=sizes, is_unpicked=is_unpicked)
        if row := estimates.get(column.metric):
            base, candidate = row["base"], row["candidate"]
            compared = replace(
                compared,
                mean_base=base,
                mean_candidate=candidate,
                common_base=base,
                common_candidate=candidate,
                change=paired.difference,
                is_estimate=True,
                shares=shares[column.metric],
            )
        metrics.append(compared)
    # The differing values, and values of one run alone, of samples that both runs have.
    schema = {
        "sample_id": pl.String, "metric": pl.String, "base": pl.Float64, "candidate": pl.Float64, "changed": pl.String,
    }  # fmt: skip
    frames = [pl.DataFrame(schema=schema)]
    ids: NDArray[np.object_] = np.array(samples.ids, dtype=object)
    for column in columns:
        has_none = np.isnan(column.base) & np.isnan(column.candidate)
        is_listed = samples.common & ~((np.abs(column.moves) <= ROUNDING) | has_none)
        values = {
            "sample_id": ids[is_listed].tolist(),
            "metric": [column.metric] * int(is_listed.sum()),
            "base": column.base[is_listed],
            "candidate": column.candidate[is_listed],
            "changed": np.array(column.changed, dtype=object)[is_listed].tolist(),
        }
        frames.append(pl.DataFrame(values, schema=schema).with_columns(pl.col("base", "candidate").fill_nan(None)))
    shifts = noise.find_shifts()
    # The stages of the bot follow from samples that ask the same and expect the same. The same contexts, compared with
    # another accepted answer, which the bot's answer picked, show nothing of retrieval.
    is_edited = edited["question"] | edited["ground_truth"]
    left_out = [
        column.edited | inputs[ACCEPTED_BESIDE_SAME]
        if "answer" not in column.rests_on and ACCEPTED in list_moving(column.steps)
        else column.edited
        for column in columns
    ]
    kept = [np.where(flags, np.nan, column.moves) for flags, column in zip(left_out, columns, strict=True)]
    of_kept = compare(kept) if np.any(left_out) else results
    moves = [
        MetricMoves(
            metric=column.metric,
            rests_on=column.rests_on,
            moves=moves_of_kept,
            verdict=(leave_side_open(paired, column.better) if flags.any() else compared.paired).verdict,
            better=column.better,
        )
        for column, compared, moves_of_kept, paired, flags in zip(
            columns, metrics, kept, of_kept, left_out, strict=True
        )
    ]
    counts = {cause: int((flags & samples.common).sum()) for cause, flags in edited.items()}
    n_common = int(samples.common.sum())
    return Comparison(
        n_base=int(samples.in_base.sum()),
        n_candidate=int(samples.in_candidate.sum()),
        n_common=n_common,
        cluster=grouped.column,
        metrics=tuple(metrics),
        warnings=(
            *warn_of_edits(counts, n_common),
            *grouped.warn(),
            *_list_warnings(pair, scores, other_judges, metrics),
            *describe_shifts(shifts),
        ),
        moves=pl.concat(frames),
        noise_run_ids=tuple(noise.run_ids),
        shifts=tuple(shifts),
        causes=find_cause_changes(
            pair.fetch("causes").filter(~pl.col("sample_id").is_in(ids[is_edited].tolist())),
            samples,
            moves,
            changed=changed_texts,
            clusters=clusters,
            seed=settings.seed,
            resamples=settings.resamples,
        ),
        changed={cause: int((flags & samples.common).sum()) for cause, flags in changed_texts.items()},
        edited=counts,
    )


def build_columns(
    pair: RunPair,
    samples: PairedSamples,
    scores: pl.DataFrame,
    other_judges: pl.DataFrame,
    inputs: Mapping[str, Flags],
) -> Iterator[MetricColumn]:
    """Yield the columns of all metrics of either run, in their order."""
    rubrics, metric_steps = pair.rubrics, find_metric_steps(pair)
    by_metric = {str(key[0]): frame for key, frame in scores.partition_by("metric", as_dict=True).items()}
    order = dict.fromkeys((*pair.candidate.metrics, *pair.base.metrics, *sorted(by_metric)))
    reformulated = set(scores.filter(pl.col("base_version") != pl.col("candidate_version"))["metric"].to_list())
    steps = {step for of_metric in metric_steps.values() for step in of_metric}
    judges = find_changed_judges(pair, samples, other_judges, steps)
    edited = find_edited(inputs)
    right_refusals = find_right_refusals(pair, scores)
    for metric in order:
        if metric not in by_metric:
            continue
        frame = by_metric[metric]
        of_metric = metric_steps.get(metric, frozenset())
        causes = find_causes(
            of_metric,
            inputs=inputs,
            judges=judges,
            rubrics=rubrics,
            is_formula_changed=metric in reformulated,
        )
        sample_ids = frame["sample_id"].to_list()
        reads = list_inputs(of_metric, rubrics)
        rests_on = frozenset(INPUTS[name] for name in reads)
        base = samples.place_values(sample_ids, frame["base"])
        candidate = samples.place_values(sample_ids, frame["candidate"])
        refused = samples.flag(right_refusals.get(metric, ()))
        yield MetricColumn(
            metric=metric,
            base=base,
            candidate=candidate,
            moves=candidate - base,
            changed=name_changes(causes),
            edited=flag_edited(edited, reads),
            steps=of_metric,
            rests_on=rests_on,
            version=next((version for version in frame["candidate_version"].to_list() if version is not None), None),
            better=next((way for way in SIGNS if way in frame["better"]), "high"),
            refused=refused,
            unscored={
                place: reason
                for sample_id, reason in frame.select("sample_id", "candidate_reason").drop_nulls().iter_rows()
                if not refused[place := samples.places[sample_id]]
            },
            n_gained=frame.filter(
                pl.col("base_reason").is_not_null()
                & ~pl.col("base_reason").is_in(list(NOTHING_TO_MEASURE))
                & pl.col("candidate").is_not_null()
            ).height,
        )


def list_right_refusals(pair: RunPair) -> dict[str, set[str]]:
    """Return the samples that each run refused and that ask for what has no answer, by the ground truth of both."""
    unanswerable = pair.fetch("unanswerable")
    ids = {
        side: unanswerable.filter(run_id=run.run_id)
        for side, run in (("base", pair.base), ("candidate", pair.candidate))
    }
    in_both = set(ids["base"]["sample_id"]) & set(ids["candidate"]["sample_id"])
    return {side: in_both & set(rows.filter("is_refused")["sample_id"]) for side, rows in ids.items()}


def fetch_scores(pair: RunPair) -> pl.DataFrame:
    """Return the scores of both runs by sample and metric.

    `answer_relevancy` is 0 for each refusal. A right one has none here, or a bot that begins to refuse what has no
    answer would be worse by it.
    """
    scores = pair.fetch("scores")
    if scores.filter(metric=RELEVANCY).is_empty():
        return scores
    for side, right in list_right_refusals(pair).items():
        is_right = (pl.col("metric") == RELEVANCY) & pl.col("sample_id").is_in(right) & pl.col(side).is_not_null()
        reason = f"{side}_reason"
        scores = scores.with_columns(
            pl.when(is_right).then(None).otherwise(pl.col(side)).alias(side),
            pl.when(is_right).then(pl.lit("no_statements")).otherwise(pl.col(reason)).alias(reason),
        )
    return scores


def find_right_refusals(pair: RunPair, scores: pl.DataFrame) -> dict[str, list[str]]:
    """Return by metric the samples that the candidate has no score of because it rightly refused them."""
    right = scores.filter(
        pl.col("candidate_reason").is_in(list(NOTHING_TO_MEASURE))
        & pl.col("sample_id").is_in(list_right_refusals(pair)["candidate"])
    )
    return dict(right.group_by("metric").agg("sample_id").iter_rows())


def leave_side_open(paired: Paired, better: Better) -> Paired:
    """Return the same difference as neither better nor worse where the metric has no better side."""
    is_neutral = better == "neutral" and paired.verdict in ("better", "worse")
    return replace(paired, verdict="changed") if is_neutral else paired


def _compare_column(
    samples: PairedSamples,
    column: MetricColumn,
    paired: Paired,
    *,
    noise: PairNoise,
    grouped: Clusters,
    changed: Mapping[Cause, Flags],
) -> MetricComparison:
    """Return one metric's comparison with the parts of its change and the judge's noise in it."""
    both = ~np.isnan(column.moves)
    found: MetricNoise | None = None
    if both.any():
        judged_again = noise.list_judged_again(column.steps)
        again = samples.flag([sample_id for sample_id in judged_again if sample_id in samples.places])
        found = noise.find(
            column.metric,
            steps=column.steps,
            version=column.version,
            values=np.concatenate([column.base[both], column.candidate[both]]),
            again=again[both],
            clusters=grouped.places[both],
            changed=set(np.array(column.changed, dtype=object)[both]),
        )
    described = describe_column(
        column, paired, in_base=samples.in_base, in_candidate=samples.in_candidate, changed=changed
    )
    return replace(described, noise=found, cluster=grouped.column)


def describe_column(
    column: MetricColumn, paired: Paired, *, in_base: Flags, in_candidate: Flags, changed: Mapping[Cause, Flags]
) -> MetricComparison:
    """Return one metric's comparison with the parts of its change, over the samples that are in base and candidate."""
    parts = split_difference(
        base=column.base,
        candidate=column.candidate,
        in_base=in_base,
        in_candidate=in_candidate,
        changed=column.changed,
        inputs=changed,
    )
    described = describe_metric(
        column.metric,
        column.base,
        column.candidate,
        n_samples=(int(in_base.sum()), int(in_candidate.sum())),
        paired=paired,
        parts=parts,
        better=column.better,
    )
    is_lost = in_candidate & ~np.isnan(column.base)
    lost = Counter(reason for place, reason in column.unscored.items() if is_lost[place])
    by_bot = np.any([changed[cause] for cause in ("answer", "contexts") if cause in column.rests_on], axis=0)
    n_missing = sum(n for reason, n in lost.items() if reason not in NOTHING_TO_MEASURE)
    return replace(
        described,
        lost=dict(lost.most_common()),
        n_missing=n_missing,
        n_refused=int((is_lost & column.refused).sum()),
        n_gained=column.n_gained,
        n_edited=int((column.edited & ~np.isnan(column.moves)).sum()),
        edits=judge_edits(column.base, column.moves, column.edited, by_bot),
    )


def find_clusters(pair: RunPair, samples: PairedSamples, wanted: str | None) -> Clusters:
    """Return the clusters by a column: the wanted one, else that of the candidate's suite, else one that is found.

    Raises as `choose_cluster`.
    """
    alone = Clusters(column=None, places=np.arange(len(samples.ids), dtype=np.int64))
    of_suite = (pair.candidate.config.get("gate") or {}).get("cluster")
    if (wanted or of_suite) == NO_CLUSTER:
        return alone
    metadata: dict[str, dict[str, Any]] = {
        sample_id: orjson.loads(text) if text else {}
        for sample_id, text in pair.fetch("metadata").select("sample_id", "metadata").iter_rows()
    }
    common = [sample_id for sample_id, is_common in zip(samples.ids, samples.common, strict=True) if is_common]
    if wanted is None and of_suite and any(metadata[sample_id].get(of_suite) is not None for sample_id in common):
        wanted = of_suite
    of_common = [metadata[sample_id] for sample_id in common]
    column = choose_cluster(of_common, wanted)
    known = [] if wanted else list(_count_groups(of_common).items())
    too_few = known[0] if known and known[0][1] < MIN_GROUPS else None
    if column is None:
        return replace(alone, too_few=too_few)
    numbers: dict[bytes, int] = {}
    places = []
    for sample_id in samples.ids:
        value = metadata[sample_id].get(column)
        # A sample without a value is a separate cluster.
        key = sample_id.encode() if value is None else b"\0" + orjson.dumps(value)
        places.append(numbers.setdefault(key, len(numbers)))
    n_without = sum(metadata[sample_id].get(column) is None for sample_id in common)
    found = np.array(places, dtype=np.int64)
    return Clusters(column=column, places=found, n_without=n_without, is_found=not wanted, too_few=too_few)


def group_means(
    warehouse: Warehouse, run: RunRow, cluster: str, minimums: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Return by metric the interval of a run's mean with its samples grouped by another column, or by none.

    `cluster` is the column of the `n_clusters` groups, None where each sample counts for itself.
    Raises ComparisonError for a column that no sample has.
    """
    pair = RunPair(warehouse, run, run)
    samples = PairedSamples(pair.fetch("samples"))
    clusters = find_clusters(pair, samples, cluster)
    means: dict[str, dict[str, Any]] = {}
    for key, rows in pair.fetch("scores").drop_nulls("candidate").partition_by("metric", as_dict=True).items():
        values = samples.place_values(rows["sample_id"].to_list(), rows["candidate"])
        is_scored = ~np.isnan(values)
        groups = np.unique(clusters.places[is_scored], return_inverse=True)[1].astype(np.int64)
        ends = find_mean_interval(values[is_scored], groups, minimum=minimums[str(key[0])])
        low, high = ends or (None, None)
        n = int(groups.max()) + 1 if clusters.column else None
        means[str(key[0])] = {"ci_low": low, "ci_high": high, "cluster": clusters.column, "n_clusters": n}
    return means


def choose_cluster(metadata: Sequence[Mapping[str, Any]], wanted: str | None, *, least: int = MIN_GROUPS) -> str | None:
    """Return the column that groups samples: the wanted one, else the first known one with at least so many groups.

    Raises ComparisonError for a wanted column that no sample has.
    """
    if wanted == NO_CLUSTER:
        return None
    if wanted is not None and not any(members.get(wanted) is not None for members in metadata):
        columns = sorted({name for members in metadata for name in members})
        raise ComparisonError(f"--cluster: no sample has a metadata column {wanted!r}; {suggest(wanted, columns)}")
    if wanted:
        return wanted
    return next((column for column, n in _count_groups(metadata).items() if n >= least), None)


def _count_groups(metadata: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of values of the known columns of which some samples share a value, and some do not."""
    counts = {}
    for column in CLUSTER_COLUMNS:
        values = [members[column] for members in metadata if members.get(column) is not None]
        n_values = len({orjson.dumps(value) for value in values})
        if 1 < n_values < len(values):
            counts[column] = n_values
    return counts


def describe_metric(
    metric: str,
    base: Floats,
    candidate: Floats,
    *,
    n_samples: tuple[int, int],
    paired: Paired,
    parts: Iterable[Part],
    better: Better,
) -> MetricComparison:
    """Return one metric's comparison by its values in base and candidate, NaN where unscored."""
    has_base, has_candidate = ~np.isnan(base), ~np.isnan(candidate)
    both = has_base & has_candidate
    mean_base, mean_candidate, common_base, common_candidate = (
        float(values.mean()) if len(values) else None
        for values in (base[has_base], candidate[has_candidate], base[both], candidate[both])
    )
    return MetricComparison(
        metric=metric,
        n_base=int(has_base.sum()),
        n_candidate=int(has_candidate.sum()),
        coverage_base=float(has_base.sum() / max(1, n_samples[0])),
        coverage_candidate=float(has_candidate.sum() / max(1, n_samples[1])),
        mean_base=mean_base,
        mean_candidate=mean_candidate,
        common_base=common_base,
        common_candidate=common_candidate,
        paired=paired,
        better=better,
        change=None if mean_base is None or mean_candidate is None else mean_candidate - mean_base,
        parts=tuple(parts),
    )


def rank_samples(moves: pl.DataFrame, by: str | None = None) -> list[str]:
    """Return sample ids by how far their scores moved, over all metrics or in one; a new or lost score counts as 1."""
    counted = moves if by is None else moves.filter(pl.col("metric") == by)
    distance = (pl.col("candidate") - pl.col("base")).abs().fill_null(1.0).sum().alias("distance")
    ranked = counted.group_by("sample_id").agg(distance).sort("distance", "sample_id", descending=[True, False])
    return list(ranked["sample_id"])


def _list_warnings(
    pair: RunPair, scores: pl.DataFrame, other_judges: pl.DataFrame, metrics: Sequence[MetricComparison]
) -> Iterator[str]:
    base, candidate = pair.base, pair.candidate
    for difference in list_measured_otherwise(base, candidate):
        yield f"the runs differ in {difference}"
    if base.judge == candidate.judge and base.language == candidate.language and not other_judges.is_empty():
        steps = ", ".join(other_judges["step"].unique(maintain_order=True))
        yield f"the runs differ in prompts, in the model that answered or in its address: {steps}"
    versions = (
        scores.drop_nulls(["base_version", "candidate_version"])
        .filter(pl.col("base_version") != pl.col("candidate_version"))
        .group_by("metric", maintain_order=True)
        .first()
    )
    for row in versions.to_dicts():
        yield (
            f"{row['metric']} has another formula version: {row['base_version']} and {row['candidate_version']}; "
            f"{explain_versions(row['metric'])}"
        )
    yield from warn_of_status(base)
    yield from warn_of_status(candidate)
    for run in (base, candidate):
        if (forgotten := find_forgotten(pair.warehouse, run.run_id)) is not None:
            yield f"run {run.run_id}: {forgotten.words}"
    for run in filter(is_sampled, (base, candidate)):
        yield (
            f"run {run.run_id} judged a part of its dataset ({run.n_samples:,} samples): means and differences are "
            "estimates for all of it, samples and flips only of what was judged"
        )
    sizes = next((compared.sizes for compared in metrics if compared.sizes), None)
    if sizes and sizes[2] < max(sizes[:2]):
        yield (
            f"the datasets have {sizes[2]:,} samples in common, of {sizes[0]:,} and {sizes[1]:,}: differences are "
            "estimates for these alone"
        )
    of_loss: dict[str, list[str]] = {}
    for compared in metrics:
        if compared.shares and compared.shares.shift:
            lost = f"{compared.shares.describe(base.run_id)}, so better or worse is unknown"
            of_loss.setdefault(lost, []).append(compared.metric)
        elif compared.is_partly_lost:
            reasons = ", ".join(f"{reason}: {n:,}" for reason, n in compared.lost.items())
            n_scored = compared.n_lost + compared.paired.n
            lost = (
                f"{compared.n_lost:,} of {n_scored:,} samples that {base.run_id} scored have no score in "
                f"{candidate.run_id} ({reasons}), so no difference has them"
            )
            of_loss.setdefault(lost, []).append(compared.metric)
    for lost, names in of_loss.items():
        yield f"{lost}: {list_names(names, 6)}"
    unknown = [compared.metric for compared in metrics if compared.noise is not None and compared.noise.is_unknown]
    if unknown:
        yield (
            f"no noise floor is known for {', '.join(unknown)}: a change may be the judge's own noise; have some "
            "samples judged again with `evalhouse run ... --noise 0.05`, or `[noise] share = 0.05` in a suite"
        )


def list_measured_otherwise(base: RunRow, candidate: RunRow) -> Iterator[str]:
    """Yield the yardsticks and settings in which two runs differ, each with both values."""
    for name in YARDSTICKS:
        before, after = getattr(base, name), getattr(candidate, name)
        if before != after:
            yield f"{name}: {before or 'none'} and {after or 'none'}"
    for name in list_changed_settings(base, candidate):
        yield f"{name}: {base.config[name]} and {candidate.config[name]}"


def shares_half(pair: RunPair) -> bool:
    """Return True if two runs' datasets have at least half of either in common."""
    n_base, n_candidate, n_common = map(int, pair.fetch("common").row(0))
    return 2 * n_common >= min(n_base, n_candidate) > 0


def has_common(pair: RunPair) -> bool:
    """Return True if two runs share a sample; of a run that judged a part of its dataset all samples of that count."""
    return bool(pair.fetch("common")["n_common"].item())


def check_common(*pairs: RunPair) -> None:
    """Raise NothingCommon, with both datasets, unless the runs of one of the pairs share a sample."""
    if any(map(has_common, pairs)):
        return
    names = [f"run {run.run_id} of {run.dataset}" for run in (pairs[-1].base, pairs[-1].candidate)]
    candidate = pairs[-1].candidate
    advice = (
        "name two runs of the same samples (`evalhouse runs` lists all), or after a change of the samples accept a run "
        "as the new baseline (`evalhouse gate --accept RUN --why TEXT`)"
    )
    if candidate.config.get("traces") or candidate.config.get("format"):
        advice = "each night has other traces, so limit their means ([gate.min], [gate.max]) and not drops or trends"
    raise NothingCommon(
        f"{' and '.join(names)} have no sample in common, by its id, so nothing can be compared; {advice}"
    )


def name_edits(edited: Mapping[Edit, int]) -> list[str]:
    """Return how many samples have another question, another ground truth and other reference ids."""
    words = {
        "question": "another question",
        "ground_truth": "another ground truth",
        "reference_ids": "other reference ids",
    }
    return [f"{n:,} {words[name]}" for name, n in edited.items() if n]


def warn_of_edits(edited: Mapping[Edit, int], n_common: int) -> Iterator[str]:
    """Yield a warning of common samples that the dataset changed."""
    counts = name_edits(edited)
    if counts:
        counts[0] = counts[0].replace(" ", f" of {n_common:,} common samples have ", 1)
        yield f"{list_names(counts)}, under the same id, so that a difference may not be a change of the bot"


def warn_of_status(run: RunRow) -> Iterator[str]:
    """Yield a warning of a run that did not complete."""
    if run.status != "completed":
        yield f"run {run.run_id} is {run.status}: some of its samples may be unscored"


def compare_all_answers(pair: RunPair, settings: ComparisonSettings) -> list[dict[str, Any]]:
    """Compare by metric the `n` questions' means over all answers; empty unless both runs repeated a question.

    `n_repeated` of these have more than one answer on both sides. The interval of the difference, candidate less base,
    is that of a paired comparison, None with fewer than two clusters.
    """
    frame = pair.warehouse.fetch("repeats/answer_means", base=pair.base.run_id, candidate=pair.candidate.run_id)
    is_repeated = (pl.col("n_base") > 1) & (pl.col("n_candidate") > 1)
    if frame.filter(is_repeated).is_empty():
        return []
    samples = PairedSamples(pair.fetch("samples"))
    clusters = find_clusters(pair, samples, settings.cluster).places
    by_metric = {str(key[0]): rows for key, rows in frame.partition_by("metric", as_dict=True).items()}
    columns: list[Floats] = []
    for rows in by_metric.values():
        columns.append(samples.place_values(rows["sample_id"].to_list(), rows["candidate"] - rows["base"]))
    results = compare_paired(
        np.column_stack(columns),
        clusters,
        low_is_good=["low" in rows["better"] for rows in by_metric.values()],
        scales=[find_scale(rows.select("base", "candidate").to_numpy()) for rows in by_metric.values()],
        seed=settings.seed,
        resamples=settings.resamples,
    )
    return [
        {
            "metric": metric,
            "n": paired.n,
            "n_repeated": rows.filter(is_repeated).height,
            "base": float(rows["base"].to_numpy().mean()),
            "candidate": float(rows["candidate"].to_numpy().mean()),
            "difference": paired.difference or 0.0,
            "ci_low": paired.ci_low,
            "ci_high": paired.ci_high,
        }
        for (metric, rows), paired in zip(by_metric.items(), results, strict=True)
    ]
