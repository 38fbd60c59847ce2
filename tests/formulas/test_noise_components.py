"""The view noise_components: what the scores of a run's answers vary by, found again in runs of which it is known."""

from __future__ import annotations

import numpy as np
import pytest
from rows import fill, open_rows, read
from simulated_noise import METRIC, Size, World, make_few_texts, make_normal, make_shares, write_runs

WORLDS = {
    "normal": make_normal(question=1.0, bot=0.5, judge=0.2),
    "normal, a steady bot": make_normal(question=1.0, bot=0.05, judge=0.2),
    "zeros and ones": make_shares(right=0.5, wrong=0.3, flips=0.05, statements=1),
    "zeros and ones, mostly certain": make_shares(right=0.1, wrong=0.05, flips=0.01, statements=1),
    "shares of four": make_shares(right=0.5, wrong=0.3, flips=0.05, statements=4),
    "two texts a question": make_few_texts(right=0.5, wrong=0.3, flips=0.05),
}
SIZES = {
    "small": Size(questions=80, repeated=10, rounds=1, judged_twice=10),
    "usual": Size(questions=200, repeated=20, rounds=2, judged_twice=100),
    "large": Size(questions=600, repeated=120, rounds=3, judged_twice=200),
}
PARTS = ("question", "bot", "judge")


def measure_coverage(world: World, size: Size, *, n_runs: int, seed: int = 1) -> dict[str, float]:
    """The share of runs whose interval holds what the world is made of, by part."""
    with open_rows() as con:
        write_runs(con, world, size, n_runs=n_runs, seed=seed)
        rows = read(con, "from noise_components order by run_id")
    assert len(rows) == n_runs
    held = {}
    for part in PARTS:
        low, high = (np.array([row[f"{part}_{end}"] for row in rows], dtype=float) for end in ("low", "high"))
        assert (low <= high).all()
        truth = getattr(world, part)
        held[part] = float(((low <= truth) & (truth <= high)).mean())
    return held


@pytest.mark.parametrize("name", ["normal", "zeros and ones", "two texts a question"])
def test_known_components_are_within_their_intervals(name: str) -> None:
    """The aim is 95 of 100 runs; 89 or more are within three standard errors of that."""
    held = measure_coverage(WORLDS[name], SIZES["usual"], n_runs=100)
    assert min(held.values()) >= 0.89, held


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", WORLDS)
def test_known_components_are_within_their_intervals_in_95_of_100_runs(name: str, size: str) -> None:
    held = measure_coverage(WORLDS[name], SIZES[size], n_runs=1000)
    print(f"{name}, {size}: " + ", ".join(f"{part} {share:.3f}" for part, share in held.items()))
    assert min(held.values()) >= 0.935, held


