"""Measure: compare texts, tool calls, rows returned by SQL and citations of a sample, without a judge.

Expected and made tool calls, the tables of a query and its rows are further columns of the dataset, kept as the
sample's metadata.
"""

# ruff: noqa: PLC0415  # each measure is imported by the runs that score it
import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Final

import orjson
from prefect import task

from evalhouse.tasks.datasets.values import CALL_COLUMNS, EXPECTED_CALL_COLUMNS, NULLS_FILLED_IN
from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.pipeline.live_run import STEP_OPTIONS, LiveRun, SampleWork, take_shard
from evalhouse.warehouse.errors import QueryStopped
from evalhouse.warehouse.messages import clean_text
from evalhouse.warehouse.store import Warehouse

_MAX_DEATHS: Final = 2  # how often the run's process may end while it measures a sample
_MAX_ROWS: Final = 10_000  # of the citations of one answer: a mark may name many contexts and close many statements


@task(name="measure", task_run_name="measure shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def measure(run_id: str, shard: int) -> None:
    """Measure the samples of a shard without a judge."""
    await take_shard(run_id, shard, measure_sample)


async def measure_sample(live_run: LiveRun, work: SampleWork) -> None:
    """Take each of the measures that the run's metrics rest on."""
    for step, take in MEASURES.items():
        if step in live_run.steps:
            try:
                reason, detail = await take(live_run, work), None
            except QueryStopped as error:
                reason, detail = "measure_failed", str(error)
            work.note_outcome(step, reason, detail)


async def measure_overlaps(live_run: LiveRun, work: SampleWork) -> str | None:
    """Add the overlap of an answer with the accepted answer that is closest to it."""
    sample = work.sample
    if sample.answer is None or sample.ground_truth is None:
        return "no_ground_truth" if sample.ground_truth is None else "no_answer"
    from evalhouse.tasks.measures.overlap import measure_overlap  # half a second

    accepted = sample.accepted_answers
    with _marked(live_run, sample.sample_id):
        measured = [(text, measure_overlap(sample.answer, text)) for text in accepted]
    for kind in measured[0][1]:
        text, values = max(measured, key=lambda pair: pair[1][kind])
        work.add_row("similarities", kind=kind, value=values[kind], text=text if len(accepted) > 1 else None)
    return None


async def compare_tool_calls(live_run: LiveRun, work: SampleWork) -> str | None:
    """Grade tool calls against the expected ones; in a dataset that records calls, null means no call.

    A target returns no calls, nor has a variant's column of answers any: the dataset has the calls of another bot.
    """
    from evalhouse.tasks.measures.structured_answers import TOOL_CALLS, ToolCallError, grade_tool_calls, read_tool_calls

    metadata = work.sample.metadata
    column = next((name for name in EXPECTED_CALL_COLUMNS if metadata.get(name) is not None), None)
    column_made = next((name for name in CALL_COLUMNS if metadata.get(name) is not None), None)
    made = metadata[column_made] if column_made else None
    expected = metadata[column] if column else None
    are_names = (
        isinstance(expected, list) and column == "expected_tools" and any(isinstance(one, str) for one in expected)
    )
    if column is None or are_names:  # deepeval's may be names alone
        return "no_ground_truth"
    if live_run.settings.has_other_answers:
        return "no_answer"
    # A turn that was cut from messages has every call that these hold.
    if made is None and metadata.keys().isdisjoint({*CALL_COLUMNS, "turn"}) and not live_run.records_tool_calls:
        return "no_answer"
    try:
        # Of both: a call whose arguments are JSON may have the nulls that the nested column of the other adds.
        without_nulls = not {column, column_made}.isdisjoint(metadata.get(NULLS_FILLED_IN, ()))
        wanted = read_tool_calls(expected, strict=True, without_nulls=without_nulls)
    except ToolCallError as error:
        raise FatalJudgeError(f"sample {work.sample.sample_id}, column {column}: {error}") from None
    given = read_tool_calls([] if made is None else made, strict=False, without_nulls=without_nulls)
    for match in grade_tool_calls(wanted, given):
        work.add_grade(TOOL_CALLS, match)
    return None


async def compare_result_sets(live_run: LiveRun, work: SampleWork) -> str | None:
    """Grade the rows of an answer's query against the rows of the expected one."""
    from evalhouse.tasks.measures.structured_answers import RESULT_SETS, compare_results

    # One at a time: should the process end, it is plain which sample it was measuring.
    async with live_run.measuring:
        with _marked(live_run, work.sample.sample_id):
            grades = await asyncio.to_thread(
                compare_results,
                work.sample,
                live_run.settings.dataset,
                made_rows=None if live_run.settings.has_other_answers else "rows",
            )
    if isinstance(grades, str):
        return grades
    for agreement in grades:
        work.add_grade(RESULT_SETS, agreement)
    return None


@contextmanager
def _marked(live_run: LiveRun, sample_id: str) -> Iterator[None]:
    """Leave a file for as long as a sample is measured, so that a resumed run knows which one ended its process.

    Raises QueryStopped for a sample that did so twice.
    """
    path = find_mark(live_run.warehouse, live_run.run_id, sample_id)
    folder = path.parent
    deaths = len(path.read_bytes().splitlines()) if live_run.resumed and path.exists() else 0
    try:
        if deaths >= _MAX_DEATHS:
            raise QueryStopped(f"the run's process ended {deaths} times while it measured this sample")
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(orjson.dumps(sample_id) + b"\n")
        yield
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # another sample is being measured
            folder.rmdir()
            folder.parent.rmdir()


def describe_deaths(warehouse: Warehouse, run_id: str) -> list[str]:
    """Return a notice for each sample that a resumed run leaves out, because it ended the run's process twice."""
    notices = []
    for path in sorted(find_mark(warehouse, run_id, "").parent.glob("*")):
        lines = path.read_bytes().splitlines()
        if len(lines) >= _MAX_DEATHS:
            notices.append(
                f"warning: the run's process ended {len(lines)} times while it measured sample "
                f"{clean_text(orjson.loads(lines[0]))}, which is not measured again (measure_failed)"
            )
    return notices


def find_mark(warehouse: Warehouse, run_id: str, sample_id: str) -> Path:
    """Return the file that holds a line for each process of the run that began to measure the sample and ended."""
    name = hashlib.sha256(sample_id.encode()).hexdigest()[:32]
    return warehouse.location.journal_path / "measuring" / run_id / name


async def find_citations(live_run: LiveRun, work: SampleWork) -> str | None:
    """Add a row for each citation, statement it belongs to, and context it names."""
    from evalhouse.tasks.measures.citations import MAX_CITATIONS, find_citations, list_sources, place_citations
    from evalhouse.tasks.settings.run import compile_patterns

    sample = work.sample
    if sample.answer is None or sample.contexts is None:
        return "no_answer" if sample.answer is None else "no_contexts"
    sources = list_sources(sample, live_run.settings)
    patterns = compile_patterns(live_run.settings.citations)
    cited = await asyncio.to_thread(find_citations, sample.answer, sources, patterns)
    if len(cited.citations) > MAX_CITATIONS:
        return "too_many_citations"
    statements: dict[str, str] = {}
    if "extract_answer" in live_run.steps and cited.citations:
        extraction = await work.wait_for_statements("answer")
        statements = {item.id: item.text for item in extraction.items}
    placed = await asyncio.to_thread(place_citations, sample.answer, cited, statements)
    if placed is None:
        return "too_many_citations"
    pairs = [(placed[place] or (None,), citation.ranks or (None,)) for place, citation in enumerate(cited.citations)]
    if sum(len(ids) * len(ranks) for ids, ranks in pairs) > _MAX_ROWS:
        return "too_many_citations"
    for ordinal, (citation, (ids, ranks)) in enumerate(zip(cited.citations, pairs, strict=True), start=1):
        for statement_id, rank in product(ids, ranks):
            work.add_row(
                "citations",
                ordinal=ordinal,
                marker=citation.marker,
                text_start=citation.start,
                text_end=citation.end,
                statement_id=statement_id,
                context_rank=rank,
            )
    return None


# No request is sent by any of them; the value is the reason why the step has no verdicts, None when it has.
MEASURES: dict[str, Callable[[LiveRun, SampleWork], Awaitable[str | None]]] = {
    "overlap": measure_overlaps,
    "tool_calls": compare_tool_calls,
    "result_sets": compare_result_sets,
    "citations": find_citations,
}
