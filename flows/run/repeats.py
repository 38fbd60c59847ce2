"""The repeats at the end of a run that asked its target: a share of the questions is asked again, once a round, to see
how far the bot is from itself.

Each round is a run of its own, of kind `repeats`, with its own responses, calls, verdicts and scores, and names the run
as its parent. Means, intervals, gates and history are those of the first answers: `latest`, `previous` and labels never
select a round, and no history has it as a night. Its samples bear the ids of the first ones, so that answers to one
question are found together.

Which questions are asked again is drawn by their ids, the same ones every night. Of these a round asks those that the
run itself has asked and that were answered: a response that was taken from an earlier night may be of other documents.
Answers are judged like the first ones, and what is on record is used: an answer with the same contexts as before costs
nothing. A round that was stopped goes on where it was when its parent is resumed.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evalhouse.flows.preparing.collection import make_collection
from evalhouse.flows.preparing.live_run import make_tools
from evalhouse.flows.preparing.request import begin_run
from evalhouse.flows.run.outcome import RepeatsOutcome, RunOutcome
from evalhouse.tasks.comparing.noise import pick_steadily
from evalhouse.tasks.settings.run import RunSettings, leave_out
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.collection import make_target
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.again import count_repeats, list_asked, list_repeats
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.rows.runs import RunRow, insert_run, list_runs, update_run
from evalhouse.warehouse.rows.scores import copy_samples
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

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
