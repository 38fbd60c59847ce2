"""The checks of a gate: is a run good enough, is it no worse than a baseline, is it part of a slow fall?

Every check ends as passed, failed or undecided. A mean is an estimate, so its 95 % interval decides and not the mean:
whole interval on the good side of the limit, passed; whole interval on the bad side, failed; limit inside it,
undecided. Coverage, cost and latency are exact and have no interval. `flows/results/gate.py` fetches the numbers,
`compare_runs` compares two runs; this module only judges.

A trend is a slow fall over many nights, of which no single one is worse enough to fail. The last nights are compared
with the first ones since a level was accepted, sample by sample: means of several nights have less of the judge's
noise than one night, and pairing removes how hard a sample is, so that a fall shows long before two nights in a row
differ by more than chance; and unlike a fitted line the difference never makes more of a fall than there was. A second
window over the newest nights alone finds a fall from a level that was better than the accepted one. The test runs every
night, so that its p must be far smaller than that of one comparison: with TREND_ALPHA a history of thirty nights on
which nothing changed has a false alarm in fewer than 5 of 100 cases (`tests/benchmarks/gate_nights.py` measures it).
Only nights that passed their gate are compared with tonight; a refused night is not a level to fall from. Only the
samples of the run at hand count. A run that was judged differently (another judge, model, prompt, setting or formula)
is marked as such, metric by metric.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.changes import (
    INPUTS,
    NOISE,
    Edit,
    Flags,
    PairedSamples,
    Part,
    find_changed_inputs,
    find_edited,
    find_metric_steps,
    flag_edited,
    list_inputs,
    list_moving,
)
from evalhouse.tasks.comparing.intervals import ALPHA, Floats, Integers
from evalhouse.tasks.comparing.noise import find_scale, is_judged_alike
from evalhouse.tasks.comparing.paired import (
    MIN_CLUSTERS,
    RESAMPLES,
    ROUNDING,
    Drop,
    Paired,
    Shares,
    compare_paired,
    turn_to_drop,
)
from evalhouse.tasks.comparing.runs import (
    RELEVANCY,
    Comparison,
    ComparisonSettings,
    MetricComparison,
    describe_metric,
    fetch_scores,
    find_clusters,
    find_right_refusals,
    list_right_refusals,
    shares_half,
    warn_of_edits,
    warn_of_status,
)
from evalhouse.warehouse.metric_files import SIGNS, Better, explain_versions
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.rows.samples import fetch_asked, fetch_derived
from evalhouse.warehouse.store import Warehouse

EDITED: Final = (
    "{n} of {of} samples have another question, ground truth or reference ids{since}; if they should, accept the run "
    "(`evalhouse gate --accept RUN --why TEXT`)"
)
"""The end of the detail of a failed drop or trend, where the dataset changed samples under the same id."""
Kind = Literal["min", "max", "max_drop", "trend", "min_coverage", "max_cost", "max_latency_p95_ms"]
Outcome = Literal["failed", "undecided", "passed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("failed", "undecided", "passed")
Reason = Literal[
    "beyond_limit",  # failed: the value is on the bad side of the limit, and its interval with it
    "nothing_scored",  # failed: the run has scores of none of its samples
    "interval_holds_limit",  # undecided, as are all below
    "too_few_samples",
    "not_beyond_chance",
    "scores_lost",
    "scores_gained",
    "few_common",
    "nothing_common",
    "other_judge",
    "other_formula",
    "unknown_price",
    "nothing_asked",
]

_SMALLEST_P = 0.001
_UNGROUPED = '; `cluster = "none"` in [gate], or `--cluster none`, counts each sample for itself'
_UNPICKED = "none of the picked samples has this metric"


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of the run as `run_scores` has it.

    `ci_low` and `ci_high` are None when nothing is scored, and when values leave 0 to 1 and do not differ; `n_samples`
    counts all of the run, `n_applicable` the samples that are scored or for which something failed. The interval counts
    `n_clusters` groups by the column `cluster`, None where each sample counts for itself. `is_estimate` is True for a
    run that judged a part of its dataset.
    """

    mean: float | None
    ci_low: float | None
    ci_high: float | None
    n_scored: int
    n_samples: int
    n_applicable: int
    cluster: str | None = None
    n_clusters: int | None = None
    better: Better = "high"
    is_estimate: bool = False


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Dollars for the calls the run sent: `n_unpriced` calls have no known price and are missing from `usd`, the price
    of `n_estimated` was estimated from their texts."""

    usd: float
    n_unpriced: int = 0
    n_estimated: int = 0


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The 95th percentile of the milliseconds to a response, over the `n` questions that the run asked and that were
    answered; None without any. `n_failed` were not, and `n_reused` responses were asked for by an earlier run."""

    p95_ms: float | None = None
    n: int = 0
    n_failed: int = 0
    n_reused: int = 0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a gate.

    By metric: smallest and largest means, largest drops, largest falls over nights (checked by `check_trends`),
    smallest coverage (a share); and the most dollars, and the most milliseconds of 95 in 100 responses.
    """

    minimums: Mapping[str, float] = field(default_factory=dict)
    maximums: Mapping[str, float] = field(default_factory=dict)
    drops: Mapping[str, float] = field(default_factory=dict)
    trends: Mapping[str, float] = field(default_factory=dict)
    coverages: Mapping[str, float] = field(default_factory=dict)
    cost_usd: float | None = None
    latency_p95_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check and how it ended.

    `value` is the mean, drop, coverage, dollars or milliseconds found, with its 95 % interval where it has one, from
    `n` samples (None for dollars); None where it is not known. `beyond` is how far `value` is on the bad side of the
    limit, negative on the good side. `noise_floor`, of a drop alone, is the largest one that the judge's noise makes,
    None when that is not known. `detail` is a sentence for a person. A check of a slice has the
    samples whose metadata column `by_column` is `by_value`.
    """

    kind: Kind
    metric: str | None
    limit: float
    value: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int | None = None
    beyond: float | None = None
    noise_floor: float | None = None
    outcome: Outcome
    reason: Reason | None = None
    detail: str
    by_column: str | None = None
    by_value: str | None = None


