"""What can be wrong with a question of a set, how much that weighs, and what needs neither a judge nor embeddings to
be seen."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Final, Literal, get_args

from evalhouse.tasks.pipeline.live_run import Extraction, LiveRun
from evalhouse.tasks.testsets.answering import Answered, Subject, Supported, answer, compare, extract, find_support
from evalhouse.tasks.testsets.filters import NEAR, find_pointing, holds_answer, name_used
from evalhouse.tasks.testsets.near import NearPassages, Twin, list_tokens
from evalhouse.tasks.testsets.passages import Document, Language, Passage, find_language
from evalhouse.tasks.testsets.questions import GivenQuestion, show_passage

FindingName = Literal[
    "contradicted", "unsupported", "conflicting", "answerable", "no_ground_truth", "dead_reference", "leak",
    "duplicate", "ambiguous", "misplaced", "language", "form",
]  # fmt: skip
FINDINGS: Final[tuple[FindingName, ...]] = get_args(FindingName)
Severity = Literal["error", "warning"]
MEANINGS: Final[Mapping[FindingName, str]] = {
    "contradicted": "documents say otherwise than the ground truth",
    "unsupported": "no document bears the ground truth out",
    "conflicting": "two ask the same, and their ground truths say otherwise",
    "answerable": "said to be unanswerable, and a document answers it",
    "no_ground_truth": "without a ground truth, and not marked as unanswerable",
    "dead_reference": "a reference id is neither a document nor a passage",
    "leak": "the question holds its answer",
    "duplicate": "another question asks the same",
    "ambiguous": "other documents answer it otherwise than the ground truth",
    "misplaced": "the references do not bear the ground truth out, other documents do",
    "language": "question, ground truth and documents are not in one language",
    "form": "the question speaks of the text that it was made from",
}
_WARNINGS: Final = frozenset({"ambiguous", "misplaced", "language", "form"})
_CHOICE = re.compile(r"\bor\b|还是", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_HAN = re.compile("[\u3400-\u9fff]")
_LEAST_WORDS, _LEAST_HAN = 4, 4
_INSIDE: Final = frozenset("#:/|@")


def weigh(name: FindingName) -> Severity:
    """How much a finding weighs: an error makes scores wrong, a warning may be meant so."""
    return "warning" if name in _WARNINGS else "error"


@dataclass(frozen=True, kw_only=True)
class SetCheck:
    """One check of a question: a finding where it was not passed. `others` are questions, documents or passages that it
    is about, `call_id` the call that says so, where one was needed."""

    name: FindingName
    passed: bool
    detail: str
    others: tuple[str, ...] = ()
    call_id: str | None = None


class Base:
    """What is known of a knowledge base by name: its documents, their passages and languages."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = {document.document_id: document for document in documents}
        self.passages = {passage.passage_id: passage for document in documents for passage in document.passages}
        self.languages = {passage.language for passage in self.passages.values()}

    @cached_property
    def near(self) -> NearPassages:
        """The index of its passages, made when it is first asked for."""
        return NearPassages(list(self.passages.values()))

    def find_documents(self, question: GivenQuestion) -> set[str]:
        """The documents that a question names, by themselves or by passages of theirs."""
        names = [*question.reference_context_ids, *(span.passage_id for span in question.spans)]
        found = {self.passages[name].document_id for name in names if name in self.passages}
        return found | (self.documents.keys() & names) | (
            self.documents.keys() & {span.document_id for span in question.spans}
        )  # fmt: skip


