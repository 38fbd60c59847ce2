"""What became of a question whose documents changed: it still holds, has to be answered otherwise, or is void.

A judge is asked here about the questions whose spans are not found again word by word, and about those that a new or
changed passage is near to. What it says of a ground truth is put to the same checks as a new question before it counts.
A question that only a person can decide on becomes a proposal, which holds it as it was and as it would be.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Final, Literal

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.judge.errors import UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.testsets.candidates import (
    NEAR,
    Candidate,
    Check,
    Checked,
    Quote,
    check_renewed,
    check_support,
    check_words,
    read_quotes,
)
from evalhouse.tasks.testsets.checks import Answered, Subject, answer, compare, extract
from evalhouse.tasks.testsets.near import Base, Place, find_differences, point_to
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.questions import (
    UNANSWERABLE,
    Change,
    GivenQuestion,
    QuestionKind,
    SetQuestion,
    read_question,
    show_passage,
    write_asked,
    write_conversation,
)

RENEW_STEP = "renew_question"
PROPOSED = ("changed", "contradicted", "answerable")
"""Changes that a person decides on."""
Verdict = Literal["still_true", "changed", "void"]
_VERDICTS: dict[str, Verdict] = {"still_true": "still_true", "changed": "changed", "void": "void"}


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What became of a question: as it stays in the set, None where it leaves it, and the change, None where nothing
    changed. `checks` are those it was put to."""

    question: SetQuestion | None
    change: Change | None = None
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """What a judge says of a ground truth by what the documents say now."""

    verdict: Verdict
    ground_truth: str
    quotes: tuple[Quote, ...]
    reason: str
    call_id: str


def restore_question(change: Change) -> SetQuestion:
    """The question of a proposal as it would be, or of any change that took it out of the set as it was."""
    return read_question({**change.before, **change.after})


def stay_pointed(base: Base, question: SetQuestion, places: Sequence[Place]) -> Ending:
    """A question whose spans are all found again word by word; nothing is asked."""
    after = point_to(base, question, [place.span for place in places])
    if after.question_hash == question.question_hash:
        return Ending(question=after)
    moved = [
        f"{span.passage_id} is now {place.passage.passage_id}"
        for span, place in zip(question.spans, places, strict=True)
        if span.passage_id != place.passage.passage_id
    ]
    return _keep(question, after, "repointed", "; ".join(dict.fromkeys(moved)) or None)


def join_endings(question: SetQuestion, first: Ending, second: Ending) -> Ending:
    """Two endings of a question, one after the other, as one."""
    checks = first.checks + second.checks
    if second.question is None or second.change is None or first.change is None:
        return replace(second, change=second.change or first.change, checks=checks)
    details = filter(None, (first.change.detail, second.change.detail))
    call_id = second.change.call_id or first.change.call_id
    joined = _keep(question, second.question, second.change.change, "; ".join(details), call_id)
    return replace(joined, checks=checks)


def _keep(before: SetQuestion, after: SetQuestion, word: str, detail: str | None, call_id: str | None = None) -> Ending:
    old, new = find_differences(before, after)
    return Ending(
        question=after, change=Change(id=before.id, change=word, detail=detail, before=old, after=new, call_id=call_id)
    )


