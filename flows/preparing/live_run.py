"""From settings to a live run: everything a run needs is made and checked here, before anything is asked. So is what is
said of a dataset's columns: which was read as what, what is missing, and which metrics will therefore score nothing."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evalhouse.flows.preparing.batches import add_parking, ask_servers, check_batch, recall_servers
from evalhouse.flows.preparing.request import RunRequest, make_row
from evalhouse.prompts import Prompt, Prompts, load_prompts
from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.asking.embeddings import MOST_TOKENS, AskedEmbedder, Embedder, HashingEmbedder
from evalhouse.tasks.asking.limits import EndpointLimit, choose_timeout
from evalhouse.tasks.asking.record import CallRecord, Record
from evalhouse.tasks.asking.usage import Price, find_price, load_prices
from evalhouse.tasks.datasets.read import StagedDataset, stage_of
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.judge.forms import JOIN, find_form
from evalhouse.tasks.judge.names import LEXICAL, LOCAL, find_judge, is_fixed
from evalhouse.tasks.judge.protocol import Judge, find_window
from evalhouse.tasks.models.make import Judges, check_embeddings_name, make_judges
from evalhouse.tasks.pipeline.live_run import Asking, LiveRun
from evalhouse.tasks.settings.run import RunSettings, is_traces
from evalhouse.tasks.settings.traces import TraceWindow
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.metric_files import MetricFile, Plan, load_metrics, plan_run, resolve_parameters
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.rows.runs import RunKind, RunRow, find_run, now_utc, refuse_forgotten
from evalhouse.warehouse.rows.samples import count_samples
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
    from evalhouse.tasks.targets.protocol import Target
from collections.abc import Iterable, Iterator

from evalhouse.warehouse.metric_files import MetricFileError, parse_metric, write_rubric_metric


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


_OF_TRACES: Final = "answer_relevancy"
_NO_PLAN = Plan(metrics=(), steps=frozenset())
_NOTHING_JOINED = "the chosen metrics leave nothing to ask in one request, so that each step asks by itself"


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Settings, plan and judges of a run."""

    settings: RunSettings
    plan: Plan
    judges: Judges

    def make_live_run(self, run_id: str, warehouse: Warehouse, *, since: datetime | None = None) -> LiveRun:
        """The live run of a run; its deadline counts from now, or from `since`."""
        return make_live_run(run_id, self.settings, self.plan, self.judges, warehouse, since=since)


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that can begin: its row, its tools, and what it reads. Nothing of it is on record yet.

    `staged` is None for a run that is resumed after its dataset was loaded. Unless it `is_file`, a program has made the
    dataset and knows its columns: only what is amiss with them is said.
    """

    run: RunRow
    tools: Tools
    staged: StagedDataset | None
    target: "Target | None" = None
    parent: RunRow | None = None
    resumed: bool = False
    is_file: bool = True
    notices: tuple[str, ...] = ()

    def make_live_run(self, warehouse: Warehouse) -> LiveRun:
        """The live run."""
        judges = self.tools.judges
        notices = ask_servers(judges.made, self.run.run_id, warehouse) if judges.have_servers else []
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
            columns, *warnings = announce_columns(self.staged, live_run)
            live_run.notices += [columns, *warnings] if self.is_file else warnings
        if not self.resumed and (note := explain_cold(self.tools.settings, warehouse, self.run.run_id)):
            live_run.notices.append(note)
        return live_run

    def add_collection(self, live_run: LiveRun) -> None:
        """Give a run that asks its target, or takes another run's responses, what it needs for that."""
        if self.target is not None or self.parent is not None:
            from evalhouse.flows.preparing.collection import make_collection  # noqa: PLC0415  # most runs need none

            live_run.collection = make_collection(live_run, self.run, self.target, self.parent)


