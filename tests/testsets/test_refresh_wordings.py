"""`testset refresh` and new documents that say otherwise in other words: which pairs of a question and a passage the
judge is asked about, in how many requests, and the results."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_process import Finished, call_here
from endpoint import Endpoint
from live_runs import point_to
from rewordings import FACTS, OPEN, Fact, embed, rewordings_endpoint, write_documents, write_rewordings_set

from evalhouse.tasks.asking.embeddings import Embedder, HashingEmbedder
from evalhouse.tasks.judge.protocol import JudgeFailed
from evalhouse.tasks.testsets.changes import (
    MAX_QUESTIONS,
    NEAREST,
    Pairs,
    UpdatedBase,
    fuse_ranks,
    join_requests,
    pair_up,
)
from evalhouse.tasks.testsets.documents import load_documents
from evalhouse.tasks.testsets.questions import SetQuestion, TestSet, find_manifest, load_set

Capture = pytest.CaptureFixture[str]
N_OTHERS = 150


class Meanings(HashingEmbedder):
    """Embeddings by meaning, as of a model; texts with a word of `refused` have none."""

    name = "openai:meanings"
    asker: Any = "a model"

    def __init__(self, refused: str = "") -> None:
        super().__init__()
        self.refused = refused

    async def embed(self, sample_id: str, text: str) -> array[float]:
        if self.refused and self.refused in text:
            raise JudgeFailed("refused")
        return array("f", embed(text))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TestSet]:
    """A set of 200 questions over the handbooks and the port authority's documents."""
    folder = tmp_path_factory.mktemp("large")
    write_documents(folder / "docs", with_others=True)
    write_rewordings_set(folder / "set.jsonl", folder / "docs", n_others=N_OTHERS)
    return folder, load_set(folder / "set.jsonl")


def pair_large(large: tuple[Path, TestSet], facts: list[Fact], wording: str, embedder: Embedder) -> tuple[Pairs, Any]:
    """The pairs after an update that brings a document for each fact, and the requests about them."""
    folder, test_set = large
    write_documents(folder / wording, facts, wording, with_others=True)
    base = UpdatedBase(load_documents(str(folder / wording)), test_set.manifest.passages, by_document=True)
    questions = {question.id: question for question in test_set.questions}
    own = {question.id: {span.passage_id for span in question.spans} for question in test_set.questions}
    changed = [base.passages[name] for name in base.passages if name in base.changed]
    pairs = asyncio.run(pair_up(questions, own, changed, base.near, embedder))
    return pairs, join_requests(pairs.by_passage, questions, base.passages, max_tokens=6000)


@pytest.mark.parametrize(
    ("wording", "facts", "by_words", "by_meaning"),
    [("paraphrase", FACTS, 38, 38), ("far", FACTS, 0, 36), ("answer", OPEN, 0, 9)],
)
def test_other_wordings_are_put_to_the_judge(
    large: tuple[Path, TestSet], wording: str, facts: list[Fact], by_words: int, by_meaning: int
) -> None:
    for embedder, least in ((HashingEmbedder(), by_words), (Meanings(), by_meaning)):
        pairs, requests = pair_large(large, facts, wording, embedder)
        found = 0
        for fact in facts:
            together = [
                request
                for request in requests
                if any(fact.new[wording] in passage.text for passage in request.passages)
                and any(question.question == fact.question for question in request.questions)
            ]
            found += bool(together)
        assert found >= least
        assert len(requests) <= len(facts)
        assert all(len(asked) <= MAX_QUESTIONS for asked in pairs.by_passage.values())
        assert all(len(one.questions) <= 60 for one in requests)
        assert all(len(nearest) <= NEAREST for nearest in pairs.by_question.values())
        assert pairs.model == (embedder.name if embedder.asker else None)


def test_text_without_a_vector_is_ranked_by_its_words(large: tuple[Path, TestSet]) -> None:
    pairs, _ = pair_large(large, FACTS, "paraphrase", Meanings(refused="warranty"))
    assert pairs.n_without_vector > 1
    (asked,) = (one for one in large[1].questions if one.question == "How long is the warranty on pumps?")
    assert "come with a warranty of two years" in pairs.by_question[asked.id][0].text


def test_ranks_are_fused_and_scores_of_zero_have_none() -> None:
    fused = fuse_ranks(np.array([3.0, 0.0, 9.0]), np.array([0.1, 0.0, 0.0]))
    assert fused == pytest.approx([1 / 62 + 1 / 61, 0.0, 1 / 61])


