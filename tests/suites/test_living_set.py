"""A suite whose dataset is a test set: refreshed before each run, and evaluated as it was where that fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import Place, call_here
from kept_open import let_go
from live_runs import point_to
from port_answers import port_endpoint
from port_base import EDITS, build_base
from webhook import serve_webhook

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import make_tools
from evalhouse.flows.preparing.request import resolve_suite
from evalhouse.flows.preparing.suites import Suite, load_suite
from evalhouse.flows.serving.suite_checks import refresh_living_set
from evalhouse.flows.serving.suite_runs import run_suite
from evalhouse.flows.trials.session import Session
from evalhouse.prompts import PromptError
from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.settings.suite import RefreshedTestset
from evalhouse.tasks.targets.protocol import TargetError
from evalhouse.tasks.testsets.questions import find_manifest, load_set, write_set
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.store import Warehouse

SUITE = """\
name = "port"
dataset = "questions.jsonl"
judge = "{judge}"
embeddings = "hashing"
metrics = ["answer_rate"]
warehouse = "own.duckdb"

[testset]
documents = "docs"
"""
KINDS = "fact=3,number=2"


def write_documents(folder: Path, *, is_edited: bool) -> None:
    """Three quays, before or after an update."""
    edits = [edit for edit in EDITS if edit.document.startswith("en/quays")]
    for path, document in build_base(edits if is_edited else []).items():
        if path.startswith("en/quays"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(document.write(), encoding="utf-8")


def write_suite(folder: Path, judge: str, *, more: str = "") -> Suite:
    (folder / "port.toml").write_text(SUITE.format(judge=judge) + more, encoding="utf-8")
    return load_suite(folder / "port.toml")


@pytest.fixture
def made(capsys: pytest.CaptureFixture[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The set of `make` by the lexical judge, made once and copied for each test; returns its hash."""
    template = tmp_path_factory.getbasetemp() / "living-set"
    if not template.exists():
        template.mkdir()
        (template / "hash.txt").write_text(make(capsys, template, "lexical"), encoding="utf-8")
        let_go()  # what is open has a file beside it, which is gone when it is copied
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return (tmp_path / "hash.txt").read_text(encoding="utf-8")


def make(capsys: pytest.CaptureFixture[str], folder: Path, judge: str) -> str:
    """Documents and a set made of them; returns its hash."""
    write_documents(folder / "docs", is_edited=False)
    shared = ("--kinds", KINDS, "--judge", judge, "--embeddings", "hashing", "--warehouse", str(folder / "own.duckdb"))
    target = str(folder / "questions.jsonl")
    made = call_here(capsys, "testset", "make", str(folder / "docs"), "-n", "8", "-o", target, *shared, "--json")
    return str(made.document["set_hash"])


def refresh(suite: Suite) -> RefreshedTestset:
    refreshed = refresh_living_set(suite, resolve_suite(suite, flags={}).settings)
    assert refreshed is not None
    return refreshed


def check_one_budget(suite: Suite, refreshed: RefreshedTestset) -> None:
    """The refresh spends the budget of the run that follows, which asks nothing beyond that."""
    settings = resolve_suite(suite, flags={"budget_usd": 100.0}).settings.model_copy(update={"refreshed": refreshed})
    warehouse = Warehouse(settings.warehouse)
    cost = sum_cost(warehouse, str(refreshed.run_id))
    assert cost > 0
    live_run = make_tools(settings, "evaluation").make_live_run("run-1", warehouse)
    assert live_run.asker.spent_usd == cost
    live_run.asker.record.close()
    spent = settings.model_copy(update={"budget_usd": cost})
    live_run = make_tools(spent, "evaluation").make_live_run("run-2", warehouse)
    assert live_run.asker.spent_usd == live_run.asker.budget_usd
    live_run.asker.record.close()


