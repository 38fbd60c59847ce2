"""Measure the calls that a budget of samples saves, compared with judging all.

    python tests/benchmarks/sample_budget.py FOLDER

FOLDER holds labelled sets, a folder each with `dev.jsonl`, whose rows have a `statement`, `contexts` and a `label` that
says whether people find it supported. The labels take the place of a judge's verdicts. Samples are picked by one of two
signals: the verdicts of the lexical rules, and the verdicts of a night before, of which one in ten differs. For each
share of the samples that is judged it prints the interval's width against that of judging all (1.96 standard errors of
a mean over so many), and how often it holds the mean over all.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import polars as pl

from evalhouse.tasks.lexical.match import score_contexts
from evalhouse.tasks.pipeline.sampling import draw, spread
from evalhouse.warehouse.metric_files import view_scripts

_MOST, _FEWEST = 600, 150
_FLIPPED = 0.1
_SUPPORTED = ("supported", "entailed", "consistent", "faithful", "yes", "1", "true")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    arguments = parser.parse_args()
    print("| set | samples | signal | judged | width against all | holds |")
    print("|---|---:|---|---:|---:|---:|")
    for path in sorted(arguments.folder.glob("*/dev.jsonl")):
        rows = read_rows(path)
        if len(rows) < _FEWEST:
            continue
        values = [float(str(row["label"]).lower() in _SUPPORTED) for row in rows]
        rng = random.Random(0)
        earlier = [0.95 - 0.9 * abs(value - (rng.random() >= _FLIPPED)) for value in values]
        for name, signals in (("lexical", [rate(row) for row in rows]), ("the night before", earlier)):
            for share in (0.2, 0.3, 0.4, 0.5):
                width, held = simulate(values, signals, round(share * len(rows)), arguments.runs)
                print(
                    f"| {path.parent.name} | {len(rows)} | {name} | {share:.0%} | {width:.2f} | {held:.2f} |",
                    flush=True,
                )


def read_rows(path: Path) -> list[dict[str, object]]:
    """The rows of a set with a statement, contexts and a label; at most _MOST."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line)
    return [row for row in rows if row.get("statement") and row.get("contexts") and row.get("label")][:_MOST]


def rate(row: dict[str, object]) -> float:
    """Return the verdict of the lexical rules on a row."""
    texts = [context["text"] for context in row["contexts"]]  # type: ignore[attr-defined]
    (supports,) = score_contexts([str(row["statement"])], texts, str(row.get("question") or ""))
    return max(support.score for support in supports)


def simulate(values: Sequence[float], signals: Sequence[float], budget: int, n_runs: int) -> tuple[float, float]:
    """The mean width of the interval against that of judging all, and how often it holds the mean over all."""
    n, mean = len(values), sum(values) / len(values)
    half_of_all = 1.96 * math.sqrt(mean * (1 - mean) / n)
    chances = spread([math.sqrt(max(one * (1 - one), 0.01)) for one in signals], budget)
    halves, held = [], 0
    for estimate, variance in estimate_all(values, signals, chances, n_runs):
        halves.append(1.96 * math.sqrt(variance))
        held += abs(estimate - mean) <= halves[-1]
    return sum(halves) / n_runs / half_of_all, held / n_runs


def estimate_all(
    values: Sequence[float], signals: Sequence[float], chances: Sequence[float], n_runs: int
) -> Iterator[tuple[float, float]]:
    """The product's own estimate of each run."""
    frames = []
    for number in range(n_runs):
        drawn = draw(chances, random.Random(number))
        columns = {"sample_id": range(len(values)), "probability": chances, "signal": signals, "value": values}
        picked = [place in drawn for place in range(len(values))]
        frames.append(
            pl.DataFrame({**columns, "picked": picked}).with_columns(run_id=pl.lit(number), metric=pl.lit("m"))
        )
    with duckdb.connect() as con:
        con.register("given", pl.concat(frames).to_arrow())
        con.execute("create table sample_picks as select run_id, sample_id, probability, picked from given")
        con.execute("create table sample_signals as select run_id, sample_id, metric, signal from given")
        con.execute("create table scores as select run_id, sample_id, metric, value from given where picked")
        (view,) = (script.sql for script in view_scripts() if script.name == "sampled_means")
        con.execute(view.partition(";\n")[0])
        yield from con.sql("select mean, variance from sampled_means").fetchall()


if __name__ == "__main__":
    main()
