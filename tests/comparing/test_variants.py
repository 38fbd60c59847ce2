"""Many runs against the first one: who won, in the terminal, as JSON and on the page; and how seldom that is chance."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_process import Ask, call_here
from ui_house import make_client
from warehouse_processes import make_warehouse
from warehouse_runs import lay_warehouse, make_run

from evalhouse.tasks.comparing.paired import Paired, compare_paired
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.store import Warehouse, derive

N = 120
METRICS = ("answer_correctness", "faithfulness", "hallucination")
SCORE = "0.4 + n % 7 * 0.05"
FELL_IN_REFUNDS = f"if(n % 4 = 0, n % 5 * 0.05, {SCORE})"


@pytest.fixture
def store(tmp_path: Path) -> Warehouse:
    return make_warehouse(tmp_path)


@pytest.fixture
def ask(store: Warehouse, capsys: pytest.CaptureFixture[str]) -> Ask:
    return lambda *arguments: call_here(capsys, *arguments, "--warehouse", store.location.name)


def add_run(store: Warehouse, name: str, n: int = N, start: int = 0, **scores: str) -> None:
    """A run labelled by its id, whose scores are SQL over `n`; a quarter of its samples is about refunds.

    Each run has another answer, so that no difference is 0 because nothing changed.
    """
    columns: dict[str, Any] = {name: scores.pop(name) for name in ("judge", "label") if name in scores}
    minute = ord(name[0])
    insert_run(
        store,
        make_run(
            name,
            minute=minute,
            **{"label": name, "status": "completed", "metrics": METRICS, "n_samples": n, **columns},
        ),
    )
    numbers = f"range({start}, {start + n}) as numbers (n)"
    with store.writing(patience_s=1.0) as connection:
        connection.execute(
            "insert into run_samples (run_id, sample_id, input_hash, ordinal, metadata) "
            "select $run_id, 's' || n, $run_id, n + 1, "
            f"{{'topic': if(n % 4 = 0, 'refunds', 'other'), 'talk': n // 2}}::json from {numbers}",
            {"run_id": name},
        )
        connection.execute(
            "insert into samples (sample_id, input_hash, question, answer, contexts) "
            f"select 's' || n, $run_id, 'Q' || n || '?', 'Answer of ' || $run_id, ['c'] from {numbers}",
            {"run_id": name},
        )
        for metric in METRICS:
            better = "low" if metric == "hallucination" else "high"
            connection.execute(
                "insert into scores (run_id, sample_id, metric, value, metric_version, better) "
                f"select $run_id, 's' || n, $metric, {scores.get(metric, SCORE)}, '1', $better from {numbers}",
                {"run_id": name, "metric": metric, "better": better},
            )
        derive(connection, [name])


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Three runs of the same samples, one of others, and one that judged a part of them. Read it."""
    store = lay_warehouse(tmp_path_factory.mktemp("unlike") / "unlike.duckdb")
    for name in ("alpha", "bravo", "carol"):
        add_run(store, name, n=8)
    add_run(store, "other", n=8, start=500)
    insert_run(store, make_run("sampled", config={"sample_budget": 20}))
    return store


def read_sentence(ask: Ask, *arguments: str) -> str:
    return str(ask("compare", *arguments).lines[0])


def test_the_winner_and_the_slice_where_a_run_loses_are_named_on_top(store: Warehouse, ask: Ask) -> None:
    add_run(store, "alpha")
    add_run(store, "bravo", answer_correctness=f"{SCORE} + n % 3 * 0.05")
    add_run(store, "carol", faithfulness=f"if(n % 4 = 0, {SCORE} - 0.2 - n % 3 * 0.1, {SCORE} + n % 2 * 0.18 - 0.02)")
    lines = ask("compare", "alpha", "bravo", "carol", "--by", "topic").lines
    assert re.fullmatch(
        r"The winner is bravo, better than alpha in answer_correctness \(\+0\.050, 0\.0\d\d to 0\.0\d\d\); "
        r"no run is clearly different from alpha in faithfulness; carol loses in topic refunds\.",
        lines[0],
    )
    table = lines[lines.index("Means") + 1 : lines.index("Differences from alpha")]
    assert [line.split() for line in table[:2]] == [
        ["metric", "alpha", "bravo", "carol"],
        ["answer_correctness", "0.549", "0.599", "better", "0.549"],
    ]
    differences = lines[lines.index("Differences from alpha") + 2 :]
    assert differences[0].split()[:4] == ["answer_correctness", "bravo", "0.549", "+0.050"]
    assert differences[0].endswith("better")
    assert any(line.startswith("refunds") and line.endswith("worse") for line in lines)
    assert lines[-2:] == [
        "next: evalhouse compare alpha bravo   (why bravo differs)",
        "next: evalhouse compare alpha carol   (why carol differs)",
    ]


