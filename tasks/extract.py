"""Extract: split an answer and a ground truth into statements, once a run, for every metric that wants them.

A text that no request holds is cut into parts (`text_parts`), which are asked for side by side, each with the question.
Nothing of the neighbouring parts goes along, because it would come back as statements a second time. When one part
fails the whole text has failed: half of its statements would pass for all of them.

The answer of an application that said nothing at all has no statements, and nobody has to be asked about that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from evalhouse.prompts import Item
from evalhouse.tasks.asking.tokens import estimate_tokens, leave_room
from evalhouse.tasks.asking.verdicts import COPIED, gather_all, read_statements
from evalhouse.tasks.judge.errors import CutReply, JudgeFailed, UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.accepted import AcceptedAnswer, pick_accepted
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import make_task
from evalhouse.tasks.pipeline.shard import ID_PREFIXES, Extraction, SampleWork, Source
from evalhouse.tasks.pipeline.text_parts import ask_in_parts, split_to_judge

# A shorter text is not what made a reply too long.
_LEAST_CUT = 40
_STEPS: dict[Source, str] = {"answer": "extract_answer", "ground_truth": "extract_ground_truth"}


@dataclass(frozen=True, kw_only=True)
class _PartReply:
    """The statements of one part of a text and the call they came from."""

    statements: Sequence[str]
    call_id: str


@dataclass(frozen=True, kw_only=True)
class _Split:
    """The statements of a text, numbered over all its parts, with the call of each; `call_id` is the first part's.

    What was said in an earlier part counts there alone.
    """

    items: tuple[Item, ...]
    call_ids: tuple[str, ...]
    call_id: str


async def extract_statements(live_run: LiveRun, work: SampleWork) -> None:
    """Split one sample's texts and hand the statements on."""
    if len(work.sample.accepted_answers) > 1:
        # Which accepted answer counts is seen by the answer's statements.
        await extract_answer(live_run, work)
        await extract_ground_truth(live_run, work)
    else:
        await gather_all([extract_answer(live_run, work), extract_ground_truth(live_run, work)])


extract = make_task("extract", extract_statements, gives_statements=True)


async def extract_answer(live_run: LiveRun, work: SampleWork) -> None:
    """Split one sample's answer and hand the statements on."""
    await _extract(live_run, work, "answer", [] if work.sample.answer is None else [work.sample.answer])


async def extract_ground_truth(live_run: LiveRun, work: SampleWork) -> None:
    """Split one sample's ground truth and hand the statements on."""
    await _extract(live_run, work, "ground_truth", work.sample.accepted_answers)


async def _extract(live_run: LiveRun, work: SampleWork, source: Source, texts: Sequence[str]) -> None:
    step = _STEPS[source]
    # Done already where the step is taken again because the endpoint was down for the other text.
    if not live_run.needs(step) or work.extractions[source].done():
        return
    detail = None
    if not texts:
        extraction = Extraction(reason=f"no_{source}")
    elif not any(texts):
        extraction = Extraction()
    else:
        try:
            splits = await gather_all([_split(live_run, work, source, text) for text in texts])
            extraction = _add_rows(work, source, splits[await _pick(live_run, work, source, texts, splits)])
        except JudgeFailed as error:
            extraction, detail = Extraction(reason=error.reason), str(error)
    work.note_outcome(step, extraction.reason, detail)
    work.hand_over(source, extraction)


async def _split(live_run: LiveRun, work: SampleWork, source: Source, text: str) -> _Split:
    room = leave_room(live_run.settings.request_tokens, work.sample.question)
    parts = await ask_in_parts(room, partial(_ask_parts, live_run, work, source, text))
    call_ids: dict[str, str] = {}
    for part in parts:
        for statement in part.statements:
            call_ids.setdefault(statement, part.call_id)
    items = [Item(id=f"{ID_PREFIXES[source]}{ordinal}", text=text) for ordinal, text in enumerate(call_ids, start=1)]
    return _Split(items=tuple(items), call_ids=tuple(call_ids.values()), call_id=parts[0].call_id)


async def _ask_parts(live_run: LiveRun, work: SampleWork, source: Source, text: str, most: int) -> list[_PartReply]:
    asked = await gather_all([_ask_part(live_run, work, source, part) for part in split_to_judge(text, most)])
    return [part for parts in asked for part in parts]


async def _pick(
    live_run: LiveRun, work: SampleWork, source: Source, texts: Sequence[str], splits: Sequence[_Split]
) -> int:
    """The place of the text whose statements count; there is a choice among several accepted answers alone."""
    if len(texts) == 1:
        return 0
    accepted = [AcceptedAnswer(text=text, items=split.items) for text, split in zip(texts, splits, strict=True)]
    return await pick_accepted(live_run, work, accepted)


async def _ask_part(live_run: LiveRun, work: SampleWork, source: Source, part: str) -> list[_PartReply]:
    """The statements of a part; of its halves where the reply about it was cut off."""
    question = Question(
        step=_STEPS[source],
        sample_id=work.sample.sample_id,
        prompt=live_run.prompts["extract"],
        data={"question": work.sample.question, "text": part},
    )

    def read(text: str) -> list[str]:
        statements = read_statements(text)
        if question.prompt is not None and question.prompt.list_copied(statements, question.data):
            raise UnusableReply(f"{COPIED} among the statements")
        return statements

    n_tokens = estimate_tokens(part)
    try:
        answer = await live_run.asker.ask(question, read, read_cut=_refuse_cut if n_tokens > _LEAST_CUT else None)
    except CutReply:
        asked = [_ask_part(live_run, work, source, half) for half in split_to_judge(part, -(-n_tokens // 2))]
        return [reply for replies in await gather_all(asked) for reply in replies]
    return [_PartReply(statements=answer.value, call_id=answer.call_id)]


def _refuse_cut(_: str) -> list[str]:
    """Half of a text's statements would pass for all of them."""
    raise UnusableReply("the reply broke off")


def _add_rows(work: SampleWork, source: Source, split: _Split) -> Extraction:
    for ordinal, (item, call_id) in enumerate(zip(split.items, split.call_ids, strict=True), start=1):
        work.add_row(
            "statements", statement_id=item.id, source=source, ordinal=ordinal, text=item.text, call_id=call_id
        )
    return Extraction(items=split.items, call_id=split.call_id)
