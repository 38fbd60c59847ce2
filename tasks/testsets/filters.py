"""What a question has to stand before it comes into a test set.

The checks that cost nothing come first, then those that ask the judge; the first that fails is the reason on record,
with whatever was found until then beside it. Whether a question is like another one is seen by `duplicates`, where all
of them are at hand.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from evalhouse.tasks.pipeline.live_run import Extraction, LiveRun
from evalhouse.tasks.testsets.answering import Answered, Subject, answer, compare, extract, find_support
from evalhouse.tasks.testsets.drafts import Candidate
from evalhouse.tasks.testsets.near import NearPassages, find_quote, list_tokens
from evalhouse.tasks.testsets.passages import Passage, find_language
from evalhouse.tasks.testsets.questions import UNANSWERABLE, Span, show_passage

Reason = Literal[
    "form", "span", "leak", "duplicate", "unsupported", "unanswered", "wrong_answer", "without_spans", "contradicted",
    "answerable",
]  # fmt: skip
"""Why a question is turned down."""
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
NEAR: Final = 5
"""Passages elsewhere that a question is held against."""
NEAR_UNANSWERABLE: Final = 8
"""The same, of one that the documents do not answer."""
_SAME_WORDS = 0.5  # of a ground truth, in a passage that may bear it out as well
_LEAST_PASSAGES = {"several": 2}
# Words with which a question speaks of what it was made from, which nobody who asks has before them.
_POINTING = re.compile(
    r"\b(?:according to|in|from|by) (?:the|this) (?:above |following |given |provided )?"
    r"(?:passage|text|document|context|excerpt|article)\b"
    r"|\b(?:the|this) (?:passage|excerpt)\b|\bmentioned above\b|\[?C\d+\]"
    r"|文中|上文|这段话|段落[中里]|(?:根据|按照?|依据)(?:上述|该|本|这)?(?:文档|文章|段落|材料|文本)|以上(?:内容|材料)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of a candidate: how it ended, why, and the call that says so where one was needed."""

    name: Reason
    passed: bool
    detail: str
    call_id: str | None = None


@dataclass(kw_only=True)
class Checked:
    """A candidate with what was found of it.

    `references` are the passages that bear out its ground truth, its own first. `failure` says why it could not be
    checked to the end.
    """

    candidate: Candidate
    spans: tuple[Span, ...] = ()
    references: tuple[Passage, ...] = ()
    checks: list[Check] = field(default_factory=list)
    failure: str | None = None

    @property
    def failed(self) -> Check | None:
        """The check that it did not stand."""
        return next((check for check in self.checks if not check.passed), None)

    @property
    def reason(self) -> Reason | None:
        """Why it is turned down; None while nothing speaks against it."""
        return self.failed.name if self.failed else None

    def note(self, name: Reason, passed: bool, detail: str, call_id: str | None = None) -> bool:
        """Put a check on record; returns whether it was passed."""
        self.checks.append(Check(name=name, passed=passed, detail=detail, call_id=call_id))
        return passed


def check_words(candidate: Candidate) -> Checked:
    """The checks that need no judge: form, spans, leaks."""
    checked = Checked(candidate=candidate, spans=tuple(_find_spans(candidate)), references=candidate.passages)
    fault = next(_find_form_faults(candidate), None)
    if not checked.note("form", fault is None, fault or "a question of its kind, in the language of its passages"):
        return checked
    if candidate.kind == UNANSWERABLE:
        return checked
    lost = [quote.text for quote in candidate.quotes if find_quote(quote.text, quote.passage.text) is None]
    n_passages = len({span.passage_id for span in checked.spans})
    least = _LEAST_PASSAGES.get(candidate.kind, 1)
    if lost or n_passages < least:
        quoted = f"quotes from {n_passages} of {least} passages"
        checked.note("span", False, f"not verbatim in its passage: {lost[0]!r:.200}" if lost else quoted)
        return checked
    checked.note("span", True, f"{len(checked.spans)} verbatim")
    checked.references = tuple({quote.passage.passage_id: quote.passage for quote in candidate.quotes}.values())
    asked = " ".join((*(turn.content for turn in candidate.conversation), candidate.question))
    leaks = holds_answer(asked, candidate.ground_truth)
    checked.note("leak", not leaks, f"the question {'holds' if leaks else 'does not hold'} its answer")
    return checked


