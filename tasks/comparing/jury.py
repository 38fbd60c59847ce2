"""The agreement of a jury's judges with each other, by step, and the judges that are alone.

Each verdict counts as a yes or a no: a label that says yes, or support by any context. Intervals come from drawing
whole samples, as the verdicts of one sample are not independent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from evalhouse.tasks.comparing.agreement import count_coincidences, krippendorff_alpha, share_agreeing, weigh_tables
from evalhouse.tasks.comparing.intervals import Floats, Groups, Measure, find_tails
from evalhouse.tasks.judge.protocol import VOTED_TASKS, find_judge, list_jurors
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.steps import collect_labels
from evalhouse.warehouse.store import Warehouse

MIN_ALONE: Final = 10
"""Fewer verdicts on which a single judge was against all others show nothing about any of them."""


@dataclass(frozen=True, kw_only=True)
class Juror:
    """One judge of a jury in a step: `n_alone` of its `n` verdicts are against all other judges.

    `share_alone` is its share of all verdicts on which one judge was alone. `is_outlier` if that is significantly
    more than an equal share: of juries of equal judges at most 5 % have such a one in a step.
    """

    judge: str
    n: int
    n_alone: int
    share_alone: Measure
    is_outlier: bool


@dataclass(frozen=True, kw_only=True)
class JuryStep:
    """The verdicts of a jury in one step: on `n_items` items, `n_split` of them not unanimous, `n_ties` decided by a
    tie. `agreeing` is how often two judges give the same verdict, `alpha` Krippendorff's α."""

    step: str
    n_items: int
    n_split: int
    n_ties: int
    agreeing: Measure
    alpha: Measure
    jurors: tuple[Juror, ...]


def measure_jury(warehouse: Warehouse, run: RunRow, *, seed: int = 0) -> list[JuryStep]:
    """Measure a run's jury in each step that it voted in; empty for a run without one."""
    juries = {step: list_jurors(find_judge(run.judge, step)) for step in VOTED_TASKS}
    if all(len(judges) == 1 for judges in juries.values()):
        return []
    no = [[*labels][-1] for step in VOTED_TASKS for labels in collect_labels(step).values()]
    frame = warehouse.fetch("judge/jury", {"no": ["none", *no]}, run_id=run.run_id)
    measured = []
    for (step,), rows in frame.partition_by("step", as_dict=True, maintain_order=True).items():
        judges = juries[str(step)]
        votes = rows.pivot("vote", index=["sample_id", "item_id"], values="says_yes", maintain_order=True)
        columns = [str(number) for number in range(1, len(judges) + 1)]
        cast = np.column_stack(
            [votes[name].cast(float).to_numpy() if name in votes.columns else np.full(len(votes), np.nan)
             for name in columns]
        )  # fmt: skip
        measured.append(measure_step(str(step), judges, votes["sample_id"].to_list(), cast, seed))
    return measured


def measure_step(step: str, judges: Sequence[str], samples: Sequence[str], cast: Floats, seed: int) -> JuryStep:
    """Measure one step; `cast` is items × judges, 1 for a yes, 0 for a no, NaN for a vote that failed."""
    yes, no = np.nansum(cast == 1, axis=1), np.nansum(cast == 0, axis=1)
    # A judge is alone where all others are there, at least two of them, and say the opposite.
    n = len(judges)
    alone_side = np.where((yes == 1) & (no == n - 1), 1.0, np.where((no == 1) & (yes == n - 1), 0.0, np.nan))
    alone = (cast == alone_side[:, None]) if n > 2 else np.zeros(cast.shape, dtype=bool)
    names, place = np.unique(np.asarray(samples, dtype=object).astype(str), return_inverse=True)

    def sum_by_sample(values: Floats) -> Floats:
        sums = np.zeros((len(names), *values.shape[1:]))
        np.add.at(sums, place, values)
        return sums

    groups = Groups(names.tolist(), seed=seed)
    cells = sum_by_sample(count_coincidences(np.column_stack([yes, no]).astype(np.float64)))
    by_sample = sum_by_sample(alone.astype(np.float64))

    def share_alone(column: int, weights: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(weights @ by_sample[:, column] / (weights @ by_sample.sum(axis=1)), dtype=np.float64)

    jurors = []
    for column, judge in enumerate(judges):
        share = groups.measure(partial(share_alone, column))
        is_outlier = False
        if alone.sum() >= MIN_ALONE and groups.n > 1:
            # The lower end of an interval that is wider than 95 %, as there are n judges to be named (Bonferroni).
            is_outlier = bool(np.nanquantile(share.draws, find_tails(groups.n)[0] / n) > 1 / n)
        jurors.append(
            Juror(
                judge=judge,
                n=int((~np.isnan(cast[:, column])).sum()),
                n_alone=int(alone[:, column].sum()),
                share_alone=share.measure,
                is_outlier=is_outlier,
            )
        )
    return JuryStep(
        step=step,
        n_items=len(cast),
        n_split=int(((yes > 0) & (no > 0)).sum()),
        n_ties=int(((yes == no) & (yes > 0)).sum()),
        agreeing=groups.measure(weigh_tables(cells, share_agreeing), is_share=True).measure,
        alpha=groups.measure(weigh_tables(cells, krippendorff_alpha)).measure,
        jurors=tuple(jurors),
    )


def list_outsiders(steps: Sequence[JuryStep]) -> list[str]:
    """Name the judges that are alone too often, a sentence each without a full stop."""
    found: dict[str, list[str]] = {}
    for step in steps:
        n = sum(juror.n_alone for juror in step.jurors)
        for juror in step.jurors:
            if juror.is_outlier:
                found.setdefault(juror.judge, []).append(f"{juror.n_alone:,} of {n:,} in {step.step}")
    return [
        f"{judge} is alone too often in the jury: of the verdicts that one judge gave against all others it gave "
        f"{', '.join(where)}; read some of them, and leave it out if it is wrong there"
        for judge, where in found.items()
    ]
