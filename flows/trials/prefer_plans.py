"""What `prefer` holds against each other: two runs, or two columns of a dataset, with the settings to ask by; and the
same again for a run that was stopped."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from evalhouse.flows.documents.run_origin import find_other_run
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.settings import parse_pairs, resolve_settings
from evalhouse.flows.trials.prefer import PreferenceGate, PreferPlan, prepare_asking
from evalhouse.flows.trials.prompts_tables import derive_settings
from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.settings.run import RunSettings, leave_out, read_settings
from evalhouse.tasks.trials.answer_pairs import AnswerPairs, PairsOfColumns, PairsOfRuns
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, find_run, refuse_forgotten
from evalhouse.warehouse.rows.samples import NO_CLUSTER
from evalhouse.warehouse.store import Warehouse


@dataclass(frozen=True, kw_only=True)
class PreferOptions:
    """What the command line says besides what is held against what; `flags` are those of settings."""

    rubric: str | None
    without: tuple[str, ...]
    cluster: str | None
    gate: PreferenceGate | None
    flags: Mapping[str, Any]


def plan_runs(base: str, candidate: str, options: PreferOptions) -> PreferPlan:
    """Hold the answers of two runs against each other, asking as the candidate's judge was where nothing else is said.

    Raises SettingsError, and WarehouseError for runs that are not there.
    """
    resolved = resolve_settings(options.flags)
    url = resolved.settings.warehouse
    warehouse = Warehouse(url)
    base_run = find_run(warehouse, base)
    run = find_other_run(warehouse, base_run, candidate, sides="BASE and CANDIDATE")
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
    """Hold the answers in two columns of a dataset against each other; what is staged of it goes when `held` closes.

    Raises SettingsError, and DatasetError for a dataset that `run` would refuse.
    """
    names, mapping = [name.strip() for name in columns.split(",")], parse_pairs(maps, "--map")
    if len(names) != 2 or len(set(names)) != 2 or not all(names):
        raise SettingsError(f"--columns got {columns!r}; name two columns with a comma between them")
    if "answer" in mapping:
        raise SettingsError("--map answer=… is what --columns says of either side; leave it out")
    resolved = resolve_settings({**options.flags, "dataset": dataset, "mapping": mapping})
    settings, rubric = prepare_asking(resolved.settings, options.rubric)
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
    """Go on with a run of kind prefer, with its own settings but for `changes`; raises as the others do, and
    SettingsError where its dataset has changed since."""
    warehouse = Warehouse(url)
    refuse_forgotten(warehouse, run, "give the command again: there is nothing left to go on with")
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
                "answered about the pairs that are still there is on record"
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
    """The settings of a run; what another version of evalhouse knew besides shapes no request of this one."""
    return {name: value for name, value in run.config.items() if name in RunSettings.model_fields}


def _pair_runs(
    warehouse: Warehouse, base: RunRow, candidate: RunRow, *, wanted: str | None, limit: int | None
) -> PairsOfRuns:
    for side in (base, candidate):
        refuse_forgotten(warehouse, side, "there are no answers left to choose from")
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