def explain_cold(settings: RunSettings, warehouse: Warehouse, run_id: str = "") -> str | None:
    """What a run that sends no temperature cannot find again, where one of 0 was sent until now; None for nothing."""
    if settings.judge == LEXICAL or settings.temperature is not None or settings.fresh or not warehouse.exists():
        return None
    rows = warehouse.read_rows(read_query("runs/cold"), {"judge": settings.judge, "run_id": run_id})
    if not rows:
        return None
    return (
        f"note: {settings.judge} was asked at temperature 0, once the default, in every run on record "
        f"({rows[0]['n_runs']:,}, the last {rows[0]['last_run_id']}). None is sent now unless it is set, so that their "
        "replies are not found and all is asked again; --temperature 0 (in a suite `temperature = 0`) finds them."
    )


def prepare_run(request: RunRequest, warehouse: Warehouse) -> PreparedRun:
    """Prepare plan, judge, target and dataset of a new run; raises whatever can be refused before anything is asked."""
    source = request.settings.dataset if request.source is None else request.source
    settings, target, parent = _find_responses(_pin_window(request.settings), warehouse)
    refuse_budget_of_answers(settings)
    tools = make_tools(settings, request.kind)
    try_own_metrics(tools.plan, settings)
    staged = stage_of(settings, source)
    check_history(settings, staged, target)
    run = make_row(replace(request, settings=tools.settings), tools.plan, staged)
    is_file = isinstance(source, str) and source == settings.dataset
    notices = [] if tools.settings == settings else [f"plan {settings.plan!r}: {_NOTHING_JOINED}"]
    if note := _explain_replaced(tools):
        notices.append(note)
    return PreparedRun(
        run=run, tools=tools, staged=staged, target=target, parent=parent, is_file=is_file, notices=tuple(notices)
    )


def _explain_replaced(tools: Tools) -> str | None:
    """What files of the user's own a plan has no use for, where it asks with built-in words in their place."""
    settings = tools.settings
    if settings.prompts is None or settings.plan == SEPARATE:
        return None
    folder, plan = Path(settings.prompts), PLANS[settings.plan]
    own = {path.stem for place in (folder, folder / settings.language) for path in place.glob("*.yaml")}
    left_out = [name for name in list_replaced_prompts(tools.plan.steps, settings.plan) if name in own]
    asked = [name for name in (plan.prompt, plan.extract_prompt) if name is not None and name not in own]
    if not left_out or not asked:
        return None
    written = [", ".join(f"{name}.yaml" for name in sorted(names)) for names in (left_out, asked)]
    return (
        f"plan {settings.plan!r}: it does not ask with your own {written[0]}; write your words into {written[1]} there"
    )


def check_history(settings: RunSettings, staged: StagedDataset, target: "Target | None" = None) -> None:
    """Refuse a target that would be asked in the middle of conversations that it knows nothing of."""
    if settings.responses is not None or settings.target is None or not staged.n_continued:
        return
    from evalhouse.tasks.targets.collection import check_takes_conversation, make_target  # noqa: PLC0415  # few runs ask

    try:
        check_takes_conversation(target or make_target(settings.target), settings.target, staged.n_continued)
    except BaseException:  # whatever stops it, Ctrl-C too: the file of what was staged goes
        staged.staging.discard()
        raise


def prepare_again(run: RunRow, settings: RunSettings, warehouse: Warehouse) -> PreparedRun:
    """The same for a run that goes on; a dataset that was not loaded yet must not have changed since."""
    settings, target, parent = _find_responses(settings, warehouse)
    tools = make_tools(settings, run.kind)
    try_own_metrics(tools.plan, settings)
    staged = None if count_samples(warehouse, run.run_id) else _stage_again(settings, run)
    return PreparedRun(run=run, tools=tools, staged=staged, target=target, parent=parent, resumed=True)


def refuse_budget_of_answers(settings: RunSettings) -> None:
    """Raise FatalJudgeError for a budget of samples where answers are not in the dataset."""
    if settings.sample_budget is not None and (settings.target is not None or settings.responses is not None):
        raise FatalJudgeError(
            "a budget of samples (--sample-budget) picks them by the answers in the dataset, and this run takes its "
            "answers from a target or another run; use --limit, or write the answers into a dataset first"
        )


def _pin_window(settings: RunSettings) -> RunSettings:
    """A run over received traces with the end of its time, so that one that is resumed finds the same."""
    if not is_traces(settings.dataset):
        return settings
    return settings.model_copy(update={"traces": (settings.traces or TraceWindow()).end_at(now_utc())})


