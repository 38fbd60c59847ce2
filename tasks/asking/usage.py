"""The tokens and dollars of requests: estimates, counts and prices.

There are two estimates. The quick one decides where requests are split. The close one is used where no endpoint counts,
in dry runs and for endpoints that report no usage: its weights were fitted to OpenAI's o200k_base over our prompts and
sample dataset, English and Chinese, where it is within 6 % for any one kind of text and 1 % for all.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import yaml

from evalhouse.prompts import Item
from evalhouse.tasks.judge.protocol import FatalJudgeError, ModelReply

_ASCII_PER_TOKEN = 4.0
_BYTES_PER_TOKEN = 3.5
ID_TOKENS = 4

# A snapshot of a model costs the same as the model: gpt-4.1-2025-04-14, qwen-plus-20250428. Shorter endings (-2407,
# -001) mark versions that differ in price, so these are in the table by their whole names.
_DATE = re.compile(r"[-@](20\d\d)(-?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])", re.ASCII)
_BATCH = "batch"
_MAX_PRICE = 1_000_000  # a dollar a token: sums of larger ones may be infinite
_FORM = (
    "`model: [dollars per million input tokens, output tokens]`, with a third number where cached input costs less, "
    "and a fourth where it costs more to have input cached; each from 0 to 1,000,000"
)


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has; at least 1."""
    is_ascii = text.isascii()
    return estimate_size(len(text) if is_ascii else len(text.encode()), is_ascii=is_ascii)


def estimate_size(n_bytes: int, *, is_ascii: bool) -> int:
    """Return about how many tokens a text of so many UTF-8 bytes has; for texts that are put together in pieces."""
    return max(1, round(n_bytes / (_ASCII_PER_TOKEN if is_ascii else _BYTES_PER_TOKEN)))


def estimate_items(items: Sequence[Item]) -> int:
    """Return about how many tokens items have in a request, ids included."""
    return sum(estimate_tokens(item.text) + ID_TOKENS for item in items)


@dataclass(frozen=True, kw_only=True)
class Price:
    """Dollars per million tokens; prompt tokens that the provider had cached cost `cached_usd`, tokens
    that it put into its cache `written_usd`.
    """

    input_usd: float
    output_usd: float
    cached_usd: float | None = None
    written_usd: float | None = None

    def at_rate(self, rate: float) -> "Price":
        """Return a share of the price."""
        shares: dict[str, Any] = {name: None if usd is None else rate * usd for name, usd in vars(self).items()}
        return Price(**shares)

    def cost_usd(
        self,
        prompt_tokens: int | None,
        completion_tokens: int | None,
        cached_tokens: int | None = None,
        written_tokens: int = 0,
    ) -> float | None:
        """Return the dollars for one call; None when the endpoint reported no tokens.

        `cached_tokens` and `written_tokens` are part of `prompt_tokens`; without a separate price they cost the same as
        any others.
        """
        if prompt_tokens is None:
            return None
        cached = min(cached_tokens or 0, prompt_tokens)
        written = min(written_tokens, prompt_tokens - cached)
        cached_usd, written_usd = (
            self.input_usd if usd is None else usd for usd in (self.cached_usd, self.written_usd)
        )
        input_usd = (prompt_tokens - cached - written) * self.input_usd + cached * cached_usd + written * written_usd
        return (input_usd + (completion_tokens or 0) * self.output_usd) / 1e6


def load_prices(path: str | None) -> dict[str, Price]:
    """Return our table with the user's file over it; raises FatalJudgeError for a file that is not a price table."""
    prices: dict[str, Price] = {}
    names = [item.name for item in fields(Price)]
    for where, table in _load_tables(path):
        for model, numbers in table.items():
            if model == _BATCH:
                continue
            if not isinstance(numbers, list) or not 2 <= len(numbers) <= 4 or not all(map(_is_price, numbers)):
                raise FatalJudgeError(
                    f"{where}, model {str(model)!r}: {numbers!r} is not a price; each line is {_FORM}"
                )
            prices[str(model)] = Price(**dict(zip(names, map(float, numbers), strict=False)))
    return prices