def check_alone(question: GivenQuestion, base: Base | None) -> Iterator[SetCheck]:
    """What is seen of a question alone, with the names of a knowledge base where there is one."""
    pointing = find_pointing(question.question)
    yield SetCheck(
        name="form",
        passed=pointing is None,
        detail=f"it speaks of what it was made from: {pointing!r}" if pointing else "it can be asked without a text",
    )
    has_truth = question.ground_truth is not None or question.is_unanswerable
    missing = "there is no ground truth, and it is not marked as unanswerable"
    yield SetCheck(name="no_ground_truth", passed=has_truth, detail="it has one" if has_truth else missing)
    if question.ground_truth is not None:
        asked = " ".join((*(turn.content for turn in question.conversation), question.question))
        # Of two that a question names, one is the answer.
        leaks = holds_answer(asked, question.ground_truth) and not _CHOICE.search(question.question)
        detail = f"the question says all that the ground truth says: {question.ground_truth!r:.200}"
        yield SetCheck(name="leak", passed=not leaks, detail=detail if leaks else "it does not hold its answer")
    yield _check_languages(question, base)
    if base is not None and question.reference_context_ids:
        yield _check_references(question, base)


def _check_languages(question: GivenQuestion, base: Base | None) -> SetCheck:
    of_question = _judge_language(question.question)
    of_truth = _judge_language(question.ground_truth or "")
    if of_question and of_truth and of_question != of_truth:
        chinese, other = ("question", "ground truth") if of_question == "zh" else ("ground truth", "question")
        return SetCheck(name="language", passed=False, detail=f"the {chinese} is in Chinese, the {other} is not")
    if base is not None and of_question and of_question not in base.languages:
        documents = "none of the documents is" if of_question == "zh" else "all documents are"
        asked = "in Chinese" if of_question == "zh" else "not in Chinese"
        return SetCheck(name="language", passed=False, detail=f"the question is {asked}, {documents}")
    return SetCheck(name="language", passed=True, detail="question, ground truth and documents agree")


def _judge_language(text: str) -> Language | None:
    """The language of a text; None for one that is too short, such as a name or a number."""
    n_han = len(_HAN.findall(text))
    is_long = len(_WORD.findall(text)) >= _LEAST_WORDS or n_han >= _LEAST_HAN
    return find_language(text) if is_long else None


def _check_references(question: GivenQuestion, base: Base) -> SetCheck:
    dead = [name for name in question.reference_context_ids if not (name in base.passages or name in base.documents)]
    if not dead:
        return SetCheck(name="dead_reference", passed=True, detail=f"{len(question.reference_context_ids)} are there")
    detail = "; ".join(f"{name}: {_explain_dead(name, base)}" for name in dead)
    return SetCheck(name="dead_reference", passed=False, detail=detail, others=tuple(dead))


def _explain_dead(name: str, base: Base) -> str:
    cuts = [place for place, letter in enumerate(name) if letter in _INSIDE]
    if inside := next((name[:place] for place in reversed(cuts) if name[:place] in base.documents), None):
        return f"no passage of {inside} has that id"
    close = get_close_matches(name, base.passages if "#" in name else base.documents, n=1, cutoff=0.8)
    return f"neither a document nor a passage{f'; {close[0]} is like it' if close else ''}"


_NEAR_UNANSWERABLE = 8
_TELLING_WORDS = 3  # of ground truths: as many, and they say what they are about
_OF_DOCUMENTS = 3  # passages of the documents that a question names


@dataclass(kw_only=True)
class CheckedQuestion:
    """A question with what was checked of it. `documents` are those that it is about: the ones it names, or else those
    that bear its ground truth out. `failure` says why it could not be checked to the end."""

    question: GivenQuestion
    checks: list[SetCheck] = field(default_factory=list)
    documents: set[str] = field(default_factory=set)
    failure: str | None = None

    @property
    def findings(self) -> list[SetCheck]:
        """What it did not pass."""
        return [check for check in self.checks if not check.passed]

    @property
    def subject(self) -> Subject:
        """As it is put to the judge."""
        question = self.question
        return Subject(
            id=question.id,
            question=question.question,
            ground_truth=question.ground_truth,
            conversation=question.conversation,
        )

    def note(
        self, name: FindingName, passed: bool, detail: str, call_id: str | None = None, others: Sequence[str] = ()
    ) -> None:
        """Put a check on record."""
        self.checks.append(SetCheck(name=name, passed=passed, detail=detail, others=tuple(others), call_id=call_id))


