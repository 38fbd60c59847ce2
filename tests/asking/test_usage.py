"""Estimated tokens, compared with OpenAI's tokenizer; the splitting of texts by them; and price tables."""

from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.prompts import Item
from evalhouse.tasks.asking.splitting import split_by_tokens
from evalhouse.tasks.asking.usage import (
    Price,
    count_request,
    count_tokens,
    estimate_items,
    estimate_tokens,
    find_price,
    load_prices,
    price_reply,
)
from evalhouse.tasks.judge.protocol import FatalJudgeError, ModelReply

PRICE = Price(input_usd=2.0, output_usd=8.0, cached_usd=0.5)
# With what o200k_base, the vocabulary of gpt-4o and later, counts.
COUNTED = {
    "English prose": (
        "A Halvra grow light has a limited warranty of 3 years from the date of purchase. It is extended to 5 "
        "years if you register the light in the Sprigbook app within 60 days of buying it, and nothing beyond "
        "the driver and the board is covered after water damage.",
        60,
    ),
    "Chinese prose": (
        "自2024年2月1日起，凡在本店购买的植物灯，均可在收到货物后三十天内退货。退款将在五个工作日内原路返还，运"
        "费由顾客承担；如果商品有质量问题，运费由我们承担。",
        62,
    ),
    "verdicts": (
        '{"verdicts":[{"id":"A1","reason":"G1 says the same in other '
        'words.","label":"TP"},{"id":"A2","reason":"G2 says spring and not '
        'autumn.","label":"FP"},{"id":"G1","reason":"A1 says the same in other '
        'words.","label":"TP"},{"id":"G2","reason":"A2 contradicts it with autumn.","label":"FN"}]}',
        85,
    ),
    "numbers": (
        "The invoice of 2026-11-21 lists 14 lamps at £18.50, 3 drivers at £26 and 120 pumps at £4.99: £933.80 "
        "in all, of which 20 % or £155.63 is tax.",
        56,
    ),
    "Russian": (
        "Гарантия на лампу действует три года со дня покупки. Если зарегистрировать лампу в приложении в "
        "течение шестидесяти дней, срок продлевается до пяти лет.",
        37,
    ),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_tokens_of_a_text_are_about_those_of_a_tokenizer(kind: str) -> None:
    text, counted = COUNTED[kind]
    assert count_tokens(text) == pytest.approx(counted, rel=0.2)


def test_over_all_kinds_of_text_the_deviations_cancel_out() -> None:
    guessed = sum(count_tokens(text) for text, _ in COUNTED.values())
    assert guessed == pytest.approx(sum(counted for _, counted in COUNTED.values()), rel=0.05)


def make_chat(**changes: object) -> dict[str, object]:
    messages = [{"role": "system", "content": "Judge the text."}, {"role": "user", "content": "It is green."}]
    return {"endpoint": "http://127.0.0.1:1/v1", "model": "m", "messages": messages, **changes}


def test_a_request_has_the_tokens_of_its_messages_and_their_wrapping() -> None:
    texts = count_tokens("Judge the text.") + count_tokens("It is green.")
    assert texts + 6 <= count_request(make_chat()) <= texts + 14


def test_only_openai_itself_charges_for_the_schema() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "rank", "schema": {"type": "object"}}}
    plain = count_request(make_chat())
    assert count_request(make_chat(response_format=schema)) == plain
    at_openai = make_chat(response_format=schema, endpoint="https://api.openai.com/v1")
    assert count_request(at_openai) == pytest.approx(plain + count_tokens(orjson.dumps(schema).decode()), abs=1)


def test_what_the_endpoint_counts_is_what_is_paid() -> None:
    reply = ModelReply(text="{}", prompt_tokens=1_000_000, cached_tokens=500_000, completion_tokens=100_000)
    assert price_reply(PRICE, None, reply) == pytest.approx(1.0 + 0.25 + 0.8)


