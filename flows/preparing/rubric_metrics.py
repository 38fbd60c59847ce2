"""The scores that a user's own rubrics give, as metrics; the built-in rubrics have metric files.

A score's name must mean one thing wherever it is read, so no rubric may give one that is taken already.
`live_run` takes the metrics from here, and `prompts check` the problems.
"""

from collections.abc import Iterable, Iterator, Mapping

from evalhouse.prompts import Prompt
from evalhouse.warehouse.metric_files import MetricFile, MetricFileError, parse_metric, write_rubric_metric
from evalhouse.warehouse.steps import GRADE_STEP


def make_rubric_metrics(prompts: Iterable[Prompt], metrics: Mapping[str, MetricFile]) -> dict[str, MetricFile]:
    """The metrics of all rubrics that `metrics` has no file for; raises MetricFileError with all names taken."""
    prompts = list(prompts)
    problems = list(find_taken_scores(prompts, metrics))
    if problems:
        raise MetricFileError("; ".join(problems))
    return {
        metric: parse_metric(
            write_rubric_metric(
                metric,
                rubric=prompt.name,
                criterion=criterion,
                better=prompt.rubric.find_better(criterion),
                stand_in=prompt.rubric.stand_in,
                minimum=prompt.rubric.find_minimum(criterion),
            ),
            name=metric,
            place=f"the metric of the rubric {prompt.name}",
        )
        for prompt in prompts
        if prompt.rubric
        for metric, criterion in _list_scores(prompt)
        if metric not in metrics
    }


def find_taken_scores(prompts: Iterable[Prompt], metrics: Mapping[str, MetricFile]) -> Iterator[str]:
    """The scores of rubrics whose name a metric file, or another rubric, has already, one sentence each."""
    givers = {name: f"the metric file {name}.sql" for name, file in metrics.items() if not _reads_grades(file)}
    for prompt in prompts:
        for metric, criterion in _list_scores(prompt):
            if metric in givers:
                yield (
                    f"rubric {prompt.name!r}: its score {metric!r} is that of {givers[metric]} too; "
                    f"give {criterion} another name under `metric`"
                )
            givers.setdefault(metric, f"the rubric {prompt.name!r}")


def _list_scores(prompt: Prompt) -> list[tuple[str, str]]:
    return list(prompt.rubric.metrics.items()) if prompt.rubric else []


def _reads_grades(file: MetricFile) -> bool:
    """Whether a metric file is that of a rubric's score, which is then no other."""
    return any(step.startswith(GRADE_STEP) for step in file.needs)
