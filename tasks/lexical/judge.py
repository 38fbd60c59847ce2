"""The built-in `lexical` judge: verdicts from words, numbers and names alone, for the same questions a chat model is
asked and in the same reply shapes. Deterministic, offline, English and Chinese. Statements come from `split`, the
support of a text for a statement from `match`; here is which contexts are useful, and the short reason that says
what decided.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from evalhouse.tasks.judge.protocol import (
    ModelReply,
    ModelRequest,
    Question,
    hash_canonical,
    plain_data,
    require_prompt,
)
from evalhouse.tasks.lexical.match import (
    Evidence,
    Support,
    compare_statements,
    rate_support,
    read_answer,
    read_claim,
    score_contexts,
)
from evalhouse.tasks.lexical.split import split_statements
from evalhouse.tasks.lexical.texts import AnalysedText, analyse_text
from evalhouse.warehouse.steps import REPLY_VERSIONS

# These two were chosen together on one half (by hash of the row's group) of four sets with graded contexts.
USEFUL_THRESHOLD = 0.45
_AHEAD = 0.5  # of the distance to the mean of the contexts retrieved together: words of the subject are in all of them
# Picked with all rows of five sets with graded contexts in view; any share from 0.6 to 0.8 ranks about as well.
_GROUND_TRUTH_SHARE = 0.7
_ONE_SENTENCE = 0.8  # what a context is worth that states one sentence of the ground truth and nothing of the rest


@dataclass(frozen=True, kw_only=True)
class Relevance:
    """How useful one context is, 0 to 1, and what of it comes from the ground truth (None without any) and question."""

    score: float
    ground_truth_share: float | None
    question_share: float

    @property
    def useful(self) -> bool:
        return self.score >= USEFUL_THRESHOLD


def _weigh_keys(subject: AnalysedText, contexts: Sequence[AnalysedText]) -> dict[str, float]:
    """Key to weight: the token's own, more for keys that few contexts hold (a smoothed inverse document frequency)."""
    n = len(contexts)
    held = [context.places for context in contexts]
    return {
        key: weight * math.log(1 + (n + 0.5) / (sum([key in places for places in held]) + 0.5))
        for key, weight in subject.weights.items()
    }


def _share_found(weights: dict[str, float], context: AnalysedText) -> float:
    """Share of the weighted keys in the context: half for those anywhere, half for those in the best sentence."""
    total = sum(weights.values())
    if not total:
        return 0.0
    anywhere, singles = 0.0, [0.0] * len(context.sentences)
    for key in weights.keys() & context.keys:
        anywhere += weights[key]
        for position in context.read_positions(key):
            singles[position] += weights[key]
    best = max(singles, default=0.0)
    return 0.5 * (anywhere + best) / total


def rate_contexts(question: str, ground_truth: str, contexts: Sequence[str]) -> list[Relevance]:
    """The usefulness of each context, in the order given; with an empty ground truth by the question alone."""
    texts = [analyse_text(context) for context in contexts]
    asked, truth = analyse_text(question), analyse_text(ground_truth)
    question_weights = _weigh_keys(asked, texts)
    truth_weights = {key: weight for key, weight in _weigh_keys(truth, texts).items() if key not in asked.keys}
    if not truth_weights:  # the ground truth is in the question: a choice, or yes and no
        truth_weights = _weigh_keys(truth, texts)
    truth_parts = [AnalysedText(text=truth.text, sentences=(sentence,)) for sentence in truth.sentences]
    claims = [read_answer(part, asked) for part in truth_parts] if len(truth_parts) > 1 else []
    asked_claim, truth_claim = read_claim(asked), read_answer(truth, asked)
    rated: list[Relevance] = []
    for text in texts:
        question_share = 0.5 * (_share_found(question_weights, text) + rate_support(asked_claim, text))
        if truth.weights:
            whole = 0.5 * (_share_found(truth_weights, text) + rate_support(truth_claim, text))
            truth_share = whole
            if whole < _ONE_SENTENCE:
                best_part = max((rate_support(claim, text) for claim in claims), default=0.0)
                truth_share = max(whole, _ONE_SENTENCE * best_part)
            score = _GROUND_TRUTH_SHARE * truth_share + (1 - _GROUND_TRUTH_SHARE) * question_share
            rated.append(Relevance(score=score, ground_truth_share=truth_share, question_share=question_share))
        else:
            rated.append(Relevance(score=question_share, ground_truth_share=None, question_share=question_share))
    return _set_apart(rated)


def _set_apart(rated: Sequence[Relevance]) -> list[Relevance]:
    """The scores with their distance to the mean made larger; one context alone keeps its own."""
    mean = sum([relevance.score for relevance in rated]) / max(len(rated), 1)
    return [
        replace(relevance, score=min(max(relevance.score + _AHEAD * (relevance.score - mean), 0.0), 1.0))
        for relevance in rated
    ]


LEXICAL_VERSION = "2"  # part of every request's key: raise it whenever any verdict may come out differently

_SCORE = re.compile(r"score ([01]\.\d\d): ")
_HARDLY = 0.005  # a share that rounds to 0 %


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


def _extract(data: Mapping[str, object]) -> dict[str, object]:
    return {"statements": split_statements(_read_text(data, "text"))}