@pytest.mark.parametrize("prompt_tokens", [None, 0])
@pytest.mark.parametrize("completion_tokens", [None, 0])
def test_what_it_does_not_count_is_estimated(prompt_tokens: int | None, completion_tokens: int | None) -> None:
    request = make_chat()
    reply = ModelReply(text='{"label": "TP"}', prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    expected = PRICE.cost_usd(count_request(request), round(count_tokens(reply.text)))
    assert price_reply(PRICE, orjson.dumps(request).decode(), reply) == pytest.approx(expected)


def test_an_embedding_has_no_completion_tokens() -> None:
    request = orjson.dumps({"model": "m", "input": "It is green."}).decode()
    reply = ModelReply(text="packed floats of a vector, not a text", prompt_tokens=None)
    assert price_reply(PRICE, request, reply) == pytest.approx(round(count_tokens("It is green.")) * 2e-6)


def test_what_is_free_is_not_counted() -> None:
    assert price_reply(Price(input_usd=0.0, output_usd=0.0), "no JSON at all", ModelReply(text="x" * 1000)) == 0


TEXTS = st.text(max_size=60) | st.integers(0, 400).map("word ".__mul__) | st.integers(0, 200).map("灯塔".__mul__)


@st.composite
def draw_items(draw: st.DrawFn) -> list[Item]:
    texts = draw(st.lists(TEXTS, max_size=12))
    return [Item(id=f"C{rank}", text=text) for rank, text in enumerate(texts, start=1)]


@given(items=draw_items(), most=st.integers(1, 400))
def test_splitting_loses_nothing_and_a_group_ends_only_where_the_next_item_has_no_room(
    items: list[Item], most: int
) -> None:
    groups = split_by_tokens(items, most)
    assert [item for group in groups for item in group] == items
    assert all(groups)
    assert all(estimate_items(group) <= most for group in groups if len(group) > 1)
    for group, following in pairwise(groups):
        assert estimate_items([*group, following[0]]) > most


@given(one=TEXTS, other=TEXTS)
def test_more_text_is_never_fewer_tokens(one: str, other: str) -> None:
    assert estimate_tokens(one + other) >= max(estimate_tokens(one), estimate_tokens(other)) >= 1


@pytest.mark.parametrize("text", ["The cafe on the pier serves fish soup on Fridays.", "word " * 500])
def test_one_letter_of_another_script_changes_little(text: str) -> None:
    """The estimate goes another way for a text that is not all ASCII, and must not jump there."""
    assert estimate_tokens(text.replace("w", "ŵ", 1) + "é") == pytest.approx(estimate_tokens(text), rel=0.25)


def test_an_id_takes_room_as_well() -> None:
    items = [Item(id=f"A{number}", text="Yes.") for number in range(100)]
    assert estimate_items(items) > 2 * sum(estimate_tokens(item.text) for item in items)
    assert estimate_items([]) == 0


def write_prices(folder: Path, text: str) -> str:
    own = folder / "own.yaml"
    own.write_text(text, encoding="utf-8")
    return str(own)


M = 1_000_000
PLAIN, FREE_CACHE = Price(input_usd=2.0, output_usd=8.0), Price(input_usd=2.0, output_usd=8.0, cached_usd=0.0)
FILLED = Price(input_usd=2.0, output_usd=8.0, cached_usd=0.2, written_usd=2.5)


@pytest.mark.parametrize(
    ("price", "tokens", "cost_usd"),
    [
        (PLAIN, (M, M // 2), 6.0),
        (PLAIN, (1000, None), 0.002),
        (PLAIN, (None, None), None),
        *((PRICE, (M, completion, cached), cost + completion * 8e-6)
          for cached, cost in ((None, 2.0), (0, 2.0), (400_000, 1.4), (M, 0.5), (1_200_000, 0.5))
          for completion in (0, 250_000)),
        (PLAIN, (1000, 10, 900), 0.00208),  # without a separate price they cost the same
        (FREE_CACHE, (1000, 0, 1000), 0.0),
        (FILLED, (M, 0, 300_000, 200_000), 1.0 + 0.06 + 0.5),
        (FILLED, (M, 0, 900_000, 900_000), 0.18 + 0.25),  # what fills the cache costs more, and counts once
        (FILLED.at_rate(0.5), (M, 0, 0, M), 1.25),
        (PLAIN, (M, 0, 0, M), 2.0),
    ],
)  # fmt: skip
def test_tokens_cost_what_the_table_says_a_million(
    price: Price, tokens: tuple[Any, ...], cost_usd: float | None
) -> None:
    assert price.cost_usd(*tokens) == (None if cost_usd is None else pytest.approx(cost_usd))


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gpt-4.1-mini-2025-04-14", "gpt-4.1-mini"),
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


NUMBERS = [
    "3", "[1]", "[1, 2, 3, 4, 5]", "[a, b]", "{input: 1}", "[1, -2]", "[.inf, 1]", "[.nan, 1]", "[true, 1]", "null",
    "['1', '2']", "[1, null]", "[1.0e+308, 1]", "[1, 1000001]", f"[1{'0' * 400}, 1]",
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *((text, r"own\.yaml is not a price table; each line is `model: \[dollars")
          for text in (b"- gpt", b"gpt", b"", b"{}", b"# nothing")),
        *((f"good: [1, 2]\nbad: {numbers}\n".encode(), r"own\.yaml, model 'bad': .* is not a price; each line is")
          for numbers in NUMBERS),
        (b"gpt: [1, 2]\na: b: c\n", r"own\.yaml, line 2 is not valid YAML; each line of a price table is"),
        (b"gpt: [\xff, 2]", r"cannot read the price file .*own\.yaml: it is not UTF-8"),
        (None, r"cannot read the price file .*own\.yaml"),
    ],
)  # fmt: skip
def test_an_invalid_price_file_is_refused_with_its_place(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "own.yaml").write_bytes(content)
    with pytest.raises(FatalJudgeError, match=problem) as refused:
        load_prices(str(tmp_path / "own.yaml"))
    assert "good" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