def _find_form_faults(candidate: Candidate) -> Iterator[str]:
    """What is wrong with how it is written."""
    if not candidate.question:
        yield "there is no question"
    if pointing := find_pointing(candidate.question):
        yield f"it speaks of what it was made from: {pointing!r}"
    languages = {passage.language for passage in candidate.passages}
    texts = filter(None, (candidate.question, candidate.ground_truth))
    if foreign := [language for text in texts if (language := find_language(text)) not in languages]:
        yield f"it is in {foreign[0]}, its passages are in {', '.join(sorted(languages))}"
    if candidate.kind == UNANSWERABLE:
        if candidate.ground_truth or candidate.quotes:
            yield "it was to have no answer, and has one"
        return
    if not candidate.ground_truth:
        yield "there is no ground truth"
    n_turns = len(candidate.conversation)
    if candidate.kind == "conversational" and (n_turns < 2 or n_turns % 2):
        yield f"{n_turns} turns stand before it; a question and its answer have to, or several"
    if candidate.kind != "conversational" and n_turns:
        yield f"{n_turns} turns stand before a question that has to be understood alone"


def find_pointing(question: str) -> str | None:
    """The words with which a question speaks of what it was made from, such as `in this passage`; None without any."""
    pointing = _POINTING.search(question)
    return pointing[0] if pointing else None


def _find_spans(candidate: Candidate) -> Iterator[Span]:
    """The quotes as they stand in their documents, each once; those that are nowhere are left out."""
    seen = set[tuple[str, int, str]]()
    for quote in candidate.quotes:
        place = find_quote(quote.text, quote.passage.text)
        if place is None:
            continue
        passage, words = quote.passage, quote.passage.text[place.start : place.end]
        if (key := (passage.passage_id, place.start, words)) not in seen:
            seen.add(key)
            yield Span(document_id=passage.document_id, passage_id=passage.passage_id, text=words,
                       start=passage.start + place.start)  # fmt: skip


def holds_answer(question: str, ground_truth: str) -> bool:
    """Whether a question says all that its ground truth says, word by word."""
    asked, said = set(list_tokens(question)), set(list_tokens(ground_truth))
    return bool(said) and said <= asked


async def check_by_judge(live_run: LiveRun, checked: Checked, near: NearPassages) -> None:
    """The checks that ask the judge, until one is not passed; raises JudgeFailed where it gives no usable reply."""
    subject = _name_subject(checked.candidate)
    if checked.candidate.kind == UNANSWERABLE:
        own = {passage.passage_id: passage for passage in checked.candidate.passages}
        found = near.find(subject.asked, NEAR_UNANSWERABLE, exclude=set(own))
        passages = [*own.values(), *(one.passage for one in found)]
        said = await answer(live_run, subject, [show_passage(passage) for passage in passages], step="answer_with")
        checked.references = ()
        detail = said.reason if said.basis == "none" else f"{name_used(said, passages)}: {said.answer}"
        checked.note("answerable", said.basis == "none", detail, said.call_id)
        return
    statements = await extract(live_run, subject)
    others = _find_others(checked, subject, near)
    if not await _check_support(live_run, checked, subject, statements, others):
        return
    if not await _check_answer(live_run, checked, subject, statements):
        return
    same = {passage.passage_id for passage in checked.references}
    rest = [passage for passage in others if passage.passage_id not in same]
    await _check_without(live_run, checked, subject, statements, rest)


async def check_support(live_run: LiveRun, checked: Checked, near: NearPassages) -> bool:
    """Whether the spans bear out the ground truth; raises JudgeFailed."""
    subject = _name_subject(checked.candidate)
    statements = await extract(live_run, subject)
    return await _check_support(live_run, checked, subject, statements, _find_others(checked, subject, near))


async def check_renewed(live_run: LiveRun, checked: Checked, near: NearPassages) -> bool:
    """Whether the spans bear out a ground truth that was written again, and their passages answer the question so;
    raises JudgeFailed."""
    if not await check_support(live_run, checked, near):
        return False
    subject = _name_subject(checked.candidate)
    return await _check_answer(live_run, checked, subject, await extract(live_run, subject))


