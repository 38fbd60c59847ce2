"""Corrected means: they hold what they promise on drawn runs, and are what a computation of another kind gives."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from corrected_runs import Design, Drawn, draw, fill_drawn
from rows import Row, Sample, add_samples, fill, open_rows, read, score
from scipy.optimize import minimize_scalar
from scipy.stats import t as student

from evalhouse.warehouse.metric_files import load_metrics

N_RUNS = 400
AT = datetime(2026, 1, 1)
GOOD = {"sensitivity": 0.98, "specificity": 0.95}
LENIENT = {"sensitivity": 0.95, "specificity": 0.55}
POOR = {"sensitivity": 0.7, "specificity": 0.5}
UNFINISHED = {"hard_share": 0.5, "answered": 0.6, "n_picked": 160}


def correct(design: Design) -> pl.DataFrame:
    """Corrected scores of all drawn runs; runs with too little reviewed are left out."""
    with open_rows() as con:
        fill_drawn(con, draw(design))
        found = con.sql("from corrected_scores").pl()
    assert len(found) == design.n_runs
    return found.drop_nulls("corrected_mean")


def cover(found: pl.DataFrame, truth: float) -> float:
    return float(((found["ci_low"] <= truth) & (found["ci_high"] >= truth)).mean())  # type: ignore[arg-type]


def width(found: pl.DataFrame) -> float:
    return float((found["ci_high"] - found["ci_low"]).mean())  # type: ignore[arg-type]


@pytest.mark.parametrize(("judge", "further"), [
    pytest.param(GOOD, {}, id="good", marks=pytest.mark.slow),
    pytest.param(LENIENT, {"truth": 0.9}, id="lenient, high", marks=pytest.mark.slow),
    pytest.param(POOR, {"hard_share": 0.5}, id="poor, strata", marks=pytest.mark.slow),
    pytest.param(LENIENT, {**UNFINISHED, "n_runs": 120}, id="lenient, strata, unfinished"),
])  # fmt: skip
def test_intervals_cover_the_truth_where_the_judge_is_biased(
    judge: Mapping[str, float], further: dict[str, Any]
) -> None:
    """At least 95 %, less two standard errors of a share over so many runs; and the plain mean does not."""
    design = Design(**({"n_runs": N_RUNS, "n_samples": 120, "n_picked": 80, **judge} | further))
    found = correct(design)
    assert len(found) > 0.95 * design.n_runs
    assert cover(found, design.truth) >= 0.95 - 2 * np.sqrt(0.95 * 0.05 / design.n_runs)
    # The corrected means are where the truth is, the judge's are not.
    error = abs(found["corrected_mean"].mean() - design.truth)  # type: ignore[operator]
    assert error < 0.012 * np.sqrt(N_RUNS / design.n_runs)
    if judge is LENIENT and design.truth == 0.75:
        assert found["mean"].mean() - design.truth > 0.03  # type: ignore[operator]
        assert found["judge_bias"].mean() == pytest.approx(found["mean"].mean() - design.truth, abs=0.02)  # type: ignore[operator]


def test_interval_is_narrower_than_that_of_peoples_labels_alone_when_the_judge_is_good() -> None:
    design = Design(n_runs=50, n_samples=200, n_picked=80, seed=5, **GOOD)
    drawn = draw(design)
    with open_rows() as con:
        fill_drawn(con, drawn)
        found = con.sql("from corrected_scores order by run_id").pl()
    alone = np.mean([2 * people_alone(drawn, number) for number in range(design.n_runs)])
    assert width(found) < 0.65 * alone
    assert found["judge_weight"].mean() > 0.8  # type: ignore[operator]


def people_alone(drawn: Drawn, run: int) -> float:
    """Half the width of the plain 95 % interval of people's mean over the reviewed samples, weighted by length."""
    _, lengths = np.unique(drawn.sample[drawn.run == run], return_counts=True)
    here = drawn.labelled & (drawn.run == run)
    weight = 1 / lengths[drawn.sample[here]] / drawn.probability[here]
    written = drawn.reviewed[here].astype(float)
    mean = (weight * written).sum() / weight.sum()
    return float(1.96 * np.sqrt(((weight * (written - mean)) ** 2).sum()) / weight.sum())


