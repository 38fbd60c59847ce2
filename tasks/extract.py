"""Extract: split an answer and a ground truth into statements, once a run, for every metric that needs them.

When one part of a long text fails the whole text has failed: half of its statements would pass for all of them. The
answer of an application that answered with nothing has no statements, and needs no request.
"""

from collections.abc import Sequence

from prefect import task

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.classify import pick_accepted
from evalhouse.tasks.judge.errors import JudgeFailed
from evalhouse.tasks.pipeline.live_run import ID_PREFIXES, Extraction, LiveRun, SampleWork, Source
from evalhouse.tasks.pipeline.run_step import STEP_OPTIONS, take_shard
from evalhouse.tasks.pipeline.text_splitter import EXTRACT_STEPS, BothTexts, TextSplitter, split_both

_NOT_ASKED = BothTexts()


@task(name="extract", task_run_name="extract shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def extract(run_id: str, shard: int) -> None:
    """Split the texts of a shard's samples into statements."""
    await take_shard(run_id, shard, extract_statements, gives_statements=True)


async def extract_statements(live_run: LiveRun, work: SampleWork) -> None:
    """Split one sample's texts and hand the statements to the steps that wait for them."""
    if len(work.sample.accepted_answers) > 1:
        # The answer's statements decide which accepted answer counts.
        await extract_answer(live_run, work)
        await extract_ground_truth(live_run, work)
    else:
        both = await split_both(live_run, work)
        await gather_all([extract_answer(live_run, work, both), extract_ground_truth(live_run, work, both)])


async def extract_answer(live_run: LiveRun, work: SampleWork, both: BothTexts = _NOT_ASKED) -> None:
    """Split one sample's answer and hand the statements on."""
    await _extract(live_run, work, "answer", [] if work.sample.answer is None else [work.sample.answer], both)


async def extract_ground_truth(live_run: LiveRun, work: SampleWork, both: BothTexts = _NOT_ASKED) -> None:
    """Split one sample's ground truth and hand the statements on."""
    await _extract(live_run, work, "ground_truth", work.sample.accepted_answers, both)


async def _extract(live_run: LiveRun, work: SampleWork, source: Source, texts: Sequence[str], both: BothTexts) -> None:
    step = EXTRACT_STEPS[source]
    # Done already where the step is taken again because the endpoint was down for the other text.
    if step not in live_run.steps or work.extractions[source].done():
        return
    extraction, detail = Extraction(), None
    if not texts:
        extraction = Extraction(reason=f"no_{source}")
    elif any(texts):
        splitter = TextSplitter(live_run, work, source)
        try:
            if source in both.parts:
                replies = [[both.parts[source]]]
            else:
                replies = await gather_all([splitter.split(text) for text in texts])
            # Of each text its statements with the call of each; one that several parts make counts in the first.
            calls: list[dict[str, str]] = [{} for _ in replies]
            for calls_of_text, parts in zip(calls, replies, strict=True):
                for part in parts:
                    for statement in part.statements:
                        if cleaned := _drop_citations(live_run, work, source, statement):
                            calls_of_text.setdefault(cleaned, part.call_id)
            items = [
                tuple(Item(id=f"{ID_PREFIXES[source]}{ordinal}", text=text) for ordinal, text in enumerate(found, 1))
                for found in calls
            ]
            place = 0 if len(texts) == 1 else await pick_accepted(live_run, work, texts, items)
            for ordinal, (item, call_id) in enumerate(zip(items[place], calls[place].values(), strict=True), start=1):
                columns = {"statement_id": item.id, "source": source, "ordinal": ordinal, "text": item.text}
                work.add_row("statements", **columns, call_id=call_id)
            extraction = Extraction(items=items[place], call_id=replies[place][0].call_id)
            detail = "; ".join(filter(None, (splitter.before.note, both.problem))) or None
        except JudgeFailed as error:
            extraction, detail = Extraction(reason=error.reason), str(error)
    work.note_outcome(step, extraction.reason, detail)
    work.hand_over(source, extraction)


def _drop_citations(live_run: LiveRun, work: SampleWork, source: Source, statement: str) -> str:
    """Return a statement without the citations that a judge left in it, "" where nothing else is left.

    They would tell the judge which contexts are meant to support it. Requests of runs that do not measure citations
    do not change, so that their recorded replies are found.
    """
    if source != "answer" or "citations" not in live_run.steps:
        return statement
    from evalhouse.tasks.measures.citations import strip_citations  # noqa: PLC0415  # few runs measure them

    text = strip_citations(work.sample, statement, live_run.settings)
    return text if any(character.isalnum() for character in text) else ""
