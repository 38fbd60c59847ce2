"""Many runs whose verdicts are drawn, with a judge of known faults, and people's labels of a picked few.

For simulations: people's labels of every verdict are known here, and the warehouse has only the picked ones.
"""

from dataclasses import dataclass
from datetime import datetime

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

AT = datetime(2026, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Design:
    """The parameters of the drawn runs.

    `sensitivity` is how often the judge calls supported what is, `specificity` how often it calls unsupported what is
    not; `truth` is the mean that people would give. With `hard_share` that part of the picks is from a group in which
    errors are frequent, as votes that disagree are, and the others from the rest.
    """

    n_runs: int
    n_samples: int
    n_picked: int
    sensitivity: float
    specificity: float
    truth: float = 0.75
    hard_share: float = 0.0
    answered: float = 1.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Verdicts, one entry each: run, sample, place, the verdicts of people and of the judge, and how it was picked."""

    run: NDArray[np.int64]
    sample: NDArray[np.int64]
    place: NDArray[np.int64]
    reviewed: NDArray[np.bool_]
    judged: NDArray[np.bool_]
    hard: NDArray[np.bool_]
    probability: NDArray[np.float64]
    picked: NDArray[np.bool_]
    labelled: NDArray[np.bool_]


def draw(design: Design) -> Drawn:
    """Draw all runs; samples differ in how much of them is supported, so that verdicts of one are alike."""
    rng = np.random.default_rng(design.seed)
    n_statements = rng.integers(1, 7, design.n_runs * design.n_samples)
    place = np.concatenate([np.arange(1, n + 1) for n in n_statements])
    owner = np.repeat(np.arange(len(n_statements)), n_statements)
    run = owner // design.n_samples
    shares = rng.beta(4 * design.truth, 4 * (1 - design.truth), len(n_statements))
    reviewed = rng.random(len(owner)) < shares[owner]
    right = rng.random(len(owner)) < np.where(reviewed, design.sensitivity, design.specificity)
    judged = reviewed == right
    hard = rng.random(len(owner)) < np.where(right, 0.1, 0.6) * (design.hard_share > 0)
    probability = np.zeros(len(owner))
    picked = np.zeros(len(owner), dtype=bool)
    for number in range(design.n_runs):
        for group, share in ((hard, design.hard_share), (~hard, 1 - design.hard_share)):
            members = np.flatnonzero((run == number) & group)
            n = min(len(members), round(share * design.n_picked))
            picked[rng.choice(members, n, replace=False)] = True
            probability[members] = n / max(len(members), 1)
    labelled = picked & (rng.random(len(owner)) < np.where(hard, 1.0, design.answered))
    return Drawn(
        run=run,
        sample=owner % design.n_samples,
        place=place,
        reviewed=reviewed,
        judged=judged,
        hard=hard,
        probability=probability,
        picked=picked,
        labelled=labelled,
    )


def fill_drawn(con: duckdb.DuckDBPyConnection, drawn: Drawn) -> None:
    """Write the runs, their scores of faithfulness, the picks and the labels."""
    verdicts = pl.DataFrame(
        {
            "run_id": [f"r{number:04}" for number in drawn.run],
            "sample_id": [f"s{number}" for number in drawn.sample],
            "statement_id": [f"A{number}" for number in drawn.place],
            "ordinal": drawn.place,
            "supported": drawn.judged,
            "label": np.where(drawn.reviewed, "supported", "unsupported").tolist(),
            "judge_label": np.where(drawn.judged, "supported", "unsupported").tolist(),
            "stratum": np.where(drawn.hard, "votes", "rest").tolist(),
            "probability": drawn.probability,
            "picked": drawn.picked,
            "labelled": drawn.labelled,
        }
    ).with_columns(
        step=pl.lit("attribute"),
        source=pl.lit("answer"),
        text=pl.format("Statement {} of {} in {}.", "statement_id", "sample_id", "run_id"),
        question_hash=pl.lit("q"),
        export_id=pl.format("e-{}", "run_id"),
    )
    owners = verdicts.select("run_id", "sample_id").unique(maintain_order=True)
    texts = owners.with_columns(input_hash=pl.format("{}-{}", "run_id", "sample_id"), ordinal=pl.lit(1))
    _fill(con, "samples", texts.select("sample_id", "input_hash", question=pl.format("Which, {}?", "input_hash")))
    _fill(con, "run_samples", texts)
    _fill(con, "statements", verdicts.select("run_id", "sample_id", "statement_id", "source", "ordinal", "text"))
    _fill(con, "attributions", verdicts.select("run_id", "sample_id", "statement_id", "supported"))
    shares = verdicts.group_by("run_id", "sample_id", maintain_order=True).agg(value=pl.col("supported").mean())
    _fill(con, "scores", shares.with_columns(metric=pl.lit("faithfulness"), metric_version=pl.lit("1")))
    hashes = con.sql(
        "select run_id, sample_id, statement_id, item_hash from review_items where step = 'attribute'"
    ).pl()
    hashed = verdicts.join(hashes, on=["run_id", "sample_id", "statement_id"])
    key = ["run_id", "sample_id", "statement_id", "step", "item_hash", "question_hash", "judge_label", "export_id"]
    picks = hashed.filter("picked").select(*key, "stratum", "probability", asked=pl.lit(True), picked_at=pl.lit(AT))
    _fill(con, "review_picks", picks)
    at = {"reviewed_at": pl.lit(AT), "imported_at": pl.lit(AT), "reviewer": pl.lit("ann")}
    _fill(con, "reviews", hashed.filter("labelled").select(*key, "label", "stratum", "probability", **at))


def _fill(con: duckdb.DuckDBPyConnection, table: str, rows: pl.DataFrame) -> None:
    """Fill tables as `rows.fill` does, from frames that are large and complete."""
    con.register("drawn_rows", rows)
    con.execute(f"insert into {table} by name select * from drawn_rows")
    con.unregister("drawn_rows")
