"""Text overlap: values worked out by hand, Chinese as characters, and bounds for any two texts."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import overlap
from tasks.overlap import KINDS, measure_overlap


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


def test_case_and_punctuation_are_no_words_for_rouge_but_matter_for_an_exact_match() -> None:
    found = measure_overlap("Berlin.", "berlin")
    assert found["rouge_l"] == 1
    assert found["exact_match"] == 0
    assert measure_overlap("  In  Berlin\n", "In Berlin")["exact_match"] == 1


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
    assert found["rouge_l"] == found["exact_match"] == 0


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_two_texts_have_shares_and_equal_ones_agree(one: str, other: str) -> None:
    assert all(0 <= value <= 1 for value in measure_overlap(one, other).values())
    if any(char.isalnum() for char in one):
        assert measure_overlap(one, one)["exact_match"] == 1
