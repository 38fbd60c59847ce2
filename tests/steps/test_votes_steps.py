"""Votes in the steps of a sample, whole or in parts, of one judge or of a jury; the names and settings that are
refused; and what SQL says of the votes.

Whole runs with votes are in `test_votes_runs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import orjson
import pytest
from cli_house import place_at
from endpoint import Endpoint, running_endpoint
from live_runs import (
    ScriptedJudge,
    find_odd,
    judge_one,
    judge_with,
    make_sample,
    make_settings,
    read_ids,
    read_labels,
    read_ranks,
    read_useful,
    say_by_vote,
    say_useful,
    say_verdicts,
)
from rows import fill, open_rows, read

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import make_plan
from evalhouse.flows.preparing.request import resolve_settings
from evalhouse.tasks.comparing.agreement import list_outsiders, measure_step
from evalhouse.tasks.judge.protocol import (
    FatalJudgeError,
    Question,
    find_judge,
    list_judges,
    parse_judges,
)
from evalhouse.tasks.models.make import make_judges
from evalhouse.tasks.pipeline.live_run import SampleWork

Reply = str | Exception


def say_labels(labels: Mapping[str, str], reason: str) -> str:
    return say_verdicts(*({"id": item, "label": label, "reason": reason} for item, label in labels.items()))


def say_supports(contexts: Mapping[str, Sequence[str]], reason: str) -> str:
    return say_verdicts(*({"id": item, "contexts": list(some), "reason": reason} for item, some in contexts.items()))


def list_votes(work: SampleWork, step: str, item_id: str) -> list[tuple[object, ...]]:
    rows = [row for row in work.rows["votes"] if (row["step"], row["item_id"]) == (step, item_id)]
    return [(row["vote"], row["verdict"], row["agrees"], row["reason"]) for row in rows]


async def test_steps_take_the_majority_and_keep_each_vote(tmp_path: Path) -> None:
    labels = {"A1": "TP", "A2": "FP", "G1": "TP", "G2": "FN"}
    supports = {"A1": ["C1"], "A2": [], "G1": ["C1", "C2"], "G2": []}
    odd = {
        "classify": say_by_vote(
            say_labels(labels | {"A2": "TP"}, "one"), say_labels(labels, "two"), say_labels(labels, "three")
        ),
        "attribute": say_by_vote(
            say_supports(supports | {"A1": ["C3", "C2"]}, "one"),
            say_supports(supports, "two"),
            say_supports(supports | {"A1": ["C1", "C2"]}, "three"),
        ),
        "rank": say_by_vote(say_useful({"C1"}, "one"), say_useful({"C1", "C3"}, "two"), say_useful({"C3"}, "three")),
    }
    judge, work = await judge_with(tmp_path, odd, votes=3)
    assert read_labels(work) == labels
    assert read_ranks(work) == {"A1": [1, 2], "A2": [], "G1": [1, 2], "G2": []}
    assert read_useful(work) == {1: True, 2: False, 3: True}
    assert list_votes(work, "classify", "A2") == [
        (1, "TP", False, "one"), (2, "FP", True, "two"), (3, "FP", True, "three"),
    ]  # fmt: skip
    assert list_votes(work, "attribute", "A1") == [
        (1, "2,3", False, "one"), (2, "1", False, "two"), (3, "1,2", True, "three"),
    ]  # fmt: skip
    assert {row[1] for row in list_votes(work, "attribute", "A2")} == {"none"}
    assert [row[1] for row in list_votes(work, "rank", "C3")] == ["not_useful", "useful", "useful"]
    assert len(work.rows["votes"]) == 3 * (4 + 4 + 3)
    reasons = {str(row["statement_id"]): row["reason"] for row in work.rows["attributions"]}
    assert (reasons["A1"], reasons["G1"]) == ("three", "one")
    assert [question.vote for question in judge.asked if question.step.startswith("extract")] == [0, 0]


async def judge_in_parts(
    folder: Path, step: str, says: Callable[[Question], Reply]
) -> tuple[list[Question], SampleWork]:
    """A sample whose four contexts and statements do not go into one request; `says` answers one step."""
    filler = " and the keeper writes it down" * 40

    def answer(question: Question) -> Reply:
        if question.step.startswith("extract"):
            return orjson.dumps({"statements": [f"{question.step} {n}{filler}" for n in (1, 2)]}).decode()
        return find_odd(question, {step: says})(question)

    judge = ScriptedJudge(answer)
    sample = make_sample(contexts=[f"Context {n}.{filler}" for n in range(1, 5)])
    work = await judge_one(folder, sample, judge=judge, request_tokens=800, votes=3)
    return [question for question in judge.asked if question.step.startswith(step)], work


async def test_support_in_parts_is_the_union_of_their_majorities(tmp_path: Path) -> None:
    """A1 has C1 from two votes and C4 from two others; C2 from one alone."""
    named = {1: {"C1", "C2"}, 2: {"C1", "C4"}, 3: {"C4"}}

    def says(question: Question) -> str:
        statements = read_ids(question, "answer_statements") + read_ids(question, "ground_truth_statements")
        here = [item for item in read_ids(question, "contexts") if item in named[question.vote]]
        return say_supports({item: here if item == "A1" else [] for item in statements}, f"vote {question.vote}")

    asked, work = await judge_in_parts(tmp_path, "attribute", says)
    n_parts = len({tuple(read_ids(question, "contexts")) for question in asked})
    assert n_parts >= 2
    assert read_ranks(work) == {"A1": [1, 4], "A2": [], "G1": [], "G2": []}
    votes = [row for row in work.rows["votes"] if (row["step"], row["item_id"]) == ("attribute", "A1")]
    assert len(votes) == 3 * n_parts
    assert len({row["call_id"] for row in votes}) == 3 * n_parts


async def test_a_statement_found_in_any_part_by_its_majority_is_found(tmp_path: Path) -> None:
    def says(question: Question) -> str:
        answers = read_ids(question, "answer_statements")
        truths = read_ids(question, "ground_truth_statements")
        meet = ("A1" in answers and "G2" in truths and question.vote > 1) or question.vote == 3
        labels = {item: "TP" if meet and item in ("A1", "A2") else "FP" for item in answers}
        return say_labels(labels | dict.fromkeys(truths, "FN"), "")

    asked, work = await judge_in_parts(tmp_path, "classify", says)
    assert len(asked) == 3 * 4
    assert read_labels(work) == {"A1": "TP", "A2": "FP", "G1": "FN", "G2": "FN"}
    assert len(list_votes(work, "classify", "A1")) == 3 * 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"votes": 2}, "--votes: got 2; an even number of votes can tie; give an odd one"),
        (
            {"votes": 3},
            "--votes: got 3; the lexical judge is deterministic, so more votes change nothing; name a model with "
            "--judge, or take one vote",
        ),
        ({"votes": 0}, "--votes: got 0; input should be greater than or equal to 1"),
    ],
)
def test_votes_that_decide_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, object], message: str
) -> None:
    monkeypatch.delenv("EVALHOUSE_JUDGE", raising=False)
    with pytest.raises(SettingsError) as refused:
        resolve_settings(flags)
    assert str(refused.value) == message


def make_rows(
    step: str, item_id: str, agrees: str, *, run_id: str = "r", sample_id: str = "s"
) -> list[dict[str, object]]:
    """Votes on one item, one for each letter: y agrees with the majority, n does not."""
    item = {"run_id": run_id, "sample_id": sample_id, "step": step, "item_id": item_id}
    return [{**item, "vote": n, "verdict": "v", "agrees": written == "y"} for n, written in enumerate(agrees, start=1)]


def test_flips_are_counted_by_item_and_by_vote() -> None:
    with open_rows() as con:
        fill(
            con,
            "votes",
            *make_rows("rank", "C1", "yyyyy"),
            *make_rows("rank", "C2", "yynyn"),
            *make_rows("rank", "C3", "yyyy"),
            *make_rows("rank", "C1", "nyyyy", sample_id="t"),
            *make_rows("attribute", "A1", "yyy"),
            *make_rows("attribute", "A1", "nnn"),  # another part of the same text
            *make_rows("classify", "A1", "yyy", run_id="other"),
        )
        rows = read(con, "from vote_flips order by run_id desc, step")
    assert rows == [
        {"run_id": "r", "step": "attribute", "n_items": 1, "n_flipped": 1, "flip_rate": 1.0,
         "n_votes": 6, "n_against": 3, "against_rate": 0.5},
        {"run_id": "r", "step": "rank", "n_items": 4, "n_flipped": 2, "flip_rate": 0.5,
         "n_votes": 19, "n_against": 3, "against_rate": pytest.approx(3 / 19)},
        {"run_id": "other", "step": "classify", "n_items": 1, "n_flipped": 0, "flip_rate": 0.0,
         "n_votes": 3, "n_against": 0, "against_rate": 0.0},
    ]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), [
    ("lexical", "lexical"),
    (" openai:a , attribute = lexical", "openai:a,attribute=lexical"),
    ("rank=m:f,openai:a,classify=openai:b", "openai:a,classify=openai:b,rank=m:f"),
    ("openai:a,classify=openai:a", "openai:a"),
    ("openai:ft=1", "openai:ft=1"),
    ({"default": "openai:a", "grade": "openai:b"}, "openai:a,grade=openai:b"),
])  # fmt: skip
def test_judges_are_named_in_one_way(given: str | Mapping[str, object], text: str) -> None:
    assert str(parse_judges(given)) == text
    assert str(parse_judges(text)) == text


@pytest.mark.parametrize(("given", "why"), [
    ("openai:a,clasify=lexical", "unknown step 'clasify'; did you mean classify?"),
    ("colour=lexical", "unknown step 'colour'; known: extract, classify, attribute, rank"),
    ("openai:a,similarity=openai:b", "the step 'similarity' asks no judge; steps that do: extract"),
    ("extract_answer=lexical", "'extract_answer' is part of the step 'extract'; name its judge as extract=JUDGE"),
    ("grade_accuracy=lexical", "name its judge as grade=JUDGE"),
    ("rank=openai:a,rank=openai:b", "the step 'rank' has two judges, 'openai:a' and 'openai:b'; name one"),
    ("openai:a,openai:b", "two default judges, 'openai:a' and 'openai:b'; name a step's judge as STEP=JUDGE"),
    ("openai:a,,rank=lexical", "no judge given for default; write JUDGE, or STEP=JUDGE"),
    ("none", "no judge given"),
    (3, "give the name of a judge, or a dictionary of names by step"),
    ({"rank": 3}, "no judge given for rank"),
    ("jury:openai:a", "has two or more different judges"),
    ("jury:openai:a,openai:a", "has two or more different judges ('openai:a' is named twice); write"),
    ("jury:" + "openai:a-model-with-a-name,openai:b," * 100, "('openai:a-model-with-a-name' is named twice)"),
    ("rank=jury:" + ",".join(map(str, range(200))) + ",rank=jury:a,b", "the step 'rank' has two judges, 'jury:0,1,"),
    ("jury:openai:a,", "has two or more different judges"),
    ("openai:a,extract=jury:openai:a,lexical", "the step 'extract' has one judge, and no jury"),
])  # fmt: skip
def test_other_names_are_refused(given: str | Mapping[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        parse_judges(given)
    assert len(str(caught.value)) < 250


def test_every_stored_judge_can_be_read() -> None:
    text = "openai:a,attribute=lexical"
    assert [find_judge(text, call) for call in ("attribute_answer", "attribute", "classify", "grade_x", "gone")] == [
        "lexical", "lexical", "openai:a", "openai:a", "openai:a"
    ]  # fmt: skip
    assert list_judges(text) == ["openai:a", "lexical"]
    assert [find_judge(old, "rank") for old in ("none", "", "odd=name")] == ["none", "", "odd=name"]


def test_a_judge_that_cannot_take_a_step_is_refused_with_the_flag_to_give() -> None:
    settings = make_settings(judge="lexical", metrics=("accuracy", "faithfulness"))
    with pytest.raises(FatalJudgeError, match=r"cannot take the step grade \(accuracy\), only .*--judge grade=openai"):
        make_judges(settings, make_plan(settings))


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
    (warning,) = list_outsiders([measured])
    assert warning.startswith("lexical has no vote on 1 of 5 in rank, so the other judges decided there")
    # Krippendorff's α by hand: 8 labels of 4 pairs, of which 1 pair differs; 5 yes, 3 no.
    assert measured.alpha.value == pytest.approx(1 - 7 * 2 / (2 * 5 * 3))
    assert [juror.n for juror in measured.jurors] == [5, 4]
    assert [juror.is_outlier for juror in measured.jurors] == [False, False]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(models=("judge", "other")) as running:
        yield running


@pytest.mark.slow
def test_each_judge_has_one_vote_and_gets_the_requests_it_gets_alone(
    tmp_path: Path, prefect_home: Path, endpoint: Endpoint
) -> None:
    place = place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=2)
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
        "openai:judge": n_asked, "openai:other": 0, "lexical": 6,
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
