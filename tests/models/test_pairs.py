"""Verdicts from pairs: which pairs are asked for, what counts as support, and the forms of chat models for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmark_data import make_support, write_set
from cli_process import call_here
from endpoint import Asked, Endpoint, running_endpoint
from live_runs import lay_out_run, make_sample, make_settings, read_calls
from warehouse_runs import lay_warehouse

from evalhouse.prompts import Item
from evalhouse.tasks.asking.pairs import Pair, Scored, find_form, judge_pairs, load_forms, locate, read_score
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.attribute import attribute_statements
from evalhouse.tasks.classify import classify_statements
from evalhouse.tasks.judge.protocol import FatalJudgeError, UnusableReply
from evalhouse.tasks.models.local import load_table, parse_classifier
from evalhouse.tasks.models.make import check_judge_name, make_judge
from evalhouse.tasks.pipeline.live_run import Extraction, make_work
from evalhouse.tasks.rank import rank_contexts
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.store import Warehouse


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
    ("nearby:factcg:x", "local:MODEL"),
    ("minichek+openai:x", "known: minicheck"),
    ("minicheck+lexical", "name a chat model behind it"),
    ("minicheck+local:factcg", "name a chat model behind it"),
    ("minicheck+minicheck+openai:x", "name a chat model behind it"),
    ("granite-guardian+module:make", "takes an openai:MODEL"),
    ("minicheck+", "unknown judge"),
])  # fmt: skip
def test_invalid_name_of_a_classifier_or_form_is_refused_before_loading(name: str, expected: str) -> None:
    with pytest.raises(FatalJudgeError) as error:
        check_judge_name(name)
    assert expected in str(error.value)


def answer(asked: Asked) -> str:
    """Answer as such a model: the document contains the claim, or not. Guardians answer yes to ungrounded claims."""
    documents = asked.body.get("documents")
    if documents is None:
        document, _, claim = asked.texts[-1].removeprefix("Document: ").partition("\nClaim: ")
        return "Yes" if claim in document else "No"
    claim = next(message["content"] for message in asked.body["messages"] if message["role"] == "assistant")
    grounded = claim in documents[0]["text"]
    return f"<think>\n</think>\n<score> {'no' if grounded else 'yes'} </score>"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Endpoint]:
    monkeypatch.chdir(tmp_path)
    lay_warehouse(tmp_path / "evalhouse.duckdb")
    write_set(tmp_path / "ships", make_support())
    with running_endpoint(models=("guard",), keep_bodies=True, script={"other": answer}) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        yield running


@pytest.mark.parametrize("form", load_forms())
def test_each_pair_is_a_request_in_the_models_own_words(
    form: str, endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = partial(call_here, capsys, "benchmark", "--judge", f"{form}+openai:guard", "--data", "ships", "--json")
    estimate = measure("--dry-run").document
    document = measure().document
    (measured,) = document["sets"]
    assert measured["judge"]["figures"]["accuracy"]["value"] == 1.0
    # 13 rows of one statement with two contexts; where none supports it, both together are a third pair
    n_unsupported = sum(row["label"] != "supported" for row in make_support() if row["label"] != "generic")
    assert document["calls"]["requests"] == 26 + n_unsupported
    assert estimate["calls"]["requests"] == 26 + 13  # at most
    body = endpoint.stats.bodies[-1]
    assert "response_format" not in body
    asked = " ".join(message["content"] for message in body["messages"])
    assert ("documents" in body) == form.startswith("granite")
    assert ("chat_template_kwargs" in body) == (form == "granite-guardian-3.3")
    assert "{claim}" not in asked
    warehouse = Warehouse(parse_location("evalhouse.duckdb").url)
    calls = warehouse.read("select count(*) as n, count(distinct request_hash) as hashes from llm_calls")
    assert calls.row(0) == (26 + n_unsupported, 26 + n_unsupported)
    again = measure().document
    assert (again["calls"]["requests"], again["calls"]["reused"]) == (0, 26 + n_unsupported)


@pytest.mark.parametrize(("form", "reply", "supported"), [
    ("minicheck", "Yes", True),
    ("minicheck", " no.", False),
    ("granite-guardian", "<think>\n</think>\n<score> yes </score>", False),
    ("granite-guardian", "<think>yes, or no?</think><score>no</score>", True),
    ("granite-guardian-3.3", "<score> no </score>", True),
    ("minicheck", "Yesterday", None),
    ("granite-guardian", "<think>yes</think>", None),
])  # fmt: skip
def test_what_a_reply_means(form: str, reply: str, supported: bool | None) -> None:
    chosen = find_form(f"{form}+openai:x")
    assert chosen is not None
    if supported is None:
        with pytest.raises(UnusableReply, match="neither yes nor no"):
            chosen.read(reply)
    else:
        assert chosen.read(reply) is supported


async def test_every_step_gets_verdicts_with_the_call_that_decided_them(endpoint: Endpoint, tmp_path: Path) -> None:
    sample = make_sample(
        answer="The ship lies at berth 4.",
        ground_truth="The ship lies at berth 4.",
        contexts=["The ship lies at berth 4. When? The ship lies at berth 4.", "Ropes."],
        question="When?",
    )
    settings = make_settings(judge="minicheck+openai:guard")
    work = make_work(sample)
    async with lay_out_run(tmp_path / "run", settings, judge=make_judge(settings)) as live_run:
        for source, letter in (("answer", "A"), ("ground_truth", "G")):
            items = (Item(id=f"{letter}1", text="The ship lies at berth 4."),)
            work.hand_over(source, Extraction(items=items))
        await gather_all([step(live_run, work) for step in (classify_statements, attribute_statements, rank_contexts)])
    assert [row["label"] for row in work.rows["classifications"]] == ["TP", "TP"]
    supports = [(row["context_ranks"], row["reason"]) for row in work.rows["attributions"]]
    assert supports == [([1], "supported in words 1–13 of C1")] * 2
    assert [row["useful"] for row in work.rows["context_verdicts"]] == [True, False]
    calls = {call["call_id"]: call for call in read_calls(tmp_path / "run")}
    # Equal pairs at once are one request, and the second call says which one it is.
    replies = {key: calls[call["reused_call_id"] or key]["reply"] for key, call in calls.items()}
    decided = [
        row["call_id"] for table in ("classifications", "attributions", "context_verdicts") for row in work.rows[table]
    ]
    assert [replies[call_id] for call_id in decided] == ["Yes"] * 5 + ["No"]


def test_a_text_that_names_a_place_is_not_filled_in_again() -> None:
    form = find_form("minicheck+openai:x")
    assert form is not None
    expected = form.fill({"document": "Here is {claim}.", "claim": "{document}"})[-1].content
    assert expected == "Document: Here is {claim}.\nClaim: {document}"


def test_unanswerable_step_of_a_form_is_reported_before_asking(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    finished: Any = call_here(capsys, "run", "sample", "--judge", "minicheck+openai:guard", "--limit", "1")
    assert (finished.status, "cannot take the step extract" in finished.stderr) == (2, True)
    assert endpoint.stats.bodies == []