@dataclass(frozen=True)
class _Finding:
    outcome: Outcome
    reason: Reason | None
    detail: str


def check_all(
    limits: Limits,
    *,
    scores: Mapping[str, Score],
    comparisons: Mapping[str, MetricComparison],
    cost: Cost,
    latency: Latency,
) -> list[Check]:
    """Return all checks but trends, in the order of `Limits`.

    `scores` has every metric that is limited, else there is a KeyError; `comparisons` every one that either run has a
    row of scores for.
    """
    checks = [check_mean("min", name, limit, scores[name]) for name, limit in limits.minimums.items()]
    checks += [check_mean("max", name, limit, scores[name]) for name, limit in limits.maximums.items()]
    checks += check_drops(limits.drops, comparisons)
    checks += [check_coverage(name, limit, scores[name]) for name, limit in limits.coverages.items()]
    if limits.cost_usd is not None:
        checks.append(check_cost(limits.cost_usd, cost))
    if limits.latency_p95_ms is not None:
        checks.append(check_latency(limits.latency_p95_ms, latency))
    return checks


def is_passed(checks: Sequence[Check], *, undecided: Literal["pass", "fail"]) -> bool:
    """Return True if the gate lets the run through."""
    counts = count_outcomes(checks)
    return not counts["failed"] and (undecided == "pass" or not counts["undecided"])


def count_outcomes(checks: Sequence[Check]) -> dict[Outcome, int]:
    """Return how many checks ended each way."""
    counts = Counter(check.outcome for check in checks)
    return {outcome: counts[outcome] for outcome in OUTCOMES}


def check_mean(kind: Literal["min", "max"], metric: str, limit: float, score: Score) -> Check:
    """Check a mean against its smallest or largest allowed value.

    Passed when the whole 95 % interval of the mean keeps the limit, failed when the whole interval breaks it or nothing
    is scored, undecided when the limit is inside. The interval is that of `run_scores`. Each minimum is tested alone:
    at a true mean of exactly the limit it fails in about 2.5 % of runs. An estimate from fewer than MIN_CLUSTERS scored
    samples is undecided, as is one of a metric that applies to none of the samples which chance has picked.
    """
    low, high = score.ci_low, score.ci_high
    keeps = breaks = False
    if low is not None and high is not None:
        keeps, breaks = (low >= limit, high < limit) if kind == "min" else (high <= limit, low > limit)
    if score.is_estimate and not score.n_applicable:
        finding = _Finding("undecided", "too_few_samples", _UNPICKED)
    elif score.mean is None:
        finding = _Finding("failed", "nothing_scored", "no sample is scored")
    elif score.is_estimate and score.n_scored < MIN_CLUSTERS:
        few = f"{score.n_scored} of the picked samples are scored; an estimate takes at least {MIN_CLUSTERS}"
        finding = _Finding("undecided", "too_few_samples", few)
    elif low is None or high is None:
        without = f"{score.n_scored} equal or single values beyond 0 to 1 have no interval"
        finding = _Finding("undecided", "too_few_samples", without)
    elif keeps:
        finding = _Finding("passed", None, "the whole interval keeps the limit")
    elif breaks:
        finding = _Finding("failed", "beyond_limit", "the whole interval is beyond the limit")
    else:
        groups = f" in {score.n_clusters} groups by {score.cluster}" if score.n_clusters else ""
        inside = f"the limit is inside the interval of {score.n_scored} samples{groups}"
        finding = _Finding("undecided", "interval_holds_limit", inside)
    beyond = None
    if score.mean is not None:
        beyond = limit - score.mean if kind == "min" else score.mean - limit
    return Check(
        kind=kind,
        metric=metric,
        limit=limit,
        value=score.mean,
        ci_low=low,
        ci_high=high,
        n=score.n_scored,
        beyond=beyond,
        **vars(finding),
    )


