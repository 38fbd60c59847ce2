"""run_scores, score_history and sample_history: means, intervals that hold what they promise, and changes."""

import math
import random
from collections.abc import Sequence
from datetime import datetime

import duckdb
import numpy as np
import pytest
from drawn_scores import MEANS, number_documents
from rows import Row, fill, open_rows, read
from scipy import stats

from evalhouse.tasks.comparing.intervals import find_interval


def scores_of(
    values: Sequence[float | None], metric: str = "faithfulness", run_id: str = "r", **columns: object
) -> list[Row]:
    """One score per value; None is a missing one."""
    return [
        {
            "run_id": run_id,
            "sample_id": f"s{n}",
            "metric": metric,
            "value": value,
            "unscored_reason": "judge_failed" if value is None else None,
            **columns,
        }
        for n, value in enumerate(values)
    ]


def members_of(clusters: Sequence[str | None], run_id: str = "r") -> list[Row]:
    """The samples of a run with their clusters."""
    return [
        {"run_id": run_id, "sample_id": f"s{n}", "input_hash": "h", "ordinal": n, "cluster": cluster}
        for n, cluster in enumerate(clusters)
    ]


def summarise_each(*runs: Sequence[float | None], minimum: float | None = None) -> list[Row]:
    """Return the rows of run_scores for runs of one metric with these values; as fast as for one."""
    with open_rows() as con:
        columns = {} if minimum is None else {"minimum": minimum}
        for n, values in enumerate(runs):
            fill(con, "scores", *scores_of(values, run_id=f"r{n:03}", **columns))
        return list(read(con, "from run_scores order by run_id"))


def summarise_clusters(values: Sequence[float | None], clusters: Sequence[str | None]) -> Row:
    """Return the row of run_scores for one run whose samples are in clusters."""
    with open_rows() as con:
        fill(con, "scores", *scores_of(values))
        fill(con, "run_samples", *members_of(clusters))
        (row,) = read(con, "from run_scores")
    return row


def ends(row: Row) -> tuple[float, float]:
    return float(str(row["ci_low"])), float(str(row["ci_high"]))


def test_mean_is_over_scored_samples() -> None:
    some, none = summarise_each([1.0, 0.5, None, 0.0, None], [None, None])
    assert (some["mean"], some["n_scored"], some["n_unscored"]) == (0.5, 3, 2)
    assert (none["mean"], none["ci_low"], none["ci_high"]) == (None, None, None)
    assert (none["n_scored"], none["n_unscored"]) == (0, 2)


def test_interval_on_binary_values_is_wilsons_with_students_quantile() -> None:
    cases = [(1, 4), (8, 10), (1, 7), (3, 400), (19, 20), (300, 1000)]
    rows = summarise_each(*([1.0] * hits + [0.0] * (n - hits) for hits, n in cases))
    for (hits, n), row in zip(cases, rows, strict=True):
        level = 2 * stats.norm.cdf(stats.t.ppf(0.975, n - 1)) - 1
        theirs = stats.binomtest(hits, n).proportion_ci(level, method="wilson")
        assert ends(row) == pytest.approx((theirs.low, theirs.high), rel=1e-4), (hits, n)
    plain = stats.binomtest(300, 1000).proportion_ci(method="wilson")
    assert ends(rows[-1]) == pytest.approx((plain.low, plain.high), abs=1e-4), "with many values the plain one"


def test_interval_on_shares_is_wilsons_for_as_many_zeros_and_ones_as_vary_as_much() -> None:
    """Check both ends by their definition: true means from which the mean is off by Student's t standard errors.

    The standard error is that of n_effective zeros and ones of the true mean.
    """
    runs = []
    for n in (2, 4, 5, 6, 9, 30, 1000):
        rng = random.Random(n)
        runs.append([rng.choice([0.2, 0.4, 0.6, 0.9]) for _ in range(n - 1)] + [0.5])
    for values, row in zip(runs, summarise_each(*runs), strict=True):
        n, mean, variance = len(values), np.mean(values), np.var(values, ddof=1)
        n_effective = n * mean * (1 - mean) / variance
        for end in ends(row):
            distance = abs(mean - end) / math.sqrt(end * (1 - end) / n_effective)
            assert distance == pytest.approx(stats.t.ppf(0.975, n - 1), rel=2e-4), n


def test_equal_values_keep_a_width() -> None:
    """None of n values differs, so a share that does may still exist, as far as to 0 or to 1."""
    cases = [(0.2, 20), (0.5, 1), (0.75, 200), (0.0, 74)]
    cases += [(value, n) for n in (1, 3, 20, 500) for value in (0.0, 1.0)]
    rows = summarise_each(*([value] * n for value, n in cases))
    for (value, n), row in zip(cases, rows, strict=True):
        unseen = stats.binomtest(0, n).proportion_ci(method="exact").high
        assert row["mean"] == pytest.approx(value)
        assert ends(row) == pytest.approx((value * (1 - unseen), value + (1 - value) * unseen)), (value, n)
        assert ends(row)[0] < ends(row)[1], (value, n)


