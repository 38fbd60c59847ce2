"""Make a live run from settings: its plan, judges, prompts, limits and dataset, checked before anything is asked.

The plan is the metrics, including those by the user's rubrics, and their steps. The built-in rubrics have metric files.
A score's name must mean one thing wherever it is read, so no rubric may give one that is taken already.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evalhouse.flows.preparing.request import RunRequest, make_row
from evalhouse.prompts import Prompt, Prompts, Rubric, load_prompts
from evalhouse.tasks.asking.usage import find_price, load_prices
from evalhouse.tasks.datasets.read import StagedDataset, settle_language, stage_of
from evalhouse.tasks.judge.protocol import (
    FORM_JOIN,
    LEXICAL,
    LOCAL,
    FatalJudgeError,
    Judge,
    choose_timeout,
    find_judge,
    find_window,
    is_fixed,
)
from evalhouse.tasks.models.make import Judges, check_embeddings_name, make_judges
from evalhouse.tasks.settings.run import RunSettings, is_traces
from evalhouse.tasks.settings.suite import TraceWindow
from evalhouse.warehouse.errors import WarehouseError
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
from evalhouse.warehouse.mover import Mover
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.rows.runs import RunKind, RunRow, find_run, list_night_runs, now_utc, refuse_forgotten
from evalhouse.warehouse.rows.samples import count_samples, fetch_samples_between
from evalhouse.warehouse.steps import (
    GRADE_STEP,
    LEXICAL_PROMPTS,
    PLANS,
    SEPARATE,
    add_earlier,
    arrange_steps,
    find_asking_steps,
    find_step,
    find_task,
    list_calls,
    list_prompts,
    list_replaced_prompts,
    list_tasks,
)
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.asking.asker import Asker
    from evalhouse.tasks.asking.embeddings import Embedder
    from evalhouse.tasks.asking.limits import EndpointLimit
    from evalhouse.tasks.asking.record import Record
    from evalhouse.tasks.pipeline.live_run import LiveRun
    from evalhouse.tasks.targets.collection import Collection, KnownResponses, ParentResponses, Pose
    from evalhouse.tasks.targets.protocol import Target

_SHOWN_METRICS = 4
_SHARD_BYTES = 8_000_000
_IGNORED = "The dataset brings answers or contexts for {} of its {} samples; the target is asked, and they are ignored."
_NOT_ANNOUNCED = "No changed documents were announced to this run, so every question is asked."
_ALONE = (
    "Later turns of conversations are asked alone (rows: {:,}): the target gets neither the turns before nor an id. "
    'history = "own" in [target] asks them in order, where its body takes {{{{conversation}}}} or '
    '{{{{conversation_id}}}}; history = "dataset" says that it is right.'
)
_NO_PLAN = Plan(metrics=(), steps=frozenset())
_NOTHING_JOINED = "the chosen metrics leave nothing to ask in one request, so that each step asks by itself"


def make_plan(settings: RunSettings) -> Plan:
    """Return the metrics and steps of the settings; raises UnknownMetric or MetricFileError.

    A run over traces that names no metrics has the default ones that need no ground truth, because real questions have
    none, and answer_relevancy if its judge can be asked for questions.
    """
    metrics = load_metrics(Path(settings.metric_files) if settings.metric_files else None)
    if settings.prompts is not None:
        language = settle_language(settings)[0].language
        metrics |= make_rubric_metrics(list_rubrics(load_prompts(language, Path(settings.prompts))), metrics)
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
                f"rubric {name!r} is missing in this language; add {name}.yaml to a folder of prompts "
                f"({name_setting('prompts')})"
            )
        if rubric.is_of_pairs:
            raise FatalJudgeError(f"the rubric {name!r} prefers one of two answers; `evalhouse prefer` asks by it")
    for name in list_prompts(plan.steps | arrange_steps(plan.steps, way)):
        if name in prompts:
            continue
        raise FatalJudgeError(f"prompt {name!r} is missing in this language; add prompts/<language>/{name}.yaml")
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


def list_rubrics(prompts: Mapping[str, Prompt]) -> list[Rubric]:
    return [prompt.rubric for prompt in prompts.values() if prompt.rubric is not None]


def make_rubric_metrics(rubrics: Sequence[Rubric], metrics: Mapping[str, MetricFile]) -> dict[str, MetricFile]:
    """The metrics of all rubrics that `metrics` has no file for; raises MetricFileError with all names taken."""
    problems = list(find_taken_scores(rubrics, metrics))
    if problems:
        raise MetricFileError("; ".join(problems))
    return {
        metric: parse_metric(
            write_rubric_metric(
                metric,
                rubric=rubric.name,
                criterion=criterion,
                better=rubric.find_better(criterion),
                minimum=rubric.find_minimum(criterion),
            ),
            name=metric,
            place=f"the metric of the rubric {rubric.name}",
        )
        for rubric in rubrics
        for metric, criterion in rubric.metrics.items()
        if metric not in metrics
    }


def find_taken_scores(rubrics: Iterable[Rubric], metrics: Mapping[str, MetricFile]) -> Iterator[str]:
    """The scores of rubrics whose name a metric file, or another rubric, has already, one sentence each."""
    # A metric file that reads grades is that of a rubric's score, which is then the same score.
    givers = {
        name: f"the metric file {name}.sql"
        for name, file in metrics.items()
        if not any(step.startswith(GRADE_STEP) for step in file.needs)
    }
    for rubric in rubrics:
        for metric, criterion in rubric.metrics.items():
            if metric in givers:
                yield (
                    f"rubric {rubric.name!r}: its score {metric!r} is that of {givers[metric]} too; "
                    f"give {criterion} another name under `metric`"
                )
            givers.setdefault(metric, f"the rubric {rubric.name!r}")


def describe_columns(
    staged: StagedDataset, settings: RunSettings, metrics: Sequence[MetricFile] = (), rubrics: Sequence[Prompt] = ()
) -> list[str]:
    """Return a line about the columns, then one for each thing to look at."""
    is_asked = settings.is_asked
    missing = staged.use.list_missing(is_asked=is_asked)
    needs = {f"{GRADE_STEP}{prompt.name}": prompt.rubric.needs for prompt in rubrics if prompt.rubric is not None}
    lines = [staged.use.describe(is_asked=is_asked), *staged.notes]
    for field in missing:
        idle = [metric.name for metric in metrics if field in _list_inputs(metric, needs)]
        if idle:
            share = f"{len(idle)} of the {len(metrics)} metrics" if len(metrics) > 1 else "the metric"
            names = list_names(idle, _SHOWN_METRICS)
            lines.append(f"warning: no sample has {field}, without which {share} cannot be scored: {names}")
    by_calls = [metric.name for metric in metrics if "tool_calls" in metric.needs]
    if settings.has_other_answers and by_calls and settings.metrics:
        source = "a target returns" if is_asked else "the answers of a variant in another column have"
        lines.append(
            f"warning: {source} no tool calls, without which {by_calls[0]} cannot be scored: record the bot's "
            "traces (evalhouse guide traces), or write its calls into a dataset with its answers"
        )
    return [*lines, *staged.use.suggest(is_asked=is_asked)]


def _list_inputs(metric: MetricFile, needs: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the fields that a metric requires of a sample; `needs` has the fields of rubrics by step."""
    steps = add_earlier(metric.needs)
    inputs = {field for step in steps for field in find_step(step).inputs or ()}
    return inputs | {need for step in steps for need in needs.get(step, ())}


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Settings, plan and judges of a run."""

    settings: RunSettings
    plan: Plan
    judges: Judges

    def make_live_run(self, run_id: str, warehouse: Warehouse, *, since: datetime | None = None) -> "LiveRun":
        """The live run of a run; its deadline counts from now, or from `since`."""
        return make_live_run(run_id, self.settings, self.plan, self.judges, warehouse, since=since)


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that can begin: its row, its tools, and its sources. Nothing of it is stored yet.

    `staged` is None for a run that is resumed after its dataset was loaded. Unless it `is_file`, a program has made the
    dataset and knows its columns: only problems with them are reported.
    """

    run: RunRow
    tools: Tools
    staged: StagedDataset | None
    target: "Target | None" = None
    parent: RunRow | None = None
    resumed: bool = False
    is_file: bool = True
    notices: tuple[str, ...] = ()

    def make_live_run(self, warehouse: Warehouse) -> "LiveRun":
        """The live run."""
        judges = self.tools.judges
        notices: list[str] = []
        if judges.have_servers:
            from evalhouse.flows.preparing.batches import ask_servers  # noqa: PLC0415  # few judges have one

            notices = ask_servers(judges.made, self.run.run_id, warehouse)
        is_own = self.tools.settings.deadline == self.run.config.get("deadline")
        live_run = self.tools.make_live_run(
            self.run.run_id, warehouse, since=self.run.started_at if self.resumed and is_own else None
        )
        live_run.resumed, live_run.staged = self.resumed, self.staged
        live_run.progress.n_samples = self.run.n_samples or 0
        live_run.notices += [*self.notices, *notices]
        if self.resumed and "measure" in list_tasks(self.tools.plan.steps):
            from evalhouse.tasks.measure import describe_deaths  # noqa: PLC0415  # few runs measure anything

            live_run.notices += describe_deaths(warehouse, self.run.run_id)
        if self.staged is not None:
            columns, *warnings = describe_columns(self.staged, live_run.settings, live_run.metrics, live_run.rubrics)
            live_run.notices += [columns, *warnings] if self.is_file else warnings
        return live_run


