"""The difference of two runs over all answers to their common questions, where both asked some of them again.

What the mean of a run is, and what a gate decides by, are the first answers. The mean over all answers to a question
has less of the bot's and the judge's chance in it, so that the same difference has a narrower interval: that is what
repeats of each question are good for in a comparison (`components` says how many of them).
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.bootstrap import Floats
from evalhouse.tasks.comparing.changes import PairedSamples
from evalhouse.tasks.comparing.noise import find_scale
from evalhouse.tasks.comparing.paired import compare_paired
from evalhouse.tasks.comparing.runs import ComparisonSettings, find_clusters
from evalhouse.warehouse.rows.repeats import read_answer_means
from evalhouse.warehouse.rows.run_pairs import RunPair


@dataclass(frozen=True, kw_only=True)
class AllAnswers:
    """One metric: the mean difference, candidate minus base, of the `n` questions' means over all their answers.

    Of `n_repeated` of these more than one answer counts on both sides. The interval is that of a paired comparison,
    None with fewer than two clusters.
    """

    metric: str
    n: int
    n_repeated: int
    base: float
    candidate: float
    difference: float
    ci_low: float | None
    ci_high: float | None


def compare_all_answers(pair: RunPair, settings: ComparisonSettings) -> list[AllAnswers]:
    """By metric; none where not both runs have a question with two scored answers in any of them."""
    frame = read_answer_means(pair.warehouse, base=pair.base.run_id, candidate=pair.candidate.run_id)
    is_repeated = (pl.col("n_base") > 1) & (pl.col("n_candidate") > 1)
    if frame.filter(is_repeated).is_empty():
        return []
    samples = PairedSamples(pair.read_samples())
    _, _, clusters = find_clusters(pair, settings.cluster)
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
        AllAnswers(
            metric=metric,
            n=paired.n,
            n_repeated=rows.filter(is_repeated).height,
            base=float(rows["base"].to_numpy().mean()),
            candidate=float(rows["candidate"].to_numpy().mean()),
            difference=paired.difference or 0.0,
            ci_low=paired.ci_low,
            ci_high=paired.ci_high,
        )
        for (metric, rows), paired in zip(by_metric.items(), results, strict=True)
    ]