def _name_subject(candidate: Candidate) -> Subject:
    return Subject(
        id=candidate.candidate_id,
        question=candidate.question,
        ground_truth=candidate.ground_truth or None,
        conversation=candidate.conversation,
    )


def _find_others(checked: Checked, subject: Subject, near: NearPassages) -> list[Passage]:
    own = {passage.passage_id for passage in checked.references}
    return [found.passage for found in near.find(f"{subject.asked} {subject.ground_truth}", NEAR, exclude=own)]


async def _check_support(
    live_run: LiveRun, checked: Checked, subject: Subject, statements: Extraction, others: Sequence[Passage]
) -> bool:
    """Whether the spans bear out every statement; passages elsewhere that do so as well become references.

    The spans are asked about by themselves: of statements that one passage elsewhere bears out alone, a judge does not
    say which ones of others do so together.
    """
    if not statements.items:
        return checked.note("unsupported", False, "the ground truth makes no statement", statements.call_id)
    spans = [
        show_passage(passage, " … ".join(span.text for span in checked.spans if span.passage_id == passage.passage_id))
        for passage in checked.references
    ]
    supported = await find_support(live_run, subject, statements, spans)
    for statement in supported:
        if not (statement.alone or statement.together):
            return checked.note("unsupported", False, f"{statement.text}: {statement.reason}", statement.call_id)
    checked.references += await _find_same(live_run, checked, subject, statements, others)
    return checked.note("unsupported", True, "its spans bear out every statement", supported[0].call_id)


async def _find_same(
    live_run: LiveRun, checked: Checked, subject: Subject, statements: Extraction, others: Sequence[Passage]
) -> tuple[Passage, ...]:
    """The passages elsewhere that bear out every statement by themselves; asked about where they have its words."""
    words = set(list_tokens(checked.candidate.ground_truth))
    likely = [other for other in others if len(words & set(list_tokens(other.text))) >= _SAME_WORDS * len(words)]
    if not likely:
        return ()
    supported = await find_support(live_run, subject, statements, [show_passage(other) for other in likely])
    everywhere = set.intersection(*(set(statement.alone) for statement in supported))
    return tuple(likely[place] for place in sorted(everywhere))


async def _check_answer(live_run: LiveRun, checked: Checked, subject: Subject, statements: Extraction) -> bool:
    """Whether its passages answer the question, and as the ground truth does."""
    own = [passage for passage in checked.references if passage.passage_id in {s.passage_id for s in checked.spans}]
    said = await answer(live_run, subject, [show_passage(passage) for passage in own], step="answer_with")
    if not checked.note("unanswered", said.basis == "contexts", said.reason, said.call_id):
        return False
    compared = await compare(live_run, subject, statements, said)
    detail = f"{said.answer}: {compared.reason}" if compared.missing else "the judge answers the same from its passages"
    return checked.note("wrong_answer", not compared.missing, detail, compared.call_id)


async def _check_without(
    live_run: LiveRun, checked: Checked, subject: Subject, statements: Extraction, others: Sequence[Passage]
) -> None:
    """Whether it can be answered without its passages, rightly from elsewhere or otherwise by what stands elsewhere."""
    said = await answer(live_run, subject, [show_passage(other) for other in others], step="answer_without")
    if said.basis == "none":
        checked.note("without_spans", True, said.reason, said.call_id)
        return
    compared = await compare(live_run, subject, statements, said)
    where = name_used(said, others)
    if not compared.missing:
        checked.note("without_spans", False, f"answered without its passages, {where}: {said.answer}", said.call_id)
        return
    checked.note("without_spans", True, said.reason, said.call_id)
    agrees = said.basis != "contexts"
    checked.note("contradicted", agrees, f"{where}: {said.answer}", compared.call_id)


def name_used(said: Answered, others: Sequence[Passage]) -> str:
    """Where an answer is from: the passages that it names."""
    if said.basis == "knowledge":
        return "from general knowledge"
    return f"from {', '.join(others[place].passage_id for place in said.used) or 'elsewhere'}"