def read_one(size: Size, *, change: str = "") -> dict[str, object]:
    """The row of one simulated run, after a change of its rows."""
    with open_rows() as con:
        write_runs(con, WORLDS["zeros and ones"], size, n_runs=1, seed=5, missing=0.2)
        for statement in filter(None, change.split(";")):
            con.execute(statement)
        rows = read(con, "from noise_components")
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("name", ["zeros and ones", "shares of four", "two texts a question"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_estimates_are_those_of_the_formulas(name: str, seed: int) -> None:
    """Unbalanced: a fifth of the scores is missing, and only some of the questions were asked again."""
    size = Size(questions=60, repeated=25, rounds=3, judged_twice=30)
    with open_rows() as con:
        write_runs(con, WORLDS[name], size, n_runs=1, seed=seed, missing=0.2)
        (row,) = read(con, "from noise_components")
        scores = con.sql("select run_id, sample_id, value from scores where value is not null").fetchall()
        texts = dict(con.sql("select (run_id, sample_id), reused_call_id from llm_calls").fetchall())
    values = {(run_id, sample_id): value for run_id, sample_id, value in scores}
    first = [value for (run_id, _), value in values.items() if run_id == "r0"]
    squares, freedom, apart = 0.0, 0, 0.0
    for number in range(size.questions):
        keys = [(run_id, f"q{number}") for run_id in ("r0", "r0-1", "r0-2", "r0-3")]
        answers = [key for key in keys if key in values]
        of_question = np.array([values[key] for key in answers])
        if len(answers) > 1:
            squares += float(((of_question - of_question.mean()) ** 2).sum())
            freedom += len(answers) - 1
            pairs = [(one, other) for one in answers for other in answers if one < other]
            apart += 2 / len(answers) * sum(texts[one] != texts[other] for one, other in pairs)
    judged = [
        (value - values["r0", sample_id]) ** 2 / 2
        for (run_id, sample_id), value in values.items()
        if run_id == "r0-n" and ("r0", sample_id) in values
    ]
    share = apart / freedom
    assert 0 < share <= 1
    within, judge = squares / freedom, float(np.mean(judged))
    assert row["variance"] == pytest.approx(np.var(first, ddof=1))
    assert row["answer_variance"] == pytest.approx(within)
    assert row["judged_apart"] == pytest.approx(share)
    assert row["judge_variance"] == pytest.approx(judge)
    assert row["bot_variance"] == pytest.approx(max(within - share * judge, 0))
    question = np.var(first, ddof=1) - within - (1 - share) * judge
    assert row["question_variance"] == pytest.approx(max(question, 0))
    assert (row["n_questions"], row["n_judged_twice"]) == (len(first), len(judged))


SMALL = Size(questions=40, repeated=20, rounds=2, judged_twice=20)


def test_a_bot_and_a_judge_that_never_waver_leave_open_what_was_not_seen() -> None:
    row = read_one(SMALL, change="update scores set value = 1.0")
    for part in ("answer", "bot", "judge"):
        assert (row[f"{part}_variance"], row[f"{part}_low"]) == (0, 0)
        assert 0.02 < float(str(row[f"{part}_high"])) < 0.25
    assert (row["variance"], row["n_otherwise"], row["n_judged_otherwise"]) == (0, 0, 0)
    assert float(str(row["variance_high"])) > 0


def test_what_does_not_count() -> None:
    """A round that was stopped, scores by another formula, and noise runs of another judge."""
    whole = read_one(SMALL)
    stopped = read_one(SMALL, change="update runs set status = 'cancelled' where run_id = 'r0-2'")
    assert int(str(stopped["n_answers"])) < int(str(whole["n_answers"]))
    other_formula = read_one(SMALL, change="update scores set metric_version = '2' where run_id = 'r0-2'")
    assert other_formula == stopped
    unknown = read_one(SMALL, change="update scores set metric_version = '2' where run_id = 'r0-n'")
    assert (unknown["judge_variance"], unknown["bot_variance"], unknown["n_judged_twice"]) == (None, None, 0)
    assert unknown["answer_variance"] == whole["answer_variance"]
    assert unknown["question_variance"] is not None
    with open_rows() as con:
        write_runs(con, WORLDS["normal"], SMALL, n_runs=1, seed=1)
        con.execute("update runs set status = 'running' where kind = 'repeats'")
        assert read(con, "from noise_components") == []


def test_the_lexical_judge_has_no_part_in_it() -> None:
    row = read_one(SMALL, change="delete from noise; update runs set judge = 'lexical'")
    assert (row["judge_variance"], row["judge_low"], row["judge_high"]) == (0, 0, 0)
    assert row["bot_variance"] == row["answer_variance"]


def test_noise_runs_of_earlier_nights_count_up_to_ten() -> None:
    """The nights of the same series and judge; each night has measured the judge on 20 answers."""
    with open_rows() as con:
        write_runs(con, WORLDS["zeros and ones"], SMALL, n_runs=13, seed=3, missing=0)
        con.execute(
            "update runs set suite = 'port', started_at = started_at + to_hours(regexp_extract(run_id, '[0-9]+')::int)"
        )
        con.execute("update runs set judge = 'openai:other' where run_id = 'r1'")
        rows = {row["run_id"]: row for row in read(con, "from noise_components")}
    assert rows["r0"]["n_judged_twice"] == 20
    assert max(int(str(row["n_judged_twice"])) for row in rows.values()) == 200
    assert rows["r1"]["n_judged_twice"] == 20


def test_equal_texts_have_equal_replies_only_in_the_steps_of_the_metric() -> None:
    """Another metric's step was asked again, which this one does not rest on."""
    size = Size(questions=40, repeated=20, rounds=1, judged_twice=20)
    with open_rows() as con:
        write_runs(con, WORLDS["two texts a question"], size, n_runs=1, seed=4)
        (before,) = read(con, "from noise_components")
        calls = con.sql("select distinct run_id, sample_id from llm_calls").fetchall()
        others = [
            {"call_id": f"{run_id} {sample_id} rank", "run_id": run_id, "sample_id": sample_id, "step": "rank"}
            for run_id, sample_id in calls
        ]
        fill(con, "llm_calls", *others)
        (after,) = read(con, "from noise_components")
    assert before["metric"] == METRIC
    assert 0 < float(str(before["judged_apart"])) < 1
    assert after == before
