"""The plan of a run: its metrics, including those by the user's rubrics, its steps, and missing columns of its dataset.

The built-in rubrics have metric files. A score's name must mean one thing wherever it is read, so no rubric may give
one that is taken already.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from evalhouse.prompts import Prompt, Prompts, load_prompts
from evalhouse.tasks.datasets.read import StagedDataset
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.judge.names import find_judge, is_fixed
from evalhouse.tasks.settings.run import RunSettings, is_traces
from evalhouse.warehouse.messages import list_names, name_setting
from evalhouse.warehouse.metric_files import (
    MetricFile,
    MetricFileError,
    Plan,
    load_metrics,
    parse_metric,
    plan_run,
    resolve_parameters,
    write_rubric_metric,
)
from evalhouse.warehouse.steps import (
    GRADE_STEP,
    PLANS,
    SEPARATE,
    add_earlier,
    arrange_steps,
    find_step,
    list_prompts,
    list_replaced_prompts,
)

_SHOWN_METRICS = 4


def make_plan(settings: RunSettings) -> Plan:
    """Return the metrics and steps of the settings; raises UnknownMetric or MetricFileError.

    A run over traces that names no metrics has the default ones that need no ground truth, because real questions have
    none, and answer_relevancy if its judge can be asked for questions.
    """
    metrics = load_metrics(Path(settings.metric_files) if settings.metric_files else None)
    if settings.prompts is not None:
        metrics |= make_rubric_metrics(load_prompts(settings.language, Path(settings.prompts)).values(), metrics)
    plan = plan_run(settings.metrics, metrics, embeddings=settings.embeddings)
    if not settings.metrics and (settings.format is not None or is_traces(settings.dataset)):
        inputs = {metric.name: _list_inputs(metric, {}) for metric in plan.metrics}
        names = [name for name, needed in inputs.items() if needed and "ground_truth" not in needed]
        if not is_fixed(find_judge(settings.judge, "relevancy")):
            names.append("answer_relevancy")
        plan = plan_run(names, metrics, embeddings=settings.embeddings)
    chosen = {metric.name: metric for metric in plan.metrics}
    for name, parameters in settings.metric_settings.items():
        if name in chosen:
            resolve_parameters(chosen[name], parameters)
    return plan


def pick_rubrics(plan: Plan, prompts: Prompts, way: str) -> tuple[Prompt, ...]:
    """The prompts that the plan's samples are graded by; raises FatalJudgeError when they cannot be."""
    wanted = sorted(step.removeprefix(GRADE_STEP) for step in plan.steps if step.startswith(GRADE_STEP))
    for name in wanted:
        rubric = prompts[name].rubric if name in prompts else None
        if rubric is None:
            raise FatalJudgeError(
                f"there is no rubric {name!r} in this language; add {name}.yaml to a folder of prompts "
                f"({name_setting('prompts')})"
            )
        if rubric.is_of_pairs:
            raise FatalJudgeError(f"the rubric {name!r} prefers one of two answers; `evalhouse prefer` asks by it")
    for name in list_prompts(plan.steps | arrange_steps(plan.steps, way)):
        if name in prompts:
            continue
        raise FatalJudgeError(f"there is no prompt {name!r} in this language; add prompts/<language>/{name}.yaml")
    return tuple(prompts[name] for name in wanted)


def explain_replaced(settings: RunSettings, steps: frozenset[str]) -> str | None:
    """Return a note about prompt files of the user that a plan does not use, while it asks with built-in ones."""
    if settings.prompts is None or settings.plan == SEPARATE:
        return None
    folder, plan = Path(settings.prompts), PLANS[settings.plan]
    own = {path.stem for place in (folder, folder / settings.language) for path in place.glob("*.yaml")}
    left_out = [name for name in list_replaced_prompts(steps, settings.plan) if name in own]
    asked = [name for name in (plan.prompt, plan.extract_prompt) if name is not None and name not in own]
    if not left_out or not asked:
        return None
    written = [", ".join(f"{name}.yaml" for name in sorted(names)) for names in (left_out, asked)]
    return (
        f"plan {settings.plan!r}: it does not ask with your own {written[0]}; write your words into {written[1]} there"
    )


def try_own_metrics(plan: Plan, settings: RunSettings) -> None:
    """Try the metrics that are not built in, see `try_metrics`."""
    if plan.own_metrics:
        from evalhouse.warehouse.sandbox.query_process import try_metrics  # noqa: PLC0415  # few runs have one

        try_metrics(plan.own_metrics, settings.metric_settings)


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
        for metric, criterion in prompt.rubric.metrics.items()
        if metric not in metrics
    }


def find_taken_scores(prompts: Iterable[Prompt], metrics: Mapping[str, MetricFile]) -> Iterator[str]:
    """The scores of rubrics whose name a metric file, or another rubric, has already, one sentence each."""
    # A metric file that reads grades is that of a rubric's score, which is then the same score.
    givers = {
        name: f"the metric file {name}.sql"
        for name, file in metrics.items()
        if not any(step.startswith(GRADE_STEP) for step in file.needs)
    }
    for prompt in prompts:
        for metric, criterion in prompt.rubric.metrics.items() if prompt.rubric else ():
            if metric in givers:
                yield (
                    f"rubric {prompt.name!r}: its score {metric!r} is that of {givers[metric]} too; "
                    f"give {criterion} another name under `metric`"
                )
            givers.setdefault(metric, f"the rubric {prompt.name!r}")


def describe_columns(
    staged: StagedDataset, settings: RunSettings, metrics: Sequence[MetricFile] = (), rubrics: Sequence[Prompt] = ()
) -> list[str]:
    """Return a line about the columns, then one for each thing to look at."""
    is_asked = settings.target is not None or settings.responses is not None
    missing = staged.use.list_missing(is_asked=is_asked)
    needs = {f"{GRADE_STEP}{prompt.name}": prompt.rubric.needs for prompt in rubrics if prompt.rubric is not None}
    lines = [staged.use.describe(is_asked=is_asked), *staged.notes]
    for field in missing:
        idle = [metric.name for metric in metrics if field in _list_inputs(metric, needs)]
        if idle:
            share = f"{len(idle)} of the {len(metrics)} metrics" if len(metrics) > 1 else "the metric"
            names = list_names(idle, _SHOWN_METRICS)
            lines.append(f"warning: no sample has {field}, without which {share} cannot be scored: {names}")
    return [*lines, *staged.use.suggest(is_asked=is_asked)]


def _list_inputs(metric: MetricFile, needs: Mapping[str, Sequence[Sequence[str]]]) -> set[str]:
    """Return the fields that a metric requires of a sample; `needs` has the fields of rubrics, with alternatives."""
    steps = add_earlier(metric.needs)
    inputs = {field for step in steps for field in find_step(step).inputs or ()}
    return inputs | {need[0] for step in steps for need in needs.get(step, ()) if len(need) == 1}
