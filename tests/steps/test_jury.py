"""A jury: several judges vote on each verdict, ties count as the stricter one, and who is alone is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from cli_house import place_at
from endpoint import Endpoint, running_endpoint

from evalhouse.tasks.asking.verdicts import Verdict, Vote, elect
from evalhouse.tasks.comparing.agreement import list_outsiders, measure_step
from evalhouse.tasks.judge.protocol import find_judge, list_judges, parse_judges

JURY = "jury:openai:judge,openai:other,lexical"
METRICS = "factual_f1,faithfulness,context_precision"


@pytest.mark.parametrize(
    ("text", "call", "judge"),
    [
        ("jury:openai:a,anthropic:b", "classify", "jury:openai:a,anthropic:b"),
        ("jury:openai:a,anthropic:b", "extract_answer", "openai:a"),
        ("jury:openai:a,anthropic:b,rank=lexical", "rank", "lexical"),
        ("openai:a,classify=jury:lexical,m:make,rank=openai:c", "classify", "jury:lexical,m:make"),
        ("openai:a,classify=jury:lexical,m:make,rank=openai:c", "rank", "openai:c"),
        ("openai:a,classify=jury:lexical,m:make", "fused", "jury:lexical,m:make"),
    ],
)
def test_a_jury_judges_the_steps_that_vote(text: str, call: str, judge: str) -> None:
    stored = str(parse_judges(text))
    assert (stored, find_judge(stored, call)) == (text, judge)
    assert set(list_judges(stored)) <= {"openai:a", "anthropic:b", "lexical", "m:make", "openai:c"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("jury:openai:a", "has two or more different judges"),
        ("jury:openai:a,openai:a", "has two or more different judges"),
        ("jury:openai:a,", "has two or more different judges"),
        ("openai:a,extract=jury:openai:a,lexical", "the step 'extract' has one judge, and no jury"),
    ],
)
def test_a_malformed_jury_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_judges(text)


def cast(*given: str | frozenset[str]) -> list[Vote]:
    verdicts = [
        Verdict(reason=f"reason {n}", label=one) if isinstance(one, str) else Verdict(reason="", contexts=tuple(one))
        for n, one in enumerate(given, 1)
    ]
    return [Vote(number=n, verdict=verdict, call_id=f"call {n}") for n, verdict in enumerate(verdicts, 1)]


C1, NONE = frozenset({"C1"}), frozenset[str]()


@pytest.mark.parametrize(
    ("given", "labels", "verdict", "is_tie"),
    [
        (("TP", "FP"), ("TP", "FP"), "FP", True),
        (("FN", "TP"), ("TP", "FN"), "FN", True),
        (("TP", "FP", "TP", "FP"), ("TP", "FP"), "FP", True),
        (("TP", "FP", "TP", "TP"), ("TP", "FP"), "TP", False),
        ((C1, NONE), (), (), True),
        ((C1, C1, NONE, NONE), (), (), True),
        ((C1, C1, C1, NONE), (), ("C1",), False),
    ],
)
def test_a_tie_counts_as_the_stricter_verdict_and_is_named(
    given: tuple[Any, ...], labels: tuple[str, ...], verdict: object, is_tie: bool
) -> None:
    elected = elect(cast(*given), asked=len(given), labels=labels)
    assert elected is not None
    assert (elected.verdict.label or elected.verdict.contexts) == verdict
    assert elected.verdict.reason.startswith("by a tie, in which the stricter verdict counts") == is_tie
    # One that did not vote could have settled it.
    assert elect(cast(*given[:1]), asked=2, labels=labels) is None


def draw_votes(errors: list[float], n_samples: int, seed: int) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Draw four items a sample, on which judges are wrong with these chances, more often in some samples."""
    generator = np.random.default_rng(seed)
    hardness = np.repeat(generator.choice([0.5, 1.5], size=n_samples), 4)[:, None]
    truth = generator.integers(0, 2, size=(4 * n_samples, 1))
    wrong = generator.random((4 * n_samples, len(errors))) < hardness * np.array(errors)
    return [f"s{n // 4}" for n in range(4 * n_samples)], (truth ^ wrong).astype(np.float64)


