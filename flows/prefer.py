"""`prefer`: ask a judge which of two answers it prefers, over the samples of two runs or two columns of a dataset.

The requests are sent like the requests of a run. They belong to a run of kind `prefer`, which has preferences and no
scores, and which `latest`, `previous` and labels never select; of two runs the candidate is its parent. A pair is asked
about once: a later command with the same pair reuses its stored replies. A run that is resumed goes over all its pairs
again, and its new rows replace the earlier ones.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.request import begin_run, parse_pairs, resolve_settings
from evalhouse.flows.results.run_facts import find_two_runs
from evalhouse.flows.run.outcome import Watch
from evalhouse.flows.trials.prompts import derive_settings
from evalhouse.flows.trials.session import Session, estimate_usage, open_session
from evalhouse.prompts import load_prompts
from evalhouse.tasks.asking.pairs import find_form
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.comparing.gate_checks import Score, check_mean, is_passed
from evalhouse.tasks.comparing.paired import summarise_preferences
from evalhouse.tasks.datasets.read import settle_language, stage_dataset
from evalhouse.tasks.judge.protocol import LEXICAL, LOCAL, RunCancelled, find_judge
from evalhouse.tasks.load import make_batch_of
from evalhouse.tasks.settings.run import RunSettings, leave_out, read_settings
from evalhouse.tasks.trials.preferences import (
    BUILT_IN,
    STEP,
    AnswerPair,
    AnswerPairs,
    PairsOfColumns,
    PairsOfRuns,
    PairVerdicts,
    PreferenceRequest,
    judge_pair,
)
from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.rows.gates import Decision, record_decision
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, find_run, refuse_forgotten
from evalhouse.warehouse.rows.samples import NO_CLUSTER
from evalhouse.warehouse.store import Warehouse

_PLAN: Final = Plan(metrics=(), steps=frozenset({STEP}))


@dataclass(frozen=True, kw_only=True)
class PreferenceGate:
    """The lowest win rate that the candidate may have, and what an undecided one does to the gate."""

    least: float
    undecided: Literal["pass", "fail"]


@dataclass(frozen=True, kw_only=True)
class PreferPlan:
    """The plan of asking: the pairs, the rubric of `settings.prompts`, and the parts that the judge does not see.

    `base` and `candidate` are what the sides are called: runs by their ids, or columns. `row` has the columns of the
    run that say where its pairs are from. `resumed` is a run of this plan that was stopped and is continued.
    """

    settings: RunSettings
    pairs: AnswerPairs
    base: str
    candidate: str
    rubric: str = BUILT_IN
    without: tuple[str, ...] = ()
    gate: PreferenceGate | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    resumed: RunRow | None = None

    def describe(self) -> dict[str, Any]:
        """Return what is recorded beside the settings."""
        return {
            "base": self.base,
            "candidate": self.candidate,
            "rubric": self.rubric,
            "without": list(self.without),
            "cluster": self.pairs.cluster,
            "gate": asdict(self.gate) if self.gate else None,
        }


@dataclass(frozen=True, kw_only=True)
class PreferOutcome:
    """The outcome of asking; `problem` ended it early, and then nothing is decided."""

    run: RunRow
    usage: Usage
    has_failures: bool
    problem: str | None
    gate_failed: bool


def prepare_asking(settings: RunSettings, rubric: str | None) -> tuple[RunSettings, str]:
    """Return the settings with the rubric's folder and the judge to ask, and the rubric's name; raises SettingsError.

    A rubric is the name of one in the folder of prompts, or a file, whose folder is then read.
    """
    settings = settings.model_copy(update={"judge": find_judge(settings.judge, STEP), "embeddings": "hashing"})
    path = Path(rubric) if rubric is not None and rubric.endswith((".yaml", ".yml")) else None
    if path is not None:
        if settings.prompts is not None and Path(settings.prompts).resolve() != path.parent.resolve():
            raise SettingsError(f"--rubric {path} and --prompts {settings.prompts} name two folders; give one of them")
        settings = settings.model_copy(update={"prompts": str(path.parent)})
    name = path.stem if path is not None else rubric or BUILT_IN
    prompts = load_prompts(settings.language, Path(settings.prompts) if settings.prompts else None)
    if name not in prompts:
        known = [one.name for one in prompts.values() if one.rubric is not None and one.rubric.is_of_pairs]
        raise SettingsError(
            f"--rubric: unknown rubric {name!r}; {suggest(name, known)}. Your own is a file NAME.yaml, or a name "
            "in the folder of --prompts"
        )
    prompt_rubric = prompts[name].rubric
    if prompt_rubric is None or not prompt_rubric.is_of_pairs:
        raise SettingsError(
            f"--rubric: the rubric {name!r} does not compare two answers: it needs one criterion of `kind: "
            "preference`, and the blocks first_answer and second_answer"
        )
    if settings.judge.startswith(f"{LOCAL}:") or find_form(settings.judge) is not None:
        raise SettingsError(
            f"the judge {settings.judge!r} cannot say which of two answers is better; name a chat model"
        )
    if settings.judge == LEXICAL and name != BUILT_IN:
        raise SettingsError(f"the lexical judge reads no rubric, and so not {name!r}; name a model with --judge")
    return settings, name


def prefer(plan: PreferPlan, watch: Watch) -> PreferOutcome:
    """Ask about all pairs, and decide on the gate; raises FatalJudgeError when the judge cannot be asked at all."""
    run = plan.resumed
    if run is None:
        begun = begin_run("prefer", plan.settings, n_samples=plan.pairs.n)
        run = replace(begun, **plan.row, config={**begun.config, "prefer": plan.describe()})
    with open_session(plan.settings, _PLAN, run=run, resumes=plan.resumed is not None) as session:
        session.has_failures = session.carry_out(partial(_ask_all, plan=plan), watch)
    gate_failed = False
    if plan.gate is not None and session.problem is None:
        # The candidate's win rate against the least one allowed; what is decided is recorded.
        warehouse = Warehouse(plan.settings.warehouse)
        summary = summarise_preferences(warehouse.fetch_rows("preferences/samples", run_id=run.run_id))
        rate = summary.win_rate
        score = Score(
            mean=rate.value, ci_low=rate.ci_low, ci_high=rate.ci_high, n_scored=summary.n, n_samples=plan.pairs.n,
            n_applicable=plan.pairs.n, cluster=plan.pairs.cluster,
            n_clusters=summary.n_clusters if plan.pairs.cluster else None,
        )  # fmt: skip
        check = check_mean("min", plan.rubric, plan.gate.least, score)
        gate_failed = not is_passed([check], undecided=plan.gate.undecided)
        decision = Decision(
            run_id=run.run_id,
            origin="hand",
            outcome="failed" if gate_failed else "passed",
            is_baseline=False,
            undecided=plan.gate.undecided,
            against=plan.base,
            base_run_ids=[plan.base] if run.parent_run_id else [],
            checks=[asdict(check)],
        )
        record_decision(warehouse, decision)
    return PreferOutcome(
        run=run,
        usage=session.usage,
        has_failures=session.has_failures,
        problem=session.problem,
        gate_failed=gate_failed,
    )


def estimate_preferences(plan: PreferPlan) -> Usage:
    """Return the usage of asking, without stored replies; nothing is asked or written."""
    return estimate_usage(plan.settings, _PLAN, partial(_ask_all, plan=plan))


async def _ask_all(session: Session, plan: PreferPlan) -> bool:
    """Ask about the pairs and write the verdicts, some at a time; returns True if something has failed.

    Verdicts that came before a stop are written.
    """
    session.expect(plan.pairs.n, "pairs")
    live_run = await session.fit(session.live_run, [plan.rubric])
    request = PreferenceRequest(prompt=live_run.prompts[plan.rubric], without=plan.without)
    has_failed, in_conversation = False, make_batch_of(live_run, "turns", [request.prompt.in_conversation])

    async def ask(pair: AnswerPair) -> PairVerdicts | None:
        try:
            verdicts = await judge_pair(live_run, request, pair)
        except RunCancelled:
            return None
        session.note_done()
        return verdicts

    for part, pairs in enumerate(plan.pairs.read(), start=1):
        outcomes = await asyncio.gather(*map(ask, pairs), return_exceptions=True)
        verdicts = [outcome for outcome in outcomes if isinstance(outcome, PairVerdicts)]
        has_failed = has_failed or any(verdict.has_failed for verdict in verdicts)
        if session.dry is None:
            run_id = live_run.run_id
            preferences = [{"run_id": run_id, **row} for verdict in verdicts for row in verdict.preferences]
            ended = [{"run_id": run_id, **verdict.outcome} for verdict in verdicts if verdict.outcome]
            await asyncio.to_thread(
                live_run.warehouse.append_rows,
                f"{run_id}/preferences/{live_run.session}/{part}",
                run_id,
                {"preferences": preferences, "outcomes": ended},
                replaces=[verdict.pair.sample.sample_id for verdict in verdicts] if live_run.resumed else (),
            )
            if in_conversation and any(pair.sample.conversation_json for pair in pairs):
                # Written each time under one key, and so once.
                await asyncio.to_thread(live_run.warehouse.append, in_conversation)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        if None in outcomes:
            break
    return has_failed


@dataclass(frozen=True, kw_only=True)
class PreferOptions:
    """The options of the command line except the two sides; `flags` are settings."""

    rubric: str | None
    without: tuple[str, ...]
    cluster: str | None
    gate: PreferenceGate | None
    flags: Mapping[str, Any]


def plan_runs(base: str, candidate: str, options: PreferOptions) -> PreferPlan:
    """Plan the comparison of the answers of two runs; by default the candidate's judge is asked as it was.

    Raises SettingsError, and WarehouseError for runs that are not there.
    """
    resolved = resolve_settings(options.flags)
    url = resolved.settings.warehouse
    warehouse = Warehouse(url)
    base_run, run = find_two_runs(warehouse, base, candidate)
    derived = derive_settings(resolved, replace(run, config=_pick_known(run)), url)
    derived = leave_out(derived, lambda where: where.belongs_to_run)
    own = {name: getattr(resolved.settings, name) for name in ("prompts", "limit")}
    settings, rubric = prepare_asking(derived.model_copy(update=own), options.rubric)
    pairs = _pair_runs(warehouse, base_run, run, wanted=options.cluster, limit=settings.limit)
    if not pairs.n:
        raise SettingsError(f"runs {base_run.run_id} and {run.run_id} have no sample in common, by its id")
    return PreferPlan(
        settings=settings,
        pairs=pairs,
        base=base_run.run_id,
        candidate=run.run_id,
        rubric=rubric,
        without=options.without,
        gate=options.gate,
        row={"parent_run_id": run.run_id, "dataset": run.dataset, "dataset_hash": run.dataset_hash},
    )


def plan_columns(
    held: ExitStack, dataset: str, columns: str, maps: tuple[str, ...], options: PreferOptions
) -> PreferPlan:
    """Plan the comparison of the answers in two columns of a dataset; its staged files are removed when `held` closes.

    Raises SettingsError, and DatasetError for a dataset that `run` would refuse.
    """
    names, mapping = [name.strip() for name in columns.split(",")], parse_pairs(maps, "--map")
    if len(names) != 2 or len(set(names)) != 2 or not all(names):
        raise SettingsError(f"--columns got {columns!r}; name two columns with a comma between them")
    if "answer" in mapping:
        raise SettingsError("--map answer=… is what --columns says of either side; leave it out")
    resolved = resolve_settings({**options.flags, "dataset": dataset, "mapping": mapping})
    settings, rubric = prepare_asking(settle_language(resolved.settings)[0], options.rubric)
    pairs = _pair_columns(held, settings, names, wanted=options.cluster)
    return PreferPlan(
        settings=settings,
        pairs=pairs,
        base=names[0],
        candidate=names[1],
        rubric=rubric,
        without=options.without,
        gate=options.gate,
        row={"dataset": dataset, "dataset_hash": pairs.candidate.content_hash},
    )


def plan_again(held: ExitStack, run: RunRow, changes: Mapping[str, Any], url: str) -> PreferPlan:
    """Resume a run of kind prefer, with its own settings but for `changes`; raises as the others do, and
    SettingsError where its dataset has changed since."""
    warehouse = Warehouse(url)
    refuse_forgotten(warehouse, run, "give the command again: there is nothing left to resume")
    own = read_settings({**_pick_known(run), **changes, "warehouse": url})
    asked = run.config["prefer"]
    settings, rubric = prepare_asking(own, asked["rubric"])
    wanted = asked["cluster"] or NO_CLUSTER
    pairs: AnswerPairs
    if run.parent_run_id is None:
        pairs = _pair_columns(held, settings, (asked["base"], asked["candidate"]), wanted=wanted)
        if pairs.candidate.content_hash != run.dataset_hash:
            raise SettingsError(
                f"{settings.dataset} has changed since run {run.run_id} began; give the command again: what was "
                "answered about unchanged pairs is stored"
            )
    else:
        sides = (find_run(warehouse, asked[side]) for side in ("base", "candidate"))
        pairs = _pair_runs(warehouse, *sides, wanted=wanted, limit=settings.limit)
    return PreferPlan(
        settings=settings,
        pairs=pairs,
        base=asked["base"],
        candidate=asked["candidate"],
        rubric=rubric,
        without=tuple(asked["without"]),
        gate=PreferenceGate(**asked["gate"]) if asked.get("gate") else None,
        resumed=run,
    )


def _pick_known(run: RunRow) -> dict[str, Any]:
    """Return the known settings of a run; settings of another version of evalhouse change no request."""
    return {name: value for name, value in run.config.items() if name in RunSettings.model_fields}


def _pair_runs(
    warehouse: Warehouse, base: RunRow, candidate: RunRow, *, wanted: str | None, limit: int | None
) -> PairsOfRuns:
    for side in (base, candidate):
        refuse_forgotten(warehouse, side, "its answers are gone")
    return PairsOfRuns(runs=RunPair(warehouse, base, candidate), wanted=wanted, limit=limit)


def _pair_columns(
    held: ExitStack, settings: RunSettings, columns: Sequence[str], *, wanted: str | None
) -> PairsOfColumns:
    sides = []
    for name in columns:
        mapping = {**settings.mapping, "answer": name}
        staged = stage_dataset(settings.dataset, mapping=mapping, limit=settings.limit, encoding=settings.encoding)
        held.callback(staged.staging.discard)
        sides.append(staged)
    base, candidate = sides
    return PairsOfColumns(base=base, candidate=candidate, wanted=wanted)
