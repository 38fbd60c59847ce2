"""Expected ratings: from the tokens of a reply to the mean over the scale, or to the reason why it is missing."""

from __future__ import annotations

import math

import orjson
import pytest
from grades import find_rubric, rate
from token_replies import RATED, SEVEN, SEVEN_MEAN, Token, list_tokens, write_text

from evalhouse.prompts import Rating
from evalhouse.tasks.measures.expected_ratings import expect_ratings, find_expectable, pack_logprobs


def expect(*tokens: Token, rubric: str = "accuracy", packed: str | None = "") -> Rating:
    """Return the rating of the reply's only criterion; `packed` in place of the tokens' own log-probabilities."""
    text = write_text(*tokens)
    given = pack_logprobs({"content": list_tokens(*tokens)}, text) if packed == "" else packed
    name = next(iter(find_rubric(rubric).criteria))
    if "[[" in text:
        reply = rate(int(text.rpartition("[[")[2].partition("]]")[0]))
    else:
        reply = orjson.loads(text[text.index("{") : text.rindex("}") + 1])
    rated = {name: Rating(reason="So it is.", rating=5.0)}
    return expect_ratings(rated, reply, text, given, find_rubric(rubric))[name]


@pytest.mark.parametrize(
    ("tokens", "mean", "share"),
    [
        (SEVEN, SEVEN_MEAN, "90.0%"),
        ((*RATED, {"7": 0.5, "8": 0.25, " 8": 0.25}, "}}"), 7.5, "100.0%"),  # two ways to write one number
        ((*RATED, {"2": 0.6, "0": 0.2, "4": 0.2}, "}}"), 2.5, "80.0%"),  # 0 is not on the scale
        ((RATED[0], ' agrees.", "rating":', {" 7": 0.5, " 8": 0.5}, "}}"), 7.5, "100.0%"),
        ((RATED[0], ' agrees.", "rating"', {": 7": 0.5, ": 9": 0.5}, "}}"), 8, "100.0%"),
        ((*RATED, {"7}": 0.5, "8}": 0.3, "8": 0.2}, "}"), 7.5, "100.0%"),
        (("The year agrees. [[", {"7": 0.5, "8": 0.5}, "]]"), 7.5, "100.0%"),
        (("Between [[", {"2": 1.0}, "]] and [[", {"7": 0.5, "8": 0.5}, "]]"), 7.5, "100.0%"),
        (("\n <think>", "年份一致", "</think>", *RATED, {"7": 0.5, "8": 0.5}, "}}", "\n"), 7.5, "100.0%"),
        (('{"accuracy": {"reason": "It says \\"rating\\": 10 ', 'of itself.", "rating": ', {"3": 0.5, "2": 0.5}, "}}"),
         2.5, "100.0%"),
    ],
)  # fmt: skip
def test_a_rating_is_the_mean_over_the_scale_at_its_place(tokens: tuple[Token, ...], mean: float, share: str) -> None:
    rated = expect(*tokens)
    assert rated.expected == pytest.approx(mean, abs=1e-5)
    assert rated.rating == 5.0, "the written rating stays recorded"
    assert rated.note == f"expected from log-probabilities; {share} of the probability lay on the scale"


def test_a_spread_weighs_the_means_of_its_scores_as_the_judge_did() -> None:
    rated = expect(
        '{"passage_recall": {"reason": "Half.", "scores": [{"score": ', {"3": 0.8, "2": 0.2}, ', "probability": 0.4}, ',
        '{"score": ', {"4": 0.9, "5": 0.05, "the": 0.05}, ', "probability": 0.6}]}}',
        rubric="passage_recall",
    )  # fmt: skip
    second = (4 * 0.9 + 5 * 0.05) / 0.95
    assert rated.expected == pytest.approx(0.4 * 2.8 + 0.6 * second, abs=1e-5)
    assert rated.note is not None
    assert f"{0.4 + 0.6 * 0.95:.1%}" in rated.note


def test_a_ten_of_two_tokens_shares_the_one_out_by_what_follows_it() -> None:
    rated = expect(*RATED, {"1": 0.9, "9": 0.1}, {"0": 0.8, "}": 0.2}, "}}")
    assert rated.expected == pytest.approx(0.9 * 0.8 * 10 + 0.9 * 0.2 * 1 + 0.1 * 9, abs=1e-5)
    assert "100.0%" in str(rated.note)


def test_a_one_may_have_become_a_ten() -> None:
    rated = expect(*RATED, {"1": 0.9, "2": 0.1}, {"}}": 0.75, "0": 0.25})
    assert rated.expected == pytest.approx(0.9 * 0.75 * 1 + 0.9 * 0.25 * 10 + 0.1 * 2, abs=1e-5)


def test_a_ten_of_one_token_leaves_the_one_as_it_is() -> None:
    assert expect(*RATED, {"10": 0.5, "1": 0.5}, "}}").expected == pytest.approx(5.5, abs=1e-5)
    assert expect(*RATED, {"9": 0.5, "10": 0.25, "1": 0.25}, "}}").expected == pytest.approx(7.25, abs=1e-5)


