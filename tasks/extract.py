"""Extract: split an answer and a ground truth into statements, once a run, for every metric that wants them.

A text that no request holds is cut into parts (`asking/tokens`), which are asked for side by side, each with the
question. Nothing of the neighbouring parts goes along, because it would come back as statements a second time. When one
part fails the whole text has failed: half of its statements would pass for all of them.

By a plan that has a prompt for it (`fused`) the answer and the ground truth go into one request, as long as neither is
on record: instructions and worked examples, most of what such a request costs, are sent once. Either half of the reply
goes on record as what the request for that text alone would bring, so that on a later night the ground truth is there
and the answer is asked for alone, by the same prompt with an empty block in the place of the other. What cannot be had
of both at once, because they are too long or no reply was of use, is asked text by text, and so are texts of which one
was given words of the other: a small model that has the right answer before it writes it in the place of a wrong one.

The answer of an application that said nothing at all has no statements, and nobody has to be asked about that.

A dataset may name several right answers (`ground_truths`). A judge that reads the ground truth as a text is shown them
all, one a line. Statements, though, are held against one of them: each is split and classified, and the one that gives
the answer the highest factual_f1 counts, the earlier one among equals. Where nothing is classified it is the one that
is spelled most like the answer. `similarities` names it, under `accepted_answer`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

import orjson
from prefect import task

from evalhouse.prompts import BlockValue, Item, collect_words, list_texts
from evalhouse.tasks.asking.embedders import compare_spelling
from evalhouse.tasks.asking.tokens import ask_in_parts, estimate_tokens, split_to_judge
from evalhouse.tasks.asking.verdicts import COPIED, JudgedItem, gather_all, read_statements
from evalhouse.tasks.classify import ask_labels, pick_telling
from evalhouse.tasks.judge.errors import CutReply, JudgeFailed, UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.measures.citations import strip_citations
from evalhouse.tasks.pipeline.live_run import (
    ID_PREFIXES,
    Before,
    Extraction,
    LiveRun,
    SampleWork,
    Source,
    collect_turns,
)
from evalhouse.tasks.pipeline.run_step import STEP_OPTIONS, take_shard

# A shorter text is not what made a reply too long.
_LEAST_CUT = 40
# So many words of the other text alone are no chance.
_MIXED_FROM = 3
_STEPS: dict[Source, str] = {"answer": "extract_answer", "ground_truth": "extract_ground_truth"}


@dataclass(frozen=True, kw_only=True)
class _PartReply:
    """The statements of one part of a text and the call they came from."""

    statements: Sequence[str]
    call_id: str


@dataclass(frozen=True, kw_only=True)
class _Both:
    """What came of the request for both texts, by text, and why nothing did where it was asked in vain."""

    parts: Mapping[Source, _PartReply] = field(default_factory=dict)
    problem: str | None = None


_NOT_ASKED = _Both()


@dataclass(frozen=True, kw_only=True)
class _Split:
    """The statements of a text, numbered over all its parts, with the call of each; `call_id` is the first part's.

    What was said in an earlier part counts there alone.
    """

    items: tuple[Item, ...]
    call_ids: tuple[str, ...]
    call_id: str


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One of a sample's texts, as it is asked about, and what came before the question."""

    live_run: LiveRun
    work: SampleWork
    source: Source
    before: Before


async def extract_statements(live_run: LiveRun, work: SampleWork) -> None:
    """Split one sample's texts and hand the statements on."""
    if len(work.sample.accepted_answers) > 1:
        # Which accepted answer counts is seen by the answer's statements.
        await extract_answer(live_run, work)
        await extract_ground_truth(live_run, work)
    else:
        both = await _ask_both(live_run, work)
        await gather_all([extract_answer(live_run, work, both), extract_ground_truth(live_run, work, both)])


