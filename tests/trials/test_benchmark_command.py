"""`evalhouse benchmark`: figures of every kind, nothing paid twice, what is left without a verdict, and refusals."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from benchmark_data import EVERY_KIND, STRANGE, N, make_correctness, make_support, write_set, write_sets
from cli_process import Finished, Place, call_here
from endpoint import Asked, Endpoint, running_endpoint
from warehouse_runs import lay_warehouse

PRICES = "judge: [1.0, 2.0, 0.5]\n"


class LiveRun:
    """Calls the command in this process, in a folder with the made-up sets."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def call(self, *arguments: str) -> Finished:
        return call_here(self._capsys, "benchmark", *arguments)

    def measure(self, *arguments: str, status: int = 0) -> Any:  # noqa: ANN401  # any JSON
        ended = self.call(*arguments, "--json")
        assert ended.status == status, ended.stderr
        return ended.document

    def read(self, sql: str) -> list[dict[str, Any]]:
        with duckdb.connect(str(self.folder / "evalhouse.duckdb"), read_only=True) as connection:
            return connection.sql(sql).pl().to_dicts()


@pytest.fixture
def live_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> LiveRun:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    write_sets(tmp_path / "sets")
    lay_warehouse(tmp_path / "evalhouse.duckdb")
    (tmp_path / "prices.yaml").write_text(PRICES, encoding="utf-8")
    return LiveRun(tmp_path, capsys)


