"""Runs whose questions, bot and judge vary by known amounts, as rows of an in-memory warehouse.

A world draws the scores of many runs at once: arrays of runs × questions × answers, and beside them which answers are
the same text (these have one judgement, as a reply on record is used again) and what a noise run says of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

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


def make_shares(*, right: float, wrong: float, flips: float, statements: int) -> World:
    """Shares of statements that the bot has right, each read wrongly by the judge now and then.

    How often the bot has a question's statements right is Beta(right, wrong), with one statement a 0 or 1.
    """

    def draw(generator: np.random.Generator, shape: tuple[int, int, int]) -> Scores:
        chances = generator.beta(right, wrong, (*shape[:2], 1, 1))
        answers = generator.random((*shape, statements)) < chances
        values = _judge(generator, answers, flips).mean(-1)
        again = _judge(generator, answers[:, :, 0], flips).mean(-1)
        return Scores(values=values, texts=np.arange(values.size).reshape(shape), again=again)

    mean = right / (right + wrong)
    spread = mean * (1 - mean) / (right + wrong + 1)
    kept = (1 - 2 * flips) ** 2
    bot = kept * (mean * (1 - mean) - spread) / statements
    return World(question=kept * spread, bot=bot, judge=flips * (1 - flips) / statements, draw=draw)


def make_few_texts(*, right: float, wrong: float, flips: float) -> World:
    """A bot that has one right text and one wrong one for each question: equal texts are judged once."""

    def draw(generator: np.random.Generator, shape: tuple[int, int, int]) -> Scores:
        chances = generator.beta(right, wrong, (*shape[:2], 1))
        answers = generator.random(shape) < chances
        readings = np.stack(
            [_judge(generator, np.full(shape[:2], truth), flips) for truth in (False, True)]
        )  # of each text one
        values = np.where(answers, readings[1][:, :, None], readings[0][:, :, None])
        again = _judge(generator, answers[:, :, 0], flips)
        places = np.arange(shape[0] * shape[1]).reshape((*shape[:2], 1))
        return Scores(values=values, texts=2 * places + answers, again=again)

    mean = right / (right + wrong)
    spread = mean * (1 - mean) / (right + wrong + 1)
    kept = (1 - 2 * flips) ** 2
    bot = kept * (mean * (1 - mean) - spread)
    return World(question=kept * spread, bot=bot, judge=flips * (1 - flips), draw=draw)


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
    _write_runs_rows(con, size, n_runs)
    _insert(con, "scores", scored)
    _insert(con, "llm_calls", calls)


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: pl.DataFrame) -> None:
    con.register("given_rows", rows)
    con.execute(f"insert into {table} by name from given_rows")
    con.unregister("given_rows")


def _write_runs_rows(con: duckdb.DuckDBPyConnection, size: Size, n_runs: int) -> None:
    rows = []
    for number in range(n_runs):
        run_id = f"r{number}"
        shared = {"suite": run_id, "judge": "openai:judge", "trigger": "manual", "status": "completed"}
        rows.append({**shared, "run_id": run_id, "kind": "evaluation", "parent_run_id": None, "started_at": _START})
        later = _START + timedelta(hours=1)
        for answer in range(1, 1 + size.rounds):
            rows.append(
                {
                    **shared,
                    "run_id": f"{run_id}-{answer}",
                    "kind": "repeats",
                    "parent_run_id": run_id,
                    "started_at": later,
                }
            )
        rows.append({**shared, "run_id": f"{run_id}-n", "kind": "noise", "parent_run_id": run_id, "started_at": later})
    con.register("given_rows", pl.DataFrame(rows))
    con.execute("insert into runs by name from given_rows")
    con.execute(
        "insert into noise by name select parent_run_id as run_id, run_id as noise_run_id, $metric as metric, "
        "$n as n_samples, 0 as n_changed, 0.0 as mean_difference from given_rows where kind = 'noise'",
        {"metric": METRIC, "n": size.judged_twice},
    )
    con.unregister("given_rows")
