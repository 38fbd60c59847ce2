"""Before and after: agreement with people of two sets of verdicts on the same items, and whether they differ.

Both are of the same items, so their difference is far better known than either: whole samples are drawn with both in
them. Weights and intervals are those of `agreement`.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.agreement import (
    LEAST_EFFECTIVE,
    LEAST_SAMPLES,
    RESAMPLES,
    STEP_LABELS,
    VERDICT,
    Floats,
    Measure,
    cohen_kappa,
    count_effective,
    draw_tables,
    find_tails,
    share_agreeing,
    sum_by_cluster,
    weigh,
)

Direction = Literal["better", "worse", "same", "undecided"]
ALL_STEPS: Final = "all steps"


@dataclass(frozen=True, kw_only=True)
class Change:
    """Agreement with people before and after; differences are after less before.

    κ is None over several steps, whose labels differ. `n_better` and `n_worse` count verdicts that came to be what more
    people say, or fewer; the others of `n_changed` are as far from people as before.
    """

    step: str
    n_verdicts: int
    n_samples: int
    n_changed: int
    n_better: int
    n_worse: int
    accuracy_old: Measure
    accuracy_new: Measure
    accuracy_difference: Measure
    kappa_old: Measure | None
    kappa_new: Measure | None
    kappa_difference: Measure | None
    verdict: Direction
    notes: tuple[str, ...]


def compare_changes(frame: pl.DataFrame, *, seed: int = 0, resamples: int = RESAMPLES) -> list[Change]:
    """Each step's change, and that of all of them where there are several.

    `frame` is that of `agreement.measure_judge` with old_label and new_label in place of judge_label.
    """
    steps = [step for step in STEP_LABELS if step in frame["step"]]
    found = [_compare(frame.filter(pl.col("step") == step), step, seed, resamples) for step in steps]
    if len(steps) > 1:
        found.append(_compare(frame, ALL_STEPS, seed, resamples))
    return found


def list_moves(frame: pl.DataFrame) -> pl.DataFrame:
    """One row per verdict that changed: both labels, what people say, and `moved`, the share of people it came to."""
    return (
        frame.group_by(VERDICT, maintain_order=True)
        .agg(
            pl.col("old_label").first(),
            pl.col("new_label").first(),
            pl.col("label").alias("people"),
            ((pl.col("label") == pl.col("new_label")).mean() - (pl.col("label") == pl.col("old_label")).mean()).alias(
                "moved"
            ),
        )
        .filter(pl.col("old_label") != pl.col("new_label"))
    )


def _compare(frame: pl.DataFrame, step: str, seed: int, resamples: int) -> Change:
    rows, notes = weigh(frame)
    weight = rows["weight"].to_numpy() / rows.select(pl.len().over(VERDICT)).to_series().to_numpy()
    tables, n_samples = sum_by_cluster(_lay_tables(rows, step, weight), rows["sample_id"])
    draws = draw_tables(tables, seed, resamples)
    moves = list_moves(rows)
    accuracy = _Both(tables=tables, draws=draws, measure="accuracy")
    kappa = None if step == ALL_STEPS else _Both(tables=tables, draws=draws, measure="kappa")
    difference = accuracy.difference
    n_effective = count_effective(rows, weight)
    sizes = [f"too few to tell: {n_effective:.0f} by weight of {LEAST_EFFECTIVE}"] * (n_effective < LEAST_EFFECTIVE)
    sizes += [f"too few samples: {n_samples} of {LEAST_SAMPLES}"] * (n_samples < LEAST_SAMPLES)
    return Change(
        step=step,
        n_verdicts=rows.n_unique(VERDICT),
        n_samples=n_samples,
        n_changed=len(moves),
        n_better=len(moves.filter(pl.col("moved") > 0)),
        n_worse=len(moves.filter(pl.col("moved") < 0)),
        accuracy_old=accuracy.old,
        accuracy_new=accuracy.new,
        accuracy_difference=difference,
        kappa_old=kappa.old if kappa else None,
        kappa_new=kappa.new if kappa else None,
        kappa_difference=kappa.difference if kappa else None,
        verdict=_decide(difference, n_changed=len(moves)),
        notes=(*notes, *sizes),
    )


def _lay_tables(rows: pl.DataFrame, step: str, weight: Floats) -> Floats:
    """Rows × 2 × labels × labels: before and after, against people. Over all steps the labels are right and wrong."""
    people = rows["label"].to_list()
    labels = STEP_LABELS.get(step, ("right", "wrong"))
    cells = np.zeros((len(rows), 2, len(labels), len(labels)))
    for side, column in enumerate(("old_label", "new_label")):
        for place, (said, label) in enumerate(zip(rows[column].to_list(), people, strict=True)):
            if step == ALL_STEPS:
                cells[place, side, int(said != label), 0] = weight[place]
            else:
                cells[place, side, labels.index(said), labels.index(label)] = weight[place]
    return cells


@dataclass(frozen=True, kw_only=True)
class _Both:
    """One measure before and after over the same draws."""

    tables: Floats
    draws: Floats
    measure: Literal["accuracy", "kappa"]

    @property
    def old(self) -> Measure:
        return self._bound(self._take(self.tables.sum(axis=0)[None])[:, 0], self._take(self.draws)[:, 0])

    @property
    def new(self) -> Measure:
        return self._bound(self._take(self.tables.sum(axis=0)[None])[:, 1], self._take(self.draws)[:, 1])

    @property
    def difference(self) -> Measure:
        found, drawn = self._take(self.tables.sum(axis=0)[None]), self._take(self.draws)
        return self._bound(found[:, 1] - found[:, 0], drawn[:, 1] - drawn[:, 0])

    def _take(self, tables: Floats) -> Floats:
        return share_agreeing(tables) if self.measure == "accuracy" else cohen_kappa(tables)

    def _bound(self, found: Floats, drawn: Floats) -> Measure:
        if np.isnan(found[0]):
            return Measure(value=None, ci_low=None, ci_high=None)
        known = drawn[~np.isnan(drawn)]
        if len(known) < max(1, len(drawn) / 2) or np.ptp(known) < 1e-12:
            return Measure(value=float(found[0]), ci_low=None, ci_high=None)
        low, high = np.quantile(known, find_tails(len(self.tables)))
        return Measure(value=float(found[0]), ci_low=float(low), ci_high=float(high))


def _decide(difference: Measure, *, n_changed: int) -> Direction:
    if not n_changed:
        return "same"
    if difference.ci_low is None or difference.ci_high is None or difference.ci_low <= 0 <= difference.ci_high:
        return "undecided"
    return "better" if difference.ci_low > 0 else "worse"