async def judge_again(live_run: LiveRun, base: Base, question: SetQuestion, places: Sequence[Place | None]) -> Ending:
    """A question of which a span is gone: `places` are those it was found at and what others may have become, None
    where nothing is like one. Raises JudgeFailed."""
    known = [place for place in places if place is not None]
    if len(known) == len(places):
        quotes = tuple(Quote(passage=place.passage, text=place.span.text) for place in known)
        checked = _quote(question, quotes, question.ground_truth or "", [place.passage for place in known])
        if checked.reason is None and await check_support(live_run, checked, base.near):
            return _stay_true(base, question, checked, "the spans say otherwise what they said, and bear it out")
    own = {place.passage.passage_id: place.passage for place in known}
    wanted = f"{write_asked(question.question, question.conversation)} {question.ground_truth}"
    passages = [*own.values(), *(found.passage for found in base.near.find(wanted, NEAR, exclude=own))]
    renewed = await renew(live_run, question, passages)
    if renewed.verdict == "void":
        return _make_void(question, renewed.reason, renewed.call_id)
    truth = renewed.ground_truth if renewed.verdict == "changed" else question.ground_truth or ""
    checked = _quote(question, renewed.quotes, truth, passages, renewed.call_id)
    if checked.reason is None:
        await check_renewed(live_run, checked, base.near)
    if checked.failed is not None:
        why = f"{renewed.reason} But: {checked.failed.name}: {checked.failed.detail}"
        return _make_void(question, why, renewed.call_id, checked)
    if truth == question.ground_truth:
        return _stay_true(base, question, checked, renewed.reason)
    return _propose(base, question, checked, "changed", renewed.reason)


async def hold_against(live_run: LiveRun, base: Base, question: SetQuestion, passages: Sequence[Passage]) -> Ending:
    """A question whose spans are there, asked by other passages alone: `list_groups` has them. Raises JudgeFailed."""
    subject = Subject(
        id=question.id,
        question=question.question,
        ground_truth=question.ground_truth,
        conversation=question.conversation,
    )
    said = await answer(live_run, subject, [show_passage(passage) for passage in passages], step="answer_without")
    if said.basis != "contexts":
        # A passage that said the same, changed and does not answer any more is no reference any more
        own = {span.passage_id for span in question.spans}
        gone = {passage.passage_id for passage in passages} - own
        kept = tuple(one for one in question.reference_context_ids if one not in gone)
        if kept == question.reference_context_ids:
            return Ending(question=question)
        after = replace(question, reference_context_ids=kept)
        return _keep(question, after, "repointed", f"{', '.join(sorted(gone))} does not answer it any more")
    if question.kind != UNANSWERABLE:
        compared = await compare(live_run, subject, await extract(live_run, subject), said)
        if not compared.missing:
            return _add_references(base, question, passages, said)
    renewed = await renew(live_run, question, passages)
    if renewed.verdict != "changed":
        return Ending(question=question)
    checked = _quote(question, renewed.quotes, renewed.ground_truth, passages, renewed.call_id)
    if checked.reason is not None or not await check_renewed(live_run, checked, base.near):
        return Ending(question=question, checks=tuple(checked.checks))
    here, there = ({span.passage_id: None for span in spans} for spans in (checked.spans, question.spans))
    if question.kind == UNANSWERABLE:
        return _propose(base, question, checked, "answerable", f"{', '.join(here)} answers it: {said.answer}")
    detail = f"{', '.join(here)} says otherwise than {', '.join(there)}: {said.answer}"
    return _propose(base, question, checked, "contradicted", detail)


def _quote(
    question: SetQuestion, quotes: tuple[Quote, ...], truth: str, passages: Sequence[Passage], call_id: str = ""
) -> Checked:
    """A ground truth with quotes as a candidate for this question, with its words checked."""
    # Of several passages one may be left; a question that was good from both is good from one.
    kind: QuestionKind = "conversational" if question.conversation else "fact"
    candidate = Candidate(
        candidate_id=question.id,
        kind=kind,
        passages=tuple(passages),
        question=question.question,
        ground_truth=truth,
        quotes=quotes,
        conversation=question.conversation,
        call_id=call_id,
    )
    return check_words(candidate)


def _stay_true(base: Base, question: SetQuestion, checked: Checked, detail: str) -> Ending:
    after = _point(base, question, checked)
    has_stood = all(base.has_stayed(span.passage_id) for span in checked.spans)
    ending = _keep(question, after, "repointed" if has_stood else "still_true", detail, checked.checks[-1].call_id)
    return replace(ending, checks=tuple(checked.checks))