@pytest.fixture
def endpoint(live_run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """Its address and key are set after the place has none."""
    assert live_run.folder.is_dir()
    with running_endpoint(models=("judge",), keep_bodies=True) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        yield running


def pick(document: Any, name: str, language: str = "en", about: str | None = None) -> Any:  # noqa: ANN401
    (found,) = [
        one
        for one in document["sets"]
        if (one["set"], one["language"]) == (name, language) and (about is None or one["about"] == about)
    ]
    return found


def others(one: Any) -> dict[str, Any]:  # noqa: ANN401
    return {other["who"]: other for other in one["others"]}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: ANN401
    """Return the lexical judge's figures on all sets, in a folder without a warehouse."""
    folder = tmp_path_factory.mktemp("judged")
    write_sets(folder / "sets")
    ended = Place(folder=folder).call("benchmark", "--judge", "lexical", "--data", "sets", "--json")
    assert ended.status == 0, ended.stderr
    return ended.document


def test_every_kind_is_judged_without_a_key(judged: Any) -> None:  # noqa: ANN401
    document = judged
    assert (document["judge"], document["problem"], document["passed_over"]) == ("lexical", None, [])
    assert document["model"].startswith("lexical-")
    support = pick(document, "harbour_support")
    assert support["labels"] == {"supported": N // 2, "unsupported": N // 2, "partial": 1}
    assert (support["n_rows"], support["judge"]["n"], support["judge"]["n_missing"]) == (N + 1, N + 1, 0)
    assert support["judge"]["figures"]["accuracy"]["value"] == 1
    assert 0.7 < support["judge"]["figures"]["accuracy"]["ci_low"] < 1
    assert pick(document, "harbour_support", "zh")["judge"]["figures"]["accuracy"]["value"] == 1
    relevance = pick(document, "harbour_relevance")["judge"]
    # A context that people gave no grade is judged and not counted.
    assert relevance["n"] == 3 * N
    assert relevance["figures"]["ndcg"]["value"] == relevance["figures"]["auc"]["value"] == 1
    assert pick(document, "harbour_decomposition")["judge"]["figures"]["match"]["value"] == pytest.approx(1)
    pairs = pick(document, "harbour_pairwise")["judge"]["figures"]
    assert pairs["accuracy"]["value"] == 1
    assert pairs["correlation"]["value"] > 0.9
    faithful = pick(document, "harbour_rubric", about="faithfulness by faithfulness")
    assert (faithful["judge"]["n"], faithful["judge"]["n_missing"]) == (N - 1, 1)
    assert faithful["judge"]["figures"]["correlation"]["value"] > 0.9
    assert document["calls"]["cost_usd"] == 0


def test_people_recorded_judges_and_simple_rules_are_measured_beside_the_judge(judged: Any) -> None:  # noqa: ANN401
    document = judged
    answers = others(pick(document, "harbour_correctness"))
    # The third opinion on the second row was asked for because the first two differ, and is left out.
    assert answers["people"]["n"] == N
    assert answers["people"]["figures"]["accuracy"]["value"] == pytest.approx((N - 1) / N)
    assert answers["model-a"]["figures"]["accuracy"]["value"] == pytest.approx(0.5)
    assert answers["model-a"]["figures"]["balanced_accuracy"]["value"] == pytest.approx(0.5)
    assert (answers["model-b"]["n"], answers["model-b"]["n_missing"]) == (N - 1, 1)
    assert answers["model-b"]["figures"]["accuracy"]["value"] == 1
    assert answers["most frequent label (correct)"]["figures"]["accuracy"]["value"] == pytest.approx(0.5)
    assert answers["word count"]["figures"]["auc"]["value"] == 1
    faithful = others(pick(document, "harbour_rubric", about="faithfulness by faithfulness"))
    assert faithful["people"]["figures"]["correlation"]["value"] == pytest.approx(1)
    assert faithful["RougeL"]["figures"]["correlation"]["value"] == pytest.approx(1)
    assert (faithful["other"]["n"], faithful["other"]["figures"]) == (0, {})
    pairs = others(pick(document, "harbour_pairwise"))
    assert pairs["people"]["figures"]["accuracy"]["value"] == 1
    assert pairs["old"]["figures"]["accuracy"]["value"] == pytest.approx((N // 2 - 1) / N)
    splits = others(pick(document, "harbour_decomposition"))
    assert splits["llm_statements"]["figures"]["match"] == splits["the text unsplit"]["figures"]["match"]


def test_a_mean_over_the_sets_of_a_kind_counts_each_the_same(live_run: LiveRun) -> None:
    write_set(live_run.folder / "two" / "harbour_correctness", make_correctness())
    write_set(live_run.folder / "two" / "wrong", [row | {"label": "incorrect"} for row in make_correctness()])
    document = live_run.measure("--judge", "lexical", "--data", "two")
    (total,) = [one for one in document["totals"] if one["kind"] == "correctness"]
    right, wrong = (pick(document, name)["judge"]["figures"] for name in ("harbour_correctness", "wrong"))
    assert (total["n_sets"], total["n"]) == (2, 2 * N)
    assert right["accuracy"]["value"] == 1
    assert total["figures"]["accuracy"]["value"] == pytest.approx((1 + wrong["accuracy"]["value"]) / 2)
    assert "people gave one label only: κ and AUC are meaningless" in pick(document, "wrong")["notes"]
    assert pick(document, "wrong")["judge"]["figures"]["auc"]["value"] is None


def test_an_answer_is_correct_by_what_it_states_of_the_truth_as_statement_recall_has_it(live_run: LiveRun) -> None:
    """Half of the truth's statements make an answer correct, with any additions; of two statements none does not."""
    truth = "The ferry leaves at nine. The chapel has a green door."
    more = " ".join(f"Shop {number} sells ropes of length {number + 40}." for number in range(8))
    answers = {"all": truth, "half and more": f"The ferry leaves at nine. {more}", "none of it": more}
    rows = [
        {
            "id": name, "group": name, "question": "What is known?", "ground_truth": truth, "answer": answer,
            "label": "incorrect" if name == "none of it" else "correct",
        }
        for name, answer in answers.items()
    ]  # fmt: skip
    write_set(live_run.folder / "stated", rows)
    document = live_run.measure("--judge", "lexical", "--data", "stated")
    judge = pick(document, "stated")["judge"]
    assert judge["n"] == 3
    assert judge["figures"]["accuracy"]["value"] == 1


def test_too_small_counts_are_noted(live_run: LiveRun) -> None:
    document = live_run.measure("--judge", "lexical", "--data", "sets/harbour_correctness")
    assert pick(document, "harbour_correctness")["notes"] == [
        f"too few decisions: {N} of 30", f"too few groups: {N // 2} of 10"
    ]  # fmt: skip
    write_set(live_run.folder / "many", make_correctness(60))
    many = live_run.measure("--judge", "lexical", "--data", "many")
    assert pick(many, "many")["notes"] == []


def check_run(live_run: LiveRun, run_id: str, n_asked: int) -> None:
    """The calls belong to a run that is not a night."""
    (run,) = live_run.read("select run_id, kind, status, judge, n_samples from runs")
    assert run == {
        "run_id": run_id,
        "kind": "benchmark",
        "status": "completed",
        "judge": "openai:judge",
        "n_samples": sum(len(rows) for rows in EVERY_KIND.values()) - 1,
    }
    (counted,) = live_run.read("select count(*) as n, count(distinct request_hash) as asked from llm_calls")
    assert counted["asked"] == n_asked
    (missing,) = live_run.read("select count(*) as n from llm_calls anti join prompts using (prompt_hash)")
    assert missing["n"] == 0
    shown = call_here(live_run._capsys, "show", "latest")
    assert shown.status == 2


@pytest.mark.slow
def test_an_endpoint_is_asked_as_in_a_run_and_nothing_twice(live_run: LiveRun, endpoint: Endpoint) -> None:
    asked = ("--judge", "openai:judge", "--data", "sets", "--prices", "prices.yaml")
    estimated = live_run.measure(*asked, "--dry-run")
    assert endpoint.stats.bodies == []
    document = live_run.measure(*asked)
    calls = document["calls"]
    assert calls["requests"] == len(endpoint.stats.bodies) == estimated["calls"]["requests"]
    assert calls["cost_usd"] > 0
    assert estimated["calls"]["cost_usd"] > 0
    by_set = {(one["set"], one["language"]): one for one in document["costs"]}
    assert by_set["harbour_support", "en"]["requests"] == N + 1
    assert by_set["harbour_relevance", "en"]["requests"] == N
    # Two to split, and one to compare; the wrong answer is the same in each row.
    assert by_set["harbour_correctness", "en"]["requests"] <= 3 * N
    assert sum(one["requests"] for one in document["costs"]) == calls["requests"]
    # A model also rates by the rubric.
    kinds = {body["response_format"]["json_schema"]["name"] for body in endpoint.stats.bodies}
    assert kinds == {"extract", "classify", "attribute", "rank", "accuracy"}
    chinese = [body for body in endpoint.stats.bodies if "灯塔" in body["messages"][-1]["content"]]
    assert chinese
    assert all("你" in body["messages"][0]["content"] for body in chinese)
    check_run(live_run, document["run_id"], len(endpoint.stats.bodies))
    again = live_run.measure(*asked)
    assert len(endpoint.stats.bodies) == calls["requests"]
    assert (again["calls"]["requests"], again["calls"]["cost_usd"]) == (0, 0)
    assert again["calls"]["reused"] >= calls["requests"]
    assert [one["judge"] for one in again["sets"]] == [one["judge"] for one in document["sets"]]


def test_price_is_printed_before_asking(live_run: LiveRun, endpoint: Endpoint) -> None:
    asked = ("--judge", "openai:judge", "--data", "sets/harbour_relevance", "--prices", "prices.yaml")
    ended = live_run.call(*asked)
    assert ended.status == 0
    assert ended.stderr.startswith(f"{N} rows of 1 sets: {N} requests to openai:judge, 0 replies on record; about ")
    assert "cost $0." in ended.stderr
    assert endpoint.stats.requests
    dry = live_run.call(*asked, "--dry-run")
    assert f"0 requests to openai:judge, {N} replies on record" in dry.stdout
    assert dry.stdout.endswith("Nothing was asked.\n")


def test_more_rows_are_paid_for_alone(live_run: LiveRun, endpoint: Endpoint) -> None:
    asked = ("--judge", "openai:judge", "--data", "sets/harbour_relevance")
    first = live_run.measure(*asked, "--limit", "4")
    assert (first["calls"]["requests"], first["costs"][0]["rows"]) == (4, 4)
    rest = live_run.measure(*asked)
    assert (rest["calls"]["requests"], rest["calls"]["reused"]) == (N - 4, 4)
    halves = [live_run.measure(*asked, "--half", half)["costs"][0]["rows"] for half in ("choose", "report")]
    assert sum(halves) == N
    assert len(endpoint.stats.bodies) == N


def make_silent(asked: Asked) -> dict[str, Any] | str:
    """Useless replies about lamp 3, sound ones about the others."""
    text = "\n".join(asked.blocks.values())
    if "ferry 3 " in text:
        return "I would rather not say."
    return {"verdicts": [{"id": one, "reason": "seen", "label": "useful"} for one in asked.items("contexts")]}


def test_rows_without_a_verdict_are_counted_and_asked_again(live_run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_endpoint(models=("judge",), script={"rank": make_silent}) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        asked = ("--judge", "openai:judge", "--data", "sets/harbour_relevance", "--attempts", "2")
        document = live_run.measure(*asked, status=3)
        assert pick(document, "harbour_relevance")["judge"]["n_missing"] == 3
        assert pick(document, "harbour_relevance")["judge"]["n"] == 3 * (N - 1)
        (costs,) = document["costs"]
        assert (costs["not_judged"], costs["failed"], costs["unreadable"]) == (1, 2, 2)
        assert costs["requests"] == N - 1 + 2
        ended = live_run.call(*asked)
        assert ended.status == 3
        assert "without a verdict: given up after 2 attempts" in ended.stderr
        assert "1 rows have no verdict" in ended.stderr
        assert "3 without a verdict" in ended.stdout
        assert running.stats.requests["/v1/chat/completions"] == N - 1 + 4
        assert [row["status"] for row in live_run.read("select status from runs")] == ["incomplete", "incomplete"]


@pytest.mark.usefixtures("endpoint")
def test_spent_budget_leaves_the_rest_for_a_larger_one(live_run: LiveRun) -> None:
    asked = ("--judge", "openai:judge", "--data", "sets/harbour_relevance", "--prices", "prices.yaml")
    some = live_run.measure(*asked, "--budget", "0.002", "--concurrency", "1", status=3)
    (costs,) = some["costs"]
    assert 0 < costs["requests"] < N
    assert costs["not_judged"] == N - costs["requests"]
    rest = live_run.measure(*asked, "--budget", "1")
    assert (rest["calls"]["requests"], rest["calls"]["reused"]) == (N - costs["requests"], costs["requests"])


def test_interrupted_benchmark_reports_its_results(live_run: LiveRun, endpoint: Endpoint) -> None:
    asked = itertools.count(1)

    def interrupt(_: Asked) -> None:
        if next(asked) == 8:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    endpoint.configure(script={"attribute": interrupt})
    write_set(live_run.folder / "berths", make_support(40))
    arguments = ("--judge", "openai:judge", "--data", "berths", "--concurrency", "2")
    ended = live_run.call(*arguments, "--json")
    assert ended.status == 130, ended.stderr
    judge = pick(ended.document, "berths")["judge"]
    assert 6 <= judge["n"] < 41
    assert judge["n"] + judge["n_missing"] == 41
    assert "stopped by SIGINT; the same command resumes from here" in ended.stderr
    assert live_run.measure(*arguments)["calls"]["reused"] == judge["n"]


def test_the_tables_hold_it_all(live_run: LiveRun) -> None:
    write_set(live_run.folder / "sets" / "tools", STRANGE)
    ended = live_run.call("--judge", "lexical", "--data", "sets")
    assert ended.status == 0, ended.stderr
    titles = {"Support", "Correctness", "Relevance", "Decomposition", "Rubric", "Pairwise", "Costs"}
    assert titles <= set(ended.lines)
    assert ended.lines[0] == "lexical-5 against people; 95 % intervals, drawn by groups of rows"
    (support,) = [line for line in ended.lines if line.split()[:3] == ["harbour_support", "en", "the"]]
    assert "1.00 (0." in support
    assert any(line.startswith("mean of 2") for line in ended.lines)
    assert "harbour_rubric: people also rated tone, which is not measured here." in ended.lines
    assert "Skipped, since their columns match no kind: 1 sets (--json names them)." in ended.lines
    half = live_run.call("--judge", "lexical", "--data", "sets", "--half", "report")
    assert half.lines[0].startswith("lexical-5 against people, half `report` of each set;")


def test_an_empty_answer_is_wrong_without_a_question(live_run: LiveRun, endpoint: Endpoint) -> None:
    rows = [row | {"answer": ""} for row in make_correctness(4)]
    write_set(live_run.folder / "silent", rows)
    document = live_run.measure("--judge", "openai:judge", "--data", "silent")
    assert endpoint.stats.bodies == []
    assert pick(document, "silent")["judge"]["figures"]["accuracy"]["value"] == pytest.approx(0.5)


@pytest.mark.parametrize(("arguments", "expected"), [
    ((), "Missing option '--data'"),
    (("--data", "missing"), "missing does not exist"),
    (("--data", "sets", "--judge", "lexcal"), "unknown judge 'lexcal'"),
    (("--data", "sets", "--half", "third"), "'third' is not one of 'choose', 'report', 'all'"),
    (("--data", "sets", "--limit", "0"), "0 is not in the range"),
    (("--data", "sets/harbour_relevance", "--language", "zh"), "holds no labelled set in zh"),
    (("--data", "one", "--half", "choose"), "no row is left to judge"),
    (("--data", "sets", "--judge", "openai:judge"), "OPENAI_API_KEY"),
])  # fmt: skip
def test_invalid_request_is_refused(live_run: LiveRun, arguments: tuple[str, ...], expected: str) -> None:
    write_set(live_run.folder / "one", [make_support()[0] | {"group": "g2"}])
    judge = () if "--judge" in arguments else ("--judge", "lexical")
    ended = live_run.call(*arguments, *judge)
    assert ended.status == 2
    assert expected in ended.stderr
    assert ended.stdout == ""


def test_two_plans_are_compared_with_people_on_the_same_rows(live_run: LiveRun, judged: Any) -> None:  # noqa: ANN401
    """The lexical judge has the same verdicts by both, which is noted; the first line's figures are unchanged."""
    document = live_run.measure("--judge", "lexical", "--data", "sets", "--plan", "fused")
    assert [one["judge"] for one in document["sets"]] == [one["judge"] for one in judged["sets"]]
    compared = 0
    for one in document["sets"]:
        lines = others(one)
        assert ("plan fused" in lines) == (one["kind"] != "decomposition")
        if "plan fused" in lines:
            assert lines["plan fused"]["figures"] == one["judge"]["figures"]
            values = {figure["value"] for figure in lines["fused - separate"]["figures"].values()}
            assert values <= {0.0, None}
            compared += 1
    assert compared >= 5
    assert {cost["plan"] for cost in document["costs"]} == {"separate", "fused"}
    assert {total["who"] for total in document["totals"]} == {"judge", "plan fused", "fused - separate"}
    ended = live_run.call("--judge", "lexical", "--data", "sets", "--plan", "fused")
    assert "shows nothing about a model" in ended.stdout


def test_a_plan_that_judges_otherwise_has_its_difference_with_an_interval(
    live_run: LiveRun, endpoint: Endpoint
) -> None:
    def support_nothing(asked: Asked) -> dict[str, Any]:
        return {"verdicts": [["A1", "-", "-", "none: no context supports it"]]}

    endpoint.configure(script={"fused": support_nothing})
    write_set(live_run.folder / "one", make_support())
    document = live_run.measure("--judge", "openai:judge", "--data", "one", "--plan", "fused")
    (one,) = document["sets"]
    lines, figure = others(one), "accuracy"
    difference = lines["fused - separate"]["figures"][figure]
    assert difference["value"] == pytest.approx(
        lines["plan fused"]["figures"][figure]["value"] - one["judge"]["figures"][figure]["value"]
    )
    assert difference["ci_low"] < difference["value"] < difference["ci_high"]
    assert endpoint.stats.kinds["fused"] == one["n_rows"] == endpoint.stats.kinds["attribute"]