def check_drops(limits: Mapping[str, float], comparisons: Mapping[str, MetricComparison]) -> list[Check]:
    """Check how much worse the run is than its baseline, by the samples that both scored, against the most allowed.

    A drop is baseline minus run, of metrics that are better when low run minus baseline; its interval is that of
    `paired`. Passed when the whole interval keeps the limit. Failed when the whole interval is beyond the limit, and
    the sign-flip test's p, adjusted over the drops of this gate (`compare_runs` gets their names), is at most 0.05:
    where nothing changed, at most one gate in twenty then gives a false alarm, however many drops it checks. Also
    failed when the baseline has scores and the run has none. Where nothing changed that the metric rests on, and no
    score, the drop is 0 and passes, however few samples there are. It passes as well where all scores of both runs are
    one number beyond 0 to 1, which has no interval. All others are undecided, among them samples too few
    to exclude a drop beyond the limit though all scores are equal, fewer than MIN_CLUSTERS independent samples, a run
    that has no score of more than MAX_LOST of what the baseline scored (a right refusal lost none), two runs that share
    less than half of what either scored, and a metric whose judge, prompt, settings or formula are not the baseline's.
    Undecided is also an estimate of which the share scored rose by as much, for the newly scored samples are in its
    mean, and a metric that applies to none of the samples that chance has picked.

    A failed drop says how many samples have another question or ground truth: whether to accept these is for a person.
    The judge's noise floor is shown and decides nothing: the interval is of differences with that noise in them.
    """
    checks = []
    for name, limit in limits.items():
        if name not in comparisons:  # neither run has tried it
            detail = "no sample is scored in either run"
            checks.append(
                Check(
                    kind="max_drop", metric=name, limit=limit, value=None, n=0, outcome="undecided",
                    reason="nothing_common", detail=detail,
                )
            )  # fmt: skip
            continue
        comparison = comparisons[name]
        paired, floor = comparison.paired, comparison.noise_floor
        drop = paired.find_drop(comparison.better)
        finding = _judge_drop(comparison, limit, drop)
        # Of an undecided drop as well: what is missing keeps the baseline.
        shares, is_alike = comparison.shares, not comparison.n_other
        if doubt := shares and _doubt_shares(shares, "the baseline", drop, limit, is_alike=is_alike):
            finding = doubt
        elif finding.outcome != "failed" and comparison.is_partly_lost:
            n_scored = paired.n + comparison.n_lost
            lost = f"{comparison.n_lost} of {n_scored} samples that the baseline scored have no score"
            finding = _Finding("undecided", "scores_lost", f"{lost} ({', '.join(comparison.lost)})")
        elif finding.outcome != "failed" and comparison.has_few_common:
            n_base, n_candidate, n = comparison.sizes or (comparison.n_base, comparison.n_candidate, paired.n)
            are_in = "in both datasets" if comparison.sizes else "scored in both"
            scored = f"{n_candidate} here, {n_base} in the baseline"
            few = f"only {n} samples are {are_in} ({scored}); `evalhouse gate --accept RUN` sets a baseline"
            finding = _Finding("undecided", "few_common", few)
        is_open = finding.reason in ("too_few_samples", "not_beyond_chance", "interval_holds_limit")
        if is_open and comparison.cluster and paired.n > paired.n_clusters:
            detail = finding.detail.removesuffix(_UNGROUPED)
            if comparison.cluster not in detail:
                detail += f"; {paired.n} samples in {paired.n_clusters} groups by {comparison.cluster}"
            if paired.alone and not comparison.is_estimate:
                by_sample = replace(comparison, paired=paired.alone, cluster=None)
                alone = _judge_drop(by_sample, limit, paired.alone.find_drop(comparison.better)).outcome
                detail += f", each sample for itself would have {alone}" if alone != "undecided" else ""
            finding = replace(finding, detail=f"{detail}{_UNGROUPED}")
        if finding.outcome == "failed" and comparison.n_edited:
            note = EDITED.format(n=comparison.n_edited, of=paired.n, since="")
            if comparison.edits in ("beside", "unclear"):
                note += "; first look at the bot: the drop is where its answer or contexts changed too"
            finding = replace(finding, detail=f"{finding.detail}; {note}")
        if finding.outcome != "passed" and floor and paired.difference and abs(paired.difference) <= floor:
            noise = f"the judge's noise alone may make changes of up to {floor:.3f}"
            finding = replace(finding, detail=f"{finding.detail}; {noise}")
        checks.append(
            Check(
                kind="max_drop",
                metric=comparison.metric,
                limit=limit,
                value=drop.size,
                ci_low=drop.low,
                ci_high=drop.high,
                n=paired.n,
                beyond=None if drop.size is None else drop.size - limit,
                noise_floor=floor,
                **vars(finding),
            )
        )
    return checks


def _doubt_shares(shares: Shares, base: str, drop: Drop, limit: float, *, is_alike: bool) -> _Finding | None:
    """Return why two estimates are of different samples; None where they are not, or gained because of the judge, or
    where that cannot explain how far the whole interval of the drop is beyond the limit."""
    if (drop.low or 0.0) - limit > shares.effect:
        return None
    described = shares.describe(base)
    if shares.shift < 0:
        return _Finding("undecided", "scores_lost", described)
    if shares.shift > 0 and is_alike:
        return _Finding("undecided", "scores_gained", f"{described}; `evalhouse gate --accept RUN` sets a baseline")
    return None