def _point(base: Base, question: SetQuestion, checked: Checked) -> SetQuestion:
    """The question with the spans and references that were found for it."""
    own = {span.passage_id for span in checked.spans}
    further = [passage for passage in checked.references if passage.passage_id not in own]
    also = [passage.document_id if base.by_document else passage.passage_id for passage in further]
    return point_to(base, question, checked.spans, also)


def _make_void(question: SetQuestion, detail: str, call_id: str, checked: Checked | None = None) -> Ending:
    change = Change(id=question.id, change="void", detail=detail, before=question.to_row(), call_id=call_id)
    return Ending(question=None, change=change, checks=tuple(checked.checks) if checked else ())


def _propose(base: Base, question: SetQuestion, checked: Checked, word: str, detail: str) -> Ending:
    """The question leaves the set until it is decided whether it should be as proposed."""
    kind: QuestionKind = "fact" if question.kind == UNANSWERABLE else question.kind
    pointed = _point(base, question, checked).undecided
    after = replace(pointed, ground_truth=checked.candidate.ground_truth, kind=kind)
    _, new = find_differences(question, after)
    call_id = checked.candidate.call_id
    change = Change(id=question.id, change=word, detail=detail, before=question.to_row(), after=new, call_id=call_id)
    return Ending(question=None, change=change, checks=tuple(checked.checks))


def _add_references(base: Base, question: SetQuestion, passages: Sequence[Passage], said: Answered) -> Ending:
    """A passage that says the same by itself becomes a further reference."""
    own = {span.passage_id for span in question.spans}
    if any(passage.passage_id in own for passage in passages):
        return Ending(question=question)
    also = [passages[place] for place in said.used]
    names = [passage.document_id if base.by_document else passage.passage_id for passage in also]
    after = point_to(base, question, question.spans, names)
    if after.question_hash == question.question_hash:
        return Ending(question=question)
    detail = f"{', '.join(passage.passage_id for passage in also)} says the same"
    return _keep(question, after, "repointed", detail, said.call_id)


async def renew(live_run: LiveRun, question: SetQuestion, passages: Sequence[Passage]) -> Renewed:
    """What has become of a ground truth by these passages; raises JudgeFailed."""
    by_id = {f"C{place}": passage for place, passage in enumerate(passages, start=1)}
    asked = Question(
        step=RENEW_STEP,
        sample_id=question.id,
        prompt=live_run.prompts["renew_question"],
        data={
            "question": question.question,
            "conversation": write_conversation(question.conversation),
            "ground_truth": question.ground_truth or "",
            "old_contexts": [
                Item(id=f"O{place}", text=span.text) for place, span in enumerate(question.spans, start=1)
            ],
            "contexts": [Item(id=name, text=show_passage(passage)) for name, passage in by_id.items()],
        },
    )
    reply = await live_run.asker.ask(asked, lambda text: _read_renewed(text, by_id))
    verdict, said, quotes = reply.value
    return Renewed(
        verdict=verdict,
        ground_truth=said["ground_truth"],
        quotes=tuple(Quote(passage=by_id[name], text=text) for name, text in quotes),
        reason=said["reason"],
        call_id=reply.call_id,
    )


def _read_renewed(text: str, ids: dict[str, Passage]) -> tuple[Verdict, dict[str, str], list[tuple[str, str]]]:
    reply = parse_object(text, "verdict")
    said: dict[str, Any] = {name: reply.get(name) for name in ("reason", "ground_truth")}
    if not all(isinstance(value, str) for value in said.values()):
        raise UnusableReply("the reply lacks reason or ground_truth as a text")
    texts = {name: " ".join(value.split()) for name, value in said.items()}
    verdict = _VERDICTS.get(str(reply.get("verdict")))
    if verdict is None:
        raise UnusableReply(f"verdict is {reply.get('verdict')!r:.40}, allowed: {', '.join(_VERDICTS)}")
    quotes = read_quotes(reply.get("quotes"), ids)
    if verdict == "changed" and not (texts["ground_truth"] and quotes):
        raise UnusableReply("verdict is changed, and the ground truth or its quotes are missing")
    return verdict, texts, quotes