def load_batch_rates(path: str | None) -> dict[str, float]:
    """Return by provider, as a judge's name begins, the share of its price that a request costs in a batch."""
    rates: dict[str, float] = {}
    for where, table in _load_tables(path):
        listed = table.get(_BATCH, {})
        if not isinstance(listed, dict) or not all(_is_price(rate) and rate <= 1 for rate in listed.values()):
            raise FatalJudgeError(f"{where}, {_BATCH}: {listed!r} are not shares of a price; write `{{openai: 0.5}}`")
        rates |= {str(provider): float(rate) for provider, rate in listed.items()}
    return rates


def _load_tables(path: str | None) -> list[tuple[str, dict[Any, Any]]]:
    """Return our table and the user's, each with its name."""
    ours = files("evalhouse.tasks.asking").joinpath("prices.yaml").read_text(encoding="utf-8")
    tables = [("prices.yaml", _parse_table(ours, "prices.yaml"))]
    if path is None:
        return tables
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FatalJudgeError(f"cannot read the price file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FatalJudgeError(f"cannot read the price file {path}: it is not UTF-8") from None
    return [*tables, (path, _parse_table(text, path))]


@lru_cache(maxsize=4)
def _parse_table(text: str, where: str) -> dict[Any, Any]:
    try:
        # The parser in C takes a tenth of the time, which every run would wait for.
        table = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        line = getattr(error, "problem_mark", None)
        place = f", line {line.line + 1}" if line else ""
        raise FatalJudgeError(f"{where}{place} is not valid YAML; each line of a price table is {_FORM}") from None
    if not isinstance(table, dict) or not table:
        raise FatalJudgeError(f"{where} is not a price table; each line is {_FORM}")
    return table


def _is_price(number: object) -> bool:
    """Return whether it is an amount of dollars: YAML also has truth values, infinities and NaN."""
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= _MAX_PRICE


def find_price(prices: Mapping[str, Price], model: str) -> Price | None:
    """Return the price of a model, also under a dated name such as gpt-4.1-2025-04-14; None without one."""
    if model.startswith(("lexical", "local:")):
        return Price(input_usd=0.0, output_usd=0.0)
    if model in prices:
        return prices[model]
    date = _DATE.search(model)
    return prices.get(model[: date.start()]) if date and date.end() == len(model) else None


_LATIN = r"A-Za-z\u00c0-\u024f"
# Chinese characters, kana, hangul, and the wide forms of punctuation and letters.
_WIDE = r"\u3000-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef"
_WORD = re.compile(f"[{_LATIN}]+")
_NUMBER = re.compile(r"[0-9]{1,3}")
_WIDE_CHARACTER = re.compile(f"[{_WIDE}]")
_MARKS = re.compile(rf"(?:[^\w\s{_WIDE}]|_)+")
_OTHER_LETTER = re.compile(rf"[^\W\d_{_LATIN}{_WIDE}]")

_MAX_KEPT = 50_000
_PER_WORD = 1.0
_PER_FURTHER_LETTER = 0.12  # of a word of more than `_SHORT_WORD` letters
_SHORT_WORD = 6
_PER_NUMBER = 1.6  # the space in front of it is a separate token
_PER_WIDE_CHARACTER = 0.8
_PER_RUN_OF_MARKS = 0.95
_PER_OTHER_LETTER = 0.3  # Cyrillic, Arabic, Devanagari and so on, roughly

# The tokens around each message of a chat, and for the reply's beginning, as OpenAI counts them.
_PER_MESSAGE = 4
_PER_CHAT = 3
# OpenAI puts the schema of the reply among the instructions. Others constrain the reply with it, at no tokens.
_CHARGES_SCHEMA = "api.openai.com"
# The length of a reply before the first one has come.
_REPLY_TOKENS = 200


@dataclass(kw_only=True)
class Usage:
    """The sums over requests that were sent, or in a dry run would be; the usages of several judges add up.

    `failed` requests brought no usable reply: to the `unreadable` ones among them one came that could not be read, to
    the `late` ones none in time. For the `shortened` ones the endpoint counted far fewer tokens than they have.
    `spent_usd` is without the `unpriced` requests, for whose model no price is known. `saved_usd` is the part of it
    that a provider's cache would save, which only a dry run counts: elsewhere it is saved already.
    """

    requests: int = 0
    reused: int = 0
    failed: int = 0
    unreadable: int = 0
    late: int = 0
    shortened: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    spent_usd: float = 0.0
    saved_usd: float = 0.0
    unpriced: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(Usage)})

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(**{field.name: getattr(self, field.name) - getattr(other, field.name) for field in fields(Usage)})

    @property
    def cost_usd(self) -> float | None:
        """All dollars; None where a price is not known."""
        return None if self.unpriced else self.spent_usd

    @property
    def cached_usd(self) -> float | None:
        """The dollars where the provider's cache holds the beginnings that requests share."""
        return None if self.unpriced else self.spent_usd - self.saved_usd

    def pick(self, *names: str) -> dict[str, object]:
        """Return some of these numbers by name, as JSON has them."""
        return {name: getattr(self, name) for name in names}


