"""`run --dry-run` where the application under test is asked: how many questions, and what judging its answers costs.

Its answers are not known before it was asked. Those on record of the suite's last run stand in for them: what was
judged then and has not changed is on record and costs nothing. Without any, nothing is said about the cost of judging.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from evalhouse.flows.display.output import print_json, print_line
from evalhouse.flows.preparing.shown import show_target
from evalhouse.flows.run.estimate import Estimate, estimate_run, print_estimate
from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.targets.known_responses import KnownResponses, ParentResponses
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_runs
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse


@dataclass(frozen=True, kw_only=True)
class TargetEstimate:
    """How much the application would be asked, and on how many answers the rest of the estimate stands.

    `asked` is None where nothing is asked because the responses of a run are judged.
    """

    asked: str | None
    n_questions: int
    n_answers_known: int
    answers_of: str | None


@dataclass(kw_only=True)
class _Answers:
    """Puts known responses in the place of what a dataset brings, and counts."""

    known: KnownResponses
    n_samples: int = 0
    n_known: int = field(default=0)

    def fill_in(self, samples: Sequence[StoredSample]) -> list[StoredSample]:
        """The samples whose response is known and came, with it."""
        found = self.known.find(samples)
        self.n_samples += len(samples)
        answered = [
            dataclasses.replace(sample, answer=one.answer, contexts=one.contexts, context_ids=one.context_ids)
            for sample in samples
            if (one := found.get(sample.sample_id)) is not None and one.status != "failed"
        ]
        self.n_known += len(answered)
        return answered


def print_target_estimate(settings: RunSettings, *, as_json: bool) -> None:
    """Print what a run with a target, or with the responses of an earlier run, would ask of whom."""
    parent = _find_parent(settings)
    estimate, answers = (None, None) if parent is None else _estimate_judging(settings, parent)
    n_samples = answers.n_samples if answers else _count_samples(settings)
    target = TargetEstimate(
        asked=show_target(settings.target) if settings.target and not settings.responses else None,
        n_questions=0 if settings.responses else n_samples,
        n_answers_known=answers.n_known if answers else 0,
        answers_of=parent.run_id if parent else None,
    )
    if as_json:
        judging = asdict(estimate) if estimate else {"n_samples": n_samples, "judge": settings.judge, "requests": None}
        print_json({**judging, "target": asdict(target)})
        return
    _print_target(target, n_samples)
    if estimate is not None:
        print_line()
        print_estimate(estimate, as_json=False)


def _print_target(target: TargetEstimate, n_samples: int) -> None:
    if target.asked is not None:
        print_line(f"{target.asked} will be asked {target.n_questions:,} questions.")
    if target.answers_of is None:
        print_line(
            "Its answers are not known yet, so there is no telling what judging them will cost. `evalhouse collect` "
            "asks without judging; afterwards this estimate has answers to stand on. Nothing was asked."
        )
        return
    share = f"{target.n_answers_known:,} answers of run {target.answers_of} to these {n_samples:,} questions"
    print_line(f"Judging is estimated from the {share}; what the application answers differently is asked in full.")


def _find_parent(settings: RunSettings) -> RunRow | None:
    """The run whose responses stand in for those to come; the one that is named, else the suite's last that has any."""
    warehouse = Warehouse(settings.warehouse)
    if settings.responses is not None:
        return find_run(warehouse, settings.responses)
    if not warehouse.location.path.exists():
        return None
    asked = (run for run in list_runs(warehouse) if run.suite == settings.suite and run.config.get("target"))
    ended = (run for run in asked if run.kind != "noise" and run.status in ("completed", "incomplete"))
    return next(ended, None)


def _estimate_judging(settings: RunSettings, parent: RunRow) -> tuple[Estimate, _Answers]:
    answers = _Answers(known=ParentResponses(warehouse=Warehouse(settings.warehouse), parent=parent))
    estimate = estimate_run(settings, fill_in=answers.fill_in)
    return dataclasses.replace(estimate, n_samples=answers.n_known), answers


def _count_samples(settings: RunSettings) -> int:
    staged = stage_dataset(settings.dataset, mapping=settings.mapping, limit=settings.limit)
    staged.staging.discard()
    return staged.n_samples