def test_the_set_is_renewed_by_the_suites_judge_within_its_limits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with port_endpoint() as (endpoint, _):
        point_to(endpoint.base_url)
        before = make(capsys, tmp_path, "openai:judge")
        suite = write_suite(tmp_path, "openai:judge", more="new = false\n\n[limits]\nconcurrency = 3\n")
        (tmp_path / "prices.yaml").write_text("judge: [1, 1]\n", encoding="utf-8")
        suite = replace(suite, values={**suite.values, "prices": str(tmp_path / "prices.yaml")})
        same = refresh(suite)
        assert (same.set_hash, same.parent_hash, same.problem) == (before, before, None)
        assert "as before, nothing it rests on changed" in same.describe()
        shutil.rmtree(tmp_path / "docs")
        write_documents(tmp_path / "docs", is_edited=True)
        renewed = refresh(suite)
        n_asked = endpoint.stats.requests.total()
        again = refresh(suite)
        check_one_budget(suite, renewed)
    test_set = load_set(tmp_path / "questions.jsonl")
    assert (renewed.set_hash, renewed.parent_hash) == (test_set.set_hash, before)
    assert renewed.set_hash != before
    assert renewed.n_proposals == len(test_set.manifest.proposals)
    assert sum(n for word, n in renewed.changes.items() if word != "same") > 0
    assert "new" not in renewed.changes
    assert again.set_hash == renewed.set_hash
    assert endpoint.stats.requests.total() == n_asked


def test_a_refresh_that_fails_leaves_the_set_and_says_why(made: str, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, "lexical")
    shutil.rmtree(tmp_path / "docs")
    failed = refresh(suite)
    assert (failed.set_hash, failed.parent_hash, failed.n_questions) == (made, None, 8)
    assert "docs: no such file or folder" in str(failed.problem)
    assert f"not refreshed, version {made} was evaluated as it was" in failed.describe()
    (tmp_path / "questions.testset.json").unlink()
    assert "has no manifest" in str(refresh(suite).problem)


def test_half_a_folder_of_documents_takes_no_questions_away(made: str, tmp_path: Path) -> None:
    """A mount that was missing, with a README in its place, removed all questions, accepted ones included."""
    suite = write_suite(tmp_path, "lexical", more="accept = true\n")
    before = (tmp_path / "questions.jsonl").read_bytes()
    (tmp_path / "docs").rename(tmp_path / "away")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text("# Mount point\n\nThe handbook is mounted here.\n", encoding="utf-8")
    kept = refresh(suite)
    assert (kept.set_hash, kept.n_questions) == (made, 8)
    assert "of 8 questions have no support in the documents any more, so the set is kept" in str(kept.problem)
    assert (tmp_path / "questions.jsonl").read_bytes() == before


