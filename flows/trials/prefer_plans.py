"""What `prefer` holds against each other: two runs, or two columns of a dataset, with the settings to ask by."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from evalhouse.flows.documents.run_origin import find_other_run
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.settings import parse_pairs, resolve_settings
from evalhouse.flows.trials.prefer import PreferPlan, prepare_asking
from evalhouse.flows.trials.prompts_tables import derive_settings
from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.settings.run import RunSettings, leave_out
from evalhouse.tasks.trials.answer_pairs import PairsOfColumns, PairsOfRuns
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import find_run, refuse_forgotten
from evalhouse.warehouse.store import Warehouse


@dataclass(frozen=True, kw_only=True)
class PreferOptions:
    """What the command line says besides what is held against what; `flags` are those of settings.

    `write_command` says what a person types to go on, with runs by their ids in place of the command's arguments.
    """

    rubric: str | None
    without: tuple[str, ...]
    cluster: str | None
    flags: Mapping[str, Any]
    write_command: Callable[[Sequence[str] | None], str]


def plan_runs(base: str, candidate: str, options: PreferOptions) -> PreferPlan:
    """Hold the answers of two runs against each other, asking as the candidate's judge was where nothing else is said.

    Raises SettingsError, and WarehouseError for runs that are not there.
    """
    resolved = resolve_settings(options.flags)
    url = resolved.settings.warehouse
    warehouse = Warehouse(url)
    base_run = find_run(warehouse, base)
    run = find_other_run(warehouse, base_run, candidate, sides="BASE and CANDIDATE")
    for side in (base_run, run):
        refuse_forgotten(warehouse, side, "there are no answers left to choose from")
    # What another version of evalhouse knew besides shapes no request of this one.
    known = {name: value for name, value in run.config.items() if name in RunSettings.model_fields}
    derived = derive_settings(resolved, replace(run, config=known), url)
    derived = leave_out(derived, lambda where: where.belongs_to_run)
    own = {name: getattr(resolved.settings, name) for name in ("prompts", "limit")}
    settings, rubric = prepare_asking(derived.model_copy(update=own), options.rubric)
    pairs = PairsOfRuns(runs=RunPair(warehouse, base_run, run), wanted=options.cluster, limit=settings.limit)
    if not pairs.n:
        raise SettingsError(f"runs {base_run.run_id} and {run.run_id} have no sample in common, by its id")
    return PreferPlan(
        settings=settings,
        pairs=pairs,
        base=base_run.run_id,
        candidate=run.run_id,
        rubric=rubric,
        without=options.without,
        row={"parent_run_id": run.run_id, "dataset": run.dataset, "dataset_hash": run.dataset_hash},
        command=options.write_command([base_run.run_id, run.run_id]),
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
    sides = []
    for name in names:
        with_answer = {**mapping, "answer": name}
        staged = stage_dataset(dataset, mapping=with_answer, limit=settings.limit, encoding=settings.encoding)
        held.callback(staged.staging.discard)
        sides.append(staged)
    base, candidate = sides
    return PreferPlan(
        settings=settings,
        pairs=PairsOfColumns(base=base, candidate=candidate, wanted=options.cluster),
        base=names[0],
        candidate=names[1],
        rubric=rubric,
        without=options.without,
        row={"dataset": dataset, "dataset_hash": candidate.content_hash},
        command=options.write_command(None),
    )