def _find_few(
    n: int, cluster: str | None = None, *, kind: Literal["drop", "trend"] = "drop", least: int = MIN_CLUSTERS
) -> _Finding:
    """Return that n samples, or groups of samples by the column `cluster`, are too few."""
    counted = f"{n} groups by {cluster}" if cluster else f"{n} independent samples"
    few = f"{counted}; a {kind} takes at least {least} to be significant"
    if cluster:
        few += _UNGROUPED
    return _Finding("undecided", "too_few_samples", few)


def _judge_drop(comparison: MetricComparison, limit: float, drop: Drop) -> _Finding:
    paired, p = comparison.paired, comparison.paired.p_adjusted
    if comparison.n_base and comparison.is_unpicked:
        return _Finding("undecided", "few_common", _UNPICKED)
    if comparison.n_base and not comparison.n_candidate and comparison.n_refused == comparison.n_base:
        refused = f"all {comparison.n_base} samples that the baseline scored have no answer and are refused now"
        return _Finding("passed", None, refused)
    if comparison.n_base and not comparison.n_candidate:
        return _Finding("failed", "nothing_scored", f"no sample is scored; the baseline has {comparison.n_base}")
    n_clusters, cluster = paired.n_clusters, comparison.cluster if paired.n > paired.n_clusters else None
    if comparison.shares:
        n_clusters, cluster = comparison.shares.n_least, None
    elif not paired.n:
        return _Finding("undecided", "nothing_common", "no sample is scored in both runs")
    other = {
        cause: "" if comparison.is_estimate else f" in {n} of {paired.n} common samples"
        for cause, n in comparison.n_other.items()
    }
    if "formula" in other:
        formula = f"another formula or setting of it{other['formula']}; {explain_versions(comparison.metric)}"
        return _Finding("undecided", "other_formula", formula)
    if "judge" in other:
        return _Finding("undecided", "other_judge", f"another judge, model, prompt or setting{other['judge']}")
    if comparison.is_unchanged:
        return _Finding("passed", None, f"nothing that it rests on changed in the {paired.n} common samples")
    low, high = drop.low, drop.high
    if p is None or n_clusters < MIN_CLUSTERS:
        return _find_few(n_clusters, cluster)
    if low is None or high is None:
        return _Finding("passed", None, f"all {paired.n} samples have the same score in both runs, beyond 0 to 1")
    if high <= limit + ROUNDING:
        return _Finding("passed", None, "the whole interval keeps the limit")
    if not comparison.is_estimate and not paired.n_higher and not paired.n_lower:
        n = str(paired.n) if paired.n == paired.n_clusters else f"{paired.n} in {paired.n_clusters} groups"
        few = f"no sample has another score, but {n} cannot exclude a drop of {high:.3f}"
        return _Finding("undecided", "too_few_samples", few)
    if low <= 0:
        inside = "a change of this size can be chance: 0 and the limit are inside the interval"
        return _Finding("undecided", "not_beyond_chance", inside)
    if low <= limit + ROUNDING:
        inside = f"the limit is inside the interval of {paired.n} samples"
        return _Finding("undecided", "interval_holds_limit", inside)
    if p > ALPHA:
        chance = f"it can be chance: {write_p(p)}, adjusted over the drops checked"
        return _Finding("undecided", "not_beyond_chance", chance)
    return _Finding("failed", "beyond_limit", f"the whole interval is beyond the limit, {write_p(p)}")


def write_p(p: float) -> str:
    """Return a p in words."""
    return f"p {p:.3f}" if p >= _SMALLEST_P else f"p below {_SMALLEST_P}"


def cover_all(scores: Mapping[str, Score], share: float) -> dict[str, float]:
    """Return a limit on the coverage of every metric that applies to any sample of the run; of all in a run without."""
    return {name: share for name, score in scores.items() if score.n_applicable or not score.n_samples}


def check_coverage(metric: str, limit: float, score: Score) -> Check:
    """Check the share scored of the samples to which the metric applies: a count, passed or failed.

    A sample that lacks by its nature what the metric needs, such as a ground truth, does not count. A metric that
    applies to no sample fails.
    """
    coverage = score.n_scored / score.n_applicable if score.n_applicable else 0.0
    is_kept = coverage >= limit - ROUNDING and score.n_applicable > 0
    detail = f"{score.n_scored} of {score.n_applicable} samples are scored"
    if score.n_applicable < score.n_samples:
        detail += f"; the metric applies to no more of the {score.n_samples}"
    return Check(
        kind="min_coverage",
        metric=metric,
        limit=limit,
        value=coverage,
        n=score.n_applicable,
        beyond=limit - coverage,
        outcome="passed" if is_kept else "failed",
        reason=None if is_kept else "beyond_limit",
        detail=detail,
    )


