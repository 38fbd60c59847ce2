"""`testset refresh` after single edits, with the lexical judge: where spans are found again, what a person is
asked, and what is left as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, call_here
from live_runs import point_to
from port_answers import ask_for, port_endpoint
from port_handbook import find_attribute, find_entity

from evalhouse.tasks.testsets.changes import UpdatedBase, list_groups
from evalhouse.tasks.testsets.documents import load_documents
from evalhouse.tasks.testsets.questions import (
    UNANSWERABLE,
    Change,
    Manifest,
    SetQuestion,
    Span,
    TestSet,
    load_set,
    make_question_id,
    write_set,
)
from evalhouse.warehouse.store import Warehouse

Docs = Mapping[str, str]
TICKET = "A night ticket for the Quillon ferry costs 14 crowns."
DOGS = "Dogs travel on the open deck of the Quillon ferry and are kept on a lead."
FERRY = f"# Quillon ferry\n\n## Tickets\n\n{TICKET} They are sold at the north pier.\n\n## Dogs\n\n{DOGS}\n"
LISK = "# Lisk ferry\n\n## Tickets\n\nThe Lisk ferry is free for everybody who lives on the island.\n"
CLOZE = "Which word or number is missing here: “A night ticket for the Quillon ferry costs ____ crowns.”?"
TOPIC = "What does the section “Lisk ferry > Tickets” say about the insurance?"
KINDS = {"fact": 1.0}


def write_docs(folder: Path, docs: Docs) -> Path:
    """Write documents into a folder, or passages into a table."""
    if folder.suffix == ".jsonl":
        folder.write_text("\n".join(json.dumps({"id": name, "text": docs[name]}) for name in docs), encoding="utf-8")
        return folder
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, text in docs.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


class Kit:
    """A set over a few documents, which can be edited, and the command that refreshes it."""

    def __init__(self, folder: Path, warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.docs, self.capsys = folder / "set.jsonl", folder / "docs", capsys
        self.warehouse = str(warehouse)

    def write(self, docs: Docs, *questions: tuple[str, str | None], by_document: bool = True) -> None:
        """Questions with their ground truths, each of which is verbatim in one of the documents."""
        passages = [p for document in load_documents(write_docs(self.docs, docs)) for p in document.passages]
        made = []
        for question, truth in questions:
            own = next((passage for passage in passages if truth and truth in passage.text), None)
            spans: tuple[Span, ...] = ()
            if own is not None and truth:
                start = own.start + own.text.index(truth)
                spans = (Span(document_id=own.document_id, passage_id=own.passage_id, text=truth, start=start),)
            made.append(
                SetQuestion(
                    id=make_question_id(question, ()),
                    question=question,
                    ground_truth=truth,
                    reference_context_ids=tuple(s.document_id if by_document else s.passage_id for s in spans),
                    kind="fact" if truth else UNANSWERABLE,
                    language="en",
                    spans=spans,
                )
            )
        asked = {"n": len(made), "n_passages": len(passages), "kinds": KINDS, "seed": 0}
        manifest = Manifest(
            source="docs",
            passages={passage.passage_id: passage.passage_hash for passage in passages},
            asked=asked | {"references": "documents" if by_document else "passages"},
            judge="lexical",
        )
        test_set = TestSet(questions=tuple(made), manifest=manifest)
        write_set(self.path, test_set.add_version(run_id=None, made_at="2026-01-01", changes=()))

    def refresh(self, docs: Docs | None, *options: str, status: int = 0) -> Finished:
        if docs is not None:
            write_docs(self.docs, docs)
        command = ("testset", "refresh", str(self.path), str(self.docs), "--warehouse", self.warehouse, *options)
        done = call_here(self.capsys, *command)
        assert done.status == status, done.stderr
        return done

    def refresh_to(self, docs: Docs | None, *options: str) -> dict[str, Any]:
        """Refresh without new questions; what it says as JSON."""
        document: dict[str, Any] = self.refresh(docs, "--no-new", "--json", *options).document
        return document

    def refer_to(self, *references: str) -> None:
        """Have the set's only question refer to these."""
        test_set = load_set(self.path)
        write_set(self.path, replace(test_set, questions=(replace(self.question, reference_context_ids=references),)))

    @property
    def question(self) -> SetQuestion:
        return load_set(self.path).questions[0]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: making it takes longer than most of them."""
    return tmp_path_factory.mktemp("warehouse") / "own.duckdb"


@pytest.fixture
def kit(tmp_path: Path, warehouse: Path, capsys: pytest.CaptureFixture[str]) -> Kit:
    return Kit(tmp_path, warehouse, capsys)


MOVES: Mapping[str, Docs] = {
    "renamed": {"quillon.md": FERRY, "lisk.md": LISK},
    "into a document that was there": {
        "ferry.md": FERRY.replace(TICKET, ""),
        "lisk.md": f"{LISK}\n## More\n\n{TICKET}\n",
    },
    "under another heading": {"ferry.md": FERRY.replace("## Tickets", "## Fares"), "lisk.md": LISK},
    "into a new document": {"ferry.md": FERRY.replace(TICKET, ""), "lisk.md": LISK, "fares.txt": f"{TICKET}\n"},
}


@pytest.mark.parametrize("docs", MOVES.values(), ids=MOVES.keys())
def test_moved_spans_are_repointed_without_asking(kit: Kit, docs: Docs) -> None:
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    before = kit.question
    refreshed = kit.refresh_to(docs)
    assert {word: n for word, n in refreshed["changes"].items() if n} == {"repointed": 1}
    # Only passages with new words are compared with the questions; no question is asked about by itself.
    has_new_words = (docs.keys() == {"ferry.md", "lisk.md"} and "Fares" not in docs["ferry.md"]) or "fares.txt" in docs
    assert refreshed["calls"]["requests"] + refreshed["calls"]["reused"] == has_new_words
    assert refreshed["n_asked_about"] == 0
    (span,) = kit.question.spans
    documents = {document.document_id: document.text for document in load_documents(kit.docs)}
    assert documents[span.document_id][span.start :].startswith(TICKET)
    assert kit.question.reference_context_ids == (span.document_id,)
    assert (kit.question.id, kit.question.ground_truth) == (before.id, TICKET)
    assert kit.refresh_to(None)["run_id"] is None


def test_same_words_that_were_elsewhere_before_are_not_the_span(kit: Kit) -> None:
    hours = "It is open from nine to five."
    docs = {"bar.md": f"# Bar\n\n{hours} It sells tea.\n", "shop.md": f"# Shop\n\n{hours}\n"}
    kit.write(docs, ("Which word or number is missing here: “It is open from ____ to five.”?", hours))
    base = UpdatedBase(load_documents(kit.docs), load_set(kit.path).manifest.passages, by_document=True)
    assert base.find_verbatim(kit.question.spans[0])
    refreshed = kit.refresh_to(docs | {"bar.md": "# Bar\n\nIt sells tea and little else.\n"})
    assert refreshed["n_asked_about"] == 1
    assert refreshed["calls"]["requests"] + refreshed["calls"]["reused"] > 0


def test_new_number_is_proposed_and_taken_only_with_accept(kit: Kit) -> None:
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    before, renewed = kit.question, TICKET.replace("14", "16")
    docs = {"ferry.md": FERRY.replace("14", "16"), "lisk.md": LISK}
    refreshed = kit.refresh_to(docs)
    (proposal,) = refreshed["proposals"]
    assert (proposal["change"], proposal["before"]["ground_truth"]) == ("changed", TICKET)
    assert proposal["after"]["ground_truth"] == proposal["after"]["spans"][0]["text"] == renewed
    assert refreshed["n_questions"] == len(load_set(kit.path).questions) == 0
    assert kit.refresh_to(None)["run_id"] is None
    taken = kit.refresh(None, "--no-new", "--accept")
    assert "1 proposal taken without a person's review (--accept)" in taken.stderr
    assert (kit.question.id, kit.question.ground_truth) == (before.id, renewed)
    manifest = load_set(kit.path).manifest
    assert ([change.change for change in manifest.versions[-1].changes], manifest.proposals) == (["accepted"], ())


def test_a_proposal_whose_document_changed_again_is_looked_at_again(kit: Kit) -> None:
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    before = kit.question
    kit.refresh_to({"ferry.md": FERRY.replace("14", "16"), "lisk.md": LISK})
    again = kit.refresh_to({"ferry.md": FERRY.replace("14", "18"), "lisk.md": LISK})
    assert [proposal["after"]["ground_truth"] for proposal in again["proposals"]] == [TICKET.replace("14", "18")]
    back = kit.refresh_to({"ferry.md": FERRY, "lisk.md": LISK})
    assert (back["proposals"], kit.question.question_hash) == ([], before.question_hash)


def test_a_question_that_nothing_answers_any_more_leaves_the_set_on_record(kit: Kit) -> None:
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    before = kit.question
    refreshed = kit.refresh_to({"lisk.md": LISK})
    assert (refreshed["changes"]["void"], refreshed["n_questions"]) == (1, 0)
    assert refreshed["void"][0]["before"] == json.loads(json.dumps(before.to_row()))
    assert refreshed["dead_references"] == {"ferry.md": [before.id]}
    assert [change.change for change in load_set(kit.path).manifest.versions[-1].changes] == ["void"]


def test_a_question_whose_document_was_missing_for_a_night_returns_with_its_decision(kit: Kit) -> None:
    """New questions were made in its place, and the review of it was lost."""
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    test_set = load_set(kit.path)
    decided = replace(kit.question, decision="accepted", reviewer="Ann", reviewed_at="2026-01-02T03:04:05")
    write_set(kit.path, replace(test_set, questions=(decided,)))
    assert kit.refresh_to({"lisk.md": LISK})["n_questions"] == 0
    other = {"lisk.md": LISK, "other.md": FERRY.replace("# Quillon ferry", "# Another ferry")}
    assert kit.refresh_to(other)["changes"]["returned"] == 0, "the same sentence, of another document"
    back = kit.refresh_to({"ferry.md": f"{FERRY}\n## Dogs\n\n{DOGS}\n", **other})
    assert (back["changes"]["returned"], back["changes"]["new"], back["n_questions"]) == (1, 0, 1)
    assert kit.question == decided
    assert [change.change for change in load_set(kit.path).manifest.versions[-1].changes] == ["returned"]
    assert kit.refresh_to(None)["run_id"] is None
    gone = kit.refresh_to({"ferry.md": FERRY.replace("14", "16"), **other})
    assert gone["changes"]["returned"] == 0


def test_an_unanswerable_question_that_is_answered_now_is_a_proposal(kit: Kit) -> None:
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (TOPIC, None))
    added = LISK + "The Old Valley Mutual pays for the insurance of all passengers on board.\n"
    refreshed = kit.refresh_to({"ferry.md": FERRY, "lisk.md": added.replace("island.\n", "island. ")})
    (proposal,) = refreshed["proposals"]
    assert (proposal["change"], proposal["after"]["kind"]) == ("answerable", "fact")
    assert "Old Valley Mutual" in proposal["after"]["ground_truth"]
    assert proposal["after"]["reference_context_ids"] == ["lisk.md"]


def test_a_passage_that_says_otherwise_is_a_proposal_and_one_that_says_the_same_a_reference(kit: Kit) -> None:
    crane, wind = find_entity("bertha"), find_attribute("bertha.wind")
    truth = wind.state(crane, crane.values["wind"], wind.pick_wording(crane))
    page = f"# Crane Bertha\n\n{truth}\n"
    same = {"crane.md": page, "lisk.md": f"# News\n\n{truth} Everything else stays.\n"}
    otherwise = {"crane.md": page, "lisk.md": f"# News\n\n{wind.state(crane, '7')}\n"}
    with port_endpoint() as (endpoint, _):
        point_to(endpoint.base_url)
        for docs in (same, otherwise):
            kit.write({"crane.md": page, "lisk.md": LISK}, (ask_for(crane, wind), truth))
            refreshed = kit.refresh_to(docs, "--judge", "openai:m", "--embeddings", "hashing")
            if docs is same:
                assert kit.question.reference_context_ids == ("crane.md", "lisk.md")
                assert (refreshed["changes"]["repointed"], refreshed["n_asked_about"]) == (1, 1)
    (proposal,) = refreshed["proposals"]
    assert proposal["change"] == "contradicted"
    assert proposal["detail"].startswith("lisk.md#news has another answer than crane.md#crane-bertha: ")
    assert proposal["after"]["spans"][0]["text"] == wind.state(crane, "7")


def test_of_a_question_that_rests_on_two_passages_each_is_replaced_by_itself(kit: Kit) -> None:
    docs = {"ferry.md": FERRY, "lisk.md": LISK}
    kit.write(docs, (CLOZE, TICKET), (TOPIC, DOGS))
    first, second = load_set(kit.path).questions
    both = replace(first, kind="several", spans=first.spans + second.spans)
    news = f"# News\n\n## Tickets\n\n{TICKET.replace('14', '16')}\n\n## Dogs\n\n{DOGS.replace('open', 'lower')}\n"
    documents = load_documents(write_docs(kit.docs, docs | {"news.md": news}))
    base = UpdatedBase(documents, load_set(kit.path).manifest.passages, by_document=True)
    places = [place for span in both.spans if (place := base.find_verbatim(span))]
    arrived = [passage for passage in base.passages.values() if passage.document_id == "news.md"]
    groups = [{passage.passage_id for passage in group} for group in list_groups(base, both, places, arrived)]
    tickets, dogs = "ferry.md#quillon-ferry/tickets", "ferry.md#quillon-ferry/dogs"
    assert sorted(map(sorted, groups)) == [[dogs, "news.md#news/tickets"], [tickets, "news.md#news/dogs"]]


def test_further_references_that_are_gone_are_named_and_left_out(kit: Kit) -> None:
    docs = {"ferry.md": FERRY, "lisk.md": LISK}
    kit.write(docs | {"old.md": f"# Old\n\n{TICKET}\n"}, (CLOZE, TICKET))
    kit.refer_to("ferry.md", "old.md")
    refreshed = kit.refresh(docs, "--no-new")
    assert "No longer there, and taken out of the references: old.md" in refreshed.stdout
    assert kit.question.reference_context_ids == ("ferry.md",)


def test_passage_that_changed_its_content_stops_being_a_reference(kit: Kit) -> None:
    kit.docs = kit.path.with_name("passages.jsonl")
    kit.write({"a1": TICKET, "a2": f"{TICKET} {DOGS}", "a3": LISK}, (CLOZE, TICKET), by_document=False)
    kit.refer_to("a1", "a2")
    refreshed = kit.refresh_to({"a1": TICKET, "a2": DOGS, "a3": LISK})
    assert (refreshed["changes"]["repointed"], refreshed["n_asked_about"]) == (1, 1)
    assert kit.question.reference_context_ids == ("a1",)


def test_new_passages_get_questions_as_many_as_when_the_set_was_made(kit: Kit, tmp_path: Path) -> None:
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    crane = "# Crane Bertha\n\n## Lifts\n\nCrane Bertha lifts 40 tonnes over a distance of 12 metres.\n"
    more = {"ferry.md": FERRY, "lisk.md": LISK, "crane.md": crane, "crane2.md": crane.replace("Bertha", "Conrad")}
    planned = kit.refresh(more, "--dry-run").stdout
    assert "2 of 5 passages are new or changed; of 1 question 0 are pointed" in planned
    first = kit.refresh(None, "-o", str(tmp_path / "new.jsonl"), "--json").document
    assert (first["changes"]["new"], first["n_questions"]) == (1, 2)
    assert len(load_set(kit.path).questions) == 1
    wider = kit.refresh(None, "--coverage", "3", "--json").document
    assert wider["n_questions"] == 3
    assert {span.document_id for question in load_set(kit.path).questions[1:] for span in question.spans} <= more.keys()
    assert kit.refresh(None, "--json").document["run_id"] is None


def test_a_question_without_a_usable_reply_stays_and_is_asked_about_the_next_time(kit: Kit) -> None:
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    before = kit.path.read_bytes()
    options = ("--judge", "openai:m", "--embeddings", "hashing", "--attempts", "1")
    with port_endpoint(script={"renew_question": ["no JSON at all"]}) as (endpoint, _):
        point_to(endpoint.base_url)
        failed = kit.refresh({"lisk.md": LISK}, "--no-new", *options, status=3)
        assert "1 question without a usable reply stayed unchanged" in failed.stderr
        assert kit.path.read_bytes() == before
        done = kit.refresh(None, "--no-new", "--json", *options)
    assert done.document["changes"]["void"] == 1


def test_unusable_input_is_refused(kit: Kit) -> None:
    kit.write({"ferry.md": FERRY}, (CLOZE, TICKET))
    assert "and --no-new makes none" in kit.refresh(None, "--no-new", "--coverage", "9", status=2).stderr
    assert "a name that ends in .jsonl" in kit.refresh(None, "-o", "new.csv", status=2).stderr
    kit.path.with_name("set.testset.json").unlink()
    assert "has no manifest set.testset.json" in kit.refresh(None, status=2).stderr


def test_a_run_that_refreshed_a_set_has_no_scores_and_nothing_is_left_of_it(kit: Kit) -> None:
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    run_id = kit.refresh_to(MOVES["renamed"])["run_id"]
    resumed = call_here(kit.capsys, "resume", run_id, "--warehouse", kit.warehouse)
    assert resumed.status != 0
    assert f"run {run_id} has completed: nothing is left to be resumed" in resumed.stderr
    named = call_here(kit.capsys, "rescore", run_id, "--warehouse", kit.warehouse)
    assert f"run {run_id} made a test set, and has no scores" in named.stderr
    assert call_here(kit.capsys, "rescore", "--warehouse", kit.warehouse).status == 0
    assert "no evaluation is stored yet" in call_here(kit.capsys, "show", "--warehouse", kit.warehouse).stderr


def test_moved_spans_need_no_key_and_are_recorded_without_a_judge(kit: Kit) -> None:
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    moved = kit.refresh_to(MOVES["renamed"], "--judge", "openai:m", "--embeddings", "hashing")
    assert (moved["changes"]["repointed"], moved["calls"]["requests"]) == (1, 0)
    row = Warehouse(kit.warehouse).read_rows(
        "select judge, status, config->>'$.testset.command' as command from runs where run_id = $run_id",
        {"run_id": moved["run_id"]},
    )[0]
    assert (row["judge"], row["status"]) == ("none", "completed")
    assert f"testset refresh {kit.path} {kit.docs}" in row["command"]


@pytest.mark.parametrize(("change", "comes_again"), [("dropped", False), ("void", True)])
def test_question_that_a_person_dropped_is_not_made_again(kit: Kit, change: str, comes_again: bool) -> None:
    kit.write({"ferry.md": FERRY}, (CLOZE, TICKET))
    crane = "# Crane Bertha\n\n## Lifts\n\nCrane Bertha lifts 40 tonnes over a distance of 12 metres.\n"
    kit.refresh({"ferry.md": FERRY, "crane.md": crane}, "--coverage", "2")
    test_set = load_set(kit.path)
    (new,) = (question for question in test_set.questions if question.question != CLOZE)
    left = replace(test_set, questions=tuple(one for one in test_set.questions if one != new))
    gone = Change(id=new.id, change=change, before=new.to_row(), after={"reviewer": "Ann"})
    write_set(kit.path, left.add_version(run_id=None, made_at="2026-01-02", changes=[gone]))
    kit.refresh({"ferry.md": FERRY, "crane.md": f"{crane}It is painted green.\n"}, "--coverage", "2")
    assert (new.question in {question.question for question in load_set(kit.path).questions}) is comes_again


FERRY_IN_CHINESE = "# 奎隆渡轮\n\n## 船票\n\n奎隆渡轮的夜间船票为十四克朗。船票在北码头出售。\n"


@pytest.mark.parametrize(
    ("docs", "translated"),
    [
        ({"ferry.md": FERRY_IN_CHINESE, "lisk.md": LISK}, {"ferry.md": "ferry.md"}),
        ({"ferry.zh.md": FERRY_IN_CHINESE, "lisk.md": LISK}, {"ferry.md": "ferry.zh.md"}),
        ({"ferry.md": LISK, "lisk.md": LISK}, {}),
        ({"ferry.md": FERRY, "ferry.zh.md": FERRY_IN_CHINESE, "lisk.md": LISK}, {}),
    ],
    ids=["in its place", "under a similar name", "another text", "beside it"],
)
def test_translation_in_the_place_of_a_document_is_reported(kit: Kit, docs: Docs, translated: dict[str, str]) -> None:
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    shown = kit.refresh(docs, "--no-new").stderr
    assert ("In another language now" in shown) == bool(translated), shown
    kit.write({"ferry.md": FERRY, "lisk.md": LISK}, (CLOZE, TICKET))
    assert kit.refresh_to(docs)["translated"] == translated
