"""The runs after a run that show how much a score wavers: the noise run and the repeats.

Both are separate runs, of kind `noise` and `repeats`, with separate calls, verdicts and scores, and name the run as
their parent; `latest`, `previous` and labels never select them, and no history has them as a night. Means, intervals
and gates come from the run itself.

The noise run judges some samples a second time, to see how far the judge disagrees with itself. Everything is asked
again, the splitting of answers and ground truths included: a split is a reply of the judge too, and different
statements are the larger part of the noise of an answer's metrics. If later nights take the ground truth's split from
stored replies, the floor is a little high, which is the safe side. Samples are drawn from samples that only the judge
can have changed since the run before; if these are too few, as in a first run, from all. A noise run that was stopped
continues when its parent is resumed.

The repeats ask a share of the target's questions again, once a round, to see how far the bot disagrees with itself.
Questions are drawn by their ids, the same ones every night; a round asks the drawn questions that were answered in the
run itself. Answers are judged like the first ones, and stored replies are used: an answer with the same contexts as
before costs nothing. A round that was stopped continues when its parent is resumed.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from evalhouse.flows.preparing.request import begin_run
from evalhouse.flows.run.outcome import TAGS, NoiseOutcome, Population, RepeatsOutcome, RunOutcome
from evalhouse.tasks.comparing.changes import list_changed_settings
from evalhouse.tasks.comparing.noise import MIN_SAMPLES, has_noise, pick_samples, pick_steadily
from evalhouse.tasks.settings.run import RunSettings, leave_out
from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import (
    YARDSTICKS,
    RepeatCounts,
    RunRow,
    find_run,
    insert_run,
    list_repeats,
    list_runs,
    update_run,
)
from evalhouse.warehouse.rows.samples import copy_samples, find_previous, write_no_noise
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

CarryOut = Callable[["LiveRun", RunRow], Awaitable[RunOutcome]]


async def measure_noise(
    run: RunRow, settings: RunSettings, warehouse: Warehouse, carry_out: CarryOut
) -> NoiseOutcome | None:
    """Judge a share of a run's samples again, within the remainder of its budget.

    None when there is nothing to do: the run is not an evaluation, did not reach its end, or was measured before. An
    error is reported in the outcome, for the run itself is done.
    """
    if run.kind != "evaluation" or run.status not in ("completed", "incomplete"):
        return None
    from evalhouse.flows.preparing.live_run import list_paid, make_tools  # noqa: PLC0415  # all import what judges
    from evalhouse.tasks.asking.embeddings import repeat_embeddings  # noqa: PLC0415
    from evalhouse.tasks.judge.protocol import RepeatedJudge  # noqa: PLC0415

    try:
        if warehouse.fetch_rows("noise/measured", run_id=run.run_id):
            return None
        if not has_noise(run.judge, run.embeddings):
            write_no_noise(warehouse, run.run_id)
            return NoiseOutcome()
        budget_usd = settings.budget_usd
        if budget_usd is not None:
            budget_usd -= sum(sum_cost(warehouse, paid) for paid in list_paid(warehouse, run.run_id, settings))
            if budget_usd <= 0:
                return NoiseOutcome(problem="nothing is left of the budget")
        noise_runs = list_runs(warehouse, kinds=("noise",))
        begun = next((other for other in noise_runs if other.parent_run_id == run.run_id), None)
        sample_ids: list[str] = []
        if begun is None:
            sample_ids, population = _draw_samples(run, warehouse, share=settings.noise_share)
            n_samples = len(sample_ids)
        else:  # it was stopped, and has its samples and some replies
            population = "unchanged" if TAGS["unchanged"] in begun.tags else "all"
            n_samples = begun.n_samples or 0
        if not n_samples:
            return NoiseOutcome(problem="no sample has a score")
        changes = {"fresh": True, "budget_usd": budget_usd, "tags": (TAGS[population],)}
        settings = leave_out(settings, lambda where: where.belongs_to_run).model_copy(update=changes)
        if begun is not None:
            again = replace(begun, status="running", finished_at=None, problem=None)
        else:
            again = begin_run(
                "noise", settings, parent=run.run_id, tags=settings.tags, n_samples=n_samples, repeats=run
            )
        tools = make_tools(settings, "noise")
        judges = tools.judges.change(lambda judge: RepeatedJudge(judge, again.run_id))
        live_run = replace(tools, judges=judges).make_live_run(again.run_id, warehouse)
        repeat_embeddings(live_run.embedder, again.run_id)
        live_run.resumed = begun is not None
        live_run.progress.n_samples = n_samples
        live_run.progress.what = "samples judged again"
        try:
            if begun is None:
                # The samples first: a noise run on record has some.
                copy_samples(warehouse, run_id=run.run_id, again_run_id=again.run_id, sample_ids=sample_ids)
                insert_run(warehouse, again)
            else:
                update_run(warehouse, again.run_id, status="running", finished_at=None, problem=None)
        except BaseException:  # Ctrl-C too: the record is closed
            live_run.asker.record.close()
            raise
        outcome = await carry_out(live_run, again)
        return NoiseOutcome(
            outcome=outcome,
            population=population,
            n_samples=n_samples,
            n_changed=warehouse.fetch_row("noise/changed_samples", run_id=again.run_id)["n"],
            problem=outcome.problem,
        )
    except WarehouseError as error:
        return NoiseOutcome(problem=str(error))


def _draw_samples(run: RunRow, warehouse: Warehouse, *, share: float) -> tuple[list[str], Population]:
    """Draw samples with the same texts, judged under the same settings and prompts, as in the evaluation before; from
    all samples where these are too few."""
    scored, unchanged = list(warehouse.fetch("noise/scored", run_id=run.run_id)["sample_id"]), set[str]()
    if (previous_id := find_previous(warehouse, run.run_id)) is not None:
        previous = find_run(warehouse, previous_id)
        is_other = any(getattr(previous, name) != getattr(run, name) for name in YARDSTICKS)
        if not is_other and not list_changed_settings(previous, run):
            judged_otherwise = RunPair(warehouse, previous, run).fetch("changed_judges")["sample_id"].to_list()
            unchanged = set(warehouse.fetch("noise/equal_inputs", base=previous_id, candidate=run.run_id)["sample_id"])
            unchanged -= set(judged_otherwise)
    unmoved = [sample_id for sample_id in scored if sample_id in unchanged]
    if len(unmoved) >= MIN_SAMPLES or len(unmoved) == len(scored):
        return pick_samples(unmoved, share=share, seed=run.run_id), "unchanged"
    return pick_samples(scored, share=share, seed=run.run_id), "all"


async def ask_again(
    run: RunRow, settings: RunSettings, warehouse: Warehouse, carry_out: CarryOut
) -> RepeatsOutcome | None:
    """Ask a share of a run's questions again, as many rounds as its target says, within the remainder of its budget.

    None when there is nothing to do: the run is not an evaluation, did not reach its end, or all rounds have. An error
    is reported in the outcome, for the run itself is done.
    """
    target = settings.target
    if target is None or run.kind != "evaluation" or run.status not in ("completed", "incomplete"):
        return None
    outcomes: list[RunOutcome] = []
    problem = None
    try:
        begun = dict(enumerate(list_repeats(warehouse, run.run_id)))
        due = [place for place in range(target.repeats) if place not in begun or begun[place].status != "completed"]
        if not due:
            return None
        for place in due:
            ended = await _ask_round(
                run, place, begun.get(place), target=target, settings=settings, warehouse=warehouse, carry_out=carry_out
            )
            if isinstance(ended, RunOutcome):
                outcomes.append(ended)
            problem = ended.problem if isinstance(ended, RunOutcome) else ended
            if problem is not None:
                break
        return RepeatsOutcome(
            outcomes=outcomes,
            counts=RepeatCounts(**warehouse.fetch_row("repeats/otherwise", run_id=run.run_id)),
            problem=problem,
        )
    except WarehouseError as error:
        return RepeatsOutcome(outcomes=outcomes, problem=str(error))


async def _ask_round(
    run: RunRow,
    place: int,
    begun: RunRow | None,
    *,
    target: TargetSettings,
    settings: RunSettings,
    warehouse: Warehouse,
    carry_out: CarryOut,
) -> RunOutcome | str:
    """Ask and judge one round, from the beginning or, where it was `begun`, from where it stopped; return why nothing
    can be asked."""
    from evalhouse.flows.preparing.live_run import list_paid, make_collection, make_tools  # noqa: PLC0415  # import what judges
    from evalhouse.tasks.targets.collection import make_target  # noqa: PLC0415

    budget_usd = settings.budget_usd
    if budget_usd is not None:
        # All that the round may spend: the budget less what the run, its noise run and other rounds have spent.
        parts = [part for part in list_runs(warehouse, kinds=("noise", "repeats")) if part.parent_run_id == run.run_id]
        paid = list_paid(warehouse, run.run_id, settings).union(part.run_id for part in parts)
        budget_usd -= sum(sum_cost(warehouse, run_id) for run_id in paid - {begun.run_id if begun else ""})
        if budget_usd <= (sum_cost(warehouse, begun.run_id) if begun else 0.0):
            return "nothing is left of the budget"
    sample_ids: list[str] = []
    if begun is None:
        asked = dict(warehouse.fetch("repeats/asked", run_id=run.run_id).select("sample_id", "is_asked").iter_rows())
        sample_ids = [name for name in pick_steadily(list(asked), share=target.repeat_share) if asked[name]]
        if not sample_ids:
            return "none of the questions drawn was answered in this run"
    if target.history == "own" and not make_target(target).takes_conversation:
        return "the application remembers its conversations itself, and one of their turns cannot be asked alone"
    # A question is asked again after the same history as then.
    changes = {
        "target": target.model_copy(update={"repeats": 0, "history": "dataset"}),
        "fresh": False,
        "budget_usd": budget_usd,
        "tags": (f"repeat {place + 1} of {target.repeats}",),
    }
    settings = leave_out(settings, lambda where: where.belongs_to_run).model_copy(update=changes)
    if begun is not None:
        again = replace(begun, status="running", finished_at=None, problem=None)
    else:
        again = begin_run(
            "repeats", settings, parent=run.run_id, tags=settings.tags, n_samples=len(sample_ids), repeats=run
        )
    live_run = make_tools(settings, "repeats").make_live_run(again.run_id, warehouse)
    live_run.resumed = begun is not None
    live_run.progress.n_samples = again.n_samples or 0
    live_run.progress.what = "answers asked for again"
    try:
        if begun is None:
            # The samples first: a round on record has some.
            copy_samples(warehouse, run_id=run.run_id, again_run_id=again.run_id, sample_ids=sample_ids)
            insert_run(warehouse, again)
        else:
            update_run(warehouse, again.run_id, status="running", finished_at=None, problem=None)
        live_run.collection = make_collection(live_run, again, make_target(settings.target or target), None)
    except BaseException:  # Ctrl-C too: the record is closed
        live_run.asker.record.close()
        raise
    return await carry_out(live_run, again)
