"""The head of a report: the result in a sentence, from stored facts, or that there is no result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from evalhouse.flows.report.sections import build_head, explain_metrics, rank_causes
from evalhouse.flows.results.headline import Against, write_headline
from evalhouse.tasks.comparing.changes import CauseChanges, Part
from evalhouse.tasks.comparing.paired import Paired, Verdict
from evalhouse.tasks.comparing.runs import Comparison, MetricComparison
from evalhouse.warehouse.metric_files import load_metrics, parse_metric

N: Final = 40
UNCLEAR: Final = "Nothing is clearly better or worse than in the run before; "
UNKNOWN: Final = "No sample has a score here and in the run before, so better or worse is unknown; "
PAIRED: Final = Paired(
    n=N, n_clusters=N, n_higher=1, n_lower=9, difference=-0.25, ci_low=-0.4, ci_high=-0.1, p=0.001, p_adjusted=0.002,
    is_exact=False, verdict="worse",
)  # fmt: skip


def count(n_judged: int = N, n_unjudged: int = 0, **counts: int) -> list[dict[str, Any]]:
    """Rows of `run_causes`; what is not named is fine."""
    counts |= {"fine": n_judged - sum(counts.values())}
    rows = [("not_judged", n_unjudged, n_judged + n_unjudged), *((name, n, n_judged) for name, n in counts.items())]
    return [
        {
            "cause": name,
            "n_samples": n,
            "n_of": n_of,
            "share": n / n_of if n_of else None,
            "ci_low": 0.1,
            "ci_high": 0.2,
        }
        for name, n, n_of in rows
    ]


def move(metric: str, verdict: Verdict, *parts: str, n: int = N) -> MetricComparison:
    difference = {"worse": -0.25, "better": 0.25, "same": 0.0, "undecided": 0.01}[verdict]
    return MetricComparison(
        metric=metric, n_base=N, n_candidate=N, coverage_base=1, coverage_candidate=1, mean_base=0.5,
        mean_candidate=0.5 + difference, common_base=0.5, common_candidate=0.5 + difference,
        paired=replace(PAIRED, verdict=verdict, difference=difference, n=n), change=difference,
        parts=tuple(Part(name=part, n=N, n_moved=3, value=difference) for part in parts),  # type: ignore[arg-type]
    )  # fmt: skip


def compare(*metrics: MetricComparison) -> Against:
    comparison = Comparison(
        n_base=N, n_candidate=N, n_common=N, cluster=None, metrics=metrics, warnings=(), moves=None,  # type: ignore[arg-type]
    )  # fmt: skip
    return Against(called="the run before", name="the run before, r1", comparison=comparison)


def check(gate: str, **columns: object) -> dict[str, Any]:
    return {"gate": gate, "kind": None, "metric": None, "limit": None, "value": None, "outcome": None, **columns}


def test_the_result_counts_an_error_and_states_what_is_so_most_often() -> None:
    head = build_head(count(hallucinated=17, refused_wrongly=5, refused_rightly=2), metrics=(), against=None, gate=())
    assert head.result == "22 of 40 judged answers have a problem (55 %)."
    assert head.further[0].startswith("Most often, in 17 samples: hallucinated against contexts. The answer states")
    assert head.tone == "unclear", "one run alone is neither good nor bad"


def test_of_picked_answers_the_result_gives_the_share_of_the_whole_dataset() -> None:
    picked = [
        {**row, "share": 0.1 if row["cause"] == "hallucinated" else row["share"]} for row in count(hallucinated=9)
    ]
    head = build_head(picked, metrics=(), against=None, gate=())
    assert head.result == "9 of 40 judged answers have a problem (an estimated 10 % of the whole dataset)."


def test_of_estimates_the_answers_that_both_judged_are_counted_without_a_share() -> None:
    against = compare(replace(move("mrr", "undecided"), is_estimate=True))
    assert against.comparison is not None
    causes = CauseChanges(n=12, n_base=3, n_candidate=4)
    result = write_headline(replace(against, comparison=replace(against.comparison, causes=causes))).sentence
    assert result.endswith("; 4 of 12 answers that both runs judged have a problem, 3 before")


@pytest.mark.parametrize(
    ("causes", "metrics", "result", "further"),
    [
        (count(30, refused_rightly=3), (), "No problem was found in 30 judged answers.", []),
        (
            count(6, n_unjudged=1, not_in_contexts=1),
            (),
            "1 of 6 judged answers has a problem (17 %).",
            [
                "So few answers show little: as many others may look different.",
                "1 sample lacks verdicts that a cause rests on.",
            ],
        ),
        (count(0, n_unjudged=9), (), "No result yet: no sample was judged.", []),
        ([], (), "No result yet: no sample was judged.", []),
        (
            count(0, n_unjudged=9),
            ({"metric": "bleu", "mean": None, "n_scored": 0}, {"metric": "exact_match", "mean": 0.75, "n_scored": 8}),
            "exact_match is 0.750 over 8 samples.",
            [],
        ),
    ],
)
def test_without_verdicts_the_result_claims_nothing(causes: Any, metrics: Any, result: str, further: list[str]) -> None:  # noqa: ANN401
    head = build_head(causes, metrics=metrics, against=None, gate=())
    assert head.result == result
    assert set(further) <= set(head.further)


@pytest.mark.parametrize(
    ("moves", "first", "sentence", "tone"),
    [
        (
            [move("mrr", "worse"), move("faithfulness", "worse"), move("chrf", "undecided")],
            "Some scores are worse than in the run before; ",
            "worse in faithfulness (-0.250), mrr (-0.250); better in none.",
            "bad",
        ),
        (
            [move("faithfulness", "better"), move("mrr", "worse")],
            "Some scores are worse than in the run before; others are better; ",
            "worse in mrr (-0.250); better in faithfulness (+0.250).",
            "good",
        ),
        ([move("mrr", "better")], "Some scores are better than in the run before; ", "none; better in mrr", "good"),
        (
            [move("mrr", "undecided"), move("chrf", "same")],
            UNCLEAR,
            "no metric is better or worse beyond chance.",
            "unclear",
        ),
        ([move("mrr", "same")], "No score differs from the run before; ", "no score differs.", "unclear"),
        ([move("mrr", "undecided", n=0)], UNKNOWN, "no sample has a score in both", "unclear"),
        (
            [move("mrr", "worse", "formula"), move("chrf", "same")],
            UNCLEAR,
            "unknown for 1 metric with another judge, prompt or formula.",
            "unclear",
        ),
        (
            [move(name, "worse") for name in ("bleu", "chrf", "mrr", "rouge_l", "token_f1")],
            "Some scores are worse than in the run before; ",
            "mrr (-0.250) and 2 more metrics; better in none.",
            "bad",
        ),
    ],
)  # fmt: skip
def test_better_or_worse_is_reported_only_beyond_chance(
    moves: list[MetricComparison], first: str, sentence: str, tone: str
) -> None:
    head = build_head(count(hallucinated=4), metrics=(), against=compare(*moves), gate=())
    assert head.result == f"{first}4 of 40 judged answers have a problem (10 %)."
    (compared,) = [text for text in head.further if text.startswith("Compared with the run before, r1: ")]
    assert sentence in compared
    assert head.tone == tone


def test_runs_that_were_measured_otherwise_are_not_held_against_each_other() -> None:
    against = Against(called="the base", name="the base, r1", otherwise="measured differently (judge a → b)")
    head = build_head(count(hallucinated=4), metrics=(), against=against, gate=())
    assert head.result == "4 of 40 judged answers have a problem (10 %)."
    assert "Compared with the base, r1: measured differently (judge a → b)." in head.further
    assert head.tone == "unclear"


def test_the_gate_has_the_last_word_and_states_which_check_failed() -> None:
    failed = check("failed", kind="min", metric="mrr", limit=0.6, value=0.5, outcome="failed")
    open_one = check("failed", kind="max_drop", metric="chrf", limit=0.1, value=None, outcome="undecided")
    better = compare(move("faithfulness", "better"))
    head = build_head(count(), metrics=(), against=better, gate=[failed, open_one])
    assert head.further[0] == "The gate failed: mrr: mean at least 0.600, found 0.500."
    assert head.tone == "bad"
    worse = compare(move("faithfulness", "worse"))
    head = build_head(count(), metrics=(), against=worse, gate=[check("passed")])
    assert (head.further[0], head.tone) == ("The gate passed.", "good")
    only_open = build_head(count(), metrics=(), against=None, gate=[open_one])
    assert only_open.further[0] == "The gate failed: chrf: drop at most 0.100, found –."


def test_causes_come_by_size_an_error_first() -> None:
    counted = count(90, n_unjudged=30, refused_rightly=9, hallucinated=5, not_in_contexts=20, own_knowledge=5)
    rows = rank_causes(counted, count(90, hallucinated=7))
    assert [row["cause"] for row in rows] == [
        "not_in_contexts", "hallucinated", "own_knowledge", "not_judged", "fine", "refused_rightly",
    ]  # fmt: skip
    assert [row["before"] for row in rows] == ["0 %", "8 %", "0 %", "0 %", "92 %", "0 %"]
    assert [row["percent"] for row in rows] == ["22 %", "6 %", "6 %", "25 %", "57 %", "10 %"]
    assert rows[0]["interval"] == "10 to 20 %"


def test_a_metric_means_what_its_file_states_else_its_first_half_sentence() -> None:
    header = (
        "-- metric: own\n-- version: 1\n-- needs: -\n-- One row per sample of the run: how rude it is; NULL else.\n"
    )
    own = parse_metric(f"{header}select 1 where $run_id = ''", name="own", place="own.sql")
    meanings = explain_metrics(["own", "mrr", "gone"], {**load_metrics(), "own": own})
    assert meanings["own"] == "How rude it is"
    assert meanings["mrr"] == load_metrics()["mrr"].meaning
    assert "gone" not in meanings