async def check_twin(live_run: LiveRun, checked: CheckedQuestion, other: GivenQuestion, twin: Twin) -> bool:
    """Note whether a question asks what another asks, and whether their ground truths agree; returns whether it does.

    Of two in other words the judge is asked whether what is right for the one answers the other. Raises JudgeFailed.
    """
    truth, own = other.ground_truth, checked.question.ground_truth
    if not truth or not own:
        if twin.verbatim:
            checked.note("duplicate", False, f"asks the same as {other.id}", others=[other.id])
        return twin.verbatim
    words = list(list_tokens(own))
    if words == list(list_tokens(truth)) and (twin.verbatim or len(words) >= _TELLING_WORDS):
        checked.note("duplicate", False, f"asks the same as {other.id}, which says the same", others=[other.id])
        return True
    said: Answered | None = None
    if not twin.verbatim:
        context = f"{other.question}\n{other.ground_truth}"
        said = await answer(live_run, checked.subject, [context], step="answer_with")
    if said is not None and said.basis != "contexts":
        return False
    mine, theirs = checked.subject, Subject(id=other.id, question=other.question, ground_truth=truth)
    if await _disagree(live_run, mine, theirs):
        checked.note(
            "conflicting", False, f"asks the same as {other.id}, which says: {truth}", _find_call(said), [other.id]
        )
    else:
        checked.note("duplicate", False, f"asks the same as {other.id}", _find_call(said), [other.id])
    return True


def _find_call(said: Answered | None) -> str | None:
    return said.call_id if said else None


async def _disagree(live_run: LiveRun, mine: Subject, theirs: Subject) -> bool:
    """Whether neither of two ground truths says what the other says."""
    for one, other in ((mine, theirs), (theirs, mine)):
        assert other.ground_truth is not None
        statements = await extract(live_run, one)
        said = Answered(
            basis="contexts", answer=other.ground_truth, used=(), reason="", call_id=statements.call_id or ""
        )
        if not statements.items or not (await compare(live_run, one, statements, said)).missing:
            return False
    return True


@dataclass(frozen=True, kw_only=True)
class _Borne:
    """How the statements of a ground truth are borne out by passages, of which the first `n_own` are its own."""

    passages: Sequence[Passage]
    n_own: int
    supported: Sequence[Supported]

    @property
    def unsupported(self) -> list[Supported]:
        """Statements that nothing bears out."""
        return [statement for statement in self.supported if not statement.alone and not statement.together]

    @property
    def bearing(self) -> set[int]:
        """Places of the passages that bear out any of them."""
        return {place for statement in self.supported for place in (*statement.alone, *statement.together)}

    @property
    def is_by_own(self) -> bool:
        """Whether its own passages are enough."""
        return all(
            any(place < self.n_own for place in statement.alone)
            or (statement.together and max(statement.together) < self.n_own)
            for statement in self.supported
        )


async def check_in_documents(live_run: LiveRun, checked: CheckedQuestion, base: Base) -> None:
    """Note what the documents say of a question and its ground truth; raises JudgeFailed."""
    subject = checked.subject
    if checked.question.is_unanswerable:
        await _check_unanswerable(live_run, checked, base)
        return
    if subject.ground_truth is None:
        return
    statements = await extract(live_run, subject)
    if not statements.items:
        # A ground truth such as `The handbook does not say.` states nothing, and marks a question as unanswerable.
        await _check_unanswerable(live_run, checked, base)
        return
    own = _find_own(checked.question, base)
    ids = {passage.passage_id for passage in own}
    others = [found.passage for found in base.near.find(f"{subject.asked} {subject.ground_truth}", NEAR, exclude=ids)]
    named = set(checked.documents)
    own += [passage for passage in others if passage.document_id in named]
    passages = [*own, *(passage for passage in others if passage.document_id not in named)]
    if not passages:
        checked.note("unsupported", False, "no passage shares a word with it")
        return
    supported = await find_support(live_run, subject, statements, [show_passage(passage) for passage in passages])
    borne = _Borne(passages=passages, n_own=len(own), supported=supported)
    if borne.unsupported:
        await _explain_unsupported(live_run, checked, statements, borne)
        return
    checked.note("unsupported", True, "documents bear out every statement", supported[0].call_id)
    bearing = [passages[place] for place in sorted(borne.bearing)]
    checked.documents = checked.documents or {passage.document_id for passage in bearing}
    if named:
        names = list(dict.fromkeys(passage.passage_id for passage in bearing))
        detail = "its references bear it out" if borne.is_by_own else f"borne out by {', '.join(names)}"
        checked.note("misplaced", borne.is_by_own, detail, supported[0].call_id, () if borne.is_by_own else names)
    rest = [passage for place, passage in enumerate(passages) if place not in borne.bearing]
    await _check_ambiguous(live_run, checked, statements, rest)


