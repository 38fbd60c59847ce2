"""`testset refresh`: exactly the questions that an update touches change, each in its way, and only they are asked
about; new documents that say otherwise in other words: which pairs of a question and a passage the judge is asked
about, in how many requests; and `evalhouse resume` of a run that made, refreshed or checked a set."""

from __future__ import annotations

import asyncio
import json
import signal
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_process import Finished, Place, call_here, finish, wait_for
from endpoint import Endpoint
from kill_runs import noting_endpoint, read_recorded
from live_runs import point_to
from port_answers import PortAnswers, port_endpoint
from port_base import EDITS, Edit, build_base, expect_change, write_base
from rewordings import FACTS, OPEN, Fact, embed, rewordings_endpoint, write_documents, write_rewordings_set

from evalhouse.flows.server.local import LocalServer
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
from evalhouse.warehouse.store import Warehouse

KINDS = "fact=5,number=3,several=1,unanswerable=1"
# What refresh calls a question that now has an answer.
ANSWERABLE = {("unanswerable", "changed"): "answerable"}
EDITED = [edit for edit in EDITS if edit.language == "en" and edit.document.startswith("en/quays")]
PATHS = {path for edit in EDITED for path in (edit.document, edit.to)} | {"en/overview/quays-at-a-glance.md"}
Capture = pytest.CaptureFixture[str]


def write_some(folder: Path, edits: list[Edit], paths: set[str]) -> Path:
    """Some documents of the base with these edits made."""
    for path, document in build_base(edits).items():
        if path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(document.write(), encoding="utf-8")
    return folder


def copy_set(path: Path, to: Path) -> None:
    for own, copy in ((path, to), (find_manifest(path), find_manifest(to))):
        copy.write_bytes(own.read_bytes())


def read_lines(path: Path) -> dict[str, str]:
    """The lines of a set's file by the ids of their questions."""
    return {json.loads(line)["id"]: line for line in path.read_text(encoding="utf-8").splitlines()}


def leave_out_places(line: str) -> dict[str, Any]:
    """A line without what edits elsewhere in a document move: where a span begins and how it is broken into lines."""
    row: dict[str, Any] = json.loads(line)
    spans = [span | {"start": 0, "text": span["text"].split()} for span in row.get("spans", ())]
    return row | {"spans": spans}


def list_changes(path: Path) -> dict[str, str]:
    manifest = load_set(path).manifest
    changes = (*manifest.versions[-1].changes, *manifest.proposals)
    return {change.id: change.change for change in changes if change.change != "new"}


def check_outcomes(before: Path, after: Path) -> dict[str, str]:
    """Check that every question changed as its edits require, and nothing else. Returns the changes."""
    lines, lines_after, became = read_lines(before), read_lines(after), list_changes(after)
    rows = {name: json.loads(line) for name, line in lines.items()}
    expected = {name: expect_change(row) for name, row in rows.items()}
    expected_words = {name: ANSWERABLE.get((rows[name]["kind"], word), word) for name, word in expected.items()}
    assert became == {name: word for name, word in expected_words.items() if word != "same"}
    for name in lines.keys() - became.keys():
        assert leave_out_places(lines[name]) == leave_out_places(lines_after[name])
    return became


