"""How far judge and people agree, as a document: what `evalhouse review agreement` prints and `evalhouse ui` shows."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import polars as pl

from evalhouse.tasks.comparing.agreement import STEP_LABELS, group_reviewed, measure_judge, measure_people
from evalhouse.tasks.comparing.intervals import Measure

GROUPINGS: Final = ("step", "label", "language", "prompt_version", "judge", "reviewer")
MEASURES: Final = ("accuracy", "balanced_accuracy", "kappa", "alpha")
Document = dict[str, Any]


def describe_agreement(reviewed: pl.DataFrame, groupings: Sequence[str], *, seed: int = 0) -> Document:
    """Return all figures of the agreement, as JSON has it; `reviewed` is that of `read_reviewed`."""
    # A verdict that later runs took from the record is the same verdict: it counts once.
    same = ["sample_id", "step", "item_hash", "judge_label", "judge", "prompt_version", "reviewer"]
    rows = reviewed.unique([*same, "statement_id", "context_rank"], keep="first", maintain_order=True)
    steps = [step for step in STEP_LABELS if step in rows["step"]]
    judged = []
    for by in groupings:
        for group in group_reviewed(rows, by):
            figures = asdict(measure_judge(group.rows, group.step, seed=seed))
            if by == "label":
                # Of verdicts with one label of the judge these are settled beforehand.
                figures |= dict.fromkeys(MEASURES[1:], asdict(Measure(value=None, ci_low=None, ci_high=None)))
            judged.append({"by": by, "step": group.step, "value": group.value, **figures})
    people = [
        {"step": step, **asdict(measure_people(rows.filter(pl.col("step") == step), step, seed=seed))} for step in steps
    ]
    changed = rows.filter(pl.col("first_label").is_not_null() & (pl.col("first_label") != pl.col("label")))
    return {
        "n_labels": len(rows),
        "n_reviewers": rows["reviewer"].n_unique(),
        "n_changed_after_seeing_the_judge": len(changed),
        "seed": seed,
        "judge": judged,
        "people": [agreement for agreement in people if agreement["n_verdicts"]],
    }
