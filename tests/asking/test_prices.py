"""The price of a call: our table, a user's over it, dated names of models, cached tokens, and no invented price."""

from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from evalhouse.tasks.asking.usage import Price, find_price, load_prices
from evalhouse.tasks.judge.protocol import FatalJudgeError


def write_prices(folder: Path, text: str) -> str:
    own = folder / "own.yaml"
    own.write_text(text, encoding="utf-8")
    return str(own)


def test_tokens_cost_what_the_table_says_a_million() -> None:
    price = Price(input_usd=0.4, output_usd=1.6)
    assert price.cost_usd(1_000_000, 500_000) == pytest.approx(0.4 + 0.8)
    assert price.cost_usd(1000, None) == pytest.approx(0.0004)
    assert price.cost_usd(None, None) is None


@pytest.mark.parametrize(
    ("cached_tokens", "cost_usd"), [(None, 2.0), (0, 2.0), (400_000, 1.4), (1_000_000, 0.5), (1_200_000, 0.5)]
)
def test_cached_tokens_are_part_of_the_prompt_and_cost_less(cached_tokens: int | None, cost_usd: float) -> None:
    price = Price(input_usd=2.0, output_usd=8.0, cached_usd=0.5)
    assert price.cost_usd(1_000_000, 0, cached_tokens) == pytest.approx(cost_usd)
    assert price.cost_usd(1_000_000, 250_000, cached_tokens) == pytest.approx(cost_usd + 2.0)


def test_cached_tokens_without_a_separate_price_cost_the_same() -> None:
    price = Price(input_usd=2.0, output_usd=8.0)
    assert price.cost_usd(1000, 10, 900) == price.cost_usd(1000, 10)
    free = Price(input_usd=2.0, output_usd=8.0, cached_usd=0.0)
    assert free.cost_usd(1000, 0, 1000) == 0


def test_tokens_that_fill_the_cache_cost_more_and_count_once() -> None:
    price = Price(input_usd=2.0, output_usd=8.0, cached_usd=0.2, written_usd=2.5)
    assert price.cost_usd(1_000_000, 0, 300_000, 200_000) == pytest.approx(1.0 + 0.06 + 0.5)
    assert price.cost_usd(1_000_000, 0, 900_000, 900_000) == pytest.approx(0.18 + 0.25)
    assert price.at_rate(0.5).cost_usd(1_000_000, 0, 0, 1_000_000) == pytest.approx(1.25)
    assert Price(input_usd=2.0, output_usd=8.0).cost_usd(1_000_000, 0, 0, 1_000_000) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gpt-4.1-mini-2025-04-14", "gpt-4.1-mini"),
        ("gpt-4.1-2025-04-14", "gpt-4.1"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("qwen-plus-20250428", "qwen-plus"),
        ("gemini-2.5-pro@20250617", "gemini-2.5-pro"),
        ("mistral-large-2512", "mistral-large-2512"),
    ],
)
def test_a_dated_name_costs_what_its_model_costs(model: str, family: str) -> None:
    prices = load_prices(None)
    assert find_price(prices, model) == prices[family]


def test_price_of_a_dated_name_goes_before_its_family(tmp_path: Path) -> None:
    prices = load_prices(write_prices(tmp_path, "gpt-4o-2024-05-13: [5, 15]\n"))
    assert find_price(prices, "gpt-4o-2024-05-13") == Price(input_usd=5.0, output_usd=15.0)
    assert find_price(prices, "gpt-4o-2024-08-06") == prices["gpt-4o"]


@pytest.mark.parametrize(
    "model",
    [
        "gpt-4.1-maxi", "gpt-4.1-2", "gpt-4.1-25", "gpt-4.1-2025", "gpt-4.1-2025-13-01", "gpt-4.1-2025-0414",
        "gpt-4.1-2025-04-14-preview", "my-gpt-4.1", "gpt-4.1x-2025-04-14", "-2025-04-14", "gpt-4.1-２０２５-04-14",
        "gpt", "GPT-4.1", "qwen3:8b", "mistral-large-2407", "",
    ],
)  # fmt: skip
def test_an_unknown_model_has_no_price(model: str) -> None:
    assert find_price(load_prices(None), model) is None


