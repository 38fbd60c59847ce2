"""What a call costs: our table, a user's over it, dated names of models, and nothing made up."""

from pathlib import Path

import pytest

from tasks.judge_errors import FatalJudgeError
from tasks.prices import Price, find_price, load_prices


def test_tokens_cost_what_the_table_says_a_million() -> None:
    price = Price(input_usd=0.4, output_usd=1.6)
    assert price.cost_usd(1_000_000, 500_000) == pytest.approx(0.4 + 0.8)
    assert price.cost_usd(1000, None) == pytest.approx(0.0004)
    assert price.cost_usd(None, None) is None


def test_a_dated_name_costs_what_its_model_costs() -> None:
    prices = load_prices(None)
    assert find_price(prices, "gpt-4.1-mini-2025-04-14") == prices["gpt-4.1-mini"]
    assert find_price(prices, "gpt-4.1-2025-04-14") == prices["gpt-4.1"]


@pytest.mark.parametrize("model", ["gpt-4.1-maxi", "gpt-4", "qwen3:8b", ""])
def test_an_unknown_model_has_no_price(model: str) -> None:
    assert find_price(load_prices(None), model) is None


def test_the_lexical_judge_is_free() -> None:
    assert find_price({}, "lexical-1") == Price(input_usd=0.0, output_usd=0.0)


def test_a_file_of_ones_own_is_laid_over_ours(tmp_path: Path) -> None:
    own = tmp_path / "prices.yaml"
    own.write_text("qwen3:8b: [0, 0]\ngpt-4.1: [1, 2]\n", encoding="utf-8")
    prices = load_prices(str(own))
    assert prices["qwen3:8b"] == Price(input_usd=0.0, output_usd=0.0)
    assert prices["gpt-4.1"] == Price(input_usd=1.0, output_usd=2.0)
    assert "gpt-4.1-mini" in prices


@pytest.mark.parametrize("text", ["gpt: 3", "gpt: [1]", "- gpt", "gpt: [a, b]", "gpt: {input: 1}", "a: b: c", ""])
def test_a_file_of_another_shape_is_refused_with_the_right_one(tmp_path: Path, text: str) -> None:
    own = tmp_path / "prices.yaml"
    own.write_text(text, encoding="utf-8")
    with pytest.raises(FatalJudgeError, match="no price table; each line is"):
        load_prices(str(own))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FatalJudgeError, match=r"cannot read the price file nowhere\.yaml"):
        load_prices("nowhere.yaml")
