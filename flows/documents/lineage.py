"""The rows behind a score: those of the view `score_lineage`, and those that no metric file names as what it rests on.

These are the splitting of the texts, without which there were no statements to label, and the grades of users' own
rubrics, whose metrics have no file. `command_lineage` draws them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.steps import STEPS, add_earlier
from evalhouse.warehouse.store import Warehouse

Row = Mapping[str, Any]


_ABOUT_SCORE = (
    "run_id", "sample_id", "metric", "value", "unscored_reason", "metric_version", "question", "answer", "ground_truth",
    "contexts",
)  # fmt: skip
_SPLITTINGS = tuple(name for name, step in STEPS.items() if step.task == "extract")


def read_lineage(warehouse: Warehouse, run_id: str, sample_id: str, metric: str | None) -> list[dict[str, Any]]:
    """All rows behind one score of a sample, or behind all of them; none when there is no such score.

    Every row has the columns of `score_lineage`.
    """
    sample = {"run_id": run_id, "sample_id": sample_id}
    rows: list[dict[str, Any]] = warehouse.read_rows(read_query("lineage/scores"), {**sample, "metric": metric})
    own = _find_own_rubrics(warehouse, run_id) if any(row["step"] is None for row in rows) else {}
    scores = _group_by_metric(rows)
    steps_of = {
        name: [*_list_splittings(row["step"] for row in of_metric), *own.get(name, ())]
        for name, of_metric in scores.items()
    }
    steps = sorted({step for names in steps_of.values() for step in names})
    query = read_query("lineage/further")
    further: list[dict[str, Any]] = warehouse.read_rows(query, {**sample, "steps": steps}) if steps else []
    return [
        row for name, of_metric in _group_by_metric(rows).items() for row in _join(of_metric, further, steps_of[name])
    ]


def read_metadata(warehouse: Warehouse, run_id: str, sample_id: str) -> Mapping[str, Any]:
    """Whatever else stood in the sample's row of the dataset."""
    rows = warehouse.read_rows(read_query("lineage/metadata"), {"run_id": run_id, "sample_id": sample_id})
    text = rows[0]["metadata"] if rows else None
    metadata: Mapping[str, Any] = orjson.loads(str(text)) if text else {}
    return metadata


def list_steps(rows: Iterable[Row]) -> list[str]:
    """The steps of some rows, in the order in which they are taken."""
    names = {row["step"] for row in rows if row["step"] is not None}
    order = {step: place for place, step in enumerate(STEPS)}
    return sorted(names, key=lambda step: (order.get(step, len(order)), step))


def is_splitting(step: str) -> bool:
    """Whether a step only splits a text, which no score rests on by itself."""
    return step in _SPLITTINGS


def _group_by_metric(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["metric"], []).append(row)
    return groups


def _list_splittings(steps: Iterable[str | None]) -> list[str]:
    earlier = add_earlier(step for step in steps if step is not None)
    return [step for step in _SPLITTINGS if step in earlier]


def _join(rows: Sequence[dict[str, Any]], further: Iterable[Row], steps: Sequence[str]) -> list[dict[str, Any]]:
    """A score's rows with those of further steps, which stand in for the one row of a score without any."""
    about_score = {**dict.fromkeys(rows[0]), **{name: rows[0][name] for name in _ABOUT_SCORE}}
    columns = rows[0].keys()
    added = [
        about_score | {name: value for name, value in row.items() if name in columns}
        for row in further
        if row["step"] in steps
    ]
    has_own = any(not is_splitting(step) for step in steps)
    return [*([] if has_own and added else rows), *added]


def _find_own_rubrics(warehouse: Warehouse, run_id: str) -> dict[str, list[str]]:
    """The grading step of each score that a rubric gave whose prompt is on record."""
    from yaml import safe_load  # noqa: PLC0415  # only where there are such rubrics

    from evalhouse.prompts.rubric import RubricContent, make_rubric  # noqa: PLC0415

    steps: dict[str, list[str]] = {}
    for row in warehouse.read_rows(read_query("lineage/rubrics"), {"run_id": run_id}):
        name, section = str(row["prompt"]), safe_load(str(row["template"]))["rubric"]
        for metric in make_rubric(name, RubricContent.model_validate(section)).metrics:
            steps[metric] = [f"grade_{name}"]
    return steps