def _classify(data: Mapping[str, object]) -> dict[str, object]:
    question = _read_text(data, "question")
    answer, truth = _read_items(data, "answer_statements"), _read_items(data, "ground_truth_statements")
    compared = compare_statements(question, [entry.text for entry in answer], [entry.text for entry in truth])
    verdicts = [_verdict(e, "TP", "FP", s) for e, s in zip(answer, compared.answer, strict=True)]
    verdicts += [_verdict(e, "TP", "FN", s) for e, s in zip(truth, compared.ground_truth, strict=True)]
    return {"verdicts": verdicts}


def _verdict(entry: _Entry, yes: str, no: str, support: Support) -> dict[str, object]:
    return {"id": entry.id, "reason": _explain(support), "label": yes if support.supported else no}


def _attribute(data: Mapping[str, object]) -> dict[str, object]:
    question, contexts = _read_text(data, "question"), _read_items(data, "contexts")
    entries = _read_items(data, "answer_statements") + _read_items(data, "ground_truth_statements")
    scored = score_contexts([entry.text for entry in entries], [context.text for context in contexts], question)
    verdicts: list[dict[str, object]] = []
    for entry, supports in zip(entries, scored, strict=True):
        best = max(supports, key=lambda support: support.score, default=Support(score=0.0, evidence=None))
        named = [context.id for context, support in zip(contexts, supports, strict=True) if support.supported]
        verdicts.append({"id": entry.id, "reason": _explain(best), "contexts": named})
    return {"verdicts": verdicts}


def _rank(data: Mapping[str, object]) -> dict[str, object]:
    contexts = _read_items(data, "contexts")
    texts = [context.text for context in contexts]
    rated = rate_contexts(_read_text(data, "question"), _read_text(data, "ground_truth"), texts)
    verdicts = [
        {"id": c.id, "reason": _explain_relevance(r), "label": "useful" if r.useful else "not_useful"}
        for c, r in zip(contexts, rated, strict=True)
    ]
    return {"verdicts": verdicts}


def _explain_relevance(rated: Relevance) -> str:
    question = f"{rated.question_share:.0%} of the question"
    if rated.ground_truth_share is None:
        return f"score {rated.score:.2f}: holds {question}"
    return f"score {rated.score:.2f}: holds {rated.ground_truth_share:.0%} of the ground truth and {question}"


def _explain(support: Support) -> str:
    """What decided, in one line."""
    evidence = support.evidence
    if evidence is None:
        return "nothing to compare with"
    words = "1 content word" if evidence.n_keys == 1 else f"{evidence.n_keys} content words"
    parts = [f"{evidence.cover:.0%} of its {words} {_name_place(evidence)}"]
    if not evidence.n_window:
        parts = [f"hardly any of its {words} found"]
    elif evidence.cover < _HARDLY:
        parts = ["its one content word is not found" if evidence.n_keys == 1 else f"none of its {words} found"]
    for name, missing in (
        ("numbers", evidence.missing_numbers),
        ("names", evidence.missing_names),
        ("words", evidence.missing_words),
    ):
        if missing:
            parts.append(f"{name} not found: {', '.join(missing[:4])}")
    if evidence.rivals:
        parts.append(f"other numbers in their place: {', '.join(evidence.rivals[:2])}")
    if evidence.opposites:
        parts.append(f"opposites: {', '.join(evidence.opposites[:2])}")
    if evidence.negation_mismatch:
        parts.append("negated on one side only")
    whose = "conveys a ground-truth statement: " if support.conveys else ""
    return f"score {support.score:.2f}: {whose}" + "; ".join(parts)


def read_score(reason: str) -> float | None:
    """The score that a reason of this judge begins with; None where it begins with none."""
    match = _SCORE.match(reason)
    return float(match[1]) if match else None


def _name_place(evidence: Evidence) -> str:
    verb = "stands" if evidence.n_keys == 1 else "stand"
    return f"{verb} in {'one sentence' if evidence.n_window == 1 else f'{evidence.n_window} neighbouring sentences'}"


_ANSWERS: dict[str, Callable[[Mapping[str, object]], dict[str, object]]] = {
    "extract": _extract,
    "classify": _classify,
    "attribute": _attribute,
    "rank": _rank,
}


def judge_lexically(prompt: str, data: Mapping[str, object]) -> dict[str, object]:
    """The reply to the request named `prompt` (extract, classify, attribute, rank) about its wire data."""
    answer = _ANSWERS.get(prompt)
    if answer is None:
        raise ValueError(f"the lexical judge cannot answer the prompt '{prompt}'; it answers: {', '.join(_ANSWERS)}")
    return answer(data)


class LexicalJudge:
    """Gives verdicts by the rules of this room. Prompt texts play no part in them."""

    name = "lexical"
    model = f"lexical-{LEXICAL_VERSION}"
    endpoint = None

    def prepare(self, question: Question) -> ModelRequest:
        """The question's data under the version of the rules; `note` is for models and is left out."""
        name = require_prompt(question).name
        payload: dict[str, object] = {"model": self.model, "prompt": name, "data": plain_data(question.data)}
        keyed = [payload, REPLY_VERSIONS[name], question.number, question.only]
        return ModelRequest(request_hash=hash_canonical(keyed), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Decide at once; there is nothing to wait for."""
        data = request.payload["data"]
        assert isinstance(data, dict)
        verdicts = judge_lexically(str(request.payload["prompt"]), data)
        return ModelReply(text=orjson.dumps(verdicts).decode(), model=self.model)

    async def close(self) -> None:
        """Nothing is open."""