def test_update_changes_the_questions_it_touches_and_no_others(capsys: Capture, tmp_path: Path) -> None:
    first, second = write_some(tmp_path / "1", [], PATHS), write_some(tmp_path / "2", EDITED, PATHS)
    path, warehouse = tmp_path / "set.jsonl", str(tmp_path / "own.duckdb")
    shared = ("--warehouse", warehouse, "--judge", "openai:judge", "--embeddings", "hashing", "--json")
    with port_endpoint() as (endpoint, _):
        point_to(endpoint.base_url)
        made = call_here(capsys, "testset", "make", str(first), "-n", "20", "--kinds", KINDS, "-o", str(path), *shared)
        assert made.status == 0, made.stderr
        before = tmp_path / "before.jsonl"
        copy_set(path, before)
        ids = list(read_lines(path))
        added = [{**json.loads(line), "customer": name} for name, line in read_lines(path).items()]
        path.write_text("".join(json.dumps(row) + "\n" for row in added), encoding="utf-8")
        command = ("testset", "refresh", str(path), str(second), *shared)
        refreshed = call_here(capsys, *command)
        assert refreshed.status == 0, refreshed.stderr
        n_asked = endpoint.stats.requests.total()
        again = call_here(capsys, *command).document
    customers = {name: json.loads(line).get("customer") for name, line in read_lines(path).items()}
    assert customers == {name: name if name in ids else None for name in customers}, "a person's column stays"
    plain = [json.loads(line) for line in read_lines(path).values()]
    for row in plain:
        row.pop("customer", None)
    path.write_text("".join(json.dumps(row) + "\n" for row in plain), encoding="utf-8")
    became = check_outcomes(before, path)
    assert set(became.values()) >= {"repointed", "void"}
    assert (again["run_id"], again["changes"]["same"]) == (None, len(read_lines(path)))
    assert endpoint.stats.requests.total() == n_asked
    assert again["set_hash"] == refreshed.document["set_hash"] == load_set(path).manifest.versions[-1].hash
    assert load_set(path).manifest.versions[-1].parent == made.document["set_hash"]
    rows = Warehouse(warehouse).read_rows(
        "select distinct sample_id from llm_calls where run_id = $run_id and sample_id like 'q-%'",
        {"run_id": refreshed.document["run_id"]},
    )
    assert len(rows) == refreshed.document["n_asked_about"] < 20


@pytest.mark.slow
def test_faults_and_a_kill_lose_nothing_and_nothing_is_paid_twice(tmp_path: Path) -> None:
    first, second = write_some(tmp_path / "1", [], PATHS), write_some(tmp_path / "2", EDITED, PATHS)
    path, before = tmp_path / "set.jsonl", tmp_path / "before.jsonl"
    asking = ("--judge", "openai:judge", "--embeddings", "hashing", "--attempts", "50", "--concurrency", "8", "--json")
    with noting_endpoint(compose=PortAnswers().compose, seed=7, retry_after=0) as endpoint:
        variables = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": endpoint.base_url}
        place = Place(folder=tmp_path, variables=variables)
        made = place.call("testset", "make", first.name, "-n", "20", "--kinds", KINDS, "-o", path.name, *asking)
        assert made.status == 0, made.stderr
        endpoint.configure(faults={"rate_limit": 0.1, "server_error": 0.1, "reset": 0.1})
        copy_set(path, before)
        command, n_asked = ("testset", "refresh", path.name, second.name, *asking), len(endpoint.asked)
        recorded = read_recorded(tmp_path / "evalhouse.duckdb").keys()
        process = place.start(*command)
        wait_for(lambda: len(endpoint.asked) >= n_asked + 4, process)
        process.send_signal(signal.SIGKILL)
        assert finish(process).status == -signal.SIGKILL
        endpoint.settle()
        assert recorded.isdisjoint(noted.texts for noted in endpoint.asked[n_asked:])
        assert path.read_bytes() == before.read_bytes()
        assert find_manifest(path).read_bytes() == find_manifest(before).read_bytes()
        recorded, n_asked = read_recorded(tmp_path / "evalhouse.duckdb").keys(), len(endpoint.asked)
        done = place.call(*command)
        assert done.status == 0, done.stderr
        assert recorded.isdisjoint(noted.texts for noted in endpoint.asked[n_asked:])
        assert read_recorded(tmp_path / "evalhouse.duckdb").most_common(1)[0][1] == 1
        again = place.call(*command).document
    assert (again["run_id"], again["calls"]["requests"]) == (None, 0)
    check_outcomes(before, path)


N = 4


@pytest.fixture
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a test set needs no Prefect server."""
    monkeypatch.delattr(LocalServer, "start")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The port's handbook, and prices by which a set costs some dollars."""
    write_base(tmp_path / "docs", version=1)
    (tmp_path / "prices.yaml").write_text("m: [100, 100]\n", encoding="utf-8")
    return tmp_path


def list_command(folder: Path, *options: str) -> tuple[str, ...]:
    written = ("-n", str(N), "--kinds", "fact=1", "-o", str(folder / "set.jsonl"))
    asking = ("--judge", "openai:m", "--embeddings", "hashing", "--prices", str(folder / "prices.yaml"), "--seed", "3")
    return ("testset", "make", str(folder / "docs"), *written, *asking, *options)