def _find_own(question: GivenQuestion, base: Base) -> list[Passage]:
    """The passages that a question names, and of documents that it names those nearest to it."""
    names = [*(span.passage_id for span in question.spans), *question.reference_context_ids]
    own = {name: base.passages[name] for name in names if name in base.passages}
    seen = {passage.document_id for passage in own.values()}
    wanted = {name for name in question.reference_context_ids if name in base.documents} - seen
    if wanted:
        elsewhere = [name for name, passage in base.passages.items() if passage.document_id not in wanted]
        text = f"{question.question} {question.ground_truth}"
        for found in base.near.find(text, _OF_DOCUMENTS * len(wanted), exclude=elsewhere):
            own[found.passage.passage_id] = found.passage
    return list(own.values())


async def _explain_unsupported(
    live_run: LiveRun, checked: CheckedQuestion, statements: Extraction, borne: _Borne
) -> None:
    """Whether the documents say otherwise, or nothing."""
    passages = borne.passages
    said = await answer(live_run, checked.subject, [show_passage(one) for one in passages], step="answer_with")
    if said.basis == "contexts":
        compared = await compare(live_run, checked.subject, statements, said)
        if compared.missing and not compared.agrees:
            names = [passages[place].passage_id for place in said.used]
            checked.note("contradicted", False, f"{name_used(said, passages)}: {said.answer}", compared.call_id, names)
            return
    first = borne.unsupported[0]
    more = f" (and {len(borne.unsupported) - 1} more statements)" if len(borne.unsupported) > 1 else ""
    checked.note("unsupported", False, f"{first.text}{more}: {first.reason}", first.call_id)


async def _check_ambiguous(
    live_run: LiveRun, checked: CheckedQuestion, statements: Extraction, rest: Sequence[Passage]
) -> None:
    """Whether passages that do not bear the ground truth out answer the question otherwise."""
    if not rest:
        return
    said = await answer(live_run, checked.subject, [show_passage(one) for one in rest], step="answer_without")
    if said.basis != "contexts":
        checked.note("ambiguous", True, said.reason, said.call_id)
        return
    compared = await compare(live_run, checked.subject, statements, said)
    is_same = compared.agrees or not compared.missing
    names = [rest[place].passage_id for place in said.used]
    checked.note(
        "ambiguous", is_same, f"{name_used(said, rest)}: {said.answer}", compared.call_id, () if is_same else names
    )


async def _check_unanswerable(live_run: LiveRun, checked: CheckedQuestion, base: Base) -> None:
    found = [one.passage for one in base.near.find(checked.subject.asked, _NEAR_UNANSWERABLE)]
    if not found:
        checked.note("answerable", True, "no passage shares a word with it")
        return
    said = await answer(live_run, checked.subject, [show_passage(one) for one in found], step="answer_with")
    is_open = said.basis == "contexts"
    detail = f"{name_used(said, found)}: {said.answer}" if is_open else said.reason
    names = [found[place].passage_id for place in said.used] if is_open else ()
    checked.note("answerable", not is_open, detail, said.call_id, names)