def try_own_metrics(plan: Plan, settings: RunSettings) -> None:
    """As `try_metrics`, of the metrics that are not built in."""
    if plan.own_metrics:
        from evalhouse.warehouse.sandbox.own_metrics import try_metrics  # noqa: PLC0415  # few runs have one

        try_metrics(plan.own_metrics, settings.metric_settings)


def _find_responses(settings: RunSettings, warehouse: Warehouse) -> tuple[RunSettings, "Target | None", RunRow | None]:
    """Where a run's responses come from besides its dataset: a target, or a run, by its full id in the settings."""
    if settings.responses is not None:
        parent = find_run(warehouse, settings.responses)
        refuse_forgotten(warehouse, parent, "its responses cannot be judged again: ask the target")
        return settings.model_copy(update={"responses": parent.run_id}), None, parent
    if settings.target is None:
        return settings, None, None
    from evalhouse.tasks.targets.collection import make_target  # noqa: PLC0415  # most runs ask none

    return settings, make_target(settings.target), None


def _stage_again(settings: RunSettings, run: RunRow) -> StagedDataset:
    staged = stage_of(settings)
    if staged.content_hash != run.dataset_hash:
        staged.staging.discard()
        raise WarehouseError(
            f"run {run.run_id} stopped before its dataset was loaded, and {settings.dataset} has changed since; "
            "start a new run: what a judge already answered is on record and costs nothing"
        )
    return staged


def make_tools(settings: RunSettings, kind: RunKind) -> Tools:
    """Plan and judges, checked before anything is asked; a run that only collects has nothing planned.

    Where the plan of the settings joins none of the steps it is not what the run is made with.
    """
    plan = _NO_PLAN if kind == "collection" else make_plan(settings)
    if arrange_steps(plan.steps, settings.plan) == plan.steps:
        settings = settings.model_copy(update={"plan": SEPARATE})
    return Tools(settings=settings, plan=plan, judges=make_judges(settings, plan))


def make_plan(settings: RunSettings) -> Plan:
    """The metrics and steps of the settings; raises UnknownMetric or MetricFileError."""
    metrics = load_metrics(Path(settings.metric_files) if settings.metric_files else None)
    if settings.prompts is not None:
        metrics |= make_rubric_metrics(load_prompts(settings.language, Path(settings.prompts)).values(), metrics)
    wanted = settings.metrics or (list_for_traces(metrics, settings) if settings.has_traces else ())
    plan = plan_run(wanted, metrics, embeddings=settings.embeddings)
    chosen = {metric.name: metric for metric in plan.metrics}
    for name, parameters in settings.metric_settings.items():
        if name in chosen:
            resolve_parameters(chosen[name], parameters)
    return plan


def list_for_traces(metrics: dict[str, MetricFile], settings: RunSettings) -> list[str]:
    """The metrics of a run over traces that names none: the default ones that need no ground truth, and, of a judge
    that can be asked for questions, answer_relevancy. Nobody says what the answers to real questions should have been.
    """
    plan = plan_run((), metrics, embeddings=settings.embeddings)
    inputs = {metric.name: _list_inputs(metric, {}) for metric in plan.metrics}
    names = [name for name, needed in inputs.items() if needed and "ground_truth" not in needed]
    return names if is_fixed(find_judge(settings.judge, "relevancy")) else [*names, _OF_TRACES]


def _pick_rubrics(plan: Plan, prompts: Prompts, way: str) -> tuple[Prompt, ...]:
    """The prompts that the plan's samples are graded by; raises FatalJudgeError when they cannot be."""
    wanted = sorted(step.removeprefix(GRADE_STEP) for step in plan.steps if step.startswith(GRADE_STEP))
    for name in wanted:
        rubric = prompts[name].rubric if name in prompts else None
        if rubric is None:
            raise FatalJudgeError(
                f"there is no rubric {name!r} in this language; add {name}.yaml to a folder of prompts (--prompts)"
            )
        if rubric.is_of_pairs:
            raise FatalJudgeError(f"the rubric {name!r} prefers one of two answers; `evalhouse prefer` asks by it")
    for name in prompts.find_missing(list_prompts(plan.steps | arrange_steps(plan.steps, way))):
        raise FatalJudgeError(f"there is no prompt {name!r} in this language; add prompts/<language>/{name}.yaml")
    return tuple(prompts[name] for name in wanted)