@pytest.mark.usefixtures("_no_server")
def test_run_stopped_by_its_budget_resumes_and_pays_nothing_twice(folder: Path, capsys: Capture) -> None:
    where = ("--warehouse", str(folder / "own.duckdb"))
    with port_endpoint() as (endpoint, _):
        point_to(endpoint.base_url)
        stopped = call_here(capsys, *list_command(folder, "--budget", "0.5", *where, "--json"))
        run_id = stopped.document["run_id"]
        assert (stopped.status, stopped.document["n_questions"] < N) == (3, True)
        spent = call_here(capsys, "resume", run_id, "--budget", "0.1", *where)
        odd = call_here(capsys, "resume", run_id, *where, "--pool", "north")
        (folder / "docs").rename(folder / "elsewhere")
        gone = call_here(capsys, "resume", run_id, *where)
        (folder / "elsewhere").rename(folder / "docs")
        done = call_here(capsys, "resume", run_id, "--budget", "1000", *where, "--json")
    assert "--pool: a run of kind testset has no such setting" in odd.stderr
    named = f"cannot be resumed: {folder / 'docs'}, which its command names, does not exist"
    assert (gone.status, named in gone.stderr) == (2, True)
    expected = "its budget is 0.1, so nothing was asked; resume with a higher one"
    assert (spent.status, expected in spent.stderr) == (2, True)
    assert (done.status, done.document["n_questions"]) == (0, N), done.stderr
    assert f"run {run_id} is resumed with: evalhouse testset make {folder / 'docs'} -n {N}" in done.stderr
    assert done.document["run_id"] != run_id
    assert load_set(folder / "set.jsonl").set_hash == done.document["set_hash"]
    assert load_set(folder / "set.jsonl").manifest.asked["seed"] == 3
    rows = Warehouse(str(folder / "own.duckdb")).read_rows(
        "select count(*) as n, count(distinct request_hash) as n_different from llm_calls where status = 'ok'"
    )
    assert rows[0]["n"] == rows[0]["n_different"] > N


@pytest.mark.slow
def test_a_budget_holds_what_a_killed_process_had_paid(folder: Path) -> None:
    """Its last replies are in a journal, and the run that resumed it spent the whole budget once more."""
    with noting_endpoint(compose=PortAnswers().compose, seed=7, retry_after=0) as endpoint:
        place = Place(folder=folder, variables={"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": endpoint.base_url})
        process = place.start(*list_command(folder, "--budget", "1000"))
        wait_for(lambda: len(endpoint.asked) >= 3, process)
        process.send_signal(signal.SIGKILL)
        finish(process)
        endpoint.settle()
        n_asked = len(endpoint.asked)
        ((run_id,),) = Warehouse(str(folder / "evalhouse.duckdb")).read("select run_id from runs").rows()
        resumed = place.call("resume", run_id, "--budget", "0.000001")
    assert (resumed.status, "has spent" in resumed.stderr) == (2, True), resumed.stderr
    assert len(endpoint.asked) == n_asked


def test_a_check_names_its_command_and_one_of_earlier_says_that_it_has_none(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "set.jsonl").write_text('{"query": "When?", "ground_truth": "At six."}\n', encoding="utf-8")
    where = ("--warehouse", str(tmp_path / "own.duckdb"))
    check = ("testset", "check", str(tmp_path / "set.jsonl"), "--map", "question=query", *where)
    run_id = call_here(capsys, *check, "--json").document["run_id"]
    warehouse = Warehouse(str(tmp_path / "own.duckdb"))
    config = warehouse.read_rows("select config from runs")[0]["config"]
    assert json.loads(config)["testset"]["command"] == " ".join(["evalhouse", *check, "--json"])
    for change, message in (
        ("status = 'incomplete'", "is resumed with"),
        ("config = '{}'", "has no command on record"),
    ):
        with warehouse.writing(run_id=run_id) as connection:
            connection.execute(f"update runs set {change} where run_id = ?", [run_id])
        assert message in call_here(capsys, "resume", run_id, *where).stderr


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
