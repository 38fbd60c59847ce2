"""One sample graded by one rubric with a judge whose replies a test writes down, and the resulting rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from live_runs import PROMPTS, ScriptedJudge, lay_out_run, make_sample, make_settings
from rows import fill, open_rows, score

from evalhouse.prompts import Prompt, Rubric
from evalhouse.tasks.grade import grade_sample, read_grades
from evalhouse.tasks.measure import measure_sample
from evalhouse.tasks.pipeline.live_run import SampleWork, make_work
from evalhouse.warehouse.rows.samples import StoredSample

Reply = str | Mapping[str, Any] | Exception
FULL = {"unrelated": False, "accuracy": 9, "comprehensiveness": 8, "context_precision": 7}


def say(reply: Reply) -> str | Exception:
    return orjson.dumps(reply).decode() if isinstance(reply, Mapping) else reply


def rate(rating: object, name: str = "accuracy", reason: str = "The year agrees.") -> dict[str, Any]:
    return {name: {"reason": reason, "rating": rating}}


def spread(*scores: tuple[object, object], name: str = "passage_recall") -> dict[str, Any]:
    entries = [{"score": score, "probability": probability} for score, probability in scores]
    return {name: {"reason": "Half of it is there.", "scores": entries}}


def flag(verdict: object, name: str = "answer_validity", reason: str = "It names the year.") -> dict[str, Any]:
    return {name: {"reason": reason, "verdict": verdict}}


def judge_relevance(totals: Mapping[str, object] | None = None, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    parts = {**FULL, **changes}
    written = {name: {"reason": f"of {name}", "rating": value} for name, value in parts.items() if name != "unrelated"}
    return {**flag(parts["unrelated"], "unrelated"), **written, **(totals or {})}


async def grade_with(
    folder: Path,
    rubric: str | Prompt,
    *replies: Reply,
    sample: StoredSample | None = None,
    **settings: Any,  # noqa: ANN401
) -> tuple[ScriptedJudge, SampleWork]:
    """Grade one sample by one rubric; the replies are given in turn, the last one for ever."""
    left = list(replies)
    judge = ScriptedJudge(lambda question: say(left.pop(0) if len(left) > 1 else left[0]))
    async with lay_out_run(folder, make_settings(**settings), judge=judge, metrics=["faithfulness"]) as live_run:
        live_run.rubrics = (PROMPTS[rubric] if isinstance(rubric, str) else rubric,)
        work = make_work(sample or make_sample())
        await grade_sample(live_run, work)
    return judge, work


async def measure(folder: Path, sample: StoredSample, *metrics: str) -> SampleWork:
    """Measure one sample for these metrics; a judge that is asked anything fails the test."""

    def refuse(_: object) -> str:
        raise AssertionError("nothing is asked")

    async with lay_out_run(folder, judge=ScriptedJudge(refuse), metrics=metrics) as live_run:
        work = make_work(sample)
        await measure_sample(live_run, work)
        assert live_run.asker.counts.requests == 0
    return work


def read_ratings(work: SampleWork) -> dict[str, float]:
    return {str(row["criterion"]): row["rating"] for row in work.rows["grades"]}  # type: ignore[misc]


def read_row(work: SampleWork, criterion: str) -> dict[str, object]:
    return next(row for row in work.rows["grades"] if row["criterion"] == criterion)


def find_rubric(name: str) -> Rubric:
    rubric = PROMPTS[name].rubric
    assert rubric is not None
    return rubric


def read(text: Reply, rubric: str = "accuracy") -> float:
    written = say(text)
    assert isinstance(written, str)
    return read_grades(written, find_rubric(rubric), has_contexts=True)[0].rating


def score_work(work: SampleWork, metric: str, **settings: float) -> tuple[float | None, str | None]:
    """The score of a run that holds this sample alone: its value and unscored_reason."""
    with open_rows() as con:
        fill(con, "samples", {"input_hash": "h1", "sample_id": "s1"})
        fill(con, "run_samples", {"run_id": "r", "sample_id": "s1", "input_hash": "h1"})
        for table in ("grades", "similarities", "outcomes"):
            fill(con, table, *({"run_id": "r", **row} for row in work.rows[table]))
        found = score(con, metric, "r", **settings)["s1"]
    return found.value, found.unscored_reason