def make_prompts(settings: RunSettings, judges: Judges) -> Prompts:
    """The prompts of the language, by name.

    The lexical judge and classifiers read none of their words. What stands on record for them is their rules and
    version, so that nobody takes a prompt's text for what made its verdicts.
    """
    prompts = load_prompts(settings.language, Path(settings.prompts) if settings.prompts else None)
    return Prompts(prompts, partial(_read_prompt, prompts, judges))


def make_live_run(
    run_id: str,
    settings: RunSettings,
    plan: Plan,
    judges: Judges,
    warehouse: Warehouse,
    *,
    record: Record | None = None,
    since: datetime | None = None,
) -> LiveRun:
    """The live run of a run, with all that can be refused checked; its calls go to `record`, else to the warehouse."""
    check_embeddings_name(settings.embeddings)
    if settings.batch or settings.deadline is not None:
        check_batch(settings)
    if settings.notify is not None:
        settings.notify.note_secrets(os.environ)
    if settings.budget_usd is not None or settings.prices is not None:
        _check_budget(settings, judges)
    spent_usd = _sum_spent(run_id, settings, warehouse) if record is None else 0.0
    prompts = make_prompts(settings, judges)
    if judges.have_servers:
        recall_servers(judges.made, run_id, warehouse)
    embedding_model = None
    compares = "similarity" in list_calls(plan.steps)
    if compares and settings.embeddings != "hashing":
        from evalhouse.tasks.models.embeddings import make_embedding_model  # noqa: PLC0415  # imports OpenAI's client

        embedding_model = make_embedding_model(settings.embeddings, settings)

    def open_asking() -> Asking:
        prices = load_prices(settings.prices)
        kept = record or CallRecord(warehouse, run_id, fresh=settings.fresh)
        asker = _make_asker(kept, settings, judges, prices, spent_usd=spent_usd)
        embedder: Embedder | None = HashingEmbedder() if compares else None
        if embedding_model is not None:
            embedder = _make_embedder(asker, embedding_model, settings, prices)
        if settings.batch and record is None:
            for of_judge in asker.all:
                add_parking(of_judge, settings, run_id, warehouse, since=since)
        return Asking(asker=asker, embedder=embedder)

    return LiveRun(
        run_id=run_id,
        settings=settings,
        warehouse=warehouse,
        prompts=prompts,
        metrics=plan.metrics,
        steps=plan.steps,
        open_asking=open_asking,
        rubrics=_pick_rubrics(plan, prompts, settings.plan),
    )


def _make_asker(
    record: Record, settings: RunSettings, judges: Judges, prices: Mapping[str, Price], *, spent_usd: float
) -> Asker:
    """The asker of the default judge, with those of steps beside it."""
    asker = Asker(
        judge=judges.default,
        record=record,
        limit=make_limit(settings, judges.default),
        attempts=settings.attempts,
        price=find_price(prices, judges.default.model),
        budget_usd=settings.budget_usd,
        spent_usd=spent_usd,
        window=settings.context_window or find_window(judges.default),
    )
    asker.of_tasks = _copy_for_steps(asker, judges, settings, prices)
    return asker


def _make_embedder(asker: Asker, model: Judge, settings: RunSettings, prices: Mapping[str, Price]) -> AskedEmbedder:
    copy = replace(_copy_asker(asker.all, model, settings, prices), window=None)
    return AskedEmbedder(copy, most_tokens=min(MOST_TOKENS, settings.tpm or MOST_TOKENS))


def _copy_for_steps(
    asker: Asker, judges: Judges, settings: RunSettings, prices: Mapping[str, Price]
) -> dict[str, Asker]:
    """By task the copy of the asker that asks the step's own judge; one judge of several steps has one copy."""
    copies = {id(judges.default): asker}
    for judge in judges.all[1:]:
        copies[id(judge)] = _copy_asker(list(copies.values()), judge, settings, prices)
    return {task: copies[id(judge)] for task, judge in judges.of_tasks.items()}