@task(name="extract", task_run_name="extract shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def extract(run_id: str, shard: int) -> None:
    """Split the texts of a shard's samples into statements."""
    await take_shard(run_id, shard, extract_statements, gives_statements=True)


async def extract_answer(live_run: LiveRun, work: SampleWork, both: _Both = _NOT_ASKED) -> None:
    """Split one sample's answer and hand the statements on."""
    await _extract(live_run, work, "answer", [] if work.sample.answer is None else [work.sample.answer], both)


async def extract_ground_truth(live_run: LiveRun, work: SampleWork, both: _Both = _NOT_ASKED) -> None:
    """Split one sample's ground truth and hand the statements on."""
    await _extract(live_run, work, "ground_truth", work.sample.accepted_answers, both)


async def _ask_both(live_run: LiveRun, work: SampleWork) -> _Both:
    """What one request for both texts brings; nothing where they are asked for one by one."""
    if live_run.extract_prompt is None:
        return _NOT_ASKED
    texts: dict[Source, str] = {
        "answer": work.sample.answer or "",
        "ground_truth": "".join(work.sample.accepted_answers),
    }
    before = collect_turns(work.sample, live_run.settings.request_tokens)
    fits = sum(map(estimate_tokens, texts.values())) <= before.room
    if not all(texts.values()) or not fits or any(one.done() for one in work.extractions.values()):
        return _NOT_ASKED
    sides = [_Side(live_run=live_run, work=work, source=source, before=before) for source in _STEPS]
    alone = {side.source: _make_question(side, texts[side.source]) for side in sides}
    # Of samples with one ground truth and several answers the first to come splits it, and the others find it.
    async with live_run.asker.claim(list(alone.values())):
        if any([await live_run.asker.is_on_record(question) for question in alone.values()]):
            return _NOT_ASKED
        return await _ask_joined(live_run, alone, texts)


async def _ask_joined(live_run: LiveRun, alone: Mapping[Source, Question], texts: Mapping[Source, str]) -> _Both:
    """Ask for both, and put either half on record as the reply to what asks for it alone."""
    data: dict[str, BlockValue] = {**alone["answer"].data}
    for source, text in texts.items():
        data[source] = text
    question = replace(alone["answer"], data=data)

    def read(text: str) -> dict[Source, list[str]]:
        return {source: _read_own(text, question, source) for source in _STEPS}

    try:
        answer = await live_run.asker.ask(question, read, read_cut=_refuse_cut)
    except (CutReply, JudgeFailed) as error:
        return _Both(problem=f"both texts in one request: {error}; asked text by text")
    if mixed := _find_mixed(answer.value, texts, question):
        return _Both(problem=f"both texts in one request: {mixed}; asked text by text")
    for source, statements in answer.value.items():
        reply = {key: statements if key == source else [] for key in _STEPS}
        live_run.asker.keep_part(alone[source], orjson.dumps(reply).decode(), of=answer)
    parts = {source: _PartReply(statements=said, call_id=answer.call_id) for source, said in answer.value.items()}
    return _Both(parts=parts)


def _find_mixed(split: Mapping[Source, Sequence[str]], texts: Mapping[Source, str], question: Question) -> str | None:
    """What shows that a statement of one text was made from the other: words that only this one has.

    One or two of them come about by chance; whatever else the statement may draw on does not count.
    """
    shared = [text for name, value in question.data.items() if name not in texts for text in list_texts(value)]
    words = {source: collect_words([text, *shared]) for source, text in texts.items()}
    for source, statements in split.items():
        other: Source = "ground_truth" if source == "answer" else "answer"
        for statement in statements:
            taken = sorted(collect_words([statement]) & words[other] - words[source])
            if len(taken) >= _MIXED_FROM:
                return f"a statement of the {source} has words of the {other} ({', '.join(taken[:_MIXED_FROM])})"
    return None


async def _extract(live_run: LiveRun, work: SampleWork, source: Source, texts: Sequence[str], both: _Both) -> None:
    step = _STEPS[source]
    # Done already where the step is taken again because the endpoint was down for the other text.
    if step not in live_run.steps or work.extractions[source].done():
        return
    detail = None
    if not texts:
        extraction = Extraction(reason=f"no_{source}")
    elif not any(texts):
        extraction = Extraction()
    else:
        try:
            before = collect_turns(work.sample, live_run.settings.request_tokens)
            side = _Side(live_run=live_run, work=work, source=source, before=before)
            splits = await gather_all([_split(side, text, both) for text in texts])
            extraction = _add_rows(work, source, splits[await _pick(live_run, work, texts, splits)])
            detail = "; ".join(filter(None, (before.note, both.problem))) or None
        except JudgeFailed as error:
            extraction, detail = Extraction(reason=error.reason), str(error)
    work.note_outcome(step, extraction.reason, detail)
    work.hand_over(source, extraction)


async def _split(side: _Side, text: str, both: _Both) -> _Split:
    source = side.source
    ask = partial(_ask_parts, side, text)
    parts = [both.parts[source]] if source in both.parts else await ask_in_parts(side.before.room, ask)
    call_ids: dict[str, str] = {}
    for part in parts:
        for statement in part.statements:
            call_ids.setdefault(_drop_marks(side, statement), part.call_id)
    call_ids.pop("", None)
    items = [Item(id=f"{ID_PREFIXES[source]}{ordinal}", text=text) for ordinal, text in enumerate(call_ids, start=1)]
    return _Split(items=tuple(items), call_ids=tuple(call_ids.values()), call_id=parts[0].call_id)


def _drop_marks(side: _Side, statement: str) -> str:
    """A statement without the citations that a judge left in it, "" where it was nothing else.

    They would say to the judge which contexts are meant to support it; the requests of runs that do not ask what an
    answer cites stay as they were.
    """
    if side.source != "answer" or "citations" not in side.live_run.steps:
        return statement
    text = strip_citations(side.work.sample, statement, side.live_run.settings)
    return text if any(character.isalnum() for character in text) else ""


async def _ask_parts(side: _Side, text: str, most: int) -> list[_PartReply]:
    asked = await gather_all([_ask_part(side, part) for part in split_to_judge(text, most)])
    return [part for parts in asked for part in parts]


async def _pick(live_run: LiveRun, work: SampleWork, texts: Sequence[str], splits: Sequence[_Split]) -> int:
    """The place of the text whose statements count; there is a choice among several accepted answers alone."""
    if len(texts) == 1:
        return 0
    accepted = [AcceptedAnswer(text=text, items=split.items) for text, split in zip(texts, splits, strict=True)]
    return await pick_accepted(live_run, work, accepted)


async def _ask_part(side: _Side, part: str) -> list[_PartReply]:
    """The statements of a part; of its halves where the reply about it was cut off."""
    question = _make_question(side, part)
    key = "statements" if side.live_run.extract_prompt is None else side.source

    def read(text: str) -> list[str]:
        return _read_own(text, question, key)

    n_tokens = estimate_tokens(part)
    try:
        answer = await side.live_run.asker.ask(question, read, read_cut=_refuse_cut if n_tokens > _LEAST_CUT else None)
    except CutReply:
        asked = [_ask_part(side, half) for half in split_to_judge(part, -(-n_tokens // 2))]
        return [reply for replies in await gather_all(asked) for reply in replies]
    return [_PartReply(statements=answer.value, call_id=answer.call_id)]


def _make_question(side: _Side, text: str) -> Question:
    """What asks for the statements of one text alone."""
    joint, before, sample = side.live_run.extract_prompt, side.before, side.work.sample
    texts: Mapping[str, str] = {"text": text} if joint is None else {**dict.fromkeys(_STEPS, ""), side.source: text}
    return Question(
        step=_STEPS[side.source],
        sample_id=sample.sample_id,
        prompt=(joint or side.live_run.prompts["extract"]).after(before.turns),
        data={**before.block, "question": sample.question, **texts},
    )


def _read_own(text: str, question: Question, key: str) -> list[str]:
    """The statements under a key of a reply; raises UnusableReply where a worked example was copied."""
    statements = read_statements(text, key)
    prompt = question.prompt
    if prompt is not None and prompt.examples and prompt.list_copied(statements, question.data):
        raise UnusableReply(f"{COPIED} among the statements")
    return statements


def _refuse_cut(_: str) -> NoReturn:
    """Half of a text's statements would pass for all of them."""
    raise UnusableReply("the reply broke off")


def _add_rows(work: SampleWork, source: Source, split: _Split) -> Extraction:
    for ordinal, (item, call_id) in enumerate(zip(split.items, split.call_ids, strict=True), start=1):
        work.add_row(
            "statements", statement_id=item.id, source=source, ordinal=ordinal, text=item.text, call_id=call_id
        )
    return Extraction(items=split.items, call_id=split.call_id)


KIND = "accepted_answer"


@dataclass(frozen=True, kw_only=True)
class AcceptedAnswer:
    """One accepted answer with its statements as they would be numbered were it the only one."""

    text: str
    items: Sequence[Item]


async def pick_accepted(live_run: LiveRun, work: SampleWork, accepted: Sequence[AcceptedAnswer]) -> int:
    """The place of the accepted answer that counts, put on record; raises JudgeFailed where one cannot be judged.

    What is asked here is what classify asks for the one that counts, so that there it is on record.
    """
    if "classify" in live_run.steps:
        answer = await work.wait_for_statements("answer")
        values = await gather_all([_rate(live_run, work, answer, one.items) for one in accepted])
    else:
        values = [compare_spelling(work.sample.answer or "", one.text) for one in accepted]
    best = max(range(len(values)), key=lambda place: (values[place], -place))
    work.add_row("similarities", kind=KIND, value=values[best], text=accepted[best].text)
    return best


async def _rate(live_run: LiveRun, work: SampleWork, answer: Extraction, truths: Sequence[Item]) -> float:
    """factual_f1 of the answer against the statements of one accepted answer."""
    if not answer.items or not truths:
        return 0.0
    return _compute_f1(await ask_labels(live_run, work.sample, answer.items, truths))


def _compute_f1(verdicts: dict[str, list[JudgedItem]]) -> float:
    labels = [(item_id[0], pick_telling(judged).verdict.label) for item_id, judged in verdicts.items()]
    n_tp, n_fp, n_fn = (labels.count(pair) for pair in (("A", "TP"), ("A", "FP"), ("G", "FN")))
    return n_tp / max(1.0, n_tp + 0.5 * (n_fp + n_fn))
