"""The built-in `lexical` judge: verdicts from words, numbers and names alone, for the same questions a chat model is
asked and in the same reply shapes. Deterministic, offline, English and Chinese. Statements come from `split`, the
support of a text for a statement, the usefulness of contexts and the short reason that says what decided from `match`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from evalhouse.prompts import CONVERSATION
from evalhouse.tasks.judge.protocol import (
    ModelReply,
    ModelRequest,
    Question,
    hash_canonical,
    plain_data,
    require_prompt,
)
from evalhouse.tasks.lexical.match import (
    Support,
    compare_statements,
    explain_support,
    rate_contexts,
    score_contexts,
)
from evalhouse.tasks.lexical.questions import Source, answer_question, read_source, renew_question, write_questions
from evalhouse.tasks.lexical.split import split_sentences, split_statements
from evalhouse.warehouse.steps import LEXICAL_TASKS, REPLY_VERSIONS

LEXICAL_VERSION = "3"  # part of every request's key: raise it whenever any verdict may come out differently

# Shares of a text's content words: from which on two texts are of the same thing, and one was heard in the other.
_SAME_THING, _HEARD = 0.5, 0.3
_NOTHING = Support(score=0.0, evidence=None)
_TIE_WITHIN = 0.05
_NO_MEASURE = "by words alone, a stand-in: with neither a ground truth nor contexts there is nothing to measure them by"
_SCORE = re.compile(r"score ([01]\.\d\d): ")


@dataclass(frozen=True, kw_only=True)
class _Entry:
    id: str
    text: str


def _read_text(data: Mapping[str, object], name: str) -> str:
    value = data.get(name, "")
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}; the lexical judge wants a string there")
    return value


def _read_items(data: Mapping[str, object], name: str) -> list[_Entry]:
    value = data.get(name, ())
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}; the lexical judge wants a list of {{id, text}} there")
    entries: list[_Entry] = []
    for item in value:
        if (
            not isinstance(item, Mapping)
            or not isinstance(item.get("id"), str)
            or not isinstance(item.get("text"), str)
        ):
            raise TypeError(f"an item of {name} is {item!r:.80}; the lexical judge wants {{id, text}} with strings")
        entries.append(_Entry(id=item["id"], text=item["text"]))
    return entries


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """An earlier turn; `told` is what it says without what it asks."""

    id: str
    role: str
    told: str


def _read_turns(data: Mapping[str, object]) -> list[_Turn]:
    turns = []
    for entry in _read_items(data, CONVERSATION):
        role, _, said = entry.text.partition(": ")
        told = " ".join(one for one in split_sentences(said) if not one.rstrip().endswith(("?", "？")))
        turns.append(_Turn(id=entry.id, role=role, told=told))
    return turns


def _classify(data: Mapping[str, object]) -> dict[str, object]:
    question = _read_text(data, "question")
    answer, truth = _read_items(data, "answer_statements"), _read_items(data, "ground_truth_statements")
    compared = compare_statements(question, [entry.text for entry in answer], [entry.text for entry in truth])
    judged = [(entry, support, "FP") for entry, support in zip(answer, compared.answer, strict=True)]
    judged += [(entry, support, "FN") for entry, support in zip(truth, compared.ground_truth, strict=True)]
    verdicts = [
        {
            "id": entry.id,
            "reason": explain_support(support),
            "label": "TP" if support.supported else other,
        }
        for entry, support, other in judged
    ]
    return {"verdicts": verdicts}


def _attribute(data: Mapping[str, object]) -> dict[str, object]:
    question, contexts = _read_text(data, "question"), _read_items(data, "contexts")
    entries = _read_items(data, "answer_statements") + _read_items(data, "ground_truth_statements")
    texts = [entry.text for entry in entries]
    scored = score_contexts(texts, [context.text for context in contexts], question)
    turns = _read_turns(data)
    # By themselves, so that what was said before changes nothing about the contexts.
    in_turns = score_contexts(texts, [turn.told for turn in turns], question) if turns else [[] for _ in entries]
    ids = [*(context.id for context in contexts), *(turn.id for turn in turns)]
    verdicts: list[dict[str, object]] = []
    for entry, of_contexts, of_turns in zip(entries, scored, in_turns, strict=True):
        supports = [*of_contexts, *of_turns]
        best = max(supports, key=lambda support: support.score, default=_NOTHING)
        named = [text_id for text_id, support in zip(ids, supports, strict=True) if support.supported]
        verdicts.append({"id": entry.id, "reason": explain_support(best), "contexts": named, "together": []})
    return {"verdicts": verdicts}


def _hold_to_turns(data: Mapping[str, object]) -> dict[str, object]:
    """Contradictions are what `match` finds another number, name or negation in; a point is whatever the user told."""
    question, statements, turns = (
        _read_text(data, "question"),
        _read_items(data, "answer_statements"),
        _read_turns(data),
    )
    answered = [turn for turn in turns if turn.role == "assistant"]
    scored = score_contexts([entry.text for entry in statements], [turn.told for turn in answered], question)
    judged = []
    for entry, supports in zip(statements, scored, strict=True):
        against = [place for place, support in enumerate(supports) if _speaks_against(support)]
        telling = supports[against[0]] if against else max(supports, key=lambda one: one.score, default=_NOTHING)
        named = [answered[place].id for place in against]
        judged.append({"id": entry.id, "reason": explain_support(telling), "turns": named})
    told = [(turn.id, point) for turn in turns if turn.role == "user" for point in split_statements(turn.told)]
    heard = score_contexts([point for _, point in told], [_read_text(data, "answer")]) if told else []
    points = [
        {
            "id": turn_id,
            "reason": explain_support(support),
            "point": point,
            "heeded": support.evidence is not None and support.evidence.cover >= _HEARD,
        }
        for (turn_id, point), (support,) in zip(told, heard, strict=True)
    ]
    return {"statements": judged, "points": points}


def _speaks_against(support: Support) -> bool:
    evidence = support.evidence
    if support.supported or evidence is None or evidence.cover < _SAME_THING:
        return False
    return evidence.is_contradicted or bool(evidence.rivals)


def _rank(data: Mapping[str, object]) -> dict[str, object]:
    contexts = _read_items(data, "contexts")
    texts = [context.text for context in contexts]
    rated = rate_contexts(_read_text(data, "question"), _read_text(data, "ground_truth"), texts)
    verdicts = []
    for context, relevance in zip(contexts, rated, strict=True):
        held = f"{relevance.question_share:.0%} of the question"
        if relevance.ground_truth_share is not None:
            held = f"{relevance.ground_truth_share:.0%} of the ground truth and {held}"
        reason = f"score {relevance.score:.2f}: holds {held}"
        verdicts.append({"id": context.id, "reason": reason, "label": "useful" if relevance.useful else "not_useful"})
    return {"verdicts": verdicts}


def read_score(reason: str) -> float | None:
    """The score that a reason of this judge begins with; None where it begins with none."""
    match = _SCORE.match(reason)
    return float(match[1]) if match else None


def _fuse(data: Mapping[str, object]) -> dict[str, object]:
    """What the three would say by themselves; the texts of a side do not count in what supports the other's."""
    sides = ("answer_statements", "ground_truth_statements")
    support: dict[str, str] = {}
    for side in sides:
        for found in _list_verdicts(_attribute({**data, **{other: [] for other in sides if other != side}})):
            support[found["id"]] = f"{' '.join(found['contexts']) or 'none'}: {found['reason']}"
    labels = [*_list_verdicts(_classify(data)), *_list_verdicts(_rank(data))]
    rows = [[found["id"], found["reason"], found["label"], support.get(found["id"])] for found in labels]
    return {"verdicts": [[cell for cell in row if cell is not None] for row in rows]}