def test_requests_hold_neighbours_within_their_limits(large: tuple[Path, TestSet]) -> None:
    folder, test_set = large
    passages = {one.passage_id: one for document in load_documents(str(folder / "docs")) for one in document.passages}
    questions: dict[str, SetQuestion] = {question.id: question for question in test_set.questions}
    names, ids = list(passages)[:20], list(questions)
    few = {name: frozenset(ids[:3]) for name in names}
    joined = join_requests(few, questions, passages, max_tokens=100_000)
    assert [len(one.passages) for one in joined] == [8, 8, 4]
    assert {len(one.questions) for one in joined} == {3}
    many = {name: frozenset(ids[30 * place : 30 * place + 30]) for place, name in enumerate(names[:3])}
    assert [len(one.passages) for one in join_requests(many, questions, passages, max_tokens=100_000)] == [2, 1]
    assert len(join_requests(few, questions, passages, max_tokens=1)) == len(few)
    assert join_requests({names[0]: frozenset(["elsewhere"])}, questions, passages, max_tokens=9) == []


class Kit:
    """A set over the handbooks, and the command that refreshes it with a model that understands them."""

    def __init__(self, folder: Path, endpoint: Endpoint, capsys: Capture) -> None:
        self.folder, self.endpoint, self.capsys = folder, endpoint, capsys
        self.path, self.docs = folder / "set.jsonl", folder / "docs"
        self.by_id = write_rewordings_set(self.path, write_documents(self.docs))
        point_to(endpoint.base_url)

    def refresh(self, *options: str, status: int = 0) -> Finished:
        asking = ("--judge", "openai:judge", "--warehouse", str(self.folder / "own.duckdb"), "--no-new")
        done = call_here(self.capsys, "testset", "refresh", str(self.path), str(self.docs), *asking, *options)
        assert done.status == status, done.stderr
        return done


def test_far_wordings_become_proposals_and_an_unchanged_base_costs_nothing(tmp_path: Path, capsys: Capture) -> None:
    facts, options = [*FACTS[:3], *FACTS[-3:]], ("--embeddings", "openai:meanings")
    with rewordings_endpoint() as (endpoint, _):
        kit = Kit(tmp_path, endpoint, capsys)
        assert kit.refresh("--json", *options).document["calls"]["requests"] == 0
        write_documents(kit.docs, facts, "far")
        planned = kit.refresh("--dry-run", *options).stdout
        assert "6 of 46 passages are new or changed" in planned
        done = kit.refresh("--json", *options).document
        n_asked = endpoint.stats.requests.total()
        again = kit.refresh("--json", *options).document
        assert (again["run_id"], again["compared"], endpoint.stats.requests.total()) == (None, None, n_asked)
    assert {kit.by_id[one["id"]].question for one in done["proposals"]} == {fact.question for fact in facts}
    assert {one["change"] for one in done["proposals"]} == {"contradicted"}
    assert done["compared"]["ranked_by"] == "words and openai:meanings"
    assert done["compared"]["pairs"] <= done["compared"]["possible_pairs"] == 50 * 6
    assert done["n_asked_about"] == len(facts)


def test_what_was_compared_is_printed_with_the_way_to_find_more(tmp_path: Path, capsys: Capture) -> None:
    with rewordings_endpoint() as (endpoint, _):
        kit = Kit(tmp_path, endpoint, capsys)
        write_documents(kit.docs, FACTS[:2], "paraphrase")
        done = kit.refresh("--embeddings", "hashing")
    assert "compared 50 questions with 2 new or changed passages, by words: asked about the 8 nearest" in done.stdout
    assert "of 100 pairs)" in done.stdout
    assert "--embeddings openai:MODEL finds more" in done.stderr


def test_passages_without_a_usable_reply_are_asked_about_the_next_time(tmp_path: Path, capsys: Capture) -> None:
    options = ("--embeddings", "openai:meanings", "--attempts", "1")
    script = {"match_questions": ['{"answered": [{"reason": "x", "question": "Q99", "contexts": ["C1"]}]}']}
    with rewordings_endpoint(script=script) as (endpoint, _):
        kit = Kit(tmp_path, endpoint, capsys)
        write_documents(kit.docs, FACTS[:2], "far")
        failed = kit.refresh(*options, status=3)
        assert "without a usable reply stayed unchanged" in failed.stderr
        unknown = load_set(kit.path).manifest.passages
        assert not any("news" in name for name in unknown)
        done = kit.refresh("--json", *options).document
    assert done["changes"]["contradicted"] == 2


def test_judge_without_a_usable_reply_is_not_asked_on(tmp_path: Path, capsys: Capture) -> None:
    """After twenty replies to a step that were all unusable, a refresh stops as a run does, and the set stays."""

    with rewordings_endpoint(script={"match_questions": lambda _: "I cannot say."}) as (endpoint, _):
        kit = Kit(tmp_path, endpoint, capsys)
        files = (kit.path, find_manifest(kit.path))
        before = [path.read_bytes() for path in files]
        write_documents(kit.docs, FACTS, "paraphrase")
        done = kit.refresh("--embeddings", "hashing", "--concurrency", "1", "--attempts", "6", status=2)
        assert 20 <= endpoint.stats.kinds["match_questions"] < 30
    assert "none of the first 20 replies of openai:judge" in done.stderr
    assert [path.read_bytes() for path in files] == before