Difference = Literal["new", "gone", "changed", "repointed"]
_SAID: Final = ("question", "ground_truth", "kind", "conversation")
_PLACES: Final = ("reference_context_ids", "spans")
# Words with the white space behind them, and Chinese characters one by one.
_PIECE = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]\s*|[^\s\u3400-\u9fff\uf900-\ufaff]+\s*")


@dataclass(frozen=True, kw_only=True)
class FieldDifference:
    """A field that is another; `words` show a text's changes as `the pool opens at [-9:00-]{+11:00+}`."""

    field: str
    before: Any
    after: Any
    words: str | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionDifference:
    """What became of a question. Of one that came or went there are no fields."""

    id: str
    difference: Difference
    question: str
    fields: tuple[FieldDifference, ...] = ()


def compare_sets(before: Sequence[GivenQuestion], after: Sequence[GivenQuestion]) -> list[QuestionDifference]:
    """All questions that are not the same in both: the new, the gone, the changed and the re-pointed ones, each in the
    order of their set. Questions are the same by their ids."""
    old, new = {one.id: one for one in before}, {one.id: one for one in after}
    came = [_describe(one, "new") for one in after if one.id not in old]
    went = [_describe(one, "gone") for one in before if one.id not in new]
    others = [
        QuestionDifference(
            id=one.id,
            difference="changed" if any(field.field in _SAID for field in fields) else "repointed",
            question=one.question,
            fields=fields,
        )
        for one in after
        if one.id in old and (fields := tuple(_compare_fields(old[one.id], one)))
    ]
    changed = [one for one in others if one.difference == "changed"]
    return [*came, *went, *changed, *(one for one in others if one.difference == "repointed")]


def _describe(question: GivenQuestion, difference: Difference) -> QuestionDifference:
    return QuestionDifference(id=question.id, difference=difference, question=question.question)


def _compare_fields(old: GivenQuestion, new: GivenQuestion) -> Iterator[FieldDifference]:
    before, after = _show(old), _show(new)
    for name in (*_SAID, *_PLACES):
        if before[name] != after[name]:
            are_texts = isinstance(before[name], str) and isinstance(after[name], str) and name != "kind"
            yield FieldDifference(
                field=name,
                before=before[name],
                after=after[name],
                words=compare_words(before[name], after[name]) if are_texts else None,
            )


def _show(question: GivenQuestion) -> dict[str, Any]:
    """The fields as JSON has them; ids of references are a set."""
    return {
        "question": question.question,
        "ground_truth": question.ground_truth,
        "kind": question.given_kind,
        "conversation": [asdict(turn) for turn in question.conversation],
        "reference_context_ids": sorted(set(question.reference_context_ids)),
        "spans": [asdict(span) for span in question.spans],
    }


def compare_words(before: str, after: str) -> str:
    """The newer text with what went as `[-…-]` and what came as `{+…+}`."""
    old, new = _PIECE.findall(before), _PIECE.findall(after)
    matcher = SequenceMatcher(None, [piece.strip() for piece in old], [piece.strip() for piece in new], autojunk=False)
    parts = []
    for kind, start, end, new_start, new_end in matcher.get_opcodes():
        went, came = "".join(old[start:end]), "".join(new[new_start:new_end])
        if kind == "equal":
            parts.append(came)
            continue
        space = " " if (came or went).endswith(" ") else ""
        parts.append(f"{_mark('[-', went, '-]')}{_mark('{+', came, '+}')}{space}")
    return "".join(parts).strip()


def _mark(start: str, text: str, end: str) -> str:
    return f"{start}{text.strip()}{end}" if text.strip() else ""