@pytest.mark.parametrize(
    ("moves", "sentence"),
    [
        ({"bravo": " + n % 3 * 0.05", "carol": " + n % 2 * 0.1"},
         "No clear winner: bravo and carol are better than alpha, and were not tested against each other; bravo is"),
        ({"bravo": " - n % 3 * 0.05", "carol": " - n % 2 * 0.1"},
         "The winner is alpha, as all others are worse; bravo is worse than alpha in answer_correctness (-0.050,"),
        ({"bravo": "", "carol": " + if(n < 60, 0.01, -0.01)"},
         "No clear winner; no run is clearly different from alpha in answer_correctness, faithfulness."),
    ],
)  # fmt: skip
def test_without_one_best_run_no_winner_is_named(
    store: Warehouse, ask: Ask, moves: dict[str, str], sentence: str
) -> None:
    add_run(store, "alpha")
    for name, move in moves.items():
        add_run(store, name, answer_correctness=SCORE + move)
    assert read_sentence(ask, "alpha", "bravo", "carol").startswith(sentence)


def test_json_has_each_run_of_each_metric_and_all_samples(store: Warehouse, ask: Ask) -> None:
    add_run(store, "alpha")
    add_run(store, "bravo", answer_correctness=f"if(n = 5, 1.0, {SCORE})", faithfulness="if(n = 7, null, 0.5)")
    add_run(store, "carol", n=60)
    document = ask("compare", "alpha", "bravo", "carol", "--json", "--all", "--cluster", "talk", "--seed", "3").document
    assert [run["n_samples"] for run in document["runs"]] == [120, 120, 60]
    assert (document["winner"], document["n_comparisons"]) == (None, 6)
    assert (document["cluster"], document["seed"]) == ("talk", 3)
    assert document["warnings"] == ["carol has 60 of the 120 samples of alpha"]
    by_name = {of["metric"]: of for of in document["metrics"]}
    assert list(by_name) == list(METRICS)
    _, bravo, carol = by_name["faithfulness"]["runs"]
    assert (bravo["mean"], bravo["n_scored"], bravo["n_common"], carol["n_common"]) == (0.5, 119, 119, 60)
    assert bravo["ci_low"] <= bravo["difference"] <= bravo["ci_high"]
    assert carol["verdict"] == "same"
    assert len(document["samples"]) == 120
    picked = ask("compare", "alpha", "bravo", "carol", "--json", "--differ", "--sort", "answer_correctness").document
    # The samples that carol lacks are not scored by all, and count as the farthest.
    assert len(picked["samples"]) == 61
    assert picked["samples"][-1]["sample_id"] == "s5"
    assert picked["samples"][-1]["scores"]["answer_correctness"] == [pytest.approx(0.65), 1.0, pytest.approx(0.65)]
    assert [of["metric"] for of in picked["metrics"]] == list(METRICS[:2]), "the main metrics alone"


