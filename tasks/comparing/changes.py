"""The samples of two runs in one order, and in which of them something is other than it was: a text, or the judge."""

from collections.abc import Collection, Sequence

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.bootstrap import Floats
from evalhouse.tasks.comparing.parts import INPUTS, METADATA_INPUTS, Flags, is_changed_everywhere, list_call_steps
from evalhouse.warehouse.rows.run_pairs import RunPair


class PairedSamples:
    """The samples of both runs in one order, and flags over them."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.ids: list[str] = frame["sample_id"].to_list()
        self.places = {sample_id: place for place, sample_id in enumerate(self.ids)}
        self.in_base: Flags = frame["in_base"].to_numpy()
        self.in_candidate: Flags = frame["in_candidate"].to_numpy()

    @property
    def common(self) -> Flags:
        return self.in_base & self.in_candidate

    def flag(self, sample_ids: Sequence[str]) -> Flags:
        """True for these samples."""
        flags = np.zeros(len(self.ids), dtype=bool)
        flags[[self.places[sample_id] for sample_id in sample_ids]] = True
        return flags

    def place_values(self, sample_ids: Sequence[str], values: pl.Series) -> Floats:
        """The values of these samples in their places, NaN elsewhere."""
        placed = np.full(len(self.ids), np.nan)
        placed[[self.places[sample_id] for sample_id in sample_ids]] = values.cast(pl.Float64).fill_null(np.nan)
        return placed


def find_changed_inputs(pair: RunPair, samples: PairedSamples) -> dict[str, Flags]:
    """By input the samples in which it is another."""
    changed = pair.read_changed_inputs(METADATA_INPUTS)
    return {name: samples.flag(changed.filter(pl.col(name))["sample_id"].to_list()) for name in INPUTS}


def find_changed_judges(
    pair: RunPair, samples: PairedSamples, other_judges: pl.DataFrame, steps: Collection[str]
) -> dict[str, Flags]:
    """By step of the calls the samples for which the runs had another judge, prompt, language or setting."""
    flags = {
        str(key[0]): samples.flag(rows["sample_id"].to_list())
        for key, rows in other_judges.partition_by("step", as_dict=True).items()
    }
    everywhere = np.ones(len(samples.ids), dtype=bool)
    for step in list_call_steps(steps):
        if is_changed_everywhere(pair.base, pair.candidate, step):
            flags[step] = everywhere
    return flags
