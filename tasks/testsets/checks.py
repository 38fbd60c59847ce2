"""Checks of questions: requests to the judge about one question, and the findings of `testset check`.

Statements, support and labels come from the steps of a run, with the same requests, so that a run finds the replies in
the warehouse when it first asks for them.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, Literal

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.attribute import attribute_statements
from evalhouse.tasks.classify import classify_statements
from evalhouse.tasks.extract import extract_ground_truth
from evalhouse.tasks.judge.protocol import JudgeFailed, Question, UnusableReply
from evalhouse.tasks.pipeline.live_run import Extraction, LiveRun, SampleWork, make_work
from evalhouse.tasks.testsets.near import NearPassages, Twin, list_tokens
from evalhouse.tasks.testsets.passages import Document, Passage, find_language
from evalhouse.tasks.testsets.questions import GivenQuestion, PlainQuestion
from evalhouse.warehouse.rows.samples import StoredSample, find_owners

STEPS = frozenset({"extract_ground_truth", "attribute_ground_truth", "classify"})
"""The steps of a run that are used on the questions of a set."""
NEAR: Final = 5
"""The number of near passages that a question is checked against."""
NEAR_UNANSWERABLE: Final = 8
"""The same for a question that the documents do not answer."""


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
    """The judge's answer to a question, and its basis; `used` are places of contexts, from 0."""

    basis: Literal["contexts", "knowledge", "none"]
    answer: str
    used: tuple[int, ...]
    reason: str
    call_id: str

    def name_source(self, contexts: Sequence[Passage]) -> str:
        """Return the source of the answer in words: the ids of the used passages, or general knowledge."""
        if self.basis == "knowledge":
            return "from general knowledge"
        return f"from {', '.join(contexts[place].passage_id for place in self.used) or 'elsewhere'}"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """An answer compared with a ground truth: `missing` are the statements that it lacks; `agrees` is true if the
    ground truth supports the answer as a whole, which may be incomplete and still agree."""

    missing: tuple[str, ...]
    agrees: bool
    reason: str
    call_id: str | None


Step = Callable[[LiveRun, SampleWork], Awaitable[None]]


async def _run_step(
    step: Step,
    live_run: LiveRun,
    question: PlainQuestion,
    *,
    statements: Extraction | None = None,
    answer: str | None = None,
    answer_statements: Extraction | None = None,
    contexts: Sequence[str] | None = None,
) -> SampleWork:
    """Run one step of a run on a question; `statements` are the ground truth's. Raises JudgeFailed."""
    sample = StoredSample(
        ordinal=1,
        sample_id=question.id,
        input_hash="",
        question=question.asked,
        answer=answer,
        ground_truth=question.ground_truth,
        contexts=list(contexts) if contexts is not None else None,
        context_ids=None,
        reference_context_ids=None,
    )
    work = make_work(sample)
    if statements is not None and answer_statements is not None:
        work.hand_over("ground_truth", statements)
        work.hand_over("answer", answer_statements)
    await step(live_run, work)
    for outcome in work.rows["outcomes"]:
        if outcome["reason"] is not None and outcome["detail"] is not None:
            raise JudgeFailed(str(outcome["detail"]))
    return work


async def extract(live_run: LiveRun, question: PlainQuestion) -> Extraction:
    """Return the statements of the ground truth; raises JudgeFailed."""
    work = await _run_step(extract_ground_truth, live_run, question)
    return await work.wait_for_statements("ground_truth")


async def find_support(
    live_run: LiveRun, question: PlainQuestion, statements: Extraction, contexts: Sequence[str]
) -> list[Supported]:
    """Return for each statement the contexts that support it; raises JudgeFailed."""
    no_answer = Extraction(reason="no_answer")
    work = await _run_step(
        attribute_statements, live_run, question, statements=statements, answer_statements=no_answer, contexts=contexts
    )
    texts = {item.id: item.text for item in statements.items}
    rows: Any = work.rows["attributions"]
    return [
        Supported(
            text=texts[row["statement_id"]],
            alone=tuple(rank - 1 for rank in row["context_ranks"]),
            together=tuple(rank - 1 for rank in row["joint_ranks"]),
            reason=row["reason"],
            call_id=row["call_id"],
        )
        for row in rows
    ]


