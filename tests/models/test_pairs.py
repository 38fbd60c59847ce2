"""Verdicts made from scores of pairs: which pairs are asked for, what counts as support, and what reasons say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from evalhouse.tasks.asking.pairs import Pair, Scored, judge_pairs, locate, read_score
from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.models.local import load_table, parse_classifier
from evalhouse.tasks.models.make import check_judge_name


@dataclass
class WordScorer:
    """Scores by the share of the claim's words that the document has; reads `most` words at once."""

    threshold: float = 0.8
    most: int = 100
    asked: list[Pair] = field(default_factory=list)

    async def score(self, pairs: Sequence[Pair], *, whole: bool = False) -> list[Scored]:
        self.asked += pairs
        return [self._score(pair) for pair in pairs]

    def fits(self, pair: Pair) -> bool:
        return len(pair.document.split()) <= self.most

    def _score(self, pair: Pair) -> Scored:
        words = pair.claim.lower().split()
        share = sum(word in pair.document.lower().split() for word in words) / len(words)
        return Scored(score=share, text=pair.document, **locate(pair.document, 0, len(pair.document)))


def items(letter: str, *texts: str) -> list[dict[str, str]]:
    return [{"id": f"{letter}{number}", "text": text} for number, text in enumerate(texts, start=1)]


def judge(prompt: str, data: Mapping[str, object], *, joint: bool = True, **settings: Any) -> Any:  # noqa: ANN401
    verdicts = asyncio.run(judge_pairs(prompt, data, WordScorer(**settings), joint=joint))
    return {verdict["id"]: verdict for verdict in verdicts}


ATTRIBUTE = {
    "question": "?",
    "contexts": items("C", "the keeper is Ode", "Ode grew up in Lisk", "ropes and sails"),
    "answer_statements": items("A", "Ode grew up in Lisk", "the keeper Ode grew up in Lisk", "tidal power"),
    "ground_truth_statements": [],
}


def test_a_statement_is_asked_of_each_context_and_then_of_the_best_together() -> None:
    verdicts = judge("attribute", ATTRIBUTE)
    assert verdicts["A1"]["contexts"] == ["C2"]
    assert verdicts["A1"]["reason"] == "1.000 ≥ 0.8 in words 1–5 of C2"
    assert [score["score"] for score in verdicts["A1"]["scores"]] == [0.2, 1.0, 0.0]
    assert (verdicts["A2"]["contexts"], verdicts["A2"]["together"]) == ([], ["C1", "C2"])
    assert verdicts["A2"]["reason"] == "together 1.000 ≥ 0.8 in words 1–9 of C1 and C2"
    assert (verdicts["A3"]["contexts"], verdicts["A3"]["together"]) == ([], [])
    assert verdicts["A3"]["reason"].startswith("at most 0.000 < 0.8 in words 1–4 of C")


@pytest.mark.parametrize(("joint", "most"), [(False, 100), (True, 8)])
def test_nothing_is_put_together_unasked_or_beyond_what_the_model_reads(joint: bool, most: int) -> None:
    assert judge("attribute", ATTRIBUTE, joint=joint, most=most)["A2"]["together"] == []


def test_each_side_is_compared_with_all_of_the_other() -> None:
    data = {
        "question": "?",
        "answer_statements": items("A", "the pass costs 48", "children enter free"),
        "ground_truth_statements": items("G", "the pass", "costs 48", "dogs enter free"),
    }
    verdicts = judge("classify", data)
    assert {key: verdict["label"] for key, verdict in verdicts.items()} == {
        "A1": "TP", "A2": "FP", "G1": "TP", "G2": "TP", "G3": "FN",
    }  # fmt: skip
    assert verdicts["A1"]["reason"] == "1.000 ≥ 0.8 in words 1–7 of the statements of the ground truth"
    assert verdicts["A1"]["words"] == [1, 7]


def test_a_context_is_useful_when_it_supports_one_sentence_of_the_ground_truth() -> None:
    scorer = WordScorer(threshold=0.5)
    data = {
        "question": "When",
        "ground_truth": "It leaves at ten. Dogs travel free of charge.",
        "contexts": items("C", "It leaves at ten.", "Ropes and sails.", "Dogs travel free of charge."),
    }
    verdicts = asyncio.run(judge_pairs("rank", data, scorer, joint=False))

    assert [verdict["label"] for verdict in verdicts] == ["useful", "not_useful", "useful"]
    assert verdicts[2]["reason"] == "0.833 ≥ 0.5 in words 1–5, for “Dogs travel free of charge.”"
    assert all(pair.claim.startswith("When ") for pair in scorer.asked)


@pytest.mark.parametrize("score", [0.4996, 0.5, 0.50049, 0.9999])
def test_a_reason_never_shows_a_score_on_the_other_side_and_can_be_read_back(score: float) -> None:
    class Fixed(WordScorer):
        def _score(self, pair: Pair) -> Scored:
            return Scored(score=score, text="", first=1, last=1)

    contexts = {"contexts": items("C", "a"), "answer_statements": items("A", "b"), "ground_truth_statements": []}
    (verdict,) = asyncio.run(judge_pairs("attribute", contexts, Fixed(threshold=0.5), joint=False))
    shown = read_score(verdict["reason"])
    assert shown is not None
    assert (shown >= 0.5) == (score >= 0.5)
    assert abs(shown - score) < 0.001
    assert read_score("It is so.") is None


@pytest.mark.parametrize(("document", "stretch", "place"), [
    ("one two three four", "two three", ("words", 2, 3)),
    ("one two three four", "wo three", ("words", 2, 3)),
    ("one two three four", "four", ("words", 4, 4)),
    ("年假共有十二天，可以顺延到次年三月底，但需要提前申请。", "十二天", ("characters", 5, 7)),
])  # fmt: skip
def test_place_of_a_window(document: str, stretch: str, place: tuple[str, int, int]) -> None:
    start = document.index(stretch)
    located = locate(document, start, start + len(stretch))
    assert (located["unit"], located["first"], located["last"]) == place


def test_settings_behind_the_name_are_laid_over_what_is_known() -> None:
    plain, set_ = (
        parse_classifier("local:factcg"),
        parse_classifier("local:factcg?threshold=0.6&window=300&device=cuda"),
    )
    assert "factcg" in load_table()["models"]
    assert plain.model == set_.model == "yaxili96/FactCG-DeBERTa-v3-Large"
    assert (plain.threshold, plain.support, plain.max_tokens, plain.device) == (0.5, 1, 2048, None)
    assert (set_.threshold, set_.window, set_.device) == (0.6, 300, "cuda")
    other = parse_classifier("local:/models/nli?form=factcg&support=0")
    assert (other.form, other.support, other.sets_support) == (plain.form, 0, True)


@pytest.mark.parametrize(("name", "expected"), [
    ("local:", "factcg"),
    ("local:?threshold=0.5", "a folder or a hub's id"),
    ("local:factcg?threshold=2", "threshold between 0 and 1"),
    ("local:factcg?thresh=0.5", "thresh='0.5'"),
    ("local:factcg?window=0", "window a whole number from 1"),
    ("local:factcg?backend=jax", "torch or onnx"),
    ("local:factcg?form={document}", "a text with {document} and {claim}"),
    ("local:factcg?threshold", "threshold=''"),
    ("nearby:factcg:x", "local:MODEL"),
])  # fmt: skip
def test_invalid_classifier_name_is_refused_before_loading(name: str, expected: str) -> None:
    with pytest.raises(FatalJudgeError) as error:
        check_judge_name(name)
    assert expected in str(error.value)
