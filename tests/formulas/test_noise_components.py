"""The view noise_components: what the scores of a run's answers vary by, found again in runs of which it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import duckdb
import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from rows import fill, open_rows, read

Floats = NDArray[np.float64]
METRIC = "factual_f1"
_START = datetime(2026, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """`values` and `texts` are runs × questions × answers, `again` runs × questions; equal texts are equal numbers."""

    values: Floats
    texts: NDArray[np.int64]
    again: Floats


@dataclass(frozen=True, kw_only=True)
class World:
    """The variances of scores; `draw` gets a generator and the shape runs × questions × answers."""

    question: float
    bot: float
    judge: float
    draw: Callable[[np.random.Generator, tuple[int, int, int]], Scores]


def make_normal(*, question: float, bot: float, judge: float) -> World:
    """Normal on all three levels."""

    def draw(generator: np.random.Generator, shape: tuple[int, int, int]) -> Scores:
        means = generator.normal(0, np.sqrt(question), (*shape[:2], 1))
        answers = means + generator.normal(0, np.sqrt(bot), shape)
        values = answers + generator.normal(0, np.sqrt(judge), shape)
        again = answers[:, :, 0] + generator.normal(0, np.sqrt(judge), shape[:2])
        return Scores(values=values, texts=np.arange(values.size).reshape(shape), again=again)

    return World(question=question, bot=bot, judge=judge, draw=draw)


def make_shares(*, right: float, wrong: float, flips: float, statements: int = 1, has_few_texts: bool = False) -> World:
    """Shares of statements that the bot has right, each read wrongly by the judge now and then.

    How often the bot has a question's statements right is Beta(right, wrong), with one statement a 0 or 1. A bot of
    few texts has one right text and one wrong one for each question: equal texts are judged once.
    """

    def draw(generator: np.random.Generator, shape: tuple[int, int, int]) -> Scores:
        chances = generator.beta(right, wrong, (*shape[:2], 1, 1))
        answers = generator.random((*shape, statements)) < chances
        again = _judge(generator, answers[:, :, 0], flips).mean(-1)
        if not has_few_texts:
            values = _judge(generator, answers, flips).mean(-1)
            return Scores(values=values, texts=np.arange(values.size).reshape(shape), again=again)
        is_right = answers[..., 0]
        of_wrong, of_right = (_judge(generator, np.full((*shape[:2], 1), truth), flips) for truth in (False, True))
        places = np.arange(shape[0] * shape[1]).reshape((*shape[:2], 1))
        return Scores(values=np.where(is_right, of_right, of_wrong), texts=2 * places + is_right, again=again)

    mean = right / (right + wrong)
    spread = mean * (1 - mean) / (right + wrong + 1)
    kept = (1 - 2 * flips) ** 2
    bot = kept * (mean * (1 - mean) - spread) / statements
    return World(question=kept * spread, bot=bot, judge=flips * (1 - flips) / statements, draw=draw)


def _judge(generator: np.random.Generator, truths: NDArray[np.bool_], flips: float) -> Floats:
    return np.asarray(truths ^ (generator.random(truths.shape) < flips), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Size:
    """Questions of a run, how many are asked again and how often, and how many first answers are judged twice."""

    questions: int
    repeated: int
    rounds: int
    judged_twice: int


def write_runs(
    con: duckdb.DuckDBPyConnection, world: World, size: Size, *, n_runs: int, seed: int, missing: float = 0.1
) -> None:
    """Runs `r0`, `r1`, … each a separate series, their rounds and a noise run; `missing` of the scores are NULL."""
    generator = np.random.default_rng(seed)
    scores = world.draw(generator, (n_runs, size.questions, 1 + size.rounds))
    runs, questions, answers = (axis.ravel() for axis in np.indices(scores.values.shape))
    is_asked = (answers == 0) | (questions < size.repeated)
    is_scored = generator.random(len(runs)) >= missing
    table = pl.DataFrame(
        {
            "run": runs, "question": questions, "answer": answers, "value": scores.values.ravel(),
            "text": scores.texts.ravel(), "is_scored": is_scored,
        }
    ).filter(pl.Series(is_asked))  # fmt: skip
    table = table.with_columns(
        run_id=pl.format(
            "r{}{}", "run", pl.when(pl.col("answer") > 0).then(pl.format("-{}", "answer")).otherwise(pl.lit(""))
        ),
        sample_id=pl.format("q{}", "question"),
    )
    runs, questions = (axis.ravel() for axis in np.indices(scores.again.shape))
    again = pl.DataFrame({"run": runs, "question": questions, "value": scores.again.ravel()})
    again = again.filter(pl.col("question") < size.judged_twice).with_columns(
        run_id=pl.format("r{}-n", "run"), sample_id=pl.format("q{}", "question"), is_scored=pl.lit(value=True)
    )
    scored = pl.concat([table, again], how="diagonal").select(
        "run_id", "sample_id", pl.lit(METRIC).alias("metric"), pl.lit("1").alias("metric_version"),
        pl.when("is_scored").then("value").alias("value"),
    )  # fmt: skip
    calls = table.select(
        "run_id", "sample_id", step=pl.lit("classify"), status=pl.lit("ok"),
        call_id=pl.format("{} {}", "run_id", "sample_id"), reused_call_id=pl.format("{}", "text"),
    )  # fmt: skip
    calls = calls.with_columns(
        judge=pl.lit("openai:judge"), request_hash=pl.lit("h"), request_key=1, attempts=1, started_at=pl.lit(_START)
    )
    rows = []
    for number in range(n_runs):
        run_id = f"r{number}"
        shared = {"suite": run_id, "judge": "openai:judge", "parent_run_id": run_id}
        later = {**shared, "started_at": _START + timedelta(hours=1)}
        rows.append({**shared, "run_id": run_id, "parent_run_id": None, "started_at": _START})
        rows += [{**later, "run_id": f"{run_id}-{n}", "kind": "repeats"} for n in range(1, 1 + size.rounds)]
        rows.append({**later, "run_id": f"{run_id}-n", "kind": "noise"})
    fill(con, "runs", *rows)
    measured = {"metric": METRIC, "n_samples": size.judged_twice, "n_changed": 0, "mean_difference": 0.0}
    fill(con, "noise", *({**measured, "run_id": f"r{n}", "noise_run_id": f"r{n}-n"} for n in range(n_runs)))
    for name, given in (("scores", scored), ("llm_calls", calls)):
        con.register("given_rows", given)
        con.execute(f"insert into {name} by name from given_rows")
        con.unregister("given_rows")


WORLDS = {
    "normal": make_normal(question=1.0, bot=0.5, judge=0.2),
    "normal, a steady bot": make_normal(question=1.0, bot=0.05, judge=0.2),
    "zeros and ones": make_shares(right=0.5, wrong=0.3, flips=0.05),
    "shares of four": make_shares(right=0.5, wrong=0.3, flips=0.05, statements=4),
    "two texts a question": make_shares(right=0.5, wrong=0.3, flips=0.05, has_few_texts=True),
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


# The aim is 95 of 100 runs. 89 or more of 100 are within three standard errors of that, and 935 of 1,000; the slow ones
# have every world in the usual size, and one world in every size.
SLOW = [*((name, "usual") for name in WORLDS), ("zeros and ones", "small"), ("zeros and ones", "large")]


@pytest.mark.parametrize(("name", "size", "n_runs", "least"), [
    *((name, "usual", 100, 0.89) for name in ("normal", "zeros and ones", "two texts a question")),
    *(pytest.param(name, size, 1000, 0.935, marks=pytest.mark.slow) for name, size in SLOW),
])  # fmt: skip
def test_known_components_are_within_their_intervals(name: str, size: str, n_runs: int, least: float) -> None:
    held = measure_coverage(WORLDS[name], SIZES[size], n_runs=n_runs)
    print(f"{name}, {size}: " + ", ".join(f"{part} {share:.3f}" for part, share in held.items()))
    assert min(held.values()) >= least, held


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
def test_the_estimates_are_those_of_the_formulas(name: str) -> None:
    """Unbalanced: a fifth of the scores is missing, and only some of the questions were asked again."""
    size = Size(questions=60, repeated=25, rounds=3, judged_twice=30)
    with open_rows() as con:
        write_runs(con, WORLDS[name], size, n_runs=1, seed=1, missing=0.2)
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
