"""Asking a judge the questions of a test set: what a text answers, and whether that is what the ground truth says.

Statements, support and labels are those of the steps of a run, asked for in the same words, so that what is asked here
is on record when a night first asks it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.attribute import attribute_statements
from evalhouse.tasks.classify import classify_statements
from evalhouse.tasks.extract import extract_ground_truth
from evalhouse.tasks.judge.errors import JudgeFailed, UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import Extraction, LiveRun, SampleWork, make_work
from evalhouse.tasks.testsets.questions import Turn, write_asked, write_conversation
from evalhouse.warehouse.rows.samples import StoredSample

Basis = Literal["contexts", "knowledge", "none"]
STEPS = frozenset({"extract_ground_truth", "attribute_ground_truth", "classify"})
"""The steps of a run that a question of a set is put through."""
_BASES: Mapping[str, Basis] = {"contexts": "contexts", "knowledge": "knowledge", "none": "none"}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A question with its ground truth, as it is put to the judge under an id of its own."""

    id: str
    question: str
    ground_truth: str | None
    conversation: tuple[Turn, ...] = ()

    @property
    def asked(self) -> str:
        """The question with what was said before it, where the two are asked as one."""
        return write_asked(self.question, self.conversation)


@dataclass(frozen=True, kw_only=True)
class Supported:
    """A statement of a ground truth, and the places of the contexts, from 0, that support it alone or together."""

    text: str
    alone: tuple[int, ...]
    together: tuple[int, ...]
    reason: str
    call_id: str | None


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What a text answers, and what the answer rests on; `used` are places of contexts, from 0."""

    basis: Basis
    answer: str
    used: tuple[int, ...]
    reason: str
    call_id: str


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Whether an answer says all that the ground truth says; `missing` are statements that it does not. `agrees` says
    whether the ground truth bears the answer out as a whole: an answer may lack something and say nothing else."""

    missing: tuple[str, ...]
    agrees: bool
    reason: str
    call_id: str | None


def _make_sample(subject: Subject, *, answer: str | None = None, contexts: Sequence[str] | None = None) -> SampleWork:
    sample = StoredSample(
        ordinal=1,
        sample_id=subject.id,
        input_hash="",
        question=subject.asked,
        answer=answer,
        ground_truth=subject.ground_truth,
        contexts=list(contexts) if contexts is not None else None,
        context_ids=None,
        reference_context_ids=None,
    )
    return make_work(sample)


def _raise_failed(work: SampleWork) -> None:
    """JudgeFailed, where a step ended without verdicts for want of a usable reply."""
    for outcome in work.rows["outcomes"]:
        if outcome["reason"] is not None and outcome["detail"] is not None:
            raise JudgeFailed(str(outcome["detail"]))


async def extract(live_run: LiveRun, subject: Subject) -> Extraction:
    """The statements of the ground truth; raises JudgeFailed."""
    work = _make_sample(subject)
    await extract_ground_truth(live_run, work)
    _raise_failed(work)
    return await work.wait_for_statements("ground_truth")


async def find_support(
    live_run: LiveRun, subject: Subject, statements: Extraction, contexts: Sequence[str]
) -> list[Supported]:
    """For each statement which of the contexts support it; raises JudgeFailed."""
    work = _make_sample(subject, contexts=contexts)
    work.hand_over("ground_truth", statements)
    work.hand_over("answer", Extraction(reason="no_answer"))
    await attribute_statements(live_run, work)
    _raise_failed(work)
    texts = {item.id: item.text for item in statements.items}
    return [
        Supported(
            text=texts[str(row["statement_id"])],
            alone=_to_places(row["context_ranks"]),
            together=_to_places(row["joint_ranks"]),
            reason=str(row["reason"]),
            call_id=_to_id(row["call_id"]),
        )
        for row in work.rows["attributions"]
    ]


def _to_places(ranks: object) -> tuple[int, ...]:
    assert isinstance(ranks, list)
    return tuple(rank - 1 for rank in ranks)


def _to_id(value: object) -> str | None:
    return None if value is None else str(value)


async def answer(live_run: LiveRun, subject: Subject, contexts: Sequence[str], *, step: str) -> Answered:
    """The judge's own answer from these contexts; `step` is how the call is named on record. Raises JudgeFailed."""
    items = [Item(id=f"C{place}", text=text) for place, text in enumerate(contexts, start=1)]
    question = Question(
        step=step,
        sample_id=subject.id,
        prompt=live_run.prompts["answer_question"],
        data={
            "question": subject.question,
            "conversation": write_conversation(subject.conversation),
            "contexts": items,
        },
    )
    reply = await live_run.asker.ask(question, lambda text: _read_answer(text, [item.id for item in items]))
    said, used = reply.value
    return Answered(
        basis=_BASES[said["basis"]], answer=said["answer"], used=used, reason=said["reason"], call_id=reply.call_id
    )


def _read_answer(text: str, ids: Sequence[str]) -> tuple[dict[str, str], tuple[int, ...]]:
    reply = parse_object(text, "basis")
    said = {name: reply.get(name) for name in ("reason", "basis", "answer")}
    if not all(isinstance(value, str) for value in said.values()):
        raise UnusableReply("the reply lacks reason, basis or answer as a text")
    texts = {name: " ".join(str(value).split()) for name, value in said.items()}
    if texts["basis"] not in _BASES:
        raise UnusableReply(f"basis is {texts['basis']!r:.40}, allowed: {', '.join(_BASES)}")
    if texts["basis"] != "none" and not texts["answer"]:
        raise UnusableReply(f"basis is {texts['basis']} and the answer is empty")
    used = reply.get("used")
    if not isinstance(used, list) or not {str(name) for name in used} <= set(ids):
        raise UnusableReply(f"used is {used!r:.40}, allowed: a list of {', '.join(ids) or 'nothing'}")
    return texts, tuple(dict.fromkeys(ids.index(str(name)) for name in used))


async def compare(live_run: LiveRun, subject: Subject, statements: Extraction, said: Answered) -> Compared:
    """Whether an answer holds every statement of the ground truth; raises JudgeFailed."""
    work = _make_sample(subject, answer=said.answer)
    work.hand_over("ground_truth", statements)
    # As a whole: what counts is what of the ground truth it says, and not what else.
    work.hand_over("answer", Extraction(items=(Item(id="A1", text=said.answer),), call_id=said.call_id))
    await classify_statements(live_run, work)
    _raise_failed(work)
    texts = {item.id: item.text for item in statements.items}
    missing = [row for row in work.rows["classifications"] if row["label"] == "FN"]
    rows = missing or work.rows["classifications"]
    return Compared(
        missing=tuple(texts[str(row["statement_id"])] for row in missing),
        agrees=not any(row["label"] == "FP" for row in work.rows["classifications"]),
        reason=str(rows[0]["reason"]),
        call_id=_to_id(rows[0]["call_id"]),
    )
