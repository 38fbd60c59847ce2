"""What can be wrong with a question of a set, how much that weighs, and what needs neither a judge nor embeddings to
be seen."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Final, Literal, get_args

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.attribute import attribute_statements
from evalhouse.tasks.classify import classify_statements
from evalhouse.tasks.extract import extract_ground_truth
from evalhouse.tasks.judge.errors import JudgeFailed, UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import Extraction, LiveRun, SampleWork, make_work
from evalhouse.tasks.testsets.candidates import NEAR, find_pointing, holds_answer, name_used
from evalhouse.tasks.testsets.near import NearPassages, Twin, list_tokens
from evalhouse.tasks.testsets.passages import Document, Language, Passage, find_language
from evalhouse.tasks.testsets.questions import GivenQuestion, Turn, show_passage, write_asked, write_conversation
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
