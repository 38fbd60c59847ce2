"""`benchmark`: a judge asked about labelled rows, the way a run asks it.

A benchmark that was stopped goes on where it was when the same command is given again, for its replies are on record,
and with more rows only these are paid for. Its calls belong to a run of kind `benchmark`, which has no samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import make_prompts
from evalhouse.flows.preparing.request import begin_run
from evalhouse.flows.run.outcome import Watch
from evalhouse.flows.trials.session import Session, open_session, rehearse
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.judge.names import LEXICAL
from evalhouse.tasks.models.make import Judges
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.trials.labelled_sets import Part
from evalhouse.tasks.trials.labelled_verdicts import GRADED_BY, Judged, judge_part, list_steps
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.steps import SEPARATE


@dataclass(frozen=True, kw_only=True)
class JudgedPart:
    """A set in one language with the judge's verdict on each row by one plan, and what asking took."""

    part: Part
    judged: Sequence[Judged]
    usage: Usage
    plan: str = SEPARATE

    @property
    def n_failed(self) -> int:
        """Rows without a verdict."""
        return sum(judged.failure is not None for judged in self.judged)


@dataclass(frozen=True, kw_only=True)
class BenchmarkOutcome:
    """What came of it. `problem` says what ended the asking early: rows that were not reached have no verdict."""

    run_id: str
    parts: Sequence[JudgedPart]
    problem: str | None


def run_benchmark(settings: RunSettings, parts: Sequence[Part], watch: Watch) -> BenchmarkOutcome:
    """Ask about all rows; raises FatalJudgeError when the judge cannot be asked at all."""
    plan = plan_parts(parts, settings.plan)
    tags = dict.fromkeys(part.name for part in parts)
    run = begin_run("benchmark", settings, tags=tuple(tags), n_samples=sum(len(part.rows) for part in parts))
    with open_session(settings, plan, run=run) as session:
        judged = session.carry_out(partial(_ask_in_turn, parts=parts), watch)
        session.has_failures = any(part.n_failed for part in judged)
    return BenchmarkOutcome(run_id=run.run_id, parts=judged, problem=session.problem)


def estimate_benchmark(settings: RunSettings, parts: Sequence[Part]) -> list[Usage]:
    """What asking about each part would take, less what is on record, with nothing asked and nothing written."""
    judged = rehearse(settings, plan_parts(parts, settings.plan), partial(_ask_in_turn, parts=parts))
    return [sum((one.usage for one in judged if one.part is part), start=Usage()) for part in parts]


async def _ask_in_turn(session: Session, parts: Sequence[Part]) -> list[JudgedPart]:
    """All parts, one after the other; where the settings name another plan by the separate one and by that."""
    turns = [(part, plan) for part in parts for plan in _list_plans(part, session.live_run.settings.plan)]
    session.expect(sum(len(part.rows) for part, _ in turns), "rows")
    judged_parts: list[JudgedPart] = []
    for part, plan in turns:
        live_run = await session.fit(_shape(session.live_run, part, plan))
        before = session.usage
        judged = await judge_part(live_run, part, session.note_done)
        judged_parts.append(JudgedPart(part=part, judged=judged, usage=session.usage - before, plan=plan))
    return judged_parts


def _list_plans(part: Part, plan: str) -> list[str]:
    """Once only where nothing rests on how it is asked."""
    is_alike = list_steps(part.kind, plan) == list_steps(part.kind, SEPARATE)
    return [SEPARATE] if is_alike else [SEPARATE, plan]


def _shape(live_run: LiveRun, part: Part, plan: str) -> LiveRun:
    """The live run with the steps of the part's kind, asked by this plan, and the prompts of its language."""
    settings = live_run.settings.model_copy(update={"language": part.language, "plan": plan})
    asker = live_run.asker
    judges = Judges(default=asker.judge, of_tasks={task: other.judge for task, other in asker.of_tasks.items()})
    prompts = make_prompts(settings, judges)
    rubrics = (prompts[GRADED_BY],) if part.kind == "rubric" and judges.find("grade").name != LEXICAL else ()
    return replace(live_run, settings=settings, prompts=prompts, steps=list_steps(part.kind, plan), rubrics=rubrics)


def plan_parts(parts: Sequence[Part], plan: str) -> Plan:
    """The steps of all kinds there are, asked by this plan; refuses what these cannot be asked with."""
    if not any(part.rows for part in parts):
        raise SettingsError("no row is left to judge; take another --half, or more folders")
    steps = frozenset(step for part in parts for step in list_steps(part.kind, plan))
    return Plan(metrics=(), steps=steps)