def test_the_lexical_judge_is_free() -> None:
    assert find_price({}, "lexical-4") == Price(input_usd=0.0, output_usd=0.0)


def test_prices_of_our_table_are_plausible() -> None:
    """No model gives more away than it takes: a slip of the pen (a swapped pair, a shifted point) shows here."""
    prices = load_prices(None)
    assert len(prices) >= 60
    for model, price in prices.items():
        assert 0 < price.input_usd <= 150, model
        assert price.output_usd == 0 if "embed" in model else price.output_usd >= price.input_usd, model
        assert price.output_usd <= 12 * price.input_usd, model
        assert price.written_usd == (1.25 * price.input_usd if model.startswith("claude") else None), model
        assert price.cached_usd is None or price.input_usd / 100 <= price.cached_usd <= price.input_usd / 2, model


def test_each_model_is_in_our_table_once() -> None:
    text = files("evalhouse.tasks.asking").joinpath("prices.yaml").read_text(encoding="utf-8")
    names = [key.value for key, _ in yaml.compose(text, Loader=yaml.SafeLoader).value]
    assert len(names) == len(set(names))


def test_own_price_file_overrides_ours(tmp_path: Path) -> None:
    prices = load_prices(write_prices(tmp_path, "qwen3:8b: [0, 0]\ngpt-4.1: [1, 2]\nmine: [1, 2, 0.1]\n"))
    assert prices["qwen3:8b"] == Price(input_usd=0.0, output_usd=0.0)
    assert prices["gpt-4.1"] == Price(input_usd=1.0, output_usd=2.0)
    assert prices["mine"] == Price(input_usd=1.0, output_usd=2.0, cached_usd=0.1)
    assert prices["gpt-4.1-mini"] == load_prices(None)["gpt-4.1-mini"]


@pytest.mark.parametrize("text", ["- gpt", "gpt", "", "{}", "# nothing"])
def test_a_file_of_another_shape_is_refused_with_the_right_one(tmp_path: Path, text: str) -> None:
    own = write_prices(tmp_path, text)
    with pytest.raises(FatalJudgeError, match=r"own\.yaml is not a price table; each line is `model: \[dollars"):
        load_prices(own)


def test_file_with_invalid_yaml_is_refused_with_the_line(tmp_path: Path) -> None:
    own = write_prices(tmp_path, "gpt: [1, 2]\na: b: c\n")
    with pytest.raises(FatalJudgeError, match=r"own\.yaml, line 2 is not valid YAML; each line of a price table is"):
        load_prices(own)


@pytest.mark.parametrize(
    "numbers",
    ["3", "[1]", "[1, 2, 3, 4, 5]", "[a, b]", "{input: 1}", "[1, -2]", "[.inf, 1]", "[.nan, 1]", "[true, 1]", "null",
     "['1', '2']", "[1, null]"],
)  # fmt: skip
def test_a_price_that_is_none_is_named_with_its_model(tmp_path: Path, numbers: str) -> None:
    own = write_prices(tmp_path, f"good: [1, 2]\nbad: {numbers}\n")
    with pytest.raises(FatalJudgeError, match=r"own\.yaml, model 'bad': .* is not a price; each line is") as refused:
        load_prices(own)
    assert "good" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FatalJudgeError, match=r"cannot read the price file missing\.yaml"):
        load_prices("missing.yaml")


def test_a_file_of_bytes_is_named(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_bytes(b"gpt: [\xff, 2]")
    with pytest.raises(FatalJudgeError, match=r"cannot read the price file .*own\.yaml: it is not UTF-8"):
        load_prices(str(own))