def test_a_judge_that_says_nothing_is_given_no_weight_to_speak_of() -> None:
    found = correct(Design(n_runs=50, n_samples=120, n_picked=80, sensitivity=0.5, specificity=0.5))
    assert found["judge_weight"].mean() < 0.15  # type: ignore[operator]


@pytest.mark.parametrize("hard_share", [0.0, 0.5])
def test_one_run_is_what_a_reckoning_of_another_kind_gives(hard_share: float) -> None:
    """Leaving out one sample's labels at a time, λ by a search, and Student's quantile from a library."""
    design = Design(n_runs=1, n_samples=60, n_picked=60, hard_share=hard_share, seed=2, **LENIENT)
    drawn = draw(design)
    with open_rows() as con:
        fill_drawn(con, drawn)
        (row,) = read(con, "from corrected_scores")
    expected = compute(drawn, design.n_samples)
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=2e-4), name


def test_influences_of_samples_that_share_a_cluster_add_up() -> None:
    """The interval was half as wide as that of the plain mean, which counts conversations as one."""
    design = Design(n_runs=1, n_samples=60, n_picked=60, seed=2, **GOOD)
    drawn = draw(design)
    with open_rows() as con:
        fill_drawn(con, drawn)
        con.execute("update run_samples set cluster = concat('talk=', regexp_extract(sample_id, '\\d+')::int // 4)")
        (row,) = read(con, "from corrected_scores")
    expected = compute(drawn, design.n_samples, np.arange(design.n_samples) // 4)
    for name in ("corrected_mean", "ci_low", "ci_high", "judge_weight"):
        assert row[name] == pytest.approx(expected[name], abs=2e-4), name


def compute(drawn: Drawn, n_samples: int, clusters: np.ndarray | None = None) -> dict[str, float]:
    _, lengths = np.unique(drawn.sample, return_counts=True)
    share = 1 / lengths[drawn.sample]
    values = np.array([drawn.judged[drawn.sample == number].mean() for number in range(n_samples)])
    weight = share[drawn.labelled] / drawn.probability[drawn.labelled]
    owner, written, judged = (part[drawn.labelled] for part in (drawn.sample, drawn.reviewed, drawn.judged))

    def estimate(weights: np.ndarray, lam: float) -> float:
        return float((weights * written).sum() / weights.sum() - lam * (weights * judged).sum() / weights.sum())

    def variance(lam: float) -> float:
        found = estimate(weight, lam)
        left_out = [found - estimate(np.where(owner == number, 0, weight), lam) for number in range(n_samples)]
        influence = np.array(left_out) + lam * (values - values.mean()) / n_samples
        return float((np.bincount(groups, influence) ** 2).sum())

    groups = np.arange(n_samples) if clusters is None else clusters

    lam = minimize_scalar(variance, bounds=(0, 1), method="bounded", options={"xatol": 1e-9}).x
    mean = estimate(weight, lam) + lam * values.mean()
    by_group = np.bincount(groups[owner], weight)
    n, n_reviewed = by_group.sum() ** 2 / (by_group**2).sum(), len(np.unique(groups[owner]))
    n_effective = weight.sum() ** 2 / (weight**2).sum()
    unseen = 1 - len(weight) / (1 / drawn.probability[drawn.labelled]).sum()
    padded = variance(lam) * n_reviewed / (n_reviewed - 2) * ((n + 4 * lam) / (n + 4)) ** 2
    padded += ((1 - lam) / (n + 4)) ** 2 * (1 + 4 * n * (mean - 0.5) ** 2 / (n + 4))
    padded += (lam / (n_effective + 4)) ** 2 * unseen
    centre = mean + (1 - lam) * (0.5 - mean) * 4 / (n + 4)
    half = student.ppf(0.975, n - 2) * np.sqrt(padded)
    return {
        "mean": values.mean(), "corrected_mean": mean, "ci_low": centre - half, "ci_high": centre + half,
        "judge_weight": lam, "n_effective": n_effective, "n_samples_effective": n, "n_reviewed": len(weight),
        "n_scored": n_samples,
    }  # fmt: skip


def test_all_reviewed_gives_peoples_mean() -> None:
    design = Design(n_runs=1, n_samples=40, n_picked=10_000, seed=3, **LENIENT)
    drawn = draw(design)
    with open_rows() as con:
        fill_drawn(con, drawn)
        (row,) = read(con, "from corrected_scores")
    written = [drawn.reviewed[drawn.sample == number].mean() for number in range(40)]
    assert row["corrected_mean"] == pytest.approx(np.mean(written))
    assert row["coverage"] == pytest.approx(1)


@pytest.mark.parametrize(("n_picked", "n_samples"), [(15, 100), (60, 6)])
def test_too_little_reviewed_has_counts_and_no_corrected_mean(n_picked: int, n_samples: int) -> None:
    with open_rows() as con:
        fill_drawn(con, draw(Design(n_runs=1, n_samples=n_samples, n_picked=n_picked, **GOOD)))
        (row,) = read(con, "from corrected_scores")
    assert (row["corrected_mean"], row["ci_low"], row["ci_high"]) == (None, None, None)
    assert row["n_reviewed"]
    assert row["mean"] is not None


def review(con: duckdb.DuckDBPyConnection, labels: Mapping[str, str], *, run_id: str = "r", **more: object) -> None:
    """One export of a run in which these items were picked, and one person's labels of them; ids like A1 or C2."""
    rows: list[Row] = []
    for item in read(con, f"from review_items where run_id = '{run_id}'"):
        name = f"{item['step']} {item['sample_id']} {item['statement_id'] or 'C' + str(item['context_rank'])}"
        if name in labels:
            rows.append({**item, "label": labels[name]})
    assert len(rows) == len(labels)
    keys = ("run_id", "sample_id", "step", "statement_id", "context_rank", "item_hash", "question_hash", "judge_label")
    common = {"export_id": "e", "stratum": "rest", "probability": 0.5, **more}
    kept = [{key: row[key] for key in keys} | common for row in rows]
    fill(con, "review_picks", *({**row, "asked": True, "picked_at": AT} for row in kept))
    written = {"reviewer": "ann", "reviewed_at": AT, "imported_at": AT}
    fill(con, "reviews", *({**row, **written, "label": given["label"]} for row, given in zip(kept, rows, strict=True)))


def add_scored(con: duckdb.DuckDBPyConnection, sample: Sample, metrics: tuple[str, ...], **settings: float) -> None:
    add_samples(con, sample)
    con.execute("update samples set contexts = coalesce(contexts, ['one', 'two', 'three']), question = sample_id")
    for metric in metrics:
        value = score(con, metric, **settings)[sample.sample_id].value
        version = "1" + "".join(f";{name}={value:g}" for name, value in settings.items())
        row = {"run_id": "r", "sample_id": sample.sample_id, "metric": metric, "value": value}
        fill(con, "scores", {**row, "metric_version": version})


def test_each_metric_has_its_own_verdicts() -> None:
    sample = Sample(
        answer=["TP", "FP"],
        ground_truth=["FN"],
        answer_support=[[1], []],
        ground_truth_support=[[1]],
        useful=[True, False],
    )
    labels = {
        "classify s A1": "TP", "classify s A2": "TP", "classify s G1": "TP", "attribute s A1": "unsupported",
        "attribute s G1": "supported", "rank s C2": "useful",
    }  # fmt: skip
    with open_rows() as con:
        correctable = [metric.name for metric in load_metrics().values() if metric.correctable == "yes"]
        add_scored(con, sample, correctable)
        review(con, labels)
        rows = read(con, "from corrected_verdicts order by metric, statement_id")
    found = [(row["metric"], row["statement_id"], row["judged"], row["said"], row["share"]) for row in rows]
    assert found == [
        ("context_recall", "G1", 1, 1, 1),
        ("factual_precision", "A1", 1, 1, 0.5),
        ("factual_precision", "A2", 0, 1, 0.5),
        ("faithfulness", "A1", 1, 0, 0.5),
        ("precision_retrieved", None, 0, 1, 0.5),
        ("statement_recall", "G1", 0, 1, 1),
    ]
    assert {row["weight"] for row in rows} == {2}


def test_contexts_beyond_k_and_repeats_do_not_count() -> None:
    labels = {"rank s C1": "useful", "rank s C2": "useful", "rank s C3": "useful"}
    repeat = Sample(useful=[True, True, False], contexts=["One.", "One.", "Two."])
    with open_rows() as con:
        add_scored(con, repeat, ("precision_retrieved",), k=2)
        review(con, labels)
        rows = read(con, "from corrected_verdicts order by context_rank")
    assert [(row["context_rank"], row["judged"], row["said"], row["share"]) for row in rows] == [
        (1, 1, 1, 0.5), (2, 0, 0, 0.5),
    ]  # fmt: skip


def test_reviewers_who_differ_share_a_verdict_and_the_latest_label_of_each_counts() -> None:
    sample = Sample(answer=["TP"], answer_support=[[1]])
    with open_rows() as con:
        add_scored(con, sample, ("faithfulness",))
        review(con, {"attribute s A1": "supported"})
        con.execute(
            "insert into reviews by name select * replace ('bob' as reviewer, 'unsupported' as label) from reviews"
        )
        con.execute(
            "insert into reviews by name select * replace ('supported' as label, reviewed_at + interval 1 day as "
            "reviewed_at) from reviews where reviewer = 'bob'"
        )
        con.execute(
            "insert into reviews by name select * replace ('eve' as reviewer, 'unsupported' as label) from reviews "
            "where reviewer = 'ann'"
        )
        (row,) = read(con, "from corrected_verdicts")
    assert (row["said"], row["n_reviewers"]) == (pytest.approx(2 / 3), 3)


def test_a_run_with_a_budget_of_samples_has_no_corrected_mean() -> None:
    """Its samples are more often the doubtful ones: the corrected mean was theirs, and not that of the dataset."""
    with open_rows() as con:
        fill_drawn(con, draw(Design(n_runs=1, n_samples=200, n_picked=200, seed=4, **GOOD)))
        (whole,) = read(con, "from corrected_scores")
        con.execute("insert into sample_picks select run_id, sample_id, ordinal, 1.0, true from run_samples")
        assert read(con, "from corrected_scores") == [whole]  # a budget for more samples than there are
        con.execute("insert into sample_picks select any_value(run_id), 'not judged', 201, 0.5, false from run_samples")
        (part,) = read(con, "from corrected_scores")
    assert whole["corrected_mean"] is not None
    assert (part["corrected_mean"], part["ci_low"], part["n_reviewed"]) == (None, None, whole["n_reviewed"])


def test_verdicts_without_a_label_are_represented_by_their_group() -> None:
    with open_rows() as con:
        samples = [Sample(sample_id=f"s{number}", answer=["TP"], answer_support=[[1]]) for number in range(4)]
        for sample in samples:
            add_scored(con, sample, ("faithfulness",))
        review(con, {f"attribute s{number} A1": "supported" for number in range(4)})
        con.execute("delete from reviews where sample_id = 's3'")
        strata = read(con, "from corrected_strata")
        weights = {row["weight"] for row in read(con, "from corrected_verdicts")}
    assert [(row["n_picked"], row["n_labelled"]) for row in strata] == [(4, 3)]
    assert list(weights) == [pytest.approx(2 * 4 / 3)]


@pytest.mark.parametrize(("changed", "shared"), [("> 0", 1 / 3), ("= 0", 2 / 3), ("< 0", 1)])
def test_labels_carried_into_a_run_that_shares_too_little_correct_nothing(changed: str, shared: float) -> None:
    """Unchanged answers of a bot say nothing about its changed ones."""
    design = Design(n_runs=1, n_samples=200, n_picked=200, seed=4, **GOOD)
    with open_rows() as con:
        fill_drawn(con, draw(design))
        for table in ("run_samples", "statements", "attributions", "scores"):
            con.execute(f"insert into {table} by name select * replace ('later' as run_id) from {table}")
        con.execute(
            "update statements set text = text || ' In other words.' where run_id = 'later' "
            f"and substr(sample_id, 2)::integer % 3 {changed}"
        )
        (row,) = read(con, "from corrected_scores where run_id = 'later'")
    assert row["n_carried"] == row["n_reviewed"]
    assert row["coverage"] == pytest.approx(shared, abs=0.1)
    assert (row["corrected_mean"] is None) == (shared < 0.8)