async def compare(live_run: LiveRun, question: PlainQuestion, statements: Extraction, answered: Answered) -> Compared:
    """Compare an answer with every statement of the ground truth; raises JudgeFailed."""
    # The answer is one statement: what counts is which of the ground truth's it has, and not what else it says.
    whole = Extraction(items=(Item(id="A1", text=answered.answer),), call_id=answered.call_id)
    work = await _run_step(
        classify_statements, live_run, question, statements=statements, answer=answered.answer, answer_statements=whole
    )
    texts = {item.id: item.text for item in statements.items}
    rows: Any = work.rows["classifications"]
    missing = [row for row in rows if row["label"] == "FN"]
    first = (missing or rows)[0]
    return Compared(
        missing=tuple(texts[row["statement_id"]] for row in missing),
        agrees=not any(row["label"] == "FP" for row in rows),
        reason=first["reason"],
        call_id=first["call_id"],
    )


def read_texts(reply: Mapping[str, object], *names: str) -> dict[str, str]:
    """Return members of a reply, each in one line; raises UnusableReply if one is not a text."""
    texts = [reply.get(name) for name in names]
    if not all(isinstance(text, str) for text in texts):
        raise UnusableReply(f"the reply lacks {', '.join(names[:-1])} or {names[-1]} as a text")
    return {name: " ".join(str(text).split()) for name, text in zip(names, texts, strict=True)}


async def answer(live_run: LiveRun, question: PlainQuestion, contexts: Sequence[str], *, step: str) -> Answered:
    """Return the judge's answer from these contexts; `step` names the call in the warehouse. Raises JudgeFailed."""
    items = [Item(id=f"C{place}", text=text) for place, text in enumerate(contexts, start=1)]
    ids = [item.id for item in items]

    def parse(text: str) -> dict[str, Any]:
        reply = parse_object(text, "basis")
        fields: dict[str, Any] = {**read_texts(reply, "reason", "basis", "answer")}
        if fields["basis"] not in ("contexts", "knowledge", "none"):
            raise UnusableReply(f"basis is {fields['basis']!r:.40}, allowed: contexts, knowledge, none")
        if fields["basis"] != "none" and not fields["answer"]:
            raise UnusableReply(f"basis is {fields['basis']} and the answer is empty")
        used = reply.get("used")
        if not isinstance(used, list) or not {str(name) for name in used} <= set(ids):
            raise UnusableReply(f"used is {used!r:.40}, allowed: a list of {', '.join(ids) or 'nothing'}")
        return fields | {"used": tuple(dict.fromkeys(ids.index(str(name)) for name in used))}

    request = Question(
        step=step,
        sample_id=question.id,
        prompt=live_run.prompts["answer_question"],
        data={"question": question.question, "conversation": question.conversation_text, "contexts": items},
    )
    reply = await live_run.asker.ask(request, parse)
    return Answered(**reply.value, call_id=reply.call_id)


# Words that refer to the text a question was made from, which a person who asks does not have.
_POINTING = re.compile(
    r"\b(?:according to|in|from|by) (?:the|this) (?:above |following |given |provided )?"
    r"(?:passage|text|document|context|excerpt|article)\b"
    r"|\b(?:the|this) (?:passage|excerpt)\b|\bmentioned above\b|\[?C\d+\]"
    r"|文中|上文|这段话|段落[中里]|(?:根据|按照?|依据)(?:上述|该|本|这)?(?:文档|文章|段落|材料|文本)|以上(?:内容|材料)",
    re.IGNORECASE,
)


def find_pointing(question: str) -> str | None:
    """Return the words that refer to the source of a question, such as `in this passage`; None without any."""
    pointing = _POINTING.search(question)
    return pointing[0] if pointing else None


def holds_answer(question: PlainQuestion) -> bool:
    """Return whether a question, with the messages before it, has all content words of its ground truth."""
    asked = " ".join((*(turn.content for turn in question.conversation), question.question))
    truth = set(list_tokens(question.ground_truth or ""))
    return bool(truth) and truth <= set(list_tokens(asked))


