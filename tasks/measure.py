"""Measure: what can be told of a sample without a judge. Text overlap, tool calls, rows returned by SQL, citations.

Expected and made tool calls, the tables of a query and its rows are further columns of the dataset, kept as the
sample's metadata.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Final

from prefect import task

from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.measures.citations import MOST_CITATIONS, place_citations, read_cited_text
from evalhouse.tasks.measures.tool_calls import RUBRIC as TOOL_CALLS
from evalhouse.tasks.measures.tool_calls import ToolCallError, grade_tool_calls, read_tool_calls
from evalhouse.tasks.pipeline.live_run import LiveRun, SampleWork
from evalhouse.tasks.pipeline.run_step import STEP_OPTIONS, take_shard
from evalhouse.tasks.pipeline.sql_results import RUBRIC as RESULT_SETS
from evalhouse.tasks.pipeline.sql_results import compare_results
from evalhouse.warehouse.errors import QueryStopped

_MOST_ROWS: Final = 10_000  # of the citations of one answer: a mark may name many contexts and close many statements


async def measure_sample(live_run: LiveRun, work: SampleWork) -> None:
    """Take each of the measures that the run's metrics rest on."""
    for step, take in MEASURES.items():
        if step in live_run.steps:
            try:
                reason, detail = await take(live_run, work), None
            except QueryStopped as error:
                reason, detail = "measure_failed", str(error)
            work.note_outcome(step, reason, detail)


@task(name="measure", task_run_name="measure shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def measure(run_id: str, shard: int) -> None:
    """Measure the samples of a shard without a judge."""
    await take_shard(run_id, shard, measure_sample)


async def _measure_overlap(_: LiveRun, work: SampleWork) -> str | None:
    sample = work.sample
    if sample.answer is None or sample.ground_truth is None:
        return "no_answer" if sample.answer is None else "no_ground_truth"
    from evalhouse.tasks.measures.overlap import measure_overlap  # noqa: PLC0415  # half a second, for metrics that few runs score

    accepted = sample.accepted_answers
    measured = [(text, measure_overlap(sample.answer, text)) for text in accepted]
    for kind in measured[0][1]:
        text, values = max(measured, key=lambda pair: pair[1][kind])
        work.add_row("similarities", kind=kind, value=values[kind], text=text if len(accepted) > 1 else None)
    return None


async def _compare_tool_calls(_: LiveRun, work: SampleWork) -> str | None:
    metadata = work.sample.metadata
    expected, made = metadata.get("expected_tool_calls"), metadata.get("tool_calls")
    if expected is None or made is None:
        return "no_ground_truth" if expected is None else "no_answer"
    try:
        wanted = read_tool_calls(expected, strict=True)
    except ToolCallError as error:
        raise FatalJudgeError(f"sample {work.sample.sample_id}, column expected_tool_calls: {error}") from None
    for match in grade_tool_calls(wanted, read_tool_calls(made, strict=False)):
        work.add_grade(TOOL_CALLS, match)
    return None


async def _compare_result_sets(_: LiveRun, work: SampleWork) -> str | None:
    grades = await asyncio.to_thread(compare_results, work.sample)
    if isinstance(grades, str):
        return grades
    for agreement in grades:
        work.add_grade(RESULT_SETS, agreement)
    return None


async def _read_citations(live_run: LiveRun, work: SampleWork) -> str | None:
    """A row for each citation, statement it belongs to, and context it names."""
    sample = work.sample
    if sample.answer is None or sample.contexts is None:
        return "no_answer" if sample.answer is None else "no_contexts"
    cited = await asyncio.to_thread(read_cited_text, sample, sample.answer, live_run.settings)
    if len(cited.citations) > MOST_CITATIONS:
        return "too_many_citations"
    statements: dict[str, str] = {}
    if "extract_answer" in live_run.steps and cited.citations:
        extraction = await work.wait_for_statements("answer")
        statements = {item.id: item.text for item in extraction.items}
    placed = await asyncio.to_thread(place_citations, sample.answer, cited, statements)
    if (
        placed is None
        or sum(
            max(1, len(placed[ordinal])) * max(1, len(citation.ranks))
            for ordinal, citation in enumerate(cited.citations)
        )
        > _MOST_ROWS
    ):
        return "too_many_citations"
    for ordinal, citation in enumerate(cited.citations):
        for statement_id, rank in product(placed[ordinal] or (None,), citation.ranks or (None,)):
            work.add_row(
                "citations",
                ordinal=ordinal + 1,
                marker=citation.marker,
                text_start=citation.start,
                text_end=citation.end,
                statement_id=statement_id,
                context_rank=rank,
            )
    return None


# No request is sent by any of them; the value is the reason why the step has no verdicts, None when it has.
MEASURES: dict[str, Callable[[LiveRun, SampleWork], Awaitable[str | None]]] = {
    "overlap": _measure_overlap,
    "tool_calls": _compare_tool_calls,
    "result_sets": _compare_result_sets,
    "citations": _read_citations,
}