def test_decisions_that_come_while_a_set_is_refreshed_are_kept(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = write_suite(tmp_path, "lexical")
    write_documents(tmp_path / "docs", is_edited=True)
    path, carry_out = tmp_path / "questions.jsonl", Session.carry_out

    def carry_out_during_an_import(self: Session, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        done = carry_out(self, *args, **options)
        test_set = load_set(path)
        write_set(path, replace(test_set, questions=test_set.questions[1:]))
        return done

    monkeypatch.setattr(Session, "carry_out", carry_out_during_an_import)
    kept = refresh(suite)
    assert kept.n_questions == len(load_set(path).questions) == 7
    assert kept.set_hash != made
    assert "the set was changed while it was refreshed" in str(kept.problem)


def test_a_full_disk_leaves_both_files_of_a_set(made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest was that of the new set, and the questions stayed the old ones for good."""
    path = tmp_path / "questions.jsonl"
    test_set, files = load_set(path), sorted(file.name for file in tmp_path.iterdir())
    synced: list[int] = []

    def fill_up(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fill_up)
    with pytest.raises(OSError, match="No space left"):
        write_set(path, replace(test_set, questions=test_set.questions[1:]))
    assert load_set(path).set_hash == made
    assert find_manifest(path).read_bytes().count(made.encode()) >= 1
    assert sorted(file.name for file in tmp_path.iterdir()) == files


@pytest.mark.slow
def test_a_night_says_what_became_of_its_set(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, prefect_home: Path
) -> None:
    before = make(capsys, tmp_path, "lexical")
    shutil.rmtree(tmp_path / "docs")
    write_documents(tmp_path / "docs", is_edited=True)
    with serve_webhook() as webhook:
        more = '\n[notify]\nwebhook = "${HOOK}"\non = ["completed"]\n\n[gate]\nmin_coverage = 0.0\n'
        write_suite(tmp_path, "lexical", more=more)
        place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home), "HOOK": webhook.url})
        ran = place.call("run", "port.toml", "--json")
    assert ran.status == 0, ran.stderr
    testset = ran.document["testset"]
    assert (testset["set_hash"], testset["parent_hash"]) == (load_set(tmp_path / "questions.jsonl").set_hash, before)
    line = RefreshedTestset.model_validate_json(json.dumps(testset)).describe()
    assert line in ran.stderr
    (posted,) = webhook.bodies
    assert posted["testset"] == testset
    assert line[:200] in posted["text"]
    shown = call_here(capsys, "show", "latest", "--warehouse", str(tmp_path / "own.duckdb"))
    assert line in " ".join(shown.stdout.split())


UNRUNNABLE = {
    "gate of a metric that is not scored": ("[gate.min]\nfaithfulness = 0.5\n", "[gate] has limits of faithfulness"),
    "target that nothing listens for": ('[target]\nurl = "http://127.0.0.1:9/ask"\n', "no connection to the target"),
    "folder of prompts that is missing": ('prompts = "missing"\n', "missing"),
    "missing key": ("", "OPENAI_API_KEY"),
    "budget that the refresh alone spends": (
        'prices = "prices.yaml"\n[limits]\nbudget_usd = 0.0000001\n', "raise budget_usd"
    ),
}  # fmt: skip


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(("more", "problem"), UNRUNNABLE.values(), ids=UNRUNNABLE.keys())
def test_suite_that_cannot_run_is_refused_before_its_set_is_refreshed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path / "docs")
    write_documents(tmp_path / "docs", is_edited=True)
    (tmp_path / "prices.yaml").write_text("judge: [1, 1]\n", encoding="utf-8")
    text = SUITE.format(judge="openai:judge")
    top, _, tables = text.partition("\n[testset]")
    own, bracket, rest = more.partition("[")
    (tmp_path / "port.toml").write_text(f"{top}{own}\n[testset]{tables}\n{bracket}{rest}", encoding="utf-8")
    before = [path.read_bytes() for path in sorted(tmp_path.glob("questions*"))]
    with port_endpoint() as (endpoint, _):
        point_to(endpoint.base_url)
        if "KEY" in problem:
            monkeypatch.delenv("OPENAI_API_KEY")
            monkeypatch.delenv("OPENAI_BASE_URL")
        with pytest.raises((SettingsError, FatalJudgeError, TargetError, PromptError)) as caught:
            run_suite(load_suite(tmp_path / "port.toml"))
        assert endpoint.stats.requests.total() == 0
    assert problem in str(caught.value)
    assert [path.read_bytes() for path in sorted(tmp_path.glob("questions*"))] == before
    datasets = Warehouse(str(tmp_path / "own.duckdb")).read_rows("select distinct dataset from runs", {})
    assert [Path(row["dataset"]).name for row in datasets] == ["docs"], "only the making of the set was stored"


@pytest.mark.parametrize(
    ("replaced", "by", "problem"),
    [
        ('"docs"', "7", "line 9: testset.documents: got 7; input should be a valid string"),
        ('"docs"', '"docs"\nacept = true', "line 10: testset.acept: unknown key; did you mean accept?"),
        ('"docs"', '"docs"\ncoverage = 9\nnew = false', "line 10: testset.coverage: gives a number of questions"),
        ('"questions.jsonl"', '"sample"', "line 2: dataset: there is [testset], and the dataset is 'sample'; name"),
        ('documents = "docs"', "", "testset.documents: is missing"),
    ],
)
def test_a_mistake_is_refused_with_its_line(tmp_path: Path, replaced: str, by: str, problem: str) -> None:
    (tmp_path / "port.toml").write_text(SUITE.format(judge="lexical").replace(replaced, by), encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load_suite(tmp_path / "port.toml")
    assert problem in str(caught.value)