def count_tokens(text: str) -> float:
    """Return about how many tokens a text has by itself."""
    return (_count_again if len(text) <= _MAX_KEPT else _count_again.__wrapped__)(text)


@lru_cache(maxsize=256)  # the instructions and worked examples in front of every request, and no long material
def _count_again(text: str) -> float:
    words = _WORD.findall(text)
    further = sum(len(word) - _SHORT_WORD for word in words if len(word) > _SHORT_WORD)
    return (
        _PER_WORD * len(words)
        + _PER_FURTHER_LETTER * further
        + _PER_NUMBER * len(_NUMBER.findall(text))
        + _PER_WIDE_CHARACTER * len(_WIDE_CHARACTER.findall(text))
        + _PER_RUN_OF_MARKS * len(_MARKS.findall(text))
        + _PER_OTHER_LETTER * len(_OTHER_LETTER.findall(text))
    )


def count_request(payload: Mapping[str, Any]) -> int:
    """Return about how many prompt tokens a request has, from its payload: a chat's or an embedding's."""
    messages: Sequence[Mapping[str, str]] = payload.get("messages", ())
    if not messages:
        return round(sum(map(count_tokens, _list_texts(payload))))
    n_tokens = sum(count_tokens(message["content"]) + _PER_MESSAGE for message in messages) + _PER_CHAT
    schema = payload.get("response_format")
    if schema and urlsplit(str(payload.get("endpoint", ""))).hostname == _CHARGES_SCHEMA:
        n_tokens += count_tokens(orjson.dumps(schema).decode())
    return round(n_tokens)


def guess_tokens(payload: Mapping[str, object], usage: Usage) -> int:
    """Return about how many tokens a request takes by the quick rule: its texts and, of a chat model, the reply.

    A reply is taken to be as long as the replies of the `usage` so far in the mean.
    """
    messages = payload.get("messages")
    if isinstance(messages, list):
        answered = usage.requests - usage.failed
        has_replies = answered > 0 and usage.completion_tokens
        reply_tokens = usage.completion_tokens // answered if has_replies else _REPLY_TOKENS
        return reply_tokens + estimate_prompt(payload)
    return sum(map(estimate_tokens, _list_texts(payload)))


def _list_texts(payload: Mapping[str, Any]) -> list[str]:
    """Return the texts of a request for embeddings, one or several; none of another request."""
    texts = payload.get("input", [])
    return [texts] if isinstance(texts, str) else list(texts)


def estimate_prompt(payload: Mapping[str, object]) -> int:
    """Return about how many tokens the messages of a chat's request have, by the quick rule; 0 for other requests."""
    messages = payload.get("messages")
    return sum(estimate_tokens(message["content"]) for message in messages) if isinstance(messages, list) else 0


def price_reply(price: Price, request: str | None, reply: ModelReply) -> float:
    """Return the dollars of an answered request; `request` is its recorded payload.

    Tokens that the endpoint does not count, or counts as 0, are counted here instead: a budget would never be spent.
    """
    prompt_tokens, completion_tokens = reply.prompt_tokens, reply.completion_tokens
    if not (prompt_tokens and completion_tokens) and (price.input_usd or price.output_usd):
        payload = orjson.loads(request or "{}")
        prompt_tokens = prompt_tokens or count_request(payload)
        n_written = count_tokens(reply.text) + count_tokens(reply.thoughts or "")
        completion_tokens = completion_tokens or (round(n_written) if "messages" in payload else 0)
    return price.cost_usd(prompt_tokens or 0, completion_tokens, reply.cached_tokens, reply.written_tokens) or 0.0