def check_cost(limit: float, cost: Cost) -> Check:
    """Check dollars spent against the most allowed; calls of unknown price leave it undecided, unless the others
    already cost more."""
    unknown = f"{cost.n_unpriced} calls have no known price (`--prices` of a run gives them one)"
    if cost.usd > limit + ROUNDING:
        more = f"at least this was spent: {unknown}" if cost.n_unpriced else "more was spent"
        finding = _Finding("failed", "beyond_limit", more)
    elif cost.n_unpriced:
        finding = _Finding("undecided", "unknown_price", f"{unknown}; the others cost {cost.usd:.6g} dollars")
    else:
        estimated = f"the cost of {cost.n_estimated} calls is an estimate"
        finding = _Finding("passed", None, estimated if cost.n_estimated else "no more was spent")
    is_known = finding.outcome != "undecided"
    return Check(
        kind="max_cost",
        metric=None,
        limit=limit,
        value=cost.usd if is_known else None,
        beyond=cost.usd - limit if is_known else None,
        **vars(finding),
    )


def check_latency(limit: float, latency: Latency) -> Check:
    """Check the 95th percentile of the latency; undecided where nothing was asked and answered."""
    if latency.p95_ms is None:
        reason = "this run asked nothing: its dataset brings the answers"
        if latency.n_failed:
            reason = f"none of the {latency.n_failed} questions that were asked was answered"
        elif latency.n_reused:
            reason = f"this run asked nothing: all {latency.n_reused} responses are from an earlier run"
        finding = _Finding("undecided", "nothing_asked", reason)
    elif latency.p95_ms > limit + ROUNDING:
        finding = _Finding("failed", "beyond_limit", f"more than 5 % of {latency.n} responses took longer")
    else:
        finding = _Finding("passed", None, f"at least 95 % of {latency.n} responses took no longer")
    return Check(
        kind="max_latency_p95_ms",
        metric=None,
        limit=limit,
        value=latency.p95_ms,
        n=latency.n,
        beyond=None if latency.p95_ms is None else latency.p95_ms - limit,
        **vars(finding),
    )