def test_metric_on_another_scale_has_students_interval() -> None:
    values = [120.0, 80.0, 100.0, 95.0]
    theirs = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    many, *equal = summarise_each(values, [120.0], [120.0, 120.0])
    assert ends(many) == pytest.approx(theirs)
    for row in equal:
        assert (row["mean"], row["ci_low"], row["ci_high"]) == (120.0, None, None)


def test_interval_of_ratings_ends_at_the_lowest_one() -> None:
    """The lowest score of ratings from 1 to 10 is 0.1; shares lie between it and 1."""
    values = [0.1, 0.1, 0.4, 0.1, 0.7, 0.1]
    rated, lowest = summarise_each(values, [0.1] * 20, minimum=0.1)
    moved, plain = summarise_each([(value - 0.1) / 0.9 for value in values], values)
    assert ends(rated) == pytest.approx(tuple(0.1 + 0.9 * end for end in ends(moved)))
    assert ends(lowest)[0] == pytest.approx(0.1)
    assert ends(plain)[0] < 0.1, "without it a mean below every rating is possible"


def test_samples_of_a_cluster_count_together() -> None:
    """Four documents of five questions each, all right or all wrong: four observations."""
    values = [1.0] * 15 + [0.0] * 5
    clusters = [f"document_id={n // 5}" for n in range(20)]
    row = summarise_clusters([*values, None], [*clusters, "document_id=0"])
    assert (row["n_scored"], row["cluster"], row["n_clusters"]) == (20, "document_id", 4)
    low, high = ends(row)
    variance = np.var([1.0, 1.0, 1.0, 0.0], ddof=1) / 4
    n_effective = 0.75 * 0.25 / variance
    for end in (low, high):
        assert abs(0.75 - end) / math.sqrt(end * (1 - end) / n_effective) == pytest.approx(stats.t.ppf(0.975, 3))
    alone = summarise_clusters(values, [None] * 20)
    assert (alone["cluster"], alone["n_clusters"]) == (None, None)
    assert ends(alone)[0] > low + 0.2


def test_clusters_of_equal_values_count_as_one_observation_each() -> None:
    row = summarise_clusters([1.0] * 40, [f"d={n // 10}" for n in range(40)])
    assert ends(row) == pytest.approx((0.025 ** (1 / 4), 1.0))
    assert ends(summarise_clusters([1.0] * 40, ["d=0"] * 40)) == pytest.approx((0.025, 1.0)), "one document says little"


def draw_values(rng: np.random.Generator, kind: int, n: int) -> list[float]:
    match kind % 4:
        case 0:
            return rng.integers(0, 2, n).astype(float).tolist()
        case 1:
            return rng.beta(0.5, 0.3, n).tolist()
        case 2:
            return [float(rng.choice([0.0, 0.2, 0.5, 1.0]))] * n
        case _:
            return rng.choice([0.0, 0.25, 1.0], n).tolist()


