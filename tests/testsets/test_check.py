"""`testset check`: what is found of sets that people wrote and of our own, with the lexical judge and with a model; and
`testset diff`: files and versions on record, laid side by side."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished
from hypothesis import given
from hypothesis import strategies as st
from port_answers import port_endpoint, write_questions
from port_base import EDITS, build_base, find_statements, list_facts, write_base

from evalhouse.flows.testsets.versions import write_version
from evalhouse.tasks.testsets.questions import (
    Change,
    GivenQuestion,
    Manifest,
    SetQuestion,
    Span,
    TestSet,
    Turn,
    compare_sets,
    compare_words,
    write_set,
)
from evalhouse.warehouse.store import Warehouse

Ask = Callable[..., Finished]
Check = Callable[..., tuple[int, dict[str, Any]]]
FIRST, SECOND = build_base([]), build_base(EDITS)
POOL = "# The pool\nThe municipal pool opens on Sundays at 9:00. On weekdays the municipal pool opens at 6:30.\n"
PRICES = "# Prices\nA day ticket for the sauna costs 18 euros.\n\n## Opening\nThe sauna opens at 14:00.\n"
RULES = "# Rules\nDo not run. Shower before you swim.\n"
ANNEX = "# The annex\nIn the annex a day ticket for the sauna costs 25 euros.\n"
SUNDAYS = "When does the municipal pool open on Sundays?"
NINE = "The municipal pool opens on Sundays at 9:00."
TICKET = "A day ticket for the sauna costs 18 euros."
DAY_TICKET = {"question": "What does a day ticket cost?", "ground_truth": TICKET}


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def check(ask: Ask, tmp_path: Path) -> Check:
    """`testset check` of these rows against documents, as status and JSON."""
    for name, text in {"pool.md": POOL, "prices.md": PRICES, "rules.md": RULES}.items():
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / name).write_text(text)

    def run(
        *rows: Mapping[str, object], docs: bool = True, options: tuple[str, ...] = ()
    ) -> tuple[int, dict[str, Any]]:
        path = write_rows(tmp_path / "own.jsonl", rows)
        url = f"duckdb:///{tmp_path / 'own.duckdb'}"
        against = [str(tmp_path / "docs")] if docs else []
        done = ask("testset", "check", str(path), *against, "--warehouse", url, "--json", *options)
        return done.status, json.loads(done.stdout)

    return run


def find(report: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(finding["id"], finding["finding"]) for finding in report["findings"]}


SOUND = {"id": "sound", "question": SUNDAYS, "ground_truth": NINE, "reference_context_ids": ["pool.md"]}


def test_nothing_is_found_of_a_sound_set(check: Check) -> None:
    unanswered = {"id": "open", "question": "Who designed the diving tower?", "answerable": False}
    status, report = check(SOUND, unanswered)
    assert (status, report["findings"], report["failed"]) == (0, [], [])
    assert report["coverage"]["documents"] == {"pool.md": 1, "prices.md": 0, "rules.md": 0}
    assert report["coverage"]["documents_without_a_question"] == ["prices.md", "rules.md"]
    assert report["coverage"]["kinds"]["unanswerable"] == 1


ALONE: list[tuple[dict[str, object], set[str]]] = [
    ({"question": "Is it open?"}, {"no_ground_truth"}),
    ({"question": "Does a day ticket for the sauna cost 18 euros?", "ground_truth": TICKET}, {"leak"}),
    ({"question": "Does the sauna day ticket cost 18 or 20 euros?", "ground_truth": "It costs 18 euros."}, set()),
    ({"question": "In this passage, when is it open?", "ground_truth": "It opens at 14:00."}, {"form"}),
    ({"question": "When does the sauna open?", "ground_truth": "桑拿房每天下午两点开门。"}, {"language"}),
    ({"question": SUNDAYS, "ground_truth": "The municipal pool opens on Sundays at 9:00."}, {"duplicate"}),
    ({"question": SUNDAYS, "ground_truth": "The municipal pool opens on Sundays at 11:00."}, {"conflicting"}),
    ({"question": "When does the municipal pool open on weekdays?", "ground_truth": "At 6:30."}, set()),
]  # fmt: skip
AGAINST: list[tuple[dict[str, object], set[str]]] = [
    ({"question": SUNDAYS, "ground_truth": "The municipal pool opens on Sundays at 11:00."}, {"contradicted"}),
    ({"question": "Who cleans the pool?", "ground_truth": "Hansen Ltd cleans the pool."}, {"unsupported"}),
    ({"question": "When does the sauna open?", "ground_truth": "The handbook does not say."}, {"answerable"}),
    ({"question": "When does the sauna open?", "answerable": False}, {"answerable"}),
    ({"question": "When does the sauna open in summer?", "answerable": "No"}, set()),
    (DAY_TICKET | {"reference_context_ids": ["gone.md"]}, {"dead_reference"}),
    (DAY_TICKET | {"reference_context_ids": ["pool.md"]}, {"misplaced"}),
    (DAY_TICKET | {"reference_context_ids": ["prices.md#prices"]}, set()),
    (DAY_TICKET | {"reference_context_ids": [r".\Prices.MD#Prices"]}, set()),
    (DAY_TICKET | {"reference_context_ids": [r"Prices.md#gone"]}, {"dead_reference"}),
    ({"question": "蒸汽浴室每天什么时候开门营业？", "answerable": False}, {"language"}),
]  # fmt: skip


def expect(cases: Sequence[tuple[Mapping[str, object], set[str]]]) -> set[tuple[str, str]]:
    return {(f"q{place}", name) for place, (_, names) in enumerate(cases) for name in names}


def test_findings_without_documents(check: Check) -> None:
    rows = [{"id": f"q{place}", **row} for place, (row, _) in enumerate(ALONE)]
    status, report = check(SOUND, *rows, docs=False)
    assert find(report) == expect(ALONE)
    assert status == 1
    assert report["coverage"]["documents"] is None


def test_findings_with_documents(check: Check) -> None:
    rows = [{"id": f"q{place}", **row} for place, (row, _) in enumerate(AGAINST)]
    status, report = check(*rows)
    # Some of them ask the same, which is checked elsewhere.
    assert {finding for finding in find(report) if finding[1] != "duplicate"} == expect(AGAINST)
    assert status == 1


def test_two_documents_that_disagree_make_a_question_ambiguous(check: Check, tmp_path: Path) -> None:
    (tmp_path / "docs" / "annex.md").write_text(ANNEX)
    question = "What does a day ticket for the sauna cost?"
    _, report = check({"id": "own", "question": question, "ground_truth": TICKET})
    (finding,) = report["findings"]
    assert (finding["finding"], finding["severity"]) == ("ambiguous", "warning")
    assert finding["others"] == ["annex.md#the-annex"]
    assert "25 euros" in finding["detail"]


def test_page_shows_findings_and_escapes_markup(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "check.html"
    row = {"id": "<b>own</b>", "question": "Who cleans the <i>pool</i>?", "ground_truth": "Hansen Ltd cleans the pool."}
    _, report = check(row, options=("--html", str(path)))
    page = path.read_text(encoding="utf-8")
    assert "Something was found in 1 of 1 question." in page
    assert report["findings"][0]["finding"] == "unsupported"
    assert "&lt;b&gt;own&lt;/b&gt;" in page
    assert "<i>pool</i>" not in page
    assert 'http-equiv="Content-Security-Policy"' in page


def test_a_dry_run_asks_nothing(check: Check, tmp_path: Path) -> None:
    status, report = check(SOUND, options=("--dry-run",))
    assert (status, report["n_questions"]) == (0, 1)
    assert 2 <= report["requests"] <= 4
    assert not (tmp_path / "own.duckdb").exists()


def test_columns_are_mapped_and_findings_are_on_record_under_the_questions_id(check: Check, tmp_path: Path) -> None:
    row = {"id": "own", "ask": SUNDAYS, "right": "The municipal pool opens on Sundays at 11:00."}
    status, report = check(row, options=("--map", "question=ask", "--map", "ground_truth=right"))
    assert status == 1
    warehouse = Warehouse(f"duckdb:///{tmp_path / 'own.duckdb'}")
    (on_record,) = warehouse.read_rows("from testset_checks where not passed")
    assert (on_record["run_id"], on_record["candidate_id"]) == (report["run_id"], "own")
    assert on_record["name"] == "contradicted"
    assert warehouse.read_rows(f"select status from llm_calls where call_id = '{on_record['call_id']}'")
    (run,) = warehouse.read_rows("select kind, status, dataset, n_samples from runs")
    assert run == {"kind": "testset", "status": "completed", "dataset": str(tmp_path / "own.jsonl"), "n_samples": 1}
    _, again = check(row, options=("--map", "question=ask", "--map", "ground_truth=right"))
    assert find(again) == find(report)
    assert again["calls"]["requests"] == 0


def test_unreadable_sets_are_refused(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"text": "no question"}\n')
    refused = ask("testset", "check", str(path))
    assert refused.status == 2
    assert "no question column" in refused.stderr
    path.write_text('{"question": "what?"}\n')
    refused = ask("testset", "check", str(path), str(tmp_path / "missing"))
    assert refused.status == 2
    assert "no such file or folder" in refused.stderr


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("How do I renew a permit?", "procedure"),
        ("How many berths are there?", "number"),
        ("Which of the two is longer?", "comparison"),
        ("Who keeps the keys?", "fact"),
        ("有多少泊位？", "number"),
    ],
)
def test_kinds_are_guessed_by_words_where_none_is_given(question: str, kind: str) -> None:
    assert GivenQuestion(id="q", question=question, ground_truth="x").kind == kind
    question_given = GivenQuestion(id="q", question=question, ground_truth="x", given_kind="several")
    assert question_given.kind == "several"
    turns = (Turn(role="user", content="a"), Turn(role="assistant", content="b"))
    assert GivenQuestion(id="q", question=question, ground_truth="x", conversation=turns).kind == "conversational"


def test_model_finds_exactly_the_facts_an_update_changed(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions on documents in which a number changes, some of them checked against the updated documents."""
    write_base(tmp_path / "docs", version=2)
    first = {path: document.write() for path, document in FIRST.items()}
    edited = [edit.document for edit in EDITS if edit.kind == "number_changed"]
    rows = [
        {"id": f"{document} {place}", "question": written.question, "ground_truth": written.ground_truth,
         "reference_context_ids": [document]}
        for document in dict.fromkeys(edited)
        for place, written in enumerate(write_questions("number", 50, {"C1": first[document]}))
    ]  # fmt: skip
    expected = {(row["id"], name) for row in rows if (name := _expect(row)) is not None}
    assert {finding for _, finding in expected} == {"contradicted", "ambiguous"}
    path = write_rows(tmp_path / "q.jsonl", rows)
    with port_endpoint() as (endpoint, _):
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        judge = ("--judge", "openai:port", "--embeddings", "hashing", "--warehouse", str(tmp_path / "own.duckdb"))
        done = ask("testset", "check", str(path), str(tmp_path / "docs"), *judge, "--json")
    report = json.loads(done.stdout)
    assert find(report) == expected
    assert report["calls"]["requests"] <= 4 * len(rows)