def _list_verdicts(reply: Mapping[str, object]) -> list[Any]:
    verdicts = reply["verdicts"]
    assert isinstance(verdicts, list)
    return verdicts


def _prefer(data: Mapping[str, object]) -> dict[str, object]:
    """Prefer the answer that agrees better, in words alone, with the ground truth, or without one with the contexts."""
    question, truth = _read_text(data, "question"), split_statements(_read_text(data, "ground_truth"))
    contexts = [context.text for context in _read_items(data, "contexts")]

    def measure(answer: list[str]) -> float:
        if truth:
            # F1 of how far the statements of either text are in the other.
            compared = compare_statements(question, answer, truth)
            sides = (compared.answer, compared.ground_truth)
            precision, recall = (_mean([support.score for support in side]) for side in sides)
            return 2 * precision * recall / (precision + recall) if precision and recall else 0.0
        if contexts:
            scored = score_contexts(answer, contexts, question)
            return _mean([max(support.score for support in supports) for supports in scored])
        return 0.0

    answers = (_read_text(data, f"{place}_answer") for place in ("first", "second"))
    first, second = (measure(split_statements(answer)) for answer in answers)
    verdict = "tie" if abs(first - second) < _TIE_WITHIN else "first" if first > second else "second"
    by = "F1 with the ground truth" if truth else "support by the contexts"
    reason = f"by words alone, a stand-in: {by}, first {first:.2f}, second {second:.2f}"
    reason = reason if truth or contexts else _NO_MEASURE
    return {"preference": {"reason": reason, "verdict": verdict}}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


