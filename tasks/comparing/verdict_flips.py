"""Verdicts of two runs on the same thing that are not the same: which way they went, and what had changed around them.

A statement flips when its text is the same in both runs and its label or its support is another; a context when its
usefulness is, a rating when it is another number. `flips` shows one sample with all that is otherwise in it; here all
samples are looked at, and by SQL.
"""

from typing import Final

import polars as pl

from evalhouse.tasks.comparing.changes import PairedSamples, find_changed_inputs, find_changed_judges
from evalhouse.tasks.comparing.parts import find_causes, name_changes
from evalhouse.warehouse.rows.run_pairs import RunPair

WAYS: Final = ("worse", "better")


def list_verdict_flips(pair: RunPair) -> pl.DataFrame:
    """One row per verdict that flipped, in the order of the candidate's samples.

    sample_id, step, source (answer, ground_truth, context or rating), base_id and candidate_id (the statement, the
    context's rank or the rating's name), base and candidate (the verdicts), way (worse or better), around: what had
    changed of what the verdict rests on, as a part of a difference is named.
    """
    flips = pair.read_flips()
    samples = PairedSamples(pair.read_samples())
    places = pl.DataFrame({"sample_id": samples.ids}).with_row_index("place")
    flips = flips.join(places, on="sample_id", how="left")
    flips = flips.with_columns(
        pl.when("is_better").then(pl.lit("better")).otherwise(pl.lit("worse")).alias("way"),
        pl.Series("around", _name_around(pair, samples, flips), dtype=pl.String),
    )
    return flips.drop("is_better").sort("place", "step", "candidate_id", maintain_order=True)


def _name_around(pair: RunPair, samples: PairedSamples, flips: pl.DataFrame) -> list[str]:
    """For each flip what had changed in its sample that its step reads."""
    steps = flips["step"].unique().to_list()
    inputs, rubrics = find_changed_inputs(pair, samples), pair.read_rubrics()
    judges = find_changed_judges(pair, samples, pair.read_changed_judges(), steps)
    by_step = {
        step: name_changes(find_causes([step], inputs=inputs, judges=judges, rubrics=rubrics, is_formula_changed=False))
        for step in steps
    }
    return [by_step[step][place] for step, place in flips.select("step", "place").iter_rows()]
