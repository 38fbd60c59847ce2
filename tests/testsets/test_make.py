"""`testset make`: with the lexical judge, with a model that answers from the documents, with faults, and with a model
that spoils a share of what it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, call_here
from endpoint import running_endpoint
from live_runs import point_to
from port_answers import Quote, Stated, Written, ask, ask_for, join_sentences, list_stated, port_endpoint
from port_base import list_facts, write_base
from port_handbook import draw, find_claims, find_entity, find_language, find_steps
from warehouse_processes import find_tables

from evalhouse.tasks.lexical.judge import judge_lexically
from evalhouse.tasks.testsets.documents import load_documents
from evalhouse.tasks.testsets.questions import load_set
from evalhouse.warehouse.store import Warehouse

LEXICAL = ("--judge", "lexical")
MODEL = ("--judge", "openai:judge", "--embeddings", "hashing")


class House:
    """A folder with the documents, a set and a warehouse, and the commands on them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.docs, self.path, self._capsys = folder / "docs", folder / "questions.jsonl", capsys
        self.url = f"duckdb:///{folder / 'own.duckdb'}"
        write_base(self.docs, version=1)

    def call(self, *command: str) -> Finished:
        return call_here(self._capsys, *command, "--warehouse", self.url)

    def make(self, n: int, *options: str) -> Finished:
        return self.call("testset", "make", str(self.docs), "-n", str(n), "-o", str(self.path), "--json", *options)

    def read(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:  # noqa: ANN401
        return Warehouse(self.url).read_rows(sql, parameters)


@pytest.fixture
def house(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> House:
    return House(tmp_path, capsys)


def test_set_is_made_written_and_recorded(house: House) -> None:
    made = house.make(14, *LEXICAL).document
    assert made["n_questions"] == 14
    test_set = load_set(house.path)
    assert Counter(question.kind for question in test_set.questions) == made["kinds"]
    assert {question.language for question in test_set.questions} == {"en", "zh"}
    texts = {document.document_id: document.text for document in load_documents(house.docs)}
    for question in test_set.questions:
        assert (question.ground_truth is None) == (question.kind == "unanswerable") == (not question.spans)
        for span in question.spans:
            assert texts[span.document_id][span.start : span.start + len(span.text)] == span.text
            assert span.document_id in question.reference_context_ids
    outcomes = house.read("select outcome, count(*) as n from testset_candidates group by all")
    assert {row["outcome"]: row["n"] for row in outcomes} == made["outcomes"]
    failed = house.read(
        "select candidate_id from testset_candidates join testset_checks using (run_id, candidate_id) "
        "where outcome = 'kept' and not passed"
    )
    assert failed == []
    ids = [row["question_id"] for row in house.read("select question_id from testset_questions")]
    assert sorted(ids) == sorted(question.id for question in test_set.questions)
    assert made["set_hash"] == test_set.set_hash == test_set.manifest.versions[-1].hash

    run = house.call("run", str(house.path), "--dry-run", "--judge", "lexical")
    assert (run.status, "14 samples" in run.stdout) == (0, True), "a set is a dataset"
    again = house.make(14, *LEXICAL)
    assert again.status == 2
    assert f"{house.path} exists already; --force replaces it" in again.stderr
    repeated = house.make(14, *LEXICAL, "--force").document
    assert repeated["set_hash"] == made["set_hash"]
    n_reused = made["calls"]["requests"] + made["calls"]["reused"]
    assert repeated["calls"] == made["calls"] | {"requests": 0, "reused": n_reused}


def test_a_question_is_forgotten_with_its_candidate_and_requests(house: House) -> None:
    house.make(14, *LEXICAL)
    kept, gone = load_set(house.path).questions[:2]
    assert find_tables(Warehouse(house.url), gone.question) >= {"llm_calls", "testset_candidates", "testset_questions"}
    before = find_tables(Warehouse(house.url), kept.question)
    assert house.call("warehouse", "forget", "--sample", gone.id, "--yes").status == 0
    assert find_tables(Warehouse(house.url), gone.question) == set()
    assert find_tables(Warehouse(house.url), kept.question) == before


@pytest.mark.parametrize("kind", ["several", "comparison"])
def test_lexical_judge_pairs_sections_only_where_two_sentences_share_a_subject(kind: str) -> None:
    fares = "A day ticket for the ferry costs nine crowns. Bicycles need their own place on deck."
    nights = "Dogs stay on a lead. A night ticket for the ferry costs fourteen crowns."
    scans = "Every uploaded file is searched for viruses. The search takes a minute."

    def ask(*texts: str) -> list[dict[str, Any]]:
        contexts = [{"id": f"C{n}", "text": f"Section {n}\n{text}"} for n, text in enumerate(texts, start=1)]
        data = {"question_kind": kind, "count": "1", "contexts": contexts}
        return list(judge_lexically("write_question", data)["questions"])

    (question,) = ask(fares, nights)
    tickets = ["A day ticket for the ferry costs nine crowns.", "A night ticket for the ferry costs fourteen crowns."]
    assert [quote["quote"] for quote in question["quotes"]] == tickets
    assert ask(fares, scans) == []


def test_lexical_answer_from_sections_without_sentences_is_none() -> None:
    contexts = [{"id": name, "text": f"{name}\nA1 | B2"} for name in ("C1", "C2")]
    data = {"question": "What do the sections “C1” and “C2” say?", "conversation": "", "contexts": contexts}
    reply = judge_lexically("answer_question", data)
    assert (reply["basis"], reply["answer"], reply["used"]) == ("none", "", [])


def test_judge_without_a_usable_reply_makes_no_set(house: House) -> None:
    with running_endpoint(script={"write_question": lambda _: "All is well."}) as endpoint:
        point_to(endpoint.base_url)
        stopped = house.make(20, *MODEL)
        assert (stopped.status, house.path.exists()) == (2, False)
        assert "none of the first 20 replies of openai:judge to write_question could be used" in stopped.stderr
        assert "'All is well.'" in stopped.stderr
        assert 20 <= endpoint.stats.requests.total() < 40


LANGUAGES = """
with texts as (
    select candidate_id as id, language from testset_candidates
    union select question_id as id, language from testset_questions
)
select distinct texts.language as spoken, prompts.language as asked
from llm_calls
inner join prompts on prompts.prompt_hash = llm_calls.prompt_hash
inner join texts on texts.id = llm_calls.sample_id
where llm_calls.run_id = $run_id
"""


def test_requests_are_in_the_language_of_their_text(house: House) -> None:
    def list_languages(done: Finished) -> set[tuple[str, str]]:
        assert done.status in (0, 1, 3), done.stderr
        rows = house.read(LANGUAGES, run_id=done.document["run_id"])
        return {(row["spoken"], row["asked"]) for row in rows}

    own, options = {("en", "en"), ("zh", "zh")}, (str(house.docs), *MODEL, "--json")
    with port_endpoint() as (endpoint, _):
        point_to(endpoint.base_url)
        assert list_languages(house.make(6, *MODEL)) == own
        assert list_languages(house.call("testset", "check", str(house.path), *options)) == own
        named = house.call("testset", "check", str(house.path), *options, "--language", "en")
        assert list_languages(named) == {("en", "en"), ("zh", "en")}
        write_base(house.docs, version=2)
        refreshed = house.call("testset", "refresh", str(house.path), *options, "--no-new")
        assert list_languages(refreshed) <= own


@dataclass(kw_only=True)
class Spoiler:
    """Spoils a share of the questions that a model writes, each in one way, and lists them in `spoilt`.

    The way follows from the question alone.
    """

    share: float
    spoilt: dict[tuple[str, str], str] = field(default_factory=dict)
    contexts: Mapping[str, str] = field(default_factory=dict)

    def spoil(self, questions: Sequence[Written], contexts: Mapping[str, str]) -> Iterator[Written]:
        self.contexts = contexts
        ways = list(WAYS)
        for question in questions:
            place = draw(f"0\n{question.question}\n{question.turns}", 10**6) / 10**6 / self.share
            bad = WAYS[ways[int(place)]][1](self, question) if place < len(ways) else None
            if bad:
                self.spoilt[squeeze(bad.question), squeeze(bad.ground_truth)] = ways[int(place)]
            yield bad or question

    def find_other(self, question: Written) -> Stated | None:
        """Return a fact in the contexts that was not asked for, in other words."""
        quoted = {quote.text for quote in question.quotes}
        others = (one for one in list_stated(self.contexts) if one.fact not in question.facts)
        return next((one for one in others if one.quotes[-1].text not in quoted), None)

    def misquote(self, question: Written) -> Written | None:
        if not question.quotes:
            return None
        first, *rest = question.quotes
        middle = len(first.text) // 2
        words = pick(question, "（大致）", " (more or less) ")
        bad = Quote(context_id=first.context_id, text=f"{first.text[:middle]}{words}{first.text[middle:]}")
        return replace(question, quotes=(bad, *rest))

    def leak(self, question: Written) -> Written | None:
        truth = question.ground_truth
        leaked = pick(question, f"{truth}那么，", f"{truth} So: ")
        return replace(question, question=leaked + question.question) if truth else None

    def embroider(self, question: Written) -> Written | None:
        more = pick(question, "市长曾两次到那里合影留念。", "The mayor had two photographs taken there.")
        truth = question.ground_truth
        return replace(question, ground_truth=join_sentences([truth, more])) if truth else None

    def ask_missing(self, question: Written) -> Written | None:
        entity = find_entity(question.facts[0])
        missing = next((one for one in entity.type.attributes.values() if one.name not in entity.values), None)
        return replace(question, question=ask_for(entity, missing)) if missing and question.is_plain else None

    def ask_other(self, question: Written) -> Written | None:
        other = self.find_other(question)
        if not (other and question.is_plain):
            return None
        return replace(question, question=ask(other), quotes=(*question.quotes, *other.quotes))


# The check that has to turn each down, unless one before it does, and the way it is spoilt.
WAYS: dict[str, tuple[str, Callable[[Spoiler, Written], Written | None]]] = {
    "not_verbatim": ("span", Spoiler.misquote),
    "leak": ("leak", Spoiler.leak),
    "unsupported": ("unsupported", Spoiler.embroider),
    "unanswered": ("unanswered", Spoiler.ask_missing),
    "wrong_answer": ("wrong_answer", Spoiler.ask_other),
}
# Checks before the expected one; a question that was asked already is a duplicate first.
EARLIER = {"duplicate", "contradicted"}
SHARES = "fact=3,number=2,several=2,comparison=1,conversational=2,unanswerable=2"


def pick(question: Written, chinese: str, other: str) -> str:
    return chinese if find_language(question.question) == "zh" else other


def squeeze(text: str) -> str:
    return " ".join(text.split())


def test_spoilt_questions_are_turned_down_and_kept_ones_are_good(house: House) -> None:
    spoiler = Spoiler(share=0.07)
    with port_endpoint(spoil=spoiler.spoil) as (endpoint, _):
        point_to(endpoint.base_url)
        done = house.make(24, "--kinds", SHARES, *MODEL)
        assert done.status in (0, 3), done.stderr
        assert endpoint.stats.duplicates_answered == 0
    made = done.document
    assert made["n_questions"] > 18
    assert (done.status == 0) == (made["n_questions"] == 24)
    reasons: dict[str, set[str | None]] = {way: set() for way in WAYS}
    for row in house.read("select question, coalesce(ground_truth, '') as truth, reason from testset_candidates"):
        way = spoiler.spoilt.get((row["question"], row["truth"]))
        if way is not None:
            reasons[way].add(row["reason"])
    for way, found in reasons.items():
        assert found <= {WAYS[way][0], *EARLIER}, way
    assert sum(WAYS[way][0] in found for way, found in reasons.items()) >= 3
    test_set = load_set(house.path)
    for question in test_set.questions:
        assert list_facts(question.to_row())
        stated, quoted = (
            state(text) for text in (question.ground_truth or "", "\n".join(one.text for one in question.spans))
        )
        assert stated <= quoted
        assert (question.ground_truth is None) == (not quoted)
    rested_on = {fact for question in test_set.questions if question.spans for fact in list_facts(question.to_row())}
    assert len(rested_on) > 12
    assert not {"pewter.closing", "yinhe.closing"} & rested_on, "documents disagree about these"


def state(text: str) -> set[tuple[str, str]]:
    """Return the facts of a text with their values, and for steps the entity they are for."""
    return {(one.fact, one.value) for one in find_claims(text)} | {(one.fact, "") for one in find_steps(text)}
