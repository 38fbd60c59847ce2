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
from typing import TYPE_CHECKING

from evalhouse.flows.preparing.collection import make_collection
from evalhouse.flows.preparing.live_run import make_tools
from evalhouse.flows.run.outcome import RepeatsOutcome
from evalhouse.tasks.comparing.noise import pick_steadily
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.collection import make_target
from evalhouse.warehouse.rows.again import count_repeats, list_asked, list_repeats
from evalhouse.warehouse.rows.runs import list_runs, update_run

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
    from evalhouse.tasks.asking.embeddings import repeat_embeddings  # noqa: PLC0415
    from evalhouse.tasks.judge.protocol import RepeatedJudge  # noqa: PLC0415

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


CarryOut = Callable[["LiveRun", RunRow], Awaitable[RunOutcome]]


async def ask_again(
    run: RunRow, settings: RunSettings, warehouse: Warehouse, carry_out: CarryOut
) -> RepeatsOutcome | None:
    """Ask a share of a run's questions again, as many rounds as its target says, within what is left of its budget.

    None when there is nothing to do: the run is not an evaluation, did not come to its end, or all rounds have. What
    goes wrong stands in the outcome, for the run itself is done.
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
            this = _Round(run=run, place=place, begun=begun.get(place), settings=settings, target=target)
            problem = this.find_obstacle(warehouse)
            if problem is None:
                outcomes.append(await this.ask(warehouse, carry_out))
                problem = outcomes[-1].problem
            if problem is not None:
                break
        return RepeatsOutcome(outcomes=outcomes, counts=count_repeats(warehouse, run.run_id), problem=problem)
    except WarehouseError as error:
        return RepeatsOutcome(outcomes=outcomes, problem=str(error))


@dataclass(frozen=True, kw_only=True)
class _Round:
    """The round at a place, from 0, of the repeats of a run; `begun` is its row where it was stopped before."""

    run: RunRow
    place: int
    begun: RunRow | None
    settings: RunSettings
    target: TargetSettings

    def find_obstacle(self, warehouse: Warehouse) -> str | None:
        """Why nothing can be asked; None where something can."""
        budget_usd = self._find_budget(warehouse)
        spent_usd = sum_cost(warehouse, self.begun.run_id) if self.begun else 0.0
        if budget_usd is not None and budget_usd <= spent_usd:
            return "nothing is left of the budget"
        if self.begun is None and not self._draw(warehouse):
            return "none of the questions drawn was answered in this run"
        if self.target.history == "own" and not make_target(self.target).takes_conversation:
            return "the application remembers its conversations itself, and one of their turns cannot be asked alone"
        return None

    async def ask(self, warehouse: Warehouse, carry_out: CarryOut) -> RunOutcome:
        """Ask and judge, from the beginning or from where the round stopped."""
        settings = self._derive_settings(self._find_budget(warehouse))
        sample_ids = self._draw(warehouse) if self.begun is None else []
        again = self._make_row(settings, len(sample_ids))
        live_run = make_tools(settings, "repeats").make_live_run(again.run_id, warehouse)
        live_run.resumed = self.begun is not None
        live_run.progress.n_samples = again.n_samples or 0
        live_run.progress.what = "answers asked for again"
        try:
            if self.begun is None:
                # The samples first: a round on record has some.
                copy_samples(warehouse, run_id=self.run.run_id, again_run_id=again.run_id, sample_ids=sample_ids)
                insert_run(warehouse, again)
            else:
                update_run(warehouse, again.run_id, status="running", finished_at=None, problem=None)
            live_run.collection = make_collection(live_run, again, make_target(settings.target or self.target), None)
        except BaseException:  # whatever stops it, Ctrl-C too: the record is closed
            live_run.asker.record.close()
            raise
        return await carry_out(live_run, again)

    def _draw(self, warehouse: Warehouse) -> list[str]:
        asked = list_asked(warehouse, self.run.run_id)
        return [name for name in pick_steadily(list(asked), share=self.target.repeat_share) if asked[name]]

    def _make_row(self, settings: RunSettings, n_samples: int) -> RunRow:
        if self.begun is not None:
            return replace(self.begun, status="running", finished_at=None, problem=None)
        return begin_run(
            "repeats", settings, parent=self.run.run_id, tags=settings.tags, n_samples=n_samples, repeats=self.run
        )

    def _find_budget(self, warehouse: Warehouse) -> float | None:
        """What the round may spend in all: the budget less what the run, its noise run and other rounds have spent."""
        if self.settings.budget_usd is None:
            return None
        parts = list_runs(warehouse, kinds=("noise", "repeats"))
        run_ids = [one.run_id for one in parts if one.parent_run_id == self.run.run_id]
        others = [run_id for run_id in run_ids if self.begun is None or run_id != self.begun.run_id]
        spent = (self.run.run_id, *others, *self.settings.runs_before)
        return self.settings.budget_usd - sum(sum_cost(warehouse, run_id) for run_id in spent)

    def _derive_settings(self, budget_usd: float | None) -> RunSettings:
        """The run's settings, but for what belongs to the run alone."""
        changes = {
            # A question is asked again after what was said before it then.
            "target": self.target.model_copy(update={"repeats": 0, "history": "dataset"}),
            "fresh": False,
            "budget_usd": budget_usd,
            "tags": (f"repeat {self.place + 1} of {self.target.repeats}",),
        }
        return leave_out(self.settings, lambda where: where.belongs_to_run).model_copy(update=changes)
