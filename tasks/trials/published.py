"""What others published of judges on benchmarks of support, and whether a set is built as theirs is.

The rows of LLM-AggreFact are read in its own columns: `dataset` (the subset), `doc`, `claim` and `label`, 1 for
supported. Each subset is a set of support with the document as the one context. Figures of others are only comparable
on all test rows of a subset, so that a part of it has none.
"""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import numpy as np

from evalhouse.tasks.comparing.bootstrap import Estimate
from evalhouse.tasks.trials.label_agreement import Line
from evalhouse.tasks.trials.labelled_sets import AGGREFACT, Part

_WHO: Final = "published: "


@cache
def _read_table() -> Mapping[str, Any]:
    table = tomllib.loads(files("evalhouse.tasks.trials").joinpath("published.toml").read_text(encoding="utf-8"))
    return {name: row for name, row in table.items() if name == AGGREFACT}


def list_published(part: Part) -> list[Line]:
    """What others published on exactly these rows, by judge; nothing where they are not the same."""
    if part.benchmark is None or not _is_whole(part):
        return []
    return [
        Line(
            who=f"{_WHO}{judge}",
            n=len(part.rows),
            n_missing=0,
            figures={"balanced_accuracy": _state(figures[part.name])},
        )
        for judge, figures in _read_table()[part.benchmark]["judges"].items()
    ]


def explain_published(parts: Sequence[Part]) -> list[str]:
    """Where the published figures beside these parts are from, and why there are none beside others."""
    of_benchmark = [part for part in parts if part.benchmark is not None]
    whole = [part for part in of_benchmark if _is_whole(part)]
    said = [
        f"Published figures: {_read_table()[str(name)]['source']}."
        for name in dict.fromkeys(p.benchmark for p in whole)
    ]
    for part in of_benchmark:
        if part not in whole:
            known = _read_table()[str(part.benchmark)]["rows"].get(part.name)
            of = f"all {known:,} test rows of it" if known else "no subset of this name"
            said.append(f"{part.name}: {len(part.rows):,} rows; published figures are for {of}, and are left out.")
    return said


def _is_whole(part: Part) -> bool:
    record = _read_table()[str(part.benchmark)]
    n_supported = sum(row.data["label"] == "supported" for row in part.rows)
    same_labels = record["supported"].get(part.name, n_supported) == n_supported
    return bool(record["rows"].get(part.name) == len(part.rows) and same_labels and not part.n_left_out)


def _state(percent: float) -> Estimate:
    """A figure as it was published, without the draws that an interval would take."""
    return Estimate(value=round(percent / 100, 4), draws=np.array([]), n_groups=0)