def _copy_asker(askers: Sequence[Asker], judge: Judge, settings: RunSettings, prices: Mapping[str, Price]) -> Asker:
    """A copy of the first for another judge or for embeddings, with a limit beside those of the same endpoint."""
    limit, price = make_limit(settings, judge, beside=askers), find_price(prices, judge.model)
    window = settings.context_window or find_window(judge)
    return replace(askers[0], judge=judge, limit=limit, price=price, window=window, of_tasks={})


def _check_budget(settings: RunSettings, judges: Judges) -> None:
    """Refuse a price file that cannot be read, and a budget that cannot be kept; raises FatalJudgeError."""
    prices = load_prices(settings.prices)
    unpriced = [judge.model for judge in judges.all if find_price(prices, judge.model) is None]
    if settings.budget_usd is not None and unpriced:
        raise FatalJudgeError(
            f"there is no price for {unpriced[0]!r}, so a budget cannot be kept; name a price file with --prices"
        )


def make_limit(settings: RunSettings, judge: Judge, *, beside: Sequence[Asker] = ()) -> EndpointLimit:
    """The limit of a judge, or of embeddings: one endpoint bears all that is asked there, by those `beside` it too."""
    at_endpoint = [asker for asker in beside if judge.endpoint and asker.judge.endpoint == judge.endpoint]
    return EndpointLimit(
        concurrency=settings.concurrency,
        rpm=settings.rpm,
        tpm=settings.tpm,
        max_wait_s=settings.max_wait_s,
        timeout_s=choose_timeout(settings.timeout_s, judge.endpoint),
        beside=at_endpoint[0].limit if at_endpoint else None,
    )


def _sum_spent(run_id: str, settings: RunSettings, warehouse: Warehouse) -> float:
    """What the run had spent before it was resumed, and the refresh of its test set before that. Raises FatalJudgeError
    where it has spent all of its budget; where the refresh has, what needs no request still comes."""
    if settings.budget_usd is None:
        return 0.0
    own_usd = sum_cost(warehouse, run_id)
    spent_usd = own_usd + sum(sum_cost(warehouse, before) for before in settings.runs_before)
    if own_usd and spent_usd >= settings.budget_usd:
        raise FatalJudgeError(
            f"run {run_id} has spent {spent_usd:.4g} dollars and its budget is {settings.budget_usd:g}, so nothing was "
            f"asked; go on with a higher one: evalhouse resume {run_id} --budget USD"
        )
    return spent_usd


# Judges that read no prompt, by the kind in their names, and where their rules stand.
_RULES: Final[Mapping[str, str]] = {LEXICAL: "tasks/lexical/judge.py", LOCAL: "tasks/asking/pairs.py"}


_NO_WORDS = Prompt(
    name="", version="", language="", description="", variables={}, labels={}, reply_schema={}, prompt_hash="",
    template="", system="", examples=(),
)  # fmt: skip


def _read_prompt(prompts: Prompts, judges: Judges, name: str) -> Prompt:
    """A prompt, with the rules of a judge that goes by them in the place of its words."""
    judge = judges.find(find_task(find_asking_steps(name)[0])) if judges.of_tasks else judges.default
    kind = judge.name.partition(":")[0]
    if JOIN in kind and (form := find_form(judge.name)) is not None:
        words = "\n\n".join(message.content for message in form.messages)
        digest = hashlib.sha256(f"{form}/{name}".encode()).hexdigest()
        return replace(prompts[name], prompt_hash=digest, version=form.name, language="", template=words)
    if kind not in _RULES:
        return prompts[name]
    # Of what stands in the file the lexical judge needs nothing at all.
    is_read = kind != LEXICAL or name not in LEXICAL_PROMPTS
    model = judge.model
    return replace(
        prompts[name] if is_read else replace(_NO_WORDS, name=name),
        prompt_hash=hashlib.sha256(f"{model}/{name}".encode()).hexdigest(),
        version=model,
        language="",
        template=f"No prompt was used: {model} gave its verdicts by the rules in {_RULES[kind]}.",
    )


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
    lines = [staged.use.describe(is_asked=is_asked), *staged.notes]
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
