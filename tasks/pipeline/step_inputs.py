"""What can move a step's verdicts: the columns of a sample that it reads, of a rubric those that its prompts take."""

from collections.abc import Collection, Mapping
from typing import Final

from evalhouse.prompts import list_rubric_columns, list_rubric_metrics
from evalhouse.warehouse.steps import find_step

Templates = Mapping[str, Collection[str]]
"""By step of a rubric the texts of the prompts that it asked with, as they stand on record."""
NO_TEMPLATES: Final[Templates] = {}


def list_step_inputs(name: str, templates: Templates = NO_TEMPLATES) -> Collection[str] | None:
    """The columns that one step reads; None where it may be any, as for a rubric of which no prompt is known."""
    step = find_step(name)
    if step.prompt is None or step.task != "grade":
        return step.inputs
    columns = list_rubric_columns(step.prompt, templates.get(name, ()))
    return None if columns is None else columns.union(step.inputs or ())


def find_graded(rubrics: Templates) -> dict[str, frozenset[str]]:
    """The step that each score of a rubric rests on; users' own have no metric file that says so."""
    return {
        metric: frozenset({step})
        for step, templates in rubrics.items()
        for template in templates
        for metric in list_rubric_metrics(template)
    }