def test_sql_and_python_have_one_interval() -> None:
    """Compare the intervals of `gate --cluster` and of the view for 120 runs: without clusters, with clusters of like
    sizes, and with one that has most of the samples."""
    rng = np.random.default_rng(5)
    theirs, scores, members = {}, [], []
    for number in range(120):
        n = int(rng.integers(1, 40))
        values = np.array(draw_values(rng, number, n))
        places = np.arange(n) if number % 8 < 4 else rng.integers(0, max(2, n // 4), n)
        if number >= 80:
            places = np.maximum(np.arange(n) - n // 2, 0)
        run_id, is_alone = f"r{number}", number % 8 < 4 and number < 80
        scores += scores_of(values.tolist(), run_id=run_id)
        members += members_of([None if is_alone else f"d={place}" for place in places], run_id)
        found = find_interval(values[:, None], np.unique(places, return_inverse=True)[1])
        theirs[run_id] = (float(found.low[0]), float(found.high[0]))
    with open_rows() as con:
        fill(con, "scores", *scores)
        fill(con, "run_samples", *members)
        ours = {row["run_id"]: ends(row) for row in read(con, "from run_scores")}
    assert ours == {run_id: pytest.approx(interval, abs=1e-5) for run_id, interval in theirs.items()}


@pytest.mark.parametrize("kind", MEANS)
def test_the_interval_covers_the_mean_of_metrics_as_they_are(kind: str) -> None:
    """Twenty samples, or documents of five questions, by Zipf, and with one that has half of them."""
    scores, n = MEANS[kind], 20 if MEANS[kind].is_alone else 200
    values, places = scores.draw(np.random.default_rng(20), (n, 4000)), number_documents(n, scores.size)
    covered = {}
    for name, groups in (("clustered", places), ("alone", np.arange(n))):
        found = find_interval(values, groups)
        covered[name] = float(((found.low <= scores.mean) & (scores.mean <= found.high)).mean())
    assert covered["clustered"] >= 0.93, covered
    assert scores.is_alone or covered["alone"] < 0.9, covered


def add_run(
    con: duckdb.DuckDBPyConnection, run_id: str, day: int, values: Sequence[float | None], **run: object
) -> None:
    """One run on that day of January with scores for one metric."""
    fill(con, "runs", {"run_id": run_id, "started_at": datetime(2025, 1, day), **run})
    fill(con, "scores", *scores_of(values, run_id=run_id))
    for n in range(len(values)):
        sample = {"sample_id": f"s{n}", "input_hash": f"h{n}"}
        fill(con, "run_samples", {"run_id": run_id, **sample})


def test_history_runs_within_its_suite() -> None:
    with open_rows() as con:
        add_run(con, "third", 3, [1.0, 0.5], suite="nightly", dataset="d2")
        add_run(con, "first", 1, [0.5, 0.5], suite="nightly", dataset="d1")
        add_run(con, "second", 2, [None, None], suite="nightly", dataset="d1")
        add_run(con, "fourth", 4, [0.25, 0.25], suite="nightly", dataset="d1")
        add_run(con, "by hand", 2, [0.1, 0.1], dataset="d1")
        add_run(con, "by hand again", 4, [0.4, 0.4], dataset="d1")
        rows = read(con, "select run_id, previous_run_id, change from score_history")
    assert [(row["run_id"], row["previous_run_id"]) for row in rows] == [
        ("by hand", None),
        ("by hand again", "by hand"),
        ("first", None),
        ("second", "first"),
        ("third", "second"),
        ("fourth", "third"),
    ]
    assert [row["change"] for row in rows] == [None, pytest.approx(0.3), None, None, None, -0.5]


def test_a_change_is_of_the_samples_that_both_nights_scored() -> None:
    """Samples that come, go or are left unscored move the mean, and not the change."""
    with open_rows() as con:
        add_run(con, "a", 1, [0.5, 0.5, 0.5], suite="nightly")
        add_run(con, "b", 2, [0.5, 0.75, None, 0.0, 0.0], suite="nightly")
        add_run(con, "c", 3, [0.5, 0.75, None, 0.0, 0.0], suite="nightly")
        add_run(con, "d", 4, [None, None, 1.0, None, None], suite="nightly")
        rows = read(con, "select mean, change, n_shared, n_scored, previous_n_scored from score_history")
    assert [row["mean"] for row in rows] == [0.5, 0.3125, 0.3125, 1.0]
    assert [row["change"] for row in rows] == [None, 0.125, 0.0, None]
    counts = [(row["n_shared"], row["n_scored"], row["previous_n_scored"]) for row in rows]
    assert counts == [(None, 3, None), (2, 4, 3), (4, 4, 4), (0, 1, 4)]


def test_history_says_when_the_yardstick_changed() -> None:
    with open_rows() as con:
        add_run(con, "a", 1, [0.5], suite="nightly", judge="small", embeddings=None)
        add_run(con, "b", 2, [0.6], suite="nightly", judge="small", embeddings=None)
        add_run(con, "c", 3, [0.7], suite="nightly", judge="large", embeddings=None)
        add_run(con, "d", 4, [0.8], suite="nightly", judge="large", embeddings=None)
        con.execute("update scores set metric_version = '2' where run_id = 'd'")
        rows = read(con, "select run_id, same_yardstick from score_history")
    assert [row["same_yardstick"] for row in rows] == [None, True, False, False]


def test_sample_history() -> None:
    with open_rows() as con:
        add_run(con, "a", 1, [0.5, 1.0], suite="nightly")
        add_run(con, "b", 2, [0.75, 1.0], suite="nightly")
        add_run(con, "c", 3, [None, 1.0], suite="nightly")
        add_run(con, "elsewhere", 2, [0.0, 0.0], dataset="d")
        con.execute("update run_samples set input_hash = 'new' where run_id = 'b' and sample_id = 's0'")
        fill(con, "samples", {"sample_id": "s0", "input_hash": "h0", "answer": "Then."},
             {"sample_id": "s0", "input_hash": "new", "answer": "Now."})  # fmt: skip
        rows = read(con, "from sample_history where sample_id = 's0' and series = 'suite nightly'")
    shown = ("run_id", "value", "previous_run_id", "change", "input_changed", "answer", "unscored_reason")
    assert [tuple(row[name] for name in shown) for row in rows] == [
        ("a", 0.5, None, None, None, "Then.", None),
        ("b", 0.75, "a", 0.25, True, "Now.", None),
        ("c", None, "b", None, True, "Then.", "judge_failed"),
    ]