@dataclass(frozen=True, kw_only=True)
class Nights:
    """One metric in several runs, oldest first and the run at hand last.

    `values` is runs × samples of the run at hand, NaN where unscored; `clusters` numbers the cluster of each sample;
    `unlike` names by run what keeps it from being compared: `judge`, `formula`, or None where nothing does. `n_before`
    counts all samples that the earlier runs scored, in the run at hand or not. `mark_changes` sets `is_unchanged`, if
    nothing that the metric reads differs from an earlier run, `edited`, the samples whose question or ground truth
    does, and `refused`, the samples without a score that the last run rightly refused.
    """

    metric: str
    runs: tuple[RunRow, ...]
    values: Floats
    clusters: Integers
    unlike: tuple[str | None, ...]
    better: Better = "high"
    n_before: int = 0
    is_unchanged: bool = False
    edited: Flags | None = None
    refused: Flags | None = None

    def pick_alike(self) -> "Nights":
        """Return only the runs that were judged as the last one was."""
        places = [place for place, cause in enumerate(self.unlike) if cause is None]
        return replace(
            self,
            runs=tuple(self.runs[place] for place in places),
            values=self.values[places],
            unlike=(None,) * len(places),
        )


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Runs side by side, by metric, with the samples of their values; `cluster` is the metadata column that the
    clusters rest on, None without one, and `is_found` if it was not named; `warnings` are of the clusters. `edited`
    counts the samples whose question or ground truth was another one in an earlier run (`mark_changes`)."""

    nights: Mapping[str, Nights]
    sample_ids: Sequence[str] = ()
    cluster: str | None = None
    is_found: bool = False
    warnings: tuple[str, ...] = ()
    edited: Mapping[Edit, int] = field(default_factory=dict)


def lay_side_by_side(
    warehouse: Warehouse, run: RunRow, earlier: Sequence[RunRow], *, metrics: Sequence[str], cluster: str | None
) -> SideBySide:
    """Fetch these metrics of earlier runs, in their order, and of this one; raises ComparisonError for an unknown
    cluster column."""
    runs = (*earlier, run)
    run_ids = [night.run_id for night in runs]
    pair = RunPair(warehouse, run, run)
    samples = PairedSamples(pair.fetch("samples"))
    clusters = find_clusters(pair, samples, cluster)
    frame = warehouse.fetch("gate/values", {"run_id": run_ids}, metrics=list(metrics))
    by_metric = {str(key[0]): rows for key, rows in frame.partition_by("metric", as_dict=True).items()}
    asked = fetch_asked(warehouse, run_ids)
    steps = pair.metric_steps
    run_places = pl.DataFrame({"run_id": run_ids}).with_row_index("run")
    sample_places = pl.DataFrame({"sample_id": samples.ids}).with_row_index("sample")
    nights = {}
    for metric in metrics:
        rows = by_metric.get(metric, frame.clear())
        placed = rows.join(run_places, on="run_id").join(sample_places, on="sample_id")
        values = np.full((len(run_ids), len(samples.ids)), np.nan)
        values[placed["run"].to_numpy(), placed["sample"].to_numpy()] = placed["value"].to_numpy()
        if metric == RELEVANCY:
            for place, night in enumerate(runs):
                right = list_right_refusals(RunPair(warehouse, night, run))["base"]
                values[place, samples.flag(sorted(right))] = np.nan
        versions = dict(rows.select("run_id", "metric_version").unique("run_id").iter_rows())
        unlike: list[str | None] = []
        for night in runs:
            if versions.get(night.run_id) not in (None, versions.get(run.run_id)):
                unlike.append("formula")
            else:
                judged = is_judged_alike(night, run, asked, steps.get(metric, frozenset()))
                unlike.append(None if judged else "judge")
        nights[metric] = Nights(
            metric=metric,
            runs=runs,
            values=values,
            clusters=clusters.places,
            unlike=tuple(unlike),
            better=next((way for way in SIGNS if way in rows["better"]), "high"),
            n_before=rows.filter(pl.col("run_id") != run.run_id).drop_nulls("value")["sample_id"].n_unique(),
        )
    return SideBySide(
        nights=nights,
        sample_ids=samples.ids,
        cluster=clusters.column,
        is_found=clusters.is_found,
        warnings=tuple(clusters.warn()),
    )


def average_runs(values: Floats) -> Floats:
    """Return by sample the mean over the runs that scored it, NaN where none did; `values` is runs × samples."""
    counts = (~np.isnan(values)).sum(axis=0)
    return np.where(counts > 0, np.nansum(values, axis=0) / np.maximum(counts, 1), np.nan)


def mark_changes(warehouse: Warehouse, run: RunRow, earlier: Sequence[RunRow], laid: SideBySide) -> SideBySide:
    """Return the same runs, with what differs in the samples between the last run and any earlier one."""
    pair = RunPair(warehouse, run, run)
    samples = PairedSamples(pair.fetch("samples"))
    of_pairs = [find_changed_inputs(RunPair(warehouse, night, run), samples) for night in earlier]
    inputs = {name: np.any([of_pair[name] for of_pair in of_pairs], axis=0) for name in INPUTS}
    edited = find_edited(inputs)
    rubrics, steps = pair.rubrics, find_metric_steps(pair)
    right_refusals = find_right_refusals(pair, fetch_scores(pair))
    nights = {}
    for metric, of_metric in laid.nights.items():
        of_steps = steps.get(metric, ())
        reads = list_inputs(of_steps, rubrics)
        nights[metric] = replace(
            of_metric,
            is_unchanged=not any(inputs[name].any() for name in list_moving(of_steps, rubrics)),
            edited=flag_edited(edited, reads),
            refused=samples.flag(right_refusals.get(metric, ())),
        )
    return replace(laid, nights=nights, edited={cause: int(flags.sum()) for cause, flags in edited.items()})


def compare_with_mean(laid: SideBySide, settings: ComparisonSettings) -> Comparison:
    """Compare the last run with the mean of the others, paired by sample over the samples both have a score of.

    Runs that were judged differently are left out, unless all were: then the change is put down to that.
    """
    every = list(laid.nights.values())
    nights = []
    for of_metric in every:
        alike = of_metric.pick_alike()
        nights.append(alike if len(alike.runs) > 1 else of_metric)
    bases = [average_runs(of_metric.values[:-1]) for of_metric in nights]
    candidates = [of_metric.values[-1] for of_metric in nights]
    results = compare_paired(
        np.column_stack([candidate - base for base, candidate in zip(bases, candidates, strict=True)]),
        nights[0].clusters,
        low_is_good=[of_metric.better == "low" for of_metric in nights],
        scales=[find_scale(of_metric.values) for of_metric in nights],
        is_found=laid.is_found,
        seed=settings.seed,
        resamples=settings.resamples,
    )
    metrics = []
    for of_metric, base, candidate, paired in zip(nights, bases, candidates, results, strict=True):
        # The only part of the difference is what keeps the runs from being compared, or that nothing changed.
        cause = next((cause for cause in of_metric.unlike if cause), NOISE if of_metric.is_unchanged else None)
        n_moved, value = paired.n_higher + paired.n_lower, paired.difference or 0.0
        described = describe_metric(
            of_metric.metric,
            base,
            candidate,
            n_samples=(len(base), len(candidate)),
            paired=paired,
            parts=(Part(name=cause, n=paired.n, n_moved=n_moved, value=value),) if cause else (),
            better=of_metric.better,
        )
        is_lost = ~np.isnan(base) & np.isnan(candidate)
        n_refused = 0 if of_metric.refused is None else int((is_lost & of_metric.refused).sum())
        n_lost = int(is_lost.sum()) - n_refused
        lost = {"unscored": n_lost} if n_lost else {}
        n_base = max(described.n_base, of_metric.n_before)
        n_edited = 0 if of_metric.edited is None else int((of_metric.edited & ~np.isnan(candidate - base)).sum())
        described = replace(described, lost=lost, n_base=n_base, n_refused=n_refused, n_edited=n_edited)
        metrics.append(replace(described, cluster=laid.cluster))
    warnings = list(laid.warnings)
    runs = every[0].runs
    for place, run in enumerate(runs[:-1]):
        if unlike := [of_metric.metric for of_metric in every if of_metric.unlike[place]]:
            warnings.append(f"run {run.run_id} was judged differently, or by another formula: {', '.join(unlike)}")
    n = len(candidates[0])
    return Comparison(
        n_base=n,
        n_candidate=n,
        n_common=n,
        cluster=laid.cluster,
        metrics=tuple(metrics),
        warnings=(*warn_of_edits(laid.edited, n), *warnings, *warn_of_status(runs[-1])),
        moves=pl.DataFrame(),
    )


TREND_ALPHA: Final = 0.003
"""Two-sided p, adjusted over metrics and windows, up to which a fall is significant. Half of it is a night's chance of
a false alarm, so that of histories of thirty nights at most 30 · 0.0015 = 4.5 % have one, however the nights depend on
each other."""
MIN_TREND_GROUPS: Final = 10
"""Groups of samples below which no sign-flip test reaches TREND_ALPHA: of n the smallest p is 2 / 2ⁿ."""
MAX_SIDE: Final = 10
"""Nights on either side of the longest window."""
NEWEST: Final = 20
"""Nights of the shorter window, for histories that are longer."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Nights of which the last `n_side` are compared with the first; `start` is the place of the first."""

    start: int
    n_side: int