def _expect(row: Mapping[str, Any]) -> str | None:
    """The finding on a question of the first version about one fact, by the second version."""
    (fact,) = list_facts(row)
    before, after = ({one.value for one in find_statements(base) if one.fact == fact} for base in (FIRST, SECOND))
    if len(after) > 1:
        return "ambiguous"
    return "contradicted" if before != after else None


def test_questions_without_usable_reply_are_listed_and_asked_again(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    text = FIRST["en/cranes/crane-conrad.md"].write()
    (tmp_path / "docs" / "crane.md").write_text(text, encoding="utf-8")
    written = write_questions("number", 6, {"C1": text})
    rows = [
        {"id": f"q{n}", "question": one.question, "ground_truth": one.ground_truth} for n, one in enumerate(written)
    ]
    path = write_rows(tmp_path / "q.jsonl", rows)
    options = ("--judge", "openai:port", "--embeddings", "hashing", "--warehouse", str(tmp_path / "own.duckdb"))
    command = ("testset", "check", str(path), str(tmp_path / "docs"), *options, "--json", "--attempts", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with port_endpoint(faults={"server_error": 0.4}, seed=5) as (endpoint, _):
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
        first = ask(*command)
        endpoint.configure(faults={})
        second = ask(*command)
    report, again = json.loads(first.stdout), json.loads(second.stdout)
    assert first.status == 3
    assert {one["id"] for one in report["failed"]} <= {row["id"] for row in rows}
    assert report["failed"]
    assert (second.status, again["failed"], again["findings"]) == (0, [], [])
    assert again["calls"]["reused"] == report["calls"]["requests"] - report["calls"]["failed"]


MANIFEST = Manifest(source="docs", passages={}, asked={}, judge="lexical")


def make_question(number: int, truth: str, *, place: str = "a.md#x") -> SetQuestion:
    return SetQuestion(
        id=f"q{number}",
        question=f"What is number {number}?",
        ground_truth=truth,
        reference_context_ids=("a.md",),
        kind="fact",
        language="en",
        spans=(Span(document_id="a.md", passage_id=place, text=truth, start=0),),
    )


def test_each_question_is_new_gone_changed_repointed_or_the_same(ask: Ask, tmp_path: Path) -> None:
    old = [make_question(1, "It is one."), make_question(2, "It is two."), make_question(3, "It is three.")]
    old.append(make_question(4, "It is four."))
    new = [make_question(1, "It is one."), make_question(2, "It is now 22."), make_question(5, "It is five.")]
    new.insert(2, make_question(3, "It is three.", place="a.md#y"))
    for name, questions in (("old.jsonl", old), ("new.jsonl", new)):
        write_set(tmp_path / name, TestSet(questions=tuple(questions), manifest=MANIFEST))
    url = str(tmp_path / "none.duckdb")
    command = ("testset", "diff", str(tmp_path / "old.jsonl"), str(tmp_path / "new.jsonl"), "--warehouse", url)
    done = ask(*command)
    assert done.status == 0
    assert "1 new, 1 gone, 1 changed, 1 repointed, 1 the same" in done.stdout
    assert "It is [-two.-]{+now 22.+}" in done.stdout
    document = json.loads(ask(*command, "--json").stdout)
    fields = {
        one["id"]: (one["difference"], [field["field"] for field in one["fields"]]) for one in document["questions"]
    }
    assert fields == {
        "q5": ("new", []),
        "q4": ("gone", []),
        "q2": ("changed", ["ground_truth", "spans"]),
        "q3": ("repointed", ["spans"]),
    }
    assert document["after"]["set_hash"] == TestSet(questions=tuple(new), manifest=MANIFEST).set_hash
    assert not Path(url).exists()


def test_versions_on_record_are_named_by_how_their_hash_begins(ask: Ask, tmp_path: Path) -> None:
    url = f"duckdb:///{tmp_path / 'own.duckdb'}"
    warehouse = Warehouse(url)
    warehouse.make_ready()
    path = tmp_path / "q.jsonl"
    first = TestSet(questions=(make_question(1, "It is one."),), manifest=MANIFEST)
    first = write_version(warehouse, "r1", path, first, [Change(id="q1", change="new")])
    questions = (make_question(1, "It is one."), make_question(2, "It is two."))
    second = TestSet(questions=questions, manifest=first.manifest)
    write_version(warehouse, "r2", path, second, [Change(id="q2", change="new")])
    done = ask("testset", "diff", first.set_hash[:6], str(path), "--warehouse", url, "--json")
    document = json.loads(done.stdout)
    assert document["before"] == {"name": first.set_hash, "set_hash": first.set_hash, "n_questions": 1}
    assert document["counts"] == {"new": 1}
    # Without a first name it is the version before.
    assert json.loads(ask("testset", "diff", str(path), "--warehouse", url, "--json").stdout) == document
    refused = ask("testset", "diff", first.set_hash[:6], "--warehouse", url)
    assert refused.status == 2
    assert f"no version before {first.set_hash[:6]} is stored" in refused.stderr
    refused = ask("testset", "diff", "zz", str(path), "--warehouse", url)
    assert refused.status == 2
    assert "no such file, and no version of that hash on record" in refused.stderr
    refused = ask("testset", "diff", "", str(path), "--warehouse", url)
    assert "several versions" in refused.stderr


TEXTS = st.lists(st.sampled_from(["the", "pool", "9:00", "opens.", "游泳池", "开门"]), max_size=8).map(" ".join)


@given(TEXTS, TEXTS)
def test_a_word_diff_holds_both_texts(before: str, after: str) -> None:
    words = compare_words(before, after)
    old = re.sub(r"\{\+[^+]*\+\}", " ", words).replace("[-", " ").replace("-]", " ")
    new = re.sub(r"\[-[^-]*-\]", " ", words).replace("{+", " ").replace("+}", " ")
    for text, original in ((old, before), (new, after)):
        assert "".join(text.split()) == "".join(original.split())


@pytest.mark.parametrize(
    ("names", "text", "start", "differs"),
    [
        (("b", "a"), "It is x.", 0, False),
        (("a", "b"), "It  is\nx.", 70, False),
        (("a",), "It is x.", 0, True),
        (("a", "b"), "It was x.", 0, True),
    ],
    ids=["other order of references", "span moved and wrapped", "fewer references", "other words of the span"],
)
def test_places_differ_as_in_the_hash_of_a_set(names: tuple[str, ...], text: str, start: int, differs: bool) -> None:
    spans = [
        Span(document_id="a", passage_id="a#x", text=one, start=at) for one, at in (("It is x.", 0), (text, start))
    ]
    one = GivenQuestion(id="q", question="?", ground_truth="x", reference_context_ids=("a", "b"), spans=(spans[0],))
    other = replace(one, reference_context_ids=names, spans=(spans[1],))
    assert [found.difference for found in compare_sets([one], [other])] == ["repointed"] * differs
