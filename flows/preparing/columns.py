"""What is said of a dataset's columns before anything is asked: which was read as what, what is missing, and which
metrics will therefore score nothing."""

from collections.abc import Mapping, Sequence

from evalhouse.prompts import Prompt
from evalhouse.tasks.datasets.read import StagedDataset
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.metric_files import MetricFile
from evalhouse.warehouse.steps import GRADE_STEP, add_earlier, find_step

_SHOWN_METRICS = 4


def announce_columns(staged: StagedDataset, live_run: LiveRun) -> list[str]:
    """The same of a run that is about to begin."""
    return describe_columns(staged, live_run.settings, live_run.metrics, live_run.rubrics)


def describe_columns(
    staged: StagedDataset, settings: RunSettings, metrics: Sequence[MetricFile] = (), rubrics: Sequence[Prompt] = ()
) -> list[str]:
    """A line about the columns, then one for each thing to look at."""
    is_asked = settings.target is not None or settings.responses is not None
    missing = staged.use.list_missing(is_asked=is_asked)
    needs = {f"{GRADE_STEP}{prompt.name}": prompt.rubric.needs for prompt in rubrics if prompt.rubric is not None}
    lines = [staged.use.describe(is_asked=is_asked)]
    for field in missing:
        idle = [metric.name for metric in metrics if field in _list_inputs(metric, needs)]
        if idle:
            share = f"{len(idle)} of the {len(metrics)} metrics" if len(metrics) > 1 else "the metric"
            names = list_names(idle, _SHOWN_METRICS)
            lines.append(f"warning: no sample has {field}, without which {share} cannot be scored: {names}")
    return [*lines, *staged.use.suggest(is_asked=is_asked)]


def _list_inputs(metric: MetricFile, needs: Mapping[str, Sequence[Sequence[str]]]) -> set[str]:
    """The fields of a sample without which a metric has no value; `needs` are those of rubrics, with alternatives."""
    steps = add_earlier(metric.needs)
    inputs = {field for step in steps for field in find_step(step).inputs or ()}
    return inputs | {need[0] for step in steps for need in needs.get(step, ()) if len(need) == 1}