def test_a_judge_that_is_alone_is_named_and_equal_judges_are_not() -> None:
    judges = ["openai:a", "openai:b", "openai:c"]
    n_false, n_found = 0, 0
    for seed in range(20):
        equal = measure_step("classify", judges, *draw_votes([0.1, 0.1, 0.1], 60, seed), seed)
        worse = measure_step("classify", judges, *draw_votes([0.1, 0.1, 0.4], 60, seed), seed)
        n_false += bool(list_outsiders([equal]))
        n_found += list_outsiders([worse])[:1] != [] and list_outsiders([worse])[0].startswith("openai:c is alone")
    assert n_false <= 4, n_false  # of 20: at most 5 % are expected, and 5 or more then come in 1 case of 400
    assert n_found >= 18, n_found


def test_agreement_counts_ties_and_missing_votes() -> None:
    votes = np.array([[1, 1], [1, 0], [0, 0], [0, np.nan], [1, 1]], dtype=np.float64)
    measured = measure_step("rank", ["openai:a", "lexical"], ["s1", "s1", "s2", "s3", "s4"], votes, 0)
    assert (measured.n_items, measured.n_split, measured.n_ties) == (5, 1, 1)
    # Krippendorff's α by hand: 8 labels of 4 pairs, of which 1 pair differs; 5 yes, 3 no.
    assert measured.alpha.value == pytest.approx(1 - 7 * 2 / (2 * 5 * 3))
    assert [juror.n for juror in measured.jurors] == [5, 4]
    assert [juror.is_outlier for juror in measured.jurors] == [False, False]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(models=("judge", "other")) as running:
        yield running


def test_each_judge_has_one_vote_and_gets_the_requests_it_gets_alone(
    tmp_path: Path, prefect_home: Path, endpoint: Endpoint
) -> None:
    place = place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=3)
    run = ("run", "berths.jsonl", "--metrics", METRICS, "--json")
    chat = "/v1/chat/completions"
    place.call(*run, "--judge", "openai:other")
    n_before = endpoint.stats.requests[chat]
    dry = place.call(*run, "--judge", JURY, "--dry-run").document
    document = place.call(*run, "--judge", JURY).document
    run_id = document["run_id"]
    # The first judge splits the texts; what the other one was asked alone is stored.
    n_asked = endpoint.stats.requests[chat] - n_before
    assert {name: usage["requests"] for name, usage in dry["judges"].items()} == {
        "openai:judge": n_asked, "openai:other": 0, "lexical": 9,
    }  # fmt: skip
    with duckdb.connect(str(tmp_path / "evalhouse.duckdb"), read_only=True) as connection:
        rows = connection.sql(
            "select vote, judge, count(*) from votes join llm_calls using (run_id, call_id) "
            f"where votes.run_id = '{run_id}' and votes.step = 'classify' group by all order by vote"
        ).fetchall()
        (n,) = connection.sql(f"select count(*) from classifications where run_id = '{run_id}'").fetchall()[0]
    assert rows == [(1, "openai:judge", n), (2, "openai:other", n), (3, "lexical", n)]
    shown = place.call("show", run_id, "--json").document
    assert {step["step"] for step in shown["jury"]} == {"attribute", "classify", "rank"}
    assert [juror["judge"] for juror in shown["jury"][0]["jurors"]] == JURY.removeprefix("jury:").split(",")
    page = place.call("show", run_id).stdout
    assert "The jury" in page
    assert "Its judges" in page
    assert place.call("report", run_id, "-o", "page.html").status == 0
    assert "<h3>Its judges</h3>" in (tmp_path / "page.html").read_text()
    # The same jury again asks nothing, and is the same yardstick.
    again = place.call(*run, "--judge", JURY).document
    assert endpoint.stats.requests[chat] - n_before == n_asked
    compared = place.call("compare", run_id, again["run_id"], "--json").document
    assert not any("judge" in warning for warning in compared["warnings"])
    refused = place.call(*run, "--judge", JURY, "--votes", "3")
    assert "each judge of a jury has one vote" in refused.stderr