def test_another_judge_is_named_and_nothing_is_decided_by_it(store: Warehouse, ask: Ask) -> None:
    add_run(store, "alpha")
    add_run(store, "bravo", answer_correctness=f"{SCORE} + n % 3 * 0.05", judge="openai:m")
    add_run(store, "carol", hallucination=f"{SCORE} - n % 3 * 0.05")
    document = ask("compare", "alpha", "bravo", "carol", "--json", "--all").document
    assert document["headline"]["sentence"].startswith("The winner is carol, better than alpha in hallucination (-0.0")
    assert document["headline"]["sentence"].endswith(
        "bravo was measured differently, so better or worse is unknown in 3 metrics"
    )
    assert "bravo and alpha differ in judge: lexical and openai:m" in document["warnings"]
    assert document["metrics"][0]["runs"][1]["verdict"] == "other judge"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("alpha", "bravo", "alpha"), "run alpha was named twice; name each run once"),
        (("alpha", "bravo", "other"), "run alpha of data.jsonl and run other of data.jsonl have no sample in common"),
        (("alpha", "bravo", "carol", "--sample", "s1"), "--sample shows two runs: evalhouse compare alpha bravo"),
        (("alpha", "bravo", "carol", "--cluster", "tier"), "--cluster: no sample has a metadata column 'tier'"),
        (("alpha", "bravo", "--differ"), "--differ is for three or more runs"),
        (("alpha", *["bravo"] * 10), "11 runs were named; name 2 to 10"),
        (("alpha", "bravo", "sampled"), "run sampled judged a part of its dataset"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    unlike: Warehouse, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    refused = call_here(capsys, "compare", *arguments, "--warehouse", str(unlike.location.path))
    assert refused.status == 2
    assert message in refused.stderr


def test_what_else_the_runs_differ_in_is_a_warning_and_any_metric_sorts(store: Warehouse, ask: Ask) -> None:
    for name in ("alpha", "bravo", "carol"):
        add_run(store, name, hallucination=SCORE if name == "alpha" else f"if(n = 9, 0.0, {SCORE})")
    with store.writing(patience_s=1.0) as connection:
        connection.execute("update samples set question = 'Another?' where input_hash = 'carol' and sample_id = 's3'")
        connection.execute("update runs set status = 'incomplete' where run_id = 'bravo'")
    document = ask("compare", "alpha", "bravo", "carol", "--json", "--sort", "hallucination", "--top", "1").document
    assert document["warnings"] == [
        "carol has another question or ground truth than alpha in 1 samples of the same id",
        "run bravo is incomplete: some of its samples may be unscored",
    ]
    assert [sample["sample_id"] for sample in document["samples"]] == ["s9"]
    assert [of["metric"] for of in document["metrics"]] == list(METRICS), "the metric that sorts is compared as well"


def test_the_page_has_the_sentence_the_scores_and_the_answers_side_by_side(store: Warehouse) -> None:
    add_run(store, "alpha")
    add_run(store, "bravo", answer_correctness=f"if(n = 5, {SCORE} + 0.1, {SCORE})")
    add_run(store, "carol", faithfulness=f"{SCORE} - 0.1")
    client = make_client(store.location.url)
    page = client.get("/compare?runs=alpha,bravo&runs=carol&differ=true&by=answer_correctness&column=topic").text
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
    assert "The winner is alpha" not in text
    assert "carol is worse than alpha in faithfulness (-0.100," in text
    assert "1 samples, 1 to 1 shown" in text
    assert (
        "s5 Q5? alpha Answer of alpha answer_correctness 0.650 bravo Answer of bravo answer_correctness 0.750" in text
    )
    assert 'href="/runs/bravo/sample?id=s5"' in page
    assert 'href="/compare?base=alpha&amp;candidate=carol"' in page
    assert "topic: refunds" in text
    refused = client.get("/compare?runs=alpha,nothing,carol")
    assert refused.status_code == 404
    assert "no run fits &#39;nothing&#39;" in refused.text
    assert client.get("/compare?runs=alpha,bravo&by=bleu").status_code == 400


def draw_runs(seed: int, n: int, *, loser: float = 0.0, skewed: bool = False) -> list[Paired]:
    """Compare three runs with a first one in six metrics that depend on each other; the last is worse by `loser`."""
    generator = np.random.default_rng(seed)
    hard, of_run, own = (generator.normal(size=(n, *shape)) for shape in ((1, 1), (4, 1), (4, 6)))
    latent = hard + 0.8 * of_run + 0.6 * own
    latent[:, -1] -= loser
    # Scores that are nearly all 1, or 0 and 1 alone: signs are no longer flipped among equals.
    scores = np.where(latent > -1.5, 1.0, 0.0) if skewed else 1 / (1 + np.exp(-latent))
    differences = (scores[:, 1:] - scores[:, :1]).reshape(n, -1)
    return compare_paired(
        differences, np.arange(n), low_is_good=[False] * 18, is_simultaneous=True, seed=seed, resamples=400
    )


def check_error(rounds: int, n: int, *, skewed: bool, most: float) -> None:
    false, held, found = 0, 0, 0
    for seed in range(rounds):
        equal = draw_runs(seed, n, skewed=skewed)
        false += any(paired.verdict in ("better", "worse") for paired in equal)
        held += all(paired.ci_low is not None and paired.ci_low <= 0 <= (paired.ci_high or 0) for paired in equal)
        with_loser = draw_runs(seed, n, skewed=skewed, loser=1.2)
        false += any(paired.verdict in ("better", "worse") for paired in with_loser[:12])
        found += any(paired.verdict == "worse" for paired in with_loser[12:])
    assert false / (2 * rounds) <= most
    assert held / rounds >= 1 - 2 * most
    assert found / rounds >= 0.9


def test_of_equal_runs_hardly_any_is_called_better_and_a_loser_is_found() -> None:
    check_error(25, 80, skewed=False, most=0.08)  # 5 % and two standard errors


@pytest.mark.slow
@pytest.mark.parametrize("skewed", [False, True])
def test_at_most_one_family_of_runs_in_twenty_has_a_false_finding(*, skewed: bool) -> None:
    check_error(300, 60, skewed=skewed, most=0.06)  # 5 % and a standard error