def pick_nights(earlier: Sequence[RunRow]) -> list[RunRow]:
    """Return the nights before tonight that some window has."""
    if len(earlier) < MAX_SIDE + NEWEST:
        return list(earlier)
    return [*earlier[:MAX_SIDE], *earlier[1 - NEWEST :]]


def find_first_alike(
    warehouse: Warehouse, run: RunRow, earlier: Sequence[RunRow], metrics: Sequence[str]
) -> dict[str, RunRow | None]:
    """Return by metric the first of the earlier nights that scored it by this run's judge and formula, and shares half
    of the samples; None without one."""
    run_ids = [run.run_id, *(night.run_id for night in earlier)]
    asked = fetch_asked(warehouse, run_ids)
    steps = RunPair(warehouse, run, run).metric_steps
    scored = fetch_derived(warehouse, "scores", run_ids).drop_nulls("mean")
    versions = {(row["run_id"], row["metric"]): row["metric_version"] for row in scored.to_dicts()}
    are_near: dict[str, bool] = {}
    found: dict[str, RunRow | None] = dict.fromkeys(metrics)
    for metric in metrics:
        version = versions.get((run.run_id, metric))
        for night in earlier:
            if version is None or versions.get((night.run_id, metric)) != version:
                continue
            if not is_judged_alike(night, run, asked, steps.get(metric, frozenset())):
                continue
            if night.run_id not in are_near:
                are_near[night.run_id] = shares_half(RunPair(warehouse, night, run))
            if are_near[night.run_id]:
                found[metric] = night
                break
    return found


