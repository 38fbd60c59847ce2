"""Estimated tokens: compared with OpenAI's tokenizer on the same texts, counted once and written down."""

import orjson
import pytest

from evalhouse.tasks.asking.usage import Price, count_request, count_tokens, price_reply
from evalhouse.tasks.judge.protocol import ModelReply

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
    "both": (
        "The order number is 42-1187. 订单号是 42-1187，请在 App 里查询物流状态。Please keep the receipt 收据 "
        "for 5 years.",
        39,
    ),
    "verdicts": (
        '{"verdicts":[{"id":"A1","reason":"G1 says the same in other '
        'words.","label":"TP"},{"id":"A2","reason":"G2 says spring and not '
        'autumn.","label":"FP"},{"id":"G1","reason":"A1 says the same in other '
        'words.","label":"TP"},{"id":"G2","reason":"A2 contradicts it with autumn.","label":"FN"}]}',
        85,
    ),
    "statements": (
        '{"statements": ["The Ottervale lift is a funicular.", "The Ottervale lift is driven by water.", "The '
        'Ottervale lift has run since 1894.", "The Ottervale lift takes about 14 people a trip."]}',
        55,
    ),
    "numbers": (
        "The invoice of 2026-11-21 lists 14 lamps at £18.50, 3 drivers at £26 and 120 pumps at £4.99: £933.80 "
        "in all, of which 20 % or £155.63 is tax.",
        56,
    ),
    "blocks": (
        "<question 1a2b3c4d>\nHow long does the crossing take?\n</question 1a2b3c4d>\n<contexts 1a2b3c4d>\n"
        "[C1] Crossing: 40 minutes.\n    In winter: 55 minutes.\n[C2] Tickets are sold on board.\n</contexts "
        "1a2b3c4d>",
        81,
    ),
    "Markdown": (
        "# Returns\n\n- Within 30 days: full refund.\n- After that: *store credit* only.\n\n| item | fee |\n| "
        "--- | --- |\n| lamp | none |\n| pump | 5 % |\n",
        44,
    ),
    "Russian": (
        "Гарантия на лампу действует три года со дня покупки. Если зарегистрировать лампу в приложении в "
        "течение шестидесяти дней, срок продлевается до пяти лет.",
        37,
    ),
    "French": (
        "La garantie de la lampe est de trois ans à compter de la date d'achat. Elle est prolongée à cinq ans "
        "si vous enregistrez l'appareil dans l'application sous soixante jours.",
        42,
    ),
    "SQL": (
        "select customer_id, count(*) as n_orders from orders where ordered_at >= '2026-01-01' and status <> "
        "'cancelled' group by customer_id having count(*) > 3 order by n_orders desc;",
        46,
    ),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_tokens_of_a_text_are_about_those_of_a_tokenizer(kind: str) -> None:
    text, counted = COUNTED[kind]
    assert count_tokens(text) == pytest.approx(counted, rel=0.2)


def test_over_all_kinds_of_text_the_deviations_cancel_out() -> None:
    guessed = sum(count_tokens(text) for text, _ in COUNTED.values())
    assert guessed == pytest.approx(sum(counted for _, counted in COUNTED.values()), rel=0.05)


def test_no_text_has_no_tokens_and_more_text_never_fewer() -> None:
    assert count_tokens("") == 0
    for text, _ in COUNTED.values():
        assert 0 < count_tokens(text) < count_tokens(text + "\n" + text)


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


def test_a_text_to_embed_has_its_own_tokens_alone() -> None:
    assert count_request({"model": "m", "input": "It is green and blue."}) == round(
        count_tokens("It is green and blue.")
    )


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


def test_a_prompt_that_was_counted_is_not_estimated_again() -> None:
    reply = ModelReply(text='{"label": "TP"}', prompt_tokens=500)
    expected = PRICE.cost_usd(500, round(count_tokens(reply.text)))
    assert price_reply(PRICE, orjson.dumps(make_chat()).decode(), reply) == pytest.approx(expected)


def test_an_embedding_has_no_completion_tokens() -> None:
    request = orjson.dumps({"model": "m", "input": "It is green."}).decode()
    reply = ModelReply(text="packed floats of a vector, not a text", prompt_tokens=None)
    assert price_reply(PRICE, request, reply) == pytest.approx(round(count_tokens("It is green.")) * 2e-6)


def test_what_is_free_is_not_counted() -> None:
    assert price_reply(Price(input_usd=0.0, output_usd=0.0), "no JSON at all", ModelReply(text="x" * 1000)) == 0