MEANINGS: Final = {
    "contradicted": "documents contradict the ground truth",
    "unsupported": "no document supports the ground truth",
    "conflicting": "two ask the same, and their ground truths differ",
    "answerable": "marked as unanswerable, and a document answers it",
    "no_ground_truth": "without a ground truth, and not marked as unanswerable",
    "dead_reference": "a reference id is neither a document nor a passage",
    "leak": "the question holds its answer",
    "duplicate": "another question asks the same",
    "ambiguous": "other documents give another answer than the ground truth",
    "misplaced": "the references do not support the ground truth; other documents do",
    "language": "question, ground truth and documents are not in one language",
    "form": "the question refers to the text that it was made from",
}
"""The findings of `testset check`, the most severe first, with what each means."""
FINDINGS: Final = tuple(MEANINGS)
_WARNINGS: Final = frozenset({"ambiguous", "misplaced", "language", "form"})
SEVERITIES: Final = {name: "warning" if name in _WARNINGS else "error" for name in FINDINGS}
"""The severity of each finding: an error makes scores wrong, a warning may be intended."""
_CHOICE = re.compile(r"\bor\b|还是", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_HAN = re.compile("[\u3400-\u9fff]")
_MIN_WORDS, _MIN_HAN = 4, 4  # of a text whose language is checked
_MIN_TRUTH_WORDS = 3  # of equal ground truths: shorter ones may be equal by chance
_PER_DOCUMENT = 3  # passages of the documents that a question names


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of a candidate or a question of a set: it `passed`, or it is a finding or a reason to turn it down.

    `others` are the questions, documents or passages involved, `call_id` the judge's call behind it, None without one.
    """

    name: str
    passed: bool
    detail: str
    call_id: str | None = None
    others: tuple[str, ...] = ()


@dataclass(kw_only=True)
class CheckList:
    """The checks of a candidate or a question; `failure` is the reason why they were not finished."""

    checks: list[Check] = field(default_factory=list)
    failure: str | None = None

    @property
    def findings(self) -> list[Check]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    def note(
        self, name: str, passed: bool, detail: str, call_id: str | None = None, others: Sequence[str] = ()
    ) -> bool:
        """Add a check; returns whether it passed."""
        self.checks.append(Check(name=name, passed=passed, detail=detail, call_id=call_id, others=tuple(others)))
        return passed


@dataclass(kw_only=True)
class CheckedQuestion(CheckList):
    """A question with its checks. `documents` are its subject: the ones it names, or else the ones that support its
    ground truth."""

    question: GivenQuestion
    documents: set[str] = field(default_factory=set)


class KnowledgeBase:
    """The documents that a set is about, with their passages by id and their languages."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = {document.document_id: document for document in documents}
        self.passages = {passage.passage_id: passage for document in documents for passage in document.passages}
        self.languages = {passage.language for passage in self.passages.values()}
        self.near = NearPassages(list(self.passages.values()))
        owners = find_owners({*self.passages, *self.documents})
        self.by_form = {owners[name][-1]: name for name in (*self.passages, *self.documents)}

    def use_own_ids(self, questions: Sequence[GivenQuestion]) -> list[GivenQuestion]:
        """Return questions that name documents and passages by their ids here, where theirs match in another form."""
        named = {name for question in questions for name in question.reference_context_ids}
        ids = {name: self.by_form.get(owners[-1], name) for name, owners in find_owners(named).items()}
        return [
            replace(question, reference_context_ids=tuple(ids[name] for name in question.reference_context_ids))
            for question in questions
        ]

    def find_documents(self, question: GivenQuestion) -> set[str]:
        """Return the documents that a question names, by themselves or by their passages."""
        names = [*question.reference_context_ids, *(span.passage_id for span in question.spans)]
        named = {self.passages[name].document_id for name in names if name in self.passages}
        quoted = {span.document_id for span in question.spans}
        return named | (self.documents.keys() & {*names, *quoted})


def check_alone(checked: CheckedQuestion, base: KnowledgeBase | None) -> None:
    """Check a question by itself, and its references and language against a knowledge base if there is one."""
    question = checked.question
    pointing = find_pointing(question.question)
    detail = f"it refers to the text it was made from: {pointing!r}" if pointing else "it can be asked without a text"
    checked.note("form", pointing is None, detail)
    has_truth = question.ground_truth is not None or question.is_unanswerable
    missing = "there is no ground truth, and it is not marked as unanswerable"
    checked.note("no_ground_truth", has_truth, "it has one" if has_truth else missing)
    if question.ground_truth is not None:
        # If a question names two things, one of them is the answer.
        leaks = holds_answer(question) and not _CHOICE.search(question.question)
        detail = f"the question has all that the ground truth states: {question.ground_truth!r:.200}"
        checked.note("leak", not leaks, detail if leaks else "it does not hold its answer")
    # A short text, such as a name or a number, is of no certain language.
    asked, truth = (
        find_language(text) if len(_WORD.findall(text)) >= _MIN_WORDS or len(_HAN.findall(text)) >= _MIN_HAN else None
        for text in (question.question, question.ground_truth or "")
    )
    if asked and truth and asked != truth:
        chinese, other = ("question", "ground truth") if asked == "zh" else ("ground truth", "question")
        checked.note("language", False, f"the {chinese} is in Chinese, the {other} is not")
    elif base is not None and asked and asked not in base.languages:
        difference = "in Chinese, none of the documents is" if asked == "zh" else "not in Chinese, all documents are"
        checked.note("language", False, f"the question is {difference}")
    else:
        checked.note("language", True, "question, ground truth and documents agree")
    if base is None or not question.reference_context_ids:
        return
    dead: dict[str, str] = {}
    for name in question.reference_context_ids:
        if name in base.passages or name in base.documents:
            continue
        owners = find_owners([name])[name][:-1]
        if document := next((base.by_form[owner] for owner in reversed(owners) if owner in base.by_form), None):
            dead[name] = f"no passage of {document} has that id"
            continue
        close = get_close_matches(name, base.passages if "#" in name else base.documents, n=1, cutoff=0.8)
        dead[name] = f"neither a document nor a passage{f'; {close[0]} is like it' if close else ''}"
    detail = "; ".join(f"{name}: {why}" for name, why in dead.items())
    present = f"{len(question.reference_context_ids)} are there"
    checked.note("dead_reference", not dead, detail or present, others=list(dead))


async def check_twin(live_run: LiveRun, checked: CheckedQuestion, other: GivenQuestion, twin: Twin) -> bool:
    """Note and return whether a question asks what another asks, and note whether their ground truths agree.

    For two in other words the judge is asked whether the ground truth of one answers the other. Raises JudgeFailed.
    """
    question = checked.question
    same = f"asks the same as {other.id}"
    if not other.ground_truth or not question.ground_truth:
        if twin.verbatim:
            checked.note("duplicate", False, same, others=[other.id])
        return twin.verbatim
    words = list(list_tokens(question.ground_truth))
    if words == list(list_tokens(other.ground_truth)) and (twin.verbatim or len(words) >= _MIN_TRUTH_WORDS):
        checked.note("duplicate", False, f"{same}, with the same ground truth", others=[other.id])
        return True
    call_id: str | None = None
    if not twin.verbatim:
        context = f"{other.question}\n{other.ground_truth}"
        answered = await answer(live_run, question, [context], step="answer_with")
        if answered.basis != "contexts":
            return False
        call_id = answered.call_id
    # They conflict if neither ground truth has all statements of the other.
    for one, second in ((question, other), (other, question)):
        statements = await extract(live_run, one)
        truth = Answered(
            basis="contexts", answer=second.ground_truth or "", used=(), reason="", call_id=statements.call_id or ""
        )
        if not statements.items or not (await compare(live_run, one, statements, truth)).missing:
            checked.note("duplicate", False, same, call_id, [other.id])
            return True
    checked.note("conflicting", False, f"{same}, whose ground truth is: {other.ground_truth}", call_id, [other.id])
    return True


async def check_in_documents(live_run: LiveRun, checked: CheckedQuestion, base: KnowledgeBase) -> None:
    """Note what the documents have on a question and its ground truth; raises JudgeFailed."""
    question = checked.question
    if question.is_unanswerable:
        await _check_unanswerable(live_run, checked, base)
        return
    if question.ground_truth is None:
        return
    statements = await extract(live_run, question)
    if not statements.items:
        # A ground truth such as `The handbook does not say.` states nothing, and marks a question as unanswerable.
        await _check_unanswerable(live_run, checked, base)
        return
    # The passages that the question names, and of documents that it names the passages nearest to it.
    references = [*(span.passage_id for span in question.spans), *question.reference_context_ids]
    by_id = {name: base.passages[name] for name in references if name in base.passages}
    seen = {passage.document_id for passage in by_id.values()}
    wanted = {name for name in question.reference_context_ids if name in base.documents} - seen
    if wanted:
        elsewhere = [name for name, passage in base.passages.items() if passage.document_id not in wanted]
        text = f"{question.question} {question.ground_truth}"
        for passage in base.near.find(text, _PER_DOCUMENT * len(wanted), exclude=elsewhere):
            by_id[passage.passage_id] = passage
    own, ids = list(by_id.values()), set(by_id)
    others = base.near.find(f"{question.asked} {question.ground_truth}", NEAR, exclude=ids)
    named = set(checked.documents)
    own += [passage for passage in others if passage.document_id in named]
    passages = [*own, *(passage for passage in others if passage.document_id not in named)]
    if not passages:
        checked.note("unsupported", False, "no passage shares a word with it")
        return
    contexts = [passage.as_context() for passage in passages]
    supported = await find_support(live_run, question, statements, contexts)
    unsupported = [statement for statement in supported if not statement.alone and not statement.together]
    if unsupported:
        # The documents have something else on it, or nothing.
        answered = await answer(live_run, question, contexts, step="answer_with")
        if answered.basis == "contexts":
            compared = await compare(live_run, question, statements, answered)
            if compared.missing and not compared.agrees:
                detail = f"{answered.name_source(passages)}: {answered.answer}"
                names = [passages[place].passage_id for place in answered.used]
                checked.note("contradicted", False, detail, compared.call_id, names)
                return
        first = unsupported[0]
        more = f" (and {len(unsupported) - 1} more statements)" if len(unsupported) > 1 else ""
        checked.note("unsupported", False, f"{first.text}{more}: {first.reason}", first.call_id)
        return
    checked.note("unsupported", True, "documents support every statement", supported[0].call_id)
    supporting = {place for statement in supported for place in (*statement.alone, *statement.together)}
    sources = [passages[place] for place in sorted(supporting)]
    checked.documents = checked.documents or {passage.document_id for passage in sources}
    if named:
        is_enough = all(
            min(statement.alone, default=len(own)) < len(own)
            or (statement.together and max(statement.together) < len(own))
            for statement in supported
        )
        names = list(dict.fromkeys(passage.passage_id for passage in sources))
        detail = "its references support it" if is_enough else f"supported by {', '.join(names)}"
        checked.note("misplaced", is_enough, detail, supported[0].call_id, () if is_enough else names)
    rest = [passage for place, passage in enumerate(passages) if place not in supporting]
    if not rest:
        return
    # Passages that do not support the ground truth may give another answer to the question.
    answered = await answer(live_run, question, [one.as_context() for one in rest], step="answer_without")
    if answered.basis != "contexts":
        checked.note("ambiguous", True, answered.reason, answered.call_id)
        return
    compared = await compare(live_run, question, statements, answered)
    is_same = compared.agrees or not compared.missing
    found = () if is_same else [rest[place].passage_id for place in answered.used]
    checked.note("ambiguous", is_same, f"{answered.name_source(rest)}: {answered.answer}", compared.call_id, found)


async def _check_unanswerable(live_run: LiveRun, checked: CheckedQuestion, base: KnowledgeBase) -> None:
    """Note whether the documents answer a question that is marked as unanswerable."""
    found = base.near.find(checked.question.asked, NEAR_UNANSWERABLE)
    if not found:
        checked.note("answerable", True, "no passage shares a word with it")
        return
    answered = await answer(live_run, checked.question, [one.as_context() for one in found], step="answer_with")
    if answered.basis != "contexts":
        checked.note("answerable", True, answered.reason, answered.call_id)
        return
    names = [found[place].passage_id for place in answered.used]
    detail = f"{answered.name_source(found)}: {answered.answer}"
    checked.note("answerable", False, detail, answered.call_id, names)