def prepare_run(request: RunRequest, warehouse: Warehouse) -> PreparedRun:
    """Prepare plan, judge, target and dataset of a new run; raises all errors known before asking."""
    settings = request.settings
    if is_traces(settings.dataset):  # with the end of its time window, so that a resumed run finds the same traces
        window = settings.traces or TraceWindow()
        if window.until is None:
            window = window.model_copy(update={"until": now_utc().isoformat()})
        settings = settings.model_copy(update={"traces": window})
    source = settings.dataset if request.source is None else request.source
    settings, language = settle_language(settings, source)
    settings, target, parent = find_responses(settings, warehouse)
    refuse_budget_of_answers(settings)
    tools = make_tools(settings, request.kind)
    try_own_metrics(tools.plan, settings)
    staged = stage_of(settings, source)
    alone = check_history(settings, staged, target)
    # The samples of a few shards are in memory at once, so a shard of long ones has fewer.
    fitting = max(1, _SHARD_BYTES // max(1, staged.staging.bytes_of_row))
    shard_size = min(tools.settings.shard_size, fitting)
    fitted = tools.settings.model_copy(update={"shard_size": shard_size, "failed_traces": staged.n_failed or None})
    tools = replace(tools, settings=fitted)
    run = make_row(replace(request, settings=tools.settings), tools.plan, staged)
    is_file = isinstance(source, str) and source == settings.dataset
    notices = [*language, *alone]
    if fitted.plan != settings.plan:
        notices.append(f"plan {settings.plan!r}: {_NOTHING_JOINED}")
    if note := explain_replaced(tools.settings, tools.plan.steps):
        notices.append(note)
    return PreparedRun(
        run=run, tools=tools, staged=staged, target=target, parent=parent, is_file=is_file, notices=tuple(notices)
    )


def check_history(settings: RunSettings, staged: StagedDataset, target: "Target | None" = None) -> list[str]:
    """Refuse a target that would be asked in the middle of conversations that it does not receive. Return a notice of
    turns that are asked alone, as the target has no conversations."""
    if settings.responses is not None or settings.target is None:
        return []
    n_alone = staged.n_later + staged.n_following
    if not (staged.n_continued or n_alone or staged.n_nameless):
        return []
    from evalhouse.tasks.targets.collection import check_takes_conversation, make_target  # noqa: PLC0415  # few runs ask

    try:
        asked = target or make_target(settings.target)
        check_takes_conversation(
            asked,
            settings.target,
            staged.n_continued,
            n_alone,
            n_unheard=staged.n_unheard,
            n_nameless=staged.n_nameless,
        )
    except BaseException:  # Ctrl-C too: the staged file is deleted
        staged.staging.discard()
        raise
    is_settled = "history" in settings.target.model_fields_set or asked.takes_conversation or asked.names_conversation
    return [] if is_settled or not n_alone else [_ALONE.format(n_alone)]


def prepare_again(run: RunRow, settings: RunSettings, warehouse: Warehouse) -> PreparedRun:
    """Prepare a run that is resumed; a dataset that was not loaded yet must not have changed since."""
    settings, target, parent = find_responses(settings, warehouse)
    tools = make_tools(settings, run.kind)
    try_own_metrics(tools.plan, settings)
    staged = None if count_samples(warehouse, run.run_id) else stage_of(settings)
    if staged is not None and staged.content_hash != run.dataset_hash:
        staged.staging.discard()
        raise WarehouseError(
            f"run {run.run_id} stopped before its dataset was loaded, and {settings.dataset} has changed since; put it "
            "back as it was, so that no stored answer is asked for again, or start a new run"
        )
    return PreparedRun(run=run, tools=tools, staged=staged, target=target, parent=parent, resumed=True)


def refuse_budget_of_answers(settings: RunSettings) -> None:
    """Raise FatalJudgeError for a budget of samples where answers are not in the dataset."""
    if settings.sample_budget is not None and settings.is_asked:
        raise FatalJudgeError(
            f"a budget of samples ({name_setting('sample_budget')}) picks them by the answers in the dataset, and "
            "this run takes its "
            f"answers from a target or another run; use {name_setting('limit')}, or write the answers into a dataset "
            "first"
        )


def find_responses(settings: RunSettings, warehouse: Warehouse) -> tuple[RunSettings, "Target | None", RunRow | None]:
    """Return the settings, and the target or the run that responses come from besides the dataset."""
    if settings.responses is not None:
        parent = find_run(warehouse, settings.responses)
        refuse_forgotten(warehouse, parent, "its responses cannot be judged again: ask the target")
        own = settings.suite_name or f"dataset {settings.dataset}"
        bot = parent.config.get("answers_of") or parent.suite_name or f"dataset {parent.dataset}"
        update = {"responses": parent.run_id, "answers_of": None if bot == own else bot}
        return settings.model_copy(update=update), None, parent
    if settings.target is None:
        return settings, None, None
    from evalhouse.tasks.targets.collection import make_target  # noqa: PLC0415  # most runs ask none

    return settings, make_target(settings.target), None


def make_tools(settings: RunSettings, kind: RunKind) -> Tools:
    """Plan and judges, checked before anything is asked; a run that only collects has nothing planned.

    Where the plan of the settings joins none of the steps it is not what the run is made with.
    """
    settings, _ = settle_language(settings)
    plan = _NO_PLAN if kind == "collection" else make_plan(settings)
    if arrange_steps(plan.steps, settings.plan) == plan.steps:
        settings = settings.model_copy(update={"plan": SEPARATE})
    return Tools(settings=settings, plan=plan, judges=make_judges(settings, plan))


# Judges that read no prompt, by the kind in their names, and where their rules are.
_RULES: Final[Mapping[str, str]] = {LEXICAL: "tasks/lexical/judge.py", LOCAL: "tasks/asking/pairs.py"}
_NO_WORDS = Prompt(
    name="", version="", language="", description="", variables={}, labels={}, reply_schema={}, prompt_hash="",
    template="", system="", examples=(),
)  # fmt: skip


def make_prompts(settings: RunSettings, judges: Judges) -> Prompts:
    """Return the prompts of the language, by name.

    The lexical judge and classifiers read none of their words. Their rules and version are stored instead, so that a
    prompt's text is not taken for what made their verdicts.
    """
    prompts = load_prompts(settings.language, Path(settings.prompts) if settings.prompts else None)

    def read_prompt(name: str) -> Prompt:
        task = find_task(find_asking_steps(name)[0])
        if task in judges.juries:
            return prompts[name]  # the jury's models read it
        judge = judges.find(task)
        kind = judge.name.partition(":")[0]
        if FORM_JOIN in kind:
            from evalhouse.tasks.asking.pairs import find_form  # noqa: PLC0415  # few judges have a form

            form = find_form(judge.name)
            assert form is not None
            words = "\n\n".join(message.content for message in form.messages)
            digest = hashlib.sha256(f"{form}/{name}".encode()).hexdigest()
            return replace(prompts[name], prompt_hash=digest, version=form.name, language="", template=words)
        if kind not in _RULES:
            return prompts[name]
        # The lexical judge needs nothing of the file at all.
        is_read = kind != LEXICAL or name not in LEXICAL_PROMPTS
        return replace(
            prompts[name] if is_read else replace(_NO_WORDS, name=name),
            prompt_hash=hashlib.sha256(f"{judge.model}/{name}".encode()).hexdigest(),
            version=judge.model,
            language="",
            template=f"No prompt was used: {judge.model} gave its verdicts by the rules in {_RULES[kind]}.",
        )

    return Prompts(prompts, read_prompt)


def make_live_run(
    run_id: str,
    settings: RunSettings,
    plan: Plan,
    judges: Judges,
    warehouse: Warehouse,
    *,
    record: "Record | None" = None,
    since: datetime | None = None,
) -> "LiveRun":
    """Return the live run of a run, with all that can be refused checked; its calls go to `record`, else to the
    warehouse. Raises FatalJudgeError."""
    from evalhouse.tasks.pipeline.live_run import Clients, LiveRun  # noqa: PLC0415  # imports Prefect

    check_embeddings_name(settings.embeddings)
    if settings.batch or settings.deadline is not None:
        from evalhouse.flows.preparing.batches import check_batch  # noqa: PLC0415  # few runs go by batch

        check_batch(settings)
    if settings.notify is not None:
        settings.notify.note_secrets(os.environ)
    spent_usd = check_budget(run_id, settings, judges, None if record else warehouse)
    prompts = make_prompts(settings, judges)
    if judges.have_servers:
        from evalhouse.flows.preparing.batches import recall_servers  # noqa: PLC0415  # few judges have one

        recall_servers(judges.made, run_id, warehouse)
    embedding_model = None
    compares = "similarity" in list_calls(plan.steps)
    if compares and settings.embeddings != "hashing":
        from evalhouse.tasks.models.openai_api import make_embedding_model  # noqa: PLC0415  # `hashing` needs none

        embedding_model = make_embedding_model(settings.embeddings)

    def list_beside() -> list[str]:
        """Return the runs of the night: what is the same for all variants is asked once, in a fresh night too."""
        if not settings.fresh or settings.night is None:
            return []
        return [run.run_id for run in list_night_runs(warehouse, settings.night)]

    def open_clients() -> "Clients":
        # Loaded when the first step begins, by which time Prefect's server is up.
        from evalhouse.tasks.asking.asker import Asker  # noqa: PLC0415
        from evalhouse.tasks.asking.embeddings import MAX_TOKENS, AskedEmbedder, HashingEmbedder  # noqa: PLC0415
        from evalhouse.tasks.asking.record import CallRecord  # noqa: PLC0415

        prices = load_prices(settings.prices)
        asker = Asker(
            judge=judges.default,
            record=record or CallRecord(warehouse, run_id, fresh=settings.fresh, beside=list_beside()),
            limit=make_limit(settings, judges.default),
            attempts=settings.attempts,
            price=find_price(prices, judges.default.model),
            budget_usd=settings.budget_usd,
            spent_usd=spent_usd,
            window=settings.context_window or find_window(judges.default),
        )
        # One judge of several steps has one copy of the asker; an endpoint has one limit for all that is asked there.
        askers = {id(judges.default): asker}

        def copy_asker(judge: Judge) -> "Asker":
            limit, price = make_limit(settings, judge, beside=list(askers.values())), find_price(prices, judge.model)
            window = settings.context_window or find_window(judge)
            return replace(asker, judge=judge, limit=limit, price=price, window=window, of_tasks={}, juries={})

        for judge in judges.all[1:]:
            askers[id(judge)] = copy_asker(judge)
        asker.of_tasks = {task: askers[id(judge)] for task, judge in judges.of_tasks.items()}
        if judges.juries:
            askers[id(judges.default)] = replace(asker, of_tasks={})  # a juror asks for itself alone
        asker.juries = {task: [askers[id(judge)] for judge in jury] for task, jury in judges.juries.items()}
        embedder: Embedder | None = HashingEmbedder() if compares else None
        if embedding_model is not None:
            max_tokens = min(MAX_TOKENS, settings.tpm or MAX_TOKENS)
            embedder = AskedEmbedder(replace(copy_asker(embedding_model), window=None), max_tokens=max_tokens)
        if settings.batch and record is None:
            from evalhouse.flows.preparing.batches import add_batch_queue  # noqa: PLC0415

            for of_judge in asker.all:
                add_batch_queue(of_judge, settings, run_id, warehouse, since=since)
        return Clients(asker=asker, embedder=embedder)

    return LiveRun(
        run_id=run_id,
        settings=settings,
        warehouse=warehouse,
        prompts=prompts,
        metrics=plan.metrics,
        steps=plan.steps,
        open_clients=open_clients,
        rubrics=pick_rubrics(plan, prompts, settings.plan),
    )


def list_paid(warehouse: Warehouse, run_id: str, settings: RunSettings) -> set[str]:
    """Return the runs that one budget is for: this one, the refresh of its test set before it, and all of its night."""
    in_night = (run.run_id for run in list_night_runs(warehouse, settings.night or run_id))
    return {run_id, *settings.runs_before, *in_night}


def check_budget(run_id: str, settings: RunSettings, judges: Judges, warehouse: Warehouse | None) -> float:
    """Return the dollars that were spent of a run's budget: by the run before it was resumed, by its night, and by the
    refresh of its test set.

    Raises FatalJudgeError for a price file that cannot be read, for a budget that cannot be kept, and where the run has
    spent all of it; where the refresh has, what needs no request still comes.
    """
    if settings.budget_usd is None and settings.prices is None:
        return 0.0
    prices = load_prices(settings.prices)
    unpriced = [judge.model for judge in judges.all if find_price(prices, judge.model) is None]
    if settings.budget_usd is not None and unpriced:
        raise FatalJudgeError(
            f"a budget needs a price for {unpriced[0]!r}; name a price file with {name_setting('prices')}"
        )
    if settings.budget_usd is None or warehouse is None:
        return 0.0
    own_usd = sum_cost(warehouse, run_id)
    spent_usd = own_usd + sum(sum_cost(warehouse, other) for other in list_paid(warehouse, run_id, settings) - {run_id})
    if own_usd and spent_usd >= settings.budget_usd:
        raise FatalJudgeError(
            f"run {run_id} has spent {spent_usd:.4g} dollars and its budget is {settings.budget_usd:g}, so nothing was "
            f"asked; resume it with a higher one: evalhouse resume {run_id} --budget USD"
        )
    return spent_usd


def make_limit(settings: RunSettings, judge: Judge, *, beside: "Sequence[Asker]" = ()) -> "EndpointLimit":
    """Return the limit of a judge, or of embeddings; askers `beside` it at the same endpoint share one limit."""
    from evalhouse.tasks.asking.limits import EndpointLimit  # noqa: PLC0415  # as above

    at_endpoint = [asker for asker in beside if judge.endpoint and asker.judge.endpoint == judge.endpoint]
    return EndpointLimit(
        concurrency=settings.concurrency,
        rpm=settings.rpm,
        tpm=settings.tpm,
        max_wait_s=settings.max_wait_s,
        timeout_s=choose_timeout(settings.timeout_s, judge.endpoint),
        beside=at_endpoint[0].limit if at_endpoint else None,
    )


def make_collection(
    live_run: "LiveRun",
    run: RunRow,
    target: "Target | None",
    parent: RunRow | None,
    *,
    known: "KnownResponses | None" = None,
    pose: "Pose | None" = None,
) -> "Collection | None":
    """Return what brings the run's responses; None when its dataset has the answers.

    `known` responses replace the ones that the settings name; `pose` makes the question of a sample.
    Raises FatalJudgeError when they are to be taken from a run that lacks some.
    """
    if target is None and parent is None:
        return None
    # Most runs ask no target, and do without these.
    from evalhouse.tasks.targets.collection import (  # noqa: PLC0415
        Collection,
        ParentResponses,
        ReadSamples,
        find_unaffected,
        group_turns,
        pose_question,
    )
    from evalhouse.tasks.targets.protocol import FirstQuestions  # noqa: PLC0415

    size, settings, warehouse = live_run.settings.shard_size, live_run.settings.target, live_run.warehouse
    of_parent = None if parent is None else find_parent_responses(warehouse, parent)
    responses = known or of_parent
    if responses is None and live_run.settings.only_affected and settings is not None:
        responses = find_unaffected(warehouse, run, settings)
        if responses is None and not live_run.resumed:
            live_run.notices.append(_NOT_ANNOUNCED)
    read: ReadSamples
    if live_run.staged is not None:
        read, n_samples = live_run.staged.staging.read_between, live_run.staged.n_samples
        numbers = list(range(-(-n_samples // size)))
        if target is not None and live_run.staged.n_answered:
            live_run.notices.append(_IGNORED.format(live_run.staged.n_answered, n_samples))
    else:
        # Whole shards, in which samples that have their response are skipped.
        read = partial(fetch_samples_between, warehouse, run.run_id)
        numbers = sorted(
            {(ordinal - 1) // size for ordinal in list(warehouse.fetch("responses/open", run_id=run.run_id)["ordinal"])}
        )
        n_samples = sum(min(size, (run.n_samples or 0) - number * size) for number in numbers)
    conversations, id_columns = None, set[str]()
    # Answers that come, or answers of the run that is judged again, may be the history of later turns.
    if of_parent.own if of_parent is not None else settings is not None and settings.history == "own":
        n_in_all = live_run.staged.n_samples if live_run.staged is not None else run.n_samples or 0
        conversations, id_columns = group_turns(read, n_in_all, size)
        shard_of = {ordinal: (held[0] - 1) // size for held in conversations for ordinal in held}
        if live_run.staged is None:
            # A conversation continues in the shard in which it began.
            open_samples = list(warehouse.fetch("responses/open", run_id=run.run_id)["ordinal"])
            numbers = sorted({shard_of[ordinal] for ordinal in open_samples})
            n_samples = sum(len(held) for held in conversations if shard_of[held[0]] in set(numbers))
    if live_run.staged is not None and isinstance(responses, ParentResponses):
        responses.check_complete(read, conversations, n_samples, size)
    counted = warehouse.fetch_row("responses/counts", run_id=run.run_id) if live_run.resumed else {"n_ok": 0}
    return Collection(
        run_id=run.run_id,
        warehouse=warehouse,
        target=target,
        known=responses,
        record=Mover(warehouse, "responses"),
        read_samples=read,
        numbers=numbers,
        n_samples=n_samples,
        conversations=conversations,
        id_columns=id_columns,
        concurrency=settings.concurrency if settings else 1,
        pose=pose or pose_question,
        first=FirstQuestions() if settings and settings.stop_early else None,
        judge_thoughts=live_run.settings.judge_thoughts,
        is_resumed=live_run.resumed,
        has_answers=counted["n_ok"] > 0,
    )


def find_parent_responses(warehouse: Warehouse, parent: RunRow) -> "ParentResponses":
    """Return the responses of a run that are taken in the place of those to come.

    Their history is the one with which they were asked for, by that run or by the one it took them from.
    """
    from evalhouse.tasks.targets.collection import ParentResponses  # noqa: PLC0415  # most runs take none

    asked = parent
    while asked.config.get("responses"):
        asked = find_run(warehouse, asked.config["responses"])
    history = (asked.config.get("target") or {}).get("history", "dataset")
    return ParentResponses(warehouse=warehouse, parent=parent, own=history == "own")