def list_windows(n_nights: int) -> list[Window]:
    """Return the windows of so many nights, tonight among them: all of them, and the newest where there are more.

    Thirds on either side find a steady fall nearly as well as a line fitted to it (Bartlett 1949, Biometrics 5(3)).
    """
    if n_nights < 2:
        return []
    windows = [Window(start=0, n_side=min(MAX_SIDE, max(1, n_nights // 3)))]
    if n_nights > NEWEST:
        windows.append(Window(start=n_nights - NEWEST, n_side=NEWEST // 3))
    return windows


@dataclass(frozen=True, kw_only=True)
class _Fall:
    """One metric over one window; `first` has by sample the mean over the first nights."""

    nights: Nights
    window: Window
    first: Floats
    paired: Paired
    drop: Drop


def check_trends(
    limits: Mapping[str, float],
    nights: Mapping[str, Nights],
    *,
    cluster: str | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Check]:
    """Check how far each metric has fallen (one that is better when low: risen) over the nights.

    Failed when the fall is significant, its whole 95 % interval is beyond the limit, and tonight is still down by half
    of it at least. Undecided where the samples are in fewer than MIN_TREND_GROUPS groups by the column `cluster`, which
    can never show a fall. All else passes: this is an alarm, and shows nothing when it is silent. `nights` has every
    metric that is limited, with its nights since the last acceptance and tonight's last.
    """
    alike = [nights[metric].pick_alike() for metric in limits]
    windows = [(of_metric, window) for of_metric in alike for window in list_windows(len(of_metric.runs))]
    firsts = [
        average_runs(of_metric.values[window.start : window.start + window.n_side]) for of_metric, window in windows
    ]
    results: list[Paired] = []
    if windows:
        lasts = [average_runs(of_metric.values[-window.n_side :]) for of_metric, window in windows]
        results = compare_paired(
            np.column_stack([last - first for first, last in zip(firsts, lasts, strict=True)]),
            windows[0][0].clusters,
            low_is_good=[of_metric.better == "low" for of_metric, _ in windows],
            scales=[find_scale(of_metric.values) for of_metric, _ in windows],
            seed=seed,
            resamples=resamples,
        )
    # Of a metric's windows the one that shows a fall most clearly counts.
    falls: dict[str, _Fall] = {}
    clarity: dict[str, tuple[bool, float, float]] = {}
    for (of_metric, window), first, paired in zip(windows, firsts, results, strict=True):
        drop = paired.find_drop(of_metric.better)
        rank = (bool(drop.size and drop.size > 0), -1.0 if paired.p is None else -paired.p, drop.size or 0.0)
        if of_metric.metric not in falls or rank > clarity[of_metric.metric]:
            falls[of_metric.metric] = _Fall(nights=of_metric, window=window, first=first, paired=paired, drop=drop)
            clarity[of_metric.metric] = rank
    checks = []
    for metric, limit in limits.items():
        fall = falls.get(metric)
        drop = fall.drop if fall else Drop(size=None, low=None, high=None)
        finding = _judge_fall(limit, fall, cluster)
        checks.append(_make_trend(metric, limit, drop, n=fall.paired.n if fall else 0, finding=finding))
    return checks


def _make_trend(metric: str, limit: float, drop: Drop, *, n: int, finding: _Finding) -> Check:
    return Check(
        kind="trend",
        metric=metric,
        limit=limit,
        value=drop.size,
        ci_low=drop.low,
        ci_high=drop.high,
        n=n,
        beyond=None if drop.size is None else drop.size - limit,
        **vars(finding),
    )


def check_falls_since(
    limits: Mapping[str, float], comparisons: Mapping[str, MetricComparison], since: RunRow | None
) -> list[Check]:
    """Check how far each metric has fallen since the first of the nights, where a night judged a part of its dataset.

    Estimates of single nights are compared, so this finds a fall later than `check_trends`. Failed by the same limits,
    and undecided where the estimates decide no drop either; all else passes. `since` is None, and there is no
    comparison, where no night shares a sample with this one.
    """
    checks = []
    for metric, limit in limits.items():
        compared = comparisons.get(metric)
        drop = compared.paired.find_drop(compared.better) if compared else Drop(size=None, low=None, high=None)
        p = compared.paired.p_adjusted if compared else None
        doubt: _Finding | None = None
        if compared and compared.shares and not compared.n_other:
            doubt = _doubt_shares(compared.shares, "the first night", drop, limit, is_alike=True)
            if not doubt and compared.shares.n_least < MIN_CLUSTERS:
                doubt = _find_few(compared.shares.n_least)
        if compared is None or since is None or drop.size is None or drop.low is None or p is None:
            none = "no earlier night that passed has samples and scores in common with this one"
            finding = _Finding("passed", None, none)
        elif compared.n_other:
            finding = _Finding("passed", None, "that night was judged by another judge, prompt or formula")
        else:
            sides = f"this night against that of {since.started_at:%Y-%m-%d}, estimates of both, {write_p(p)}"
            finding = _Finding("passed", None, f"no fall beyond the limit is certain: {sides}")
            if p <= TREND_ALPHA and drop.low > limit + ROUNDING:
                finding = _Finding("failed", "beyond_limit", f"a significant drop: {sides}")
        n = compared.paired.n if compared else 0
        checks.append(_make_trend(metric, limit, drop, n=n, finding=doubt or finding))
    return checks


def _judge_fall(limit: float, fall: _Fall | None, cluster: str | None) -> _Finding:
    if fall is None:
        first = "a trend takes an earlier night that passed and was judged as this one, both over all samples"
        return _Finding("passed", None, first)
    size, low, p = fall.drop.size, fall.drop.low, fall.paired.p_adjusted
    n_clusters = fall.paired.n_clusters
    if cluster and n_clusters < min(MIN_TREND_GROUPS, fall.paired.n):
        return _find_few(n_clusters, cluster, kind="trend", least=MIN_TREND_GROUPS)
    if size is None or p is None or n_clusters < 2:
        few = "fewer than two independent samples are scored in the first and in the last nights"
        return _Finding("passed", None, few)
    n, begin = fall.window.n_side, fall.nights.runs[fall.window.start].started_at
    nights = "night" if n == 1 else f"{n} nights"
    sides = f"the last {nights} against the {nights} from {begin:%Y-%m-%d} on"
    if size <= 0 or low is None or p > TREND_ALPHA:
        return _Finding("passed", None, f"no fall beyond chance: {sides}, {write_p(p)}")
    if low <= limit + ROUNDING:
        return _Finding("passed", None, f"a fall that may keep the limit: {sides}, {write_p(p)}")
    # How far tonight alone is below the first nights, over the samples it has in common with them.
    differences = fall.nights.values[-1] - fall.first
    known = differences[~np.isnan(differences)]
    tonight = (turn_to_drop(float(known.mean()), fall.nights.better) or 0.0) if len(known) else 0.0
    if tonight < size / 2:
        return _Finding("passed", None, f"a fall that is over: {sides}, but tonight is {tonight:.3f} below them")
    return _Finding("failed", "beyond_limit", f"a significant drop: {sides}, {write_p(p)}")
