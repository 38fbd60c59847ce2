"""Extract: split an answer and a ground truth into statements, once a run, for every metric that wants them."""

from prefect import task

from prompts import Item
from tasks.bench import Bench, find_bench
from tasks.judge import Question
from tasks.judge_errors import JudgeFailed
from tasks.reading import read_statements
from tasks.shard import ID_PREFIXES, Extraction, SampleWork, Source
from tasks.step_runs import TASK_OPTIONS, run_step
from warehouse.metric_files import Step

_STEPS: dict[Source, Step] = {"answer": "extract_answer", "ground_truth": "extract_ground_truth"}


@task(name="extract", task_run_name="extract shard {shard}", **TASK_OPTIONS)
async def extract(run_id: str, shard: int) -> None:
    """Split the texts of a shard into statements."""
    with find_bench(run_id).shards[shard].releasing_waiting():
        await run_step(run_id, shard, extract_answer, extract_ground_truth)


async def extract_answer(bench: Bench, work: SampleWork) -> None:
    """Split one sample's answer and hand the statements on."""
    await _extract(bench, work, "answer", work.sample.answer)


async def extract_ground_truth(bench: Bench, work: SampleWork) -> None:
    """Split one sample's ground truth and hand the statements on."""
    await _extract(bench, work, "ground_truth", work.sample.ground_truth)


async def _extract(bench: Bench, work: SampleWork, source: Source, text: str | None) -> None:
    step = _STEPS[source]
    if not bench.needs(step, work):
        return
    detail = None
    if text is None:
        extraction = Extraction(reason=f"no_{source}")
    else:
        try:
            extraction = await _ask_statements(bench, work, source, text)
        except JudgeFailed as error:
            extraction, detail = Extraction(reason=error.reason), str(error)
    for ordinal, item in enumerate(extraction.items, start=1):
        work.add_row(
            "statements",
            statement_id=item.id,
            source=source,
            ordinal=ordinal,
            text=item.text,
            call_id=extraction.call_id,
        )
    work.note_outcome(step, extraction.reason, detail)
    work.hand_over(source, extraction)


async def _ask_statements(bench: Bench, work: SampleWork, source: Source, text: str) -> Extraction:
    question = Question(
        step=_STEPS[source],
        sample_id=work.sample.sample_id,
        prompt=bench.prompts["extract"],
        data={"question": work.sample.question, "text": text},
    )
    answer = await bench.asker.ask(question, read_statements)
    items = tuple(
        Item(id=f"{ID_PREFIXES[source]}{number}", text=statement)
        for number, statement in enumerate(answer.value, start=1)
    )
    return Extraction(items=items, call_id=answer.call_id)