def test_a_one_that_may_begin_a_ten_is_not_guessed_at() -> None:
    rated = expect(*RATED, {"9": 0.6, "1": 0.4}, "}}")
    assert rated.expected is None
    assert rated.note == "as written: 40.0% of the probability lay on digits that may begin a longer number"
    # So little of it moves no grade, and is left out.
    assert expect(*RATED, {"9": 0.995, "1": 0.005}, "}}").expected == pytest.approx(9)
    # On a scale that ends before ten it is a one.
    tokens = ('{"accuracy_5": {"reason": "Half.", "rating": ', {"3": 0.6, "1": 0.4}, "}}")
    assert expect(*tokens, rubric="accuracy_5").expected == pytest.approx(2.2, abs=1e-5)


@pytest.mark.parametrize(
    ("tokens", "note"),
    [
        ((*RATED, {"7": 0.3, "x": 0.4, "y": 0.3}, "}}"), "only 30.0% of the probability lay on the scale"),
        ((*RATED, "7.0}}"), "it is not clear where in the reply its number is"),
        (('{"accuracy": {"reason": "Half.", "rating": 2, "rating": ', {"7": 1.0}, "}}"), "it is not clear where"),
        (('{"accuracy": {"reason": "Half.", "rating": 7}, "x": {"accuracy": {"rating": 2}}}',), "it is not clear"),
    ],
)  # fmt: skip
def test_undetermined_rating_is_the_written_one(tokens: tuple[Token, ...], note: str) -> None:
    rated = expect(*tokens)
    assert (rated.rating, rated.expected) == (5.0, None)
    assert str(rated.note).startswith(f"as written: {note}")


def test_tokens_that_do_not_spell_the_reply_are_not_used() -> None:
    text = write_text(*SEVEN)
    packed = pack_logprobs({"content": list_tokens(RATED[0], {"7": 1.0})}, text)
    assert packed == "[]"
    assert expect(*SEVEN, packed=packed).note == "as written: its number could not be found among the tokens"
    # Thoughts or a final mark that an endpoint takes out of the text are around it.
    around = list_tokens("<think>2?</think>", *SEVEN, "<|end|>")
    found = expect(*SEVEN, packed=pack_logprobs({"content": around}, text))
    assert found.expected == pytest.approx(SEVEN_MEAN, abs=1e-5)


@pytest.mark.parametrize(
    "given",
    [None, {}, [], "none", {"content": None}, {"content": []}, {"content": ["7"]}, {"content": [{"token": "7"}]},
     {"content": [{"token": "7", "logprob": None}]}, {"content": [{"token": "7", "logprob": math.nan}]},
     {"tokens": ["7"], "token_logprobs": [-0.1], "top_logprobs": [{"7": -0.1}]}],
)  # fmt: skip
def test_log_probabilities_of_another_shape_are_none(given: object) -> None:
    assert pack_logprobs(given, write_text(*SEVEN)) is None
    assert expect(*SEVEN, packed=None).note == "as written: the endpoint gave no log-probabilities"


def test_tokens_without_alternatives_count_for_what_they_are() -> None:
    likely, unlikely = (
        [{"token": write_text(*SEVEN[:2]), "logprob": 0.0}, {"token": "7", "logprob": math.log(share)},
         {"token": "}}", "logprob": 0.0, "top_logprobs": None}]
        for share in (0.9, 0.4)
    )  # fmt: skip
    text = write_text(*SEVEN)
    assert expect(*SEVEN, packed=pack_logprobs({"content": likely}, text)).expected == 7
    assert expect(*SEVEN, packed=pack_logprobs({"content": unlikely}, text)).expected is None


def test_half_a_character_is_a_token_too() -> None:
    tokens = list_tokens('{"accuracy": {"reason": "', "年", '", "rating": ', {"7": 0.5, "8": 0.5}, "}}")
    halves = [
        {"token": "\\x", "logprob": 0.0, "bytes": list("年".encode()[:2])},
        {"token": "\\x", "logprob": 0.0, "bytes": list("年".encode()[2:])},
    ]
    text = '{"accuracy": {"reason": "年", "rating": 7}}'
    packed = pack_logprobs({"content": [tokens[0], *halves, *tokens[2:]]}, text)
    assert expect(text, packed=packed).expected == pytest.approx(7.5, abs=1e-5)


@pytest.mark.parametrize(
    ("rubric", "expectable"),
    [("accuracy", {"accuracy"}), ("passage_precision", {"passage_precision"}), ("relevance", set()),
     ("answer_validity", set()), ("accuracy_binary", set())],
)  # fmt: skip
def test_spreads_and_lone_ratings_are_expectable(rubric: str, expectable: set[str]) -> None:
    assert find_expectable(find_rubric(rubric)) == expectable


def test_rules_start_from_the_expected_rating() -> None:
    rubric = find_rubric("relevance")
    rated = {
        name: Rating(reason="So.", rating=0.0 if one.kind == "flag" else 9.0) for name, one in rubric.criteria.items()
    }
    rated["accuracy"] = Rating(reason="So.", rating=3.0, expected=1.8, note="expected from tokens")
    rated["comprehensiveness"] = Rating(reason="So.", rating=9.0, expected=8.5, note="expected from tokens")
    grades = {one.criterion: one for one in rubric.settle(rated, has_contexts=True, judged_totals={})}
    assert (grades["accuracy"].said, grades["accuracy"].rating) == (3.0, 1.8)
    assert grades["accuracy"].rule == "expected from tokens"
    assert grades["comprehensiveness"].rule == "expected from tokens; capped at 4: accuracy is 1.8, at most 2"
    assert grades["comprehensiveness"].rating == 4
