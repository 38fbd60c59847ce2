"""Text overlap: values worked out by hand, Chinese as characters, and bounds for any two texts."""

import doctest
from pathlib import Path
from typing import Any

import pytest
from grades import score_work
from hypothesis import given
from hypothesis import strategies as st
from live_runs import ScriptedJudge, lay_out_run, make_sample

from evalhouse.tasks.measure import measure_sample
from evalhouse.tasks.measures import overlap
from evalhouse.tasks.measures.overlap import KINDS, measure_overlap
from evalhouse.tasks.pipeline.live_run import SampleWork, make_work


def test_the_worked_examples_hold() -> None:
    assert doctest.testmod(overlap).failed == 0
    assert doctest.testmod(overlap).attempted > 0


def test_rouge_l_is_the_f1_of_the_longest_common_subsequence() -> None:
    # Common in order: the, cat, on, the, mat (5 of 6 and of 7 words).
    value = measure_overlap("the cat sat on the mat", "the big cat lay on the mat")["rouge_l"]
    assert value == pytest.approx(2 * 5 / (6 + 7))


def test_bleu_of_two_words_in_a_row() -> None:
    # 1-grams 3 of 4, 2-grams 2 of 3, 3-grams 1 of 2; no 4-gram in common, smoothed to a half of one; equal lengths.
    value = measure_overlap("a b c x", "a b c y")["bleu"]
    assert value == pytest.approx((3 / 4 * 2 / 3 * 1 / 2 * (1 / 2) / 1) ** (1 / 4))


@pytest.mark.parametrize(
    ("answer", "ground_truth", "exact", "f1"),
    [
        ("Paris.", "Paris", 1, 1),
        ("  the  PARIS\n", "Paris", 1, 1),
        ("An apple a day", "apple day", 1, 1),
        # paris, is, capital, of, france against paris: 1 in common of 5 and of 1 token.
        ("Paris is the capital of France.", "Paris", 0, 2 / 6),
        # Each as often as both have it: tick, tick in common of 3 and of 2.
        ("tick tick tick", "tick tick", 0, 4 / 5),
        # A hyphen is taken out, and no gap is left.
        ("well-known", "wellknown", 1, 1),
        ("well-known", "well known", 0, 0),
        ("$20", "20 dollars", 0, 2 / 3),
        ("“Café”, 1999…", "café 1999", 1, 1),
        ("北京。", "北京", 1, 1),
        # 首 都 是 北 京 市 against 北 京: 2 in common of 6 and of 2 characters.
        ("首都是北京市", "北京", 0, 4 / 8),
        ("用 DuckDB 查询！", "用DuckDB查询", 1, 1),
        ("The", "A", 0, 0),
        ("…", "!", 0, 0),
        ("", "Paris", 0, 0),
    ],
)
def test_exact_match_and_token_f1_are_squads(answer: str, ground_truth: str, exact: float, f1: float) -> None:
    found = measure_overlap(answer, ground_truth)
    assert found["squad_exact_match"] == exact
    assert found["token_f1"] == pytest.approx(f1)


def test_case_and_punctuation_are_no_words_for_rouge() -> None:
    assert measure_overlap("Berlin.", "berlin")["rouge_l"] == 1


def test_chinese_is_compared_by_characters() -> None:
    # 首 都 北 京 in common of 6 and of 5 characters; as one word without a gap there would be nothing in common.
    found = measure_overlap("首都是北京市。", "首都：北京!")
    assert found["rouge_l"] == pytest.approx(2 * 4 / (6 + 4))
    assert 0 < found["bleu"] < 1
    assert measure_overlap("首都是北京", "首都是北京") == dict.fromkeys(KINDS, 1.0)


def test_a_word_of_latin_letters_in_chinese_stays_whole() -> None:
    assert measure_overlap("用 DuckDB 查询", "用DuckDB查询")["rouge_l"] == 1


@pytest.mark.parametrize(("answer", "ground_truth"), [("", "something"), ("…", "!"), ("x", "y")])
def test_nothing_in_common_is_zero(answer: str, ground_truth: str) -> None:
    found = measure_overlap(answer, ground_truth)
    assert found["rouge_l"] == found["squad_exact_match"] == found["token_f1"] == 0


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_two_texts_have_shares_and_equal_ones_agree(one: str, other: str) -> None:
    assert all(0 <= value <= 1 for value in measure_overlap(one, other).values())
    if any(char.isalnum() for char in one):
        assert measure_overlap(one, one)["squad_exact_match"] == 1


# The step


async def measure(folder: Path, **changes: Any) -> SampleWork:  # noqa: ANN401
    async with lay_out_run(folder, judge=ScriptedJudge(lambda _: "nothing is asked"), metrics=["bleu"]) as live_run:
        work = make_work(make_sample(**changes))
        await measure_sample(live_run, work)
        assert live_run.asker.counts.requests == 0
    return work


async def test_a_sample_has_all_of_them_on_record(tmp_path: Path) -> None:
    work = await measure(tmp_path, answer="in Paris today", ground_truth="in Paris")
    expected = measure_overlap("in Paris today", "in Paris")
    assert {row["kind"]: row["value"] for row in work.rows["similarities"]} == expected
    for kind in KINDS:
        assert score_work(work, kind.removeprefix("squad_")) == (expected[kind], None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"answer": None}, "no_answer"),
        ({"ground_truth": None}, "no_ground_truth"),
        ({"answer": None, "ground_truth": None}, "no_answer"),
    ],
)
async def test_one_text_alone_has_no_score(tmp_path: Path, changes: dict[str, str | None], reason: str) -> None:
    work = await measure(tmp_path, **changes)
    assert score_work(work, "rouge_l") == (None, reason)
