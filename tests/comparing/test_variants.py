"""Many runs against the first one, and slices of one or two: in the terminal, as JSON and on the page; and how seldom
a finding is chance."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_process import Ask, call_here
from pydantic import ValidationError
from ui_house import make_client
from warehouse_processes import make_warehouse
from warehouse_runs import lay_warehouse, make_run

from evalhouse.flows.results.baseline import make_decision
from evalhouse.flows.serving.suite_runs import decide_suite_gate
from evalhouse.tasks.comparing.intervals import find_mean_interval
from evalhouse.tasks.comparing.paired import Paired, compare_paired
from evalhouse.tasks.settings.suite import SuiteGate
from evalhouse.warehouse.rows.runs import RunRow, find_run, insert_run
from evalhouse.warehouse.store import Warehouse, derive

N = 120
METRICS = ("answer_correctness", "faithfulness", "hallucination")
SCORE = "0.4 + n % 7 * 0.05"
TOPICS = "{'topic': if(n % 4 = 0, 'refunds', 'other'), 'talk': n // 2}"
GOOD = "0.6 + n % 5 * 0.08"
ZH_FELL = f"if(n % 4 = 0, n % 5 * 0.1, {GOOD})"
LANGUAGES = "{'language': if(n % 4 = 0, 'zh', 'en'), 'tier': if(n < 6, null, 3), 'page': n}"


@pytest.fixture
def store(tmp_path: Path) -> Warehouse:
    return make_warehouse(tmp_path)


@pytest.fixture
def ask(store: Warehouse, capsys: pytest.CaptureFixture[str]) -> Ask:
    return lambda *arguments: call_here(capsys, *arguments, "--warehouse", store.location.name)


def add_run(
    store: Warehouse,
    name: str,
    n: int = N,
    start: int = 0,
    *,
    metadata: str = TOPICS,
    metrics: Sequence[str] = METRICS,
    columns: Mapping[str, object] | None = None,
    **scores: str,
) -> RunRow:
    """A run labelled by its id, whose metadata and scores are SQL over `n`; one after the other by their first letter.

    Each run has other texts, so that no difference is 0 because nothing changed.
    """
    given = {"label": name, "status": "completed", "metrics": metrics, "n_samples": n, "minute": ord(name[0])}
    insert_run(store, make_run(name, **{**given, **(columns or {})}))  # type: ignore[arg-type]  # minute is among them
    numbers = f"range({start}, {start + n}) as numbers (n)"
    with store.writing(patience_s=1.0) as connection:
        connection.execute(
            "insert into run_samples (run_id, sample_id, input_hash, ordinal, metadata) "
            f"select $run_id, 's' || n, $run_id, n + 1, {metadata}::json from {numbers}",
            {"run_id": name},
        )
        connection.execute(
            "insert into samples (sample_id, input_hash, question, answer, contexts) "
            f"select 's' || n, $run_id, 'Q' || n || '?', 'Answer of ' || $run_id, [$run_id] from {numbers}",
            {"run_id": name},
        )
        for metric in metrics:
            better = "low" if metric == "hallucination" else "high"
            connection.execute(
                "insert into scores (run_id, sample_id, metric, value, metric_version, better, unscored_reason) "
                f"select $run_id, 's' || n, $metric, {scores.get(metric, SCORE)} as found, '1', $better, "
                f"if(found is null, 'target_failed', null) from {numbers}",
                {"run_id": name, "metric": metric, "better": better},
            )
        derive(connection, [name], ["scores"])
    return find_run(store, name)


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
    # The next command is for the warehouse that this one was given.
    where = f"--warehouse {store.location.name}"
    assert lines[-2:] == [
        f"next: evalhouse compare alpha bravo {where}   (why bravo differs)",
        f"next: evalhouse compare alpha carol {where}   (why carol differs)",
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


@pytest.mark.parametrize("config", [{"metrics": list(METRICS)}, {"gate": {"max": {"hallucination": 0.5}}}])
def test_a_metric_that_a_suite_names_or_limits_decides_on_the_winner(
    store: Warehouse, ask: Ask, config: Mapping[str, object]
) -> None:
    """The main metrics alone decided, and a variant won that was worse in the only metric with a limit."""
    for name in ("alpha", "bravo", "carol"):
        moves = {} if name != "bravo" else {"faithfulness": f"{SCORE} + 0.05", "hallucination": f"{SCORE} + 0.05"}
        add_run(store, name, columns={"config": config}, **moves)
    sentence = read_sentence(ask, "alpha", "bravo", "carol")
    assert sentence.startswith("No clear winner; bravo is better than alpha in faithfulness")
    assert "worse in hallucination" in sentence


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
    add_run(store, "bravo", answer_correctness=f"{SCORE} + n % 3 * 0.05", columns={"judge": "openai:m"})
    add_run(store, "carol", hallucination=f"{SCORE} - n % 3 * 0.05")
    document = ask("compare", "alpha", "bravo", "carol", "--json", "--all").document
    assert document["headline"]["sentence"].startswith("The winner is carol, better than alpha in hallucination (-0.0")
    assert document["headline"]["sentence"].endswith(
        "bravo was measured differently, so better or worse is unknown in 3 metrics"
    )
    assert "bravo and alpha differ in judge: lexical and openai:m" in document["warnings"]
    assert document["metrics"][0]["runs"][1]["verdict"] == "other judge"


@pytest.mark.parametrize(("names", "lacking"), [
    (("alpha", "bravo", "carol"), "carol"), (("carol", "alpha", "bravo"), "alpha, bravo"),
])  # fmt: skip
def test_a_metric_that_a_run_has_not_is_not_called_judged_otherwise(
    store: Warehouse, ask: Ask, names: tuple[str, ...], lacking: str
) -> None:
    add_run(store, "alpha", n=20)
    add_run(store, "bravo", n=20, faithfulness=f"{SCORE} + if(n = 7, 0.1, 0)")
    add_run(store, "carol", n=20, metrics=["faithfulness"], columns={"embeddings": "other", "status": "cancelled"})
    compared = ask("compare", *names)
    assert compared.lines[0] == f"No clear winner; no run is clearly different from {names[0]} in " + (
        "faithfulness." if names[0] == "carol" else "answer_correctness, faithfulness."
    )
    for name in lacking.split(", "):
        assert f"warning: {name} and {names[0]} have no sample that both scored in answer_correctness" in compared.lines
    assert "judged differently" not in compared.stdout
    assert not re.search("other (judge|formula)", compared.stdout)
    samples = compared.lines[compared.lines.index("Samples that differ most, each by the metric in which it does") :]
    assert [line.split()[:2] for line in samples[2:-3]] == [["s7", "faithfulness"]]


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


# --- slices by a metadata column

TWO = METRICS[:2]


def add_night(store: Warehouse, run_id: str, minute: int, value: str, **config: object) -> RunRow:
    """A run of a suite, both of whose scores are `value`; a quarter is of language zh, six samples have no tier."""
    columns = {"suite": "s", "minute": minute, "config": config}
    scores = dict.fromkeys(TWO, value)
    return add_run(store, run_id, metadata=LANGUAGES, metrics=TWO, columns=columns, **scores)


def test_show_has_the_mean_of_each_slice_with_its_interval(store: Warehouse, ask: Ask) -> None:
    add_night(store, "night", 0, f"if(n = 4, null, {GOOD})")
    rows = ask("show", "night", "--by", "language", "--json").document["by"]
    assert [(row["slice"], row["metric"], row["n_samples"], row["n_scored"]) for row in rows] == [
        ("en", "answer_correctness", 90, 90),
        ("en", "faithfulness", 90, 90),
        ("zh", "answer_correctness", 30, 29),
        ("zh", "faithfulness", 30, 29),
    ]
    values = np.array([0.6 + n % 5 * 0.08 for n in range(0, N, 4) if n != 4])
    assert rows[2]["mean"] == pytest.approx(values.mean())
    ends = find_mean_interval(values, np.arange(29), minimum=0.0)
    assert (rows[2]["ci_low"], rows[2]["ci_high"]) == pytest.approx(ends)
    lines = ask("show", "night", "--by", "language").lines
    table = lines[lines.index("By language") :]
    assert table[2].split() == ["answer_correctness", "en", "0.760", "0.735", "to", "0.783", "90", "90"]
    (tiers,) = {row["n_samples"] for row in ask("show", "night", "--by", "tier", "--json").document["by"]}
    assert tiers == N - 6, "samples without a value are in no slice"
    assert ask("show", "night", "--json").document["by"] == []


@pytest.mark.parametrize(("column", "message"), [
    ("lang", "has a metadata column 'lang'; its columns are language, page, tier"),
    ("page", "column page has 120 values in run night, and at most 50 can be shown; add a column"),
])  # fmt: skip
def test_a_column_that_gives_no_slices_is_refused_with_what_to_do(
    store: Warehouse, ask: Ask, column: str, message: str
) -> None:
    for minute, run_id in enumerate(("base", "night")):
        add_night(store, run_id, minute, GOOD)
    for command in (("show", "night"), ("compare", "base", "night"), ("gate", "night", "--min", "faithfulness=0.1")):
        refused = ask(*command, "--by", column)
        assert refused.status == 2
        assert message in refused.stderr.replace("run base", "run night"), command


def test_a_slice_that_fell_while_the_whole_did_not_is_named_on_top(store: Warehouse, ask: Ask) -> None:
    before = "0.4 + n % 5 * 0.05"
    add_night(store, "base", 0, before)
    add_night(store, "night", 1, f"{before} + if(n % 4 = 0, -0.12 - n * 0.0001, (n * 7 % 11 - 5) * 0.06)")
    document = ask("compare", "base", "night", "--by", "language", "--json").document
    assert {row["metric"]: row["verdict"] for row in document["metrics"]} == dict.fromkeys(TWO, "undecided")
    verdicts = {(row["slice"], row["metric"]): row["verdict"] for row in document["by"]}
    assert verdicts["zh", "faithfulness"] == "worse"
    assert verdicts["en", "faithfulness"] != "worse"
    assert "language zh is worse, though the whole is not" in document["headline"]["sentence"]
    shown = ask("compare", "base", "night", "--by", "language")
    assert "language zh is worse, though the whole is not" in shown.lines[0]
    assert any(line.split()[:2] == ["zh", "faithfulness"] and line.endswith("worse") for line in shown.lines)
    path = store.location.path.with_name("by.html")
    assert ask("report", "night", "--against", "base", "--by", "language", "-o", str(path)).status == 0
    page = path.read_text(encoding="utf-8").partition('<p class="first">')[2].partition("</p>")[0]
    assert "language zh is worse, though the whole is not" in page
    alone = ask("compare", "base", "night")
    assert "language" not in alone.lines[0]


def test_page_and_report_have_a_table_of_slices(store: Warehouse, ask: Ask, tmp_path: Path) -> None:
    add_night(store, "night", 0, f"if(n = 4, null, {GOOD})")
    page = make_client(store.location.name)
    offered = page.get("/runs/night").text
    assert 'href="/runs/night?by=language#slices"' in offered
    assert "by=page" not in offered, "it has a value a sample"
    path = tmp_path / "report.html"
    assert ask("report", "night", "--by", "language", "-o", str(path)).status == 0
    for text in (page.get("/runs/night?by=language").text, path.read_text(encoding="utf-8")):
        table = text[text.index('aria-label="By language"') :].partition("</table>")[0]
        words = re.sub(r"<[^>]*>|\s+", " ", table).split()
        assert " ".join(words[words.index("zh") :]).startswith("zh 30 0.754")
        assert "29 scored" in table
    assert "its columns are language, page, tier" in page.get("/runs/night?by=lang").text
    assert ask("report", "night", "--by", "lang", "-o", str(path)).status == 2


def test_p_is_adjusted_over_all_slices(store: Warehouse, ask: Ask) -> None:
    """None of twenty slices of six samples is called worse for a p of 0.03, though a slice by itself would be."""
    add_night(store, "base", 0, GOOD)
    add_night(store, "night", 1, f"if(n % 20 = 3, {GOOD} - 0.1 - n * 0.001, {GOOD} + if(n % 3 = 0, -0.02, 0.02))")
    with store.writing(patience_s=1.0) as connection:
        connection.execute("""update run_samples set metadata = '{"topic": ' || (ordinal - 1) % 20 || '}'""")
    rows = ask("compare", "base", "night", "--by", "topic", "--json").document["by"]
    (fallen,) = [row for row in rows if row["slice"] == "3" and row["metric"] == "faithfulness"]
    assert fallen["p"] == pytest.approx(2 / 2**6)
    assert fallen["p_adjusted"] > 0.05
    assert {row["verdict"] for row in rows} == {"undecided"}


FLAKY = f"if(n < 40, {SCORE} + 0.2, null)"


@pytest.mark.parametrize(("flaky", "winner"), [
    ("bravo", "No clear winner; bravo has no score in 80 of 120 samples that alpha scored (target failed); bravo is "),
    ("alpha", "No clear winner; alpha has no score in 80 of 120 samples that another run scored (target failed); "),
])  # fmt: skip
def test_a_run_that_failed_on_most_samples_is_no_winner(store: Warehouse, ask: Ask, flaky: str, winner: str) -> None:
    """Only samples that both scored are compared: the ones on which a broken bot answered are often the easy ones."""
    for name in ("alpha", "bravo", "carol"):
        add_run(store, name, answer_correctness=FLAKY if name == flaky else SCORE)
    assert read_sentence(ask, "alpha", "bravo", "carol").startswith(winner)


@pytest.mark.parametrize(("rate_of", "has_rate"), [(None, False), ("answer_rate", True), ("refusal_rate", False)])
def test_a_run_that_refuses_half_of_its_questions_does_not_win(
    store: Warehouse, ask: Ask, rate_of: str | None, *, has_rate: bool
) -> None:
    """Without ground truths no metric saw it, and the answers that it gave were the easy ones. What is unanswerable
    says nothing of it."""
    metrics = ["faithfulness", *([rate_of] if rate_of else [])]
    for name in ("alpha", "bravo", "carol"):
        refuses = f"if(n < 60, {SCORE} + 0.2, null)" if name == "bravo" else SCORE
        rate = "if(n < 60, 1.0, 0.0)" if name == "bravo" else "1.0"
        add_run(store, name, metrics=metrics, faithfulness=refuses, **({rate_of: rate} if rate_of else {}))
    with store.writing(patience_s=1.0) as connection:
        connection.execute("update scores set unscored_reason = 'no_statements' where value is null")
    sentence = read_sentence(ask, "alpha", "bravo", "carol")
    noted = "No clear winner; bravo has no score in 60 of 120 samples that alpha scored (no statements)"
    assert sentence.startswith(noted) is not has_rate
    assert "The winner is bravo" not in sentence


def test_a_run_of_few_samples_or_without_contexts_does_not_win(store: Warehouse, ask: Ask) -> None:
    for name in ("alpha", "bravo", "carol"):
        add_run(
            store,
            name,
            answer_correctness=f"{SCORE} + 0.2" if name != "alpha" else SCORE,
            n=120 if name != "bravo" else 12,
        )
    with store.writing(patience_s=1.0) as connection:
        connection.execute(
            "update scores set value = null, unscored_reason = 'no_contexts' where run_id = 'carol' "
            "and metric = 'faithfulness'"
        )
    sentence = read_sentence(ask, "alpha", "bravo", "carol")
    assert sentence.startswith(
        "No clear winner; bravo has no score in 108 of 120 samples that alpha scored (not in its dataset); "
        "carol has no score in 120 of 120 samples that alpha scored (no contexts)"
    )


def test_a_night_without_many_scores_is_undecided_and_no_baseline(store: Warehouse, ask: Ask) -> None:
    add_run(store, "base", metrics=["faithfulness"], metadata=LANGUAGES, faithfulness=GOOD)
    add_run(store, "night", metrics=["faithfulness"], faithfulness=f"if(n % 4 > 0, null, {GOOD})")
    limit = ("--max-drop", "faithfulness=0.3")
    document = ask("gate", "night", "--against", "base", *limit, "--json").document
    (check,) = document["checks"]
    assert (check["outcome"], check["reason"]) == ("undecided", "scores_lost")
    assert check["detail"] == "90 of 120 samples that the baseline scored have no score (target_failed)"
    assert not make_decision(document, "suite").is_baseline
    # Of a slice too, where the whole lacks few.
    add_run(
        store, "part", metrics=["faithfulness"], metadata=LANGUAGES, faithfulness=f"if(n in (4, 8, 12), null, {GOOD})"
    )
    checks = ask("gate", "part", "--against", "base", *limit, "--by", "language", "--json").document["checks"]
    assert {check["by_value"]: check["reason"] for check in checks} == {None: None, "en": None, "zh": "scores_lost"}
    # A baseline from before the column has no slices.
    add_run(store, "old", metrics=["faithfulness"], faithfulness=GOOD)
    checks = ask("gate", "part", "--against", "old", *limit, "--by", "language", "--json").document["checks"]
    assert {check["by_value"]: check["outcome"] for check in checks} == {
        None: "passed", "en": "undecided", "zh": "undecided",
    }  # fmt: skip
    assert "no sample of run old has a metadata column 'language'" in checks[0]["detail"]
    # And of a dataset that was edited: a slice of the baseline has samples that this run has not.
    add_run(store, "edited", metrics=["faithfulness"], metadata=LANGUAGES, faithfulness=GOOD)
    with store.writing(patience_s=1.0) as connection:
        for table in ("run_samples", "scores"):
            connection.execute(
                f"update {table} set sample_id = 'new-' || sample_id where run_id = 'edited' "
                "and substr(sample_id, 2)::int > 40"
            )
        connection.execute(
            "insert into samples select * replace ('new-' || sample_id as sample_id) from samples "
            "where not starts_with(sample_id, 'new-')"
        )
    checks = ask("gate", "edited", "--against", "base", *limit, "--by", "language", "--json").document["checks"]
    assert {check["reason"] for check in checks} == {"few_common"}


def test_a_trial_of_a_few_samples_is_no_baseline_of_all(store: Warehouse) -> None:
    gate = {"max_drop": {"faithfulness": 0.3}}
    nights = [
        add_night(store, "first", 0, GOOD, gate=gate, limit=None),
        add_night(store, "trial", 1, GOOD, gate=gate, limit=3),
        add_night(store, "later", 2, GOOD, gate=gate, limit=None),
        add_night(store, "uno", 3, GOOD, gate=gate, limit=3),
    ]
    against = []
    for night in nights:
        document = decide_suite_gate(store, night)
        assert document is not None
        assert document["outcome"] == "passed"
        against.append(document["baseline"]["run_ids"])
    assert against == [[], ["first"], ["first"], ["later"]]
    # A limit beyond the dataset does not count, and a few samples are better than no baseline.
    for name, suite in (("wide", "w"), ("few", "f")):
        for run_id, limit in ((name, 1000 if name == "wide" else 3), (f"{name}-next", None)):
            columns = {"suite": suite, "minute": len(run_id), "config": {"gate": gate, "limit": limit}}
            scores = dict.fromkeys(TWO, GOOD)
            run = add_run(store, run_id, metadata=LANGUAGES, metrics=TWO, columns=columns, **scores)
            document = decide_suite_gate(store, run)
        assert document is not None
        assert document["baseline"]["run_ids"] == [name]


def test_a_gate_checks_each_slice_by_the_same_limits(store: Warehouse, ask: Ask) -> None:
    add_night(store, "base", 0, GOOD)
    add_night(store, "night", 1, ZH_FELL)
    limits = ("--min", "faithfulness=0.5", "--max-drop", "faithfulness=0.3")
    given = ("gate", "night", "--against", "base", *limits)
    assert ask(*given).status == 0
    gated = ask(*given, "--by", "language", "--json")
    found = {(check["kind"], check["by_value"]): check["outcome"] for check in gated.document["checks"]}
    assert found == {
        ("min", None): "passed", ("max_drop", None): "passed", ("min", "en"): "passed", ("max_drop", "en"): "passed",
        ("min", "zh"): "failed", ("max_drop", "zh"): "failed",
    }  # fmt: skip
    assert gated.status == 1
    assert any("faithfulness (language zh)" in line for line in ask(*given, "--by", "language").lines)
    stored = store.read_rows("select by_column, by_value from gate_checks where outcome = 'failed'")
    assert {tuple(row.values()) for row in stored} == {("language", "zh")}
    with store.writing(patience_s=1.0) as connection:
        connection.execute("update runs set metrics = ['faithfulness', 'mrr'] where run_id = 'night'")
    unscored = ask("gate", "night", "--min", "mrr=0.5", "--by", "language", "--json").document["checks"]
    assert [(check["by_value"], check["reason"]) for check in unscored] == [
        (None, "nothing_scored"), ("en", "nothing_scored"), ("zh", "nothing_scored"),
    ]  # fmt: skip
    refused = ask("gate", "night", "--max-cost", "1", "--by", "language")
    assert "--by checks --min, --max and --max-drop for each value" in refused.stderr


@pytest.mark.parametrize(("against", "by", "expected"), [
    ("passed", {"language": {}}, {("max_drop", None), ("max_drop", "en"), ("max_drop", "zh")}),
    ("mean_of_passed", {"language": {"min": {"faithfulness": 0.1}}},
     {("max_drop", None), ("min", "en"), ("min", "zh")}),
    ("passed", {"tongue": {}}, {("max_drop", None), ("max_drop", "missing")}),
])  # fmt: skip
def test_a_suite_has_limits_for_slices(
    store: Warehouse, against: str, by: dict[str, Any], expected: set[tuple[str, str | None]]
) -> None:
    gate = {"max_drop": {"faithfulness": 0.3}, "trend": False, "against": against, "by": by}
    for minute, run_id in enumerate(("one", "two")):
        decide_suite_gate(store, add_night(store, run_id, minute, GOOD, gate={"max_cost": 1.0}))
    document = decide_suite_gate(store, add_night(store, "night", 9, ZH_FELL, gate=gate))
    assert document is not None
    checks = document["checks"]
    found = {(check["kind"], check["by_value"] or ("missing" if check["by_column"] else None)) for check in checks}
    assert found == expected
    failed = [(check["by_column"], check["by_value"]) for check in checks if check["outcome"] == "failed"]
    if "tongue" in by:
        assert failed == [("tongue", None)]
        assert "its columns are language, page, tier" in checks[0]["detail"]
    else:
        assert failed == ([] if by["language"] else [("language", "zh")])


@pytest.mark.parametrize(("gate", "message"), [
    ({"max_cost": 1.0, "by": {"language": {}}}, "there is nothing to check by language"),
    ({"min": {"mrr": 0.1}, "by": {"language": {"trend": {"mrr": 0.1}}}}, "trend"),
    ({"by": {"language": {"min": {"hallucination": 0.1}}}}, "better when low"),
])  # fmt: skip
def test_limits_of_slices_that_make_no_sense_are_refused(gate: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SuiteGate.model_validate(gate)


# --- how seldom a finding is chance


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
