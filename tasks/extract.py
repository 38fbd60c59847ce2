"""Extract: split an answer and a ground truth into statements, once a run, for every metric that needs them.

When one part of a long text fails the whole text has failed: half of its statements would pass for all of them. The
answer of an application that answered with nothing has no statements, and needs no request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

import orjson
from prefect import task

from evalhouse.prompts import BlockValue, Item, collect_words, join_texts, list_texts
from evalhouse.tasks.asking.splitting import shrink_room, split_to_judge
from evalhouse.tasks.asking.usage import estimate_tokens
from evalhouse.tasks.asking.verdicts import gather_all, read_statements
from evalhouse.tasks.classify import pick_accepted
from evalhouse.tasks.judge.protocol import COPIED, NOT_IN_TEXT, CutReply, JudgeFailed, Question, TooLong, UnusableReply
from evalhouse.tasks.pipeline.live_run import (
    ID_PREFIXES,
    OTHER_LANGUAGE,
    STEP_OPTIONS,
    Extraction,
    LiveRun,
    SampleWork,
    Source,
    collect_turns,
    note_other_language,
    take_shard,
)

EXTRACT_STEPS: dict[Source, str] = {"answer": "extract_answer", "ground_truth": "extract_ground_truth"}
# A shorter text does not make a reply too long.
_MIN_CUT_TOKENS = 40
# Letters by which a word is known in another form of it.
_STEM = 5
# One or two words that only the other text has can be chance.
_MIN_MIXED_WORDS = 3


@dataclass(frozen=True, kw_only=True)
class PartReply:
    """The statements of a text, or of one of its parts, and the call that they came from."""

    statements: Sequence[str]
    call_id: str


@dataclass(frozen=True, kw_only=True)
class BothTexts:
    """The result of a request for both texts, by text; `problem` says why it brought nothing."""

    parts: Mapping[Source, PartReply] = field(default_factory=dict)
    problem: str | None = None


class TextSplitter:
    """Asks for the statements of one of a sample's texts.

    By a plan that has a prompt for both texts it asks with that one, and the block of the other text is empty.
    """

    def __init__(self, live_run: LiveRun, work: SampleWork, source: Source) -> None:
        self.before = collect_turns(work.sample, live_run.settings.request_tokens)
        self._asker, self._sample, self._source = live_run.asker, work.sample, source
        joint = live_run.extract_prompt
        self._prompt = (joint or live_run.prompts["extract"]).after(self.before.turns)
        self._block = "text" if joint is None else source
        self._other_blocks: dict[str, BlockValue] = {} if joint is None else dict.fromkeys(EXTRACT_STEPS, "")
        self._key = "statements" if joint is None else source

    def make_question(self, text: str) -> Question:
        """Return the question for the statements of this text alone."""
        return Question(
            step=EXTRACT_STEPS[self._source],
            sample_id=self._sample.sample_id,
            prompt=self._prompt,
            data={
                **self.before.block,
                "question": self._sample.question,
                **self._other_blocks,
                self._block: text,
            },
        )

    async def split(self, text: str) -> list[PartReply]:
        """Return the statements of a text, by the parts that it was asked about in. Raises JudgeFailed."""
        room = self.before.room
        while True:
            try:
                return await self._split_parts(text, room)
            except TooLong as error:
                room = shrink_room(room, error)

    async def _split_parts(self, text: str, most: int) -> list[PartReply]:
        replies = await gather_all([self._split_part(part) for part in split_to_judge(text, most)])
        return [reply for of_part in replies for reply in of_part]

    async def _split_part(self, part: str) -> list[PartReply]:
        question, n_tokens = self.make_question(part), estimate_tokens(part)
        read = partial(_read_statements, question=question, key=self._key)
        try:
            answer = await self._asker.ask(question, read, read_cut=_refuse_cut if n_tokens > _MIN_CUT_TOKENS else None)
        except CutReply:  # the statements of its halves, then
            return await self._split_parts(part, -(-n_tokens // 2))
        return [PartReply(statements=answer.value, call_id=answer.call_id)]


async def split_both(live_run: LiveRun, work: SampleWork) -> BothTexts:
    """Ask for both texts in one request, where the run's plan has a prompt for it (`fused`).

    Instructions and worked examples, most of what such a request costs, are then sent once. Either half of the reply is
    recorded as the reply to the request for that text alone, so that on a later night the ground truth is found and the
    answer is asked for alone. Nothing is asked where one of the texts is empty, done or on record already, or both are
    too long for one request; what brings no usable reply is asked text by text.
    """
    texts: dict[Source, str] = {
        "answer": work.sample.answer or "",
        "ground_truth": "".join(work.sample.accepted_answers),
    }
    if live_run.extract_prompt is None or not all(texts.values()):
        return BothTexts()
    splitters = {source: TextSplitter(live_run, work, source) for source in texts}
    fits = sum(map(estimate_tokens, texts.values())) <= splitters["answer"].before.room
    if not fits or any(extraction.done() for extraction in work.extractions.values()):
        return BothTexts()
    alone = {source: splitters[source].make_question(text) for source, text in texts.items()}
    blocks = {str(source): text for source, text in texts.items()}
    question = replace(alone["answer"], data={**alone["answer"].data, **blocks})

    def read(text: str) -> dict[Source, list[str]]:
        return {source: _read_statements(text, question=question, key=source) for source in texts}

    # Of samples with one ground truth and several answers the first one splits it, and the others find it.
    async with live_run.asker.claim(list(alone.values())):
        if any([await live_run.asker.is_recorded(one) for one in alone.values()]):
            return BothTexts()
        try:
            answer = await live_run.asker.ask(question, read, read_cut=_refuse_cut)
        except (CutReply, JudgeFailed) as error:
            return BothTexts(problem=f"both texts in one request: {error}; asked text by text")
        # A small model that has the right answer before it may write it in the place of a wrong one.
        shared = [text for name, value in question.data.items() if name not in texts for text in list_texts(value)]
        words = {source: collect_words([text, *shared]) for source, text in texts.items()}
        for source, statement in ((source, one) for source, listed in answer.value.items() for one in listed):
            other: Source = "ground_truth" if source == "answer" else "answer"
            taken = sorted(collect_words([statement]) & words[other] - words[source])[:_MIN_MIXED_WORDS]
            if len(taken) == _MIN_MIXED_WORDS:
                mixed = f"a statement of the {source} has words of the {other} ({', '.join(taken)})"
                return BothTexts(problem=f"both texts in one request: {mixed}; asked text by text")
        for source, statements in answer.value.items():
            reply = {key: statements if key == source else [] for key in texts}
            live_run.asker.keep_part(alone[source], orjson.dumps(reply).decode(), of=answer)
    return BothTexts(
        parts={source: PartReply(statements=found, call_id=answer.call_id) for source, found in answer.value.items()}
    )


def _read_statements(text: str, *, question: Question, key: str) -> list[str]:
    """Return the statements under a key of a reply; raises UnusableReply where a worked example was copied."""
    prompt, source = question.prompt, None
    # Judges without a schema split by rules, and give the same when they are asked again.
    if prompt is not None and prompt.reply_schema:
        source = join_texts(question.data)
    statements = read_statements(text, key, source=source)
    if prompt is not None and prompt.examples and prompt.list_copied(statements, question.data):
        raise UnusableReply(f"{COPIED} among the statements")
    return statements


def _refuse_cut(_: str) -> NoReturn:
    raise UnusableReply("the reply broke off")  # half of a text's statements would pass for all of them


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
    """Split one sample's ground truth and hand the statements on.

    The one of a question that a test set marks as unanswerable states nothing.
    """
    texts = [""] if work.sample.is_unanswerable else work.sample.accepted_answers
    await _extract(live_run, work, "ground_truth", texts, both)


async def _extract(live_run: LiveRun, work: SampleWork, source: Source, texts: Sequence[str], both: BothTexts) -> None:
    step = EXTRACT_STEPS[source]
    # Done already where the step is taken again because the endpoint was down for the other text.
    if step not in live_run.steps or work.extractions[source].done():
        return
    extraction, detail = Extraction(), None
    if not texts:
        extraction = Extraction(reason=f"no_{source}")
    elif any(texts) and note_other_language(live_run, work, step):
        work.hand_over(source, Extraction(reason=OTHER_LANGUAGE))
        return
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
            turns = [turn.text for turn in work.sample.conversation]
            strange = _list_strange(items[place], [texts[place], work.sample.question, *turns])
            marked = f"{NOT_IN_TEXT}{', '.join(strange)}" if strange else None
            detail = "; ".join(filter(None, (splitter.before.note, both.problem, marked))) or None
        except JudgeFailed as error:
            extraction, detail = Extraction(reason=error.reason), str(error)
    work.note_outcome(step, extraction.reason, detail)
    work.hand_over(source, extraction)


def _list_strange(items: Sequence[Item], sources: Sequence[str]) -> list[str]:
    """Return the ids of statements of which most words, by their first letters, are in none of the sources."""
    known = {word[:_STEM] for word in collect_words(sources)}
    strange = []
    for item in items:
        words = collect_words([item.text])
        n_missing = sum(word[:_STEM] not in known for word in words)
        if n_missing > max(1, len(words) / 2):
            strange.append(item.id)
    return strange


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
