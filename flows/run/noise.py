"""The noise run at the end of a run: some of its samples are judged a second time, to see how far the judge is from
itself.

It is a run of its own, of kind `noise`, with its own calls, verdicts and scores, and names the run as its parent;
`latest`, `previous` and labels never select it, and no history has it as a night. Everything is asked again, the
splitting of answers and ground truths included: a split is the judge's word too, and statements that come out otherwise
are the larger part of what an answer's metrics waver by. Where later nights take the ground truth's split from the
record the floor is thereby a little high, which is the safe side.

Samples are drawn from those that nothing but the judge can have moved since the run before. Where these are too few,
as in a first run, they are drawn from all: the judge's randomness is the same, but what the judge itself has become
since it was first asked does not show.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from evalhouse.flows.preparing.request import begin_run
from evalhouse.flows.run.outcome import TAGS, NoiseOutcome, Population, RunOutcome
from evalhouse.tasks.comparing.noise import LEAST_SAMPLES, has_noise, pick_samples
from evalhouse.tasks.comparing.parts import list_changed_settings
from evalhouse.tasks.settings.run import RunSettings, leave_out
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import YARDSTICKS, RunRow, find_run, insert_run
from evalhouse.warehouse.rows.scores import (
    copy_samples,
    count_changed,
    find_previous,
    has_noise_run,
    list_equal_inputs,
    list_scored,
    note_no_noise,
)
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

JudgeAgain = Callable[["LiveRun", RunRow], Awaitable[RunOutcome]]


async def measure_noise(
    run: RunRow, settings: RunSettings, warehouse: Warehouse, judge_again: JudgeAgain
) -> NoiseOutcome | None:
    """Judge a share of a run's samples again, within what is left of its budget.

    None when there is nothing to do: the run is not an evaluation, did not come to its end, or was measured before.
    What goes wrong stands in the outcome, for the run itself is done.
    """
    if run.kind != "evaluation" or run.status not in ("completed", "incomplete"):
        return None
    try:
        if has_noise_run(warehouse, run.run_id):
            return None
        if not has_noise(run.judge, run.embeddings):
            note_no_noise(warehouse, run.run_id)
            return NoiseOutcome()
        return await _measure(run, settings, warehouse, judge_again)
    except WarehouseError as error:
        return NoiseOutcome(problem=str(error))


async def _measure(run: RunRow, settings: RunSettings, warehouse: Warehouse, judge_again: JudgeAgain) -> NoiseOutcome:
    from evalhouse.flows.preparing.live_run import make_tools  # noqa: PLC0415  # both import what judges
    from evalhouse.tasks.asking.embedders import RepeatedJudge, repeat_embeddings  # noqa: PLC0415

    budget_usd = settings.budget_usd
    if budget_usd is not None:
        budget_usd -= sum(sum_cost(warehouse, run_id) for run_id in (run.run_id, *settings.runs_before))
        if budget_usd <= 0:
            return NoiseOutcome(problem="nothing is left of the budget")
    selection = _draw_samples(run, warehouse, share=settings.noise_share)
    if not selection.sample_ids:
        return NoiseOutcome(problem="no sample has a score")
    settings = _derive_settings(settings, selection.population, budget_usd)
    again = begin_run(
        "noise", settings, parent=run.run_id, tags=settings.tags, n_samples=len(selection.sample_ids), repeats=run
    )
    tools = make_tools(settings, "noise")
    judges = tools.judges.change(lambda judge: RepeatedJudge(judge, again.run_id))
    live_run = replace(tools, judges=judges).make_live_run(again.run_id, warehouse)
    repeat_embeddings(live_run.embedder, again.run_id)
    live_run.progress.n_samples = len(selection.sample_ids)
    live_run.progress.what = "samples judged again"
    try:
        # The samples first: a noise run on record has some.
        copy_samples(warehouse, run_id=run.run_id, again_run_id=again.run_id, sample_ids=selection.sample_ids)
        insert_run(warehouse, again)
    except BaseException:  # whatever stops it, Ctrl-C too: the record is closed
        live_run.asker.record.close()
        raise
    outcome = await judge_again(live_run, again)
    return NoiseOutcome(
        outcome=outcome,
        population=selection.population,
        n_samples=len(selection.sample_ids),
        n_changed=count_changed(warehouse, again.run_id),
        problem=outcome.problem,
    )


@dataclass(frozen=True, kw_only=True)
class _Selection:
    sample_ids: list[str] = field(default_factory=list)
    population: Population


def _draw_samples(run: RunRow, warehouse: Warehouse, *, share: float) -> _Selection:
    scored = list_scored(warehouse, run.run_id)
    unchanged = _list_unchanged(run, warehouse)
    unmoved = [sample_id for sample_id in scored if sample_id in unchanged]
    if len(unmoved) >= LEAST_SAMPLES or len(unmoved) == len(scored):
        return _Selection(sample_ids=pick_samples(unmoved, share=share, seed=run.run_id), population="unchanged")
    return _Selection(sample_ids=pick_samples(scored, share=share, seed=run.run_id), population="all")


def _list_unchanged(run: RunRow, warehouse: Warehouse) -> frozenset[str]:
    """The samples with the same texts, judged under the same settings and prompts, as in the evaluation before."""
    previous_id = find_previous(warehouse, run.run_id)
    if previous_id is None:
        return frozenset()
    previous = find_run(warehouse, previous_id)
    is_other = any(getattr(previous, name) != getattr(run, name) for name in YARDSTICKS)
    if is_other or list_changed_settings(previous, run):
        return frozenset()
    judged_otherwise = RunPair(warehouse, previous, run).read_changed_judges()["sample_id"].to_list()
    return frozenset(list_equal_inputs(warehouse, base=previous_id, candidate=run.run_id)).difference(judged_otherwise)


def _derive_settings(settings: RunSettings, population: Population, budget_usd: float | None) -> RunSettings:
    """The run's settings, but for what belongs to the run alone."""
    changes = {"fresh": True, "budget_usd": budget_usd, "tags": (TAGS[population],)}
    return leave_out(settings, lambda where: where.belongs_to_run).model_copy(update=changes)