_ANSWERED = (
    "extract", "classify", "attribute", "rank", "fused", "extract_both", "turns", "write_question", "answer_question",
    "renew_question", "preference",
)  # fmt: skip


def judge_lexically(prompt: str, data: Mapping[str, object]) -> dict[str, object]:
    """Return the reply to the request named `prompt` about its wire data; raises ValueError for any other prompt."""
    match prompt:
        case "extract":
            return {"statements": split_statements(_read_text(data, "text"))}
        case "extract_both":
            return {source: split_statements(_read_text(data, source)) for source in ("answer", "ground_truth")}
        case "classify":
            return _classify(data)
        case "attribute":
            return _attribute(data)
        case "rank":
            return _rank(data)
        case "fused":
            return _fuse(data)
        case "turns":
            return _hold_to_turns(data)
        case "preference":
            return _prefer(data)
        case "write_question":
            kind, count = _read_text(data, "question_kind"), int(_read_text(data, "count"))
            questions = write_questions(kind, count, _read_sources(data))
            return {"reason": "cloze-like questions, a stand-in", "questions": questions}
        case "answer_question":
            return answer_question(_read_text(data, "question"), _read_sources(data))
        case "renew_question":
            return renew_question(_read_text(data, "question"), _read_text(data, "ground_truth"), _read_sources(data))
    raise ValueError(f"the lexical judge cannot answer the prompt '{prompt}'; it answers: {', '.join(_ANSWERED)}")


def _read_sources(data: Mapping[str, object]) -> list[Source]:
    return [read_source(entry.id, entry.text) for entry in _read_items(data, "contexts")]


class LexicalJudge:
    """Gives verdicts by the rules of this room. Prompt texts play no part in them."""

    name = "lexical"
    model = f"lexical-{LEXICAL_VERSION}"
    endpoint = None
    tasks = LEXICAL_TASKS

    def prepare(self, question: Question) -> ModelRequest:
        """The question's data under the version of the rules; `note` is for models and is left out."""
        name = require_prompt(question).name
        payload: dict[str, object] = {"model": self.model, "prompt": name, "data": plain_data(question.data)}
        keyed = [payload, REPLY_VERSIONS.get(name, 1), question.number, question.only]
        return ModelRequest(request_hash=hash_canonical(keyed), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Decide at once; there is nothing to wait for."""
        data = request.payload["data"]
        assert isinstance(data, dict)
        verdicts = judge_lexically(str(request.payload["prompt"]), data)
        return ModelReply(text=orjson.dumps(verdicts).decode(), model=self.model)

    async def close(self) -> None:
        """Nothing is open."""
